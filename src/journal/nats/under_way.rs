//! Something small that was published and is not read back yet: the message that begins a session, or a beat.

use std::time::{Duration, Instant};

/// Pause before a publish is tried again that the servers have refused.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Something that was published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UnderWay<T> {
    pub(super) what: T,
    /// When it was published for the first time.
    pub(super) sent: Instant,
    /// When a server has acknowledged it.
    pub(super) acked_at: Option<Instant>,
    /// When to publish it again; `None` while it is acknowledged or may still be.
    pub(super) again_at: Option<Instant>,
}

/// Between these two moments the log has got a message: it was published, and was acknowledged or read back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bracket {
    pub(super) sent: Instant,
    pub(super) seen: Instant,
}

impl<T> UnderWay<T> {
    /// It is published now.
    pub(super) fn new(what: T, now: Instant) -> UnderWay<T> {
        UnderWay { what, sent: now, acked_at: None, again_at: None }
    }

    /// Whether to publish it again.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.again_at.is_some_and(|at| at <= now)
    }

    pub(super) fn acked(&mut self, now: Instant) {
        self.acked_at.get_or_insert(now);
        self.again_at = None;
    }

    pub(super) fn refused(&mut self, now: Instant) {
        if self.acked_at.is_none() {
            self.again_at = Some(now + AGAIN_AFTER);
        }
    }

    /// It is read back now.
    pub(super) fn bracket(&self, now: Instant) -> Bracket {
        Bracket { sent: self.sent, seen: self.acked_at.unwrap_or(now) }
    }
}
