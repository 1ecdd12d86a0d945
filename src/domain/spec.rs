//! The spec of a campaign or coupon, and its description.

use super::{FilterId, Forget, Kind, Name, Timestamp};
use crate::filter::layout::{CAPACITY_MAX, ERROR_RATE_MAX, ERROR_RATE_MIN};
use crate::filter::{Growth, Layout, Mode, SegmentStats, StateCounts};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The most codes of an open pool that can be held or redeemed.
pub const STOCK_MAX: u64 = 1 << 32;

/// How the layout of a filter's first table was chosen.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Sizing {
    /// Compact: the smallest layout that keeps this false-positive rate.
    ErrorRate(f64),
    /// Compact: chosen by the client.
    Layout {
        /// Bits of a fingerprint in the first segment.
        fingerprint_bits: u8,
        /// Slots per bucket.
        bucket_size: u8,
        /// Nodes that the breadth-first search visits before an insert gives up.
        max_search: u32,
    },
    /// Strict: a slot holds 62 bits of digest, whatever the capacity.
    Exact,
}

/// What a campaign or coupon was asked to be. All but capacity and stock never changes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Items that it holds before it grows (`auto`) or may refuse more (`fixed`). It may be raised.
    pub capacity: u64,
    /// Compact or strict.
    pub mode: Mode,
    /// Whether it can grow.
    pub growth: Growth,
    /// How its first table was sized.
    pub sizing: Sizing,
    /// Whether items are trimmed and upper-cased (ASCII only) before they are hashed.
    pub ignore_case: bool,
    /// The coupon is an open pool: any code may be redeemed once, and at most so many are held or redeemed at any moment. It may be
    /// changed, but no pool becomes open or ceases to be so.
    pub stock: Option<u64>,
    /// Compact campaigns: when it forgets its users, if it does.
    pub forget: Option<Forget>,
}

impl Spec {
    /// Whether a filter of this kind and spec can start with this layout. Both may come from anywhere, such as an image.
    pub fn fits(&self, kind: Kind, layout: &Layout) -> bool {
        let Spec { capacity, mode, growth: _, sizing, ignore_case, stock, forget } = self;
        let sizing_fits = match (sizing, mode) {
            (Sizing::Exact, Mode::Strict) => true,
            (Sizing::ErrorRate(rate), Mode::Compact) => (ERROR_RATE_MIN..=ERROR_RATE_MAX).contains(rate),
            (&Sizing::Layout { fingerprint_bits, bucket_size, max_search }, Mode::Compact) => {
                Layout { fingerprint_bits, bucket_size, max_search, ..*layout }.check(*mode).is_ok()
            }
            (Sizing::Exact, Mode::Compact) | (Sizing::ErrorRate(_) | Sizing::Layout { .. }, Mode::Strict) => {
                false
            }
        };
        let steps_fit = match forget {
            Some(forget) => {
                *mode == Mode::Compact
                    && kind == Kind::Campaign
                    && layout.with_steps(forget.steps()) == Ok(*layout)
            }
            None => layout.step_bits == 0,
        };
        (1..=CAPACITY_MAX).contains(capacity)
            && sizing_fits
            && (kind == Kind::Coupon || (stock.is_none() && !ignore_case))
            && stock.is_none_or(|stock| *mode == Mode::Strict && (1..=STOCK_MAX).contains(&stock))
            && layout.check(*mode).is_ok()
            && steps_fit
    }

    /// The names of the fields in which two specs differ, as the API spells them.
    pub fn differences(&self, other: &Spec) -> Vec<&'static str> {
        let mut fields = Vec::new();
        let mut note = |differs: bool, field| {
            if differs {
                fields.push(field);
            }
        };
        note(self.capacity != other.capacity, "capacity");
        note(self.mode != other.mode, "mode");
        note(self.growth != other.growth, "growth");
        note(self.ignore_case != other.ignore_case, "ignore_case");
        note(self.stock != other.stock, "stock");
        let after = |spec: &Spec| spec.forget.map(|forget| forget.after_seconds());
        note(after(self) != after(other), "forget_after");
        if let (Some(own), Some(others)) = (self.forget, other.forget) {
            note(own.steps() != others.steps(), "forget_steps");
        }
        match (&self.sizing, &other.sizing) {
            (a, b) if a == b => {}
            (Sizing::Exact, _) | (_, Sizing::Exact) => {}
            (Sizing::ErrorRate(_), Sizing::ErrorRate(_)) => note(true, "error_rate"),
            _ => note(true, "layout"),
        }
        fields
    }
}

/// When a campaign or coupon is active: from `starts_at` until just before `ends_at`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Window {
    /// The start; `None` for no start.
    pub starts_at: Option<Timestamp>,
    /// The end; `None` for no end.
    pub ends_at: Option<Timestamp>,
}

impl Window {
    /// Whether `now` lies inside the window.
    pub fn contains(&self, now: Timestamp) -> bool {
        self.position(now) == WindowPosition::Inside
    }

