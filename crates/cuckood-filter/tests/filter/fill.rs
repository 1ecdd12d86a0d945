//! A filter of fixed size holds its capacity, for any items; a layout that can't guarantee that is rejected.
//!
//! A thousand fillings with other items at every capacity take a quarter of an hour for all layouts: `make test-long WHAT=fill` does that.
//! Without it each layout has a few of each capacity.

use cuckood_filter::layout::{
    FINGERPRINT_BITS_MAX, FINGERPRINT_BITS_MIN, FIXED_SEARCH_MIN, MAX_SEARCH_DEFAULT,
};
use cuckood_filter::{Digest, Filter, Growth, InsertOutcome, Layout, LayoutError, Mode};
use proptest::prelude::*;
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

/// The fillings of each capacity, if a long run is wanted.
fn long_fillings() -> Option<u64> {
    std::env::var("CUCKOOD_FILLINGS")
        .ok()
        .and_then(|fillings| fillings.parse().ok())
}

/// Each capacity up to 200, and every tenth up to 2 000; in the short form fewer of the larger ones.
fn capacities() -> impl Iterator<Item = u64> {
    let every = if long_fillings().is_some() { 10 } else { 300 };
    (1..=200).chain((210..=2_000).step_by(every))
}

/// Fillings of one capacity so that the short form's take about as long at each.
fn fillings(capacity: u64) -> Range<u64> {
    0..long_fillings().unwrap_or(400 / capacity + 2)
}

/// No two fillings have an item in common.
fn items(filling: u64, capacity: u64) -> impl Iterator<Item = Digest> {
    let first = (filling << 32) | (capacity << 16);
    (first..first + capacity)
        .map(|number| Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes())))
}

fn compact_takes(layout: Layout, mut items: impl Iterator<Item = Digest>) -> bool {
    let mut filter = Filter::new(Mode::Compact, layout, Growth::Fixed, None);
    items.all(|digest| filter.insert(digest, false) == Ok(InsertOutcome::Added))
}

fn strict_takes(layout: Layout, mut items: impl Iterator<Item = Digest>) -> bool {
    let mut filter = Filter::new(Mode::Strict, layout, Growth::Fixed, None);
    items.all(|digest| filter.insert(digest, false) == Ok(InsertOutcome::Added))
}

#[test]
fn strict_filter_holds_its_capacity() {
    let fillings = |capacity| {
        if long_fillings().is_some() {
            fillings(capacity)
        } else {
            0..40_000 / capacity
        }
    };
    for capacity in capacities() {
        let layout = Layout::strict(capacity).unwrap();
        let failed =
            fillings(capacity).filter(|&filling| !strict_takes(layout, items(filling, capacity)));
        assert_eq!(failed.count(), 0, "capacity {capacity}: {layout:?}");
    }
}

#[test]
fn planned_compact_filter_holds_its_capacity() {
    for error_rate in [0.5, 0.1, 0.01, 0.001, 1e-6] {
        for capacity in capacities() {
            let layout = Layout::compact(capacity, error_rate, Growth::Fixed).unwrap();
            let fillings = if capacity < 50 {
                0..long_fillings().unwrap_or(300)
            } else {
                fillings(capacity)
            };
            let failed =
                fillings.filter(|&filling| !compact_takes(layout, items(filling, capacity)));
            assert_eq!(
                failed.count(),
                0,
                "capacity {capacity} at {error_rate}: {layout:?}"
            );
        }
    }
}

