//! Processes an upload: as an import, whose batches become commands, or as a dry run, which counts the same and changes nothing.

use super::live::LiveImport;
use super::upload::{LineBatch, Upload};
use crate::access::{EndUser, Guesses};
use crate::budget::{Owner, UsedUp};
use crate::http::api::ApiHandle;
use crate::http::call::UploadCommands;
use crate::http::response::{Code, Problem, refusals};
use cuckood_state::domain::{
    Command, Digests, Ending, Import, ImportBegin, ImportEnd, ImportLines, ImportMode, ImportState,
    ItemOutcome, KeyName, Outcome, Refusal,
};
use cuckood_state::{FilterView, ImportTrial};
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// The most codes that one command copies, and the most changes that it repeats, while the tables of a replacement catch up. Each may move
/// the items of a few buckets, and the writer must not be held for more than 20 ms.
const CATCH_UP_ENTRIES: u32 = 2_500;

/// An import as it was asked for.
pub(super) struct ImportRequest {
    pub(super) api: ApiHandle,
    pub(super) view: Arc<FilterView>,
    pub(super) by: Option<KeyName>,
    pub(super) begin: ImportBegin,
}

impl ImportRequest {
    /// Reads the complete upload into the filter, as [`Self::take_in`] does. An import that fails may reveal whether a code is valid: it
    /// uses a guess, like a rejected `POST`.
    pub(super) async fn run(
        self,
        upload: Upload,
        client: Option<EndUser>,
    ) -> Result<(Import, bool), Problem> {
        let api = self.api.clone();
        let guesser = api.access.guessing.start(self.may_reveal_codes(), client)?;
        let guesses = guesser.take(1)?;
        let mode = self.begin.mode;
        let ended = self.take_in(upload).await;
        let revealed = ended
            .as_ref()
            .is_err_and(|problem| reveals_codes(mode, problem.code));
        guesses.settle(revealed.into());
        ended
    }

    /// Whether its failure would reveal something about codes. A full pool rejects unknown ones. A replacement shows how many of its codes
    /// are in use, and need not take effect. A repeated upload must be equal to the first one.
    fn may_reveal_codes(&self) -> bool {
        let is_known = || self.api.engine.view().import(&self.begin.import).is_some();
        let is_replacement = self.begin.mode == ImportMode::Replace;
        self.view.has_secret_codes()
            && (is_replacement || self.view.may_refuse_codes() || is_known())
    }

    /// Reads the complete upload into the filter. The log always records the end. Returns whether an earlier upload had completed the
    /// import.
    async fn take_in(self, mut upload: Upload) -> Result<(Import, bool), Problem> {
        let mut commands =
            UploadCommands::new(self.api.engine.clone(), self.view.kind, self.by.clone());
        let begin = Command::ImportBegin(self.begin.clone());
        let import = of_import(commands.submit(begin).await.map_err(explain_refusal)?)?;
        if import.state == ImportState::Done {
            // A client that is still sending would not read the response, so the complete body is read first.
            while upload.piece().await?.is_some() {}
            if import.upload != Some(upload.fingerprint()) {
                return Err(Code::ImportDiffers.into());
            }
            return Ok((import, true));
        }
        upload.continue_after(&import);
        let read = self.read(&mut upload, &mut commands).await;
        // Whatever went wrong, the end is logged after the last batch.
        let landed = commands.settle().await;
        let ended = match read.and(landed) {
            Ok(()) => {
                self.complete(&upload.source.live, upload.ending(), &commands)
                    .await
            }
            Err(problem) => Err(problem),
        };
        if ended.is_err() {
            let ending = if upload.source.live.is_stopped() {
                Ending::Stopped
            } else {
                Ending::BrokenOff
            };
            // If this fails, no harm is done: the next start ends the import.
            let _ = self.end(&commands, ending).await;
        }
        ended.map(|import| (import, false))
    }

    async fn read(
        &self,
        upload: &mut Upload,
        commands: &mut UploadCommands,
    ) -> Result<(), Problem> {
        while let Some(LineBatch {
            digests,
            lines,
            rejected,
            errors,
            chain,
        }) = upload.next().await?
        {
            let target = self.begin.target;
            let import = self.begin.import.clone();
            let digests = Digests(digests);
            commands
                .send(Command::ImportLines(ImportLines {
                    target,
                    import,
                    digests,
                    lines,
                    rejected,
                    errors,
                    chain,
                }))
                .await?;
        }
        Ok(())
    }

    /// Ends a complete upload. A replacement ends once it has applied the writes that arrived during the import.
    async fn complete(
        &self,
        live: &LiveImport,
        whole: Ending,
        commands: &UploadCommands,
    ) -> Result<Import, Problem> {
        loop {
            if live.is_stopped() {
                return Err(Code::ImportStopped.into());
            }
            let import = self.end(commands, whole.clone()).await?;
            if import.state != ImportState::Running {
                return Ok(import);
            }
        }
    }

