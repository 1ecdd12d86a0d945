//! The journal of a single node: group commits in the store's trees. [`Journal::propose`] returns after the commit.

mod acknowledged;
mod log;

use super::{
    Committed, Delivery, Durability, Journal, JournalError, Result, Ticket, check_space,
    check_understood,
};
use crate::store::{Store, StoreError};
use acknowledged::AcknowledgedRecord;
use cuckood_state::domain::{Entry, Proposal, Seq};
use cuckood_state::frame::encode;
use log::Log;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Maximum time for which an immediately acknowledged commit may stay unflushed.
const RELAXED_FLUSH_DELAY: Duration = Duration::from_millis(100);

/// Approximate size of an entry in the log, in bytes, before it is encoded.
const ENTRY_BYTES: usize = 64;

/// Options of a single node's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalOptions {
    /// The crashes that an acknowledged write survives.
    pub durability: Durability,
    /// Bytes of log after which a new segment starts; each commit counts as half a kilobyte more. Segments are dropped in one step.
    pub segment_bytes: u64,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self {
            durability: Durability::Fsync,
            segment_bytes: 8 << 20,
        }
    }
}

impl LocalOptions {
    /// The defaults at this durability.
    pub fn at(durability: Durability) -> Self {
        Self {
            durability,
            ..Self::default()
        }
    }
}

/// Writes to the log of a [`Store`].
pub struct LocalJournal {
    store: Arc<Store>,
    options: LocalOptions,
    log: Log,
    acknowledged: AcknowledgedRecord,
    /// Committed, but not polled yet.
    committed: Vec<Committed>,
    /// Commits were acknowledged before a flush.
    is_unflushed: bool,
    /// When they must be flushed; `None` until the next poll.
    flush_at: Option<Instant>,
    /// [`Delivery::Current`] was delivered.
    is_current: bool,
    /// The last barrier that is not passed.
    barrier: Option<Ticket>,
}

/// Whether the directory has a local log.
pub fn has_log(store: &Store) -> bool {
    !log::segments(store).is_empty()
}

impl LocalJournal {
    /// Opens the log, finds its end and syncs it unless it was: readers will see all of it, and no crash may take it back. A new directory
    /// counts as used from here on.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if something acknowledged is missing.
    pub fn open(store: Arc<Store>, options: LocalOptions) -> Result<Self, StoreError> {
        let acknowledged = AcknowledgedRecord::load(&store)?;
        let log = Log::open(store.clone(), acknowledged.last())?;
        let committed = Vec::new();
        let is_current = false;
        let barrier = None;
        let mut journal = LocalJournal {
            store,
            options,
            log,
            acknowledged,
            committed,
            is_unflushed: false,
            flush_at: None,
            is_current,
            barrier,
        };
        if journal.store.is_new() || journal.log.end() != journal.acknowledged.synced() {
            journal.acknowledge(true)?;
            journal.store.change(|backing| backing.sync_record())?;
        }
        journal.store.begin_use()?;
        Ok(journal)
    }

    /// Creates the journal of a new directory, whose log starts after `after`: for a restore.
    ///
    /// # Errors
    /// Those of [`LocalJournal::open`], and [`StoreError::Misuse`] if the directory was used before.
    pub fn begin_after(
        store: Arc<Store>,
        after: Seq,
        options: LocalOptions,
    ) -> Result<Self, StoreError> {
        if !store.is_new() {
            return Err(StoreError::Misuse(
                "a log that was used can't be given a new beginning".to_owned(),
            ));
        }
        log::set_base(&store, after)?;
        LocalJournal::open(store, options)
    }

    /// Proposes a batch and returns it committed: for a caller that has the journal to itself and has polled everything before.
    ///
    /// # Errors
    /// Those of [`Journal::propose`].
    pub fn append(&mut self, batch: Vec<Proposal>) -> Result<Vec<Committed>> {
        self.propose(Ticket(0), batch)?;
        Ok(std::mem::take(&mut self.committed))
    }

