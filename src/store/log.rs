//! The log as it lies on disk: group commits in values of at most 64 KiB, each of which carries the checksum
//! of the value before it. What a group commit says is the journal's business; here it is bytes.
//!
//! ```text
//! value: magic "cklg"  version u16  part u16  parts u16  0 u16  entries u32  first u64  last u64
//!        checksum of the value before u128  payload  checksum of all that u128        (little-endian)
//! ```
//!
//! The checksum is XXH3-128: against accidents, not against forgers.

use super::backing::{Backing, Change};
use super::{Store, StoreError, layout};
use crate::domain::Seq;
use std::ops::ControlFlow;
use xxhash_rust::xxh3::xxh3_128;

const MAGIC: &[u8; 4] = b"cklg";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 48;
const CHECKSUM_BYTES: usize = 16;
const PAYLOAD_BYTES_MAX: usize = layout::VALUE_BYTES_MAX - HEADER_BYTES - CHECKSUM_BYTES;

/// What a value takes up of a segment beside its bytes, so that a segment holds 16 000 small commits, not 80 000: to drop it
/// takes sled some microseconds for every ten.
const VALUE_ROOM_BYTES: u64 = 512;

/// The most bytes that one group commit may have once encoded.
pub(crate) const COMMIT_BYTES_MAX: usize = PAYLOAD_BYTES_MAX * u16::MAX as usize;

/// Where the log ends (or begins): a position, and the checksum of the value that ends there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Link {
    pub(crate) seq: Seq,
    pub(crate) checksum: u128,
}

impl Link {
    pub(crate) fn encode(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.seq.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Link> {
        let (seq, checksum) = bytes.split_first_chunk::<8>()?;
        let checksum = u128::from_le_bytes(checksum.try_into().ok()?);
        Some(Link { seq: Seq(u64::from_le_bytes(*seq)), checksum })
    }
}

/// One group commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Commit<'a> {
    /// Position of its first entry.
    pub(crate) first: Seq,
    /// How many entries it has.
    pub(crate) entries: u32,
    /// The entries.
    pub(crate) payload: &'a [u8],
}

impl Commit<'_> {
    pub(crate) fn last(&self) -> Seq {
        Seq(self.first.0 + u64::from(self.entries).saturating_sub(1))
    }
}

/// Cuts a commit into values.
fn encode(commit: Commit<'_>, mut checksum: u128) -> (Vec<Vec<u8>>, u128) {
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

/// A value, taken apart and found whole.
struct Value<'a> {
    part: u16,
    parts: u16,
    entries: u32,
    first: Seq,
    last: Seq,
    previous: u128,
    payload: &'a [u8],
    checksum: u128,
}

