//! The thread that speaks to the servers: publishes what the writer proposes, reads the log, and passes on what it says.
//!
//! What was published counts as committed when it is read back, whether or not a server has acknowledged it. If it is neither
//! within the time, its fate is unknown: then the node begins a new session, which voids whatever of the old one it has not read
//! by then (see `sequencer`), and publishes the same again. So a write is not lost by the death of the stream's leader, and never
//! takes effect twice, whatever the servers do with messages that they got late.

use super::apart::read_apart;
use super::beats::Beats;
use super::link::Link;
use super::message::{self, Body, Session};
use super::options::NatsOptions;
use super::outbox::Outbox;
use super::own_session::{Begin, Begun, OwnSession};
use super::reader::{Reader, StreamMessage};
use super::reports::Reports;
use super::sequencer::{Place, Read, Sequencer, Void};
use super::status::{LogTime, Replication};
use super::under_way::Bracket;
use super::watch::Watch;
use crate::domain::{Entry, Proposal, StateHash};
use crate::journal::{Committed, JournalError, Ticket};
use async_nats::jetstream::context::PublishError;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// What was published and neither acknowledged nor read back for so long shows on the lag.
const READ_BACK_PATIENCE: Duration = Duration::from_secs(1);

/// What was acknowledged and is not read back for so long, although the log was read up to everything that a server has acknowledged,
/// is lost.
const LOST_AFTER: Duration = Duration::from_secs(10);

/// Pause between two looks whether there is a connection again.
const CONNECTION_PAUSE: Duration = Duration::from_millis(50);

/// How long a node that has to stop tries to tell the others why, and the pause between two attempts.
const TELL_TIME: Duration = Duration::from_secs(60);
const TELL_PAUSE: Duration = Duration::from_secs(1);

/// The loop sleeps at least this long, unless something happens.
const SLEEP_MIN: Duration = Duration::from_millis(10);

/// Messages for the writer that it has not taken.
pub(super) const DELIVERIES_MAX: usize = 32;

/// What the writer wants.
pub(super) enum Order {
    /// Read the log from this place on. Comes once.
    Start(Place),
    /// Commit these, with consecutive tickets.
    Propose(Ticket, Vec<Proposal>),
    /// Tell the others this hash of the state, and compare it with theirs.
    Compare(StateHash),
    /// Tell when everything that was committed before now was delivered.
    Barrier(u64),
    /// Read the entries behind a place, apart from everything else, until the receiver is dropped.
    Read(Place, mpsc::Sender<Result<Vec<Entry>, JournalError>>),
}

/// What the writer gets, in the log's order.
#[derive(Debug)]
pub(super) enum Delivery {
    /// Entries, and the place behind them.
    Entries(Vec<Committed>, Place),
    /// Everything that was in the log when this process began is delivered.
    Begun,
    /// The barrier of this number, and all before it, are passed.
    Passed(u64),
    /// The log can't be used any more.
    Failed(JournalError),
}

/// What an acknowledgement is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    Begin(Session),
    Commit(Session, u64),
    Beat(u64),
}

pub(super) struct Driver {
    link: Link,
    node: String,
    status: Arc<Replication>,
    orders: mpsc::UnboundedReceiver<Order>,
    deliveries: mpsc::Sender<Delivery>,
    /// What the writer has no room for yet.
    outgoing: VecDeque<Delivery>,
    outbox: Outbox,
    sequencer: Sequencer,
    reader: Reader,
    watch: Watch,
    acks: FuturesUnordered<BoxFuture<'static, (Sent, Result<u64, PublishError>)>>,
    own: OwnSession,
    beats: Beats,
    reports: Reports,
    /// When something was last given up as lost.
    given_up_at: Instant,
    begun: bool,
}

/// Serves the writer until it drops its end of `orders`, or the log can't be used any more.
pub(super) async fn run(
    link: Link,
    options: NatsOptions,
    status: Arc<Replication>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    deliveries: mpsc::Sender<Delivery>,
) {
    let mut outbox = Outbox::default();
    let place = loop {
        match orders.recv().await {
            None => return,
            Some(Order::Start(place)) => break place,
            // Whoever proposes before it reads has nothing to be told yet.
            Some(Order::Propose(first, batch)) if outbox.push(first, &batch).is_ok() => {}
            Some(_) => return,
        }
    };
    let now = Instant::now();
    status.expect(place.sessions.nodes.keys().map(|node| &**node));
    let driver = Driver {
        reader: Reader::start(link.clone(), status.clone(), &place),
        watch: Watch::new(place.stream, now),
        link,
        reports: Reports::new(&options),
        node: options.node,
        status,
        orders,
        deliveries,
        outgoing: VecDeque::new(),
        outbox,
        sequencer: Sequencer::new(place),
        acks: FuturesUnordered::new(),
        own: OwnSession::default(),
        beats: Beats::new(now),
        given_up_at: now,
        begun: false,
    };
    driver.serve().await;
}

