//! Time for the writer: trusted stamps for the log, or an error. Saves the clocks' readings while they are trusted, so that the next
//! startup can check the clock.

use super::Inner;
use super::recovery::Recovered;
use crate::clock::{ClockUnsure, Evidence};
use cuckood_log::journal::LogTime;
use cuckood_log::store::{SavedClock, Store};
use cuckood_state::domain::{ClockReading, Timestamp};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two saved readings. A stop seems longer than it was by up to this much.
const SAVE_EVERY: Duration = Duration::from_secs(60);

impl Inner {
    /// Reads the clock of durations and deadlines.
    pub(super) fn instant(&self) -> Instant {
        self.clock.monotonic().now()
    }

    /// Returns the time that has passed since `start`, in seconds.
    pub(super) fn seconds_since(&self, start: Instant) -> f64 {
        self.clock.monotonic().since(start).as_secs_f64()
    }

    /// The time for the next entry, by a clock that is compared with that of a log that several nodes share, if there is one.
    ///
    /// # Errors
    /// [`ClockUnsure`].
    pub(super) fn stamp(&self, last_logged: Timestamp) -> Result<Timestamp, ClockUnsure> {
        let Inner {
            clock,
            replication,
            metrics,
            ..
        } = self;
        match replication.get().map(|known| known.lock().log_time) {
            Some(None) => clock.compare_with_unknown(),
            Some(Some(LogTime { log, sent, seen })) => {
                let now = clock.monotonic().now();
                let longest_ago = now.saturating_duration_since(sent);
                let shortest_ago = now.saturating_duration_since(seen);
                clock.compare(log, longest_ago, shortest_ago)
            }
            None => {}
        }
        let stamp = clock.stamp(last_logged);
        metrics.clock_unsure.set(stamp.is_err().into());
        metrics.clock_offset_seconds.set(clock.offset_seconds());
        stamp
    }
}

pub(super) struct Timekeeper {
    inner: Arc<Inner>,
    store: Arc<Store>,
    /// The kind of trouble that was last logged, while it lasts.
    reported: Option<Evidence>,
    /// When the readings must be saved again, even if no command arrives.
    pub(super) save_at: Instant,
}

impl Timekeeper {
    /// Judges the clock by the saved reading, or else by the time of the log's last entry or of the newest snapshot. If nothing was ever
    /// logged, a wrong clock can't spoil anything.
    pub(super) fn new(inner: &Arc<Inner>, store: &Arc<Store>, recovered: &Recovered) -> Self {
        let logged = recovered.state.now();
        if logged > Timestamp(0) {
            // Only the log's entries are evidence that the clock lags; a snapshot is not.
            let snapshot_at = recovered
                .manifest
                .as_ref()
                .map(|manifest| manifest.taken_at);
            let snapshot_at = snapshot_at.filter(|at| *at <= inner.clock.reading().wall);
            let known = logged.max(snapshot_at.unwrap_or(logged));
            let reading = ClockReading {
                wall: known,
                uptime: Duration::ZERO,
            };
            let saved = store
                .saved_clock()
                .filter(|saved| saved.same_boot || saved.reading.wall >= known);
            let saved = saved.unwrap_or(SavedClock {
                reading,
                same_boot: false,
            });
            inner.clock.resume(saved.reading, saved.same_boot);
        }
        let now = inner.instant();
        let mut keeper = Self {
            inner: inner.clone(),
            store: store.clone(),
            reported: None,
            save_at: now,
        };
        keeper.save(logged, now);
        keeper
    }

    /// The time for the next entries, which are applied at the next [`Clock::release_readers`].
    ///
    /// # Errors
    /// See [`Self::stamp`].
    pub(super) fn stamp_entries(
        &mut self,
        last_logged: Timestamp,
    ) -> Result<Timestamp, ClockUnsure> {
        // Entries of several nodes are stamped and applied in different places.
        if self.inner.replication.get().is_none() {
            self.inner.clock.stop_readers();
        }
        self.stamp(last_logged)
    }

    /// The time for an entry now.
    ///
    /// # Errors
    /// [`ClockUnsure`]; logged when it starts and when it ends.
    pub(super) fn stamp(&mut self, last_logged: Timestamp) -> Result<Timestamp, ClockUnsure> {
        let stamp = self.inner.stamp(last_logged);
        let trouble = stamp.as_ref().err().map(|unsure| unsure.evidence);
        if trouble != self.reported {
            match &stamp {
                Err(unsure) => {
                    tracing::error!(%unsure, path = %self.store.path().display(), "writes are refused: the clock can't be trusted");
                }
                Ok(_) => tracing::info!("the clock can be trusted again: writes go on"),
            }
            self.reported = trouble;
        }
        stamp
    }

    /// Whether the clock could be trusted when it was last checked.
    pub(super) fn is_trusted(&self) -> bool {
        self.reported.is_none()
    }

    /// The time for readers and for display.
    pub(super) fn read(&self) -> Timestamp {
        self.inner.clock.read()
    }

    /// Saves the clocks' readings if they can be trusted.
    pub(super) fn save(&mut self, last_logged: Timestamp, now: Instant) {
        if self.stamp(last_logged).is_ok() {
            self.store.save_clock(self.inner.clock.reading());
        }
        self.save_at = now + SAVE_EVERY;
    }
}
