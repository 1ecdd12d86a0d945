//! What the state machine needs of the configuration, logged whenever it changes, so that a replay under
//! another configuration gives the same state.

use serde::{Deserialize, Serialize};

/// Retentions and limits that [`crate::state::State::apply`](crate::state) goes by.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// How long a redemption can be looked up after its last change, in seconds.
    pub redemptions_retention_seconds: u64,
    /// How long an answer is kept for a repeated request, in seconds.
    pub idempotency_retention_seconds: u64,
    /// The most answers that are kept.
    pub idempotency_records_max: u64,
    /// The most campaigns and coupons together.
    pub filters_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            redemptions_retention_seconds: 30 * 86_400,
            idempotency_retention_seconds: 86_400,
            idempotency_records_max: 1_000_000,
            filters_max: 10_000,
        }
    }
}
