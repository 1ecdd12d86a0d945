//! Splits the pieces of an upload into lines, and reads the item of each: plain text, NDJSON or CSV.
//!
//! Only as much of a line is kept as is needed to judge it. Of a line that is too long, only the end is searched for. So memory
//! is bounded for an upload of any size. In CSV, one line is one record, however many line breaks are inside its quotes. A carriage return
//! without a line feed does not end a record. A file that uses it so would yield one record too many or too few, so its line is rejected.

use crate::domain::{ITEM_BYTES_MAX, LineFault};
use csv_core::{ReadFieldResult, Reader};
use memchr::memchr;
use serde::Deserialize;
use std::borrow::Cow;
use thiserror::Error;
use utoipa::ToSchema;

/// A byte-order mark, which would become part of the first item.
const MARK: &[u8] = b"\xef\xbb\xbf";

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

/// The item as it is, or what is wrong with it.
fn item(bytes: &[u8]) -> Line<'_> {
    if bytes.is_empty() {
        return Line::Rejected(LineFault::Empty);
    }
    if bytes.len() > ITEM_BYTES_MAX {
        return Line::Rejected(LineFault::ItemTooLong);
    }
    str::from_utf8(bytes).map_or(Line::Rejected(LineFault::NotUtf8), Line::Item)
}

/// The format of an upload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ImportFormat)]
pub(crate) enum Format {
    /// One item per line; media type `text/plain`.
    Text,
    /// One JSON string or `{"item":…}` per line; media type `application/x-ndjson`.
    NdJson,
    /// A header row and records; media type `text/csv`.
    Csv,
}

/// Splits an upload into lines.
pub(crate) struct Lines {
    /// The first bytes, as long as they may be a byte-order mark.
    begin: Option<Vec<u8>>,
    split: Split,
    items: Items,
}

/// What reads an item from a line.
enum Items {
    Text,
    NdJson,
    Csv(Box<Records>),
}

impl Lines {
    /// Lines of an upload in this format. In CSV, the items are in this column, or in the only one.
    pub(crate) fn new(format: Format, column: Option<String>) -> Self {
        let (items, place) = match format {
            Format::Text => (Items::Text, None),
            Format::NdJson => (Items::NdJson, None),
            Format::Csv => (Items::Csv(Box::new(Records::new(column))), Some(Place::Begin)),
        };
        Self { begin: Some(Vec::new()), split: Split { place, ..Split::default() }, items }
    }

    /// Whether the upload is readable: it does not begin with a byte-order mark, and has the header row that CSV needs.
    pub(crate) fn is_readable(&self) -> bool {
        let has_header = match &self.items {
            Items::Text | Items::NdJson => true,
            Items::Csv(records) => records.column.is_some(),
        };
        self.begin.is_none() && has_header
    }

