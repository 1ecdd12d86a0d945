//! What all connections of this door share.

use super::dumps::Dumps;
use super::metrics::Metrics;
use super::options::RespOptions;
use crate::access::Access;
use crate::budget::Budget;
use crate::engine::Engine;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

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
}
