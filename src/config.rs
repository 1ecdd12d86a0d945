//! The configuration: compiled-in defaults, overridden by a file, overridden by the environment. Unknown keys are errors.

mod cluster;
mod options;
mod ranges;
mod sections;
mod values;

pub use cluster::{ClusterSettings, JournalKind, JournalSettings, Nats, SecretText};
pub use ranges::HEADS_BYTES_MAX;
pub use sections::{
    ClockSection, EventSettings, Idempotency, Limits, LogFormat, LogSettings, Resp, Retention,
    Server, Snapshots, Storage, Telemetry,
};
pub use values::{Bytes, DurationSetting, Room, SizeOrShare, machine_memory};

use crate::access::{AuthOptions, GuessingOptions, Keys, RateLimitOptions};
use crate::http::options::MetricsOptions;
use crate::resp::KeyRule;
use anyhow::{anyhow, bail, ensure};
use serde::Deserialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use thiserror::Error;
use toml::{Table, Value};

/// The documented defaults.
pub const DEFAULTS: &str = include_str!("../config.toml");

const ENVIRONMENT_PREFIX: &str = "CUCKOOD__";

/// Keys that are texts whatever they look like.
const SECRETS: [(&str, &str); 2] = [("nats", "password"), ("nats", "token")];

/// Why the configuration can't be used: names the file, the variable or the key. Never repeats a line or a secret.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// All settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Listening and connections.
    pub server: Server,
    /// The listener for Redis clients.
    pub resp: Resp,
    /// The data directory.
    pub storage: Storage,
    /// When snapshots are taken.
    pub snapshots: Snapshots,
    /// Which log the service runs on.
    pub journal: JournalSettings,
    /// How the log of several nodes is reached.
    pub nats: Nats,
    /// A node among several.
    pub cluster: ClusterSettings,
    /// Limits of trust in the machine's clock.
    pub clock: ClockSection,
    /// Limits on memory, bodies, filters and queues.
    pub limits: Limits,
    /// API keys.
    pub auth: AuthOptions,
    /// The limit on guessing codes.
    pub guessing: GuessingOptions,
    /// The limit on requests per key.
    pub rate_limit: RateLimitOptions,
    /// Stored outcomes of repeated requests.
    pub idempotency: Idempotency,
    /// Interrupted imports.
    pub imports: Retention,
    /// Redemptions on record.
    pub redemptions: Retention,
    /// Events.
    pub events: EventSettings,
    /// Metrics at `/metrics`.
    pub metrics: MetricsOptions,
    /// Log messages.
    pub log: LogSettings,
    /// Logging of single requests.
    pub telemetry: Telemetry,
    /// Environment variables that look like settings and are none.
    #[serde(skip)]
    ignored: Vec<String>,
    /// Environment variables, and the settings of the file that have no effect because of them.
    #[serde(skip)]
    overridden: Vec<(String, String)>,
}

