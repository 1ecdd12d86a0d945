//! Splits an upload into lines, and reads the item of each: plain text, NDJSON or CSV.
//!
//! A line is buffered only up to its maximum length. Of a line that is too long, only the end is searched for. So memory is bounded for an
//! upload of any size. In CSV, one line is one record, whatever line breaks are inside its quotes. A carriage return without a line feed
//! does not end a record. A file that uses it that way would yield one record too many or too few, so its line is rejected.
//!
//! A UTF-8 byte-order mark at the start is skipped. UTF-16, which programs also write as text, fails the upload: read as UTF-8, each of its
//! lines would be a wrong item. So would a CSV file with another delimiter than the expected one.

use crate::http::request::json::JsonText;
use cuckood_state::domain::{ITEM_BYTES_MAX, LineFault};
use derive_more::Display;
use memchr::memchr;
use serde::Deserialize;
use std::borrow::Cow;
use std::fmt;
use thiserror::Error;
use utoipa::ToSchema;

/// The byte-order mark of UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// The byte-order marks of UTF-16.
const UTF16_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

/// A NUL among the first bytes of an upload shows that it is UTF-16 without a mark: up to this number.
const HEAD_BYTES: usize = 4 << 10;

/// Excel's first line that states the delimiter starts with this.
const STATED: &[u8] = b"sep=";

/// The most columns, and the most characters of each name, that an error lists.
const LISTED_COLUMNS_MAX: usize = 20;
const LISTED_CHARS_MAX: usize = 40;

/// Maximum length of a line or CSV record, in bytes: an item with every byte escaped as `\u00xx`, and other fields.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Why an upload can't be read at all.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum UploadFault {
    /// It has the byte-order mark of UTF-16, or a NUL among its first bytes.
    #[error("the upload is UTF-16 or binary: save it as UTF-8, such as \"CSV UTF-8\" in Excel")]
    Utf16,
    /// Its lines end with a carriage return.
    #[error("the lines end with a carriage return only: save the file with line feeds")]
    CarriageReturns,
    /// The CSV header has no column of the requested name.
    #[error("the header row has no such column: it has {0}")]
    NoSuchColumn(Columns),
    /// The CSV header has several columns, and the request names none.
    #[error("the header row has {} columns, {_0}: name the one that holds the items", .0.count)]
    WhichColumn(Columns),
    /// The CSV header has one column, whose name contains another delimiter.
    #[error("the header row has one column and contains {:?}: if fields end there, set delimiter={_0}", char::from(.0.byte()))]
    OtherDelimiter(Delimiter),
    /// The first line states a delimiter that no upload can have.
    #[error("the first line states an unknown delimiter: use comma, semicolon, pipe or tab")]
    UnknownDelimiter,
    /// The CSV header is too long, or is not a record.
    #[error("the header row can't be read")]
    BadHeader,
}

/// The names of a header's columns, as an error lists them: not all if there are many.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Columns {
    count: usize,
    first: Vec<String>,
}

