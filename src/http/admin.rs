//! Endpoints for operators: sizes of the service, the cost of a planned filter, snapshots and backups.

use super::answer::problem::Problem;
use super::answer::reply;
use super::call::{Call, Export, Maintain, Read};
use super::filters::spec::{Asked, GrowthName, ModeName};
use super::request::body::Streamed;
use super::request::query;
use crate::access::Caller;
use crate::domain::Timestamp;
use crate::engine::{Backup, Durability};
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use std::io;
use utoipa::{IntoParams, ToSchema};

/// Sizes and positions of the service.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "version": "0.1.0", "uptime_seconds": 60, "durability": "fsync", "filters": 2, "line_ups": 0, "redemptions": 0,
    "idempotency_records": 0, "idempotency_bytes": 0, "idempotency_room_bytes": 67_108_864, "last_seq": 4711,
    "memory": {"tables_bytes": 1_848_000, "records_bytes": 0, "limit_bytes": 1_073_741_824},
    "storage": {"disk_bytes": 8_388_608, "free_bytes": 10_737_418_240_u64, "wal_bytes_written": 4096, "snapshot_bytes_written": 0}
}))]
struct Info {
    #[schema(example = "0.1.0")]
    version: &'static str,
    /// The key that the request came with. Absent if none are required.
    key: Option<KeyInfo>,
    uptime_seconds: u64,
    /// What an acknowledged write survives.
    durability: DurabilityName,
    /// Number of campaigns and coupons.
    filters: u64,
    /// Number of line-ups.
    line_ups: u64,
    /// Number of redemptions on record.
    redemptions: u64,
    /// Number of stored answers for repeated requests.
    idempotency_records: u64,
    /// Bytes of stored answers.
    idempotency_bytes: u64,
    /// The most bytes that stored answers may take.
    idempotency_room_bytes: u64,
    /// Sequence number of the last log entry applied.
    last_seq: u64,
    snapshot: Option<SnapshotInfo>,
    memory: MemoryInfo,
    storage: StorageInfo,
}

/// A key, and what it may do.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
struct KeyInfo {
    #[schema(example = "shop")]
    name: String,
    /// `read`, `write`, `redeem`, `admin`.
    #[schema(example = json!(["read", "redeem"]))]
    scopes: Vec<&'static str>,
    /// Only campaigns and coupons whose names begin with this can be used.
    #[schema(example = "eu-")]
    prefix: Option<String>,
    expires_at: Option<Timestamp>,
}

impl KeyInfo {
    /// Describes the caller's key, if it has one.
    fn of(caller: &Caller) -> Option<Self> {
        let key = caller.key()?;
        Some(Self {
            name: key.name.clone(),
            scopes: key.scopes.iter().map(|scope| scope.as_str()).collect(),
            prefix: (!key.prefix.is_empty()).then(|| key.prefix.clone()),
            expires_at: key.expires_at,
        })
    }
}

/// What an acknowledged write survives.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Durability)]
enum DurabilityName {
    /// The death of the machine.
    Fsync,
    /// The death of the process.
    Flush,
    /// Neither, for the last 100 ms.
    Relaxed,
}

/// The newest snapshot.
#[derive(Serialize, ToSchema)]
struct SnapshotInfo {
    /// The last log entry that it covers.
    seq: u64,
    taken_at: Timestamp,
}

/// Memory, in bytes.
#[derive(Serialize, ToSchema)]
struct MemoryInfo {
    /// Memory of filters.
    tables_bytes: u64,
    /// Memory of redemptions and stored answers, approximately.
    records_bytes: u64,
    /// The most that both may take together.
    limit_bytes: u64,
}

/// Storage, in bytes.
#[derive(Serialize, ToSchema)]
struct StorageInfo {
    disk_bytes: u64,
    free_bytes: u64,
    /// Bytes of log written since the start.
    wal_bytes_written: u64,
    /// Bytes of snapshots written since the start.
    snapshot_bytes_written: u64,
}

/// Show the service's sizes and positions
///
/// Version, uptime, durability, the caller's key, memory and storage of this node.
#[utoipa::path(
    get,
    path = "/v1/info",
    operation_id = "info",
    tag = "operations",
    responses((status = 200, description = "As of now", body = Info))
)]
pub(super) async fn info(call: Call<Read>) -> Response {
    let key = KeyInfo::of(&call.caller);
    let info = call.api.engine.info();
    let body = Info {
        version: env!("CARGO_PKG_VERSION"),
        key,
        uptime_seconds: info.uptime_seconds,
        durability: match info.durability {
            Durability::Fsync => DurabilityName::Fsync,
            Durability::Flush => DurabilityName::Flush,
            Durability::Relaxed => DurabilityName::Relaxed,
        },
        filters: info.campaigns + info.coupons,
        line_ups: info.line_ups,
        redemptions: info.sizes.redemptions,
        idempotency_records: info.sizes.idempotency_records,
        idempotency_bytes: info.sizes.idempotency_bytes,
        idempotency_room_bytes: info.idempotency_room_bytes,
        last_seq: info.last_seq.0,
        snapshot: info.snapshot.map(|latest| SnapshotInfo { seq: latest.seq.0, taken_at: latest.taken_at }),
        memory: MemoryInfo {
            tables_bytes: info.tables_bytes,
            records_bytes: info.records_bytes,
            limit_bytes: info.memory_max_bytes,
        },
        storage: StorageInfo {
            disk_bytes: info.storage.disk_bytes,
            free_bytes: info.storage.free_bytes,
            wal_bytes_written: info.storage.wal_bytes_written,
            snapshot_bytes_written: info.storage.snapshot_bytes_written,
        },
    };
    reply::ok(&body)
}

