//! Versions of entries: nothing is applied that this build does not understand, and nothing is enabled that another node does not.

use super::SubmitError;
use super::writer::Writer;
use crate::domain::{Command, Entry, Proposal, Seq};
use crate::journal::{Committed, JournalError, Ticket};
use crate::state::State;
use std::time::{Duration, Instant};

/// How often the writer looks what all nodes understand, until that is enabled.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Refuses an entry behind which there may be others that this build does not understand.
///
/// # Errors
/// [`JournalError::Newer`].
pub(super) fn check(entry: &Entry, understands: u16) -> Result<(), JournalError> {
    match entry.proposal.command {
        Command::Enable { version } if version > understands => {
            Err(JournalError::Newer { at: entry.seq, version, understands })
        }
        _ => Ok(()),
    }
}

fn check_enabled(needs: u16, enabled: u16) -> Result<(), SubmitError> {
    if needs > enabled { Err(SubmitError::NotEnabled { needs, enabled }) } else { Ok(()) }
}

/// Refuses a state from a snapshot, in the same way.
///
/// # Errors
/// [`JournalError::Newer`].
pub(super) fn check_state(state: &State, understands: u16) -> Result<(), JournalError> {
    let (at, version) = (state.applied(), state.format());
    if version > understands { Err(JournalError::Newer { at, version, understands }) } else { Ok(()) }
}

impl Writer {
    /// Refuses to log a command before all nodes are known to understand it.
    ///
    /// # Errors
    /// [`SubmitError::NotEnabled`].
    pub(super) fn refuse_unless_enabled(&self, command: &Command) -> Result<(), SubmitError> {
        check_enabled(command.needs(), self.state.format())
    }

    /// When to look whether every node understands more than is enabled. Nothing wakes the writer for that.
    pub(super) fn enable_wake_at(&self) -> Option<Instant> {
        self.may_enable().then(|| Instant::now() + LOOK_EVERY)
    }

    /// Nothing is enabled in an empty log before the first command: what was stamped by a clock that is wrong at a first start can't be judged
    /// later.
    fn may_enable(&self) -> bool {
        self.journal.understands() > self.state.format().max(self.sharing.enabling)
            && (self.state.applied() > Seq(0) || !self.pending.is_empty())
    }

    /// Applies entries up to the first that this build must not apply, which ends its service.
    pub(super) fn apply_understood(&mut self, mut committed: Vec<Committed>) {
        let understands = self.journal.understands();
        let mut numbered = committed.iter().enumerate();
        let newer = numbered.find_map(|(at, one)| Some((at, check(&one.entry, understands).err()?)));
        if let Some((at, _)) = &newer {
            committed.truncate(*at);
        }
        if !committed.is_empty() {
            self.apply(committed);
        }
        if let Some((_, error)) = newer {
            self.refuse_from(Ticket(0), &error);
        }
    }

    /// Logs that entries of the highest version which every node understands may follow, unless that is done.
    pub(super) fn enable_understood(&mut self) {
        if self.failed || !self.may_enable() {
            return;
        }
        // What they understand now: one that does not may have come since.
        let version = self.journal.understood();
        if version <= self.state.format().max(self.sharing.enabling) {
            return;
        }
        let Ok(at) = self.time.stamp(self.state.now()) else { return };
        let ticket = self.waiting.reserve(1);
        match self.log(ticket, vec![Proposal::new(at, Command::Enable { version })]) {
            Ok(()) => {
                tracing::info!(version, "every node understands entries of this version: they are enabled");
                self.sharing.enabling = version;
            }
            Err(JournalError::DiskFull(_)) => {}
            Err(error) => drop(self.storage_error(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_is_not_enabled_is_not_logged() {
        assert_eq!(check_enabled(1, 1), Ok(()));
        assert_eq!(check_enabled(2, 3), Ok(()));
        let refused = check_enabled(2, 1).unwrap_err();
        assert_eq!(refused, SubmitError::NotEnabled { needs: 2, enabled: 1 });
        assert!(refused.to_string().contains("update every node"), "{refused}");
    }
}
