//! Entry points for the fuzz targets in `fuzz/`; the program doesn't use them.

use super::imports::lines::{Format, Line, Lines};
use crate::domain::LineFault;

pub use super::items::{pairs as replacements, users_to_add as items};

/// Parses an upload that arrives in pieces. Each line gives an item, nothing if it is blank, or what is wrong with it; at the end
/// comes what is wrong with the whole upload, if anything.
pub fn import_lines<'a>(
    media_type: &str,
    column: Option<&str>,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    mut line: impl FnMut(Result<Option<&str>, LineFault>),
) -> Result<(), String> {
    let format = match media_type {
        "text/csv" => Format::Csv,
        "application/x-ndjson" => Format::NdJson,
        _ => Format::Text,
    };
    let mut lines = Lines::new(format, column.map(str::to_owned));
    let mut each = |read: Line<'_>| match read {
        Line::Item(item) => line(Ok(Some(item))),
        Line::Blank => line(Ok(None)),
        Line::Rejected(fault) => line(Err(fault)),
    };
    for piece in pieces {
        lines.push(piece, &mut each).map_err(|fault| fault.to_string())?;
    }
    lines.finish(&mut each).map_err(|fault| fault.to_string())
}
