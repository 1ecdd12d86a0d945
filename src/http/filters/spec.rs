//! Campaigns and coupons as requests ask for them: the spec of a new one, and the changes of one.

use crate::http::request::json::{Clearable, Faults, OrNull};
use crate::http::response::Problem;
use cuckood_filter::{Growth, Mode, SegmentStats};
use cuckood_state::FilterView;
use cuckood_state::domain::annotations::LABEL_VALUE_BYTES_MAX;
use cuckood_state::domain::spec::{
    FORGET_STEPS_DEFAULT, STOCK_MAX, USES_MAX, parse_time, write_time,
};
use cuckood_state::domain::{
    Annotations, AnnotationsChange, Description, Forget, ForgetError, ForgetStepStats, Kind,
    LabelChanges, LabelValue, Labels, Normalization, Sizing, Spec, Supply, Timestamp, Title,
    UseCounts, Window,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, SchemaType, Type};

/// The default false-positive rate of a compact filter.
const ERROR_RATE_DEFAULT: f64 = 0.001;

/// The layout of a compact filter's first segment.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Layout)]
pub(crate) struct LayoutBody {
    /// Bits of a fingerprint (f in the paper). With `growth` fixed, too few for the capacity return 422.
    #[schema(minimum = 4, maximum = 32, example = 16)]
    pub(crate) fingerprint_bits: u8,
    /// Slots per bucket (b in the paper): 2, 4 or 8.
    #[serde(default = "bucket_size_default")]
    #[schema(schema_with = bucket_size_schema)]
    pub(crate) bucket_size: u8,
    /// Maximum number of buckets that an insert searches. With `growth` fixed at least 250, and below 1,000 the filter needs slightly more
    /// memory. A filter that grows also searches at least 250, so it grows only when it is full.
    #[serde(default = "max_search_default")]
    #[schema(minimum = 1, maximum = 16384, default = 512, example = 512)]
    pub(crate) max_search: u32,
}

fn bucket_size_default() -> u8 {
    4
}

fn bucket_size_schema() -> Object {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .description(Some("Slots per bucket (b in the paper)"))
        .enum_values(Some([2, 4, 8]))
        .default(Some(bucket_size_default().into()))
        .build()
}

fn max_search_default() -> u32 {
    512
}

/// Which spellings are the same item: those that differ only in something that the rule ignores. An item of which nothing is left is
/// rejected.
///
/// - `exact`: nothing.
/// - `case`: white space at both ends, canonical form (NFC), case (full case folding).
/// - `code`: as `case`, and anywhere white space, invisible characters, dashes, `_`, `.`, `/`, `·`; compatibility forms (NFKC).
/// - `ascii`: ASCII white space at both ends, case of a–z.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Normalize {
    Exact,
    Case,
    Code,
    Ascii,
}

impl From<Normalize> for Normalization {
    fn from(rule: Normalize) -> Self {
        match rule {
            Normalize::Exact => Self::Exact,
            Normalize::Case => Self::Case,
            Normalize::Code => Self::Code,
            Normalize::Ascii => Self::Ascii,
        }
    }
}

impl From<Normalization> for Normalize {
    fn from(rule: Normalization) -> Self {
        match rule {
            // No filter has the latter.
            Normalization::Exact | Normalization::ByDefault => Self::Exact,
            Normalization::Case => Self::Case,
            Normalization::Code => Self::Code,
            Normalization::Ascii => Self::Ascii,
        }
    }
}

