//! How an import reads as JSON: what it does, how far it has come, and which lines were rejected.

use crate::domain::{Import, ImportMode, ImportState, Kind, LineError, LineFault, Refusal};
use crate::http::answer::problem::{Code, Problem};
use crate::http::answer::refusals;
use crate::http::request::time::Time;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is done with the items.
#[derive(Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ImportMode)]
pub(super) enum ImportModeName {
    /// They are added as they are read.
    #[default]
    Append,
    /// They take the place of what is there, once the upload is whole.
    Replace,
}

/// How far an import has come.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ImportState)]
pub(super) enum ImportStateName {
    /// Its upload goes on.
    Running,
    /// Read to the end.
    Done,
    /// Read to the end with `dry_run`; nothing was changed.
    Checked,
    /// The filter was full, or is gone, or too much was written to it meanwhile, or a guard tripped: see `failure`.
    Failed,
    /// The upload broke off; the same id continues it.
    Interrupted,
}

/// What was wrong with a line.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LineErrorCode {
    /// Longer than 512 bytes.
    ItemTooLong,
    /// Not UTF-8.
    NotUtf8,
    /// Neither a JSON string nor `{"item":…}`; no CSV record, or one without the column.
    Malformed,
    /// An empty item.
    Empty,
}

/// A line that was rejected.
#[derive(Serialize, ToSchema)]
#[schema(as = LineError)]
pub(super) struct LineErrorAnswer {
    /// The first line is 1.
    #[schema(minimum = 1)]
    line: u64,
    code: LineErrorCode,
}

impl From<LineError> for LineErrorAnswer {
    fn from(error: LineError) -> Self {
        let code = match error.fault {
            LineFault::ItemTooLong => LineErrorCode::ItemTooLong,
            LineFault::NotUtf8 => LineErrorCode::NotUtf8,
            LineFault::Malformed => LineErrorCode::Malformed,
            LineFault::Empty => LineErrorCode::Empty,
        };
        Self { line: error.line, code }
    }
}

/// Why an import goes no further: what its upload was answered.
#[derive(Serialize, ToSchema)]
#[schema(as = ImportFailure)]
pub(super) struct FailureAnswer {
    code: Code,
    /// The same for people, with the figures of a guard.
    detail: String,
}

impl FailureAnswer {
    fn of(import: &Import) -> Option<Self> {
        let refused = |refusal| refusals::refused(import.kind, refusal);
        let Problem { code, detail, .. } = match import.state {
            ImportState::Failed => refused(Refusal::FilterFull),
            ImportState::Overtaken => refused(Refusal::ImportOvertaken),
            ImportState::Guarded(tripped) => refused(Refusal::ImportGuarded(tripped)),
            ImportState::Stopped => refusals::import_stopped(),
            ImportState::Running | ImportState::Done | ImportState::Interrupted => return None,
        };
        Some(Self { code, detail: detail.into_owned() })
    }
}

/// An import and how far it has come.
#[derive(Serialize, ToSchema)]
#[schema(as = Import)]
pub(super) struct ImportAnswer {
    #[schema(example = "nightly-2026-12-01")]
    id: String,
    state: ImportStateName,
    mode: ImportModeName,
    /// Where it goes, if that is a campaign.
    #[serde(skip_serializing_if = "Option::is_none")]
    campaign: Option<String>,
    /// Where it goes, if that is a coupon.
    #[serde(skip_serializing_if = "Option::is_none")]
    coupon: Option<String>,
    started_at: Time,
    /// Lines read, blank and rejected ones included.
    lines: u64,
    added: u64,
    already_present: u64,
    already_redeemed: u64,
    rejected: u64,
    /// The first of the rejected lines.
    #[schema(max_items = 100)]
    errors: Vec<LineErrorAnswer>,
    /// What looks wrong, but is allowed.
    #[schema(max_items = 10)]
    warnings: Vec<String>,
    /// Why it failed, or that it was stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<FailureAnswer>,
    /// From its begin to its last change.
    seconds: f64,
}

impl ImportAnswer {
    /// What a dry run has counted.
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
            state: match import.state {
                ImportState::Running => ImportStateName::Running,
                ImportState::Done => ImportStateName::Done,
                ImportState::Failed | ImportState::Guarded(_) | ImportState::Overtaken => {
                    ImportStateName::Failed
                }
                ImportState::Interrupted | ImportState::Stopped => ImportStateName::Interrupted,
            },
            mode: match import.mode {
                ImportMode::Append => ImportModeName::Append,
                ImportMode::Replace => ImportModeName::Replace,
            },
            campaign: name(Kind::Campaign),
            coupon: name(Kind::Coupon),
            started_at: Time(import.started_at),
            lines: import.lines,
            added: import.added,
            already_present: import.already_present,
            already_redeemed: import.already_redeemed,
            rejected: import.rejected,
            seconds: import.changed_at.0.saturating_sub(import.started_at.0) as f64 / 1_000.0,
            errors: import.errors.into_iter().map(LineErrorAnswer::from).collect(),
            warnings: import.warnings.iter().map(ToString::to_string).collect(),
            failure,
        }
    }
}
