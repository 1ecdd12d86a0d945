//! The cost of growth: memory, tables and error, at any size.

use super::*;

/// Curves of growth, by capacity: the factors at which they are measured.
fn factors(most: f64) -> impl Iterator<Item = f64> {
    (0..).map(|step| 1.06_f64.powi(step)).take_while(move |factor| *factor <= most)
}

/// From the capacity to a thousand times that, a filter takes at most 2.6 times the memory of one of the right size, and 1.7 times on average;
/// it has two tables up to 100 times its capacity and three up to 1,000 times, and its error stays within the promise.
#[test]
fn growth_stays_within_its_bounds() {
    for (capacity, most) in [(100_u64, 1_000.0), (1_000, 1_000.0), (10_000, 1_000.0), (100_000, 12.0)] {
        let mut filter = compact(Layout::compact(capacity, 0.001, Growth::Auto).unwrap());
        let (mut held, mut ratios) = (0, Vec::new());
        for factor in factors(most) {
            let items = (capacity as f64 * factor) as u64;
            filter.insert_many(&digests(held, items), false).unwrap();
            held = items;
            let stats = filter.reader().view(0).stats();
            let is_copying = filter.is_moving();
            let right = Layout::compact(items, 0.001, Growth::Auto).unwrap().memory_bytes();
            let ratio = stats.memory_bytes as f64 / right as f64;
            let bound = if is_copying { 3.6 } else { 2.6 };
            assert!(
                ratio <= bound,
                "{capacity} × {factor:.2}: {ratio:.2} times the right size, {:?}",
                stats.segments
            );
            ratios.push(ratio);
            let tables_max = if factor <= 100.0 { 2 } else { 3 };
            assert!(stats.segments.len() <= tables_max, "{capacity} × {factor:.2}: {:?}", stats.segments);
            let error = error_rate(&stats.segments);
            assert!(error <= 0.001, "{capacity} × {factor:.2}: {error}, {:?}", stats.segments);
        }
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        println!(
            "{capacity}: {mean:.2} on average, {:.2} at most",
            ratios.iter().copied().fold(0.0, f64::max)
        );
        assert!(most < 1_000.0 || mean <= 1.7, "{capacity}: {mean}");
    }
}

/// A user more than the capacity costs little.
#[test]
fn one_item_beyond_capacity_costs_little() {
    let mut filter = compact(Layout::compact(1_000, 0.001, Growth::Auto).unwrap());
    filter.insert_many(&digests(0, 1_000), false).unwrap();
    assert!(filter.reader().view(0).memory_bytes() <= 2_000);
    let full = (1_000..).take_while(|&number| {
        filter.insert(digest(number), false).is_ok() && filter.reader().view(0).stats().segments.len() == 1
    });
    assert!(full.count() < 30);
    assert!(filter.reader().view(0).memory_bytes() <= 5_000, "{}", filter.reader().view(0).memory_bytes());
}

/// Measured errors keep within the promise.
#[test]
fn error_rate_holds_during_growth() {
    let mut filter = compact(Layout::compact(1_000, 0.001, Growth::Auto).unwrap());
    let (strangers, mut found) = (digests(1 << 40, (1 << 40) + 1_000_000), Vec::new());
    for (from, to) in [(0, 1_000), (1_000, 13_000), (13_000, 113_000), (113_000, 1_000_000)] {
        filter.insert_many(&digests(from, to), false).unwrap();
        filter.reader().view(0).contains_many(&strangers, &mut found);
        let wrong = found.iter().filter(|found| **found).count();
        assert!(wrong <= 1_000, "{wrong} of a million at {to}");
    }
}

/// Forecasts cover the memory taken, and the tables for fewer items are among those for more.
#[test]
fn growth_stays_within_forecast() {
    for mut filter in [
        compact(Layout::compact(300, 0.001, Growth::Auto).unwrap()),
        compact(Layout::compact(20_000, 0.01, Growth::Auto).unwrap()),
        Filter::new(
            Mode::Compact,
            Layout::forgetting(3_000, 0.01, Growth::Auto, 4).unwrap(),
            Growth::Auto,
            Some(4),
        ),
        strict(300),
        strict(20_000),
        // Layouts of callers with which searches fail early.
        compact(Layout::compact_with(300, 4, 2, 1, Growth::Auto).unwrap()),
        compact(Layout::compact_with(9_000, 5, 2, 3, Growth::Auto).unwrap()),
        compact(Layout::compact_with(3_000, 4, 4, 1, Growth::Auto).unwrap()),
        compact(Layout::compact_with(20_000, 16, 2, 1, Growth::Auto).unwrap()),
    ] {
        let mut next = 0;
        for round in 0..60 {
            let items = 1 + round * round * 7;
            let before = filter.reader().view(0).memory_bytes();
            let (need, fewer) = (filter.tables().growth(items), filter.tables().growth(items / 2));
            assert!(
                need.clone().beyond(&fewer).bytes == need.bytes - fewer.bytes && fewer.bytes <= need.bytes
            );
            filter.insert_many(&digests(next, next + items), false).unwrap();
            next += items;
            let taken = filter.reader().view(0).memory_bytes();
            assert!(
                taken <= before + need.bytes,
                "{taken} bytes after {items} more, not {before} + {}",
                need.bytes
            );
        }
    }
}
