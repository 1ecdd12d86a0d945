//! The thread that talks to the servers: publishes what the writer proposes, reads the log, and delivers it.
//!
//! A message counts as committed when it is read back, whether or not a server has acknowledged it. On doubt it is sent again as it is
//! (see `outbox`). So the loss of the stream's leader loses no write, and none takes effect twice, whatever servers do with late messages.

use super::link::Link;
use super::message::SessionId;
use super::options::NatsOptions;
use super::order::{Place, Read, Sender, Void};
use super::outbox::{Begun, Key, Outbox, Sent, Times};
use super::peers::Peers;
use super::reader::{Reader, StreamMessage};
use super::replication::{LogTime, Replication};
use crate::domain::{Entry, Proposal, Seq, StateHash};
use crate::journal::{Committed, Delivery, JournalError, Ticket, check_understood};
use async_nats::jetstream::{self, context::PublishError};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// A node that has read back nothing of its own for this long publishes a beat: it shows that the log can be written and read.
const BEAT_EVERY: Duration = Duration::from_secs(5);

/// A server that has acknowledged nothing for this long is replaced: it may be stopped, or cut off from the others.
const SERVER_PATIENCE: Duration = Duration::from_secs(5);

/// Pause between two checks of a broken connection: nothing wakes the loop when it is made again.
const CONNECTION_PAUSE: Duration = Duration::from_millis(50);

/// The loop sleeps at least this long, unless something happens.
const SLEEP_MIN: Duration = Duration::from_millis(10);

/// Maximum number of deliveries that the writer has not taken.
pub(super) const DELIVERIES_MAX: usize = 32;

/// A request of the writer.
pub(super) enum Order {
    /// Commit these, with consecutive tickets.
    Propose(Ticket, Vec<Proposal>),
    /// Report this hash of the state, and compare it with those of other nodes.
    Compare(StateHash),
    /// Deliver this barrier once everything is delivered that was committed before now.
    Barrier(Ticket),
}

/// News for the writer, in the log's order, with the place behind them. An error is the last.
pub(super) type News = Result<(Delivery, Place), JournalError>;

pub(super) struct Driver {
    link: Link,
    options: NatsOptions,
    shared: Arc<Mutex<Replication>>,
    orders: mpsc::UnboundedReceiver<Order>,
    deliveries: mpsc::Sender<News>,
    /// News for which the writer has no space yet.
    outgoing: VecDeque<News>,
    outbox: Outbox,
    place: Place,
    reader: Reader,
    acks: FuturesUnordered<BoxFuture<'static, (Key, Result<u64, PublishError>)>>,
    peers: Peers,
    begun: bool,
    /// The last message that a server has acknowledged.
    acked: u64,
    /// When a message was last read, or became one to wait for.
    moved_at: Instant,
    /// When something of this node was last read back.
    read_back_at: Instant,
    /// Since when no server has acknowledged anything that was sent.
    silent_since: Option<Instant>,
    is_refused: bool,
    /// How often the connection had been made again when that was last looked at.
    reconnects: u64,
}

/// Reads the log from a place on, once that arrives, and serves the writer until it drops its end of `orders`, or the log can't be used any
/// more.
pub(super) async fn run(
    link: Link,
    options: NatsOptions,
    shared: Arc<Mutex<Replication>>,
    place: oneshot::Receiver<Place>,
    orders: mpsc::UnboundedReceiver<Order>,
    deliveries: mpsc::Sender<News>,
) {
    let Ok(place) = place.await else { return };
    let now = Instant::now();
    let driver = Driver {
        reader: Reader::start(link.clone(), shared.clone(), &place),
        outbox: Outbox::new(&options.node, place.stream, now),
        peers: Peers::new(&options),
        link,
        options,
        shared,
        orders,
        deliveries,
        outgoing: VecDeque::new(),
        place,
        acks: FuturesUnordered::new(),
        begun: false,
        acked: 0,
        moved_at: now,
        read_back_at: now,
        silent_since: None,
        is_refused: false,
        reconnects: 0,
    };
    driver.serve().await;
}

