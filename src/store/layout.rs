//! The names of files, trees and keys, and the size limits of values.
//!
//! ```text
//! DIR/lock           held while a process has the directory open
//! DIR/format         magic, format number, identity of the directory
//! DIR/acknowledged   a small record beside sled: the last acknowledged position
//! DIR/clock          what the clocks said when they were last trusted
//! DIR/ballast        space that is given up so that a full disk can be opened
//! DIR/diverged       why a node over this directory has stopped
//! DIR/sled/          sled's own files
//!
//! tree meta               identity, log-base, migration/NNNN, events/FIRST, skipped/SEQ
//! tree log/SEQ            a segment of the log (`journal/local`); key: first seq, part
//! tree log-places         where snapshots lie in a replicated log (`journal/nats`); key: position
//! tree manifests/GENERATION   key: part
//! tree chunks/GENERATION/PIECE   key: number of the chunk in its generation
//! tree events/FIRST/AFTER/SINCE  key: number of the first event of a pack (`events.rs`)
//! ```
//!
//! Numbers in names are 16 hexadecimal digits, numbers in keys big-endian, so that their order is sled's.

use std::ops::Range;

pub(crate) const LOCK_FILE: &str = "lock";
pub(crate) const FORMAT_FILE: &str = "format";
pub(crate) const ACKNOWLEDGED_FILE: &str = "acknowledged";
pub(crate) const CLOCK_FILE: &str = "clock";
pub(crate) const BALLAST_FILE: &str = "ballast";
/// Exists while a new directory is being created; the files beside it hold nothing yet.
pub(crate) const INITIALISING_FILE: &str = "initialising";
/// Exists while a restore runs. Such a directory must never be served.
pub(crate) const RESTORING_FILE: &str = "restoring";
/// Exists while a directory is filled from a snapshot that nodes share. Such a directory must never be served, and can be filled again.
pub(crate) const FILLING_FILE: &str = "filling";
/// Exists if the state is not that of the other nodes; it says how that showed. Such a directory is not served again.
pub(crate) const DIVERGED_FILE: &str = "diverged";
pub(crate) const SLED_DIR: &str = "sled";
/// A copy of a damaged `sled` folder, made before a repair is tried.
pub(crate) const ASIDE_DIR: &str = "sled.aside";

/// The files whose existence says that a directory is not complete.
pub(crate) const MARKERS: &[&str] = &[INITIALISING_FILE, RESTORING_FILE, FILLING_FILE];

/// The longest value that is written. Longer ones could end up in sled's `blobs/`, which it never syncs.
pub(crate) const VALUE_BYTES_MAX: usize = 64 * 1024;

/// sled's segment size. It determines the largest leaf that stays out of `blobs/`.
pub(crate) const SLED_SEGMENT_BYTES: usize = 8 * 1024 * 1024;

/// Chunks in a tree: usually 8 MB of them. A tree must fit into sled's cache while it is dropped. Creating a tree costs sled as
/// much time as writing many chunks.
pub(crate) const TREE_CHUNKS: u64 = 1024;

pub(crate) const META_TREE: &str = "meta";
pub(crate) const IDENTITY_KEY: &[u8] = b"identity";
pub(crate) const LOG_BASE_KEY: &[u8] = b"log-base";
/// What the keys of skipped entries in [`META_TREE`] start with.
pub(crate) const SKIPPED_KEYS: &[u8] = b"skipped/";
const MANIFEST_TREES: &str = "manifests/";
const CHUNK_TREES: &str = "chunks/";
/// What the names of trees of events start with, and the keys of their sizes in [`META_TREE`].
pub(crate) const EVENT_TREES: &str = "events/";

/// The tree that holds the manifest of a generation.
pub(crate) fn manifest_tree(generation: u64) -> String {
    format!("{MANIFEST_TREES}{generation:016x}")
}

/// The generation whose manifest a tree holds; `None` if it holds none.
pub(crate) fn manifest_of_tree(tree: &str) -> Option<u64> {
    number(tree.strip_prefix(MANIFEST_TREES)?)
}

/// The tree that holds a chunk of a generation; chunks are numbered across all sections.
pub(crate) fn chunk_tree(generation: u64, chunk: u64) -> String {
    format!("{CHUNK_TREES}{generation:016x}/{:016x}", chunk / TREE_CHUNKS)
}

/// The generation and the chunk numbers of a tree; `None` if it holds no chunks.
pub(crate) fn chunks_of_tree(tree: &str) -> Option<(u64, Range<u64>)> {
    let (generation, piece) = tree.strip_prefix(CHUNK_TREES)?.split_once('/')?;
    let first = number(piece)?.checked_mul(TREE_CHUNKS)?;
    Some((number(generation)?, first..first.checked_add(TREE_CHUNKS)?))
}

/// The key of a chunk, of a part of a manifest, of the pack that begins with an event, or of an entry.
pub(crate) fn number_key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// The inverse of [`number_key`].
pub(crate) fn number_of_key(key: &[u8]) -> Option<u64> {
    key.try_into().ok().map(u64::from_be_bytes)
}

/// A number in the name of a tree.
pub(crate) fn number(digits: &str) -> Option<u64> {
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// The key of one part of a value that is split into several: its position, then the number of the part.
pub(crate) fn part_key(position: u64, part: u16) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&position.to_be_bytes());
    key[8..].copy_from_slice(&part.to_be_bytes());
    key
}

/// The inverse of [`part_key`].
pub(crate) fn part_of_key(key: &[u8]) -> Option<(u64, u16)> {
    let (position, part) = key.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*position), u16::from_be_bytes(part.try_into().ok()?)))
}

pub(crate) fn migration_key(number: u32) -> Vec<u8> {
    format!("migration/{number:04}").into_bytes()
}
