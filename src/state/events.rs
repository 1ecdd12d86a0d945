//! Events: `apply` reports here what has happened, and whoever applies entries takes the events after each one.
//!
//! The events follow from the log alone, numbers included. So those that were not stored when a process died are made again by the
//! replay of the same entries.

use crate::domain::event::{RESTORE_LEAP, RESTORE_NUMBERS_A_SECOND};
use crate::domain::{Event, Happened, KeyName, Timestamp};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The most holds that are reported one by one when time is turned back. The event about the whole has the number of all.
pub(super) const HELD_AGAIN_TOLD_MAX: u64 = 10_000;

/// Memory for events that are not stored yet, in bytes: those of an ordinary entry, and a value that is being filled
/// (`engine/event_log.rs`). An entry that withdraws ten thousand held codes makes 4 MB of events, which go before the next entry comes.
/// Like the request itself, they are not counted.
pub(super) const FIXED_BYTES: u64 = 128 << 10;

/// A buffer that has become larger than this is given back.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// What the state keeps of events.
#[derive(Debug, Serialize, Deserialize)]
pub struct Events {
    /// Whether events are made at all.
    #[serde(skip)]
    is_on: bool,
    /// The number of the last event.
    last: u64,
    /// The number of the next one. It is not always the one after that: see [`Command::Restored`](crate::domain::Command::Restored).
    next: u64,
    /// The API key that asked for the entry that is being applied.
    #[serde(skip)]
    pub(super) by: Option<KeyName>,
    #[serde(skip)]
    fresh: FreshEvents,
}

/// Events that were made, but not taken yet. An entry makes a bounded number: one for each item of its command, one for each hold that it
/// expires, or [`HELD_AGAIN_TOLD_MAX`] when time is turned back.
#[derive(Debug, Default)]
pub struct FreshEvents {
    /// All of them, encoded, one after the other.
    bytes: Vec<u8>,
    /// The number and time of each, and where it ends.
    ends: Vec<(u64, Timestamp, usize)>,
}

/// An event that was just made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewEvent<'a> {
    /// Its number.
    pub number: u64,
    /// Its time.
    pub at: Timestamp,
    /// The event, encoded.
    pub bytes: &'a [u8],
}

impl FreshEvents {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The events, in order.
    pub fn iter(&self) -> impl Iterator<Item = NewEvent<'_>> {
        let begins = std::iter::once(0).chain(self.ends.iter().map(|(_, _, end)| *end));
        self.ends.iter().zip(begins).map(|(&(number, at, end), begin)| NewEvent {
            number,
            at,
            bytes: &self.bytes[begin..end],
        })
    }

    /// Removes all events. Keeps a little memory for the next ones.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.bytes.shrink_to(KEPT_BYTES_MAX);
        self.ends.shrink_to(KEPT_BYTES_MAX / size_of::<(u64, Timestamp, usize)>());
    }
}

/// Before the first event.
impl Default for Events {
    fn default() -> Self {
        Self { is_on: false, last: 0, next: 1, by: None, fresh: FreshEvents::default() }
    }
}

impl Events {
    pub(super) fn switch(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    /// The number of the last event; 0 if there never was one.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The number that the next event gets.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Lets the numbers jump, so that none is used again that a reader may know from before a restore, or from an earlier restore of
    /// the same backup. `clock` is what the clock said.
    pub(super) fn leap(&mut self, clock: Timestamp) {
        let seconds = (clock.0 / 1_000).min(u64::from(u32::MAX));
        self.next = self.next.saturating_add(RESTORE_LEAP).max(seconds * RESTORE_NUMBERS_A_SECOND);
    }

    /// Reports what the API key of the entry has asked for.
    #[inline]
    pub(super) fn tell<'a>(&mut self, at: Timestamp, what: impl FnOnce() -> Happened<'a>) {
        if self.is_on {
            let by = self.by.take();
            self.push(&Event { at, by: by.as_ref().map(|by| Cow::Borrowed(by.as_str())), what: what() });
            self.by = by;
        }
    }

    /// Reports what nobody has asked for.
    #[inline]
    pub(super) fn tell_unasked<'a>(&mut self, at: Timestamp, what: impl FnOnce() -> Happened<'a>) {
        if self.is_on {
            self.push(&Event { at, by: None, what: what() });
        }
    }

    /// The events that were not taken yet.
    pub fn fresh(&self) -> &FreshEvents {
        &self.fresh
    }

    /// Takes those. `empty`, whose memory is used for the next ones, is replaced by them.
    pub(super) fn take(&mut self, empty: &mut FreshEvents) {
        empty.clear();
        std::mem::swap(&mut self.fresh, empty);
    }

    fn push(&mut self, event: &Event<'_>) {
        event.encode(&mut self.fresh.bytes);
        self.fresh.ends.push((self.next, event.at, self.fresh.bytes.len()));
        self.last = self.next;
        self.next += 1;
    }

    /// Memory that is set aside for events, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        if self.is_on { FIXED_BYTES } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(fresh: &FreshEvents) -> Vec<(u64, Option<String>, Happened<'static>)> {
        let decode = |event: NewEvent<'_>| {
            let Event { at, by, what } = Event::decode(event.bytes).unwrap();
            assert_eq!(at, event.at);
            (event.number, by.map(Cow::into_owned), what)
        };
        fresh.iter().map(decode).collect()
    }

    #[test]
    fn events_are_numbered_and_name_the_key_that_asked() {
        let mut events = Events::default();
        events.tell(Timestamp(1), || unreachable!("it is off"));
        events.switch(true);
        events.by = Some(KeyName::new("shop"));
        let turned_back = |holds| Happened::TurnedBack { redemptions: 0, holds };
        events.tell(Timestamp(1), || turned_back(1));
        events.tell_unasked(Timestamp(2), || turned_back(2));
        events.leap(Timestamp(0));
        events.tell(Timestamp(3), || Happened::Restored);
        let (shop, third) = (Some("shop".to_owned()), 3 + RESTORE_LEAP);
        let expected =
            [(1, shop.clone(), turned_back(1)), (2, None, turned_back(2)), (third, shop, Happened::Restored)];
        assert_eq!(taken(&events.fresh), expected);
        assert_eq!((events.last(), events.next()), (third, third + 1));
        events.fresh.clear();
        assert_eq!(taken(&events.fresh), []);
    }
}