    /// Makes everything that is committed survive the process, and the machine if `is_synced`. Records that it is about to be acknowledged.
    fn acknowledge(&mut self, is_synced: bool) -> Result<(), StoreError> {
        self.is_unflushed = false;
        self.flush_at = None;
        self.store.flush()?;
        if is_synced {
            self.store.sync()?;
        }
        self.acknowledged
            .note(&self.store, self.log.end(), is_synced)
    }

    /// The position of the last entry; 0 if there never was one.
    pub fn last(&self) -> Seq {
        self.log.end().seq
    }

    /// The first position that can be read; the one after [`Self::last`] if there is none.
    pub fn first_available(&self) -> Seq {
        self.log.first()
    }
}

impl Journal for LocalJournal {
    fn propose(&mut self, first: Ticket, batch: Vec<Proposal>) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        check_space(&self.store, &batch)?;
        let begin = self.last().next();
        let count = batch.len() as u32;
        let mut commit = encode(&count);
        commit.reserve(batch.len() * ENTRY_BYTES);
        for proposal in &batch {
            // Every command can be encoded, so a failure means that memory ran out.
            commit = postcard::to_extend(proposal, commit).map_err(|error| {
                JournalError::Failed(format!("a command can't be encoded: {error}"))
            })?;
        }
        self.log
            .append(count, &commit, self.options.segment_bytes)?;
        match self.options.durability {
            Durability::Fsync => self.acknowledge(true)?,
            Durability::Flush => self.acknowledge(false)?,
            Durability::Relaxed => self.is_unflushed = true,
        }
        self.committed.extend(
            batch
                .into_iter()
                .zip(0..)
                .map(|(proposal, offset)| Committed {
                    entry: Entry {
                        seq: Seq(begin.0 + offset),
                        proposal,
                    },
                    ticket: Some(Ticket(first.0 + offset)),
                }),
        );
        Ok(())
    }

    fn poll(&mut self, after: Seq, now: Instant, _: &mut Context<'_>) -> Poll<Result<Delivery>> {
        if self.is_unflushed {
            let flush_at = *self.flush_at.get_or_insert(now + RELAXED_FLUSH_DELAY);
            if flush_at <= now {
                self.acknowledge(false)?;
            }
        }
        if !self.committed.is_empty() {
            let next = self.committed[0].entry.seq;
            debug_assert_eq!(
                next,
                after.next(),
                "a batch is applied before the next one is proposed"
            );
            return Poll::Ready(Ok(Delivery::Entries(std::mem::take(&mut self.committed))));
        }
        if after != self.last() {
            self.is_current = false;
            let entries = self.log.read(after)?;
            check_understood(&entries)?;
            let committed = entries.into_iter().map(|entry| Committed {
                entry,
                ticket: None,
            });
            return Poll::Ready(Ok(Delivery::Entries(committed.collect())));
        }
        if !std::mem::replace(&mut self.is_current, true) {
            return Poll::Ready(Ok(Delivery::Current));
        }
        self.barrier.take().map_or(Poll::Pending, |barrier| {
            Poll::Ready(Ok(Delivery::Passed(barrier)))
        })
    }

    fn wake_at(&self, now: Instant) -> Option<Instant> {
        let flush_at = self.flush_at.unwrap_or(now + RELAXED_FLUSH_DELAY);
        self.is_unflushed.then_some(flush_at)
    }

    fn barrier(&mut self, barrier: Ticket) {
        self.barrier = Some(barrier);
    }

    fn prune(&mut self, through: Seq, budget: u64) -> Result<bool> {
        Ok(self.log.prune(through, budget)?)
    }

    fn settle(&mut self) -> Result<()> {
        self.acknowledge(true)?;
        Ok(self.store.change(|backing| backing.sync_record())?)
    }
}
