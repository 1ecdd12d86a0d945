//! The engine's metrics: the cost of each stage of a write, and counts. Sizes are read from [`super::EngineInfo`].

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

type Seconds = Gauge<f64, AtomicU64>;

/// Declares each metric once: its name and help for scrapers, its field, type and first value.
macro_rules! metrics {
    ($($name:literal, $help:literal => $field:ident: $type:ty = $new:expr;)*) => {
        /// The engine's metrics. Counters and gauges are atomic; only the writer's thread takes the histograms' short locks.
        #[derive(Clone, Debug)]
        pub struct EngineMetrics {
            $(#[doc = $help] pub $field: $type,)*
        }

        impl Default for EngineMetrics {
            fn default() -> Self {
                Self { $($field: $new,)* }
            }
        }

        impl EngineMetrics {
            /// Registers the metrics. Their names start with the registry's prefix.
            pub fn register(&self, to: &mut Registry) {
                $(to.register($name, $help, self.$field.clone());)*
            }
        }
    };
}

metrics! {
    "queue_seconds", "Wait for the writer" => queue_seconds: Histogram = stage();
    "flush_seconds", "Making a group commit durable" => flush_seconds: Histogram = stage();
    "apply_seconds", "Applying a group commit" => apply_seconds: Histogram = stage();
    "snapshot_step_seconds", "Time that a step of a snapshot holds the writer" => snapshot_step_seconds: Histogram = stage();
    "free_step_seconds", "Time that a step of freeing memory holds the writer" => free_step_seconds: Histogram = stage();
    "commits", "Group commits" => commits: Counter = Counter::default();
    "entries", "Entries committed" => entries: Counter = Counter::default();
    "overloaded", "Commands refused because the queue was full" => overloaded: Counter = Counter::default();
    "refused_unlogged", "Redemptions refused without an entry in the log" => refused_unlogged: Counter = Counter::default();
    "snapshots", "Snapshots finished" => snapshots: Counter = Counter::default();
    "snapshot_duration_seconds", "Duration of the last snapshot" => snapshot_seconds: Seconds = Gauge::default();
    "recovery_duration_seconds", "Duration of recovery at the start" => recovery_seconds: Seconds = Gauge::default();
    "replay_duration_seconds", "Duration of the log's replay during recovery" => replay_seconds: Seconds = Gauge::default();
    "replayed_entries", "Entries replayed during recovery" => replayed_entries: Gauge = Gauge::default();
    "clock_unsure", "1 while writes are refused because the clock can't be trusted" => clock_unsure: Gauge = Gauge::default();
    "clock_offset_seconds", "How far the clock is ahead of the expected time" => clock_offset_seconds: Gauge = Gauge::default();
    "clock_refused", "Commands refused because the clock can't be trusted" => clock_refused: Counter = Counter::default();
}

/// Durations of a stage, from 10 µs on.
fn stage() -> Histogram {
    Histogram::new(exponential_buckets(10e-6, 2.0, 18))
}
