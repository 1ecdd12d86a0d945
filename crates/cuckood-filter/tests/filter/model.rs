//! Filters against models: a multiset for compact ones, a map for strict ones, and snapshots taken meanwhile.

use cuckood_filter::{
    CompactFilter, Digest, Expansion, FilterImage, Growth, Insert, Layout, RestoreError, Restoring,
    SegmentStats, SlotState, StrictFilter, TableId,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};

type Chunks = HashMap<(TableId, u32), Vec<u8>>;

fn load(chunks: &Chunks) -> impl FnMut(&Restoring<'_>) -> Result<(), RestoreError<Infallible>> + '_ {
    |table| {
        table.load(0..table.chunks(), |chunk, out| {
            out.clear();
            out.extend_from_slice(&chunks[&(table.id(), chunk)]);
            Ok(())
        })
    }
}

macro_rules! snapshot {
    ($filter:expr, $meanwhile:expr) => {{
        let (image, frozen) = $filter.tables_mut().freeze(&Default::default());
        let mut chunks = Chunks::new();
        for mut table in frozen {
            for chunk in 0.. {
                let () = $meanwhile;
                let mut bytes = Vec::new();
                if !table.next_chunk(&mut bytes) {
                    break;
                }
                chunks.insert((table.id(), chunk), bytes);
            }
        }
        (image, chunks)
    }};
}

fn scrambled(number: u64) -> Digest {
    Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))
}

#[derive(Clone, Debug)]
enum Operation {
    Insert(u64, u64),
    Remove(u64, u64),
    Clear,
    Raise(u64),
    Move(u64),
    Snapshot,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        10 => (0_u64..20_000, 1_u64..600).prop_map(|(from, count)| Operation::Insert(from, count)),
        6 => (0_u64..20_000, 1_u64..900).prop_map(|(from, count)| Operation::Remove(from, count)),
        2 => Just(Operation::Clear),
        2 => (1_u64..2_000).prop_map(Operation::Move),
        2 => prop_oneof![10_u64..400, 10_u64..20_000].prop_map(Operation::Raise),
        2 => Just(Operation::Snapshot),
    ];
    proptest::collection::vec(operation, 1..60)
}

