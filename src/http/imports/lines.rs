//! Splits the pieces of an upload into lines: plain text, NDJSON or CSV.
//!
//! Only as much of a line is kept as is needed to judge it. Of a line that is too long, only the end is searched for. So memory
//! is bounded for an upload of any size.

use super::csv::Records;
use super::line::{LINE_BYTES_MAX, Line, UploadFault, item};
use crate::domain::LineFault;
use memchr::memchr;
use serde::Deserialize;
use std::borrow::Cow;
use utoipa::ToSchema;

/// A byte-order mark, which would become part of the first item.
const MARK: &[u8] = b"\xef\xbb\xbf";

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
    splitter: Splitter,
}

enum Splitter {
    Text(Split),
    NdJson(Split),
    Csv(Box<Records>),
}

impl Lines {
    /// Lines of an upload in this format. In CSV, the items are in this column, or in the only one.
    pub(crate) fn new(format: Format, column: Option<String>) -> Self {
        let splitter = match format {
            Format::Text => Splitter::Text(Split::default()),
            Format::NdJson => Splitter::NdJson(Split::default()),
            Format::Csv => Splitter::Csv(Box::new(Records::new(column))),
        };
        Self { begin: Some(Vec::new()), splitter }
    }

    /// Whether the upload is readable: it does not begin with a byte-order mark, and has the header row that CSV needs.
    pub(crate) fn is_readable(&self) -> bool {
        let has_header = match &self.splitter {
            Splitter::Text(_) | Splitter::NdJson(_) => true,
            Splitter::Csv(records) => records.has_header(),
        };
        self.begin.is_none() && has_header
    }

    /// Takes the next piece of the upload, and passes each line that ends in it to `each`.
    ///
    /// # Errors
    /// If the upload can't be read at all.
    pub(crate) fn push(&mut self, piece: &[u8], each: &mut impl FnMut(Line<'_>)) -> Result<(), UploadFault> {
        let Some(begin) = &mut self.begin else { return self.split(piece, each) };
        // The mark may be spread over several pieces.
        begin.extend_from_slice(piece);
        if begin.starts_with(MARK) {
            return Err(UploadFault::ByteOrderMark);
        }
        if MARK.starts_with(begin) {
            return Ok(());
        }
        let begin = std::mem::take(begin);
        self.begin = None;
        self.split(&begin, each)
    }

    /// Ends the upload, and with it the last line.
    ///
    /// # Errors
    /// If the upload can't be read at all.
    pub(crate) fn finish(&mut self, each: &mut impl FnMut(Line<'_>)) -> Result<(), UploadFault> {
        if let Some(begin) = self.begin.take() {
            self.split(&begin, each)?;
        }
        match &mut self.splitter {
            Splitter::Text(split) => split.finish(&mut |line| text(line, each)),
            Splitter::NdJson(split) => split.finish(&mut |line| ndjson(line, each)),
            Splitter::Csv(records) => return records.finish(each),
        }
        Ok(())
    }

    fn split(&mut self, piece: &[u8], each: &mut impl FnMut(Line<'_>)) -> Result<(), UploadFault> {
        match &mut self.splitter {
            Splitter::Text(split) => split.push(piece, &mut |line| text(line, each)),
            Splitter::NdJson(split) => split.push(piece, &mut |line| ndjson(line, each)),
            Splitter::Csv(records) => return records.push(piece, each),
        }
        Ok(())
    }
}

/// Splits text into lines that end with `\n` or `\r\n`.
#[derive(Default)]
struct Split {
    /// The beginning of a line whose end has not arrived yet.
    unfinished: Vec<u8>,
    /// That line is too long; the rest of it is skipped.
    is_too_long: bool,
}

impl Split {
    /// Passes on each line that ends in this piece; `None` in place of a line that is too long.
    fn push(&mut self, mut piece: &[u8], each: &mut impl FnMut(Option<&[u8]>)) {
        while let Some(end) = memchr(b'\n', piece) {
            let (line, rest) = (&piece[..end], &piece[end + 1..]);
            if self.unfinished.is_empty() && !self.is_too_long && line.len() <= LINE_BYTES_MAX {
                each(Some(without_return(line)));
            } else {
                self.keep(line);
                self.end(each);
            }
            piece = rest;
        }
        self.keep(piece);
    }

    fn finish(&mut self, each: &mut impl FnMut(Option<&[u8]>)) {
        if self.is_too_long || !self.unfinished.is_empty() {
            self.end(each);
        }
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

    fn end(&mut self, each: &mut impl FnMut(Option<&[u8]>)) {
        match std::mem::take(&mut self.is_too_long) {
            true => each(None),
            false => each(Some(without_return(&self.unfinished))),
        }
        self.unfinished.clear();
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn text(line: Option<&[u8]>, each: &mut impl FnMut(Line<'_>)) {
    match line {
        None => each(Line::Rejected(LineFault::ItemTooLong)),
        Some(b"") => each(Line::Blank),
        Some(line) => each(item(line)),
    }
}

fn ndjson(line: Option<&[u8]>, each: &mut impl FnMut(Line<'_>)) {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Object<'a> {
        #[serde(borrow)]
        item: Cow<'a, str>,
    }
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

    let Some(line) = line else { return each(Line::Rejected(LineFault::ItemTooLong)) };
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        let Splitter::Text(split) = &lines.splitter else { panic!("text is split as text") };
        assert!(split.unfinished.capacity() <= 2 * LINE_BYTES_MAX);
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
}
