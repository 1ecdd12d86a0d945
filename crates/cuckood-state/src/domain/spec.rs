//! The spec of a campaign or coupon, and its description. And when a campaign forgets its users: after what time, and in how many steps.
//!
//! Time since 1970 is divided into numbered steps. A user added in a step is retained for the number of steps in the time after it. So a
//! user stays for at least that time, and at most one step longer.

use super::{Annotations, FORMAT_FIRST, FilterId, Kind, Meaning, Name, Normalization, Timestamp};
use cuckood_filter::layout::{CAPACITY_MAX, ERROR_RATE_MAX, ERROR_RATE_MIN, STEPS_MAX, STEPS_MIN};
use cuckood_filter::{Growth, Layout, LayoutError, Mode, Secret, SegmentStats, StateCounts};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The most codes of an open pool that can be held or redeemed.
pub const STOCK_MAX: u64 = 1 << 32;

/// The most uses of a code, and the most that one customer can have.
pub const USES_MAX: u32 = 1_000_000;

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
        /// Maximum number of nodes that the breadth-first search of an insert visits.
        max_search: u32,
    },
    /// Strict: a slot holds 62 bits of digest, whatever the capacity.
    Exact,
}

/// The requested properties of a campaign or coupon. Only capacity and stock can change.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Items that it holds before it grows (`auto`) or may reject more (`fixed`). It may be raised.
    pub capacity: u64,
    /// Compact or strict.
    pub mode: Mode,
    /// Whether it can grow.
    pub growth: Growth,
    /// How its first table was sized.
    pub sizing: Sizing,
    /// Which spellings are the same item.
    pub normalization: Normalization,
    /// How often codes can be used.
    pub supply: Supply,
    /// Compact campaigns: when it forgets its users, if it does.
    pub forget: Option<Forget>,
}

/// How often the codes of a coupon can be used: each one, by each customer, and all together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "SupplyTag", into = "SupplyTag")]
pub struct Supply {
    /// The coupon is an open pool: codes need not be added, and at most this many uses are held or redeemed at any moment. The number may
    /// change, but whether the pool is open may not.
    pub stock: Option<u64>,
    /// How often a code can be used.
    pub uses: u32,
    /// How often one customer can use codes of the coupon. Redemptions then have a customer.
    pub per_customer: Option<u32>,
}

/// A supply as it is encoded. Version 1 of entries has the first two, with the bytes of an `Option<u64>`.
#[derive(Serialize, Deserialize)]
enum SupplyTag {
    Codes,
    Stock(u64),
    Limits {
        stock: Option<u64>,
        uses: u32,
        per_customer: Option<u32>,
    },
}

impl Default for Supply {
    fn default() -> Self {
        Self {
            stock: None,
            uses: 1,
            per_customer: None,
        }
    }
}

impl From<SupplyTag> for Supply {
    fn from(tag: SupplyTag) -> Self {
        match tag {
            SupplyTag::Codes => Self::default(),
            SupplyTag::Stock(stock) => Self::of_stock(stock),
            SupplyTag::Limits {
                stock,
                uses,
                per_customer,
            } => Self {
                stock,
                uses,
                per_customer,
            },
        }
    }
}

impl From<Supply> for SupplyTag {
    fn from(supply: Supply) -> Self {
        let Supply {
            stock,
            uses,
            per_customer,
        } = supply;
        match (stock, supply.has_limits()) {
            (None, false) => Self::Codes,
            (Some(stock), false) => Self::Stock(stock),
            (_, true) => Self::Limits {
                stock,
                uses,
                per_customer,
            },
        }
    }
}

impl Supply {
    /// An open pool whose codes have one use.
    pub fn of_stock(stock: u64) -> Self {
        Self {
            stock: Some(stock),
            ..Self::default()
        }
    }

    /// Whether the coupon is an open pool.
    pub fn is_open_pool(&self) -> bool {
        self.stock.is_some()
    }

    /// Whether a code can be used several times.
    pub fn has_several_uses(&self) -> bool {
        self.uses > 1
    }

    /// Whether it says more than the stock: version 1 of entries can't express that.
    fn has_limits(&self) -> bool {
        self.uses != 1 || self.per_customer.is_some()
    }

    /// Whether the numbers are in range.
    fn is_possible(&self) -> bool {
        let is_number_of_uses = |uses: u32| (1..=USES_MAX).contains(&uses);
        self.stock
            .is_none_or(|stock| (1..=STOCK_MAX).contains(&stock))
            && is_number_of_uses(self.uses)
            && self.per_customer.is_none_or(is_number_of_uses)
    }
}

