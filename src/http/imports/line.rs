//! What a line of an upload comes to, in whatever format it is.

use crate::domain::{ITEM_BYTES_MAX, LineFault};
use thiserror::Error;

/// The longest line or CSV record that is held, in bytes: room for an item with every byte escaped as `\u00xx`,
/// and for other fields beside it.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

/// An upload that can't be read at all.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum UploadFault {
    /// It begins with a byte-order mark.
    #[error("the upload begins with a byte-order mark, which would become part of the first item")]
    ByteOrderMark,
    /// No column of the CSV header bears the name.
    #[error("the header row names no such column")]
    NoSuchColumn,
    /// The CSV header has so many columns, and none is named.
    #[error("the header row has {0} columns: name the one that holds the items")]
    WhichColumn(usize),
    /// The CSV header is too long, or no record.
    #[error("the header row can't be read")]
    BadHeader,
}

/// What a line comes to.
pub(crate) enum Line<'a> {
    /// An item.
    Item(&'a str),
    /// Nothing, which is passed over.
    Blank,
    /// No item.
    Rejected(LineFault),
}

/// An item as it stands, or what is wrong with it.
pub(super) fn item(bytes: &[u8]) -> Line<'_> {
    if bytes.is_empty() {
        return Line::Rejected(LineFault::Empty);
    }
    if bytes.len() > ITEM_BYTES_MAX {
        return Line::Rejected(LineFault::ItemTooLong);
    }
    str::from_utf8(bytes).map_or(Line::Rejected(LineFault::NotUtf8), Line::Item)
}
