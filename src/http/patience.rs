//! Commands of uploads: they can wait while the engine is busy.

use crate::domain::{Command, KeyName, Outcome};
use crate::engine::{Engine, SubmitError};
use std::time::Duration;

/// How long and how often to wait while the engine is busy.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
const BUSY_PAUSES_MAX: u32 = 500;

/// Submits a command, and tries again while the engine is busy: an upload can wait.
pub(super) async fn patiently(
    engine: Engine,
    by: Option<KeyName>,
    command: Command,
) -> Result<Outcome, SubmitError> {
    for _ in 0..BUSY_PAUSES_MAX {
        match engine.submit_by(by.clone(), command.clone(), None).await {
            Err(SubmitError::Overloaded) => tokio::time::sleep(BUSY_PAUSE).await,
            applied => return applied.map(|applied| applied.outcome),
        }
    }
    Err(SubmitError::Overloaded)
}
