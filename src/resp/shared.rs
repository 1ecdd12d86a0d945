//! The service, which all connections share, and its options from the configuration.

use super::dumps::Dumps;
use super::key::KeyRule;
use super::metrics::Metrics;
use crate::access::Access;
use crate::budget::Budget;
use crate::engine::{Engine, Info};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Time for which figures are reported again: reading them visits every filter and the data directory.
const FIGURES_AGE_MAX: Duration = Duration::from_secs(1);

/// The service for Redis clients; clones are the same one.
#[derive(Clone)]
pub struct Service(pub(super) Arc<Shared>);

impl Service {
    /// A service over an engine, for the callers that `access` admits.
    pub fn new(engine: Engine, access: Arc<Access>, options: RespOptions) -> Self {
        let (metrics, last_connection) = (Metrics::default(), AtomicU64::new(0));
        let (taken, refused) = (metrics.buffer_bytes.clone(), metrics.buffers_refused.clone());
        let buffers = Budget::new(options.buffers_bytes_max, taken, refused);
        let (dumps, figures) = (Dumps::default(), Figures::default());
        Self(Arc::new(Shared { engine, access, options, buffers, metrics, last_connection, dumps, figures }))
    }

    /// Registers its metrics; the registry's prefix comes before their names.
    pub fn register(&self, registry: &mut Registry) {
        self.0.metrics.register(registry);
    }
}

/// What all connections share.
pub struct Shared {
    /// Decides everything.
    pub engine: Engine,
    /// Who may do what.
    pub access: Arc<Access>,
    /// Options from the configuration.
    pub options: RespOptions,
    /// The memory of long requests and answers.
    pub buffers: Budget,
    /// Metrics.
    pub metrics: Metrics,
    /// The number of the last connection.
    pub last_connection: AtomicU64,
    /// Dumps that clients are going through.
    pub dumps: Dumps,
    /// The figures that INFO reports.
    pub figures: Figures,
}

/// The figures of the last second.
#[derive(Default)]
pub struct Figures(Mutex<Option<(Instant, Arc<Info>)>>);

impl Figures {
    /// Returns figures that are at most a second old.
    pub fn read(&self, now: Instant, load: impl FnOnce() -> Info) -> Arc<Info> {
        let mut last = self.0.lock();
        match &*last {
            Some((at, figures)) if now.saturating_duration_since(*at) < FIGURES_AGE_MAX => figures.clone(),
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
    /// The most bytes that requests being received and answers being sent may take, of all connections together.
    pub buffers_bytes_max: u64,
    /// Rules that map keys to filters.
    pub keys: Vec<KeyRule>,
    /// How long the engine may take to answer.
    pub request_timeout: Duration,
}

impl Default for RespOptions {
    fn default() -> Self {
        Self {
            default_capacity: 1 << 10,
            buffers_bytes_max: 64 << 20,
            keys: Vec::new(),
            request_timeout: Duration::from_secs(30),
        }
    }
}
