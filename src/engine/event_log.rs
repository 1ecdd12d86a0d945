//! The log of events: takes what the state machine reports, fills packs with it, and stores them. Packs go when their retention is over.
//!
//! The last pack is in memory while it is being filled. It is stored when it is full, and before a snapshot that covers its events. So
//! everything up to a snapshot is stored, and the replay of the log after it makes the rest again. Numbers that are stored already are
//! skipped, and what is stored beyond the end of the log is removed. So no event is lost, and none is there twice.

use crate::domain::{Event, Timestamp};
use crate::state::{FreshEvents, NewEvent, State};
use crate::store::Removal;
use crate::store::{EventPack, EventTree, EventTreeSize, Store, StoreError};
use std::collections::VecDeque;

/// Bytes of a tree after which the next one begins. A tree must fit into sled's cache while it is dropped.
const TREE_BYTES: u64 = 8 << 20;

/// A tree covers at most this share of the retention, so that events don't stay for much longer.
const TREES_IN_RETENTION: u64 = 32;

/// A tree covers at least this time, in seconds: each tree has a cost.
const TREE_SECONDS_MIN: u64 = 60;

/// The log of events, as the writer keeps it.
#[derive(Default)]
pub struct EventLog {
    /// All trees, the oldest first, with what is stored in each. The last one is the tail's; it may have nothing in it yet.
    trees: VecDeque<(EventTree, EventTreeSize)>,
    /// The pack that is being filled.
    tail: EventPack,
    /// The events and bytes of what is stored in the tail's place.
    stored: EventTreeSize,
    /// The time of the last event.
    until: Timestamp,
    retention_seconds: u64,
    room_bytes: u64,
    /// The disk has no room for more, and events come all the same: the oldest make room.
    is_disk_full: bool,
    /// It was logged that events go before their retention is over.
    is_shortage_told: bool,
    /// The tree that is being removed.
    removal: Option<Removal>,
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

/// The time of a pack's last event, if that can be decoded.
fn last_time(pack: &EventPack) -> Option<Timestamp> {
    let (_, last) = pack.events().last()?;
    Some(Event::decode(last)?.at)
}

impl EventLog {
    /// Opens the log of events of a store, for the replay that goes on from this state.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if events up to there are missing.
    pub fn open(store: &Store, state: &State) -> Result<Self, StoreError> {
        let (last, next) = (state.events().last(), state.events().next());
        let mut log = Self {
            tail: EventPack::empty(next, last, state.now()),
            until: state.now(),
            retention_seconds: state.settings().events_retention_seconds,
            room_bytes: u64::MAX,
            ..Self::default()
        };
        for tree in store.events().trees() {
            log.trees.push_back((tree, store.events().size(tree)?));
        }
        if let Some((tree, size)) = log.trees.back_mut() {
            // It may have grown since its size was noted.
            *size = store.events().count(*tree)?;
        }
        let is_missing = |pack: Option<EventPack>| pack.is_none_or(|pack| pack.first > last);
        if last > 0
            && log.trees.front().is_none_or(|(tree, _)| tree.first <= last)
            && is_missing(log.from(store, last)?)
        {
            return Err(store.damaged(format!("events/: event {last} is missing")));
        }
        log.resume(store)?;
        Ok(log)
    }

    /// Goes on with the last pack that is stored, if there is one.
    fn resume(&mut self, store: &Store) -> Result<(), StoreError> {
        let last = self.trees.iter().rev().find_map(|(tree, _)| store.events().last(*tree).transpose());
        let Some(pack) = last.transpose()? else { return Ok(()) };
        let unreadable = || store.damaged(format!("events/: event {} can't be decoded", pack.last()));
        self.until = last_time(&pack).ok_or_else(unreadable)?;
        self.stored = pack.size();
        let is_ended = pack.is_full() || self.trees.back().is_some_and(|(last, _)| last.first > pack.last());
        self.tail = pack;
        if is_ended {
            self.begin_pack();
        }
        Ok(())
    }

    /// The stored pack that has this number, or the first one after it.
    fn from(&self, store: &Store, number: u64) -> Result<Option<EventPack>, StoreError> {
        let trees: Vec<EventTree> = self.trees.iter().map(|(tree, _)| *tree).collect();
        store.events().find_from(&trees, number)
    }

    /// Sets the most bytes that are stored. Beyond it the oldest events go before their retention is over.
    pub fn limit(&mut self, room_bytes: u64) {
        self.room_bytes = room_bytes;
    }

    /// Whether the disk is full, and events come all the same. Then the oldest ones go, so that no more space is taken.
    pub fn note_disk(&mut self, is_full: bool) {
        self.is_disk_full = is_full;
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
        let stored = fresh.iter().map(|event| self.push(store, event)).fold(Ok(()), Result::and);
        self.fresh = fresh;
        stored
    }

