//! What this node publishes: commands on their way into the log, beats, and the message that starts the node's session.
//!
//! Messages are numbered and sent in order, up to [`WINDOW`] at a time. On doubt, all that were not read back are sent again as they are,
//! from the first one on (go-back-N): the log counts each number once. A new session starts only with the process, or if the log has
//! dropped or superseded the old one. Once it is read back, nothing of the old session can count any more, and what was not read of it
//! gets the first numbers of the new one.

use super::message::{self, Body, OVERHEAD_BYTES, SessionId};
use crate::domain::Proposal;
use crate::journal::{JournalError, Ticket};
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Maximum number of numbered messages in flight.
const WINDOW: usize = 16;

/// Maximum size of a commit of several commands, in bytes.
const COMMIT_BYTES_MAX: usize = 256 << 10;

/// Maximum size of a message, in bytes. Servers allow 1 MiB by default.
pub(super) const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Pause before messages are sent again. It does not grow: a stream without a leader has one again within seconds.
pub(super) const RESEND_PAUSE: Duration = Duration::from_millis(250);

/// Other processes may supersede our session this often within [`OVERTAKEN_WITHIN`]. A process that has ended may do so once.
const OVERTAKEN_MAX: usize = 3;
const OVERTAKEN_WITHIN: Duration = Duration::from_secs(60);

/// Pause before the session is started again that another process has superseded; it doubles each time.
const OVERTAKEN_PAUSE: Duration = Duration::from_secs(1);

/// Identifies what was sent, for its acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    session: SessionId,
    /// `None` for the message that starts the session.
    number: Option<u64>,
    epoch: u64,
}

/// When a message was first sent, and acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Times {
    pub(super) sent: Option<Instant>,
    pub(super) acked: Option<Instant>,
    /// The stream's number of the message that a server has acknowledged.
    message: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Content {
    Commit(Vec<u8>),
    Beat { applied: u64, report: Vec<u8> },
}

/// A numbered message that was not read back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    content: Content,
    /// The tickets of its proposals, in order.
    pub(super) tickets: Vec<Ticket>,
    /// The barrier that is passed once this message is read back, and all before.
    pub(super) barrier: Option<Ticket>,
    pub(super) times: Times,
}

/// The message that starts a session.
#[derive(Debug)]
struct Start {
    session: SessionId,
    /// The last message that this node had read.
    read: u64,
    is_sent: bool,
    times: Times,
}

/// The meaning of a session of this node's name that starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begun {
    /// It is the one that was to start.
    Ours(Times),
    /// An earlier process has started it.
    Earlier,
    /// Another process has superseded our session. The next one starts after a pause.
    Overtaken,
    /// The same, too often: the other process is running.
    Taken,
}

/// Messages on their way into the log.
#[derive(Debug)]
pub(super) struct Outbox {
    node: String,
    /// The session in which messages count.
    session: Option<SessionId>,
    /// The next session, until it is read back. Nothing else is sent.
    start: Option<Start>,
    waiting: VecDeque<(Ticket, Vec<u8>)>,
    barrier: Option<Ticket>,
    window: VecDeque<Sent>,
    /// Number of the first message in the window.
    first: u64,
    /// Messages of the window that were sent since the last time that it was gone back.
    sent: usize,
    not_before: Instant,
    /// Counts how often it was gone back: errors of earlier attempts don't matter.
    epoch: u64,
    overtaken: VecDeque<Instant>,
}

impl Outbox {
    /// Starts a session for a node that has read the log up to message `read`.
    pub(super) fn new(node: &str, read: u64, now: Instant) -> Outbox {
        let mut outbox = Outbox {
            node: node.to_owned(),
            session: None,
            start: None,
            waiting: VecDeque::new(),
            barrier: None,
            window: VecDeque::new(),
            first: 0,
            sent: 0,
            not_before: now,
            epoch: 0,
            overtaken: VecDeque::new(),
        };
        outbox.begin(read);
        outbox
    }

    /// Starts another session.
    fn begin(&mut self, read: u64) {
        self.epoch += 1;
        let session = SessionId::random();
        self.start = Some(Start { session, read, is_sent: false, times: Times::default() });
    }