    /// Where `now` lies.
    pub fn position(&self, now: Timestamp) -> WindowPosition {
        if self.starts_at.is_some_and(|start| now < start) {
            WindowPosition::Before
        } else if self.ends_at.is_some_and(|end| end <= now) {
            WindowPosition::After
        } else {
            WindowPosition::Inside
        }
    }

    /// Whether the window ends after it begins.
    pub fn is_ordered(&self) -> bool {
        match (self.starts_at, self.ends_at) {
            (Some(start), Some(end)) => start < end,
            _ => true,
        }
    }
}

/// Where a moment lies, as seen from a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WindowPosition {
    /// Before its start.
    Before,
    /// The campaign is active.
    Inside,
    /// At its end or later.
    After,
}

/// A filter's sizes and counters at one moment. Whole numbers only, because stored answers must be the same on every machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stats {
    /// Items in all segments.
    pub items: u64,
    /// Bytes of its tables.
    pub memory_bytes: u64,
    /// Its tables, oldest first.
    pub segments: Vec<SegmentStats>,
    /// Items added since its creation.
    pub adds: u64,
    /// Items removed since its creation.
    pub removes: u64,
    /// Strict filters: number of codes in each state.
    pub codes: Option<StateCounts>,
    /// The most copies of one item that it can count.
    pub copies_max: u32,
    /// If it forgets: the steps that have items, oldest first.
    pub steps: Vec<StepStats>,
}

impl Stats {
    /// Returns the share of slots that are occupied.
    pub fn load(&self) -> f64 {
        let slots: u64 = self.segments.iter().map(SegmentStats::slots).sum();
        self.items as f64 / slots.max(1) as f64
    }

    /// Returns the expected false-positive rate. In each segment, an item that was never added is compared with the occupied slots of
    /// two buckets: 2b at full load. Each slot has one of 2^f − 1 fingerprints (Fan et al. 2014, section 5.1).
    pub fn error_rate(&self) -> f64 {
        let passes = |segment: &SegmentStats| {
            let load = segment.items as f64 / segment.slots().max(1) as f64;
            let alike = 1.0 / (2f64.powi(segment.fingerprint_bits.into()) - 1.0);
            2.0 * f64::from(segment.bucket_size) * load * (-alike).ln_1p()
        };
        -self.segments.iter().map(passes).sum::<f64>().exp_m1()
    }
}

/// The users who were added in one step of a campaign that forgets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Step)]
pub struct StepStats {
    /// When the step began.
    #[serde(rename = "started_at")]
    pub begin: Timestamp,
    /// Users added in it who are still there, counting every copy.
    pub items: u64,
    /// When they are forgotten.
    pub forgotten_at: Timestamp,
}

/// A campaign or coupon as the API shows it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Description {
    /// Its identity.
    pub id: FilterId,
    /// Campaign or coupon.
    pub kind: Kind,
    /// Its name.
    pub name: Name,
    /// What the client asked for.
    pub spec: Spec,
    /// When it is active.
    pub window: Window,
    /// When it was created.
    pub created_at: Timestamp,
    /// Its sizes and counters.
    pub stats: Stats,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_rate_follows_load_and_bits() {
        let rate = |segments: &[(u64, u8)]| {
            let segment = |&(items, fingerprint_bits): &(u64, u8)| SegmentStats {
                items,
                capacity: 950,
                buckets: 250,
                fingerprint_bits,
                bucket_size: 4,
            };
            let segments = segments.iter().map(segment).collect();
            let (items, memory_bytes, adds, removes, copies_max) = (0, 0, 0, 0, 8);
            let (codes, steps) = (None, Vec::new());
            Stats { items, memory_bytes, segments, adds, removes, codes, copies_max, steps }.error_rate()
        };
        assert_eq!(rate(&[(0, 8)]), 0.0);
        let one = rate(&[(950, 8)]);
        assert!((one - 0.0294).abs() < 0.0005, "{one}");
        let two = rate(&[(950, 8), (950, 9)]);
        assert!(two > one && two < 0.045, "{two}");
        assert!(rate(&[(950, 62)]) > 0.0, "small, but not rounded away");
    }

    #[test]
    fn a_window_includes_its_start_and_excludes_its_end() {
        let window = Window { starts_at: Some(Timestamp(10)), ends_at: Some(Timestamp(20)) };
        let inside: Vec<u64> = (8..22).filter(|&at| window.contains(Timestamp(at))).collect();
        assert_eq!(inside, (10..20).collect::<Vec<_>>());
        assert_eq!(
            [9, 10, 19, 20].map(|at| window.position(Timestamp(at))),
            [WindowPosition::Before, WindowPosition::Inside, WindowPosition::Inside, WindowPosition::After]
        );
        assert!(Window::default().contains(Timestamp(0)) && Window::default().contains(Timestamp::MAX));
    }
}