impl Spec {
    /// Returns the layout of the first table.
    ///
    /// # Errors
    /// A message that names the field, if no layout fits the spec.
    pub fn layout(&self) -> Result<Layout, LayoutError> {
        match self.sizing {
            Sizing::ErrorRate(rate) => match self.forget {
                None => Layout::compact(self.capacity, rate, self.growth),
                Some(forget) => {
                    Layout::forgetting(self.capacity, rate, self.growth, forget.steps())
                }
            },
            Sizing::Layout {
                fingerprint_bits,
                bucket_size,
                max_search,
            } => {
                let layout = Layout::compact_with(
                    self.capacity,
                    fingerprint_bits,
                    bucket_size,
                    max_search,
                    self.growth,
                )?;
                match self.forget {
                    None => Ok(layout),
                    Some(forget) => layout.with_steps(forget.steps()),
                }
            }
            Sizing::Exact => Layout::strict(self.capacity),
        }
    }

    /// Replaces the rule of normalization by that of a new filter of this kind.
    pub fn resolve_normalization(&mut self, kind: Kind) {
        self.normalization = self
            .normalization
            .resolved(kind, self.supply.is_open_pool());
    }

    /// Returns the version of entries that can express a filter of this kind.
    pub fn version(&self, kind: Kind) -> u16 {
        if self.supply.has_limits() {
            return Meaning::Uses.since();
        }
        match (self.normalization, kind) {
            (Normalization::Exact, _) | (Normalization::Ascii, Kind::Coupon) => FORMAT_FIRST,
            (Normalization::Ascii, Kind::Campaign)
            | (Normalization::Case | Normalization::Code | Normalization::ByDefault, _) => {
                Meaning::Spellings.since()
            }
        }
    }

    /// Returns the different items that a new filter takes, however it grows.
    pub fn new_capacity_max(&self) -> u64 {
        self.layout()
            .map_or(self.capacity, |layout| self.capacity_max(&layout))
    }

    /// Returns the error rate that a filter keeps at any size; `None` if it is strict.
    pub fn error_rate_max(&self) -> Option<f64> {
        match self.sizing {
            Sizing::Exact => None,
            Sizing::ErrorRate(rate) => Some(rate),
            Sizing::Layout { .. } => self
                .layout()
                .ok()
                .map(|layout| layout.error_rate_max(self.growth)),
        }
    }

    /// Different items that a filter of this spec takes, however it grows from this layout.
    pub fn capacity_max(&self, layout: &Layout) -> u64 {
        match self.growth {
            Growth::Fixed => self.capacity,
            Growth::Auto => layout.capacity_max(self.mode),
        }
    }

    /// Whether a filter of this kind and spec can start with this layout. Both may be untrusted, such as in an image.
    pub fn fits(&self, kind: Kind, layout: &Layout) -> bool {
        let Spec {
            capacity,
            mode,
            growth: _,
            sizing,
            normalization: _,
            supply,
            forget,
        } = self;
        let is_compact = *mode == Mode::Compact;
        let sizing_fits = match *sizing {
            Sizing::Exact => !is_compact,
            Sizing::ErrorRate(rate) => {
                is_compact && (ERROR_RATE_MIN..=ERROR_RATE_MAX).contains(&rate)
            }
            Sizing::Layout {
                fingerprint_bits,
                bucket_size,
                max_search,
            } => {
                let chosen = Layout {
                    fingerprint_bits,
                    bucket_size,
                    max_search,
                    ..*layout
                };
                is_compact && chosen.check(*mode).is_ok()
            }
        };
        let steps_fit = forget.map_or(layout.step_bits == 0, |forget| {
            is_compact && kind == Kind::Campaign && layout.with_steps(forget.steps()) == Ok(*layout)
        });
        (1..=CAPACITY_MAX).contains(capacity)
            && sizing_fits
            && (*supply == Supply::default() || kind == Kind::Coupon && !is_compact)
            && supply.is_possible()
            && layout.check(*mode).is_ok()
            && steps_fit
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
    /// Whether the window contains `now`.
    pub fn contains(&self, now: Timestamp) -> bool {
        self.position(now) == WindowPosition::Inside
    }

    /// Returns the position of `now`.
    pub fn position(&self, now: Timestamp) -> WindowPosition {
        if self.starts_at.is_some_and(|start| now < start) {
            WindowPosition::Before
        } else if self.ends_at.is_some_and(|end| end <= now) {
            WindowPosition::After
        } else {
            WindowPosition::Inside
        }
    }

    /// Whether the window ends after its start.
    pub fn is_ordered(&self) -> bool {
        self.starts_at
            .zip(self.ends_at)
            .is_none_or(|(start, end)| start < end)
    }
}

/// A time relative to a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum WindowPosition {
    /// Before its start.
    Before,
    /// The campaign is active.
    Inside,
    /// At its end or later.
    After,
}

