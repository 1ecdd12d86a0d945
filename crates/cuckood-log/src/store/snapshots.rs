//! Snapshots on disk: sections of chunks, and a manifest that names them. A chunk is opaque here, and so is the small image
//! inside the manifest.
//!
//! A snapshot is a *generation*. It writes the sections that have changed and refers to the others where an earlier generation left them.
//! Chunks are durable before the manifest that names them is written, so a manifest that can be read proves that its snapshot is complete.
//! The two newest manifests are retained, with the chunks that they or a running backup name; the rest is removed in small steps.
//!
//! sled reads each leaf of a tree that it drops. A segment of the log with small commits has a thousand, which takes a tenth of a second. So
//! a tree that is removed is first read into sled's cache, a little at a time. Dropping it then only marks its pages as free, which takes
//! some microseconds each.

use super::backing::KeyChange;
use super::{Store, StoreError, directory};
use cuckood_state::domain::{SectionId, Seq, Timestamp, counted};
use cuckood_state::frame::{FrameFormat, encode};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use xxhash_rust::xxh3::Xxh3;

/// The longest chunk, in bytes.
pub const CHUNK_BYTES_MAX: usize = 64 * 1024 - CHECKSUM_BYTES;

/// Number of retained manifests.
pub const GENERATIONS_KEPT: usize = 2;

const CHECKSUM_BYTES: usize = 16;

/// Maximum size of a manifest, in bytes. It has about half a kilobyte for each filter, and up to three more for its title and labels.
pub(super) const MANIFEST_BYTES_MAX: usize = 1 << 30;

const MANIFEST: FrameFormat = FrameFormat {
    magic: *b"ckmf",
    version: 1,
    oldest: 1,
    payload_max: MANIFEST_BYTES_MAX,
};

/// Bytes of chunks after which they are synced, so that a commit and the end of a snapshot wait briefly. Under load the limit is not
/// reached: each commit also makes earlier chunks durable.
const SYNC_EVERY_BYTES: u64 = 1 << 20;

/// Keys are written at least this many chunks ahead, and at most twice as many: sled splits a leaf beyond this number of keys.
const KEYS_AHEAD: u64 = 16;

/// Where a section is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SectionRef {
    /// The section.
    pub key: SectionId,
    /// The caller's count of changes when the section was written. While it is the same, the section need not be written again.
    pub changes: u64,
    /// The number of its first chunk in its generation, which determines the tree of each chunk.
    pub first_chunk: u64,
    /// Number of chunks.
    pub chunks: u32,
    /// The generation that wrote it.
    pub generation: u64,
}

/// A complete snapshot.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Number of the snapshot; never reused.
    pub generation: u64,
    /// The last entry that it covers.
    pub seq: Seq,
    /// When it was taken.
    pub taken_at: Timestamp,
    /// The number of the last event that it covers. The events up to there are stored.
    pub events_last: u64,
    /// Where a replicated log continues after it, as the journal encodes that; empty for a log in this directory.
    #[serde(with = "serde_bytes")]
    pub place: Vec<u8>,
    /// All sections, in order.
    pub sections: Vec<SectionRef>,
    /// The caller's small image: about half a kilobyte for each filter.
    #[serde(with = "serde_bytes")]
    pub meta: Vec<u8>,
}

impl Manifest {
    /// A section, if the snapshot has it.
    pub fn find(&self, key: SectionId) -> Option<&SectionRef> {
        let at = self
            .sections
            .binary_search_by_key(&key, |section| section.key)
            .ok()?;
        self.sections.get(at)
    }
}

/// A running snapshot. If it is dropped before it is finished, its chunks are removed later.
#[derive(Debug)]
pub struct SnapshotWriter {
    /// The snapshot's number.
    pub generation: u64,
    seq: Seq,
    /// The last event that the snapshot covers. The events up to there are written.
    pub events_last: u64,
    /// Where the snapshot is in a replicated log.
    pub place: Vec<u8>,
    sections: BTreeMap<SectionId, SectionRef>,
    /// Chunks written so far.
    chunks: u64,
    /// Bytes that were free on the file system when it started.
    free_before: u64,
}

