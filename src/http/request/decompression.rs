//! Content codings of request bodies: gzip with any number of members, zstd with any number of frames.
//!
//! Trailing bytes that are no further member or frame are an error, and so is a missing end. A body is decompressed in chunks, so that one
//! that expands a lot delays no other request for long.

use crate::http::response::{Code, Problem};
use bytes::{Buf, Bytes};
use flate2::write::MultiGzDecoder;
use http::{HeaderMap, header};
use std::io::{self, Write};
use zstd::zstd_safe::zstd_sys::ZSTD_ErrorCode;
use zstd::zstd_safe::{ErrorCode, get_error_name};

/// A piece is complete at this many bytes; it has at most [`PIECE_BYTES_MAX`].
const PIECE_BYTES: usize = 64 << 10;

/// The longest piece: one output of a decoder may follow [`PIECE_BYTES`].
pub(crate) const PIECE_BYTES_MAX: u64 = 256 << 10;

/// The code of zstd's error about a window that is too long: errors are negative numbers.
const WINDOW_TOO_LARGE: ErrorCode =
    (ZSTD_ErrorCode::ZSTD_error_frameParameter_windowTooLarge as ErrorCode).wrapping_neg();

/// The most steps of a decoder for one piece: input that expands to nothing takes time too.
const PIECE_STEPS: usize = 64;

/// The longest zstd window, as a power of two. RFC 9659 sets this limit for the content coding.
const WINDOW_LOG_MAX: u32 = 23;

/// How a body is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Coding {
    Identity,
    Gzip,
    Zstd,
}

impl Coding {
    /// Reads the coding from the headers.
    ///
    /// # Errors
    /// 415 for another coding, or several.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let other = || {
            Problem::new(
                Code::UnsupportedMediaType,
                "the body may be compressed with gzip or with zstd, once",
            )
        };
        let mut coding = Coding::Identity;
        for value in headers.get_all(header::CONTENT_ENCODING) {
            for name in value.to_str().map_err(|_| other())?.split(',') {
                coding = match (coding, &*name.trim().to_ascii_lowercase()) {
                    (coding, "" | "identity") => coding,
                    (Coding::Identity, "gzip" | "x-gzip") => Coding::Gzip,
                    (Coding::Identity, "zstd") => Coding::Zstd,
                    _ => return Err(other()),
                };
            }
        }
        Ok(coding)
    }

    /// The most memory that its decoder and the current piece take, in bytes.
    pub(crate) fn decoder_bytes(self) -> u64 {
        match self {
            Coding::Identity => 0,
            // Includes the optional fields of a header.
            Coding::Gzip => PIECE_BYTES_MAX + (384 << 10),
            // The window, blocks of 128 KiB in both directions, and tables.
            Coding::Zstd => {
                PIECE_BYTES_MAX + (1 << WINDOW_LOG_MAX) + (512 << 10) + PIECE_BYTES as u64
            }
        }
    }

    /// A decoder for one body; `None` if it is not compressed.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(crate) fn expander(self) -> Result<Option<Expander>, Problem> {
        let zstd = || {
            let mut decoder = ZstdDecoder::new(Vec::new())?;
            decoder.window_log_max(WINDOW_LOG_MAX)?;
            io::Result::Ok(Expander::Zstd(decoder))
        };
        let no_memory = "there is no memory to decompress the body with";
        Ok(match self {
            Coding::Identity => None,
            Coding::Gzip => Some(Expander::Gzip(MultiGzDecoder::new(Vec::new()))),
            Coding::Zstd => Some(zstd().map_err(|_| Problem::new(Code::MemoryLimit, no_memory))?),
        })
    }
}

type ZstdDecoder = zstd::stream::write::Decoder<'static, Vec<u8>>;

/// Decompresses one body.
pub(crate) enum Expander {
    Gzip(MultiGzDecoder<Vec<u8>>),
    Zstd(ZstdDecoder),
}

impl Expander {
    /// Takes bytes from the front of `input` and returns their expansion, until the input is used up or the piece is complete.
    pub(crate) fn expand(&mut self, input: &mut Bytes) -> Result<Bytes, Problem> {
        let mut steps = 0;
        while !input.is_empty() && self.expanded().len() < PIECE_BYTES && steps < PIECE_STEPS {
            let taken = match self {
                Expander::Gzip(members) => members.write(input),
                Expander::Zstd(frames) => frames.write(input),
            };
            input.advance(taken.map_err(unexpandable)?);
            steps += 1;
        }
        // The next piece is probably as long.
        let capacity = self.expanded().len().min(PIECE_BYTES);
        Ok(std::mem::replace(self.expanded(), Vec::with_capacity(capacity)).into())
    }

    /// Ends the body, and returns the rest.
    pub(crate) fn finish(mut self) -> Result<Bytes, Problem> {
        let finished = match &mut self {
            Expander::Gzip(members) => members.try_finish(),
            Expander::Zstd(frames) => frames.do_finish(),
        };
        finished.map_err(unexpandable)?;
        Ok(std::mem::take(self.expanded()).into())
    }

    fn expanded(&mut self) -> &mut Vec<u8> {
        match self {
            Expander::Gzip(members) => members.get_mut(),
            Expander::Zstd(frames) => frames.get_mut(),
        }
    }
}

