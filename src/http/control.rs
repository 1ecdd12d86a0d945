//! What the running program tells a service after its start: that it is about to stop.

use super::api::Api;
use super::stopping::Stage;
use std::sync::Arc;

/// The program's hold on a service; clones are holds on the same one.
#[derive(Clone)]
pub struct Control(Arc<Api>);

impl Control {
    pub(super) fn new(api: Arc<Api>) -> Self {
        Self(api)
    }

    /// The service is about to stop: from now on `/readyz` says so. Everything else is served on.
    pub fn announce_stop(&self) {
        self.0.stopping.enter(Stage::Announced);
    }

    /// Uploads that are still under way end, with an answer that says how to go on.
    pub fn end_uploads(&self) {
        self.0.stopping.enter(Stage::UploadsEnd);
    }
}
