//! Histories of a whole cluster in one thread: the real writer, state, snapshots, recovery and order of the log, over simulated servers,
//! disks and clocks. A seed decides everything, so it repeats its history exactly.
//!
//! `SIM_SEED=N` runs one seed and prints its history, of `SIM_STEPS=N` steps if given. `SEEDS=N` runs N fresh seeds.
//!
//! No crate for simulations is used: turmoil and madsim replace an asynchronous runtime and its network, and shuttle the interleavings of
//! threads, but the writer is a function that one thread calls. Not simulated: the client of NATS (`link.rs`, `reader.rs`), the upload of
//! shared snapshots, the protocols, and sled.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub
)] // A failed `unwrap` fails the test; nothing here is public outside.

mod clients;
mod history;
mod node;
#[path = "../support/mod.rs"]
mod support;
mod world;

use cuckood::engine::applying::Unappliable;
use cuckood_log::journal::random;
use std::env;
use std::panic::{catch_unwind, resume_unwind};
use std::time::Instant;
use support::engines;
use world::{Counts, STEPS};

/// The seeds of each run of the tests: always the same, so that an old and rare bug never blocks another change.
const FIXED: std::ops::Range<u64> = 0..120;

fn number(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
}

/// Runs a seed. If it fails, runs shorter histories of it, and says how to repeat the shortest that fails, too.
fn run(seed: u64) -> Counts {
    let failure = match catch_unwind(|| world::run(seed, None, false)) {
        Ok(counts) => return counts,
        Err(failure) => failure,
    };
    if let Some(unappliable) = failure.downcast_ref::<Unappliable>() {
        println!("{unappliable}");
    }
    let fails = |steps: &u64| catch_unwind(|| world::run(seed, Some(*steps), false)).is_err();
    let steps = (0..STEPS.end).step_by(25).find(fails);
    let steps = steps.map_or(String::new(), |steps| format!(" SIM_STEPS={steps}"));
    println!("seed {seed} fails; repeat it, and print its history, with");
    println!(
        "    SIM_SEED={seed}{steps} make test WHAT=simulation; cat target/test/simulation.log"
    );
    resume_unwind(failure)
}

#[test]
fn histories_of_seeds_keep_all_promises() {
    if let Some(seed) = number("SIM_SEED") {
        println!("{:#?}", world::run(seed, number("SIM_STEPS"), true));
        return;
    }
    let first = u64::from_le_bytes(random()) >> 1;
    let seeds = number("SEEDS").map_or(FIXED, |count| first..first + count);
    let began = Instant::now();
    let mut count = 0;
    let mut total = Counts::default();
    for seed in seeds {
        let counts = run(seed);
        count += 1;
        total.add(&counts);
    }
    println!("{count} histories in {:?}\n{total:#?}", began.elapsed());
}

/// Otherwise a seed would not repeat what it has found.
#[test]
fn seed_repeats_its_history() {
    for seed in 0..3 {
        let repeat = || format!("{:?}", world::run(seed, None, false));
        assert_eq!(repeat(), repeat());
    }
}
