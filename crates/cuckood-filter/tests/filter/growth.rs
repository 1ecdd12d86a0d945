//! The cost of growth: memory, tables and error, at any size.

use super::model::rules;
use super::*;
use proptest::prelude::*;

/// Curves of growth, by capacity: the factors at which they are measured.
fn factors(most: f64) -> impl Iterator<Item = f64> {
    (0..)
        .map(|step| 1.06_f64.powi(step))
        .take_while(move |factor| *factor <= most)
}

/// From the capacity to a thousand times that, a filter takes at most 2.6 times the memory of one of the right size, and 1.7 times on average;
/// it has two tables up to 100 times its capacity and three up to 1,000 times, and its error stays within the promise.
#[test]
fn growth_stays_within_its_bounds() {
    for (capacity, most) in [
        (100_u64, 1_000.0),
        (1_000, 1_000.0),
        (10_000, 1_000.0),
        (100_000, 12.0),
    ] {
        let mut filter = compact(Layout::compact(capacity, 0.001, Growth::Auto).unwrap());
        let mut held = 0;
        let mut ratios = Vec::new();
        for factor in factors(most) {
            let items = (capacity as f64 * factor) as u64;
            filter.insert_many(&digests(held, items), false).unwrap();
            held = items;
            let stats = filter.reader().view(0).stats();
            let is_copying = filter.is_moving();
            let right = Layout::compact(items, 0.001, Growth::Auto)
                .unwrap()
                .memory_bytes();
            let ratio = stats.memory_bytes as f64 / right as f64;
            let bound = if is_copying { 3.6 } else { 2.6 };
            assert!(
                ratio <= bound,
                "{capacity} × {factor:.2}: {ratio:.2} times the right size, {:?}",
                stats.segments
            );
            ratios.push(ratio);
            let tables_max = if factor <= 100.0 { 2 } else { 3 };
            assert!(
                stats.segments.len() <= tables_max,
                "{capacity} × {factor:.2}: {:?}",
                stats.segments
            );
            let error = error_rate(&stats.segments);
            assert!(
                error <= 0.001,
                "{capacity} × {factor:.2}: {error}, {:?}",
                stats.segments
            );
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
        filter.insert(digest(number), false).is_ok()
            && filter.reader().view(0).stats().segments.len() == 1
    });
    assert!(full.count() < 30);
    assert!(
        filter.reader().view(0).memory_bytes() <= 5_000,
        "{}",
        filter.reader().view(0).memory_bytes()
    );
}

