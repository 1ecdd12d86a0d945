//! Commands, options and small data directories for the tests of the store and the journal.

use cuckood::domain::{ClockReading, Command, Digests, Entry, FilterId, Proposal, Seq, Target, Timestamp};
use cuckood::filter::Digest;
use cuckood::journal::{Committed, Durability, Journal, JournalError, LocalJournal, LocalOptions, Ticket};
use cuckood::store::{Store, StoreError, StoreOptions};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// What the clocks may say at a restore.
pub const CLOCK: ClockReading = ClockReading { wall: Timestamp(1_800_000_000_000), uptime: Duration::ZERO };

/// Small segments, no reserve: a test's directory is small and short-lived.
pub fn options(durability: Durability) -> StoreOptions {
    StoreOptions {
        sync_snapshots: durability == Durability::Fsync,
        free_space_min_bytes: 0,
        ballast_bytes: 1 << 20,
        open_timeout: Duration::from_secs(20),
        preallocate_bytes: 16 << 20,
        cache_bytes: 8 << 20,
        ..StoreOptions::default()
    }
}

pub fn open(dir: &Path) -> Arc<Store> {
    Arc::new(Store::open(dir, &options(Durability::Fsync)).unwrap())
}

/// The journal of a store, with small segments.
pub fn open_journal(store: &Arc<Store>) -> Result<LocalJournal, StoreError> {
    open_journal_at(store, Durability::Fsync)
}

/// The same at any durability.
pub fn open_journal_at(store: &Arc<Store>, durability: Durability) -> Result<LocalJournal, StoreError> {
    LocalJournal::open(store.clone(), LocalOptions { durability, segment_bytes: 64 << 10 })
}

/// Proposes a batch and polls what came of it.
pub fn append(journal: &mut dyn Journal, batch: Vec<Proposal>) -> Result<Vec<Committed>, JournalError> {
    let last = journal.last();
    journal.propose(Ticket(1_000), batch)?;
    match journal.poll(last, &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(committed) => committed,
        Poll::Pending => Ok(Vec::new()),
    }
}

/// A command of so many digests that tells itself from every other of its `number`.
pub fn proposal(number: u64, digests: u64) -> Proposal {
    let digests = (0..digests).map(|index| Digest(number << 32 | index)).collect();
    let command = Command::Insert {
        target: Target(FilterId(number)),
        digests: Digests(digests),
        if_absent: false,
        revive: false,
    };
    Proposal::new(Timestamp(number), command)
}

pub fn entries(journal: &mut dyn Journal, after: u64) -> Result<Vec<Entry>, JournalError> {
    let mut entries = Vec::new();
    journal.read(Seq(after), &mut |entry| {
        entries.push(entry);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(entries)
}
