//! The filter as an embedding program sees it: against models, over random logs, and measured.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub
)] // A failed `unwrap` fails the test; nothing here is public outside.

mod figures;
mod fill;
mod forgetting;
mod growth;
mod images;
mod model;
mod multiset;
mod set;

use cuckood_filter::{
    Digest, Filled, Filter, FilterImage, Growth, GrowthRule, Layout, Mode, RestoreError, Restoring,
    SegmentStats, TableId,
};
use std::collections::HashMap;
use std::convert::Infallible;

type Chunks = HashMap<(TableId, u32), Vec<u8>>;

fn digest(number: u64) -> Digest {
    Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))
}

fn digests(from: u64, to: u64) -> Vec<Digest> {
    (from..to).map(digest).collect()
}

fn compact(layout: Layout) -> Filter {
    Filter::new(Mode::Compact, layout, Growth::Auto, None)
}

/// A filter that grows by the rule of today's logs.
fn paced(layout: Layout) -> Filter {
    let mut filter = compact(layout);
    filter.set_growth_rule(GrowthRule::Paced);
    filter
}

fn strict(capacity: u64) -> Filter {
    Filter::new(
        Mode::Strict,
        Layout::strict(capacity).unwrap(),
        Growth::Auto,
        None,
    )
}

/// Takes a snapshot while the filter changes.
fn snapshot_while(
    filter: &mut Filter,
    mut change: impl FnMut(&mut Filter),
) -> (FilterImage, Chunks) {
    let (image, frozen) = filter.freeze(&Default::default());
    let mut chunks = Chunks::new();
    for mut table in frozen {
        for chunk in 0.. {
            change(filter);
            let mut bytes = Vec::new();
            if !table.next_chunk(&mut bytes) {
                break;
            }
            chunks.insert((table.id(), chunk), bytes);
        }
    }
    (image, chunks)
}

fn snapshot(filter: &mut Filter) -> (FilterImage, Chunks) {
    snapshot_while(filter, |_| ())
}

fn restored(
    mode: Mode,
    image: &FilterImage,
    chunks: &Chunks,
) -> Result<Filter, RestoreError<Infallible>> {
    Filter::restore(mode, image, None, &mut |table: &Restoring<'_>| {
        table.load(0..table.chunks(), |chunk, out| {
            out.clear();
            out.extend_from_slice(chunks.get(&(table.id(), chunk)).map_or(&[], Vec::as_slice));
            Ok(())
        })
    })
}

/// The filter restored from its own snapshot. It must be the same to the byte.
fn restarted(mut filter: Filter) -> Filter {
    let (image, chunks) = snapshot(&mut filter);
    let mut restored = restored(filter.mode(), &image, &chunks).unwrap();
    assert!(
        snapshot(&mut restored) == (image, chunks),
        "a restored filter differs"
    );
    restored.set_growth_rule(filter.reader().growth_rule());
    restored
}

/// The filter sent as an image to another server, chunk by chunk.
fn sent(mut filter: Filter) -> Filter {
    let (image, chunks) = snapshot(&mut filter);
    let mut copy = Filter::unfilled(filter.mode(), &image).unwrap();
    let mut filled = Filled::default();
    for (table, _, count) in image.tables() {
        (0..count).for_each(|chunk| copy.fill(&mut filled, &chunks[&(table, chunk)]).unwrap());
    }
    copy.finish_filling(filled, &image.items()).unwrap();
    copy.set_growth_rule(filter.reader().growth_rule());
    copy
}

/// The share of strangers that a filter takes for items, by the statistics of its tables.
fn error_rate(segments: &[SegmentStats]) -> f64 {
    let rate = |table: &SegmentStats| {
        let compared = 2.0 * table.items as f64 / table.buckets as f64;
        -f64::exp_m1(compared * f64::ln_1p(-f64::from(table.fingerprint_bits).exp2().recip()))
    };
    segments.iter().map(rate).sum()
}