/// The problem of a body that is incomplete or damaged, has bytes after its end, or needs a longer window than [`WINDOW_LOG_MAX`] allows.
fn unexpandable(error: io::Error) -> Problem {
    let detail = match error.to_string() == get_error_name(WINDOW_TOO_LARGE) {
        true => {
            "a zstd window is longer than the 8 MiB that RFC 9659 allows: compress without --long and --ultra"
        }
        false => "the body is badly compressed: incomplete, damaged, or with bytes after its end",
    };
    Problem::new(Code::MalformedRequest, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    /// Compresses a text in this many parts, each a separate member or frame.
    fn compressed(coding: Coding, text: &[u8], parts: usize) -> Vec<u8> {
        let part = |part: &[u8]| match coding {
            Coding::Identity => part.to_vec(),
            Coding::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(part).unwrap();
                encoder.finish().unwrap()
            }
            Coding::Zstd => zstd::stream::encode_all(part, 1).unwrap(),
        };
        if text.is_empty() {
            return part(text);
        }
        text.chunks(text.len().div_ceil(parts))
            .flat_map(part)
            .collect()
    }

    /// Expands input in pieces of this size; returns the text and the longest output, or the error.
    fn expanded(
        coding: Coding,
        bytes: &[u8],
        piece_bytes: usize,
    ) -> Result<(Vec<u8>, usize), String> {
        let mut expander = coding.expander().unwrap().unwrap();
        let mut text = Vec::new();
        let mut longest = 0;
        let mut take = |piece: Result<Bytes, Problem>| {
            let piece = piece.map_err(|problem| problem.detail.into_owned())?;
            longest = longest.max(piece.len());
            text.extend_from_slice(&piece);
            Ok::<_, String>(())
        };
        for input in bytes.chunks(piece_bytes) {
            let mut input = Bytes::copy_from_slice(input);
            while !input.is_empty() {
                take(expander.expand(&mut input))?;
            }
        }
        take(expander.finish())?;
        Ok((text, longest))
    }

    #[test]
    fn decompression_bomb_expands_in_pieces() {
        for coding in [Coding::Gzip, Coding::Zstd] {
            let bomb = compressed(coding, &vec![b' '; 32 << 20], 1);
            assert!(bomb.len() < 200 << 10, "{}", bomb.len());
            let (text, longest) = expanded(coding, &bomb, usize::MAX).unwrap();
            assert_eq!(text.len(), 32 << 20);
            assert!(longest as u64 <= PIECE_BYTES_MAX, "{coding:?}: {longest}");
        }
    }

    #[test]
    fn empty_frames_yield_to_other_tasks() {
        let empty_frame = compressed(Coding::Zstd, b"", 1);
        let skippable = [
            &0x184D_2A50_u32.to_le_bytes()[..],
            &3_u32.to_le_bytes(),
            b"abc",
        ]
        .concat();
        for (coding, part) in [
            (Coding::Gzip, compressed(Coding::Gzip, b"", 1)),
            (Coding::Zstd, empty_frame),
            (Coding::Zstd, skippable),
        ] {
            let many = part.repeat(1_000);
            let mut expander = coding.expander().unwrap().unwrap();
            let mut input = Bytes::from(many.clone());
            let piece = expander.expand(&mut input).unwrap();
            assert!(!input.is_empty() && piece.is_empty());
            assert_eq!(expanded(coding, &many, 7).unwrap().0, b"");
        }
    }

    #[test]
    fn decompression_window_is_limited() {
        let frame = |log: u32| {
            let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
            encoder.window_log(log).unwrap();
            encoder.write_all(b"text").unwrap();
            encoder.finish().unwrap()
        };
        assert_eq!(expanded(Coding::Zstd, &frame(23), 1).unwrap().0, b"text");
        let is_window = |frame: &[u8], piece_bytes| {
            let fault = expanded(Coding::Zstd, frame, piece_bytes).unwrap_err();
            fault.starts_with("a zstd window is longer")
        };
        assert!(is_window(&frame(24), 1));
        // After a valid frame.
        let second = [compressed(Coding::Zstd, b"text", 1), frame(27)].concat();
        assert!(is_window(&second, 1_000));
    }

    #[test]
    fn at_most_one_coding_is_accepted() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CONTENT_ENCODING, value.parse().unwrap());
            }
            Coding::of(&headers).ok()
        };
        assert_eq!(of(&[]), Some(Coding::Identity));
        for (name, coding) in [
            ("identity", Coding::Identity),
            ("gzip", Coding::Gzip),
            ("x-gzip", Coding::Gzip),
            ("GZip", Coding::Gzip),
            ("zstd", Coding::Zstd),
            (" , gzip", Coding::Gzip),
        ] {
            assert_eq!(of(&[name]), Some(coding), "{name}");
        }
        for bad in [
            &["br"][..],
            &["gzip, gzip"],
            &["gzip", "zstd"],
            &["deflate"],
            &["gzip;q=1"],
        ] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
    }

    proptest! {
        /// A text compressed in any parts, and received in any pieces, is read completely; truncated or with trailing bytes, it is
        /// rejected.
        #[test]
        fn body_is_read_completely_or_rejected(
            is_gzip: bool,
            text in prop::collection::vec(any::<u8>(), 0..3_000),
            parts in 1usize..6,
            piece_bytes in 1usize..400,
            cut in 1usize..40,
            behind in prop::collection::vec(any::<u8>(), 1..30),
        ) {
            let coding = if is_gzip { Coding::Gzip } else { Coding::Zstd };
            let whole = compressed(coding, &text, parts);
            prop_assert_eq!(expanded(coding, &whole, piece_bytes).map(|(text, _)| text), Ok(text.clone()));
            let one = compressed(coding, &text, 1);
            let cut = one.len() - cut.min(one.len());
            prop_assert!(expanded(coding, &one[..cut], piece_bytes).is_err());
            // Bytes that look like the start of a further part are none either.
            let begin = &one[..behind.len().min(one.len() - 1)];
            for behind in [&behind[..], &[0], begin] {
                let longer = [&whole[..], behind].concat();
                prop_assert!(expanded(coding, &longer, piece_bytes).is_err(), "{behind:?}");
            }
        }
    }
}
