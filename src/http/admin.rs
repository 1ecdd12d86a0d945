//! Endpoints for operators: sizes of the service, the cost of a planned filter, snapshots and backups.

use super::api::ApiHandle;
use super::call::{Call, Export, Maintain, Read};
use super::filters::spec::{CampaignSpec, RequestedSpec};
use super::metrics;
use super::metrics::exposition::{RenderedText, TextFormat};
use super::request::body::StreamedBody;
use super::request::query;
use super::response::outgoing::Uncompressed;
use super::response::success::quality_in;
use super::response::{Code, HandlerResult, Problem, refusals, success};
use crate::engine::{self, LatestSnapshot, Plan, SnapshotReport};
use axum::extract::{Request, State};
use axum::response::IntoResponse;
use axum::response::Response;
use cuckood_filter::{Growth, Mode};
use cuckood_log::journal::{Durability, OtherNode};
use cuckood_log::store::StoreFigures;
use cuckood_state::domain::{Kind, Normalization, StateHash, Timestamp, understood_version};
use http::header;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use std::sync::atomic::Ordering;
use std::time::Instant;
use utoipa::{IntoParams, ToSchema};

/// Sizes and positions of the service.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(as = Info, example = json!({
    "version": "0.2.0", "uptime_seconds": 60, "durability": "fsync", "filters": 2, "line_ups": 0, "redemptions": 0,
    "idempotency_records": 0, "idempotency_bytes": 0, "idempotency_room_bytes": 67_108_864, "last_seq": 4711,
    "memory": {"tables_bytes": 1_848_000, "records_bytes": 0, "limit_bytes": 1_073_741_824},
    "storage": {"disk_bytes": 8_388_608, "free_bytes": 10_737_418_240_u64, "wal_bytes_written": 4096, "snapshot_bytes_written": 0}
}))]
struct ServiceInfo {
    #[schema(example = "0.2.0")]
    version: &'static str,
    /// The request's key. Absent if no keys are configured.
    key: Option<KeyInfo>,
    uptime_seconds: u64,
    /// The crashes that an acknowledged write survives.
    durability: Durability,
    /// Number of campaigns and coupons.
    filters: u64,
    /// Number of line-ups.
    line_ups: u64,
    /// Number of redemptions on record.
    redemptions: u64,
    /// Number of stored responses to requests with an idempotency key.
    idempotency_records: u64,
    /// Bytes of stored responses.
    idempotency_bytes: u64,
    /// Maximum size of stored responses, in bytes.
    idempotency_room_bytes: u64,
    /// Sequence number of the last log entry applied.
    last_seq: u64,
    snapshot: Option<LatestSnapshot>,
    memory: MemoryInfo,
    storage: StoreFigures,
}

/// An API key and its rights.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
struct KeyInfo {
    #[schema(example = "shop")]
    name: String,
    /// `read`, `write`, `redeem`, `admin`.
    #[schema(example = json!(["read", "redeem"]))]
    scopes: Vec<&'static str>,
    /// Required prefix of the names of campaigns and coupons.
    #[schema(example = "eu-")]
    prefix: Option<String>,
    expires_at: Option<Timestamp>,
}

/// Memory, in bytes.
#[derive(Serialize, ToSchema)]
struct MemoryInfo {
    /// Memory of filters.
    tables_bytes: u64,
    /// Approximate memory of redemptions and stored responses.
    records_bytes: u64,
    /// Maximum of both together.
    limit_bytes: u64,
}

/// Show the service's sizes and positions
///
/// Version, uptime, durability, the caller's key, memory and storage of this node.
#[utoipa::path(
    get, path = "/v1/info", operation_id = "info", tag = "operations",
    responses((status = 200, description = "As of now", body = ServiceInfo))
)]
pub(super) async fn info(call: Call<Read>) -> Response {
    let key = call.caller.key().map(|key| KeyInfo {
        name: key.name.clone(),
        scopes: key.scopes.iter().map(|scope| scope.as_str()).collect(),
        prefix: (!key.prefix.is_empty()).then(|| key.prefix.clone()),
        expires_at: key.expires_at,
    });
    let engine = &call.api.engine;
    let info = call.api.engine.info();
    let options = engine.options();
    let view = engine.view();
    let body = ServiceInfo {
        version: env!("CARGO_PKG_VERSION"),
        key,
        uptime_seconds: info.uptime_seconds,
        durability: options.journal.durability(),
        filters: (view.count(Kind::Campaign) + view.count(Kind::Coupon)) as u64,
        line_ups: view.line_ups_len() as u64,
        redemptions: info.sizes.redemptions,
        idempotency_records: info.sizes.idempotency_records,
        idempotency_bytes: info.sizes.idempotency_bytes,
        idempotency_room_bytes: options.settings.idempotency_room_bytes,
        last_seq: info.last_seq.0,
        snapshot: info.snapshot,
        memory: MemoryInfo {
            tables_bytes: info.tables_bytes,
            records_bytes: info.records_bytes,
            limit_bytes: options.memory_max_bytes,
        },
        storage: info.storage,
    };
    success::ok(&body)
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
    mode: Option<Mode>,
    /// `auto` by default.
    growth: Option<Growth>,
    /// Time after which the campaign forgets a user.
    #[param(example = "7d", pattern = "^[0-9]+[smhd]$")]
    forget_after: Option<String>,
    /// 8 by default; only with `forget_after`.
    #[param(minimum = 2, maximum = 32)]
    forget_steps: Option<u32>,
}

