//! Messages of this node: commands to be logged, beats, and the message that starts the node's session.
//!
//! Messages are numbered and sent in order, up to [`WINDOW`] at a time. In doubt, all messages that were not read back are sent again
//! unchanged, from the first one on (go-back-N): the log counts each number once. A new session starts only with the process, or if the log
//! has dropped or superseded the old one. The message that starts it is its first one, and nothing else is sent until that is read back:
//! then nothing of the old session can count any more, and its unread messages follow in the new one.

use super::message::{self, Body, OVERHEAD_BYTES, SessionId};
use super::order::Void;
use super::peers::NodeReport;
use bytes::Bytes;
use cuckood_log::journal::{JournalError, Result, Ticket};
use cuckood_state::domain::Proposal;
use cuckood_state::frame;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Maximum number of messages in flight, except for a beat.
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

/// Identifies an attempt to send a message: the number of rewinds of the outbox, and the message's number.
pub type DeliveryAttempt = (u64, u64);

/// A message that was not read back.
#[derive(Debug)]
pub(super) struct Sent {
    body: Body,
    /// The tickets of its proposals, in order.
    pub(super) tickets: Vec<Ticket>,
    /// The barrier that is passed once this message is read back, and all before.
    pub(super) barrier: Option<Ticket>,
    /// When it was first sent, and when a server acknowledged the last attempt.
    pub(super) sent_at: Option<Instant>,
    pub(super) acked_at: Option<Instant>,
}

impl Sent {
    fn new(body: Body, tickets: Vec<Ticket>, barrier: Option<Ticket>) -> Sent {
        Sent {
            body,
            tickets,
            barrier,
            sent_at: None,
            acked_at: None,
        }
    }
}

/// Messages to be logged.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    node: String,
    session: SessionId,
    waiting: VecDeque<(Ticket, Vec<u8>)>,
    /// The barrier that the next message passes once it is read back, and all before.
    pub(super) barrier: Option<Ticket>,
    window: VecDeque<Sent>,
    /// Number of the first message in the window.
    first: u64,
    /// Messages of the window that were sent since the last rewind.
    sent: usize,
    not_before: Option<Instant>,
    /// Counts rewinds: errors of earlier attempts don't matter.
    epoch: u64,
    /// The last message of the stream that a server has acknowledged as ours.
    acked: u64,
    overtaken: Vec<Instant>,
}

impl Outbox {
    /// The outbox of a node. Sends nothing before [`Outbox::begin`].
    pub(super) fn new(node: &str) -> Outbox {
        Outbox {
            node: node.to_owned(),
            ..Outbox::default()
        }
    }

    /// Starts another session, of a node that has read the log up to message `read`.
    pub(super) fn begin(&mut self, read: u64) {
        if !self.is_begun() {
            self.window.pop_front();
        }
        (self.session, self.first, self.sent) = (SessionId::random(), 0, 0);
        self.epoch += 1;
        let body = Body::Begin {
            node: self.node.clone(),
            read,
        };
        self.window.push_front(Sent::new(body, Vec::new(), None));
    }

    /// Whether the session's first message was read back.
    fn is_begun(&self) -> bool {
        !self
            .window
            .front()
            .is_some_and(|sent| matches!(sent.body, Body::Begin { .. }))
    }

    /// Takes proposals with consecutive tickets.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if one is too large for a message; then nothing is taken.
    pub(super) fn push(&mut self, first: Ticket, batch: &[Proposal]) -> Result<()> {
        let mut encoded = Vec::with_capacity(batch.len());
        for (proposal, ticket) in batch.iter().zip(first.0..) {
            let bytes = frame::encode(proposal);
            if bytes.len() > MESSAGE_BYTES_MAX - OVERHEAD_BYTES {
                return Err(JournalError::Failed(format!(
                    "a command of {} bytes",
                    bytes.len()
                )));
            }
            encoded.push((Ticket(ticket), bytes));
        }
        self.waiting.extend(encoded);
        Ok(())
    }

    /// Whether a beat should be made: one is due, or a barrier waits for one, and none is in flight.
    pub(super) fn needs_beat(&self, is_due: bool) -> bool {
        let is_wanted = is_due || self.barrier.is_some() && self.waiting.is_empty();
        let is_in_flight = || {
            self.window
                .iter()
                .any(|sent| matches!(sent.body, Body::Beat(_)))
        };
        is_wanted && self.is_begun() && !is_in_flight()
    }

