//! The log on standard error. Successful requests are logged at `debug` only, slow ones at `info` if `telemetry.slow_request` is set.

use crate::config::{LogFormat, LogSettings};
use anyhow::{Context, bail};
use std::io::{self, IsTerminal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Sends log messages to standard error from now on.
///
/// # Errors
/// If `log.level` is not a valid filter, or this was called before.
pub fn init(log: &LogSettings) -> anyhow::Result<()> {
    let filter = filter(&log.level)?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    let registry = tracing_subscriber::registry().with(filter);
    Ok(match log.format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry.with(lines.json()).try_init(),
    }?)
}

/// The filter for a level. It applies to our own lines; other crates log warnings only, unless they are named.
fn filter(level: &str) -> anyhow::Result<Targets> {
    const OURS: &str = env!("CARGO_CRATE_NAME");
    // A word that is no level would be taken for a module, and nothing of ours would be logged.
    let is_level = |word: &str| !word.is_empty() && word.parse::<LevelFilter>().is_ok();
    let is_known =
        |part: &str| is_level(part.split_once('=').map_or(part, |(_, level)| level).trim());
    if let Some(unknown) = level.split(',').find(|part| !is_known(part)) {
        bail!(
            "invalid configuration: log.level: `{unknown}` is neither a level (error, warn, info, debug, trace) nor MODULE=LEVEL"
        );
    }
    let asked: Targets = level.parse().context("invalid configuration: log.level")?;
    let Some(level) = asked.default_level() else {
        return Ok(asked);
    };
    let is_named = asked.iter().any(|(target, _)| target == OURS);
    let filter = asked.with_default(level.min(LevelFilter::WARN));
    Ok(if is_named {
        filter
    } else {
        filter.with_target(OURS, level)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn level_applies_to_own_modules() {
        let tells =
            |level: &str, target: &str, at: Level| filter(level).unwrap().would_enable(target, &at);
        for (level, target, at, wanted) in [
            ("info", "cuckood::http", Level::INFO, true),
            ("info", "cuckood::http", Level::DEBUG, false),
            ("info", "cuckood_log::store", Level::INFO, true),
            ("info", "sled::pagecache", Level::INFO, false),
            ("info", "sled::pagecache", Level::WARN, true),
            ("debug", "cuckood::engine", Level::DEBUG, true),
            ("debug", "sled", Level::DEBUG, false),
            ("debug,sled=debug", "sled::tree", Level::DEBUG, true),
            ("debug,sled=debug", "cuckood", Level::DEBUG, true),
            (
                "info,cuckood::http=debug",
                "cuckood::http::service",
                Level::DEBUG,
                true,
            ),
            (
                "info,cuckood::http=debug",
                "cuckood::engine",
                Level::DEBUG,
                false,
            ),
            ("error", "sled", Level::WARN, false),
            ("warn,cuckood=debug", "cuckood", Level::DEBUG, true),
            ("sled=info", "cuckood", Level::ERROR, false),
        ] {
            assert_eq!(tells(level, target, at), wanted, "{level}: {target} {at}");
        }
        for unknown in [
            "cuckood=loud",
            "loud",
            "info,loud",
            "info,",
            "",
            "cuckood::http",
        ] {
            let error = filter(unknown).unwrap_err().to_string();
            assert!(error.contains("log.level"), "{unknown}: {error}");
        }
    }
}
