//! What all connections share.

use super::dumps::Dumps;
use super::metrics::Metrics;
use super::options::RespOptions;
use crate::access::Access;
use crate::budget::Budget;
use crate::engine::{Engine, Info};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Time for which figures are reported again: reading them visits every filter and the data directory.
const FIGURES_AGE_MAX: Duration = Duration::from_secs(1);

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
