//! Filters that forget: error rate, size, and readers while steps rotate.

use super::{digest, restored, snapshot};
use cuckood_filter::{Digest, Filter, Growth, Layout, Mode, RestoreError};
use std::sync::atomic::{AtomicU64, Ordering, fence};

fn digests(from: u64, count: u64) -> Vec<Digest> {
    super::digests(from, from + count)
}

/// A filter of this capacity and error rate, whose items are retained for this many steps.
fn forgetting(capacity: u64, error_rate: f64, kept: u32) -> Filter {
    let layout = Layout::forgetting(capacity, error_rate, Growth::Auto, kept).unwrap();
    Filter::new(Mode::Compact, layout, Growth::Auto, Some(kept))
}

fn forgetting_of_bits(capacity: u64, bits: u8, kept: u32) -> Filter {
    let layout = Layout::compact_with(capacity, bits, 8, 500, Growth::Auto)
        .unwrap()
        .with_steps(kept)
        .unwrap();
    Filter::new(Mode::Compact, layout, Growth::Auto, Some(kept))
}

/// The error rate holds for all steps together, and while segments are added in them.
#[test]
fn error_rate_holds_over_all_steps() {
    let mut filter = forgetting(1_000, 0.01, 8);
    let strangers = 200_000;
    let mut items = 0;
    for step in 0..25_u64 {
        filter.advance(step);
        // Each step brings more than the one before, up to a size that stays.
        let count = 2_000 * step.min(12);
        filter.insert_many(&digests(items, count), false).unwrap();
        items += count;
        filter.retire(1_000);
        let reader = filter.reader();
        let view = reader.view(step);
        let wrong = (0..strangers)
            .filter(|number| view.contains(digest(1 << 40 | number)))
            .count();
        assert!(
            wrong as f64 <= 0.01 * strangers as f64,
            "{wrong} of {strangers} in step {step}"
        );
    }
    assert!(filter.reader().view(24).stats().segments.len() >= 2);
}

/// A segment that was needed once is dropped after its items are forgotten.
#[test]
fn segment_is_dropped_once_items_are_forgotten() {
    let mut filter = forgetting(1_000, 0.001, 4);
    filter.insert_many(&digests(0, 20_000), false).unwrap();
    assert!(filter.reader().view(0).stats().segments.len() >= 2);
    for step in 1..=12 {
        filter.advance(step);
        filter
            .insert_many(&digests(20_000 + 20 * step, 20), false)
            .unwrap();
        while filter.is_retiring() {
            assert!(filter.retire(50) > 0);
        }
    }
    assert_eq!(
        (
            filter.reader().view(12).stats().segments.len(),
            filter.items()
        ),
        (1, 100)
    );
}

/// Users who return often: a filter of the requested capacity holds all of them, step after step.
#[test]
fn returning_users_fit_in_planned_capacity() {
    let mut filter = forgetting(30_000, 0.001, 8);
    for step in 0..60_u64 {
        filter.advance(step);
        // Three copies of each, over three steps: 27 000 copies in nine steps.
        for part in 0..3 {
            filter
                .insert_many(&digests((step + part) * 1_000, 1_000), false)
                .unwrap();
        }
        filter.retire(200);
    }
    assert_eq!(filter.reader().view(59).stats().segments.len(), 1);
    assert_eq!(filter.items(), 27_000);
}

/// Tags wrap around many times while a reader looks up the latest items.
#[test]
fn reader_finds_items_while_steps_rotate() {
    let kept = 5;
    let mut filter = forgetting_of_bits(3_000, 13, kept);
    // All steps before `begun` are complete; the writer may have freed the items forgotten in step `entered`.
    let begun = AtomicU64::new(0);
    let entered = AtomicU64::new(0);
    let reader = filter.reader();
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut missed = 0;
            let mut found = Vec::new();
            loop {
                let begun = begun.load(Ordering::Acquire);
                if begun == u64::MAX {
                    return missed;
                }
                for step in begun.saturating_sub(3)..begun {
                    let items = digests(step * 500, 500);
                    let view = reader.view(step);
                    view.contains_many(&items, &mut found);
                    // Pairs with the store that freed a slot: `entered` is then at least the step of that.
                    fence(Ordering::Acquire);
                    let is_over = begun + 2 < entered.load(Ordering::Relaxed);
                    let missing = found.iter().filter(|found| !**found).count();
                    missed += if is_over { 0 } else { missing };
                }
            }
        });
        for step in 0..3_000 {
            entered.store(step, Ordering::Release);
            filter.advance(step);
            filter
                .insert_many(&digests(step * 500, 500), false)
                .unwrap();
            begun.store(step + 1, Ordering::Release);
            if step % 7 == 0 {
                filter.retire(u64::MAX);
            } else {
                filter.retire(500);
            }
        }
        begun.store(u64::MAX, Ordering::Release);
        assert_eq!(watching.join().unwrap(), 0, "items were missed");
    });
}

/// Tables with items of a step that is not in the image are rejected.
#[test]
fn inconsistent_image_is_rejected() {
    let mut filter = forgetting_of_bits(100, 12, 3);
    filter.advance(1);
    filter.insert_many(&digests(0, 50), false).unwrap();
    let (image, chunks) = snapshot(&mut filter);
    filter.advance(2);
    filter.insert_many(&digests(50, 10), false).unwrap();
    let (later_image, later_chunks) = snapshot(&mut filter);
    assert!(
        restored(Mode::Compact, &image, &chunks).is_ok()
            && restored(Mode::Compact, &later_image, &later_chunks).is_ok()
    );
    assert!(matches!(
        restored(Mode::Compact, &image, &later_chunks),
        Err(RestoreError::Image(_))
    ));
}
