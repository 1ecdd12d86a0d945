//! One upload of an import: from the body's pieces to commands, in order, one ahead of the log.

use super::line::{Line, UploadFault};
use super::lines::{Format, Lines};
use crate::domain::import::LINE_ERRORS_MAX;
use crate::domain::{
    Command, Digests, ITEMS_MAX, Import, ImportId, ImportMode, ImportState, KeyName, LineError, LineFault,
    Outcome, Refusal,
};
use crate::engine::imports::LiveImport;
use crate::engine::{Engine, FilterView, SubmitError};
use crate::http::answer::problem::{Code, Problem};
use crate::http::answer::refusals;
use crate::http::api::{Api, target};
use crate::http::request::body::Pieces;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use xxhash_rust::xxh3::xxh3_64;

/// How long a busy engine is left alone, and how often.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
const BUSY_PAUSES_MAX: u32 = 500;

/// An upload that has just begun.
pub(super) struct Upload {
    pub(super) api: Arc<Api>,
    pub(super) view: Arc<FilterView>,
    pub(super) id: ImportId,
    pub(super) mode: ImportMode,
    pub(super) owner: KeyName,
    pub(super) is_named: bool,
    pub(super) _live: LiveImport,
}

impl Upload {
    /// Reads the whole upload. However it ends, the log is told.
    pub(super) async fn run(self, format: Format, mut pieces: Pieces) -> Result<Import, Problem> {
        let begun = self.submit(Command::ImportBegin {
            target: target(&self.view),
            import: self.id.clone(),
            mode: self.mode,
            owner: self.owner.clone(),
            is_named: self.is_named,
        });
        let import = begun.await?;
        if import.state == ImportState::Done {
            // Done before. A client that is still sending would not read the answer.
            while pieces.next().await?.is_some() {}
            return Ok(import);
        }
        let mut in_flight = None;
        let read = self.read(Lines::new(format), Intake::after(&import), &mut pieces, &mut in_flight).await;
        // Whatever went wrong, the end comes after the last batch.
        let landed = self.land(&mut in_flight).await;
        let read = read.and(landed);
        let ended = match read {
            Ok(()) => self.complete().await,
            Err(problem) => Err(problem),
        };
        if ended.is_err() {
            // Not to be told is no harm: the next start finds what is left.
            let _ = self.end(false).await;
        }
        ended
    }

    /// Ends a whole upload. One that takes the place of others is not done before it has caught up with what came meanwhile.
    async fn complete(&self) -> Result<Import, Problem> {
        loop {
            let import = self.end(true).await?;
            if import.state != ImportState::Running {
                return Ok(import);
            }
        }
    }

    async fn end(&self, complete: bool) -> Result<Import, Problem> {
        self.submit(Command::ImportEnd {
            target: target(&self.view),
            import: self.id.clone(),
            complete,
            entries_max: ITEMS_MAX as u32,
        })
        .await
    }

    async fn read(
        &self,
        mut lines: Lines,
        mut intake: Intake,
        pieces: &mut Pieces,
        in_flight: &mut Option<InFlight>,
    ) -> Result<(), Problem> {
        while let Some(piece) = pieces.next().await? {
            lines.push(piece, &mut |line| intake.take(&self.view, line)).map_err(unreadable)?;
            self.pass_on(&mut intake, in_flight).await?;
        }
        lines.finish(&mut |line| intake.take(&self.view, line)).map_err(unreadable)?;
        intake.finish();
        self.pass_on(&mut intake, in_flight).await
    }

    /// Gives what is complete to the engine: one batch at a time, since order matters, while the next is read.
    async fn pass_on(&self, intake: &mut Intake, in_flight: &mut Option<InFlight>) -> Result<(), Problem> {
        if intake.differs {
            return Err(refusals::refused(self.view.kind, Refusal::ImportDiffers));
        }
        for batch in std::mem::take(&mut intake.ready) {
            self.land(in_flight).await?;
            let command = Command::ImportLines {
                target: target(&self.view),
                import: self.id.clone(),
                digests: Digests(batch.digests),
                lines: batch.lines,
                rejected: batch.rejected,
                errors: batch.errors,
                chain: batch.chain,
            };
            *in_flight = Some(tokio::spawn(patiently(self.api.engine.clone(), command)));
        }
        Ok(())
    }

    /// Waits for the batch that is under way.
    async fn land(&self, in_flight: &mut Option<InFlight>) -> Result<(), Problem> {
        let Some(batch) = in_flight.take() else { return Ok(()) };
        let outcome = batch.await.map_err(|_| Problem::new(Code::Internal, "the import failed"))?;
        self.import(outcome?).map(drop)
    }

