//! The journal of several nodes: a stream of NATS JetStream, which its servers replicate. We implement no consensus, election or
//! replication; the order of the log is the order of the stream. The effect of a message follows from the messages before it (`order`), so
//! all nodes read the same entries at the same positions.
//!
//! A message counts as committed when it is read back, whether or not a server has acknowledged it. On doubt it is sent again as it is
//! (`outbox`). So the loss of the stream's leader loses no write, and none takes effect twice, whatever servers do with late messages.
//!
//! The connection and the reader are tasks on a small runtime. Everything else happens in [`NatsJournal::poll`], on the writer's thread: it
//! publishes proposals, takes received messages, and does due work. The writer may be late, so servers are only judged after all received
//! messages were taken, and not while more arrive.

mod link;
mod message;
mod options;
mod order;
mod outbox;
mod peers;
mod port;
mod reader;
mod snapshots;
#[cfg(feature = "testing")]
pub mod testing;

pub use options::{NatsLogin, NatsOptions, NatsTls, OPEN_TIME};
pub use order::{is_of_replicated_log, log_of};
pub use snapshots::{ArchivePieces, NatsSnapshots, SharedSnapshot};

use cuckood_log::journal::{
    Committed, Delivery, Journal, JournalError, LogTime, Replication, Result, Ticket, check_space,
};
use cuckood_log::store::Store;
use cuckood_state::domain::{Proposal, Seq};
use cuckood_state::frame::FrameError;
use link::Link;
use message::Body;
use order::{LogId, StreamPlace};
use outbox::{DeliveryAttempt, Outbox};
use parking_lot::Mutex;
use peers::Peers;
use port::{NatsPort, Publication, StreamPort};
use reader::StreamMessage;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle, Runtime};

/// A server that has acknowledged nothing for this long is replaced: it may be cut off from the others. Most elections of a leader take less,
/// and the next server may be one that hangs.
const SERVER_TIMEOUT: Duration = Duration::from_secs(8);

/// The log responds if a message was taken within this time, and all earlier messages are acknowledged.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause between two polls while something is in flight or waits for a pause to end, or the connection is broken: nothing wakes the writer when it is made again.
const POLL_PAUSE: Duration = Duration::from_millis(20);

/// One node's journal over a stream of NATS' servers.
pub type NatsJournal = StreamJournal<NatsPort>;

/// One node's journal over a stream. The log is read once, from a snapshot's position on.
pub struct StreamJournal<W> {
    store: Arc<Store>,
    /// The name of this node.
    node: String,
    /// How long the servers may send nothing while the node starts.
    connect_timeout: Duration,
    /// How long a node continues whose state differs from another's.
    open_time: Duration,
    /// The log that the stream contains.
    log: LogId,
    /// The state of the replication.
    status: Arc<Mutex<Replication>>,
    /// Places at which the log can be read from, until it is.
    starts: Vec<StreamPlace>,
    /// Whether the stream is being read.
    is_started: bool,
    /// The place after the last taken message.
    place: StreamPlace,
    outbox: Outbox,
    peers: Peers,
    /// A barrier that is passed and not delivered.
    passed: Option<Ticket>,
    /// Whether this node's first session has started: everything before it is delivered.
    is_current: bool,
    /// When a message was last taken.
    moved_at: Instant,
    /// Since when no server has acknowledged anything that was sent.
    silent_since: Option<Instant>,
    /// Number of reconnections and elections at the last check.
    changes: u64,
    /// The last message that the log had when this node started to follow it.
    end_at_start: u64,
    port: W,
}

impl NatsJournal {
    /// Connects to the servers, checks them, and opens the stream or creates it.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if that is not possible; [`JournalError::Damaged`] if the directory belongs to another log;
    /// [`JournalError::Trimmed`] if the stream was trimmed past every snapshot in it.
    pub fn open(store: Arc<Store>, options: &NatsOptions) -> Result<NatsJournal> {
        let runtime = runtime(options)?;
        let path = store.path().display();
        let stored = order::log_of(&store)?;
        // A log that was lost must not be started again by a node that has a part of it.
        let link = runtime.block_on(Link::open(options, stored.is_none()))?;
        if stored.is_some_and(|stored| stored != link.log) {
            return Err(JournalError::Damaged(format!(
                "{path} belongs to another log than the stream {}: it was created again, or nats.stream or nats.servers is wrong; \
                 a node joins another log with an empty directory",
                options.stream
            )));
        }
        let log = link.log;
        let first_message = link.first_message;
        let status = link.status.clone();
        let port = NatsPort::new(runtime, link);
        StreamJournal::over(port, store, options, log, first_message, status)
    }
}