/// A filter's current sizes and counters. Integers only, because stored outcomes must be the same on every machine.
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
    /// Strict filters: number of codes in each state, and of their uses.
    pub codes: CodeStats,
    /// The most copies of one item that it can count.
    pub copies_max: u32,
    /// If it forgets: the steps that have items, oldest first.
    pub steps: Vec<ForgetStepStats>,
}

/// How many codes and uses of a coupon are in each state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(from = "CodeStatsTag", into = "CodeStatsTag")]
pub struct CodeStats {
    /// Codes; `None` for a compact filter. In an open pool, the available ones are the rest of the stock.
    pub states: Option<StateCounts>,
    /// Uses, if codes have several.
    pub uses: Option<UseCounts>,
}

/// Counts of codes as they are encoded. Version 1 of entries has the first two, with the bytes of an `Option<StateCounts>`.
#[derive(Serialize, Deserialize)]
enum CodeStatsTag {
    None,
    States(StateCounts),
    Uses(Option<StateCounts>, UseCounts),
}

/// Uses of codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub struct UseCounts {
    /// Held ones.
    pub held: u64,
    /// Redeemed ones, even if the retention of their redemption is over.
    pub redeemed: u64,
}

impl From<CodeStatsTag> for CodeStats {
    fn from(tag: CodeStatsTag) -> Self {
        match tag {
            CodeStatsTag::None => Self::default(),
            CodeStatsTag::States(states) => Self {
                states: Some(states),
                uses: None,
            },
            CodeStatsTag::Uses(states, uses) => Self {
                states,
                uses: Some(uses),
            },
        }
    }
}

impl From<CodeStats> for CodeStatsTag {
    fn from(stats: CodeStats) -> Self {
        match (stats.states, stats.uses) {
            (None, None) => Self::None,
            (Some(states), None) => Self::States(states),
            (states, Some(uses)) => Self::Uses(states, uses),
        }
    }
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

/// The users added in one step of a campaign that forgets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "utoipa", schema(as = Step))]
pub struct ForgetStepStats {
    /// When the step started.
    #[serde(rename = "started_at")]
    pub begin: Timestamp,
    /// Remaining users of the step, counting every copy.
    pub items: u64,
    /// When its users are forgotten.
    pub forgotten_at: Timestamp,
}

/// A campaign or coupon besides its items.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Profile {
    /// Campaign or coupon.
    pub kind: Kind,
    /// Its name.
    pub name: Name,
    /// Its hash key.
    pub secret: Secret,
    /// The requested spec.
    pub spec: Spec,
    /// The initial layout while it is empty.
    pub layout: Layout,
    /// When it is active.
    pub window: Window,
    /// When it was created.
    pub created_at: Timestamp,
    /// Its title and labels.
    pub annotations: Annotations,
}

impl Profile {
    /// The names of the fields in which a filter that is asked for differs from this one, as the API spells them.
    pub fn differences(&self, other: &Profile) -> Vec<&'static str> {
        let own = &self.spec;
        let others = &other.spec;
        let after = |spec: &Spec| spec.forget.map(|forget| forget.after_seconds());
        let steps = own
            .forget
            .zip(others.forget)
            .is_some_and(|(own, others)| own.steps() != others.steps());
        let is_spelled_differently = others.normalization != Normalization::ByDefault
            && own.normalization != others.normalization;
        let is_rate = |sizing| matches!(sizing, Sizing::ErrorRate(_));
        let is_sized =
            own.sizing != others.sizing && ![own.sizing, others.sizing].contains(&Sizing::Exact);
        let are_rates = is_rate(own.sizing) && is_rate(others.sizing);
        let fields = [
            (own.capacity != others.capacity, "capacity"),
            (own.mode != others.mode, "mode"),
            (own.growth != others.growth, "growth"),
            (is_spelled_differently, "normalize"),
            (own.supply.stock != others.supply.stock, "stock"),
            (own.supply.uses != others.supply.uses, "uses"),
            (
                own.supply.per_customer != others.supply.per_customer,
                "per_customer",
            ),
            (after(own) != after(others), "forget_after"),
            (steps, "forget_steps"),
            (is_sized, if are_rates { "error_rate" } else { "layout" }),
            (self.window.starts_at != other.window.starts_at, "starts_at"),
            (self.window.ends_at != other.window.ends_at, "ends_at"),
        ];
        fields
            .into_iter()
            .filter_map(|(differs, field)| differs.then_some(field))
            .collect()
    }
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
    /// The requested spec.
    pub spec: Spec,
    /// When it is active.
    pub window: Window,
    /// When it was created.
    pub created_at: Timestamp,
    /// Its title and labels.
    pub annotations: Annotations,
    /// Its sizes and counters.
    pub stats: Stats,
}