/// Every width and bucket size, with the shortest search, the shortest that costs less memory, and the usual one.
#[test]
fn accepted_custom_layout_holds_its_capacity() {
    let layouts: Vec<(u8, u8, u32)> = (FINGERPRINT_BITS_MIN..=FINGERPRINT_BITS_MAX)
        .flat_map(|bits| [2, 4, 8].map(|size| (bits, size)))
        .flat_map(|(bits, size)| {
            [FIXED_SEARCH_MIN, 500, MAX_SEARCH_DEFAULT].map(|search| (bits, size, search))
        })
        .filter(|(bits, ..)| long_fillings().is_some() || *bits <= 8 || bits % 8 == 0)
        .collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut tried = 0;
        let mut failed = Vec::new();
        while let Some(&(bits, size, search)) = layouts.get(next.fetch_add(1, Relaxed)) {
            for capacity in capacities() {
                let Ok(layout) = Layout::compact_with(capacity, bits, size, search, Growth::Fixed)
                else {
                    continue;
                };
                for filling in fillings(capacity) {
                    tried += 1;
                    if !compact_takes(layout, items(filling, capacity)) {
                        failed.push((capacity, layout, filling));
                    }
                }
            }
        }
        (tried, failed)
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let mut tried = 0_u64;
    let mut failed = Vec::new();
    thread::scope(|scope| {
        for thread in (0..threads).map(|_| scope.spawn(work)).collect::<Vec<_>>() {
            let (their_tried, their_failed) = thread.join().unwrap();
            tried += their_tried;
            failed.extend(their_failed);
        }
    });
    println!("{tried} fillings of {} layouts", layouts.len());
    assert!(
        failed.is_empty(),
        "{} of {tried} fillings failed: {failed:?}",
        failed.len()
    );
}

proptest! {
    /// Any request is granted and held, or rejected with the field's name.
    #[test]
    fn fixed_layout_holds_capacity_or_is_rejected(
        capacity in prop_oneof![1_u64..100, 1_u64..20_000],
        bits in FINGERPRINT_BITS_MIN..=FINGERPRINT_BITS_MAX,
        bucket_size in prop_oneof![Just(2_u8), Just(4), Just(8)],
        max_search in prop_oneof![1_u32..1_000, 1_u32..=16_384],
        filling: u32,
    ) {
        match Layout::compact_with(capacity, bits, bucket_size, max_search, Growth::Fixed) {
            Ok(layout) => {
                prop_assert!(layout.capacity() >= capacity);
                prop_assert!(compact_takes(layout, items(filling.into(), capacity)), "{:?}", layout);
            }
            Err(LayoutError::FixedSearch(_)) => prop_assert!(max_search < FIXED_SEARCH_MIN),
            Err(LayoutError::FixedFingerprintBits { least, .. }) => {
                prop_assert!(bits < least, "{} are enough", least);
                let longer = Layout::compact_with(capacity, least, bucket_size, max_search, Growth::Fixed);
                prop_assert!(longer.is_ok());
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
        // A filter that may grow expands automatically.
        prop_assert!(Layout::compact_with(capacity, bits, bucket_size, max_search, Growth::Auto).is_ok());
    }
}

/// Layouts that used to fail before the filter was full: short fingerprints in small buckets, and a search without buckets.
#[test]
fn insufficient_layout_is_rejected() {
    let fixed = |capacity, bits, size, search| {
        Layout::compact_with(capacity, bits, size, search, Growth::Fixed)
    };
    let short = fixed(10_000, 4, 2, MAX_SEARCH_DEFAULT).unwrap_err();
    assert!(
        matches!(
            short,
            LayoutError::FixedFingerprintBits {
                bits: 4,
                least: 10,
                ..
            }
        ),
        "{short:?}"
    );
    assert!(
        short
            .to_string()
            .starts_with("layout.fingerprint_bits must be at least 10"),
        "{short}"
    );
    let search = fixed(1_000, 16, 4, FIXED_SEARCH_MIN - 1).unwrap_err();
    assert!(
        matches!(search, LayoutError::FixedSearch(249)),
        "{search:?}"
    );
    for (capacity, bits, size, search) in [
        (1_000_000, 16, 4, 512),
        (1_000, 8, 4, 512),
        (500, 8, 2, 2_000),
        (100_000, 12, 2, 2_000),
        (1 << 32, 8, 4, 2_000),
    ] {
        assert!(
            fixed(capacity, bits, size, search).is_ok(),
            "{capacity} items of {bits} bits by {size}"
        );
    }
}

/// Room that small tables keep costs large ones nothing.
#[test]
fn large_table_reaches_planned_load() {
    for (bucket_size, load) in [(2, 0.8), (4, 0.95), (8, 0.98)] {
        for capacity in [10_000, 1_000_000, 100_000_000, 1 << 32] {
            let layout =
                Layout::compact_with(capacity, 16, bucket_size, MAX_SEARCH_DEFAULT, Growth::Fixed)
                    .unwrap();
            let planned = capacity as f64 / layout.slots() as f64;
            assert!(
                (load - 0.001..=load).contains(&planned),
                "{capacity} by {bucket_size}: {planned}"
            );
        }
    }
}
