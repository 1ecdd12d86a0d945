//! The writer's side of a table: it inserts by breadth-first search, removes, fills the undo log of a running snapshot, and copies the
//! table to a larger one.

use crate::chunk::{FrozenTable, TableId, Undo};
use crate::hash::Digest;
use crate::layout::{FIXED_SEARCH_MIN, GrowthRule};
use crate::place::{Placement, Probe};
use crate::plan::TablePlan;
use crate::slots::{Lanes, LiveTags, Shape};
use crate::table::{Kernel, StrictKind, Table, TableKind};
use std::cell::RefCell;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// The search found no path to a free slot. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoPath;

/// The effect of an insert.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stored {
    /// The item took a free slot.
    Free,
    /// It replaced an item of a forgotten step, which had this tag.
    Over(u64),
    /// Nothing was stored: both buckets are full of live colliding copies.
    Saturated,
}

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

thread_local! {
    /// The nodes of a search, reused by all tables of a thread.
    static NODES: RefCell<Vec<Node>> = const { RefCell::new(Vec::new()) };
}

/// Work that accompanies the changes of a table. Most tables have none, so a change checks for it once.
#[derive(Default)]
struct Watch {
    /// The undo logs of the running snapshot, and of images of this filter alone that are being taken.
    undos: Vec<Arc<Undo>>,
    /// The larger table that this one is copied to, and how many buckets were copied. It always equals what these split into.
    copy: Option<(Arc<Table>, u64)>,
}

impl Watch {
    /// Drops the undo logs that their snapshots have released.
    fn release_undos(&mut self) {
        self.undos.retain(|undo| Arc::strong_count(undo) > 1);
    }
}

/// The writer's side of a table. One thread owns it.
pub(crate) struct TableWriter {
    pub(crate) id: TableId,
    pub(crate) table: Arc<Table>,
    items: u64,
    /// Changes of words so far. A snapshot need not rewrite a table whose count is unchanged.
    pub(crate) changes: u64,
    /// Items that the table takes before it counts as full.
    limit: u64,
    max_search: u32,
    kernels: [&'static WriteKernel; 2],
    watch: Option<Box<Watch>>,
}

/// Frees the slots of forgotten items in these buckets, and reports each of their tags.
type FreeForgotten = fn(&mut TableWriter, Range<u64>, LiveTags, &mut dyn FnMut(u64));

/// How items are changed.
struct WriteKernel {
    insert: fn(&mut TableWriter, Digest, u64, LiveTags) -> Result<Stored, NoPath>,
    insert_free: fn(&mut TableWriter, Digest, u64, LiveTags) -> Option<Stored>,
    insert_many: fn(&mut TableWriter, &[Digest], u64, LiveTags, &mut Vec<Stored>),
    remove: fn(&mut TableWriter, Digest, LiveTags) -> Option<u64>,
    remove_many: fn(&mut TableWriter, &[Digest], &mut Vec<bool>),
    free_forgotten: FreeForgotten,
}

impl Kernel for WriteKernel {
    fn of<K: TableKind>() -> &'static Self {
        const {
            &Self {
                insert: TableWriter::insert_in::<K>,
                insert_free: TableWriter::insert_free_in::<K>,
                insert_many: TableWriter::insert_many_in::<K>,
                remove: TableWriter::remove_in::<K>,
                remove_many: TableWriter::remove_many_in::<K>,
                free_forgotten: TableWriter::free_forgotten_in::<K>,
            }
        }
    }
}

impl TableWriter {
    /// The writer of a table that is empty, or whose items are yet to be counted.
    pub(crate) fn new(id: TableId, table: impl Into<Arc<Table>>, max_search: u32) -> Self {
        let table = table.into();
        let max_search = max_search.max(FIXED_SEARCH_MIN);
        let limit = table.plan.limit(GrowthRule::default(), max_search);
        let kernels = Kernel::both(&table.plan);
        Self {
            id,
            items: 0,
            changes: 0,
            limit,
            max_search,
            kernels,
            watch: None,
            table,
        }
    }