impl Driver {
    async fn serve(mut self) {
        let deliveries = self.deliveries.clone();
        loop {
            self.replace_silent_server().await;
            self.publish().await;
            self.note();
            if let Err(error) = self.check(Instant::now()) {
                return self.end(error).await;
            }
            let wake_at = tokio::time::Instant::from_std(self.wake_at());
            let done = tokio::select! {
                order = self.orders.recv() => match order {
                    None => return,
                    Some(order) => self.take_order(order),
                },
                space = deliveries.reserve(), if !self.outgoing.is_empty() => match space {
                    Err(_) => return,
                    Ok(space) => {
                        if let Some(delivery) = self.outgoing.pop_front() {
                            space.send(delivery);
                            self.moved_at = Instant::now();
                        }
                        Ok(())
                    }
                },
                message = self.reader.next(), if self.outgoing.is_empty() => {
                    message.and_then(|message| self.take_message(&message))
                }
                Some((key, ack)) = self.acks.next(), if !self.acks.is_empty() => {
                    self.take_ack(key, ack);
                    Ok(())
                }
                () = tokio::time::sleep_until(wake_at) => Ok(()),
            };
            if let Err(error) = done {
                return self.end(error).await;
            }
        }
    }

    /// Delivers what was read before the failure, then the failure.
    async fn end(mut self, error: JournalError) {
        self.outgoing.push_back(Err(error));
        for delivery in std::mem::take(&mut self.outgoing) {
            if self.deliveries.send(delivery).await.is_err() {
                return;
            }
        }
    }

    fn take_order(&mut self, order: Order) -> Result<(), JournalError> {
        match order {
            Order::Propose(first, batch) => self.outbox.push(first, &batch)?,
            Order::Compare(hash) => self.peers.note_own(hash),
            Order::Barrier(barrier) => self.outbox.ask_barrier(barrier),
        }
        Ok(())
    }

    /// Leaves a server that acknowledges nothing. What was sent to it is sent again once there is a connection.
    async fn replace_silent_server(&mut self) {
        let now = Instant::now();
        if self.silent_since.is_some_and(|since| since + SERVER_PATIENCE <= now) && self.link.is_connected() {
            self.silent_since = Some(now);
            let _ = self.link.client.force_reconnect().await;
            self.go_back(now);
        }
    }

    /// Publishes what is due, if there is a connection.
    async fn publish(&mut self) {
        if !self.link.is_connected() {
            return;
        }
        let now = Instant::now();
        let is_due = self.read_back_at + BEAT_EVERY <= now || self.peers.report_at(now) <= now;
        if self.outbox.needs_beat(is_due) {
            let report = self.peers.report(now);
            self.outbox.beat(self.place.seq.0, report);
        }
        while let Some((key, bytes)) = self.outbox.next(now) {
            self.silent_since.get_or_insert(now);
            match self.link.publishing.publish(self.link.subject.clone(), bytes).await {
                Ok(ack) => {
                    self.acks.push(Box::pin(async move { (key, ack.await.map(|ack| ack.sequence)) }));
                }
                Err(error) => self.take_ack(key, Err(error)),
            }
        }
    }

    fn go_back(&mut self, now: Instant) {
        if self.outbox.go_back(now) {
            self.shared.lock().resent += 1;
        }
    }

    fn take_ack(&mut self, key: Key, ack: Result<u64, PublishError>) {
        let now = Instant::now();
        match ack {
            Ok(message) => {
                if self.acked <= self.place.stream && message > self.place.stream {
                    self.moved_at = now;
                }
                self.acked = self.acked.max(message);
                (self.silent_since, self.is_refused) = (None, false);
                self.shared.lock().full_since = None;
                self.outbox.acked(key, message, now);
            }
            Err(error) if self.outbox.refused(key, now) => {
                let mut shared = self.shared.lock();
                shared.resent += 1;
                if is_full(&error) {
                    shared.full_since.get_or_insert(now);
                    self.silent_since = None;
                }
                if !std::mem::replace(&mut self.is_refused, true) {
                    tracing::warn!(%error, "log did not take a message; sending again");
                }
            }
            Err(_) => {}
        }
    }

