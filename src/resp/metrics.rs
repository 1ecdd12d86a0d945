//! Metrics of this door. What commands count lies in a table that never changes, so it is found without a lock.

use super::command::ROWS;
use super::failure::Code;
use super::memory::Memory;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The label of commands that don't exist.
const UNKNOWN: &str = "unknown";

/// The label of commands that did what they should.
const OK: &str = "ok";

/// Which counter a command has; the last one is for those that don't exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted(usize);

impl Counted {
    /// The counters of a command that doesn't exist.
    pub const UNKNOWN: Counted = Counted(ROWS.len());

    /// The counters of the command in this row of the table.
    pub fn row(row: usize) -> Self {
        Self(row.min(ROWS.len()))
    }
}

/// By outcome: the first one is for success, then there is one for each code.
type ByOutcome = [AtomicU64; 1 + Code::ALL.len()];

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    commands: Arc<Commands>,
    /// Time from the arrival of a batch of commands until all are answered.
    pub batch_seconds: Histogram,
    /// Connections that are open.
    pub connections: Gauge,
    /// Connections that were opened.
    pub connections_opened: Counter,
}

/// Commands by name and outcome.
#[derive(Debug)]
struct Commands([ByOutcome; ROWS.len() + 1]);

impl Default for Metrics {
    fn default() -> Self {
        Self {
            commands: Arc::new(Commands(std::array::from_fn(|_| ByOutcome::default()))),
            batch_seconds: Histogram::new(exponential_buckets(10e-6, 2.0, 20)),
            connections: Gauge::default(),
            connections_opened: Counter::default(),
        }
    }
}

impl Metrics {
    /// Counts commands that did what they should.
    pub fn count(&self, command: Counted) {
        self.commands.0[command.0][0].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a command that failed.
    pub fn count_failed(&self, command: Counted, code: Code) {
        let at = Code::ALL.iter().position(|known| *known == code).map_or(0, |at| at + 1);
        self.commands.0[command.0][at].fetch_add(1, Ordering::Relaxed);
    }

    /// How many commands there were.
    pub fn commands(&self) -> u64 {
        self.commands.0.iter().flatten().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Registers the metrics; the registry's prefix comes before their names.
    pub fn register(&self, memory: &Memory, to: &mut Registry) {
        to.register_collector(Box::new(self.commands.clone()));
        let help = "Time from the arrival of a batch of RESP commands until all are answered";
        to.register("resp_batch_duration_seconds", help, self.batch_seconds.clone());
        to.register("resp_connections", "RESP connections that are open", self.connections.clone());
        let opened = self.connections_opened.clone();
        to.register("resp_connections_opened", "RESP connections that were opened", opened);
        let taken = memory.taken_bytes.clone();
        to.register("resp_buffer_bytes", "Bytes that long RESP requests and answers take", taken);
        let refused = memory.refused.clone();
        let help = "RESP connections closed because resp.buffers was reached";
        to.register("resp_buffers_refused", help, refused);
    }
}

impl Collector for Commands {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "RESP commands answered, by outcome: ok, or the error's code.";
        let mut family = encoder.encode_descriptor("resp_commands", help, None, MetricType::Counter)?;
        let names = ROWS.iter().map(|row| row.spelling).chain([UNKNOWN]);
        let outcomes = || [OK].into_iter().chain(Code::ALL.map(Code::as_str));
        for (command, counts) in names.zip(&self.0) {
            for (outcome, count) in outcomes().zip(counts) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let labels = [("command", command), ("outcome", outcome)];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}