    fn push(&mut self, store: &Store, event: NewEvent<'_>) -> Result<(), StoreError> {
        if event.number <= self.tail.last() {
            return Ok(());
        }
        if event.number < self.begin() {
            // It went before the restart that makes it again.
            self.tail = EventPack::empty(event.number + 1, event.number, event.at);
            self.until = event.at;
            return Ok(());
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

    /// Adds a pack of an archive, after the events that are stored.
    ///
    /// # Errors
    /// As for [`Self::take`].
    pub(super) fn add(&mut self, store: &Store, pack: EventPack) -> Result<(), StoreError> {
        let until = last_time(&pack).unwrap_or(pack.since);
        self.tail = pack;
        self.choose_tree(store)?;
        self.until = until;
        self.seal(store)
    }

    /// Leaves out the events up to the one of this number, the last of which was at this time. A store without any tree of events would look
    /// damaged.
    ///
    /// # Errors
    /// As for [`Self::take`].
    pub(super) fn leave_out(&mut self, store: &Store, last: u64, at: Timestamp) -> Result<(), StoreError> {
        if self.trees.is_empty() && last > 0 {
            (self.tail, self.until) = (EventPack::empty(last + 1, last, at), at);
            self.begin_anew(store)?;
        }
        Ok(())
    }

    /// Ends the replay: what follows is new. Removes what is stored of events that the log does not have.
    ///
    /// # Errors
    /// As for [`Self::take`].
    pub fn settle(&mut self, store: &Store, state: &State) -> Result<(), StoreError> {
        let (last, next) = (state.events().last(), state.events().next());
        if self.tail.last() > last {
            self.forget_after(store, last, state.now())?;
        }
        // A process that knew later events may have removed all of them.
        self.drop_trees_after(store, next)?;
        if self.tail.is_empty() {
            self.tail = EventPack::empty(next, last, self.until);
            if last > 0 && self.trees.is_empty() {
                self.begin_anew(store)?;
            }
        }
        Ok(())
    }

    fn drop_trees_after(&mut self, store: &Store, number: u64) -> Result<(), StoreError> {
        while let Some((tree, _)) = self.trees.pop_back_if(|(tree, _)| tree.first > number) {
            store.events().drop_tree(tree)?;
        }
        Ok(())
    }

    /// Removes what is stored of all events after the one of this number.
    fn forget_after(&mut self, store: &Store, last: u64, now: Timestamp) -> Result<(), StoreError> {
        let kept = self.from(store, last)?.filter(|pack| pack.first <= last);
        self.drop_trees_after(store, kept.as_ref().map_or(last + 1, |pack| pack.first))?;
        if let Some((tree, size)) = self.trees.back_mut() {
            store.events().remove_from(*tree, last + 1)?;
            // In the place of the longer one: no event before is missing if the process dies in between.
            kept.map_or(Ok(()), |kept| store.events().put(*tree, &kept.up_to(last)))?;
            *size = store.events().count(*tree)?;
        }
        (self.stored, self.until) = (EventTreeSize::default(), now);
        self.tail = EventPack::empty(last + 1, last, now);
        self.resume(store)
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
        let since = self.tail.since;
        let fits =
            |(last, size): &(EventTree, EventTreeSize)| size.bytes < TREE_BYTES && self.covers(last, since);
        if self.trees.back().is_some_and(fits) { Ok(()) } else { self.begin_tree(store, since) }
    }

    /// Begins a tree for the tail, in the place of an unused one.
    fn begin_tree(&mut self, store: &Store, since: Timestamp) -> Result<(), StoreError> {
        // Time may have been turned back.
        let tree = EventTree { first: self.tail.first, after: self.until.min(since), since };
        let unused = self.trees.pop_back_if(|(_, size)| size.events == 0);
        let full = self.trees.back().copied();
        self.trees.push_back((tree, EventTreeSize::default()));
        if let (None, Some((full, size))) = (unused, full) {
            store.events().note_size(full, size)?;
        }
        store.events().begin_tree(tree)?;
        unused.map_or(Ok(()), |(unused, _)| store.events().drop_tree(unused))
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
        let Some((tree, size)) = self.trees.back_mut() else { return Ok(()) };
        store.events().put(*tree, &self.tail)?;
        let now = self.tail.size();
        size.bytes = size.bytes + now.bytes - self.stored.bytes;
        size.events = size.events + now.events - self.stored.events;
        self.stored = now;
        Ok(())
    }

    /// The number of the first event that is kept; of the next one, if none is.
    fn begin(&self) -> u64 {
        self.trees.front().map_or(self.tail.first, |(tree, _)| tree.first)
    }

    /// Sizes, as of now.
    pub fn figures(&self) -> EventFigures {
        let oldest = self.trees.iter().find(|(_, size)| size.events > 0).map(|(tree, _)| tree.since);
        let total = self.total();
        EventFigures {
            kept: total.events + u64::from(self.tail.count) - self.stored.events,
            bytes: total.bytes,
            oldest_at: oldest.or((!self.tail.is_empty()).then_some(self.tail.since)),
        }
    }

    /// What is stored in all trees.
    fn total(&self) -> EventTreeSize {
        let add = |all: EventTreeSize, (_, size): &(EventTree, EventTreeSize)| EventTreeSize {
            bytes: all.bytes + size.bytes,
            events: all.events + size.events,
        };
        self.trees.iter().fold(EventTreeSize::default(), add)
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
        if let Some(removal) = &mut self.removal {
            if !removal.step(store, budget)? {
                self.removal = None;
            }
        } else if self.is_all_old(now) {
            self.begin_anew(store)?;
        } else if self.is_first_old(now)
            && let Some((tree, _)) = self.trees.pop_front()
        {
            self.tell_shortage(now);
            self.removal = Some(Removal::new(tree.name()));
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
            || self.trees.len() > 1 && (self.is_disk_full || self.total().bytes > self.room_bytes)
    }

    /// Begins an empty tree: everything before it can go.
    fn begin_anew(&mut self, store: &Store) -> Result<(), StoreError> {
        // A snapshot relies on the last event being stored, for as long as any older tree is there.
        self.save(store)?;
        self.begin_pack();
        match self.trees.back() {
            Some((last, _)) if last.first >= self.tail.first => Ok(()),
            _ => self.begin_tree(store, self.until),
        }
    }
}