    fn take_message(&mut self, message: &StreamMessage) -> Result<(), JournalError> {
        let now = Instant::now();
        self.peers.note_time(message.at);
        let read = self.place.read(message.number, &message.payload)?;
        self.moved_at = now;
        {
            let mut shared = self.shared.lock();
            shared.shown = shared.shown.max(message.number + message.behind);
            shared.trouble = None;
        }
        match read {
            Read::Commit(sender, entries) => self.take_commit(message, &sender, entries, now)?,
            Read::Begin { node, session } if node == self.options.node => {
                self.take_session(message, session, now)?
            }
            Read::Begin { node, .. } => {
                self.peers.heard(node);
                self.peers.introduce();
                self.list_peers();
            }
            Read::Beat(sender, applied, report) => {
                self.take_beat(message, &sender, applied, report, now);
                self.peers.compare(now)?;
                self.list_peers();
            }
            Read::Void(session, void) => self.take_void(session, void, now),
            Read::Foreign => {
                self.shared.lock().foreign += 1;
                tracing::warn!(message = message.number, "unrecognized message in log stream; skipping");
            }
        }
        if self.outbox.is_lost(self.place.stream) {
            self.go_back(now);
        }
        Ok(())
    }

    fn deliver(&mut self, delivery: Option<Delivery>) {
        self.outgoing.extend(delivery.map(|delivery| Ok((delivery, self.place.clone()))));
    }

    fn take_commit(
        &mut self,
        message: &StreamMessage,
        sender: &Sender,
        entries: Vec<Entry>,
        now: Instant,
    ) -> Result<(), JournalError> {
        check_understood(&entries, self.options.understands)?;
        let own = self.outbox.read(sender.session, sender.number);
        if let Some(sent) = &own {
            self.note_read_back(message, sent.times, now);
        } else if sender.node != self.options.node {
            self.peers.heard(&sender.node);
        }
        let (tickets, barrier) =
            own.map_or((Vec::new(), None), |Sent { tickets, barrier, .. }| (tickets, barrier));
        let mut tickets = tickets.into_iter();
        let committed =
            entries.into_iter().map(|entry| Committed { entry, ticket: tickets.next() }).collect();
        self.shared.lock().passed = message.number;
        self.deliver(Some(Delivery::Entries(committed)));
        self.deliver(barrier.map(Delivery::Passed));
        Ok(())
    }

    fn take_beat(
        &mut self,
        message: &StreamMessage,
        sender: &Sender,
        applied: Seq,
        report: &[u8],
        now: Instant,
    ) {
        if sender.node != self.options.node {
            self.peers.take(&sender.node, applied, report, self.place.seq);
        } else if let Some(sent) = self.outbox.read(sender.session, sender.number) {
            self.peers.take_own(report);
            self.note_read_back(message, sent.times, now);
            self.deliver(sent.barrier.map(Delivery::Passed));
        }
    }

    /// A session of this node's name starts. If it is ours, everything before it was read.
    fn take_session(
        &mut self,
        message: &StreamMessage,
        session: SessionId,
        now: Instant,
    ) -> Result<(), JournalError> {
        match self.outbox.begun(session, self.place.stream, now) {
            Begun::Ours(times) => {
                self.note_read_back(message, times, now);
                self.peers.introduce();
                if !std::mem::replace(&mut self.begun, true) {
                    self.deliver(Some(Delivery::Current));
                }
            }
            Begun::Earlier => {}
            Begun::Overtaken => {
                tracing::warn!(
                    node = self.options.node,
                    "another process has used this node's name; backing off"
                );
            }
            Begun::Taken => {
                return Err(JournalError::Failed(format!(
                    "another process uses the name of this node, {}: set cluster.node to a different name on each",
                    self.options.node
                )));
            }
        }
        Ok(())
    }

    fn take_void(&mut self, session: SessionId, void: Void, now: Instant) {
        tracing::debug!(?void, "a message has no effect: it arrived twice or late");
        match void {
            Void::Begin => self.outbox.is_void(session, self.place.stream),
            Void::Over => self.outbox.is_over(session, self.place.stream),
            Void::Gap if self.outbox.is_gap(session, now) => self.shared.lock().resent += 1,
            Void::Gap | Void::Copy => {}
        }
    }