    async fn end(&self, commands: &UploadCommands, ending: Ending) -> Result<Import, Problem> {
        let target = self.begin.target;
        let import = self.begin.import.clone();
        let end = Command::ImportEnd(ImportEnd {
            target,
            import,
            ending,
            entries_max: CATCH_UP_ENTRIES,
        });
        of_import(commands.submit(end).await?)
    }

    /// Reads the complete upload, and counts what the import would. The counts reveal whether codes are valid, so the limit on guessing
    /// applies.
    pub(super) async fn try_out(
        self,
        mut upload: Upload,
        owner: Owner,
        client: Option<EndUser>,
    ) -> Result<Import, Problem> {
        let Self {
            api, view, begin, ..
        } = self;
        let guesser = api.access.guessing.start(view.has_secret_codes(), client)?;
        let now = api.engine.now();
        let mut import = Import::begun(&begin, view.kind, view.name.clone(), now);
        upload.continue_after(&import);
        let mut share = api.reading.share(Some(owner));
        let mut hold = |bytes| {
            let detail =
                || format!("the tables of the dry run need {bytes} bytes of limits.bodies");
            share
                .hold(bytes)
                .map_err(|UsedUp| Problem::new(Code::MemoryLimit, detail()))
        };
        let live = match begin.mode {
            ImportMode::Append => {
                let copy = api.engine.copy_tables(view.id, &mut hold).await?;
                Some(copy.ok_or_else(|| refusals::not_found(view.kind))?)
            }
            ImportMode::Replace => hold(view.layout.memory_bytes()).map(|()| None)?,
        };
        let mut trial = ImportTrial::new(view.clone(), live, begin.if_absent, now);
        while let Some(batch) = upload.next().await? {
            count(&mut import, &mut trial, batch, &guesser)?;
            hold(trial.memory_bytes())?;
        }
        let Ending::Whole { warnings, .. } = upload.ending() else {
            return Ok(import);
        };
        let bytes = trial.memory_bytes();
        let used = match trial.needs_used() {
            true => {
                api.engine
                    .copy_tables(view.id, |more| hold(bytes + more))
                    .await?
            }
            false => None,
        };
        // It may walk a large table.
        let end = move || trial.end(&import, used.as_ref()).map(|()| import);
        let ended = spawn_blocking(end)
            .await
            .map_err(|_| Problem::new(Code::Internal, "the dry run failed"))?;
        let import = ended.map_err(|refusal| refusals::refused(view.kind, refusal))?;
        Ok(Import {
            warnings,
            changed_at: api.engine.now().max(now),
            ..import
        })
    }
}

/// Whether a problem that ends an import reveals something about its codes. A replacement without effect has looked at them.
fn reveals_codes(mode: ImportMode, code: Code) -> bool {
    match mode {
        ImportMode::Append => matches!(code, Code::FilterFull | Code::ImportDiffers),
        ImportMode::Replace => true,
    }
}

/// Counts a batch as the import would, and checks the guards that it would trip.
fn count(
    import: &mut Import,
    trial: &mut ImportTrial,
    batch: LineBatch,
    guesser: &Guesses<'_>,
) -> Result<(), Problem> {
    let allowed = import.guards.allow_rejected(
        import.counts.rejected + batch.rejected,
        batch.errors.last().copied(),
    );
    allowed.map_err(|tripped| refusals::refused(import.kind, Refusal::ImportGuarded(tripped)))?;
    let guesses = guesser.take(batch.digests.len())?;
    let outcomes = trial.insert(&batch.digests);
    let outcomes = outcomes.map_err(|refusal| refusals::refused(import.kind, refusal))?;
    guesses.settle(
        outcomes
            .iter()
            .filter(|outcome| **outcome == ItemOutcome::Added)
            .count(),
    );
    import.count_lines(&outcomes, batch.lines, batch.rejected, &batch.errors);
    Ok(())
}

/// Why an import can't begin. An overtaken one has lost its own items, which the detail of the code does not say.
fn explain_refusal(problem: Problem) -> Problem {
    if problem.code != Code::ImportOvertaken {
        return problem;
    }
    let detail =
        "the filter was cleared or replaced since this import; use another id to import again";
    Problem::new(Code::ImportOvertaken, detail)
}

/// The import in an outcome.
fn of_import(outcome: Outcome) -> Result<Import, Problem> {
    match outcome {
        Outcome::Import(import) => Ok(*import),
        _ => Err(Problem::new(
            Code::Internal,
            "an import has another command's outcome",
        )),
    }
}