fn same_bytes(a: (FilterImage, Chunks), b: (FilterImage, Chunks)) -> bool {
    a.0 == b.0 && a.1 == b.1
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn compact_filters_lose_nothing(
        operations in operations(),
        bits in prop_oneof![Just(8_u8), Just(12), Just(16), 6_u8..=20],
        bucket_size in prop_oneof![Just(2_u8), Just(4), Just(8)],
        capacity in 10_u64..400,
        expansion in prop_oneof![Just(Expansion::Segments), Just(Expansion::Doubling)],
    ) {
        let layout_for = |capacity| Layout::compact_with(capacity, bits, bucket_size, 500, Growth::Auto).unwrap();
        let (layout, mut promised) = (layout_for(capacity), capacity);
        let mut filter = CompactFilter::new(layout, Growth::Auto, expansion);
        let mut twin = CompactFilter::new(layout, Growth::Auto, expansion);
        let mut model: BTreeMap<u64, u32> = BTreeMap::new();
        for operation in operations {
            match operation {
                Operation::Insert(from, count) => {
                    let digests: Vec<Digest> = (from..from + count).map(scrambled).collect();
                    let inserted = filter.insert_many(&digests, false);
                    let one_by_one: Result<Vec<Insert>, _> = digests.iter().map(|&d| twin.insert(d, false)).collect();
                    prop_assert_eq!(&inserted, &one_by_one);
                    for (number, outcome) in (from..).zip(inserted.unwrap_or_default()) {
                        if outcome == Insert::Added {
                            *model.entry(number).or_default() += 1;
                        }
                    }
                }
                Operation::Remove(from, count) => {
                    for number in from..from + count {
                        if let Some(copies) = model.get_mut(&number).filter(|copies| **copies > 0) {
                            *copies -= 1;
                            prop_assert!(filter.remove(scrambled(number)));
                            prop_assert!(twin.remove(scrambled(number)));
                        }
                    }
                }
                Operation::Clear => {
                    prop_assert_eq!(filter.clear(), model.values().map(|&copies| u64::from(copies)).sum::<u64>());
                    twin.clear();
                    model.clear();
                }
                Operation::Raise(capacity) if capacity > promised => {
                    let raised = filter.raise(layout_for(capacity));
                    prop_assert_eq!(twin.raise(layout_for(capacity)), raised);
                    if raised.is_ok() {
                        promised = capacity;
                    }
                }
                Operation::Raise(_) | Operation::Move(_) => {}
                Operation::Snapshot => {
                    let (image, chunks) = snapshot!(filter, ());
                    let mut restored = CompactFilter::restore(&image, &mut load(&chunks)).unwrap();
                    prop_assert!(same_bytes(snapshot!(restored, ()), (image, chunks)));
                    filter = restored;
                }
            }
            let reader = filter.reader();
            let segments = reader.view().segments();
            prop_assert!(segments.iter().map(|segment| segment.capacity).sum::<u64>() >= promised);
            for (&number, &copies) in &model {
                prop_assert!(reader.view().count(scrambled(number)) >= copies, "{number} is missing");
            }
            prop_assert_eq!(reader.view().items(), model.values().map(|&copies| u64::from(copies)).sum::<u64>());
            let numbers: Vec<Digest> = (0..3_000).map(scrambled).collect();
            let mut found = Vec::new();
            reader.view().contains_many(&numbers, &mut found);
            prop_assert!(numbers.iter().zip(found).all(|(&digest, found)| reader.view().contains(digest) == found));
        }
        prop_assert!(same_bytes(snapshot!(filter, ()), snapshot!(twin, ())));
    }

    #[test]
    fn strict_filters_are_sets(operations in operations(), capacity in 1_u64..2_000) {
        let (layout, mut promised) = (Layout::strict(capacity).unwrap(), capacity);
        let mut filter = StrictFilter::new(layout, Growth::Auto);
        let mut model: BTreeMap<u64, SlotStateModel> = BTreeMap::new();
        for operation in operations {
            match operation {
                Operation::Insert(from, count) => {
                    let digests: Vec<Digest> = (from..from + count).map(scrambled).collect();
                    for (number, outcome) in (from..).zip(filter.insert_many(&digests).unwrap()) {
                        let expected = match model.get(&number) {
                            None => Insert::Added,
                            Some(state) => Insert::Present(state.0),
                        };
                        prop_assert_eq!(outcome, expected);
                        let entry = model.entry(number).or_insert(SlotStateModel(SlotState::Available));
                        let next = [SlotState::Available, SlotState::Held, SlotState::Redeemed][number as usize % 3];
                        prop_assert_eq!(filter.set(scrambled(number), next), Some(entry.0));
                        entry.0 = next;
                    }
                }
                Operation::Remove(from, count) => {
                    for number in from..from + count {
                        prop_assert_eq!(filter.remove(scrambled(number)), model.remove(&number).map(|state| state.0));
                    }
                }
                Operation::Clear => {
                    let before = model.len();
                    model.retain(|_, state| state.0 != SlotState::Available);
                    prop_assert_eq!(filter.clear(), (before - model.len()) as u64);
                }
                Operation::Raise(capacity) if capacity > promised => {
                    filter.raise(Layout::strict(capacity).unwrap()).unwrap();
                    promised = capacity;
                }
                Operation::Raise(_) => {}
                Operation::Move(buckets) => filter.move_items(buckets),
                Operation::Snapshot => {
                    let (image, chunks) = snapshot!(filter, ());
                    let mut restored = StrictFilter::restore(&image, &mut load(&chunks)).unwrap();
                    prop_assert!(same_bytes(snapshot!(restored, ()), (image, chunks)));
                    filter = restored;
                }
            }
            let reader = filter.reader();
            prop_assert!(reader.view().segments().iter().map(|table| table.capacity).sum::<u64>() >= promised);
            let numbers: Vec<Digest> = (0..21_000).map(scrambled).collect();
            let mut states = Vec::new();
            reader.view().get_many(&numbers, &mut states);
            for (number, state) in (0..).zip(states) {
                prop_assert_eq!(state, model.get(&number).map(|state| state.0), "{}", number);
            }
            let of = |wanted| model.values().filter(|state| state.0 == wanted).count() as u64;
            let counts = reader.view().counts();
            prop_assert_eq!(counts.available, of(SlotState::Available));
            prop_assert_eq!(counts.held, of(SlotState::Held));
            prop_assert_eq!(counts.redeemed, of(SlotState::Redeemed));
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct SlotStateModel(SlotState);

/// The case that segments which don't nest fail: short fingerprints, growth by 200, half of it removed.
#[test]
fn half_of_a_filter_grown_by_two_hundred_stays() {
    let layout = Layout::compact_with(1_000, 8, 4, 500, Growth::Auto).unwrap();
    let mut filter = CompactFilter::new(layout, Growth::Auto, Expansion::Segments);
    let digests: Vec<Digest> = (0..200_000).map(scrambled).collect();
    assert!(filter.insert_many(&digests, false).unwrap().iter().all(|outcome| *outcome == Insert::Added));
    assert!(filter.remove_many(&digests[..100_000]).into_iter().all(|removed| removed));
    let reader = filter.reader();
    let missing = digests[100_000..].iter().filter(|digest| !reader.view().contains(**digest)).count();
    assert_eq!(missing, 0);
}

#[test]
fn a_snapshot_is_what_was_there_when_it_began() {
    let layout = Layout::strict(50_000).unwrap();
    let mut filter = StrictFilter::new(layout, Growth::Auto);
    let digests: Vec<Digest> = (0..200_000).map(scrambled).collect();
    filter.insert_many(&digests[..60_000]).unwrap();
    let expected = snapshot!(filter, ());
    let mut next = 60_000;
    let taken = snapshot!(filter, {
        // Grows, moves to a larger table and loses items meanwhile.
        filter.insert_many(&digests[next..next + 500]).unwrap();
        filter.remove_many(&digests[next - 60_000..next - 59_750]);
        next += 500;
    });
    assert!(same_bytes(taken, expected));

    let layout = Layout::compact(20_000, 0.001, Growth::Auto).unwrap();
    let mut filter = CompactFilter::new(layout, Growth::Auto, Expansion::Doubling);
    filter.insert_many(&digests[..50_000], false).unwrap();
    let expected = snapshot!(filter, ());
    let mut next = 50_000;
    let taken = snapshot!(filter, {
        filter.insert_many(&digests[next..next + 500], false).unwrap();
        filter.remove_many(&digests[next - 50_000..next - 49_250]);
        next += 500;
    });
    assert!(same_bytes(taken, expected));
}

#[test]
fn a_crowd_of_copies_hurts_nobody() {
    let layout = Layout::compact(1_000, 0.001, Growth::Auto).unwrap();
    let mut filter = CompactFilter::new(layout, Growth::Auto, Expansion::Doubling);
    let outcomes: Vec<Insert> = (0..1_000).map(|_| filter.insert(scrambled(1), false).unwrap()).collect();
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Insert::Added).count(), 8);
    assert_eq!(outcomes.last(), Some(&Insert::Saturated));
    assert_eq!(filter.reader().view().segments().len(), 1);
    assert_eq!(filter.remove_all(scrambled(1)), 8);
}

#[test]
fn a_fixed_filter_holds_its_capacity_and_a_refused_batch_is_undone() {
    for (capacity, bits, bucket_size) in
        [(1_000, 16, 4), (1_000, 12, 8), (1_000, 16, 2), (1, 8, 4), (7, 8, 2)]
    {
        let layout = Layout::compact_with(capacity, bits, bucket_size, 2_000, Growth::Fixed).unwrap();
        let mut filter = CompactFilter::new(layout, Growth::Fixed, Expansion::Doubling);
        let digests: Vec<Digest> = (0..10 * capacity + 100).map(scrambled).collect();
        let within = &digests[..capacity as usize];
        assert!(filter.insert_many(within, false).is_ok(), "{capacity} items of {bits} bits");
        assert!(filter.insert_many(&digests[capacity as usize..], false).is_err());
        assert_eq!(filter.reader().view().items(), capacity);
        assert!(within.iter().all(|&digest| filter.reader().view().contains(digest)));
    }
    let layout = Layout::strict(500).unwrap();
    let mut filter = StrictFilter::new(layout, Growth::Fixed);
    let digests: Vec<Digest> = (0..2_000).map(scrambled).collect();
    assert!(filter.insert_many(&digests[..500]).is_ok());
    assert!(filter.insert_many(&digests[500..]).is_err());
    assert_eq!(filter.reader().view().items(), 500);
}

/// The share of strangers that segments take for items, by their figures.
fn error_rate(segments: &[SegmentStats]) -> f64 {
    let base_bits = segments[0].fingerprint_bits;
    let base = f64::from(base_bits).exp2() - 1.0;
    let rates = segments.iter().map(|segment| {
        let compared = 2.0 * segment.items as f64 / segment.buckets as f64;
        let k = f64::from(segment.fingerprint_bits - base_bits);
        -f64::exp_m1(compared * f64::ln_1p(-1.0 / (base * k.exp2())))
    });
    rates.sum()
}

/// A raised capacity costs one segment more and no error, and nothing takes it back: neither growth nor removes.
#[test]
fn the_error_holds_when_the_capacity_is_raised() {
    let layout = |capacity| Layout::compact(capacity, 0.01, Growth::Auto).unwrap();
    let mut filter = CompactFilter::new(layout(1_000), Growth::Auto, Expansion::Segments);
    let digests: Vec<Digest> = (0..150_000).map(scrambled).collect();
    filter.insert_many(&digests[..800], false).unwrap();
    filter.raise(layout(50_000)).unwrap();
    filter.insert_many(&digests[800..50_000], false).unwrap();
    let reader = filter.reader();
    assert_eq!(reader.view().segments().len(), 2);
    filter.insert_many(&digests[50_000..], false).unwrap();
    assert_eq!(reader.view().segments().len(), 3);
    let strangers = 1_000_000;
    let wrong = (0..strangers).filter(|number| reader.view().contains(scrambled(1 << 40 | number))).count();
    assert!(wrong as f64 <= 0.01 * strangers as f64, "{wrong} of {strangers}");
    assert!(error_rate(&reader.view().segments()) <= 0.01);
    assert!(filter.remove_many(&digests[500..]).into_iter().all(|removed| removed));
    let view = reader.view();
    assert_eq!((view.segments().len(), view.items()), (2, 500));
    assert!(digests[..500].iter().all(|&digest| view.contains(digest)));
    filter.clear();
    assert_eq!(reader.view().segments().len(), 1);
    filter.insert_many(&digests[..50_000], false).unwrap();
    assert_eq!(reader.view().segments().len(), 1);
}

/// A large filter that is cleared is empty for readers at once, though its table is emptied a little with every change. What is held or
/// redeemed is never missed meanwhile; what is given back is available again, and what is added anew is there.
#[test]
fn a_cleared_filter_is_empty_at_once() {
    let mut filter = StrictFilter::new(Layout::strict(60_000).unwrap(), Growth::Auto);
    let digests: Vec<Digest> = (0..60_000).map(scrambled).collect();
    let (used, free) = digests.split_at(6_000);
    filter.insert_many(&digests).unwrap();
    for &digest in used {
        filter.set(digest, SlotState::Redeemed);
    }
    let reader = filter.reader();
    let (cleared, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let (mut wrong, mut states) = (0, Vec::new());
            while !done.load(Ordering::Acquire) {
                let was_cleared = cleared.load(Ordering::Acquire);
                let view = reader.view();
                view.get_many(used, &mut states);
                wrong += states.iter().filter(|state| state.is_none()).count();
                wrong += used.iter().filter(|digest| reader.view().get(**digest).is_none()).count();
                view.get_many(&free[1_000..], &mut states);
                wrong += states.iter().filter(|state| was_cleared && state.is_some()).count();
            }
            wrong
        });
        assert_eq!(filter.clear(), 54_000);
        cleared.store(true, Ordering::Release);
        let mut moves = 0;
        while reader.view().segments().len() > 1 {
            let tables = reader.view();
            assert_eq!((tables.items(), tables.segments().iter().map(|table| table.items).sum()), {
                let counts = tables.counts();
                let all = counts.available + counts.redeemed;
                (all, all)
            });
            // Given back, and added again.
            filter.set(used[moves % 3_000], SlotState::Available);
            filter.insert_many(&free[moves % 1_000..][..1]).unwrap();
            moves += 1;
        }
        done.store(true, Ordering::Release);
        assert_eq!(watching.join().unwrap(), 0, "readers were told wrong");
        assert!(moves > 2_000, "{moves} moves");
    });
    let counts = reader.view().counts();
    assert_eq!((counts.available, counts.redeemed), (4_000, 3_000));
    assert_eq!(filter.clear(), 4_000);
}

