//! The engine's metrics: what each stage of a write costs, and the sizes of everything.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

/// The engine's metrics. Counters and gauges are atomic; only the writer's thread takes the histograms' short locks.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Time from a command's submission until the writer picks it up.
    pub queue_seconds: Stage,
    /// Time from a batch's append until it is durable.
    pub flush_seconds: Stage,
    /// Time to apply a batch.
    pub apply_seconds: Stage,
    /// Time that one step of a snapshot, or of cleaning up after one, holds the writer. A commit may have to wait this long.
    pub snapshot_step_seconds: Stage,
    /// Time that one step of freeing what commands have dropped holds the writer.
    pub free_step_seconds: Stage,
    /// Group commits.
    pub commits: Counter,
    /// Entries committed.
    pub entries: Counter,
    /// Commands refused because the queue was full.
    pub overloaded: Counter,
    /// Redemptions refused without an entry in the log.
    pub refused_unlogged: Counter,
    /// Snapshots finished.
    pub snapshots: Counter,
    /// Duration of the last snapshot.
    pub snapshot_seconds: Gauge<f64, AtomicU64>,
    /// Duration of recovery, including the log's replay.
    pub recovery_seconds: Gauge<f64, AtomicU64>,
    /// Duration of the log's replay.
    pub replay_seconds: Gauge<f64, AtomicU64>,
    /// Entries replayed.
    pub replayed_entries: Gauge,
    /// Bytes of tables.
    pub tables_bytes: Gauge,
    /// Bytes of redemptions and stored answers, approximately.
    pub records_bytes: Gauge,
    /// Sequence number of the last entry applied.
    pub applied_seq: Gauge,
    /// 1 while writes are refused because the clock can't be trusted, else 0.
    pub clock_unsure: Gauge,
    /// How far the clock is ahead of the expected time, in seconds; negative if it is behind.
    pub clock_offset_seconds: Gauge,
    /// Commands refused because the clock can't be trusted.
    pub clock_refused: Counter,
}

/// Durations of a stage, from 10 µs on.
#[derive(Clone, Debug)]
pub struct Stage(Histogram);

impl Default for Stage {
    fn default() -> Self {
        Stage(Histogram::new(exponential_buckets(10e-6, 2.0, 18)))
    }
}

impl Stage {
    /// Records a duration.
    pub fn observe(&self, seconds: f64) {
        self.0.observe(seconds);
    }
}

impl Metrics {
    /// Records the state of the clock.
    pub(super) fn note_clock(&self, is_unsure: bool, offset_seconds: i64) {
        self.clock_unsure.set(i64::from(is_unsure));
        self.clock_offset_seconds.set(offset_seconds);
    }

    /// Registers the metrics; the registry's prefix comes before their names.
    pub fn register(&self, to: &mut Registry) {
        to.register("queue_seconds", "Wait for the writer", self.queue_seconds.0.clone());
        to.register("flush_seconds", "Making a group commit durable", self.flush_seconds.0.clone());
        to.register("apply_seconds", "Applying a group commit", self.apply_seconds.0.clone());
        let step = self.snapshot_step_seconds.0.clone();
        to.register("snapshot_step_seconds", "Time that a step of a snapshot holds the writer", step);
        let step = self.free_step_seconds.0.clone();
        to.register("free_step_seconds", "Time that a step of freeing memory holds the writer", step);
        to.register("commits", "Group commits", self.commits.clone());
        to.register("entries", "Entries committed", self.entries.clone());
        to.register("overloaded", "Commands refused because the queue was full", self.overloaded.clone());
        let refused = self.refused_unlogged.clone();
        to.register("refused_unlogged", "Redemptions refused without an entry in the log", refused);
        to.register("snapshots", "Snapshots finished", self.snapshots.clone());
        let last = self.snapshot_seconds.clone();
        to.register("snapshot_duration_seconds", "Duration of the last snapshot", last);
        let recovery = self.recovery_seconds.clone();
        to.register("recovery_duration_seconds", "Duration of recovery at the start", recovery);
        let replay = self.replay_seconds.clone();
        to.register("replay_duration_seconds", "Duration of the log's replay during recovery", replay);
        to.register("replayed_entries", "Entries replayed during recovery", self.replayed_entries.clone());
        to.register("tables_bytes", "Memory of filters", self.tables_bytes.clone());
        to.register("records_bytes", "Memory of redemptions and stored answers", self.records_bytes.clone());
        to.register("applied_seq", "Sequence number of the last entry applied", self.applied_seq.clone());
        let unsure = self.clock_unsure.clone();
        to.register("clock_unsure", "1 while writes are refused because the clock can't be trusted", unsure);
        let offset = self.clock_offset_seconds.clone();
        to.register("clock_offset_seconds", "How far the clock is ahead of the expected time", offset);
        let refused = self.clock_refused.clone();
        to.register("clock_refused", "Commands refused because the clock can't be trusted", refused);
    }
}
