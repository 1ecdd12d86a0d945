//! Campaigns and coupons as JSON, in answers.

use super::spec::{GrowthName, LayoutBody, ModeName};
use super::steps::Step;
use crate::domain::forget::write_time;
use crate::domain::spec::CodeCounts;
use crate::domain::{Description, Kind, SegmentStats, Sizing, Stats};
use crate::engine::{Growth, Mode};
use crate::http::request::time::Time;
use serde::Serialize;
use utoipa::ToSchema;

/// A campaign or coupon: its resolved spec and statistics.
#[derive(Serialize, ToSchema)]
pub(crate) struct Filter {
    #[schema(example = "spring")]
    name: String,
    capacity: u64,
    mode: ModeName,
    /// Compact filters created without `layout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_rate: Option<f64>,
    growth: GrowthName,
    /// Compact filters created with `layout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    layout: Option<LayoutBody>,
    /// Coupons only.
    #[serde(skip_serializing_if = "Option::is_none")]
    ignore_case: Option<bool>,
    /// Open pools only: how many codes may be held or redeemed at any moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    stock: Option<u64>,
    /// Campaigns that forget: for how long each copy stays at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "7d")]
    forget_after: Option<String>,
    /// Campaigns that forget: in how many steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    forget_steps: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    starts_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_at: Option<Time>,
    created_at: Time,
    stats: FilterStats,
}

/// Statistics of a filter.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<u64>,
    /// Coupons only: codes that are held.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<u64>,
    /// Coupons only: codes that are redeemed.
    #[serde(skip_serializing_if = "Option::is_none")]
    redeemed: Option<u64>,
    /// Campaigns that forget: their users by the step in which they were added, the oldest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<Vec<Step>>,
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
            starts_at: window.starts_at.map(Time),
            ends_at: window.ends_at.map(Time),
            created_at: Time(created_at),
            stats: FilterStats {
                steps: spec.forget.map(|_| stats.steps.iter().map(Step::from).collect()),
                ..figures(kind, stats)
            },
        }
    }
}

fn figures(kind: Kind, stats: Stats) -> FilterStats {
    let slots: u64 = stats.segments.iter().map(|segment| segment.slots).sum();
    // A compact filter has no redeemed codes: they are removed from it.
    let codes = stats.codes.unwrap_or(CodeCounts { available: stats.items, ..Default::default() });
    let of_coupon = |count| (kind == Kind::Coupon).then_some(count);
    FilterStats {
        items: stats.items,
        capacity_now: stats.segments.iter().map(|segment| segment.capacity).sum(),
        load: stats.items as f64 / slots.max(1) as f64,
        error_rate_now: error_rate_now(&stats.segments),
        memory_bytes: stats.memory_bytes,
        segments: stats
            .segments
            .iter()
            .map(|&SegmentStats { items, capacity, fingerprint_bits, bucket_size, .. }| Segment {
                items,
                capacity,
                fingerprint_bits,
                bucket_size,
            })
            .collect(),
        adds: stats.adds,
        removes: stats.removes,
        copies_max: stats.copies_max,
        available: of_coupon(codes.available),
        held: of_coupon(codes.held),
        redeemed: of_coupon(codes.redeemed),
        steps: None,
    }
}

/// The expected false-positive rate. In each segment, an item that was never added is compared with the occupied slots of two
/// buckets: 2b at full load. Each slot has one of 2^f − 1 fingerprints (Fan et al. 2014, section 5.1).
pub(crate) fn error_rate_now(segments: &[SegmentStats]) -> f64 {
    let passes: f64 = segments
        .iter()
        .map(|segment| {
            let load = segment.items as f64 / segment.slots.max(1) as f64;
            let alike = 1.0 / (2f64.powi(segment.fingerprint_bits.into()) - 1.0);
            2.0 * f64::from(segment.bucket_size) * load * (-alike).ln_1p()
        })
        .sum();
    -passes.exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_rate_follows_from_load_and_bits() {
        let segment = |items, fingerprint_bits| SegmentStats {
            items,
            capacity: 950,
            slots: 1_000,
            fingerprint_bits,
            bucket_size: 4,
        };
        assert_eq!(error_rate_now(&[segment(0, 8)]), 0.0);
        let one = error_rate_now(&[segment(950, 8)]);
        assert!((one - 0.0294).abs() < 0.0005, "{one}");
        let two = error_rate_now(&[segment(950, 8), segment(950, 9)]);
        assert!(two > one && two < 0.045, "{two}");
        assert!(error_rate_now(&[segment(950, 62)]) > 0.0, "small, but not rounded away");
    }
}
