//! Splits an upload into lines, and reads the item of each: plain text, NDJSON or CSV.
//!
//! A line is buffered only up to its maximum length. Of a line that is too long, only the end is searched for. So memory is bounded for an
//! upload of any size. In CSV, one line is one record, whatever line breaks are inside its quotes. A carriage return without a line feed
//! does not end a record. A file that uses it that way would yield one record too many or too few, so its line is rejected.

use crate::domain::{ITEM_BYTES_MAX, LineFault};
use crate::http::request::json::Text;
use memchr::memchr;
use serde::Deserialize;
use std::borrow::Cow;
use thiserror::Error;
use utoipa::ToSchema;

/// A byte-order mark, which would become part of the first item.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Maximum length of a line or CSV record, in bytes: an item with every byte escaped as `\u00xx`, and other fields.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Why an upload can't be read at all.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum UploadFault {
    /// It starts with a byte-order mark.
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
pub enum Line<'a> {
    /// An item.
    Item(Cow<'a, str>),
    /// A blank line, which is skipped.
    Blank,
    /// A line without a valid item.
    Rejected(LineFault),
}

/// The format of an upload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ImportFormat)]
pub enum Format {
    /// One item per line; media type `text/plain`.
    Text,
    /// One JSON string or `{"item":…}` per line; media type `application/x-ndjson`.
    NdJson,
    /// A header row and records; media type `text/csv`.
    Csv,
}

/// The lines of an upload.
pub struct Lines {
    split: Split,
    format: Format,
    /// The name of the column of CSV that holds the items; `None` for the only column.
    wanted: Option<String>,
    /// The index of that column, once the header row has been read.
    column: usize,
    is_open: bool,
    /// The header row, which counts as a blank line, is the next line.
    is_header_next: bool,
    /// A field of the current record.
    field: Vec<u8>,
}

impl Lines {
    /// Lines of an upload in this format. In CSV, the items are in this column, or in the only one.
    pub fn new(format: Format, wanted: Option<String>) -> Self {
        let place = (format == Format::Csv).then_some(Place::Begin);
        let split = Split { place, ..Split::default() };
        Self { split, format, wanted, column: 0, is_open: false, is_header_next: false, field: Vec::new() }
    }

    /// Takes the next piece of the upload. All lines before it must have been read.
    pub fn push(&mut self, piece: &[u8]) {
        self.split.push(piece);
    }

    /// Ends the upload, and with it the last line.
    pub fn end(&mut self) {
        self.split.has_ended = true;
    }

    /// Whether the upload has ended.
    pub fn has_ended(&self) -> bool {
        self.split.has_ended
    }

    /// Whether enough has arrived to show that the upload is readable: it does not start with a byte-order mark, and has the header row
    /// that CSV needs.
    ///
    /// # Errors
    /// If it can't be read at all.
    pub fn open(&mut self) -> Result<bool, UploadFault> {
        if self.is_open {
            return Ok(true);
        }
        // The mark may be spread over several pieces.
        let begin = &self.split.arrived[..];
        if begin.starts_with(MARK) {
            return Err(UploadFault::ByteOrderMark);
        }
        if MARK.starts_with(begin) && !self.has_ended() {
            return Ok(false);
        }
        if self.format == Format::Csv {
            let Some(header) = self.split.next() else {
                return if self.split.is_too_long {
                    Err(UploadFault::BadHeader)
                } else {
                    Ok(self.has_ended())
                };
            };
            let header = header.map_err(|_| UploadFault::BadHeader)?;
            self.column = find_column(header, self.wanted.as_deref(), &mut self.field)?;
            self.is_header_next = true;
        }
        self.is_open = true;
        Ok(true)
    }

