//! The log's format on disk. A group commit is one value of at most 64 KiB, or several; each carries the checksum of the value
//! before it. The entries inside are opaque bytes here.
//!
//! ```text
//! value: magic "cklg"  version u16  part u16  parts u16  0 u16  entries u32  first u64  last u64
//!        checksum of the value before u128  payload  checksum of all that u128        (little-endian)
//! ```
//!
//! The checksum is XXH3-128, which guards against accidents, not against forgery.

use crate::domain::Seq;
use crate::store::{VALUE_BYTES_MAX, part_of_key};
use xxhash_rust::xxh3::xxh3_128;

const MAGIC: &[u8; 4] = b"cklg";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 48;
const CHECKSUM_BYTES: usize = 16;
const PAYLOAD_BYTES_MAX: usize = VALUE_BYTES_MAX - HEADER_BYTES - CHECKSUM_BYTES;

/// The most bytes that one group commit may have once encoded.
pub(super) const COMMIT_BYTES_MAX: usize = PAYLOAD_BYTES_MAX * u16::MAX as usize;

/// An end of the log: a position, and the checksum of the value that ends there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Link {
    pub(super) seq: Seq,
    pub(super) checksum: u128,
}

impl Link {
    pub(super) fn encode(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.seq.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Link> {
        let (seq, checksum) = bytes.split_first_chunk::<8>()?;
        let checksum = u128::from_le_bytes(checksum.try_into().ok()?);
        Some(Link { seq: Seq(u64::from_le_bytes(*seq)), checksum })
    }
}

/// A group commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Commit<'a> {
    /// Position of its first entry.
    pub(super) first: Seq,
    /// How many entries it has.
    pub(super) entries: u32,
    /// The entries.
    pub(super) payload: &'a [u8],
}

impl Commit<'_> {
    pub(super) fn last(&self) -> Seq {
        Seq(self.first.0 + u64::from(self.entries).saturating_sub(1))
    }
}

/// Splits a commit into values, chained to `checksum`. Returns the checksum of the last one.
pub(super) fn encode(commit: Commit<'_>, mut checksum: u128) -> (Vec<Vec<u8>>, u128) {
    let parts = commit.payload.len().div_ceil(PAYLOAD_BYTES_MAX).max(1);
    let mut values = Vec::with_capacity(parts);
    for part in 0..parts {
        let start = part * PAYLOAD_BYTES_MAX;
        let payload = &commit.payload[start..commit.payload.len().min(start + PAYLOAD_BYTES_MAX)];
        let mut value = Vec::with_capacity(HEADER_BYTES + payload.len() + CHECKSUM_BYTES);
        value.extend_from_slice(MAGIC);
        value.extend_from_slice(&VERSION.to_le_bytes());
        value.extend_from_slice(&(part as u16).to_le_bytes());
        value.extend_from_slice(&(parts as u16).to_le_bytes());
        value.extend_from_slice(&0u16.to_le_bytes());
        value.extend_from_slice(&commit.entries.to_le_bytes());
        value.extend_from_slice(&commit.first.0.to_le_bytes());
        value.extend_from_slice(&commit.last().0.to_le_bytes());
        value.extend_from_slice(&checksum.to_le_bytes());
        value.extend_from_slice(payload);
        checksum = xxh3_128(&value);
        value.extend_from_slice(&checksum.to_le_bytes());
        values.push(value);
    }
    (values, checksum)
}

/// A decoded value whose checksum was right.
pub(super) struct Value<'a> {
    pub(super) part: u16,
    pub(super) parts: u16,
    pub(super) entries: u32,
    pub(super) first: Seq,
    pub(super) last: Seq,
    pub(super) previous: u128,
    pub(super) payload: &'a [u8],
    pub(super) checksum: u128,
}

/// Decodes the value stored under a key.
///
/// # Errors
/// What is wrong with it.
pub(super) fn decode<'a>(key: &[u8], value: &'a [u8]) -> Result<Value<'a>, &'static str> {
    let (body, checksum) = value.split_last_chunk::<CHECKSUM_BYTES>().ok_or("too short")?;
    let checksum = u128::from_le_bytes(*checksum);
    if xxh3_128(body) != checksum {
        return Err("its checksum is wrong");
    }
    let (header, payload) = body.split_first_chunk::<HEADER_BYTES>().ok_or("too short")?;
    if &header[..4] != MAGIC || u16_at(header, 4) != VERSION {
        return Err("it is not a log value of a known version");
    }
    let value = Value {
        part: u16_at(header, 6),
        parts: u16_at(header, 8),
        entries: u32_at(header, 12),
        first: Seq(u64_at(header, 16)),
        last: Seq(u64_at(header, 24)),
        previous: u128_at(header, 32),
        payload,
        checksum,
    };
    let counted = value.first.0.checked_add(u64::from(value.entries)) == value.last.0.checked_add(1);
    if !counted || value.entries == 0 || value.part >= value.parts {
        return Err("its header contradicts itself");
    }
    if part_of_key(key) != Some((value.first.0, value.part)) {
        return Err("it lies under the wrong key");
    }
    Ok(value)
}

fn u16_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn u128_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u128 {
    u128::from(u64_at(bytes, at)) | u128::from(u64_at(bytes, at + 8)) << 64
}
