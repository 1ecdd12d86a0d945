//! The queues of redemptions to which something happens by itself, in the order of time: holds expire, and ended redemptions are
//! forgotten.
//!
//! Each filter has queues of its own, so that they leave with it in one piece. The heads of all queues are kept in order, so the
//! next redemption of all filters is found at once.

use crate::domain::{FilterId, Redemption, RedemptionId, Timestamp};
use std::collections::BTreeSet;

/// Redemptions of one filter by a time.
pub(super) type Queue = BTreeSet<(Timestamp, RedemptionId)>;

/// The redemptions of one filter. Each is in one of the two queues.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// Held ones, by the time at which they expire.
    pub(super) holds: Queue,
    /// All others, by the time of their last change.
    pub(super) ended: Queue,
}

impl Due {
    /// The queues of these redemptions.
    pub(super) fn of<'a>(redemptions: impl Iterator<Item = &'a Redemption>) -> Self {
        let entry = |redemption: &Redemption| {
            (redemption.held_until().unwrap_or(redemption.changed_at), redemption.id)
        };
        let (held, ended): (Vec<_>, Vec<_>) = redemptions.partition(|one| one.held_until().is_some());
        // A set is made faster of all at once.
        Self { holds: held.into_iter().map(entry).collect(), ended: ended.into_iter().map(entry).collect() }
    }

    /// Puts a redemption into the queue that its status belongs to.
    pub(super) fn add(&mut self, redemption: &Redemption) {
        let id = redemption.id;
        match redemption.held_until() {
            Some(expires_at) => self.holds.insert((expires_at, id)),
            None => self.ended.insert((redemption.changed_at, id)),
        };
    }
}

/// The queues of one kind, of all filters.
#[derive(Debug, Default)]
pub(super) struct Heads {
    /// The first entry of each queue that is not empty.
    first: BTreeSet<(Timestamp, RedemptionId, FilterId)>,
    /// Entries in all queues.
    len: u64,
}

impl Heads {
    /// The earliest time in all queues, and the filter whose queue has it.
    pub(super) fn first(&self) -> Option<(Timestamp, FilterId)> {
        self.first.first().map(|&(at, _, filter)| (at, filter))
    }

    /// Entries in all queues.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Changes the queue of a filter.
    pub(super) fn change<T>(
        &mut self,
        filter: FilterId,
        queue: &mut Queue,
        change: impl FnOnce(&mut Queue) -> T,
    ) -> T {
        let (before, len) = (queue.first().copied(), queue.len() as u64);
        let changed = change(queue);
        self.len = self.len + queue.len() as u64 - len;
        let after = queue.first().copied();
        if before != after {
            if let Some((at, id)) = before {
                self.first.remove(&(at, id, filter));
            }
            self.first.extend(after.map(|(at, id)| (at, id, filter)));
        }
        changed
    }

    /// Takes the queue of a filter up as it is.
    pub(super) fn adopt(&mut self, filter: FilterId, queue: &Queue) {
        self.len += queue.len() as u64;
        self.first.extend(queue.first().map(|&(at, id)| (at, id, filter)));
    }

    /// Lets go of the queue of a filter.
    pub(super) fn forsake(&mut self, filter: FilterId, queue: &Queue) {
        self.len -= queue.len() as u64;
        if let Some(&(at, id)) = queue.first() {
            self.first.remove(&(at, id, filter));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The queues of all filters together are in the order that one queue of all would have.
        #[test]
        fn the_first_of_all_is_found(
            changes in proptest::collection::vec((0..4_u8, 0..5_u64, 0..30_u64, 0..6_u8), 1..200),
        ) {
            let (mut heads, mut queues) = (Heads::default(), [const { Queue::new() }; 5]);
            let mut all = BTreeSet::<(Timestamp, RedemptionId, FilterId)>::new();
            for (what, filter, at, id) in changes {
                let queue = &mut queues[filter as usize];
                let (at, id, filter) = (Timestamp(at), RedemptionId([id; 16]), FilterId(filter));
                match what {
                    0 => {
                        heads.change(filter, queue, |queue| queue.remove(&(at, id)));
                        all.remove(&(at, id, filter));
                    }
                    1 if at == Timestamp(0) => {
                        prop_assert_eq!(queue.len(), all.iter().filter(|entry| entry.2 == filter).count());
                        heads.forsake(filter, queue);
                        if id != RedemptionId([0; 16]) {
                            heads.adopt(filter, queue);
                            continue;
                        }
                        queue.clear();
                        all.retain(|entry| entry.2 != filter);
                    }
                    _ => {
                        heads.change(filter, queue, |queue| queue.insert((at, id)));
                        all.insert((at, id, filter));
                    }
                }
                prop_assert_eq!(heads.first(), all.first().map(|&(at, _, filter)| (at, filter)));
                prop_assert_eq!(heads.len(), all.len() as u64);
            }
        }
    }
}