/// Measured errors keep within the promise.
#[test]
fn error_rate_holds_during_growth() {
    let mut filter = compact(Layout::compact(1_000, 0.001, Growth::Auto).unwrap());
    let strangers = digests(1 << 40, (1 << 40) + 1_000_000);
    let mut found = Vec::new();
    for (from, to) in [
        (0, 1_000),
        (1_000, 13_000),
        (13_000, 113_000),
        (113_000, 1_000_000),
    ] {
        filter.insert_many(&digests(from, to), false).unwrap();
        filter
            .reader()
            .view(0)
            .contains_many(&strangers, &mut found);
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
            let need = filter.tables().growth(items);
            let fewer = filter.tables().growth(items / 2);
            assert!(
                need.clone().beyond(&fewer).bytes == need.bytes - fewer.bytes
                    && fewer.bytes <= need.bytes
            );
            filter
                .insert_many(&digests(next, next + items), false)
                .unwrap();
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

/// Copies that crowd their buckets need little memory: in a row, the former rule took seven times that of a filter of the right size.
#[test]
fn crowded_copies_need_little_memory() {
    for is_in_rounds in [false, true] {
        let capacity = 100_000;
        let users = 100_000;
        let mut filter = paced(Layout::compact(capacity, 0.001, Growth::Auto).unwrap());
        let copies = (0..users * 8).map(|step| if is_in_rounds { step % users } else { step / 8 });
        copies.for_each(|user| _ = filter.insert(digest(user), false).unwrap());
        let items = filter.items();
        let bytes = filter.reader().view(0).memory_bytes();
        let right = Layout::compact(items, 0.001, Growth::Auto)
            .unwrap()
            .memory_bytes();
        assert!(
            bytes as f64 <= 3.6 * right as f64,
            "{bytes} bytes, {:.2} times the right size",
            bytes as f64 / right as f64
        );
    }
    let forgetting = Layout::forgetting(10_000, 0.001, Growth::Auto, 8).unwrap();
    let mut filter = Filter::new(Mode::Compact, forgetting, Growth::Auto, Some(8));
    filter.set_growth_rule(GrowthRule::Paced);
    (0..10_000 * 16).for_each(|step| _ = filter.insert(digest(step / 16), false).unwrap());
    let bytes = filter.reader().view(0).memory_bytes();
    assert!(
        bytes <= 30 * filter.items(),
        "{bytes} bytes for {} copies",
        filter.items()
    );
}

/// Copies that crowd their buckets end the copy to a larger table. Its capacity is not lost.
#[test]
fn raised_capacity_remains_if_copies_crowd() {
    let layout = |capacity| Layout::compact(capacity, 0.001, Growth::Auto).unwrap();
    let mut filter = paced(layout(1_000));
    filter.insert(digest(0), false).unwrap();
    filter.raise(layout(1_000_000)).unwrap();
    filter.raise(layout(4_000_000)).unwrap();
    let reader = filter.reader();
    let tables = reader.view(0).stats().segments.len();
    let users = (1..).take_while(|&user| {
        (0..8).for_each(|_| _ = filter.insert(digest(user), false).unwrap());
        reader.view(0).stats().segments.len() == tables
    });
    assert!(users.count() < 4_000);
    let segments = reader.view(0).stats().segments;
    assert!(
        segments.iter().map(|segment| segment.capacity).sum::<u64>() >= 4_000_000,
        "{segments:?}"
    );
}

/// Commands that insert copies: the first item, how many items, and how often each of them.
fn copies() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    let times = prop_oneof![1 => Just(1_u64), 4 => 2_u64..=9, 2 => 9_u64..60];
    let users = prop_oneof![3 => 1_u64..20, 3 => 20_u64..400, 1 => 400_u64..5_000];
    proptest::collection::vec((0_u64..60_000, users, times), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Forecasts cover the tables that are appended because copies crowd their buckets.
    #[test]
    fn crowded_growth_stays_within_forecast(
        commands in copies(),
        capacity in prop_oneof![10_u64..3_000, 3_000_u64..60_000, 60_000_u64..600_000],
        bits in prop_oneof![4_u8..=10, 10_u8..=24, 24_u8..=31],
        bucket_size in prop_oneof![1 => Just(2_u8), 3 => Just(4), 1 => Just(8)],
        raised in 1_u64..4,
        is_forgetting: bool,
        rule in rules(),
    ) {
        let layout = |capacity| {
            let layout = Layout::compact_with(capacity, bits, bucket_size, 500, Growth::Auto).unwrap();
            if is_forgetting { layout.with_steps(4).unwrap() } else { layout }
        };
        let mut filter = Filter::new(Mode::Compact, layout(capacity), Growth::Auto, is_forgetting.then_some(4));
        filter.set_growth_rule(rule);
        for (number, (from, users, times)) in commands.into_iter().enumerate() {
            if number == 9 && raised > 1 {
                _ = filter.raise(layout(capacity * raised));
            }
            let users = users.min(10_000 / times);
            let items: Vec<_> = (0..times).flat_map(|_| digests(from, from + users)).collect();
            let before = filter.reader().view(0).memory_bytes();
            let need = filter.tables().growth(items.len() as u64);
            _ = filter.insert_many(&items, false);
            let taken = filter.reader().view(0).memory_bytes();
            prop_assert!(taken <= before + need.bytes, "{taken} bytes, not {before} + {}", need.bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A filter takes as many different items as it states, and states a capacity for all that it holds. The smallest tables promise a fifth
    /// of their slots.
    #[test]
    fn filter_takes_capacity_max(
        capacity in 1_u64..250,
        exponent in -8.0..-6.6_f64,
        rule in rules(),
        is_forgetting: bool,
    ) {
        let rate = 10_f64.powf(exponent);
        let (layout, steps) = match is_forgetting {
            false => (Layout::compact(capacity, rate, Growth::Auto).unwrap(), None),
            true => (Layout::forgetting(capacity, rate, Growth::Auto, 4).unwrap(), Some(4)),
        };
        let mut filter = Filter::new(Mode::Compact, layout, Growth::Auto, steps);
        filter.set_growth_rule(rule);
        let most = layout.capacity_max(Mode::Compact);
        prop_assert!((capacity..100_000).contains(&most), "{most}");
        for item in 0..most {
            prop_assert!(filter.insert(digest(item), false).is_ok(), "{} of {} items", item, most);
        }
        let full = (most..).find(|&item| filter.insert(digest(item), false).is_err());
        prop_assert!(full.is_some_and(|full| full < 5 * most + 200), "{:?} of {}", full, most);
    }

    /// Whatever a filter holds, its capacity can be raised to what it would reach by growing. The capacity of a small table is rounded up,
    /// possibly beyond that.
    #[test]
    fn capacity_is_raised_up_to_capacity_max(
        capacity in 1_u64..250,
        exponent in -8.0..-6.6_f64,
        share in 0.0..1.0_f64,
        wanted in 0.0..1.0_f64,
    ) {
        let rate = 10_f64.powf(exponent);
        let layout = |capacity| Layout::compact(capacity, rate, Growth::Auto).unwrap();
        let mut filter = paced(layout(capacity));
        let most = layout(capacity).capacity_max(Mode::Compact);
        let held = 1 + (share * (most - 1) as f64) as u64;
        filter.insert_many(&digests(0, held), false).unwrap();
        let wanted = capacity + (wanted * (most - capacity) as f64) as u64;
        prop_assume!(layout(wanted).capacity() <= most);
        prop_assert!(filter.raise(layout(wanted)).is_ok(), "{capacity} to {wanted} of {most} at {rate}, {held} items");
        for item in held..wanted {
            prop_assert!(filter.insert(digest(item), false).is_ok(), "{} of {}", item, wanted);
        }
    }
}
