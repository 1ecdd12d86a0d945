//! File descriptors. The process raises its limit as far as it may, and connections get what storage and recovery can spare: if
//! those could not open a file, they would fail.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::num::NonZero;
use thiserror::Error;

/// Reserved for files that are opened later: the data directory, certificates, and one connection that waits for room.
const KEPT: u64 = 32;

/// Reserved for each worker besides: it may list the data directory.
const KEPT_EACH_WORKER: u64 = 4;

/// Assumed number of open files where the system does not say.
const OPEN_UNKNOWN: u64 = 64;

/// With fewer connections than this the service does not start.
const CONNECTIONS_MIN: u64 = 8;

/// The error for a limit on open files that is too low.
#[derive(Debug, Error)]
#[error("only {limit} files may be open, and {needed} must be: raise the limit (`ulimit -n`, LimitNOFILE=)")]
pub struct TooFewDescriptors {
    limit: u64,
    needed: u64,
}

/// Raises the limit on open files as far as possible. Returns how many connections each listener may have: as many as wanted, or
/// its share of those that fit.
///
/// # Errors
/// [`TooFewDescriptors`] if fewer than a handful fit.
pub(super) fn connections_max<const N: usize>(wanted: [usize; N]) -> Result<[usize; N], TooFewDescriptors> {
    let Some(limit) = raise() else { return Ok(wanted) };
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get) as u64;
    let open = std::fs::read_dir("/proc/self/fd").map_or(OPEN_UNKNOWN, |open| open.count() as u64);
    let taken = open + KEPT + KEPT_EACH_WORKER * workers;
    let left = limit.saturating_sub(taken);
    if left < CONNECTIONS_MIN {
        return Err(TooFewDescriptors { limit, needed: taken + CONNECTIONS_MIN });
    }
    let all = wanted.iter().fold(0, |all: usize, wanted| all.saturating_add(*wanted));
    let max = all.min(usize::try_from(left).unwrap_or(usize::MAX));
    if max == all {
        return Ok(wanted);
    }
    tracing::warn!(
        connections_max = max,
        wanted = all,
        limit,
        "fewer connections than configured: the limit on open files is too low"
    );
    Ok(wanted.map(|wanted| share(wanted, max, all)))
}

/// The share of one who wants `wanted` of `all`, where there are `max`.
fn share(wanted: usize, max: usize, all: usize) -> usize {
    let share = wanted as u128 * max as u128 / (all as u128).max(1);
    usize::try_from(share).unwrap_or(usize::MAX)
}

/// Raises the limit as far as the process may and returns it; `None` if there is none.
fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(error) => {
            tracing::warn!(%error, current, maximum, "the limit on open files can't be raised");
            current
        }
    }
}
