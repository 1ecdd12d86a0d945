//! Uploads of any bytes: the pieces that they arrive in make no difference, the limits hold, and NDJSON and CSV say
//! what parsers of others' making say.

#![no_main]

use cuckood::http::fuzzing::{Delimiter, Line, Lines, UploadFault, UploadFormat};
use cuckood_state::domain::LineFault;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const ITEM_BYTES_MAX: usize = 512;
/// More than this, and a line is refused whatever is in it.
const LINE_BYTES_MAX: usize = 64 << 10;

/// A NUL before this offset fails the upload, and so does a carriage return in a text without line feeds that is one line too long.
const HEAD_BYTES: usize = 4 << 10;

const FORMATS: [(&str, Delimiter, Option<&str>); 6] = [
    ("text/plain", Delimiter::Comma, None),
    ("application/x-ndjson", Delimiter::Comma, None),
    ("text/csv", Delimiter::Comma, None),
    ("text/csv", Delimiter::Comma, Some("code")),
    ("text/csv", Delimiter::Semicolon, Some("code")),
    ("text/csv", Delimiter::Tab, None),
];

type Seen = Result<Option<String>, LineFault>;

// The first byte chooses the format, the next two how the upload is split; the rest is the upload.
fuzz_target!(|bytes: &[u8]| {
    let [format, low, high, upload @ ..] = bytes else {
        return;
    };
    let form = FORMATS[usize::from(*format) % FORMATS.len()];
    let (media_type, delimiter, column) = form;
    let upload = stretched(upload);
    let (whole, end) = read(form, [upload.as_slice()]);
    let cut = read(form, pieces(&upload, u16::from_le_bytes([*low, *high])));
    if upload.starts_with(b"\xff\xfe")
        || upload.starts_with(b"\xfe\xff")
        || upload.iter().take(HEAD_BYTES).any(|byte| *byte == 0)
    {
        // Lines of earlier pieces may have been read, but are not added.
        return assert!(whole.is_empty() && end.is_err() && cut.1.is_err(), "UTF-16");
    }
    assert_eq!(cut, (whole.clone(), end.clone()), "the pieces matter");

    for item in whole.iter().flatten().flatten() {
        assert!(
            (1..=ITEM_BYTES_MAX).contains(&item.len()),
            "an item of {} bytes",
            item.len()
        );
    }
    let head = &upload[..upload.len().min(HEAD_BYTES)];
    let upload = upload.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&upload);
    match media_type {
        "text/csv" => {
            if let Some(expected) = csv_items(upload, delimiter, column) {
                let items: Vec<&String> = whole.iter().flatten().flatten().collect();
                assert_eq!(items, expected.iter().collect::<Vec<_>>());
                assert_eq!(end, Ok(()));
            }
        }
        _ => {
            let is_one_line = !upload.contains(&b'\n');
            let ended = upload.strip_suffix(b"\r").unwrap_or(upload);
            // Of a line that is too long, only the head is searched for them.
            let has_returns = if upload.len() <= LINE_BYTES_MAX {
                ended.contains(&b'\r')
            } else {
                head.contains(&b'\r')
            };
            if media_type == "text/plain" && is_one_line && has_returns {
                return assert!(
                    end.is_err() && whole.is_empty(),
                    "carriage returns as line ends"
                );
            }
            assert_eq!(end, Ok(()));
            let expected: Vec<Seen> = lines(upload).map(|line| judge(media_type, line)).collect();
            assert_eq!(whole, expected);
        }
    }
});

fn read<'a>(
    form: (&str, Delimiter, Option<&str>),
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Seen>, Result<(), String>) {
    let mut seen = Vec::new();
    let end = read_to_end(form, pieces, &mut seen).map_err(|fault| fault.to_string());
    (seen, end)
}

fn read_to_end<'a>(
    (media_type, delimiter, column): (&str, Delimiter, Option<&str>),
    pieces: impl IntoIterator<Item = &'a [u8]>,
    seen: &mut Vec<Seen>,
) -> Result<(), UploadFault> {
    let format = match media_type {
        "text/csv" => UploadFormat::Csv,
        "application/x-ndjson" => UploadFormat::NdJson,
        _ => UploadFormat::Text,
    };
    let mut lines = Lines::new(format, delimiter, column.map(str::to_owned));
    let mut pieces = pieces.into_iter();
    while !lines.has_ended() {
        match pieces.next() {
            Some(piece) => lines.push(piece),
            None => lines.end(),
        }
        while let Some(line) = lines.next_line()? {
            seen.push(match line {
                Line::Item(item) => Ok(Some(item.into_owned())),
                Line::Blank => Ok(None),
                Line::Rejected(fault) => Err(fault),
            });
        }
    }
    Ok(())
}

/// Expands a few bytes to many, so that short inputs reach the limits.
fn stretched(upload: &[u8]) -> Vec<u8> {
    let mut long = Vec::new();
    for byte in upload {
        match byte {
            1 => long.extend([b'x'; 500]),
            2 => long.extend([b' '; 30_000]),
            3 => long.extend([b'x'; 65_500]),
            _ => long.push(*byte),
        }
    }
    long
}