/// However often the capacity is raised while items move, there are few tables, each item is found at any time, and in the end there is
/// one table.
#[test]
fn raises_in_a_row_lose_nothing() {
    let mut filter = StrictFilter::new(Layout::strict(20_000).unwrap(), Growth::Auto);
    let digests: Vec<Digest> = (0..20_000).map(scrambled).collect();
    filter.insert_many(&digests).unwrap();
    let reader = filter.reader();
    let (mut found, mut most) = (Vec::new(), 0);
    for raise in 1..30 {
        filter.raise(Layout::strict(20_000 + 1_000 * raise).unwrap()).unwrap();
        filter.insert_many(&digests[..20]).unwrap();
        let tables = filter.reader().view().segments();
        most = most.max(tables.len());
        assert!(tables.last().unwrap().capacity >= 20_000 + 1_000 * raise);
        reader.view().contains_many(&digests, &mut found);
        assert!(found.iter().all(|found| *found));
        assert_eq!(reader.view().items(), 20_000);
    }
    assert!((3..=16).contains(&most), "{most} tables");
    for _ in 0..4 {
        filter.insert_many(&digests).unwrap();
    }
    assert_eq!(reader.view().segments().len(), 1);
    assert_eq!(reader.view().items(), 20_000);
}

/// The sum of the segments' errors keeps within the error rate at any size.
#[test]
fn the_error_holds_while_a_filter_grows() {
    let layout = Layout::compact(1_000, 0.01, Growth::Auto).unwrap();
    let mut filter = CompactFilter::new(layout, Growth::Auto, Expansion::Segments);
    let digests: Vec<Digest> = (0..300_000).map(scrambled).collect();
    filter.insert_many(&digests, false).unwrap();
    let reader = filter.reader();
    let strangers = 1_000_000;
    let wrong = (0..strangers).filter(|number| reader.view().contains(scrambled(1 << 40 | number))).count();
    assert!(reader.view().segments().len() > 7);
    assert!(wrong as f64 <= 0.01 * strangers as f64, "{wrong} of {strangers}");
    assert!(error_rate(&reader.view().segments()) <= 0.01);
}

