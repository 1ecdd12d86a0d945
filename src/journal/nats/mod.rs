//! The journal of several nodes: a stream of NATS JetStream, which its servers replicate. There is no consensus, election or
//! replication of our own; the order of the log is the order of the stream.
//!
//! The writer's thread calls [`NatsJournal`]. A dedicated thread (`driver`) talks to the servers, and both are connected by queues only.
//! The effect of a message follows from the messages before it (`order`), so all nodes read the same entries at the same positions.

mod driver;
mod link;
mod message;
mod options;
mod order;
mod outbox;
mod peers;
mod reader;
mod replication;
mod snapshots;

pub use options::{NatsLogin, NatsOptions, NatsTls};
pub use order::{is_of_replicated_log, log_of};
pub use replication::{LogTime, Peer, Replication};
pub use snapshots::{NatsSnapshots, Parts, SharedSnapshot};

use super::{Delivery, Journal, JournalError, Ticket, check_space};
use crate::domain::{Proposal, Seq, StateHash};
use crate::store::Store;
use driver::{DELIVERIES_MAX, News, Order};
use link::Link;
use order::{LogId, NODE_BYTES_MAX, Place};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread::{self, JoinHandle};
use std::time::Instant;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};

/// One node's journal over a stream. The log is read once, from a snapshot's position on.
pub struct NatsJournal {
    store: Arc<Store>,
    log: LogId,
    shared: Arc<Mutex<Replication>>,
    /// Tells the thread where to read from; `None` once it is told.
    start: Option<oneshot::Sender<Place>>,
    /// Dropping it ends the thread.
    orders: Option<mpsc::UnboundedSender<Order>>,
    news: mpsc::Receiver<News>,
    thread: Option<JoinHandle<()>>,
    /// Places at which the log can be read from, until it is.
    starts: Vec<Place>,
    /// The place behind the last delivery.
    place: Place,
    /// The last hash of the state that was reported.
    reported: Option<StateHash>,
    failed: Option<String>,
}

impl NatsJournal {
    /// Connects to the servers, checks them, and opens the stream or creates it.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if that is not possible; [`JournalError::Damaged`] if the directory belongs to another log;
    /// [`JournalError::Trimmed`] if the stream was trimmed past every snapshot in it.
    pub fn open(store: Arc<Store>, options: &NatsOptions) -> Result<NatsJournal, JournalError> {
        check_names(options)?;
        let path = store.path().display().to_string();
        let kept = order::log_of(&store)?;
        let (node, stream) = (options.node.clone(), options.stream.clone());
        let shared = Arc::new(Mutex::new(Replication::new(node, stream)));
        let runtime = runtime()?;
        // A log that was lost must not be started again by a node that has a part of it.
        let link = runtime.block_on(Link::open(options, kept.is_none(), &shared))?;
        let (log, first_message) = (link.log, link.stream.cached_info().state.first_sequence);
        if kept.is_some_and(|kept| kept != log) {
            return Err(JournalError::Damaged(format!(
                "{path} belongs to another log than the stream {}: it was created again, or nats.stream or nats.servers is wrong; \
                 a node joins another log with an empty directory",
                options.stream
            )));
        }
        if kept.is_none() {
            order::note_log(&store, log)?;
            store.flush()?;
        }
        store.begin_use()?;
        let snapshots = store.manifests()?.into_iter().filter_map(|snapshot| order::decode(&snapshot.place));
        let places = snapshots.filter(|(of, _)| *of == log).map(|(_, place)| place);
        let places = places.chain([Place::default()]);
        let starts: Vec<Place> = places.filter(|place| place.can_be_read_from(first_message)).collect();
        if starts.is_empty() {
            return Err(JournalError::Trimmed(format!(
                "the log was trimmed up to message {}, and {path} has no snapshot that reaches so far",
                first_message.saturating_sub(1)
            )));
        }
        let (start, place) = oneshot::channel();
        let (orders, taken) = mpsc::unbounded_channel();
        let (deliveries, news) = mpsc::channel(DELIVERIES_MAX);
        let (client, own_options, status) = (link.client.clone(), options.clone(), shared.clone());
        let serve = move || {
            runtime.block_on(async {
                driver::run(link, own_options, status, place, taken, deliveries).await;
                drop(client.drain().await);
            });
        };
        let thread = thread::Builder::new().name("nats".to_owned()).spawn(serve).map_err(failed)?;
        Ok(NatsJournal {
            store,
            log,
            shared,
            start: Some(start),
            orders: Some(orders),
            news,
            thread: Some(thread),
            starts,
            place: Place::default(),
            reported: None,
            failed: None,
        })
    }

