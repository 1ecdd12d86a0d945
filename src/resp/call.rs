//! A command in execution: its arguments and caller, and the connection's session, batch and replies.

use super::batch::{Batch, Submitted};
use super::command::Row;
use super::failure::Failure;
use super::key::Key;
use super::parser::Arguments;
use super::replies::Replies;
use super::session::Session;
use super::shared::Shared;
use crate::access::Caller;
use crate::domain::{Command, Outcome};
use crate::engine::FilterView;
use std::sync::Arc;

/// A connection's state that outlasts a command.
pub struct Visit<'a> {
    /// What all connections share.
    pub shared: &'a Shared,
    /// The key, the name and the transaction.
    pub session: Session,
    /// Replies that have not been sent yet.
    pub replies: Replies,
    /// Commands that are not answered yet.
    pub batch: Batch<'a>,
}

impl Visit<'_> {
    /// Answers all commands so far.
    pub async fn settle(&mut self) {
        self.batch.settle(&mut self.replies).await;
    }
}

/// An admitted command, and the connection that it belongs to.
pub struct Call<'v, 'a> {
    /// What all connections share.
    pub shared: &'a Shared,
    /// The connection's session.
    pub session: &'v mut Session,
    /// The connection's replies.
    pub replies: &'v mut Replies,
    /// The connection's batch.
    pub batch: &'v mut Batch<'a>,
    /// The command's row in the table.
    pub row: &'static Row,
    /// The command's name and arguments.
    pub arguments: Arguments<'v>,
    /// The key that sent it.
    pub caller: Caller,
}

/// The state of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// Its reply is written.
    Answered,
    /// The batch answers it.
    Gathered,
    /// It waits for EXEC.
    Queued,
    /// Its reply is written, and is the last one of the connection.
    Ended,
}

impl Call<'_, '_> {
    /// Answers all commands so far. Commands that write a reply do this first.
    pub async fn settle(&mut self) {
        self.batch.settle(self.replies).await;
    }

    /// Rejects a key that the caller may not use.
    ///
    /// # Errors
    /// `NOPERM`.
    pub fn require_key(&self, key: Key<'_>) -> Result<(), Failure> {
        self.session.require_name(self.shared, &self.caller, key.name(), self.row.spelling)
    }

    /// Returns the filter of a key, if there is one.
    ///
    /// # Errors
    /// `NOPERM`.
    pub fn find(&self, key: &[u8]) -> Result<Option<Arc<FilterView>>, Failure> {
        let Some(key) = Key::parse(key) else { return Ok(None) };
        self.require_key(key)?;
        Ok(self.shared.engine.find(key.kind, key.name()))
    }

    /// Submits a command that is no part of a batch, and waits for its outcome.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn submit(&mut self, command: Command) -> Result<Outcome, Failure> {
        let (by, timeout) = (self.caller.key_name(), self.shared.options.request_timeout);
        Submitted::start(&self.shared.engine, by, command, timeout).await.outcome().await
    }

    /// Logs an administrative act.
    pub fn log_act(&self, key: Key<'_>, result: &Result<Outcome, Failure>) {
        let outcome = match result {
            Ok(Outcome::Refused(refusal)) => Failure::refused(refusal).text,
            Ok(_) => "done".into(),
            Err(failure) => failure.text.clone(),
        };
        let (act, target) = (self.row.spelling, key.to_string());
        let key = Some(self.caller.name()).filter(|key| !key.is_empty());
        tracing::info!(act, key, target, %outcome, "administrative act");
    }
}