/// The shortest time after which a campaign can forget, in seconds.
pub const FORGET_SECONDS_MIN: u64 = 60;

/// The longest time after which a campaign can forget, in seconds: 400 days.
pub const FORGET_SECONDS_MAX: u64 = 400 * 86_400;

/// In how many steps a campaign forgets unless it is asked for another number. A user stays up to an eighth of the time longer.
pub const FORGET_STEPS_DEFAULT: u32 = 8;

/// After what time a campaign forgets, and in how many steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Wire")]
pub struct Forget {
    after_seconds: u64,
    steps: u32,
}

/// The input before validation.
#[derive(Deserialize)]
struct Wire {
    after_seconds: u64,
    steps: u32,
}

impl TryFrom<Wire> for Forget {
    type Error = ForgetError;

    fn try_from(
        Wire {
            after_seconds,
            steps,
        }: Wire,
    ) -> Result<Self, ForgetError> {
        Self::new(after_seconds, steps)
    }
}

/// Why a campaign can't forget like that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ForgetError {
    /// This is not a time.
    #[error("expected a time such as 7d, 36h, 90m or 3600s")]
    NotATime,
    /// The time is out of range.
    #[error("expected 1 minute to 400 days")]
    Time,
    /// The number of steps is out of range.
    #[error("expected {STEPS_MIN} to {STEPS_MAX}")]
    Steps,
}

/// Units of time, the longest first: its letter, and its length in seconds.
const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// The seconds of a duration that is written as an integer and a unit: `7d`, `36h`, `90m`, `3600s`.
///
/// # Errors
/// [`ForgetError::NotATime`].
pub fn parse_time(text: &str) -> Result<u64, ForgetError> {
    let seconds = UNITS.iter().find_map(|(letter, length)| {
        let number = text.strip_suffix(*letter)?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let number = is_number.then(|| number.parse::<u64>().unwrap_or(u64::MAX))?;
        Some(number.saturating_mul(*length))
    });
    seconds.ok_or(ForgetError::NotATime)
}

/// A time as [`parse_time`] reads it, in the longest unit that fits.
pub fn write_time(seconds: u64) -> String {
    let (letter, length) = UNITS
        .into_iter()
        .find(|(_, length)| seconds.is_multiple_of(*length))
        .unwrap_or(('s', 1));
    format!("{}{letter}", seconds / length)
}

impl Forget {
    /// Items expire after `after_seconds`, in `steps` steps.
    ///
    /// # Errors
    /// [`ForgetError`] if either is out of range.
    pub fn new(after_seconds: u64, steps: u32) -> Result<Self, ForgetError> {
        if !(FORGET_SECONDS_MIN..=FORGET_SECONDS_MAX).contains(&after_seconds) {
            return Err(ForgetError::Time);
        }
        if !(STEPS_MIN..=STEPS_MAX).contains(&steps) {
            return Err(ForgetError::Steps);
        }
        Ok(Self {
            after_seconds,
            steps,
        })
    }

    /// For how many seconds users stay at least.
    pub fn after_seconds(&self) -> u64 {
        self.after_seconds
    }

    /// In how many steps users go.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// The number of the step at this time.
    pub fn step_at(&self, at: Timestamp) -> u64 {
        let step = u128::from(at.0) * u128::from(self.steps) / self.after_milliseconds();
        u64::try_from(step).unwrap_or(u64::MAX)
    }

    /// The start of a step.
    pub fn begin_of(&self, step: u64) -> Timestamp {
        let at = (u128::from(step) * self.after_milliseconds()).div_ceil(u128::from(self.steps));
        u64::try_from(at).map_or(Timestamp::MAX, Timestamp)
    }

    /// From when on users who were added in this step are forgotten.
    pub fn end_of(&self, step: u64) -> Timestamp {
        self.begin_of(step.saturating_add(u64::from(self.steps)).saturating_add(1))
    }

