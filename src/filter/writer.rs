//! The one writer of a table: inserts by breadth-first search, removes, and keeps what a running snapshot needs.

use super::Digest;
use super::codec::{CHUNK_WORDS, TableId, chunks, encode_chunk};
use super::kind::{Kind, with_kind};
use super::place::{Place, Probe};
use super::plan::Plan;
use super::slots::Shape;
use super::table::Table;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// No path to a free slot was found; nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NoPath;

/// A bucket on the way to a free slot.
#[derive(Clone, Copy)]
struct Node {
    bucket: u64,
    /// The node whose item moves here; [`ROOT`] for the item's own two buckets.
    parent: u32,
    /// The slot of the parent's bucket that this item leaves.
    slot: u32,
}

const ROOT: u32 = u32::MAX;

/// What the words of chunks that a running snapshot has not taken yet were when it began.
#[derive(Default)]
struct Undo {
    /// For each chunk the words changed since, in order, as they were; none once the chunk is taken.
    chunks: Vec<Option<Vec<(u32, u64)>>>,
    records: usize,
}

/// The writer's side of a table.
pub(super) struct TableWriter {
    pub(super) id: TableId,
    pub(super) table: Arc<Table>,
    /// Counts every change of a word, so that an unchanged table is not written again.
    changes: u64,
    max_search: u32,
    undo: Option<Undo>,
    nodes: Vec<Node>,
    /// Items that the table is meant for: kept, since every insert asks for the room.
    fill_limit: u64,
    /// [`Self::insert_unless_saturated_in`] and [`Self::remove_in`] for the table's kind, chosen once.
    insert_unless_saturated: Insert,
    remove: Remove,
}

type Insert = fn(&mut TableWriter, Digest) -> Result<bool, NoPath>;
type Remove = fn(&mut TableWriter, Digest) -> Option<u64>;

impl TableWriter {
    pub(super) fn new(id: TableId, plan: Plan, max_search: u32) -> Self {
        Self::resume(id, Table::new(plan), 0, max_search)
    }

    /// The writer of a table that was restored.
    pub(super) fn resume(id: TableId, table: Table, changes: u64, max_search: u32) -> Self {
        let (insert_unless_saturated, remove): (Insert, Remove) = with_kind!(table.plan, S, P => {
            (Self::insert_unless_saturated_in::<S, P>, Self::remove_in::<S, P>)
        });
        let fill_limit = table.plan.fill_limit();
        Self {
            id,
            table: Arc::new(table),
            changes,
            max_search,
            undo: None,
            nodes: Vec::new(),
            fill_limit,
            insert_unless_saturated,
            remove,
        }
    }

