//! How the items of strict filters move from table to table, a few with every change, so that no single one pays for all.
//!
//! A filter whose table is full gets a second one, twice as large, and one whose capacity is raised gets one that is large enough. All
//! tables are emptied into the newest, the oldest first. While an item moves it is in both tables for a moment, and always in at
//! least one.
//!
//! A filter that is cleared gets a new table too. From then on, what is available in the others is gone: no look-up takes it, and it is
//! freed when its turn comes. What is held or redeemed is still there, and moves to the new table as it would for growth.

use super::hash::Digest;
use super::insert::Full;
use super::layout::{BUCKETS_MAX, Growth, Layout};
use super::memory::MemoryNeed;
use super::place::stored_digest;
use super::sizing::sure_strict_items;
use super::slot_state::{STATE_MASK, SlotState, StateCounts};
use super::strict::{StrictFilter, TABLES_MANY, TABLES_MAX, plan, tables_up_to};
use super::strict_view::state_in;
use super::writer::{NoPath, TableWriter};
use std::sync::atomic::Ordering::Relaxed;

/// Buckets of the oldest table whose items every change moves to the newest one. After growth the move is over long before that one
/// is full: a quarter of a bucket with every change would be enough.
const BUCKETS_MOVED: u64 = 4;

/// Tables of fewer buckets are moved all at once.
const BUCKETS_AT_ONCE: u64 = 1 << 10;

impl StrictFilter {
    /// Removes all available items, and shrinks to a table that the others fit into. Returns how many were removed.
    pub fn clear(&mut self) -> u64 {
        let StateCounts { available, held, redeemed } = self.counts();
        let (used, buckets) = (held + redeemed, self.set.first.buckets);
        if available == 0 && self.newest_buckets() <= buckets_for(used, buckets) {
            return 0;
        }
        if used == 0 {
            self.begin_anew(buckets);
        } else if self.is_cleared_at_once() {
            // If they don't fit into it, larger tables are tried.
            if self.rebuild(0, buckets, |state| state != SlotState::Available).is_err() {
                self.remove_available();
            }
        } else {
            self.make_room_for_table();
            self.set.put_newest(plan(buckets_for(used, buckets)));
            self.set.clear_all_but_newest();
            self.shared.staying.store(used, Relaxed);
            self.publish();
        }
        available
    }

    /// The memory that [`Self::clear`] asks for. It counts towards the limit as far as the new table is larger than the others.
    pub fn clearing(&self) -> MemoryNeed {
        let StateCounts { held, redeemed, .. } = self.counts();
        let (used, buckets) = (held + redeemed, self.set.first.buckets);
        if used == 0 {
            return plan(buckets).memory().passing();
        }
        if self.is_cleared_at_once() {
            return tables_up_to(used, buckets).passing();
        }
        let table = plan(buckets_for(used, buckets));
        table.memory().counting(self.set.growth_when_cleared(table))
    }

    /// Removes all available items one by one.
    fn remove_available(&mut self) {
        let mut leaving = Vec::new();
        self.for_each(|digest, state| {
            if state == SlotState::Available {
                leaving.push(digest);
            }
        });
        self.remove_many(&leaving);
    }

    /// Makes room for as many items as a filter of this layout begins with.
    ///
    /// # Errors
    /// [`Full`] if no table can be so large. Then nothing has changed.
    pub fn raise(&mut self, first: Layout) -> Result<(), Full> {
        if first.buckets > self.newest_buckets() {
            if self.items() == 0 && first.buckets <= BUCKETS_MAX {
                self.begin_anew(first.buckets);
            } else {
                self.enlarge(first.buckets)?;
            }
        }
        self.set.first = first;
        Ok(())
    }

    /// The memory that [`Self::raise`] asks for.
    ///
    /// # Errors
    /// [`Full`] as for [`Self::raise`].
    pub fn raising(&self, first: &Layout) -> Result<MemoryNeed, Full> {
        match first.buckets {
            ..=BUCKETS_MAX if first.buckets <= self.newest_buckets() => Ok(MemoryNeed::default()),
            ..=BUCKETS_MAX if self.is_moved_at_once() => Ok(tables_up_to(self.items(), first.buckets)),
            ..=BUCKETS_MAX => Ok(plan(first.buckets).memory()),
            _ => Err(Full),
        }
    }

