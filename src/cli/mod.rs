//! The subcommands. Each has arguments (a struct or an enum) and a `run`; `print` has one function per document.

pub mod backup;
pub mod bench;
pub mod client;
pub mod cluster;
pub mod healthcheck;
pub mod import;
pub mod key;
pub mod move_filter;
pub mod plan;
pub mod print;
mod progress;
pub mod repair;
pub mod restore;
pub mod serve;
pub mod shadow;
mod tls;
pub mod verify;
mod workload;

use anyhow::{anyhow, bail};
use cuckood_state::domain::Kind;
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use tokio::signal::unix::{SignalKind, signal};

/// Opens a file, or standard input for `-`.
fn open(path: &Path) -> anyhow::Result<Box<dyn BufRead + Send>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    Ok(Box::new(BufReader::new(file)))
}

/// The error for a file that can't be read.
fn unreadable(path: &Path, error: &io::Error) -> anyhow::Error {
    anyhow!("can't read {}: {error}; name another file", path.display())
}

/// Returns the kind of `campaigns/NAME` or `coupons/NAME`.
///
/// # Errors
/// If it is neither.
fn kind_of(filter: &str) -> anyhow::Result<Kind> {
    match filter.split_once('/') {
        Some(("campaigns", name)) if !name.is_empty() => Ok(Kind::Campaign),
        Some(("coupons", name)) if !name.is_empty() => Ok(Kind::Coupon),
        Some(_) | None => {
            bail!(
                "`{filter}` is neither campaigns/NAME nor coupons/NAME; name one such as campaigns/spring"
            )
        }
    }
}

/// Prints a remark on standard error.
fn note(what: &str) {
    // Standard error is closed, so this can't be reported.
    let _ = writeln!(io::stderr(), "cuckood: {what}");
}

/// Prints the result of a command, whether or not it is read: a closed terminal is no reason to fail after the work.
fn print_line(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Prints the result of a command that has done its work, in one of two forms.
fn report(is_json: bool, json: &Value, text: &str) {
    if is_json {
        print_line(&json.to_string())
    } else {
        print_line(text)
    }
}

/// Registers SIGINT and SIGTERM, and returns a function that waits for the next of them.
fn stop_signals() -> io::Result<impl AsyncFnMut() + Send> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Takes the faults, and the version of entries, that a test of the real program asks for from its environment.
#[cfg(feature = "testing")]
pub fn take_faults() {
    let entries = std::env::var("CUCKOOD_TEST_PANIC_AT").unwrap_or_default();
    let entries = entries
        .split(',')
        .filter_map(|entry| entry.parse().ok())
        .collect();
    // Only this sets them.
    let _ = crate::engine::applying::PANIC_AT.set(entries);
    let later = std::env::var("CUCKOOD_TEST_VERSION")
        .ok()
        .and_then(|version| version.parse().ok());
    let _ = later.map(|version| cuckood_state::domain::version::LATER_VERSION.set(version));
}