impl SnapshotWriter {
    /// Writes the next chunk of a section, of at most [`CHUNK_BYTES_MAX`]. Sections are written one after the other.
    ///
    /// # Errors
    /// [`StoreError::DiskFull`] before anything is written, [`StoreError::Failed`] otherwise.
    pub fn put_chunk(
        &mut self,
        store: &Store,
        key: SectionId,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        debug_assert!(
            bytes.len() <= CHUNK_BYTES_MAX,
            "a chunk of {} bytes",
            bytes.len()
        );
        store.space.check_snapshot(self.free_before)?;
        let chunk = self.chunks;
        let section = self.section(key);
        let index = section.chunks;
        debug_assert_eq!(
            section.first_chunk + u64::from(index),
            chunk,
            "sections follow each other"
        );
        section.chunks += 1;
        self.chunks += 1;
        self.shape_leaves(store, chunk)?;
        let mut value = Vec::with_capacity(bytes.len() + CHECKSUM_BYTES);
        value.extend_from_slice(bytes);
        value.extend_from_slice(&chunk_checksum(self.generation, key, index, bytes).to_le_bytes());
        let written = value.len() as u64;
        let change = KeyChange::Put(directory::number_key(chunk).to_vec(), value);
        store.write(&directory::chunk_tree(self.generation, chunk), vec![change])?;
        store.snapshot_bytes_written.fetch_add(written, Relaxed);
        if store.unsynced_chunk_bytes.fetch_add(written, Relaxed) + written >= SYNC_EVERY_BYTES {
            store.make_durable()?;
        }
        Ok(())
    }

    /// Writes the keys of future chunks with empty values. sled splits a leaf of more than 16 keys, and rewrites the complete leaf after
    /// ten changes. A leaf that gets keys and chunks together is written four times over while it fills, and commits wait for that. A leaf
    /// that was split before has nine keys, takes one chunk for each, and is left alone.
    fn shape_leaves(&self, store: &Store, chunk: u64) -> Result<(), StoreError> {
        let place = chunk % directory::TREE_CHUNKS;
        if !place.is_multiple_of(KEYS_AHEAD) {
            return Ok(());
        }
        let tree = directory::chunk_tree(self.generation, chunk);
        let from = if place == 0 { 0 } else { KEYS_AHEAD };
        let to = (2 * KEYS_AHEAD).min(directory::TREE_CHUNKS - place);
        for ahead in from..to {
            // One by one: sled applies a batch in no particular order, and the leaves would be split anywhere.
            let key = directory::number_key(chunk + ahead).to_vec();
            store.write(&tree, vec![KeyChange::Put(key, Vec::new())])?;
        }
        Ok(())
    }

    /// Ends a section, all chunks of which are written.
    pub fn end_section(&mut self, key: SectionId, changes: u64) {
        self.section(key).changes = changes;
    }

    fn section(&mut self, key: SectionId) -> &mut SectionRef {
        let first_chunk = self.chunks;
        let generation = self.generation;
        let empty = SectionRef {
            key,
            changes: 0,
            first_chunk,
            chunks: 0,
            generation,
        };
        self.sections.entry(key).or_insert(empty)
    }

    /// Shares a section with the snapshot before; nothing is written.
    pub fn carry_over(&mut self, section: &SectionRef) {
        self.sections.insert(section.key, *section);
    }

