//! Results of applied entries for others: events, and a running hash.
//!
//! `apply` reports changes here, and its caller takes the events after each entry. They depend on the log alone, numbers included. So a
//! replay of the same entries repeats the events that were not stored before a crash.
//!
//! The running hash covers everything applied: each entry, its outcome, and the state's totals after it, chained to the previous hash.
//! Nodes with the same log have the same hash at every position, and a difference is permanent. So it reveals that two nodes have read
//! different entries, or have computed different outcomes, expiries or events: because of a defect, of two builds that disagree, or of
//! damaged memory as soon as an outcome depends on it. It is no checksum of the tables: a flipped bit in one is not detected before a
//! command depends on it.

use crate::domain::{
    Applied, EVENT_BYTES_MAX, Entry, Event, Happened, KeyName, RESTORE_LEAP,
    RESTORE_NUMBERS_A_SECOND, STATE_HASH_EVERY, Seq, StateHash, Timestamp,
};
use crate::frame::append;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use xxhash_rust::xxh3::xxh3_128;

/// Maximum number of revived holds with separate events when time is turned back. The summary event has the total.
pub(super) const REVIVED_EVENTS_MAX: u64 = 10_000;

/// Memory for events that are not stored yet, in bytes: those of an ordinary entry, and a value that is being filled
/// (`engine/event_log.rs`). An entry that withdraws ten thousand held codes makes 4 MB of events, which are taken before the next entry.
/// Like the request, they are not counted.
pub(super) const FIXED_BYTES: u64 = 128 << 10;

/// A larger buffer is freed.
const RETAINED_BYTES_MAX: usize = 64 << 10;

/// The state's part of the events.
#[derive(Debug, Serialize, Deserialize)]
pub struct Events {
    /// Whether events are made at all.
    #[serde(skip)]
    pub(super) is_on: bool,
    /// The number of the last event.
    last: u64,
    /// The number of the next one. It is not always the one after that: see [`Command::Restored`](crate::domain::Command::Restored).
    next: u64,
    /// The API key that asked for the entry that is being applied.
    #[serde(skip)]
    pub(super) by: Option<KeyName>,
    #[serde(skip)]
    pub(super) fresh: FreshEvents,
}

/// Events that were made, but not taken yet. An entry makes a bounded number: one for each item of its command, one for each hold that it
/// expires, or [`REVIVED_EVENTS_MAX`] when time is turned back.
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
        self.ends
            .iter()
            .zip(begins)
            .map(|(&(number, at, end), begin)| NewEvent {
                number,
                at,
                bytes: &self.bytes[begin..end],
            })
    }

    /// Removes all events. Keeps a little memory for the next ones.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.bytes.shrink_to(RETAINED_BYTES_MAX);
        self.ends
            .shrink_to(RETAINED_BYTES_MAX / size_of::<(u64, Timestamp, usize)>());
    }
}

/// Before the first event.
impl Default for Events {
    fn default() -> Self {
        Self {
            is_on: false,
            last: 0,
            next: 1,
            by: None,
            fresh: FreshEvents::default(),
        }
    }
}

impl Events {
    /// The number of the last event; 0 if there never was one.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The number that the next event gets.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Skips event numbers at a restore, so that none is reused that a reader may know from before it, or from an earlier restore of the
    /// same backup. `clock` is the clock's reading.
    pub(super) fn leap(&mut self, clock: Timestamp) {
        let seconds = (clock.0 / 1_000).min(u64::from(u32::MAX));
        self.next = self
            .next
            .saturating_add(RESTORE_LEAP)
            .max(seconds * RESTORE_NUMBERS_A_SECOND);
    }

    /// Records a change that the entry's API key has requested.
    #[inline]
    pub(super) fn record<'a>(&mut self, at: Timestamp, what: impl FnOnce() -> Happened<'a>) {
        if self.is_on {
            let by = self.by.take();
            self.push(&Event {
                at,
                by: by.as_ref().map(|by| Cow::Borrowed(by.as_str())),
                what: what(),
            });
            self.by = by;
        }
    }

    /// Records a change without a request.
    #[inline]
    pub(super) fn record_unrequested<'a>(
        &mut self,
        at: Timestamp,
        what: impl FnOnce() -> Happened<'a>,
    ) {
        if self.is_on {
            self.push(&Event {
                at,
                by: None,
                what: what(),
            });
        }
    }

    /// The events that were not taken yet.
    pub fn fresh(&self) -> &FreshEvents {
        &self.fresh
    }

    fn push(&mut self, event: &Event<'_>) {
        let begin = self.fresh.bytes.len();
        append(event, &mut self.fresh.bytes);
        debug_assert!(self.fresh.bytes.len() - begin <= EVENT_BYTES_MAX);
        self.fresh
            .ends
            .push((self.next, event.at, self.fresh.bytes.len()));
        self.last = self.next;
        self.next += 1;
    }

    /// Memory reserved for events, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        if self.is_on { FIXED_BYTES } else { 0 }
    }
}

