//! Controls a running service: replaces its keys and announces its shutdown.

use super::api::Api;
use super::options::AuthOptions;
use super::stopping::{Expiries, Stage};
use crate::access::InvalidKey;
use crate::domain::Timestamp;
use std::sync::Arc;

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
