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
pub(crate) enum Format {
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
pub(crate) enum UploadFault {
    /// It begins with a byte-order mark.
    #[error("the upload begins with a byte-order mark, which would become part of the first item")]
    ByteOrderMark,
    /// No column of the CSV header bears the name.
    #[error("the header row names no such column")]
    NoSuchColumn,
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

/// A place in a CSV record, as far as it matters for where the record ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// The begin of a field, the only place where a quote opens one.
    FieldBegin,
    /// In a field without quotes, or behind the closing one.
    Plain,
    /// In a quoted field.
    Quoted,
    /// Behind a quote in a quoted field, which closed it unless another one follows.
    QuoteInQuoted,
}

impl At {
    fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (At::Quoted, b'"') => At::QuoteInQuoted,
            (At::Quoted, _) => At::Quoted,
            (At::FieldBegin | At::QuoteInQuoted, b'"') => At::Quoted,
            (_, b',' | b'\n') => At::FieldBegin,
            _ => At::Plain,
        }
    }
}

/// Splits an upload into lines.
pub(crate) struct Lines {
    format: Format,
    /// The beginning of a line whose end has not come yet.
    held: Vec<u8>,
    /// The held line has become too long; the rest of it is passed over.
    is_too_long: bool,
    has_begun: bool,
    /// CSV: where in a record the next byte stands.
    at: At,
    /// CSV: which field holds the item, once the header is read.
    column: Option<usize>,
}

impl Lines {
    /// Lines of an upload in this format.
    pub(crate) fn new(format: Format) -> Self {
        Self {
            format,
            held: Vec::new(),
            is_too_long: false,
            has_begun: false,
            at: At::FieldBegin,
            column: None,
        }
    }

    /// Takes the next piece of the upload, and gives each line that ends in it to `each`.
    pub(crate) fn push(
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
            if self.held.is_empty() && !self.is_too_long && line.len() <= LINE_BYTES_MAX {
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
    pub(crate) fn finish(&mut self, each: &mut impl FnMut(Line<'_>)) -> Result<(), UploadFault> {
        self.has_begun = true;
        let held = std::mem::take(&mut self.held);
        if self.is_too_long {
            return self.too_long(each);
        }
        match (held.is_empty(), self.column) {
            (true, _) => Ok(()),
            (false, None) if self.at == At::Quoted => Err(UploadFault::BadHeader),
            (false, Some(_)) if self.at == At::Quoted => {
                each(Line::Rejected(LineFault::Malformed));
                Ok(())
            }
            (false, _) => self.line(&held, each),
        }
    }

    /// Where the line ends that goes on at the beginning of `piece`.
    fn line_end(&mut self, piece: &[u8]) -> Option<usize> {
        if !matches!(self.format, Format::Csv { .. }) {
            return memchr(b'\n', piece);
        }
        for (index, byte) in piece.iter().enumerate() {
            let is_quoted = self.at == At::Quoted;
            self.at = self.at.after(*byte);
            if *byte == b'\n' && !is_quoted {
                return Some(index);
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
        let Some(column) = self.column else {
            let fields = split(line).ok_or(UploadFault::BadHeader)?;
            self.column = match &self.format {
                Format::Csv { column: Some(name) } => {
                    let found = fields.iter().position(|field| field == name.as_bytes());
                    Some(found.ok_or(UploadFault::NoSuchColumn)?)
                }
                _ => Some(0),
            };
            each(Line::Blank);
            return Ok(());
        };
        if line.is_empty() {
            each(Line::Blank);
        } else {
            match split(line).as_ref().and_then(|fields| fields.get(column)) {
                Some(field) => each(item(field)),
                None => each(Line::Rejected(LineFault::Malformed)),
            }
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

/// The fields of one record; none if it has a carriage return without quotes around it, which others end records with.
fn split(record: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut fields, mut field, mut at) = (Vec::new(), Vec::new(), At::FieldBegin);
    for &byte in record {
        match (at, byte) {
            (At::FieldBegin | At::Quoted, b'"') => {}
            (At::Quoted, _) | (At::QuoteInQuoted, b'"') => field.push(byte),
            (_, b'\r') => return None,
            (_, b',') => fields.push(std::mem::take(&mut field)),
            _ => field.push(byte),
        }
        at = at.after(byte);
    }
    fields.push(field);
    Some(fields)
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
    fn csv_that_is_none_is_told_rather_than_guessed_at() {
        let of = |csv: &[u8]| read(Format::Csv { column: None }, &[csv]);
        // A quote inside a field is a quote, and the next line another record.
        assert_eq!(of(b"size\n5\" disk\n7\" tape\n").unwrap(), ["-", "5\" disk", "7\" tape"]);
        assert_eq!(of(b"code\n\xef\xbb\xbfa\n").unwrap(), ["-", "\u{feff}a"]);
        assert_eq!(of(b"code\n\"a\"b\"\nc\n").unwrap(), ["-", "ab\"", "c"]);
        // Half a record is no item.
        assert_eq!(of(b"code\na\rb\nc").unwrap(), ["-", "!Malformed", "c"]);
        assert_eq!(of(b"code\na\n\"b\nc\n").unwrap(), ["-", "a", "!Malformed"]);
        for header in [&b"code\ra\rb\r"[..], b"\"code\na\n"] {
            assert_eq!(of(header), Err(UploadFault::BadHeader));
        }
    }

    #[test]
    fn a_line_is_too_long_however_it_comes() {
        let line = [b"\"a\"", &[b' '; LINE_BYTES_MAX - 3][..], b"\n"].concat();
        let longer = [b" ", &line[..]].concat();
        for (line, seen) in [(line, "a"), (longer, "!ItemTooLong")] {
            let (head, tail) = line.split_at(1_000);
            assert_eq!(read(Format::NdJson, &[&line]).unwrap(), [seen]);
            assert_eq!(read(Format::NdJson, &[head, tail]).unwrap(), [seen]);
        }
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