    /// Makes a beat.
    pub(super) fn beat(&mut self, report: NodeReport) {
        self.make(Body::Beat(report), Vec::new());
    }

    fn make(&mut self, body: Body, tickets: Vec<Ticket>) {
        self.window
            .push_back(Sent::new(body, tickets, self.barrier.take()));
    }

    /// The next message to send; it counts as sent.
    pub(super) fn next(&mut self, now: Instant) -> Option<(DeliveryAttempt, Bytes)> {
        if self.not_before.is_some_and(|at| now < at) || self.sent > 0 && !self.is_begun() {
            return None;
        }
        if self.sent == self.window.len() && self.window.len() < WINDOW {
            self.gather();
        }
        let number = self.first + self.sent as u64;
        let message = self.window.get_mut(self.sent)?;
        message.sent_at.get_or_insert(now);
        message.acked_at = None;
        self.sent += 1;
        Some((
            (self.epoch, number),
            message::encode(self.session, number, &message.body),
        ))
    }

    /// Makes a commit of the waiting commands, up to the limits.
    fn gather(&mut self) {
        let mut tickets = Vec::new();
        let mut payload = Vec::new();
        while let Some((ticket, bytes)) = self.waiting.pop_front_if(|(_, bytes)| {
            payload.is_empty() || payload.len() + bytes.len() + OVERHEAD_BYTES <= COMMIT_BYTES_MAX
        }) {
            tickets.push(ticket);
            payload.extend_from_slice(&bytes);
        }
        if !tickets.is_empty() {
            self.make(
                Body::Commit {
                    entries: tickets.len() as u64,
                    payload,
                },
                tickets,
            );
        }
    }

    /// A server has acknowledged an attempt as message `message` of the stream.
    pub(super) fn acked(&mut self, (epoch, number): DeliveryAttempt, message: u64, now: Instant) {
        self.acked = self.acked.max(message);
        let at = number
            .checked_sub(self.first)
            .filter(|_| epoch == self.epoch);
        if let Some(sent) = at.and_then(|at| self.window.get_mut(at as usize)) {
            sent.acked_at = Some(now);
        }
    }

    /// A server has rejected an attempt, or has not answered. Returns whether it matters: then the window is sent again.
    pub(super) fn refused(&mut self, (epoch, number): DeliveryAttempt, now: Instant) -> bool {
        epoch == self.epoch && number >= self.first && self.go_back(now)
    }

    /// The log was read up to message `read`, and no attempt is unanswered: it lacks acknowledged messages up to there that were not read
    /// back. Returns whether there are any: then they are sent again.
    pub(super) fn go_back_if_missing(&mut self, read: u64, now: Instant) -> bool {
        self.acked <= read && self.go_back(now)
    }

    /// Sends everything again that was not read back, after a pause. Returns whether there is anything.
    pub(super) fn go_back(&mut self, now: Instant) -> bool {
        let is_sent = self.sent > 0;
        if is_sent {
            self.sent = 0;
            self.epoch += 1;
            self.not_before = Some(now + RESEND_PAUSE);
        }
        is_sent
    }

    /// A message of this session was counted. Returns it if this process has sent it.
    pub(super) fn read(&mut self, session: SessionId, number: u64) -> Option<Sent> {
        if session != self.session || number != self.first {
            return None;
        }
        let read = self.window.pop_front()?;
        self.first += 1;
        self.sent = self.sent.saturating_sub(1);
        Some(read)
    }

    /// A message of this session has no effect; the log was read up to message `read`. Returns whether everything is sent again.
    pub(super) fn void(&mut self, session: SessionId, void: Void, read: u64, now: Instant) -> bool {
        if session != self.session {
            return false;
        }
        match void {
            Void::Copy => false,
            Void::Gap => self.go_back(now),
            // The log has dropped this node, or could not start its session after the last known one.
            Void::Over => {
                self.begin(read);
                false
            }
        }
    }

    /// Another process has superseded our session; the next one starts after a pause. Returns `false` if that has happened too often: the
    /// other process is running.
    pub(super) fn overtaken(&mut self, read: u64, now: Instant) -> bool {
        self.overtaken
            .retain(|at| now.saturating_duration_since(*at) < OVERTAKEN_WITHIN);
        let before = self.overtaken.len();
        self.overtaken.push(now);
        self.begin(read);
        self.not_before = Some(now + OVERTAKEN_PAUSE * (1 << before));
        before + 1 < OVERTAKEN_MAX
    }

