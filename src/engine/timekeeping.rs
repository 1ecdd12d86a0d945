//! Time for the writer: stamps that the log may trust, or a refusal that is told once. Keeps what the clocks said while they
//! were trusted, so that the next start can judge them.

use super::metrics::Metrics;
use crate::clock::{Clock, ClockUnsure};
use crate::domain::{ClockReading, Timestamp};
use crate::store::{KeptClock, Store};
use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often what the clocks say is kept: by so much a stop seems longer than it was.
const KEEP_EVERY: Duration = Duration::from_secs(60);

pub(super) struct Timekeeper {
    clock: Clock,
    store: Arc<Store>,
    metrics: Metrics,
    /// The trouble that was told last, while it lasts.
    told: Option<Discriminant<ClockUnsure>>,
    keep_at: Instant,
}

impl Timekeeper {
    /// Judges the clock by what is known: what was kept beside the log, else the time of the log's last entry or of the newest
    /// snapshot. Where there is no entry, there is nothing that a wrong clock could spoil.
    pub(super) fn new(
        clock: Clock,
        store: Arc<Store>,
        metrics: Metrics,
        logged: Timestamp,
        snapshot_at: Option<Timestamp>,
    ) -> Self {
        if logged > Timestamp(0) {
            // A snapshot is no evidence against a clock that is behind: the log's entries are.
            let known = snapshot_at.filter(|&at| at <= clock.reading().wall).unwrap_or(logged).max(logged);
            let last = match store.kept_clock() {
                Some(kept) if kept.same_boot || kept.reading.wall >= known => kept,
                _ => KeptClock {
                    reading: ClockReading { wall: known, uptime: Duration::ZERO },
                    same_boot: false,
                },
            };
            clock.resume(last.reading, last.same_boot);
        }
        let mut keeper = Self { clock, store, metrics, told: None, keep_at: Instant::now() };
        keeper.keep(logged);
        keeper
    }

    /// The time for the entries that are logged next.
    ///
    /// # Errors
    /// [`ClockUnsure`], told in the log when it begins and when it is over.
    pub(super) fn stamp(&mut self, last_logged: Timestamp) -> Result<Timestamp, ClockUnsure> {
        let stamp = self.clock.stamp(last_logged);
        let trouble = stamp.as_ref().err().map(discriminant);
        if trouble != self.told {
            match &stamp {
                Err(unsure) => {
                    tracing::error!(%unsure, path = %self.store.path().display(), "nothing is written: the clock can't be trusted");
                }
                Ok(_) => tracing::info!("the clock can be trusted again: writes go on"),
            }
            self.told = trouble;
        }
        self.metrics.note_clock(stamp.is_err(), self.clock.offset_seconds());
        stamp
    }

    /// Time for readers, and for what only people look at.
    pub(super) fn read(&self) -> Timestamp {
        self.clock.read()
    }

    /// When the clock is to be looked at again, if nothing else comes.
    pub(super) fn wake_at(&self) -> Instant {
        self.keep_at
    }

    /// [`Self::keep`], if it is time.
    pub(super) fn keep_if_due(&mut self, last_logged: Timestamp) {
        if self.keep_at <= Instant::now() {
            self.keep(last_logged);
        }
    }

    /// Keeps what the clocks say, if they can be trusted.
    pub(super) fn keep(&mut self, last_logged: Timestamp) {
        if self.stamp(last_logged).is_ok() {
            self.store.keep_clock(self.clock.reading());
        }
        self.keep_at = Instant::now() + KEEP_EVERY;
    }
}