fn decode<'a>(key: &[u8], value: &'a [u8]) -> Result<Value<'a>, &'static str> {
    let (body, checksum) = value.split_last_chunk::<CHECKSUM_BYTES>().ok_or("too short")?;
    let checksum = u128::from_le_bytes(*checksum);
    if xxh3_128(body) != checksum {
        return Err("its checksum is wrong");
    }
    let (header, payload) = body.split_first_chunk::<HEADER_BYTES>().ok_or("too short")?;
    if &header[..4] != MAGIC || u16_at(header, 4) != VERSION {
        return Err("it isn't a log value of a known version");
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
    if layout::part_of_key(key) != Some((value.first.0, value.part)) {
        return Err("it lies under another's key");
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

/// The end of the log: where the next commit goes.
pub(crate) struct Tail {
    link: Link,
    /// The segment that is written to, and how far it is filled; a new one is begun where there is none.
    segment: Option<(Seq, u64)>,
}

impl Tail {
    /// Finds the end of the log, and takes away a commit that was never acknowledged and is not whole.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the log ends before what was acknowledged, or does not hold what was.
    pub(crate) fn find(store: &Store) -> Result<Tail, StoreError> {
        let acknowledged = store.acknowledged();
        let base = store.log_base()?;
        let segments = segments(store.backing());
        let mut tail = Tail { link: base, segment: None };
        'segments: for first in segments.into_iter().rev() {
            let tree = layout::log_tree(first);
            while let Some(key) = store.run(store.backing().last_key(&tree))? {
                match last_commit(store, &tree, &key)? {
                    Ok(link) => {
                        tail = Tail { link, segment: Some((first, filled(store, &tree)?)) };
                        break 'segments;
                    }
                    Err(why) => {
                        let position = layout::part_of_key(&key).map_or(0, |(position, _)| position);
                        if position <= acknowledged.seq.0 {
                            let what = format!(
                                "tree {tree}, position {position}: the log's last value is bad ({why})"
                            );
                            return Err(store.damaged(what));
                        }
                        tracing::warn!(tree, position, why, "dropping a commit that was never acknowledged");
                        store.write(&tree, remove_commit(store, &tree, position)?)?;
                    }
                }
            }
        }
        if tail.link.seq < acknowledged.seq {
            return Err(store.damaged(format!(
                "the log ends at position {}, but position {} was acknowledged: its tail is lost",
                tail.link.seq.0, acknowledged.seq.0
            )));
        }
        if tail.link.seq == acknowledged.seq && tail.link.checksum != acknowledged.checksum {
            return Err(store.damaged(format!(
                "position {} of the log is not what was acknowledged there",
                acknowledged.seq.0
            )));
        }
        Ok(tail)
    }

    pub(crate) fn link(&self) -> Link {
        self.link
    }

    /// Writes a commit behind the last one; durable once the store has been told to commit.
    pub(crate) fn append(&mut self, store: &Store, entries: u32, payload: &[u8]) -> Result<(), StoreError> {
        if entries == 0 || payload.len() > COMMIT_BYTES_MAX {
            return Err(StoreError::Misuse(format!(
                "a commit of {entries} entries in {} bytes",
                payload.len()
            )));
        }
        let commit = Commit { first: self.link.seq.next(), entries, payload };
        let (values, checksum) = encode(commit, self.link.checksum);
        let bytes: usize = values.iter().map(Vec::len).sum();
        let room: u64 = values.iter().map(|value| room(value)).sum();
        let (segment, filled) = match self.segment {
            Some((first, filled)) if filled < store.options().wal_segment_bytes => (first, filled),
            _ => (commit.first, 0),
        };
        let keys = (0..).map(|part| layout::part_key(commit.first.0, part).to_vec());
        let changes = keys.zip(values).map(|(key, value)| Change::Put(key, value)).collect();
        store.write(&layout::log_tree(segment), changes)?;
        store.count_wal_bytes(bytes as u64);
        self.segment = Some((segment, filled + room));
        self.link = Link { seq: commit.last(), checksum };
        Ok(())
    }
}

/// Where the commit that the key belongs to ends, if it is whole.
fn last_commit(store: &Store, tree: &str, key: &[u8]) -> Result<Result<Link, &'static str>, StoreError> {
    let Some((position, last_part)) = layout::part_of_key(key) else { return Ok(Err("its key is bad")) };
    let mut previous = None;
    let mut link = None;
    let mut bytes = Vec::new();
    for part in 0..=last_part {
        bytes.clear();
        let key = layout::part_key(position, part);
        if !store.run(store.backing().read(tree, &key, &mut bytes))? {
            return Ok(Err("a part of it is missing"));
        }
        let value = match decode(&key, &bytes) {
            Ok(value) => value,
            Err(why) => return Ok(Err(why)),
        };
        if previous.is_some_and(|previous| previous != value.previous) || value.parts != last_part + 1 {
            return Ok(Err("its parts don't belong together"));
        }
        previous = Some(value.checksum);
        link = Some(Link { seq: value.last, checksum: value.checksum });
    }
    Ok(link.ok_or("it has no part"))
}

fn remove_commit(store: &Store, tree: &str, position: u64) -> Result<Vec<Change>, StoreError> {
    let mut changes = Vec::new();
    store.run(store.backing().scan(tree, &layout::part_key(position, 0), &mut |key, _| {
        changes.push(Change::Remove(key.to_vec()));
        ControlFlow::Continue(())
    }))?;
    Ok(changes)
}

fn filled(store: &Store, tree: &str) -> Result<u64, StoreError> {
    let mut filled = 0;
    store.run(store.backing().scan(tree, &[], &mut |_, value| {
        filled += room(value);
        ControlFlow::Continue(())
    }))?;
    Ok(filled)
}

/// What a value takes up of its segment.
fn room(value: &[u8]) -> u64 {
    value.len() as u64 + VALUE_ROOM_BYTES
}

/// The segments, by the first position of each, in order.
fn segments(backing: &dyn Backing) -> Vec<Seq> {
    let mut segments: Vec<Seq> =
        backing.tree_names().iter().filter_map(|name| layout::log_tree_first(name)).collect();
    segments.sort_unstable();
    segments
}

/// The first position that can still be read, if there is any.
pub(crate) fn first_available(store: &Store) -> Option<Seq> {
    segments(store.backing()).first().copied()
}

/// The oldest segment's tree, if its entries all lie at or before `through`; the last segment always stays.
pub(crate) fn prunable(store: &Store, through: Seq) -> Option<String> {
    match segments(store.backing())[..] {
        [oldest, next, ..] if next.0 <= through.0 + 1 => Some(layout::log_tree(oldest)),
        _ => None,
    }
}

/// Streams the commits that hold anything after `after`, oldest first, up to the end of the log, and tells where
/// that is. Every value of the segments that are read is checked, and the chain over them.
///
/// # Errors
/// [`StoreError::Damaged`] for a gap, a broken chain, a bad value or an end before what was acknowledged; errors
/// of the sink pass through.
pub(crate) fn read<E: From<StoreError>>(
    store: &Store,
    after: Seq,
    mut sink: impl FnMut(Commit<'_>, Link) -> Result<(), E>,
) -> Result<Link, E> {
    let base = store.log_base()?;
    let segments = segments(store.backing());
    let Some(start) = segment_of(&segments, after.next()).or(segments.is_empty().then_some(0)) else {
        return Err(store.damaged(too_late(segments[0], after)).into());
    };
    let first = segments.get(start).copied().unwrap_or(base.seq.next());
    if first > after.next() {
        return Err(store.damaged(too_late(first, after)).into());
    }
    // What came before the first value is unknown, unless the log is whole from its base.
    let known = first == base.seq.next();
    let link = if known { base } else { Link { seq: Seq(first.0.saturating_sub(1)), checksum: 0 } };
    let mut walk = Walk { store, link, chained: known };
    for first in &segments[start..] {
        let flow = walk.segment(*first, |commit, link| {
            if commit.last() > after {
                sink(commit, link)?;
            }
            Ok::<_, E>(ControlFlow::Continue(()))
        })?;
        debug_assert!(flow.is_continue());
    }
    let needed = store.acknowledged().seq.max(after);
    if walk.link.seq < needed {
        let (end, needed) = (walk.link.seq.0, needed.0);
        return Err(store.damaged(format!("the log ends at position {end}, but {needed} is needed")).into());
    }
    Ok(walk.link)
}

/// Goes on reading where an earlier reading stopped, until the sink has enough or the log ends.
pub(crate) fn read_on(
    store: &Store,
    link: Link,
    mut sink: impl FnMut(Commit<'_>, Link) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    let segments = segments(store.backing());
    let Some(start) = segment_of(&segments, link.seq.next()) else {
        return Err(store.damaged(too_late(segments.first().copied().unwrap_or_default(), link.seq)));
    };
    let mut walk = Walk { store, link, chained: true };
    for first in &segments[start..] {
        let flow = walk.segment(*first, |commit, link| Ok::<_, StoreError>(sink(commit, link)))?;
        if flow.is_break() {
            break;
        }
    }
    Ok(())
}

/// The checksum that the commit after `seq` was chained to, if one begins there.
pub(crate) fn link_at(store: &Store, seq: Seq) -> Result<Option<Link>, StoreError> {
    let segments = segments(store.backing());
    let Some(start) = segment_of(&segments, seq.next()) else { return Ok(None) };
    let key = layout::part_key(seq.next().0, 0);
    let mut bytes = Vec::new();
    if !store.run(store.backing().read(&layout::log_tree(segments[start]), &key, &mut bytes))? {
        return Ok(None);
    }
    let value = decode(&key, &bytes)
        .map_err(|why| store.damaged(format!("position {} of the log: {why}", seq.next().0)))?;
    Ok(Some(Link { seq, checksum: value.previous }))
}

/// The segment that a position lies in.
fn segment_of(segments: &[Seq], position: Seq) -> Option<usize> {
    segments.iter().rposition(|first| *first <= position)
}

fn too_late(first: Seq, after: Seq) -> String {
    format!("the log begins at position {}, but position {} is needed", first.0, after.next().0)
}

/// A walk along the chain.
struct Walk<'a> {
    store: &'a Store,
    link: Link,
    /// Whether the checksum of `link` is known.
    chained: bool,
}

impl Walk<'_> {
    /// Walks over what is left of a segment.
    fn segment<E: From<StoreError>>(
        &mut self,
        first: Seq,
        mut sink: impl FnMut(Commit<'_>, Link) -> Result<ControlFlow<()>, E>,
    ) -> Result<ControlFlow<()>, E> {
        let tree = layout::log_tree(first);
        let from = layout::part_key(self.link.seq.next().0, 0);
        let acknowledged = self.store.acknowledged();
        let mut payload = Vec::new();
        let mut next_part = 0;
        let mut outcome = Ok(ControlFlow::Continue(()));
        let mut step = |key: &[u8], bytes: &[u8]| -> Result<ControlFlow<()>, E> {
            let bad = |why: &str| {
                let position = layout::part_of_key(key).map_or(0, |(position, _)| position);
                self.store.damaged(format!("tree {tree}, position {position}: {why}"))
            };
            let value = decode(key, bytes).map_err(bad)?;
            let position = self.link.seq.next();
            if value.part != next_part || value.first != position {
                let why = format!("a gap, part {next_part} of position {} is missing", position.0);
                return Err(bad(&why).into());
            }
            if self.chained && value.previous != self.link.checksum {
                return Err(bad("the chain of checksums is broken").into());
            }
            self.chained = true;
            self.link.checksum = value.checksum;
            payload.extend_from_slice(value.payload);
            next_part += 1;
            if next_part < value.parts {
                return Ok(ControlFlow::Continue(()));
            }
            self.link.seq = value.last;
            if self.link.seq == acknowledged.seq && self.link.checksum != acknowledged.checksum {
                return Err(bad("this is not what was acknowledged").into());
            }
            next_part = 0;
            let flow =
                sink(Commit { first: value.first, entries: value.entries, payload: &payload }, self.link)?;
            payload.clear();
            Ok(flow)
        };
        let scanned = self.store.backing().scan(&tree, &from, &mut |key, bytes| {
            outcome = step(key, bytes);
            match outcome {
                Ok(flow) => flow,
                Err(_) => ControlFlow::Break(()),
            }
        });
        let flow = outcome?;
        self.store.run(scanned)?;
        if next_part != 0 {
            let position = self.link.seq.next().0;
            let what = format!("tree {tree}: it ends inside the commit at position {position}");
            return Err(self.store.damaged(what).into());
        }
        Ok(flow)
    }
}
