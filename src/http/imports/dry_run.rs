//! A dry run of an import: the upload is read, counted and checked against its guards, but nothing is changed or logged.

use super::incoming::{Destination, Incoming};
use super::intake::Batch;
use crate::domain::import::LINE_ERRORS_MAX;
use crate::domain::{
    Ending, FilterId, Guards, Import, ImportId, ImportMode, ImportState, KeyName, Refusal, Timestamp, Tripped,
};
use crate::engine::{CodeFound, Engine, FilterView};
use crate::http::answer::problem::Problem;
use crate::http::answer::refusals;
use std::sync::Arc;

/// The upload of a dry run.
pub(super) struct DryRun {
    pub(super) engine: Engine,
    pub(super) view: Arc<FilterView>,
    pub(super) id: ImportId,
    pub(super) mode: ImportMode,
    pub(super) guards: Guards,
}

impl DryRun {
    /// Reads the whole upload, and reports what the current filter tells about it.
    pub(super) async fn run(self, mut incoming: Incoming) -> Result<Import, Problem> {
        let Self { engine, view, id, mode, guards } = self;
        let now = engine.now();
        let import = Import {
            id,
            owner: KeyName::new(""),
            is_named: false,
            filter: FilterId(0),
            kind: view.kind,
            name: view.name.clone(),
            mode,
            guards,
            state: ImportState::Running,
            started_at: now,
            changed_at: now,
            lines: 0,
            added: 0,
            already_present: 0,
            already_redeemed: 0,
            rejected: 0,
            errors: Vec::new(),
            chain: 0,
            upload: None,
            warnings: Vec::new(),
        };
        let mut counted = Counted { view: &view, now, import: import.clone() };
        let read = incoming.read(&view, &import, &mut counted).await?;
        let warnings = if let Ending::Whole { warnings, .. } = read { warnings } else { Vec::new() };
        let import = counted.import;
        allow_whole(&view, &import).map_err(|tripped| guarded(&view, tripped))?;
        Ok(Import { warnings, changed_at: engine.now().max(now), ..import })
    }
}

/// Checks a whole upload against its guards. Repeated items are counted each time.
fn allow_whole(view: &FilterView, import: &Import) -> Result<(), Tripped> {
    let available = import.added + import.already_present;
    import.guards.allow_items(available + import.already_redeemed)?;
    let stats = view.describe().stats;
    let before = stats.codes.map_or(stats.items, |codes| codes.available);
    import.guards.allow_swap(before, available)
}

fn guarded(view: &FilterView, tripped: Tripped) -> Problem {
    refusals::refused(view.kind, Refusal::ImportGuarded(tripped))
}

/// Counts the items of batches by whether the filter holds them.
struct Counted<'a> {
    view: &'a FilterView,
    now: Timestamp,
    import: Import,
}

impl Destination for Counted<'_> {
    async fn take(&mut self, batch: Batch) -> Result<(), Problem> {
        let Self { view, now, import } = self;
        let (present, redeemed) = match view.look_up(&batch.digests, *now) {
            Some(found) => {
                let redeemed = found.iter().filter(|code| matches!(code, CodeFound::Redeemed(_))).count();
                let absent = found.iter().filter(|code| matches!(code, CodeFound::Absent)).count();
                (found.len() - absent - redeemed, redeemed)
            }
            None => (batch.digests.iter().filter(|digest| view.count(**digest) > 0).count(), 0),
        };
        import.lines += batch.lines;
        import.rejected += batch.rejected;
        import.already_present += present as u64;
        import.already_redeemed += redeemed as u64;
        import.added += (batch.digests.len() - present - redeemed) as u64;
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
