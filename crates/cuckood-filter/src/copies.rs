//! What filters share that hold copies of items: many items at a time, all or none.

use super::hash::Digest;
use super::insert::{Full, Insert};
use super::table::GROUP;

/// A filter that holds copies of items.
pub(super) trait Copies {
    /// Asks for the cache lines that an item may lie in.
    fn prefetch(&self, digest: Digest);

    /// Adds a copy of an item.
    fn add(&mut self, digest: Digest, if_absent: bool) -> Result<Insert, Full>;

    /// Removes a copy of an item, the one that was added last if copies differ. Returns whether there was one.
    fn take(&mut self, digest: Digest) -> bool;

    /// Goes on with adding items, of which the first ones have outcomes already. If there is no room, those that were added are
    /// removed again.
    fn add_rest(
        &mut self,
        digests: &[Digest],
        if_absent: bool,
        mut outcomes: Vec<Insert>,
    ) -> Result<Vec<Insert>, Full> {
        for group in digests[outcomes.len()..].chunks(GROUP) {
            group.iter().for_each(|&digest| self.prefetch(digest));
            for &digest in group {
                match self.add(digest, if_absent) {
                    Ok(outcome) => outcomes.push(outcome),
                    Err(full) => {
                        let of = digests.iter().zip(&outcomes).rev();
                        of.filter(|(_, outcome)| **outcome == Insert::Added).for_each(|(&digest, _)| {
                            self.take(digest);
                        });
                        return Err(full);
                    }
                }
            }
        }
        Ok(outcomes)
    }

    /// Removes one copy of each item, in order. Returns for each whether there was one.
    fn take_each(&mut self, digests: &[Digest]) -> Vec<bool> {
        let mut taken = Vec::with_capacity(digests.len());
        for group in digests.chunks(GROUP) {
            group.iter().for_each(|&digest| self.prefetch(digest));
            taken.extend(group.iter().map(|&digest| self.take(digest)));
        }
        taken
    }

    /// Removes every copy of an item. Returns how many there were.
    fn take_all(&mut self, digest: Digest) -> u32 {
        let mut taken = 0;
        while self.take(digest) {
            taken += 1;
        }
        taken
    }
}
