//! Compact filters whose segments double, against a multiset: whatever moves, nothing is lost, and the error holds.

use cuckood_filter::{
    CompactFilter, Digest, Expansion, Filled, Filter, FilterImage, Growth, Insert, Layout, Mode,
    RestoreError, Restoring, SegmentStats, TableId,
};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

type Chunks = HashMap<(TableId, u32), Vec<u8>>;

fn digest(number: u64) -> Digest {
    Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))
}

fn digests(from: u64, to: u64) -> Vec<Digest> {
    (from..to).map(digest).collect()
}

fn doubling(layout: Layout) -> CompactFilter {
    CompactFilter::new(layout, Growth::Auto, Expansion::Doubling)
}

fn snapshot(filter: &mut CompactFilter) -> (FilterImage, Chunks) {
    let (image, frozen) = filter.tables_mut().freeze(&Default::default());
    let mut chunks = Chunks::new();
    for mut table in frozen {
        for chunk in 0.. {
            let mut bytes = Vec::new();
            if !table.next_chunk(&mut bytes) {
                break;
            }
            chunks.insert((table.id(), chunk), bytes);
        }
    }
    (image, chunks)
}

fn restored(image: &FilterImage, chunks: &Chunks) -> Result<CompactFilter, RestoreError<Infallible>> {
    CompactFilter::restore(image, &mut |table: &Restoring<'_>| {
        table.load(0..table.chunks(), |chunk, out| {
            out.clear();
            out.extend_from_slice(chunks.get(&(table.id(), chunk)).map_or(&[], Vec::as_slice));
            Ok(())
        })
    })
}

/// The share of strangers that a filter takes for items, by the figures of its tables.
fn error_rate(segments: &[SegmentStats]) -> f64 {
    let base_bits = segments[0].fingerprint_bits;
    let fingerprints = f64::from(base_bits).exp2() - 1.0;
    let rate = |table: &SegmentStats| {
        let compared = 2.0 * table.items as f64 / table.buckets as f64;
        let longer = f64::from(table.fingerprint_bits - base_bits).exp2();
        -f64::exp_m1(compared * f64::ln_1p(-1.0 / (fingerprints * longer)))
    };
    segments.iter().map(rate).sum()
}

#[derive(Clone, Debug)]
enum Operation {
    Insert(u64, u64),
    /// As many copies of each as there can be.
    Crowd(u64, u64),
    Remove(u64, u64),
    Clear,
    Raise(u64),
    Move(u64),
    Snapshot,
}

const NUMBERS: u64 = 300_000;

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        10 => (0..NUMBERS - 80_000, 1_u64..80_000).prop_map(|(from, count)| Operation::Insert(from, count)),
        4 => (0..NUMBERS - 10_000, 1_u64..10_000).prop_map(|(from, count)| Operation::Crowd(from, count)),
        5 => (0..NUMBERS - 20_000, 1_u64..20_000).prop_map(|(from, count)| Operation::Remove(from, count)),
        2 => (0..NUMBERS - 150_000).prop_map(|from| Operation::Remove(from, 150_000)),
        1 => Just(Operation::Clear),
        3 => (1_u64..20_000).prop_map(Operation::Move),
        2 => (10_u64..400_000).prop_map(Operation::Raise),
        3 => Just(Operation::Snapshot),
    ];
    proptest::collection::vec(operation, 1..24)
}

/// A filter, one that gets the same items one by one, and how many copies there should be of each number.
struct Model {
    layout: fn(u64, u8) -> Layout,
    bits: u8,
    filter: CompactFilter,
    twin: CompactFilter,
    copies: Vec<u32>,
    promised: u64,
}

