//! The journal of a single node: group commits in the store's trees. [`Journal::propose`] returns after the commit.

mod acknowledged;
mod log;

use super::{
    Committed, Delivery, Durability, Journal, JournalError, Ticket, check_space, check_understood,
    decode_entries,
};
use crate::domain::{Entry, FORMAT_VERSION, Proposal, Seq};
use crate::store::Removal;
use crate::store::{Store, StoreError};
use acknowledged::AcknowledgedRecord;
use log::{Commit, Link, Tail};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// How long a commit that was acknowledged at once may stay unflushed.
const RELAXED_PATIENCE: Duration = Duration::from_millis(100);

/// Bytes of commits that are read together.
const READ_BYTES: usize = 1 << 20;

/// Approximate size of an entry in the log, in bytes, before it is encoded.
const ENTRY_BYTES: usize = 64;

/// Options of a single node's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalOptions {
    /// What an acknowledged write survives.
    pub durability: Durability,
    /// Bytes of log after which a new segment begins; each value counts as half a kilobyte more. Segments are dropped as a whole.
    pub segment_bytes: u64,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self { durability: Durability::Fsync, segment_bytes: 8 << 20 }
    }
}

impl LocalOptions {
    /// The defaults at this durability.
    pub fn at(durability: Durability) -> Self {
        Self { durability, ..Self::default() }
    }
}

/// Writes to the log of a [`Store`].
pub struct LocalJournal {
    store: Arc<Store>,
    options: LocalOptions,
    tail: Tail,
    acknowledged: AcknowledgedRecord,
    /// Committed, but not polled yet.
    committed: Vec<Committed>,
    /// When the commits that were acknowledged before a flush must be flushed.
    flush_at: Option<Instant>,
    /// Where the last read stopped.
    read_to: Option<Link>,
    /// [`Delivery::Current`] was delivered.
    is_current: bool,
    /// The last barrier that is not passed.
    barrier: Option<Ticket>,
    /// The segment that is being removed.
    removal: Option<Removal>,
}

/// Whether the directory has a local log.
pub(super) fn has_log(store: &Store) -> bool {
    !log::segments(store).is_empty()
}

impl LocalJournal {
    /// Opens the log and finds its end. A new directory counts as used from here on.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if something acknowledged is missing.
    pub fn open(store: Arc<Store>, options: LocalOptions) -> Result<LocalJournal, StoreError> {
        let acknowledged = AcknowledgedRecord::load(&store)?;
        let tail = Tail::find(&store, acknowledged.last())?;
        store.begin_use()?;
        Ok(LocalJournal {
            store,
            options,
            tail,
            acknowledged,
            committed: Vec::new(),
            flush_at: None,
            read_to: None,
            is_current: false,
            barrier: None,
            removal: None,
        })
    }

    /// Creates the journal of a new directory, whose log begins behind `after`: for a restore.
    ///
    /// # Errors
    /// Those of [`LocalJournal::open`], and [`StoreError::Misuse`] if the directory was used before.
    pub fn begin_after(
        store: Arc<Store>,
        after: Seq,
        options: LocalOptions,
    ) -> Result<LocalJournal, StoreError> {
        if !store.is_new() {
            return Err(StoreError::Misuse("a log that was used can't be given a new beginning".to_owned()));
        }
        log::set_base(&store, after)?;
        LocalJournal::open(store, options)
    }

    /// The last position that was acknowledged.
    pub fn acknowledged(&self) -> Seq {
        self.acknowledged.last().seq
    }

    /// Proposes a batch and returns it committed: for a caller that has the journal to itself and has polled everything before.
    ///
    /// # Errors
    /// Those of [`Journal::propose`].
    pub fn append(&mut self, batch: Vec<Proposal>) -> Result<Vec<Committed>, JournalError> {
        self.propose(Ticket(0), batch)?;
        Ok(std::mem::take(&mut self.committed))
    }

    /// Makes the last commit durable at the configured level, and records that it is about to be acknowledged.
    fn commit(&mut self) -> Result<(), StoreError> {
        let is_synced = match self.options.durability {
            Durability::Relaxed => {
                self.flush_at.get_or_insert_with(|| Instant::now() + RELAXED_PATIENCE);
                return Ok(());
            }
            Durability::Flush => false,
            Durability::Fsync => true,
        };
        self.store.flush()?;
        if is_synced {
            self.store.sync()?;
        }
        self.acknowledged.note(&self.store, self.tail.link(), is_synced)
    }

