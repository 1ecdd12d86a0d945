//! The log in the store's trees. Each segment is a tree, named by its first position and dropped as a whole. A group commit is one value
//! of at most 64 KiB, or several. Each value is a frame, chained to the value before:
//!
//! ```text
//! frame "cklg": Header (postcard)  a piece of the entries (postcard, joined over the parts of the commit)
//! ```
//!
//! Reading verifies every value's checksum, and the chain of checksums.

use crate::domain::Seq;
use crate::frame::{FRAME_BYTES, Format, decode, encode};
use crate::store::backing::Change;
use crate::store::{LOG_BASE_KEY, META_TREE, Store, StoreError, VALUE_BYTES_MAX, part_key, part_of_key};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;
use xxhash_rust::xxh3::xxh3_128;

const FORMAT: Format = Format { magic: *b"cklg", version: 1, payload_max: VALUE_BYTES_MAX - FRAME_BYTES };

/// Maximum size of the entries in one value, in bytes: the header takes less than the rest.
const PIECE_BYTES_MAX: usize = FORMAT.payload_max - 32;

/// Maximum size of one group commit, in bytes.
const COMMIT_BYTES_MAX: usize = PIECE_BYTES_MAX * u16::MAX as usize;

/// What a value counts in its segment besides its bytes. It makes a segment hold 16,000 small commits, not 80,000: dropping ten of
/// them takes sled some microseconds.
const VALUE_ROOM_BYTES: u64 = 512;

const SEGMENT_PREFIX: &str = "log/";

/// An end of the log: a position, and the checksum of the value that ends there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Link {
    pub(super) seq: Seq,
    pub(super) checksum: u128,
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
        Seq(self.first.0 + u64::from(self.entries) - 1)
    }
}

/// What a value holds: a part of a group commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Header {
    first: Seq,
    entries: u32,
    part: u16,
    parts: u16,
}

/// An intact value.
struct Value<'a> {
    header: Header,
    payload: &'a [u8],
    /// The end of the value before, if it is the one that this value was chained to.
    before: u128,
    checksum: u128,
}

