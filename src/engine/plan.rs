//! Commands that create or change a filter, with the random IDs and the layout that they need; and plans: the cost of a filter in memory,
//! disk space and startup time.

use super::snapshotter::SnapshotOptions;
use cuckood_filter::{Growth, LayoutError, Secret};
use cuckood_log::journal::random;
use cuckood_state::domain::{
    AnnotationsChange, Command, FilterId, ImageBegin, ImageBody, ImageRecord, Kind, Name, Sizing,
    Spec, UploadId, Window,
};
use serde::Serialize;
use utoipa::ToSchema;

/// sled reuses a segment of its file once half of it is free.
const SLED_FACTOR: u64 = 2;

/// Maximum number of snapshots on the disk: the newest, the previous one, and one that is being written.
const SNAPSHOTS: u64 = 3;

/// Memory of the queue of changes while a replacement is built, in bytes.
pub const REPLACEMENT_QUEUE_BYTES: u64 = 32 << 20;

/// Bytes of tables that a start loads per second with two processors; measured, see the README.
const LOADED_BYTES_PER_SECOND: f64 = 500e6;

/// Bytes of log that a start replays per second: ten million items of eight bytes.
const REPLAYED_BYTES_PER_SECOND: f64 = 80e6;

/// The layout and cost of a filter, without creating it.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "fingerprint_bits": 14, "bucket_size": 4, "buckets": 263_158, "memory_bytes": 1_848_000, "bits_per_item": 14.8,
    "error_rate_at_capacity": 0.000_5, "load_at_capacity": 0.95, "capacity_max": 133_000_000_000_u64, "disk_bytes": 3_696_000, "replacement_peak_bytes": 3_696_000,
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
    /// Different items that it takes, however it grows: `capacity` with `growth` `fixed`. Beyond, writes are rejected with `filter-full`.
    pub capacity_max: u64,
    /// Why this layout was chosen.
    pub reason: String,
    /// Approximate disk space for snapshots and log while a snapshot is written.
    pub disk_bytes: u64,
    /// Approximate memory while an import replaces all items.
    pub replacement_peak_bytes: u64,
    /// Approximate upper bound of the additional startup time, with two processors.
    pub startup_seconds: f64,
}

/// Disk space for the snapshots of a state, and for the log. As much log is kept behind the older of two snapshots as between them.
pub fn disk_bytes(state_bytes: u64, log_bytes: u64) -> u64 {
    SLED_FACTOR.saturating_mul(
        SNAPSHOTS
            .saturating_mul(state_bytes)
            .saturating_add(2 * log_bytes),
    )
}

/// Upper bound of a start with two processors.
pub fn startup_seconds(state_bytes: u64, log_bytes: u64) -> f64 {
    state_bytes as f64 / LOADED_BYTES_PER_SECOND + log_bytes as f64 / REPLAYED_BYTES_PER_SECOND
}

/// Plans the filter of this spec.
///
/// # Errors
/// A message that names the field, if no layout fits the spec.
pub fn plan(spec: &Spec) -> Result<Plan, LayoutError> {
    let layout = spec.layout()?;
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
        capacity_max: spec.capacity_max(&layout),
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
            format!(
                "the smallest first segment with half of {rate}: each further one gets half of the rest"
            )
        }
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
    let layout = spec.layout()?;
    let id = FilterId::drawn(random());
    let secret = Secret::new(random());
    Ok(Command::Create {
        kind,
        name,
        id,
        secret,
        spec,
        layout,
        window,
        annotations,
    })
}

/// Builds the command that carries a record of an uploaded image. The first record creates a filter of this kind and name.
pub fn image_part(upload: UploadId, kind: Kind, name: &Name, record: ImageRecord) -> Command {
    let ImageRecord {
        before,
        checksum,
        body,
        version,
    } = record;
    match body {
        ImageBody::Head(head) => Command::ImageBegin(ImageBegin {
            upload,
            id: FilterId::drawn(random()),
            kind,
            name: name.clone(),
            head,
            checksum,
        }),
        ImageBody::Part(_) | ImageBody::End { .. } => Command::ImageRecord {
            upload,
            record: ImageRecord {
                before,
                checksum,
                body,
                version,
            },
        },
    }
}
