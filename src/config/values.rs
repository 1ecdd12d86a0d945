//! How the configuration spells values: addresses, durations, sizes, shares of the memory.

use bytesize::ByteSize;
use jiff::{Span, SpanRelativeTo, Unit};
use serde::de::{self, IntoDeserializer};
use serde::{Deserialize, Deserializer};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// A size, or a share of `limits.memory`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// A percentage.
    Percent(u64),
    /// Bytes.
    Bytes(u64),
}

impl Room {
    /// In bytes, where `limits.memory` is this.
    pub(super) fn bytes(self, memory: u64) -> u64 {
        match self {
            Room::Percent(percent) => memory / 100 * percent,
            Room::Bytes(bytes) => bytes,
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u64),
    Text(String),
}

/// Parses an address, or resolves a host name such as localhost.
pub(super) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    let mut resolved: Vec<SocketAddr> = text.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    // Of several, clients try the address that is written with dots first.
    resolved.sort_by_key(SocketAddr::is_ipv6);
    let wrong = || de::Error::custom(format!("'{text}' is not an address such as \"127.0.0.1:8080\""));
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

#[derive(Deserialize)]
#[serde(untagged)]
enum ListOrText {
    List(Vec<String>),
    Text(String),
}

/// Parses a list of texts; a text stands for those between its commas.
pub(super) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(match ListOrText::deserialize(deserializer)? {
        ListOrText::List(texts) => texts,
        ListOrText::Text(text) => {
            let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
            texts.map(str::to_owned).collect()
        }
    })
}

/// Parses seconds, or a text such as `"24h"`.
pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    match NumberOrText::deserialize(deserializer)? {
        NumberOrText::Number(seconds) => Ok(Duration::from_secs(seconds)),
        NumberOrText::Text(text) => text
            .parse::<Span>()
            .and_then(|span| span.total((Unit::Second, SpanRelativeTo::days_are_24_hours())))
            .ok()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .ok_or_else(|| {
                de::Error::custom(format!("'{text}' is not a duration such as \"30s\" or \"30d\""))
            }),
    }
}

/// Parses bytes, or a text such as `"64MiB"`.
pub(super) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match NumberOrText::deserialize(deserializer)? {
        NumberOrText::Number(bytes) => Ok(bytes),
        NumberOrText::Text(text) => parse_size(&text),
    }
}

fn parse_size<E: de::Error>(text: &str) -> Result<u64, E> {
    let size = text.parse::<ByteSize>();
    size.map(|size| size.as_u64()).map_err(|_| E::custom(format!("'{text}' is not a size such as \"64MiB\"")))
}

/// Parses a size, or a share of the machine's memory, such as `"60%"`.
pub(super) fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match NumberOrText::deserialize(deserializer)? {
        NumberOrText::Number(bytes) => Ok(bytes),
        NumberOrText::Text(text) => match parse_percent(&text)? {
            Some(percent) => Ok(machine_memory() / 100 * percent),
            None => parse_size(&text),
        },
    }
}

/// Parses a size, or a share of `limits.memory`, such as `"10%"`.
pub(super) fn room<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Room, D::Error> {
    Ok(match NumberOrText::deserialize(deserializer)? {
        NumberOrText::Number(bytes) => Room::Bytes(bytes),
        NumberOrText::Text(text) => match parse_percent(&text)? {
            Some(percent) => Room::Percent(percent),
            None => Room::Bytes(parse_size(&text)?),
        },
    })
}

/// Parses the number before a percent sign; `None` if there is none.
fn parse_percent<E: de::Error>(text: &str) -> Result<Option<u64>, E> {
    match text.strip_suffix('%').map(|share| share.trim().parse::<u64>()) {
        None => Ok(None),
        Some(Ok(share)) if share <= 100 => Ok(Some(share)),
        Some(_) => Err(E::custom(format!("'{text}' is not a share from 0% to 100%"))),
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
