//! Warnings: what looks wrong about an upload, although it is allowed.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Something that looks wrong about an upload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
pub enum ImportWarning {
    /// Nearly all items are equal.
    #[error("only about {different} of {items} items are different: is it the right column?")]
    ItemsAlike {
        /// Number of items.
        items: u64,
        /// Approximate number of distinct items.
        different: u64,
    },
    /// Most items were present already, and now have a further copy.
    #[error(
        "about {present} of {items} items were present already and get another copy: use if_absent=true or mode=replace"
    )]
    MostPresent {
        /// Approximate number of such items.
        present: u64,
        /// Number of items.
        items: u64,
    },
    /// The lines of a text look like records.
    #[error(
        "most of the lines have the same number of {separator:?}: if this is CSV, send it as text/csv, and name the column"
    )]
    LooksLikeCsv {
        /// The character that separates the fields.
        separator: char,
    },
    /// The lines of a text look like JSON.
    #[error("most of the lines look like JSON: if this is NDJSON, send it as application/x-ndjson")]
    LooksLikeJson,
    /// Items begin or end with white space, which belongs to them.
    #[error("{items} items begin or end with white space, which is a part of them")]
    WhiteSpace {
        /// Number of such items.
        items: u64,
    },
    /// Nearly all lines were rejected.
    #[error("{rejected} of {lines} lines were rejected: is it the right format?")]
    MostRejected {
        /// Rejected lines.
        rejected: u64,
        /// All lines.
        lines: u64,
    },
}
