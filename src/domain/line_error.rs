//! Rejected lines of an upload.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

/// What is wrong with a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema, Error)]
#[serde(rename_all = "kebab-case")]
#[schema(as = LineErrorCode)]
pub enum LineFault {
    /// Longer than 512 bytes.
    #[error("item-too-long")]
    ItemTooLong,
    /// Not UTF-8.
    #[error("not-utf8")]
    NotUtf8,
    /// Neither a JSON string nor `{"item":…}`; not a CSV record, or one without the column.
    #[error("malformed")]
    Malformed,
    /// An empty item.
    #[error("empty")]
    Empty,
}

/// A rejected line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LineError {
    /// Its number; the first line is 1.
    #[schema(minimum = 1)]
    pub line: u64,
    /// What is wrong with it.
    #[serde(rename = "code")]
    pub fault: LineFault,
}
