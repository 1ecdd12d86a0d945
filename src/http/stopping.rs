//! Whether the service is about to stop, for those who have to know.

use tokio::sync::watch;

/// How far the service is on its way to a stop.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Stage {
    Serving,
    Announced,
    /// What is of any length ends.
    UploadsEnd,
}

/// Whether the service is about to stop; clones tell of the same one.
#[derive(Clone, Debug)]
pub(super) struct Stopping(watch::Sender<Stage>);

impl Default for Stopping {
    fn default() -> Self {
        Self(watch::Sender::new(Stage::Serving))
    }
}

impl Stopping {
    /// Goes on to a later stage.
    pub(super) fn enter(&self, stage: Stage) {
        self.0.send_if_modified(|now| {
            let is_later = stage > *now;
            *now = stage.max(*now);
            is_later
        });
    }

    /// Whether a stop has been announced.
    pub(super) fn is_announced(&self) -> bool {
        *self.0.borrow() >= Stage::Announced
    }

    /// Waits until uploads are to end.
    pub(super) async fn uploads_end(&self) {
        // The sender that is held here outlives the wait, so it does not fail.
        let _ = self.0.subscribe().wait_for(|stage| *stage >= Stage::UploadsEnd).await;
    }
}
