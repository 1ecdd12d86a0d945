//! Events on disk: packs of events, in trees that are dropped in one step.
//!
//! ```text
//! tree events/TREE   the tree's metadata (postcard, hexadecimal): its first number, its times, and the size of all before it
//! key:     number of the pack's first event u64, big-endian
//! value:   the pack in a frame "ckev"
//! ```
//!
//! `previous` is the number of the event before the pack, so a missing pack is noticed although numbers may jump. `since` is the time
//! of the first event.
//!
//! The engine defines the meaning of the events, and drops them.

use super::backing::KeyChange;
use super::{Store, StoreError, directory};
use cuckood_state::domain::{EVENT_BYTES_MAX, Timestamp};
use cuckood_state::frame::{FRAME_BYTES, FrameFormat, decode, encode};
use derive_more::{AddAssign, SubAssign};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;

const FORMAT: FrameFormat = FrameFormat {
    magic: *b"ckev",
    version: 1,
    oldest: 1,
    payload_max: directory::VALUE_BYTES_MAX - FRAME_BYTES,
};

/// Maximum size of a value besides its events, in bytes.
const HEAD_BYTES: usize = FRAME_BYTES + 40;

/// Bytes of a full pack's payload: one more event always fits into the value.
const FULL_BYTES: usize = 48 << 10;

const _: () = assert!(
    FULL_BYTES + EVENT_BYTES_MAX + size_of::<u16>() + HEAD_BYTES <= directory::VALUE_BYTES_MAX
);

/// A tree of events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct EventTree {
    /// The lowest number that an event in it can have.
    pub first: u64,
    /// None of its events is from before this time.
    pub since: Timestamp,
    /// All its events are from before this time.
    pub until: Timestamp,
    /// The size of all earlier events, including deleted ones.
    pub before: EventSize,
}

impl EventTree {
    /// The tree's name.
    pub fn name(self) -> String {
        format!("{}{}", directory::EVENT_TREES, hex::encode(encode(&self)))
    }

    /// The tree of this name, if it has events.
    fn named(name: &str) -> Option<Self> {
        decode(&hex::decode(name.strip_prefix(directory::EVENT_TREES)?).ok()?)
    }

    /// Whether it may have events of this time.
    pub fn covers(&self, at: Timestamp) -> bool {
        self.since <= at && at < self.until
    }
}

/// The size of some events.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    Default,
    AddAssign,
    SubAssign,
    Serialize,
    Deserialize,
)]
pub struct EventSize {
    /// Their number.
    pub events: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Events with consecutive numbers, stored in one value. An empty one is where the next events go.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EventPack {
    /// The number of the first event.
    pub first: u64,
    /// The number of the event before it.
    pub previous: u64,
    /// How many events it has.
    pub count: u32,
    /// The time of the first event.
    pub since: Timestamp,
    /// Each event after its length.
    #[serde(with = "serde_bytes")]
    payload: Vec<u8>,
}

impl EventPack {
    /// An empty pack whose first event has this number, after the event of number `previous`.
    pub fn empty(first: u64, previous: u64) -> Self {
        Self {
            first,
            previous,
            ..Self::default()
        }
    }

    /// Whether it has no event.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether no more events should be added.
    pub fn is_full(&self) -> bool {
        self.payload.len() >= FULL_BYTES
    }

    /// The number of the last event; of the one before, if it is empty.
    pub fn last(&self) -> u64 {
        if self.is_empty() {
            self.previous
        } else {
            self.first + u64::from(self.count) - 1
        }
    }

    /// Adds the event with the next number.
    ///
    /// # Panics
    /// When it is longer than [`EVENT_BYTES_MAX`].
    pub fn push(&mut self, at: Timestamp, event: &[u8]) {
        assert!(
            event.len() <= EVENT_BYTES_MAX,
            "an event of {} bytes",
            event.len()
        );
        if self.is_empty() {
            self.since = at;
        }
        self.count += 1;
        self.payload
            .extend_from_slice(&(event.len() as u16).to_le_bytes());
        self.payload.extend_from_slice(event);
    }

    /// The events with their numbers, in order.
    pub fn events(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut rest = self.payload.as_slice();
        (self.first..)
            .take(self.count as usize)
            .map_while(move |number| {
                let (length, after) = rest.split_first_chunk()?;
                let (event, after) = after.split_at_checked(u16::from_le_bytes(*length).into())?;
                rest = after;
                Some((number, event))
            })
    }

