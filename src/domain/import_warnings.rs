//! What looks wrong about an upload, though it is allowed.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Something that looks wrong about an upload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
pub enum ImportWarning {
    /// Nearly all items are alike.
    #[error("of {items} items only about {different} are different: is it the right column?")]
    ItemsAlike {
        /// How many there are.
        items: u64,
        /// How many of them are different, about.
        different: u64,
    },
    /// The lines of a text look like records.
    #[error(
        "most of the lines have the same number of {separator:?}: if this is CSV, send it as text/csv, and name the column"
    )]
    LooksLikeCsv {
        /// What separates the fields.
        separator: char,
    },
    /// The lines of a text look like JSON.
    #[error("most of the lines look like JSON: if this is NDJSON, send it as application/x-ndjson")]
    LooksLikeJson,
    /// Items begin or end with a space that belongs to them.
    #[error("{items} items begin or end with white space, which is a part of them")]
    WhiteSpace {
        /// How many.
        items: u64,
    },
    /// Hardly any line was taken.
    #[error("{rejected} of {lines} lines were rejected: is it the right format?")]
    MostRejected {
        /// How many.
        rejected: u64,
        /// Of how many.
        lines: u64,
    },
}
