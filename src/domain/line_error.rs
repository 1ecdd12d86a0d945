//! Rejected lines of an upload.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What is wrong with a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
pub enum LineFault {
    /// Longer than 512 bytes.
    #[error("item-too-long")]
    ItemTooLong,
    /// Not UTF-8.
    #[error("not-utf8")]
    NotUtf8,
    /// NDJSON: neither a string nor an object with a string `item`. CSV: not a record, or one without the column.
    #[error("malformed")]
    Malformed,
    /// An empty item.
    #[error("empty")]
    Empty,
}

/// A rejected line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LineError {
    /// Its number; the first line is 1.
    pub line: u64,
    /// What is wrong with it.
    pub fault: LineFault,
}