/// A campaign to create.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"capacity": 1_000_000, "error_rate": 0.001}))]
pub(crate) struct CampaignSpec {
    /// Users that fit before the filter grows (`auto`) or may reject more (`fixed`).
    #[schema(minimum = 1, maximum = 4_294_967_296_u64)]
    pub(crate) capacity: u64,
    /// `compact` by default.
    pub(crate) mode: Option<Mode>,
    /// The false-positive rate, at any size; 0.001 by default. Not allowed with `layout` or for strict filters.
    #[schema(minimum = 0.00000001, maximum = 0.5)]
    pub(crate) error_rate: Option<f64>,
    /// `auto` by default.
    pub(crate) growth: Option<Growth>,
    /// When it becomes active; by default immediately.
    pub(crate) starts_at: Option<Timestamp>,
    /// When it stops being active; by default never.
    pub(crate) ends_at: Option<Timestamp>,
    /// Replaces `error_rate`. Not allowed for strict filters.
    pub(crate) layout: Option<LayoutBody>,
    /// Which spellings are the same user; `exact` by default. If omitted, an existing campaign may have any. It can't change.
    pub(crate) normalize: Option<Normalize>,
    /// The campaign forgets each user after this time, an integer and a unit (`s`, `m`, `h`, `d`): 1 minute to 400 days. Each copy ages
    /// independently: it remains for at least this time and expires at most `forget_after / forget_steps` later, with or without
    /// requests. `if_absent` does not renew a present copy. `remove` removes the newest copy. Users added by or during an import with
    /// `mode=replace` count as added at its end. `growth`, `error_rate` and `capacity` apply to all copies that are not forgotten. Not
    /// allowed for strict filters.
    #[schema(example = "7d", pattern = "^[0-9]+[smhd]$")]
    pub(crate) forget_after: Option<String>,
    /// Number of steps in which users are forgotten; 8 by default. More steps need up to two more bits of memory per user. Only with
    /// `forget_after`.
    #[schema(minimum = 2, maximum = 32, example = 8)]
    pub(crate) forget_steps: Option<u32>,
    /// Title in any language, up to 200 bytes without control characters, bidirectional marks and zero-width characters. If omitted, it remains; an empty string clears it.
    #[schema(value_type = Option<String>, max_length = 200, example = "Spring sale")]
    pub(crate) title: Option<Title>,
    #[schema(schema_with = labels_schema, required = false)]
    pub(crate) labels: Option<Labels>,
}

/// A coupon to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"capacity": 50_000, "normalize": "code"}))]
pub(crate) struct CouponSpec {
    /// Codes that fit before the filter grows (`auto`) or may reject more (`fixed`).
    #[schema(minimum = 1, maximum = 4_294_967_296_u64)]
    capacity: u64,
    /// `strict` by default.
    mode: Option<Mode>,
    /// The false-positive rate, at any size; 0.001 by default. Compact filters only, and not with `layout`.
    #[schema(minimum = 0.00000001, maximum = 0.5)]
    error_rate: Option<f64>,
    /// `auto` by default.
    growth: Option<Growth>,
    /// When it becomes active; by default immediately.
    starts_at: Option<Timestamp>,
    /// When it stops being active; by default never.
    ends_at: Option<Timestamp>,
    /// Replaces `error_rate`. Compact filters only.
    layout: Option<LayoutBody>,
    /// Which spellings are the same code; by default `case`, and `exact` in an open pool. If omitted, an existing coupon may have any. It
    /// can't change.
    normalize: Option<Normalize>,
    /// Until 1.0: `true` for `normalize` `ascii`, `false` for `exact`. Not allowed with `normalize`.
    #[schema(deprecated)]
    ignore_case: Option<bool>,
    /// Creates an open pool, without added codes. Any code can be redeemed once, and at most `stock` codes are held or redeemed at any
    /// moment. Strict only, and at most `capacity` with `growth` fixed.
    #[schema(minimum = 1, maximum = 4_294_967_296_u64)]
    stock: Option<u64>,
    /// How often each code can be used, under different references; 1 by default. Strict only. It can't change.
    #[schema(minimum = 1, maximum = 1_000_000, default = 1)]
    uses: Option<u32>,
    /// How many uses one customer can have; no limit by default. Redemptions then must have a `customer`. Strict only. It can't change.
    #[schema(minimum = 1, maximum = 1_000_000)]
    per_customer: Option<u32>,
    /// Title in any language, up to 200 bytes without control characters, bidirectional marks and zero-width characters. If omitted, it remains; an empty string clears it.
    #[schema(value_type = Option<String>, max_length = 200, example = "Spring sale")]
    title: Option<Title>,
    #[schema(schema_with = labels_schema, required = false)]
    labels: Option<Labels>,
}

/// A filter of either kind as it is asked for.
pub(crate) struct RequestedSpec {
    /// The fields of both kinds, and those of campaigns.
    common: CampaignSpec,
    ignore_case: Option<bool>,
    supply: RequestedSupply,
}