impl<W: StreamPort> StreamJournal<W> {
    /// The journal of a node over a stream that contains this log from this message on. The directory belongs to this log or to none.
    ///
    /// # Errors
    /// [`JournalError::Trimmed`] if the stream was trimmed past every snapshot in the directory.
    fn over(
        port: W,
        store: Arc<Store>,
        options: &NatsOptions,
        log: LogId,
        first_message: u64,
        status: Arc<Mutex<Replication>>,
    ) -> Result<Self> {
        let path = store.path().display();
        if order::log_of(&store)?.is_none() {
            order::note_log(&store, log)?;
            store.flush()?;
        }
        store.begin_use()?;
        let mut places = Vec::new();
        for snapshot in store.manifests()? {
            match order::decode(&snapshot.place) {
                Ok((of, place)) if of == log => places.push(place),
                // To a trimmed log, the directory would seem too old, and it would be cleared.
                Err(FrameError::Newer(found)) => {
                    return Err(message::of_other_build(&path.to_string(), found));
                }
                Ok(_) | Err(_) => {}
            }
        }
        let is_readable = |place: &StreamPlace| place.stream + 1 >= first_message;
        let starts: Vec<StreamPlace> = places
            .into_iter()
            .chain([StreamPlace::default()])
            .filter(is_readable)
            .collect();
        if starts.is_empty() {
            return Err(JournalError::Trimmed(format!(
                "the log was trimmed up to message {}, and {path} has no snapshot that reaches so far",
                first_message.saturating_sub(1)
            )));
        }
        let moved_at = port.now();
        Ok(StreamJournal {
            store,
            node: options.node.clone(),
            connect_timeout: options.connect_timeout,
            open_time: options.open_time,
            log,
            status,
            starts,
            is_started: false,
            place: StreamPlace::default(),
            outbox: Outbox::new(&options.node),
            peers: Peers::new(options.open_time),
            passed: None,
            is_current: false,
            moved_at,
            silent_since: None,
            changes: 0,
            end_at_start: 0,
            port,
        })
    }

    /// The last position that was delivered.
    pub fn last(&self) -> Seq {
        self.place.seq
    }

    /// Starts to follow the log after a position, unless it already does.
    fn start(&mut self, after: Seq, now: Instant) -> Result<()> {
        if std::mem::replace(&mut self.is_started, true) {
            return Ok(());
        }
        let Some(place) = self.starts.drain(..).find(|place| place.seq == after) else {
            let what = format!("the place of position {} in the stream is unknown", after.0);
            return Err(JournalError::Damaged(what));
        };
        self.port.follow(&place);
        self.outbox.begin(place.stream);
        (self.place, self.moved_at) = (place, now);
        self.end_at_start = self.status.lock().known_end;
        Ok(())
    }

    fn next(
        &mut self,
        after: Seq,
        mut now: Instant,
        context: &mut Context<'_>,
    ) -> Poll<Result<Delivery>> {
        self.start(after, now)?;
        loop {
            self.note_applied(now);
            self.publish(now, context);
            if let Some(barrier) = self.passed.take() {
                return Poll::Ready(Ok(Delivery::Passed(barrier)));
            }
            let Poll::Ready(read) = self.port.poll_message(context) else {
                self.check(now)?;
                return Poll::Pending;
            };
            let delivery = self.take(read?, now)?;
            if !self.port.is_unanswered() && self.outbox.go_back_if_missing(self.place.stream, now)
            {
                self.status.lock().resent += 1;
            }
            if let Some(delivery) = delivery {
                return Poll::Ready(Ok(delivery));
            }
            // Messages without entries may be many, and servers must not be judged by the time before them.
            now = now.max(self.port.now());
        }
    }

    /// Everything that was delivered is applied.
    fn note_applied(&mut self, now: Instant) {
        let mut shared = self.status.lock();
        shared.reach(self.place.stream, now);
        if let Some(hash) = shared.hash {
            self.peers.note_own(hash);
        }
        let changes = shared.reconnects + shared.elections;
        if std::mem::replace(&mut self.changes, changes) != changes {
            (shared.server, shared.server_version) = self.port.server();
            // Messages in flight on the broken connection, or to the last leader, are lost or will be void.
            shared.resent += u64::from(self.outbox.go_back(now));
        }
    }

