//! The journal of a single node: group commits in the store's log.

use super::{Committed, Journal, JournalError};
use crate::domain::{Entry, Proposal, Seq};
use crate::store::log::{self, Tail};
use crate::store::removal::Removal;
use crate::store::{Store, StoreError};
use std::sync::Arc;

/// Writes to the log of a [`Store`].
pub struct LocalJournal {
    store: Arc<Store>,
    tail: Tail,
    /// The segment that is being removed.
    removal: Option<Removal>,
    /// Whether the last append found the disk too full.
    was_full: bool,
}

impl LocalJournal {
    /// Finds the end of the log.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if something that was acknowledged is not there.
    pub fn open(store: Arc<Store>) -> Result<LocalJournal, StoreError> {
        let tail = Tail::find(&store)?;
        Ok(LocalJournal { store, tail, removal: None, was_full: false })
    }

    fn check_space(&mut self) -> Result<(), StoreError> {
        let was_full = self.was_full;
        let checked = self.store.check_space();
        self.was_full = checked.is_err();
        if was_full && !self.was_full {
            self.store.take_ballast();
        }
        checked
    }
}

impl Journal for LocalJournal {
    fn append(&mut self, batch: Vec<Proposal>) -> Result<Vec<Committed>, JournalError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        self.check_space()?;
        let mut payload = Vec::with_capacity(batch.len() * 64);
        for proposal in &batch {
            // Every type of a command can be encoded; a failure would be one of memory.
            payload = postcard::to_extend(proposal, payload)
                .map_err(|error| JournalError::Failed(format!("a command can't be encoded: {error}")))?;
        }
        let first = self.tail.link().seq.next();
        self.tail.append(&self.store, batch.len() as u32, &payload)?;
        self.store.commit(self.tail.link())?;
        let committed = batch.into_iter().enumerate().map(|(ticket, proposal)| {
            let entry = Entry { seq: Seq(first.0 + ticket as u64), proposal };
            Committed { entry, ticket: Some(ticket) }
        });
        Ok(committed.collect())
    }

    fn read_from(
        &mut self,
        after: Seq,
        sink: &mut dyn FnMut(Entry) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let tail = self.tail.link();
        log::read(&self.store, after, |commit, link| {
            if commit.first > tail.seq {
                // Written by an append that failed: whether it counts is for the next start to say.
                return Ok(());
            }
            if link.seq == tail.seq && link != tail {
                return Err(self.store.damaged("the log does not end as it did when it was opened").into());
            }
            let mut payload = commit.payload;
            for offset in 0..u64::from(commit.entries) {
                let seq = Seq(commit.first.0 + offset);
                let (proposal, rest) = postcard::take_from_bytes::<Proposal>(payload)
                    .map_err(|error| self.store.damaged(format!("position {} of the log: {error}", seq.0)))?;
                payload = rest;
                if seq > after {
                    sink(Entry { seq, proposal })?;
                }
            }
            if !payload.is_empty() {
                let what = format!("position {} of the log has bytes too many", commit.last().0);
                return Err(self.store.damaged(what).into());
            }
            Ok::<(), JournalError>(())
        })?;
        Ok(())
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
        Ok(self.store.settle(self.tail.link())?)
    }

    fn last(&self) -> Seq {
        self.tail.link().seq
    }

    fn first_available(&self) -> Seq {
        log::first_available(&self.store).unwrap_or(self.last().next())
    }
}
