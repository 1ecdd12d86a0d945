//! The log in the store's trees. Each segment is a tree, named by its first position and dropped in one step. A group commit is one value
//! of at most [`PIECE_BYTES`], or several. Each value is a frame, chained to the value before:
//!
//! ```text
//! frame "cklg", kind 1 for the last value of a commit, otherwise 0: a piece of the commit
//! commit: the number of its entries, then the entries (postcard)
//! ```
//!
//! Reading verifies every value's checksum, and the chain of checksums.

use crate::journal::decode_entries;
use crate::store::backing::KeyChange;
use crate::store::{
    LOG_BASE_KEY, META_TREE, Removal, Store, StoreError, VALUE_BYTES_MAX, number_of_name, part_key,
    part_of_key,
};
use cuckood_state::domain::{Entry, Seq};
use cuckood_state::frame::{FRAME_BYTES, FrameFormat, decode, encode};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use xxhash_rust::xxh3::xxh3_128;

const FORMAT: FrameFormat = FrameFormat {
    magic: *b"cklg",
    version: 1,
    oldest: 1,
    payload_max: VALUE_BYTES_MAX - FRAME_BYTES,
};

/// The kind of a commit's last value.
const LAST: u8 = 1;

/// Bytes that a commit counts in its segment besides its payload. It makes a segment hold 16,000 small commits, not 80,000: dropping ten of
/// them takes sled some microseconds.
const COMMIT_ROOM_BYTES: u64 = 512;

/// The most bytes of a commit in one value. sled splits a leaf only when it has more than 16 values, and its cache has at least one leaf in
/// each of 256 parts: longer values cost memory, shorter ones processor time. Logs of 0.1.0 have values of up to [`VALUE_BYTES_MAX`].
const PIECE_BYTES: usize = 16 << 10;

/// Bytes of entries that are read together.
const READ_BYTES: usize = 1 << 20;

const SEGMENT_PREFIX: &str = "log/";

/// An end of the log: a position, and the checksum of the value that ends there; 0 if that is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct LogEnd {
    pub(super) seq: Seq,
    pub(super) checksum: u128,
}

/// A group commit.
struct Commit<'a> {
    /// Position of its first entry.
    first: Seq,
    /// How many entries it has.
    count: u32,
    /// The entries.
    payload: &'a [u8],
    /// The end of the log with it.
    end: LogEnd,
}

/// The first positions of all segments, in order.
pub(super) fn segments(store: &Store) -> Vec<Seq> {
    let first = |tree: &String| number_of_name(tree.strip_prefix(SEGMENT_PREFIX)?).map(Seq);
    let mut segments: Vec<Seq> = store
        .backing()
        .tree_names()
        .iter()
        .filter_map(first)
        .collect();
    segments.sort_unstable();
    segments
}

/// The tree of the segment that starts at a position.
fn tree(first: Seq) -> String {
    format!("{SEGMENT_PREFIX}{:016x}", first.0)
}

/// Sets the position after which a new directory's log starts.
pub(super) fn set_base(store: &Store, seq: Seq) -> Result<(), StoreError> {
    let base = LogEnd {
        seq,
        ..first_link(store)
    };
    store.write(
        META_TREE,
        vec![KeyChange::Put(LOG_BASE_KEY.to_vec(), encode(&base))],
    )
}

/// The beginning of a directory's first log. The chain of checksums starts from the directory's identity.
pub(super) fn first_link(store: &Store) -> LogEnd {
    LogEnd {
        seq: Seq(0),
        checksum: xxh3_128(store.identity()),
    }
}

/// The log of a store.
pub(super) struct Log {
    store: Arc<Store>,
    /// The first positions of all segments, in order.
    segments: Vec<Seq>,
    /// The link before its first entry.
    base: LogEnd,
    /// Its end, where the next commit is appended.
    end: LogEnd,
    /// How full the last segment is.
    filled: u64,
    /// Where the last read stopped.
    read_to: Option<LogEnd>,
    /// The segment that is being removed.
    removal: Option<Removal>,
}

