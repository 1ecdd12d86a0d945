//! An import as JSON: its mode, its progress and its rejected lines.

use crate::domain::{Import, ImportMode, ImportState, Kind, LineError, Refusal, Timestamp};
use crate::http::answer::problem::{Code, Problem};
use crate::http::answer::refusals;
use serde::Serialize;
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

/// The state of an import.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ImportState)]
pub(crate) enum ImportStateName {
    /// Its upload is running.
    Running,
    /// Read to the end.
    Done,
    /// A complete dry run; nothing was changed.
    Checked,
    /// The filter was full, another replacement or too many writes came meanwhile, or a guard was violated: see `failure`.
    Failed,
    /// The upload was interrupted, or the filter was deleted; the same id continues the upload if the filter is still there.
    Interrupted,
}

/// Why an import failed or was stopped: the problem that its upload was answered with.
#[derive(Serialize, ToSchema)]
#[schema(as = ImportFailure)]
pub(super) struct FailureAnswer {
    code: Code,
    /// The problem's detail, with the numbers of a violated guard.
    detail: String,
}

impl FailureAnswer {
    fn of(import: &Import) -> Option<Self> {
        let Problem { code, detail, .. } = failure(import.kind, import.state)?;
        Some(Self { code, detail: detail.into_owned() })
    }
}

/// The problem because of which an import into a filter of this kind ended in this state.
pub(crate) fn failure(kind: Kind, state: ImportState) -> Option<Problem> {
    let refused = |refusal| Some(refusals::refused(kind, refusal));
    match state {
        ImportState::Failed => refused(Refusal::FilterFull),
        ImportState::Overtaken => refused(Refusal::ImportOvertaken),
        ImportState::Guarded(tripped) => refused(Refusal::ImportGuarded(tripped)),
        ImportState::Stopped => Some(refusals::import_stopped()),
        ImportState::Running | ImportState::Done | ImportState::Interrupted => None,
    }
}

impl From<ImportState> for ImportStateName {
    fn from(state: ImportState) -> Self {
        match state {
            ImportState::Running => ImportStateName::Running,
            ImportState::Done => ImportStateName::Done,
            ImportState::Failed | ImportState::Guarded(_) | ImportState::Overtaken => ImportStateName::Failed,
            ImportState::Interrupted | ImportState::Stopped => ImportStateName::Interrupted,
        }
    }
}

/// An import and its progress.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(as = Import, example = json!({
    "id": "nightly-2026-12-01", "state": "done", "mode": "append", "campaign": "spring", "started_at": "2026-12-01T00:00:00Z",
    "lines": 3, "added": 2, "already_present": 0, "already_redeemed": 0, "rejected": 1,
    "errors": [{"line": 2, "code": "item-too-long"}], "warnings": [], "seconds": 0.2
}))]
pub(super) struct ImportAnswer {
    #[schema(example = "nightly-2026-12-01")]
    id: String,
    state: ImportStateName,
    mode: ImportMode,
    /// The target, if it is a campaign.
    campaign: Option<String>,
    /// The target, if it is a coupon.
    coupon: Option<String>,
    started_at: Timestamp,
    /// Lines read, including blank and rejected ones.
    lines: u64,
    added: u64,
    already_present: u64,
    already_redeemed: u64,
    rejected: u64,
    /// The first rejected lines.
    #[schema(max_items = 100)]
    errors: Vec<LineError>,
    /// Warnings about what looks wrong, but is allowed.
    #[schema(max_items = 10)]
    warnings: Vec<String>,
    /// Why it failed, or that it was stopped.
    failure: Option<FailureAnswer>,
    /// Time from its beginning to its last change, in seconds.
    seconds: f64,
}

impl ImportAnswer {
    /// The counts of a dry run.
    pub(super) fn checked(import: Import) -> Self {
        Self { state: ImportStateName::Checked, ..Self::from(import) }
    }
}

impl From<Import> for ImportAnswer {
    fn from(import: Import) -> Self {
        let failure = FailureAnswer::of(&import);
        let name = |kind| (import.kind == kind).then(|| import.name.to_string());
        Self {
            id: import.id.to_string(),
            state: import.state.into(),
            mode: import.mode,
            campaign: name(Kind::Campaign),
            coupon: name(Kind::Coupon),
            started_at: import.started_at,
            lines: import.counts.lines,
            added: import.counts.added,
            already_present: import.counts.already_present,
            already_redeemed: import.counts.already_redeemed,
            rejected: import.counts.rejected,
            seconds: import.changed_at.0.saturating_sub(import.started_at.0) as f64 / 1_000.0,
            errors: import.errors,
            warnings: import.warnings.iter().map(ToString::to_string).collect(),
            failure,
        }
    }
}
