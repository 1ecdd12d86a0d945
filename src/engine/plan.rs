//! Commands that create or change a filter, with the random IDs and the layout that they need; and plans: the cost of a filter in memory,
//! disk space and startup time.

use super::snapshotter::SnapshotOptions;
use crate::domain::{
    AnnotationsChange, Command, FilterId, ImageBegin, ImageBody, ImageRecord, ImportId, Kind, Name, Raise,
    Sizing, Spec, Target, Timestamp, Update, UploadId, Window,
};
use crate::filter::{Growth, Layout, LayoutError, Secret};
use crate::journal::random;
use crate::state::FilterView;
use serde::{Deserialize, Serialize};
use std::num::NonZero;
use utoipa::ToSchema;

/// sled reuses a segment of its file once half of it is free.
const SLED_FACTOR: u64 = 2;

/// Maximum number of snapshots on the disk: the newest, the previous one, and one that is being written.
const SNAPSHOTS: u64 = 3;

/// Memory of the queue of changes while a replacement is built, in bytes.
const REPLACEMENT_QUEUE_BYTES: u64 = 32 << 20;

/// Bytes of tables that a start loads per second with two processors; measured, see the README.
const LOADED_BYTES_PER_SECOND: f64 = 500e6;

/// Bytes of log that a start replays per second: ten million items of eight bytes.
const REPLAYED_BYTES_PER_SECOND: f64 = 80e6;

/// The layout and cost of a filter, without creating it.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "fingerprint_bits": 14, "bucket_size": 4, "buckets": 263_158, "memory_bytes": 1_848_000, "bits_per_item": 14.8,
    "error_rate_at_capacity": 0.000_5, "load_at_capacity": 0.95, "disk_bytes": 3_696_000, "replacement_peak_bytes": 3_696_000,
    "startup_seconds": 0.1, "reason": "the smallest layout that keeps the error rate"
}))]
pub struct Plan {
    /// Bits of a fingerprint in the first table.
    pub fingerprint_bits: u8,
    /// Slots of a bucket.
    pub bucket_size: u8,
    /// Buckets of the first table.
    pub buckets: u64,
    /// Memory of the first table.
    pub memory_bytes: u64,
    /// Bits of memory per item when the filter is at its capacity.
    pub bits_per_item: f64,
    /// False-positive rate at capacity: the share of "yes" among items that were never added.
    pub error_rate_at_capacity: f64,
    /// Items per slot at capacity.
    pub load_at_capacity: f64,
    /// Why this layout was chosen.
    pub reason: String,
    /// Approximate disk space for snapshots and log while a snapshot is written.
    pub disk_bytes: u64,
    /// Approximate memory while an import replaces all items.
    pub replacement_peak_bytes: u64,
    /// Approximate upper bound of the additional startup time, with two processors.
    pub startup_seconds: f64,
}

/// Bytes that a campaign or coupon takes in addition to its table.
const FILTER_BYTES: u64 = 1_400;

/// Bytes of a retained redemption in memory, and of one in the log with its event.
const REDEMPTION_BYTES: u64 = 472;
const REDEMPTION_LOG_BYTES: u64 = 170;

/// Upper bound of the bytes of log per added item: a request with a single item.
const ADD_LOG_BYTES: u64 = 60;

/// What a service holds and does.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Redemptions per second.
    #[serde(default)]
    pub redemptions_per_second: u64,
    /// How long redemptions are retained, in seconds.
    #[serde(default)]
    pub redemptions_retention_seconds: u64,
    /// Items that requests add per second.
    #[serde(default)]
    pub adds_per_second: u64,
    /// `snapshots.log_max`, in bytes; `None` for its default.
    pub log_max_bytes: Option<NonZero<u64>>,
    /// Campaigns and coupons.
    pub filters: Vec<FilterGroup>,
}

/// Campaigns or coupons of the same size.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterGroup {
    /// Number of filters.
    #[serde(default = "one")]
    pub count: u64,
    /// Items of each.
    pub capacity: u64,
    /// The false-positive rate of campaigns; none for coupons.
    pub error_rate: Option<f64>,
}

fn one() -> u64 {
    1
}

