//! The open connections of one listener: observes them, closes them after their timeouts, and selects those that give way to new ones.
//!
//! An admitted request proves a connection, for its key or, if no keys are configured, for its address. If all places are taken, unproven
//! connections (strangers) give way first, in the order of their arrival. So strangers can't lock out clients that present a key quickly.
//! If strangers hold few places, the owner with the most connections gives way. Without new connections, one owner may use all places.

use crate::budget::Owner;
use crate::socket::{Moment, Phase, Vitals};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;

/// Bytes of a response that a client must accept within the write timeout.
const ACCEPTED_BYTES_MIN: u64 = 32 << 10;

/// Maximum time without progress of a response while the service drains.
const DRAIN_WRITE_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum duration of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for a rejected client to read its response and close its side.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);

/// Minimum age at which a stranger is closed for a new client if strangers hold all places: time for its first request. Also the minimum
/// idle time of a connection whose owner holds more than its share of the places.
const STRANGER_AGE_MIN: Duration = Duration::from_millis(250);

/// Changes of phase until the first response: to [`Phase::New`], [`Phase::Head`], [`Phase::Busy`], and the next one.
const FIRST_RESPONSE_CHANGES: u32 = 4;

/// Minimum time without progress before a proven connection is closed for a new client: its next request may be in flight.
const REST_MIN: Duration = Duration::from_secs(1);

/// Proven connections are only closed while strangers hold less than this fraction of the places.
const STRANGERS_FRACTION: usize = 8;

/// Timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionTimeouts {
    /// For the headers to arrive.
    pub(super) header: Duration,
    /// For the next request to start.
    pub(super) idle: Duration,
    /// For the client to accept the next [`ACCEPTED_BYTES_MIN`] bytes.
    pub(super) write: Duration,
}

/// A place among the connections of a listener. The task that serves the connection holds it; dropping it frees the place.
pub(super) struct ConnectionPlace {
    _permit: OwnedSemaphorePermit,
}

impl ConnectionPlace {
    pub(super) fn new(permit: OwnedSemaphorePermit) -> Arc<Self> {
        Arc::new(Self { _permit: permit })
    }
}

/// The last observation of a connection.
pub(super) struct OpenConnection {
    vitals: Arc<Vitals>,
    task: AbortHandle,
    place: Weak<ConnectionPlace>,
    opened_at: Instant,
    last: Moment,
    /// When it was first observed in this phase.
    phase_since: Instant,
    /// When it was first observed in this phase with this number of bytes read and written.
    rest_since: Instant,
    /// When it was first observed blocked, and the bytes written by then. Reset when the client has accepted enough.
    blocked_since: Option<(Instant, u64)>,
}

impl OpenConnection {
    /// A connection whose task holds `place`.
    pub(super) fn new(
        vitals: Arc<Vitals>,
        task: AbortHandle,
        place: Weak<ConnectionPlace>,
        now: Instant,
    ) -> Self {
        let last = vitals.moment();
        Self {
            vitals,
            task,
            place,
            opened_at: now,
            last,
            phase_since: now,
            rest_since: now,
            blocked_since: None,
        }
    }

    fn observe(&mut self, now: Instant) {
        let moment = self.vitals.moment();
        let last = std::mem::replace(&mut self.last, moment);
        if moment.changes != last.changes {
            self.phase_since = now;
        }
        if !moment.is_same_rest(&last) {
            self.rest_since = now;
        }
        self.blocked_since = moment.is_blocked.then(|| match self.blocked_since {
            Some((since, before)) if moment.bytes_written - before < ACCEPTED_BYTES_MIN => {
                (since, before)
            }
            _ => (now, moment.bytes_written),
        });
    }

    fn is_overdue(&self, timeouts: &ConnectionTimeouts, is_draining: bool, now: Instant) -> bool {
        let waited = |since: Instant| now.duration_since(since);
        if self
            .blocked_since
            .is_some_and(|(since, _)| waited(since) >= timeouts.write)
            || is_draining && self.last.is_blocked && waited(self.rest_since) >= DRAIN_WRITE_TIMEOUT
        {
            return true;
        }
        match self.last.phase {
            Phase::Handshake => is_draining || waited(self.phase_since) >= HANDSHAKE_TIMEOUT,
            Phase::New | Phase::Head => waited(self.phase_since) >= timeouts.header,
            // While a response is still being written, the client sometimes accepts some of it.
            Phase::Idle => waited(self.rest_since) >= timeouts.idle,
            // The code that reads the body or computes the response has its own timeouts.
            Phase::Busy => false,
            Phase::Closing => waited(self.phase_since) >= CLOSING_TIMEOUT,
        }
    }