    /// The next line; `None` until it has arrived, or at the end.
    ///
    /// # Errors
    /// If the upload can't be read at all.
    pub fn next_line(&mut self) -> Result<Option<Line<'_>>, UploadFault> {
        if !self.open()? {
            return Ok(None);
        }
        if std::mem::take(&mut self.is_header_next) {
            return Ok(Some(Line::Blank));
        }
        let Some(line) = self.split.next() else { return Ok(None) };
        Ok(Some(match (line, self.format) {
            (Err(fault), _) => Line::Rejected(fault),
            (Ok(line), Format::NdJson) => ndjson(line),
            (Ok(b""), Format::Text | Format::Csv) => Line::Blank,
            (Ok(line), Format::Text) => item(line),
            (Ok(record), Format::Csv) => {
                match find_field(record, &mut self.field, |index, _| index == self.column) {
                    Some(_) => item(&self.field),
                    None => Line::Rejected(LineFault::Malformed),
                }
            }
        }))
    }
}

/// Splits an upload into lines that end with `\n` or `\r\n`.
#[derive(Default)]
struct Split {
    /// The received bytes, from the last piece's first line on.
    arrived: Vec<u8>,
    /// The start of the current line in it.
    begin: usize,
    /// The line's end was searched for up to here.
    searched: usize,
    /// The beginning of the line was discarded, because it is too long.
    is_too_long: bool,
    has_ended: bool,
    /// CSV: where in its line the last byte is.
    place: Option<Place>,
}

/// A place in a line of CSV.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// Before the first byte of a field.
    Begin,
    /// In a field without quotes.
    Plain,
    /// Between quotes.
    Quoted,
    /// After a quote that ends the field, unless another one follows.
    Closed,
    /// After a carriage return outside quotes.
    Returned,
    /// After a carriage return without a line feed.
    Spoiled,
}

impl Place {
    fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (Place::Quoted, b'"') => Place::Closed,
            (Place::Quoted, _) | (Place::Begin | Place::Closed, b'"') => Place::Quoted,
            (Place::Returned | Place::Spoiled, _) => Place::Spoiled,
            (Place::Begin | Place::Plain | Place::Closed, b',') => Place::Begin,
            (Place::Begin | Place::Plain | Place::Closed, b'\r') => Place::Returned,
            (Place::Begin | Place::Plain | Place::Closed, _) => Place::Plain,
        }
    }
}

impl Split {
    fn push(&mut self, piece: &[u8]) {
        self.arrived.drain(..self.begin);
        self.searched -= self.begin;
        self.begin = 0;
        self.arrived.reserve_exact(piece.len());
        self.arrived.extend_from_slice(piece);
    }

    /// Returns the next line without its end, or its error; `None` until its end has arrived.
    fn next(&mut self) -> Option<Result<&[u8], LineFault>> {
        let rest = &self.arrived[self.searched..];
        let found = match &mut self.place {
            None => memchr(b'\n', rest),
            Some(place) => rest.iter().position(|&byte| {
                let is_end = byte == b'\n' && *place != Place::Quoted;
                if !is_end {
                    *place = place.after(byte);
                }
                is_end
            }),
        };
        let (begin, end) = (self.begin, self.searched + found.unwrap_or(rest.len()));
        self.is_too_long |= end - begin > LINE_BYTES_MAX;
        if found.is_none() && !(self.has_ended && (self.is_too_long || begin < end)) {
            if self.is_too_long {
                self.arrived.clear();
            }
            self.begin = begin.min(self.arrived.len());
            self.searched = self.arrived.len();
            return None;
        }
        self.begin = self.arrived.len().min(end + 1);
        self.searched = self.begin;
        let place = self.place.as_mut().map(|place| std::mem::replace(place, Place::Begin));
        if std::mem::take(&mut self.is_too_long) {
            return Some(Err(LineFault::ItemTooLong));
        }
        let line = &self.arrived[begin..end];
        Some(match place {
            Some(Place::Quoted | Place::Spoiled) => Err(LineFault::Malformed),
            None | Some(Place::Begin | Place::Plain | Place::Closed | Place::Returned) => {
                Ok(line.strip_suffix(b"\r").unwrap_or(line))
            }
        })
    }
}

