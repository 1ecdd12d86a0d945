//! The log of events: takes what the state machine reports, fills packs with it, and stores them. Packs go when their retention is over.
//!
//! The last pack is in memory while it is being filled. It is stored when it is full, and before a snapshot that covers its events. So
//! everything up to a snapshot is stored, and the replay of the log after it makes the rest again. What the store has of that already is
//! compared, not written again. What it has beyond the end of the log is removed. So no event is lost, and none is there twice.

use crate::domain::{Event, Timestamp};
use crate::state::{FreshEvents, NewEvent, State};
use crate::store::removal::Removal;
use crate::store::{EventPack, EventTree, EventTreeSize, Store, StoreError};
use std::collections::VecDeque;

/// Bytes of a tree after which the next one begins. A tree must fit into sled's cache while it is dropped.
const TREE_BYTES: u64 = 8 << 20;

/// A tree covers at most this share of the retention, so that events don't stay for much longer.
const TREES_IN_RETENTION: u64 = 32;

/// A tree covers at least this time, in seconds: each tree has a cost.
const TREE_SECONDS_MIN: u64 = 60;

/// The log of events, as the writer keeps it.
pub struct EventLog {
    /// All trees, the oldest first, with what is stored in each. The last one is the tail's; it may have nothing in it yet.
    trees: VecDeque<(EventTree, EventTreeSize)>,
    /// What is stored in all of them.
    total: EventTreeSize,
    /// The pack that is being filled.
    tail: EventPack,
    /// The events and bytes of what is stored in the tail's place.
    stored: EventTreeSize,
    /// The time of the last event.
    until: Timestamp,
    /// During the replay: the stored pack that the tail should become.
    known: Option<EventPack>,
    /// Stored packs that the replay did not make again as they were.
    differing: u64,
    retention_seconds: u64,
    room_bytes: u64,
    /// The disk has no room for more, and events come all the same: the oldest make room.
    is_disk_full: bool,
    /// It was logged that events go before their retention is over.
    is_shortage_told: bool,
    /// The tree that is being removed.
    removal: Option<(Removal, EventTree)>,
    fresh: FreshEvents,
}

/// What the log of events has of a number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventsFound {
    /// It is no longer kept.
    Gone,
    /// There is no such event yet.
    Nothing,
    /// The pack that has it, or the first one after it.
    Pack(EventPack),
}

/// Sizes of the log of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EventFigures {
    /// Events that are kept.
    pub kept: u64,
    /// Bytes of those that are stored.
    pub bytes: u64,
    /// The time of the oldest one, or a little before; `None` if there is none.
    pub oldest_at: Option<Timestamp>,
}

impl EventLog {
    /// Opens the log of events of a store, for the replay that goes on from this state.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if events up to there are missing.
    pub fn open(store: &Store, state: &State) -> Result<Self, StoreError> {
        let (last, next) = (state.events_last(), state.events_next());
        let mut log = Self {
            trees: VecDeque::new(),
            total: EventTreeSize::default(),
            tail: EventPack::empty(next, last, state.now()),
            stored: EventTreeSize::default(),
            until: state.now(),
            known: None,
            differing: 0,
            retention_seconds: state.settings().events_retention_seconds,
            room_bytes: u64::MAX,
            is_disk_full: false,
            is_shortage_told: false,
            removal: None,
            fresh: FreshEvents::default(),
        };
        let mut trees = store.event_trees().into_iter().peekable();
        while let Some(tree) = trees.next() {
            // The last one may have grown since its size was noted.
            let is_last = trees.peek().is_none();
            let size = if is_last { store.count_events(tree)? } else { store.event_tree_size(tree)? };
            log.trees.push_back((tree, size));
        }
        log.count_total();
        if last > 0 && log.trees.front().is_none_or(|(tree, _)| tree.first <= last) {
            log.resume(store, last)?;
        } else {
            log.known = log.from(store, 0)?;
        }
        Ok(log)
    }

    /// Goes on after the stored event of this number.
    fn resume(&mut self, store: &Store, last: u64) -> Result<(), StoreError> {
        let missing = || store.damaged(format!("events/: event {last} is missing"));
        let pack = self.from(store, last)?.filter(|pack| pack.first <= last).ok_or_else(missing)?;
        let event = pack.events().find(|(number, _)| *number == last).ok_or_else(missing)?;
        self.until = Event::decode(event.1).ok_or_else(missing)?.at;
        self.stored = pack.size();
        self.tail = pack.up_to(last);
        if pack.last() > last {
            self.known = Some(pack);
            return Ok(());
        }
        self.find_next(store)
    }

