//! The second protocol: Redis' `CF.*` commands on the same filters, so that Redis clients can use them unchanged. docs/REDIS.md says what
//! differs from Redis, and why.
//!
//! `connection.rs` reads what has arrived, `parser.rs` finds the commands in it, `execute.rs` admits each, and `call.rs` is what a
//! handler gets. `batch.rs` joins commands on one filter, and answers in order. `failure.rs` is the one map from refusals to errors.
//! Nothing here knows HTTP.

mod batch;
mod call;
mod command;
mod connection;
mod connection_commands;
mod dumps;
mod execute;
mod failure;
mod filters;
#[cfg(any(feature = "fuzzing", test))]
pub mod fuzzing;
mod images;
mod key;
mod keyspace;
mod metrics;
mod parser;
mod replies;
mod session;
mod shared;

pub use key::KeyRule;
pub use shared::RespOptions;

use crate::access::Access;
use crate::budget::Budget;
use crate::engine::Engine;
use crate::socket::Vitals;
use dumps::Dumps;
use metrics::Metrics;
use prometheus_client::registry::Registry;
use shared::{Figures, Shared};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// The service for Redis clients; clones are the same one.
#[derive(Clone)]
pub struct Service(Arc<Shared>);

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

    /// Serves a connection until the client closes it, or until all that has arrived is answered and `draining` is true. Records in
    /// `vitals` what it waits for; the caller may drop this future when that takes too long.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn serve<S>(
        &self,
        stream: S,
        peer: Option<SocketAddr>,
        vitals: &Vitals,
        draining: watch::Receiver<bool>,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        connection::serve(&self.0, stream, peer, vitals, draining).await
    }
}
