//! Snapshots on disk: sections of chunks, and a manifest that names them. A chunk is opaque here, and so is the small image
//! inside the manifest.
//!
//! A snapshot is a *generation*. It writes the sections that have changed and refers to the others where an earlier generation
//! left them. Chunks are durable before the manifest that names them is written, so a manifest that can be read proves that its
//! snapshot is complete. The two newest manifests are kept, with the chunks that they or a running backup name; the rest is
//! removed in small steps.

use super::backing::Change;
use super::removal::{Removal, Traversal};
use super::{Store, StoreError, layout};
use crate::domain::{SectionId, Seq, Timestamp};
use crate::frame::Format;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering::Relaxed;
use xxhash_rust::xxh3::Xxh3;

/// The longest chunk, in bytes.
pub const CHUNK_BYTES_MAX: usize = 64 * 1024 - CHECKSUM_BYTES;

/// How many manifests are kept.
pub const GENERATIONS_KEPT: usize = 2;

const CHECKSUM_BYTES: usize = 16;

/// A manifest has about half a kilobyte for each filter.
const MANIFEST: Format = Format { magic: *b"ckmf", version: 1, payload_max: 1 << 30 };

/// Bytes of chunks after which they are synced, so that neither a commit nor the end of a snapshot has much left to wait for.
/// Under load the limit is not reached: each commit makes durable what was written before it.
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
    /// The position of the snapshot that wrote it.
    pub written_at: Seq,
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
    /// All sections.
    pub sections: Vec<SectionRef>,
    /// The caller's small image: about half a kilobyte for each filter.
    #[serde(with = "serde_bytes")]
    pub meta: Vec<u8>,
}

/// A running snapshot. If it is dropped before it is finished, its chunks are removed later.
#[derive(Debug)]
pub struct SnapshotWriter {
    generation: u64,
    seq: Seq,
    events_last: u64,
    sections: Vec<SectionRef>,
    /// Sections that have begun: the number of the first chunk, and how many chunks there are.
    open: BTreeMap<SectionId, (u64, u32)>,
    chunks: u64,
    /// Bytes that were free on the file system when it started.
    free_before: u64,
}

impl SnapshotWriter {
    /// The last entry that the snapshot covers.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// The snapshot's number.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The snapshot covers the events up to the one of this number, which are written.
    pub fn cover_events(&mut self, last: u64) {
        self.events_last = last;
    }

    /// Writes a chunk of at most [`CHUNK_BYTES_MAX`]. The chunks of a section come in order, one section after the other.
    ///
    /// # Errors
    /// [`StoreError::Misuse`] for a longer chunk or one out of order, [`StoreError::DiskFull`] before anything is written,
    /// [`StoreError::Failed`] otherwise.
    pub fn put_chunk(
        &mut self,
        store: &Store,
        key: SectionId,
        index: u32,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        if bytes.len() > CHUNK_BYTES_MAX {
            return Err(StoreError::Misuse(format!("a chunk of {} bytes", bytes.len())));
        }
        store.space.check_snapshot(self.free_before)?;
        let (first_chunk, count) = self.open.entry(key).or_insert((self.chunks, 0));
        let chunk = *first_chunk + u64::from(index);
        if chunk != self.chunks {
            return Err(StoreError::Misuse(format!("chunk {index} of section {key:?} is out of order")));
        }
        *count += 1;
        self.chunks += 1;
        self.shape_leaves(store, chunk)?;
        let mut value = Vec::with_capacity(bytes.len() + CHECKSUM_BYTES);
        value.extend_from_slice(bytes);
        value.extend_from_slice(&chunk_checksum(self.generation, key, index, bytes).to_le_bytes());
        let written = value.len() as u64;
        let change = Change::Put(layout::number_key(chunk).to_vec(), value);
        store.write(&layout::chunk_tree(self.generation, chunk), vec![change])?;
        store.snapshot_bytes_written.fetch_add(written, Relaxed);
        if store.unsynced_chunk_bytes.fetch_add(written, Relaxed) + written >= SYNC_EVERY_BYTES {
            store.make_durable()?;
        }
        Ok(())
    }