/// Where there is no room, or nothing to add, not a bit changes.
#[test]
fn an_insert_that_adds_nothing_leaves_the_bytes_as_they_were() {
    let layout = Layout::compact_with(500, 12, 4, 300, Growth::Fixed).unwrap();
    let mut filter = CompactFilter::new(layout, Growth::Fixed, Expansion::Doubling);
    let (mut refused, mut next) = (0, 0);
    while refused < 50 {
        let before = snapshot!(filter, ());
        if filter.insert(scrambled(next), false).is_err() {
            assert!(same_bytes(before, snapshot!(filter, ())));
            refused += 1;
        }
        next += 1;
    }
    let before = snapshot!(filter, ());
    for number in 0..next {
        if filter.reader().view().contains(scrambled(number)) {
            assert_eq!(filter.insert(scrambled(number), true), Ok(Insert::Present(SlotState::Available)));
        }
    }
    assert!(same_bytes(before, snapshot!(filter, ())));
}

/// Removes shrink a filter that grew, a few buckets at a time, with a snapshot and a restore at any of them; a reader
/// misses nothing meanwhile, though what it looks for moves.
#[test]
fn a_filter_folds_back_as_it_empties() {
    let layout = Layout::compact_with(1_000, 10, 4, 500, Growth::Auto).unwrap();
    let digests: Vec<Digest> = (0..60_000).map(scrambled).collect();
    // The last ones lie in the newest segments.
    let (leaving, staying) = digests.split_at(59_980);
    for _ in 0..20 {
        let mut filter = CompactFilter::new(layout, Growth::Auto, Expansion::Segments);
        filter.insert_many(&digests, false).unwrap();
        let reader = filter.reader();
        assert!(reader.view().segments().len() > 5);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let (mut missed, mut found) = (0, Vec::new());
                while !done.load(Ordering::Relaxed) {
                    let view = reader.view();
                    view.contains_many(staying, &mut found);
                    missed += found.iter().filter(|found| !**found).count();
                    missed += staying.iter().filter(|digest| !view.contains(**digest)).count();
                }
                missed
            });
            for (number, &digest) in leaving.iter().rev().enumerate() {
                assert!(filter.remove(digest));
                if number % 5_000 == 0 {
                    let (image, chunks) = snapshot!(filter, ());
                    let mut restored = CompactFilter::restore(&image, &mut load(&chunks)).unwrap();
                    assert!(same_bytes(snapshot!(restored, ()), (image, chunks)));
                }
            }
            done.store(true, Ordering::Relaxed);
            assert_eq!(watching.join().unwrap(), 0, "items were missed");
        });
        let view = reader.view();
        assert_eq!((view.segments().len(), view.items()), (1, 20));
        assert!(staying.iter().all(|digest| view.contains(*digest)));
    }
}

