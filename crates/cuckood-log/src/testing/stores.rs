//! Commands, options and small data directories for the tests of the store and the journal.

use crate::journal::{
    Committed, Delivery, Durability, Journal, JournalError, LocalJournal, LocalOptions, Ticket,
};
use crate::store::{Store, StoreError, StoreOptions};
use cuckood_filter::Digest;
use cuckood_state::domain::{
    ClockReading, Command, Digests, Entry, FilterId, Proposal, Seq, Target, Timestamp,
};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Readings of the clocks at a restore.
pub const CLOCK: ClockReading = ClockReading {
    wall: Timestamp(1_800_000_000_000),
    uptime: Duration::ZERO,
};

/// Maximum time for a directory to open, and for a poll to return entries: longer than a busy machine's disk stalls.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Small segments, no reserve: a test's directory is small and short-lived.
pub fn options(durability: Durability) -> StoreOptions {
    StoreOptions {
        sync_snapshots: durability == Durability::Fsync,
        free_space_min_bytes: 0,
        ballast_bytes: 1 << 20,
        open_timeout: TIMEOUT,
        preallocate_bytes: 0,
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
pub fn open_journal_at(
    store: &Arc<Store>,
    durability: Durability,
) -> Result<LocalJournal, StoreError> {
    LocalJournal::open(
        store.clone(),
        LocalOptions {
            durability,
            segment_bytes: 64 << 10,
        },
    )
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A journal that says up to where it has delivered its log, or what its log has.
pub trait Positioned: Journal {
    fn position(&self) -> Seq;
}

impl Positioned for LocalJournal {
    fn position(&self) -> Seq {
        self.last()
    }
}

/// Waits until the journal has news or is due to be polled.
fn park<J: Journal + ?Sized>(journal: &J, until: Instant) {
    let now = Instant::now();
    let until = journal.wake_at(now).map_or(until, |at| at.min(until));
    thread::park_timeout(until.saturating_duration_since(now));
}

/// Polls until this many entries after `last` have arrived, waiting for them.
pub fn poll<J: Journal + ?Sized>(
    journal: &mut J,
    mut last: Seq,
    count: usize,
) -> Result<Vec<Committed>, JournalError> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut committed = Vec::new();
    let until = Instant::now() + TIMEOUT;
    while committed.len() < count {
        match journal.poll(last, Instant::now(), &mut Context::from_waker(&waker)) {
            Poll::Ready(delivery) => match delivery? {
                Delivery::Entries(more) => committed.extend(more),
                Delivery::Current | Delivery::Passed(_) => {}
            },
            Poll::Pending => park(journal, until),
        }
        assert!(
            Instant::now() < until,
            "{} of {count} entries have come behind {last:?}",
            committed.len()
        );
        last = committed
            .last()
            .map_or(last, |committed: &Committed| committed.entry.seq);
    }
    Ok(committed)
}

/// Proposes a batch and polls its entries.
pub fn append<J: Positioned + ?Sized>(
    journal: &mut J,
    batch: Vec<Proposal>,
) -> Result<Vec<Committed>, JournalError> {
    let last = journal.position();
    let count = batch.len();
    journal.propose(Ticket(1_000), batch)?;
    poll(journal, last, count)
}

/// Returns a command of this many digests that differs from that of every other `number`.
pub fn proposal(number: u64, digests: u64) -> Proposal {
    let digests = (0..digests)
        .map(|index| Digest(number << 32 | index))
        .collect();
    let command = Command::Insert {
        target: Target(FilterId(number)),
        digests: Digests(digests),
        if_absent: false,
        revive: false,
    };
    Proposal::new(Timestamp(number), command)
}

/// The entries after a position.
pub fn entries<J: Journal + ?Sized>(
    journal: &mut J,
    after: u64,
) -> Result<Vec<Entry>, JournalError> {
    static BARRIERS: AtomicU64 = AtomicU64::new(1);
    let barrier = Ticket(BARRIERS.fetch_add(1, Ordering::Relaxed));
    journal.barrier(barrier);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut entries = Vec::new();
    let mut last = Seq(after);
    let until = Instant::now() + TIMEOUT;
    loop {
        match journal.poll(last, Instant::now(), &mut Context::from_waker(&waker)) {
            Poll::Ready(delivery) => match delivery? {
                Delivery::Entries(more) => {
                    entries.extend(more.into_iter().map(|committed| committed.entry))
                }
                Delivery::Passed(passed) if passed == barrier => return Ok(entries),
                Delivery::Current | Delivery::Passed(_) => {}
            },
            Poll::Pending => park(journal, until),
        }
        assert!(Instant::now() < until, "the log's end has not come");
        last = entries.last().map_or(last, |entry: &Entry| entry.seq);
    }
}

pub fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
