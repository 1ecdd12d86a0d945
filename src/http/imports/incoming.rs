//! An upload as it arrives: pieces of the body become batches of lines, until it ends or is stopped.

use super::fingerprint::Fingerprint;
use super::intake::{Batch, Differs, Intake};
use super::line::{Line, UploadFault};
use super::lines::{Format, Lines};
use crate::domain::{Ending, Import, Refusal, UploadDigest};
use crate::engine::FilterView;
use crate::engine::imports::LiveImport;
use crate::http::answer::problem::Problem;
use crate::http::answer::refusals;
use crate::http::request::body::Pieces;

/// The body of an upload.
pub(super) struct Incoming {
    pub(super) format: Format,
    pub(super) pieces: Pieces,
    pub(super) live: LiveImport,
}

/// Receives the batches of an upload.
pub(super) trait Destination {
    /// Takes the next batch; may finish it later.
    async fn take(&mut self, batch: Batch) -> Result<(), Problem>;

    /// Waits until every batch is finished.
    async fn settle(&mut self) -> Result<(), Problem>;
}

impl Incoming {
    /// Reads the upload to its end, and passes on the lines after those that the import has.
    ///
    /// # Errors
    /// If the upload is incomplete, invalid or stopped, or differs from what the import has; and errors of the destination.
    pub(super) async fn read(
        &mut self,
        view: &FilterView,
        import: &Import,
        to: &mut impl Destination,
    ) -> Result<Ending, Problem> {
        let (mut lines, mut intake) = (Lines::new(self.format.clone()), Intake::after(import, &self.format));
        let mut fingerprint = Fingerprint::new(&self.format);
        let mut differs = false;
        while let Some(piece) = self.next().await? {
            fingerprint.push(piece);
            let mut take = |line: Line<'_>| differs |= matches!(intake.take(view, line), Err(Differs));
            lines.push(piece, &mut take).map_err(unreadable)?;
            pass_on(view, &mut intake, differs, to).await?;
        }
        let mut take = |line: Line<'_>| differs |= matches!(intake.take(view, line), Err(Differs));
        lines.finish(&mut take).map_err(unreadable)?;
        differs |= matches!(intake.finish(), Err(Differs));
        pass_on(view, &mut intake, differs, to).await?;
        to.settle().await?;
        Ok(Ending::Whole { upload: fingerprint.finish(), warnings: intake.warnings() })
    }

    /// Reads the upload to its end only to compute its fingerprint.
    ///
    /// # Errors
    /// If the upload is incomplete or stopped.
    pub(super) async fn digest(&mut self) -> Result<UploadDigest, Problem> {
        let mut fingerprint = Fingerprint::new(&self.format);
        while let Some(piece) = self.next().await? {
            fingerprint.push(piece);
        }
        Ok(fingerprint.finish())
    }

    async fn next(&mut self) -> Result<Option<&[u8]>, Problem> {
        let Self { pieces, live, .. } = self;
        tokio::select! {
            biased;
            () = live.stopped() => Err(refusals::import_stopped()),
            piece = pieces.next() => piece,
        }
    }
}

async fn pass_on(
    view: &FilterView,
    intake: &mut Intake,
    differs: bool,
    to: &mut impl Destination,
) -> Result<(), Problem> {
    if differs {
        return Err(refusals::refused(view.kind, Refusal::ImportDiffers));
    }
    for batch in intake.ready() {
        to.take(batch).await?;
    }
    if intake.has_tripped() { to.settle().await } else { Ok(()) }
}

fn unreadable(fault: UploadFault) -> Problem {
    let is_column = matches!(fault, UploadFault::NoSuchColumn | UploadFault::WhichColumn(_));
    Problem::invalid_at(if is_column { "/column" } else { "" }, fault.to_string())
}
