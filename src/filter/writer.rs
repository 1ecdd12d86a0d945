//! The one writer of a table: inserts by breadth-first search, removes, and keeps what a running snapshot needs.

use super::Digest;
use super::codec::{CHUNK_WORDS, TableId, encode_chunk};
use super::kind::{Kind, with_kind};
use super::place::{Place, Probe};
use super::slots::Shape;
use super::table::{GROUP, Plan, Table};
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
}

impl TableWriter {
    pub(super) fn new(id: TableId, plan: Plan, max_search: u32) -> Self {
        Self::resume(id, Table::new(plan), 0, max_search)
    }

    /// The writer of a table that was restored.
    pub(super) fn resume(id: TableId, table: Table, changes: u64, max_search: u32) -> Self {
        Self { id, table: Arc::new(table), changes, max_search, undo: None, nodes: Vec::new() }
    }

    pub(super) fn items(&self) -> u64 {
        self.table.items()
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Items that it may still take before it is as full as it is meant to be.
    pub(super) fn room(&self) -> u64 {
        self.table.plan.fill_limit().saturating_sub(self.items())
    }

    /// Asks for the cache lines of an item's buckets.
    #[inline]
    pub(super) fn prefetch(&self, digest: Digest) {
        with_kind!(self.table, kind => self.prefetch_in(kind, digest));
    }

    #[inline(never)]
    fn prefetch_in<S: Shape, P: Place>(&self, kind: Kind<S, P>, digest: Digest) {
        self.table.prefetch(kind, &kind.place.probe(digest));
    }

    /// Puts the item in, with these bits of state.
    #[inline]
    pub(super) fn insert(&mut self, digest: Digest, state: u64) -> Result<(), NoPath> {
        with_kind!(self.table, kind => self.insert_in(kind, digest, state))
    }

    #[inline(never)]
    fn insert_in<S: Shape, P: Place>(
        &mut self,
        kind: Kind<S, P>,
        digest: Digest,
        state: u64,
    ) -> Result<(), NoPath> {
        let mut probe = kind.place.probe(digest);
        probe.value |= state;
        self.place(kind, &probe)
    }

    /// Puts the item in, with these bits of state, unless it is there: then tells what its slot holds.
    #[inline]
    pub(super) fn insert_if_absent(&mut self, digest: Digest, state: u64) -> Result<Option<u64>, NoPath> {
        with_kind!(self.table, kind => self.insert_if_absent_in(kind, digest, state))
    }

    #[inline(never)]
    fn insert_if_absent_in<S: Shape, P: Place>(
        &mut self,
        kind: Kind<S, P>,
        digest: Digest,
        state: u64,
    ) -> Result<Option<u64>, NoPath> {
        let mut probe = kind.place.probe(digest);
        if let Some((_, _, held)) = self.table.locate(kind, &probe) {
            return Ok(Some(held));
        }
        probe.value |= state;
        self.place(kind, &probe).map(|()| None)
    }

    /// Puts the item in unless both its buckets are full of copies alike; tells whether it did.
    #[inline]
    pub(super) fn insert_unless_saturated(&mut self, digest: Digest) -> Result<bool, NoPath> {
        with_kind!(self.table, kind => self.insert_unless_saturated_in(kind, digest))
    }

    #[inline(never)]
    fn insert_unless_saturated_in<S: Shape, P: Place>(
        &mut self,
        kind: Kind<S, P>,
        digest: Digest,
    ) -> Result<bool, NoPath> {
        let probe = kind.place.probe(digest);
        self.place_unless_saturated(kind, &probe)
    }

    /// [`Self::insert_unless_saturated`] for a group, until an item finds no path: reports the outcomes before it.
    /// At most [`GROUP`] items.
    pub(super) fn insert_group(&mut self, digests: &[Digest], report: impl FnMut(bool)) {
        with_kind!(self.table, kind => self.insert_group_in(kind, digests, report));
    }

    #[inline(never)]
    fn insert_group_in<S: Shape, P: Place>(
        &mut self,
        kind: Kind<S, P>,
        digests: &[Digest],
        mut report: impl FnMut(bool),
    ) {
        let mut probes = [Probe::default(); GROUP];
        for probe in self.table.probe_group(kind, digests, &mut probes) {
            match self.place_unless_saturated(kind, probe) {
                Ok(added) => report(added),
                Err(NoPath) => return,
            }
        }
    }

    /// [`Self::remove`] for a group: reports whether each was there. At most [`GROUP`] items.
    pub(super) fn remove_group(&mut self, digests: &[Digest], report: impl FnMut(bool)) {
        with_kind!(self.table, kind => self.remove_group_in(kind, digests, report));
    }

    #[inline(never)]
    fn remove_group_in<S: Shape, P: Place>(
        &mut self,
        kind: Kind<S, P>,
        digests: &[Digest],
        mut report: impl FnMut(bool),
    ) {
        let mut probes = [Probe::default(); GROUP];
        for probe in self.table.probe_group(kind, digests, &mut probes) {
            report(self.take(kind, probe).is_some());
        }
    }

    #[inline(always)]
    fn place_unless_saturated<S: Shape, P: Place>(
        &mut self,
        kind: Kind<S, P>,
        probe: &Probe,
    ) -> Result<bool, NoPath> {
        if let Some((bucket, slot)) = self.table.free_of_pair(kind, probe) {
            self.set_slot(kind, bucket, slot, probe.value);
        } else if self.table.copies(kind, probe) == 2 * kind.shape.lanes().slots {
            return Ok(false);
        } else {
            self.relocate(kind, probe)?;
        }
        self.table.set_items(self.items() + 1);
        Ok(true)
    }

    /// Puts a slot value in that lay in another table, where `bucket` was one of its two here.
    pub(super) fn insert_value(&mut self, bucket: u64, value: u64) -> Result<(), NoPath> {
        with_kind!(self.table, kind => self.insert_value_in(kind, bucket, value))
    }

    #[inline(never)]
    fn insert_value_in<S: Shape, P: Place>(
        &mut self,
        kind: Kind<S, P>,
        bucket: u64,
        value: u64,
    ) -> Result<(), NoPath> {
        let probe = Probe { value, buckets: [bucket, kind.place.other(bucket, value)] };
        self.place(kind, &probe)
    }

    /// Takes one copy of the item out and tells what its slot held.
    #[inline]
    pub(super) fn remove(&mut self, digest: Digest) -> Option<u64> {
        with_kind!(self.table, kind => self.remove_in(kind, digest))
    }

    #[inline(never)]
    fn remove_in<S: Shape, P: Place>(&mut self, kind: Kind<S, P>, digest: Digest) -> Option<u64> {
        let probe = kind.place.probe(digest);
        self.take(kind, &probe)
    }

    /// Gives the item's slot another state, in place; tells what it held.
    pub(super) fn set_state(&mut self, digest: Digest, state: u64) -> Option<u64> {
        with_kind!(self.table, kind => self.set_state_in(kind, digest, state))
    }

    #[inline(never)]
    fn set_state_in<S: Shape, P: Place>(
        &mut self,
        kind: Kind<S, P>,
        digest: Digest,
        state: u64,
    ) -> Option<u64> {
        let probe = kind.place.probe(digest);
        let (bucket, slot, held) = self.table.locate(kind, &probe)?;
        self.set_slot(kind, bucket, slot, probe.value | state);
        Some(held)
    }

    /// Frees a slot by its place.
    pub(super) fn free_slot(&mut self, bucket: u64, slot: u32) {
        with_kind!(self.table, kind => self.clear_slot(kind, bucket, slot));
        self.table.set_items(self.items() - 1);
    }

    #[inline(never)]
    fn clear_slot<S: Shape, P: Place>(&mut self, kind: Kind<S, P>, bucket: u64, slot: u32) {
        self.set_slot(kind, bucket, slot, 0);
    }

    #[inline(always)]
    fn take<S: Shape, P: Place>(&mut self, kind: Kind<S, P>, probe: &Probe) -> Option<u64> {
        let (bucket, slot, held) = self.table.locate(kind, probe)?;
        self.set_slot(kind, bucket, slot, 0);
        self.table.set_items(self.items() - 1);
        Some(held)
    }

    #[inline(always)]
    fn place<S: Shape, P: Place>(&mut self, kind: Kind<S, P>, probe: &Probe) -> Result<(), NoPath> {
        match self.table.free_of_pair(kind, probe) {
            Some((bucket, slot)) => self.set_slot(kind, bucket, slot, probe.value),
            None => self.relocate(kind, probe)?,
        }
        self.table.set_items(self.items() + 1);
        Ok(())
    }

    /// Makes room along the shortest path to a free slot. Items move from its far end backwards, each into a slot
    /// that is free or whose item has moved on, so that every item is always in one of its buckets.
    #[inline(never)]
    fn relocate<S: Shape, P: Place>(&mut self, kind: Kind<S, P>, probe: &Probe) -> Result<(), NoPath> {
        let mut nodes = std::mem::take(&mut self.nodes);
        let found = self.search(kind, probe, &mut nodes);
        if let Some((mut node, mut free)) = found {
            self.table.step_version(1);
            while node.parent != ROOT {
                let parent = nodes[node.parent as usize];
                let moving = self.table.slot(kind, parent.bucket, node.slot);
                self.set_slot(kind, node.bucket, free, moving);
                free = node.slot;
                node = parent;
            }
            self.set_slot(kind, node.bucket, free, probe.value);
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

    /// Writes a slot, whose bits may reach into a second word.
    #[inline(always)]
    fn set_slot<S: Shape, P: Copy>(&mut self, kind: Kind<S, P>, bucket: u64, slot: u32, value: u64) {
        let lanes = kind.shape.lanes();
        let bit = lanes.slot_bit(bucket, slot);
        let (word, shift) = ((bit >> 6) as usize, (bit & 63) as u32);
        let mask = lanes.slot_mask();
        let low = self.table.words[word].load(Relaxed);
        self.set_word(word, (low & !(mask << shift)) | (value << shift));
        if shift + lanes.bits > 64 {
            let high = self.table.words[word + 1].load(Relaxed);
            let (mask, value) = (mask >> (64 - shift), value >> (64 - shift));
            self.set_word(word + 1, (high & !mask) | value);
        }
    }

    #[inline(always)]
    fn set_word(&mut self, word: usize, value: u64) {
        self.changes += 1;
        if let Some(undo) = &mut self.undo {
            let before = self.table.words[word].load(Relaxed);
            if let Some(records) = &mut undo.chunks[word / CHUNK_WORDS] {
                records.push(((word % CHUNK_WORDS) as u32, before));
                undo.records += 1;
            }
        }
        self.table.words[word].store(value, Release);
    }

    pub(super) fn chunks(&self) -> u32 {
        self.table.words.len().div_ceil(CHUNK_WORDS) as u32
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn scrambled(number: u64) -> Digest {
        Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))
    }

    /// A reader who pauses between its two loads, while the writer moves items to and fro. Without the version
    /// it misses some: an item can leave the second bucket for the first just in between.
    #[test]
    fn a_reader_misses_nothing_while_items_move() {
        let plan = Plan::Segment { base_bits: 16, bucket_size: 4, base_buckets: 512, k: 0 };
        let mut writer = TableWriter::new(TableId(0), plan, 2_000);
        let residents: Vec<Digest> = (0..1_000).map(scrambled).collect();
        for &digest in &residents {
            writer.insert(digest, 0).unwrap();
        }
        let (table, done) = (writer.table.clone(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut missed = 0;
                for round in 0..hits() / residents.len() {
                    let pause = || (0..round % 64).for_each(|_| std::hint::spin_loop());
                    missed +=
                        residents.iter().filter(|digest| !table.contains_slowly(**digest, pause)).count();
                }
                done.store(true, Relaxed);
                missed
            });
            let mut next = 1_000;
            while !done.load(Relaxed) {
                // Up to 97 % full, where nearly every insert moves others, and back.
                let passing = (next..next + 980).map(scrambled);
                next += 980;
                let came: Vec<Digest> = passing.filter(|digest| writer.insert(*digest, 0).is_ok()).collect();
                for digest in came {
                    writer.remove(digest);
                }
            }
            assert_eq!(reader.join().unwrap(), 0, "items were missed");
        });
    }

    /// Hits that the reader checks; the long form wants 100 million.
    fn hits() -> usize {
        std::env::var("CUCKOOD_RACE_HITS").ok().and_then(|hits| hits.parse().ok()).unwrap_or(2_000_000)
    }
}