    /// For how long the oldest message was not read back since it was first sent.
    pub(super) fn unconfirmed_for(&self, now: Instant) -> Duration {
        let since = self.window.iter().filter_map(|sent| sent.sent_at).min();
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Whether there is anything to send or to read back.
    pub(super) fn has_work(&self) -> bool {
        !self.window.is_empty() || !self.waiting.is_empty()
    }

    /// Number of messages in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.window.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::StreamPlace;
    use cuckood_filter::Digest;
    use cuckood_state::domain::{Command, Digests, FilterId, Target, Timestamp};
    use proptest::prelude::*;

    fn proposal(at: u64, digests: usize) -> Proposal {
        let target = Target(FilterId(1));
        let digests = Digests(vec![Digest(u64::MAX); digests]);
        Proposal::new(
            Timestamp(at),
            Command::Insert {
                target,
                digests,
                if_absent: false,
                revive: false,
            },
        )
    }

    /// An outbox over a log.
    struct Node {
        outbox: Outbox,
        log: StreamPlace,
        now: Instant,
        /// Tickets and times of the entries that were counted.
        counted: Vec<(u64, u64)>,
    }

    impl Node {
        fn new() -> Node {
            let mut outbox = Outbox::new("a");
            outbox.begin(0);
            Node {
                outbox,
                log: StreamPlace::default(),
                now: Instant::now(),
                counted: Vec::new(),
            }
        }

        fn sent(&mut self) -> Vec<(DeliveryAttempt, Bytes)> {
            std::iter::from_fn(|| self.outbox.next(self.now)).collect()
        }

        /// The log has taken this message; the node reads it.
        fn read(&mut self, bytes: &[u8]) {
            let Some(message) = message::decode(bytes, false).unwrap() else {
                return self.log.skip(0);
            };
            match self.log.read(&message, 0).unwrap() {
                Ok((_, entries)) => {
                    let sent = self.outbox.read(message.session, message.number).unwrap();
                    let tickets = sent.tickets.iter().zip(&entries);
                    self.counted
                        .extend(tickets.map(|(ticket, entry)| (ticket.0, entry.proposal.at.0)));
                }
                Err(void) => {
                    self.outbox
                        .void(message.session, void, self.log.stream, self.now);
                }
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
    fn waiting_commands_form_one_message() {
        let mut node = Node::new();
        node.outbox
            .push(Ticket(0), &vec![proposal(1, 10); 100])
            .unwrap();
        node.begin();
        assert_eq!(node.sent().len(), 1);
        for ticket in 0..40 {
            node.outbox
                .push(Ticket(100 + ticket), &[proposal(1, 20_000)])
                .unwrap();
        }
        let more = node.sent();
        assert_eq!((more.len(), node.outbox.in_flight()), (WINDOW - 1, WINDOW));
        assert!(
            node.outbox
                .push(Ticket(0), &[proposal(1, 1), proposal(1, 200_000)])
                .is_err(),
            "too large"
        );
    }

    #[test]
    fn rejected_window_is_resent_unchanged() {
        let mut node = Node::new();
        node.begin();
        for ticket in 0..5 {
            node.outbox
                .push(Ticket(ticket), &[proposal(ticket, 20_000)])
                .unwrap();
        }
        let first = node.sent();
        assert_eq!(first.len(), 5);
        assert!(node.outbox.refused(first[1].0, node.now));
        assert!(
            !node.outbox.refused(first[2].0, node.now),
            "an error of an earlier attempt"
        );
        node.outbox.push(Ticket(5), &[proposal(5, 1)]).unwrap();
        assert_eq!((node.sent(), node.outbox.sent), (vec![], 0));
        node.wait();
        let again = node.sent();
        let bytes = |sent: &[(DeliveryAttempt, Bytes)]| {
            sent.iter()
                .map(|(_, bytes)| bytes.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(bytes(&again)[..5], bytes(&first));
        again
            .iter()
            .chain(&first)
            .for_each(|(_, bytes)| node.read(bytes));
        assert_eq!(
            node.counted,
            (0..6).map(|number| (number, number)).collect::<Vec<_>>()
        );
    }

    #[test]
    fn acknowledgement_counts_for_current_attempt() {
        let mut node = Node::new();
        node.begin();
        node.outbox.push(Ticket(0), &[proposal(0, 1)]).unwrap();
        let start = node.now;
        let first = node.sent().remove(0).0;
        node.outbox.go_back(start);
        node.outbox.acked(first, 2, start);
        assert_eq!(node.outbox.window[0].acked_at, None);
        node.wait();
        let second = node.sent().remove(0).0;
        node.outbox.acked(second, 2, node.now);
        node.outbox.go_back(node.now);
        node.wait();
        let again = node.sent().remove(0).0;
        assert_eq!(node.outbox.window[0].acked_at, None);
        node.outbox.acked(again, 2, node.now);
        let sent = node.outbox.read(node.outbox.session, 1).unwrap();
        assert_eq!((sent.sent_at, sent.acked_at), (Some(start), Some(node.now)));
        node.outbox.acked(again, 2, node.now);
    }

    #[test]
    fn acknowledged_message_missing_in_log_is_resent() {
        let mut node = Node::new();
        node.begin();
        node.outbox.push(Ticket(0), &[proposal(0, 1)]).unwrap();
        let attempt = node.sent()[0].0;
        node.outbox.acked(attempt, 2, node.now);
        assert!(
            !node.outbox.go_back_if_missing(node.log.stream, node.now),
            "it may come"
        );
        node.read(b"something else");
        assert!(node.outbox.go_back_if_missing(node.log.stream, node.now));
        node.wait();
        let again = node.sent();
        node.read(&again[0].1);
        assert_eq!(node.counted, [(0, 0)]);
    }

    /// No event wakes the writer when the pause ends, so its commands must count as work.
    #[test]
    fn paused_command_counts_as_work() {
        let mut node = Node::new();
        node.begin();
        assert!(!node.outbox.has_work());
        node.outbox.push(Ticket(0), &[proposal(0, 1)]).unwrap();
        let (_, bytes) = node.sent().remove(0);
        node.outbox.go_back(node.now);
        node.read(&bytes);
        node.outbox.push(Ticket(1), &[proposal(1, 1)]).unwrap();
        assert_eq!((node.sent().len(), node.outbox.in_flight()), (0, 0));
        assert!(node.outbox.has_work());
    }

    #[test]
    fn rejection_of_read_message_is_ignored() {
        let mut node = Node::new();
        node.begin();
        node.outbox.push(Ticket(0), &[proposal(0, 1)]).unwrap();
        let (first, bytes) = node.sent().remove(0);
        node.read(&bytes);
        node.outbox.push(Ticket(1), &[proposal(1, 1)]).unwrap();
        assert_eq!(node.sent().len(), 1);
        assert!(!node.outbox.refused(first, node.now));
    }

    #[test]
    fn superseded_session_restarts_up_to_limit() {
        let mut node = Node::new();
        node.begin();
        for _ in 0..9 {
            assert!(node.outbox.overtaken(node.log.stream, node.now));
            assert_eq!(node.sent().len(), 0, "it waits");
            node.now += OVERTAKEN_WITHIN;
            node.begin();
        }
        for _ in 1..OVERTAKEN_MAX {
            assert!(node.outbox.overtaken(node.log.stream, node.now));
        }
        assert!(!node.outbox.overtaken(node.log.stream, node.now));
    }

    #[test]
    fn barrier_ends_with_next_message() {
        let mut node = Node::new();
        node.begin();
        node.outbox.push(Ticket(0), &[proposal(0, 1)]).unwrap();
        assert_eq!(node.sent().len(), 1);
        node.outbox.barrier = Some(Ticket(1));
        assert!(node.outbox.needs_beat(false));
        node.outbox.beat(NodeReport::default());
        node.outbox.barrier = Some(Ticket(2));
        assert!(!node.outbox.needs_beat(true), "one at a time");
        let session = node.outbox.session;
        assert_eq!(node.outbox.read(session, 1).unwrap().barrier, None);
        assert_eq!(
            node.outbox.read(session, 2).unwrap().barrier,
            Some(Ticket(1))
        );
        node.outbox.push(Ticket(3), &[proposal(0, 1)]).unwrap();
        assert!(!node.outbox.needs_beat(false), "the commit passes it");
        node.sent();
        assert_eq!(
            node.outbox.read(session, 3).unwrap().barrier,
            Some(Ticket(2))
        );
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
            let mut network: Vec<(DeliveryAttempt, Bytes)> = Vec::new();
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
                    // Logged, and maybe stored for later copies.
                    0..=2 => { let (_, bytes) = network.remove(at); node.read(&bytes); }
                    3 => { let (_, bytes) = network[at].clone(); node.read(&bytes); }
                    4 => drop(network.remove(at)),
                    5 => { let attempt = network[at].0; node.outbox.refused(attempt, node.now); }
                    6 => { node.outbox.go_back(node.now); }
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
