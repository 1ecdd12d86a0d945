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
mod shared;

pub use options::{NatsLogin, NatsOptions, NatsTls};
pub use order::is_of_replicated_log;
pub use replication::{LogTime, Peer, Replication};
pub use shared::{Check, NatsSnapshots, Parts, SharedSnapshot, Taken, check_shared, read_shared};

use super::{Committed, Journal, JournalError, Ticket, check_space};
use crate::domain::{Entry, Proposal, Seq, StateHash};
use crate::store::Store;
use driver::{DELIVERIES_MAX, Delivery, Order};
use link::Link;
use order::{LogId, NODE_BYTES_MAX, Place};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
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
    /// The highest version of entries that this node understands.
    understands: u16,
    shared: Arc<Mutex<Replication>>,
    /// Tells the thread where to read from; `None` once it is told.
    start: Option<oneshot::Sender<Place>>,
    /// Dropping it ends the thread.
    orders: Option<mpsc::UnboundedSender<Order>>,
    live: mpsc::Receiver<Delivery>,
    /// A delivery that a replay has left over.
    left_over: VecDeque<Delivery>,
    thread: Option<JoinHandle<()>>,
    /// Places at which the log can be read from, until it is.
    starts: Vec<Place>,
    /// Whether everything was delivered that was in the log at startup.
    begun: bool,
    /// The place behind the last delivery.
    place: Place,
    is_whole: bool,
    passed: Option<Ticket>,
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
        let kept = order::places(&store)?;
        let (node, stream) = (options.node.clone(), options.stream.clone());
        let shared = Arc::new(Mutex::new(Replication::new(node, stream)));
        let runtime = runtime()?;
        // A log that was lost must not be started again by a node that has a part of it.
        let link = runtime.block_on(Link::open(options, kept.is_none(), &shared))?;
        let (log, first_message) = (link.log, link.stream.cached_info().state.first_sequence);
        let known = match kept {
            Some((of, _)) if of != log => {
                return Err(JournalError::Damaged(format!(
                    "{path} belongs to another log than the stream {}: it was created again, or nats.stream or nats.servers is wrong; \
                     a node joins another log with an empty directory",
                    options.stream
                )));
            }
            Some((_, places)) => places,
            None => {
                order::keep(&store, Seq(0), order::encode(log, &Place::default()))?;
                store.flush()?;
                vec![Place::default()]
            }
        };
        store.begin_use()?;
        let starts = known.into_iter().filter(|place| place.can_be_read_from(first_message));
        let starts: Vec<Place> = starts.collect();
        let Some(first) = starts.first().cloned() else {
            return Err(JournalError::Trimmed(format!(
                "the log was trimmed up to message {}, and {path} has no snapshot that reaches so far",
                first_message.saturating_sub(1)
            )));
        };
        let (start, place) = oneshot::channel();
        let (orders, taken) = mpsc::unbounded_channel();
        let (deliveries, live) = mpsc::channel(DELIVERIES_MAX);
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
            understands: options.understands,
            shared,
            start: Some(start),
            orders: Some(orders),
            live,
            left_over: VecDeque::new(),
            thread: Some(thread),
            starts,
            begun: false,
            place: first,
            is_whole: first_message <= 1,
            passed: None,
            failed: None,
        })
    }

    fn order(&mut self, order: Order) -> Result<(), JournalError> {
        if let Some(why) = &self.failed {
            return Err(JournalError::Failed(why.clone()));
        }
        let sent = self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok());
        // If the thread has ended, its last delivery says why.
        if sent || !self.left_over.is_empty() || !self.live.is_empty() { Ok(()) } else { Err(ended()) }
    }

    /// Starts to follow the log behind a position, unless that was done.
    fn start(&mut self, after: Seq) -> Result<(), JournalError> {
        let Some(start) = self.start.take() else { return Ok(()) };
        let Some(place) = self.starts.drain(..).find(|place| place.seq == after) else {
            let what = format!("the place of position {} in the stream is unknown", after.0);
            return Err(JournalError::Damaged(what));
        };
        self.place = place.clone();
        // If the thread has ended, its last delivery says why.
        drop(start.send(place));
        Ok(())
    }

    /// Takes a delivery. Returns its entries after `after`, if there are any.
    fn take(&mut self, delivery: Delivery, after: Seq) -> Result<Option<Vec<Committed>>, JournalError> {
        match delivery {
            Delivery::Begun => self.begun = true,
            Delivery::Passed(barrier) => self.passed = Some(barrier),
            Delivery::Failed(error) => {
                self.failed = Some(error.to_string());
                return Err(error);
            }
            Delivery::Entries(mut committed, place) => {
                self.place = place;
                committed.retain(|one| one.entry.seq > after);
                return Ok((!committed.is_empty()).then_some(committed));
            }
        }
        Ok(None)
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
        self.live.close();
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

    fn poll(&mut self, after: Seq, context: &mut Context<'_>) -> Poll<Result<Vec<Committed>, JournalError>> {
        if let Some(why) = &self.failed {
            return Poll::Ready(Err(JournalError::Failed(why.clone())));
        }
        if let Err(error) = self.start(after) {
            return Poll::Ready(Err(error));
        }
        self.shared.lock().applied = self.place.stream;
        loop {
            let delivery = match self.left_over.pop_front() {
                Some(delivery) => delivery,
                None => match ready!(self.live.poll_recv(context)) {
                    Some(delivery) => delivery,
                    None => return Poll::Ready(Err(ended())),
                },
            };
            if let Some(taken) = self.take(delivery, after).transpose() {
                return Poll::Ready(taken);
            }
        }
    }

    fn poll_at(&self) -> Option<Instant> {
        None
    }

    fn read(
        &mut self,
        after: Seq,
        sink: &mut dyn FnMut(Entry) -> Result<ControlFlow<()>, JournalError>,
    ) -> Result<(), JournalError> {
        self.start(after)?;
        while !self.begun {
            let delivery = match self.left_over.pop_front() {
                Some(delivery) => delivery,
                None => self.live.blocking_recv().ok_or_else(ended)?,
            };
            let mut entries = self.take(delivery, after)?.unwrap_or_default().into_iter();
            while let Some(committed) = entries.next() {
                if sink(committed.entry)?.is_break() {
                    self.left_over.push_front(Delivery::Entries(entries.collect(), self.place.clone()));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn prune(&mut self, through: Seq, _budget: u64) -> Result<bool, JournalError> {
        // Other nodes may need the entries, so they stay in the stream.
        order::forget_before(&self.store, through)?;
        Ok(false)
    }

    fn settle(&mut self) -> Result<(), JournalError> {
        Ok(())
    }

    fn last(&self) -> Seq {
        self.place.seq
    }

    fn first_available(&self) -> Seq {
        self.starts.first().map_or(self.place.seq, |place| place.seq).next()
    }

    fn is_whole(&self) -> Result<bool, JournalError> {
        Ok(self.is_whole)
    }

    fn note_snapshot(&mut self, at: Seq) -> Result<(), JournalError> {
        self.store.space.check_reserve(0)?;
        if self.place.seq != at {
            return Err(JournalError::Failed(format!(
                "the log was read up to {}, not {}",
                self.place.seq.0, at.0
            )));
        }
        Ok(order::keep(&self.store, at, order::encode(self.log, &self.place))?)
    }

    fn place(&self, at: Seq) -> Result<Option<Vec<u8>>, JournalError> {
        Ok(order::encoded(&self.store, at)?)
    }

    fn barrier(&mut self, barrier: Ticket) -> Result<(), JournalError> {
        self.order(Order::Barrier(barrier))
    }

    fn passed(&self) -> Option<Ticket> {
        self.passed
    }

    fn compare(&mut self, hash: StateHash) {
        // If the thread has ended, the next poll says why.
        let _ = self.order(Order::Compare(hash));
    }

    fn understands(&self) -> u16 {
        self.understands
    }

    fn replication(&self) -> Option<Arc<Mutex<Replication>>> {
        Some(self.shared.clone())
    }
}
