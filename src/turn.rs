//! A task's turn on its worker. It is bounded by time, not by the number of requests or commands: once it is over, the worker's other tasks
//! run first.
//!
//! Cheap work does not read the clock: it counts bytes, and the clock is read once per [`UNMEASURED_MAX`] of them. Work that can be long is
//! divided into steps, and each step is followed by a look at the clock.

use std::time::{Duration, Instant};
use tokio::task::yield_now;

/// Duration of a turn. A step that is in progress ends first.
pub const TURN_MAX: Duration = Duration::from_micros(200);

/// Bytes of cheap work between two looks at the clock.
pub const UNMEASURED_MAX: usize = 2 << 10;

/// A task's turn: from the start of its work until it lets others run, or waits.
#[derive(Debug, Default)]
pub struct Turn {
    /// `None` until the first work after a wait.
    start: Option<Instant>,
    /// Bytes of cheap work since the last look at the clock.
    unmeasured: usize,
}

impl Turn {
    /// Starts a turn, unless one is in progress.
    pub fn start(&mut self, now: Instant) {
        self.start.get_or_insert(now);
    }

    /// Ends the turn: the task waits, so others run in any case.
    pub fn end(&mut self) {
        *self = Self::default();
    }

    /// Notes work that can be long. The next [`Self::work`] looks at the clock.
    pub fn note_long(&mut self) {
        self.unmeasured = UNMEASURED_MAX;
    }

    /// Notes cheap work of this many bytes. Returns whether [`Self::step`] is due.
    #[inline]
    pub fn is_due(&mut self, bytes: usize) -> bool {
        self.unmeasured += bytes;
        self.unmeasured >= UNMEASURED_MAX
    }

    /// Notes cheap work of this many bytes, and lets others run if the turn is over.
    #[inline]
    pub async fn work(&mut self, bytes: usize) {
        if self.is_due(bytes) {
            self.step().await;
        }
    }

    /// Follows a step of long work: lets others run if the turn is over.
    pub async fn step(&mut self) {
        if self.is_over(Instant::now()) {
            yield_now().await;
            self.end();
        }
    }

    /// Whether the turn is over at `now`. One that has not started starts.
    pub fn is_over(&mut self, now: Instant) -> bool {
        self.unmeasured = 0;
        now.saturating_duration_since(*self.start.get_or_insert(now)) >= TURN_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const LATER: Duration = TURN_MAX.saturating_mul(10);

    /// A turn that started long ago.
    fn overdue() -> Turn {
        Turn {
            start: Instant::now().checked_sub(LATER),
            ..Turn::default()
        }
    }

    #[test]
    fn turn_is_over_after_its_duration() {
        let mut turn = Turn::default();
        let start = Instant::now();
        turn.start(start);
        turn.start(start + LATER);
        assert!(!turn.is_over(start + TURN_MAX - Duration::from_nanos(1)));
        assert!(turn.is_over(start + TURN_MAX));
        // After a wait, the first work starts another one.
        turn.end();
        assert!(!turn.is_over(start + LATER));
        assert!(turn.is_over(start + LATER + TURN_MAX));
    }

    #[test]
    fn cheap_work_rarely_reads_clock() {
        let mut turn = overdue();
        for _ in 0..UNMEASURED_MAX - 1 {
            assert_eq!(turn.work(1).now_or_never(), Some(()));
        }
        assert_eq!(turn.work(1).now_or_never(), None, "it yields");
    }

    #[test]
    fn long_work_always_reads_clock() {
        assert_eq!(overdue().step().now_or_never(), None);
        let mut turn = overdue();
        turn.note_long();
        assert_eq!(turn.work(0).now_or_never(), None);
    }

    #[tokio::test]
    async fn next_turn_starts_after_yield() {
        let mut turn = overdue();
        turn.step().await;
        assert!(turn.start.is_none());
        assert!(!turn.is_over(Instant::now()));
    }
}
