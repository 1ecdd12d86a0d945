//! The steps of a campaign that forgets as JSON, in answers.

use crate::domain::StepStats;
use crate::http::request::time::Time;
use serde::Serialize;
use utoipa::ToSchema;

/// The users who were added in one step of a campaign that forgets.
#[derive(Serialize, ToSchema)]
pub(super) struct Step {
    /// When the step began.
    started_at: Time,
    /// Users added in it who are still there, counting every copy.
    items: u64,
    /// When they are forgotten.
    forgotten_at: Time,
}

impl From<&StepStats> for Step {
    fn from(&StepStats { begin, items, forgotten_at }: &StepStats) -> Self {
        Self { started_at: Time(begin), items, forgotten_at: Time(forgotten_at) }
    }
}