impl Model {
    fn new(capacity: u64, bits: u8) -> Self {
        let layout: fn(u64, u8) -> Layout =
            |capacity, bits| Layout::compact_with(capacity, bits, 4, 500, Growth::Auto).unwrap();
        let [filter, twin] = [(); 2].map(|()| doubling(layout(capacity, bits)));
        Self { layout, bits, filter, twin, copies: vec![0; NUMBERS as usize], promised: capacity }
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

    fn raise(&mut self, capacity: u64) {
        if capacity > self.promised {
            self.filter.raise((self.layout)(capacity, self.bits)).unwrap();
            self.twin.raise((self.layout)(capacity, self.bits)).unwrap();
            self.promised = capacity;
        }
    }

    fn restore(&mut self) -> Result<(), TestCaseError> {
        let (image, chunks) = snapshot(&mut self.filter);
        let mut restored = restored(&image, &chunks).unwrap();
        prop_assert!(snapshot(&mut restored) == (image, chunks));
        self.filter = restored;
        Ok(())
    }

    fn apply(&mut self, operation: &Operation) -> Result<(), TestCaseError> {
        match *operation {
            Operation::Insert(from, count) => self.insert(from, count)?,
            Operation::Crowd(from, count) => {
                for _ in 0..8 {
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
            Operation::Raise(capacity) => self.raise(capacity),
            Operation::Move(buckets) => {
                self.filter.move_items(buckets);
                self.twin.move_items(buckets);
            }
            Operation::Snapshot => self.restore()?,
        }
        Ok(())
    }

    fn items(&self) -> u64 {
        self.copies.iter().map(|&copies| u64::from(copies)).sum()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let reader = self.filter.reader();
        let view = reader.view();
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn filters_that_double_lose_nothing(
        operations in operations(),
        bits in prop_oneof![Just(8_u8), Just(14), Just(22)],
        capacity in prop_oneof![10_u64..400, 50_000_u64..90_000],
    ) {
        let mut model = Model::new(capacity, bits);
        for operation in operations {
            model.apply(&operation)?;
            model.check()?;
        }
        prop_assert!(snapshot(&mut model.filter) == snapshot(&mut model.twin));
    }
}

/// The case that segments which don't nest fail: short fingerprints, growth by a thousand, half of it removed.
#[test]
fn half_of_a_filter_grown_a_thousandfold_stays() {
    let mut filter = doubling(Layout::compact_with(1_000, 14, 4, 50, Growth::Auto).unwrap());
    let items = digests(0, 1_000_000);
    let added = filter.insert_many(&items, false).unwrap();
    assert!(added.iter().all(|outcome| *outcome == Insert::Added));
    let (leaving, staying) = items.split_at(500_000);
    assert!(filter.remove_many(leaving).into_iter().all(|removed| removed));
    let mut found = Vec::new();
    filter.reader().view().contains_many(staying, &mut found);
    assert!(found.into_iter().all(|found| found));
}

/// At any size, the sum of the errors keeps within the rate. A thousandfold growth leaves two segments, and takes no more than twenty bits
/// an item.
#[test]
fn the_error_holds_and_segments_stay_few_while_a_filter_doubles() {
    let mut filter = doubling(Layout::compact(1_000, 0.001, Growth::Auto).unwrap());
    let reader = filter.reader();
    let mut most = 0;
    for from in (0..1_000_000).step_by(1_000) {
        filter.insert_many(&digests(from, from + 1_000), false).unwrap();
        let segments = reader.view().segments();
        assert!(error_rate(&segments) <= 0.001, "{segments:?}");
        most = most.max(segments.len());
    }
    let view = reader.view();
    assert_eq!((view.segments().len(), most), (2, 3));
    assert!(view.memory_bytes() * 8 <= 20 * 1_000_000, "{} bytes", view.memory_bytes());
    let (strangers, mut found) = (digests(1 << 40, (1 << 40) + 1_000_000), Vec::new());
    view.contains_many(&strangers, &mut found);
    let wrong = found.into_iter().filter(|found| *found).count();
    assert!(wrong <= 1_000, "{wrong}");
}

/// A filter doubles again and again, is emptied, folds back and grows anew. A reader misses no item that was there before its look.
#[test]
fn readers_miss_nothing_while_segments_double_and_fold() {
    const ITEMS: usize = 150_000;
    const ROUNDS: usize = 6;
    let mut filter = doubling(Layout::compact_with(600, 12, 4, 500, Growth::Auto).unwrap());
    let (items, reader) = (digests(0, (ROUNDS * ITEMS) as u64), filter.reader());
    // Of the items, so many were added, and so many of them have been removed or are about to be.
    let (added, leaving) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let watch = || {
        let (mut missed, mut found) = (0, Vec::new());
        while leaving.load(Ordering::Acquire) < items.len() {
            let to = added.load(Ordering::Acquire);
            let from = to.saturating_sub(500);
            let view = reader.view();
            view.contains_many(&items[from..to], &mut found);
            let singly: Vec<bool> = items[from..to].iter().map(|&item| view.contains(item)).collect();
            let left = leaving.load(Ordering::Acquire);
            let both = found.iter().zip(singly).enumerate().filter(|(at, _)| from + at >= left);
            missed += both.filter(|(_, (found, singly))| !**found || !singly).count();
        }
        missed
    };
    // Inserts during which items moved, and removes that found nothing. Nothing is asserted while the reader waits for the end.
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
            while filter.is_moving() {
                filter.move_items(100);
            }
        }
        watching.join().unwrap()
    });
    assert_eq!((missed, lost), (0, 0), "items that were missed, and that were lost");
    assert!(moving > 100, "items moved during {moving} inserts");
    assert_eq!((reader.view().segments().len(), reader.view().items()), (1, 0));
}

/// An image of a filter in the middle of doubling comes in piece by piece, and goes on as the filter does that it was taken of.
#[test]
fn an_image_comes_in_while_a_segment_doubles() {
    let mut filter = doubling(Layout::compact_with(300, 14, 4, 500, Growth::Auto).unwrap());
    let mut next = 0;
    while !filter.is_moving() {
        filter.insert_many(&digests(next, next + 100), false).unwrap();
        next += 100;
    }
    filter.insert_many(&digests(next, next + 500), false).unwrap();
    next += 500;
    let (image, chunks) = snapshot(&mut filter);
    let mut copy = Filter::hollow(Mode::Compact, &image).unwrap();
    let mut filled = Filled::default();
    for (table, _, count) in image.tables() {
        (0..count).for_each(|chunk| copy.fill(&mut filled, &chunks[&(table, chunk)]).unwrap());
    }
    copy.finish_filling(filled, &image.items()).unwrap();
    assert!(copy.is_moving());
    let mut original = Filter::Compact(filter);
    while original.is_moving() {
        for filter in [&mut original, &mut copy] {
            filter.insert_many(&digests(next, next + 50), false).unwrap();
            filter.remove_many(&digests(next - 1_000, next - 900), false);
            filter.move_items(10);
        }
        assert_eq!(original.is_moving(), copy.is_moving());
        next += 50;
    }
    let [original, copy] = [original, copy].map(|filter| match filter {
        Filter::Compact(mut filter) => {
            snapshot(&mut filter).1.into_values().map(|chunk| chunk[24..].to_vec()).collect()
        }
        _ => HashSet::new(),
    });
    assert!(original == copy && original.len() > 10);
}

/// Whatever number in an image is changed, it is refused or makes a filter that works.
#[test]
fn a_damaged_image_of_a_filter_that_doubles_does_no_harm() {
    let mut filter = doubling(Layout::compact_with(300, 10, 4, 500, Growth::Auto).unwrap());
    // So many that the second segment is being doubled.
    let mut next = 0;
    while !filter.is_moving() {
        filter.insert_many(&digests(next, next + 1), false).unwrap();
        next += 1;
    }
    let (image, chunks) = snapshot(&mut filter);
    assert!(restored(&image, &chunks).is_ok());
    let whole = serde_json::to_value(&image).unwrap();
    let mut paths = Vec::new();
    numbers_in(&whole, String::new(), &mut paths);
    // Items are counted when another one's image comes in, and changes begin anew.
    paths.retain(|path| !path.ends_with("/items") && !path.ends_with("/changes"));
    assert!(paths.len() > 20, "{paths:?}");
    for path in &paths {
        for value in [0, 1, 2, 31, 32, 63, 64, 255, 1 << 31, 1 << 32, 1 << 33, u64::MAX / 2, u64::MAX] {
            let mut damaged = whole.clone();
            *damaged.pointer_mut(path).unwrap() = value.into();
            let Ok(image) = serde_json::from_value::<FilterImage>(damaged) else { continue };
            if let Ok(mut filter) = restored(&image, &chunks) {
                let _ = filter.insert_many(&digests(0, 50), false);
                filter.remove_many(&digests(0, 50));
                filter.move_items(100);
            }
        }
    }
}

/// The paths of all numbers in a document.
fn numbers_in(value: &serde_json::Value, path: String, paths: &mut Vec<String>) {
    match value {
        serde_json::Value::Number(_) => paths.push(path),
        serde_json::Value::Array(values) => {
            for (at, value) in values.iter().enumerate() {
                numbers_in(value, format!("{path}/{at}"), paths);
            }
        }
        serde_json::Value::Object(values) => {
            for (name, value) in values {
                numbers_in(value, format!("{path}/{name}"), paths);
            }
        }
        _ => {}
    }
}

/// Items that have as many copies as there can be crowd their buckets: some find no place in the larger table, though it is nearly empty. That
/// keeps neither other tables from being emptied nor the moving from coming to an end, and the error holds.
#[test]
fn crowds_of_copies_hold_no_doubling_up() {
    let mut filter = doubling(Layout::compact_with(2_000, 12, 4, 500, Growth::Auto).unwrap());
    let reader = filter.reader();
    let mut next = 0;
    while next < 400_000 {
        // A crowd, and so many others that the newest table is more than half full: then it is doubled.
        let copies = if next % 2_000 < 100 { 8 } else { 1 };
        (0..copies).for_each(|_| _ = filter.insert(digest(next), false).unwrap());
        next += 1;
        if next % 1_000 == 0 {
            let segments = reader.view().segments();
            assert!(error_rate(&segments) <= 2.0 * 8.0 / 4095.0, "{segments:?}");
        }
    }
    let mut moved = 0;
    while filter.is_moving() {
        filter.move_items(1_000);
        moved += 1_000;
        assert!(moved < 10_000_000, "it moves for ever");
    }
    let segments = reader.view().segments();
    assert!((3..=8).contains(&segments.len()), "{segments:?}");
    assert!((0..next).all(|number| reader.view().contains(digest(number))));
    let crowded = (0..next).filter(|number| number % 2_000 < 100);
    assert!(crowded.into_iter().all(|number| reader.view().count(digest(number)) >= 8));
}

/// Users with as many copies as there can be, in two orders: one after the other, or all of them once and again.
fn crowd(filter: &mut CompactFilter, users: u64, is_in_rounds: bool) {
    let copies = (0..users * 8).map(|step| if is_in_rounds { step % users } else { step / 8 });
    copies.for_each(|user| _ = filter.insert(digest(user), false).unwrap());
}

/// A doubling does not part copies of one item. Whoever crowds two buckets of a table that is nearly empty does not make it double again
/// and again.
#[test]
fn crowds_of_copies_take_no_more_memory_than_tables_that_do_not_double() {
    for (capacity, users) in [(1_000, 6_000), (20_000, 10_000), (200_000, 30_000)] {
        for is_in_rounds in [false, true] {
            let [ours, theirs] = [Expansion::Doubling, Expansion::Segments].map(|expansion| {
                let layout = Layout::compact(capacity, 0.001, Growth::Auto).unwrap();
                let mut filter = CompactFilter::new(layout, Growth::Auto, expansion);
                crowd(&mut filter, users, is_in_rounds);
                let reader = filter.reader();
                let view = reader.view();
                assert!((0..users).all(|user| view.count(digest(user)) >= 8));
                (view.memory_bytes(), view.segments().len())
            });
            // The second segment takes 64 K items.
            let bytes_max = 2 * theirs.0 + (256 << 10);
            assert!(ours.0 <= bytes_max && ours.1 <= 8, "{capacity}, {users}: {ours:?}, {theirs:?}");
        }
    }
}

/// Copies that stayed in an old table, because others crowded their places, leave it once those are gone. With searches as short as
/// these, a table is doubled whenever an item finds no place.
#[test]
fn whoever_stays_behind_when_a_crowd_goes_holds_no_tables() {
    const USERS: u64 = 3_000;
    let mut filter = doubling(Layout::compact_with(1_000, 14, 4, 50, Growth::Auto).unwrap());
    let mut copies: Vec<u64> = vec![0; USERS as usize];
    for step in 0..USERS * 8 {
        let user = step / 8;
        copies[user as usize] += u64::from(filter.insert(digest(user), false) == Ok(Insert::Added));
        filter.move_items(100);
    }
    while filter.is_moving() {
        filter.move_items(1_000);
    }
    let left_behind = |filter: &CompactFilter| {
        let segments = filter.reader().view().segments();
        segments.iter().filter(|table| table.capacity == 0).map(|table| table.items).sum::<u64>()
    };
    assert!(left_behind(&filter) > 0, "nothing stayed: {:?}", filter.reader().view().segments());
    for staying in 0..8 {
        let (image, chunks) = snapshot(&mut filter);
        let mut filter = restored(&image, &chunks).unwrap();
        for user in (0..USERS).filter(|user| user % 8 != staying) {
            (0..copies[user as usize]).for_each(|_| assert!(filter.remove(digest(user))));
            filter.move_items(1_000);
        }
        while filter.is_moving() {
            filter.move_items(1_000);
        }
        let reader = filter.reader();
        let view = reader.view();
        let found = |user: u64| u64::from(view.count(digest(user))) >= copies[user as usize];
        assert!((0..USERS).filter(|user| user % 8 == staying).all(found));
        assert_eq!(left_behind(&filter), 0, "{:?}", view.segments());
    }
}
