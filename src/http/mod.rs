//! The HTTP contract: parse the request, call the engine (uploads and generated codes: once per batch), map the outcome. Handlers decide nothing themselves.
//!
//! `router.rs` has the routes. `service.rs` wraps them. A handler takes a `Call`, whose type names the scope that the handler requires
//! (`call.rs`). `request/` parses input. `response/` builds responses; `response/refusals.rs` is the one map from refusals to problems. Each
//! family of resources has a folder or file, which works with the shared state of `api.rs`.

mod admin;
mod api;
mod call;
mod codes;
mod customers;
mod eligibility;
mod events;
mod filters;
#[cfg(feature = "testing")]
pub mod fuzzing;
mod generate;
mod imports;
mod items;
mod metrics;
pub mod openapi;
pub mod options;
mod pages;
mod redemptions;
mod request;
mod response;
mod router;
mod service;
mod users;

pub use api::Control;
pub(crate) use imports::lines::Delimiter;
pub(crate) use imports::live::ELSEWHERE_IDLE_SECONDS;
pub use options::HttpOptions;
pub use response::problem;
pub use service::HttpService;

use crate::access::Access;
use crate::engine::Engine;
use api::{Api, ApiHandle};
use imports::live::LiveImports;
use metrics::exposition::Exposition;
use prometheus_client::registry::Registry;
use request::body::Reading;
use response::outgoing::Responses;
use router::{Operations, Routes};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Builds the service over an engine, and the handle that controls it. With other protocols on the same engine, the caller passes in the
/// shared access control, and a function that registers their metrics. A server adds the [`Peer`](crate::socket::Peer) to each request:
/// the limit on guessing needs its address.
pub fn service(
    engine: Engine,
    access: Arc<Access>,
    options: HttpOptions,
    register: impl FnOnce(&mut Registry),
) -> (HttpService, Control) {
    let Routes { router, operations } = router::routes();
    let mut registry = Registry::with_prefix("cuckood");
    engine.metrics().register(&mut registry);
    access.guessing.register(&mut registry);
    register(&mut registry);
    let operations = Operations::register(operations, openapi::statuses, &mut registry);
    let redemptions = redemptions::outcomes();
    let uploads_end = CancellationToken::new();
    let help = "Requests to redeem, hold, confirm or cancel, by outcome";
    registry.register("redemptions", help, redemptions.clone());
    let api = Arc::new(Api {
        reading: Reading::new(&options, &mut registry, uploads_end.clone()),
        responses: Responses::new(options.limits.responses_bytes_max, &mut registry),
        live_imports: LiveImports::new(engine.is_shared()),
        is_draining: Default::default(),
        certificate_expires_at: Default::default(),
        document: openapi::served,
        exposition: Exposition::new(options.metrics_age_max),
        engine,
        options,
        access,
        uploads_end,
        registry,
        redemptions,
    });
    let handle = ApiHandle::new(api.clone());
    let router = router
        .split_for_parts()
        .0
        .merge(pages::routes())
        .with_state(handle.clone());
    (HttpService::new(handle, operations, router), Control(api))
}
