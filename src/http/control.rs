//! Controls a running service: replaces its keys and announces its shutdown.

use super::api::Api;
use super::options::AuthOptions;
use crate::access::{Access, InvalidKey};
use crate::domain::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// Controls a running service; clones control the same one.
#[derive(Clone)]
pub struct Control {
    api: Arc<Api>,
    expiries: Expiries,
}

/// Something that expires, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// The key of this name.
    Key(String, Timestamp),
    /// The certificate.
    Certificate(Timestamp),
}

impl Control {
    pub(super) fn new(api: Arc<Api>, expiries: Expiries) -> Self {
        Self { api, expiries }
    }

    /// Replaces the keys.
    ///
    /// # Errors
    /// [`InvalidKey`] if they are invalid or none is left. The old ones stay in force then.
    pub fn replace_keys(&self, auth: &AuthOptions) -> Result<(), InvalidKey> {
        self.api.access.entry.replace(auth)
    }

    /// Sets the time at which the certificate expires, for the metrics.
    pub fn note_certificate(&self, expires_at: Option<Timestamp>) {
        self.expiries.note_certificate(expires_at);
    }

    /// Everything that expires.
    pub fn expiries(&self) -> Vec<Expiry> {
        let keys = self.expiries.keys().into_iter().map(|(name, at)| Expiry::Key(name, at));
        keys.chain(self.expiries.certificate().map(Expiry::Certificate)).collect()
    }

    /// Announces the shutdown: from now on `/readyz` reports it. Everything else is still served.
    pub fn announce_stop(&self) {
        self.api.stopping.enter(Stage::Announced);
    }

    /// Ends running uploads. Their answers say how to continue.
    pub fn end_uploads(&self) {
        self.api.stopping.enter(Stage::UploadsEnd);
    }
}

/// What expires; clones share the same values.
#[derive(Clone)]
pub(super) struct Expiries {
    access: Arc<Access>,
    /// In milliseconds since the epoch; 0 if there is no certificate.
    certificate: Arc<AtomicU64>,
}

impl Expiries {
    pub(super) fn new(access: Arc<Access>) -> Self {
        Self { access, certificate: Arc::default() }
    }

    pub(super) fn note_certificate(&self, expires_at: Option<Timestamp>) {
        self.certificate.store(expires_at.map_or(0, |at| at.0), Ordering::Relaxed);
    }

    pub(super) fn certificate(&self) -> Option<Timestamp> {
        Some(Timestamp(self.certificate.load(Ordering::Relaxed))).filter(|at| at.0 > 0)
    }

    pub(super) fn keys(&self) -> Vec<(String, Timestamp)> {
        self.access.entry.expiries()
    }
}

/// How far the shutdown has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Stage {
    Serving,
    Announced,
    /// Uploads end.
    UploadsEnd,
}

/// The current stage of the shutdown; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Stopping(watch::Sender<Stage>);

impl Default for Stopping {
    fn default() -> Self {
        Self(watch::Sender::new(Stage::Serving))
    }
}

impl Stopping {
    /// Enters a later stage.
    pub(super) fn enter(&self, stage: Stage) {
        self.0.send_if_modified(|now| {
            let is_later = stage > *now;
            *now = stage.max(*now);
            is_later
        });
    }

    /// Whether a shutdown has been announced.
    pub(super) fn is_announced(&self) -> bool {
        *self.0.borrow() >= Stage::Announced
    }

    /// Waits until uploads must end.
    pub(super) async fn uploads_end(&self) {
        // This sender outlives the wait, so the wait can't fail.
        let _ = self.0.subscribe().wait_for(|stage| *stage >= Stage::UploadsEnd).await;
    }
}