    /// Writes the keys of future chunks with empty values. sled splits a leaf of more than 16 keys, and rewrites the whole leaf
    /// after ten changes. A leaf that gets keys and chunks together is written four times over while it fills, and commits wait
    /// for that. A leaf that was split before has nine keys, takes one chunk for each, and is left alone.
    fn shape_leaves(&self, store: &Store, chunk: u64) -> Result<(), StoreError> {
        let place = chunk % layout::TREE_CHUNKS;
        if !place.is_multiple_of(KEYS_AHEAD) {
            return Ok(());
        }
        let tree = layout::chunk_tree(self.generation, chunk);
        let from = if place == 0 { 0 } else { KEYS_AHEAD };
        let to = (2 * KEYS_AHEAD).min(layout::TREE_CHUNKS - place);
        for ahead in from..to {
            // One by one: sled applies a batch in no particular order, and the leaves would be split anywhere.
            let key = layout::number_key(chunk + ahead).to_vec();
            store.write(&tree, vec![Change::Put(key, Vec::new())])?;
        }
        Ok(())
    }

    /// Ends a section once its `chunks` chunks, numbered from 0, are written.
    ///
    /// # Errors
    /// [`StoreError::Misuse`] if another number of chunks was written.
    pub fn end_section(&mut self, key: SectionId, changes: u64, chunks: u32) -> Result<(), StoreError> {
        let (first_chunk, written) = self.open.remove(&key).unwrap_or((self.chunks, 0));
        if written != chunks {
            return Err(StoreError::Misuse(format!("section {key:?} has {written} chunks, not {chunks}")));
        }
        let (written_at, generation) = (self.seq, self.generation);
        self.sections.push(SectionRef { key, changes, first_chunk, chunks, written_at, generation });
        Ok(())
    }

    /// Shares a section with the snapshot before; nothing is written.
    pub fn carry_over(&mut self, section: &SectionRef) {
        self.sections.push(*section);
    }

    /// Makes the chunks and the events durable. Then writes the manifest and makes it durable. From then on this is the newest snapshot, and [`Store::sweep`] removes what no snapshot names any more.
    ///
    /// # Errors
    /// [`StoreError::Misuse`] if a section has not ended or is there twice.
    pub fn finish(
        mut self,
        store: &Store,
        taken_at: Timestamp,
        meta: Vec<u8>,
    ) -> Result<Manifest, StoreError> {
        self.sections.sort_unstable_by_key(|section| section.key);
        let twice = self.sections.windows(2).find(|pair| pair[0].key == pair[1].key).map(|pair| pair[0].key);
        if let Some(key) = twice.or(self.open.keys().next().copied()) {
            return Err(StoreError::Misuse(format!("section {key:?} is there twice or has not ended")));
        }
        let Self { generation, seq, events_last, sections, .. } = self;
        let manifest = Manifest { generation, seq, taken_at, events_last, sections, meta };
        store.space.check_reserve(0)?;
        store.make_durable()?;
        let bytes = MANIFEST.pack(&manifest);
        store.snapshot_bytes_written.fetch_add(bytes.len() as u64, Relaxed);
        let keys = (0..=u16::MAX).map(|part| layout::part_key(manifest.generation, part).to_vec());
        let parts = bytes.chunks(layout::VALUE_BYTES_MAX).map(<[u8]>::to_vec);
        let changes = keys.zip(parts).map(|(key, part)| Change::Put(key, part)).collect();
        store.write(layout::MANIFESTS_TREE, changes)?;
        store.make_durable()?;
        store.writing.store(0, Relaxed);
        let stale = generations(store)?.into_iter().rev().skip(GENERATIONS_KEPT);
        for generation in stale {
            forget(store, generation)?;
        }
        Ok(manifest)
    }
}

impl Store {
    /// Begins a snapshot of the state at `seq`.
    pub fn begin_snapshot(&self, seq: Seq) -> Result<SnapshotWriter, StoreError> {
        self.space.check_reserve(0)?;
        let free_before = self.space.free_bytes()?;
        // A number that no snapshot has, nor any chunk that still exists.
        let trees = self.backing().tree_names();
        let used =
            trees.iter().filter_map(|tree| layout::chunks_of_tree(tree)).map(|(generation, _)| generation);
        let pinned = self.pinned.lock().iter().map(|manifest| manifest.generation).max();
        let generation = generations(self)?.into_iter().chain(used).max().max(pinned).unwrap_or(0) + 1;
        self.writing.store(generation, Relaxed);
        Ok(SnapshotWriter {
            generation,
            seq,
            events_last: 0,
            sections: Vec::new(),
            open: BTreeMap::new(),
            chunks: 0,
            free_before,
        })
    }

