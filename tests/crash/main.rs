//! The real program is killed under load, again and again: nothing acknowledged is lost, nothing is half-done, and
//! every code has one winner. After every start each filter is compared with a model of it.
//!
//! `CRASH_KILLS` says how often (100 if it is unset), `CRASH_SEED` repeats a run's choices, `CUCKOOD_PROGRAM` names
//! another program to be killed.

#![allow(missing_docs, clippy::unwrap_used, unreachable_pub)] // A failed `unwrap` fails the test; nothing here is public outside.

mod check;
mod contest;
mod events;
mod generator;
mod line_ups;
mod model;
mod operation;
mod recovery;
mod resources;
mod soak;
#[path = "../support/mod.rs"]
mod support;
mod upload;
mod worker;
mod world;

use cuckood_state::testing::random::Random;
use service::Service;
use std::time::Duration;
use support::service;
use world::{End, World, number};

/// Kills before a new data directory is started: the data to check grows with each.
const KILLS_PER_DIRECTORY: u64 = 20;

/// Acknowledgements before a kill, at most.
const ACKNOWLEDGED_MAX: u64 = 600;

#[test]
fn acknowledged_writes_survive_sigkill() {
    let kills = number("CRASH_KILLS").unwrap_or(100);
    let seed = number("CRASH_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("CRASH_KILLS={kills} CRASH_SEED={seed}");
    let mut random = Random::new(seed);
    let mut left = kills;
    let mut refused_unlogged = 0;
    let mut moved = 0;
    while left > 0 {
        let now = left.min(KILLS_PER_DIRECTORY);
        let mut world = World::new(&mut random);
        for _ in 0..now {
            refused_unlogged += kill_once(&mut world, &mut random);
        }
        let last = world.start();
        world.check(&last.client());
        world.check_backup(&last);
        assert!(last.terminate().success(), "SIGTERM ends it well");
        let last = world.start();
        world.check(&last.client());
        last.kill();
        world.verify();
        moved += world.workers.iter().map(|worker| worker.moved).sum::<u64>();
        left -= now;
        eprintln!(
            "{} kills survived, the last {now} at {}",
            kills - left,
            world.durability
        );
    }
    eprintln!(
        "{refused_unlogged} redemptions were refused without an entry in the log, {moved} filters moved"
    );
    assert!(refused_unlogged > 0 && moved > 0);
}

/// Kills a service under load. Returns how many redemptions it has refused without an entry in the log.
fn kill_once(world: &mut World, random: &mut Random) -> u64 {
    let service = world.start();
    world.check(&service.client());
    let enough = random.below(ACKNOWLEDGED_MAX);
    let moment = Duration::from_micros(random.below(3_000));
    let refused_unlogged = |service: &Service| service.metric("cuckood_refused_unlogged_total");
    // The metrics are read once: they may be a second old.
    let mut refused = 0;
    world.live(service, |service, acknowledgements| {
        for _ in 0..enough {
            acknowledgements
                .recv()
                .expect("a worker still gets answers");
        }
        refused = refused_unlogged(service);
        // Anywhere between one acknowledgement and the next.
        std::thread::sleep(moment);
        End::Killed
    });
    if random.below(4) == 0 {
        // Killed again before it has recovered: recovery itself must be repeatable.
        let starting = world.begin();
        std::thread::sleep(Duration::from_millis(random.below(50)));
        starting.kill();
    }
    refused
}
