//! Compact filters against a multiset: whatever grows, nothing is lost.

use super::*;
use cuckood_filter::{Insert, SlotState};
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Debug)]
enum Operation {
    Insert(u64, u64),
    /// The maximum number of copies of each.
    Crowd(u64, u64),
    Remove(u64, u64),
    Clear,
    Raise(u64),
    Move(u64),
    Restart,
    Send,
}

const NUMBERS: u64 = 300_000;

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        6 => (0..NUMBERS - 80_000, 1_u64..80_000).prop_map(|(from, count)| Operation::Insert(from, count)),
        6 => (0..NUMBERS - 1_000, 1_u64..1_000).prop_map(|(from, count)| Operation::Insert(from, count)),
        4 => (0..NUMBERS - 10_000, 1_u64..10_000).prop_map(|(from, count)| Operation::Crowd(from, count)),
        5 => (0..NUMBERS - 20_000, 1_u64..20_000).prop_map(|(from, count)| Operation::Remove(from, count)),
        2 => (0..NUMBERS - 150_000).prop_map(|from| Operation::Remove(from, 150_000)),
        1 => Just(Operation::Clear),
        3 => (1_u64..20_000).prop_map(Operation::Move),
        2 => (10_u64..400_000).prop_map(Operation::Raise),
        3 => Just(Operation::Restart),
        1 => Just(Operation::Send),
    ];
    proptest::collection::vec(operation, 1..24)
}

/// A filter, one that gets the same items one by one, and the expected copies of each number.
struct Model {
    bits: u8,
    bucket_size: u8,
    filter: Filter,
    twin: Filter,
    copies: Vec<u32>,
    promised: u64,
}

impl Model {
    fn new(capacity: u64, bits: u8, bucket_size: u8) -> Self {
        let [filter, twin] = [(); 2].map(|()| compact(layout(capacity, bits, bucket_size)));
        Self { bits, bucket_size, filter, twin, copies: vec![0; NUMBERS as usize], promised: capacity }
    }

    fn insert(&mut self, from: u64, count: u64) -> Result<(), TestCaseError> {
        let digests = digests(from, from + count);
        let inserted = self.filter.insert_many(&digests, false);
        let one_by_one: Result<Vec<Insert>, _> =
            digests.iter().map(|&digest| self.twin.insert(digest, false)).collect();
        prop_assert_eq!(&inserted, &one_by_one);
        for (copies, outcome) in self.copies[from as usize..].iter_mut().zip(inserted.unwrap()) {
            *copies += u32::from(outcome == Insert::Added);
        }
        Ok(())
    }

    fn remove(&mut self, from: u64, count: u64) -> Result<(), TestCaseError> {
        for number in from..from + count {
            if let copies @ 1.. = &mut self.copies[number as usize] {
                *copies -= 1;
                prop_assert!(self.filter.remove(digest(number)));
                prop_assert!(self.twin.remove(digest(number)));
            }
        }
        Ok(())
    }

    fn apply(&mut self, operation: &Operation) -> Result<(), TestCaseError> {
        match *operation {
            Operation::Insert(from, count) => self.insert(from, count)?,
            Operation::Crowd(from, count) => {
                for _ in 0..2 * self.bucket_size {
                    self.insert(from, count)?;
                }
            }
            Operation::Remove(from, count) => self.remove(from, count)?,
            Operation::Clear => {
                let removed = self.filter.clear();
                prop_assert_eq!(removed, self.twin.clear());
                prop_assert_eq!(removed, self.items());
                self.copies.fill(0);
            }
            Operation::Raise(capacity) if capacity > self.promised => {
                for filter in [&mut self.filter, &mut self.twin] {
                    filter.raise(layout(capacity, self.bits, self.bucket_size)).unwrap();
                }
                self.promised = capacity;
            }
            Operation::Raise(_) => {}
            Operation::Move(buckets) => {
                self.filter.move_items(buckets);
                self.twin.move_items(buckets);
            }
            Operation::Restart => {
                let other = compact(layout(10, self.bits, self.bucket_size));
                self.filter = restarted(std::mem::replace(&mut self.filter, other));
            }
            Operation::Send => {
                for filter in [&mut self.filter, &mut self.twin] {
                    let other = compact(layout(10, self.bits, self.bucket_size));
                    *filter = sent(std::mem::replace(filter, other));
                }
            }
        }
        Ok(())
    }

    fn items(&self) -> u64 {
        self.copies.iter().map(|&copies| u64::from(copies)).sum()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let reader = self.filter.reader();
        let view = reader.view(0);
        let segments = view.segments();
        prop_assert!(segments.iter().map(|segment| segment.capacity).sum::<u64>() >= self.promised);
        prop_assert_eq!(view.items(), self.items());
        let (numbers, mut found) = (digests(0, NUMBERS), Vec::new());
        view.contains_many(&numbers, &mut found);
        for ((&digest, found), &copies) in numbers.iter().zip(found).zip(&self.copies) {
            prop_assert!(found || copies == 0);
            prop_assert_eq!(view.contains(digest), found);
            prop_assert!(copies == 0 || view.count(digest) >= copies);
        }
        Ok(())
    }
}