/// A chunk with any bit flipped, and one cut short anywhere, is refused: full or empty.
#[test]
fn a_damaged_chunk_is_refused() {
    let layout = Layout::compact_with(200, 8, 4, 500, Growth::Auto).unwrap();
    let mut filter = CompactFilter::new(layout, Growth::Auto, Expansion::Doubling);
    let empty = snapshot!(filter, ());
    filter.insert_many(&(0..150).map(scrambled).collect::<Vec<_>>(), false).unwrap();
    for (image, chunks) in [empty, snapshot!(filter, ())] {
        for (key, whole) in &chunks {
            let refused = |bytes: Vec<u8>| {
                let mut damaged = chunks.clone();
                damaged.insert(*key, bytes);
                CompactFilter::restore(&image, &mut load(&damaged)).is_err()
            };
            for bit in 0..whole.len() * 8 {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(refused(bytes), "bit {bit}");
            }
            assert!((0..whole.len()).all(|length| refused(whole[..length].to_vec())));
            assert!(!refused(whole.clone()));
        }
    }
}

/// What is empty takes next to no room in a snapshot, and is still missed when it is gone.
#[test]
fn a_chunk_of_zeros_is_small_and_not_to_be_left_out() {
    let layout = Layout::compact_with(100_000, 16, 4, 500, Growth::Fixed).unwrap();
    let mut filter = CompactFilter::new(layout, Growth::Fixed, Expansion::Doubling);
    let (image, chunks) = snapshot!(filter, ());
    assert!(chunks.len() > 20 && chunks.values().all(|chunk| chunk.len() <= 64));
    // One item: one chunk or two have something in them.
    filter.insert(scrambled(1), false).unwrap();
    let (image_of_one, chunks_of_one) = snapshot!(filter, ());
    assert_eq!(chunks_of_one.values().filter(|chunk| chunk.len() > 64).count(), 1);

    for (image, chunks, items) in [(&image, &chunks, 0), (&image_of_one, &chunks_of_one, 1)] {
        let mut restored = CompactFilter::restore(image, &mut load(chunks)).unwrap();
        assert_eq!(restored.reader().view().items(), items);
        assert_eq!(restored.reader().view().contains(scrambled(1)), items == 1);
        assert!(snapshot!(restored, ()).1 == *chunks);
    }
    for key in chunks_of_one.keys() {
        let mut without = chunks_of_one.clone();
        without.insert(*key, Vec::new());
        assert!(CompactFilter::restore(&image_of_one, &mut load(&without)).is_err(), "{key:?} is gone");
        // Nor is another's taken for it, however alike they are inside.
        let other = (key.0, (key.1 + 1) % chunks.len() as u32);
        without.insert(*key, chunks_of_one[&other].clone());
        assert!(CompactFilter::restore(&image_of_one, &mut load(&without)).is_err(), "{key:?} is another");
    }
}