    /// Adds a table of twice the size. A filter of fixed size gets none: while its items move, it is full.
    pub(super) fn grow(&mut self) -> Result<(), Full> {
        match self.set.growth {
            Growth::Auto => self.enlarge(self.newest_buckets() * 2),
            Growth::Fixed => Err(Full),
        }
    }

    /// Adds a table of so many buckets. Later changes move the items there.
    fn enlarge(&mut self, buckets: u64) -> Result<(), Full> {
        if buckets > BUCKETS_MAX {
            return Err(Full);
        }
        if self.is_moved_at_once() {
            return self.rebuild(self.set.cleared, buckets, |_| true);
        }
        self.make_room_for_table();
        self.set.put_newest(plan(buckets));
        self.publish();
        Ok(())
    }

    /// Empties the oldest table at once if there are too many. That happens only if a filter is cleared or raised again and again though
    /// it [has many](Self::has_many_tables).
    fn make_room_for_table(&mut self) {
        while self.set.tables.len() >= TABLES_MAX {
            // Piece by piece, for the items of a piece are held in memory.
            self.move_buckets(BUCKETS_AT_ONCE);
        }
    }

    fn begin_anew(&mut self, buckets: u64) {
        let table = self.set.make(plan(buckets));
        self.set.replace_all(table);
        self.shared.staying.store(0, Relaxed);
        self.publish();
    }

    /// Whether all tables together are small.
    fn is_cleared_at_once(&self) -> bool {
        buckets(&self.set.tables) < BUCKETS_AT_ONCE
    }

    /// Whether the tables that were not cleared are small.
    fn is_moved_at_once(&self) -> bool {
        buckets(&self.set.tables[self.set.cleared..]) < BUCKETS_AT_ONCE
    }

    pub(super) fn newest_buckets(&self) -> u64 {
        self.set.tables.last().map_or(0, |newest| newest.table.plan.buckets())
    }

    /// Whether so many tables are still to be emptied that the filter should get no other one by being cleared or raised. If it gets
    /// one all the same, that may take as long as to empty a table.
    pub fn has_many_tables(&self) -> bool {
        self.set.tables.len() >= TABLES_MANY
    }

    /// Whether items are moving to the newest table.
    pub fn is_moving(&self) -> bool {
        self.set.tables.len() > 1
    }

    /// Items that have still to be moved to the newest table.
    pub(super) fn waiting(&self) -> u64 {
        let Some(newest) = self.set.tables.last().filter(|_| self.is_moving()) else { return 0 };
        self.items() - newest.items()
    }

    /// Goes on with a move, because of a change.
    #[inline]
    pub(super) fn move_on(&mut self) {
        if self.is_moving() {
            self.move_buckets(BUCKETS_MOVED);
        }
    }

    /// Goes on with a move: empties so many more buckets.
    pub fn move_items(&mut self, buckets: u64) {
        self.move_buckets(buckets);
    }

    /// Moves the items of so many more buckets of the oldest table to the newest one.
    #[inline(never)]
    fn move_buckets(&mut self, buckets: u64) {
        let is_cleared = self.set.cleared > 0;
        let [oldest, .., newest] = &mut self.set.tables[..] else { return };
        let id = oldest.id;
        let last = oldest.table.plan.buckets().min(self.set.drained_buckets.saturating_add(buckets));
        let mut moving = Vec::new();
        oldest.table.for_each_in(self.set.drained_buckets..last, |bucket, slot, value| {
            moving.push((bucket, slot, value))
        });
        let mut moved = 0;
        for (bucket, slot, value) in moving {
            let is_gone = is_cleared && SlotState::of(value) == SlotState::Available;
            if !is_gone && newest.insert(stored_digest(value), value & STATE_MASK).is_err() {
                // This hardly ever happens in a table that is not full. Then all items move at once to a new one.
                let buckets = newest.table.plan.buckets();
                self.note_moved(moved);
                // If there is no such table, what is left stays where it is found, and the next change tries again.
                let _ = self.rebuild(0, buckets * 2, |_| true);
                return;
            }
            oldest.free_slot(bucket, slot);
            moved += u64::from(is_cleared && !is_gone);
        }
        self.set.drained_buckets = last;
        let is_empty = last == oldest.table.plan.buckets();
        self.note_moved(moved);
        // It may be dropped already, with all that were cleared.
        if is_empty && self.set.tables[0].id == id {
            self.set.drop_drained(0);
            self.publish();
        }
    }

