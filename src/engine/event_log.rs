//! The log of events: collects the state machine's events in packs, and stores them. Packs are deleted after their retention.
//!
//! The last pack is in memory while it is being filled. It is stored when it is full, and before a snapshot that covers its events. So
//! everything up to a snapshot is stored, and the replay of the log after it repeats the rest. Numbers that are already stored are skipped,
//! and events stored beyond the end of the log are removed. So no event is lost or duplicated.

use cuckood_log::store::Removal;
use cuckood_log::store::{EventPack, EventSize, EventTree, Store, StoreError};
use cuckood_state::domain::{Event, Timestamp};
use cuckood_state::frame::decode;
use cuckood_state::{FreshEvents, NewEvent, State};
use std::ops::ControlFlow;

/// Bytes of a tree after which the next one starts. A tree must fit into sled's cache while it is dropped.
const TREE_BYTES: u64 = 8 << 20;

/// A tree covers at most this share of the retention, so that events don't stay for much longer.
const TREES_IN_RETENTION: u64 = 32;

/// A tree covers at least this time, in seconds: each tree has a cost.
const TREE_SECONDS_MIN: u64 = 60;

/// The log of events, as the writer keeps it.
#[derive(Default)]
pub struct EventLog {
    /// All trees, the oldest first. The last one is the tail's; it may have nothing in it yet.
    trees: Vec<EventTree>,
    /// The pack that is being filled.
    tail: EventPack,
    /// How many events of the tail are stored.
    saved: u32,
    /// The size of everything before the tail, counted as the trees count it.
    sealed: EventSize,
    retention_seconds: u64,
    /// Maximum size of the stored events, in bytes. Beyond it the oldest are deleted before their retention ends.
    pub room_bytes: u64,
    /// The disk is full, but events must be stored: the oldest are deleted for them.
    pub(super) is_disk_full: bool,
    /// It was logged that events go before their retention is over.
    is_shortage_logged: bool,
    /// The tree that is being removed.
    removal: Option<Removal>,
    fresh: FreshEvents,
}

/// The result of looking up an event number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventsFound {
    /// It is no longer stored.
    Gone,
    /// There is no such event yet.
    Nothing,
    /// The pack that has it, or the first one after it.
    Pack(EventPack),
}

/// Sizes of the log of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EventFigures {
    /// Stored events.
    pub kept: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The time of the oldest one, or a little before; `None` if there is none.
    pub oldest_at: Option<Timestamp>,
}

impl EventLog {
    /// Opens the log of events of a store, for the replay that continues from this state.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if events up to there are missing.
    pub fn open(store: &Store, state: &State) -> Result<Self, StoreError> {
        let last = state.events().last();
        let mut log = Self {
            trees: store.events().trees(),
            tail: EventPack::empty(last + 1, last),
            retention_seconds: state.settings().events_retention_seconds,
            room_bytes: u64::MAX,
            ..Self::default()
        };
        let may_be_gone = log.trees.first().is_some_and(|tree| tree.first > last);
        if last > 0
            && !may_be_gone
            && store
                .events()
                .find_from(&log.trees, last)?
                .is_none_or(|pack| pack.first > last)
        {
            return Err(store.damaged(format!("events/: event {last} is missing")));
        }
        log.resume(store)?;
        Ok(log)
    }

    /// Goes on with the last pack of the last tree, if there is one.
    fn resume(&mut self, store: &Store) -> Result<(), StoreError> {
        let Some(tree) = self.trees.last() else {
            return Ok(());
        };
        let mut sealed = tree.before;
        let mut tail = EventPack::empty(tree.first, tree.first.saturating_sub(1));
        store.events().scan(*tree, &[], |pack| {
            sealed += std::mem::replace(&mut tail, pack).size();
            ControlFlow::Continue(())
        })?;
        (self.sealed, self.saved, self.tail) = (sealed, tail.count, tail);
        if self.tail.is_full() {
            self.begin_pack();
        }
        Ok(())
    }

