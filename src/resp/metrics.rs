//! Metrics of the protocol. A connection counts its commands without a lock, and adds them to the metrics before it sends their replies.

use super::failure::Code;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

/// Smallest upper bound of the histogram's buckets in seconds, and the number of bounds: each is twice the one before.
const BOUNDS: (f64, u16) = (10e-6, 20);

/// A command's name, and `ok` or the code of its error.
type Labels = [(&'static str, &'static str); 2];

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    commands: Family<Labels, Counter>,
    /// Commands, whatever their names and outcomes.
    pub commands_total: Counter,
    /// Seconds from the arrival of a batch of commands until all are answered.
    pub batch_seconds: Histogram,
    /// Connections that are open.
    pub connections: Gauge,
    /// Connections that were opened.
    pub connections_opened: Counter,
    /// Bytes of long requests and replies.
    pub buffer_bytes: Gauge<u64, AtomicU64>,
    /// How often the buffers had no space for them.
    pub buffers_refused: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            commands: Family::default(),
            commands_total: Counter::default(),
            batch_seconds: Histogram::new(exponential_buckets(BOUNDS.0, 2.0, BOUNDS.1)),
            connections: Gauge::default(),
            connections_opened: Counter::default(),
            buffer_bytes: Gauge::default(),
            buffers_refused: Counter::default(),
        }
    }
}

impl Metrics {
    /// Registers the metrics; the registry's prefix comes before their names.
    pub fn register(&self, to: &mut Registry) {
        let help = "RESP commands answered, by outcome: ok, or the error's code";
        to.register("resp_commands", help, self.commands.clone());
        let help = "Time from the arrival of a batch of RESP commands until all are answered";
        to.register("resp_batch_duration_seconds", help, self.batch_seconds.clone());
        to.register("resp_connections", "RESP connections that are open", self.connections.clone());
        let opened = self.connections_opened.clone();
        to.register("resp_connections_opened", "RESP connections that were opened", opened);
        let bytes = self.buffer_bytes.clone();
        to.register("resp_buffer_bytes", "Bytes that long RESP requests and answers take", bytes);
        let help = "RESP connections closed because resp.buffers was reached";
        to.register("resp_buffers_refused", help, self.buffers_refused.clone());
    }
}

/// Commands of one connection that are not in the metrics yet.
#[derive(Default)]
pub struct Counts(Vec<(Labels, u64)>);

impl Counts {
    /// Counts a command, and its error if it failed.
    pub fn add(&mut self, command: &'static str, failed: Option<Code>) {
        let labels = [("command", command), ("outcome", failed.map_or("ok", Code::as_str))];
        match self.0.iter_mut().find(|(known, _)| *known == labels) {
            Some((_, count)) => *count += 1,
            None => self.0.push((labels, 1)),
        }
    }

    /// Adds all to the metrics, and releases their memory.
    pub fn flush(&mut self, metrics: &Metrics) {
        for (labels, count) in std::mem::take(&mut self.0) {
            metrics.commands.get_or_create(&labels).inc_by(count);
            metrics.commands_total.inc_by(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode_registry;

    #[test]
    fn connections_count_into_one_sum() {
        let (metrics, mut registry) = (Metrics::default(), Registry::default());
        metrics.register(&mut registry);
        for _ in 0..3 {
            let mut counts = Counts::default();
            for (command, failed) in [("auth", None), ("auth", None), ("unknown", Some(Code::Err))] {
                counts.add(command, failed);
            }
            counts.flush(&metrics);
            counts.flush(&metrics);
            for seconds in [10e-6, 10.001e-6, 100.0] {
                metrics.batch_seconds.observe(seconds);
            }
        }
        assert_eq!(metrics.commands_total.get(), 9);
        let mut text = String::new();
        encode_registry(&mut text, &registry).unwrap();
        for line in [
            r#"resp_commands_total{command="auth",outcome="ok"} 6"#,
            r#"resp_commands_total{command="unknown",outcome="ERR"} 3"#,
            r#"resp_batch_duration_seconds_bucket{le="0.00001"} 3"#,
            r#"resp_batch_duration_seconds_bucket{le="0.00002"} 6"#,
            r#"resp_batch_duration_seconds_bucket{le="+Inf"} 9"#,
            "resp_batch_duration_seconds_count 9",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