    fn after_milliseconds(&self) -> u128 {
        u128::from(self.after_seconds) * 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            let items = 0;
            let memory_bytes = 0;
            let adds = 0;
            let removes = 0;
            let copies_max = 8;
            let codes = CodeStats::default();
            let steps = Vec::new();
            Stats {
                items,
                memory_bytes,
                segments,
                adds,
                removes,
                codes,
                copies_max,
                steps,
            }
            .error_rate()
        };
        assert_eq!(rate(&[(0, 8)]), 0.0);
        let one = rate(&[(950, 8)]);
        assert!((one - 0.0294).abs() < 0.0005, "{one}");
        let two = rate(&[(950, 8), (950, 9)]);
        assert!(two > one && two < 0.045, "{two}");
        assert!(rate(&[(950, 62)]) > 0.0, "small, but not rounded away");
    }

    #[test]
    fn window_includes_start_and_excludes_end() {
        let window = Window {
            starts_at: Some(Timestamp(10)),
            ends_at: Some(Timestamp(20)),
        };
        let inside: Vec<u64> = (8..22)
            .filter(|&at| window.contains(Timestamp(at)))
            .collect();
        assert_eq!(inside, (10..20).collect::<Vec<_>>());
        assert_eq!(
            [9, 10, 19, 20].map(|at| window.position(Timestamp(at))),
            [
                WindowPosition::Before,
                WindowPosition::Inside,
                WindowPosition::Inside,
                WindowPosition::After
            ]
        );
        assert!(
            Window::default().contains(Timestamp(0)) && Window::default().contains(Timestamp::MAX)
        );
    }

    proptest! {
        /// For any time and number of steps: a user stays for the time, and at most one step longer.
        #[test]
        fn user_stays_at_most_one_step_longer(
            after_seconds in FORGET_SECONDS_MIN..=FORGET_SECONDS_MAX,
            steps in 2_u32..=32,
            added in prop_oneof![0..1_u64 << 45, any::<u64>()],
        ) {
            let forget = Forget::new(after_seconds, steps).unwrap();
            let after = after_seconds * 1_000;
            let added = Timestamp(added);
            let step = forget.step_at(added);
            let begin = forget.begin_of(step);
            let gone = forget.end_of(step);
            prop_assert!(begin <= added);
            if gone < Timestamp::MAX {
                prop_assert!(gone.0 - added.0 >= after);
                prop_assert!(gone.0 - added.0 <= after + after.div_ceil(u64::from(steps)));
                // The state and its readers go by steps, others by times: both agree to the millisecond.
                prop_assert_eq!(forget.step_at(gone), step + u64::from(steps) + 1);
                prop_assert_eq!(forget.step_at(Timestamp(gone.0 - 1)), step + u64::from(steps));
            }
        }
    }

    #[test]
    fn decoded_value_obeys_constructor() {
        for (seconds, steps, is_possible) in [
            (0, 8, false),
            (1, 8, false),
            (u64::MAX, 8, false),
            (60, 0, false),
            (60, 2, true),
        ] {
            let bytes = postcard::to_stdvec(&(seconds, steps)).unwrap();
            assert_eq!(
                postcard::from_bytes::<Forget>(&bytes).is_ok(),
                is_possible,
                "{seconds} {steps}"
            );
        }
    }

    #[test]
    fn out_of_range_value_is_rejected() {
        for (seconds, is_possible) in [
            (59, false),
            (60, true),
            (400 * 86_400, true),
            (400 * 86_400 + 1, false),
        ] {
            assert_eq!(Forget::new(seconds, 8).is_ok(), is_possible);
        }
        for (steps, is_possible) in [(0, false), (1, false), (2, true), (32, true), (33, false)] {
            assert_eq!(Forget::new(60, steps).is_ok(), is_possible);
        }
    }

    #[test]
    fn duration_uses_longest_unit() {
        for (text, seconds, written) in [
            ("7d", 604_800, "7d"),
            ("168h", 604_800, "7d"),
            ("90m", 5_400, "90m"),
            ("60s", 60, "1m"),
            ("61s", 61, "61s"),
        ] {
            assert_eq!(parse_time(text), Ok(seconds));
            assert_eq!(write_time(seconds), written);
        }
        assert_eq!(parse_time("99999999999999999999d"), Ok(u64::MAX));
        for text in [
            "", "d", "7", "7 d", "-7d", "+7d", "7D", "7w", "1.5d", "7d ", "٣d",
        ] {
            assert_eq!(parse_time(text), Err(ForgetError::NotATime), "{text}");
        }
    }
}