impl<'a> Value<'a> {
    /// Decodes the value stored under a key.
    ///
    /// # Errors
    /// What is wrong with it.
    fn decode(key: &[u8], value: &'a [u8]) -> Result<Value<'a>, String> {
        let (frame, length) = match FORMAT.open(value) {
            Ok(found) => found.ok_or("too short")?,
            Err(error) => return Err(error.to_string()),
        };
        let decoded = postcard::take_from_bytes(frame.payload).ok().filter(|_| length == value.len());
        let (header, payload): (Header, _) = decoded.ok_or("its header is bad")?;
        let end = header.first.0.checked_add(header.entries.into());
        if end.is_none() || header.entries == 0 || header.part >= header.parts {
            return Err("its header contradicts itself".to_owned());
        }
        if part_of_key(key) != Some((header.first.0, header.part)) {
            return Err("it is stored under the wrong key".to_owned());
        }
        Ok(Value { header, payload, before: frame.before, checksum: frame.checksum })
    }

    fn last(&self) -> Seq {
        let Header { first, entries, .. } = self.header;
        Commit { first, entries, payload: &[] }.last()
    }
}

/// The first positions of all segments, in order.
pub(super) fn segments(store: &Store) -> Vec<Seq> {
    let first = |tree: &String| {
        let digits = tree.strip_prefix(SEGMENT_PREFIX).filter(|digits| digits.len() == 16)?;
        u64::from_str_radix(digits, 16).ok().map(Seq)
    };
    let mut segments: Vec<Seq> = store.backing().tree_names().iter().filter_map(first).collect();
    segments.sort_unstable();
    segments
}

/// The tree of the segment that begins at a position.
fn tree(first: Seq) -> String {
    format!("{SEGMENT_PREFIX}{:016x}", first.0)
}

/// The oldest segment's tree if all its entries are stored at or before `through`. The last segment always stays.
pub(super) fn prunable(store: &Store, through: Seq) -> Option<String> {
    match segments(store)[..] {
        [oldest, next, ..] if next.0 <= through.0 + 1 => Some(tree(oldest)),
        _ => None,
    }
}

/// The beginning of the log: position 0, or that of the backup that was restored.
pub(super) fn base(store: &Store) -> Result<Link, StoreError> {
    let mut bytes = Vec::new();
    store.run(store.backing().read(META_TREE, LOG_BASE_KEY, &mut bytes))?;
    decode(&bytes).ok_or_else(|| store.damaged("tree meta: log-base is missing"))
}

/// Moves the beginning of a new directory's log behind a position.
pub(super) fn set_base(store: &Store, seq: Seq) -> Result<(), StoreError> {
    let base = Link { seq, ..first_link(store) };
    store.write(META_TREE, vec![Change::Put(LOG_BASE_KEY.to_vec(), encode(&base))])
}

/// The beginning of a directory's first log. The chain of checksums starts from the directory's identity.
pub(super) fn first_link(store: &Store) -> Link {
    Link { seq: Seq(0), checksum: xxh3_128(store.identity()) }
}

/// The end of the log, where the next commit goes.
pub(super) struct Tail {
    link: Link,
    /// The segment that is written to, and how full it is; `None` if a new one must begin.
    segment: Option<(Seq, u64)>,
}

impl Tail {
    /// Finds the end of the log, and drops an incomplete commit that was never acknowledged.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the log ends before the acknowledged position, or differs from what was acknowledged there.
    pub(super) fn find(store: &Store, acknowledged: Link) -> Result<Tail, StoreError> {
        let mut tail = Tail { link: base(store)?, segment: None };
        'segments: for first in segments(store).into_iter().rev() {
            let tree = tree(first);
            while let Some(key) = store.run(store.backing().last_key(&tree, None))? {
                let position = part_of_key(&key).map_or(0, |(position, _)| position);
                match last_commit(store, &tree, &key)? {
                    Ok(link) => {
                        let mut filled = 0;
                        scan(store, &tree, &[], |_, value| filled += room(value))?;
                        tail = Tail { link, segment: Some((first, filled)) };
                        break 'segments;
                    }
                    Err(why) if position <= acknowledged.seq.0 => {
                        let what =
                            format!("tree {tree}, position {position}: the log's last value is bad ({why})");
                        return Err(store.damaged(what));
                    }
                    Err(why) => {
                        tracing::warn!(tree, position, why, "dropping a commit that was never acknowledged");
                        let mut changes = Vec::new();
                        let from = part_key(position, 0);
                        scan(store, &tree, &from, |key, _| changes.push(Change::Remove(key.to_vec())))?;
                        store.write(&tree, changes)?;
                    }
                }
            }
        }
        let (end, last) = (tail.link.seq, acknowledged.seq.0);
        if end < acknowledged.seq {
            let what = format!(
                "the log ends at position {}, but position {last} was acknowledged: its tail is lost",
                end.0
            );
            return Err(store.damaged(what));
        }
        if end == acknowledged.seq && tail.link != acknowledged {
            let what = format!("position {last} of the log is not what was acknowledged there");
            return Err(store.damaged(what));
        }
        Ok(tail)
    }

    pub(super) fn link(&self) -> Link {
        self.link
    }