    async fn submit(&self, command: Command) -> Result<Import, Problem> {
        self.import(patiently(self.api.engine.clone(), command).await?)
    }

    fn import(&self, outcome: Outcome) -> Result<Import, Problem> {
        match outcome {
            Outcome::Import(import) => Ok(*import),
            Outcome::Refused(refusal) => Err(refusals::refused(self.view.kind, refusal)),
            _ => Err(Problem::new(Code::Internal, "an import has another command's outcome")),
        }
    }
}

type InFlight = JoinHandle<Result<Outcome, SubmitError>>;

/// Submits a command, again and again while the engine is busy: an upload can wait.
async fn patiently(engine: Engine, command: Command) -> Result<Outcome, SubmitError> {
    for _ in 0..BUSY_PAUSES_MAX {
        match engine.submit(command.clone(), None).await {
            Err(SubmitError::Overloaded) => tokio::time::sleep(BUSY_PAUSE).await,
            applied => return applied.map(|applied| applied.outcome),
        }
    }
    Err(SubmitError::Overloaded)
}

fn unreadable(fault: UploadFault) -> Problem {
    let pointer = if fault == UploadFault::NoSuchColumn { "/column" } else { "" };
    Problem::invalid_at(pointer, fault.to_string())
}

/// Lines that go to the log as one command.
#[derive(Default)]
struct Batch {
    digests: Vec<crate::engine::Digest>,
    lines: u64,
    rejected: u64,
    errors: Vec<LineError>,
    chain: u64,
}

/// Lines on their way into batches. Those that the log has already are passed over.
struct Intake {
    batch: Batch,
    ready: Vec<Batch>,
    /// Lines read.
    lines: u64,
    /// Lines that the log has, and the hash of them.
    durable: (u64, u64),
    /// The hash of all lines read.
    chain: u64,
    /// The lines were not those that the log has.
    differs: bool,
}

impl Intake {
    /// Lines of an upload that continues an import.
    fn after(import: &Import) -> Self {
        Self {
            batch: Batch::default(),
            ready: Vec::new(),
            lines: 0,
            durable: (import.lines, import.chain),
            chain: 0,
            differs: false,
        }
    }

    fn take(&mut self, view: &FilterView, line: Line<'_>) {
        let (digest, fault) = match line {
            Line::Item(item) if view.is_blank(item) => (None, Some(LineFault::Empty)),
            Line::Item(item) => (Some(view.digest(item)), None),
            Line::Blank => (None, None),
            Line::Rejected(fault) => (None, Some(fault)),
        };
        self.lines += 1;
        self.chain = chained(self.chain, digest.map(|digest| digest.0), fault);
        if self.lines <= self.durable.0 {
            self.differs |= self.lines == self.durable.0 && self.chain != self.durable.1;
            return;
        }
        let batch = &mut self.batch;
        batch.lines += 1;
        batch.chain = self.chain;
        batch.digests.extend(digest);
        if let Some(fault) = fault {
            batch.rejected += 1;
            if batch.errors.len() < LINE_ERRORS_MAX {
                batch.errors.push(LineError { line: self.lines, fault });
            }
        }
        if batch.lines == ITEMS_MAX as u64 {
            self.ready.push(std::mem::take(batch));
        }
    }

    /// Makes the last batch ready.
    fn finish(&mut self) {
        // Fewer lines than the log has are other lines.
        self.differs |= self.lines < self.durable.0;
        if self.batch.lines > 0 {
            self.ready.push(std::mem::take(&mut self.batch));
        }
    }
}

/// The hash of all lines up to one, from that up to the one before: the same however lines fall into batches.
fn chained(chain: u64, digest: Option<u64>, fault: Option<LineFault>) -> u64 {
    let (kind, digest) = match (digest, fault) {
        (Some(digest), _) => (1u8, digest),
        (None, None) => (2, 0),
        (None, Some(fault)) => (3, fault as u64),
    };
    let mut line = [kind; 17];
    line[..8].copy_from_slice(&chain.to_le_bytes());
    line[8..16].copy_from_slice(&digest.to_le_bytes());
    xxh3_64(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_lines_tells_their_content_and_their_order() {
        let a = |chain| chained(chain, Some(1), None);
        let b = |chain| chained(chain, Some(2), None);
        let blank = |chain| chained(chain, None, None);
        let bad = |chain, fault| chained(chain, None, Some(fault));
        let all = [
            a(b(0)),
            b(a(0)),
            a(0),
            a(blank(0)),
            blank(a(0)),
            bad(a(0), LineFault::Empty),
            bad(a(0), LineFault::NotUtf8),
            chained(0, Some(0), None),
            blank(0),
        ];
        let different: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
    }
}