    /// Returns the time since the last exchange of bytes; `None` if it was after the last observation.
    fn rest(&self, now: Instant) -> Option<Duration> {
        self.vitals
            .moment()
            .is_same_rest(&self.last)
            .then(|| now.duration_since(self.rest_since))
    }

    /// Returns when a stranger may be closed for a new client. Progress of the first request extends the time; requests without a key
    /// after it don't.
    fn patience_ends_at(&self, patience: Duration) -> Instant {
        let has_responded = self.vitals.moment().changes >= FIRST_RESPONSE_CHANGES;
        let since = if has_responded {
            self.opened_at
        } else {
            self.phase_since
        };
        since + patience
    }

    /// Whether no request is in progress.
    fn is_idle(&self) -> bool {
        let moment = self.vitals.moment();
        !matches!(moment.phase, Phase::Busy | Phase::Closing) && !moment.is_blocked
    }
}

/// The open connections of one listener.
#[derive(Default)]
pub(super) struct Clients {
    /// Clients without an admitted request, in the order of their arrival.
    strangers: VecDeque<OpenConnection>,
    /// The other clients.
    proven: Vec<OpenConnection>,
    /// Places of connections that were closed for new ones, until they are free.
    closing: Vec<Weak<ConnectionPlace>>,
}

impl Clients {
    pub(super) fn is_empty(&self) -> bool {
        self.strangers.is_empty() && self.proven.is_empty()
    }

    /// Adds a new connection.
    pub(super) fn add(&mut self, open: OpenConnection) {
        self.strangers.push_back(open);
    }

    /// Orders all connections to end once their requests are answered.
    pub(super) fn drain(&self) {
        for open in self.strangers.iter().chain(&self.proven) {
            open.vitals.drain();
        }
    }

    /// Closes overdue connections and drops ended ones. If the budget of heads `is_tight`, closes the strangers that hold it.
    pub(super) fn sweep(
        &mut self,
        timeouts: &ConnectionTimeouts,
        is_draining: bool,
        is_tight: bool,
        now: Instant,
    ) {
        let stays = |open: &mut OpenConnection| {
            if open.task.is_finished() {
                return false;
            }
            open.observe(now);
            let hoards = is_tight
                && open.vitals.owner().is_none()
                && open.vitals.holds_head.load(Relaxed)
                && now.duration_since(open.phase_since) >= STRANGER_AGE_MIN;
            let is_overdue = hoards || open.is_overdue(timeouts, is_draining, now);
            if is_overdue {
                tracing::debug!(last = ?open.last, "connection timed out");
                open.task.abort();
            }
            !is_overdue
        };
        self.proven.retain_mut(stays);
        self.strangers.retain_mut(stays);
        for open in std::mem::take(&mut self.strangers) {
            match open.vitals.owner() {
                None => self.strangers.push_back(open),
                Some(_) => self.proven.push(open),
            }
        }
    }

    /// Closes connections to free `wanted` of `max` places. Returns when to retry for the rest; `None` if there is no rest, or if only a
    /// sweep can find more.
    pub(super) fn make_room(&mut self, wanted: usize, max: usize, now: Instant) -> Option<Instant> {
        self.closing.retain(|place| place.strong_count() > 0);
        while self.closing.len() < wanted {
            match self.take_next(max, now) {
                Next::Close(open) => {
                    open.task.abort();
                    self.closing.push(open.place);
                }
                Next::Wait(until) => return until,
            }
        }
        None
    }

    /// Removes and returns the connection that gives way next.
    fn take_next(&mut self, max: usize, now: Instant) -> Next {
        while let Some(proven) = self
            .strangers
            .pop_front_if(|open| open.vitals.owner().is_some())
        {
            self.proven.push(proven);
        }
        let patience = patience(self.strangers.len(), max);
        let mut wait: Option<Instant> = None;
        for (at, open) in self.strangers.iter().enumerate() {
            if open.vitals.owner().is_some() {
                // The next sweep moves it.
                continue;
            }
            let ends_at = open.patience_ends_at(patience);
            if ends_at <= now {
                return self
                    .strangers
                    .remove(at)
                    .map_or(Next::Wait(None), Next::Close);
            }
            wait = Some(wait.map_or(ends_at, |earliest| earliest.min(ends_at)));
        }
        if self.strangers.len() * STRANGERS_FRACTION >= max {
            return Next::Wait(wait);
        }
        match self.proven_next(max, now) {
            // The others keep their order: of those observed in the same sweep, the oldest is closed first.
            Some(at) => Next::Close(self.proven.remove(at)),
            None => Next::Wait(wait),
        }
    }

