//! The image of one filter as bytes: records, each of which can be read by itself and says which one it follows.
//!
//! ```text
//! record: "ckim"  version u16  kind u8  0 u8  length u32  checksum of the record before u128  payload  checksum u128  (little-endian)
//!   H  the head (postcard); it is the first, and follows a record whose checksum is 0
//!   P  a part (postcard)
//!   E  how many redemptions there are u64; the end
//! ```
//!
//! A checksum is the XXH3-128 of all before it in its record, so the last one is a checksum of the whole image. No part of an image is
//! valid before its end has been read.

use crate::domain::{ImageFault, ImageHead, ImagePart};
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_128;

const MAGIC: [u8; 4] = *b"ckim";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 28;
const CHECKSUM_BYTES: usize = 16;

/// The longest payload, in bytes. A record becomes a command, which must not be longer than 64 KiB.
const PAYLOAD_BYTES_MAX: usize = 60 << 10;

/// The longest record, in bytes.
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + PAYLOAD_BYTES_MAX + CHECKSUM_BYTES;

/// A part that has become so large is written, in bytes. It leaves room for another chunk.
pub const PART_BYTES: usize = 48 << 10;

/// What a record holds.
#[derive(Clone, PartialEq, Debug)]
pub enum Body {
    /// What the image begins with.
    Head(Box<ImageHead>),
    /// A part of it.
    Part(ImagePart),
    /// Its end, and how many redemptions it has.
    End {
        /// How many.
        redemptions: u64,
    },
}

/// A record of an image.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    /// The checksum of the record before; 0 for the first one.
    pub before: u128,
    /// Its own.
    pub checksum: u128,
    /// What it holds.
    pub body: Body,
}

/// Writes the records of one image.
#[derive(Default)]
pub struct ImageWriter {
    checksum: u128,
}

impl ImageWriter {
    /// The record of the head, which comes first.
    pub fn head(&mut self, head: &ImageHead) -> Vec<u8> {
        self.record(b'H', encode(head))
    }

    /// The record of a part.
    pub fn part(&mut self, part: &ImagePart) -> Vec<u8> {
        self.record(b'P', encode(part))
    }

    /// The record of the end.
    pub fn end(&mut self, redemptions: u64) -> Vec<u8> {
        self.record(b'E', redemptions.to_le_bytes().to_vec())
    }

    fn record(&mut self, kind: u8, payload: Vec<u8>) -> Vec<u8> {
        debug_assert!(payload.len() <= PAYLOAD_BYTES_MAX);
        let mut record = Vec::with_capacity(HEADER_BYTES + payload.len() + CHECKSUM_BYTES);
        record.extend_from_slice(&MAGIC);
        record.extend_from_slice(&VERSION.to_le_bytes());
        record.extend_from_slice(&[kind, 0]);
        record.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        record.extend_from_slice(&self.checksum.to_le_bytes());
        record.extend_from_slice(&payload);
        self.checksum = xxh3_128(&record);
        record.extend_from_slice(&self.checksum.to_le_bytes());
        record
    }
}

fn encode<T: Serialize>(content: &T) -> Vec<u8> {
    postcard::to_stdvec(content).expect("plain data always encodes")
}

fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ImageFault> {
    match postcard::take_from_bytes(payload) {
        Ok((content, [])) => Ok(content),
        _ => Err(ImageFault::Contradiction),
    }
}

impl Record {
    /// Reads the first record of some bytes, and says how long it is; none if it is not there as a whole.
    ///
    /// # Errors
    /// [`ImageFault`].
    pub fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, ImageFault> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(ImageFault::Foreign);
        }
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let version = u16::from_le_bytes([header[4], header[5]]);
        if version != VERSION {
            return Err(ImageFault::Newer(version));
        }
        let length = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        if length > PAYLOAD_BYTES_MAX {
            return Err(ImageFault::Checksum);
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let Some(found) = rest[length..].first_chunk::<CHECKSUM_BYTES>() else { return Ok(None) };
        let checksum = u128::from_le_bytes(*found);
        if xxh3_128(&bytes[..HEADER_BYTES + length]) != checksum {
            return Err(ImageFault::Checksum);
        }
        let body = match (header[6], payload.first_chunk::<8>()) {
            (b'H', _) => Body::Head(decode(payload)?),
            (b'P', _) => Body::Part(decode(payload)?),
            (b'E', Some(redemptions)) if length == 8 => {
                Body::End { redemptions: u64::from_le_bytes(*redemptions) }
            }
            _ => return Err(ImageFault::Contradiction),
        };
        let mut before = [0; 16];
        before.copy_from_slice(&header[12..]);
        let record = Self { before: u128::from_le_bytes(before), checksum, body };
        Ok(Some((record, HEADER_BYTES + length + CHECKSUM_BYTES)))
    }
}