    /// Takes the next piece of the upload, and passes each line that ends in it to `each`.
    ///
    /// # Errors
    /// If the upload can't be read at all.
    pub(crate) fn push(&mut self, piece: &[u8], each: &mut impl FnMut(Line<'_>)) -> Result<(), UploadFault> {
        let Some(begin) = &mut self.begin else {
            return self.split.push(piece, &mut |line| self.items.read(line, each));
        };
        // The mark may be spread over several pieces.
        begin.extend_from_slice(piece);
        if begin.starts_with(MARK) {
            return Err(UploadFault::ByteOrderMark);
        }
        if MARK.starts_with(begin) {
            return Ok(());
        }
        let begin = self.begin.take().unwrap_or_default();
        self.push(&begin, each)
    }

    /// Ends the upload, and with it the last line.
    ///
    /// # Errors
    /// If the upload can't be read at all.
    pub(crate) fn finish(&mut self, each: &mut impl FnMut(Line<'_>)) -> Result<(), UploadFault> {
        if let Some(begin) = self.begin.take() {
            self.push(&begin, each)?;
        }
        match self.split.is_too_long || !self.split.unfinished.is_empty() {
            true => self.split.end(&mut |line| self.items.read(line, each)),
            false => Ok(()),
        }
    }
}

/// Splits an upload into lines that end with `\n` or `\r\n`.
#[derive(Default)]
struct Split {
    /// The beginning of a line whose end has not arrived yet.
    unfinished: Vec<u8>,
    /// That line is too long; the rest of it is skipped.
    is_too_long: bool,
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
    /// Behind a quote that ends the field, unless another one follows.
    Closed,
    /// Behind a carriage return outside quotes.
    Returned,
    /// Behind a carriage return that no line feed followed.
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

/// A line without its end, or what is wrong with it.
type RawLine<'a> = Result<&'a [u8], LineFault>;

impl Split {
    /// Passes on each line that ends in this piece.
    fn push(
        &mut self,
        mut piece: &[u8],
        each: &mut impl FnMut(RawLine<'_>) -> Result<(), UploadFault>,
    ) -> Result<(), UploadFault> {
        while let Some(end) = self.find_end(piece) {
            let (line, rest) = (&piece[..end], &piece[end + 1..]);
            if self.unfinished.is_empty() && !self.is_too_long && line.len() <= LINE_BYTES_MAX {
                each(ended(&mut self.place, line))?;
            } else {
                self.keep(line);
                self.end(each)?;
            }
            piece = rest;
        }
        self.keep(piece);
        Ok(())
    }

    /// Finds the line feed that ends the current line.
    fn find_end(&mut self, piece: &[u8]) -> Option<usize> {
        let Some(place) = &mut self.place else { return memchr(b'\n', piece) };
        piece.iter().position(|&byte| {
            let is_end = byte == b'\n' && *place != Place::Quoted;
            if !is_end {
                *place = place.after(byte);
            }
            is_end
        })
    }

    fn keep(&mut self, part: &[u8]) {
        if self.unfinished.len() + part.len() > LINE_BYTES_MAX {
            self.is_too_long = true;
            self.unfinished.clear();
        }
        if !self.is_too_long {
            self.unfinished.extend_from_slice(part);
        }
    }

    fn end(
        &mut self,
        each: &mut impl FnMut(RawLine<'_>) -> Result<(), UploadFault>,
    ) -> Result<(), UploadFault> {
        let line = ended(&mut self.place, &self.unfinished);
        let is_too_long = std::mem::take(&mut self.is_too_long);
        let read = each(if is_too_long { Err(LineFault::ItemTooLong) } else { line });
        self.unfinished.clear();
        read
    }
}

/// A line whose end has been found. In CSV, the place of its last byte tells whether it is a record.
fn ended<'a>(place: &mut Option<Place>, line: &'a [u8]) -> RawLine<'a> {
    match place.as_mut().map(|place| std::mem::replace(place, Place::Begin)) {
        Some(Place::Quoted | Place::Spoiled) => Err(LineFault::Malformed),
        None | Some(Place::Begin | Place::Plain | Place::Closed | Place::Returned) => {
            Ok(line.strip_suffix(b"\r").unwrap_or(line))
        }
    }
}

impl Items {
    fn read(&mut self, line: RawLine<'_>, each: &mut impl FnMut(Line<'_>)) -> Result<(), UploadFault> {
        match (self, line) {
            (Items::Csv(records), line) => return records.read(line, each),
            (Items::Text | Items::NdJson, Err(fault)) => each(Line::Rejected(fault)),
            (Items::Text, Ok(b"")) => each(Line::Blank),
            (Items::Text, Ok(line)) => each(item(line)),
            (Items::NdJson, Ok(line)) => ndjson(line, each),
        }
        Ok(())
    }
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

/// Reads the records of a CSV upload, the header row first.
struct Records {
    reader: Reader,
    /// The name of the column that holds the items; `None` for the only column.
    wanted: Option<String>,
    /// That column, once the header row has been read.
    column: Option<usize>,
    /// The current field.
    field: Vec<u8>,
}

impl Records {
    fn new(wanted: Option<String>) -> Self {
        let mut reader = Reader::new();
        // Otherwise csv-core would skip a byte-order mark at the start of its first input, wherever that is in the upload.
        reader.read_field(b"\n", &mut []);
        Self { reader, wanted, column: None, field: Vec::new() }
    }

    fn read(&mut self, line: RawLine<'_>, each: &mut impl FnMut(Line<'_>)) -> Result<(), UploadFault> {
        let Some(column) = self.column else {
            self.column = Some(self.find_column(line.map_err(|_| UploadFault::BadHeader)?)?);
            each(Line::Blank);
            return Ok(());
        };
        match line {
            Ok(b"") => each(Line::Blank),
            Ok(record) => {
                let mut is_found = false;
                self.fields(record, |index, field| {
                    if index == column {
                        is_found = true;
                        each(item(field));
                    }
                });
                if !is_found {
                    each(Line::Rejected(LineFault::Malformed));
                }
            }
            Err(fault) => each(Line::Rejected(fault)),
        }
        Ok(())
    }

    fn find_column(&mut self, header: &[u8]) -> Result<usize, UploadFault> {
        let (wanted, mut found, mut columns) = (self.wanted.take(), None, 0);
        self.fields(header, |index, name| {
            let is_wanted = wanted.as_ref().is_some_and(|wanted| wanted.as_bytes() == name);
            found = found.or(is_wanted.then_some(index));
            columns = index + 1;
        });
        match wanted {
            Some(_) => found.ok_or(UploadFault::NoSuchColumn),
            None if columns > 1 => Err(UploadFault::WhichColumn(columns)),
            None => Ok(0),
        }
    }

    /// Passes on the fields of a record, with their indexes. A blank one has one field, which is empty.
    fn fields(&mut self, record: &[u8], mut each: impl FnMut(usize, &[u8])) {
        if record.is_empty() {
            return each(0, b"");
        }
        self.field.resize(self.field.len().max(record.len() + 1), 0);
        let (mut rest, mut index, mut length) = (record, 0, 0);
        loop {
            let input = if rest.is_empty() { b"\n" } else { rest };
            let (result, taken, written) = self.reader.read_field(input, &mut self.field[length..]);
            rest = rest.get(taken..).unwrap_or_default();
            length += written;
            if let ReadFieldResult::Field { record_end } = result {
                each(index, &self.field[..length]);
                if record_end {
                    return;
                }
                (index, length) = (index + 1, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Line<'_> {
        /// The line as tests compare it.
        fn shown(&self) -> String {
            match self {
                Line::Item(item) => (*item).to_owned(),
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
        let mut each = |line: Line<'_>| seen.push(line.shown());
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
        let mut lines = Lines::new(Format::Text, None);
        let mut rejected = 0;
        for _ in 0..100 {
            lines.push(&[b'x'; 32 << 10], &mut |_| {}).unwrap();
        }
        assert!(lines.split.unfinished.capacity() <= 2 * LINE_BYTES_MAX);
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
        let of = |column: Option<&str>| read_column(Format::Csv, column, &[csv]);
        assert_eq!(of(Some("code")).unwrap(), ["-", "a,\"b", "c", "-", "!Malformed", "two\nlines"]);
        assert_eq!(of(None), Err(UploadFault::WhichColumn(2)));
        assert_eq!(of(Some("none")), Err(UploadFault::NoSuchColumn));
        let one = read(Format::Csv, &[b"code\na\nb,x\n"]);
        assert_eq!(one.unwrap(), ["-", "a", "b"]);
    }

    #[test]
    fn csv_that_is_none_is_told_rather_than_guessed_at() {
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
        /// It does not matter where an upload is cut into pieces.
        #[test]
        fn pieces_do_not_matter(bytes in "[a\",\r\n{}é]{0,40}", cut in 0usize..40) {
            let bytes = bytes.as_bytes();
            let (head, tail) = bytes.split_at(cut.min(bytes.len()));
            for format in [Format::Text, Format::NdJson, Format::Csv] {
                prop_assert_eq!(read(format, &[head, tail]), read(format, &[bytes]));
            }
        }
    }

    #[test]
    fn a_return_without_a_line_feed_spoils_its_line_and_no_other() {
        assert_eq!(read(Format::Csv, &[b"c\na\r\"b\nc\r\n"]).unwrap(), ["-", "!Malformed", "c"]);
        assert_eq!(read(Format::Csv, &[b"c\r", b"\na\r", b"\n\r", b"\n"]).unwrap(), ["-", "a", "-"]);
        assert_eq!(read(Format::Csv, &[b"c\na\r"]).unwrap(), ["-", "a"]);
        assert_eq!(read(Format::Csv, &[b"c\n\"a\rb\"\n"]).unwrap(), ["-", "a\rb"]);
    }

    #[test]
    fn a_long_line_takes_no_more_than_is_needed_to_judge_it() {
        let mut lines = Lines::new(Format::Csv, None);
        lines.push(b"c\n\"", &mut |_| {}).unwrap();
        for _ in 0..100 {
            lines.push(&[b'x'; 32 << 10], &mut |_| {}).unwrap();
        }
        assert!(lines.split.unfinished.capacity() <= 2 * LINE_BYTES_MAX);
        let mut seen = Vec::new();
        lines.push(b"\"\nb\n", &mut |line| seen.push(matches!(line, Line::Item("b")))).unwrap();
        assert_eq!(seen, [false, true]);
    }

    #[test]
    fn a_line_may_have_so_many_bytes_and_none_more() {
        let line = vec![b','; LINE_BYTES_MAX];
        let upload = |line: &[u8]| [b"c,d\n", line, b"\nb\n"].concat();
        let of = |line: &[u8]| read_column(Format::Csv, Some("d"), &[&upload(line)]).unwrap();
        assert_eq!(of(&line), ["-", "!Empty", "!Malformed"]);
        assert_eq!(of(&[&line[..], b","].concat()), ["-", "!ItemTooLong", "!Malformed"]);
    }

    proptest! {
        /// Quoted items are read back unchanged, wherever the upload is cut.
        #[test]
        fn what_was_quoted_comes_back(
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