    /// Appends a commit of at least one entry, in a new segment if the last one holds `segment_bytes`. It is not durable yet.
    pub(super) fn append(
        &mut self,
        store: &Store,
        segment_bytes: u64,
        entries: u32,
        payload: &[u8],
    ) -> Result<(), StoreError> {
        if payload.len() > COMMIT_BYTES_MAX {
            return Err(StoreError::Misuse(format!("a commit of {} bytes", payload.len())));
        }
        let commit = Commit { first: self.link.seq.next(), entries, payload };
        let (segment, mut filled) = match self.segment {
            Some((first, filled)) if filled < segment_bytes => (first, filled),
            _ => (commit.first, 0),
        };
        let (mut checksum, mut changes, mut written) = (self.link.checksum, Vec::new(), 0);
        let parts = payload.len().div_ceil(PIECE_BYTES_MAX).max(1) as u16;
        for part in 0..parts {
            let rest = &payload[usize::from(part) * PIECE_BYTES_MAX..];
            let mut bytes = encode(&Header { first: commit.first, entries, part, parts });
            bytes.extend_from_slice(&rest[..rest.len().min(PIECE_BYTES_MAX)]);
            let mut value = Vec::new();
            checksum = FORMAT.seal(0, checksum, &bytes, &mut value);
            filled += room(&value);
            written += value.len() as u64;
            changes.push(Change::Put(part_key(commit.first.0, part).to_vec(), value));
        }
        store.write(&tree(segment), changes)?;
        store.wal_bytes_written.fetch_add(written, Relaxed);
        self.segment = Some((segment, filled));
        self.link = Link { seq: commit.last(), checksum };
        Ok(())
    }
}

/// What a value counts in its segment, in bytes.
fn room(value: &[u8]) -> u64 {
    value.len() as u64 + VALUE_ROOM_BYTES
}

/// Passes a tree's keys and values from a key on to `sink`.
fn scan(
    store: &Store,
    tree: &str,
    from: &[u8],
    mut sink: impl FnMut(&[u8], &[u8]),
) -> Result<(), StoreError> {
    store.run(store.backing().scan(tree, from, &mut |key, value| {
        sink(key, value);
        ControlFlow::Continue(())
    }))
}

/// The end of the commit that the key belongs to, if the commit is complete.
fn last_commit(store: &Store, tree: &str, key: &[u8]) -> Result<Result<Link, String>, StoreError> {
    let Some((position, last_part)) = part_of_key(key) else { return Ok(Err("its key is bad".to_owned())) };
    let (mut end, mut bytes) = (Err("it has no part".to_owned()), Vec::new());
    for part in 0..=last_part {
        bytes.clear();
        let key = part_key(position, part);
        if !store.run(store.backing().read(tree, &key, &mut bytes))? {
            return Ok(Err("a part of it is missing".to_owned()));
        }
        end = Value::decode(&key, &bytes).and_then(|value| {
            let is_next = end.as_ref().map_or(part == 0, |end: &Link| end.checksum == value.before);
            match is_next && value.header.parts == last_part + 1 {
                true => Ok(Link { seq: value.last(), checksum: value.checksum }),
                false => Err("its parts don't belong together".to_owned()),
            }
        });
        if end.is_err() {
            break;
        }
    }
    Ok(end)
}