/// The supply of a coupon as it is asked for.
#[derive(Clone, Copy, Default)]
struct RequestedSupply {
    stock: Option<u64>,
    uses: Option<u32>,
    per_customer: Option<u32>,
}

impl RequestedSupply {
    fn resolve(self) -> Supply {
        Supply {
            stock: self.stock,
            uses: self.uses.unwrap_or(Supply::default().uses),
            per_customer: self.per_customer,
        }
    }

    /// What is wrong with its fields, by name.
    fn faults(
        self,
        is_strict: bool,
        fixed_capacity: Option<u64>,
    ) -> [(&'static str, Option<&'static str>); 3] {
        let is_number_of_uses = |uses: u32| (1..=USES_MAX).contains(&uses);
        let of_uses = |uses: Option<u32>| match uses {
            Some(_) if !is_strict => Some("a compact coupon does not count uses"),
            Some(uses) if !is_number_of_uses(uses) => Some("expected 1 to 1000000"),
            Some(_) | None => None,
        };
        let stock = match self.stock {
            Some(_) if !is_strict => Some("an open pool is strict"),
            Some(stock) if !(1..=STOCK_MAX).contains(&stock) => Some("expected 1 to 4294967296"),
            Some(stock) if fixed_capacity.is_some_and(|capacity| stock > capacity) => {
                Some("growth is fixed, and it is more than the capacity")
            }
            Some(_) | None => None,
        };
        [
            ("stock", stock),
            ("uses", of_uses(self.uses)),
            ("per_customer", of_uses(self.per_customer)),
        ]
    }
}

impl From<CampaignSpec> for RequestedSpec {
    fn from(common: CampaignSpec) -> Self {
        Self {
            common,
            ignore_case: None,
            supply: RequestedSupply::default(),
        }
    }
}

impl From<CouponSpec> for RequestedSpec {
    fn from(coupon: CouponSpec) -> Self {
        let common = CampaignSpec {
            capacity: coupon.capacity,
            mode: coupon.mode.or(Some(Mode::Strict)),
            error_rate: coupon.error_rate,
            growth: coupon.growth,
            starts_at: coupon.starts_at,
            ends_at: coupon.ends_at,
            layout: coupon.layout,
            normalize: coupon.normalize,
            title: coupon.title,
            labels: coupon.labels,
            ..CampaignSpec::default()
        };
        Self {
            common,
            ignore_case: coupon.ignore_case,
            supply: RequestedSupply {
                stock: coupon.stock,
                uses: coupon.uses,
                per_customer: coupon.per_customer,
            },
        }
    }
}

