//! How the configuration spells values: addresses, durations, sizes, shares of the memory.

use bytesize::ByteSize;
use jiff::{Span, SpanRelativeTo, Unit};
use serde::de::{self, IntoDeserializer};
use serde::{Deserialize, Deserializer};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// A size, or a share of `limits.memory`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "OrText<u64>")]
pub enum Room {
    /// A percentage.
    Percent(u64),
    /// Bytes.
    Bytes(u64),
}

impl Room {
    /// Returns it in bytes, as a share of this memory.
    pub(super) fn bytes(self, memory: u64) -> u64 {
        match self {
            Room::Percent(percent) => memory / 100 * percent,
            Room::Bytes(bytes) => bytes,
        }
    }
}

/// A size in bytes, or a string such as `"64MiB"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug, Deserialize)]
#[serde(try_from = "OrText<u64>")]
pub struct Bytes(pub u64);

/// A size, or a share of the machine's memory, such as `"60%"`; in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "OrText<u64>")]
pub struct SizeOrShare(pub u64);

/// A duration in seconds, or a string such as `"24h"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug, Deserialize)]
#[serde(try_from = "OrText<u64>")]
pub struct DurationSetting(pub Duration);

#[derive(Deserialize)]
#[serde(untagged)]
enum OrText<T> {
    Plain(T),
    Text(String),
}

/// Parses an address, or resolves a host name such as localhost.
pub(super) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    let mut resolved: Vec<SocketAddr> = text
        .to_socket_addrs()
        .map(Iterator::collect)
        .unwrap_or_default();
    // If there are several, clients try the address in dotted form first.
    resolved.sort_by_key(SocketAddr::is_ipv6);
    let wrong = || {
        de::Error::custom(format!(
            "'{text}' is not an address such as \"127.0.0.1:8080\""
        ))
    };
    resolved.first().copied().ok_or_else(wrong)
}

/// [`address`]; `None` for an empty string.
pub(super) fn optional_address<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    match String::deserialize(deserializer)? {
        empty if empty.is_empty() => Ok(None),
        text => address(text.into_deserializer()).map(Some),
    }
}

/// Parses a list of strings, or one string with commas between them.
pub(super) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(match OrText::deserialize(deserializer)? {
        OrText::Plain(texts) => texts,
        OrText::Text(text) => {
            let texts = text
                .split(',')
                .map(str::trim)
                .filter(|text| !text.is_empty());
            texts.map(str::to_owned).collect()
        }
    })
}

impl TryFrom<OrText<u64>> for DurationSetting {
    type Error = String;

    fn try_from(value: OrText<u64>) -> Result<Self, String> {
        let text = match value {
            OrText::Plain(seconds) => return Ok(Self(Duration::from_secs(seconds))),
            OrText::Text(text) => text,
        };
        let span = text.parse::<Span>();
        let seconds =
            span.and_then(|span| span.total((Unit::Second, SpanRelativeTo::days_are_24_hours())));
        let duration = seconds
            .ok()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        duration
            .map(Self)
            .ok_or_else(|| format!("'{text}' is not a duration such as \"30s\" or \"30d\""))
    }
}

impl TryFrom<OrText<u64>> for Bytes {
    type Error = String;

    fn try_from(value: OrText<u64>) -> Result<Self, String> {
        match value {
            OrText::Plain(bytes) => Ok(Self(bytes)),
            OrText::Text(text) => match text.parse::<ByteSize>() {
                Ok(size) => Ok(Self(size.as_u64())),
                Err(_) => Err(format!("'{text}' is not a size such as \"64MiB\"")),
            },
        }
    }
}

impl TryFrom<OrText<u64>> for Room {
    type Error = String;

    fn try_from(value: OrText<u64>) -> Result<Self, String> {
        if let OrText::Text(text) = &value
            && let Some(share) = text.strip_suffix('%')
        {
            let percent = share.trim().parse().ok().filter(|share| *share <= 100);
            return percent
                .map(Room::Percent)
                .ok_or_else(|| format!("'{text}' is not a share from 0% to 100%"));
        }
        Bytes::try_from(value).map(|Bytes(bytes)| Room::Bytes(bytes))
    }
}

impl TryFrom<OrText<u64>> for SizeOrShare {
    type Error = String;

    fn try_from(value: OrText<u64>) -> Result<Self, String> {
        Ok(Self(Room::try_from(value)?.bytes(machine_memory())))
    }
}

/// Returns the machine's memory, or the container's limit if that is less.
pub fn machine_memory() -> u64 {
    let system = rustix::system::sysinfo();
    let machine = system.totalram * u64::from(system.mem_unit);
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|limit| limit.trim().parse::<u64>().ok());
    container.map_or(machine, |container| container.min(machine))
}
