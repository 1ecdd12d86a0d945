//! The table of all settings and their ranges. A value out of range is rejected at startup, before it can cause an error.

use super::Config;
use super::values::{Bytes, DurationSetting, Room};
use anyhow::bail;
use cuckood_filter::layout::CAPACITY_MAX;
use cuckood_state::domain::command::{IDEMPOTENCY_ROOM_MAX_BYTES, IDEMPOTENCY_ROOM_MIN_BYTES};
use std::fmt::{self, Display};
use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Maximum of sizes without a specific one. The system's limits are lower.
const SIZE_MAX: u64 = 1 << 60;

/// Maximum of most numbers. Queues and tables of this many entries would not fit into memory.
const COUNT_MAX: u64 = 1 << 24;

/// Maximum memory for unfinished request heads beyond 8 KiB each, over all connections. It also limits the length of a single head.
pub const HEADS_BYTES_MAX: u64 = 16 * MIB;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// Maximum of a timeout, far below the times that the clock can't represent.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 86_400);

/// Maximum of a retention: a hundred years.
const RETENTION_MAX: Duration = Duration::from_secs(36_500 * 86_400);

/// A setting and the range of its values.
pub(super) struct Setting {
    /// Section and key, as in `server.listen`.
    pub(super) name: &'static str,
    range: Range,
}

/// The range of a setting: its minimum, its maximum, and its value in a configuration.
enum Range {
    /// A number.
    Count(u64, u64, fn(&Config) -> u64),
    /// A size in bytes.
    Size(u64, u64, fn(&Config) -> u64),
    /// A size. A share of the memory is always accepted instead.
    Room(u64, u64, fn(&Config) -> Room),
    /// A duration.
    Time(Duration, Duration, fn(&Config) -> Duration),
    /// No range: the type of the setting or [`Config::check`] decides.
    Any,
}

