//! The result of reading one line of an upload, in any format.

use crate::domain::{ITEM_BYTES_MAX, LineFault};
use thiserror::Error;

/// The longest line or CSV record, in bytes: room for an item with every byte escaped as `\u00xx`, and for other fields beside
/// it.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

/// Why an upload can't be read at all.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum UploadFault {
    /// It begins with a byte-order mark.
    #[error("the upload begins with a byte-order mark, which would become part of the first item")]
    ByteOrderMark,
    /// The CSV header has no column of this name.
    #[error("the header row has no such column")]
    NoSuchColumn,
    /// The CSV header has this many columns, and the request names none.
    #[error("the header row has {0} columns: name the one that holds the items")]
    WhichColumn(usize),
    /// The CSV header is too long, or is not a record.
    #[error("the header row can't be read")]
    BadHeader,
}

/// The result of reading a line.
pub(crate) enum Line<'a> {
    /// An item.
    Item(&'a str),
    /// A blank line, which is skipped.
    Blank,
    /// A line without a valid item.
    Rejected(LineFault),
}

#[cfg(test)]
impl Line<'_> {
    /// The line as tests compare it.
    pub(super) fn shown(&self) -> String {
        match self {
            Line::Item(item) => (*item).to_owned(),
            Line::Blank => "-".into(),
            Line::Rejected(fault) => format!("!{fault:?}"),
        }
    }
}

/// The item as it is, or what is wrong with it.
pub(super) fn item(bytes: &[u8]) -> Line<'_> {
    if bytes.is_empty() {
        return Line::Rejected(LineFault::Empty);
    }
    if bytes.len() > ITEM_BYTES_MAX {
        return Line::Rejected(LineFault::ItemTooLong);
    }
    str::from_utf8(bytes).map_or(Line::Rejected(LineFault::NotUtf8), Line::Item)
}
