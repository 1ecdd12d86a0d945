//! The sections of the configuration of any service: one struct for each, with a field for each key.

use super::values::{Room, address, duration, memory, optional_address, room, size};
use crate::clock::ClockLimits;
use crate::http::options::HostName;
use crate::journal::Durability;
use crate::resp::KeyRule;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The section `server`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// The address to listen on.
    #[serde(deserialize_with = "address")]
    pub listen: SocketAddr,
    /// File of the certificate chain; empty for no TLS.
    pub tls_cert: PathBuf,
    /// File of the private key; empty for no TLS.
    pub tls_key: PathBuf,
    /// Host names of the service, besides loopback names.
    pub hosts: Vec<HostName>,
    /// The most connections served at once.
    pub connections_max: usize,
    /// The most bytes in a request's line and headers.
    #[serde(deserialize_with = "size")]
    pub header_bytes_max: u64,
    /// How long the headers may take to arrive.
    #[serde(deserialize_with = "duration")]
    pub header_timeout: Duration,
    /// How long the body may take to arrive.
    #[serde(deserialize_with = "duration")]
    pub body_timeout: Duration,
    /// How long the handler may take to answer.
    #[serde(deserialize_with = "duration")]
    pub request_timeout: Duration,
    /// How long a client may accept hardly anything of its answer.
    #[serde(deserialize_with = "duration")]
    pub write_timeout: Duration,
    /// How long a connection may wait for its next request.
    #[serde(deserialize_with = "duration")]
    pub idle_timeout: Duration,
    /// Time from SIGTERM until the listener closes.
    #[serde(deserialize_with = "duration")]
    pub drain_delay: Duration,
    /// How long running requests may take to finish at the end.
    #[serde(deserialize_with = "duration")]
    pub drain_timeout: Duration,
}

/// The section `resp`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resp {
    /// The address to listen on; `None` for no such door.
    #[serde(deserialize_with = "optional_address")]
    pub listen: Option<SocketAddr>,
    /// Items that a filter holds before it grows, if it is created by the first item that is added to it.
    pub default_capacity: u64,
    /// Rules that map other keys to filters.
    pub keys: Vec<KeyRule>,
    /// The most connections served at once.
    pub connections_max: usize,
    /// The most bytes of requests being received and answers being sent.
    #[serde(deserialize_with = "memory")]
    pub buffers: u64,
    /// How long a connection may wait for its next command; 0 for any time.
    #[serde(deserialize_with = "duration")]
    pub idle_timeout: Duration,
}

impl Resp {
    /// How long a connection may wait for its next command.
    pub fn idle_timeout(&self) -> Duration {
        Some(self.idle_timeout).filter(|timeout| !timeout.is_zero()).unwrap_or(Duration::MAX)
    }
}

/// The section `storage`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// The data directory.
    pub path: PathBuf,
    /// What an acknowledged write survives.
    pub durability: Durability,
    /// Bytes of disk space that must stay free.
    #[serde(deserialize_with = "size")]
    pub free_space_min: u64,
    /// Bytes of the ballast file.
    #[serde(deserialize_with = "size")]
    pub ballast: u64,
    /// How long sled may take to open.
    #[serde(deserialize_with = "duration")]
    pub open_timeout: Duration,
    /// Bytes of sled's cache.
    #[serde(deserialize_with = "size")]
    pub cache: u64,
    /// Bytes of a segment of the log.
    #[serde(deserialize_with = "size")]
    pub wal_segment: u64,
}

/// The section `snapshots`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshots {
    /// The fewest bytes of log between two snapshots.
    #[serde(deserialize_with = "size")]
    pub log_min: u64,
    /// The most bytes of log between two snapshots.
    #[serde(deserialize_with = "size")]
    pub log_max: u64,
}

/// The section `clock`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockSection {
    /// How far the clock may be stepped.
    #[serde(deserialize_with = "duration")]
    pub max_jump: Duration,
    /// How long the service may have been stopped across a boot.
    #[serde(deserialize_with = "duration")]
    pub max_stop: Duration,
}

impl ClockSection {
    /// The limits for the clock.
    pub fn limits(&self) -> ClockLimits {
        ClockLimits { jump_max: self.max_jump, stop_max: self.max_stop }
    }
}

/// The section `limits`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The most bytes of tables and records.
    #[serde(deserialize_with = "memory")]
    pub memory: u64,
    /// The most bytes of a body.
    #[serde(deserialize_with = "size")]
    pub body: u64,
    /// The most bytes of all bodies that are being read.
    #[serde(deserialize_with = "memory")]
    pub bodies: u64,
    /// The most campaigns and coupons together.
    pub filters: u64,
    /// The most line-ups.
    pub line_ups: u64,
    /// The most commands that may be queued.
    pub queue_commands: usize,
    /// The most bytes of commands that may be queued.
    #[serde(deserialize_with = "size")]
    pub queue_bytes: u64,
}

/// The section `idempotency`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Idempotency {
    /// How long an answer is kept while there is room.
    #[serde(deserialize_with = "duration")]
    pub retention: Duration,
    /// How long an answer is kept even if room runs out.
    #[serde(deserialize_with = "duration")]
    pub retention_min: Duration,
    /// The most bytes that answers may take.
    #[serde(deserialize_with = "room")]
    pub room: Room,
}

/// The section `imports`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Imports {
    /// How long an interrupted import can be continued.
    #[serde(deserialize_with = "duration")]
    pub retention: Duration,
}

/// The section `redemptions`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redemptions {
    /// How long a redemption is kept after its last change.
    #[serde(deserialize_with = "duration")]
    pub retention: Duration,
}

/// The section `events`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Events {
    /// How long an event is kept; 0 for no events.
    #[serde(deserialize_with = "duration")]
    pub retention: Duration,
    /// The most bytes that stored events may take.
    #[serde(deserialize_with = "size")]
    pub room: u64,
}

/// The section `log`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// Log levels by module, in the syntax of [`tracing_subscriber::filter::Targets`].
    pub level: String,
    /// The format of log lines.
    pub format: LogFormat,
}

/// The format of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// JSON, for machines.
    Json,
}
