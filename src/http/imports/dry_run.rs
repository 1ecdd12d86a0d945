//! A dry run of an import: the upload is read, counted and checked against its guards, but nothing is changed or logged. Its counts
//! tell whether codes are valid, so the limit on guessing applies.

use super::incoming::{Destination, Incoming};
use super::intake::Batch;
use crate::access::{Client, Guesser};
use crate::domain::import::{ImportTarget, LINE_ERRORS_MAX};
use crate::domain::{Ending, Guards, Import, ImportId, ImportMode, KeyName, Refusal, Timestamp, Tripped};
use crate::engine::{CodeFound, FilterView};
use crate::http::answer::problem::Problem;
use crate::http::answer::refusals;
use crate::http::api::Api;
use std::sync::Arc;

/// The upload of a dry run.
pub(super) struct DryRun {
    pub(super) api: Arc<Api>,
    pub(super) view: Arc<FilterView>,
    pub(super) id: ImportId,
    pub(super) mode: ImportMode,
    pub(super) guards: Guards,
    /// The end user, for the limit on guessing.
    pub(super) client: Option<Client>,
}

impl DryRun {
    /// Reads the whole upload, and reports what the current filter tells about it.
    pub(super) async fn run(self, mut incoming: Incoming) -> Result<Import, Problem> {
        let Self { api, view, id, mode, guards, client } = self;
        let guesser = api.access.guessing.guesser(view.has_secret_codes(), client)?;
        let now = api.engine.now();
        let target = ImportTarget { filter: view.id, kind: view.kind, name: view.name.clone() };
        let import = Import::begun(id, KeyName::new(""), target, mode, guards, now);
        let mut counted = Counted { view: &view, guesser, now, import: import.clone() };
        let read = incoming.read(&view, &import, &mut counted).await?;
        let warnings = if let Ending::Whole { warnings, .. } = read { warnings } else { Vec::new() };
        let import = counted.import;
        allow_whole(&view, &import, now).map_err(|tripped| guarded(&view, tripped))?;
        Ok(Import { warnings, changed_at: api.engine.now().max(now), ..import })
    }
}

/// Checks a whole upload against its guards. Repeated items are counted each time.
fn allow_whole(view: &FilterView, import: &Import, now: Timestamp) -> Result<(), Tripped> {
    let available = import.added + import.already_present;
    import.guards.allow_items(available + import.already_redeemed)?;
    let stats = view.describe(now).stats;
    let before = stats.codes.map_or(stats.items, |codes| codes.available);
    import.guards.allow_swap(before, available)
}

fn guarded(view: &FilterView, tripped: Tripped) -> Problem {
    refusals::refused(view.kind, Refusal::ImportGuarded(tripped))
}

/// Counts the items of batches by whether the filter holds them.
struct Counted<'a> {
    view: &'a FilterView,
    guesser: Guesser<'a>,
    now: Timestamp,
    import: Import,
}

impl Destination for Counted<'_> {
    async fn take(&mut self, batch: Batch) -> Result<(), Problem> {
        let Self { view, guesser, now, import } = self;
        let guesses = guesser.take(batch.digests.len())?;
        let (present, redeemed) = match view.look_up(&batch.digests, *now) {
            Some(found) => {
                let redeemed = found.iter().filter(|code| matches!(code, CodeFound::Redeemed(_))).count();
                let absent = found.iter().filter(|code| matches!(code, CodeFound::Absent)).count();
                (found.len() - absent - redeemed, redeemed)
            }
            None => (batch.digests.iter().filter(|digest| view.count(**digest, *now) > 0).count(), 0),
        };
        let absent = batch.digests.len() - present - redeemed;
        guesses.settle(absent);
        import.lines += batch.lines;
        import.rejected += batch.rejected;
        import.already_present += present as u64;
        import.already_redeemed += redeemed as u64;
        import.added += absent as u64;
        let room = LINE_ERRORS_MAX - import.errors.len();
        let last = batch.errors.last().copied();
        import.errors.extend(batch.errors.into_iter().take(room));
        let allowed = import.guards.allow_rejected(import.rejected, last);
        allowed.map_err(|tripped| guarded(view, tripped))?;
        // Other connections of this worker get their turn.
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn settle(&mut self) -> Result<(), Problem> {
        Ok(())
    }
}