/// The hashes up to the last entry.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct History {
    /// After the last entry.
    pub(super) hash: u128,
    /// At the last position at which nodes compare.
    pub(super) last: StateHash,
    #[serde(skip)]
    buffer: Vec<u8>,
}

impl History {
    /// An entry is about to be applied.
    pub(super) fn begin(&mut self, entry: &Entry) {
        self.buffer.clear();
        self.buffer.extend_from_slice(&self.hash.to_le_bytes());
        append(entry, &mut self.buffer);
    }

    /// Completes the entry's part of the hash, with its outcome and the state's totals.
    pub(super) fn end(&mut self, at: Seq, applied: &Applied, figures: [u64; 8]) {
        append(
            &(&applied.outcome, applied.replayed, figures),
            &mut self.buffer,
        );
        self.hash = xxh3_128(&self.buffer);
        self.buffer.shrink_to(RETAINED_BYTES_MAX);
        if at.0.is_multiple_of(STATE_HASH_EVERY) {
            self.last = StateHash {
                at,
                hash: self.hash,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::domain::{Command, Outcome, Proposal, Refusal};
    use crate::frame::decode;

    fn taken(fresh: &FreshEvents) -> Vec<(u64, Option<String>, Happened<'static>)> {
        let decode = |event: NewEvent<'_>| {
            let Event { at, by, what } = decode::<Event<'_>>(event.bytes).unwrap();
            assert_eq!(at, event.at);
            (event.number, by.map(Cow::into_owned), what)
        };
        fresh.iter().map(decode).collect()
    }

    #[test]
    fn events_are_numbered_and_name_key() {
        let mut events = Events::default();
        events.record(Timestamp(1), || unreachable!("it is off"));
        events.is_on = true;
        events.by = Some(KeyName::new("shop").unwrap());
        let turned_back = |holds| Happened::TurnedBack {
            redemptions: 0,
            holds,
        };
        events.record(Timestamp(1), || turned_back(1));
        events.record_unrequested(Timestamp(2), || turned_back(2));
        events.leap(Timestamp(0));
        events.record(Timestamp(3), || Happened::Restored);
        let shop = Some("shop".to_owned());
        let third = 3 + RESTORE_LEAP;
        let expected = [
            (1, shop.clone(), turned_back(1)),
            (2, None, turned_back(2)),
            (third, shop, Happened::Restored),
        ];
        assert_eq!(taken(&events.fresh), expected);
        assert_eq!((events.last(), events.next()), (third, third + 1));
        events.fresh.clear();
        assert_eq!(taken(&events.fresh), []);
    }

    fn entry(seq: u64, at: u64) -> Entry {
        Entry {
            seq: Seq(seq),
            proposal: Proposal::new(Timestamp(at), Command::Advance { buckets_max: 1 }),
        }
    }

    fn state_after(times: impl IntoIterator<Item = u64>) -> State {
        let mut state = State::default();
        for (seq, at) in (1..).zip(times) {
            state.apply(entry(seq, at));
        }
        state
    }

    #[test]
    fn hash_differs_permanently_after_divergence() {
        let hash = |times: [u64; 3]| state_after(times).hash();
        assert_eq!(hash([1, 2, 3]), hash([1, 2, 3]));
        assert_eq!(hash([1, 2, 3]).at, Seq(3));
        // The state itself is the same in the end.
        assert_ne!(hash([1, 2, 3]).hash, hash([2, 2, 3]).hash);
        assert_ne!(
            state_after([1, 2]).hash().hash,
            state_after([1, 2, 2]).hash().hash
        );
    }

    #[test]
    fn hash_depends_on_outcome_and_totals() {
        let hash = |outcome, replayed, figures| {
            let mut history = History::default();
            history.begin(&entry(1, 1));
            history.end(Seq(1), &Applied { outcome, replayed }, figures);
            history.hash
        };
        let usual = hash(Outcome::Advanced, false, [0; 8]);
        assert_eq!(hash(Outcome::Advanced, false, [0; 8]), usual);
        assert_ne!(
            hash(Outcome::Refused(Refusal::FilterGone), false, [0; 8]),
            usual
        );
        assert_ne!(hash(Outcome::Advanced, true, [0; 8]), usual);
        for number in 0..8 {
            let mut figures = [0; 8];
            figures[number] = 1;
            assert_ne!(
                hash(Outcome::Advanced, false, figures),
                usual,
                "figure {number}"
            );
        }
    }

    #[test]
    fn hash_at_common_position_is_stored() {
        let mut state = state_after(std::iter::repeat_n(7, STATE_HASH_EVERY as usize - 1));
        assert_eq!(state.last_hash(), StateHash::default());
        state.apply(entry(STATE_HASH_EVERY, 7));
        let kept = state.hash();
        assert_eq!((state.last_hash(), kept.at), (kept, Seq(STATE_HASH_EVERY)));
        state.apply(entry(STATE_HASH_EVERY + 1, 7));
        assert_eq!(state.last_hash(), kept);
        assert_ne!(state.hash().hash, kept.hash);
    }
}