impl Log {
    /// Opens the log, and walks from the acknowledged position's segment on to the end. Drops an incomplete last commit that was never
    /// acknowledged.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the log ends before the acknowledged position, or differs there.
    pub(super) fn open(store: Arc<Store>, acknowledged: LogEnd) -> Result<Log, StoreError> {
        let mut bytes = Vec::new();
        store.run(store.backing().read(META_TREE, LOG_BASE_KEY, &mut bytes))?;
        let base: LogEnd =
            decode(&bytes).ok_or_else(|| store.damaged("tree meta: log-base is missing"))?;
        let segments = segments(&store);
        let mut log = Log {
            store,
            segments,
            base,
            end: base,
            filled: 0,
            read_to: None,
            removal: None,
        };
        let from = log.find(acknowledged.seq).unwrap_or(0);
        log.end = log
            .segments
            .get(from)
            .map_or(base, |first| log.before(*first));
        for index in from..log.segments.len() {
            let segment = log.segments[index];
            let mut end = log.end;
            let mut filled = 0;
            let walked = log.walk(segment, &mut end, |commit| {
                filled += commit.payload.len() as u64 + COMMIT_ROOM_BYTES;
                let is_acknowledged =
                    commit.first <= acknowledged.seq && acknowledged.seq <= commit.end.seq;
                match is_acknowledged && commit.end != acknowledged {
                    true => Err("it differs from the acknowledged entry".to_owned()),
                    false => Ok(true),
                }
            })?;
            if let Err(why) = walked {
                if end.seq < acknowledged.seq || index + 1 < log.segments.len() {
                    return Err(log.store.damaged(why));
                }
                log.drop_incomplete(segment, end.seq.next(), &why)?;
            }
            (log.end, log.filled) = (end, filled);
        }
        let end = log.end.seq.0;
        let last = acknowledged.seq.0;
        if end < last || log.end.checksum == 0 {
            let what = format!(
                "the log ends at position {end}, but {last} was acknowledged: its tail is lost"
            );
            return Err(log.store.damaged(what));
        }
        Ok(log)
    }

    /// Drops the stored part of a commit that was never acknowledged. Only the last commit can be incomplete: if more follows, the log is
    /// damaged.
    fn drop_incomplete(&self, segment: Seq, position: Seq, why: &str) -> Result<(), StoreError> {
        let tree = tree(segment);
        let mut changes = Vec::new();
        let mut is_last = true;
        self.store.run(self.store.backing().scan(
            &tree,
            &part_key(position.0, 0),
            &mut |key, _| {
                is_last &= part_of_key(key).is_some_and(|(found, _)| found == position.0);
                changes.push(KeyChange::Remove(key.to_vec()));
                ControlFlow::Continue(())
            },
        ))?;
        if !is_last {
            return Err(self.store.damaged(why));
        }
        tracing::warn!(why, "dropping a commit that was never acknowledged");
        self.store.write(&tree, changes)
    }

    /// The link before a segment. The checksum is only known at the log's start.
    fn before(&self, segment: Seq) -> LogEnd {
        let unknown = LogEnd {
            seq: Seq(segment.0.saturating_sub(1)),
            checksum: 0,
        };
        if unknown.seq == self.base.seq {
            self.base
        } else {
            unknown
        }
    }

