//! One upload of an import: turns its batches into commands, in order, with one command in flight.

use super::incoming::{Destination, Incoming};
use super::intake::Batch;
use crate::domain::{
    Command, Digests, Ending, Guards, Import, ImportId, ImportMode, ImportState, KeyName, Outcome, Refusal,
};
use crate::engine::imports::LiveImport;
use crate::engine::{FilterView, SubmitError};
use crate::http::answer::problem::{Code, Problem};
use crate::http::answer::refusals;
use crate::http::api::{Api, target};
use crate::http::patience::patiently;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// The most codes that one command copies, and the most changes that it repeats, while the tables of a replacement catch up. Each may move
/// the items of a few buckets, and the writer must not be held for more than 20 ms.
const CATCH_UP_ENTRIES: u32 = 2_500;

/// An upload that has just begun.
pub(super) struct Upload {
    pub(super) api: Arc<Api>,
    pub(super) view: Arc<FilterView>,
    pub(super) id: ImportId,
    pub(super) mode: ImportMode,
    pub(super) guards: Guards,
    pub(super) by: Option<KeyName>,
    pub(super) is_named: bool,
}

/// The result of an upload.
pub(super) struct Imported {
    pub(super) import: Import,
    /// An earlier upload had completed the import.
    pub(super) replayed: bool,
}

impl Upload {
    /// Reads the whole upload. However it ends, the log records the end.
    pub(super) async fn run(self, mut incoming: Incoming) -> Result<Imported, Problem> {
        let begun = self.submit(Command::ImportBegin {
            target: target(&self.view),
            import: self.id.clone(),
            mode: self.mode,
            guards: self.guards,
            owner: self.by.clone().unwrap_or_else(|| KeyName::new("")),
            is_named: self.is_named,
        });
        let import = begun.await?;
        if import.state == ImportState::Done {
            return self.repeat(import, incoming).await;
        }
        let mut log = ToLog { upload: &self, in_flight: None };
        let read = incoming.read(&self.view, &import, &mut log).await;
        // Whatever went wrong, the end is logged after the last batch.
        let landed = log.settle().await;
        let ended = match read.and_then(|whole| landed.map(|()| whole)) {
            Ok(whole) => self.complete(&incoming.live, whole).await,
            Err(problem) => Err(problem),
        };
        if ended.is_err() {
            let ending = if incoming.live.is_stopped() { Ending::Stopped } else { Ending::BrokenOff };
            // If this fails, no harm is done: the next start ends the import.
            let _ = self.end(ending).await;
        }
        ended.map(|import| Imported { import, replayed: false })
    }

    /// Answers an upload whose import is already done, if it is the same upload. A client that is still sending would not read
    /// the answer, so the whole body is read first.
    async fn repeat(&self, import: Import, mut incoming: Incoming) -> Result<Imported, Problem> {
        match incoming.digest().await? {
            upload if import.upload == Some(upload) => Ok(Imported { import, replayed: true }),
            _ => Err(refusals::refused(self.view.kind, Refusal::ImportDiffers)),
        }
    }

    /// Ends a complete upload. A replacement is not done before it has caught up with the writes that came meanwhile.
    async fn complete(&self, live: &LiveImport, whole: Ending) -> Result<Import, Problem> {
        loop {
            if live.is_stopped() {
                return Err(refusals::import_stopped());
            }
            let import = self.end(whole.clone()).await?;
            if import.state != ImportState::Running {
                return Ok(import);
            }
        }
    }

    async fn end(&self, ending: Ending) -> Result<Import, Problem> {
        self.submit(Command::ImportEnd {
            target: target(&self.view),
            import: self.id.clone(),
            ending,
            entries_max: CATCH_UP_ENTRIES,
        })
        .await
    }

    async fn submit(&self, command: Command) -> Result<Import, Problem> {
        self.import(patiently(self.api.engine.clone(), self.by.clone(), command).await?)
    }

    fn import(&self, outcome: Outcome) -> Result<Import, Problem> {
        match outcome {
            Outcome::Import(import) => Ok(*import),
            Outcome::Refused(refusal) => Err(refusals::refused(self.view.kind, refusal)),
            _ => Err(Problem::new(Code::Internal, "an import has another command's outcome")),
        }
    }
}

/// Submits batches to the engine one at a time, since order matters, while the next one is read.
struct ToLog<'a> {
    upload: &'a Upload,
    in_flight: Option<JoinHandle<Result<Outcome, SubmitError>>>,
}

impl Destination for ToLog<'_> {
    async fn take(&mut self, batch: Batch) -> Result<(), Problem> {
        self.settle().await?;
        let command = Command::ImportLines {
            target: target(&self.upload.view),
            import: self.upload.id.clone(),
            digests: Digests(batch.digests),
            lines: batch.lines,
            rejected: batch.rejected,
            errors: batch.errors,
            chain: batch.chain,
        };
        self.in_flight =
            Some(tokio::spawn(patiently(self.upload.api.engine.clone(), self.upload.by.clone(), command)));
        Ok(())
    }

    async fn settle(&mut self) -> Result<(), Problem> {
        let Some(batch) = self.in_flight.take() else { return Ok(()) };
        let outcome = batch.await.map_err(|_| Problem::new(Code::Internal, "the import failed"))?;
        self.upload.import(outcome?).map(drop)
    }
}
