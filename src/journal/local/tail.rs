//! The two ends of the log: the tail, which is found at the start and appended to, and the beginning, which a restore may move.

use super::commit::{COMMIT_BYTES_MAX, Commit, Link, decode, encode};
use super::segments;
use crate::domain::Seq;
use crate::store::backing::Change;
use crate::store::{LOG_BASE_KEY, META_TREE, Store, StoreError, part_key, part_of_key};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;
use xxhash_rust::xxh3::xxh3_128;

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
        let base = base(store)?;
        let mut tail = Tail { link: base, segment: None };
        'segments: for first in segments::list(store).into_iter().rev() {
            let tree = segments::tree(first);
            while let Some(key) = store.run(store.backing().last_key(&tree))? {
                match last_commit(store, &tree, &key)? {
                    Ok(link) => {
                        tail = Tail { link, segment: Some((first, filled(store, &tree)?)) };
                        break 'segments;
                    }
                    Err(why) => {
                        let position = part_of_key(&key).map_or(0, |(position, _)| position);
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

    pub(super) fn link(&self) -> Link {
        self.link
    }

    /// Appends a commit, in a new segment if the last one holds `segment_bytes`. It is not durable yet.
    pub(super) fn append(
        &mut self,
        store: &Store,
        segment_bytes: u64,
        entries: u32,
        payload: &[u8],
    ) -> Result<(), StoreError> {
        if entries == 0 || payload.len() > COMMIT_BYTES_MAX {
            return Err(StoreError::Misuse(format!(
                "a commit of {entries} entries in {} bytes",
                payload.len()
            )));
        }
        let commit = Commit { first: self.link.seq.next(), entries, payload };
        let (values, checksum) = encode(commit, self.link.checksum);
        let bytes: usize = values.iter().map(Vec::len).sum();
        let room: u64 = values.iter().map(|value| segments::room(value)).sum();
        let (segment, filled) = match self.segment {
            Some((first, filled)) if filled < segment_bytes => (first, filled),
            _ => (commit.first, 0),
        };
        let keys = (0..).map(|part| part_key(commit.first.0, part).to_vec());
        let changes = keys.zip(values).map(|(key, value)| Change::Put(key, value)).collect();
        store.write(&segments::tree(segment), changes)?;
        store.wal_bytes_written.fetch_add(bytes as u64, Relaxed);
        self.segment = Some((segment, filled + room));
        self.link = Link { seq: commit.last(), checksum };
        Ok(())
    }
}

/// The beginning of the log: position 0, or that of the backup that was restored.
pub(super) fn base(store: &Store) -> Result<Link, StoreError> {
    let mut bytes = Vec::new();
    store.run(store.backing().read(META_TREE, LOG_BASE_KEY, &mut bytes))?;
    Link::decode(&bytes).ok_or_else(|| store.damaged("tree meta: log-base is missing"))
}

/// Moves the beginning of a new directory's log behind a position.
pub(super) fn set_base(store: &Store, seq: Seq) -> Result<(), StoreError> {
    let base = Link { seq, ..first_link(store) };
    store.write(META_TREE, vec![Change::Put(LOG_BASE_KEY.to_vec(), base.encode().to_vec())])
}

/// The beginning of a directory's first log. The chain of checksums starts from the directory's identity.
pub(super) fn first_link(store: &Store) -> Link {
    Link { seq: Seq(0), checksum: xxh3_128(store.identity()) }
}

/// The end of the commit that the key belongs to, if the commit is complete.
fn last_commit(store: &Store, tree: &str, key: &[u8]) -> Result<Result<Link, &'static str>, StoreError> {
    let Some((position, last_part)) = part_of_key(key) else { return Ok(Err("its key is bad")) };
    let mut previous = None;
    let mut link = None;
    let mut bytes = Vec::new();
    for part in 0..=last_part {
        bytes.clear();
        let key = part_key(position, part);
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
    store.run(store.backing().scan(tree, &part_key(position, 0), &mut |key, _| {
        changes.push(Change::Remove(key.to_vec()));
        ControlFlow::Continue(())
    }))?;
    Ok(changes)
}

fn filled(store: &Store, tree: &str) -> Result<u64, StoreError> {
    let mut filled = 0;
    store.run(store.backing().scan(tree, &[], &mut |_, value| {
        filled += segments::room(value);
        ControlFlow::Continue(())
    }))?;
    Ok(filled)
}