    /// Makes the chunks and the events durable. Then writes the manifest and makes it durable. From then on this is the newest snapshot, and [`Store::sweep`] removes what no snapshot names any more.
    ///
    /// # Errors
    /// [`StoreError::DiskFull`], [`StoreError::Failed`], and [`StoreError::TooLong`] if the manifest could not be read again.
    pub fn finish(
        self,
        store: &Store,
        taken_at: Timestamp,
        meta: Vec<u8>,
    ) -> Result<Manifest, StoreError> {
        let Self {
            generation,
            seq,
            events_last,
            place,
            sections,
            ..
        } = self;
        let sections = sections.into_values().collect();
        let manifest = Manifest {
            generation,
            seq,
            taken_at,
            events_last,
            place,
            sections,
            meta,
        };
        store.space.check_reserve(0)?;
        store.make_durable()?;
        let payload = encode(&manifest);
        let mut bytes = Vec::new();
        if payload.len() > store.options.manifest_bytes_max {
            return Err(StoreError::TooLong(payload.len()));
        }
        MANIFEST.seal(0, 0, &payload, &mut bytes);
        store
            .snapshot_bytes_written
            .fetch_add(bytes.len() as u64, Relaxed);
        let parts = (0..).zip(bytes.chunks(directory::VALUE_BYTES_MAX));
        let changes = parts.map(|(part, bytes)| {
            KeyChange::Put(directory::number_key(part).to_vec(), bytes.to_vec())
        });
        store.write(&directory::manifest_tree(generation), changes.collect())?;
        store.make_durable()?;
        store.writing.store(0, Relaxed);
        let oldest_kept = oldest_kept(store, generation)?;
        for tree in store.backing().tree_names() {
            if directory::manifest_of_tree(&tree).is_some_and(|generation| generation < oldest_kept)
            {
                store.drop_tree(&tree)?;
            }
        }
        Ok(manifest)
    }
}

impl Store {
    /// Begins a snapshot of the state at `seq`.
    pub fn begin_snapshot(&self, seq: Seq) -> Result<SnapshotWriter, StoreError> {
        self.space.check_reserve(0)?;
        let free_before = self.space.free_bytes()?;
        // A number without a snapshot or any remaining chunk.
        let trees = self.backing().tree_names();
        let used = trees
            .iter()
            .filter_map(|tree| directory::chunks_of_tree(tree))
            .map(|(generation, _)| generation);
        let pinned = self.pinned().map(|manifest| manifest.generation).max();
        let generation = generations(self)?
            .into_iter()
            .chain(used)
            .max()
            .max(pinned)
            .unwrap_or(0)
            + 1;
        self.writing.store(generation, Relaxed);
        let place = Vec::new();
        let sections = BTreeMap::new();
        Ok(SnapshotWriter {
            generation,
            seq,
            events_last: 0,
            place,
            sections,
            chunks: 0,
            free_before,
        })
    }

    /// Abandons the last snapshot: [`Self::sweep`] removes its chunks.
    pub fn abandon_snapshot(&self) {
        self.writing.store(0, Relaxed);
    }

    /// The readable snapshots, newest first. One whose manifest is damaged is skipped and logged. Damaged chunks are only detected when
    /// they are read.
    pub fn manifests(&self) -> Result<Vec<Manifest>, StoreError> {
        let mut manifests = Vec::new();
        for generation in generations(self)?.into_iter().rev() {
            match load(self, generation)? {
                Ok(manifest) => manifests.push(manifest),
                Err(why) => {
                    tracing::error!(generation, why, "the manifest of a snapshot is damaged")
                }
            }
        }
        Ok(manifests)
    }

    /// The newest snapshot, if there is one. It is protected from removal, with all its chunks, until this is dropped.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the manifests can't be read.
    pub fn pin_newest(&self) -> Result<Option<Arc<Manifest>>, StoreError> {
        let newest = self.manifests()?.into_iter().next().map(Arc::new);
        self.pinned
            .lock()
            .extend(newest.as_ref().map(Arc::downgrade));
        Ok(newest)
    }