impl Driver {
    async fn serve(mut self) {
        let deliveries = self.deliveries.clone();
        self.own.start_over(Instant::now());
        loop {
            self.publish().await;
            self.note_status();
            if let Err(error) = self.do_what_is_due(Instant::now()) {
                return self.end(error).await;
            }
            let wake_at = tokio::time::Instant::from_std(self.wake_at());
            let went_on = tokio::select! {
                order = self.orders.recv() => match order {
                    None => return,
                    Some(order) => self.take_order(order),
                },
                room = deliveries.reserve(), if !self.outgoing.is_empty() => match room {
                    Err(_) => return,
                    Ok(room) => {
                        if let Some(delivery) = self.outgoing.pop_front() {
                            room.send(delivery);
                        }
                        Ok(())
                    }
                },
                message = self.reader.next(), if self.outgoing.is_empty() => {
                    message.and_then(|message| self.take_message(&message))
                }
                Some((sent, ack)) = self.acks.next(), if !self.acks.is_empty() => {
                    self.take_ack(sent, ack);
                    Ok(())
                }
                () = tokio::time::sleep_until(wake_at) => Ok(()),
            };
            if let Err(error) = went_on {
                return self.end(error).await;
            }
        }
    }

    /// What time alone makes due. However much goes on, the loop comes here each time.
    fn do_what_is_due(&mut self, now: Instant) -> Result<(), JournalError> {
        self.check(now);
        self.reports.decide(&self.status, now)
    }

    /// Passes on what was read before the failure, then the failure.
    async fn end(mut self, error: JournalError) {
        let is_diverged = matches!(error, JournalError::Diverged { .. });
        self.outgoing.push_back(Delivery::Failed(error));
        for delivery in std::mem::take(&mut self.outgoing) {
            if self.deliveries.send(delivery).await.is_err() {
                return;
            }
        }
        if is_diverged {
            self.tell_hash().await;
        }
    }

    /// Tells the others the hash for which this node has stopped, until a server has it: it may be for them to stop as well.
    async fn tell_hash(mut self) {
        let Some(session) = self.own.current() else { return };
        let (applied, report) = (self.status.applied().0, self.reports.next(Instant::now()));
        // It has no number of its own: this node does not read it back.
        let bytes = message::encode(session, Body::Beat { number: 0, applied, report: &report });
        let told = tell(&self.link, bytes);
        // The writer has failed: it wants nothing but the end.
        let closed = async { while self.orders.recv().await.is_some() {} };
        tokio::select! {
            told = tokio::time::timeout(TELL_TIME, told) => {
                if told.is_err() {
                    tracing::warn!("the other nodes could not be told the hash of this node's state");
                }
            }
            () = closed => {}
        }
    }

    fn take_order(&mut self, order: Order) -> Result<(), JournalError> {
        match order {
            Order::Start(_) => Ok(()),
            Order::Propose(first, batch) => self.outbox.push(first, &batch),
            Order::Compare(hash) => self.reports.take_own(hash, &self.status, Instant::now()),
            Order::Barrier(number) => {
                self.beats.ask(number);
                Ok(())
            }
            Order::Read(place, sink) => {
                tokio::spawn(read_apart(self.link.clone(), self.status.clone(), place, sink));
                Ok(())
            }
        }
    }

    /// Publishes what is due, as far as there is a connection.
    async fn publish(&mut self) {
        if !self.link.is_connected() {
            return;
        }
        let now = Instant::now();
        if let Some(begin) = self.own.due(self.sequencer.place().stream, now) {
            self.publish_begin(begin, now).await;
        }
        let Some(session) = self.own.current() else { return };
        while !self.own.is_beginning()
            && let Some(commit) = self.outbox.next(now)
        {
            let (number, entries) = (commit.number, commit.tickets.len() as u64);
            let body = Body::Commit { number, entries, payload: &commit.payload };
            let bytes = message::encode(session, body);
            self.send(Sent::Commit(session, number), bytes).await;
        }
        let is_wanted = !self.status.knows_log_time() || self.reports.due_at(now) <= now;
        if !self.own.is_beginning()
            && let Some(number) = self.beats.due(is_wanted, now)
        {
            let (applied, report) = (self.status.applied().0, self.reports.next(now));
            let bytes = message::encode(session, Body::Beat { number, applied, report: &report });
            self.send(Sent::Beat(number), bytes).await;
        }
    }