/// Show the layout and memory that a filter would have
///
/// Computes the layout only; nothing is created. The defaults are those of a campaign.
#[utoipa::path(
    get, path = "/v1/plan", operation_id = "plan", tag = "operations",
    params(PlanQuery),
    responses((status = 200, description = "Its first table", body = Plan))
)]
pub(super) async fn plan(_: Call<Read>, request: Request) -> HandlerResult {
    let PlanQuery {
        capacity,
        error_rate,
        mode,
        growth,
        forget_after,
        forget_steps,
    } = query::parse(&request)?;
    let none = CampaignSpec::default();
    let campaign = CampaignSpec {
        capacity,
        mode,
        error_rate,
        growth,
        forget_after,
        forget_steps,
        ..none
    };
    let (spec, ..) = RequestedSpec::from(campaign).resolve(Normalization::Exact)?;
    Ok(success::ok(&engine::plan(&spec)?))
}

/// Take a snapshot now
///
/// Returns when the snapshot is complete. Later startups replay only the log after it.
#[utoipa::path(
    post, path = "/v1/snapshots", operation_id = "take_snapshot", tag = "operations",
    responses((status = 200, description = "Taken", body = SnapshotReport))
)]
pub(super) async fn snapshot(call: Call<Maintain>) -> HandlerResult {
    call.caller.require_all_names()?;
    let report = call.api.engine.snapshot().await?;
    call.api.engine.share_snapshot();
    Ok(success::ok(&report))
}

/// Download a backup
///
/// A consistent archive of everything acknowledged so far. Writes continue during the download. `cuckood restore` reads the
/// archive, and rejects an incomplete one.
#[utoipa::path(
    get, path = "/v1/backup", operation_id = "backup", tag = "operations",
    responses(
        (
            status = 200,
            description = "The archive, streamed",
            body = inline(StreamedBody),
            content_type = "application/octet-stream"
        ),
        (status = 503, description = "`overloaded`: too many downloads of backups; `draining`, `storage-failed`"),
    )
)]
pub(super) async fn backup(call: Call<Export>) -> HandlerResult {
    call.caller.require_all_names()?;
    let backup = call.api.engine.backup().await?;
    Ok(success::attachment("cuckood.backup", backup))
}

/// This node among several.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(as = Cluster, example = json!({
    "journal": "local", "position": 4711, "build": "0.2.0", "understands": 2, "enabled": 2, "nodes": []
}))]
struct ClusterStatus {
    /// `local` for a single node, `nats` for one of several.
    #[schema(example = "nats")]
    journal: &'static str,
    /// The last position of the log that this node has applied.
    position: u64,
    /// The build of this node.
    #[schema(example = "0.2.0")]
    build: &'static str,
    /// The highest version of the log's entries that this node understands.
    understands: u16,
    /// The enabled version of the log's entries. Entries of higher versions are not written yet.
    enabled: u16,
    /// The replicated log, as this node sees it. Absent for a single node.
    log: Option<SharedLog>,
    /// The other nodes that the log has reported since this node started.
    nodes: Vec<OtherNode>,
}

/// The log that the nodes share.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(as = ClusterLog)]
struct SharedLog {
    /// The name of this node.
    #[schema(example = "node-1")]
    node: String,
    #[schema(example = "cuckood")]
    stream: String,
    /// Servers that store the stream.
    replicas: usize,
    /// The server that this node is connected to.
    server: String,
    server_version: String,
    connected: bool,
    /// Whether the log responds. It needs a majority of its servers.
    quorum: bool,
    /// Time for which the log has not responded; otherwise 0.
    no_quorum_seconds: f64,
    /// Time for which the log has rejected messages because it is full; otherwise 0.
    log_full_seconds: f64,
    /// Time for which this node has not reached a position that the log has shown; 0 if it has reached all.
    lag_seconds: f64,
    /// Messages of the log that are waiting to be read.
    behind_messages: u64,
    /// Messages sent and not yet read back.
    in_flight: u64,
    reconnects: u64,
    /// Number of times the log was reopened after a gap, an error or silence.
    reopened: u64,
    /// Number of resent messages whose outcome was unknown.
    resent: u64,
    /// Messages in the stream that are not of this service; they are skipped.
    foreign_messages: u64,
    /// The hash of this node's state at the last position at which the nodes compare theirs. Absent before the first.
    hash: Option<StateHash>,
}

