//! The configuration: compiled-in defaults, overridden by a file, overridden by the environment. Unknown keys are errors.

mod values;

pub use values::Room;

use crate::access::{AuthOptions, GuessingOptions, Keys, RateLimitOptions};
use crate::clock::ClockLimits;
use crate::domain::Settings;
use crate::domain::settings::{IDEMPOTENCY_ROOM_MAX_BYTES, IDEMPOTENCY_ROOM_MIN_BYTES};
use crate::engine::{EngineOptions, SnapshotOptions};
use crate::filter::layout::CAPACITY_MAX;
use crate::http::options::{HostName, HostOptions, HttpOptions, LimitOptions, MetricsOptions, Timeouts};
use crate::journal::{Durability, LocalOptions};
use crate::resp::RespOptions;
use crate::store::StoreOptions;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use toml::{Table, Value};
use values::{address, duration, memory, room, size};

/// The documented defaults.
pub const DEFAULTS: &str = include_str!("../config.toml");

const ENVIRONMENT_PREFIX: &str = "CUCKOOD__";

/// Why the configuration can't be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file is not valid TOML.
    #[error("{path}: {source}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: toml::de::Error,
    },
    /// The name of an environment variable does not have a section and a key.
    #[error("{0}: the name must be CUCKOOD__SECTION__KEY")]
    Variable(String),
    /// A key is unknown or has the wrong type.
    #[error("invalid configuration ({origins}): {fault}")]
    Invalid {
        /// The sources that it was read from.
        origins: String,
        /// What is wrong.
        fault: String,
    },
}

/// All settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Listening and connections.
    pub server: Server,
    /// The door for Redis clients.
    pub resp: Resp,
    /// The data directory.
    pub storage: Storage,
    /// When snapshots are taken.
    pub snapshots: Snapshots,
    /// Limits of trust in the machine's clock.
    pub clock: ClockSection,
    /// Limits on memory, bodies, filters and queues.
    pub limits: Limits,
    /// Who may call.
    pub auth: AuthOptions,
    /// The limit on guessing codes.
    pub guessing: GuessingOptions,
    /// The limit on requests per key.
    pub rate_limit: RateLimitOptions,
    /// Stored answers for repeated requests.
    pub idempotency: Idempotency,
    /// Interrupted imports.
    pub imports: Imports,
    /// Redemptions on record.
    pub redemptions: Redemptions,
    /// Events.
    pub events: Events,
    /// Metrics at `/metrics`.
    pub metrics: MetricsOptions,
    /// Log messages.
    pub log: Log,
}

/// The section `server`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// The address to listen on.
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
    #[serde(deserialize_with = "address")]
    pub listen: Option<SocketAddr>,
    /// Items that a filter holds before it grows, if it is created by the first item that is added to it.
    pub default_capacity: u64,
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