/// Returns the error of an item of this length, if any.
fn length_fault(length: usize) -> Option<LineFault> {
    match length {
        0 => Some(LineFault::Empty),
        1..=ITEM_BYTES_MAX => None,
        _ => Some(LineFault::ItemTooLong),
    }
}

/// Returns the item unchanged, or its error.
fn item(bytes: &[u8]) -> Line<'_> {
    match (length_fault(bytes.len()), str::from_utf8(bytes)) {
        (Some(fault), _) => Line::Rejected(fault),
        (None, Ok(text)) => Line::Item(text.into()),
        (None, Err(_)) => Line::Rejected(LineFault::NotUtf8),
    }
}

fn ndjson(line: &[u8]) -> Line<'_> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Object<'a> {
        #[serde(borrow)]
        item: Cow<'a, str>,
    }

    let Ok(line) = str::from_utf8(line) else { return Line::Rejected(LineFault::NotUtf8) };
    if line.trim_matches([' ', '\t']).is_empty() {
        return Line::Blank;
    }
    let parsed = match line.trim_ascii_start().starts_with('{') {
        true => serde_json::from_str::<Object<'_>>(line).map(|object| object.item),
        false => serde_json::from_str::<Text<'_>>(line).map(|text| text.0),
    };
    match parsed.map(|text| (length_fault(text.len()), text)) {
        Ok((None, text)) => Line::Item(text),
        Ok((Some(fault), _)) => Line::Rejected(fault),
        Err(_) => Line::Rejected(LineFault::Malformed),
    }
}

/// The index of a column in a header row.
fn find_column(header: &[u8], wanted: Option<&str>, field: &mut Vec<u8>) -> Result<usize, UploadFault> {
    let mut columns = 0;
    let found = find_field(header, field, |index, name| {
        columns = index + 1;
        wanted.is_some_and(|wanted| wanted.as_bytes() == name)
    });
    match wanted {
        Some(_) => found.ok_or(UploadFault::NoSuchColumn),
        None if columns > 1 => Err(UploadFault::WhichColumn(columns)),
        None => Ok(0),
    }
}