/// Show this node, the others and the log that they share
///
/// Positions, lag, quorum and state hashes as this node knows them.
#[utoipa::path(
    get, path = "/v1/cluster", operation_id = "cluster", tag = "operations",
    responses((status = 200, description = "As of now, as this node sees it", body = ClusterStatus))
)]
pub(super) async fn cluster(call: Call<Read>) -> Response {
    let engine = &call.api.engine;
    let replication = engine.replication();
    let journal = if replication.is_some() {
        "nats"
    } else {
        "local"
    };
    let nodes = replication
        .iter()
        .flat_map(|replication| replication.peers.clone())
        .collect();
    let now = Instant::now();
    let log = replication.map(|mut figures| SharedLog {
        quorum: figures.silence(now).is_zero(),
        no_quorum_seconds: figures.silence(now).as_secs_f64(),
        log_full_seconds: figures.full_since.map_or(0.0, |since| {
            now.saturating_duration_since(since).as_secs_f64()
        }),
        lag_seconds: figures.lag(now).as_secs_f64(),
        connected: figures.disconnected_since.is_none(),
        behind_messages: figures.behind_messages(),
        node: figures.node,
        stream: figures.stream,
        replicas: figures.replicas,
        server: figures.server,
        server_version: figures.server_version,
        in_flight: figures.in_flight as u64,
        reconnects: figures.reconnects,
        reopened: figures.reopened,
        resent: figures.resent,
        foreign_messages: figures.foreign,
        hash: figures.hash,
    });
    let build = env!("CARGO_PKG_VERSION");
    let understands = understood_version();
    let position = engine.position().0;
    let enabled = engine.info().format;
    let body = ClusterStatus {
        journal,
        position,
        build,
        understands,
        enabled,
        log,
        nodes,
    };
    success::ok(&body)
}

/// The response of a live process.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"status": "ok"}))]
struct Health {
    /// `ok`.
    #[schema(example = "ok")]
    status: &'static str,
}

/// Readiness of the service.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"status": "ok"}))]
struct Readiness {
    /// `ok`.
    #[schema(example = "ok")]
    status: &'static str,
    /// Why writes are rejected, if they are: `disk-full`, `memory-limit`, `clock-unsure`, `no-quorum` or `log-full`. Reads continue.
    #[schema(example = "disk-full")]
    writes: Option<&'static str>,
}

/// Show whether the process is alive
///
/// 200 as soon as the port is bound, also during recovery.
#[utoipa::path(
    get, path = "/livez", operation_id = "livez", tag = "operations",
    responses((status = 200, description = "The process is alive", body = Health))
)]
pub(super) async fn livez() -> Response {
    success::ok(&Health { status: "ok" })
}

/// Show whether the service is ready for requests
///
/// Describes this node: 200 while it can serve reads. `writes` is the reason if writes are rejected.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readyz", tag = "operations",
    responses(
        (status = 200, description = "Ready; `writes` is present if writes are rejected", body = Readiness),
        (status = 503, description = "`recovering` with its progress, `draining`, `storage-failed`, `diverged` or `too-far-behind` with the reason"),
    )
)]
pub(super) async fn readyz(State(api): State<ApiHandle>) -> HandlerResult {
    let drains = "the service is draining; requests are still served";
    let behind = "this node has not reached a position of the log within cluster.lag_max: requests are still served";
    if let Some(problem) = refusals::unready(api.engine.status()) {
        return Err(problem);
    }
    if api.is_draining.load(Ordering::Relaxed) {
        return Err(Problem::new(Code::Draining, drains));
    }
    if api.engine.is_too_far_behind() {
        return Err(Problem::new(Code::TooFarBehind, behind));
    }
    let writes = api
        .engine
        .writes_refused()
        .map(|error| Problem::from(error).code.as_str());
    Ok(success::ok(&Readiness {
        status: "ok",
        writes,
    }))
}

/// Show metrics for Prometheus
///
/// Text format 0.0.4, or OpenMetrics. The text may be a second old.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "operations",
    responses((
        status = 200,
        description = "Names start with `cuckood_`, except the standard `process_*`. OpenMetrics if the header `Accept` requests it",
        content((String = "text/plain"), (String = "application/openmetrics-text"))
    ))
)]
pub(super) async fn metrics(State(api): State<ApiHandle>, request: Request) -> HandlerResult {
    let format = TextFormat::preferred(request.headers());
    let service = api.clone();
    let render = move || {
        // An idle writer does not check the clock, so it is checked here.
        let _ = service.engine.writes_refused();
        metrics::render(&service, format)
    };
    let text = api.exposition.text(format, Instant::now(), render).await;
    let RenderedText { plain, gzip } =
        text.map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    let (text, coding) = match quality_in(request.headers(), &header::ACCEPT_ENCODING, "gzip") > 0.0
    {
        true => (gzip, Some([(header::CONTENT_ENCODING, "gzip")])),
        false => (plain, None),
    };
    let headers = [
        (header::CONTENT_TYPE, format.media_type()),
        (header::VARY, "accept, accept-encoding"),
    ];
    let mut response = (headers, coding, text).into_response();
    response.extensions_mut().insert(Uncompressed);
    Ok(response)
}
