//! The number of connections that fit. The process raises its limit on open files. Storage, tables and bodies would fail without files and
//! memory, so connections get the rest.

use super::connections::WAITING_MAX;
use crate::config::{Config, machine_memory};
use anyhow::ensure;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::num::NonZero;

/// Files reserved for the data directory and certificates, in addition to those of waiting connections.
const FILES_RESERVED: u64 = 32;

/// Maximum number of connections of `server.probe_listen`.
pub(super) const PROBES_MAX: usize = 64;

/// Additional files reserved for each worker, which may list the data directory.
const FILES_RESERVED_EACH_WORKER: u64 = 4;

/// With fewer connections than this, the service does not start.
const CONNECTIONS_MIN: u64 = 8;

/// Memory of a connection with a request in progress: parser, buffers, TLS session, handler.
const CONNECTION_BYTES: u64 = 48 << 10;

/// Connections get at least this fraction of the machine's memory.
const MEMORY_FRACTION: u64 = 16;

/// Raises the limit on open files to its maximum. Returns the number of connections of each listener: as configured, or its share of the
/// available ones.
///
/// # Errors
/// If fewer than a handful fit.
pub(super) fn connections_max(config: &Config) -> anyhow::Result<[usize; 2]> {
    let resp = config
        .resp
        .listen
        .as_ref()
        .map_or(0, |_| config.resp.connections_max);
    let wanted = [config.server.connections_max, resp];
    let all = wanted
        .iter()
        .fold(0, |all: usize, wanted| all.saturating_add(*wanted));
    let by_files = by_files(config)?;
    let by_memory = by_memory(config, machine_memory());
    let fits = usize::try_from(by_files.min(by_memory)).unwrap_or(usize::MAX);
    if all <= fits {
        return Ok(wanted);
    }
    let cause = if by_memory < by_files {
        "too little memory"
    } else {
        "too few files may be open"
    };
    tracing::warn!(
        connections_max = fits,
        configured = all,
        cause,
        "fewer connections than configured"
    );
    Ok(wanted.map(|wanted| share(wanted, fits, all)))
}

/// Returns the number of connections for which files are left.
fn by_files(config: &Config) -> anyhow::Result<u64> {
    let Some(limit) = raise() else {
        return Ok(u64::MAX);
    };
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get) as u64;
    // The system may not say how many are open.
    let open = std::fs::read_dir("/proc/self/fd").map_or(64, |open| open.count() as u64);
    let listeners = 1
        + u64::from(config.resp.listen.is_some())
        + u64::from(config.server.probe_listen.is_some());
    let probes = if config.server.probe_listen.is_some() {
        PROBES_MAX as u64
    } else {
        0
    };
    let waiting = listeners * WAITING_MAX as u64;
    let taken = open + FILES_RESERVED + FILES_RESERVED_EACH_WORKER * workers + waiting + probes;
    let left = limit.saturating_sub(taken);
    let needed = taken + CONNECTIONS_MIN;
    ensure!(
        left >= CONNECTIONS_MIN,
        "only {limit} files may be open, and {needed} must be: raise the limit (`ulimit -n`, LimitNOFILE=)"
    );
    Ok(left)
}

/// Returns the number of connections for which a machine of this size has memory, next to everything else that has a limit.
fn by_memory(config: &Config, machine: u64) -> u64 {
    let limits = &config.limits;
    let others = [
        limits.memory.0,
        limits.bodies.0,
        limits.responses.0,
        config.resp.buffers.0,
        config.storage.cache.0,
    ];
    let left = others.into_iter().fold(machine, u64::saturating_sub);
    (left.max(machine / MEMORY_FRACTION) / CONNECTION_BYTES).max(CONNECTIONS_MIN)
}

/// Returns the share of a listener that wants `wanted` of `all`, where `max` fit.
fn share(wanted: usize, max: usize, all: usize) -> usize {
    let share = wanted as u128 * max as u128 / (all as u128).max(1);
    usize::try_from(share).unwrap_or(usize::MAX)
}

/// Raises the limit to its maximum and returns it; `None` if there is none.
fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    ) {
        tracing::warn!(%error, current, maximum, "failed to raise the limit on open files");
        return current;
    }
    maximum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_fit_remaining_memory() {
        let mut small = Config::load(None, std::iter::empty::<(String, String)>()).unwrap();
        (small.limits.memory.0, small.limits.bodies.0) = (128 << 20, 32 << 20);
        small.limits.responses.0 = 16 << 20;
        let others = small.resp.buffers.0 + small.storage.cache.0 + (176 << 20);
        assert_eq!(by_memory(&small, others + (48 << 20)), 1_024);
        assert_eq!(
            by_memory(&small, 48 << 20),
            64,
            "a sixteenth of the machine"
        );
        assert_eq!(by_memory(&small, 1 << 20), CONNECTIONS_MIN);
    }

    #[test]
    fn shares_are_proportional() {
        assert_eq!(
            [10_000, 5_000].map(|wanted| share(wanted, 300, 15_000)),
            [200, 100]
        );
        assert_eq!(share(usize::MAX, 100, usize::MAX), 100);
        assert_eq!(share(0, 0, 0), 0);
    }
}
