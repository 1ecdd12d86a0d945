//! The sections of the configuration of any service: one struct for each, with a field for each key.

use super::values::{Bytes, DurationSetting, Room, SizeOrShare, address, optional_address};
use crate::clock::ClockLimits;
use crate::http::options::HostName;
use crate::resp::KeyRule;
use cuckood_log::journal::Durability;
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
    /// The address of a second listener for probes and scrapers; `None` disables it.
    #[serde(deserialize_with = "optional_address")]
    pub probe_listen: Option<SocketAddr>,
    /// File of the certificate chain; empty for no TLS.
    pub tls_cert: PathBuf,
    /// File of the private key; empty for no TLS.
    pub tls_key: PathBuf,
    /// Host names of the service, besides loopback names.
    pub hosts: Vec<HostName>,
    /// Maximum number of open connections.
    pub connections_max: usize,
    /// The most bytes in a request's line and headers.
    pub header_bytes_max: Bytes,
    /// How long the headers may take to arrive.
    pub header_timeout: DurationSetting,
    /// How long the body may take to arrive.
    pub body_timeout: DurationSetting,
    /// How long the handler may take to answer.
    pub request_timeout: DurationSetting,
    /// How long a client may accept hardly anything of its response.
    pub write_timeout: DurationSetting,
    /// How long a connection may wait for its next request.
    pub idle_timeout: DurationSetting,
    /// Time from SIGTERM until the listener closes.
    pub drain_delay: DurationSetting,
    /// How long running requests may take to finish at the end.
    pub drain_timeout: DurationSetting,
}

/// The section `resp`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resp {
    /// The address to listen on; `None` disables the listener.
    #[serde(deserialize_with = "optional_address")]
    pub listen: Option<SocketAddr>,
    /// Items that a filter holds before it grows, if it is created by the first item that is added to it.
    pub default_capacity: u64,
    /// Rules that map other keys to filters.
    pub keys: Vec<KeyRule>,
    /// Maximum number of open connections.
    pub connections_max: usize,
    /// Maximum bytes of incomplete requests and unsent responses.
    pub buffers: SizeOrShare,
    /// How long a connection may wait for its next command; 0 for any time.
    pub idle_timeout: DurationSetting,
}

impl Resp {
    /// How long a connection may wait for its next command.
    pub fn idle_timeout(&self) -> Duration {
        Some(self.idle_timeout.0)
            .filter(|timeout| !timeout.is_zero())
            .unwrap_or(Duration::MAX)
    }
}

/// The section `storage`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// The data directory.
    pub path: PathBuf,
    /// The failure that acknowledged writes survive: a crash of the process, or a power loss.
    pub durability: Durability,
    /// Bytes of disk space that must stay free.
    pub free_space_min: Bytes,
    /// Bytes of the ballast file.
    pub ballast: Bytes,
    /// How long sled may take to open.
    pub open_timeout: DurationSetting,
    /// Bytes of sled's cache.
    pub cache: Bytes,
    /// Bytes of a segment of the log.
    pub wal_segment: Bytes,
}

/// The section `snapshots`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshots {
    /// The fewest bytes of log between two snapshots.
    pub log_min: Bytes,
    /// The most bytes of log between two snapshots.
    pub log_max: Bytes,
}

/// The section `clock`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockSection {
    /// How far the clock may be stepped.
    pub max_jump: DurationSetting,
    /// How long the service may have been stopped across a boot.
    pub max_stop: DurationSetting,
}

impl ClockSection {
    /// The limits for the clock.
    pub fn limits(&self) -> ClockLimits {
        ClockLimits {
            jump_max: self.max_jump.0,
            stop_max: self.max_stop.0,
        }
    }
}

/// The section `limits`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The most bytes of tables and records.
    pub memory: SizeOrShare,
    /// The most bytes of a body.
    pub body: Bytes,
    /// The most bytes of all bodies that are being read.
    pub bodies: SizeOrShare,
    /// Maximum memory for responses that are being sent, in bytes.
    pub responses: SizeOrShare,
    /// The most campaigns and coupons together.
    pub filters: u64,
    /// The most line-ups.
    pub line_ups: u64,
    /// The most commands that may be queued.
    pub queue_commands: usize,
    /// The most bytes of commands that may be queued.
    pub queue_bytes: Bytes,
}

/// The section `idempotency`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Idempotency {
    /// How long an outcome is stored if there is space.
    pub retention: DurationSetting,
    /// How long an outcome is stored even if space runs out.
    pub retention_min: DurationSetting,
    /// Maximum bytes of stored outcomes.
    pub room: Room,
}

/// The sections `imports` and `redemptions`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// How long an interrupted import can be continued, or a redemption is stored after its last change.
    pub retention: DurationSetting,
}

/// The section `events`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventSettings {
    /// How long an event is stored; 0 for no events.
    pub retention: DurationSetting,
    /// The most bytes that stored events may take.
    pub room: Bytes,
}

/// The section `log`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSettings {
    /// Log levels by module, in the syntax of [`tracing_subscriber::filter::Targets`].
    pub level: String,
    /// The format of log lines.
    pub format: LogFormat,
}

/// The section `telemetry`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Telemetry {
    /// Requests that take longer are logged; 0 for none.
    pub slow_request: DurationSetting,
}

impl Telemetry {
    /// Returns the duration after which a request is logged as slow; `None` if none are.
    pub fn slow_request(&self) -> Option<Duration> {
        Some(self.slow_request.0).filter(|duration| !duration.is_zero())
    }
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
