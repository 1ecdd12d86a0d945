//! Metrics of this door. What is counted for every command lies in tables that never change, so it is found without a lock. Each
//! thread has a table of its own, so threads don't wait for each other's caches.

use super::command::ROWS;
use super::failure::Code;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The label of commands that don't exist.
const UNKNOWN: &str = "unknown";

/// The label of commands that did what they should.
const OK: &str = "ok";

/// Tables. More threads than that share some of them.
const TABLES: usize = 16;

/// Upper bounds of the histogram's buckets but the last, which has none: the first one, and how many there are, each twice the one
/// before.
const BOUNDS: (Duration, usize) = (Duration::from_micros(10), 20);

thread_local! {
    /// The table of this thread.
    static TABLE: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed) % TABLES
    };
}

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
    tables: Arc<Tables>,
    /// Connections that are open.
    pub connections: Gauge,
    /// Connections that were opened.
    pub connections_opened: Counter,
    /// Bytes of long requests and answers.
    pub buffer_bytes: Gauge<u64, AtomicU64>,
    /// How often there was no room for them.
    pub buffers_refused: Counter,
}

/// What each thread has counted.
#[derive(Debug)]
struct Tables([Table; TABLES]);

/// Two tables never lie in one line of a cache.
#[derive(Debug)]
#[repr(align(128))]
struct Table {
    /// Commands by name and outcome.
    commands: [ByOutcome; ROWS.len() + 1],
    /// Batches of commands by the time until all were answered.
    batches: [AtomicU64; BOUNDS.1 + 1],
    /// The sum of these times.
    nanoseconds: AtomicU64,
}

impl Default for Table {
    fn default() -> Self {
        let commands = std::array::from_fn(|_| ByOutcome::default());
        Self { commands, batches: Default::default(), nanoseconds: AtomicU64::default() }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            tables: Arc::new(Tables(std::array::from_fn(|_| Table::default()))),
            connections: Gauge::default(),
            connections_opened: Counter::default(),
            buffer_bytes: Gauge::default(),
            buffers_refused: Counter::default(),
        }
    }
}

/// The bucket of a time.
fn bucket(nanoseconds: u64) -> usize {
    let first = BOUNDS.0.as_nanos() as u64;
    (0..BOUNDS.1).find(|at| nanoseconds <= first << at).unwrap_or(BOUNDS.1)
}

impl Metrics {
    fn table(&self) -> &Table {
        &self.tables.0[TABLE.with(|table| *table)]
    }

    /// Counts commands that did what they should.
    pub fn count(&self, command: Counted) {
        self.table().commands[command.0][0].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a command that failed.
    pub fn count_failed(&self, command: Counted, code: Code) {
        let at = Code::ALL.iter().position(|known| *known == code).map_or(0, |at| at + 1);
        self.table().commands[command.0][at].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a batch of commands, from their arrival until all were answered.
    pub fn count_batch(&self, took: Duration) {
        let (table, nanoseconds) = (self.table(), u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        table.batches[bucket(nanoseconds)].fetch_add(1, Ordering::Relaxed);
        table.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// How many commands there were.
    pub fn commands(&self) -> u64 {
        self.tables.0.iter().flat_map(|table| table.commands.iter().flatten()).map(load).sum()
    }

    /// Registers the metrics; the registry's prefix comes before their names.
    pub fn register(&self, to: &mut Registry) {
        to.register_collector(Box::new(self.tables.clone()));
        to.register("resp_connections", "RESP connections that are open", self.connections.clone());
        let opened = self.connections_opened.clone();
        to.register("resp_connections_opened", "RESP connections that were opened", opened);
        let bytes = self.buffer_bytes.clone();
        to.register("resp_buffer_bytes", "Bytes that long RESP requests and answers take", bytes);
        let help = "RESP connections closed because resp.buffers was reached";
        to.register("resp_buffers_refused", help, self.buffers_refused.clone());
    }
}

fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

impl Tables {
    /// The sum of what all threads have counted.
    fn sum<'a>(&'a self, of: impl Fn(&'a Table) -> &'a AtomicU64) -> u64 {
        self.0.iter().map(|table| load(of(table))).sum()
    }

    fn encode_commands(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "RESP commands answered, by outcome: ok, or the error's code.";
        let mut family = encoder.encode_descriptor("resp_commands", help, None, MetricType::Counter)?;
        let names = ROWS.iter().map(|row| row.spelling).chain([UNKNOWN]);
        for (row, command) in names.enumerate() {
            for (at, outcome) in [OK].into_iter().chain(Code::ALL.map(Code::as_str)).enumerate() {
                let count = self.sum(|table| &table.commands[row][at]);
                if count > 0 {
                    let labels = [("command", command), ("outcome", outcome)];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }

    fn encode_batches(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Time from the arrival of a batch of RESP commands until all are answered.";
        let name = "resp_batch_duration_seconds";
        let mut histogram = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        let bounds =
            (0..BOUNDS.1).map(|at| BOUNDS.0.as_secs_f64() * f64::from(1 << at)).chain([f64::INFINITY]);
        let counts = (0..=BOUNDS.1).map(|at| self.sum(|table| &table.batches[at]));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let sum = Duration::from_nanos(self.sum(|table| &table.nanoseconds)).as_secs_f64();
        let count = buckets.iter().map(|(_, count)| count).sum();
        histogram.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

impl Collector for Tables {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_commands(&mut encoder)?;
        self.encode_batches(&mut encoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode_registry;

    #[test]
    fn what_several_threads_count_is_one_sum() {
        let metrics = Metrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        std::thread::scope(|scope| {
            for _ in 0..TABLES + 3 {
                scope.spawn(|| {
                    metrics.count(Counted::row(0));
                    metrics.count_failed(Counted::UNKNOWN, Code::Err);
                    metrics.count_batch(Duration::from_micros(10));
                    metrics.count_batch(Duration::from_nanos(10_001));
                    metrics.count_batch(Duration::from_secs(100));
                });
            }
        });
        assert_eq!(metrics.commands(), 38);
        let mut text = String::new();
        encode_registry(&mut text, &registry).unwrap();
        for line in [
            r#"resp_commands_total{command="auth",outcome="ok"} 19"#,
            r#"resp_commands_total{command="unknown",outcome="ERR"} 19"#,
            r#"resp_batch_duration_seconds_bucket{le="0.00001"} 19"#,
            r#"resp_batch_duration_seconds_bucket{le="0.00002"} 38"#,
            r#"resp_batch_duration_seconds_bucket{le="+Inf"} 57"#,
            "resp_batch_duration_seconds_count 57",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        let sum =
            text.lines().find_map(|line| line.strip_prefix("resp_batch_duration_seconds_sum ")).unwrap();
        assert!((sum.parse::<f64>().unwrap() - 1_900.0).abs() < 1.0, "{sum}");
    }
}