    /// The same pack without the events after `last`. It must have an event of that number.
    pub fn up_to(&self, last: u64) -> Self {
        let count = (last + 1 - self.first) as u32;
        let bytes: usize = self
            .events()
            .take(count as usize)
            .map(|(_, event)| size_of::<u16>() + event.len())
            .sum();
        Self {
            count,
            payload: self.payload[..bytes].to_vec(),
            ..*self
        }
    }

    /// Its size as a value, to a few bytes.
    pub fn size(&self) -> EventSize {
        let bytes = if self.is_empty() {
            0
        } else {
            HEAD_BYTES + self.payload.len()
        };
        EventSize {
            events: self.count.into(),
            bytes: bytes as u64,
        }
    }

    /// The pack as a value.
    pub fn encode(&self) -> Vec<u8> {
        FORMAT.pack(self)
    }

    /// The pack of a value.
    ///
    /// # Errors
    /// The defect, if the event is damaged.
    pub fn decode(value: &[u8]) -> Result<Self, String> {
        let pack: Self = FORMAT.unpack(value).map_err(|error| error.to_string())?;
        pack.check().map(|()| pack).map_err(str::to_owned)
    }

    /// Validates the number of events and their numbers.
    ///
    /// # Errors
    /// The defect, if the pack is damaged.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let bytes: usize = self
            .events()
            .map(|(_, event)| size_of::<u16>() + event.len())
            .sum();
        let is_sound = self.events().count() == self.count as usize && bytes == self.payload.len();
        let is_ordered =
            self.previous < self.first && self.first.checked_add(u64::from(self.count)).is_some();
        let is_right = is_sound && is_ordered && self.count > 0;
        is_right
            .then_some(())
            .ok_or("a pack of events contradicts itself")
    }
}

/// The events of a store.
#[derive(Clone, Copy)]
pub struct EventStore<'a>(&'a Store);

impl Store {
    /// Its events.
    pub fn events(&self) -> EventStore<'_> {
        EventStore(self)
    }
}