/// The filter to plan.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PlanQuery {
    #[param(minimum = 1, maximum = 4_294_967_296_u64, example = 1_000_000)]
    capacity: u64,
    /// 0.001 by default; not allowed for strict filters.
    #[param(minimum = 0.00000001, maximum = 0.5)]
    error_rate: Option<f64>,
    /// `compact` by default.
    mode: Option<ModeName>,
    /// `auto` by default.
    growth: Option<GrowthName>,
    /// As for a campaign: it forgets each user after this time.
    #[param(example = "7d", pattern = "^[0-9]+[smhd]$")]
    forget_after: Option<String>,
    /// 8 by default; only with `forget_after`.
    #[param(minimum = 2, maximum = 32)]
    forget_steps: Option<u32>,
}

/// The layout and memory of a planned filter.
#[derive(Serialize, ToSchema)]
#[schema(as = Plan, example = json!({
    "fingerprint_bits": 14, "bucket_size": 4, "buckets": 263_158, "memory_bytes": 1_848_000, "bits_per_item": 14.8,
    "error_rate_at_capacity": 0.000_5, "load_at_capacity": 0.95, "disk_bytes": 3_696_000, "replacement_peak_bytes": 3_696_000,
    "startup_seconds": 0.1, "reason": "the smallest layout that keeps the error rate"
}))]
struct PlanAnswer {
    fingerprint_bits: u8,
    bucket_size: u8,
    buckets: u64,
    memory_bytes: u64,
    bits_per_item: f64,
    error_rate_at_capacity: f64,
    load_at_capacity: f64,
    /// Approximate disk space for snapshots and log while a snapshot is written.
    disk_bytes: u64,
    /// Approximate memory while an import replaces all items.
    replacement_peak_bytes: u64,
    /// Approximate upper bound of the time that it adds to a start, with two processors.
    startup_seconds: f64,
    /// Why this layout was chosen.
    reason: String,
}

/// Show the layout and memory that a filter would have
///
/// Computes the layout only; nothing is created. The defaults are those of a campaign.
#[utoipa::path(
    get,
    path = "/v1/plan",
    operation_id = "plan",
    tag = "operations",
    params(PlanQuery),
    responses((status = 200, description = "Its first table", body = PlanAnswer))
)]
pub(super) async fn plan(_: Call<Read>, request: Request) -> Result<Response, Problem> {
    let PlanQuery { capacity, error_rate, mode, growth, forget_after, forget_steps } =
        query::parse(&request)?;
    let plain = Asked::new(capacity, mode.unwrap_or(ModeName::Compact));
    let (spec, _) = Asked { error_rate, growth, forget_after, forget_steps, ..plain }.resolve()?;
    let plan = crate::engine::plan(&spec)?;
    let body = PlanAnswer {
        fingerprint_bits: plan.layout.fingerprint_bits,
        bucket_size: plan.layout.bucket_size,
        buckets: plan.layout.buckets,
        memory_bytes: plan.memory_bytes,
        bits_per_item: plan.bits_per_item,
        error_rate_at_capacity: plan.error_rate_at_capacity,
        load_at_capacity: plan.load_at_capacity,
        disk_bytes: plan.disk_bytes,
        replacement_peak_bytes: plan.replacement_peak_bytes,
        startup_seconds: plan.startup_seconds,
        reason: plan.reason,
    };
    Ok(reply::ok(&body))
}

/// A finished snapshot.
#[derive(Serialize, ToSchema)]
#[schema(as = Snapshot, example = json!({"seq": 4711, "bytes_written": 65_536, "seconds": 0.1}))]
struct SnapshotAnswer {
    /// The last log entry that it covers.
    seq: u64,
    /// Bytes written; sections that have not changed are not written again.
    bytes_written: u64,
    seconds: f64,
}

/// Take a snapshot now
///
/// The response arrives when the snapshot is complete. Later starts replay only the log after it.
#[utoipa::path(
    post,
    path = "/v1/snapshots",
    operation_id = "take_snapshot",
    tag = "operations",
    responses((status = 200, description = "Taken", body = SnapshotAnswer))
)]
pub(super) async fn snapshot(call: Call<Maintain>) -> Result<Response, Problem> {
    call.caller.require_all_names()?;
    let report = call.api.engine.snapshot().await?;
    call.api.engine.share_snapshot();
    let body = SnapshotAnswer {
        seq: report.seq.0,
        bytes_written: report.bytes_written,
        seconds: report.duration.as_secs_f64(),
    };
    Ok(reply::ok(&body))
}

/// Download a backup
///
/// A consistent archive of everything acknowledged so far. Writes continue during the download. `cuckood restore` reads the
/// archive, and rejects an incomplete one.
#[utoipa::path(
    get,
    path = "/v1/backup",
    operation_id = "backup",
    tag = "operations",
    responses(
        (
            status = 200,
            description = "The archive, streamed",
            body = inline(Streamed),
            content_type = "application/octet-stream"
        ),
        (status = 503, description = "`overloaded`: too many backups are running; `draining`, `storage-failed`"),
    )
)]
pub(super) async fn backup(call: Call<Export>) -> Result<Response, Problem> {
    call.caller.require_all_names()?;
    let backup = call.api.engine.backup().await?;
    let parts = stream::unfold(backup, async |mut backup: Backup| {
        let part = backup.next().await?;
        Some((part.map_err(io::Error::other), backup))
    });
    // A compressor polls once more after the end.
    Ok(reply::attachment("cuckood.backup", Body::from_stream(parts.fuse())))
}