impl Config {
    /// Loads the configuration: the file, if one is named, overrides the defaults, and the environment overrides both.
    ///
    /// # Errors
    /// [`ConfigError`], which names the file, the variable or the key.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Config, ConfigError> {
        let mut origins = vec!["defaults".to_string()];
        let mut merged: Table = toml::from_str(DEFAULTS).map_err(|fault| invalid(&origins, &fault))?;
        if let Some(path) = file {
            let text = std::fs::read_to_string(path)
                .map_err(|source| ConfigError::Read { path: path.into(), source })?;
            let table =
                toml::from_str(&text).map_err(|source| ConfigError::Syntax { path: path.into(), source })?;
            merge(&mut merged, table);
            origins.push(path.display().to_string());
        }
        for (name, value) in environment {
            let Some(keys) = name.strip_prefix(ENVIRONMENT_PREFIX) else { continue };
            let keys = keys.to_ascii_lowercase();
            let Some((section, key)) = keys.split_once("__").filter(|(s, k)| !s.is_empty() && !k.is_empty())
            else {
                return Err(ConfigError::Variable(name));
            };
            let table = Table::from_iter([(section.to_string(), {
                Value::Table(Table::from_iter([(key.to_string(), environment_value(&value))]))
            })]);
            merge(&mut merged, table);
            origins.push(name);
        }
        let config: Config = serde_path_to_error::deserialize(with_times_as_texts(Value::Table(merged)))
            .map_err(|fault| ConfigError::Invalid {
                origins: origins.join(", "),
                fault: format!("{}: {}", fault.path(), fault.inner().message()),
            })?;
        let server = &config.server;
        if server.tls_cert.as_os_str().is_empty() != server.tls_key.as_os_str().is_empty() {
            return Err(invalid(&origins, &"server.tls_cert and server.tls_key go together"));
        }
        if !(1..=CAPACITY_MAX).contains(&config.resp.default_capacity) {
            let fault = format!("resp.default_capacity must be between 1 and {CAPACITY_MAX}");
            return Err(invalid(&origins, &fault));
        }
        if config.snapshots.log_min > config.snapshots.log_max {
            return Err(invalid(&origins, &"snapshots.log_min is more than snapshots.log_max"));
        }
        Keys::new(&config.auth).map_err(|fault| invalid(&origins, &fault))?;
        Ok(config)
    }

    /// Whether TLS is configured.
    pub fn tls(&self) -> bool {
        !self.server.tls_cert.as_os_str().is_empty()
    }

    /// The options of the engine.
    pub fn engine_options(&self) -> EngineOptions {
        let journal =
            LocalOptions { durability: self.storage.durability, segment_bytes: self.storage.wal_segment };
        let defaults = EngineOptions::new(&self.storage.path).on_local_journal(journal);
        EngineOptions {
            store: StoreOptions {
                free_space_min_bytes: self.storage.free_space_min,
                ballast_bytes: self.storage.ballast,
                open_timeout: self.storage.open_timeout,
                cache_bytes: self.storage.cache,
                ..defaults.store
            },
            settings: Settings {
                redemptions_retention_seconds: self.redemptions.retention.as_secs(),
                idempotency_retention_seconds: self.idempotency.retention.as_secs(),
                idempotency_retention_min_seconds: self.idempotency.retention_min.as_secs(),
                idempotency_room_bytes: self
                    .idempotency
                    .room
                    .bytes(self.limits.memory)
                    .clamp(IDEMPOTENCY_ROOM_MIN_BYTES, IDEMPOTENCY_ROOM_MAX_BYTES),
                // Only 0 stands for no events.
                events_retention_seconds: self.events.retention.as_millis().div_ceil(1_000) as u64,
                imports_retention_seconds: self.imports.retention.as_secs(),
                filters_max: self.limits.filters,
                line_ups_max: self.limits.line_ups,
            },
            snapshots: SnapshotOptions {
                log_bytes_min: self.snapshots.log_min,
                log_bytes_max: self.snapshots.log_max,
                ..SnapshotOptions::default()
            },
            memory_max_bytes: self.limits.memory,
            events_room_bytes: self.events.room,
            queue_commands_max: self.limits.queue_commands.max(1),
            queue_bytes_max: self.limits.queue_bytes.max(1 << 20),
            ..defaults
        }
    }

    /// The options of the door for Redis clients.
    pub fn resp_options(&self) -> RespOptions {
        RespOptions {
            default_capacity: self.resp.default_capacity,
            buffers_bytes_max: self.resp.buffers,
            request_timeout: self.server.request_timeout,
        }
    }

    /// The options of the HTTP layer.
    pub fn http_options(&self) -> HttpOptions {
        HttpOptions {
            auth: self.auth.clone(),
            limits: LimitOptions {
                body_bytes_max: usize::try_from(self.limits.body).unwrap_or(usize::MAX),
                bodies_bytes_max: self.limits.bodies,
                ..LimitOptions::default()
            },
            guessing: self.guessing.clone(),
            rate_limit: self.rate_limit.clone(),
            metrics: self.metrics.clone(),
            timeouts: Timeouts { request: self.server.request_timeout, body: self.server.body_timeout },
            hosts: HostOptions {
                names: self.server.hosts.clone(),
                is_loopback: self.server.listen.ip().to_canonical().is_loopback(),
            },
        }
    }
}

fn invalid(origins: &[String], fault: &dyn std::fmt::Display) -> ConfigError {
    ConfigError::Invalid { origins: origins.join(", "), fault: fault.to_string() }
}

/// Merges `over` into `under`, table by table.
fn merge(under: &mut Table, over: Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Table(under)), Value::Table(over)) => merge(under, over),
            (_, value) => drop(under.insert(key, value)),
        }
    }
}

/// The same value, with TOML times turned into texts.
fn with_times_as_texts(value: Value) -> Value {
    match value {
        Value::Datetime(time) => Value::String(time.to_string()),
        Value::Array(values) => Value::Array(values.into_iter().map(with_times_as_texts).collect()),
        Value::Table(table) => {
            table.into_iter().map(|(key, value)| (key, with_times_as_texts(value))).collect::<Table>().into()
        }
        value => value,
    }
}

