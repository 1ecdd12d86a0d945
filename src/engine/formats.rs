//! Versions of entries: nothing is applied that this build does not understand, and nothing is logged that is not enabled.

use super::SubmitError;
use super::writer::Writer;
use crate::domain::{Command, Entry};
use crate::journal::{Committed, JournalError, Ticket};
use crate::state::State;

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
