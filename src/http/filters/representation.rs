//! Campaigns and coupons as JSON, in requests and in answers.

use crate::domain::spec::CodeCounts;
use crate::domain::{Description, Kind, SegmentStats, Sizing, Spec, Stats, Timestamp, Window};
use crate::engine::{Growth, Mode};
use crate::http::answer::problem::Problem;
use crate::http::request::faults::Faults;
use crate::http::request::time::Time;
use serde::de::value::StrDeserializer;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The default false-positive rate of a compact filter.
pub(crate) const ERROR_RATE_DEFAULT: f64 = 0.001;

/// What a slot of the filter stores.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Mode)]
pub(crate) enum ModeName {
    /// A fingerprint: a few bytes per item, and some false positives.
    Compact,
    /// 62 bits of digest and a state: 8.5 bytes per item, and practically no false positives.
    Strict,
}

/// Whether a filter grows beyond its capacity.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Growth)]
pub(crate) enum GrowthName {
    /// It grows.
    Auto,
    /// It refuses more items when it is full.
    Fixed,
}

/// The layout of a compact filter's first segment.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Layout)]
pub(crate) struct LayoutBody {
    /// Bits of a fingerprint (f in the paper). With `growth` fixed, too few for the capacity are refused.
    #[schema(minimum = 4, maximum = 32, example = 16)]
    pub(crate) fingerprint_bits: u8,
    /// Slots per bucket (b in the paper): 2, 4 or 8.
    #[serde(default = "bucket_size_default")]
    #[schema(minimum = 2, maximum = 8, default = 4, example = 4)]
    pub(crate) bucket_size: u8,
    /// Buckets that an insert searches before it gives up. With `growth` fixed at least 250; fewer than 1000 cost a little
    /// memory.
    #[serde(default = "max_search_default")]
    #[schema(minimum = 1, maximum = 16384, default = 512, example = 512)]
    pub(crate) max_search: u32,
}

fn bucket_size_default() -> u8 {
    4
}

fn max_search_default() -> u32 {
    512
}

/// A campaign to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"capacity": 1_000_000, "error_rate": 0.001}))]
pub(crate) struct CampaignSpec {
    /// Users that it holds before it grows (`auto`) or may refuse more (`fixed`).
    #[schema(minimum = 1, maximum = 4_294_967_296_u64)]
    capacity: u64,
    /// `compact` by default.
    #[serde(default)]
    mode: Option<ModeName>,
    /// The false-positive rate, kept at any size; 0.001 by default. Not allowed with `layout` or for strict filters.
    #[serde(default)]
    #[schema(minimum = 0.00000001, maximum = 0.5)]
    error_rate: Option<f64>,
    /// `auto` by default.
    #[serde(default)]
    growth: Option<GrowthName>,
    /// When it becomes active; by default it always was.
    #[serde(default)]
    starts_at: Option<Time>,
    /// When it stops being active; by default never.
    #[serde(default)]
    ends_at: Option<Time>,
    /// Replaces `error_rate`. Not allowed for strict filters.
    #[serde(default)]
    layout: Option<LayoutBody>,
}

/// A coupon to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"capacity": 50_000, "ignore_case": true}))]
pub(crate) struct CouponSpec {
    /// Codes that it holds before it grows (`auto`) or may refuse more (`fixed`).
    #[schema(minimum = 1, maximum = 4_294_967_296_u64)]
    capacity: u64,
    /// `strict` by default.
    #[serde(default)]
    mode: Option<ModeName>,
    /// The false-positive rate, kept at any size; 0.001 by default. Compact filters only, and not with `layout`.
    #[serde(default)]
    #[schema(minimum = 0.00000001, maximum = 0.5)]
    error_rate: Option<f64>,
    /// `auto` by default.
    #[serde(default)]
    growth: Option<GrowthName>,
    /// When it becomes active; by default it always was.
    #[serde(default)]
    starts_at: Option<Time>,
    /// When it stops being active; by default never.
    #[serde(default)]
    ends_at: Option<Time>,
    /// Replaces `error_rate`. Compact filters only.
    #[serde(default)]
    layout: Option<LayoutBody>,
    /// Codes are trimmed and upper-cased (ASCII only) before they are hashed.
    #[serde(default)]
    ignore_case: bool,
}

/// The fields that size a filter of either kind.
pub(crate) struct Asked {
    pub(crate) capacity: u64,
    pub(crate) mode: Mode,
    pub(crate) error_rate: Option<f64>,
    pub(crate) growth: Option<GrowthName>,
    pub(crate) layout: Option<LayoutBody>,
    pub(crate) ignore_case: bool,
}

impl Asked {
    /// Resolves them to a spec.
    pub(crate) fn spec(self) -> Result<Spec, Problem> {
        let mut faults = Faults::default();
        let mut fault = |field: &str, detail| faults.note(|| format!("/{field}"), detail);
        if self.mode == Mode::Strict {
            let detail = "a strict filter has neither an error rate nor a layout";
            if self.error_rate.is_some() {
                fault("error_rate", detail);
            }
            if self.layout.is_some() {
                fault("layout", detail);
            }
        } else if self.error_rate.is_some() && self.layout.is_some() {
            fault("error_rate", "give either the error rate or the layout");
        }
        faults.check()?;
        let sizing = match (self.mode, self.layout) {
            (Mode::Strict, _) => Sizing::Exact,
            (Mode::Compact, None) => Sizing::ErrorRate(self.error_rate.unwrap_or(ERROR_RATE_DEFAULT)),
            (Mode::Compact, Some(LayoutBody { fingerprint_bits, bucket_size, max_search })) => {
                Sizing::Layout { fingerprint_bits, bucket_size, max_search }
            }
        };
        let growth = match self.growth.unwrap_or(GrowthName::Auto) {
            GrowthName::Auto => Growth::Auto,
            GrowthName::Fixed => Growth::Fixed,
        };
        Ok(Spec { capacity: self.capacity, mode: self.mode, growth, sizing, ignore_case: self.ignore_case })
    }
}

