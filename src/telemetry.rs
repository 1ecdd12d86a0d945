//! What the program tells of itself on standard error. A request that went well is told at `debug` only.

use crate::config::{Log, LogFormat};
use std::io::{self, IsTerminal};
use tracing_subscriber::EnvFilter;

/// Sends the program's messages to standard error from now on.
///
/// # Errors
/// When `log.level` is no filter, or it was called before.
pub fn init(log: &Log) -> Result<(), String> {
    let filter = EnvFilter::try_new(&log.level).map_err(|error| format!("log.level: {error}"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    match log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    }
    .map_err(|error| error.to_string())
}