impl RequestedSpec {
    /// Resolves it to a spec and a window, with a title and labels. `unspecified` is the rule of normalization if the request has none.
    pub(crate) fn resolve(
        self,
        unspecified: Normalization,
    ) -> Result<(Spec, Window, AnnotationsChange), Problem> {
        let Self {
            common,
            ignore_case,
            supply,
        } = self;
        let CampaignSpec {
            capacity,
            error_rate,
            layout,
            normalize,
            starts_at,
            ends_at,
            title,
            labels,
            ..
        } = common;
        let mode = common.mode.unwrap_or(Mode::Compact);
        let growth = common.growth.unwrap_or(Growth::Auto);
        let after = common.forget_after;
        let steps = common.forget_steps;
        let is_strict = mode == Mode::Strict;
        let has_rate = error_rate.is_some();
        let has_layout = layout.is_some();
        let has_nothing_to_choose = "a strict filter has neither an error rate nor a layout";
        let fixed_capacity = (growth == Growth::Fixed).then_some(capacity);
        let mut faults = Faults::default();
        for (field, is_wrong, detail) in [
            ("error_rate", is_strict && has_rate, has_nothing_to_choose),
            ("layout", is_strict && has_layout, has_nothing_to_choose),
            (
                "error_rate",
                !is_strict && has_rate && has_layout,
                "give either the error rate or the layout",
            ),
            (
                "ignore_case",
                normalize.is_some() && ignore_case.is_some(),
                "give either normalize or ignore_case",
            ),
            (
                "forget_steps",
                steps.is_some() && after.is_none(),
                "only with forget_after",
            ),
            (
                "forget_after",
                is_strict && after.is_some(),
                "a strict filter does not forget",
            ),
        ] {
            if is_wrong {
                faults.note(|| format!("/{field}"), detail);
            }
        }
        for (field, fault) in supply.faults(is_strict, fixed_capacity) {
            if let Some(detail) = fault {
                faults.note(|| format!("/{field}"), detail);
            }
        }
        let forget = after.filter(|_| !is_strict).map(|after| {
            let steps = steps.unwrap_or(FORGET_STEPS_DEFAULT);
            parse_time(&after)
                .and_then(|seconds| Forget::new(seconds, steps))
                .inspect_err(|error| {
                    let is_of_steps = *error == ForgetError::Steps;
                    let pointer = if is_of_steps {
                        "/forget_steps"
                    } else {
                        "/forget_after"
                    };
                    faults.note(|| pointer.into(), error.to_string());
                })
        });
        faults.check()?;
        let sizing = match (mode, layout) {
            (Mode::Strict, _) => Sizing::Exact,
            (Mode::Compact, None) => Sizing::ErrorRate(error_rate.unwrap_or(ERROR_RATE_DEFAULT)),
            (
                Mode::Compact,
                Some(LayoutBody {
                    fingerprint_bits,
                    bucket_size,
                    max_search,
                }),
            ) => Sizing::Layout {
                fingerprint_bits,
                bucket_size,
                max_search,
            },
        };
        let window = Window { starts_at, ends_at };
        let forget = forget.and_then(Result::ok);
        if !window.is_ordered() {
            return Err(Problem::invalid_at("/ends_at", "not after starts_at"));
        }
        let spec = Spec {
            capacity,
            mode,
            growth,
            sizing,
            normalization: normalization(normalize, ignore_case).unwrap_or(unspecified),
            supply: supply.resolve(),
            forget,
        };
        Ok((
            spec,
            window,
            visible(AnnotationsChange::set(title, labels))?,
        ))
    }
}

/// Returns the requested rule, if there is one.
fn normalization(normalize: Option<Normalize>, ignore_case: Option<bool>) -> Option<Normalization> {
    let former = ignore_case.map(|is_ignored| match is_ignored {
        true => Normalize::Ascii,
        false => Normalize::Exact,
    });
    normalize.or(former).map(Normalization::from)
}

impl From<FilterPatch> for CouponPatch {
    fn from(
        FilterPatch {
            capacity,
            starts_at,
            ends_at,
            title,
            labels,
        }: FilterPatch,
    ) -> Self {
        Self {
            capacity,
            stock: None,
            starts_at,
            ends_at,
            title,
            labels,
        }
    }
}

/// A change of a coupon, as a merge-patch (RFC 7396): absent fields remain, null clears.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"stock": 1_500}))]
pub(crate) struct CouponPatch {
    /// A higher capacity, as for a campaign.
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 4_294_967_296_u64, example = 2_000_000)]
    pub(crate) capacity: Option<u64>,
    /// The new stock; open pools only. Below the number of held and redeemed codes, new redemptions are rejected until enough are freed.
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 4_294_967_296_u64)]
    pub(crate) stock: Option<u64>,
    /// When it becomes active; null for no start.
    #[schema(value_type = Option<Timestamp>)]
    pub(crate) starts_at: Option<OrNull<Timestamp>>,
    /// When it stops being active; null for never.
    #[schema(value_type = Option<Timestamp>)]
    pub(crate) ends_at: Option<OrNull<Timestamp>>,
    /// Title; null clears it.
    #[schema(value_type = Option<String>, max_length = 200, example = "Spring sale")]
    pub(crate) title: Option<OrNull<Title>>,
    #[schema(schema_with = labels_schema, required = false)]
    pub(crate) labels: Option<LabelsPatch>,
}

/// A change of labels: null clears all labels, or the label whose value it is.
pub(crate) type LabelsPatch = OrNull<LabelChanges<OrNull<LabelValue>>>;