/// The chunks of a table come in any order and from several threads; without one of them there is no table.
#[test]
fn a_table_is_loaded_in_any_order_but_whole() {
    let items: Vec<Digest> = (0..40_000).map(scrambled).collect();
    let mut filter = CompactFilter::new(
        Layout::compact_with(50_000, 16, 4, 500, Growth::Fixed).unwrap(),
        Growth::Fixed,
        Expansion::Doubling,
    );
    filter.insert_many(&items, false).unwrap();
    let (image, chunks) = snapshot!(filter, ());
    let restore = |leave_out: Option<u32>| {
        CompactFilter::restore::<Infallible>(&image, &mut |table| {
            let load = |chunk| {
                table.load(chunk..chunk + 1, |chunk, out| {
                    out.clone_from(&chunks[&(table.id(), chunk)]);
                    Ok(())
                })
            };
            let wanted = |chunk: &u32| Some(*chunk) != leave_out;
            let middle = table.chunks() / 2;
            std::thread::scope(|scope| {
                let second = scope.spawn(|| (middle..table.chunks()).rev().filter(wanted).try_for_each(load));
                (0..middle).rev().filter(wanted).try_for_each(load)?;
                second.join().unwrap()
            })
        })
    };
    let restored = restore(None).unwrap();
    assert!(chunks.len() > 10);
    assert_eq!(restored.reader().view().items(), 40_000);
    assert!(items.iter().all(|item| restored.reader().view().contains(*item)));
    for chunk in 0..chunks.len() as u32 {
        assert!(matches!(restore(Some(chunk)), Err(RestoreError::Image(_))), "chunk {chunk}");
    }
}
