//! What the running program tells a service after its start: which keys hold, and that it is about to stop.

use super::api::Api;
use super::expiries::Expiries;
use super::options::AuthOptions;
use super::stopping::Stage;
use crate::access::InvalidKey;
use crate::domain::Timestamp;
use std::sync::Arc;

/// The program's hold on a service; clones are holds on the same one.
#[derive(Clone)]
pub struct Control {
    api: Arc<Api>,
    expiries: Expiries,
}

/// What runs out, and when.
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

    /// Has other keys hold from now on.
    ///
    /// # Errors
    /// They can't be, or there is none any more. Then those from before hold.
    pub fn replace_keys(&self, auth: &AuthOptions) -> Result<(), InvalidKey> {
        self.api.entry.replace(auth)
    }

    /// Tells the service when its certificate runs out, which its figures show.
    pub fn note_certificate(&self, expires_at: Option<Timestamp>) {
        self.expiries.note_certificate(expires_at);
    }

    /// All that runs out some day.
    pub fn expiries(&self) -> Vec<Expiry> {
        let keys = self.expiries.keys().into_iter().map(|(name, at)| Expiry::Key(name, at));
        keys.chain(self.expiries.certificate().map(Expiry::Certificate)).collect()
    }

    /// The service is about to stop: from now on `/readyz` says so. Everything else is served on.
    pub fn announce_stop(&self) {
        self.api.stopping.enter(Stage::Announced);
    }

    /// Uploads that are still under way end, with an answer that says how to go on.
    pub fn end_uploads(&self) {
        self.api.stopping.enter(Stage::UploadsEnd);
    }
}
