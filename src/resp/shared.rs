//! The service, which all connections share: its options from the configuration, and its metrics. A connection counts its commands
//! without a lock, and adds them to the metrics before it sends their replies.

use super::command::{ROWS, UNKNOWN};
use super::dumps::Dumps;
use super::failure::{ErrorCode, Failure};
use super::key::KeyRule;
use crate::access::{Access, LogLimiter};
use crate::budget::Budget;
use crate::engine::{Engine, EngineInfo};
use crate::tally::{WorkerCounter, WorkerHistogram};
use cuckood_log::journal::random;
use cuckood_state::domain::{Command, KeyName, Outcome};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Time for which metrics are cached: reading them visits every filter and the data directory.
const INFO_AGE_MAX: Duration = Duration::from_secs(1);

/// The service for Redis clients; clones are the same one.
#[derive(Clone)]
pub struct Service(pub(super) Arc<RespContext>);

impl Service {
    /// A service over an engine, for the callers that `access` admits.
    pub fn new(engine: Engine, access: Arc<Access>, options: RespOptions) -> Self {
        let buffers_bytes_max = options.buffers_bytes_max;
        Self(Arc::new(RespContext {
            engine,
            access,
            options,
            buffers: Budget::new(buffers_bytes_max),
            metrics: RespMetrics::default(),
            last_connection: AtomicU64::new(0),
            dumps: Dumps::default(),
            figures: InfoCache::default(),
            slow: LogLimiter::for_slow_requests(),
            run_id: hex::encode(random::<20>()),
        }))
    }

    /// Registers its metrics. Their names start with the registry's prefix.
    pub fn register(&self, registry: &mut Registry) {
        self.0.metrics.register(registry);
        let taken = (
            "resp_buffer_bytes",
            "Bytes that long RESP requests and answers take",
        );
        let refused = (
            "resp_buffers_refused",
            "RESP connections closed because resp.buffers was reached",
        );
        self.0.buffers.register(registry, taken, refused);
    }
}

/// The state shared by all connections.
pub struct RespContext {
    /// Decides everything.
    pub engine: Engine,
    /// Keys and permissions.
    pub access: Arc<Access>,
    /// Options from the configuration.
    pub options: RespOptions,
    /// A random ID of this process for INFO: 40 hexadecimal digits.
    pub run_id: String,
    /// The memory of long requests and replies.
    pub buffers: Budget,
    /// Metrics.
    pub metrics: RespMetrics,
    /// The number of the last connection.
    pub last_connection: AtomicU64,
    /// Dumps that clients are going through.
    pub dumps: Dumps,
    /// The metrics that INFO reports.
    pub figures: InfoCache,
    /// Limits the log lines about slow commands.
    pub slow: LogLimiter,
}

/// The outcome of a submitted command, or why there is none.
pub type Submitted<'a> = BoxFuture<'a, Result<Outcome, Failure>>;

impl RespContext {
    /// Submits a command for the holder of an API key. Its outcome may be awaited later; commands are applied in the order of their
    /// submissions.
    pub fn submit(&self, by: Option<KeyName>, command: Command) -> Submitted<'_> {
        let applied = timeout(
            self.options.request_timeout,
            self.engine.submit(by, command, None),
        );
        async { Ok(applied.await.map_err(|_| Failure::TOO_LATE)??.outcome) }.boxed()
    }
}

/// The metrics of the last second.
#[derive(Default)]
pub struct InfoCache(Mutex<Option<(Instant, Arc<EngineInfo>)>>);

impl InfoCache {
    /// Returns metrics that are at most a second old.
    pub fn read(&self, now: Instant, load: impl FnOnce() -> EngineInfo) -> Arc<EngineInfo> {
        let mut last = self.0.lock();
        match &*last {
            Some((at, figures)) if now.saturating_duration_since(*at) < INFO_AGE_MAX => {
                figures.clone()
            }
            _ => {
                let figures = Arc::new(load());
                *last = Some((now, figures.clone()));
                figures
            }
        }
    }
}

/// Options of [`super::Service`].
#[derive(Clone, Debug)]
pub struct RespOptions {
    /// Items that a filter holds before it grows, if it is created by the first item that is added to it.
    pub default_capacity: u64,
    /// Maximum bytes of incomplete requests and unsent replies, of all connections together.
    pub buffers_bytes_max: u64,
    /// Rules that map keys to filters.
    pub keys: Vec<KeyRule>,
    /// Maximum time for the engine to respond.
    pub request_timeout: Duration,
    /// Duration after which a batch of commands is logged as slow; `None` disables it.
    pub slow_request: Option<Duration>,
    /// The listener's port, which INFO reports.
    pub port: u16,
}