    /// Changes the state of an item of a filter that was cleared, and returns the state from before. If the item is available now, it
    /// moves to the newest table: in another one it would count as cleared. If no table has room for it, it keeps its state.
    pub(super) fn set_in_cleared(&mut self, digest: Digest, state: SlotState) -> Option<SlotState> {
        let (table, before) = self.locate(digest)?;
        if table >= self.set.cleared || state != SlotState::Available {
            self.set.tables[table].set_state(digest, state.bits());
        } else if self.set.newest().insert(digest, state.bits()).is_ok() {
            self.set.tables[table].remove(digest);
            self.note_left_cleared();
        } else {
            // This hardly ever happens in a table that is not full.
            let buckets = self.newest_buckets();
            self.rebuild(0, buckets * 2, |_| true).ok()?;
            self.set.newest().set_state(digest, state.bits());
        }
        Some(before)
    }

    /// A held or redeemed item has left the tables that were cleared.
    pub(super) fn note_left_cleared(&mut self) {
        self.note_moved(1);
    }

    /// So many held and redeemed items have left the tables that were cleared. Once they all have, what is left there is gone.
    fn note_moved(&mut self, items: u64) {
        if self.set.cleared == 0 {
            return;
        }
        let staying = self.shared.staying.load(Relaxed) - items;
        self.shared.staying.store(staying, Relaxed);
        if staying == 0 {
            self.set.drop_cleared();
            self.publish();
        }
    }

    /// Replaces all tables from this one on by a new one of at least so many buckets, with the items that `keep` picks.
    pub(super) fn rebuild(
        &mut self,
        from: usize,
        mut buckets: u64,
        keep: impl Fn(SlotState) -> bool,
    ) -> Result<(), Full> {
        let rebuilt = loop {
            if buckets > BUCKETS_MAX {
                return Err(Full);
            }
            let mut rebuilt = self.set.make(plan(buckets));
            let mut tables = self.set.tables.iter().enumerate().skip(from);
            let cleared = self.set.cleared;
            let copied = tables.try_for_each(|(index, table)| {
                copy_items(table, &mut rebuilt, |value| state_in(index, cleared, value).is_some_and(&keep))
            });
            if copied.is_ok() {
                break rebuilt;
            }
            buckets *= 2;
        };
        self.set.replace_from(from, rebuilt);
        if self.set.cleared == 0 {
            self.shared.staying.store(0, Relaxed);
        }
        self.publish();
        Ok(())
    }
}

fn buckets(tables: &[TableWriter]) -> u64 {
    tables.iter().map(|table| table.table.plan.buckets()).sum()
}

/// The first of so many buckets, twice as many, and so on, that so many items surely fit into.
fn buckets_for(items: u64, mut buckets: u64) -> u64 {
    while buckets <= BUCKETS_MAX / 2 && sure_strict_items(buckets) < items {
        buckets *= 2;
    }
    buckets
}

/// Copies the items whose slot values `keep` picks into another table.
///
/// # Errors
/// [`NoPath`] if one of them finds no place there.
fn copy_items(from: &TableWriter, to: &mut TableWriter, keep: impl Fn(u64) -> bool) -> Result<(), NoPath> {
    let mut copied = Ok(());
    from.table.for_each_in(0..from.table.plan.buckets(), |_, _, value| {
        // An item that is being moved may be in both tables.
        if copied.is_ok() && keep(value) && to.table.get(stored_digest(value)).is_none() {
            copied = to.insert(stored_digest(value), value & STATE_MASK);
        }
    });
    copied
}
