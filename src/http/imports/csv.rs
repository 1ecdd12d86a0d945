//! Items from a CSV upload: csv-core parses the fields; this module decides where a line ends and what it yields.
//!
//! One line is one record, however many line breaks are inside its quotes. Blank lines count, since errors name lines by number.
//! A carriage return without a line feed does not end a record. A file that uses it so would yield one record too many or too
//! few, so its line is rejected.

use super::line::{LINE_BYTES_MAX, Line, UploadFault, item};
use crate::domain::LineFault;
use csv_core::{ReadFieldResult, Reader};
use memchr::memchr;

/// The initial size of a field's buffer; it grows to the length of the longest allowed line.
const FIELD_BYTES: usize = 1 << 10;

/// More than fits into the longest allowed line, so that a field never fills it.
const FIELD_BYTES_MAX: usize = LINE_BYTES_MAX + 2;

/// Parses the records of one upload.
pub(super) struct Records {
    reader: Reader,
    header: Header,
    record: Record,
    /// The current field, as far as it has arrived.
    field: Vec<u8>,
    field_bytes: usize,
    /// The item of the current record.
    item: Vec<u8>,
}

/// Which column holds the items.
enum Header {
    /// The header has not been read yet: the name of the wanted column, and where it was found.
    Ahead { wanted: Option<String>, found: Option<usize> },
    /// The header has been read.
    Read { column: usize },
}

/// How far the current record has been read.
#[derive(Default)]
struct Record {
    /// Its bytes, without the line feed.
    bytes: usize,
    /// Number of fields that have ended.
    fields: usize,
    /// The last byte was a carriage return outside quotes: the record has ended if a line feed follows.
    is_behind_return: bool,
    /// No line feed followed. The rest of the line is skipped.
    has_lone_return: bool,
    /// The length of the item, once it has been read.
    item_bytes: Option<usize>,
}

impl Records {
    /// Takes the items from the column of this name, or from the only column.
    pub(super) fn new(column: Option<String>) -> Self {
        let mut reader = Reader::new();
        // Otherwise csv-core would skip a byte-order mark at the start of its first input, wherever that is in the upload.
        reader.read_field(b"\n", &mut []);
        Self {
            reader,
            header: Header::Ahead { wanted: column, found: None },
            record: Record::default(),
            field: vec![0; FIELD_BYTES],
            field_bytes: 0,
            item: vec![0; FIELD_BYTES],
        }
    }

    /// Whether the header row has been read.
    pub(super) fn has_header(&self) -> bool {
        matches!(self.header, Header::Read { .. })
    }