/// The mode of this name.
pub(crate) fn mode(name: ModeName) -> Mode {
    match name {
        ModeName::Compact => Mode::Compact,
        ModeName::Strict => Mode::Strict,
    }
}

fn window(starts_at: Option<Time>, ends_at: Option<Time>) -> Result<Window, Problem> {
    let window = Window { starts_at: starts_at.map(|Time(at)| at), ends_at: ends_at.map(|Time(at)| at) };
    if window.is_ordered() { Ok(window) } else { Err(Problem::invalid_at("/ends_at", "not after starts_at")) }
}

/// A body that asks for a filter.
pub(crate) trait Wanted {
    /// Resolves the body to a spec and a window.
    fn resolve(self) -> Result<(Spec, Window), Problem>;
}

impl Wanted for CampaignSpec {
    fn resolve(self) -> Result<(Spec, Window), Problem> {
        let Self { capacity, mode: name, error_rate, growth, starts_at, ends_at, layout } = self;
        let mode = mode(name.unwrap_or(ModeName::Compact));
        let asked = Asked { capacity, mode, error_rate, growth, layout, ignore_case: false };
        Ok((asked.spec()?, window(starts_at, ends_at)?))
    }
}

impl Wanted for CouponSpec {
    fn resolve(self) -> Result<(Spec, Window), Problem> {
        let Self { capacity, mode: name, error_rate, growth, starts_at, ends_at, layout, ignore_case } = self;
        let mode = mode(name.unwrap_or(ModeName::Strict));
        let asked = Asked { capacity, mode, error_rate, growth, layout, ignore_case };
        Ok((asked.spec()?, window(starts_at, ends_at)?))
    }
}

/// A change of a campaign or coupon, as a merge-patch (RFC 7396): absent fields stay, null clears.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"ends_at": "2026-12-31T23:59:59Z"}))]
pub(crate) struct FilterPatch {
    /// A higher capacity, with `growth` `auto` only. The memory for so many items is taken at once, and kept: a strict filter moves to
    /// a larger table, a little with every write; a compact one gets a further segment that is large enough, and keeps its error
    /// rate. An empty filter begins anew with the capacity, and so does any other when it is cleared or replaced. A lower capacity is
    /// refused (422), and so is a higher one where `growth` is `fixed`, or where a compact filter can't have so large a segment.
    #[serde(default)]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 4_294_967_296_u64, example = 2_000_000)]
    pub(crate) capacity: Option<u64>,
    /// When it becomes active; null for no start.
    #[serde(default, deserialize_with = "patched")]
    #[schema(value_type = Option<Time>)]
    pub(crate) starts_at: Option<Option<Timestamp>>,
    /// When it stops being active; null for never.
    #[serde(default, deserialize_with = "patched")]
    #[schema(value_type = Option<Time>)]
    pub(crate) ends_at: Option<Option<Timestamp>>,
}

/// Distinguishes null from absent.
fn patched<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<Timestamp>>, D::Error> {
    struct TimeOrNull;
    impl Visitor<'_> for TimeOrNull {
        type Value = Option<Timestamp>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a time or null")
        }

        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            let Time(at) = Time::deserialize(StrDeserializer::new(text))?;
            Ok(Some(at))
        }
    }
    deserializer.deserialize_any(TimeOrNull).map(Some)
}

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
    /// Coupons only: codes that may be redeemed.
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<u64>,
    /// Coupons only: codes that are held.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<u64>,
    /// Coupons only: codes that are redeemed.
    #[serde(skip_serializing_if = "Option::is_none")]
    redeemed: Option<u64>,
}

/// One table of a filter.
#[derive(Serialize, ToSchema)]
struct Segment {
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
            starts_at: window.starts_at.map(Time),
            ends_at: window.ends_at.map(Time),
            created_at: Time(created_at),
            stats: figures(kind, stats),
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
    }
}

/// The expected false-positive rate. An item that was never added is compared with the occupied slots of two buckets in each
/// segment, 2b at full load, and matches one of 2^f − 1 fingerprints (Fan et al. 2014, section 5.1).
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

    #[test]
    fn a_strict_filter_has_nothing_to_choose() {
        let body = |text: &str| {
            crate::http::request::json::parse::<CampaignSpec>(text.as_bytes()).and_then(Wanted::resolve)
        };
        assert!(body(r#"{"capacity":1}"#).is_ok());
        assert!(body(r#"{"capacity":1,"mode":"strict"}"#).is_ok());
        for bad in [
            r#"{"capacity":1,"mode":"strict","error_rate":0.1}"#,
            r#"{"capacity":1,"error_rate":0.1,"layout":{"fingerprint_bits":8}}"#,
            r#"{"capacity":1,"starts_at":"2026-01-02T00:00:00Z","ends_at":"2026-01-01T00:00:00Z"}"#,
            r#"{"capacity":1,"mode":null}"#,
            r#"{"capacity":"1"}"#,
            r#"{"capacity":1,"ignore_case":true}"#,
            r#"{"capacity":1,"capacity":1}"#,
            r#"{}"#,
            r#"[]"#,
            r#"[1]"#,
        ] {
            let problem = body(bad).unwrap_err();
            assert_eq!(
                problem.code,
                crate::http::answer::problem::Code::InvalidRequest,
                "{bad}: {problem:?}"
            );
        }
    }
}