    /// What is known about the log's replication. The hash of the state in it is reported to the other nodes; if theirs show that this node
    /// has diverged, [`Journal::poll`] fails.
    pub fn replication(&self) -> Arc<Mutex<Replication>> {
        self.shared.clone()
    }

    /// The last position that was delivered.
    pub fn last(&self) -> Seq {
        self.place.seq
    }

    fn order(&mut self, order: Order) -> Result<(), JournalError> {
        if let Some(why) = &self.failed {
            return Err(JournalError::Failed(why.clone()));
        }
        let sent = self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok());
        // If the thread has ended, its last news say why.
        if sent || !self.news.is_empty() { Ok(()) } else { Err(ended()) }
    }

    /// Starts to follow the log behind a position, unless that was done.
    fn start(&mut self, after: Seq) -> Result<(), JournalError> {
        let Some(start) = self.start.take() else { return Ok(()) };
        let Some(place) = self.starts.drain(..).find(|place| place.seq == after) else {
            let what = format!("the place of position {} in the stream is unknown", after.0);
            return Err(JournalError::Damaged(what));
        };
        self.place = place.clone();
        // If the thread has ended, its last news say why.
        drop(start.send(place));
        Ok(())
    }

    /// Everything that was delivered is applied.
    fn note_applied(&mut self) -> Result<(), JournalError> {
        let hash = {
            let mut shared = self.shared.lock();
            shared.applied = self.place.stream;
            shared.hash
        };
        match hash.filter(|_| hash != self.reported) {
            Some(new) => {
                self.reported = hash;
                self.order(Order::Compare(new))
            }
            None => Ok(()),
        }
    }
}

/// Creates an empty log deliberately, although something may indicate an earlier one. Returns its identity.
///
/// # Errors
/// [`JournalError::Failed`] if the stream exists already, or the servers can't be used.
pub fn init_log(options: &NatsOptions) -> Result<String, JournalError> {
    check_names(options)?;
    runtime()?.block_on(link::init(options)).map(|log| format!("{:032x}", log.0))
}

fn failed(error: io::Error) -> JournalError {
    JournalError::Failed(format!("can't start the log's thread: {error}"))
}

fn runtime() -> Result<Runtime, JournalError> {
    Builder::new_current_thread().enable_all().build().map_err(failed)
}

fn ended() -> JournalError {
    JournalError::Failed("the thread of the replicated log has ended".to_owned())
}

fn check_names(options: &NatsOptions) -> Result<(), JournalError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let (stream, node) = (&options.stream, &options.node);
    if stream.is_empty() || stream.len() > 64 || !stream.chars().all(is_plain) {
        let what = format!("nats.stream is `{stream}`: up to 64 letters, digits, - and _ are allowed");
        return Err(JournalError::Failed(what));
    }
    if node.is_empty() || node.len() > NODE_BYTES_MAX {
        let what = format!("cluster.node has 1 to {NODE_BYTES_MAX} bytes, not {}", node.len());
        return Err(JournalError::Failed(what));
    }
    options.fault().map_or(Ok(()), |fault| Err(JournalError::Failed(fault)))
}

impl Drop for NatsJournal {
    fn drop(&mut self) {
        (self.start, self.orders) = (None, None);
        self.news.close();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the replicated log has panicked");
        }
    }
}

impl Journal for NatsJournal {
    fn propose(&mut self, first: Ticket, batch: Vec<Proposal>) -> Result<(), JournalError> {
        if batch.is_empty() {
            return Ok(());
        }
        // What it will store of them, such as events, this node must have room for.
        check_space(&self.store, &batch)?;
        self.order(Order::Propose(first, batch))
    }

    fn poll(&mut self, after: Seq, context: &mut Context<'_>) -> Poll<Result<Delivery, JournalError>> {
        if let Some(why) = &self.failed {
            return Poll::Ready(Err(JournalError::Failed(why.clone())));
        }
        self.start(after)?;
        self.note_applied()?;
        let news = ready!(self.news.poll_recv(context)).unwrap_or_else(|| Err(ended()));
        Poll::Ready(match news {
            Ok((delivery, place)) => {
                self.place = place;
                Ok(delivery)
            }
            Err(error) => {
                self.failed = Some(error.to_string());
                Err(error)
            }
        })
    }

    fn wake_at(&self) -> Option<Instant> {
        None
    }

    fn barrier(&mut self, barrier: Ticket) -> Result<(), JournalError> {
        self.order(Order::Barrier(barrier))
    }

    fn place(&self) -> Vec<u8> {
        order::encode(self.log, &self.place)
    }

    /// Other nodes may need the entries: they stay in the stream.
    fn prune(&mut self, _through: Seq, _budget: u64) -> Result<bool, JournalError> {
        Ok(false)
    }

    fn settle(&mut self) -> Result<(), JournalError> {
        Ok(())
    }
}