    /// Leaves the snapshot that was begun last incomplete: [`Self::sweep`] removes its chunks.
    pub(crate) fn abandon_snapshot(&self) {
        self.writing.store(0, Relaxed);
    }

    /// The snapshots that can be read, newest first. One whose manifest is damaged is left out and logged. Whether the chunks are
    /// intact shows only when they are read.
    pub fn manifests(&self) -> Result<Vec<Manifest>, StoreError> {
        let mut manifests = Vec::new();
        for generation in generations(self)?.into_iter().rev() {
            match load(self, generation)? {
                Ok(manifest) => manifests.push(manifest),
                Err(why) => tracing::error!(generation, why, "the manifest of a snapshot is damaged"),
            }
        }
        Ok(manifests)
    }

    /// Removes a damaged snapshot, so that it does not count as one of the two that are kept.
    pub fn forget_snapshot(&self, manifest: &Manifest) -> Result<(), StoreError> {
        forget(self, manifest.generation)?;
        self.make_durable()
    }

    /// The last position that may be pruned from the log: that of the older snapshot, if there are two, or that of a running
    /// backup.
    pub fn prunable_through(&self) -> Result<Option<Seq>, StoreError> {
        let mut manifests = self.manifests()?;
        if manifests.len() < GENERATIONS_KEPT {
            return Ok(None);
        }
        manifests.truncate(GENERATIONS_KEPT);
        let kept = manifests.iter().map(|manifest| manifest.seq).min();
        let pinned = self.pinned.lock().iter().map(|manifest| manifest.seq).min();
        Ok([kept, pinned].into_iter().flatten().min())
    }

    /// Reads a chunk into `out`, replacing its contents.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the chunk is missing or its checksum is wrong.
    pub fn read_chunk(&self, section: &SectionRef, index: u32, out: &mut Vec<u8>) -> Result<(), StoreError> {
        out.clear();
        let chunk = section.first_chunk + u64::from(index);
        let tree = layout::chunk_tree(section.generation, chunk);
        self.run(self.backing().read(&tree, &layout::number_key(chunk), out))?;
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
        Err(self.damaged(format!("tree {tree}, owner {owner}, part {part}: chunk {index} {why}")))
    }

    /// Plans the removal of the chunks that no snapshot and no backup names. A running snapshot is left alone.
    pub fn sweep(&self) -> Result<Sweep, StoreError> {
        let mut named = BTreeMap::new();
        let mut name = |manifest: &Manifest| {
            let sections = manifest.sections.iter().filter(|section| section.chunks > 0);
            named.extend(sections.map(|section| {
                let end = section.first_chunk + u64::from(section.chunks);
                ((section.generation, section.first_chunk), end)
            }));
        };
        for generation in generations(self)? {
            if let Ok(manifest) = load(self, generation)? {
                name(&manifest);
            }
        }
        self.pinned.lock().iter().for_each(|manifest| name(manifest));
        let trees = self.backing().tree_names().into_iter().filter(|tree| {
            layout::chunks_of_tree(tree)
                .is_some_and(|(generation, _)| generation != self.writing.load(Relaxed))
        });
        Ok(Sweep { trees: trees.collect(), named, current: None })
    }
}

/// A removal of chunks, done in steps.
pub struct Sweep {
    trees: VecDeque<String>,
    /// The chunks that stay: each section's generation and first chunk, and where its chunks end.
    named: BTreeMap<(u64, u64), u64>,
    current: Option<Swept>,
}

/// How a tree is swept.
enum Swept {
    /// No chunk in it is named: the whole tree goes.
    Whole(Removal),
    /// Some chunks are named; the number is their generation.
    Partly(Traversal, u64),
}