fn layout(capacity: u64, bits: u8, bucket_size: u8) -> Layout {
    Layout::compact_with(capacity, bits, bucket_size, 500, Growth::Auto).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// No member is missed, no remove takes another member's last copy, and a replay is identical to the byte.
    #[test]
    fn compact_filters_are_multisets(
        operations in operations(),
        bits in prop_oneof![Just(8_u8), Just(10), Just(14), Just(22)],
        bucket_size in prop_oneof![1 => Just(2_u8), 3 => Just(4), 1 => Just(8)],
        capacity in prop_oneof![10_u64..400, 50_000_u64..90_000],
    ) {
        let mut model = Model::new(capacity, bits, bucket_size);
        for operation in operations {
            model.apply(&operation)?;
            model.check()?;
        }
        prop_assert!(snapshot(&mut model.filter) == snapshot(&mut model.twin));
    }
}

/// The case in which tables without nesting fail: short fingerprints, growth by a thousand, half of it removed.
#[test]
fn half_remains_after_thousandfold_growth() {
    let mut filter = compact(Layout::compact_with(1_000, 14, 4, 50, Growth::Auto).unwrap());
    let items = digests(0, 1_000_000);
    let added = filter.insert_many(&items, false).unwrap();
    assert!(added.iter().all(|outcome| *outcome == Insert::Added));
    let (leaving, staying) = items.split_at(500_000);
    assert!(filter.remove_many(leaving, false).into_iter().all(|removed| removed == 1));
    let mut found = Vec::new();
    filter.reader().view(0).contains_many(staying, &mut found);
    assert!(found.into_iter().all(|found| found));
}

/// A filter grows again and again, and is emptied. A reader misses no item that was there before its look.
#[test]
fn readers_find_items_while_tables_are_replaced() {
    const ITEMS: usize = 150_000;
    const ROUNDS: usize = 6;
    let mut filter = compact(Layout::compact_with(600, 12, 4, 500, Growth::Auto).unwrap());
    let (items, reader) = (digests(0, (ROUNDS * ITEMS) as u64), filter.reader());
    // The number of added items, and of removed or soon removed ones.
    let (added, leaving) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let watch = || {
        let (mut missed, mut found) = (0, Vec::new());
        while leaving.load(Ordering::Acquire) < items.len() {
            let to = added.load(Ordering::Acquire);
            let from = to.saturating_sub(500);
            let view = reader.view(0);
            view.contains_many(&items[from..to], &mut found);
            let singly: Vec<bool> = items[from..to].iter().map(|&item| view.contains(item)).collect();
            let left = leaving.load(Ordering::Acquire);
            let both = found.iter().zip(singly).enumerate().filter(|(at, _)| from + at >= left);
            missed += both.filter(|(_, (found, singly))| !**found || !singly).count();
        }
        missed
    };
    // Inserts during which a table was copied, and removes that found nothing. Nothing is asserted while the reader waits for the end.
    let (mut moving, mut lost) = (0, 0);
    let missed = std::thread::scope(|scope| {
        let watching = scope.spawn(watch);
        for round in items.chunks(ITEMS) {
            for chunk in round.chunks(100) {
                filter.insert_many(chunk, false).unwrap();
                added.fetch_add(chunk.len(), Ordering::Release);
                moving += u32::from(filter.is_moving());
            }
            for &item in round {
                leaving.fetch_add(1, Ordering::Release);
                lost += u32::from(!filter.remove(item));
            }
        }
        watching.join().unwrap()
    });
    assert_eq!((missed, lost), (0, 0), "items that were missed, and that were lost");
    assert!(moving > 100, "a table was copied during {moving} inserts");
    let stats = reader.view(0).stats();
    assert_eq!((stats.segments.len(), stats.items), (1, 0));
    assert!(stats.memory_bytes < 2_000, "memory is released once it is empty: {}", stats.memory_bytes);
}

#[test]
fn copies_saturate_at_two_buckets() {
    let mut filter = compact(Layout::compact(1_000, 0.001, Growth::Auto).unwrap());
    let outcomes: Vec<Insert> = (0..1_000).map(|_| filter.insert(digest(1), false).unwrap()).collect();
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Insert::Added).count(), 8);
    assert_eq!(outcomes.last(), Some(&Insert::Saturated));
    assert_eq!(filter.reader().view(0).stats().segments.len(), 1);
    assert_eq!(filter.remove_many(&[digest(1)], true), [8]);
    // A table that is full with them does not grow.
    let mut filter = compact(Layout::compact_with(10, 32, 8, 500, Growth::Auto).unwrap());
    let outcomes = filter.insert_many(&[digest(1); 20], false).unwrap();
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Insert::Added).count(), 16);
}

