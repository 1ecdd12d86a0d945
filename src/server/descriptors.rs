//! File descriptors: the process takes as many as it may have, and leaves connections no more than the rest can spare.
//! Where a file or socket of our own can't be opened, storage would fail, or recovery.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::num::NonZero;
use thiserror::Error;

/// Kept for what is opened later: the data directory with whatever its opening looks into, certificates, and one connection
/// that waits for its place.
const KEPT: u64 = 32;

/// Kept for each worker besides: it may look through the data directory.
const KEPT_EACH_WORKER: u64 = 4;

/// Taken to be open already where the system does not say.
const OPEN_UNKNOWN: u64 = 64;

/// Fewer connections are not worth a start.
const CONNECTIONS_MIN: u64 = 8;

/// The process may open too few files.
#[derive(Debug, Error)]
#[error("only {limit} files may be open, and {needed} must be: raise the limit (`ulimit -n`, LimitNOFILE=)")]
pub struct TooFewDescriptors {
    limit: u64,
    needed: u64,
}

/// Raises the limit as far as the process may, and tells how many connections there may be: `wanted`, or as many as can be.
///
/// # Errors
/// [`TooFewDescriptors`] if that is next to none.
pub(super) fn connections_max(wanted: usize) -> Result<usize, TooFewDescriptors> {
    let Some(limit) = raise() else { return Ok(wanted) };
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get) as u64;
    let open = std::fs::read_dir("/proc/self/fd").map_or(OPEN_UNKNOWN, |open| open.count() as u64);
    let taken = open + KEPT + KEPT_EACH_WORKER * workers;
    let left = limit.saturating_sub(taken);
    if left < CONNECTIONS_MIN {
        return Err(TooFewDescriptors { limit, needed: taken + CONNECTIONS_MIN });
    }
    let max = wanted.min(usize::try_from(left).unwrap_or(usize::MAX));
    if max < wanted {
        tracing::warn!(
            connections_max = max,
            wanted,
            limit,
            "fewer connections than configured: the process may not open so many files"
        );
    }
    Ok(max)
}

/// The limit, once it is as high as the process may set it; none if there is none.
fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(error) => {
            tracing::warn!(%error, current, maximum, "the limit of open files can't be raised");
            current
        }
    }
}