    /// Takes the next piece, and passes each record that ends in it to `each`.
    pub(super) fn push(
        &mut self,
        mut piece: &[u8],
        each: &mut impl FnMut(Line<'_>),
    ) -> Result<(), UploadFault> {
        while let Some(&next) = piece.first() {
            if self.record.is_behind_return && next != b'\n' {
                self.record.is_behind_return = false;
                self.record.has_lone_return = true;
            }
            let is_at_begin = self.record.bytes == 0 || self.record.is_behind_return;
            piece = if self.record.has_lone_return {
                self.pass_over(piece, each)?
            } else if is_at_begin && next == b'\n' {
                // A blank line, which csv-core would skip, or the second half of a line ending.
                self.end_record(each)?;
                &piece[1..]
            } else if is_at_begin && next == b'\r' {
                self.record.bytes += 1;
                self.record.is_behind_return = true;
                &piece[1..]
            } else {
                self.read(piece, each)?.1
            };
        }
        Ok(())
    }

    /// Ends the upload, and with it the last record.
    pub(super) fn finish(&mut self, each: &mut impl FnMut(Line<'_>)) -> Result<(), UploadFault> {
        if self.record.bytes == 0 {
            return Ok(());
        }
        if self.record.is_behind_return || self.record.has_lone_return {
            return self.end_record(each);
        }
        // Only the effect of a line feed shows whether a quote is still open.
        let mut end: &[u8] = b"\n";
        let mut has_ended = false;
        while !end.is_empty() {
            (has_ended, end) = self.read(end, each)?;
        }
        if has_ended {
            return Ok(());
        }
        if matches!(self.header, Header::Ahead { .. }) {
            return Err(UploadFault::BadHeader);
        }
        // Without the line feed.
        let is_too_long = self.record.bytes - 1 > LINE_BYTES_MAX;
        each(Line::Rejected(if is_too_long { LineFault::ItemTooLong } else { LineFault::Malformed }));
        Ok(())
    }

    /// Reads to the end of a field or of the piece. Returns whether a record ended, and the rest of the piece.
    fn read<'a>(
        &mut self,
        piece: &'a [u8],
        each: &mut impl FnMut(Line<'_>),
    ) -> Result<(bool, &'a [u8]), UploadFault> {
        let (result, taken, written) = self.reader.read_field(piece, &mut self.field[self.field_bytes..]);
        let (taken, rest) = piece.split_at(taken);
        self.field_bytes += written;
        self.record.bytes += taken.len();
        match result {
            ReadFieldResult::InputEmpty | ReadFieldResult::End => {}
            ReadFieldResult::OutputFull => self.make_room(),
            ReadFieldResult::Field { record_end } => {
                self.end_field();
                match taken.last() {
                    Some(b'\r') if record_end => self.record.is_behind_return = true,
                    Some(_) if record_end => {
                        self.record.bytes -= 1;
                        self.end_record(each)?;
                        return Ok((true, rest));
                    }
                    _ => {}
                }
            }
        }
        Ok((false, rest))
    }

    /// Skips the rest of a line.
    fn pass_over<'a>(
        &mut self,
        piece: &'a [u8],
        each: &mut impl FnMut(Line<'_>),
    ) -> Result<&'a [u8], UploadFault> {
        let end = memchr(b'\n', piece);
        self.record.bytes += end.unwrap_or(piece.len());
        let Some(end) = end else { return Ok(&[]) };
        self.end_record(each)?;
        Ok(&piece[end + 1..])
    }

    fn make_room(&mut self) {
        if self.field.len() < FIELD_BYTES_MAX {
            self.field.resize((2 * self.field.len()).min(FIELD_BYTES_MAX), 0);
        } else {
            // The line is too long, whatever the rest of the field is.
            self.field_bytes = 0;
        }
    }

    fn end_field(&mut self) {
        let field = &self.field[..self.field_bytes];
        let index = self.record.fields;
        match &mut self.header {
            Header::Ahead { wanted: Some(name), found: found @ None } if field == name.as_bytes() => {
                *found = Some(index);
            }
            Header::Read { column } if *column == index => {
                std::mem::swap(&mut self.field, &mut self.item);
                self.record.item_bytes = Some(self.field_bytes);
            }
            _ => {}
        }
        self.record.fields += 1;
        self.field_bytes = 0;
    }

    fn end_record(&mut self, each: &mut impl FnMut(Line<'_>)) -> Result<(), UploadFault> {
        if self.record.fields == 0 && matches!(self.header, Header::Ahead { .. }) {
            // A blank header is one column without a name.
            self.end_field();
        }
        let Record { bytes, fields, has_lone_return, item_bytes, .. } = std::mem::take(&mut self.record);
        self.field_bytes = 0;
        if let Header::Ahead { wanted, found } = &self.header {
            if bytes > LINE_BYTES_MAX || has_lone_return {
                return Err(UploadFault::BadHeader);
            }
            let column = match wanted {
                None if fields > 1 => return Err(UploadFault::WhichColumn(fields)),
                None => 0,
                Some(_) => found.ok_or(UploadFault::NoSuchColumn)?,
            };
            self.header = Header::Read { column };
            each(Line::Blank);
            return Ok(());
        }
        each(match item_bytes {
            _ if bytes > LINE_BYTES_MAX => Line::Rejected(LineFault::ItemTooLong),
            _ if has_lone_return => Line::Rejected(LineFault::Malformed),
            _ if fields == 0 => Line::Blank,
            Some(length) => item(&self.item[..length]),
            None => Line::Rejected(LineFault::Malformed),
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(column: Option<&str>, pieces: &[&[u8]]) -> Result<Vec<String>, UploadFault> {
        let mut records = Records::new(column.map(str::to_owned));
        let mut seen = Vec::new();
        let mut each = |line: Line<'_>| seen.push(line.shown());
        for piece in pieces {
            records.push(piece, &mut each)?;
        }
        records.finish(&mut each)?;
        Ok(seen)
    }

    #[test]
    fn a_return_without_a_line_feed_spoils_its_line_and_no_other() {
        assert_eq!(read(None, &[b"c\na\r\"b\nc\r\n"]).unwrap(), ["-", "!Malformed", "c"]);
        assert_eq!(read(None, &[b"c\r", b"\na\r", b"\n\r", b"\n"]).unwrap(), ["-", "a", "-"]);
        assert_eq!(read(None, &[b"c\na\r"]).unwrap(), ["-", "a"]);
        assert_eq!(read(None, &[b"c\n\"a\rb\"\n"]).unwrap(), ["-", "a\rb"]);
    }

    #[test]
    fn a_long_line_takes_no_more_than_is_needed_to_judge_it() {
        let mut records = Records::new(None);
        records.push(b"c\n\"", &mut |_| {}).unwrap();
        for _ in 0..100 {
            records.push(&[b'x'; 32 << 10], &mut |_| {}).unwrap();
        }
        assert!(records.field.len() <= FIELD_BYTES_MAX);
        let mut seen = Vec::new();
        records.push(b"\"\nb\n", &mut |line| seen.push(matches!(line, Line::Item("b")))).unwrap();
        assert_eq!(seen, [false, true]);
    }

    #[test]
    fn a_line_may_have_so_many_bytes_and_none_more() {
        let line = vec![b','; LINE_BYTES_MAX];
        let upload = |line: &[u8]| [b"c,d\n", line, b"\nb\n"].concat();
        let of = |line: &[u8]| read(Some("d"), &[&upload(line)]).unwrap();
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
            prop_assert_eq!(read(Some("wanted"), &pieces), Ok(expected));
        }
    }
}