/// Items with the maximum number of copies, added one after the other or in rounds, need few tables and little time.
#[test]
fn repeated_copies_need_few_tables() {
    for (capacity, users, tables_max) in [(1_000, 6_000, 10), (10_000, 12_500, 8), (200_000, 30_000, 4)] {
        for is_in_rounds in [false, true] {
            let mut filter = compact(Layout::compact(capacity, 0.001, Growth::Auto).unwrap());
            let copies = (0..users * 8).map(|step| if is_in_rounds { step % users } else { step / 8 });
            copies.for_each(|user| _ = filter.insert(digest(user), false).unwrap());
            let (reader, stats) = (filter.reader(), filter.reader().view(0).stats());
            assert!((0..users).all(|user| reader.view(0).count(digest(user)) >= 8));
            assert!(stats.segments.len() <= tables_max, "{capacity}, {users}: {:?}", stats.segments);
            assert!(
                stats.memory_bytes * 8 <= 120 * users * 8 + (256 << 13),
                "{capacity}, {users}: {}",
                stats.memory_bytes
            );
        }
    }
}

#[test]
fn fixed_filter_undoes_rejected_batch() {
    for (capacity, bits, bucket_size) in
        [(1_000, 16, 4), (1_000, 12, 8), (1_000, 16, 2), (1, 8, 4), (7, 8, 2)]
    {
        let layout = Layout::compact_with(capacity, bits, bucket_size, 2_000, Growth::Fixed).unwrap();
        let mut filter = Filter::new(Mode::Compact, layout, Growth::Fixed, None);
        let digests = digests(0, 10 * capacity + 100);
        let within = &digests[..capacity as usize];
        assert!(filter.insert_many(within, false).is_ok(), "{capacity} items of {bits} bits");
        assert!(filter.insert_many(&digests[capacity as usize..], false).is_err());
        assert_eq!(filter.items(), capacity);
        assert!(within.iter().all(|&digest| filter.reader().view(0).contains(digest)));
    }
}

/// A capacity that is raised costs one table more at most and no error.
#[test]
fn error_rate_holds_after_raise() {
    let layout = |capacity| Layout::compact(capacity, 0.01, Growth::Auto).unwrap();
    let mut filter = compact(layout(1_000));
    let digests = digests(0, 150_000);
    filter.insert_many(&digests[..800], false).unwrap();
    filter.raise(layout(50_000)).unwrap();
    filter.insert_many(&digests[800..50_000], false).unwrap();
    let reader = filter.reader();
    assert_eq!(reader.view(0).stats().segments.len(), 2);
    filter.insert_many(&digests[50_000..], false).unwrap();
    assert_eq!(reader.view(0).stats().segments.len(), 2);
    filter.raise(layout(1_000_000)).unwrap();
    assert_eq!(reader.view(0).stats().segments.len(), 2, "the newest table is doubled several times");
    assert!(reader.view(0).stats().segments.iter().map(|table| table.capacity).sum::<u64>() >= 1_000_000);
    filter.move_items(u64::MAX);
    assert!(digests.iter().all(|&digest| reader.view(0).contains(digest)));
    let strangers = 1_000_000;
    let wrong = (0..strangers).filter(|number| reader.view(0).contains(digest(1 << 40 | number))).count();
    assert!(wrong as f64 <= 0.01 * strangers as f64, "{wrong} of {strangers}");
    assert!(error_rate(&reader.view(0).stats().segments) <= 0.01);
    filter.clear();
    assert_eq!(reader.view(0).stats().segments.len(), 1);
    filter.insert_many(&digests, false).unwrap();
    assert_eq!(reader.view(0).stats().segments.len(), 1, "a cleared filter starts with the raised capacity");
}

/// Without a free slot or without an effect, not a bit changes.
#[test]
fn insert_without_effect_changes_no_bytes() {
    let layout = Layout::compact_with(500, 12, 4, 300, Growth::Fixed).unwrap();
    let mut filter = Filter::new(Mode::Compact, layout, Growth::Fixed, None);
    let (mut refused, mut next) = (0, 0);
    while refused < 50 {
        let before = snapshot(&mut filter);
        if filter.insert(digest(next), false).is_err() {
            assert!(before == snapshot(&mut filter));
            refused += 1;
        }
        next += 1;
    }
    let before = snapshot(&mut filter);
    for number in 0..next {
        if filter.reader().view(0).contains(digest(number)) {
            assert_eq!(filter.insert(digest(number), true), Ok(Insert::Present(SlotState::Available)));
        }
    }
    assert!(before == snapshot(&mut filter));
}