    /// Takes proposals with consecutive tickets.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if one is too large for a message; then nothing is taken.
    pub(super) fn push(&mut self, first: Ticket, batch: &[Proposal]) -> Result<(), JournalError> {
        let mut encoded = Vec::with_capacity(batch.len());
        for (proposal, ticket) in batch.iter().zip(first.0..) {
            let bytes = postcard::to_stdvec(proposal)
                .map_err(|error| JournalError::Failed(format!("can't encode a command: {error}")))?;
            if bytes.len() > MESSAGE_BYTES_MAX - OVERHEAD_BYTES {
                return Err(JournalError::Failed(format!("a command of {} bytes", bytes.len())));
            }
            encoded.push((Ticket(ticket), bytes));
        }
        self.waiting.extend(encoded);
        Ok(())
    }

    /// Passes this barrier, and all before, with the next message that is made.
    pub(super) fn ask_barrier(&mut self, barrier: Ticket) {
        self.barrier = Some(barrier);
    }

    /// Whether a beat should be made: a barrier waits for one, or the caller wants one and none is in flight.
    pub(super) fn needs_beat(&self, is_wanted: bool) -> bool {
        let is_beat = |sent: &Sent| matches!(sent.content, Content::Beat { .. });
        let is_idle = self.start.is_none() && self.waiting.is_empty() && self.window.len() < WINDOW;
        (is_idle && self.barrier.is_some() || is_wanted && self.start.is_none())
            && !self.window.iter().any(is_beat)
    }

    /// Makes a beat.
    pub(super) fn beat(&mut self, applied: u64, report: Vec<u8>) {
        let (content, barrier) = (Content::Beat { applied, report }, self.barrier.take());
        self.window.push_back(Sent { content, tickets: Vec::new(), barrier, times: Times::default() });
    }

    /// The next message to send; it counts as sent.
    pub(super) fn next(&mut self, now: Instant) -> Option<(Key, Bytes)> {
        if now < self.not_before {
            return None;
        }
        let epoch = self.epoch;
        if let Some(start) = &mut self.start {
            if std::mem::replace(&mut start.is_sent, true) {
                return None;
            }
            start.times.sent.get_or_insert(now);
            let key = Key { session: start.session, number: None, epoch };
            let body = Body::Begin { node: &self.node, read: start.read };
            return Some((key, message::encode(start.session, body)));
        }
        let session = self.session?;
        if self.sent == self.window.len() && self.window.len() < WINDOW {
            self.gather();
        }
        let number = self.first + self.sent as u64;
        let message = self.window.get_mut(self.sent)?;
        message.times.sent.get_or_insert(now);
        self.sent += 1;
        let body = match &message.content {
            Content::Commit(payload) => {
                Body::Commit { number, entries: message.tickets.len() as u64, payload }
            }
            Content::Beat { applied, report } => Body::Beat { number, applied: *applied, report },
        };
        Some((Key { session, number: Some(number), epoch }, message::encode(session, body)))
    }

    /// Makes a commit of what waits, as much as fits.
    fn gather(&mut self) {
        let (mut tickets, mut payload) = (Vec::new(), Vec::new());
        while let Some((ticket, bytes)) = self.waiting.pop_front_if(|(_, bytes)| {
            payload.is_empty() || payload.len() + bytes.len() + OVERHEAD_BYTES <= COMMIT_BYTES_MAX
        }) {
            tickets.push(ticket);
            payload.extend_from_slice(&bytes);
        }
        if !tickets.is_empty() {
            let (content, barrier) = (Content::Commit(payload), self.barrier.take());
            self.window.push_back(Sent { content, tickets, barrier, times: Times::default() });
        }
    }

    /// The times of a message in flight.
    fn times(&mut self, key: Key) -> Option<&mut Times> {
        match key.number {
            None => {
                self.start.as_mut().filter(|start| start.session == key.session).map(|start| &mut start.times)
            }
            Some(number) if self.session == Some(key.session) => {
                let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
                self.window.get_mut(at).map(|sent| &mut sent.times)
            }
            Some(_) => None,
        }
    }