    /// Returns the index of the next proven connection to close, of the owner with the most connections.
    ///
    /// Idle connections are first, then requests without progress. If the owner holds more than its share and no connection has rested,
    /// its newest connection gives way, because it has lost the least. Otherwise, rested connections of all owners may give way.
    fn proven_next(&self, max: usize, now: Instant) -> Option<usize> {
        let (owner, is_over_share) = self.largest_owner(max)?;
        let own = |open: &OpenConnection| open.vitals.owner() == Some(owner);
        let rest_min = if is_over_share {
            STRANGER_AGE_MIN
        } else {
            REST_MIN
        };
        let rested = self
            .longest_rest(now, |open, rest| {
                own(open) && open.is_idle() && rest >= rest_min
            })
            .or_else(|| self.longest_rest(now, |open, rest| own(open) && rest >= REST_MIN));
        if rested.is_some() {
            return rested;
        }
        if is_over_share {
            let newest = |may_close: &dyn Fn(&OpenConnection) -> bool| {
                self.proven
                    .iter()
                    .rposition(|open| own(open) && may_close(open))
            };
            return newest(&OpenConnection::is_idle).or_else(|| newest(&|_| true));
        }
        self.longest_rest(now, |open, rest| open.is_idle() && rest >= REST_MIN)
    }

    fn longest_rest(
        &self,
        now: Instant,
        may_close: impl Fn(&OpenConnection, Duration) -> bool,
    ) -> Option<usize> {
        let mut longest: Option<(Duration, usize)> = None;
        for (at, open) in self.proven.iter().enumerate() {
            let Some(rest) = open.rest(now) else { continue };
            if may_close(open, rest) && longest.is_none_or(|(longest, _)| rest > longest) {
                longest = Some((rest, at));
            }
        }
        longest.map(|(_, at)| at)
    }

    /// Returns the owner with the most proven connections, and whether these are more than its share of `max` places. A single owner may
    /// have half of them.
    fn largest_owner(&self, max: usize) -> Option<(Owner, bool)> {
        let mut counts: HashMap<Owner, usize> = HashMap::new();
        for owner in self.proven.iter().filter_map(|open| open.vitals.owner()) {
            *counts.entry(owner).or_default() += 1;
        }
        let owners = counts.len().max(2);
        let (owner, count) = counts
            .into_iter()
            .max_by_key(|&(owner, count)| (count, owner))?;
        Some((owner, count * owners > max))
    }
}

/// The time that a stranger has for its first request if all places are taken, and strangers hold this many of them. It is shorter while
/// they hold few, so that as many newcomers per second find a place.
fn patience(strangers: usize, max: usize) -> Duration {
    let share = strangers as f64 / max as f64;
    STRANGER_AGE_MIN.mul_f64(share.clamp(0.2, 1.0))
}

