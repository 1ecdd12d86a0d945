//! The HTTP contract: parse the request, call the engine once, map the outcome. Handlers decide nothing themselves.
//!
//! [`router()`] puts the routes of `router.rs` behind the gate that every request passes (`gate.rs`). `request/` reads what comes
//! in. `answer/` builds what goes out; `answer/refusals.rs` is the one map from refusals to problems. Each family of resources
//! has a folder or file of its own, which works with the shared state of `api.rs`.

mod acts;
mod admin;
mod answer;
mod api;
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
mod metrics;
pub mod openapi;
pub mod options;
mod redemptions;
mod request;
mod router;
mod schema;
mod state_figures;
mod stopping;
pub mod unparsed;

pub use answer::problem;
pub use control::{Control, Expiry};
pub use options::HttpOptions;

use crate::access::{Access, InvalidKey};
use crate::engine::Engine;
use crate::engine::imports::LiveImports;
use api::{Api, Parts};
use axum::Router;
use axum::middleware::from_fn_with_state;
use expiries::Expiries;
use gate::Gate;
use metrics::HttpMetrics;
use prometheus_client::registry::Registry;
use state_figures::StateFigures;
use std::sync::Arc;
use stopping::Stopping;
use tower::ServiceBuilder;
use tower_http::compression::CompressionLayer;

/// Builds the whole service over an engine. Client addresses, which the limit on guessing needs, come from
/// [`axum::extract::ConnectInfo`] if the server provides it.
///
/// # Errors
/// [`InvalidKey`] if the configuration has an invalid key.
pub fn router(engine: Engine, options: HttpOptions) -> Result<Router, InvalidKey> {
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
) -> (Router, Control) {
    let document = openapi::document();
    let expiries = Expiries::new(access.clone());
    let (stopping, live_imports) = (Stopping::default(), LiveImports::default());
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
    let gate = Arc::new(Gate::new(api.clone(), &document));
    let control = Control::new(api.clone(), expiries);

    // From the outermost to the innermost.
    let layers =
        ServiceBuilder::new().layer(CompressionLayer::new()).layer(from_fn_with_state(gate, gate::pass));
    let (routes, _) = router::routes().split_for_parts();
    let router = routes
        .merge(docs::routes())
        .merge(console::routes())
        .fallback(gate::no_route)
        .method_not_allowed_fallback(gate::no_method)
        .with_state(api)
        .layer(layers);
    (router, control)
}