    /// Reads entries after `after`, up to the known end at most. What a failed append has left behind the end is for the next start to
    /// judge.
    fn read(&mut self, after: Seq) -> Result<Vec<Committed>, JournalError> {
        let (store, tail) = (self.store.clone(), self.tail.link());
        let (mut committed, mut bytes) = (Vec::new(), 0);
        let mut sink = |commit: Commit<'_>, link: Link| -> Result<ControlFlow<()>, JournalError> {
            if commit.first > tail.seq || bytes >= READ_BYTES {
                return Ok(ControlFlow::Break(()));
            }
            if link.seq == tail.seq && link != tail {
                return Err(store.damaged("the log does not end as it did when it was opened").into());
            }
            let entries = decode_entries(commit.first, commit.entries.into(), commit.payload);
            let entries = entries.map_err(|why| {
                store.damaged(format!("positions {} to {} of the log: {why}", commit.first.0, link.seq.0))
            })?;
            bytes += commit.payload.len();
            let new = entries.into_iter().filter(|entry| entry.seq > after);
            committed.extend(new.map(|entry| Committed { entry, ticket: None }));
            Ok(ControlFlow::Continue(()))
        };
        let end = log::read(&self.store, self.acknowledged.last(), after, self.read_to, &mut sink)?;
        self.read_to = Some(end);
        check_understood(committed.iter().map(|one| &one.entry), FORMAT_VERSION)?;
        Ok(committed)
    }

    /// The position of the last entry; 0 if there never was one.
    pub fn last(&self) -> Seq {
        self.tail.link().seq
    }

    /// The first position that can be read; the one after [`Self::last`] if there is none.
    pub fn first_available(&self) -> Seq {
        log::segments(&self.store).first().copied().unwrap_or(self.last().next())
    }

    /// Whether the log reaches back to its beginning, or to the backup that it was restored from.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the log's beginning can't be read.
    pub fn is_whole(&self) -> Result<bool, StoreError> {
        Ok(self.first_available() == log::base(&self.store)?.seq.next())
    }
}

impl Journal for LocalJournal {
    fn propose(&mut self, first: Ticket, batch: Vec<Proposal>) -> Result<(), JournalError> {
        if batch.is_empty() {
            return Ok(());
        }
        check_space(&self.store, &batch)?;
        let mut payload = Vec::with_capacity(batch.len() * ENTRY_BYTES);
        for proposal in &batch {
            // Every command can be encoded, so a failure means that memory ran out.
            payload = postcard::to_extend(proposal, payload)
                .map_err(|error| JournalError::Failed(format!("a command can't be encoded: {error}")))?;
        }
        let begin = self.tail.link().seq.next();
        self.tail.append(&self.store, self.options.segment_bytes, batch.len() as u32, &payload)?;
        self.commit()?;
        self.committed.extend(batch.into_iter().zip(0..).map(|(proposal, offset)| Committed {
            entry: Entry { seq: Seq(begin.0 + offset), proposal },
            ticket: Some(Ticket(first.0 + offset)),
        }));
        Ok(())
    }

    fn poll(&mut self, after: Seq, _: &mut Context<'_>) -> Poll<Result<Delivery, JournalError>> {
        if self.flush_at.is_some_and(|at| at <= Instant::now()) {
            self.flush_at = None;
            self.store.flush()?;
        }
        if !self.committed.is_empty() {
            let next = self.committed[0].entry.seq;
            debug_assert_eq!(next, after.next(), "a batch is applied before the next one is proposed");
            return Poll::Ready(Ok(Delivery::Entries(std::mem::take(&mut self.committed))));
        }
        if after != self.last() {
            self.is_current = false;
            return Poll::Ready(self.read(after).map(Delivery::Entries));
        }
        if !std::mem::replace(&mut self.is_current, true) {
            return Poll::Ready(Ok(Delivery::Current));
        }
        self.barrier.take().map_or(Poll::Pending, |barrier| Poll::Ready(Ok(Delivery::Passed(barrier))))
    }

    fn wake_at(&self) -> Option<Instant> {
        self.flush_at
    }

    fn barrier(&mut self, barrier: Ticket) -> Result<(), JournalError> {
        self.barrier = Some(barrier);
        Ok(())
    }

    fn place(&self) -> Vec<u8> {
        Vec::new()
    }

    fn prune(&mut self, through: Seq, budget: u64) -> Result<bool, JournalError> {
        let oldest = || log::prunable(&self.store, through).map(Removal::new);
        let Some(mut removal) = self.removal.take().or_else(oldest) else { return Ok(false) };
        if removal.step(&self.store, budget)? {
            self.removal = Some(removal);
        }
        Ok(true)
    }

    fn settle(&mut self) -> Result<(), JournalError> {
        self.flush_at = None;
        self.store.flush()?;
        self.store.sync()?;
        self.acknowledged.note(&self.store, self.tail.link(), true)?;
        Ok(self.store.sync_record()?)
    }
}