/// A change of a campaign, as a merge-patch (RFC 7396): absent fields remain, null clears.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"ends_at": "2026-12-31T23:59:59.000Z"}))]
pub(crate) struct FilterPatch {
    /// A higher capacity, with `growth` `auto` only. Its memory is allocated immediately: a strict filter moves to a larger table
    /// incrementally, and a compact one gets another table with the same error rate. An empty, cleared or replaced filter starts with
    /// the new capacity. A lower capacity returns 422, and so does a higher one with `growth` `fixed` or beyond the largest table of a
    /// compact filter.
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 4_294_967_296_u64, example = 2_000_000)]
    capacity: Option<u64>,
    /// When it becomes active; null for no start.
    #[schema(value_type = Option<Timestamp>)]
    starts_at: Option<OrNull<Timestamp>>,
    /// When it stops being active; null for never.
    #[schema(value_type = Option<Timestamp>)]
    ends_at: Option<OrNull<Timestamp>>,
    /// Title; null clears it.
    #[schema(value_type = Option<String>, max_length = 200, example = "Spring sale")]
    title: Option<OrNull<Title>>,
    #[schema(schema_with = labels_schema, required = false)]
    labels: Option<LabelsPatch>,
}

impl Clearable for Timestamp {
    const WORDS: &str = "a time";
}

impl Clearable for Title {
    const WORDS: &str = "a title";
}

impl Clearable for LabelValue {
    const WORDS: &str = "a label's value";
}

impl<T: DeserializeOwned> Clearable for LabelChanges<T> {
    const WORDS: &str = "an object";
}

/// Returns the change of title and labels in a merge-patch.
pub(crate) fn patched(
    title: Option<OrNull<Title>>,
    labels: Option<LabelsPatch>,
) -> Result<AnnotationsChange, Problem> {
    visible(AnnotationsChange {
        title: title.map(|OrNull(title)| title.unwrap_or_default()),
        replaces_labels: matches!(labels, Some(OrNull(None))),
        labels: labels
            .and_then(|OrNull(labels)| labels)
            .map(|labels| labels.map(|OrNull(value)| value))
            .unwrap_or_default(),
    })
}

/// Rejects a title or a label's value that is not what it looks like.
pub(crate) fn visible(change: AnnotationsChange) -> Result<AnnotationsChange, Problem> {
    match change.hidden_at() {
        Some(pointer) => {
            let detail =
                "expected no zero-width characters and no marks that change the direction of text";
            Err(Problem::invalid_at(&pointer, detail))
        }
        None => Ok(change),
    }
}

/// Returns the schema of labels. In a merge-patch, null clears all labels or one of them, so it may have more members than 16.
pub(crate) fn labels_schema() -> Object {
    let text = |types: &[Type]| {
        ObjectBuilder::new().schema_type(SchemaType::from_iter(types.iter().cloned()))
    };
    let key = text(&[Type::String]).pattern(Some("^[a-z0-9][a-z0-9._-]{0,127}$"));
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::Object, Type::Null]))
        .description(Some("Up to 16 labels, such as `team: shop`"))
        .property_names(Some(key))
        .additional_properties(Some(
            text(&[Type::String, Type::Null]).max_length(Some(LABEL_VALUE_BYTES_MAX)),
        ))
        .build()
}

/// A campaign or coupon: its resolved spec and statistics.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(as = Filter, example = json!({
    "name": "spring", "capacity": 1_000_000, "mode": "compact", "error_rate": 0.001, "growth": "auto",
    "normalize": "exact", "created_at": "2026-12-01T00:00:00.000Z",
    "stats": {
        "items": 2, "capacity_now": 1_000_000, "capacity_max": 133_000_000_000_u64, "load": 0.000_002, "error_rate_now": 0.0, "memory_bytes": 1_848_000,
        "segments": [{"items": 2, "capacity": 1_000_000, "fingerprint_bits": 14, "bucket_size": 4}],
        "adds": 2, "removes": 0, "copies_max": 8
    }
}))]
pub(crate) struct FilterResponse {
    #[schema(example = "spring")]
    name: String,
    capacity: u64,
    mode: Mode,
    /// Compact filters: the error rate that they keep at any size. If they were created with `layout`, it follows from that.
    error_rate: Option<f64>,
    growth: Growth,
    /// Compact filters created with `layout`.
    layout: Option<LayoutBody>,
    normalize: Normalize,
    /// Open pools only: the maximum number of held and redeemed codes, or of all their uses.
    stock: Option<u64>,
    /// Strict coupons only: how often each code can be used.
    uses: Option<u32>,
    /// How many uses one customer can have, if that is limited.
    per_customer: Option<u32>,
    /// Campaigns that forget: the minimum lifetime of a copy.
    #[schema(example = "7d")]
    forget_after: Option<String>,
    /// Campaigns that forget: the number of steps.
    forget_steps: Option<u32>,
    starts_at: Option<Timestamp>,
    ends_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Title::is_empty")]
    #[schema(value_type = Option<String>, max_length = 200, example = "Spring sale")]
    title: Title,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    #[schema(schema_with = labels_schema, required = false)]
    labels: Labels,
    created_at: Timestamp,
    stats: StatsResponse,
}

