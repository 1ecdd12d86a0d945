//! The frame around stored or sent bytes. It reveals damage, a newer version, and whether a frame follows the previous one.
//!
//! ```text
//! frame: magic [4]  version u16  kind u8  0 u8  length u32  checksum of the frame before u128  payload  checksum u128  (little-endian)
//! ```
//!
//! The checksum is the XXH3-128 of everything before it in the frame. So in a chain of frames the last one is a checksum of all.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_128;

const HEADER_BYTES: usize = 28;
const CHECKSUM_BYTES: usize = 16;

/// Bytes of a frame besides its payload.
pub const FRAME_BYTES: usize = HEADER_BYTES + CHECKSUM_BYTES;

/// A kind of frames.
#[derive(Clone, Copy, Debug)]
pub struct FrameFormat {
    /// The bytes that every frame starts with.
    pub magic: [u8; 4],
    /// Its version.
    pub version: u16,
    /// The oldest version that is read.
    pub oldest: u16,
    /// Maximum size of a payload, in bytes.
    pub payload_max: usize,
}

/// An intact frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The version of its format.
    pub version: u16,
    /// Distinguishes the frames of one format.
    pub kind: u8,
    /// The checksum of the frame before; 0 for the first one.
    pub before: u128,
    /// The content.
    pub payload: &'a [u8],
    /// Its own checksum.
    pub checksum: u128,
}

/// The reason why bytes are not a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum FrameError {
    /// They are something else.
    #[error("it starts with other bytes than expected")]
    Foreign,
    /// A newer program wrote them.
    #[error("its version is {0}, which is not supported")]
    Newer(u16),
    /// They are cut off or changed.
    #[error("its checksum is wrong")]
    Damaged,
}

impl FrameFormat {
    /// Appends a frame to `out`. Returns its checksum.
    ///
    /// # Panics
    /// If the payload is longer than a reader accepts: such a frame is never written.
    pub fn seal(&self, kind: u8, before: u128, payload: &[u8], out: &mut Vec<u8>) -> u128 {
        assert!(
            payload.len() <= self.payload_max,
            "a payload of {} bytes",
            payload.len()
        );
        let start = out.len();
        out.reserve(FRAME_BYTES + payload.len());
        out.extend_from_slice(&self.magic);
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&[kind, 0]);
        out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&before.to_le_bytes());
        out.extend_from_slice(payload);
        let checksum = xxh3_128(&out[start..]);
        out.extend_from_slice(&checksum.to_le_bytes());
        checksum
    }

    /// The first frame of some bytes, and its length; `None` if it is incomplete.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn open<'a>(&self, bytes: &'a [u8]) -> Result<Option<(Frame<'a>, usize)>, FrameError> {
        let known = bytes.len().min(self.magic.len());
        if bytes[..known] != self.magic[..known] {
            return Err(FrameError::Foreign);
        }
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let version = u16::from_le_bytes([header[4], header[5]]);
        if !(self.oldest..=self.version).contains(&version) {
            return Err(FrameError::Newer(version));
        }
        let length = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        if length > self.payload_max {
            return Err(FrameError::Damaged);
        }
        let Some((payload, rest)) = rest.split_at_checked(length) else {
            return Ok(None);
        };
        let Some(checksum) = rest.first_chunk::<CHECKSUM_BYTES>() else {
            return Ok(None);
        };
        let checksum = u128::from_le_bytes(*checksum);
        if xxh3_128(&bytes[..HEADER_BYTES + length]) != checksum {
            return Err(FrameError::Damaged);
        }
        let mut before = [0; CHECKSUM_BYTES];
        before.copy_from_slice(&header[12..]);
        let frame = Frame {
            version,
            kind: header[6],
            before: u128::from_le_bytes(before),
            payload,
            checksum,
        };
        Ok(Some((frame, FRAME_BYTES + length)))
    }

    /// Whether bytes are an intact frame of whatever version: a newer program wrote them, and nothing has damaged them.
    pub fn is_intact(&self, bytes: &[u8]) -> bool {
        let checksum = |(body, checksum): (&[u8], &[u8; CHECKSUM_BYTES])| {
            xxh3_128(body).to_le_bytes() == *checksum
        };
        bytes.starts_with(&self.magic) && bytes.split_last_chunk().is_some_and(checksum)
    }

    /// Returns a value in a separate frame.
    pub fn pack<T: Serialize>(&self, value: &T) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.seal(0, 0, &encode(value), &mut bytes);
        bytes
    }

    /// The value of a frame that [`Self::pack`] has made.
    ///
    /// # Errors
    /// [`FrameError`]; [`FrameError::Damaged`] also if anything follows the frame, or the payload is something else.
    pub fn unpack<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, FrameError> {
        let (frame, length) = self.open(bytes)?.ok_or(FrameError::Damaged)?;
        decode(frame.payload)
            .filter(|_| length == bytes.len())
            .ok_or(FrameError::Damaged)
    }
}

