//! What commands work with: the connection's session, its batch and its answers.

use super::batch::Batch;
use super::command::Row;
use super::failure::Failure;
use super::key::Key;
use super::metrics::Counted;
use super::replies::Replies;
use super::session::Session;
use super::shared::Shared;
use super::submitted::Submitted;
use crate::access::Caller;
use crate::domain::{Command, Outcome};

/// A connection, as its commands see it.
pub struct Visit<'a> {
    /// What all connections share.
    pub shared: &'a Shared,
    /// Whom it belongs to.
    pub session: Session,
    /// Answers that have not been sent yet.
    pub replies: Replies,
    /// Commands that are not answered yet.
    pub batch: Batch<'a>,
}

/// A command that was admitted.
pub struct Admitted {
    /// Its row in the table.
    pub row: &'static Row,
    /// Its counters.
    pub counted: Counted,
    /// Who sent it.
    pub caller: Caller,
}

/// What has become of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// Its answer is written.
    Answered,
    /// The batch answers it.
    Gathered,
    /// It waits for EXEC.
    Queued,
    /// Its answer is written, and is the last one of the connection.
    Ended,
}

impl Visit<'_> {
    /// Answers all commands so far. Whoever writes an answer does this first.
    pub async fn settle(&mut self) {
        self.batch.settle(&mut self.replies).await;
    }

    /// Refuses a key that the caller may not use.
    pub fn require_key(&self, admitted: &Admitted, key: Key<'_>) -> Result<(), Failure> {
        self.session.require_name(self.shared, &admitted.caller, key.name(), admitted.row.spelling)
    }
}

/// Submits a command that nothing else goes with, and waits for its outcome.
pub async fn submit(shared: &Shared, admitted: &Admitted, command: Command) -> Result<Outcome, Failure> {
    let (by, timeout) = (admitted.caller.key_name(), shared.options.request_timeout);
    Submitted::begin(&shared.engine, by, command, timeout).await.outcome().await
}

/// Logs an administrative act.
pub fn tell_act(admitted: &Admitted, key: Key<'_>, result: &Result<Outcome, Failure>) {
    let outcome = match result {
        Ok(Outcome::Refused(refusal)) => Failure::refused(refusal).text,
        Ok(_) => "done".into(),
        Err(failure) => failure.text.clone(),
    };
    let (act, target) = (admitted.row.spelling, key.to_string());
    let key = Some(admitted.caller.name()).filter(|key| !key.is_empty());
    tracing::info!(act, key, target, %outcome, "administrative act");
}