/// Statistics of a filter.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(as = FilterStats)]
struct StatsResponse {
    /// Items in it, counting every copy.
    items: u64,
    /// Items that fit into its segments. Never less than `items`.
    capacity_now: u64,
    /// Different items that a filter of this spec takes, however it grows: `capacity` with `growth` `fixed`. Beyond, writes are rejected with `filter-full`.
    /// Many copies of a few users may reach the end earlier.
    capacity_max: u64,
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
    /// Maximum number of copies of one item; the highest valid `at_least`.
    copies_max: u32,
    /// Coupons only: available codes; in an open pool, the remaining stock.
    available: Option<u64>,
    /// Coupons only: codes that are held. Of codes with several uses, those of which no use is left, and some are held.
    held: Option<u64>,
    /// Coupons only: codes that are redeemed. Of codes with several uses, those whose uses are all redeemed.
    redeemed: Option<u64>,
    /// Coupons whose codes have several uses: those that are taken, over all codes.
    uses: Option<UseCounts>,
    /// Campaigns that forget: users by the step in which they were added, oldest first.
    steps: Option<Vec<ForgetStepStats>>,
}

/// One table of a filter.
#[derive(Serialize, ToSchema)]
struct Segment {
    /// Occupied slots, including those of recently forgotten users.
    items: u64,
    capacity: u64,
    fingerprint_bits: u8,
    bucket_size: u8,
}

impl FilterResponse {
    /// The filter at `now`.
    pub(crate) fn of(view: &FilterView, now: Timestamp) -> Self {
        Self::new(view.describe(now), view.capacity_max())
    }

    /// The filter of this description.
    pub(crate) fn new(description: Description, capacity_max: u64) -> Self {
        let Description {
            kind,
            name,
            spec,
            window,
            created_at,
            annotations,
            stats,
            ..
        } = description;
        let Annotations { title, labels } = annotations;
        let error_rate = spec.error_rate_max();
        let layout = match spec.sizing {
            Sizing::Exact | Sizing::ErrorRate(_) => None,
            Sizing::Layout {
                fingerprint_bits,
                bucket_size,
                max_search,
            } => Some(LayoutBody {
                fingerprint_bits,
                bucket_size,
                max_search,
            }),
        };
        let segments: Vec<Segment> = stats.segments.iter().map(Segment::from).collect();
        // A compact filter has no redeemed codes: they are removed from it.
        let (available, held, redeemed) = stats.codes.states.map_or((stats.items, 0, 0), |codes| {
            (codes.available, codes.held, codes.redeemed)
        });
        let counts_uses = kind == Kind::Coupon && spec.mode == Mode::Strict;
        let of_coupon = |count| (kind == Kind::Coupon).then_some(count);
        Self {
            name: name.to_string(),
            capacity: spec.capacity,
            mode: spec.mode,
            error_rate,
            growth: spec.growth,
            layout,
            normalize: spec.normalization.into(),
            stock: spec.supply.stock,
            uses: counts_uses.then_some(spec.supply.uses),
            per_customer: spec.supply.per_customer,
            forget_after: spec.forget.map(|forget| write_time(forget.after_seconds())),
            forget_steps: spec.forget.map(|forget| forget.steps()),
            starts_at: window.starts_at,
            ends_at: window.ends_at,
            title,
            labels,
            created_at,
            stats: StatsResponse {
                items: stats.items,
                capacity_now: segments.iter().map(|segment| segment.capacity).sum(),
                capacity_max,
                load: stats.load(),
                error_rate_now: stats.error_rate(),
                memory_bytes: stats.memory_bytes,
                segments,
                adds: stats.adds,
                removes: stats.removes,
                copies_max: stats.copies_max,
                available: of_coupon(available),
                held: of_coupon(held),
                redeemed: of_coupon(redeemed),
                uses: stats.codes.uses,
                steps: spec.forget.map(|_| stats.steps),
            },
        }
    }
}