/// What a service costs.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct WorkloadPlan {
    /// Campaigns and coupons.
    pub filters: u64,
    /// Memory of their tables.
    pub tables_bytes: u64,
    /// Memory of the retained redemptions.
    pub redemptions_bytes: u64,
    /// Memory of everything, while the largest filter is replaced.
    pub peak_bytes: u64,
    /// Disk space for snapshots and log, at most.
    pub disk_bytes: u64,
    /// Upper bound of a start with two processors.
    pub startup_seconds: f64,
    /// Log and events written per second.
    pub log_bytes_per_second: u64,
    /// Time between two snapshots; `None` without writes.
    pub snapshot_every_seconds: Option<f64>,
    /// Snapshots written per second, at most: if every table has changed.
    pub snapshot_bytes_per_second: u64,
}

/// Plans a whole service.
///
/// # Errors
/// A message that names the field, if no layout fits a filter.
pub fn plan_workload(workload: &Workload) -> Result<WorkloadPlan, LayoutError> {
    let (mut all, mut largest) = (WorkloadPlan::default(), 0);
    for &FilterGroup { count, capacity, error_rate } in &workload.filters {
        let layout = match error_rate {
            Some(rate) => Layout::compact(capacity, rate, Growth::Auto)?,
            None => Layout::strict(capacity)?,
        };
        let table_bytes = layout.memory_bytes();
        all.filters = all.filters.saturating_add(count);
        all.tables_bytes = all.tables_bytes.saturating_add(count.saturating_mul(table_bytes));
        largest = largest.max(table_bytes);
    }
    let Workload { redemptions_per_second, redemptions_retention_seconds, adds_per_second, .. } = *workload;
    let retained = redemptions_per_second.saturating_mul(redemptions_retention_seconds);
    all.redemptions_bytes = retained.saturating_mul(REDEMPTION_BYTES);
    let parts = [all.tables_bytes, all.redemptions_bytes, all.filters.saturating_mul(FILTER_BYTES)];
    let state_bytes = parts.into_iter().fold(0, u64::saturating_add);
    all.peak_bytes = state_bytes.saturating_add(largest + REPLACEMENT_QUEUE_BYTES);
    let snapshots = SnapshotOptions::default();
    let log_max_bytes = workload.log_max_bytes.map_or(snapshots.log_bytes_max, NonZero::get);
    let log_bytes = state_bytes.max(snapshots.log_bytes_min).min(log_max_bytes);
    all.disk_bytes = disk_bytes(state_bytes, log_bytes);
    all.startup_seconds = startup_seconds(state_bytes, log_bytes);
    let redemptions = redemptions_per_second.saturating_mul(REDEMPTION_LOG_BYTES);
    all.log_bytes_per_second = redemptions.saturating_add(adds_per_second.saturating_mul(ADD_LOG_BYTES));
    let every_seconds = log_bytes as f64 / all.log_bytes_per_second as f64;
    all.snapshot_every_seconds = every_seconds.is_finite().then_some(every_seconds);
    all.snapshot_bytes_per_second = (state_bytes as f64 / every_seconds) as u64;
    Ok(all)
}

/// As much log is kept behind the older of two snapshots as between them.
fn disk_bytes(state_bytes: u64, log_bytes: u64) -> u64 {
    SLED_FACTOR.saturating_mul(SNAPSHOTS.saturating_mul(state_bytes).saturating_add(2 * log_bytes))
}

fn startup_seconds(state_bytes: u64, log_bytes: u64) -> f64 {
    state_bytes as f64 / LOADED_BYTES_PER_SECOND + log_bytes as f64 / REPLAYED_BYTES_PER_SECOND
}

/// Plans the filter of this spec.
///
/// # Errors
/// A message that names the field, if no layout fits the spec.
pub fn plan(spec: &Spec) -> Result<Plan, LayoutError> {
    let layout = layout_of(spec)?;
    let load_at_capacity = spec.capacity as f64 / layout.slots() as f64;
    let memory_bytes = layout.memory_bytes();
    let snapshots = SnapshotOptions::default();
    // Assumes that the service has no other filter.
    let log_bytes = memory_bytes.clamp(snapshots.log_bytes_min, snapshots.log_bytes_max);
    Ok(Plan {
        fingerprint_bits: layout.fingerprint_bits,
        bucket_size: layout.bucket_size,
        buckets: layout.buckets,
        memory_bytes,
        bits_per_item: layout.bits_per_item(spec.capacity),
        error_rate_at_capacity: layout.error_rate_at(load_at_capacity),
        load_at_capacity,
        reason: reason(spec),
        disk_bytes: disk_bytes(memory_bytes, log_bytes),
        replacement_peak_bytes: 2 * memory_bytes + REPLACEMENT_QUEUE_BYTES,
        startup_seconds: startup_seconds(memory_bytes, log_bytes),
    })
}

