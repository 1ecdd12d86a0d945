//! What the program tells of itself on standard error. A request that went well is told at `debug` only.

use crate::config::{Log, LogFormat};
use std::io::{self, IsTerminal};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Sends the program's messages to standard error from now on.
///
/// # Errors
/// When `log.level` is no filter, or it was called before.
pub fn init(log: &Log) -> Result<(), String> {
    let filter: Targets = log.level.parse().map_err(|error| format!("log.level: {error}"))?;
    let lines =
        tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    let registry = tracing_subscriber::registry().with(filter);
    match log.format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry.with(lines.json()).try_init(),
    }
    .map_err(|error| error.to_string())
}