impl Columns {
    fn push(&mut self, name: &[u8]) {
        self.count += 1;
        if self.first.len() < LISTED_COLUMNS_MAX {
            self.first.push(
                String::from_utf8_lossy(name)
                    .chars()
                    .take(LISTED_CHARS_MAX)
                    .collect(),
            );
        }
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.first.iter().enumerate() {
            write!(f, "{}{name:?}", if index > 0 { ", " } else { "" })?;
        }
        match self.count - self.first.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// The character between the fields of CSV.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Display, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[display(rename_all = "lowercase")]
#[schema(as = CsvDelimiter)]
pub enum Delimiter {
    /// `,`
    #[default]
    Comma,
    /// `;`, as Excel writes it where the comma is the decimal separator.
    Semicolon,
    /// `|`
    Pipe,
    /// The tab character.
    Tab,
}

impl Delimiter {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Comma, Self::Semicolon, Self::Pipe, Self::Tab];

    /// Its byte.
    pub fn byte(self) -> u8 {
        match self {
            Self::Comma => b',',
            Self::Semicolon => b';',
            Self::Pipe => b'|',
            Self::Tab => b'\t',
        }
    }

    fn of(byte: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|delimiter| delimiter.byte() == byte)
    }
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
pub enum UploadFormat {
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
    format: UploadFormat,
    /// The name of the column of CSV that holds the items; `None` for the only column.
    wanted: Option<String>,
    /// The index of that column, once the header row has been read.
    column: usize,
    /// The name of the only column, if the request names none. Without a header row it would be the first item.
    only_column: Option<String>,
    /// Whether the start was searched for a byte-order mark.
    is_past_mark: bool,
    is_open: bool,
    /// Lines before the first record, which count as blank: the header row, and the one that states the delimiter.
    heading: u64,
    /// Whether a line was returned.
    is_begun: bool,
    /// A field of the current record.
    field: Vec<u8>,
}

impl Lines {
    /// Lines of an upload in this format. In CSV, the fields are separated by this delimiter, unless the first line states another, and the
    /// items are in this column, or in the only one.
    pub fn new(format: UploadFormat, delimiter: Delimiter, wanted: Option<String>) -> Self {
        let place = (format == UploadFormat::Csv).then_some(CsvPosition::Begin);
        let split = Split {
            place,
            delimiter: delimiter.byte(),
            ..Split::default()
        };
        Self {
            split,
            format,
            wanted,
            column: 0,
            only_column: None,
            is_past_mark: false,
            is_open: false,
            heading: 0,
            is_begun: false,
            field: Vec::new(),
        }
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

    /// The name of the only column, if the request names none, once the header row has been read.
    pub fn only_column(&self) -> Option<&str> {
        self.only_column.as_deref()
    }

    /// Whether enough has arrived to show that the upload is readable: it is not UTF-16, and has the header row that CSV needs.
    ///
    /// # Errors
    /// If it can't be read at all.
    pub fn open(&mut self) -> Result<bool, UploadFault> {
        if self.split.has_nul_in_head {
            return Err(UploadFault::Utf16);
        }
        if self.is_open {
            return Ok(true);
        }
        if !self.skip_mark()? {
            return Ok(false);
        }
        while self.format == UploadFormat::Csv {
            let delimiter = self.split.delimiter;
            let Some(line) = self.split.next() else {
                let is_too_long = self.split.is_too_long;
                return if is_too_long {
                    Err(self.split.header_fault())
                } else {
                    Ok(self.has_ended())
                };
            };
            let Ok(line) = line else {
                return Err(self.split.header_fault());
            };
            let stated = if self.heading == 0 {
                stated_delimiter(line)?
            } else {
                None
            };
            self.heading += 1;
            match stated {
                Some(stated) => self.split.delimiter = stated.byte(),
                None => {
                    (self.column, self.only_column) =
                        find_column(line, delimiter, self.wanted.as_deref(), &mut self.field)?;
                    break;
                }
            }
        }
        self.is_open = true;
        Ok(true)
    }

    /// Skips the byte-order mark, which may be spread over several pieces. Returns whether it is known if there is one.
    fn skip_mark(&mut self) -> Result<bool, UploadFault> {
        if self.is_past_mark {
            return Ok(true);
        }
        let begin = &self.split.arrived[..];
        if UTF16_MARKS.iter().any(|mark| begin.starts_with(mark)) {
            return Err(UploadFault::Utf16);
        }
        let may_follow = |mark: &[u8]| mark.len() > begin.len() && mark.starts_with(begin);
        if !self.has_ended() && (may_follow(MARK) || UTF16_MARKS.into_iter().any(may_follow)) {
            return Ok(false);
        }
        if begin.starts_with(MARK) {
            self.split.skip(MARK.len());
        }
        self.is_past_mark = true;
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
        if self.heading > 0 {
            self.heading -= 1;
            return Ok(Some(Line::Blank));
        }
        let is_only_line =
            self.format == UploadFormat::Text && !self.is_begun && self.split.has_one_line();
        let has_returns = self.split.has_returns();
        let delimiter = self.split.delimiter;
        let Some(line) = self.split.next() else {
            return Ok(None);
        };
        self.is_begun = true;
        let line = match line {
            Err(_) if is_only_line && has_returns => return Err(UploadFault::CarriageReturns),
            Ok(line) if is_only_line && memchr(b'\r', line).is_some() => {
                return Err(UploadFault::CarriageReturns);
            }
            Err(fault) => return Ok(Some(Line::Rejected(fault))),
            Ok(line) if memchr(0, line).is_some() => {
                return Ok(Some(Line::Rejected(LineFault::Malformed)));
            }
            Ok(line) => line,
        };
        Ok(Some(match self.format {
            UploadFormat::NdJson => ndjson(line),
            UploadFormat::Text | UploadFormat::Csv if line.is_empty() => Line::Blank,
            UploadFormat::Text => item(line),
            UploadFormat::Csv => {
                let is_column = |index, _: &[u8]| index == self.column;
                let has_column = find_field(line, delimiter, &mut self.field, is_column).is_some();
                if has_column && !self.field.is_empty() {
                    item(&self.field)
                } else if is_blank(line, delimiter, &mut self.field) {
                    Line::Blank
                } else if has_column {
                    Line::Rejected(LineFault::Empty)
                } else {
                    Line::Rejected(LineFault::Malformed)
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
    place: Option<CsvPosition>,
    /// CSV: the byte between fields.
    delimiter: u8,
    /// Number of bytes of the head that have arrived, and whether it has a NUL, a carriage return, a line feed.
    head_bytes: usize,
    has_nul_in_head: bool,
    has_return_in_head: bool,
    has_feed_in_head: bool,
}

/// A place in a line of CSV.
#[derive(Clone, Copy, PartialEq)]
enum CsvPosition {
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

impl CsvPosition {
    fn after(self, byte: u8, delimiter: u8) -> Self {
        match (self, byte) {
            (CsvPosition::Quoted, b'"') => CsvPosition::Closed,
            (CsvPosition::Quoted, _) | (CsvPosition::Begin | CsvPosition::Closed, b'"') => {
                CsvPosition::Quoted
            }
            (CsvPosition::Returned | CsvPosition::Spoiled, _) => CsvPosition::Spoiled,
            (CsvPosition::Begin | CsvPosition::Plain | CsvPosition::Closed, byte)
                if byte == delimiter =>
            {
                CsvPosition::Begin
            }
            (CsvPosition::Begin | CsvPosition::Plain | CsvPosition::Closed, b'\r') => {
                CsvPosition::Returned
            }
            (CsvPosition::Begin | CsvPosition::Plain | CsvPosition::Closed, _) => {
                CsvPosition::Plain
            }
        }
    }
}

impl Split {
    fn push(&mut self, piece: &[u8]) {
        let head = &piece[..piece.len().min(HEAD_BYTES - self.head_bytes)];
        self.head_bytes += head.len();
        self.has_nul_in_head |= memchr(0, head).is_some();
        self.has_return_in_head |= memchr(b'\r', head).is_some();
        self.has_feed_in_head |= memchr(b'\n', head).is_some();
        self.arrived.drain(..self.begin);
        self.searched -= self.begin;
        self.begin = 0;
        self.arrived.reserve_exact(piece.len());
        self.arrived.extend_from_slice(piece);
    }

    /// Skips the first bytes of the upload, before any line was returned.
    fn skip(&mut self, bytes: usize) {
        self.begin += bytes;
        self.searched = self.begin;
    }

    /// Whether the upload has ended, and all of it is one line.
    fn has_one_line(&self) -> bool {
        self.has_ended && memchr(b'\n', &self.arrived[self.begin..]).is_none()
    }

    /// Whether the lines seem to end with a carriage return only.
    fn has_returns(&self) -> bool {
        self.has_return_in_head && !self.has_feed_in_head
    }

    /// Why a header row can't be read.
    fn header_fault(&self) -> UploadFault {
        if self.has_returns() {
            UploadFault::CarriageReturns
        } else {
            UploadFault::BadHeader
        }
    }

    /// Returns the next line without its end, or its error; `None` until its end has arrived.
    fn next(&mut self) -> Option<Result<&[u8], LineFault>> {
        let rest = &self.arrived[self.searched..];
        let delimiter = self.delimiter;
        let found = match &mut self.place {
            None => memchr(b'\n', rest),
            Some(place) => rest.iter().position(|&byte| {
                let is_end = byte == b'\n' && *place != CsvPosition::Quoted;
                if !is_end {
                    *place = place.after(byte, delimiter);
                }
                is_end
            }),
        };
        let begin = self.begin;
        let end = self.searched + found.unwrap_or(rest.len());
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
        let place = self
            .place
            .as_mut()
            .map(|place| std::mem::replace(place, CsvPosition::Begin));
        if std::mem::take(&mut self.is_too_long) {
            return Some(Err(LineFault::ItemTooLong));
        }
        let line = &self.arrived[begin..end];
        Some(match place {
            Some(CsvPosition::Quoted | CsvPosition::Spoiled) => Err(LineFault::Malformed),
            None
            | Some(
                CsvPosition::Begin
                | CsvPosition::Plain
                | CsvPosition::Closed
                | CsvPosition::Returned,
            ) => Ok(line.strip_suffix(b"\r").unwrap_or(line)),
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

    let Ok(line) = str::from_utf8(line) else {
        return Line::Rejected(LineFault::NotUtf8);
    };
    if line.trim_matches([' ', '\t']).is_empty() {
        return Line::Blank;
    }
    let parsed = match line.trim_ascii_start().starts_with('{') {
        true => serde_json::from_str::<Object<'_>>(line).map(|object| object.item),
        false => serde_json::from_str::<JsonText<'_>>(line).map(|text| text.0),
    };
    match parsed.map(|text| (length_fault(text.len()), text)) {
        Ok((None, text)) => Line::Item(text),
        Ok((Some(fault), _)) => Line::Rejected(fault),
        Err(_) => Line::Rejected(LineFault::Malformed),
    }
}

/// Returns the delimiter that Excel's line `sep=;` states, if this is one.
fn stated_delimiter(line: &[u8]) -> Result<Option<Delimiter>, UploadFault> {
    let quoted = line
        .strip_prefix(b"\"")
        .and_then(|line| line.strip_suffix(b"\""));
    match quoted.unwrap_or(line).split_last() {
        Some((byte, stated)) if stated.eq_ignore_ascii_case(STATED) => Delimiter::of(*byte)
            .map(Some)
            .ok_or(UploadFault::UnknownDelimiter),
        _ => Ok(None),
    }
}

/// The index of a column in a header row; of the only one, also its name.
fn find_column(
    header: &[u8],
    delimiter: u8,
    wanted: Option<&str>,
    field: &mut Vec<u8>,
) -> Result<(usize, Option<String>), UploadFault> {
    let mut columns = Columns::default();
    let mut found = None;
    find_field(header, delimiter, field, |index, name| {
        columns.push(name);
        if found.is_none() && wanted.is_some_and(|wanted| wanted.as_bytes() == name) {
            found = Some(index);
        }
        false
    });
    if columns.count == 1
        && let Some(other) = Delimiter::ALL
            .into_iter()
            .find(|other| separates(header, other.byte()))
    {
        return Err(UploadFault::OtherDelimiter(other));
    }
    match (wanted, found) {
        (Some(_), Some(index)) => Ok((index, None)),
        (Some(_), None) => Err(UploadFault::NoSuchColumn(columns)),
        (None, _) if columns.count > 1 => Err(UploadFault::WhichColumn(columns)),
        (None, _) => Ok((0, Some(String::from_utf8_lossy(field).into_owned()))),
    }
}

/// Whether a record has more than one field with this delimiter.
fn separates(record: &[u8], delimiter: u8) -> bool {
    find_field(record, delimiter, &mut Vec::new(), |index, _| index == 1).is_some()
}

/// Whether all fields of a record are empty.
fn is_blank(record: &[u8], delimiter: u8, field: &mut Vec<u8>) -> bool {
    find_field(record, delimiter, field, |_, field| !field.is_empty()).is_none()
}

/// Reads the fields of a record, without their quotes, until one is the wanted one. It is in `field` then.
fn find_field(
    record: &[u8],
    delimiter: u8,
    field: &mut Vec<u8>,
    mut is_wanted: impl FnMut(usize, &[u8]) -> bool,
) -> Option<usize> {
    let mut place = CsvPosition::Begin;
    let mut index = 0;
    field.clear();
    for &byte in record {
        let next = place.after(byte, delimiter);
        match (place, next) {
            (_, CsvPosition::Begin) if is_wanted(index, field) => return Some(index),
            (_, CsvPosition::Begin) => {
                index += 1;
                field.clear();
            }
            (CsvPosition::Begin, CsvPosition::Quoted)
            | (CsvPosition::Quoted, CsvPosition::Closed) => {}
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

    fn read(format: UploadFormat, pieces: &[&[u8]]) -> Result<Vec<String>, UploadFault> {
        read_column(format, None, pieces)
    }

    fn read_column(
        format: UploadFormat,
        column: Option<&str>,
        pieces: &[&[u8]],
    ) -> Result<Vec<String>, UploadFault> {
        read_lines(
            Lines::new(format, Delimiter::Comma, column.map(str::to_owned)),
            pieces,
        )
    }

    fn read_csv(
        delimiter: Delimiter,
        column: Option<&str>,
        csv: &str,
    ) -> Result<Vec<String>, UploadFault> {
        read_lines(
            Lines::new(UploadFormat::Csv, delimiter, column.map(str::to_owned)),
            &[csv.as_bytes()],
        )
    }

    fn read_lines(mut lines: Lines, pieces: &[&[u8]]) -> Result<Vec<String>, UploadFault> {
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
            read(UploadFormat::Text, &pieces).unwrap(),
            ["a", "-", " b ", "last", "!ItemTooLong", "!NotUtf8", "end"]
        );
        assert_eq!(read(UploadFormat::Text, &[]).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn endless_line_takes_bounded_memory() {
        let mut lines = Lines::new(UploadFormat::Text, Delimiter::Comma, None);
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
        let seen = read(UploadFormat::NdJson, &[lines]).unwrap();
        assert_eq!(
            seen,
            [
                "a",
                "b",
                "-",
                "!Malformed",
                "!Malformed",
                "!Malformed",
                "!Empty",
                "d"
            ]
        );
    }

    #[test]
    fn csv_header_and_quotes_are_parsed() {
        let csv: &[u8] = b"id,code\r\n1,\"a,\"\"b\"\r\n2,c\n\n3\n4,\"two\nlines\"\n";
        let of = |column: Option<&str>| read_column(UploadFormat::Csv, column, &[csv]);
        assert_eq!(
            of(Some("code")).unwrap(),
            ["-", "a,\"b", "c", "-", "!Malformed", "two\nlines"]
        );
        for (column, detail) in [
            (
                None,
                "the header row has 2 columns, \"id\", \"code\": name the one that holds the items",
            ),
            (
                Some("Code"),
                "the header row has no such column: it has \"id\", \"code\"",
            ),
        ] {
            assert_eq!(of(column).unwrap_err().to_string(), detail);
        }
        let many = (0..30)
            .map(|n| format!("\"{n} {}\"", "x".repeat(50)))
            .collect::<Vec<_>>()
            .join(",");
        let detail = read_csv(Delimiter::Comma, None, &many)
            .unwrap_err()
            .to_string();
        assert!(
            detail.contains("\"19 xxx") && detail.contains(" and 10 more") && detail.len() < 1_000,
            "{detail}"
        );
        let one = read(UploadFormat::Csv, &[b"code\na\nb,x\n"]);
        assert_eq!(one.unwrap(), ["-", "a", "b"]);
    }

    #[test]
    fn invalid_csv_is_rejected() {
        let of = |csv: &[u8]| read(UploadFormat::Csv, &[csv]);
        // A quote inside a field is an ordinary character, and the next line is another record.
        assert_eq!(
            of(b"size\n5\" disk\n7\" tape\n").unwrap(),
            ["-", "5\" disk", "7\" tape"]
        );
        assert_eq!(of(b"code\n\xef\xbb\xbfa\n").unwrap(), ["-", "\u{feff}a"]);
        assert_eq!(of(b"code\n\"a\"b\"\nc\n").unwrap(), ["-", "ab\"", "c"]);
        // Half a record is not an item.
        assert_eq!(of(b"code\na\rb\nc").unwrap(), ["-", "!Malformed", "c"]);
        assert_eq!(of(b"code\na\n\"b\nc\n").unwrap(), ["-", "a", "!Malformed"]);
        assert_eq!(of(b"\"code\na\n"), Err(UploadFault::BadHeader));
    }

    #[test]
    fn long_line_fails_in_any_pieces() {
        let line = [b"\"a\"", &[b' '; LINE_BYTES_MAX - 3][..], b"\n"].concat();
        let longer = [b" ", &line[..]].concat();
        for (line, seen) in [(line, "a"), (longer, "!ItemTooLong")] {
            let (head, tail) = line.split_at(1_000);
            assert_eq!(read(UploadFormat::NdJson, &[&line]).unwrap(), [seen]);
            assert_eq!(read(UploadFormat::NdJson, &[head, tail]).unwrap(), [seen]);
        }
    }

    #[test]
    fn byte_order_mark_is_skipped_in_any_pieces() {
        for pieces in [
            vec![&b"\xef\xbb\xbfa\n"[..]],
            vec![b"\xef", b"\xbb", b"\xbf", b"a"],
        ] {
            assert_eq!(read(UploadFormat::Text, &pieces).unwrap(), ["a"]);
            assert_eq!(read(UploadFormat::Csv, &pieces).unwrap(), ["-"]);
        }
        let mark_only: &[u8] = b"\xef\xbb\xbf";
        assert_eq!(
            read(UploadFormat::NdJson, &[mark_only, b"\"a\""]).unwrap(),
            ["a"]
        );
        assert_eq!(read(UploadFormat::Text, &[mark_only]).unwrap(), [""; 0]);
        assert_eq!(
            read(UploadFormat::Text, &[b"\xef", b"\xbb"]).unwrap(),
            ["!NotUtf8"]
        );
        assert_eq!(
            read_column(UploadFormat::Csv, Some("b"), &[mark_only, b"a,b\n1,2\n"]).unwrap(),
            ["-", "2"]
        );
        // One mark is skipped; a second one is a part of the item.
        assert_eq!(
            read(UploadFormat::Text, &[mark_only, mark_only, b"a"]).unwrap(),
            ["\u{feff}a"]
        );
    }

    #[test]
    fn utf16_fails_in_any_pieces() {
        let text: Vec<u16> = "user\r\n用户\r\n".encode_utf16().collect();
        let little: Vec<u8> = text.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let big: Vec<u8> = text.iter().flat_map(|unit| unit.to_be_bytes()).collect();
        let late = [b"a\n".repeat(2_047), b"\0".to_vec()].concat();
        for upload in [
            [b"\xff\xfe", &little[..]].concat(),
            [b"\xfe\xff", &big[..]].concat(),
            b"\xff\xfe\x28\x75".to_vec(),
            little,
            big,
            late,
        ] {
            for format in [UploadFormat::Text, UploadFormat::NdJson, UploadFormat::Csv] {
                let bytes: Vec<&[u8]> = upload.chunks(1).collect();
                assert_eq!(read(format, &bytes), Err(UploadFault::Utf16));
                assert_eq!(read(format, &[&upload]), Err(UploadFault::Utf16));
            }
        }
        assert_eq!(
            read(UploadFormat::Text, &[b"\xff", b"\n"]).unwrap(),
            ["!NotUtf8"]
        );
    }

    #[test]
    fn line_with_nul_is_rejected_after_head() {
        let head = "u1\n".repeat(2_000);
        let seen = |format, rest: &str| {
            read(format, &[head.as_bytes(), rest.as_bytes()]).unwrap()[2_000..].to_vec()
        };
        assert_eq!(
            seen(UploadFormat::Text, "a\0\nb\n\0"),
            ["!Malformed", "b", "!Malformed"]
        );
        assert_eq!(seen(UploadFormat::Csv, "\"a\0\"\nb\n"), ["!Malformed", "b"]);
        assert_eq!(
            seen(UploadFormat::NdJson, "\"a\0\"\n\"b\""),
            ["!Malformed", "b"]
        );
    }

    #[test]
    fn carriage_returns_as_line_ends_fail() {
        for (format, upload) in [
            (UploadFormat::Csv, &b"code\ra\rb\r"[..]),
            (UploadFormat::Csv, b"\xef\xbb\xbfid,code\r1,a"),
            (UploadFormat::Text, b"a\rb\r"),
        ] {
            assert_eq!(read(format, &[upload]), Err(UploadFault::CarriageReturns));
            assert_eq!(
                read(format, &upload.chunks(1).collect::<Vec<_>>()),
                Err(UploadFault::CarriageReturns)
            );
        }
        let long = b"code\r".repeat(LINE_BYTES_MAX / 4);
        for format in [UploadFormat::Csv, UploadFormat::Text] {
            assert_eq!(read(format, &[&long]), Err(UploadFault::CarriageReturns));
            let pieces: Vec<&[u8]> = long.chunks(1_000).collect();
            assert_eq!(read(format, &pieces), Err(UploadFault::CarriageReturns));
        }
        let with_nul = [b"a\r".repeat(HEAD_BYTES), b"\0".to_vec()].concat();
        assert_eq!(
            read(UploadFormat::Text, &[&with_nul]),
            Err(UploadFault::CarriageReturns)
        );
        assert_eq!(read(UploadFormat::Text, &[b"a\r"]).unwrap(), ["a"]);
        assert_eq!(
            read(UploadFormat::Text, &[&long, b"\nb"]).unwrap(),
            ["!ItemTooLong", "b"]
        );
    }

    #[test]
    fn delimiter_separates_fields() {
        for delimiter in Delimiter::ALL {
            let between = char::from(delimiter.byte());
            let csv = "id,code,x\n1,\"a,b\",\n2,c\n3,\"d\"\"\ne\",\"\"\n"
                .replace(',', &between.to_string());
            let seen = read_csv(delimiter, Some("code"), &csv).unwrap();
            assert_eq!(seen, ["-", &format!("a{between}b"), "c", "d\"\ne"]);
            // The others are ordinary characters in records.
            for other in Delimiter::ALL
                .into_iter()
                .filter(|other| *other != delimiter)
            {
                let item = format!("a{}b", char::from(other.byte()));
                assert_eq!(
                    read_csv(delimiter, None, &format!("code\n{item}\n")).unwrap(),
                    ["-", &item]
                );
            }
        }
    }

    #[test]
    fn header_with_another_delimiter_fails() {
        for (delimiter, header, expected) in [
            (Delimiter::Comma, "user;email", Delimiter::Semicolon),
            (Delimiter::Comma, "\"user\";\"email\"", Delimiter::Semicolon),
            (Delimiter::Comma, "user\temail", Delimiter::Tab),
            (Delimiter::Comma, "user|email", Delimiter::Pipe),
            (Delimiter::Semicolon, "user,email", Delimiter::Comma),
        ] {
            for column in [None, Some("user"), Some(header)] {
                let fault = read_csv(delimiter, column, &format!("{header}\nu1\n")).unwrap_err();
                assert_eq!(fault, UploadFault::OtherDelimiter(expected), "{header}");
                assert!(
                    fault
                        .to_string()
                        .ends_with(&format!("set delimiter={expected}")),
                    "{fault}"
                );
            }
        }
        // A quoted one is a part of the name.
        assert_eq!(
            read_csv(Delimiter::Comma, None, "\"a;b\"\nu1\n").unwrap(),
            ["-", "u1"]
        );
        assert_eq!(
            read_csv(Delimiter::Comma, Some("a"), "a,b;c\nu1,x\n").unwrap(),
            ["-", "u1"]
        );
    }

    #[test]
    fn first_line_states_delimiter() {
        for (stated, between) in [
            ("sep=;", ';'),
            ("SEP=,", ','),
            ("\"sep=|\"", '|'),
            ("sep=\t", '\t'),
            ("\u{feff}sep=;", ';'),
        ] {
            for delimiter in [Delimiter::Comma, Delimiter::Tab] {
                for end in ["\n", "\r\n"] {
                    let csv = format!("{stated}{end}id{between}code{end}1{between}a{end}");
                    assert_eq!(
                        read_csv(delimiter, Some("code"), &csv).unwrap(),
                        ["-", "-", "a"],
                        "{stated}"
                    );
                }
            }
        }
        let unknown = read_csv(Delimiter::Comma, None, "sep=:\ncode\na\n");
        assert_eq!(unknown, Err(UploadFault::UnknownDelimiter));
        assert_eq!(read_csv(Delimiter::Comma, None, "sep=;\n").unwrap(), ["-"]);
        // It is a line of text, and after the header a record.
        assert_eq!(
            read(UploadFormat::Text, &[b"sep=;\na"]).unwrap(),
            ["sep=;", "a"]
        );
        assert_eq!(
            read_csv(Delimiter::Comma, None, "code\nsep=;\n").unwrap(),
            ["-", "sep=;"]
        );
    }

    #[test]
    fn record_of_empty_fields_is_blank() {
        let csv = "a,b\n,\n1,\n\"\",\"\"\n,,,\n,\"\"\"\"\n , \n";
        assert_eq!(
            read_csv(Delimiter::Comma, Some("b"), csv).unwrap(),
            ["-", "-", "!Empty", "-", "-", "\"", " "]
        );
        assert_eq!(
            read_csv(Delimiter::Comma, None, "a\n\"\"\nb\n").unwrap(),
            ["-", "-", "b"]
        );
    }

    proptest! {
        /// It does not matter where an upload is cut into pieces.
        #[test]
        fn lines_are_independent_of_pieces(bytes in "(\u{feff})?(sep=;\n)?[a\",;\r\n{}é]{0,40}", cut in 0usize..40) {
            let bytes = bytes.as_bytes();
            let (head, tail) = bytes.split_at(cut.min(bytes.len()));
            for format in [UploadFormat::Text, UploadFormat::NdJson, UploadFormat::Csv] {
                prop_assert_eq!(read(format, &[head, tail]), read(format, &[bytes]));
            }
        }
    }

    #[test]
    fn stray_carriage_return_fails_one_line() {
        assert_eq!(
            read(UploadFormat::Csv, &[b"c\na\r\"b\nc\r\n"]).unwrap(),
            ["-", "!Malformed", "c"]
        );
        assert_eq!(
            read(UploadFormat::Csv, &[b"c\r", b"\na\r", b"\n\r", b"\n"]).unwrap(),
            ["-", "a", "-"]
        );
        assert_eq!(read(UploadFormat::Csv, &[b"c\na\r"]).unwrap(), ["-", "a"]);
        assert_eq!(
            read(UploadFormat::Csv, &[b"c\n\"a\rb\"\n"]).unwrap(),
            ["-", "a\rb"]
        );
    }

    #[test]
    fn long_line_buffers_only_its_limit() {
        let mut lines = Lines::new(UploadFormat::Csv, Delimiter::Comma, None);
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
        let of = |line: &[u8]| read_column(UploadFormat::Csv, Some("d"), &[&upload(line)]).unwrap();
        assert_eq!(of(&line), ["-", "-", "!Malformed"]);
        assert_eq!(
            of(&[&line[..], b","].concat()),
            ["-", "!ItemTooLong", "!Malformed"]
        );
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
            prop_assert_eq!(read_column(UploadFormat::Csv, Some("wanted"), &pieces), Ok(expected));
        }
    }
}