/// All settings, in the order of `config.toml`.
pub(super) const SETTINGS: &[Setting] = &[
    any("server.listen"),
    any("server.probe_listen"),
    any("server.tls_cert"),
    any("server.tls_key"),
    any("server.hosts"),
    count("server.connections_max", 1, COUNT_MAX, |config| {
        config.server.connections_max as u64
    }),
    size("server.header_bytes_max", KIB, HEADS_BYTES_MAX, |config| {
        config.server.header_bytes_max.0
    }),
    time("server.header_timeout", MS, TIMEOUT_MAX, |config| {
        config.server.header_timeout.0
    }),
    time("server.body_timeout", MS, TIMEOUT_MAX, |config| {
        config.server.body_timeout.0
    }),
    time("server.request_timeout", MS, TIMEOUT_MAX, |config| {
        config.server.request_timeout.0
    }),
    time("server.write_timeout", MS, TIMEOUT_MAX, |config| {
        config.server.write_timeout.0
    }),
    time("server.idle_timeout", MS, TIMEOUT_MAX, |config| {
        config.server.idle_timeout.0
    }),
    time(
        "server.drain_delay",
        Duration::ZERO,
        TIMEOUT_MAX,
        |config| config.server.drain_delay.0,
    ),
    time("server.drain_timeout", MS, TIMEOUT_MAX, |config| {
        config.server.drain_timeout.0
    }),
    any("resp.listen"),
    count("resp.default_capacity", 1, CAPACITY_MAX, |config| {
        config.resp.default_capacity
    }),
    any("resp.keys"),
    count("resp.connections_max", 1, COUNT_MAX, |config| {
        config.resp.connections_max as u64
    }),
    size("resp.buffers", MIB, SIZE_MAX, |config| {
        config.resp.buffers.0
    }),
    time("resp.idle_timeout", Duration::ZERO, TIMEOUT_MAX, |config| {
        config.resp.idle_timeout.0
    }),
    any("storage.path"),
    any("storage.durability"),
    size("storage.free_space_min", 0, SIZE_MAX, |config| {
        config.storage.free_space_min.0
    }),
    size("storage.ballast", 0, SIZE_MAX, |config| {
        config.storage.ballast.0
    }),
    time("storage.open_timeout", MS, TIMEOUT_MAX, |config| {
        config.storage.open_timeout.0
    }),
    size("storage.cache", MIB, SIZE_MAX, |config| {
        config.storage.cache.0
    }),
    size("storage.wal_segment", KIB, SIZE_MAX, |config| {
        config.storage.wal_segment.0
    }),
    size("snapshots.log_min", KIB, SIZE_MAX, |config| {
        config.snapshots.log_min.0
    }),
    size("snapshots.log_max", KIB, SIZE_MAX, |config| {
        config.snapshots.log_max.0
    }),
    any("journal.kind"),
    any("nats.servers"),
    any("nats.stream"),
    count("nats.replicas", 1, 5, |config| config.nats.replicas as u64),
    any("nats.user"),
    any("nats.password"),
    any("nats.token"),
    any("nats.credentials"),
    any("nats.tls_ca"),
    any("nats.tls_cert"),
    any("nats.tls_key"),
    time("nats.connect_timeout", SECOND, TIMEOUT_MAX, |config| {
        config.nats.connect_timeout.0
    }),
    any("cluster.name"),
    any("cluster.node"),
    time("cluster.lag_max", MS, TIMEOUT_MAX, |config| {
        config.cluster.lag_max.0
    }),
    time("cluster.wait", MS, TIMEOUT_MAX, |config| {
        config.cluster.wait.0
    }),
    any("cluster.configure"),
    any("cluster.share_snapshots"),
    time(
        "cluster.snapshot_interval",
        MS.saturating_mul(200),
        TIMEOUT_MAX,
        |config| config.cluster.snapshot_interval.0,
    ),
    size("cluster.log_margin", 0, SIZE_MAX, |config| {
        config.cluster.log_margin.0
    }),
    time("clock.max_jump", SECOND, RETENTION_MAX, |config| {
        config.clock.max_jump.0
    }),
    time("clock.max_stop", SECOND, RETENTION_MAX, |config| {
        config.clock.max_stop.0
    }),
    size("limits.memory", MIB, SIZE_MAX, |config| {
        config.limits.memory.0
    }),
    size("limits.body", 1, SIZE_MAX, |config| config.limits.body.0),
    size("limits.bodies", MIB, SIZE_MAX, |config| {
        config.limits.bodies.0
    }),
    size("limits.responses", MIB, SIZE_MAX, |config| {
        config.limits.responses.0
    }),
    count("limits.filters", 1, COUNT_MAX, |config| {
        config.limits.filters
    }),
    count("limits.line_ups", 0, COUNT_MAX, |config| {
        config.limits.line_ups
    }),
    count("limits.queue_commands", 1, COUNT_MAX, |config| {
        config.limits.queue_commands as u64
    }),
    size("limits.queue_bytes", MIB, SIZE_MAX, |config| {
        config.limits.queue_bytes.0
    }),
    any("auth.keys"),
    any("auth.allow_anonymous"),
    count(
        "guessing.invalid_codes_per_minute",
        0,
        u32::MAX as u64,
        |config| config.guessing.invalid_codes_per_minute.into(),
    ),
    any("guessing.trusted_keys"),
    any("guessing.unlimited_keys"),
    count(
        "rate_limit.requests_per_second",
        0,
        u32::MAX as u64,
        |config| config.rate_limit.requests_per_second.into(),
    ),
    time("idempotency.retention", SECOND, RETENTION_MAX, |config| {
        config.idempotency.retention.0
    }),
    time(
        "idempotency.retention_min",
        SECOND,
        RETENTION_MAX,
        |config| config.idempotency.retention_min.0,
    ),
    room(
        "idempotency.room",
        IDEMPOTENCY_ROOM_MIN_BYTES,
        IDEMPOTENCY_ROOM_MAX_BYTES,
        |config| config.idempotency.room,
    ),
    time("imports.retention", SECOND, RETENTION_MAX, |config| {
        config.imports.retention.0
    }),
    time("redemptions.retention", SECOND, RETENTION_MAX, |config| {
        config.redemptions.retention.0
    }),
    time(
        "events.retention",
        Duration::ZERO,
        RETENTION_MAX,
        |config| config.events.retention.0,
    ),
    size("events.room", MIB, SIZE_MAX, |config| config.events.room.0),
    any("metrics.per_filter"),
    any("log.level"),
    any("log.format"),
    time(
        "telemetry.slow_request",
        Duration::ZERO,
        TIMEOUT_MAX,
        |config| config.telemetry.slow_request.0,
    ),
];

const fn any(name: &'static str) -> Setting {
    Setting {
        name,
        range: Range::Any,
    }
}

const fn count(name: &'static str, min: u64, max: u64, value: fn(&Config) -> u64) -> Setting {
    Setting {
        name,
        range: Range::Count(min, max, value),
    }
}

const fn size(name: &'static str, min: u64, max: u64, value: fn(&Config) -> u64) -> Setting {
    Setting {
        name,
        range: Range::Size(min, max, value),
    }
}

const fn room(name: &'static str, min: u64, max: u64, value: fn(&Config) -> Room) -> Setting {
    Setting {
        name,
        range: Range::Room(min, max, value),
    }
}