/// The connection that gives way next.
enum Next {
    Close(OpenConnection),
    /// None yet. If a time is given, there may be one then.
    Wait(Option<Instant>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Runtime;
    use tokio::sync::Semaphore;

    const TIMEOUTS: ConnectionTimeouts = ConnectionTimeouts {
        header: Duration::from_secs(30),
        idle: Duration::from_secs(75),
        write: Duration::from_secs(20),
    };

    /// A connection in this phase whose task never ends.
    fn open(runtime: &Runtime, phase: Phase, since: Instant) -> OpenConnection {
        let vitals = Arc::<Vitals>::default();
        vitals.enter(phase);
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let place = ConnectionPlace::new(permit);
        let freed = Arc::downgrade(&place);
        let task = runtime.spawn(async move {
            let _place = place;
            std::future::pending::<()>().await;
        });
        OpenConnection::new(vitals, task.abort_handle(), freed, since)
    }

    /// Connections of these owners, which have rested in this phase since `since`; 0 is no owner.
    fn clients(runtime: &Runtime, owners: &[u64], phase: Phase, since: Instant) -> Clients {
        let mut clients = Clients::default();
        for owner in owners {
            let open = open(runtime, phase, since);
            if let Some(owner) = Owner::from_number(*owner) {
                open.vitals.prove(owner);
            }
            clients.add(open);
        }
        clients.sweep(&TIMEOUTS, false, false, since);
        clients
    }

    /// The owners of the connections that are left.
    fn owners(clients: &Clients) -> Vec<u64> {
        let all = clients.strangers.iter().chain(&clients.proven);
        let mut owners: Vec<u64> = all
            .map(|open| open.vitals.owner().map_or(0, Owner::number))
            .collect();
        owners.sort_unstable();
        owners
    }

    /// Checks once a second, after `step`. Returns the second in which the connection was overdue, if that was within an hour.
    fn overdue_after(
        phase: Phase,
        is_draining: bool,
        mut step: impl FnMut(u64, &Vitals),
    ) -> Option<u64> {
        let runtime = Runtime::new().unwrap();
        let start = Instant::now();
        let mut open = open(&runtime, phase, start);
        (1..=3_600).find(|&second| {
            step(second, &open.vitals);
            let now = start + Duration::from_secs(second);
            open.observe(now);
            open.is_overdue(&TIMEOUTS, is_draining, now)
        })
    }

    #[test]
    fn each_phase_has_its_timeout() {
        for (phase, wanted) in [
            (Phase::Handshake, Some(10)),
            (Phase::New, Some(30)),
            (Phase::Head, Some(30)),
            (Phase::Idle, Some(75)),
            (Phase::Busy, None),
            (Phase::Closing, Some(2)),
        ] {
            assert_eq!(overdue_after(phase, false, |_, _| ()), wanted, "{phase:?}");
        }
    }

    #[test]
    fn each_request_restarts_timeout() {
        let request = |second, vitals: &Vitals| {
            if second % 70 == 0 && second <= 700 {
                [Phase::Head, Phase::Busy, Phase::Idle]
                    .into_iter()
                    .for_each(|phase| vitals.enter(phase));
            }
        };
        assert_eq!(overdue_after(Phase::Idle, false, request), Some(775));
    }

    #[test]
    fn response_must_be_accepted_at_minimum_rate() {
        let at_rate = |bytes_a_second: usize, is_draining| {
            overdue_after(Phase::Idle, is_draining, |_, vitals| {
                vitals.note_progress(bytes_a_second, true)
            })
        };
        let least = ACCEPTED_BYTES_MIN as usize / 20;
        assert_eq!(at_rate(0, false), Some(21));
        assert_eq!(at_rate(1, false), Some(21));
        assert_eq!(at_rate(least - 100, false), Some(21));
        assert_eq!(at_rate(least + 100, false), None);
        assert_eq!(at_rate(1 << 30, false), None);
        assert_eq!(at_rate(0, true), Some(3));
        assert_eq!(at_rate(least + 100, true), None);
    }

    #[test]
    fn long_response_is_not_idleness() {
        let written = |second, vitals: &Vitals| {
            if second <= 500 {
                vitals.note_progress(1, false);
            }
        };
        assert_eq!(overdue_after(Phase::Idle, false, written), Some(575));
    }

    /// A runtime whose tasks run in `block_on` only.
    fn stopped_runtime() -> Runtime {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
    }

    #[test]
    fn one_connection_is_closed_for_each_client() {
        let runtime = stopped_runtime();
        let start = Instant::now();
        let mut clients = clients(&runtime, &[1, 1, 1], Phase::Idle, start);
        let now = start + REST_MIN;
        for wanted in [1, 1, 2] {
            clients.make_room(wanted, 3, now);
            assert_eq!(
                clients.proven.len(),
                3 - wanted,
                "the earlier ones are still closing"
            );
        }
        runtime.block_on(tokio::task::yield_now());
        clients.make_room(1, 3, now);
        assert!(
            clients.is_empty(),
            "the last one stays although the places of the others are free"
        );
    }

    #[test]
    fn freed_place_ends_wait_before_its_task() {
        let runtime = stopped_runtime();
        let start = Instant::now();
        let mut clients = clients(&runtime, &[0, 0], Phase::New, start);
        let now = start + STRANGER_AGE_MIN;
        clients.make_room(1, 2, now);
        // The task can't have finished: its runtime stands still.
        clients.closing = vec![Weak::new()];
        clients.make_room(1, 2, now);
        assert!(
            clients.is_empty(),
            "a task that is not finished holds up the next client"
        );
    }

    #[test]
    fn strangers_give_way_in_order_of_arrival() {
        let runtime = stopped_runtime();
        let start = Instant::now();
        let mut clients = clients(&runtime, &[0, 0, 7], Phase::Busy, start);
        assert_eq!(clients.make_room(1, 3, start), Some(start + patience(2, 3)));
        assert_eq!(owners(&clients), [0, 0, 7], "they have time for a request");
        let now = start + STRANGER_AGE_MIN;
        clients.make_room(2, 3, now);
        assert_eq!(owners(&clients), [7]);
        assert_eq!(clients.make_room(3, 3, now), None);
        assert_eq!(
            owners(&clients),
            [7],
            "a proven client was closed although it may still be at work"
        );
    }

    /// However few places proven clients leave, 240 newcomers per second find one of 60.
    #[test]
    fn strangers_on_few_places_have_less_time() {
        let runtime = stopped_runtime();
        let start = Instant::now();
        for strangers in [12, 30, 60] {
            let owners: Vec<u64> = (0..60)
                .map(|at| if at < strangers { 0 } else { at })
                .collect();
            let mut clients = clients(&runtime, &owners, Phase::Busy, start);
            let now = start + Duration::from_secs_f64(strangers as f64 / 240.0);
            clients.make_room(strangers as usize, 60, now);
            assert!(clients.strangers.is_empty(), "{strangers} strangers");
        }
    }

    #[test]
    fn busy_stranger_gives_way_too() {
        let runtime = stopped_runtime();
        let start = Instant::now();
        let mut clients = clients(&runtime, &[0], Phase::New, start);
        let now = start + STRANGER_AGE_MIN;
        let ask = |clients: &Clients| {
            for phase in [Phase::Head, Phase::Busy, Phase::Idle] {
                clients.strangers[0].vitals.enter(phase);
            }
        };
        // Its first request has just started.
        clients.strangers[0].vitals.enter(Phase::Head);
        clients.sweep(&TIMEOUTS, false, false, now);
        assert_eq!(clients.make_room(1, 1, now), Some(now + STRANGER_AGE_MIN));
        ask(&clients);
        ask(&clients);
        clients.sweep(&TIMEOUTS, false, false, now);
        clients.make_room(1, 1, now);
        assert!(
            clients.is_empty(),
            "a stranger that asks often is never closed"
        );
    }

    #[test]
    fn largest_owner_gives_way_to_others() {
        let runtime = stopped_runtime();
        let start = Instant::now();
        for (phase, rest, left) in [
            (Phase::Idle, REST_MIN, &[8, 8, 9, 9][..]),
            // While it holds more than half of the places.
            (Phase::Idle, STRANGER_AGE_MIN, &[8, 8, 9, 9, 9]),
            // Unfinished bodies.
            (Phase::Busy, REST_MIN, &[8, 8, 9, 9]),
        ] {
            let mut clients = clients(&runtime, &[8, 9, 9, 9, 9, 8], phase, start);
            clients.make_room(2, 6, start + rest);
            assert_eq!(owners(&clients), left, "{phase:?}");
        }
    }

    /// Clients that exchange a byte now and then never rest, whether their requests are short or long.
    #[test]
    fn restless_owner_over_share_gives_way() {
        let runtime = stopped_runtime();
        let start = Instant::now();
        for phase in [Phase::Idle, Phase::Busy] {
            let mut clients = clients(&runtime, &[9, 9, 9, 8], phase, start);
            let now = start + REST_MIN;
            let hog = clients
                .proven
                .iter()
                .filter(|open| open.vitals.owner() == Owner::from_number(9));
            hog.for_each(|open| open.vitals.note_arrival(1));
            clients.sweep(&TIMEOUTS, false, false, now);
            clients.make_room(1, 4, now);
            assert_eq!(owners(&clients), [8, 9, 9], "{phase:?}");
        }
    }

    #[test]
    fn strangers_displace_few_proven_clients() {
        let runtime = stopped_runtime();
        let start = Instant::now();
        let mut clients = clients(&runtime, &[9; 16], Phase::Idle, start);
        let now = start + REST_MIN;
        for _ in 0..8 {
            clients.make_room(1, 16, now);
            runtime.block_on(tokio::task::yield_now());
            clients.add(open(&runtime, Phase::New, now));
        }
        assert_eq!(clients.proven.len(), 14);
    }
}
