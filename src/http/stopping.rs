//! What ends while the service runs: keys and the certificate expire, and a shutdown goes through its stages.

use crate::access::Access;
use crate::domain::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

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
        self.access.expiries()
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