const fn time(
    name: &'static str,
    min: Duration,
    max: Duration,
    value: fn(&Config) -> Duration,
) -> Setting {
    Setting {
        name,
        range: Range::Time(min, max, value),
    }
}

/// Returns the allowed range of a setting, such as `1KiB to 16MiB`; `None` if it has none.
pub(super) fn allowed(name: &str) -> Option<String> {
    SETTINGS
        .iter()
        .find(|setting| setting.name == name)?
        .allowed()
}

/// Checks each setting against its range.
///
/// # Errors
/// Names the first setting that is out of range, its value and the range.
pub(super) fn check(config: &Config) -> anyhow::Result<()> {
    for setting in SETTINGS {
        if let Some(value) = setting.range.rejected(config) {
            let range = setting.allowed().unwrap_or_default();
            bail!("{} is {value}, expected {range}", setting.name);
        }
    }
    Ok(())
}

impl Setting {
    /// Returns the allowed range; `None` if there is none.
    fn allowed(&self) -> Option<String> {
        match &self.range {
            Range::Count(min, max, _) => Some(format!("{min} to {max}")),
            Range::Size(min, max, _) => Some(format!("{} to {}", Bytes(*min), Bytes(*max))),
            Range::Room(min, max, _) => Some(format!(
                "{} to {}, or a share such as 10%",
                Bytes(*min),
                Bytes(*max)
            )),
            Range::Time(min, max, _) => Some(format!(
                "{} to {}",
                DurationSetting(*min),
                DurationSetting(*max)
            )),
            Range::Any => None,
        }
    }
}

impl Range {
    /// Returns the value if it is out of range.
    fn rejected(&self, config: &Config) -> Option<String> {
        match self {
            Range::Count(min, max, value) => outside(*min, *max, value(config)),
            Range::Size(min, max, value) => outside(Bytes(*min), Bytes(*max), Bytes(value(config))),
            Range::Room(min, max, value) => match value(config) {
                Room::Percent(_) => None,
                Room::Bytes(bytes) => outside(Bytes(*min), Bytes(*max), Bytes(bytes)),
            },
            Range::Time(min, max, value) => outside(
                DurationSetting(*min),
                DurationSetting(*max),
                DurationSetting(value(config)),
            ),
            Range::Any => None,
        }
    }
}

/// Returns a value that is less than `min` or greater than `max`.
fn outside<T: PartialOrd + Display>(min: T, max: T, value: T) -> Option<String> {
    (value < min || value > max).then(|| value.to_string())
}

