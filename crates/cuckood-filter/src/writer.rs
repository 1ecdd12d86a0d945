//! The writer's side of a table: it inserts by breadth-first search, removes, and fills the undo log of a running snapshot.

use super::codec::TableId;
use super::frozen::{FrozenTable, Undo};
use super::hash::Digest;
use super::kind::{TableKind, with_any_kind, with_kind};
use super::place::{Place, Probe};
use super::plan::TablePlan;
use super::slots::{OwnShape, Shape};
use super::table::Table;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// The search found no path to a free slot. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NoPath;

/// A node of the search: a bucket that an item could move to.
#[derive(Clone, Copy)]
struct Node {
    bucket: u64,
    /// The node whose item would move here; [`ROOT`] for the two buckets of the item to be inserted.
    parent: u32,
    /// The slot of the parent's bucket that the item would leave.
    slot: u32,
}

const ROOT: u32 = u32::MAX;

/// The writer's side of a table. One thread owns it.
pub(super) struct TableWriter {
    pub(super) id: TableId,
    pub(super) table: Arc<Table>,
    /// Changes of words so far. A snapshot need not write a table again whose count is unchanged.
    changes: u64,
    max_search: u32,
    /// The undo log of the running snapshot, if there is one.
    undo: Option<Arc<Undo>>,
    nodes: Vec<Node>,
    /// Items that the table takes before it counts as full. Kept here because every insert asks for the room that is left.
    fill_limit: u64,
    /// [`Self::insert_unless_saturated_in`] and [`Self::remove_in`] compiled for this kind of table, chosen once.
    insert_unless_saturated: Insert,
    remove: Remove,
}

type Insert = fn(&mut TableWriter, Digest) -> Result<bool, NoPath>;
type Remove = fn(&mut TableWriter, Digest) -> Option<u64>;

impl TableWriter {
    pub(super) fn new(id: TableId, plan: TablePlan, max_search: u32) -> Self {
        Self::resume(id, Table::new(plan), 0, max_search)
    }

    /// The writer of a restored table.
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

    /// Items that it takes before it counts as full.
    pub(super) fn capacity(&self) -> u64 {
        self.fill_limit
    }

    /// Items that it takes from now on before it counts as full.
    pub(super) fn room(&self) -> u64 {
        self.fill_limit.saturating_sub(self.items())
    }

    /// Prefetches the cache lines of an item's buckets.
    #[inline]
    pub(super) fn prefetch(&self, digest: Digest) {
        self.table.prefetch_item(digest);
    }

    /// Inserts an item, with these bits of state.
    #[inline]
    pub(super) fn insert(&mut self, digest: Digest, state: u64) -> Result<(), NoPath> {
        with_kind!(self.table.plan, S, P => self.insert_in::<S, P>(digest, state))
    }

    #[inline(never)]
    fn insert_in<S: OwnShape, P: Place>(&mut self, digest: Digest, state: u64) -> Result<(), NoPath> {
        let kind = self.table.kind::<S, P>();
        self.place(kind, &kind.place.probe(digest).with_state(state))
    }

    /// Inserts an item into a strict table, with these bits of state. If it is there already, returns its slot value instead.
    pub(super) fn insert_if_absent(&mut self, digest: Digest, state: u64) -> Result<Option<u64>, NoPath> {
        let kind = self.table.strict_kind();
        let probe = kind.place.probe(digest).with_state(state);
        match self.table.get_and_vacant(&probe) {
            (None, vacant) => self.place_at(kind, &probe, vacant).map(|()| None),
            (held, _) => Ok(held),
        }
    }

    /// Inserts an item unless both its buckets are full of copies that look alike. Returns whether it did.
    #[inline(always)]
    pub(super) fn insert_unless_saturated(&mut self, digest: Digest) -> Result<bool, NoPath> {
        (self.insert_unless_saturated)(self, digest)
    }

    fn insert_unless_saturated_in<S: OwnShape, P: Place>(&mut self, digest: Digest) -> Result<bool, NoPath> {
        let kind = self.table.kind::<S, P>();
        self.place_unless_saturated(kind, kind.place.probe(digest))
    }

    /// [`Self::insert_unless_saturated`] for many. It stops at the first item that finds no path, and reports the outcomes before it.
    pub(super) fn insert_many(&mut self, digests: &[Digest], report: impl FnMut(bool)) {
        with_kind!(self.table.plan, S, P => self.insert_many_in::<S, P>(digests, report));
    }

