//! Compact filters: whatever grows, nothing is lost, and tables are few.

use super::*;
use cuckood_filter::{InsertOutcome, SlotState};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The case in which tables without nesting fail: short fingerprints, growth by a thousand, half of it removed.
#[test]
fn half_remains_after_thousandfold_growth() {
    let mut filter = compact(Layout::compact_with(1_000, 14, 4, 50, Growth::Auto).unwrap());
    let items = digests(0, 1_000_000);
    let added = filter.insert_many(&items, false).unwrap();
    assert!(added.iter().all(|outcome| *outcome == InsertOutcome::Added));
    let (leaving, staying) = items.split_at(500_000);
    assert!(
        filter
            .remove_many(leaving, false)
            .into_iter()
            .all(|removed| removed == 1)
    );
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
    let items = digests(0, (ROUNDS * ITEMS) as u64);
    let reader = filter.reader();
    // The number of added items, and of removed or soon removed ones.
    let added = AtomicUsize::new(0);
    let leaving = AtomicUsize::new(0);
    let watch = || {
        let mut missed = 0;
        let mut found = Vec::new();
        while leaving.load(Ordering::Acquire) < items.len() {
            let to = added.load(Ordering::Acquire);
            let from = to.saturating_sub(500);
            let view = reader.view(0);
            view.contains_many(&items[from..to], &mut found);
            let singly: Vec<bool> = items[from..to]
                .iter()
                .map(|&item| view.contains(item))
                .collect();
            let left = leaving.load(Ordering::Acquire);
            let both = found
                .iter()
                .zip(singly)
                .enumerate()
                .filter(|(at, _)| from + at >= left);
            missed += both
                .filter(|(_, (found, singly))| !**found || !singly)
                .count();
        }
        missed
    };
    // Inserts during which a table was copied, and removes that found nothing. Nothing is asserted while the reader waits for the end.
    let mut moving = 0;
    let mut lost = 0;
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
    assert_eq!(
        (missed, lost),
        (0, 0),
        "items that were missed, and that were lost"
    );
    assert!(moving > 100, "a table was copied during {moving} inserts");
    let stats = reader.view(0).stats();
    assert_eq!((stats.segments.len(), stats.items), (1, 0));
    assert!(
        stats.memory_bytes < 2_000,
        "memory is released once it is empty: {}",
        stats.memory_bytes
    );
}

#[test]
fn copies_saturate_at_two_buckets() {
    let mut filter = compact(Layout::compact(1_000, 0.001, Growth::Auto).unwrap());
    let outcomes: Vec<InsertOutcome> = (0..1_000)
        .map(|_| filter.insert(digest(1), false).unwrap())
        .collect();
    assert_eq!(
        outcomes
            .iter()
            .filter(|outcome| **outcome == InsertOutcome::Added)
            .count(),
        8
    );
    assert_eq!(outcomes.last(), Some(&InsertOutcome::Saturated));
    assert_eq!(filter.reader().view(0).stats().segments.len(), 1);
    assert_eq!(filter.remove_many(&[digest(1)], true), [8]);
    // A table that is full with them does not grow.
    let mut filter = compact(Layout::compact_with(10, 32, 8, 500, Growth::Auto).unwrap());
    let outcomes = filter.insert_many(&[digest(1); 20], false).unwrap();
    assert_eq!(
        outcomes
            .iter()
            .filter(|outcome| **outcome == InsertOutcome::Added)
            .count(),
        16
    );
}

/// Items with the maximum number of copies, added one after the other or in rounds, need few tables and little time.
#[test]
fn repeated_copies_need_few_tables() {
    for (capacity, users, tables_max) in [
        (1_000, 6_000, 10),
        (10_000, 12_500, 8),
        (200_000, 30_000, 4),
    ] {
        for is_in_rounds in [false, true] {
            let mut filter = compact(Layout::compact(capacity, 0.001, Growth::Auto).unwrap());
            let copies =
                (0..users * 8).map(|step| if is_in_rounds { step % users } else { step / 8 });
            copies.for_each(|user| _ = filter.insert(digest(user), false).unwrap());
            let reader = filter.reader();
            let stats = filter.reader().view(0).stats();
            assert!((0..users).all(|user| reader.view(0).count(digest(user)) >= 8));
            assert!(
                stats.segments.len() <= tables_max,
                "{capacity}, {users}: {:?}",
                stats.segments
            );
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
    for (capacity, bits, bucket_size) in [
        (1_000, 16, 4),
        (1_000, 12, 8),
        (1_000, 16, 2),
        (1, 8, 4),
        (7, 8, 2),
    ] {
        let layout =
            Layout::compact_with(capacity, bits, bucket_size, 2_000, Growth::Fixed).unwrap();
        let mut filter = Filter::new(Mode::Compact, layout, Growth::Fixed, None);
        let digests = digests(0, 10 * capacity + 100);
        let within = &digests[..capacity as usize];
        assert!(
            filter.insert_many(within, false).is_ok(),
            "{capacity} items of {bits} bits"
        );
        assert!(
            filter
                .insert_many(&digests[capacity as usize..], false)
                .is_err()
        );
        assert_eq!(filter.items(), capacity);
        assert!(
            within
                .iter()
                .all(|&digest| filter.reader().view(0).contains(digest))
        );
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
    assert_eq!(
        reader.view(0).stats().segments.len(),
        2,
        "the newest table is doubled several times"
    );
    assert!(
        reader
            .view(0)
            .stats()
            .segments
            .iter()
            .map(|table| table.capacity)
            .sum::<u64>()
            >= 1_000_000
    );
    filter.move_items(u64::MAX);
    assert!(
        digests
            .iter()
            .all(|&digest| reader.view(0).contains(digest))
    );
    let strangers = 1_000_000;
    let wrong = (0..strangers)
        .filter(|number| reader.view(0).contains(digest(1 << 40 | number)))
        .count();
    assert!(
        wrong as f64 <= 0.01 * strangers as f64,
        "{wrong} of {strangers}"
    );
    assert!(error_rate(&reader.view(0).stats().segments) <= 0.01);
    filter.clear();
    assert_eq!(reader.view(0).stats().segments.len(), 1);
    filter.insert_many(&digests, false).unwrap();
    assert_eq!(
        reader.view(0).stats().segments.len(),
        1,
        "a cleared filter starts with the raised capacity"
    );
}

/// Without a free slot or without an effect, not a bit changes.
#[test]
fn insert_without_effect_changes_no_bytes() {
    let layout = Layout::compact_with(500, 12, 4, 300, Growth::Fixed).unwrap();
    let mut filter = Filter::new(Mode::Compact, layout, Growth::Fixed, None);
    let mut refused = 0;
    let mut next = 0;
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
            assert_eq!(
                filter.insert(digest(number), true),
                Ok(InsertOutcome::Present(SlotState::Available))
            );
        }
    }
    assert!(before == snapshot(&mut filter));
}