fn reason(spec: &Spec) -> String {
    match (spec.sizing, spec.growth) {
        (Sizing::Exact, _) => "a strict slot holds 62 bits of digest and 2 of state".to_string(),
        (Sizing::Layout { .. }, _) => "the layout was given".to_string(),
        (Sizing::ErrorRate(rate), _) if spec.forget.is_some() => format!(
            "buckets of eight slots, because users return; in addition to a fingerprint that keeps {rate} over all steps, a slot \
             stores the step in which its user was added"
        ),
        (Sizing::ErrorRate(rate), Growth::Fixed) => {
            format!("the smallest table whose error stays within {rate} even when it is full")
        }
        (Sizing::ErrorRate(rate), Growth::Auto) => {
            format!("the smallest first segment with half of {rate}: each further one gets half of the rest")
        }
    }
}

/// The layout of the first table of this spec.
pub(super) fn layout_of(spec: &Spec) -> Result<Layout, LayoutError> {
    match spec.sizing {
        Sizing::ErrorRate(rate) => match spec.forget {
            None => Layout::compact(spec.capacity, rate, spec.growth),
            Some(forget) => Layout::forgetting(spec.capacity, rate, spec.growth, forget.steps()),
        },
        Sizing::Layout { fingerprint_bits, bucket_size, max_search } => {
            let layout =
                Layout::compact_with(spec.capacity, fingerprint_bits, bucket_size, max_search, spec.growth)?;
            spec.forget.map_or(Ok(layout), |forget| layout.with_steps(forget.steps()))
        }
        Sizing::Exact => Layout::strict(spec.capacity),
    }
}

/// Builds the command that creates a filter: draws its ID and secret, and chooses its layout.
///
/// # Errors
/// A message that names the field, if no layout fits the spec.
pub fn creation(
    kind: Kind,
    name: Name,
    spec: Spec,
    window: Window,
    annotations: AnnotationsChange,
) -> Result<Command, LayoutError> {
    let (layout, id, secret) = (layout_of(&spec)?, FilterId::random(), Secret::new(random()));
    Ok(Command::Create { kind, name, id, secret, spec, layout, window, annotations })
}

/// Builds the command that changes a filter's window, capacity, stock, title or labels, and chooses the layout for the capacity.
///
/// # Errors
/// A message that names the field, if no layout fits the capacity.
pub fn update(
    filter: &FilterView,
    starts_at: Option<Option<Timestamp>>,
    ends_at: Option<Option<Timestamp>>,
    capacity: Option<u64>,
    stock: Option<u64>,
    annotations: AnnotationsChange,
) -> Result<Command, LayoutError> {
    let spec = &filter.spec;
    let layout = |capacity| match spec.growth {
        // A capacity only ever rises: if it won't be raised now, it won't when the command is applied.
        Growth::Auto if capacity > spec.capacity => layout_of(&Spec { capacity, ..spec.clone() }),
        _ => Ok(filter.layout),
    };
    let raise = |capacity| Ok(Raise { capacity, layout: layout(capacity)? });
    let capacity = capacity.map(raise).transpose()?;
    Ok(Command::Update(Update {
        target: Target(filter.id),
        starts_at,
        ends_at,
        capacity,
        stock,
        annotations,
    }))
}

/// Builds the command that carries a record of an uploaded image. The first record creates a filter of this kind and name.
pub fn image_part(upload: UploadId, kind: Kind, name: &Name, record: ImageRecord) -> Command {
    let ImageRecord { before, checksum, body } = record;
    match body {
        ImageBody::Head(head) => Command::ImageBegin(ImageBegin {
            upload,
            id: FilterId::random(),
            kind,
            name: name.clone(),
            head,
            checksum,
        }),
        ImageBody::Part(_) | ImageBody::End { .. } => {
            Command::ImageRecord { upload, record: ImageRecord { before, checksum, body } }
        }
    }
}

impl FilterId {
    /// Draws the ID of a new filter.
    pub fn random() -> FilterId {
        FilterId(u64::from_le_bytes(random()).max(1))
    }
}

impl ImportId {
    /// Draws an ID for an import to which the client gave none.
    pub fn random() -> ImportId {
        ImportId::new(&hex::encode(random::<16>())).expect("an import's ID may contain hexadecimal digits")
    }
}