    #[inline(never)]
    fn insert_many_in<S: OwnShape, P: Place>(&mut self, digests: &[Digest], mut report: impl FnMut(bool)) {
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

    /// [`Self::remove`] for many. It reports for each whether it was there.
    pub(super) fn remove_many(&mut self, digests: &[Digest], report: impl FnMut(bool)) {
        with_kind!(self.table.plan, S, P => self.remove_many_in::<S, P>(digests, report));
    }

    #[inline(never)]
    fn remove_many_in<S: OwnShape, P: Place>(&mut self, digests: &[Digest], mut report: impl FnMut(bool)) {
        let table = self.table.clone();
        let kind = table.kind::<S, P>();
        table.for_each_group(kind, digests, |probes| {
            probes.iter().for_each(|probe| report(self.take(kind, probe).is_some()));
            ControlFlow::Continue(())
        });
    }

    #[inline(always)]
    fn place_unless_saturated<S: OwnShape, P: Place>(
        &mut self,
        kind: TableKind<S, P>,
        probe: Probe,
    ) -> Result<bool, NoPath> {
        let Some((bucket, slot, value)) = self.table.vacant_of_pair(kind, &probe) else {
            return self.relocate_unless_saturated::<S, P>(probe.buckets[0], probe.values[0]);
        };
        self.change_slot(kind, bucket, slot, 0, value);
        self.table.set_items(self.items() + 1);
        Ok(true)
    }

    #[inline(never)]
    fn relocate_unless_saturated<S: OwnShape, P: Place>(
        &mut self,
        bucket: u64,
        value: u64,
    ) -> Result<bool, NoPath> {
        let kind = self.table.kind::<S, P>();
        let probe = kind.place.probe_from(bucket, value);
        if self.table.copies(kind, &probe) == 2 * kind.shape.lanes().slots {
            return Ok(false);
        }
        self.relocate(kind, probe)?;
        self.table.set_items(self.items() + 1);
        Ok(true)
    }

    /// Inserts a slot value from another table; `bucket` is one of its two buckets in this one.
    pub(super) fn insert_value(&mut self, bucket: u64, value: u64) -> Result<(), NoPath> {
        with_any_kind!(self.table.plan, S, P => self.insert_value_in::<S, P>(bucket, value))
    }

    #[inline(never)]
    fn insert_value_in<S: OwnShape, P: Place>(&mut self, bucket: u64, value: u64) -> Result<(), NoPath> {
        let kind = self.table.kind::<S, P>();
        self.place(kind, &kind.place.probe_from(bucket, value))
    }

    /// Removes one copy of an item, if there is one, and returns its slot value.
    #[inline(always)]
    pub(super) fn remove(&mut self, digest: Digest) -> Option<u64> {
        (self.remove)(self, digest)
    }

    fn remove_in<S: OwnShape, P: Place>(&mut self, digest: Digest) -> Option<u64> {
        let kind = self.table.kind::<S, P>();
        self.take(kind, &kind.place.probe(digest))
    }

    /// Changes the state of an item of a strict table in place, and returns the slot value from before.
    pub(super) fn set_state(&mut self, digest: Digest, state: u64) -> Option<u64> {
        let kind = self.table.strict_kind();
        let probe = kind.place.probe(digest);
        let (bucket, slot, held) = self.table.locate(kind, &probe)?;
        self.change_slot(kind, bucket, slot, held, probe.values[0] | state);
        Some(held)
    }

    /// Frees a slot.
    pub(super) fn free_slot(&mut self, bucket: u64, slot: u32) {
        with_any_kind!(self.table.plan, S, P => self.free_slot_in::<S, P>(bucket, slot));
    }

    #[inline(never)]
    fn free_slot_in<S: OwnShape, P: Place>(&mut self, bucket: u64, slot: u32) {
        let kind = self.table.kind::<S, P>();
        let held = self.table.slot(kind, bucket, slot);
        self.change_slot(kind, bucket, slot, held, 0);
        self.table.set_items(self.items() - 1);
    }

    #[inline(always)]
    fn take<S: Shape, P: Place>(&mut self, kind: TableKind<S, P>, probe: &Probe) -> Option<u64> {
        let (bucket, slot, held) = self.table.locate(kind, probe)?;
        self.change_slot(kind, bucket, slot, held, 0);
        self.table.set_items(self.items() - 1);
        Some(held)
    }

    #[inline(always)]
    fn place<S: Shape, P: Place>(&mut self, kind: TableKind<S, P>, probe: &Probe) -> Result<(), NoPath> {
        self.place_at(kind, probe, self.table.vacant_of_pair(kind, probe))
    }

    /// [`Self::place`] where the table has said what [`Table::vacant_of_pair`] says.
    #[inline(always)]
    fn place_at<S: Shape, P: Place>(
        &mut self,
        kind: TableKind<S, P>,
        probe: &Probe,
        vacant: Option<(u64, u32, u64)>,
    ) -> Result<(), NoPath> {
        if let Some((bucket, slot, value)) = vacant {
            self.change_slot(kind, bucket, slot, 0, value);
        } else {
            self.relocate(kind, *probe)?;
        }
        self.table.set_items(self.items() + 1);
        Ok(())
    }

    /// Makes room for an item along the shortest path to a vacant slot. The last item of the path moves first, into the vacant slot; then
    /// each moves into the slot that the one behind it has left. So every item is always in one of its two buckets. Returns what was in
    /// the vacant slot.
    #[inline(never)]
    pub(super) fn relocate<S: Shape, P: Place>(
        &mut self,
        kind: TableKind<S, P>,
        probe: Probe,
    ) -> Result<u64, NoPath> {
        let mut nodes = std::mem::take(&mut self.nodes);
        let (mut node, mut free) = match self.search(kind, &probe, &mut nodes) {
            Some(found) => found,
            None => {
                self.nodes = nodes;
                return Err(NoPath);
            }
        };
        let replaced = self.table.slot(kind, node.bucket, free);
        let mut there = replaced;
        self.table.step_version();
        while node.parent != ROOT {
            let parent = nodes[node.parent as usize];
            let moving = self.table.slot(kind, parent.bucket, node.slot);
            let (_, moved) = kind.place.other(parent.bucket, moving);
            self.change_slot(kind, node.bucket, free, there, moved);
            (free, there, node) = (node.slot, moving, parent);
        }
        let root = usize::from(node.bucket != probe.buckets[0]);
        self.change_slot(kind, node.bucket, free, there, probe.values[root]);
        self.table.step_version();
        self.nodes = nodes;
        Ok(replaced)
    }

    /// Finds the shortest path to a vacant slot by breadth-first search. Returns its last node, and the vacant slot of that bucket.
    ///
    /// All buckets that a node leads to are prefetched before the first one is looked at. A node is expanded only once no bucket found
    /// so far has a vacant slot: most searches end early, and what lies in a vacant slot is never moved.
    fn search<S: Shape, P: Place>(
        &self,
        kind: TableKind<S, P>,
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
                let (other, _) = kind.place.other(node.bucket, self.table.slot(kind, node.bucket, slot));
                if nodes.len() <= self.max_search as usize && !on_path(nodes, next, other) {
                    self.table.prefetch_bucket(kind, other);
                    nodes.push(Node { bucket: other, parent: next as u32, slot });
                }
            }
            for &node in &nodes[first..] {
                if let Some(free) = self.table.vacant(kind, node.bucket) {
                    return Some((node, free));
                }
            }
            next += 1;
        }
        None
    }

    /// Replaces the value `held` of a slot by another. A slot may begin in one word and end in the next.
    #[inline(always)]
    pub(super) fn change_slot<S: Shape, P: Place>(
        &mut self,
        kind: TableKind<S, P>,
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
        self.changes = self.changes.wrapping_add(1);
        if self.undo.is_some() {
            self.keep_for_undo(word, before);
        }
        self.table.words[word].store(value, Release);
    }

    /// Adds a word's old value to the undo log. It is a function of its own so that the usual case needs no stack.
    #[inline(never)]
    fn keep_for_undo(&mut self, word: usize, before: u64) {
        if let Some(undo) = &self.undo {
            undo.push(word, before);
            if Arc::strong_count(undo) == 1 {
                // The snapshot has let go of it.
                self.undo = None;
            }
        }
    }

    /// Sets words of a table that is being filled, in which they are zero so far.
    pub(super) fn fill(&mut self, first: usize, words: &[[u8; 8]]) {
        for (word, bytes) in (first..).zip(words) {
            let value = u64::from_le_bytes(*bytes);
            if value != 0 {
                self.set_word(word, 0, value);
            }
        }
    }

    /// Whether a snapshot needs the table.
    pub(super) fn is_frozen(&self) -> bool {
        self.undo.as_ref().is_some_and(|undo| Arc::strong_count(undo) > 1)
    }

    /// Freezes the table for a snapshot. `copied` counts the bytes of the undo log.
    pub(super) fn freeze(&mut self, copied: &Arc<AtomicU64>) -> FrozenTable {
        let (frozen, undo) = FrozenTable::new(self.id, self.changes, self.table.clone(), copied.clone());
        self.undo = Some(undo);
        frozen
    }
}

/// Whether a bucket lies on the path to a node: a path must not cross itself.
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
