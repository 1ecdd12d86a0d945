//! All connections, and which of them are overdue. One sweep a second checks them together: a timer for every request would cost
//! more than many requests do.

use super::activity::{Activity, Moment, Phase};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// Bytes of an answer that a client must accept within the write time-out.
const TAKEN_BYTES_MIN: u64 = 32 << 10;

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a refused client may take to read its answer and close its side.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection that has been idle for less time is not closed in favour of another one: its next request may be on the way.
const IDLE_MIN: Duration = Duration::from_secs(1);

/// Time-outs of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// For the head of a request to arrive.
    pub(super) header: Duration,
    /// For the next request to begin.
    pub(super) idle: Duration,
    /// For the client to accept the next [`TAKEN_BYTES_MIN`] bytes.
    pub(super) write: Duration,
}

/// All connections.
pub(super) struct Watch {
    timeouts: Timeouts,
    connections: Vec<Connection>,
}

struct Connection {
    activity: Arc<Activity>,
    task: AbortHandle,
    seen: Seen,
}

/// What was last seen of a connection, and since when it has been so.
#[derive(Debug)]
struct Seen {
    last: Moment,
    /// When it was first seen in this phase.
    phase_since: Instant,
    /// When it was first seen in this phase with this many bytes written.
    rest_since: Instant,
    /// Since when it has been blocked, and how many bytes were written by then. Starts again whenever the client has accepted
    /// enough.
    blocked_since: Option<(Instant, u64)>,
}

impl Seen {
    fn new(moment: Moment, now: Instant) -> Self {
        Self { last: moment, phase_since: now, rest_since: now, blocked_since: None }
    }

    fn look(&mut self, moment: Moment, now: Instant) {
        let last = std::mem::replace(&mut self.last, moment);
        if moment.changes != last.changes {
            self.phase_since = now;
        }
        if moment.changes != last.changes || moment.bytes_written != last.bytes_written {
            self.rest_since = now;
        }
        self.blocked_since = moment.is_blocked.then(|| match self.blocked_since {
            Some((since, before)) if moment.bytes_written - before < TAKEN_BYTES_MIN => (since, before),
            _ => (now, moment.bytes_written),
        });
    }

    fn is_overdue(&self, timeouts: &Timeouts, now: Instant) -> bool {
        let waits = |since: Instant| now.saturating_duration_since(since);
        let is_blocked = self.blocked_since.is_some_and(|(since, _)| waits(since) >= timeouts.write);
        is_blocked
            || match self.last.phase {
                Phase::Handshake => waits(self.phase_since) >= HANDSHAKE_TIMEOUT,
                Phase::New | Phase::Head => waits(self.phase_since) >= timeouts.header,
                // While an answer is still being written, the client accepts some of it now and then.
                Phase::Idle => waits(self.rest_since) >= timeouts.idle,
                // The code that reads the body or computes the answer has time-outs of its own.
                Phase::Busy => false,
                Phase::Closing => waits(self.phase_since) >= CLOSING_TIMEOUT,
            }
    }

    /// Since when it has been idle; `None` if it isn't.
    fn idle_since(&self, now: Moment) -> Option<Instant> {
        let is_idle = matches!(now.phase, Phase::New | Phase::Idle) && !now.is_blocked;
        (is_idle && now == self.last).then_some(self.rest_since)
    }
}

impl Watch {
    pub(super) fn new(timeouts: Timeouts) -> Self {
        Self { timeouts, connections: Vec::new() }
    }

