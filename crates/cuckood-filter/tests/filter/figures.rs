//! The filters' formulas, measured: load of a table, error rate, memory per item. Digests are drawn from fixed seeds, so every run measures
//! the same.

use cuckood_filter::layout::MAX_SEARCH_DEFAULT;
use cuckood_filter::{Digest, Filter, Growth, Layout, Mode};

fn scrambled(number: u64) -> Digest {
    Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))
}

/// A search finds a free slot until a table is this full; the sizing formula stays below it.
#[test]
fn first_insert_fails_at_high_load() {
    for (bucket_size, least) in [(2, 0.84), (4, 0.955), (8, 0.985)] {
        let layout = Layout::compact_with(
            1_000_000,
            16,
            bucket_size,
            MAX_SEARCH_DEFAULT,
            Growth::Fixed,
        )
        .unwrap();
        let mut filter = Filter::new(Mode::Compact, layout, Growth::Fixed, None);
        let fit = (0..)
            .take_while(|&number| filter.insert(scrambled(number), false).is_ok())
            .count();
        let fill = fit as f64 / layout.slots() as f64;
        println!("{bucket_size} slots: {fill:.4} full");
        assert!(fill >= least, "{bucket_size} slots: {fill}");
        assert!(
            fit as u64 >= layout.capacity(),
            "{bucket_size} slots: {fit}"
        );
    }
}

/// Every layout whose error can be measured: 2,000 false positives or more, so that chance accounts for 2 %.
#[test]
fn error_rate_matches_formula() {
    const STRANGERS_MAX: f64 = 1e7;
    let mut measured = 0;
    for bucket_size in [2, 4, 8] {
        for bits in 4..=32 {
            let layout =
                Layout::compact_with(50_000, bits, bucket_size, MAX_SEARCH_DEFAULT, Growth::Auto)
                    .unwrap();
            let mut filter = Filter::new(Mode::Compact, layout, Growth::Fixed, None);
            // The shortest fingerprints give no path to the last slots; the formula knows no more than the load.
            let _ = (0..layout.capacity())
                .try_for_each(|number| filter.insert(scrambled(number), false).map(drop));
            let items = filter.items();
            let expected = layout.error_rate_at(items as f64 / layout.slots() as f64);
            if expected * STRANGERS_MAX < 2_000.0 {
                continue;
            }
            let strangers = (2_000.0 / expected).ceil() as u64;
            let reader = filter.reader();
            let view = reader.view(0);
            let mut wrong = 0;
            let mut found = Vec::new();
            for from in (0..strangers).step_by(1 << 12) {
                let asked: Vec<Digest> = (from..strangers.min(from + (1 << 12)))
                    .map(|number| scrambled(1 << 40 | number))
                    .collect();
                view.contains_many(&asked, &mut found);
                wrong += found.iter().filter(|found| **found).count();
            }
            let ratio = wrong as f64 / strangers as f64 / expected;
            assert!(
                (0.9..=1.1).contains(&ratio),
                "{bits} bits, {bucket_size} slots: {ratio} of the formula"
            );
            measured += 1;
        }
    }
    assert_eq!(measured, 35, "layouts of up to 13, 15 and 16 bits");
}

/// The memory that is promised at an error of 0.1 %, 95 % full.
#[test]
fn memory_per_item_matches_formula() {
    let bits = |layout: Layout| layout.bits_per_item(1_000_000);
    assert!(bits(Layout::compact(1_000_000, 0.001, Growth::Fixed).unwrap()) <= 13.8);
    assert!(bits(Layout::compact(1_000_000, 0.001, Growth::Auto).unwrap()) <= 14.9);
    assert!(bits(Layout::strict(1_000_000).unwrap()) <= 68.0);
}

/// No smaller layout for this number of items keeps the error rate.
#[test]
fn formula_picks_smallest_layout() {
    for capacity in [1, 10, 999, 65_536, 1_000_000, 123_456_789] {
        for error_rate in [0.3, 0.01, 0.001, 1e-6, 1e-8] {
            for growth in [Growth::Auto, Growth::Fixed] {
                let picked = Layout::compact(capacity, error_rate, growth).unwrap();
                let share = if growth == Growth::Auto {
                    error_rate / 2.0
                } else {
                    error_rate
                };
                assert!(picked.capacity() >= capacity && picked.error_rate_at(1.0) <= share);
                for bucket_size in [2, 4, 8] {
                    for bits in picked.fingerprint_bits.min(8)..=32 {
                        let other = Layout::compact_with(
                            capacity,
                            bits,
                            bucket_size,
                            MAX_SEARCH_DEFAULT,
                            growth,
                        );
                        // Too short for a filter that may not grow.
                        let Ok(other) = other else { continue };
                        let is_as_good = other.error_rate_at(1.0) <= share;
                        // A width that divides 64 needs no extra word at the end.
                        assert!(
                            !is_as_good || other.memory_bytes() + 8 >= picked.memory_bytes(),
                            "{other:?}"
                        );
                    }
                }
            }
        }
    }
}

/// Short fingerprints lead to few other buckets, and a large table is then full too early: none are planned with.
#[test]
fn planned_filter_holds_capacity_at_any_rate() {
    for capacity in [1_000, 50_000, 1_000_000] {
        for error_rate in [0.5, 0.2, 0.1, 0.05] {
            let layout = Layout::compact(capacity, error_rate, Growth::Fixed).unwrap();
            let mut filter = Filter::new(Mode::Compact, layout, Growth::Fixed, None);
            let full =
                (0..capacity).find(|&number| filter.insert(scrambled(number), false).is_err());
            assert_eq!(full, None, "{capacity} at {error_rate}: {layout:?}");
        }
    }
}
