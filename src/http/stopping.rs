//! The stages of a shutdown.

use tokio::sync::watch;

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
