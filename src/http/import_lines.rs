//! Lines out of the pieces that an upload arrives in: plain text, NDJSON or CSV.
//!
//! A line never waits for more than is needed to judge it: of one that is too long only its end is awaited, so
//! that the memory for an upload of any size is bounded.

use crate::domain::{ITEM_BYTES_MAX, LineFault};
use memchr::memchr;
use serde::Deserialize;
use std::borrow::Cow;
use thiserror::Error;

/// The longest line or CSV record that is held, in bytes: room for an item with every byte escaped as `\u00xx`,
/// and for other fields beside it.
const LINE_BYTES_MAX: usize = 64 << 10;

/// How an upload is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Format {
    /// An item a line.
    Text,
    /// A JSON string or `{"item":…}` a line.
    NdJson,
    /// A record a line, the first one naming the columns.
    Csv {
        /// The column that holds the items; the first unless said otherwise.
        column: Option<String>,
    },
}

/// An upload that can't be read at all.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(super) enum UploadFault {
    /// It begins with a byte-order mark.
    #[error("the upload begins with a byte-order mark, which would become part of the first item")]
    ByteOrderMark,
    /// No column of the CSV header bears the name.
    #[error("the header row names no such column")]
    NoSuchColumn,
    /// The CSV header is too long or not UTF-8.
    #[error("the header row can't be read")]
    BadHeader,
}

/// What a line comes to.
pub(super) enum Line<'a> {
    /// An item.
    Item(&'a str),
    /// Nothing, which is passed over.
    Blank,
    /// No item.
    Rejected(LineFault),
}

/// Splits an upload into lines.
pub(super) struct Lines {
    format: Format,
    /// The beginning of a line whose end has not come yet.
    held: Vec<u8>,
    /// The held line has become too long; the rest of it is passed over.
    is_too_long: bool,
    has_begun: bool,
    /// CSV: whether a quote is open at the end of what is held.
    in_quotes: bool,
    /// CSV: which field holds the item, once the header is read.
    column: Option<usize>,
    fields: csv_core::Reader,
}