    fn pinned(&self) -> impl Iterator<Item = Arc<Manifest>> {
        let mut pinned = self.pinned.lock();
        pinned.retain(|manifest| manifest.strong_count() > 0);
        pinned
            .iter()
            .filter_map(Weak::upgrade)
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// Removes a damaged snapshot, so that it does not count as one of the two retained ones.
    pub fn forget_snapshot(&self, manifest: &Manifest) -> Result<(), StoreError> {
        self.drop_tree(&directory::manifest_tree(manifest.generation))?;
        self.make_durable()
    }

    /// Reads a chunk into `out`, replacing its contents.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the chunk is missing or its checksum is wrong.
    pub fn read_chunk(
        &self,
        section: &SectionRef,
        index: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        out.clear();
        let chunk = section.first_chunk + u64::from(index);
        let tree = directory::chunk_tree(section.generation, chunk);
        self.run(
            self.backing()
                .read(&tree, &directory::number_key(chunk), out),
        )?;
        let why = match out.split_last_chunk::<CHECKSUM_BYTES>() {
            // The key may have been written ahead of its chunk.
            _ if out.is_empty() => "is missing",
            Some((bytes, checksum))
                if chunk_checksum(section.generation, section.key, index, bytes)
                    == u128::from_le_bytes(*checksum) =>
            {
                out.truncate(out.len() - CHECKSUM_BYTES);
                return Ok(());
            }
            _ => "has a wrong checksum",
        };
        let SectionId { owner, part } = section.key;
        Err(self.damaged(format!(
            "tree {tree}, owner {owner}, part {part}: chunk {index} {why}"
        )))
    }

    /// Plans the removal of the chunks that no snapshot and no backup names. A running snapshot is left alone.
    pub fn sweep(&self) -> Result<Sweep, StoreError> {
        let mut named = BTreeMap::new();
        let mut name = |manifest: &Manifest| {
            for section in &manifest.sections {
                if section.chunks > 0 {
                    let end = section.first_chunk + u64::from(section.chunks);
                    named.insert((section.generation, section.first_chunk), end);
                }
            }
        };
        let manifests = self.manifests()?;
        manifests.iter().for_each(&mut name);
        for pinned in self.pinned() {
            name(&pinned);
        }
        let mut trees = self.backing().tree_names();
        // Read after the names: otherwise a snapshot that has just started would lose its chunks.
        let writing = self.writing.load(Relaxed);
        trees.retain(|tree| {
            directory::chunks_of_tree(tree).is_some_and(|(generation, _)| generation != writing)
        });
        // The position of the older snapshot, if there are two.
        let kept = manifests.get(..GENERATIONS_KEPT).unwrap_or_default();
        let log_through = kept
            .iter()
            .map(|manifest| manifest.seq)
            .min()
            .unwrap_or_default();
        Ok(Sweep {
            log_through,
            trees: trees.into(),
            named,
            current: None,
        })
    }
}

/// A removal of chunks, done in steps.
pub struct Sweep {
    /// The last position that may be pruned from the log; 0 if none may.
    pub log_through: Seq,
    trees: VecDeque<String>,
    /// The chunks that stay: each section's generation and first chunk, and where its chunks end.
    named: BTreeMap<(u64, u64), u64>,
    /// The tree that is being swept, its generation, and whether none of its chunks is named: then the complete tree is dropped.
    current: Option<(Traversal, u64, bool)>,
}

impl Sweep {
    /// Continues with one tree: reads about `budget` bytes of it and removes chunks that are not named. `true` if there may be more to do.
    pub fn step(&mut self, store: &Store, budget: u64) -> Result<bool, StoreError> {
        let Some((mut traversal, generation, is_whole)) =
            self.current.take().or_else(|| self.next())
        else {
            return Ok(false);
        };
        let mut changes = Vec::new();
        let is_done = traversal.step(store, budget, |key| {
            let is_named = |chunk| self.is_named(generation, chunk);
            if !is_whole && !directory::number_of_key(key).is_some_and(is_named) {
                changes.push(KeyChange::Remove(key.to_vec()));
            }
        })?;
        if is_done && is_whole {
            store.drop_tree(&traversal.tree)?;
        } else if !changes.is_empty() {
            store.write(&traversal.tree, changes)?;
        }
        self.current = (!is_done).then_some((traversal, generation, is_whole));
        Ok(true)
    }

    /// The next tree with chunks that are not named.
    fn next(&mut self) -> Option<(Traversal, u64, bool)> {
        loop {
            let tree = self.trees.pop_front()?;
            let Some((generation, in_tree)) = directory::chunks_of_tree(&tree) else {
                continue;
            };
            let named = self.named_in(generation, &in_tree);
            if named < directory::TREE_CHUNKS {
                return Some((
                    Traversal {
                        tree,
                        from: Vec::new(),
                    },
                    generation,
                    named == 0,
                ));
            }
        }
    }