impl Sweep {
    /// Continues with one tree: reads about `budget` bytes of it and removes chunks that are not named. `true` if there may be
    /// more to do.
    pub fn step(&mut self, store: &Store, budget: u64) -> Result<bool, StoreError> {
        let Some(mut current) = self.current.take().or_else(|| self.next()) else { return Ok(false) };
        let goes_on = match &mut current {
            Swept::Whole(removal) => removal.step(store, budget)?,
            Swept::Partly(progress, generation) => {
                let mut changes = Vec::new();
                let whole = progress.step(store, budget, |key| {
                    if !layout::number_of_key(key).is_some_and(|chunk| self.is_named(*generation, chunk)) {
                        changes.push(Change::Remove(key.to_vec()));
                    }
                })?;
                if !changes.is_empty() {
                    store.write(progress.tree(), changes)?;
                }
                !whole
            }
        };
        self.current = goes_on.then_some(current);
        Ok(true)
    }

    /// The next tree with chunks that are not named.
    fn next(&mut self) -> Option<Swept> {
        loop {
            let tree = self.trees.pop_front()?;
            let Some((generation, in_tree)) = layout::chunks_of_tree(&tree) else { continue };
            match self.named_in(generation, &in_tree) {
                0 => return Some(Swept::Whole(Removal::new(tree))),
                layout::TREE_CHUNKS => {}
                _ => return Some(Swept::Partly(Traversal::new(tree), generation)),
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
            .map(|((_, first), end)| end.min(&in_tree.end).saturating_sub(*first.max(&in_tree.start)))
            .sum()
    }
}

/// The generations that have a manifest, damaged or not, in order. Only the first part of each manifest is read: with ten
/// thousand filters a manifest takes megabytes.
pub(super) fn generations(store: &Store) -> Result<Vec<u64>, StoreError> {
    let mut generations = Vec::new();
    let mut from = Vec::new();
    loop {
        let mut found = None;
        store.run(store.backing().scan(layout::MANIFESTS_TREE, &from, &mut |key, _| {
            found = layout::part_of_key(key).map(|(generation, _)| generation);
            // Keys that are not ours are skipped.
            if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }))?;
        let Some(generation) = found else { return Ok(generations) };
        generations.push(generation);
        let Some(next) = generation.checked_add(1) else { return Ok(generations) };
        from = layout::part_key(next, 0).to_vec();
    }
}

/// Visits the keys and the parts of a manifest, in order.
fn visit_parts(
    store: &Store,
    generation: u64,
    mut visit: impl FnMut(&[u8], &[u8]),
) -> Result<(), StoreError> {
    let first = layout::part_key(generation, 0);
    store.run(store.backing().scan(layout::MANIFESTS_TREE, &first, &mut |key, part| {
        if layout::part_of_key(key).is_none_or(|(at, _)| at != generation) {
            return ControlFlow::Break(());
        }
        visit(key, part);
        ControlFlow::Continue(())
    }))
}

fn forget(store: &Store, generation: u64) -> Result<(), StoreError> {
    let mut changes = Vec::new();
    visit_parts(store, generation, |key, _| changes.push(Change::Remove(key.to_vec())))?;
    if changes.is_empty() { Ok(()) } else { store.write(layout::MANIFESTS_TREE, changes) }
}

fn load(store: &Store, generation: u64) -> Result<Result<Manifest, String>, StoreError> {
    let mut bytes = Vec::new();
    visit_parts(store, generation, |_, part| bytes.extend_from_slice(part))?;
    let manifest: Result<Manifest, _> = MANIFEST.unpack(&bytes).map_err(|error| error.to_string());
    Ok(manifest.and_then(|manifest| match manifest.generation == generation {
        true => Ok(manifest),
        false => Err("it is stored under the wrong key".to_owned()),
    }))
}

/// Binds a chunk to its place, so that a chunk in the wrong place is noticed.
fn chunk_checksum(generation: u64, key: SectionId, index: u32, bytes: &[u8]) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&generation.to_le_bytes());
    hash.update(&key.owner.to_le_bytes());
    hash.update(&key.part.to_le_bytes());
    hash.update(&index.to_le_bytes());
    hash.update(bytes);
    hash.digest128()
}