    pub(super) fn items(&self) -> u64 {
        self.table.items()
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Items that it may still take before it is as full as it is meant to be.
    pub(super) fn room(&self) -> u64 {
        self.fill_limit.saturating_sub(self.items())
    }

    /// Asks for the cache lines of an item's buckets.
    #[inline]
    pub(super) fn prefetch(&self, digest: Digest) {
        with_kind!(self.table.plan, S, P => self.prefetch_in::<S, P>(digest));
    }

    #[inline(never)]
    fn prefetch_in<S: Shape, P: Place>(&self, digest: Digest) {
        let kind = self.table.kind::<S, P>();
        self.table.prefetch(kind, &kind.place.probe(digest));
    }

    /// Puts the item in, with these bits of state.
    #[inline]
    pub(super) fn insert(&mut self, digest: Digest, state: u64) -> Result<(), NoPath> {
        with_kind!(self.table.plan, S, P => self.insert_in::<S, P>(digest, state))
    }

    #[inline(never)]
    fn insert_in<S: Shape, P: Place>(&mut self, digest: Digest, state: u64) -> Result<(), NoPath> {
        let kind = self.table.kind::<S, P>();
        let mut probe = kind.place.probe(digest);
        probe.value |= state;
        self.place(kind, &probe)
    }

    /// Puts an item in a strict table, with these bits of state, unless it is there: then tells what its slot holds.
    pub(super) fn insert_if_absent(&mut self, digest: Digest, state: u64) -> Result<Option<u64>, NoPath> {
        let kind = self.table.strict_kind();
        let mut probe = kind.place.probe(digest);
        if let Some((_, _, held)) = self.table.locate(kind, &probe) {
            return Ok(Some(held));
        }
        probe.value |= state;
        self.place(kind, &probe).map(|()| None)
    }

    /// Puts the item in unless both its buckets are full of copies alike; tells whether it did.
    #[inline(always)]
    pub(super) fn insert_unless_saturated(&mut self, digest: Digest) -> Result<bool, NoPath> {
        (self.insert_unless_saturated)(self, digest)
    }

    fn insert_unless_saturated_in<S: Shape, P: Place>(&mut self, digest: Digest) -> Result<bool, NoPath> {
        let kind = self.table.kind::<S, P>();
        self.place_unless_saturated(kind, kind.place.probe(digest))
    }

    /// [`Self::insert_unless_saturated`] for many, until an item finds no path: reports the outcomes before it.
    pub(super) fn insert_many(&mut self, digests: &[Digest], report: impl FnMut(bool)) {
        with_kind!(self.table.plan, S, P => self.insert_many_in::<S, P>(digests, report));
    }

    #[inline(never)]
    fn insert_many_in<S: Shape, P: Place>(&mut self, digests: &[Digest], mut report: impl FnMut(bool)) {
        let table = self.table.clone();
        let kind = table.kind::<S, P>();
        table.for_each_group(kind, digests, |probes| {
            for probe in probes {
                match self.place_unless_saturated(kind, *probe) {
                    Ok(added) => report(added),
                    Err(NoPath) => return ControlFlow::Break(()),
                }
            }
            ControlFlow::Continue(())
        });
    }

    /// [`Self::remove`] for many: reports whether each was there.
    pub(super) fn remove_many(&mut self, digests: &[Digest], report: impl FnMut(bool)) {
        with_kind!(self.table.plan, S, P => self.remove_many_in::<S, P>(digests, report));
    }

    #[inline(never)]
    fn remove_many_in<S: Shape, P: Place>(&mut self, digests: &[Digest], mut report: impl FnMut(bool)) {
        let table = self.table.clone();
        let kind = table.kind::<S, P>();
        table.for_each_group(kind, digests, |probes| {
            probes.iter().for_each(|probe| report(self.take(kind, probe).is_some()));
            ControlFlow::Continue(())
        });
    }

    #[inline(always)]
    fn place_unless_saturated<S: Shape, P: Place>(
        &mut self,
        kind: Kind<S, P>,
        probe: Probe,
    ) -> Result<bool, NoPath> {
        let Some((bucket, slot)) = self.table.free_of_pair(kind, &probe) else {
            return self.relocate_unless_saturated::<S, P>(probe.buckets[0], probe.value);
        };
        self.change_slot(kind, bucket, slot, 0, probe.value);
        self.table.set_items(self.items() + 1);
        Ok(true)
    }

    #[inline(never)]
    fn relocate_unless_saturated<S: Shape, P: Place>(
        &mut self,
        bucket: u64,
        value: u64,
    ) -> Result<bool, NoPath> {
        let kind = self.table.kind::<S, P>();
        let probe = Probe { value, buckets: [bucket, kind.place.other(bucket, value)] };
        if self.table.copies(kind, &probe) == 2 * kind.shape.lanes().slots {
            return Ok(false);
        }
        self.relocate(kind, probe)?;
        self.table.set_items(self.items() + 1);
        Ok(true)
    }

    /// Puts a slot value in that lay in another table, where `bucket` was one of its two here.
    pub(super) fn insert_value(&mut self, bucket: u64, value: u64) -> Result<(), NoPath> {
        with_kind!(self.table.plan, S, P => self.insert_value_in::<S, P>(bucket, value))
    }

    #[inline(never)]
    fn insert_value_in<S: Shape, P: Place>(&mut self, bucket: u64, value: u64) -> Result<(), NoPath> {
        let kind = self.table.kind::<S, P>();
        let probe = Probe { value, buckets: [bucket, kind.place.other(bucket, value)] };
        self.place(kind, &probe)
    }

    /// Takes one copy of the item out and tells what its slot held.
    #[inline(always)]
    pub(super) fn remove(&mut self, digest: Digest) -> Option<u64> {
        (self.remove)(self, digest)
    }

    fn remove_in<S: Shape, P: Place>(&mut self, digest: Digest) -> Option<u64> {
        let kind = self.table.kind::<S, P>();
        self.take(kind, &kind.place.probe(digest))
    }

    /// Gives the slot of an item of a strict table another state, in place; tells what it held.
    pub(super) fn set_state(&mut self, digest: Digest, state: u64) -> Option<u64> {
        let kind = self.table.strict_kind();
        let probe = kind.place.probe(digest);
        let (bucket, slot, held) = self.table.locate(kind, &probe)?;
        self.change_slot(kind, bucket, slot, held, probe.value | state);
        Some(held)
    }

    /// Frees a slot by its place.
    pub(super) fn free_slot(&mut self, bucket: u64, slot: u32) {
        with_kind!(self.table.plan, S, P => self.free_slot_in::<S, P>(bucket, slot));
    }

    #[inline(never)]
    fn free_slot_in<S: Shape, P: Place>(&mut self, bucket: u64, slot: u32) {
        let kind = self.table.kind::<S, P>();
        let held = self.table.slot(kind, bucket, slot);
        self.change_slot(kind, bucket, slot, held, 0);
        self.table.set_items(self.items() - 1);
    }

    #[inline(always)]
    fn take<S: Shape, P: Place>(&mut self, kind: Kind<S, P>, probe: &Probe) -> Option<u64> {
        let (bucket, slot, held) = self.table.locate(kind, probe)?;
        self.change_slot(kind, bucket, slot, held, 0);
        self.table.set_items(self.items() - 1);
        Some(held)
    }

    #[inline(always)]
    fn place<S: Shape, P: Place>(&mut self, kind: Kind<S, P>, probe: &Probe) -> Result<(), NoPath> {
        match self.table.free_of_pair(kind, probe) {
            Some((bucket, slot)) => self.change_slot(kind, bucket, slot, 0, probe.value),
            None => self.relocate(kind, *probe)?,
        }
        self.table.set_items(self.items() + 1);
        Ok(())
    }

    /// Makes room along the shortest path to a free slot. Items move from its far end backwards, each into a slot
    /// that is free or whose item has moved on, so that every item is always in one of its buckets.
    #[inline(never)]
    fn relocate<S: Shape, P: Place>(&mut self, kind: Kind<S, P>, probe: Probe) -> Result<(), NoPath> {
        let mut nodes = std::mem::take(&mut self.nodes);
        let found = self.search(kind, &probe, &mut nodes);
        if let Some((mut node, mut free)) = found {
            self.table.step_version(1);
            let mut there = 0;
            while node.parent != ROOT {
                let parent = nodes[node.parent as usize];
                let moving = self.table.slot(kind, parent.bucket, node.slot);
                self.change_slot(kind, node.bucket, free, there, moving);
                (free, there, node) = (node.slot, moving, parent);
            }
            self.change_slot(kind, node.bucket, free, there, probe.value);
            self.table.step_version(1);
        }
        self.nodes = nodes;
        found.map(drop).ok_or(NoPath)
    }

    /// Finds the shortest path; tells its last node, and the free slot of its bucket.
    ///
    /// The buckets that one node leads to are all asked for before the first is looked at. Deeper nodes are made only once
    /// all that are there have no free slot: most searches end at the first ones.
    fn search<S: Shape, P: Place>(
        &self,
        kind: Kind<S, P>,
        probe: &Probe,
        nodes: &mut Vec<Node>,
    ) -> Option<(Node, u32)> {
        let lanes = kind.shape.lanes();
        nodes.clear();
        nodes.extend(probe.buckets.map(|bucket| Node { bucket, parent: ROOT, slot: 0 }));
        let mut next = 0;
        while let Some(&node) = nodes.get(next) {
            let first = nodes.len();
            for slot in 0..lanes.slots {
                let other = kind.place.other(node.bucket, self.table.slot(kind, node.bucket, slot));
                if nodes.len() <= self.max_search as usize && !on_path(nodes, next, other) {
                    self.table.prefetch_bucket(kind, other);
                    nodes.push(Node { bucket: other, parent: next as u32, slot });
                }
            }
            for &node in &nodes[first..] {
                if let Some(free) = self.table.free(kind, node.bucket) {
                    return Some((node, free));
                }
            }
            next += 1;
        }
        None
    }

    /// Puts a value in the place of the one that a slot holds, and whose bits may reach into a second word.
    #[inline(always)]
    fn change_slot<S: Shape, P: Place>(
        &mut self,
        kind: Kind<S, P>,
        bucket: u64,
        slot: u32,
        held: u64,
        value: u64,
    ) {
        debug_assert_eq!(self.table.slot(kind, bucket, slot), held);
        let lanes = kind.shape.lanes();
        let (word, shift) = lanes.position(bucket, slot);
        let change = held ^ value;
        let before = self.table.words[word].load(Relaxed);
        self.set_word(word, before, before ^ (change << shift));
        if lanes.straddles() && shift + lanes.bits > 64 {
            let before = self.table.words[word + 1].load(Relaxed);
            self.set_word(word + 1, before, before ^ (change >> (64 - shift)));
        }
    }

    #[inline(always)]
    fn set_word(&mut self, word: usize, before: u64, value: u64) {
        self.changes += 1;
        if self.undo.is_some() {
            self.keep_for_undo(word, before);
        }
        self.table.words[word].store(value, Release);
    }

    /// Apart, so that the usual case needs no stack.
    #[inline(never)]
    fn keep_for_undo(&mut self, word: usize, before: u64) {
        if let Some(undo) = &mut self.undo
            && let Some(records) = &mut undo.chunks[word / CHUNK_WORDS]
        {
            records.push(((word % CHUNK_WORDS) as u32, before));
            undo.records += 1;
        }
    }

    pub(super) fn chunks(&self) -> u32 {
        chunks(self.table.words.len() as u64)
    }

    pub(super) fn begin_snapshot(&mut self) {
        let chunks = (0..self.chunks()).map(|_| Some(Vec::new())).collect();
        self.undo = Some(Undo { chunks, records: 0 });
    }

    pub(super) fn end_snapshot(&mut self) {
        self.undo = None;
    }

    /// The chunk as it was when the snapshot began; its records are not needed any more.
    pub(super) fn take_chunk(&mut self, chunk: u32, out: &mut Vec<u8>) {
        let first = chunk as usize * CHUNK_WORDS;
        let last = self.table.words.len().min(first + CHUNK_WORDS);
        let mut words: Vec<u64> =
            self.table.words[first..last].iter().map(|word| word.load(Relaxed)).collect();
        if let Some(undo) = &mut self.undo
            && let Some(records) = undo.chunks[chunk as usize].take()
        {
            undo.records -= records.len();
            for (word, before) in records.into_iter().rev() {
                words[word as usize] = before;
            }
        }
        encode_chunk(self.id, chunk, &words, out);
    }

    /// Whether the running snapshot still wants it.
    pub(super) fn is_in_snapshot(&self) -> bool {
        self.undo.is_some()
    }

    /// Memory of the records kept for a running snapshot.
    pub(super) fn undo_bytes(&self) -> usize {
        self.undo.as_ref().map_or(0, |undo| undo.records * size_of::<(u32, u64)>())
    }
}

/// Whether a bucket is on the way from a root to a node: a path must not cross itself.
fn on_path(nodes: &[Node], node: usize, bucket: u64) -> bool {
    let mut node = nodes[node];
    loop {
        if node.bucket == bucket {
            return true;
        }
        if node.parent == ROOT {
            return false;
        }
        node = nodes[node.parent as usize];
    }
}