    /// The stored pack that has this number, or the first one after it.
    fn from(&self, store: &Store, number: u64) -> Result<Option<EventPack>, StoreError> {
        let trees: Vec<EventTree> = self.trees.iter().map(|(tree, _)| *tree).collect();
        store.events_from(&trees, number)
    }

    /// Sets the most bytes that are stored. Beyond it the oldest events go before their retention is over.
    pub fn limit(&mut self, room_bytes: u64) {
        self.room_bytes = room_bytes;
    }

    /// Whether the disk is full, and events come all the same. Then the oldest ones go, so that no more space is taken.
    pub fn note_disk(&mut self, is_full: bool) {
        self.is_disk_full = is_full;
    }

    /// How long events are kept, in seconds; 0 if none are.
    pub fn retention_seconds(&self) -> u64 {
        self.retention_seconds
    }

    /// How many stored packs the replay did not make again as they were.
    pub fn differing(&self) -> u64 {
        self.differing
    }

    /// Takes the events that the state has made since the last call.
    ///
    /// # Errors
    /// [`StoreError::Failed`] if they can't be stored. Readers get them all the same, until the process ends.
    pub fn take(&mut self, store: &Store, state: &mut State) -> Result<(), StoreError> {
        self.retention_seconds = state.settings().events_retention_seconds;
        if state.fresh_events().is_empty() {
            return Ok(());
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        state.take_events(&mut fresh);
        let stored = fresh.iter().map(|event| self.push(store, event)).fold(Ok(()), Result::and);
        self.fresh = fresh;
        stored
    }

    fn push(&mut self, store: &Store, event: NewEvent<'_>) -> Result<(), StoreError> {
        if event.number < self.begin() {
            // It went before the restart that makes it again.
            if self.known.is_none() {
                self.tail = EventPack::empty(event.number + 1, event.number, event.at);
                self.until = event.at;
            }
            return Ok(());
        }
        if let Some(known) = self.known.take() {
            return self.push_known(store, known, event);
        }
        let mut stored = Ok(());
        if !self.tail.is_empty() && !self.belongs_to_tail(&event) {
            stored = self.seal(store);
        }
        if self.tail.is_empty() {
            self.tail = EventPack::empty(event.number, self.tail.previous, event.at);
            stored = stored.and(self.choose_tree(store));
        }
        self.tail.push(event.at, event.bytes);
        self.until = event.at;
        if self.tail.is_full() { stored.and(self.seal(store)) } else { stored }
    }

    /// Adds an event that the store should have in this pack.
    fn push_known(&mut self, store: &Store, known: EventPack, event: NewEvent<'_>) -> Result<(), StoreError> {
        let (number, since) = match self.tail.is_empty() {
            true => (known.first, event.at),
            false => (self.tail.last() + 1, self.tail.since),
        };
        if event.number != number || !known.continues(&self.tail, event.bytes) {
            tracing::warn!(
                first = known.first,
                "stored events are not what the log says: they are made again"
            );
            self.differing += 1;
            let first = if self.tail.is_empty() { known.first.min(event.number) } else { self.tail.first };
            self.forget_from(store, first)?;
            return self.push(store, event);
        }
        if self.tail.is_empty() {
            self.tail = EventPack::empty(known.first, known.previous, since);
            self.stored = known.size();
        }
        self.tail.push(event.at, event.bytes);
        self.until = event.at;
        if known.count > self.tail.count {
            self.known = Some(known);
            return Ok(());
        }
        self.find_next(store)
    }

    /// The tail is as it is stored: finds the pack that follows.
    fn find_next(&mut self, store: &Store) -> Result<(), StoreError> {
        let last = self.tail.last();
        match self.from(store, last + 1)? {
            // An empty tree follows: the pack gets no more events.
            None if self.trees.back().is_some_and(|(tree, _)| tree.first > last) => self.begin_pack(),
            None => {}
            Some(pack) if pack.previous == last => {
                self.begin_pack();
                self.known = Some(pack);
            }
            Some(_) => self.forget_from(store, last + 1)?,
        }
        Ok(())
    }

    /// Ends the replay: what follows is new. Removes what is stored of events that the log does not have.
    ///
    /// # Errors
    /// As for [`Self::take`].
    pub fn settle(&mut self, store: &Store, state: &State) -> Result<(), StoreError> {
        let (last, next) = (state.events_last(), state.events_next());
        if let Some(known) = self.known.take() {
            let first = if self.tail.is_empty() { known.first } else { self.tail.last() + 1 };
            self.forget_from(store, first)?;
            self.save(store)?;
        }
        if self.tail.is_empty() {
            // A process that knew later events may have removed all of them.
            self.drop_trees_after(store, next)?;
            self.tail = EventPack::empty(next, last, self.until);
            if last > 0 && self.trees.is_empty() {
                self.begin_anew(store)?;
            }
        }
        Ok(())
    }

    fn drop_trees_after(&mut self, store: &Store, number: u64) -> Result<(), StoreError> {
        while let Some((tree, _)) = self.trees.pop_back_if(|(tree, _)| tree.first > number) {
            store.drop_event_tree(tree)?;
        }
        Ok(())
    }

    /// Removes what is stored of the event of this number and of all later ones, but for those in the tail's pack.
    fn forget_from(&mut self, store: &Store, number: u64) -> Result<(), StoreError> {
        let is_tail_kept = !self.tail.is_empty() && self.tail.first < number;
        if !is_tail_kept {
            self.stored = EventTreeSize::default();
        }
        // The last tree must be the tail's.
        self.drop_trees_after(store, if is_tail_kept { self.tail.first } else { number })?;
        if let Some((tree, size)) = self.trees.back_mut() {
            // It may have been noted when a later tree began.
            store.forget_event_tree_size(*tree)?;
            store.remove_events_from(*tree, number)?;
            *size = store.count_events(*tree)?;
        }
        self.count_total();
        Ok(())
    }

    /// Whether an event can follow in the same pack: unless its number has jumped, or the tree must not have it.
    fn belongs_to_tail(&self, event: &NewEvent<'_>) -> bool {
        event.number == self.tail.last() + 1
            && self.trees.back().is_some_and(|(tree, _)| self.covers(tree, event.at))
    }

    /// Whether a tree may have events of this time.
    fn covers(&self, tree: &EventTree, at: Timestamp) -> bool {
        let seconds = (self.retention_seconds / TREES_IN_RETENTION).max(TREE_SECONDS_MIN);
        tree.since <= at && at < tree.since.plus_seconds(seconds)
    }

    /// Begins a tree for the tail if the last one is full or must not have it. It is stored at once, before its first pack: a store
    /// without any tree would look damaged once the older ones have gone.
    fn choose_tree(&mut self, store: &Store) -> Result<(), StoreError> {
        // Time may have been turned back.
        let since = self.tail.since;
        let tree = EventTree { first: self.tail.first, after: self.until.min(since), since };
        let fits =
            |(last, size): &(EventTree, EventTreeSize)| size.bytes < TREE_BYTES && self.covers(last, since);
        if self.trees.back().is_some_and(fits) {
            return Ok(());
        }
        let unused = self.trees.pop_back_if(|(_, size)| size.events == 0);
        let full = self.trees.back().copied();
        self.trees.push_back((tree, EventTreeSize::default()));
        if let (None, Some((full, size))) = (unused, full) {
            store.note_event_tree_size(full, size)?;
        }
        store.begin_event_tree(tree)?;
        unused.map_or(Ok(()), |(unused, _)| store.drop_event_tree(unused))
    }

    /// Stores the tail, and begins the next pack.
    fn seal(&mut self, store: &Store) -> Result<(), StoreError> {
        self.save(store)?;
        self.begin_pack();
        Ok(())
    }

    fn begin_pack(&mut self) {
        let last = self.tail.last();
        let next = if self.tail.is_empty() { self.tail.first } else { last + 1 };
        self.tail = EventPack::empty(next, last, self.until);
        self.stored = EventTreeSize::default();
    }

    /// Stores the events that are only in memory, so that a snapshot can rely on them.
    ///
    /// # Errors
    /// As for [`Self::take`].
    pub fn save(&mut self, store: &Store) -> Result<(), StoreError> {
        if self.tail.is_empty() || self.stored.events == u64::from(self.tail.count) {
            return Ok(());
        }
        debug_assert!(self.known.is_none(), "the replay was settled");
        let Some((tree, size)) = self.trees.back_mut() else { return Ok(()) };
        store.put_events(*tree, &self.tail)?;
        let now = self.tail.size();
        size.bytes = size.bytes + now.bytes - self.stored.bytes;
        size.events = size.events + now.events - self.stored.events;
        self.stored = now;
        self.count_total();
        Ok(())
    }

    /// The number of the first event that is kept; of the next one, if none is.
    fn begin(&self) -> u64 {
        self.trees.front().map_or(self.tail.first, |(tree, _)| tree.first)
    }

    /// Sizes, as of now.
    pub fn figures(&self) -> EventFigures {
        let oldest = self.trees.iter().find(|(_, size)| size.events > 0).map(|(tree, _)| tree.since);
        EventFigures {
            kept: self.kept(),
            bytes: self.total.bytes,
            oldest_at: oldest.or((!self.tail.is_empty()).then_some(self.tail.since)),
        }
    }

    fn kept(&self) -> u64 {
        self.total.events + u64::from(self.tail.count) - self.stored.events
    }

    fn count_total(&mut self) {
        let sizes = || self.trees.iter().map(|(_, size)| size);
        self.total = EventTreeSize {
            bytes: sizes().map(|size| size.bytes).sum(),
            events: sizes().map(|size| size.events).sum(),
        };
    }

    /// Finds the event of this number. Unless that one `is_wanted`, the first one that is kept after it will do.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if it can't be read.
    pub fn find(&self, store: &Store, number: u64, is_wanted: bool) -> Result<EventsFound, StoreError> {
        let begin = self.begin();
        if number < begin && is_wanted {
            return Ok(EventsFound::Gone);
        }
        let number = number.max(begin);
        if number < self.tail.first
            && let Some(pack) = self.from(store, number)?
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
        self.removal.is_some() || self.is_all_old(now) || self.is_first_old(now)
    }

    /// Removes a little of what is over: reads or drops about `budget` bytes.
    ///
    /// # Errors
    /// As for [`Self::take`].
    pub fn remove_old(&mut self, store: &Store, now: Timestamp, budget: u64) -> Result<(), StoreError> {
        if let Some((removal, tree)) = &mut self.removal {
            if !removal.step(store, budget)? {
                store.forget_event_tree_size(*tree)?;
                self.removal = None;
            }
        } else if self.is_all_old(now) {
            self.begin_anew(store)?;
        } else if self.is_first_old(now)
            && let Some((tree, _)) = self.trees.pop_front()
        {
            self.tell_shortage(now);
            self.removal = Some((Removal::new(tree.name()), tree));
            self.count_total();
        }
        Ok(())
    }

    /// Logs once that the oldest events go too early.
    fn tell_shortage(&mut self, now: Timestamp) {
        let Some((oldest, _)) = self.trees.front() else { return };
        if !self.is_over(oldest.after, now) && !std::mem::replace(&mut self.is_shortage_told, true) {
            tracing::warn!(
                oldest = %oldest.since,
                room_bytes = self.room_bytes,
                is_disk_full = self.is_disk_full,
                "events.room is used up, or the disk is full: the oldest events go before events.retention is over"
            );
        }
    }

    fn is_over(&self, at: Timestamp, now: Timestamp) -> bool {
        self.retention_seconds == 0 || at.plus_seconds(self.retention_seconds) <= now
    }

    /// Whether all events are over, those of the last tree included.
    fn is_all_old(&self, now: Timestamp) -> bool {
        let is_any_left = !self.tail.is_empty() || self.trees.back().is_some_and(|(_, size)| size.events > 0);
        is_any_left && self.is_over(self.until, now)
    }

    /// Whether the oldest tree can go.
    fn is_first_old(&self, now: Timestamp) -> bool {
        // A clock that was ahead may have made the first ones look young.
        let mut later = self.trees.iter().skip(1);
        later.any(|(tree, _)| self.is_over(tree.after, now))
            || self.trees.len() > 1 && (self.is_disk_full || self.total.bytes > self.room_bytes)
    }

    /// Begins an empty tree: everything before it can go.
    fn begin_anew(&mut self, store: &Store) -> Result<(), StoreError> {
        // A snapshot relies on the last event being stored, for as long as any older tree is there.
        self.save(store)?;
        self.begin_pack();
        let tree = EventTree { first: self.tail.first, after: self.until, since: self.until };
        if self.trees.back().is_none_or(|(last, _)| last.first < tree.first) {
            store.begin_event_tree(tree)?;
            self.trees.push_back((tree, EventTreeSize::default()));
        }
        Ok(())
    }
}
