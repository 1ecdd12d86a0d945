//! How a strict table is searched: a slot is a word there, so one subtraction tells whether it holds an item, and in which state.

use super::hash::Digest;
use super::place::{Place, Probe};
use super::slot_state::STATE_MASK;
use super::slots::STRICT_SLOTS;
use super::table::{GROUP, Table};
use super::words::AtomicU64;
use std::hint::select_unpredictable;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Acquire;

const SLOTS: usize = STRICT_SLOTS as usize;

type Bucket = [AtomicU64; SLOTS];

impl Table {
    /// The slot value of an item of a strict table: its digest and its state.
    #[inline]
    pub(super) fn get(&self, digest: Digest) -> Option<u64> {
        let before = self.version();
        let held = self.get_once(&self.strict_kind().place.probe(digest));
        if held.is_some() || self.is_sure(before) { held } else { self.get_moving(digest) }
    }

    /// [`Table::get`] while items move. It is a function of its own so that the usual case needs no stack.
    #[cold]
    #[inline(never)]
    fn get_moving(&self, digest: Digest) -> Option<u64> {
        let probe = self.strict_kind().place.probe(digest);
        self.look(|| self.get_once(&probe))
    }

    /// [`Table::get`] for each item that has nothing in `found` yet; `of` turns its slot value into what is wanted, if it is.
    pub(super) fn get_many<T>(
        &self,
        digests: &[Digest],
        found: &mut [Option<T>],
        of: impl Fn(u64) -> Option<T>,
    ) {
        let kind = self.strict_kind();
        let mut found = found.chunks_mut(GROUP);
        self.for_each_group(kind, digests, |probes| {
            let found = found.next().unwrap_or_default().iter_mut();
            for (found, probe) in found.zip(probes).filter(|(found, _)| found.is_none()) {
                *found = self.look(|| self.get_once(probe)).and_then(&of);
            }
            ControlFlow::Continue(())
        });
    }

    #[inline(always)]
    fn get_once(&self, probe: &Probe) -> Option<u64> {
        let mut held = Held::none(probe);
        for bucket in self.pair(probe) {
            bucket.iter().for_each(|slot| held.look_at(slot.load(Acquire)));
        }
        held.slot_value()
    }

    /// For the writer, in one pass: the slot value of an item, whatever the state in its probe, and what [`Table::vacant_of_pair`] says.
    #[inline(always)]
    pub(super) fn get_and_vacant(&self, probe: &Probe) -> (Option<u64>, Option<(u64, u32, u64)>) {
        const NONE: usize = 2 * SLOTS;
        let pair = self.pair(probe);
        let (mut held, mut vacant) = (Held::none(probe), NONE);
        // The lowest vacant slot comes last, and of two in the same place the first bucket's.
        for at in (0..NONE).rev() {
            let slot = pair[at % 2][at / 2].load(Acquire);
            held.look_at(slot);
            vacant = select_unpredictable(slot == 0, at, vacant);
        }
        let bucket = select_unpredictable(vacant % 2 == 0, probe.buckets[0], probe.buckets[1]);
        (held.slot_value(), (vacant < NONE).then_some((bucket, vacant as u32 / 2, probe.values[0])))
    }

    /// The two buckets of an item.
    #[inline(always)]
    fn pair(&self, probe: &Probe) -> [&Bucket; 2] {
        let (buckets, _) = self.words.as_chunks();
        probe.buckets.map(|bucket| &buckets[bucket as usize])
    }
}

/// What slots have told so far of an item.
///
/// The slot of an item is above the value that it is looked up by: by its state, which is never zero. No other slot is so little
/// above, and a free one never is.
struct Held {
    /// The item's slot value if it is in the lowest state.
    lowest: u64,
    /// How far its slot is above that.
    above: u64,
}

impl Held {
    #[inline(always)]
    fn none(probe: &Probe) -> Self {
        // Both values are the same in a strict table.
        Self { lowest: (probe.values[0] & !STATE_MASK) | 1, above: u64::MAX }
    }

    /// No branch: which slot has the item can't be predicted.
    #[inline(always)]
    fn look_at(&mut self, slot: u64) {
        let above = slot.wrapping_sub(self.lowest);
        self.above = select_unpredictable(above < STATE_MASK, above, self.above);
    }

    #[inline(always)]
    fn slot_value(&self) -> Option<u64> {
        (self.above < STATE_MASK).then(|| self.lowest + self.above)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::TablePlan;
    use proptest::prelude::*;
    use std::sync::atomic::Ordering::Relaxed;

    const LAST: u64 = (1 << 62) - 1;

    fn slots() -> impl Strategy<Value = Vec<(u64, u64)>> {
        let digests = Just(vec![0, 1, 2, LAST / 2, LAST / 2 + 1, LAST / 3, LAST - 1, LAST]).prop_shuffle();
        (digests, prop::collection::vec(0..=STATE_MASK, 2 * SLOTS))
            .prop_map(|(digests, states)| digests.into_iter().zip(states).collect())
    }

    proptest! {
        /// One pass over both buckets tells what a look at each slot tells, for digests whose slots look much alike, too.
        #[test]
        fn one_pass_tells_what_each_slot_tells(slots in slots(), stranger: u64) {
            let table = Table::new(TablePlan::Strict { buckets: 2 });
            let value = |&(digest, state): &(u64, u64)| if state == 0 { 0 } else { digest << 2 | state };
            for (word, slot) in table.words.iter().zip(&slots) {
                word.store(value(slot), Relaxed);
            }
            let kind = table.strict_kind();
            let digests = slots.iter().map(|slot| slot.0);
            for digest in digests.chain([3, LAST / 2 - 1, LAST / 2 + 2, LAST - 2, stranger]) {
                let probe = kind.place.probe(Digest(digest));
                let held = slots.iter().map(value).find(|held| *held != 0 && held >> 2 == digest & LAST);
                prop_assert_eq!(table.get(Digest(digest)), held);
                prop_assert_eq!(table.locate(kind, &probe).map(|(_, _, held)| held), held);
                for probe in [probe, probe.with_state(STATE_MASK)] {
                    prop_assert_eq!(table.get_and_vacant(&probe), (held, table.vacant_of_pair(kind, &probe)));
                }
            }
        }
    }
}
