//! Campaigns and coupons as JSON, in answers.

use super::spec::{GrowthName, LayoutBody, ModeName};
use crate::domain::forget::write_time;
use crate::domain::{Description, Kind, Sizing, Stats, StepStats, Timestamp};
use crate::engine::{Growth, Mode};
use serde::Serialize;
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

/// A campaign or coupon: its resolved spec and statistics.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "name": "spring", "capacity": 1_000_000, "mode": "compact", "error_rate": 0.001, "growth": "auto",
    "created_at": "2026-12-01T00:00:00Z",
    "stats": {
        "items": 2, "capacity_now": 1_000_000, "load": 0.000_002, "error_rate_now": 0.0, "memory_bytes": 1_848_000,
        "segments": [{"items": 2, "capacity": 1_000_000, "fingerprint_bits": 14, "bucket_size": 4}],
        "adds": 2, "removes": 0, "copies_max": 8
    }
}))]
pub(crate) struct Filter {
    #[schema(example = "spring")]
    name: String,
    capacity: u64,
    mode: ModeName,
    /// Compact filters created without `layout`.
    error_rate: Option<f64>,
    growth: GrowthName,
    /// Compact filters created with `layout`.
    layout: Option<LayoutBody>,
    /// Coupons only.
    ignore_case: Option<bool>,
    /// Open pools only: how many codes may be held or redeemed at any moment.
    stock: Option<u64>,
    /// Campaigns that forget: for how long each copy stays at least.
    #[schema(example = "7d")]
    forget_after: Option<String>,
    /// Campaigns that forget: in how many steps.
    forget_steps: Option<u32>,
    starts_at: Option<Timestamp>,
    ends_at: Option<Timestamp>,
    created_at: Timestamp,
    stats: FilterStats,
}

/// Statistics of a filter.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
struct FilterStats {
    /// Items in it, counting every copy.
    items: u64,
    /// Items that its segments are meant to hold.
    capacity_now: u64,
    /// The share of slots that are occupied.
    load: f64,
    /// The expected false-positive rate at the current size.
    error_rate_now: f64,
    memory_bytes: u64,
    /// Its tables, oldest first.
    segments: Vec<Segment>,
    /// Items added since it was created.
    adds: u64,
    /// Items removed since it was created.
    removes: u64,
    /// The most copies of one item that it can count: the highest `at_least` in an `unless`.
    copies_max: u32,
    /// Coupons only: codes that may be redeemed; in an open pool, how many more.
    available: Option<u64>,
    /// Coupons only: codes that are held.
    held: Option<u64>,
    /// Coupons only: codes that are redeemed.
    redeemed: Option<u64>,
    /// Campaigns that forget: their users by the step in which they were added, the oldest first.
    steps: Option<Vec<StepStats>>,
}

/// One table of a filter.
#[derive(Serialize, ToSchema)]
struct Segment {
    /// Slots that are occupied. In a campaign that forgets, those of users who were forgotten a moment ago are among them.
    items: u64,
    capacity: u64,
    fingerprint_bits: u8,
    bucket_size: u8,
}

impl From<Description> for Filter {
    fn from(description: Description) -> Self {
        let Description { kind, name, spec, window, created_at, stats, .. } = description;
        let (error_rate, layout) = match spec.sizing {
            Sizing::Exact => (None, None),
            Sizing::ErrorRate(rate) => (Some(rate), None),
            Sizing::Layout { fingerprint_bits, bucket_size, max_search } => {
                (None, Some(LayoutBody { fingerprint_bits, bucket_size, max_search }))
            }
        };
        Self {
            name: name.into(),
            capacity: spec.capacity,
            mode: if spec.mode == Mode::Strict { ModeName::Strict } else { ModeName::Compact },
            error_rate,
            growth: if spec.growth == Growth::Auto { GrowthName::Auto } else { GrowthName::Fixed },
            layout,
            ignore_case: (kind == Kind::Coupon).then_some(spec.ignore_case),
            stock: spec.stock,
            forget_after: spec.forget.map(|forget| write_time(forget.after_seconds())),
            forget_steps: spec.forget.map(|forget| forget.steps()),
            starts_at: window.starts_at,
            ends_at: window.ends_at,
            created_at,
            stats: FilterStats { steps: spec.forget.map(|_| stats.steps.clone()), ..figures(kind, stats) },
        }
    }
}

fn figures(kind: Kind, stats: Stats) -> FilterStats {
    // A compact filter has no redeemed codes: they are removed from it.
    let (available, held, redeemed) =
        stats.codes.map_or((stats.items, 0, 0), |codes| (codes.available, codes.held, codes.redeemed));
    let of_coupon = |count| (kind == Kind::Coupon).then_some(count);
    FilterStats {
        items: stats.items,
        capacity_now: stats.segments.iter().map(|segment| segment.capacity).sum(),
        load: stats.load(),
        error_rate_now: stats.error_rate(),
        memory_bytes: stats.memory_bytes,
        segments: stats
            .segments
            .iter()
            .map(|segment| Segment {
                items: segment.items,
                capacity: segment.capacity,
                fingerprint_bits: segment.fingerprint_bits,
                bucket_size: segment.bucket_size,
            })
            .collect(),
        adds: stats.adds,
        removes: stats.removes,
        copies_max: stats.copies_max,
        available: of_coupon(available),
        held: of_coupon(held),
        redeemed: of_coupon(redeemed),
        steps: None,
    }
}