    fn is_named(&self, generation: u64, chunk: u64) -> bool {
        let before = self.named.range((generation, 0)..=(generation, chunk));
        before.last().is_some_and(|(_, &end)| chunk < end)
    }

    /// How many of a tree's chunks are named.
    fn named_in(&self, generation: u64, in_tree: &Range<u64>) -> u64 {
        let sections = self.named.range((generation, 0)..(generation, in_tree.end));
        sections
            .map(|((_, first), end)| {
                end.min(&in_tree.end)
                    .saturating_sub(*first.max(&in_tree.start))
            })
            .sum()
    }
}

/// The generations that have a manifest, damaged or not, in order.
pub(super) fn generations(store: &Store) -> Result<Vec<u64>, StoreError> {
    let mut generations = Vec::new();
    for tree in store.backing().tree_names() {
        // A tree stays empty if the process crashed before the manifest was written.
        if let Some(generation) = directory::manifest_of_tree(&tree)
            && store.run(store.backing().last_key(&tree, None))?.is_some()
        {
            generations.push(generation);
        }
    }
    generations.sort_unstable();
    Ok(generations)
}

fn load(store: &Store, generation: u64) -> Result<Result<Manifest, String>, StoreError> {
    let mut bytes = Vec::new();
    store.run(store.backing().scan(
        &directory::manifest_tree(generation),
        &[],
        &mut |_, part| {
            bytes.extend_from_slice(part);
            ControlFlow::Continue(())
        },
    ))?;
    let manifest: Result<Manifest, _> = MANIFEST.unpack(&bytes).map_err(|error| error.to_string());
    Ok(
        manifest.and_then(|manifest| match manifest.generation == generation {
            true => Ok(manifest),
            false => Err("it is stored under the wrong number".to_owned()),
        }),
    )
}

/// The oldest snapshot that is retained next to the newest one. A damaged manifest is not retained in place of an older one: the log after
/// that may be needed.
fn oldest_kept(store: &Store, newest: u64) -> Result<u64, StoreError> {
    let mut oldest = newest;
    let mut kept = 1;
    for generation in generations(store)?.into_iter().rev() {
        if kept < GENERATIONS_KEPT && generation < newest && load(store, generation)?.is_ok() {
            (oldest, kept) = (generation, kept + 1);
        }
    }
    Ok(oldest)
}

/// Binds a chunk to its place, so that a chunk in the wrong place is noticed.
fn chunk_checksum(generation: u64, key: SectionId, index: u32, bytes: &[u8]) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&encode(&(generation, key, index)));
    hash.update(bytes);
    hash.digest128()
}

/// The cost of visiting a key, expressed in bytes of values that could be read in the same time.
pub const KEY_COST_BYTES: u64 = 4 << 10;

/// How far a tree has been read.
pub(super) struct Traversal {
    tree: String,
    from: Vec<u8>,
}

impl Traversal {
    /// Visits the next keys, at least one, until `budget` bytes are spent; `true` once no key is left.
    pub(super) fn step(
        &mut self,
        store: &Store,
        budget: u64,
        mut visit: impl FnMut(&[u8]),
    ) -> Result<bool, StoreError> {
        let mut spent = 0;
        let mut whole = true;
        let from = std::mem::take(&mut self.from);
        store.run(store.backing().scan(&self.tree, &from, &mut |key, value| {
            visit(key);
            spent += value.len() as u64 + KEY_COST_BYTES;
            if spent < budget {
                return ControlFlow::Continue(());
            }
            whole = false;
            // The smallest key after this one.
            self.from = [key, &[0]].concat();
            ControlFlow::Break(())
        }))?;
        Ok(whole)
    }
}

/// A tree that is being removed.
pub struct Removal(Traversal);

impl Removal {
    /// Starts to remove this tree.
    pub fn new(tree: String) -> Removal {
        Removal(Traversal {
            tree,
            from: Vec::new(),
        })
    }