    /// A server has acknowledged what was sent, as this message of the stream.
    pub(super) fn acked(&mut self, key: Key, message: u64, now: Instant) {
        if let Some(times) = self.times(key) {
            times.acked.get_or_insert(now);
            times.message = times.message.max(Some(message));
        }
    }

    /// A server has rejected what was sent, or has not answered. Returns whether it matters: then the window is sent again.
    pub(super) fn refused(&mut self, key: Key, now: Instant) -> bool {
        let matters = key.epoch == self.epoch && self.times(key).is_some();
        if matters {
            self.go_back(now);
        }
        matters
    }

    /// Sends everything again that was not read back, after a pause. Returns whether there is anything.
    pub(super) fn go_back(&mut self, now: Instant) -> bool {
        let is_started = self.start.as_mut().is_some_and(|start| std::mem::take(&mut start.is_sent));
        let is_sent = std::mem::take(&mut self.sent) > 0 || is_started;
        if is_sent {
            self.epoch += 1;
            self.not_before = now + RESEND_PAUSE;
        }
        is_sent
    }

    /// A message of this session was counted. Returns it if this process has sent it.
    pub(super) fn read(&mut self, session: SessionId, number: u64) -> Option<Sent> {
        if self.session != Some(session) || number != self.first {
            return None;
        }
        let read = self.window.pop_front()?;
        self.first += 1;
        self.sent = self.sent.saturating_sub(1);
        Some(read)
    }

    /// A message of this session is after one that is missing. Returns whether everything is sent again.
    pub(super) fn is_gap(&mut self, session: SessionId, now: Instant) -> bool {
        self.session == Some(session) && self.go_back(now)
    }

    /// A message of this session has no effect any more. If it is ours, the log has dropped this node.
    pub(super) fn is_over(&mut self, session: SessionId, read: u64) {
        if self.session == Some(session) && self.start.is_none() {
            self.begin(read);
        }
    }

    /// A session of this node's name starts; the log was read up to message `read`.
    pub(super) fn begun(&mut self, session: SessionId, read: u64, now: Instant) -> Begun {
        if let Some(start) = self.start.take_if(|start| start.session == session) {
            (self.session, self.first, self.sent) = (Some(session), 0, 0);
            self.epoch += 1;
            self.not_before = now;
            // The acknowledgements were for the old session.
            for sent in &mut self.window {
                (sent.times.acked, sent.times.message) = (None, None);
            }
            return Begun::Ours(start.times);
        }
        if self.session.is_none() {
            return Begun::Earlier;
        }
        self.overtaken.retain(|at| now.saturating_duration_since(*at) < OVERTAKEN_WITHIN);
        self.overtaken.push_back(now);
        if self.overtaken.len() >= OVERTAKEN_MAX {
            return Begun::Taken;
        }
        self.begin(read);
        self.not_before = now + OVERTAKEN_PAUSE * (1 << (self.overtaken.len() - 1));
        Begun::Overtaken
    }

    /// The message that would have started this session is void: it is tried again with what is known now.
    pub(super) fn is_void(&mut self, session: SessionId, read: u64) {
        if self.start.as_ref().is_some_and(|start| start.session == session) {
            self.begin(read);
        }
    }

    /// Whether the log was read past the acknowledged message, and the first one is still in flight: it got lost.
    pub(super) fn is_lost(&self, read: u64) -> bool {
        let message = match &self.start {
            Some(start) => start.times.message,
            None => self.window.front().and_then(|sent| sent.times.message),
        };
        message.is_some_and(|message| message <= read)
    }

    /// When the oldest message that was not read back was first sent.
    pub(super) fn unread_since(&self) -> Option<Instant> {
        let start = self.start.as_ref().and_then(|start| start.times.sent);
        let window = self.window.front().and_then(|sent| sent.times.sent);
        [start, window].into_iter().flatten().min()
    }

