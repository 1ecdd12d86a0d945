//! How fast group commits become durable, relative to a raw preallocated file with `fdatasync` on the same disk in the same run:
//! `cargo bench --bench engine [-- DIR]`. The contestants take turns and each is judged by its median round, since the machine is
//! shared.

// A benchmark prints its results and stops at the first error.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

// As the service has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use cuckood_filter::Digest;
use cuckood_log::journal::{Delivery, Durability, Journal, LocalJournal, LocalOptions, Ticket};
use cuckood_log::store::{Store, StoreOptions};
use cuckood_state::domain::{Command, Digests, FilterId, Proposal, Target, Timestamp};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Makes one commit durable.
type Commit = Box<dyn FnMut()>;

const COMMITS: u64 = 500;
const ROUNDS: usize = 9;

fn main() {
    let parent = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'))
        .map(PathBuf::from);
    let dir = tempfile::tempdir_in(parent.unwrap_or_else(std::env::temp_dir)).unwrap();
    println!(
        "commits/s, median of {ROUNDS} rounds of {COMMITS} (p50 and p99 of a commit, in microseconds)"
    );
    for (bytes, digests) in [(64, 5), (4 << 10, 509), (64 << 10, 8_186)] {
        let path = |name: &str| dir.path().join(format!("{name}-{bytes}"));
        let mut contestants: Vec<(&str, Commit)> = vec![
            ("raw file, fdatasync", raw(&path("raw"), bytes)),
            (
                "journal, fsync",
                journal(
                    &path("fsync"),
                    digests,
                    Durability::Fsync,
                    Duration::from_millis(10),
                ),
            ),
            (
                "journal, fsync, no pause",
                journal(&path("eager"), digests, Durability::Fsync, Duration::ZERO),
            ),
            (
                "journal, fsync, 1 s",
                journal(
                    &path("lazy"),
                    digests,
                    Durability::Fsync,
                    Duration::from_secs(1),
                ),
            ),
            (
                "journal, flush",
                journal(
                    &path("flush"),
                    digests,
                    Durability::Flush,
                    Duration::from_millis(10),
                ),
            ),
        ];
        let mut times = vec![(Vec::new(), Vec::new()); contestants.len()];
        for _ in 0..ROUNDS {
            for ((_, commit), (rounds, commits)) in contestants.iter_mut().zip(&mut times) {
                let start = Instant::now();
                for _ in 0..COMMITS {
                    let start = Instant::now();
                    commit();
                    commits.push(start.elapsed());
                }
                rounds.push(start.elapsed());
            }
        }
        let rate = |rounds: &mut Vec<Duration>| {
            rounds.sort_unstable();
            COMMITS as f64 / rounds[ROUNDS / 2].as_secs_f64()
        };
        let raw = rate(&mut times[0].0);
        for ((name, _), (rounds, commits)) in contestants.iter().zip(&mut times) {
            commits.sort_unstable();
            let at = |share: usize| commits[commits.len() * share / 100].as_micros();
            let rate = rate(rounds);
            println!(
                "{bytes:>6} B  {name:<26} {rate:>7.0}  {:>5.2} x raw  ({}, {})",
                rate / raw,
                at(50),
                at(99)
            );
        }
    }
}

fn raw(path: &Path, bytes: usize) -> Commit {
    let length = (COMMITS as usize * ROUNDS * bytes) as u64;
    let file = File::create(path).unwrap();
    let zeros = vec![0; 1 << 20];
    (0..length.div_ceil(1 << 20)).for_each(|at| file.write_all_at(&zeros, at << 20).unwrap());
    file.sync_all().unwrap();
    let block = vec![7; bytes];
    let mut offset = 0;
    Box::new(move || {
        file.write_all_at(&block, offset).unwrap();
        file.sync_data().unwrap();
        offset += bytes as u64;
    })
}

/// A journal that is pruned as the engine does it, but without snapshots in between.
fn journal(path: &Path, digests: u64, durability: Durability, pause: Duration) -> Commit {
    let options = StoreOptions {
        sync_snapshots: durability == Durability::Fsync,
        record_sync_pause: pause,
        ..StoreOptions::default()
    };
    let store = Arc::new(Store::open(path, &options).unwrap());
    let options = LocalOptions {
        durability,
        ..LocalOptions::default()
    };
    let mut journal = LocalJournal::open(store, options).unwrap();
    let mut number = 0u64;
    Box::new(move || {
        number += 1;
        let digests = (0..digests)
            .map(|index| Digest(number << 32 | index))
            .collect();
        let command = Command::Insert {
            target: Target(FilterId(1)),
            digests: Digests(digests),
            if_absent: false,
            revive: false,
        };
        let last = journal.last();
        let proposal = Proposal::new(Timestamp(number), command);
        journal.propose(Ticket(number), vec![proposal]).unwrap();
        let committed = journal.poll(
            last,
            Instant::now(),
            &mut Context::from_waker(Waker::noop()),
        );
        assert!(
            matches!(committed, Poll::Ready(Ok(Delivery::Entries(committed))) if committed.len() == 1)
        );
    })
}