impl Default for RespOptions {
    fn default() -> Self {
        Self {
            default_capacity: 1 << 10,
            buffers_bytes_max: 64 << 20,
            keys: Vec::new(),
            request_timeout: Duration::from_secs(30),
            slow_request: None,
            port: 0,
        }
    }
}

/// Smallest upper bound of the histogram's buckets, in seconds.
const FIRST_BOUND: f64 = 10e-6;

/// The outcome of a command without an error.
const OK: &str = "ok";

/// A command's name, and `ok` or the code of its error.
type CommandLabels = [(&'static str, &'static str); 2];

/// All metrics.
#[derive(Debug)]
pub struct RespMetrics {
    commands: Family<CommandLabels, WorkerCounter>,
    /// Commands, whatever their names and outcomes.
    pub commands_total: WorkerCounter,
    /// Seconds from the arrival of a batch of commands until all are answered.
    pub batch_seconds: WorkerHistogram,
    /// Connections that are open.
    pub connections: Gauge,
    /// Connections that were opened.
    pub connections_opened: Counter,
}

impl Default for RespMetrics {
    fn default() -> Self {
        Self {
            commands: Family::default(),
            commands_total: WorkerCounter::default(),
            batch_seconds: WorkerHistogram::new(FIRST_BOUND),
            connections: Gauge::default(),
            connections_opened: Counter::default(),
        }
    }
}

impl RespMetrics {
    /// Registers the metrics. Their names start with the registry's prefix. The counters of all commands and outcomes start at 0.
    pub fn register(&self, to: &mut Registry) {
        let commands = ROWS.iter().map(|row| row.spelling).chain([UNKNOWN]);
        for command in commands {
            for outcome in [OK]
                .into_iter()
                .chain(ErrorCode::ALL.iter().map(|code| code.as_str()))
            {
                drop(
                    self.commands
                        .get_or_create_owned(&[("command", command), ("outcome", outcome)]),
                );
            }
        }
        let help = "RESP commands answered, by outcome: ok, or the error's code";
        to.register("resp_commands", help, self.commands.clone());
        let help = "Time from the arrival of a batch of RESP commands until all are answered";
        to.register(
            "resp_batch_duration_seconds",
            help,
            self.batch_seconds.clone(),
        );
        to.register(
            "resp_connections",
            "RESP connections that are open",
            self.connections.clone(),
        );
        let opened = self.connections_opened.clone();
        to.register(
            "resp_connections_opened",
            "RESP connections that were opened",
            opened,
        );
    }
}

/// Counters that an idle connection keeps.
const KEPT_COUNTERS: usize = 4;

/// The commands that a connection has counted since the last flush, and their counters: finding one takes longer than counting.
#[derive(Default)]
pub struct CommandCounts(Vec<(CommandLabels, u64, Option<WorkerCounter>)>);

impl CommandCounts {
    /// Counts a command, and its error if it failed.
    pub fn add(&mut self, command: &'static str, failed: Option<ErrorCode>) {
        let labels = [
            ("command", command),
            ("outcome", failed.map_or(OK, ErrorCode::as_str)),
        ];
        match self.0.iter_mut().find(|(known, ..)| *known == labels) {
            Some((_, count, _)) => *count += 1,
            None => self.0.push((labels, 1, None)),
        }
    }

    /// Returns the names of the commands since the last flush, and their number.
    pub fn summary(&self) -> (String, u64) {
        let counted = self.0.iter().filter(|(_, count, _)| *count > 0);
        let names: BTreeSet<&str> = counted
            .clone()
            .map(|([(_, command), _], ..)| *command)
            .collect();
        let names: Vec<&str> = names.into_iter().collect();
        (names.join(" "), counted.map(|(_, count, _)| count).sum())
    }

    /// Adds all to the metrics.
    pub fn flush(&mut self, metrics: &RespMetrics) {
        for (labels, count, counter) in &mut self.0 {
            let count = std::mem::take(count);
            counter
                .get_or_insert_with(|| metrics.commands.get_or_create_owned(labels))
                .inc_by(count);
            metrics.commands_total.inc_by(count);
        }
        self.0.truncate(KEPT_COUNTERS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode_registry;

    #[test]
    fn counts_of_connections_are_summed() {
        let metrics = RespMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        for _ in 0..3 {
            let mut counts = CommandCounts::default();
            for (command, failed) in [
                ("auth", None),
                ("auth", None),
                ("unknown", Some(ErrorCode::ERR)),
            ] {
                counts.add(command, failed);
            }
            counts.flush(&metrics);
            counts.flush(&metrics);
            for nanos in [10_000, 10_001, 100_000_000_000] {
                metrics.batch_seconds.observe(Duration::from_nanos(nanos));
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