/// The encoding of a value.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data always encodes")
}

/// Appends the encoding of a value.
pub fn append<T: Serialize>(value: &T, out: &mut Vec<u8>) {
    *out = postcard::to_extend(value, std::mem::take(out)).expect("plain data always encodes");
}

/// The value that some bytes are the encoding of; `None` if they are not exactly that.
pub fn decode<T: DeserializeOwned>(mut bytes: &[u8]) -> Option<T> {
    let value = take(&mut bytes)?;
    bytes.is_empty().then_some(value)
}

/// Decodes the value at the beginning of `bytes`, and removes it from them.
pub fn take<'a, T: Deserialize<'a>>(bytes: &mut &'a [u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    *bytes = rest;
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FORMAT: FrameFormat = FrameFormat {
        magic: *b"test",
        version: 3,
        oldest: 3,
        payload_max: 300,
    };

    proptest! {
        #[test]
        fn frame_opens_only_if_complete(
            kind in any::<u8>(),
            before in any::<u128>(),
            payload in prop::collection::vec(any::<u8>(), 0..300),
            after in prop::collection::vec(any::<u8>(), 0..50),
            place in any::<prop::sample::Index>(),
            bit in 0..8u32,
        ) {
            let mut bytes = vec![7; 5];
            let checksum = FORMAT.seal(kind, before, &payload, &mut bytes);
            let frame = bytes.split_off(5);
            let expected = Frame { version: 3, kind, before, payload: &payload, checksum };
            let with_more = [frame.as_slice(), &after].concat();
            prop_assert_eq!(FORMAT.open(&with_more), Ok(Some((expected, frame.len()))));
            let end = place.index(frame.len());
            prop_assert_eq!(FORMAT.open(&frame[..end]), Ok(None));
            let mut changed = frame.clone();
            changed[end] ^= 1 << bit;
            prop_assert!(!matches!(FORMAT.open(&changed), Ok(Some(_))));
        }
    }

    #[test]
    #[should_panic(expected = "a payload of 301 bytes")]
    fn payload_beyond_limit_is_never_written() {
        FORMAT.seal(0, 0, &[7; 300], &mut Vec::new());
        FORMAT.seal(0, 0, &[7; 301], &mut Vec::new());
    }

    #[test]
    fn error_describes_foreign_bytes() {
        let mut bytes = FORMAT.pack(&"value");
        assert_eq!(FORMAT.unpack::<String>(&bytes), Ok("value".to_owned()));
        assert_eq!(
            FORMAT.unpack::<(u64, u64)>(&bytes),
            Err(FrameError::Damaged)
        );
        assert_eq!(
            FrameFormat {
                version: 2,
                ..FORMAT
            }
            .unpack::<String>(&bytes),
            Err(FrameError::Newer(3))
        );
        assert_eq!(
            FrameFormat {
                magic: *b"rest",
                ..FORMAT
            }
            .unpack::<String>(&bytes),
            Err(FrameError::Foreign)
        );
        bytes.push(0);
        assert_eq!(FORMAT.unpack::<String>(&bytes), Err(FrameError::Damaged));
        assert_eq!(FORMAT.unpack::<String>(&[]), Err(FrameError::Damaged));
    }
}