impl From<&SegmentStats> for Segment {
    fn from(segment: &SegmentStats) -> Self {
        let SegmentStats {
            items,
            capacity,
            fingerprint_bits,
            bucket_size,
            ..
        } = *segment;
        // A small table is only certain to take half of its slots, but mostly takes more.
        Self {
            items,
            capacity: capacity.max(items),
            fingerprint_bits,
            bucket_size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patched_value_is_string_object_or_null() {
        for (body, pointer, detail) in [
            (
                r#"{"starts_at":null,"ends_at":[[1],[2]]}"#,
                "/ends_at",
                "expected a time or null",
            ),
            (r#"{"ends_at":{"a":[]}}"#, "/ends_at", "expected a string"),
            (r#"{"ends_at":1}"#, "/ends_at", "expected a time or null"),
            (r#"{"title":true}"#, "/title", "expected a title or null"),
            (
                r#"{"labels":["team"]}"#,
                "/labels",
                "expected an object or null",
            ),
            (r#"{"labels":"team"}"#, "/labels", "expected an object"),
            (
                r#"{"labels":{"team":1}}"#,
                "/labels/team",
                "expected a label's value or null",
            ),
        ] {
            let problem = crate::http::request::json::parse::<FilterPatch>(body)
                .err()
                .unwrap();
            assert_eq!(
                problem.code,
                crate::http::response::Code::InvalidRequest,
                "{body}"
            );
            let fault = &problem.faults[0];
            assert_eq!(
                (&*fault.pointer, &*fault.detail),
                (pointer, detail),
                "{body}"
            );
        }
    }

    #[test]
    fn incompatible_spec_fields_are_rejected() {
        let body = |text: &str| {
            crate::http::request::json::parse::<CampaignSpec>(text.as_bytes())
                .and_then(|campaign| RequestedSpec::from(campaign).resolve(Normalization::Exact))
        };
        assert!(body(r#"{"capacity":1}"#).is_ok());
        assert!(body(r#"{"capacity":1,"mode":"strict"}"#).is_ok());
        assert!(body(r#"{"capacity":1,"forget_after":"7d","forget_steps":32}"#).is_ok());
        for bad in [
            r#"{"capacity":1,"mode":"strict","error_rate":0.1}"#,
            r#"{"capacity":1,"error_rate":0.1,"layout":{"fingerprint_bits":8}}"#,
            r#"{"capacity":1,"starts_at":"2026-01-02T00:00:00.000Z","ends_at":"2026-01-01T00:00:00.000Z"}"#,
            r#"{"capacity":1,"mode":null}"#,
            r#"{"capacity":1,"mode":"strict","forget_after":"7d"}"#,
            r#"{"capacity":1,"forget_after":"7d","forget_steps":1}"#,
            r#"{"capacity":1,"forget_after":"7d","forget_steps":33}"#,
            r#"{"capacity":1,"forget_after":"401d"}"#,
            r#"{"capacity":1,"forget_after":"59s"}"#,
            r#"{"capacity":1,"forget_after":"a week"}"#,
            r#"{"capacity":1,"forget_after":604800}"#,
            r#"{"capacity":1,"forget_steps":8}"#,
            r#"{"capacity":"1"}"#,
            r#"{"capacity":1,"ignore_case":true}"#,
            r#"{"capacity":1,"normalize":"bydefault"}"#,
            r#"{"capacity":1,"normalize":null}"#,
            r#"{"capacity":1,"capacity":1}"#,
            r#"{}"#,
            r#"[]"#,
            r#"[1]"#,
        ] {
            let problem = body(bad).unwrap_err();
            assert_eq!(
                problem.code,
                crate::http::response::problem::Code::InvalidRequest,
                "{bad}: {problem:?}"
            );
        }
    }
}