impl Lines {
    /// Lines of an upload in this format.
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            held: Vec::new(),
            is_too_long: false,
            has_begun: false,
            in_quotes: false,
            column: None,
            fields: csv_core::Reader::new(),
        }
    }

    /// Takes the next piece of the upload, and gives each line that ends in it to `each`.
    pub(super) fn push(
        &mut self,
        mut piece: &[u8],
        each: &mut impl FnMut(Line<'_>),
    ) -> Result<(), UploadFault> {
        if !self.has_begun {
            // The mark may be spread over several pieces.
            self.held.extend_from_slice(piece);
            if self.held.len() < 3 && b"\xef\xbb\xbf".starts_with(&self.held) {
                return Ok(());
            }
            if self.held.starts_with(b"\xef\xbb\xbf") {
                return Err(UploadFault::ByteOrderMark);
            }
            self.has_begun = true;
            let begin = std::mem::take(&mut self.held);
            return self.push(&begin, each);
        }
        while let Some(end) = self.line_end(piece) {
            let (line, rest) = (&piece[..end], &piece[end + 1..]);
            if self.held.is_empty() && !self.is_too_long {
                self.line(line, each)?;
            } else {
                self.hold(line);
                let held = std::mem::take(&mut self.held);
                if std::mem::take(&mut self.is_too_long) {
                    self.too_long(each)?
                } else {
                    self.line(&held, each)?
                }
                self.held = held;
                self.held.clear();
            }
            piece = rest;
        }
        self.hold(piece);
        Ok(())
    }

    /// Takes the end of the upload, which ends its last line.
    pub(super) fn finish(&mut self, each: &mut impl FnMut(Line<'_>)) -> Result<(), UploadFault> {
        self.has_begun = true;
        let held = std::mem::take(&mut self.held);
        match (self.is_too_long, held.is_empty()) {
            (true, _) => self.too_long(each),
            (false, true) => Ok(()),
            (false, false) => self.line(&held, each),
        }
    }

    /// Where the line ends that goes on at the beginning of `piece`.
    fn line_end(&mut self, piece: &[u8]) -> Option<usize> {
        if !matches!(self.format, Format::Csv { .. }) {
            return memchr(b'\n', piece);
        }
        for (index, byte) in piece.iter().enumerate() {
            match byte {
                b'"' => self.in_quotes = !self.in_quotes,
                b'\n' if !self.in_quotes => return Some(index),
                _ => {}
            }
        }
        None
    }

    fn hold(&mut self, part: &[u8]) {
        if self.held.len() + part.len() > LINE_BYTES_MAX {
            self.is_too_long = true;
            self.held.clear();
        }
        if !self.is_too_long {
            self.held.extend_from_slice(part);
        }
    }

    fn too_long(&mut self, each: &mut impl FnMut(Line<'_>)) -> Result<(), UploadFault> {
        if matches!(self.format, Format::Csv { .. }) && self.column.is_none() {
            return Err(UploadFault::BadHeader);
        }
        each(Line::Rejected(LineFault::ItemTooLong));
        Ok(())
    }

    fn line(&mut self, line: &[u8], each: &mut impl FnMut(Line<'_>)) -> Result<(), UploadFault> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match &self.format {
            Format::Csv { .. } => return self.record(line, each),
            _ if line.is_empty() => each(Line::Blank),
            Format::Text => each(item(line)),
            Format::NdJson => ndjson(line, each),
        }
        Ok(())
    }

    fn record(&mut self, line: &[u8], each: &mut impl FnMut(Line<'_>)) -> Result<(), UploadFault> {
        let fields = split(&mut self.fields, line);
        match (self.column, &self.format) {
            (None, Format::Csv { column: Some(name) }) => {
                let found = fields.iter().position(|field| field == name.as_bytes());
                self.column = Some(found.ok_or(UploadFault::NoSuchColumn)?);
                each(Line::Blank);
            }
            (None, _) => {
                self.column = Some(0);
                each(Line::Blank);
            }
            (Some(_), _) if line.is_empty() => each(Line::Blank),
            (Some(column), _) => match fields.get(column) {
                Some(field) => each(item(field)),
                None => each(Line::Rejected(LineFault::Malformed)),
            },
        }
        Ok(())
    }
}

fn item(bytes: &[u8]) -> Line<'_> {
    if bytes.is_empty() {
        return Line::Rejected(LineFault::Empty);
    }
    if bytes.len() > ITEM_BYTES_MAX {
        return Line::Rejected(LineFault::ItemTooLong);
    }
    str::from_utf8(bytes).map_or(Line::Rejected(LineFault::NotUtf8), Line::Item)
}

fn ndjson(line: &[u8], each: &mut impl FnMut(Line<'_>)) {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Object<'a> {
        #[serde(borrow)]
        item: Cow<'a, str>,
    }
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

    if line.iter().all(|byte| matches!(byte, b' ' | b'\t')) {
        return each(Line::Blank);
    }
    if str::from_utf8(line).is_err() {
        return each(Line::Rejected(LineFault::NotUtf8));
    }
    let parsed = match line.trim_ascii_start().first() {
        Some(b'{') => serde_json::from_slice::<Object<'_>>(line).map(|object| object.item),
        _ => serde_json::from_slice::<Text<'_>>(line).map(|text| text.0),
    };
    match parsed {
        Ok(text) => each(item(text.as_bytes())),
        Err(_) => each(Line::Rejected(LineFault::Malformed)),
    }
}

/// The fields of one record.
fn split(reader: &mut csv_core::Reader, line: &[u8]) -> Vec<Vec<u8>> {
    reader.reset();
    let (mut fields, mut field) = (Vec::new(), Vec::new());
    let mut input = line;
    let mut output = [0; 1024];
    loop {
        let (result, read, written) = reader.read_field(input, &mut output);
        input = &input[read..];
        field.extend_from_slice(&output[..written]);
        match result {
            csv_core::ReadFieldResult::Field { record_end } => {
                fields.push(std::mem::take(&mut field));
                if record_end {
                    return fields;
                }
            }
            // The empty input that follows tells the reader that the record is over.
            csv_core::ReadFieldResult::InputEmpty | csv_core::ReadFieldResult::OutputFull => {}
            csv_core::ReadFieldResult::End => return fields,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(format: Format, pieces: &[&[u8]]) -> Result<Vec<String>, UploadFault> {
        let mut lines = Lines::new(format);
        let mut seen = Vec::new();
        let mut each = |line: Line<'_>| {
            seen.push(match line {
                Line::Item(item) => item.to_owned(),
                Line::Blank => "-".into(),
                Line::Rejected(fault) => format!("!{fault:?}"),
            });
        };
        for piece in pieces {
            lines.push(piece, &mut each)?;
        }
        lines.finish(&mut each)?;
        Ok(seen)
    }

    #[test]
    fn text_is_an_item_a_line() {
        let long = vec![b'x'; 513];
        let pieces: [&[u8]; 4] = [b"a\r\n\n b \nl", b"ast\n", &long, b"\n\xff\nend"];
        assert_eq!(
            read(Format::Text, &pieces).unwrap(),
            ["a", "-", " b ", "last", "!ItemTooLong", "!NotUtf8", "end"]
        );
        assert_eq!(read(Format::Text, &[]).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn an_endless_line_takes_no_endless_memory() {
        let mut lines = Lines::new(Format::Text);
        let mut rejected = 0;
        for _ in 0..100 {
            lines.push(&[b'x'; 32 << 10], &mut |_| {}).unwrap();
        }
        assert!(lines.held.capacity() <= 2 * LINE_BYTES_MAX);
        lines.push(b"\n", &mut |line| rejected += usize::from(matches!(line, Line::Rejected(_)))).unwrap();
        assert_eq!(rejected, 1);
    }

    #[test]
    fn ndjson_is_a_string_or_an_object_a_line() {
        let lines =
            b"\"a\"\n{\"item\":\"\\u0062\"}\n\n7\n{\"item\":7}\n{\"item\":\"c\",\"x\":1}\n\"\"\n\"d\" ";
        let seen = read(Format::NdJson, &[lines]).unwrap();
        assert_eq!(seen, ["a", "b", "-", "!Malformed", "!Malformed", "!Malformed", "!Empty", "d"]);
    }

    #[test]
    fn csv_has_a_header_and_quotes() {
        let csv: &[u8] = b"id,code\r\n1,\"a,\"\"b\"\r\n2,c\n\n3\n4,\"two\nlines\"\n";
        let of = |column: Option<&str>| read(Format::Csv { column: column.map(str::to_owned) }, &[csv]);
        assert_eq!(of(Some("code")).unwrap(), ["-", "a,\"b", "c", "-", "!Malformed", "two\nlines"]);
        assert_eq!(of(None).unwrap(), ["-", "1", "2", "-", "3", "4"]);
        assert_eq!(of(Some("none")), Err(UploadFault::NoSuchColumn));
    }

    #[test]
    fn a_byte_order_mark_is_refused_however_it_comes() {
        for pieces in [vec![&b"\xef\xbb\xbfa\n"[..]], vec![b"\xef", b"\xbb", b"\xbf", b"a"]] {
            assert_eq!(read(Format::Text, &pieces), Err(UploadFault::ByteOrderMark));
        }
        assert_eq!(read(Format::Text, &[b"\xef", b"\xbb"]).unwrap(), ["!NotUtf8"]);
    }

    proptest! {
        /// Where an upload is cut into pieces makes no difference.
        #[test]
        fn pieces_do_not_matter(bytes in "[a\",\r\n{}é]{0,40}", cut in 0usize..40) {
            let bytes = bytes.as_bytes();
            let (head, tail) = bytes.split_at(cut.min(bytes.len()));
            for format in [Format::Text, Format::NdJson, Format::Csv { column: None }] {
                prop_assert_eq!(read(format.clone(), &[head, tail]), read(format, &[bytes]));
            }
        }
    }
}