    #[inline(always)]
    fn kernel(&self, live: LiveTags) -> &'static WriteKernel {
        self.kernels[usize::from(!live.all)]
    }

    pub(crate) fn plan(&self) -> &TablePlan {
        &self.table.plan
    }

    /// Items in it, forgotten and cleared ones included.
    pub(crate) fn items(&self) -> u64 {
        self.items
    }

    #[inline(always)]
    pub(crate) fn set_items(&mut self, items: u64) {
        self.items = items;
        self.table.set_items(items);
    }

    /// Remaining number of items before it counts as full. A table that is being copied takes more: its successor has space.
    pub(crate) fn room(&self) -> u64 {
        if self.copy().is_some() {
            u64::MAX
        } else {
            self.limit.saturating_sub(self.items)
        }
    }

    /// Sets the number of items with which the table counts as full.
    pub(crate) fn set_limit(&mut self, rule: GrowthRule) {
        self.limit = self.table.plan.limit(rule, self.max_search);
    }

    /// Inserts an item with this tag, unless both its buckets are full of colliding copies.
    #[inline(always)]
    pub(crate) fn insert(
        &mut self,
        digest: Digest,
        tag: u64,
        live: LiveTags,
    ) -> Result<Stored, NoPath> {
        (self.kernel(live).insert)(self, digest, tag, live)
    }

    fn insert_in<K: TableKind>(
        &mut self,
        digest: Digest,
        tag: u64,
        live: LiveTags,
    ) -> Result<Stored, NoPath> {
        let kind = K::of(&self.table, live);
        self.store(kind, kind.place().probe(digest), tag, live)
    }

    /// Inserts an item with this tag if one of its buckets has a vacant slot.
    pub(crate) fn insert_free(
        &mut self,
        digest: Digest,
        tag: u64,
        live: LiveTags,
    ) -> Option<Stored> {
        (self.kernel(live).insert_free)(self, digest, tag, live)
    }

    fn insert_free_in<K: TableKind>(
        &mut self,
        digest: Digest,
        tag: u64,
        live: LiveTags,
    ) -> Option<Stored> {
        let kind = K::of(&self.table, live);
        let probe = kind.place().probe(digest);
        let (bucket, slot) = kind.vacant_of_pair(&self.table.words, &probe)?;
        Some(self.fill_vacant(kind, bucket, slot, probe.value | tag))
    }

    /// [`Self::insert`] for many. It stops at the first item that finds no path, and reports the effects before it.
    pub(crate) fn insert_many(
        &mut self,
        digests: &[Digest],
        tag: u64,
        live: LiveTags,
        stored: &mut Vec<Stored>,
    ) {
        (self.kernel(live).insert_many)(self, digests, tag, live, stored);
    }

    fn insert_many_in<K: TableKind>(
        &mut self,
        digests: &[Digest],
        tag: u64,
        live: LiveTags,
        stored: &mut Vec<Stored>,
    ) {
        let table = self.table.clone();
        let kind = K::of(&table, live);
        table.for_each_group(kind, digests, |probes| {
            for probe in probes {
                match self.store(kind, *probe, tag, live) {
                    Ok(effect) => stored.push(effect),
                    Err(NoPath) => return ControlFlow::Break(()),
                }
            }
            ControlFlow::Continue(())
        });
    }

    /// Removes the newest live copy of an item, if there is one, and returns its tag.
    #[inline(always)]
    pub(crate) fn remove(&mut self, digest: Digest, live: LiveTags) -> Option<u64> {
        (self.kernel(live).remove)(self, digest, live)
    }

    fn remove_in<K: TableKind>(&mut self, digest: Digest, live: LiveTags) -> Option<u64> {
        let kind = K::of(&self.table, live);
        let probe = kind.place().probe(digest);
        let found = if K::Place::AGES {
            self.newest(kind, &probe, live)
        } else {
            kind.locate(&self.table.words, &probe)
        };
        self.take(kind, found)
    }

    /// [`Self::remove`] for many without tags. It reports for each whether there was a copy.
    pub(crate) fn remove_many(&mut self, digests: &[Digest], removed: &mut Vec<bool>) {
        (self.kernels[0].remove_many)(self, digests, removed);
    }

    fn remove_many_in<K: TableKind>(&mut self, digests: &[Digest], removed: &mut Vec<bool>) {
        if K::Place::AGES {
            return;
        }
        let table = self.table.clone();
        let kind = K::of(&table, LiveTags::NONE);
        table.for_each_group(kind, digests, |probes| {
            removed.extend(
                probes
                    .iter()
                    .map(|probe| self.take(kind, kind.locate(&table.words, probe)).is_some()),
            );
            ControlFlow::Continue(())
        });
    }

    /// Frees a slot, and returns the tag that it had.
    #[inline(always)]
    fn take<K: TableKind>(&mut self, kind: K, found: Option<(u64, u32, u64)>) -> Option<u64> {
        let (bucket, slot, held) = found?;
        self.set_items(self.items - 1);
        let tag = if K::Place::AGES { self.tag(held) } else { 0 };
        self.change_slot(kind, bucket, slot, held, 0);
        Some(tag)
    }

    #[inline(always)]
    fn tag(&self, value: u64) -> u64 {
        value & ((1 << self.table.plan.tag_bits) - 1)
    }

    /// The live copy of an item that was added last: the bucket, the slot and its value.
    fn newest<K: TableKind>(
        &self,
        kind: K,
        probe: &Probe,
        live: LiveTags,
    ) -> Option<(u64, u32, u64)> {
        let lanes = kind.lanes();
        let mut newest: Option<(u64, (u64, u32, u64))> = None;
        for bucket in probe.buckets {
            for part in 0..lanes.parts() {
                let bits = kind.part(&self.table.words, bucket, part);
                let mut marks = kind.shape().held(bits, probe.value);
                while marks != 0 {
                    let lane = lanes.lowest(marks);
                    let value = (bits >> (lane * lanes.bits)) & lanes.slot_mask();
                    let order = self.tag(self.tag(value).wrapping_sub(u64::from(live.first)));
                    if newest.is_none_or(|(newest, _)| order > newest) {
                        newest = Some((order, (bucket, part * lanes.part_slots + lane, value)));
                    }
                    marks &= marks - 1;
                }
            }
        }
        newest.map(|(_, copy)| copy)
    }

    /// Frees the slots in these buckets that hold items of forgotten steps, and reports the tag of each.
    pub(crate) fn free_forgotten(
        &mut self,
        buckets: Range<u64>,
        live: LiveTags,
        report: &mut dyn FnMut(u64),
    ) {
        (self.kernels[1].free_forgotten)(self, buckets, live, report);
    }

    fn free_forgotten_in<K: TableKind>(
        &mut self,
        buckets: Range<u64>,
        live: LiveTags,
        report: &mut dyn FnMut(u64),
    ) {
        if !K::Shape::REUSES {
            return;
        }
        let kind = K::of(&self.table, live);
        let lanes = kind.lanes();
        for bucket in buckets {
            for part in 0..lanes.parts() {
                let bits = kind.part(&self.table.words, bucket, part);
                let mut marks = kind.shape().vacant(bits) & !lanes.zero(bits);
                while marks != 0 {
                    let lane = lanes.lowest(marks);
                    let value = (bits >> (lane * lanes.bits)) & lanes.slot_mask();
                    self.change_slot(kind, bucket, part * lanes.part_slots + lane, value, 0);
                    self.set_items(self.items - 1);
                    report(self.tag(value));
                    marks &= marks - 1;
                }
            }
        }
    }

    /// Stores an item with this tag unless both its buckets are full of colliding copies.
    #[inline(always)]
    fn store<K: TableKind>(
        &mut self,
        kind: K,
        probe: Probe,
        tag: u64,
        live: LiveTags,
    ) -> Result<Stored, NoPath> {
        let value = probe.value | tag;
        let Some((bucket, slot)) = kind.vacant_of_pair(&self.table.words, &probe) else {
            return self.relocate::<K>(probe.buckets[1], value, live);
        };
        Ok(self.fill_vacant(kind, bucket, slot, value))
    }

    /// Stores a value in a vacant slot.
    #[inline(always)]
    fn fill_vacant<K: TableKind>(&mut self, kind: K, bucket: u64, slot: u32, value: u64) -> Stored {
        let replaced = if K::Shape::REUSES {
            kind.slot(&self.table.words, bucket, slot)
        } else {
            0
        };
        let stored = self.note_stored(replaced);
        self.change_slot(kind, bucket, slot, replaced, value);
        stored
    }

    #[inline(always)]
    fn note_stored(&mut self, replaced: u64) -> Stored {
        if replaced != 0 {
            return Stored::Over(self.tag(replaced));
        }
        self.set_items(self.items + 1);
        Stored::Free
    }

    /// Frees a slot for an item along the shortest path to a vacant slot, unless its buckets, of which the second is given, are full of
    /// colliding copies. It is a separate function, and makes the kind again, so that the usual case needs no stack.
    #[inline(never)]
    fn relocate<K: TableKind>(
        &mut self,
        bucket: u64,
        value: u64,
        live: LiveTags,
    ) -> Result<Stored, NoPath> {
        let kind = K::of(&self.table, live);
        let probe = Probe {
            value,
            buckets: [kind.place().other(bucket, value), bucket],
        };
        if kind.copies(&self.table.words, &probe) == 2 * kind.lanes().slots {
            return Ok(Stored::Saturated);
        }
        let mut nodes = NODES.take();
        let stored = match self.search(kind, &probe, &mut nodes) {
            Some((node, free)) => Ok(self.move_along(kind, &probe, &nodes, node, free)),
            None => Err(NoPath),
        };
        NODES.set(nodes);
        stored
    }

    /// Moves the items of a path. The last item moves first, into the vacant slot; then each moves into the slot that its successor has
    /// left. So every item is always in one of its two buckets.
    fn move_along<K: TableKind>(
        &mut self,
        kind: K,
        probe: &Probe,
        nodes: &[Node],
        mut node: Node,
        mut free: u32,
    ) -> Stored {
        let replaced = kind.slot(&self.table.words, node.bucket, free);
        let mut there = replaced;
        self.table.step_version();
        while node.parent != ROOT {
            let parent = nodes[node.parent as usize];
            let moving = kind.slot(&self.table.words, parent.bucket, node.slot);
            self.change_slot(kind, node.bucket, free, there, moving);
            (free, there, node) = (node.slot, moving, parent);
        }
        self.change_slot(kind, node.bucket, free, there, probe.value);
        self.table.step_version();
        self.note_stored(replaced)
    }

    /// Finds the shortest path to a vacant slot by breadth-first search. Returns its last node, and the vacant slot of that bucket.
    ///
    /// All buckets that a node leads to are prefetched before the first one is looked at. A node is expanded only once no bucket found
    /// so far has a vacant slot: most searches end early, and the content of a vacant slot is never moved.
    fn search<K: TableKind>(
        &self,
        kind: K,
        probe: &Probe,
        nodes: &mut Vec<Node>,
    ) -> Option<(Node, u32)> {
        let lanes = kind.lanes();
        nodes.clear();
        nodes.extend(probe.buckets.map(|bucket| Node {
            bucket,
            parent: ROOT,
            slot: 0,
        }));
        let mut next = 0;
        while let Some(&node) = nodes.get(next) {
            let first = nodes.len();
            for slot in 0..lanes.slots {
                let other = kind
                    .place()
                    .other(node.bucket, kind.slot(&self.table.words, node.bucket, slot));
                if nodes.len() <= self.max_search as usize && !on_path(nodes, next, other) {
                    kind.prefetch_bucket(&self.table.words, other);
                    nodes.push(Node {
                        bucket: other,
                        parent: next as u32,
                        slot,
                    });
                }
            }
            for &node in &nodes[first..] {
                if let Some(free) = kind.vacant(&self.table.words, node.bucket) {
                    return Some((node, free));
                }
            }
            next += 1;
        }
        None
    }

    /// Inserts an item into a strict table with this tag. If it is there already, returns its slot value instead.
    pub(crate) fn insert_strict(
        &mut self,
        digest: Digest,
        tag: u64,
    ) -> Result<Option<u64>, NoPath> {
        let kind = self.table.strict_kind();
        let probe = kind.place().probe(digest);
        let value = probe.value | tag;
        let stored = match self.table.get_and_vacant(&probe) {
            (Some(held), _) => return Ok(Some(held)),
            (None, Some((bucket, slot))) => Ok(self.fill_vacant(kind, bucket, slot, value)),
            (None, None) => self.relocate::<StrictKind>(probe.buckets[1], value, LiveTags::NONE),
        };
        stored.map(|_| None)
    }

    /// Changes the tag of an item of a strict table in place, or removes the item.
    pub(crate) fn set_tag(&mut self, digest: Digest, tag: Option<u64>) {
        let kind = self.table.strict_kind();
        let probe = kind.place().probe(digest);
        let Some(held) = self.table.get(digest) else {
            return;
        };
        // The complete value is in one slot only.
        let Some(found) = kind.locate(
            &self.table.words,
            &Probe {
                value: held,
                ..probe
            },
        ) else {
            return;
        };
        match tag {
            Some(tag) => self.change_slot(kind, found.0, found.1, held, probe.value | tag),
            None => _ = self.take(kind, Some(found)),
        }
    }

    /// Replaces the value `held` of a slot by another.
    ///
    /// Callers do all else before: nothing then has to outlive the call for watched tables, and the usual case needs no stack.
    #[inline(always)]
    fn change_slot<K: TableKind>(
        &mut self,
        kind: K,
        bucket: u64,
        slot: u32,
        held: u64,
        value: u64,
    ) {
        debug_assert_eq!(kind.slot(&self.table.words, bucket, slot), held);
        if self.watch.is_some() {
            self.change_watched_slot(bucket, slot, held, value);
        } else {
            self.change_words(kind.lanes(), bucket, slot, held ^ value);
        }
    }

    /// [`Self::change_slot`] of a table that is copied or in a snapshot.
    #[inline(never)]
    fn change_watched_slot(&mut self, bucket: u64, slot: u32, held: u64, value: u64) {
        let lanes = self.table.lanes;
        let (word, shift) = lanes.position(bucket, slot);
        self.keep_for_undo(word);
        if shift + lanes.bits > 64 {
            self.keep_for_undo(word + 1);
        }
        self.change_words(lanes, bucket, slot, held ^ value);
        self.after_watched_change(bucket, held, value);
    }

    /// Changes the words of a slot, which may start in one and end in the next.
    #[inline(always)]
    fn change_words(&mut self, lanes: Lanes, bucket: u64, slot: u32, change: u64) {
        let (word, shift) = lanes.position(bucket, slot);
        self.change_word(word, change << shift);
        if lanes.straddles() && shift + lanes.bits > 64 {
            self.change_word(word + 1, change >> (64 - shift));
        }
    }

    #[inline(always)]
    fn change_word(&mut self, word: usize, change: u64) {
        self.changes = self.changes.wrapping_add(1);
        let word = &self.table.words[word];
        word.store(word.load(Relaxed) ^ change, Release);
    }

    /// Adds a word's value to the undo logs, before it is changed.
    fn keep_for_undo(&mut self, word: usize) {
        let Some(watch) = &mut self.watch else { return };
        let before = self.table.words[word].load(Relaxed);
        watch.undos.iter().for_each(|undo| undo.push(word, before));
        watch.release_undos();
    }

    /// Repeats the change of a bucket that was already copied. Stops watching a table that is neither copied nor in a snapshot.
    fn after_watched_change(&mut self, bucket: u64, held: u64, value: u64) {
        let Some(watch) = &self.watch else { return };
        if watch.copy.is_none() && watch.undos.is_empty() {
            self.watch = None;
        } else if let Some((to, done)) = &watch.copy
            && bucket < *done
        {
            [held, value]
                .into_iter()
                .filter(|value| *value != 0)
                .for_each(|value| self.table.split_again(to, bucket, value));
        }
    }

    /// Starts to copy the table to a larger one. This many buckets count as copied: an image fills them in later.
    pub(crate) fn start_copy(&mut self, to: Table, copied: u64) {
        self.watch.get_or_insert_default().copy = Some((Arc::new(to), copied));
    }

    /// The plan of the table that this one is copied to, and how many buckets were copied.
    pub(crate) fn copy(&self) -> Option<(TablePlan, u64)> {
        let (to, done) = self.watch.as_ref()?.copy.as_ref()?;
        Some((to.plan, *done))
    }

    pub(crate) fn drop_copy(&mut self) -> Option<Arc<Table>> {
        let watch = self.watch.as_mut()?;
        let copy = watch.copy.take();
        if watch.undos.is_empty() {
            self.watch = None;
        }
        copy.map(|(to, _)| to)
    }

    /// Copies this many more buckets. Returns the larger table once it is complete.
    pub(crate) fn copy_on(&mut self, buckets: u64) -> Option<Arc<Table>> {
        let (to, done) = self.watch.as_mut()?.copy.as_mut()?;
        let last = self.table.plan.buckets().min(done.saturating_add(buckets));
        self.table.split_into(to, *done..last);
        *done = last;
        if last < self.table.plan.buckets() {
            return None;
        }
        self.drop_copy()
    }

    /// Copies the buckets filled from an image, up to the copied ones of the original.
    pub(crate) fn copy_filled(&mut self, buckets: Range<u64>) {
        if let Some(watch) = &self.watch
            && let Some((to, done)) = &watch.copy
        {
            self.table
                .split_into(to, buckets.start.min(*done)..buckets.end.min(*done));
        }
    }

    /// Sets words of a table that is being filled, in which they are zero so far.
    pub(crate) fn fill(&mut self, first: usize, words: &[[u8; 8]]) {
        for (word, bytes) in (first..).zip(words) {
            let value = u64::from_le_bytes(*bytes);
            if value != 0 {
                self.keep_for_undo(word);
                self.change_word(word, value);
            }
        }
    }

    /// Returns whether a snapshot needs the table.
    pub(crate) fn is_frozen(&self) -> bool {
        let mut undos = self.watch.iter().flat_map(|watch| &watch.undos);
        undos.any(|undo| Arc::strong_count(undo) > 1)
    }

    /// Freezes the table for a snapshot. `copied` counts the bytes of the undo log.
    pub(crate) fn freeze(&mut self, copied: &Arc<AtomicU64>) -> FrozenTable {
        let (frozen, undo) =
            FrozenTable::new(self.id, self.changes, self.table.clone(), copied.clone());
        let watch = self.watch.get_or_insert_default();
        watch.release_undos();
        watch.undos.push(undo);
        frozen
    }
}

/// Returns whether a bucket is on the path to a node: a path must not cross itself.
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
