//! Health endpoints: liveness, readiness and metrics.

use super::answer::problem::{Code, Problem, retry};
use super::answer::{refusals, reply};
use super::api::Api;
use super::metrics::Format;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::header;
use serde::Serialize;
use serde_with::skip_serializing_none;
use std::sync::Arc;
use utoipa::ToSchema;

/// The answer of a live process.
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
    get,
    path = "/livez",
    operation_id = "livez",
    tag = "operations",
    responses((status = 200, description = "The process is alive", body = Health))
)]
pub(super) async fn livez() -> Response {
    reply::ok(&Health { status: "ok" })
}

/// Show whether the service is ready for requests
///
/// Speaks of this node: 200 while it can serve reads. `writes` says why writes are rejected.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "readyz",
    tag = "operations",
    responses(
        (status = 200, description = "Ready; `writes` is present if writes are rejected", body = Readiness),
        (status = 503, description = "`recovering` with its progress, `draining`, `storage-failed`, `diverged` or `too-far-behind` with the reason"),
    )
)]
pub(super) async fn readyz(State(api): State<Arc<Api>>) -> Result<Response, Problem> {
    let stops = || {
        let detail = "the service is about to stop; requests are still served";
        api.stopping
            .is_announced()
            .then(|| Problem::new(Code::Draining, detail).retry_after(retry::ELSEWHERE))
    };
    let behind = || {
        let detail = "this node has not reached a position of the log within cluster.lag_max: requests are still served";
        let is_behind = api.engine.too_far_behind().is_some();
        is_behind.then(|| Problem::new(Code::TooFarBehind, detail).retry_after(retry::MOMENT))
    };
    if let Some(problem) = refusals::unready(api.engine.status()).or_else(stops).or_else(behind) {
        return Err(problem);
    }
    let writes = api.engine.writes_refused().map(|error| Problem::from(error).code.as_str());
    Ok(reply::ok(&Readiness { status: "ok", writes }))
}

/// Show metrics for Prometheus
///
/// Text format 0.0.4, or OpenMetrics.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    tag = "operations",
    responses((
        status = 200,
        description = "All names begin with `cuckood_`. OpenMetrics if the header `Accept` asks for it",
        content((String = "text/plain"), (String = "application/openmetrics-text"))
    ))
)]
pub(super) async fn metrics(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    // An idle writer does not check the clock, so it is checked here.
    let _ = api.engine.clock_unsure();
    let format = Format::asked_for(request.headers());
    let text = api.metrics.render(format);
    let text = text.map_err(|_| Problem::new(Code::Internal, "the metrics can't be written"))?;
    Ok(([(header::CONTENT_TYPE, format.media_type())], text).into_response())
}
