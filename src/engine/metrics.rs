//! The engine's own figures: what each stage of a write costs, and how much there is of everything.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Counters and gauges are atomics; the histograms' short locks are taken by the writer's thread alone.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// From a command's submission until the writer takes it up.
    pub queue_seconds: Histogram,
    /// From a batch's append until it is durable.
    pub flush_seconds: Histogram,
    /// Applying a batch.
    pub apply_seconds: Histogram,
    /// A step of a snapshot, or of removing what one has left over, even if nothing was paid for: so long commits wait for it.
    pub snapshot_step_seconds: Histogram,
    /// Group commits.
    pub commits: Counter,
    /// Entries committed.
    pub entries: Counter,
    /// Commands refused because the queue was full.
    pub overloaded: Counter,
    /// Snapshots finished.
    pub snapshots: Counter,
    /// How long the last snapshot took.
    pub snapshot_milliseconds: Gauge,
    /// Bytes of tables.
    pub tables_bytes: Gauge,
    /// Bytes of redemptions and stored answers, about.
    pub records_bytes: Gauge,
    /// The last entry applied.
    pub applied_seq: Gauge,
    /// 1 while nothing is written because the clock can't be trusted, else 0.
    pub clock_unsure: Gauge,
    /// How far the clock is ahead of what it should say, in seconds; negative for behind.
    pub clock_offset_seconds: Gauge,
    /// Commands refused because the clock could not be trusted.
    pub clock_refused: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let stage = || Histogram::new(exponential_buckets(10e-6, 2.0, 18));
        Self {
            queue_seconds: stage(),
            flush_seconds: stage(),
            apply_seconds: stage(),
            snapshot_step_seconds: stage(),
            commits: Counter::default(),
            entries: Counter::default(),
            overloaded: Counter::default(),
            snapshots: Counter::default(),
            snapshot_milliseconds: Gauge::default(),
            tables_bytes: Gauge::default(),
            records_bytes: Gauge::default(),
            applied_seq: Gauge::default(),
            clock_unsure: Gauge::default(),
            clock_offset_seconds: Gauge::default(),
            clock_refused: Counter::default(),
        }
    }
}

impl Metrics {
    /// Notes what was found about the clock.
    pub(super) fn note_clock(&self, is_unsure: bool, offset_seconds: i64) {
        self.clock_unsure.set(i64::from(is_unsure));
        self.clock_offset_seconds.set(offset_seconds);
    }

    /// Makes the figures part of a registry; its prefix comes before their names.
    pub fn register(&self, to: &mut Registry) {
        to.register("queue_seconds", "Wait for the writer", self.queue_seconds.clone());
        to.register("flush_seconds", "Making a group commit durable", self.flush_seconds.clone());
        to.register("apply_seconds", "Applying a group commit", self.apply_seconds.clone());
        let step = self.snapshot_step_seconds.clone();
        to.register("snapshot_step_seconds", "The writer held by a step of a snapshot", step);
        to.register("commits", "Group commits", self.commits.clone());
        to.register("entries", "Entries committed", self.entries.clone());
        to.register("overloaded", "Commands refused by a full queue", self.overloaded.clone());
        to.register("snapshots", "Snapshots finished", self.snapshots.clone());
        let last = self.snapshot_milliseconds.clone();
        to.register("snapshot_milliseconds", "Duration of the last snapshot", last);
        to.register("tables_bytes", "Memory of filters", self.tables_bytes.clone());
        to.register("records_bytes", "Memory of redemptions and stored answers", self.records_bytes.clone());
        to.register("applied_seq", "The last entry applied", self.applied_seq.clone());
        let unsure = self.clock_unsure.clone();
        to.register("clock_unsure", "1 while the clock can't be trusted and nothing is written", unsure);
        let offset = self.clock_offset_seconds.clone();
        to.register("clock_offset_seconds", "The clock ahead of what it should say", offset);
        let refused = self.clock_refused.clone();
        to.register("clock_refused", "Commands refused because of the clock", refused);
    }
}