    /// When there is something to send after a pause; `None` if nothing is due.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let is_due = match &self.start {
            Some(start) => !start.is_sent,
            None => self.sent < self.window.len(),
        };
        is_due.then_some(self.not_before)
    }

    /// Number of numbered messages in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.window.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::order::{Place, Read, Void};
    use super::*;
    use crate::domain::{Command, Digests, FilterId, Target, Timestamp};
    use crate::filter::Digest;
    use proptest::prelude::*;

    fn proposal(at: u64, digests: usize) -> Proposal {
        let (target, digests) = (Target(FilterId(1)), Digests(vec![Digest(u64::MAX); digests]));
        Proposal::new(Timestamp(at), Command::Insert { target, digests, if_absent: false, revive: false })
    }

    /// An outbox over a log.
    struct Node {
        outbox: Outbox,
        log: Place,
        now: Instant,
        /// Tickets and times of the entries that were counted.
        counted: Vec<(u64, u64)>,
    }

    impl Node {
        fn new() -> Node {
            let (log, now) = (Place::default(), Instant::now());
            Node { outbox: Outbox::new("a", 0, now), log, now, counted: Vec::new() }
        }

        fn sent(&mut self) -> Vec<(Key, Bytes)> {
            std::iter::from_fn(|| self.outbox.next(self.now)).collect()
        }

        /// The log has taken this message; the node reads it.
        fn read(&mut self, bytes: &[u8]) {
            let number = self.log.stream + 1;
            match self.log.read(number, bytes).unwrap() {
                Read::Begin { session, .. } => {
                    assert!(matches!(self.outbox.begun(session, number, self.now), Begun::Ours(_)));
                }
                Read::Commit(sender, entries) => {
                    let read = self.outbox.read(sender.session, sender.number).unwrap();
                    let tickets = read.tickets.iter().zip(&entries);
                    self.counted.extend(tickets.map(|(ticket, entry)| (ticket.0, entry.proposal.at.0)));
                }
                Read::Beat(sender, ..) => drop(self.outbox.read(sender.session, sender.number).unwrap()),
                Read::Void(session, Void::Begin) => self.outbox.is_void(session, number),
                Read::Void(session, Void::Over) => self.outbox.is_over(session, number),
                Read::Void(session, Void::Gap) => {
                    self.outbox.is_gap(session, self.now);
                }
                Read::Void(..) | Read::Foreign => {}
            }
            if self.outbox.is_lost(number) {
                self.outbox.go_back(self.now);
            }
        }

        fn begin(&mut self) {
            let sent = self.sent();
            assert_eq!(sent.len(), 1, "nothing before its session");
            self.read(&sent[0].1);
        }

        fn wait(&mut self) {
            self.now += RESEND_PAUSE;
        }
    }

    #[test]
    fn waiting_commands_form_one_message_and_window_is_limited() {
        let mut node = Node::new();
        node.outbox.push(Ticket(0), &vec![proposal(1, 10); 100]).unwrap();
        node.begin();
        assert_eq!(node.sent().len(), 1);
        for ticket in 0..40 {
            node.outbox.push(Ticket(100 + ticket), &[proposal(1, 20_000)]).unwrap();
        }
        let more = node.sent();
        assert_eq!((more.len(), node.outbox.in_flight()), (WINDOW - 1, WINDOW));
        assert!(node.outbox.push(Ticket(0), &[proposal(1, 1), proposal(1, 200_000)]).is_err(), "too large");
    }

    #[test]
    fn rejected_window_is_sent_again_unchanged_after_a_pause() {
        let mut node = Node::new();
        node.begin();
        for ticket in 0..5 {
            node.outbox.push(Ticket(ticket), &[proposal(ticket, 20_000)]).unwrap();
        }
        let first = node.sent();
        assert_eq!(first.len(), 5);
        assert!(node.outbox.refused(first[1].0, node.now));
        assert!(!node.outbox.refused(first[2].0, node.now), "an error of an earlier attempt");
        node.outbox.push(Ticket(5), &[proposal(5, 1)]).unwrap();
        assert_eq!((node.sent(), node.outbox.wake_at()), (vec![], Some(node.now + RESEND_PAUSE)));
        node.wait();
        let again = node.sent();
        let bytes = |sent: &[(Key, Bytes)]| sent.iter().map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>();
        assert_eq!(bytes(&again)[..5], bytes(&first));
        again.iter().chain(&first).for_each(|(_, bytes)| node.read(bytes));
        assert_eq!(node.counted, (0..6).map(|number| (number, number)).collect::<Vec<_>>());
    }

    #[test]
    fn acknowledged_message_that_log_does_not_have_is_sent_again() {
        let mut node = Node::new();
        node.begin();
        node.outbox.push(Ticket(0), &[proposal(0, 1)]).unwrap();
        let key = node.sent()[0].0;
        node.outbox.acked(key, 2, node.now);
        node.read(b"something else");
        node.wait();
        let again = node.sent();
        node.read(&again[0].1);
        assert_eq!(node.counted, [(0, 0)]);
    }

    #[test]
    fn superseded_session_starts_again_until_it_happens_too_often() {
        let mut node = Node::new();
        node.begin();
        for round in 0..9 {
            assert_eq!(node.outbox.begun(SessionId(round), node.log.stream, node.now), Begun::Overtaken);
            assert_eq!(node.sent().len(), 0, "it waits");
            node.now += OVERTAKEN_WITHIN;
            node.begin();
        }
        for _ in 1..OVERTAKEN_MAX {
            assert_eq!(node.outbox.begun(SessionId(1), node.log.stream, node.now), Begun::Overtaken);
        }
        assert_eq!(node.outbox.begun(SessionId(1), node.log.stream, node.now), Begun::Taken);
    }

    #[test]
    fn barrier_is_passed_by_next_message_that_is_made() {
        let mut node = Node::new();
        node.begin();
        node.outbox.push(Ticket(0), &[proposal(0, 1)]).unwrap();
        let before = node.sent();
        node.outbox.ask_barrier(Ticket(1));
        assert!(node.outbox.needs_beat(false));
        node.outbox.beat(0, Vec::new());
        node.outbox.ask_barrier(Ticket(2));
        assert!(!node.outbox.needs_beat(true), "one at a time");
        let session = before[0].0.session;
        assert_eq!(node.outbox.read(session, 0).unwrap().barrier, None);
        assert_eq!(node.outbox.read(session, 1).unwrap().barrier, Some(Ticket(1)));
        node.outbox.push(Ticket(3), &[proposal(0, 1)]).unwrap();
        assert!(!node.outbox.needs_beat(false), "the commit passes it");
        node.sent();
        assert_eq!(node.outbox.read(session, 2).unwrap().barrier, Some(Ticket(2)));
    }

    proptest! {
        /// Servers drop, copy, delay and reorder messages, acknowledge or reject them rightly or wrongly, and other processes use the
        /// node's name: each command is counted once, in order.
        #[test]
        fn commands_are_counted_once_and_in_order(
            steps in proptest::collection::vec((0u8..9, 0usize..16), 1..300),
        ) {
            const COMMANDS: u64 = 60;
            let mut node = Node::new();
            let mut network: Vec<(Key, Bytes)> = Vec::new();
            let mut pushed = 0;
            for (what, which) in steps {
                let sent = node.sent();
                network.extend(sent);
                if pushed < COMMANDS {
                    node.outbox.push(Ticket(pushed), &[proposal(pushed, 1), proposal(pushed + 1, 1)]).unwrap();
                    pushed += 2;
                }
                let at = which.min(network.len().saturating_sub(1));
                match what {
                    _ if network.is_empty() => {}
                    // Logged, and maybe kept for later copies, with or without an acknowledgement.
                    0..=2 => { let (key, bytes) = network.remove(at); node.read(&bytes); node.outbox.acked(key, node.log.stream, node.now); }
                    3 => { let (_, bytes) = network[at].clone(); node.read(&bytes); }
                    4 => drop(network.remove(at)),
                    5 => { let key = network[at].0; node.outbox.refused(key, node.now); }
                    6 => { let key = network.remove(at).0; node.outbox.acked(key, node.log.stream + 1, node.now); }
                    7 => node.read(b"foreign"),
                    _ => node.wait(),
                }
            }
            // Then everything works.
            for _ in 0..200 {
                node.outbox.go_back(node.now);
                node.wait();
                let sent = node.sent();
                network.extend(sent);
                for (_, bytes) in std::mem::take(&mut network) {
                    node.read(&bytes);
                }
            }
            let expected: Vec<(u64, u64)> = (0..pushed).map(|number| (number, number)).collect();
            prop_assert_eq!(node.counted, expected);
        }
    }
}