    fn note_read_back(&mut self, message: &StreamMessage, times: Times, now: Instant) {
        (self.read_back_at, self.silent_since) = (now, None);
        if let Some(sent) = times.sent {
            let seen = times.acked.unwrap_or(now);
            self.shared.lock().observe(LogTime { log: message.at, sent, seen });
        }
    }

    fn list_peers(&mut self) {
        let mut shared = self.shared.lock();
        (shared.peers, shared.is_in_doubt) = (self.peers.list(), self.peers.is_in_doubt());
    }

    /// When the reader is late: it has not reached an acknowledged message. While it opens, it has separate time limits.
    fn reader_late_at(&self) -> Option<Instant> {
        let opened = self.shared.lock().opened.filter(|_| self.acked > self.place.stream)?;
        Some(self.moved_at.max(opened) + self.link.ack_timeout)
    }

    /// Does what time makes due.
    fn check(&mut self, now: Instant) -> Result<(), JournalError> {
        let is_waiting = self.outgoing.is_empty() && self.reader.is_empty() && self.link.is_connected();
        if is_waiting && self.reader_late_at().is_some_and(|at| at <= now) {
            tracing::warn!(after = self.place.stream, "log reader missed an acknowledged message; reopening");
            self.shared.lock().reopened += 1;
            self.reader = Reader::start(self.link.clone(), self.shared.clone(), &self.place);
        }
        let is_silent = !self.begun && self.outgoing.is_empty() && self.reader.is_empty();
        if is_silent && self.moved_at + self.options.connect_timeout <= now {
            let why = self.shared.lock().trouble.clone().map_or(String::new(), |why| format!(": {why}"));
            let what = format!(
                "the servers of the log have sent nothing for {:?}{why}",
                self.options.connect_timeout
            );
            return Err(JournalError::Failed(what));
        }
        if self.peers.wake_at().is_some_and(|at| at <= now) {
            self.peers.compare(now)?;
            self.list_peers();
        }
        Ok(())
    }

    fn wake_at(&self) -> Instant {
        let now = Instant::now();
        if !self.link.is_connected() {
            return now + CONNECTION_PAUSE;
        }
        let beat = self.peers.report_at(now).min(self.read_back_at + BEAT_EVERY);
        let beat = self.outbox.needs_beat(true).then_some(beat);
        let silent = self.silent_since.map(|since| since + SERVER_PATIENCE);
        let begin = (!self.begun).then(|| self.moved_at + self.options.connect_timeout);
        let due = [self.outbox.wake_at(), beat, silent, self.reader_late_at(), self.peers.wake_at(), begin];
        due.into_iter().flatten().min().unwrap_or(now + BEAT_EVERY).max(now + SLEEP_MIN)
    }

    fn note(&mut self) {
        let now = Instant::now();
        let mut shared = self.shared.lock();
        let is_reconnected = std::mem::replace(&mut self.reconnects, shared.reconnects) != shared.reconnects;
        if is_reconnected {
            let server = self.link.client.server_info();
            (shared.server, shared.server_version) = (server.server_name, server.version);
        }
        (shared.in_flight, shared.unread_since) = (self.outbox.in_flight(), self.outbox.unread_since());
        shared.read = self.place.stream;
        shared.shown = shared.shown.max(self.acked);
        shared.lag(now);
        drop(shared);
        if is_reconnected {
            // What the broken connection carried is lost, or will be void.
            self.go_back(now);
        }
    }
}

/// Whether a server rejects a message because there is no space for it.
fn is_full(error: &PublishError) -> bool {
    use jetstream::ErrorCode;
    let source = std::error::Error::source(error);
    let Some(error) = source.and_then(|source| source.downcast_ref::<jetstream::Error>()) else {
        return false;
    };
    let code = error.error_code();
    let why = error.to_string();
    code == ErrorCode::INSUFFICIENT_RESOURCES
        || code == ErrorCode::STORAGE_RESOURCES_EXCEEDED
        || code == ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
        || code == ErrorCode::STREAM_STORE_FAILED && (why.contains("exceeded") || why.contains("space"))
}
