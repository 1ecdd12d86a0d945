//! A journal in memory, which ends with the process: for tests and for models.

use super::{Committed, Journal, JournalError};
use crate::domain::{Entry, Proposal, Seq};
use std::collections::VecDeque;

/// Keeps the entries that were not pruned.
#[derive(Clone, Debug, Default)]
pub struct MemoryJournal {
    entries: VecDeque<Entry>,
    last: Seq,
}

impl MemoryJournal {
    /// An empty log.
    pub fn new() -> MemoryJournal {
        MemoryJournal::default()
    }
}

impl Journal for MemoryJournal {
    fn append(&mut self, batch: Vec<Proposal>) -> Result<Vec<Committed>, JournalError> {
        let mut committed = Vec::with_capacity(batch.len());
        for (ticket, proposal) in batch.into_iter().enumerate() {
            self.last = self.last.next();
            let entry = Entry { seq: self.last, proposal };
            self.entries.push_back(entry.clone());
            committed.push(Committed { entry, ticket: Some(ticket) });
        }
        Ok(committed)
    }

    fn read_from(
        &mut self,
        after: Seq,
        sink: &mut dyn FnMut(Entry) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let first = self.first_available();
        if after.next() < first || after > self.last {
            let last = self.last.0;
            let what = format!("the log holds positions {} to {last}, not {}", first.0, after.0 + 1);
            return Err(JournalError::Damaged(what));
        }
        let skipped = (after.0 + 1 - first.0) as usize;
        self.entries.iter().skip(skipped).try_for_each(|entry| sink(entry.clone()))
    }

    fn prune(&mut self, through: Seq, _budget: u64) -> Result<bool, JournalError> {
        while self.entries.front().is_some_and(|entry| entry.seq <= through) {
            self.entries.pop_front();
        }
        Ok(false)
    }

    fn settle(&mut self) -> Result<(), JournalError> {
        Ok(())
    }

    fn last(&self) -> Seq {
        self.last
    }

    fn first_available(&self) -> Seq {
        self.entries.front().map_or(self.last.next(), |entry| entry.seq)
    }
}
