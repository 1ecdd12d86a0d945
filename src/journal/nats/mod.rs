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
mod places;
mod reader;
mod replication;
mod shared;

pub use options::{NatsLogin, NatsOptions, NatsTls};
pub(super) use places::is_of_replicated_log;
pub use replication::{LogTime, Peer, Replication};
pub use shared::NatsSnapshots;

use super::{Committed, Journal, JournalError, Ticket, check_space};
use crate::domain::{Entry, Proposal, Seq, StateHash};
use crate::store::Store;
use driver::{DELIVERIES_MAX, Delivery, Order};
use link::Link;
use order::{NODE_BYTES_MAX, Place};
use parking::Parker;
use parking_lot::Mutex;
use places::LogId;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// One node's journal over a stream. The log is read once, from a snapshot's position on.
pub struct NatsJournal {
    store: Arc<Store>,
    log: LogId,
    /// The highest version of entries that this node understands.
    understands: u16,
    /// How long the servers may send nothing while a start waits for them.
    patience: Duration,
    shared: Arc<Mutex<Replication>>,
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

/// What the thread reports once it is connected.
struct Opened {
    log: LogId,
    first_message: u64,
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
        let kept = places::all(&store)?;
        let (node, stream) = (options.node.clone(), options.stream.clone());
        let shared = Arc::new(Mutex::new(Replication::new(node, stream)));
        let (orders, taken) = mpsc::unbounded_channel();
        let (deliveries, live) = mpsc::channel(DELIVERIES_MAX);
        // A log that was lost must not be started again by a node that has a part of it.
        let may_create = kept.is_none();
        let (thread, opened) = start_thread(options.clone(), may_create, shared.clone(), taken, deliveries)?;
        let known = match kept {
            Some((of, _)) if of != opened.log => {
                return Err(JournalError::Damaged(format!(
                    "{path} belongs to another log than the stream {}: it was created again, or nats.stream or nats.servers is wrong; \
                     a node joins another log with an empty directory",
                    options.stream
                )));
            }
            Some((_, places)) => places,
            None => {
                places::keep(&store, Seq(0), places::encode(opened.log, &Place::default()))?;
                store.flush()?;
                vec![Place::default()]
            }
        };
        store.begin_use()?;
        let starts = known.into_iter().filter(|place| place.can_be_read_from(opened.first_message));
        let starts: Vec<Place> = starts.collect();
        let Some(first) = starts.first().cloned() else {
            return Err(JournalError::Trimmed(format!(
                "the log was trimmed up to message {}, and {path} has no snapshot that reaches so far",
                opened.first_message.saturating_sub(1)
            )));
        };
        Ok(NatsJournal {
            store,
            log: opened.log,
            understands: options.understands,
            patience: options.connect_timeout,
            shared,
            orders: Some(orders),
            live,
            left_over: VecDeque::new(),
            thread: Some(thread),
            starts,
            begun: false,
            place: first,
            is_whole: opened.first_message <= 1,
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
        let starts = std::mem::take(&mut self.starts);
        if starts.is_empty() {
            return Ok(());
        }
        let Some(place) = starts.into_iter().find(|place| place.seq == after) else {
            let what = format!("the place of position {} in the stream is unknown", after.0);
            return Err(JournalError::Damaged(what));
        };
        self.place = place.clone();
        self.order(Order::Start(Box::new(place)))
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

    /// Waits for the next delivery, up to a limit: the servers may be gone.
    fn receive(&mut self) -> Result<Delivery, JournalError> {
        if let Some(delivery) = self.left_over.pop_front() {
            return Ok(delivery);
        }
        let parker = Parker::new();
        let waker = Waker::from(parker.unparker());
        let until = Instant::now() + self.patience;
        loop {
            match self.live.poll_recv(&mut Context::from_waker(&waker)) {
                Poll::Ready(received) => return received.ok_or_else(ended),
                Poll::Pending if Instant::now() >= until => {
                    let why =
                        self.shared.lock().trouble.clone().map_or(String::new(), |why| format!(": {why}"));
                    let what =
                        format!("the servers of the log have sent nothing for {:?}{why}", self.patience);
                    return Err(JournalError::Failed(what));
                }
                Poll::Pending => drop(parker.park_deadline(until)),
            }
        }
    }
}

/// Creates an empty log deliberately, although something may indicate an earlier one. Returns its identity.
///
/// # Errors
/// [`JournalError::Failed`] if the stream exists already, or the servers can't be used.
pub fn init_log(options: &NatsOptions) -> Result<String, JournalError> {
    check_names(options)?;
    let io = |error: std::io::Error| JournalError::Failed(format!("can't start a runtime: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(io)?;
    runtime.block_on(link::init(options)).map(|log| format!("{:032x}", log.0))
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

/// Starts the thread and waits until it is connected.
fn start_thread(
    options: NatsOptions,
    may_create: bool,
    shared: Arc<Mutex<Replication>>,
    orders: mpsc::UnboundedReceiver<Order>,
    deliveries: mpsc::Sender<Delivery>,
) -> Result<(JoinHandle<()>, Opened), JournalError> {
    let io = |error: std::io::Error| JournalError::Failed(format!("the log's thread: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(io)?;
    let (tell, told) = oneshot::channel();
    let serve = move || {
        runtime.block_on(async {
            let link = match Link::open(&options, may_create, &shared).await {
                Ok(link) => link,
                Err(error) => return drop(tell.send(Err(error))),
            };
            let first_message = link.stream.cached_info().state.first_sequence;
            let _ = tell.send(Ok(Opened { log: link.log, first_message }));
            let client = link.client.clone();
            driver::run(link, options, shared, orders, deliveries).await;
            drop(client.drain().await);
        });
    };
    let thread = std::thread::Builder::new().name("nats".to_owned()).spawn(serve).map_err(io)?;
    let opened = told.blocking_recv().unwrap_or_else(|_| Err(ended()))?;
    Ok((thread, opened))
}

impl Drop for NatsJournal {
    fn drop(&mut self) {
        self.orders = None;
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
            let delivery = self.receive()?;
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
        places::forget_before(&self.store, through)?;
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
        self.store.check_reserve(0)?;
        if self.place.seq != at {
            return Err(JournalError::Failed(format!(
                "the log was read up to {}, not {}",
                self.place.seq.0, at.0
            )));
        }
        Ok(places::keep(&self.store, at, places::encode(self.log, &self.place))?)
    }

    fn place(&self, at: Seq) -> Result<Option<Vec<u8>>, JournalError> {
        Ok(places::encoded(&self.store, at)?)
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
