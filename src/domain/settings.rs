//! What the state machine needs of the configuration, logged whenever it changes, so that a replay under
//! another configuration gives the same state.

use serde::{Deserialize, Serialize};

/// The least room for answers that is worth having, in bytes.
pub const IDEMPOTENCY_ROOM_MIN_BYTES: u64 = 1 << 20;

/// The most room that answers can make use of, in bytes.
pub const IDEMPOTENCY_ROOM_MAX_BYTES: u64 = 16 << 30;

/// Retentions and limits that [`crate::state::State::apply`](crate::state) goes by.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// How long a redemption can be looked up after its last change, in seconds.
    pub redemptions_retention_seconds: u64,
    /// How long an answer is kept for a repeated request while there is room, in seconds.
    pub idempotency_retention_seconds: u64,
    /// How long an answer is kept however little room there is, in seconds.
    pub idempotency_retention_min_seconds: u64,
    /// What all answers may take up, in bytes; at most [`IDEMPOTENCY_ROOM_MAX_BYTES`] count.
    pub idempotency_room_bytes: u64,
    /// How long an import that was broken off can be continued after its last change, in seconds.
    pub imports_retention_seconds: u64,
    /// The most campaigns and coupons together.
    pub filters_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            redemptions_retention_seconds: 30 * 86_400,
            idempotency_retention_seconds: 86_400,
            idempotency_retention_min_seconds: 3_600,
            idempotency_room_bytes: 64 << 20,
            imports_retention_seconds: 7 * 86_400,
            filters_max: 10_000,
        }
    }
}
