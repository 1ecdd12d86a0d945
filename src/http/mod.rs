//! The HTTP contract: parse the request, call the engine once, map the outcome. Handlers decide nothing themselves.
//!
//! `router.rs` has the routes. `service.rs` puts them behind the gate that every request passes (`gate.rs`). `request/` reads what comes
//! in. `answer/` builds what goes out; `answer/refusals.rs` is the one map from refusals to problems. Each family of resources
//! has a folder or file of its own, which works with the shared state of `api.rs`.

mod acts;
mod admin;
mod answer;
mod api;
mod cluster;
mod console;
mod control;
mod docs;
mod eligibility;
mod events;
mod expiries;
mod filters;
#[cfg(any(feature = "fuzzing", test))]
pub mod fuzzing;
mod gate;
mod health;
mod imports;
mod items;
mod lines;
mod metrics;
pub mod openapi;
pub mod options;
mod patience;
mod positions;
mod redemptions;
mod request;
mod router;
mod schema;
mod service;
mod shortcuts;
mod state_figures;
mod stopping;
pub mod unparsed;

pub use answer::problem;
pub use control::{Control, Expiry};
pub use options::HttpOptions;
pub use service::HttpService;

use crate::access::{Access, InvalidKey};
use crate::engine::Engine;
use crate::engine::imports::LiveImports;
use api::{Api, Parts};
use expiries::Expiries;
use gate::Gate;
use metrics::HttpMetrics;
use prometheus_client::registry::Registry;
use state_figures::StateFigures;
use std::sync::Arc;
use stopping::Stopping;

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
    let document = openapi::document();
    let expiries = Expiries::new(access.clone());
    let (stopping, live_imports) = (Stopping::default(), LiveImports::new(engine.is_shared()));
    let state = StateFigures {
        engine: engine.clone(),
        stopping: stopping.clone(),
        live_imports: live_imports.clone(),
        per_filter: options.metrics.per_filter,
    };
    let metrics = HttpMetrics::new(openapi::groups(&document), |registry| {
        engine.metrics().register(registry);
        access.guessing.register(registry);
        register(registry);
        registry.register_collector(Box::new(expiries.clone()));
        registry.register_collector(Box::new(state));
    });
    let parts = Parts { access, stopping, live_imports, metrics, document: openapi::served };
    let api = Arc::new(Api::new(engine, options, parts));
    let gate = Gate::new(api.clone(), &document);
    let control = Control::new(api.clone(), expiries);

    let (routes, documented) = router::routes().split_for_parts();
    let router = routes
        .merge(docs::routes())
        .merge(console::routes())
        .fallback(gate::no_route)
        .method_not_allowed_fallback(gate::no_method)
        .with_state(api.clone());
    (HttpService::new(documented.paths.paths.keys(), gate, api, router), control)
}