/// Reads an image as it comes, and refuses one that is damaged, or longer than it is.
#[derive(Default)]
pub struct ImageReader {
    pending: Vec<u8>,
    /// The checksum of the last record; none before the first.
    checksum: Option<u128>,
    has_ended: bool,
}

impl ImageReader {
    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The next record, if all of it has come.
    ///
    /// # Errors
    /// [`ImageFault`]. What came before is worth nothing then.
    pub fn next_record(&mut self) -> Result<Option<Record>, ImageFault> {
        if self.has_ended {
            return if self.pending.is_empty() { Ok(None) } else { Err(ImageFault::TooLong) };
        }
        let Some((record, length)) = Record::read(&self.pending)? else { return Ok(None) };
        self.pending.drain(..length);
        let is_first = matches!(record.body, Body::Head(_));
        if is_first != self.checksum.is_none() || record.before != self.checksum.unwrap_or(0) {
            return Err(ImageFault::Order);
        }
        self.checksum = Some(record.checksum);
        self.has_ended = matches!(record.body, Body::End { .. });
        Ok(Some(record))
    }

    /// Judges what has come once nothing more does.
    ///
    /// # Errors
    /// [`ImageFault`] if the image is not whole.
    pub fn finish(&self) -> Result<(), ImageFault> {
        match self.has_ended {
            true if self.pending.is_empty() => Ok(()),
            true => Err(ImageFault::TooLong),
            false if self.checksum.is_none() && self.pending.len() < HEADER_BYTES => Err(ImageFault::Foreign),
            false => Err(ImageFault::CutShort),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Chunk;
    use proptest::prelude::*;

    fn image(parts: &[Vec<u8>]) -> Vec<u8> {
        let mut writer = ImageWriter::default();
        let mut bytes = Vec::new();
        for part in parts {
            bytes.extend(writer.part(&ImagePart::Chunks(vec![Chunk(part.clone())])));
        }
        bytes.extend(writer.end(7));
        bytes
    }

    /// What a reader makes of bytes that come in such pieces. It stands behind a head.
    fn read(bytes: &[u8], piece_bytes: usize) -> Result<Vec<Vec<u8>>, ImageFault> {
        let mut reader = ImageReader { checksum: Some(0), ..ImageReader::default() };
        let mut parts = Vec::new();
        for piece in bytes.chunks(piece_bytes) {
            reader.push(piece);
            while let Some(record) = reader.next_record()? {
                match record.body {
                    Body::Part(ImagePart::Chunks(chunks)) => {
                        parts.extend(chunks.into_iter().map(|chunk| chunk.0))
                    }
                    Body::End { redemptions } => assert_eq!(redemptions, 7),
                    other => panic!("{other:?}"),
                }
            }
        }
        reader.finish().map(|()| parts)
    }

    proptest! {
        /// However an image arrives, it is read as it was written. Changed, cut short, lengthened or shuffled, it is refused.
        #[test]
        fn an_image_is_read_whole_or_refused(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..6),
            piece_bytes in 1usize..400,
            place in any::<prop::sample::Index>(),
            bit in 0..8u32,
        ) {
            let bytes = image(&parts);
            prop_assert_eq!(read(&bytes, piece_bytes), Ok(parts.clone()));
            let at = place.index(bytes.len());
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            prop_assert!(read(&damaged, piece_bytes).is_err());
            prop_assert!(read(&bytes[..at], piece_bytes).is_err());
            prop_assert_eq!(read(&[&bytes[..], b"c"].concat(), piece_bytes), Err(ImageFault::TooLong));
            if let Some(first) = parts.first() {
                // A part that is left out, and one that comes twice.
                let length = image(std::slice::from_ref(first)).len() - image(&[]).len();
                prop_assert_eq!(read(&bytes[length..], piece_bytes), Err(ImageFault::Order));
                prop_assert_eq!(read(&[&bytes[..length], &bytes].concat(), piece_bytes), Err(ImageFault::Order));
            }
        }

        #[test]
        fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut record = b"ckim\x01\0".to_vec();
            record.extend(&bytes);
            let _ = Record::read(&record);
            prop_assert!(read(&bytes, 7).is_err());
        }
    }

    #[test]
    fn what_is_no_image_is_told_from_a_newer_one() {
        assert_eq!(read(b"RedisBloom", 3), Err(ImageFault::Foreign));
        assert_eq!(ImageReader::default().finish(), Err(ImageFault::Foreign));
        let mut newer = image(&[]);
        newer[4] = 2;
        assert_eq!(read(&newer, 100), Err(ImageFault::Newer(2)));
    }
}