    /// Publishes due messages, if there is a connection, and takes the servers' responses.
    fn publish(&mut self, now: Instant, context: &mut Context<'_>) {
        // In a log of another format, a message of this one would stop the nodes: the log's format is read before.
        let is_format_known = self.place.has_session() || self.place.stream >= self.end_at_start;
        if self.port.is_connected() && is_format_known {
            if self.outbox.needs_beat(self.peers.report_at(now) <= now) {
                let report = self.peers.report(self.place.seq, now);
                self.outbox.beat(report);
            }
            while let Some((attempt, bytes)) = self.outbox.next(now) {
                self.silent_since.get_or_insert(now);
                self.port.publish(attempt, bytes);
            }
        }
        while let Poll::Ready((attempt, published)) = self.port.poll_answer(context) {
            self.take_answer(attempt, published);
        }
    }

    fn take_answer(&mut self, attempt: DeliveryAttempt, published: Publication) {
        // Not that of the poll, which was earlier: the log's clock has shown its time before now.
        let now = self.port.now();
        match published {
            Publication::Acknowledged(message) => {
                self.outbox.acked(attempt, message, now);
                let mut shared = self.status.lock();
                (self.silent_since, shared.full_since) = (None, None);
                shared.show(message, now);
            }
            Publication::Rejected { why, is_full } if self.outbox.refused(attempt, now) => {
                let mut shared = self.status.lock();
                shared.resent += 1;
                if shared.may_report(now) {
                    tracing::warn!(error = why, "log did not accept a message; sending again");
                }
                if is_full {
                    shared.full_since.get_or_insert(now);
                    self.silent_since = None;
                }
            }
            Publication::Rejected { .. } => {}
        }
    }

    /// Takes the next message of the stream.
    fn take(&mut self, read: StreamMessage, now: Instant) -> Result<Option<Delivery>> {
        (self.moved_at, self.peers.read_at) = (now, read.at);
        let Some(message) = read.message else {
            self.place.skip(read.checksum);
            let mut shared = self.status.lock();
            shared.foreign += 1;
            if shared.may_report(now) {
                tracing::warn!(
                    message = self.place.stream,
                    "unrecognized message in log stream; skipping"
                );
            }
            return Ok(None);
        };
        let (node, entries) = match self.place.read(&message, read.checksum)? {
            Ok(counted) => counted,
            Err(void) => {
                tracing::debug!(?void, "a message has no effect: it arrived twice or late");
                let is_resent = self
                    .outbox
                    .void(message.session, void, self.place.stream, now);
                self.status.lock().resent += u64::from(is_resent);
                return Ok(None);
            }
        };
        let own = self.outbox.read(message.session, message.number);
        let is_own = own.is_some();
        let is_other = node != self.node;
        let mut tickets = Vec::new().into_iter();
        if let Some(own) = own {
            (tickets, self.passed, self.silent_since) =
                (own.tickets.into_iter(), own.barrier, None);
            let sent = own.sent_at.unwrap_or(now);
            let seen = own.acked_at.unwrap_or(read.read_at);
            self.status.lock().observe(LogTime {
                log: read.at,
                sent,
                seen,
            });
        } else if is_other {
            self.peers.heard(&node);
        }
        match message.body {
            Body::Commit { .. } => {
                let committed = entries.into_iter().map(|entry| Committed {
                    entry,
                    ticket: tickets.next(),
                });
                return Ok(Some(Delivery::Entries(committed.collect())));
            }
            Body::Begin { .. } if is_own || is_other => self.peers.introduce(),
            Body::Begin { .. } => self.note_overtaken(now)?,
            Body::Beat(report) if is_own => self.peers.take_own(&report),
            Body::Beat(report) if is_other => self.peers.take(&node, report, self.place.seq),
            Body::Beat(_) => {}
        }
        self.peers.compare(now);
        let mut shared = self.status.lock();
        (shared.peers, shared.is_in_doubt) = (self.peers.list(), self.peers.decided_at().is_some());
        // A node that always has more to read decides later.
        now.checked_sub(self.open_time)
            .map_or(Ok(()), |late| self.peers.decide(late))?;
        let is_first = is_own && !std::mem::replace(&mut self.is_current, true);
        Ok(is_first.then_some(Delivery::Current))
    }