    /// Passes the commits of a segment after `at` to `visit`, oldest first, until that returns `false`. Moves `at` along. The inner result
    /// is the last one of `visit`, or which part of the commit after `at` is missing: a crash may have caused that.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if anything else is wrong with that commit.
    fn walk(
        &self,
        segment: Seq,
        at: &mut LogEnd,
        mut visit: impl FnMut(Commit<'_>) -> Result<bool, String>,
    ) -> Result<Result<bool, String>, StoreError> {
        let tree = tree(segment);
        let from = part_key(at.seq.next().0, 0);
        let mut checksum = at.checksum;
        let mut bytes = Vec::new();
        let mut part = 0;
        let mut walked = Ok(true);
        let mut is_missing = false;
        let mut step = |key: &[u8], value: &[u8]| {
            let first = at.seq.next();
            let opened = FORMAT.open(value).map_err(|error| error.to_string())?;
            let (frame, length) = opened.ok_or("it is too short")?;
            let found = part_of_key(key)
                .filter(|_| length == value.len())
                .ok_or("its length is wrong")?;
            if found != (first.0, part) {
                is_missing = found > (first.0, part);
                return Err(format!("a gap, part {part} is missing"));
            }
            if checksum != 0 && checksum != frame.before {
                return Err("the chain of checksums is broken".to_owned());
            }
            bytes.extend_from_slice(frame.payload);
            (checksum, part) = (frame.checksum, part + 1);
            if frame.kind != LAST {
                return Ok(true);
            }
            let (count, payload): (u32, _) =
                postcard::take_from_bytes(&bytes).map_err(|error| error.to_string())?;
            let end = LogEnd {
                seq: Seq(at.seq.0 + u64::from(count)),
                checksum,
            };
            let goes_on = visit(Commit {
                first,
                count,
                payload,
                end,
            })?;
            (*at, part) = (end, 0);
            bytes.clear();
            Ok(goes_on)
        };
        let scanned = self.store.backing().scan(&tree, &from, &mut |key, value| {
            walked = step(key, value);
            if walked == Ok(true) {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        self.store.run(scanned)?;
        if part > 0 && walked == Ok(true) {
            (is_missing, walked) = (true, Err("it ends inside the commit".to_owned()));
        }
        let walked =
            walked.map_err(|why| format!("tree {tree}, position {}: {why}", at.seq.next().0));
        if is_missing {
            Ok(walked)
        } else {
            walked.map(Ok).map_err(|why| self.store.damaged(why))
        }
    }

    /// The segment that a position belongs to.
    fn find(&self, position: Seq) -> Option<usize> {
        self.segments.iter().rposition(|first| *first <= position)
    }

    /// The end, where the next commit is appended.
    pub(super) fn end(&self) -> LogEnd {
        self.end
    }

    /// The first position that can be read; the one after the end if there is none.
    pub(super) fn first(&self) -> Seq {
        self.segments
            .first()
            .copied()
            .unwrap_or(self.end.seq.next())
    }

    /// Appends a commit of `count` entries, at least one, in a new segment if the last one holds `segment_bytes`. It is not durable yet.
    pub(super) fn append(
        &mut self,
        count: u32,
        commit: &[u8],
        segment_bytes: u64,
    ) -> Result<(), StoreError> {
        let first = self.end.seq.next();
        let pieces = commit.chunks(PIECE_BYTES);
        let Ok(last) = u16::try_from(pieces.len() - 1) else {
            return Err(StoreError::Misuse(format!(
                "a commit of {} bytes",
                commit.len()
            )));
        };
        let mut checksum = self.end.checksum;
        let mut changes = Vec::new();
        let mut written = 0;
        for (part, piece) in (0..=last).zip(pieces) {
            let mut value = Vec::new();
            let kind = if part == last { LAST } else { 0 };
            checksum = FORMAT.seal(kind, checksum, piece, &mut value);
            written += value.len() as u64;
            changes.push(KeyChange::Put(part_key(first.0, part).to_vec(), value));
        }
        let is_full = self.segments.is_empty() || self.filled >= segment_bytes;
        let segment = self
            .segments
            .last()
            .copied()
            .filter(|_| !is_full)
            .unwrap_or(first);
        self.store.write(&tree(segment), changes)?;
        self.store.wal_bytes_written.fetch_add(written, Relaxed);
        if is_full {
            self.segments.push(segment);
            self.filled = 0;
        }
        self.filled += written + COMMIT_ROOM_BYTES;
        self.end = LogEnd {
            seq: Seq(self.end.seq.0 + u64::from(count)),
            checksum,
        };
        Ok(())
    }

    /// Reads entries after `after`, up to the known end at most. The next startup decides about the rest of a failed append.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] for a gap, a broken chain, a bad value or another end than the known one.
    pub(super) fn read(&mut self, after: Seq) -> Result<Vec<Entry>, StoreError> {
        // Saves a walk from the beginning of the segment.
        let known = self
            .read_to
            .filter(|to| to.seq <= after && self.find(to.seq.next()).is_some());
        let Some(from) = self.find(known.map_or(after, |to| to.seq).next()) else {
            let first = self.first().0;
            let needed = after.next().0;
            let what =
                format!("the log begins at position {first}, but position {needed} is needed");
            return Err(self.store.damaged(what));
        };
        let end = self.end;
        let mut at = known.unwrap_or(self.before(self.segments[from]));
        let mut entries = Vec::new();
        let mut bytes = 0;
        let mut goes_on = true;
        for &segment in &self.segments[from..] {
            let walked = self.walk(segment, &mut at, |commit| {
                if commit.end.seq >= end.seq && commit.end != end {
                    return Err("the log does not end as it did when it was opened".to_owned());
                }
                if commit.end.seq <= after {
                    return Ok(true);
                }
                bytes += commit.payload.len();
                let read = decode_entries(commit.first, commit.count.into(), commit.payload)?;
                entries.extend(read.into_iter().filter(|entry| entry.seq > after));
                Ok(commit.end != end && bytes < READ_BYTES)
            })?;
            goes_on = walked.map_err(|why| self.store.damaged(why))?;
            if !goes_on {
                break;
            }
        }
        if goes_on {
            let what = format!(
                "the log ends at position {}, but {} is needed",
                at.seq.0,
                after.next().0
            );
            return Err(self.store.damaged(what));
        }
        self.read_to = Some(at);
        Ok(entries)
    }

    /// Removes a little of the oldest segment if all its entries are stored at or before `through`: reads or drops about `budget` bytes.
    /// The last segment with entries always stays. Returns whether there was anything to do.
    pub(super) fn prune(&mut self, through: Seq, budget: u64) -> Result<bool, StoreError> {
        let is_needless = |next: &Seq| *next <= through.next() && *next <= self.end.seq;
        if self.removal.is_none() && self.segments.get(1).is_some_and(is_needless) {
            self.removal = Some(Removal::new(tree(self.segments.remove(0))));
        }
        let Some(removal) = &mut self.removal else {
            return Ok(false);
        };
        if !removal.step(&self.store, budget)? {
            self.removal = None;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreOptions;
    use cuckood_state::domain::{Command, Proposal, Timestamp};

    const SEGMENT_BYTES: u64 = 64 << 10;

    fn store(dir: &tempfile::TempDir) -> Arc<Store> {
        let options = StoreOptions {
            free_space_min_bytes: 0,
            ballast_bytes: 0,
            ..StoreOptions::default()
        };
        Arc::new(Store::open(dir.path(), &options).unwrap())
    }

    /// Appends a commit of `count` entries.
    fn append(log: &mut Log, count: u32) {
        let proposal = Proposal::new(Timestamp(7), Command::Advance { buckets_max: 3 });
        let commit = (0..count).fold(encode(&count), |commit, _| {
            postcard::to_extend(&proposal, commit).unwrap()
        });
        log.append(count, &commit, SEGMENT_BYTES).unwrap();
    }

    fn remove(store: &Store, segment: u64, position: u64, part: u16) {
        store
            .write(
                &tree(Seq(segment)),
                vec![KeyChange::Remove(part_key(position, part).to_vec())],
            )
            .unwrap();
    }

    fn positions(log: &mut Log, after: u64) -> Vec<u64> {
        log.read(Seq(after))
            .unwrap()
            .iter()
            .map(|entry| entry.seq.0)
            .collect()
    }

    /// A commit of several values, the last of which is missing.
    #[test]
    fn incomplete_last_commit_is_dropped_unless_acknowledged() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let mut log = Log::open(store.clone(), first_link(&store)).unwrap();
        append(&mut log, 3);
        let acknowledged = log.end();
        append(&mut log, 30_000);
        let end = log.end();
        remove(&store, 1, 4, 1);
        assert!(matches!(
            Log::open(store.clone(), end),
            Err(StoreError::Damaged { .. })
        ));
        let mut log = Log::open(store.clone(), acknowledged).unwrap();
        assert_eq!(
            (log.end(), positions(&mut log, 0)),
            (acknowledged, vec![1, 2, 3])
        );
        append(&mut log, 2);
        let mut log = Log::open(store, acknowledged).unwrap();
        assert_eq!(positions(&mut log, 1), [2, 3, 4, 5]);
    }

    #[test]
    fn commit_that_is_missing_before_another_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let mut log = Log::open(store.clone(), first_link(&store)).unwrap();
        let acknowledged = log.end();
        for _ in 0..3 {
            append(&mut log, 1);
        }
        remove(&store, 1, 2, 0);
        assert!(matches!(
            Log::open(store, acknowledged),
            Err(StoreError::Damaged { .. })
        ));
    }

    /// A crash can't have caused that.
    #[test]
    fn damaged_last_commit_is_never_dropped() {
        for changed in [0, 4, 12, 30] {
            let dir = tempfile::tempdir().unwrap();
            let store = store(&dir);
            let mut log = Log::open(store.clone(), first_link(&store)).unwrap();
            append(&mut log, 1);
            let acknowledged = log.end();
            append(&mut log, 1);
            let key = part_key(2, 0).to_vec();
            let mut value = Vec::new();
            assert!(
                store
                    .backing()
                    .read(&tree(Seq(1)), &key, &mut value)
                    .unwrap()
            );
            value[changed] ^= 1;
            store
                .write(&tree(Seq(1)), vec![KeyChange::Put(key, value)])
                .unwrap();
            let opened = Log::open(store, acknowledged);
            assert!(
                matches!(opened, Err(StoreError::Damaged { .. })),
                "{changed}"
            );
        }
    }

    #[test]
    fn log_with_another_beginning_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let mut log = Log::open(store.clone(), first_link(&store)).unwrap();
        append(&mut log, 30_000);
        append(&mut log, 1);
        let acknowledged = log.end();
        let base = LogEnd {
            checksum: 7,
            ..first_link(&store)
        };
        store
            .write(
                META_TREE,
                vec![KeyChange::Put(LOG_BASE_KEY.to_vec(), encode(&base))],
            )
            .unwrap();
        let mut log = Log::open(store, acknowledged).unwrap();
        assert_eq!(positions(&mut log, 30_000), [30_001]);
        assert!(matches!(log.read(Seq(0)), Err(StoreError::Damaged { .. })));
    }

    /// Otherwise nothing would mark the end of the log.
    #[test]
    fn segment_stays_while_next_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let mut log = Log::open(store.clone(), first_link(&store)).unwrap();
        append(&mut log, 30_000);
        let acknowledged = log.end();
        append(&mut log, 1);
        remove(&store, 30_001, 30_001, 0);
        let mut log = Log::open(store.clone(), acknowledged).unwrap();
        assert_eq!(log.segments, [Seq(1), Seq(30_001)]);
        assert!(!log.prune(Seq(30_000), u64::MAX).unwrap());
        append(&mut log, 1);
        while log.prune(Seq(30_000), u64::MAX).unwrap() {}
        let mut log = Log::open(store, acknowledged).unwrap();
        assert_eq!(
            (log.first(), positions(&mut log, 30_000)),
            (Seq(30_001), vec![30_001])
        );
    }
}