/// Reads the fields of a record, without their quotes, until one is the wanted one. It is in `field` then.
fn find_field(
    record: &[u8],
    field: &mut Vec<u8>,
    mut is_wanted: impl FnMut(usize, &[u8]) -> bool,
) -> Option<usize> {
    let (mut place, mut index) = (Place::Begin, 0);
    field.clear();
    for &byte in record {
        let next = place.after(byte);
        match (place, next) {
            (_, Place::Begin) if is_wanted(index, field) => return Some(index),
            (_, Place::Begin) => {
                index += 1;
                field.clear();
            }
            (Place::Begin, Place::Quoted) | (Place::Quoted, Place::Closed) => {}
            _ => field.push(byte),
        }
        place = next;
    }
    is_wanted(index, field).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Line<'_> {
        /// The line as tests compare it.
        fn shown(&self) -> String {
            match self {
                Line::Item(item) => item.clone().into_owned(),
                Line::Blank => "-".into(),
                Line::Rejected(fault) => format!("!{fault:?}"),
            }
        }
    }

    fn read(format: Format, pieces: &[&[u8]]) -> Result<Vec<String>, UploadFault> {
        read_column(format, None, pieces)
    }

    fn read_column(
        format: Format,
        column: Option<&str>,
        pieces: &[&[u8]],
    ) -> Result<Vec<String>, UploadFault> {
        let mut lines = Lines::new(format, column.map(str::to_owned));
        let mut seen = Vec::new();
        for piece in pieces {
            lines.push(piece);
            seen.extend(all(&mut lines)?);
        }
        lines.end();
        seen.extend(all(&mut lines)?);
        Ok(seen)
    }

    /// The lines that have arrived.
    fn all(lines: &mut Lines) -> Result<Vec<String>, UploadFault> {
        let mut seen = Vec::new();
        while let Some(line) = lines.next_line()? {
            seen.push(line.shown());
        }
        Ok(seen)
    }

    #[test]
    fn text_has_one_item_per_line() {
        let long = vec![b'x'; 513];
        let pieces: [&[u8]; 4] = [b"a\r\n\n b \nl", b"ast\n", &long, b"\n\xff\nend"];
        assert_eq!(
            read(Format::Text, &pieces).unwrap(),
            ["a", "-", " b ", "last", "!ItemTooLong", "!NotUtf8", "end"]
        );
        assert_eq!(read(Format::Text, &[]).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn endless_line_takes_bounded_memory() {
        let mut lines = Lines::new(Format::Text, None);
        for _ in 0..100 {
            lines.push(&[b'x'; 32 << 10]);
            assert_eq!(all(&mut lines).unwrap(), [""; 0]);
        }
        assert!(lines.split.arrived.capacity() <= 2 * LINE_BYTES_MAX);
        lines.push(b"\n");
        assert_eq!(all(&mut lines).unwrap(), ["!ItemTooLong"]);
    }

    #[test]
    fn ndjson_line_is_string_or_object() {
        let lines =
            b"\"a\"\n{\"item\":\"\\u0062\"}\n\n7\n{\"item\":7}\n{\"item\":\"c\",\"x\":1}\n\"\"\n\"d\" ";
        let seen = read(Format::NdJson, &[lines]).unwrap();
        assert_eq!(seen, ["a", "b", "-", "!Malformed", "!Malformed", "!Malformed", "!Empty", "d"]);
    }

    #[test]
    fn csv_header_and_quotes_are_parsed() {
        let csv: &[u8] = b"id,code\r\n1,\"a,\"\"b\"\r\n2,c\n\n3\n4,\"two\nlines\"\n";
        let of = |column: Option<&str>| read_column(Format::Csv, column, &[csv]);
        assert_eq!(of(Some("code")).unwrap(), ["-", "a,\"b", "c", "-", "!Malformed", "two\nlines"]);
        assert_eq!(of(None), Err(UploadFault::WhichColumn(2)));
        assert_eq!(of(Some("none")), Err(UploadFault::NoSuchColumn));
        let one = read(Format::Csv, &[b"code\na\nb,x\n"]);
        assert_eq!(one.unwrap(), ["-", "a", "b"]);
    }

    #[test]
    fn invalid_csv_is_rejected() {
        let of = |csv: &[u8]| read(Format::Csv, &[csv]);
        // A quote inside a field is an ordinary character, and the next line is another record.
        assert_eq!(of(b"size\n5\" disk\n7\" tape\n").unwrap(), ["-", "5\" disk", "7\" tape"]);
        assert_eq!(of(b"code\n\xef\xbb\xbfa\n").unwrap(), ["-", "\u{feff}a"]);
        assert_eq!(of(b"code\n\"a\"b\"\nc\n").unwrap(), ["-", "ab\"", "c"]);
        // Half a record is not an item.
        assert_eq!(of(b"code\na\rb\nc").unwrap(), ["-", "!Malformed", "c"]);
        assert_eq!(of(b"code\na\n\"b\nc\n").unwrap(), ["-", "a", "!Malformed"]);
        for header in [&b"code\ra\rb\r"[..], b"\"code\na\n"] {
            assert_eq!(of(header), Err(UploadFault::BadHeader));
        }
    }

    #[test]
    fn long_line_fails_in_any_pieces() {
        let line = [b"\"a\"", &[b' '; LINE_BYTES_MAX - 3][..], b"\n"].concat();
        let longer = [b" ", &line[..]].concat();
        for (line, seen) in [(line, "a"), (longer, "!ItemTooLong")] {
            let (head, tail) = line.split_at(1_000);
            assert_eq!(read(Format::NdJson, &[&line]).unwrap(), [seen]);
            assert_eq!(read(Format::NdJson, &[head, tail]).unwrap(), [seen]);
        }
    }

    #[test]
    fn byte_order_mark_fails_in_any_pieces() {
        for pieces in [vec![&b"\xef\xbb\xbfa\n"[..]], vec![b"\xef", b"\xbb", b"\xbf", b"a"]] {
            assert_eq!(read(Format::Text, &pieces), Err(UploadFault::ByteOrderMark));
        }
        assert_eq!(read(Format::Text, &[b"\xef", b"\xbb"]).unwrap(), ["!NotUtf8"]);
    }

    proptest! {
        /// It does not matter where an upload is cut into pieces.
        #[test]
        fn lines_are_independent_of_pieces(bytes in "[a\",\r\n{}é]{0,40}", cut in 0usize..40) {
            let bytes = bytes.as_bytes();
            let (head, tail) = bytes.split_at(cut.min(bytes.len()));
            for format in [Format::Text, Format::NdJson, Format::Csv] {
                prop_assert_eq!(read(format, &[head, tail]), read(format, &[bytes]));
            }
        }
    }

    #[test]
    fn stray_carriage_return_fails_one_line() {
        assert_eq!(read(Format::Csv, &[b"c\na\r\"b\nc\r\n"]).unwrap(), ["-", "!Malformed", "c"]);
        assert_eq!(read(Format::Csv, &[b"c\r", b"\na\r", b"\n\r", b"\n"]).unwrap(), ["-", "a", "-"]);
        assert_eq!(read(Format::Csv, &[b"c\na\r"]).unwrap(), ["-", "a"]);
        assert_eq!(read(Format::Csv, &[b"c\n\"a\rb\"\n"]).unwrap(), ["-", "a\rb"]);
    }

    #[test]
    fn long_line_buffers_only_its_limit() {
        let mut lines = Lines::new(Format::Csv, None);
        lines.push(b"c\n\"");
        assert_eq!(all(&mut lines).unwrap(), ["-"]);
        for _ in 0..100 {
            lines.push(&[b'x'; 32 << 10]);
            assert_eq!(all(&mut lines).unwrap(), [""; 0]);
        }
        assert!(lines.split.arrived.capacity() <= 2 * LINE_BYTES_MAX);
        lines.push(b"\"\nb\n");
        assert_eq!(all(&mut lines).unwrap(), ["!ItemTooLong", "b"]);
    }

    #[test]
    fn line_length_limit_is_exact() {
        let line = vec![b','; LINE_BYTES_MAX];
        let upload = |line: &[u8]| [b"c,d\n", line, b"\nb\n"].concat();
        let of = |line: &[u8]| read_column(Format::Csv, Some("d"), &[&upload(line)]).unwrap();
        assert_eq!(of(&line), ["-", "!Empty", "!Malformed"]);
        assert_eq!(of(&[&line[..], b","].concat()), ["-", "!ItemTooLong", "!Malformed"]);
    }

    proptest! {
        /// Quoted items are read back unchanged, wherever the upload is cut.
        #[test]
        fn quoted_csv_round_trips(
            items in prop::collection::vec("[a\",\r\n é]{1,8}", 0..8),
            column in 0usize..3,
            ends in prop::sample::select(vec!["\n", "\r\n"]),
            cuts in prop::collection::vec(0usize..200, 0..4),
        ) {
            let row = |item: &str| {
                let mut fields = ["x", "y", "z"].map(str::to_owned);
                fields[column] = format!("\"{}\"", item.replace('"', "\"\""));
                fields.join(",") + ends
            };
            let upload: String = [row("wanted")].into_iter().chain(items.iter().map(|item| row(item))).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (upload.len() + 1)).chain([0, upload.len()]).collect();
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &upload.as_bytes()[cut[0]..cut[1]]).collect();
            let expected: Vec<String> = ["-".to_owned()].into_iter().chain(items).collect();
            prop_assert_eq!(read_column(Format::Csv, Some("wanted"), &pieces), Ok(expected));
        }
    }
}