impl Display for Bytes {
    /// Writes a size in its largest unit without a fraction, as the configuration spells it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, bits) in [
            ("EiB", 60),
            ("PiB", 50),
            ("TiB", 40),
            ("GiB", 30),
            ("MiB", 20),
            ("KiB", 10),
        ] {
            if self.0 > 0 && self.0.is_multiple_of(1 << bits) {
                return write!(f, "{}{unit}", self.0 >> bits);
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl Display for DurationSetting {
    /// Writes a duration in its largest unit without a fraction, as the configuration spells it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_zero() {
            return f.write_str("0s");
        }
        for (name, unit) in [
            ("d", DAY),
            ("h", HOUR),
            ("m", MINUTE),
            ("s", SECOND),
            ("ms", MS),
        ] {
            if self.0.as_nanos().is_multiple_of(unit.as_nanos()) {
                return write!(f, "{}{name}", self.0.as_nanos() / unit.as_nanos());
            }
        }
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::DEFAULTS;
    use super::*;
    use bytesize::ByteSize;
    use std::collections::BTreeSet;
    use toml::{Table, Value};

    /// The default of each setting, by section and key.
    fn defaults() -> Vec<(String, Value)> {
        let sections: Table = toml::from_str(DEFAULTS).unwrap();
        let mut found = Vec::new();
        for (section, keys) in sections {
            let Value::Table(keys) = keys else {
                panic!("{section} is no section")
            };
            found.extend(
                keys.into_iter()
                    .map(|(key, value)| (format!("{section}.{key}"), value)),
            );
        }
        found
    }

    fn load(name: &str, value: &str) -> Result<Config, String> {
        let variable = format!("CUCKOOD__{}", name.to_uppercase().replace('.', "__"));
        // The other one of a pair must be on the right side.
        let pair = match name {
            "snapshots.log_min" => ("CUCKOOD__SNAPSHOTS__LOG_MAX", "1EiB"),
            _ => ("CUCKOOD__SNAPSHOTS__LOG_MIN", "1KiB"),
        };
        Config::load(None, [pair, (variable.as_str(), value)]).map_err(|error| error.to_string())
    }

    #[test]
    fn table_has_every_setting_once() {
        let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
        let documented = defaults();
        let documented: BTreeSet<&str> = documented.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.iter().copied().collect::<BTreeSet<_>>(), documented);
        assert_eq!(names.len(), documented.len(), "a setting is listed twice");
    }

    /// A setting that is written as a number, a size or a duration has a range.
    #[test]
    fn every_quantity_has_range() {
        for (name, default) in defaults() {
            let is_quantity = match &default {
                Value::Integer(_) => true,
                Value::String(text) => text.starts_with(|first: char| first.is_ascii_digit()),
                Value::Float(_)
                | Value::Boolean(_)
                | Value::Datetime(_)
                | Value::Array(_)
                | Value::Table(_) => false,
            };
            let is_address = name.ends_with("listen");
            assert_eq!(
                allowed(&name).is_some(),
                is_quantity && !is_address,
                "{name} = {default}"
            );
        }
    }

    /// The values at the ends of each range, and the nearest ones beyond.
    fn ends(range: &Range) -> (Vec<String>, Vec<String>) {
        let texts = |values: Vec<u64>| values.iter().map(u64::to_string).collect();
        match range {
            Range::Count(min, max, _) | Range::Size(min, max, _) | Range::Room(min, max, _) => {
                let below = min.checked_sub(1).into_iter();
                (
                    texts(vec![*min, *max]),
                    texts(below.chain([max + 1]).collect()),
                )
            }
            Range::Time(min, max, _) => {
                let below = (!min.is_zero()).then(|| "0s".to_owned()).into_iter();
                let beyond = DurationSetting(*max + SECOND).to_string();
                (
                    vec![
                        DurationSetting(*min).to_string(),
                        DurationSetting(*max).to_string(),
                    ],
                    below.chain([beyond]).collect(),
                )
            }
            Range::Any => (Vec::new(), Vec::new()),
        }
    }

    #[test]
    fn value_out_of_range_is_rejected_with_range() {
        for setting in SETTINGS {
            let (allowed_values, rejected_values) = ends(&setting.range);
            for value in allowed_values {
                load(setting.name, &value)
                    .unwrap_or_else(|error| panic!("{}: {error}", setting.name));
            }
            for value in rejected_values {
                let error = load(setting.name, &value).expect_err(setting.name);
                let range = setting.allowed().unwrap();
                let is_told =
                    error.contains(setting.name) && error.ends_with(&format!("expected {range}"));
                assert!(is_told, "{} = {value}: {error}", setting.name);
            }
        }
    }

    #[test]
    fn rejection_names_setting_value_and_range() {
        for (name, value, wanted) in [
            (
                "limits.memory",
                "0",
                "limits.memory is 0B, expected 1MiB to 1EiB",
            ),
            (
                "limits.memory",
                "0%",
                "limits.memory is 0B, expected 1MiB to 1EiB",
            ),
            (
                "server.request_timeout",
                "0s",
                "server.request_timeout is 0s, expected 1ms to 365d",
            ),
            (
                "server.header_bytes_max",
                "1",
                "server.header_bytes_max is 1B, expected 1KiB to 16MiB",
            ),
            (
                "limits.queue_commands",
                "0",
                "limits.queue_commands is 0, expected 1 to 16777216",
            ),
            (
                "idempotency.room",
                "512KiB",
                "idempotency.room is 512KiB, expected 1MiB to 16GiB, or a share such as 10%",
            ),
            (
                "limits.filters",
                "-1",
                "limits.filters: invalid value: integer `-1`, expected 1 to 16777216",
            ),
            (
                "nats.replicas",
                "-1",
                "nats.replicas: wrong type or value, expected 1 to 5",
            ),
        ] {
            let error = load(name, value).unwrap_err();
            assert!(error.ends_with(wanted), "{name} = {value}: {error}");
        }
    }

    #[test]
    fn quantities_are_written_as_they_are_read() {
        for bytes in [0, 1, 1_000, 1 << 10, 3 << 20, 1 << 60, u64::MAX >> 1] {
            let text = Bytes(bytes).to_string();
            assert_eq!(text.parse::<ByteSize>().unwrap().as_u64(), bytes, "{text}");
        }
        for (time, text) in [
            (Duration::ZERO, "0s"),
            (Duration::from_millis(1_500), "1500ms"),
            (Duration::from_secs(90 * 60), "90m"),
            (Duration::from_secs(86_400), "1d"),
        ] {
            assert_eq!(DurationSetting(time).to_string(), text);
        }
    }
}