impl Config {
    /// Loads the configuration: the file, if one is named, overrides the defaults, and the environment overrides both.
    ///
    /// # Errors
    /// [`ConfigError`], which names the file, the variable or the key.
    pub fn load<N: Into<OsString>, V: Into<OsString>>(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Config, ConfigError> {
        let mut origins = vec!["defaults".to_string()];
        let mut merged: Table =
            toml::from_str(DEFAULTS).map_err(|fault| invalid(&origins, &fault))?;
        let defaults = merged.clone();
        if let Some(path) = file {
            let text = std::fs::read_to_string(path).map_err(|source| {
                let path = path.display();
                ConfigError(format!(
                    "can't read the configuration {path}: {source}; name a file with --config"
                ))
            })?;
            merge(
                &mut merged,
                toml::from_str(&text).map_err(|error| syntax(path, &text, &error))?,
            );
            origins.push(path.display().to_string());
        }
        let sections: Vec<String> = merged.keys().map(|section| format!("{section}_")).collect();
        let of_file = merged.clone();
        let mut ignored = Vec::new();
        let mut overridden = Vec::new();
        for (name, value) in environment {
            let name = name.into();
            let value = value.into();
            if !name
                .as_encoded_bytes()
                .starts_with(ENVIRONMENT_PREFIX.as_bytes())
            {
                let name = name.to_string_lossy();
                let is_setting =
                    |rest: &str| sections.iter().any(|section| rest.starts_with(section));
                if name
                    .strip_prefix("CUCKOOD_")
                    .is_some_and(|rest| is_setting(&rest.to_ascii_lowercase()))
                {
                    ignored.push(name.into_owned());
                }
                continue;
            }
            let (Some(known), Some(value)) = (name.to_str(), value.to_str()) else {
                let name = name.to_string_lossy();
                let fault = "neither the name nor the value may have bytes that are not UTF-8";
                return Err(ConfigError(format!("{name}: {fault}")));
            };
            let variable = variable(known, value)?;
            let lost = lost_setting(&defaults, &of_file, &variable);
            overridden.extend(lost.map(|setting| (known.to_owned(), setting)));
            merge(&mut merged, variable);
            origins.push(known.to_owned());
        }
        let mut merged = Value::Table(merged);
        stringify_times(&mut merged);
        let config: Config = serde_path_to_error::deserialize(merged).map_err(|fault| {
            invalid(
                &origins,
                &describe_invalid(&fault.path().to_string(), fault.inner().message()),
            )
        })?;
        config.check().map_err(|fault| invalid(&origins, &fault))?;
        let keys = Keys::new(&config.auth, &config.rate_limit, &Keys::default());
        keys.map_err(|fault| invalid(&origins, &fault))?;
        Ok(Config {
            ignored,
            overridden,
            ..config
        })
    }

    /// Checks the ranges, and the rules that concern more than the type of a setting.
    fn check(&self) -> anyhow::Result<()> {
        ranges::check(self)?;
        let Self {
            server,
            resp,
            storage,
            nats,
            cluster,
            snapshots,
            ..
        } = self;
        let is_empty = |path: &PathBuf| path.as_os_str().is_empty();
        let is_pair = |cert, key| is_empty(cert) == is_empty(key);
        ensure!(
            is_pair(&server.tls_cert, &server.tls_key),
            "only one of server.tls_cert and server.tls_key is set; set both, or none"
        );
        if let Some(KeyRule { key, filter }) = resp.keys.iter().find(|rule| !rule.is_valid()) {
            let example = r#"{ key = "ads:*:seen", filter = "campaign:ads.*.seen" }"#;
            bail!(
                "resp.keys: `{key}` can't be mapped to `{filter}`, expected a rule such as {example}"
            );
        }
        ensure!(
            !is_empty(&storage.path),
            "storage.path is empty; name a directory such as \"data\""
        );
        let Self {
            guessing:
                GuessingOptions {
                    trusted_keys,
                    unlimited_keys,
                    ..
                },
            auth,
            ..
        } = self;
        for (setting, names) in [
            ("trusted_keys", trusted_keys),
            ("unlimited_keys", unlimited_keys),
        ] {
            for name in names {
                let is_known = auth.keys.iter().any(|key| key.name == *name);
                ensure!(
                    is_known,
                    "guessing.{setting}: `{name}` is not the name of a key in auth.keys"
                );
            }
        }
        let log_min = snapshots.log_min;
        let log_max = snapshots.log_max;
        ensure!(
            log_min <= log_max,
            "snapshots.log_min is {log_min}, expected at most snapshots.log_max, which is {log_max}"
        );
        if self.journal.kind == JournalKind::Nats {
            ensure!(
                !nats.servers.is_empty(),
                "nats.servers is empty, expected an address such as nats://127.0.0.1:4222"
            );
            nats.options(cluster)
                .fault()
                .map_or(Ok(()), |fault| Err(anyhow!(fault)))?;
            ensure!(
                is_pair(&nats.tls_cert, &nats.tls_key),
                "only one of nats.tls_cert and nats.tls_key is set; set both, or none"
            );
        }
        Ok(())
    }

    /// Returns warnings about settings that are allowed but suspicious.
    pub fn warnings(&self) -> Vec<String> {
        let ignored = self.ignored.iter().map(|name| {
            format!("the variable {name} is ignored: settings are named CUCKOOD__SECTION__KEY, with two underscores")
        });
        let overridden = self.overridden.iter().map(|(name, setting)| {
            format!("the variable {name} overrides {setting} of the configuration file")
        });
        let memory = self.limits.memory.0;
        let machine = machine_memory();
        let beyond = (memory > machine).then(|| {
            format!("limits.memory is {memory} bytes, and the machine or container has {machine}; use a share such as \"60%\"")
        });
        ignored.chain(overridden).chain(beyond).collect()
    }
}

fn invalid(origins: &[String], fault: &dyn std::fmt::Display) -> ConfigError {
    ConfigError(format!(
        "invalid configuration ({}): {fault}",
        origins.join(", ")
    ))
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

/// Returns the setting that a variable, as [`variable`] reads it, takes from the file: one that is neither the default nor the same.
fn lost_setting(defaults: &Table, of_file: &Table, variable: &Table) -> Option<String> {
    let (section, keys) = variable.iter().next()?;
    let (key, value) = keys.as_table()?.iter().next()?;
    let in_file = of_file.get(section)?.get(key)?;
    let default = defaults.get(section)?.get(key);
    (in_file != value && Some(in_file) != default).then(|| format!("{section}.{key}"))
}

/// Turns TOML times into strings.
fn stringify_times(value: &mut Value) {
    match value {
        Value::Datetime(time) => *value = Value::String(time.to_string()),
        Value::Array(values) => values.iter_mut().for_each(stringify_times),
        Value::Table(table) => table
            .iter_mut()
            .for_each(|(_, value)| stringify_times(value)),
        Value::String(_) | Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => {}
    }
}

fn syntax(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let before = error
        .span()
        .and_then(|span| text.get(..span.start))
        .unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    ConfigError(format!(
        "{}, line {line}: {}",
        path.display(),
        error.message()
    ))
}

/// Returns the table that an environment variable sets, in the form of the file.
fn variable(name: &str, value: &str) -> Result<Table, ConfigError> {
    let keys = name
        .strip_prefix(ENVIRONMENT_PREFIX)
        .unwrap_or_default()
        .to_ascii_lowercase();
    let (section, key) = keys.split_once("__").unwrap_or_default();
    if section.is_empty() || key.is_empty() {
        return Err(ConfigError(format!(
            "{name}: the name must be CUCKOOD__SECTION__KEY"
        )));
    }
    let value = environment_value(value, SECRETS.contains(&(section, key)));
    let section_of_one = Table::from_iter([(key.to_owned(), value)]);
    Ok(Table::from_iter([(
        section.to_owned(),
        Value::Table(section_of_one),
    )]))
}

/// Parses a TOML value; text that isn't one is taken as a string. So is a secret that looks like a number: it may be one.
fn environment_value(text: &str, is_secret: bool) -> Value {
    let parsed = toml::from_str::<Table>(&format!("value = {text}"));
    let value = parsed.ok().and_then(|mut table| table.remove("value"));
    let value = value.filter(|value| !is_secret || value.is_str());
    value.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Describes an invalid setting, without its value if that may be a secret. A range is more helpful than the type that the code gives it.
fn describe_invalid(path: &str, message: &str) -> String {
    let of_type = message.rsplit_once(", expected ");
    let ranged = of_type
        .and_then(|(fault, _)| Some(format!("{fault}, expected {}", ranges::allowed(path)?)));
    let message = ranged.as_deref().unwrap_or(message);
    let may_be_secret =
        ["nats", "auth"].contains(&path.split(['.', '[']).next().unwrap_or_default());
    let names_fields_alone = ["missing field", "unknown field"]
        .iter()
        .any(|start| message.starts_with(start));
    if !may_be_secret || names_fields_alone {
        return format!("{path}: {message}");
    }
    match message.rsplit_once(", expected ") {
        Some((_, expected)) => format!("{path}: wrong type or value, expected {expected}"),
        None => format!("{path}: wrong value"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ClockLimits;
    use crate::http::options::LimitOptions;
    use crate::resp::RespOptions;
    use cuckood_log::journal::Durability;
    use cuckood_state::domain::Settings;
    use cuckood_state::domain::command::{IDEMPOTENCY_ROOM_MAX_BYTES, IDEMPOTENCY_ROOM_MIN_BYTES};
    use std::time::Duration;

    fn load(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::load(None, variables.iter().copied())
    }

    #[test]
    fn documented_defaults_match_code() {
        let config = load(&[]).unwrap();
        assert_eq!(config.server.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.storage.path, Path::new("data"));
        assert_eq!(config.storage.durability, Durability::Fsync);
        let engine = config.engine_options();
        let room = (engine.memory_max_bytes / 10)
            .clamp(IDEMPOTENCY_ROOM_MIN_BYTES, IDEMPOTENCY_ROOM_MAX_BYTES);
        assert!(
            engine.settings.idempotency_room_bytes.abs_diff(room) <= 10,
            "a tenth"
        );
        let room = Settings::default().idempotency_room_bytes;
        assert_eq!(
            Settings {
                idempotency_room_bytes: room,
                ..engine.settings
            },
            Settings::default()
        );
        let limits = config.http_options().limits;
        let defaults = LimitOptions::default();
        assert_eq!(limits.body_bytes_max, defaults.body_bytes_max);
        assert_eq!(limits.bodies_bytes_max, defaults.bodies_bytes_max);
        assert_eq!(limits.responses_bytes_max, defaults.responses_bytes_max);
        assert_eq!(config.clock.limits(), ClockLimits::default());
        assert_eq!(config.resp.listen, None);
        let resp = config.resp_options();
        let defaults = RespOptions::default();
        assert_eq!(resp.default_capacity, defaults.default_capacity);
        assert_eq!(resp.buffers_bytes_max, defaults.buffers_bytes_max);
        assert_eq!(config.resp.idle_timeout(), Duration::MAX);
    }

    #[test]
    fn environment_overrides_file_overrides_defaults() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "[storage]\npath = \"/from/file\"\nballast = 7\n").unwrap();
        let keys = format!(
            "[{{name=\"shop\", sha256=\"{}\", scopes=[\"read\",\"redeem\"]}}]",
            "0f".repeat(32)
        );
        let environment = [
            ("CUCKOOD__STORAGE__PATH", "/from/environment"),
            ("CUCKOOD__STORAGE__DURABILITY", "flush"),
            ("CUCKOOD__REDEMPTIONS__RETENTION", "\"2d\""),
            ("CUCKOOD__LIMITS__MEMORY", "1GiB"),
            ("CUCKOOD__AUTH__KEYS", &keys),
            ("HOME", "/root"),
        ];
        let config = Config::load(Some(file.path()), environment).unwrap();
        assert_eq!(config.storage.path, Path::new("/from/environment"));
        assert_eq!(config.storage.ballast.0, 7);
        assert_eq!(config.storage.durability, Durability::Flush);
        assert_eq!(
            config.redemptions.retention.0,
            Duration::from_secs(2 * 86_400)
        );
        assert_eq!(config.limits.memory.0, 1 << 30);
        assert_eq!(config.auth.keys[0].name, "shop");
    }

    #[test]
    fn error_names_setting() {
        let two_of_one_name = r#"[
            {name = "shop", sha256 = "0000000000000000000000000000000000000000000000000000000000000000", scopes = []},
            {name = "shop", sha256 = "1111111111111111111111111111111111111111111111111111111111111111", scopes = []},
        ]"#;
        let of_shop = |more: &str| {
            format!(
                "[{{name = \"shop\", sha256 = \"{}\", scopes = [], {more}}}]",
                "0f".repeat(32)
            )
        };
        for (name, value, wanted) in [
            ("CUCKOOD__STORAGE__PAHT", "x", "paht"),
            ("CUCKOOD__STORGE__PATH", "x", "storge"),
            ("CUCKOOD__SERVER__LISTEN", "nowhere", "server.listen"),
            (
                "CUCKOOD__REDEMPTIONS__RETENTION",
                "soon",
                "redemptions.retention",
            ),
            ("CUCKOOD__LIMITS__MEMORY", "200%", "limits.memory"),
            ("CUCKOOD__IDEMPOTENCY__ROOM", "101%", "idempotency.room"),
            ("CUCKOOD__NONSENSE", "1", "CUCKOOD__NONSENSE"),
            ("CUCKOOD__SERVER__TLS_CERT", "cert.pem", "server.tls_key"),
            ("CUCKOOD__SERVER__HOSTS", "[\"a b\"]", "server.hosts"),
            ("CUCKOOD__RESP__LISTEN", "nowhere", "resp.listen"),
            ("CUCKOOD__JOURNAL__KIND", "paper", "journal.kind"),
            ("CUCKOOD__CLUSTER__LAG_MAX", "soon", "cluster.lag_max"),
            (
                "CUCKOOD__RESP__KEYS",
                r#"[{key="ads:seen",filter="campaign:*"}]"#,
                "can't be mapped to",
            ),
            (
                "CUCKOOD__AUTH__KEYS",
                two_of_one_name,
                "two keys have the name `shop`",
            ),
            (
                "CUCKOOD__SNAPSHOTS__LOG_MAX",
                "1MiB",
                "snapshots.log_min is 64MiB, expected at most",
            ),
            (
                "CUCKOOD__STORAGE__PATH",
                "",
                "storage.path is empty; name a directory such as \"data\"",
            ),
            (
                "CUCKOOD__GUESSING__TRUSTED_KEYS",
                "[\"shop\"]",
                "guessing.trusted_keys: `shop` is not the name of a key",
            ),
            (
                "CUCKOOD__GUESSING__UNLIMITED_KEYS",
                "[\"shop\"]",
                "guessing.unlimited_keys: `shop` is not",
            ),
            (
                "CUCKOOD__SERVER__LISTEN",
                "localhost",
                "not an address such as \"127.0.0.1:8080\"",
            ),
            (
                "CUCKOOD__AUTH__KEYS",
                &of_shop("expires_at = \"soon\""),
                "expected a time such as \"2027-01-31T00:00:00Z\"",
            ),
            (
                "CUCKOOD__AUTH__KEYS",
                &of_shop("prefix = \"Shop/\""),
                "no name starts with the prefix `Shop/` of `shop`",
            ),
        ] {
            let error = load(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(wanted), "{name}: {error}");
        }
    }

    #[test]
    fn host_names_are_resolved() {
        let config = load(&[
            ("CUCKOOD__SERVER__LISTEN", "localhost:1"),
            ("CUCKOOD__RESP__LISTEN", ""),
        ])
        .unwrap();
        assert!(config.server.listen.ip().is_loopback());
        assert_eq!((config.server.listen.port(), config.resp.listen), (1, None));
    }

    #[test]
    fn suspicious_settings_are_reported() {
        assert!(
            load(&[("CUCKOOD_CONFIG", "x"), ("CUCKOOD_KEY", "y")])
                .unwrap()
                .warnings()
                .is_empty()
        );
        let config = load(&[
            ("CUCKOOD_AUTH__KEYS", "hunter2"),
            ("CUCKOOD__LIMITS__MEMORY", "1EiB"),
        ])
        .unwrap();
        let warnings = config.warnings();
        assert!(
            warnings[0].contains("CUCKOOD_AUTH__KEYS") && !warnings[0].contains("hunter2"),
            "{warnings:?}"
        );
        assert!(warnings[1].starts_with("limits.memory is "), "{warnings:?}");
    }

    /// A setting whose file value is the default, or equals the variable, is not reported.
    #[test]
    fn overridden_setting_of_file_is_reported() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "[storage]\npath = \"ours\"\n[server]\nlisten = \"127.0.0.1:8080\"\n[auth]\nkeys = []\n";
        std::fs::write(&file, text).unwrap();
        let warnings = |path: &str| {
            let variables = [
                ("CUCKOOD__STORAGE__PATH", path),
                ("CUCKOOD__SERVER__LISTEN", "127.0.0.1:1"),
                ("CUCKOOD__LOG__LEVEL", "warn"),
            ];
            Config::load(Some(file.path()), variables)
                .unwrap()
                .warnings()
        };
        assert_eq!(warnings("ours"), Vec::<String>::new());
        let expected =
            "the variable CUCKOOD__STORAGE__PATH overrides storage.path of the configuration file";
        assert_eq!(warnings("theirs"), [expected]);
    }

    #[test]
    fn error_never_contains_secret() {
        for (name, value, wanted) in [
            (
                "CUCKOOD__NATS__REPLICAS",
                "hunter2",
                "nats.replicas: wrong type or value",
            ),
            (
                "CUCKOOD__NATS__PASSWORD__OLD",
                "hunter2",
                "unknown field `password__old`",
            ),
            (
                "CUCKOOD__AUTH__KEYS",
                "hunter2",
                "auth.keys: wrong type or value, expected a sequence",
            ),
            (
                "CUCKOOD__AUTH__KEYS",
                r#"[{name = "shop", sha256 = "hunter2", scopes = "hunter2"}]"#,
                "scopes",
            ),
        ] {
            let error = load(&[(name, value)]).unwrap_err().to_string();
            assert!(
                error.contains(wanted) && !error.contains("hunter2"),
                "{name}: {error}"
            );
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, wanted) in [
            ("[nats]\nstream = \"s\"\npassword = hunter2\n", "line 3"),
            (
                "[nats]\npassword = [\"hunter2\"]\n",
                "nats.password: wrong type or value",
            ),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Config::load(Some(file.path()), [("HOME", "/root")])
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(wanted) && !error.contains("hunter2"),
                "{error}"
            );
        }
    }

    #[cfg(unix)]
    #[test]
    fn non_unicode_variable_is_rejected() {
        use std::os::unix::ffi::OsStringExt;
        let strange = |text: &str| OsString::from_vec([text.as_bytes(), b"\xff"].concat());
        for (name, value) in [
            (OsString::from("CUCKOOD__STORAGE__PATH"), strange("/data/")),
            (strange("CUCKOOD__STORAGE__PATH"), OsString::from("/data")),
        ] {
            let error = Config::load(None, [(name, value)]).unwrap_err();
            assert!(error.to_string().contains("UTF-8"), "{error}");
        }
        assert!(
            Config::load(
                None,
                [
                    ("HOME".into(), strange("/root")),
                    (strange("HOME"), "".into())
                ]
            )
            .is_ok()
        );
    }
}
