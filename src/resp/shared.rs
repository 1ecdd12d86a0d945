//! What all connections of this door share.

use super::memory::Memory;
use super::metrics::Metrics;
use super::options::RespOptions;
use crate::access::Access;
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
    pub memory: Memory,
    /// Metrics.
    pub metrics: Metrics,
    /// The number of the last connection.
    pub last_connection: AtomicU64,
}