    /// Time between two sweeps.
    pub(super) fn interval(&self) -> Duration {
        let Timeouts { header, idle, write } = self.timeouts;
        (header.min(idle).min(write) / 8).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Adds a connection.
    pub(super) fn add(&mut self, activity: Arc<Activity>, task: AbortHandle) {
        let seen = Seen::new(activity.moment(), Instant::now());
        self.connections.push(Connection { activity, task, seen });
    }

    /// Checks all connections: closes those that are overdue, and forgets those that have ended.
    pub(super) fn sweep(&mut self) {
        let now = Instant::now();
        self.connections.retain_mut(|connection| {
            if connection.task.is_finished() {
                return false;
            }
            connection.seen.look(connection.activity.moment(), now);
            let is_overdue = connection.seen.is_overdue(&self.timeouts, now);
            if is_overdue {
                tracing::debug!(seen = ?connection.seen, "a connection timed out");
                connection.task.abort();
            }
            !is_overdue
        });
    }

    /// Makes room: closes the connection that has been idle longest, if any has been idle for long enough.
    pub(super) fn close_longest_idle(&mut self) {
        let idle = self.connections.iter().enumerate().filter_map(|(at, connection)| {
            Some((connection.seen.idle_since(connection.activity.moment())?, at))
        });
        if let Some((since, at)) = idle.min()
            && since.elapsed() >= IDLE_MIN
        {
            // The others keep their order: of those that were last seen in the same sweep, the oldest goes first.
            self.connections.remove(at).task.abort();
        }
    }

    /// Closes the connections that are still in their handshake.
    pub(super) fn close_handshakes(&mut self) {
        for connection in &self.connections {
            if connection.activity.phase() == Phase::Handshake {
                connection.task.abort();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Poll;

    const TIMEOUTS: Timeouts = Timeouts {
        header: Duration::from_secs(30),
        idle: Duration::from_secs(75),
        write: Duration::from_secs(20),
    };

    /// Checks once a second, after `step`. Returns the second in which the connection was overdue, if that was within an hour.
    fn overdue_after(activity: &Activity, mut step: impl FnMut(u64)) -> Option<u64> {
        let begun = Instant::now();
        let mut seen = Seen::new(activity.moment(), begun);
        (1..=3_600).find(|&second| {
            step(second);
            let now = begun + Duration::from_secs(second);
            seen.look(activity.moment(), now);
            seen.is_overdue(&TIMEOUTS, now)
        })
    }

    fn activity(phase: Phase) -> Activity {
        let activity = Activity::default();
        activity.enter(phase);
        activity
    }

    #[test]
    fn each_phase_has_its_time() {
        for (phase, wanted) in [
            (Phase::Handshake, Some(10)),
            (Phase::New, Some(30)),
            (Phase::Head, Some(30)),
            (Phase::Idle, Some(75)),
            (Phase::Busy, None),
            (Phase::Closing, Some(2)),
        ] {
            assert_eq!(overdue_after(&activity(phase), |_| ()), wanted, "{phase:?}");
        }
    }

    #[test]
    fn each_request_begins_anew() {
        let activity = activity(Phase::Idle);
        let request = |second| {
            if second % 70 == 0 && second <= 700 {
                [Phase::Head, Phase::Busy, Phase::Idle].into_iter().for_each(|phase| activity.enter(phase));
            }
        };
        assert_eq!(overdue_after(&activity, request), Some(775));
    }

    #[test]
    fn an_answer_must_be_taken_at_some_rate() {
        let at_rate = |bytes_a_second: usize| {
            let activity = activity(Phase::Idle);
            overdue_after(&activity, |_| {
                activity.note_write(&Poll::Ready(Ok(bytes_a_second)));
                activity.note_write(&Poll::Pending);
            })
        };
        let least = TAKEN_BYTES_MIN as usize / 20;
        assert_eq!(at_rate(0), Some(21));
        assert_eq!(at_rate(1), Some(21));
        assert_eq!(at_rate(least - 100), Some(21));
        assert_eq!(at_rate(least + 100), None);
        assert_eq!(at_rate(1 << 30), None);
    }

    #[test]
    fn a_long_answer_is_not_idleness() {
        let activity = activity(Phase::Idle);
        let written = |second| {
            if second <= 500 {
                activity.note_write(&Poll::Ready(Ok(1)));
            }
        };
        assert_eq!(overdue_after(&activity, written), Some(575));
    }
}