/// The upload in pieces whose lengths follow from `seed`, some of them empty.
fn pieces(upload: &[u8], seed: u16) -> impl Iterator<Item = &[u8]> {
    let (mut rest, mut random) = (upload, u32::from(seed) | 1 << 16);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let longest = if random >> 31 == 0 { 4 } else { 40_000 };
        let (piece, after) = rest.split_at((random >> 8) as usize % longest % (rest.len() + 1));
        rest = after;
        Some(piece)
    })
}

fn lines(upload: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ended = upload.strip_suffix(b"\n").unwrap_or(upload);
    let is_empty = upload.is_empty();
    ended
        .split(|byte| *byte == b'\n')
        .filter(move |_| !is_empty)
}

/// The expected result for a line of text or NDJSON, from an independent implementation.
fn judge(media_type: &str, line: &[u8]) -> Seen {
    if line.len() > LINE_BYTES_MAX {
        return Err(LineFault::ItemTooLong);
    }
    if line.contains(&0) {
        return Err(LineFault::Malformed);
    }
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let is_json = media_type == "application/x-ndjson";
    if line.is_empty() || is_json && line.iter().all(|byte| b" \t".contains(byte)) {
        return Ok(None);
    }
    if !is_json && line.len() > ITEM_BYTES_MAX {
        return Err(LineFault::ItemTooLong);
    }
    let text = str::from_utf8(line).map_err(|_| LineFault::NotUtf8)?;
    if !is_json {
        return Ok(Some(text.to_owned()));
    }
    let item = match serde_json::from_str(text).map_err(|_| LineFault::Malformed)? {
        Value::String(item) => item,
        Value::Object(mut fields) if fields.len() == 1 => match fields.remove("item") {
            // Of two alike, a map keeps the last; here they are refused.
            Some(Value::String(_)) if is_given_twice(text) => return Err(LineFault::Malformed),
            Some(Value::String(item)) => item,
            _ => return Err(LineFault::Malformed),
        },
        _ => return Err(LineFault::Malformed),
    };
    match item.len() {
        0 => Err(LineFault::Empty),
        1..=ITEM_BYTES_MAX => Ok(Some(item)),
        _ => Err(LineFault::ItemTooLong),
    }
}

/// Whether an object that has no field but `item` has it more than once.
fn is_given_twice(object: &str) -> bool {
    struct Count(usize);
    impl<'de> serde::Deserialize<'de> for Count {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Fields;
            impl<'de> serde::de::Visitor<'de> for Fields {
                type Value = Count;

                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("an object")
                }

                fn visit_map<A: serde::de::MapAccess<'de>>(
                    self,
                    mut map: A,
                ) -> Result<Count, A::Error> {
                    let mut count = 0;
                    while map.next_entry::<String, serde::de::IgnoredAny>()?.is_some() {
                        count += 1;
                    }
                    Ok(Count(count))
                }
            }
            deserializer.deserialize_map(Fields)
        }
    }
    serde_json::from_str::<Count>(object).is_ok_and(|Count(count)| count > 1)
}

/// The items of a CSV upload as the `csv` crate reads it, unless the two may differ: it also ends records at a lone `\r`, accepts an
/// unclosed quote, and knows no limits.
fn csv_items(upload: &[u8], delimiter: Delimiter, column: Option<&str>) -> Option<Vec<String>> {
    let has_lone_return = upload
        .iter()
        .enumerate()
        .any(|(at, byte)| *byte == b'\r' && upload.get(at + 1) != Some(&b'\n'));
    if has_lone_return
        || upload.len() > LINE_BYTES_MAX
        || upload.contains(&0)
        || upload[..upload.len().min(5)]
            .to_ascii_lowercase()
            .windows(4)
            .any(|stated| stated == b"sep=")
        || upload.first().is_none_or(|byte| b"\r\n".contains(byte))
    {
        return None;
    }
    let [records, followed] = [upload.to_vec(), [upload, b"\nz"].concat()].map(|upload| {
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(delimiter.byte())
            .has_headers(false)
            .flexible(true)
            .from_reader(upload.as_slice());
        reader
            .byte_records()
            .map(|record| record.expect("bytes in memory can be read"))
            .collect::<Vec<_>>()
    });
    // The rest after an open quote belongs to the last record.
    if followed.len() == records.len() {
        return None;
    }
    let (header, records) = records.split_first()?;
    // Another delimiter is refused.
    if header.len() == 1
        && Delimiter::ALL
            .into_iter()
            .any(|other| header[0].contains(&other.byte()))
    {
        return None;
    }
    let column = match column {
        // Refused.
        None if header.len() > 1 => return None,
        None => 0,
        Some(name) => header.iter().position(|field| field == name.as_bytes())?,
    };
    let items = records.iter().filter_map(|record| record.get(column));
    let fit = items.filter(|item| (1..=ITEM_BYTES_MAX).contains(&item.len()));
    Some(
        fit.filter_map(|item| str::from_utf8(item).ok())
            .map(str::to_owned)
            .collect(),
    )
}
