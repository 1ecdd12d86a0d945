//! The answer to CF.INFO: Redis' fields first, in Redis' order, because some clients read them by position; then our own.

use super::replies::Replies;
use crate::domain::{Description, Kind, SegmentStats, Sizing, Timestamp};
use crate::engine::{FilterView, Growth, Mode};

/// Writes what there is to know about a filter.
pub(super) fn write(view: &FilterView, now: Timestamp, replies: &mut Replies) {
    let description = view.describe(now);
    let of_redis = of_redis(view, &description);
    let own = own(&description);
    let rates = match description.spec.sizing {
        Sizing::ErrorRate(rate) => Some(rate),
        Sizing::Layout { .. } | Sizing::Exact => None,
    };
    let words = words(&description);
    replies.map(of_redis.len() + words.len() + own.len() + usize::from(rates.is_some()));
    for (field, value) in of_redis {
        replies.simple(field);
        replies.count(value);
    }
    for (field, word) in words {
        replies.simple(field);
        replies.simple(word);
    }
    if let Some(rate) = rates {
        replies.simple("Error rate");
        replies.double(rate);
    }
    for (field, value) in own {
        replies.simple(field);
        replies.count(value);
    }
}

fn of_redis(view: &FilterView, description: &Description) -> [(&'static str, u64); 8] {
    let stats = &description.stats;
    let buckets = |segment: &SegmentStats| segment.slots / u64::from(segment.bucket_size).max(1);
    // It grows by doubling.
    let expansion = match description.spec.growth {
        Growth::Auto => 2,
        Growth::Fixed => 0,
    };
    [
        ("Size", stats.memory_bytes),
        ("Number of buckets", stats.segments.iter().map(buckets).sum()),
        ("Number of filters", stats.segments.len() as u64),
        // As in Redis, those that are in it now.
        ("Number of items inserted", stats.items),
        ("Number of items deleted", stats.removes),
        ("Bucket size", view.layout.bucket_size.into()),
        ("Expansion rate", expansion),
        ("Max iterations", view.layout.max_search.into()),
    ]
}

fn words(description: &Description) -> [(&'static str, &'static str); 2] {
    let kind = match description.kind {
        Kind::Campaign => "campaign",
        Kind::Coupon => "coupon",
    };
    let mode = match description.spec.mode {
        Mode::Compact => "compact",
        Mode::Strict => "strict",
    };
    [("Kind", kind), ("Mode", mode)]
}

fn own(description: &Description) -> Vec<(&'static str, u64)> {
    let stats = &description.stats;
    let mut fields = vec![
        ("Capacity", description.spec.capacity),
        ("Capacity now", stats.segments.iter().map(|segment| segment.capacity).sum()),
        ("Items added", stats.adds),
    ];
    if let Some(codes) = stats.codes.filter(|_| description.kind == Kind::Coupon) {
        fields.extend([("Available", codes.available), ("Held", codes.held), ("Redeemed", codes.redeemed)]);
    }
    fields
}