/// Streams the commits that reach beyond `after`, oldest first, until the sink stops it or the log ends. Returns the end of
/// the last commit that was read. Passed as `known` to the next call, it saves a walk from the beginning of the segment.
///
/// # Errors
/// [`StoreError::Damaged`] for a gap, a broken chain, a bad value or an end before the acknowledged position. Errors of the
/// sink are passed on.
pub(super) fn read<E: From<StoreError>>(
    store: &Store,
    acknowledged: Link,
    after: Seq,
    known: Option<Link>,
    mut sink: impl FnMut(Commit<'_>, Link) -> Result<ControlFlow<()>, E>,
) -> Result<Link, E> {
    let segments = segments(store);
    let find = |position: Seq| segments.iter().rposition(|first| *first <= position);
    let within = find(after.next()).map(|at| segments[at]);
    let base = base(store)?;
    let first = within.or(segments.first().copied()).unwrap_or(base.seq.next());
    let known =
        known.filter(|known| known.seq <= after && within.is_some_and(|segment| segment <= known.seq.next()));
    let mut walk = match known {
        Some(link) => Walk { store, acknowledged, link, is_chained: true },
        None if first > after.next() => {
            let (first, wanted) = (first.0, after.next().0);
            let what = format!("the log begins at position {first}, but position {wanted} is needed");
            return Err(store.damaged(what).into());
        }
        None if first == base.seq.next() => Walk { store, acknowledged, link: base, is_chained: true },
        None => {
            let link = Link { seq: Seq(first.0.saturating_sub(1)), checksum: 0 };
            Walk { store, acknowledged, link, is_chained: false }
        }
    };
    let mut taken = walk.link;
    // Without a segment there is nothing to read; the check below decides whether there should be one.
    let start = find(walk.link.seq.next()).unwrap_or(segments.len());
    for first in &segments[start..] {
        let flow = walk.segment(*first, |commit, link| {
            if commit.last() > after && sink(commit, link)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            taken = link;
            Ok::<_, E>(ControlFlow::Continue(()))
        })?;
        if flow.is_break() {
            return Ok(taken);
        }
    }
    let (end, needed) = (walk.link.seq, acknowledged.seq.max(after));
    if end < needed {
        let what = format!("the log ends at position {}, but {} is needed", end.0, needed.0);
        return Err(store.damaged(what).into());
    }
    Ok(walk.link)
}

/// A walk along the chain.
struct Walk<'a> {
    store: &'a Store,
    /// The last acknowledged position: the log must hold it unchanged.
    acknowledged: Link,
    link: Link,
    /// Whether the checksum of `link` is known. That before a segment's first value isn't, unless the log begins there.
    is_chained: bool,
}

impl Walk<'_> {
    /// Reads the rest of a segment.
    fn segment<E: From<StoreError>>(
        &mut self,
        first: Seq,
        mut sink: impl FnMut(Commit<'_>, Link) -> Result<ControlFlow<()>, E>,
    ) -> Result<ControlFlow<()>, E> {
        let (store, acknowledged, tree) = (self.store, self.acknowledged, tree(first));
        let from = part_key(self.link.seq.next().0, 0);
        let (mut payload, mut next_part) = (Vec::new(), 0);
        let mut outcome = Ok(ControlFlow::Continue(()));
        let mut step = |key: &[u8], bytes: &[u8]| -> Result<ControlFlow<()>, E> {
            let bad = |why: String| {
                let position = part_of_key(key).map_or(0, |(position, _)| position);
                store.damaged(format!("tree {tree}, position {position}: {why}"))
            };
            let value = Value::decode(key, bytes).map_err(bad)?;
            let (header, position) = (value.header, self.link.seq.next());
            if header.part != next_part || header.first != position {
                let why = format!("a gap, part {next_part} of position {} is missing", position.0);
                return Err(bad(why).into());
            }
            if self.is_chained && value.before != self.link.checksum {
                return Err(bad("the chain of checksums is broken".to_owned()).into());
            }
            (self.is_chained, self.link.checksum) = (true, value.checksum);
            payload.extend_from_slice(value.payload);
            next_part += 1;
            if next_part < header.parts {
                return Ok(ControlFlow::Continue(()));
            }
            self.link.seq = value.last();
            if self.link.seq == acknowledged.seq && self.link != acknowledged {
                return Err(bad("this is not what was acknowledged".to_owned()).into());
            }
            next_part = 0;
            let commit = Commit { first: header.first, entries: header.entries, payload: &payload };
            let flow = sink(commit, self.link)?;
            payload.clear();
            Ok(flow)
        };
        let scanned = store.backing().scan(&tree, &from, &mut |key, bytes| {
            outcome = step(key, bytes);
            outcome.as_ref().map_or(ControlFlow::Break(()), |flow| *flow)
        });
        let flow = outcome?;
        store.run(scanned)?;
        if next_part != 0 {
            let position = self.link.seq.next().0;
            let what = format!("tree {tree}: it ends inside the commit at position {position}");
            return Err(store.damaged(what).into());
        }
        Ok(flow)
    }
}