/// Parses a TOML value; text that isn't one is taken as a string.
fn environment_value(text: &str) -> Value {
    toml::from_str::<Table>(&format!("value = {text}"))
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| Value::String(text.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::load(None, variables.iter().map(|(name, value)| (name.to_string(), value.to_string())))
    }

    #[test]
    fn the_documented_defaults_are_the_defaults() {
        let config = load(&[]).unwrap();
        assert_eq!(config.server.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.storage.path, Path::new("data"));
        assert_eq!(config.storage.durability, Durability::Fsync);
        let engine = config.engine_options();
        let room =
            (engine.memory_max_bytes / 10).clamp(IDEMPOTENCY_ROOM_MIN_BYTES, IDEMPOTENCY_ROOM_MAX_BYTES);
        assert!(engine.settings.idempotency_room_bytes.abs_diff(room) <= 10, "a tenth");
        let room = Settings::default().idempotency_room_bytes;
        assert_eq!(Settings { idempotency_room_bytes: room, ..engine.settings }, Settings::default());
        let (limits, defaults) = (config.http_options().limits, LimitOptions::default());
        assert_eq!(limits.body_bytes_max, defaults.body_bytes_max);
        assert_eq!(limits.bodies_bytes_max, defaults.bodies_bytes_max);
        assert_eq!(config.clock.limits(), ClockLimits::default());
        assert_eq!(config.resp.listen, None);
        let (resp, defaults) = (config.resp_options(), RespOptions::default());
        assert_eq!(resp.default_capacity, defaults.default_capacity);
        assert_eq!(resp.buffers_bytes_max, defaults.buffers_bytes_max);
        assert_eq!(config.resp.idle_timeout(), Duration::MAX);
    }

    #[test]
    fn the_environment_wins_over_the_file_and_the_file_over_defaults() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "[storage]\npath = \"/from/file\"\nballast = 7\n").unwrap();
        let keys =
            format!("[{{name=\"shop\", sha256=\"{}\", scopes=[\"read\",\"redeem\"]}}]", "0f".repeat(32));
        let environment = [
            ("CUCKOOD__STORAGE__PATH", "/from/environment"),
            ("CUCKOOD__STORAGE__DURABILITY", "flush"),
            ("CUCKOOD__REDEMPTIONS__RETENTION", "\"2d\""),
            ("CUCKOOD__LIMITS__MEMORY", "1GiB"),
            ("CUCKOOD__AUTH__KEYS", &keys),
            ("HOME", "/root"),
        ];
        let environment = environment.map(|(name, value)| (name.to_string(), value.to_string()));
        let config = Config::load(Some(file.path()), environment).unwrap();
        assert_eq!(config.storage.path, Path::new("/from/environment"));
        assert_eq!(config.storage.ballast, 7);
        assert_eq!(config.storage.durability, Durability::Flush);
        assert_eq!(config.redemptions.retention, Duration::from_secs(2 * 86_400));
        assert_eq!(config.limits.memory, 1 << 30);
        assert_eq!(config.auth.keys[0].name, "shop");
    }

    #[test]
    fn faults_name_the_key() {
        let two_of_one_name = r#"[
            {name = "shop", sha256 = "0000000000000000000000000000000000000000000000000000000000000000", scopes = []},
            {name = "shop", sha256 = "1111111111111111111111111111111111111111111111111111111111111111", scopes = []},
        ]"#;
        for (name, value, wanted) in [
            ("CUCKOOD__STORAGE__PAHT", "x", "paht"),
            ("CUCKOOD__STORGE__PATH", "x", "storge"),
            ("CUCKOOD__SERVER__LISTEN", "nowhere", "server.listen"),
            ("CUCKOOD__REDEMPTIONS__RETENTION", "soon", "redemptions.retention"),
            ("CUCKOOD__LIMITS__MEMORY", "200%", "limits.memory"),
            ("CUCKOOD__IDEMPOTENCY__ROOM", "101%", "idempotency.room"),
            ("CUCKOOD__NONSENSE", "1", "CUCKOOD__NONSENSE"),
            ("CUCKOOD__SERVER__TLS_CERT", "cert.pem", "server.tls_key"),
            ("CUCKOOD__SERVER__HOSTS", "[\"a b\"]", "server.hosts"),
            ("CUCKOOD__RESP__LISTEN", "nowhere", "resp.listen"),
            ("CUCKOOD__RESP__DEFAULT_CAPACITY", "0", "resp.default_capacity"),
            ("CUCKOOD__AUTH__KEYS", two_of_one_name, "two keys have the name `shop`"),
        ] {
            let error = load(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(wanted), "{name}: {error}");
        }
    }
}