    /// A session of this node's name has started that is not ours. Before our first one it was an earlier process.
    fn note_overtaken(&mut self, now: Instant) -> Result<()> {
        let node = &self.node;
        if self.is_current {
            if !self.outbox.overtaken(self.place.stream, now) {
                return Err(JournalError::Failed(format!(
                    "another process uses the name of this node, {node}: set cluster.node to a different name on each"
                )));
            }
            tracing::warn!(
                node,
                "another process has used this node's name; backing off"
            );
        }
        Ok(())
    }

    /// Does what time makes due, after everything was taken that had arrived.
    fn check(&mut self, now: Instant) -> Result<()> {
        if self
            .silent_since
            .is_some_and(|since| since + SERVER_TIMEOUT <= now)
            && self.port.is_connected()
        {
            self.silent_since = Some(now);
            self.port.reconnect();
            self.status.lock().resent += u64::from(self.outbox.go_back(now));
        }
        self.peers.decide(now)?;
        let timeout = self.connect_timeout;
        let mut shared = self.status.lock();
        shared.is_in_doubt = self.peers.decided_at().is_some();
        if !self.is_current && self.moved_at + timeout <= now {
            let why = shared
                .trouble
                .as_ref()
                .map_or(String::new(), |why| format!(": {why}"));
            let what = format!("the servers of the log have sent nothing for {timeout:?}{why}");
            return Err(JournalError::Failed(what));
        }
        // More may have arrived than the reader reads ahead.
        let is_fresh = |at: Instant| now < at + RESPONSE_TIMEOUT;
        let is_responding = is_fresh(self.moved_at) && self.silent_since.is_none_or(is_fresh);
        shared.note_unconfirmed(self.outbox.unconfirmed_for(now), is_responding);
        shared.in_flight = self.outbox.in_flight();
        Ok(())
    }
}

/// Creates an empty log deliberately, although something may indicate an earlier one. Returns its identity.
///
/// # Errors
/// [`JournalError::Failed`] if the stream exists already, or the servers can't be used.
pub fn init_log(options: &NatsOptions) -> Result<String> {
    runtime(options)?
        .block_on(link::init(options))
        .map(|log| format!("{:032x}", log.0))
}

/// The runtime of a connection that these options describe.
fn runtime(options: &NatsOptions) -> Result<Runtime> {
    options
        .fault()
        .map_or(Ok(()), |fault| Err(JournalError::Failed(fault)))?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("nats")
        .enable_all()
        .build();
    runtime.map_err(|error| JournalError::Failed(format!("can't start the log's runtime: {error}")))
}

#[cfg(feature = "testing")]
impl<W: StreamPort> cuckood_log::testing::stores::Positioned for StreamJournal<W> {
    fn position(&self) -> Seq {
        self.last()
    }
}

impl<W: StreamPort> Journal for StreamJournal<W> {
    fn propose(&mut self, first: Ticket, batch: Vec<Proposal>) -> Result<()> {
        // This node needs space for the data it derives from them, such as events.
        check_space(&self.store, &batch)?;
        self.outbox.push(first, &batch)
    }

    fn poll(
        &mut self,
        after: Seq,
        now: Instant,
        context: &mut Context<'_>,
    ) -> Poll<Result<Delivery>> {
        let runtime = self.port.runtime();
        let _entered = runtime.as_ref().map(Handle::enter);
        self.next(after, now, context)
    }

    fn wake_at(&self, now: Instant) -> Option<Instant> {
        let is_busy = self.outbox.has_work() || !self.port.is_connected();
        let due = if is_busy {
            now + POLL_PAUSE
        } else {
            self.peers.report_at(now)
        };
        [Some(due), self.peers.decided_at()]
            .into_iter()
            .flatten()
            .min()
    }

    fn barrier(&mut self, barrier: Ticket) {
        self.outbox.barrier = Some(barrier);
    }

    fn place(&self) -> Vec<u8> {
        order::encode(self.log, &self.place)
    }

    fn replication(&self) -> Option<Arc<Mutex<Replication>>> {
        Some(self.status.clone())
    }

    /// Other nodes may need the entries: they stay in the stream.
    fn prune(&mut self, _through: Seq, _budget: u64) -> Result<bool> {
        Ok(false)
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }
}