impl EventStore<'_> {
    /// All trees, in order.
    pub fn trees(&self) -> Vec<EventTree> {
        let names = self.0.backing().tree_names();
        let mut trees: Vec<_> = names
            .iter()
            .filter_map(|name| EventTree::named(name))
            .collect();
        trees.sort_unstable();
        trees
    }

    /// Makes an empty tree.
    pub fn begin_tree(&self, tree: EventTree) -> Result<(), StoreError> {
        self.0.write(&tree.name(), Vec::new())
    }

    /// Writes a pack, or replaces the one with the same first event. It is not durable yet.
    ///
    /// It doesn't check the free disk space: once the log has accepted a command, its events must be written. Callers that propose commands
    /// check the space for the events of expiring holds; a command's own events take a few times less.
    pub fn put(&self, tree: EventTree, pack: &EventPack) -> Result<(), StoreError> {
        let key = directory::number_key(pack.first).to_vec();
        // If storage has failed, a pack may have become longer than a value.
        self.0
            .change(|backing| backing.write(&tree.name(), vec![KeyChange::Put(key, pack.encode())]))
    }

    /// The pack that has the event of this number, or else the first one after it. `trees` are all trees, in order.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the pack can't be read.
    pub fn find_from(
        &self,
        trees: &[EventTree],
        number: u64,
    ) -> Result<Option<EventPack>, StoreError> {
        let at = trees
            .partition_point(|tree| tree.first <= number)
            .saturating_sub(1);
        for tree in trees.iter().skip(at) {
            let key = directory::number_key(number);
            let mut found = None;
            let before = self
                .0
                .run(self.0.backing().last_key(&tree.name(), Some(&key)))?;
            let from = before.unwrap_or(key.to_vec());
            self.scan(*tree, &from, |pack| {
                found = Some(pack).filter(|pack| pack.last() >= number);
                if found.is_some() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Drops a tree immediately. [`Removal`](super::Removal) drops a large one in steps.
    pub fn drop_tree(&self, tree: EventTree) -> Result<(), StoreError> {
        self.0.drop_tree(&tree.name())
    }

    /// Removes the packs of a tree whose first event has this number or a later one.
    pub fn remove_from(&self, tree: EventTree, number: u64) -> Result<(), StoreError> {
        let mut changes = Vec::new();
        self.0.run(self.0.backing().scan(
            &tree.name(),
            &directory::number_key(number),
            &mut |key, _| {
                changes.push(KeyChange::Remove(key.to_vec()));
                ControlFlow::Continue(())
            },
        ))?;
        if changes.is_empty() {
            return Ok(());
        }
        self.0.write(&tree.name(), changes)
    }

    /// Visits the packs of a tree from a key on, in order.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] for a pack that can't be read.
    pub fn scan(
        &self,
        tree: EventTree,
        from: &[u8],
        mut visit: impl FnMut(EventPack) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let name = tree.name();
        let mut damaged = None;
        self.0
            .run(self.0.backing().scan(&name, from, &mut |key, value| {
                let pack = EventPack::decode(value).and_then(|pack| {
                    match key == directory::number_key(pack.first) {
                        true => Ok(pack),
                        false => Err("it is stored under the wrong key".to_owned()),
                    }
                });
                match pack {
                    Ok(pack) => visit(pack),
                    Err(why) => {
                        let number = directory::number_of_key(key).unwrap_or_default();
                        damaged = Some(
                            self.0
                                .damaged(format!("tree {name}, event {number}: {why}")),
                        );
                        ControlFlow::Break(())
                    }
                }
            }))?;
        damaged.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreOptions;
    use proptest::prelude::*;

    fn pack(first: u64, lengths: &[usize]) -> EventPack {
        let mut pack = EventPack::empty(first, first - 1);
        for (at, length) in (first..).zip(lengths) {
            pack.push(Timestamp(at), &vec![at as u8; *length]);
        }
        pack
    }

    proptest! {
        #[test]
        fn pack_round_trips_unless_altered(
            first in 1..u64::MAX / 2,
            lengths in proptest::collection::vec(0..EVENT_BYTES_MAX, 1..40),
            (kept, change) in any::<(u64, (usize, u8))>(),
        ) {
            let pack = pack(first, &lengths);
            let value = pack.encode();
            prop_assert_eq!(EventPack::decode(&value), Ok(pack.clone()));
            let last = first + kept % lengths.len() as u64;
            let part = pack.up_to(last);
            prop_assert_eq!(part.last(), last);
            let size = part.size();
            let length = part.encode().len() as u64;
            prop_assert_eq!(size.events, last + 1 - first);
            prop_assert!((length..length + 40).contains(&size.bytes), "{} of {}", size.bytes, length);
            let expected: Vec<_> = pack.events().take_while(|(number, _)| *number <= last).collect();
            prop_assert_eq!(part.events().collect::<Vec<_>>(), expected);
            let mut changed = value.clone();
            let at = change.0 % changed.len();
            changed[at] ^= change.1.max(1);
            prop_assert!(EventPack::decode(&changed).is_err());
            prop_assert!(EventPack::decode(&value[..at]).is_err());
        }
    }

    /// For any gaps, the pack with a number is found, or the first one after it.
    #[test]
    fn pack_is_found_by_any_number() {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            free_space_min_bytes: 0,
            ballast_bytes: 0,
            ..StoreOptions::default()
        };
        let store = Store::open(dir.path(), &options).unwrap();
        let before = EventSize {
            events: 300,
            bytes: 70_000,
        };
        let tree = |first| EventTree {
            first,
            since: Timestamp(6),
            until: Timestamp(7),
            before,
        };
        // The second tree is empty, and numbers jump from 9 to 20.
        for first in [1, 7, 10, 20] {
            store.events().begin_tree(tree(first)).unwrap();
        }
        let packs = [
            (1, pack(1, &[3, 3])),
            (1, pack(3, &[3; 4])),
            (7, pack(7, &[0, 1, 2])),
            (20, pack(20, &[9])),
        ];
        for (first, pack) in &packs {
            store.events().put(tree(*first), pack).unwrap();
        }
        let trees = store.events().trees();
        assert_eq!(trees, [1, 7, 10, 20].map(tree));
        for number in 0..25 {
            let found = store.events().find_from(&trees, number).unwrap();
            let expected = packs
                .iter()
                .map(|(_, pack)| pack)
                .find(|pack| pack.last() >= number);
            assert_eq!(found.as_ref(), expected, "{number}");
        }
        store.events().put(tree(1), &pack(7, &[1])).unwrap();
        let scanned = || {
            let mut found = Vec::new();
            store.events().scan(tree(1), &[], |pack| {
                found.push(pack.first);
                ControlFlow::Continue(())
            })?;
            Ok::<_, StoreError>(found)
        };
        assert_eq!(scanned().unwrap(), [1, 3, 7]);
        store.events().remove_from(tree(1), 3).unwrap();
        assert_eq!(scanned().unwrap(), [1]);
        assert_eq!(
            store.events().find_from(&trees, 2).unwrap().unwrap().first,
            1
        );
        assert_eq!(
            store.events().find_from(&trees, 3).unwrap().unwrap().first,
            7
        );
        store.events().drop_tree(tree(1)).unwrap();
        assert_eq!(store.events().trees(), [7, 10, 20].map(tree));
    }
}
