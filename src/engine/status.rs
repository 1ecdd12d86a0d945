//! The engine's status: whether it serves requests and, if not, why.

use super::Progress;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

/// The engine's status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EngineStatus {
    /// It is loading the snapshot or replaying the log.
    Recovering(Progress),
    /// It serves reads and writes.
    Ready,
    /// It finishes the commands that it has accepted, and accepts no more.
    Draining,
    /// Storage or recovery has failed, for this reason.
    Failed(String),
    /// The state is not that of the other nodes, so nothing is served any more.
    Diverged(String),
    /// The writer has panicked, so the state can't be trusted: the process ends.
    Panicked(String),
}

/// The current status, which other threads wait for.
pub(super) struct CurrentStatus {
    status: watch::Sender<EngineStatus>,
    /// Whether it is [`EngineStatus::Ready`]. Every request asks, and reading the channel writes to its lock, which all workers share.
    is_ready: AtomicBool,
}

impl CurrentStatus {
    /// Begins with recovery, and this progress.
    pub(super) fn recovering(progress: Progress) -> Self {
        Self {
            status: watch::Sender::new(EngineStatus::Recovering(progress)),
            is_ready: AtomicBool::new(false),
        }
    }

    /// The status now.
    pub(super) fn get(&self) -> EngineStatus {
        if self.is_ready.load(Ordering::Acquire) {
            EngineStatus::Ready
        } else {
            self.status.borrow().clone()
        }
    }

    /// Waits for later ones.
    pub(super) fn subscribe(&self) -> watch::Receiver<EngineStatus> {
        self.status.subscribe()
    }

    /// Replaces the status.
    pub(super) fn set(&self, next: EngineStatus) {
        self.modify(|status| {
            *status = next;
            true
        });
    }

    /// Changes to another status, unless a failure or a shutdown happened first: these stay visible. Progress of recovery, which is
    /// reported for every table, wakes no waiting task.
    pub(super) fn proceed(&self, next: EngineStatus) {
        self.modify(|status| {
            let may_proceed = matches!(status, EngineStatus::Recovering(_) | EngineStatus::Ready);
            let is_progress = matches!(next, EngineStatus::Recovering(_));
            if may_proceed {
                *status = next;
            }
            may_proceed && !is_progress
        });
    }

    /// Starts draining if it was ready.
    pub(super) fn drain_if_ready(&self) {
        self.modify(|status| {
            let was_ready = *status == EngineStatus::Ready;
            if was_ready {
                *status = EngineStatus::Draining;
            }
            was_ready
        });
    }

    /// `change` returns whether waiting tasks are woken.
    fn modify(&self, change: impl FnOnce(&mut EngineStatus) -> bool) {
        self.status.send_if_modified(|status| {
            let wakes = change(status);
            self.is_ready
                .store(*status == EngineStatus::Ready, Ordering::Release);
            wakes
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_and_shutdown_stay_visible() {
        let progress = || Progress::of("snapshot", 7, None);
        let status = CurrentStatus::recovering(progress());
        let waiting = status.subscribe();
        status.proceed(EngineStatus::Recovering(progress()));
        assert_eq!(status.get(), EngineStatus::Recovering(progress()));
        assert!(!waiting.has_changed().unwrap());
        status.drain_if_ready();
        assert!(!waiting.has_changed().unwrap());
        status.proceed(EngineStatus::Ready);
        assert_eq!(status.get(), EngineStatus::Ready);
        assert!(waiting.has_changed().unwrap());
        status.drain_if_ready();
        status.proceed(EngineStatus::Ready);
        assert_eq!(status.get(), EngineStatus::Draining);
        let failed = EngineStatus::Failed("the disk is gone".to_owned());
        status.set(failed.clone());
        status.proceed(EngineStatus::Draining);
        assert_eq!(status.get(), failed);
    }
}
