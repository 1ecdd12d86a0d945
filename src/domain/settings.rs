//! The settings of the state machine. They are logged whenever they change, so that a replay under another configuration gives
//! the same state.

use serde::{Deserialize, Serialize};

/// The smallest useful room for stored answers, in bytes.
pub const IDEMPOTENCY_ROOM_MIN_BYTES: u64 = 1 << 20;

/// The largest useful room for stored answers, in bytes.
pub const IDEMPOTENCY_ROOM_MAX_BYTES: u64 = 16 << 30;

/// Retentions and limits that [`crate::state::State::apply`](crate::state) obeys.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// How long a redemption can be looked up after its last change, in seconds.
    pub redemptions_retention_seconds: u64,
    /// How long an answer is kept for repeated requests while there is room, in seconds.
    pub idempotency_retention_seconds: u64,
    /// How long an answer is kept even if room runs out, in seconds.
    pub idempotency_retention_min_seconds: u64,
    /// The most bytes that stored answers may take; more than [`IDEMPOTENCY_ROOM_MAX_BYTES`] has no effect.
    pub idempotency_room_bytes: u64,
    /// Number of API keys that share this space; 0 and 1 leave all of it to one.
    pub idempotency_keys: u64,
    /// How long an event is kept, in seconds; 0 for no events at all.
    pub events_retention_seconds: u64,
    /// How long an interrupted import can be continued after its last change, in seconds.
    pub imports_retention_seconds: u64,
    /// The most campaigns and coupons together.
    pub filters_max: u64,
    /// The most line-ups.
    pub line_ups_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            redemptions_retention_seconds: 30 * 86_400,
            idempotency_retention_seconds: 86_400,
            idempotency_retention_min_seconds: 3_600,
            idempotency_room_bytes: 64 << 20,
            idempotency_keys: 0,
            events_retention_seconds: 30 * 86_400,
            imports_retention_seconds: 7 * 86_400,
            filters_max: 10_000,
            line_ups_max: 1_000,
        }
    }
}
