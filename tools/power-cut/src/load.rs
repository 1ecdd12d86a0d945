//! The load that runs while the power is cut: the log, the state that it makes, and snapshots of that all the time. A restored directory
//! is made from a backup of another one first.

use crate::log::{Log, time};
use cuckood::engine::event_log::EventLog;
use cuckood::engine::recovery::recover;
use cuckood::engine::{self, RunningSnapshot};
use cuckood_log::journal::{Durability, Journal, LocalJournal, LocalOptions};
use cuckood_log::store::{Store, StoreOptions};
use cuckood_state::State;
use cuckood_state::domain::ClockReading;
use std::error::Error;
use std::fs::File;
use std::io::{Stdout, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The prefix of the load's output before the position at which it restores a directory.
pub const RESTORING: &str = "restoring ";

/// Bytes of a snapshot that are written between two commits, or of log, earlier snapshots and old events that are removed.
const STEP_BYTES: u64 = 64 << 10;

fn options() -> StoreOptions {
    StoreOptions {
        free_space_min_bytes: 0,
        ballast_bytes: 0,
        preallocate_bytes: 16 << 20,
        cache_bytes: 16 << 20,
        ..StoreOptions::default()
    }
}

/// Opens a directory and its log.
pub fn open(
    dir: &Path,
    durability: Durability,
) -> Result<(Arc<Store>, LocalJournal), Box<dyn Error>> {
    let store = Arc::new(Store::open(dir, &options())?);
    let options = LocalOptions {
        segment_bytes: 1 << 20,
        ..LocalOptions::at(durability)
    };
    let journal = LocalJournal::open(store.clone(), options)?;
    Ok((store, journal))
}

/// Restores a new directory from a backup of another one. Prints the last position of the backup before, and that of the new log after.
pub fn restore(
    source: &Path,
    dir: &Path,
    durability: Durability,
    mut log: Log,
) -> Result<Log, Box<dyn Error>> {
    let backup = source.with_file_name("backup");
    let last = back_up(source, &backup, durability)?;
    println!("{last}\n{RESTORING}{}", last + 1);
    log.0.push(last + 1);
    let clock = ClockReading {
        wall: time(last + 1),
        uptime: Duration::ZERO,
    };
    println!(
        "{}",
        engine::restore(&backup, dir, &options(), clock, |archive| archive)?.0
    );
    Ok(log)
}

/// Writes a backup of a directory, and returns the last position in it.
fn back_up(dir: &Path, to: &Path, durability: Durability) -> Result<u64, Box<dyn Error>> {
    let (store, mut journal) = open(dir, durability)?;
    let mut recovered = recover(&store, &mut journal, &mut |_| ())?;
    let now = recovered.state.now();
    let snapshot = recovered.take_snapshot(&store, now)?;
    let last = snapshot.seq.0;
    let mut file = File::create(to)?;
    let mut parts = engine::archive(Arc::new(snapshot));
    while let Some(part) = parts(&store)? {
        file.write_all(&part)?;
    }
    file.sync_all()?;
    Ok(last)
}

/// Commits and applies entries until the process is killed. Prints every position that was acknowledged.
pub fn run(dir: &Path, durability: Durability, log: Log) -> Result<(), Box<dyn Error>> {
    let (store, mut journal) = open(dir, durability)?;
    let recovered = recover(&store, &mut journal, &mut |_| ())?;
    let state = recovered.state;
    let events = recovered.events;
    let mut latest = recovered.manifest;
    let mut load = Load {
        store: store.clone(),
        journal,
        state,
        events,
        log,
        out: std::io::stdout(),
    };
    loop {
        // An empty state's snapshot is complete immediately.
        load.commit()?;
        let now = load.state.now();
        let state = &mut load.state;
        let events = &mut load.events;
        let mut running =
            RunningSnapshot::begin(&store, state, events, latest.as_ref(), Vec::new(), now)?;
        while !running.is_complete() {
            load.commit()?;
            running.write(&store, STEP_BYTES)?;
        }
        latest = Some(running.finish(&store)?);
        load.remove_leftovers()?;
    }
}

struct Load {
    store: Arc<Store>,
    journal: LocalJournal,
    state: State,
    events: EventLog,
    log: Log,
    out: Stdout,
}

impl Load {
    /// Commits up to seven entries.
    fn commit(&mut self) -> Result<(), Box<dyn Error>> {
        let next = self.journal.last().0 + 1;
        let batch = (next..=next + next % 7)
            .map(|position| self.log.entry(position).proposal)
            .collect();
        for committed in self.journal.append(batch)? {
            self.state.apply(committed.entry);
            self.events.take(&self.store, &mut self.state)?;
        }
        self.state.free_discarded(1_000);
        writeln!(self.out, "{}", self.journal.last().0)?;
        Ok(())
    }

    /// Removes data that the newest snapshot has made superfluous, and expired events, between commits.
    fn remove_leftovers(&mut self) -> Result<(), Box<dyn Error>> {
        let store = self.store.clone();
        let through = store.sweep()?.log_through;
        while self.journal.prune(through, STEP_BYTES)? {
            self.commit()?;
        }
        let mut sweep = store.sweep()?;
        while sweep.step(&store, STEP_BYTES)? {
            self.commit()?;
        }
        while self.events.has_old(self.state.now()) {
            self.events
                .remove_old(&store, self.state.now(), STEP_BYTES)?;
            self.commit()?;
        }
        Ok(())
    }
}
