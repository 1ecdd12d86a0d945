//! The commands of an upload: submitted in order, one at a time, while the next one is read. They can wait while the engine is busy.

use super::answer::problem::{Code, Problem};
use super::answer::refusals;
use crate::domain::{Command, KeyName, Kind, Outcome};
use crate::engine::{Engine, SubmitError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// How long and how often to wait while the engine is busy.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
const BUSY_PAUSES_MAX: u32 = 500;

/// The commands of one upload.
pub(super) struct Commands {
    engine: Engine,
    kind: Kind,
    by: Option<KeyName>,
    in_flight: Option<JoinHandle<Result<Outcome, SubmitError>>>,
}

impl Commands {
    /// Commands about a filter of this kind, on behalf of a key.
    pub(super) fn new(engine: Engine, kind: Kind, by: Option<KeyName>) -> Self {
        Self { engine, kind, by, in_flight: None }
    }

    /// Sends a command once the one before is done, without waiting for its outcome.
    pub(super) async fn send(&mut self, command: Command) -> Result<(), Problem> {
        self.settle().await?;
        self.in_flight = Some(tokio::spawn(patiently(self.engine.clone(), self.by.clone(), command)));
        Ok(())
    }

    /// Waits for the command in flight.
    pub(super) async fn settle(&mut self) -> Result<(), Problem> {
        let Some(command) = self.in_flight.take() else { return Ok(()) };
        let outcome = command.await.map_err(|_| Problem::new(Code::Internal, "the upload failed"))?;
        self.judge(outcome).map(drop)
    }

    /// Submits a command, and waits for its outcome.
    pub(super) async fn submit(&self, command: Command) -> Result<Outcome, Problem> {
        self.judge(patiently(self.engine.clone(), self.by.clone(), command).await)
    }

    fn judge(&self, outcome: Result<Outcome, SubmitError>) -> Result<Outcome, Problem> {
        match outcome? {
            Outcome::Refused(refusal) => Err(refusals::refused(self.kind, refusal)),
            outcome => Ok(outcome),
        }
    }
}

async fn patiently(engine: Engine, by: Option<KeyName>, command: Command) -> Result<Outcome, SubmitError> {
    for _ in 0..BUSY_PAUSES_MAX {
        match engine.submit_by(by.clone(), command.clone(), None).await {
            Err(SubmitError::Overloaded) => tokio::time::sleep(BUSY_PAUSE).await,
            applied => return applied.map(|applied| applied.outcome),
        }
    }
    Err(SubmitError::Overloaded)
}