    async fn publish_begin(&mut self, begin: Begin, now: Instant) {
        if self.own.gives_server_up(now) {
            let _ = self.link.client.force_reconnect().await;
        }
        let Begin { session, read } = begin;
        let bytes = message::encode(session, Body::Begin { node: &self.node, read });
        self.send(Sent::Begin(session), bytes).await;
    }

    async fn send(&mut self, what: Sent, bytes: Bytes) {
        match self.link.publishing.publish(self.link.subject.clone(), bytes).await {
            Ok(ack) => self.acks.push(Box::pin(async move { (what, ack.await.map(|ack| ack.sequence)) })),
            Err(error) => self.take_ack(what, Err(error)),
        }
    }

    fn take_ack(&mut self, sent: Sent, ack: Result<u64, PublishError>) {
        let now = Instant::now();
        match (ack, sent) {
            (Ok(message), _) => {
                self.watch.acked(message, now);
                match sent {
                    Sent::Begin(session) => self.own.acked(session, now),
                    Sent::Commit(session, number) if self.own.current() == Some(session) => {
                        self.outbox.acked(number, now);
                    }
                    Sent::Commit(..) => {}
                    Sent::Beat(number) => self.beats.acked(number, now),
                }
            }
            (Err(error), Sent::Begin(session)) => {
                let attempts = self.own.refused(session, now);
                if let Some(attempts) = attempts.filter(|attempts| attempts.is_power_of_two()) {
                    tracing::warn!(%error, attempts, "the log can't be written now");
                }
            }
            (Err(error), Sent::Commit(session, number)) => {
                if self.own.current() == Some(session) && self.outbox.is_in_flight(number) {
                    if !self.own.is_beginning() {
                        tracing::warn!(%error, "a commit's fate is unknown: beginning a new session, then publishing it again");
                    }
                    self.own.start_over(now);
                }
            }
            (Err(_), Sent::Beat(number)) => self.beats.refused(number, now),
        }
    }

    fn take_message(&mut self, message: &StreamMessage) -> Result<(), JournalError> {
        let now = Instant::now();
        self.status.note_behind(message.behind);
        self.status.note_time(message.at);
        let read = self.sequencer.read(message.number, &message.payload)?;
        self.watch.read(message.number, now);
        match read {
            Read::Commit { session, number, entries } => self.take_commit(message, session, number, entries),
            Read::Begin { session, node } => {
                if node == self.node {
                    self.take_session(message, session, now)?;
                } else {
                    self.status.heard_begin(&node);
                    self.reports.introduce();
                }
            }
            Read::Beat { session, node, number, applied, report } => {
                self.status.heard(&node, Some(applied));
                if node != self.node {
                    let report = report.up_to(self.sequencer.place().seq);
                    self.reports.take(&node, report, &self.status, now)?;
                }
                let is_own = self.own.current() == Some(session);
                if let Some((bracket, passed)) = is_own.then(|| self.beats.read(number, now)).flatten() {
                    self.note_read_back(message, bracket, now);
                    self.outgoing.extend(passed.map(Delivery::Passed));
                }
            }
            Read::Void { session, what } => {
                let number = message.number;
                tracing::info!(
                    message = number,
                    ?what,
                    "a message has no effect: it came twice, or too late"
                );
                self.take_void(session, what, now);
            }
            Read::Foreign => {
                tracing::warn!(
                    message = message.number,
                    "somebody else has published to the log; it is passed over"
                );
            }
        }
        Ok(())
    }

    fn take_commit(&mut self, message: &StreamMessage, session: Session, number: u64, entries: Vec<Entry>) {
        let is_own = self.own.current() == Some(session);
        let own = if is_own { self.outbox.take(number) } else { None };
        if let Some(commit) = &own {
            let now = Instant::now();
            self.own.committed();
            self.note_read_back(message, commit.bracket(now), now);
        } else if let Some(node) = self.sequencer.node_of(session) {
            self.status.heard(node, None);
        }
        let mut tickets = own.map_or(Vec::new(), |commit| commit.tickets).into_iter();
        let committed =
            entries.into_iter().map(|entry| Committed { entry, ticket: tickets.next() }).collect();
        self.outgoing.push_back(Delivery::Entries(committed, self.sequencer.place().clone()));
    }

