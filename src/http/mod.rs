//! The HTTP contract: parse the request, call the engine once, map the outcome. Handlers decide nothing themselves.
//!
//! `router.rs` has the routes. `service.rs` puts them behind the gate that every request passes (`gate.rs`). A handler takes a `Call`, which
//! says what right it requires (`call.rs`). `request/` reads what comes in. `answer/` builds what goes out; `answer/refusals.rs` is the one
//! map from refusals to problems. Each family of resources has a folder or file, which works with the shared state of `api.rs`.

mod admin;
mod answer;
mod api;
mod audit;
mod call;
mod eligibility;
mod events;
mod filters;
#[cfg(any(feature = "fuzzing", test))]
pub mod fuzzing;
mod gate;
mod generate;
mod imports;
mod items;
mod line_ups;
mod lines;
mod metrics;
pub mod openapi;
mod operations;
pub mod options;
mod pages;
mod redemptions;
mod request;
mod router;
mod service;
mod stopping;

pub use answer::problem;
pub use api::{Control, Expiry};
pub use options::HttpOptions;
pub use service::HttpService;

use crate::access::{Access, InvalidKey};
use crate::engine::Engine;
use crate::engine::imports::LiveImports;
use answer::problem::{Code, Problem};
use api::Api;
use gate::Gate;
use metrics::{HttpMetrics, StateFigures};
use operations::Operations;
use prometheus_client::registry::Registry;
use request::body::Reading;
use router::Routes;
use std::sync::Arc;
use stopping::{Expiries, Stopping};

/// Builds the whole service over an engine. Client addresses, which the limit on guessing needs, come from
/// [`axum::extract::ConnectInfo`] if the server provides it.
///
/// # Errors
/// [`InvalidKey`] if the configuration has an invalid key.
pub fn standalone(engine: Engine, options: HttpOptions) -> Result<HttpService, InvalidKey> {
    let access = Access::new(&options.auth, &options.rate_limit, &options.guessing)?;
    Ok(service(engine, Arc::new(access), options, |_| ()).0)
}

/// Builds the service over an engine, and the handle that controls it. Whoever has other doors to the same engine passes in the
/// access control that they share, and what registers their metrics.
pub fn service(
    engine: Engine,
    access: Arc<Access>,
    options: HttpOptions,
    register: impl FnOnce(&mut Registry),
) -> (HttpService, Control) {
    let Routes { router, operations } = router::routes();
    let expiries = Expiries::new(access.clone());
    let (stopping, live_imports) = (Stopping::default(), LiveImports::new(engine.is_shared()));
    let state = StateFigures {
        engine: engine.clone(),
        stopping: stopping.clone(),
        live_imports: live_imports.clone(),
        expiries: expiries.clone(),
        per_filter: options.metrics.per_filter,
    };
    let mut registry = Registry::with_prefix("cuckood");
    engine.metrics().register(&mut registry);
    access.guessing.register(&mut registry);
    register(&mut registry);
    metrics::register(&mut registry, move |figures| state.write(figures));
    metrics::register(&mut registry, metrics::write_process);
    let operations = Operations::register(operations, &mut registry);
    let metrics = HttpMetrics::new(registry);
    let (taken, refused) = (metrics.body_bytes.clone(), metrics.bodies_refused.clone());
    let reading = Reading::new(&options, taken, refused, stopping.clone());
    let document = openapi::served;
    let api = Arc::new(Api { engine, options, access, reading, live_imports, stopping, metrics, document });
    let (gate, control) = (Gate::new(api.clone(), operations), Control::new(api.clone(), expiries));
    let router = router
        .split_for_parts()
        .0
        .merge(pages::routes())
        .fallback(async || Problem::from(Code::RouteNotFound))
        .method_not_allowed_fallback(async || Problem::from(Code::MethodNotAllowed))
        .with_state(api);
    (HttpService::new(gate, router), control)
}