    /// Takes the events that the state has made since the last call.
    ///
    /// # Errors
    /// [`StoreError::Failed`] if they can't be stored. Readers get them all the same, until the process ends.
    pub fn take(&mut self, store: &Store, state: &mut State) -> Result<(), StoreError> {
        self.retention_seconds = state.settings().events_retention_seconds;
        if state.events().fresh().is_empty() {
            return Ok(());
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        state.take_events(&mut fresh);
        let stored = fresh
            .iter()
            .map(|event| self.push(store, event))
            .fold(Ok(()), Result::and);
        self.fresh = fresh;
        stored
    }

    fn push(&mut self, store: &Store, event: NewEvent<'_>) -> Result<(), StoreError> {
        let last = self.tail.last();
        let mut stored = Ok(());
        if event.number <= last {
            return Ok(());
        }
        if event.number > last + 1 {
            // A pack can't have both.
            self.seal(store)?;
        } else if !self.is_covered(event.at) {
            stored = self.seal(store);
        }
        if self.tail.is_empty() {
            self.tail = EventPack::empty(event.number, last);
            stored = stored.and(self.choose_tree(store, event.at, event.at));
        }
        self.tail.push(event.at, event.bytes);
        if self.tail.is_full() {
            stored.and(self.seal(store))
        } else {
            stored
        }
    }

    /// Adds a pack of an archive, after the events that are stored.
    ///
    /// # Errors
    /// Those of [`Self::take`].
    pub(super) fn add(&mut self, store: &Store, pack: EventPack) -> Result<(), StoreError> {
        let last = pack
            .events()
            .last()
            .and_then(|(_, last)| decode::<Event<'_>>(last));
        let since = pack.since;
        let last = last.map_or(pack.since, |last| last.at);
        self.tail = pack;
        self.choose_tree(store, since, last)?;
        self.seal(store)
    }

    /// Leaves out the events up to the one of this number if none is stored. A store without any tree of events would look damaged.
    ///
    /// # Errors
    /// Those of [`Self::take`].
    pub(super) fn leave_out(&mut self, store: &Store, last: u64) -> Result<(), StoreError> {
        if self.trees.is_empty() && last > 0 {
            self.tail = EventPack::empty(last + 1, last);
            self.begin_anew(store)?;
        }
        Ok(())
    }

    /// Ends the replay: later events are new. Removes stored events that the log does not have.
    ///
    /// # Errors
    /// Those of [`Self::take`].
    pub fn settle(&mut self, store: &Store, state: &State) -> Result<(), StoreError> {
        let last = state.events().last();
        if self.tail.last() > last {
            self.forget_after(store, last)?;
        }
        self.leave_out(store, last)
    }

    /// Removes all stored events after the one with this number.
    fn forget_after(&mut self, store: &Store, last: u64) -> Result<(), StoreError> {
        (self.tail, self.saved) = (EventPack::empty(last + 1, last), 0);
        while let Some(tree) = self.trees.pop_if(|tree| tree.first > last + 1) {
            store.events().drop_tree(tree)?;
        }
        let Some(&tree) = self.trees.last() else {
            return Ok(());
        };
        let cut = store
            .events()
            .find_from(&[tree], last)?
            .filter(|pack| pack.first <= last);
        store.events().remove_from(tree, last + 1)?;
        // Replaces the longer one: no earlier event is missing if the process crashes in between.
        cut.map_or(Ok(()), |cut| store.events().put(tree, &cut.up_to(last)))?;
        self.resume(store)
    }

    /// Begins a tree for the tail, whose events are from these times, if the last one is full or must not have it.
    fn choose_tree(
        &mut self,
        store: &Store,
        since: Timestamp,
        last: Timestamp,
    ) -> Result<(), StoreError> {
        let bytes = self.sealed.bytes;
        let has_room = self
            .trees
            .last()
            .is_some_and(|tree| bytes - tree.before.bytes < TREE_BYTES);
        let fits = has_room && self.is_covered(since) && self.is_covered(last);
        if fits {
            Ok(())
        } else {
            self.begin_tree(store, since, last)
        }
    }

    /// Whether the last tree may have events of this time, also by the retention as it is now.
    fn is_covered(&self, at: Timestamp) -> bool {
        let is_recent = |tree: &EventTree| at < tree.since.plus_seconds(self.tree_seconds());
        self.trees
            .last()
            .is_some_and(|tree| tree.covers(at) && is_recent(tree))
    }

    /// How much time a tree covers, in seconds.
    fn tree_seconds(&self) -> u64 {
        (self.retention_seconds / TREES_IN_RETENTION).max(TREE_SECONDS_MIN)
    }

    /// Starts a tree, or replaces an unused one. It is stored immediately, before its first pack: a store without any tree would look
    /// damaged once the older ones are deleted.
    fn begin_tree(
        &mut self,
        store: &Store,
        since: Timestamp,
        last: Timestamp,
    ) -> Result<(), StoreError> {
        let first = self.tail.previous + 1;
        let before = self.sealed;
        let tree = EventTree {
            first,
            since,
            until: last.plus_seconds(self.tree_seconds()),
            before,
        };
        let unused = self.trees.pop_if(|tree| tree.before == before);
        self.trees.push(tree);
        store.events().begin_tree(tree)?;
        unused.map_or(Ok(()), |unused| store.events().drop_tree(unused))
    }

    /// Stores the tail, and starts the next pack. A tail that can't be stored stays, and grows, for the readers.
    fn seal(&mut self, store: &Store) -> Result<(), StoreError> {
        self.save(store)?;
        self.begin_pack();
        Ok(())
    }

    fn begin_pack(&mut self) {
        let last = self.tail.last();
        self.sealed += self.tail.size();
        (self.tail, self.saved) = (EventPack::empty(last + 1, last), 0);
    }

    /// Stores the events that are only in memory, so that a snapshot can rely on them.
    ///
    /// # Errors
    /// Those of [`Self::take`].
    pub fn save(&mut self, store: &Store) -> Result<(), StoreError> {
        let Some(tree) = self.trees.last().filter(|_| self.saved < self.tail.count) else {
            return Ok(());
        };
        store.events().put(*tree, &self.tail)?;
        self.saved = self.tail.count;
        Ok(())
    }

    /// Sizes, as of now.
    pub fn figures(&self) -> EventFigures {
        let oldest = self.trees.first();
        let mut kept = self.made();
        kept -= oldest.map_or(kept, |oldest| oldest.before);
        let oldest_at = oldest
            .filter(|_| kept.events > 0)
            .map(|oldest| oldest.since);
        EventFigures {
            kept: kept.events,
            bytes: kept.bytes,
            oldest_at,
        }
    }

    /// The size of all events, counted as the trees count it.
    fn made(&self) -> EventSize {
        let mut made = self.sealed;
        made += self.tail.size();
        made
    }

    /// Finds the event of this number, or, unless it `must_exist`, the first stored one after it.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if it can't be read.
    pub fn find(
        &self,
        store: &Store,
        number: u64,
        must_exist: bool,
    ) -> Result<EventsFound, StoreError> {
        let first = self
            .trees
            .first()
            .map_or(self.tail.first, |tree| tree.first);
        if number < first && must_exist {
            return Ok(EventsFound::Gone);
        }
        let number = number.max(first);
        if number < self.tail.first
            && let Some(pack) = store.events().find_from(&self.trees, number)?
        {
            return Ok(EventsFound::Pack(pack));
        }
        Ok(if self.tail.is_empty() || number > self.tail.last() {
            EventsFound::Nothing
        } else {
            EventsFound::Pack(self.tail.clone())
        })
    }

    /// Whether [`Self::remove_old`] has something to do.
    pub fn has_old(&self, now: Timestamp) -> bool {
        self.removal.is_some() || self.are_all_expired(now) || self.is_first_old(now)
    }

    /// Removes some expired events: reads or drops about `budget` bytes.
    ///
    /// # Errors
    /// Those of [`Self::take`].
    pub fn remove_old(
        &mut self,
        store: &Store,
        now: Timestamp,
        budget: u64,
    ) -> Result<(), StoreError> {
        if let Some(removal) = &mut self.removal {
            if !removal.step(store, budget)? {
                self.removal = None;
            }
        } else if self.are_all_expired(now) {
            self.begin_anew(store)?;
        } else if self.is_first_old(now)
            && let Some(oldest) = self.trees.first()
        {
            if !self.is_any_expired(now) && !self.is_shortage_logged {
                tracing::warn!(
                    oldest = %oldest.since,
                    room_bytes = self.room_bytes,
                    is_disk_full = self.is_disk_full,
                    "events.room is used up, or the disk is full: the oldest events go before events.retention is over"
                );
                self.is_shortage_logged = true;
            }
            self.removal = Some(Removal::new(self.trees.remove(0).name()));
        }
        Ok(())
    }

    fn is_expired(&self, at: Timestamp, now: Timestamp) -> bool {
        self.retention_seconds == 0 || at.plus_seconds(self.retention_seconds) <= now
    }

    /// Whether the first tree is over, by its own time or by that of a later one: a clock that was ahead may have made it look young.
    fn is_any_expired(&self, now: Timestamp) -> bool {
        let ends = self.trees.first().map(|tree| tree.until).into_iter();
        ends.chain(self.trees.iter().skip(1).map(|tree| tree.since))
            .any(|at| self.is_expired(at, now))
    }

    /// Whether all events are over, those of the last tree included.
    fn are_all_expired(&self, now: Timestamp) -> bool {
        self.trees
            .last()
            .is_some_and(|last| last.before != self.made() && self.is_expired(last.until, now))
    }

    /// Whether the oldest tree can go.
    fn is_first_old(&self, now: Timestamp) -> bool {
        let is_short = || self.is_disk_full || self.figures().bytes > self.room_bytes;
        self.trees.len() > 1 && (self.is_any_expired(now) || is_short())
    }

    /// Begins an empty tree: everything before it can go.
    fn begin_anew(&mut self, store: &Store) -> Result<(), StoreError> {
        // A snapshot relies on the last event being stored, for as long as any older tree is there.
        self.seal(store)?;
        self.begin_tree(store, Timestamp(0), Timestamp(0))
    }
}
