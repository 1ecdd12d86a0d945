//! The work of a single insert while copies of a few items crowd their buckets.

use crate::{Digest, Filter, Growth, GrowthRule, Layout, Mode};
use xxhash_rust::xxh3::xxh3_64;

/// The table that a filter adds to, the buckets of it that were copied, and all of its buckets.
fn progress(filter: &Filter) -> (u64, u64, u64) {
    let newest = filter.tables().newest();
    (
        newest.id.0,
        newest.copy().map_or(0, |(_, done)| done),
        newest.plan().buckets(),
    )
}

/// The most buckets that any of these inserts copies. Each item is added this many times.
fn most_copied(filter: &mut Filter, items: u64, copies: u64) -> u64 {
    let mut most = 0;
    for item in 0..items * copies {
        let (id, done, buckets) = progress(filter);
        let tables = filter.tables().tables.len();
        filter
            .insert(Digest(xxh3_64(&(item / copies).to_le_bytes())), false)
            .unwrap();
        let (id_after, done_after, _) = progress(filter);
        let copied = match () {
            () if id_after == id => done_after.saturating_sub(done),
            () if filter.tables().tables.len() > tables => 0,
            () => buckets - done,
        };
        most = most.max(copied);
    }
    most
}

#[test]
fn insert_copies_only_its_share() {
    let plain = Layout::compact(100_000, 0.001, Growth::Auto).unwrap();
    let forgetting = Layout::forgetting(50_000, 0.001, Growth::Auto, 4).unwrap();
    for (layout, steps, items, copies) in [
        (plain, None, 60_000, 8),
        (plain, None, 300_000, 1),
        (forgetting, Some(4), 20_000, 16),
    ] {
        let mut filter = Filter::new(Mode::Compact, layout, Growth::Auto, steps);
        filter.set_growth_rule(GrowthRule::Paced);
        let most = most_copied(&mut filter, items, copies);
        assert!(
            most <= 1 << 14,
            "{copies} copies: an insert copies {most} buckets"
        );
    }
    // The former rule, by which nodes of 0.1.0 grow.
    let mut filter = Filter::new(Mode::Compact, plain, Growth::Auto, None);
    assert!(most_copied(&mut filter, 60_000, 8) > 1 << 14);
}
