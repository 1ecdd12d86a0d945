//! The service that all handlers share, and what controls it while it runs.

use super::imports::live::LiveImports;
use super::metrics::exposition::Exposition;
use super::options::HttpOptions;
use super::request::body;
use super::response::outgoing::Responses;
use super::response::{Problem, refusals};
use crate::access::AuthOptions;
use crate::access::{Access, InvalidKey};
use crate::engine::Engine;
use cuckood_state::FilterView;
use cuckood_state::domain::{FilterId, Kind, Name, Timestamp};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio_util::sync::CancellationToken;

/// Requests about redemptions, by outcome.
pub(super) type RedemptionOutcomes = Family<[(&'static str, &'static str); 1], Counter>;

/// Shared state of the handlers.
pub(super) struct Api {
    /// Decides everything.
    pub(super) engine: Engine,
    /// Options from the configuration.
    pub(super) options: HttpOptions,
    /// The keys, their rates, and the limit on guessing codes.
    pub(super) access: Arc<Access>,
    /// How bodies are read.
    pub(super) reading: body::Reading,
    /// The memory of responses.
    pub(super) responses: Responses,
    /// Running uploads.
    pub(super) live_imports: LiveImports,
    /// A shutdown has been announced.
    pub(super) is_draining: AtomicBool,
    /// Cancelled when running uploads must end.
    pub(super) uploads_end: CancellationToken,
    /// When the certificate expires, in milliseconds since the epoch; 0 if there is none.
    pub(super) certificate_expires_at: AtomicU64,
    /// Metrics that are counted as they change.
    pub(super) registry: Registry,
    /// The rendered metrics.
    pub(super) exposition: Exposition,
    /// Requests to redeem, hold, confirm or cancel, by outcome.
    pub(super) redemptions: RedemptionOutcomes,
    /// The OpenAPI document as text, given whether keys are required. A function pointer, because the document refers to the
    /// handlers.
    pub(super) document: fn(bool) -> String,
}

/// The shared state, for the handlers of one connection. Clones change a reference count that only this connection has: one that all
/// workers changed for every request would move between their processors' caches.
#[derive(Clone)]
#[expect(
    clippy::redundant_allocation,
    reason = "the outer count is the connection's own"
)]
pub(super) struct ApiHandle(Arc<Arc<Api>>);

impl ApiHandle {
    pub(super) fn new(api: Arc<Api>) -> Self {
        Self(Arc::new(api))
    }

    /// Returns a handle for another connection.
    pub(super) fn for_connection(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl Deref for ApiHandle {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.0
    }
}

impl Api {
    /// Everything that expires: keys by their names, and the certificate.
    pub(super) fn expiries(&self) -> Vec<(Option<String>, Timestamp)> {
        let keys = self
            .access
            .expiries()
            .into_iter()
            .map(|(name, at)| (Some(name), at));
        let certificate = Timestamp(self.certificate_expires_at.load(Ordering::Relaxed));
        keys.chain((certificate.0 > 0).then_some((None, certificate)))
            .collect()
    }
}

/// A filter that is read part by part. Between the parts, a slow client keeps nothing of it in memory.
pub(super) struct FilterHandle {
    kind: Kind,
    name: Name,
    id: FilterId,
}

impl FilterHandle {
    pub(super) fn of(view: &FilterView) -> Self {
        Self {
            kind: view.kind,
            name: view.name.clone(),
            id: view.id,
        }
    }

    /// Returns its current view.
    ///
    /// # Errors
    /// 404 if it was deleted.
    pub(super) fn view(&self, api: &Api) -> Result<Arc<FilterView>, Problem> {
        let found = api.engine.view().find(self.kind, &self.name);
        found
            .filter(|view| view.id == self.id)
            .ok_or_else(|| refusals::not_found(self.kind))
    }
}

/// Controls a running service; clones control the same one.
#[derive(Clone)]
pub struct Control(pub(super) Arc<Api>);

impl Control {
    /// Replaces the keys.
    ///
    /// # Errors
    /// [`InvalidKey`] if they are invalid or none is left. The old ones stay in force then.
    pub fn replace_keys(&self, auth: &AuthOptions) -> Result<(), InvalidKey> {
        self.0.access.replace_keys(auth)
    }

    /// Sets the time at which the certificate expires, for the metrics.
    pub fn note_certificate(&self, expires_at: Option<Timestamp>) {
        self.0
            .certificate_expires_at
            .store(expires_at.map_or(0, |at| at.0), Ordering::Relaxed);
    }

    /// Everything that expires: keys by their names, and the certificate.
    pub fn expiries(&self) -> Vec<(Option<String>, Timestamp)> {
        self.0.expiries()
    }

    /// Announces the shutdown: from now on `/readyz` reports it. Everything else is still served.
    pub fn announce_stop(&self) {
        self.0.is_draining.store(true, Ordering::Relaxed);
    }

    /// Ends running uploads, and announces the shutdown. Their responses say how to continue.
    pub fn end_uploads(&self) {
        self.announce_stop();
        self.0.uploads_end.cancel();
    }
}
