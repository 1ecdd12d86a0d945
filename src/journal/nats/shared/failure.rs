//! What the servers' refusals become.

use crate::journal::JournalError;

/// A failure that another attempt may be spared.
pub(super) fn failed(why: impl std::fmt::Display) -> JournalError {
    JournalError::Failed(format!("shared snapshots: {why}"))
}