    /// Reads about `budget` more bytes of the tree; once all is read, drops it. `true` as long as the tree exists.
    pub fn step(&mut self, store: &Store, budget: u64) -> Result<bool, StoreError> {
        if !self.0.step(store, budget, |_| ())? {
            return Ok(true);
        }
        store.drop_tree(&self.0.tree)?;
        Ok(false)
    }
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Facts, one line each.
    pub notes: Vec<String>,
    /// The defects, one line each; empty if there are none.
    pub faults: Vec<String>,
}

impl Findings {
    /// Takes the result of a check. A check that fails is a fault, and has no result.
    pub fn take<T, E: Display>(&mut self, checked: Result<T, E>) -> Option<T> {
        checked
            .map_err(|error| self.faults.push(error.to_string()))
            .ok()
    }
}

/// Reads every chunk of every snapshot and checks its checksum. `log_first` is the first position that the log still has.
///
/// # Errors
/// [`StoreError::Damaged`] if the snapshots can't even be listed.
pub fn check_snapshots(
    store: &Store,
    log_first: Seq,
    findings: &mut Findings,
) -> Result<(), StoreError> {
    let manifests = store.manifests()?;
    for generation in generations(store)? {
        if manifests
            .iter()
            .all(|manifest| manifest.generation != generation)
        {
            findings
                .faults
                .push(format!("snapshot {generation}: its manifest is damaged"));
        }
    }
    let mut out = Vec::new();
    for manifest in &manifests {
        let mut chunks = 0u64;
        let mut bytes = manifest.meta.len() as u64;
        for section in &manifest.sections {
            for index in 0..section.chunks {
                if findings
                    .take(store.read_chunk(section, index, &mut out))
                    .is_some()
                {
                    (chunks, bytes) = (chunks + 1, bytes + out.len() as u64);
                }
            }
        }
        let generation = manifest.generation;
        let seq = manifest.seq.0;
        let sections = counted(manifest.sections.len() as u64, "section");
        let chunks = counted(chunks, "chunk");
        let bytes = counted(bytes, "byte");
        findings.notes.push(format!(
            "snapshot {generation}: position {seq}, {sections}, {chunks}, {bytes}"
        ));
        if log_first.0 > seq + 1 {
            findings.faults.push(format!(
                "snapshot {generation}: the log begins after position {seq}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreOptions;
    use crate::store::backing::KeyChange;

    /// The tree of a manifest is created before the manifest is written. If the process crashes in between, there is no such snapshot, and
    /// no damage.
    #[test]
    fn empty_manifest_tree_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            free_space_min_bytes: 0,
            ballast_bytes: 0,
            ..StoreOptions::default()
        };
        let store = Store::open(dir.path(), &options).unwrap();
        store
            .write(&directory::manifest_tree(1), Vec::new())
            .unwrap();
        let mut findings = Findings::default();
        let first = Seq(1);
        check_snapshots(&store, first, &mut findings).unwrap();
        assert_eq!(
            (store.manifests().unwrap(), findings),
            (Vec::new(), Findings::default())
        );
        store
            .begin_snapshot(Seq(0))
            .unwrap()
            .finish(&store, Timestamp(7), Vec::new())
            .unwrap();
        assert_eq!(store.manifests().unwrap().len(), 1);
    }

    #[test]
    fn finished_snapshot_drops_older_manifest_trees() {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            free_space_min_bytes: 0,
            ballast_bytes: 0,
            ..StoreOptions::default()
        };
        let store = Store::open(dir.path(), &options).unwrap();
        for seq in 1..=3 {
            store
                .write(&directory::manifest_tree(0), Vec::new())
                .unwrap();
            store
                .begin_snapshot(Seq(seq))
                .unwrap()
                .finish(&store, Timestamp(7), Vec::new())
                .unwrap();
        }
        let trees = store.backing().tree_names();
        let manifests: Vec<_> = trees
            .iter()
            .filter_map(|tree| directory::manifest_of_tree(tree))
            .collect();
        assert_eq!(manifests, [2, 3]);
    }

    /// Otherwise one more damaged manifest would leave none, with a log that starts later.
    #[test]
    fn damaged_manifest_does_not_replace_older_one() {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            free_space_min_bytes: 0,
            ballast_bytes: 0,
            ..StoreOptions::default()
        };
        let store = Store::open(dir.path(), &options).unwrap();
        let take = |seq| {
            store
                .begin_snapshot(Seq(seq))
                .unwrap()
                .finish(&store, Timestamp(7), Vec::new())
                .unwrap()
        };
        take(1);
        let damaged = directory::manifest_tree(take(2).generation);
        let key = directory::number_key(0).to_vec();
        let damage = KeyChange::Put(key, b"damaged".to_vec());
        store.write(&damaged, vec![damage]).unwrap();
        take(3);
        let seqs = |store: &Store| -> Vec<Seq> {
            let manifests = store.manifests().unwrap();
            manifests.iter().map(|manifest| manifest.seq).collect()
        };
        assert_eq!(seqs(&store), [Seq(3), Seq(1)]);
        take(4);
        assert_eq!(seqs(&store), [Seq(4), Seq(3)]);
        assert!(!store.backing().tree_names().contains(&damaged));
    }

    #[test]
    fn manifest_beyond_limit_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        const LIMIT: usize = 1 << 20;
        let options = StoreOptions {
            manifest_bytes_max: LIMIT,
            free_space_min_bytes: 0,
            ballast_bytes: 0,
            ..StoreOptions::default()
        };
        let store = Store::open(dir.path(), &options).unwrap();
        let take = |seq, bytes| {
            store
                .begin_snapshot(Seq(seq))
                .unwrap()
                .finish(&store, Timestamp(7), vec![7; bytes])
        };
        take(1, LIMIT - 1_000).unwrap();
        take(2, 0).unwrap();
        assert!(matches!(take(3, LIMIT), Err(StoreError::TooLong(_))));
        let kept: Vec<u64> = store
            .manifests()
            .unwrap()
            .iter()
            .map(|manifest| manifest.seq.0)
            .collect();
        assert_eq!(kept, [2, 1]);
        take(4, 0).unwrap();
    }

    /// A commit waits for one step at most: each step stays within its budget, and the tree is complete until the last one.
    #[test]
    fn tree_is_removed_in_small_steps() {
        const TREE: &str = "log/0000000000000001";
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            free_space_min_bytes: 0,
            ballast_bytes: 0,
            ..StoreOptions::default()
        };
        let store = Store::open(dir.path(), &options).unwrap();
        let key = |number: u64| number.to_be_bytes().to_vec();
        let put = |number| KeyChange::Put(key(number), vec![0; 100]);
        store.write(TREE, (0..100).map(put).collect()).unwrap();
        let visits = |budget| {
            let mut traversal = Traversal {
                tree: TREE.to_owned(),
                from: Vec::new(),
            };
            let mut steps = Vec::new();
            let mut whole = false;
            while !whole {
                let mut visited = Vec::new();
                whole = traversal
                    .step(&store, budget, |key| visited.push(key.to_vec()))
                    .unwrap();
                steps.push(visited);
            }
            steps
        };
        let all: Vec<Vec<u8>> = (0..100).map(key).collect();
        for (budget, most) in [
            (0, 1),
            (1, 1),
            (2 * KEY_COST_BYTES, 2),
            (20 * KEY_COST_BYTES, 20),
        ] {
            let steps = visits(budget);
            assert_eq!(steps.concat(), all);
            assert!(steps.iter().all(|visited| visited.len() <= most));
            assert!(steps.len() <= 100 / most + 1);
        }
        let mut removal = Removal::new(TREE.to_owned());
        for _ in 0..100 {
            assert!(store.backing().tree_names().contains(&TREE.to_owned()));
            assert!(removal.step(&store, 1).unwrap());
        }
        assert!(!removal.step(&store, 1).unwrap());
        assert!(!store.backing().tree_names().contains(&TREE.to_owned()));
    }
}
