//! Health endpoints: liveness, readiness and metrics.

use super::answer::problem::{Code, Problem, retry};
use super::answer::{refusals, reply};
use super::api::Api;
use super::metrics::Format;
use crate::engine::SubmitError;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// The answer of a live process.
#[derive(Serialize, ToSchema)]
struct Health {
    /// `ok`.
    #[schema(example = "ok")]
    status: &'static str,
}

/// Readiness of the service.
#[derive(Serialize, ToSchema)]
struct Readiness {
    /// `ok`.
    #[schema(example = "ok")]
    status: &'static str,
    /// Why writes are refused, if they are: `disk-full` or `memory-limit`. Reads are still answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "disk-full")]
    writes: Option<&'static str>,
}

/// Show whether the process is alive
#[utoipa::path(
    get,
    path = "/livez",
    operation_id = "livez",
    tag = "operations",
    responses((status = 200, description = "The process is alive", body = Health))
)]
pub(super) async fn livez() -> Response {
    reply::json(StatusCode::OK, false, &Health { status: "ok" })
}

/// Show whether the service is ready for requests
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "readyz",
    tag = "operations",
    responses(
        (status = 200, description = "Ready; `writes` is present if writes are refused", body = Readiness),
        (status = 503, description = "`recovering` with its progress, `draining`, `storage-failed`, `diverged`, `clock-unsure` or `too-far-behind` with the reason"),
    )
)]
pub(super) async fn readyz(State(api): State<Arc<Api>>) -> Result<Response, Problem> {
    let stops = || {
        let detail = "the service is about to stop; requests are still served";
        api.stopping
            .is_announced()
            .then(|| Problem::new(Code::Draining, detail).retry_after(retry::ELSEWHERE))
    };
    let clock_unsure = || api.engine.clock_unsure().map(|unsure| SubmitError::from(unsure).into());
    let behind = || {
        let detail =
            "this node may be further behind the log than cluster.lag_max: requests are still served";
        let is_behind = api.engine.too_far_behind().is_some();
        is_behind.then(|| Problem::new(Code::TooFarBehind, detail).retry_after(retry::MOMENT))
    };
    match refusals::unready(api.engine.status()).or_else(stops).or_else(behind).or_else(clock_unsure) {
        Some(problem) => Err(problem),
        None => {
            let refused = api.engine.writes_refused().map(Problem::from);
            let writes = refused.map(|problem| problem.code.as_str());
            Ok(reply::json(StatusCode::OK, false, &Readiness { status: "ok", writes }))
        }
    }
}

/// Show metrics for Prometheus
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