    /// A session of this node's name has begun. If it is ours, everything before it was read, and what of our earlier sessions was
    /// not read is void.
    fn take_session(
        &mut self,
        message: &StreamMessage,
        session: Session,
        now: Instant,
    ) -> Result<(), JournalError> {
        let is_first = self.own.current().is_none();
        let bracket = match self.own.read(session, now) {
            Begun::Ours(bracket) => bracket,
            Begun::Earlier => return Ok(()),
            Begun::Overtaken => {
                tracing::warn!(
                    node = self.node,
                    "another process has used the name of this node: beginning a new session"
                );
                return Ok(());
            }
            Begun::Taken => {
                return Err(JournalError::Failed(format!(
                    "another process uses the name of this node, {}: give each node a cluster.node of its own",
                    self.node
                )));
            }
        };
        self.note_read_back(message, bracket, now);
        if !is_first {
            let commits = self.outbox.in_flight();
            tracing::info!(
                commits,
                "a new session has begun: what was not committed in the old one is published again"
            );
        }
        self.status.began_session();
        self.outbox.start_over();
        self.beats.start_over();
        self.reports.introduce();
        if !std::mem::replace(&mut self.begun, true) {
            self.status.listens();
            self.outgoing.push_back(Delivery::Begun);
        }
        Ok(())
    }

    fn take_void(&mut self, session: Session, what: Void, now: Instant) {
        if what == Void::Begin {
            self.own.read_void(session);
        } else if self.own.current() == Some(session) {
            // The log has forgotten this node, or one before it is lost, so none behind it will count.
            let is_forgotten = self.sequencer.node_of(session).is_none();
            let is_lost = matches!(what, Void::Commit(number) if self.outbox.is_in_flight(number));
            if is_forgotten || is_lost {
                self.own.start_over(now);
            }
        }
    }

    fn note_read_back(&mut self, message: &StreamMessage, bracket: Bracket, now: Instant) {
        self.beats.note_read_back(now);
        self.status.observed(LogTime { log: message.at, sent: bracket.sent, seen: bracket.seen });
    }

    /// Since when something is under way.
    fn oldest(&self) -> Option<Instant> {
        [self.outbox.oldest(), self.own.oldest(), self.beats.oldest()].into_iter().flatten().min()
    }

    /// When what a server has acknowledged counts as lost.
    fn lost_at(&self) -> Option<Instant> {
        let acked = [self.outbox.acked_since(), self.own.acked_since(), self.beats.acked_since()];
        let oldest = acked.into_iter().flatten().min().filter(|_| self.watch.has_read_all())?;
        Some(oldest.max(self.given_up_at) + LOST_AFTER)
    }

    /// Opens the reader again if it does not come to what a server has acknowledged, and publishes again what has got lost although a
    /// server has acknowledged it. While the writer holds everything up it is neither.
    fn check(&mut self, now: Instant) {
        if !self.outgoing.is_empty() || !self.reader.is_empty() || !self.link.is_connected() {
            return;
        }
        let place = self.sequencer.place();
        if self.watch.late_at(self.reader.opened()).is_some_and(|at| at <= now) {
            let after = place.stream;
            tracing::warn!(after, "the log's reader has not come to what was acknowledged: opening it again");
            self.status.reopened();
            self.reader = Reader::start(self.link.clone(), self.status.clone(), place);
        } else if self.lost_at().is_some_and(|at| at <= now) {
            tracing::warn!("what was acknowledged is not in the log: publishing it again");
            self.given_up_at = now;
            if self.own.is_beginning() {
                self.own.try_again(now);
            } else {
                self.own.start_over(now);
            }
        }
    }

    fn wake_at(&self) -> Instant {
        let now = Instant::now();
        if !self.link.is_connected() {
            // Nothing wakes the loop when there is a connection again.
            return now + CONNECTION_PAUSE;
        }
        let report_at = self.reports.due_at(now);
        let beat = if self.own.is_beginning() { None } else { self.beats.wake_at(report_at) };
        let reader = self.watch.late_at(self.reader.opened());
        let due = [self.own.wake_at(), beat, reader, self.lost_at(), self.reports.wake_at()]
            .into_iter()
            .flatten()
            .min();
        due.unwrap_or(now + LOST_AFTER).max(now + SLEEP_MIN)
    }

    fn note_status(&mut self) {
        self.status.served_by(|| {
            let server = self.link.client.server_info();
            (server.server_name, server.version)
        });
        let late = self.oldest().filter(|sent| sent.elapsed() >= READ_BACK_PATIENCE);
        self.status.note(self.outbox.in_flight(), late);
    }
}

/// Publishes a message until a server has it.
async fn tell(link: &Link, bytes: Bytes) {
    while match link.publishing.publish(link.subject.clone(), bytes.clone()).await {
        Ok(ack) => ack.await.is_err(),
        Err(_) => true,
    } {
        tokio::time::sleep(TELL_PAUSE).await;
    }
}
