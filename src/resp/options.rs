//! Options of this door.

use super::key::KeyRule;
use std::time::Duration;

/// Options of [`super::Service`].
#[derive(Clone, Debug)]
pub struct RespOptions {
    /// Items that a filter holds before it grows, if it is created by the first item that is added to it.
    pub default_capacity: u64,
    /// The most bytes that requests being received and answers being sent may take, of all connections together.
    pub buffers_bytes_max: u64,
    /// Rules that map keys to filters.
    pub keys: Vec<KeyRule>,
    /// How long the engine may take to answer.
    pub request_timeout: Duration,
}

impl Default for RespOptions {
    fn default() -> Self {
        Self {
            default_capacity: 1 << 10,
            buffers_bytes_max: 64 << 20,
            keys: Vec::new(),
            request_timeout: Duration::from_secs(30),
        }
    }
}
