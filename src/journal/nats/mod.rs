//! The journal of several nodes: a stream of NATS JetStream, which its servers replicate. There is no consensus, election or
//! replication of our own; the order of the log is the order of the stream.
//!
//! The writer's thread calls [`NatsJournal`]. A thread of its own (`driver`) speaks to the servers, and both are connected by queues
//! only. What a message means is told by the messages before it (`sequencer`), so all nodes read the same entries at the same
//! positions.

mod apart;
mod beats;
mod comparison;
mod driver;
mod link;
mod message;
mod options;
mod outbox;
mod own_session;
mod peers;
mod places;
mod reader;
mod report;
mod reports;
mod sequencer;
mod sessions;
mod shared;
mod status;
mod under_way;
mod watch;

pub use options::{NatsLogin, NatsOptions, NatsTls};
pub(super) use places::is_of_replicated_log;
pub use shared::NatsSnapshots;
pub use status::{LogTime, Peer, Replication, ReplicationFigures};

use super::{Committed, Journal, JournalError, Ticket, check_space};
use crate::domain::{Entry, Proposal, Seq, StateHash};
use crate::store::Store;
use driver::{DELIVERIES_MAX, Delivery, Order};
use link::Link;
use parking::Parker;
use places::LogId;
use sequencer::{NODE_BYTES_MAX, Place};
use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Places in the stream that are remembered for reading again, each with the sessions of all nodes. Beyond it every other one is
/// forgotten.
const PLACES_MAX: usize = 256;

/// How long whoever reads again waits for the servers: the writer waits with it.
const APART_PATIENCE: Duration = Duration::from_secs(5);

/// How long a reading that was broken off is kept.
const APART_KEPT: Duration = Duration::from_secs(30);

/// Batches of entries that are read ahead for whoever reads again.
const APART_MAX: usize = 4;

/// One node's journal over a stream.
pub struct NatsJournal {
    store: Arc<Store>,
    log: LogId,
    /// The highest version of entries that this node understands.
    understands: u16,
    listen_time: Duration,
    /// How long the servers may send nothing while a start waits for them.
    patience: Duration,
    status: Arc<Replication>,
    /// Closed by dropping it, which ends the thread.
    orders: Option<mpsc::UnboundedSender<Order>>,
    live: mpsc::Receiver<Delivery>,
    /// Deliveries that a reading has left over.
    left_over: VecDeque<Delivery>,
    thread: Option<JoinHandle<()>>,
    is_started: bool,
    /// Whether everything that was in the log at the start was delivered.
    begun: bool,
    /// The place behind what was returned last.
    returned: Place,
    /// Known places, by position.
    places: BTreeMap<Seq, Place>,
    first: Seq,
    is_whole: bool,
    /// A reading that was broken off, and goes on where it was.
    apart: Option<Apart>,
    barriers: u64,
    passed: u64,
    failed: Option<String>,
}

/// A reading beside the one that follows the log.
struct Apart {
    next: Seq,
    used_at: Instant,
    entries: mpsc::Receiver<Result<Vec<Entry>, JournalError>>,
    rest: VecDeque<Entry>,
}

/// What the thread says once it is connected.
struct Opened {
    log: LogId,
    first_message: u64,
}

impl NatsJournal {
    /// Connects to the servers, checks them, and opens the stream or creates it.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if that is not possible; [`JournalError::Damaged`] if the directory belongs to another log;
    /// [`JournalError::Trimmed`] if the stream has been trimmed beyond every snapshot in it.
    pub fn open(store: Arc<Store>, options: &NatsOptions) -> Result<NatsJournal, JournalError> {
        check_names(options)?;
        let path = store.path().display().to_string();
        let kept = places::all(&store)?;
        let status = Arc::new(Replication::new(&options.node, &options.stream));
        let (orders, taken) = mpsc::unbounded_channel();
        let (deliveries, live) = mpsc::channel(DELIVERIES_MAX);
        // A log that was lost must not be started again by a node that has a part of it.
        let may_create = kept.is_none();
        let (thread, opened) = start_thread(options.clone(), may_create, status.clone(), taken, deliveries)?;
        let known = match kept {
            Some((of, _)) if of != opened.log => {
                return Err(JournalError::Damaged(format!(
                    "{path} belongs to another log than the stream {}: the stream was made anew, or nats.stream or nats.servers is wrong; \
                     a node joins another log with an empty directory",
                    options.stream
                )));
            }
            Some((_, places)) => places,
            None => {
                places::keep(&store, opened.log, &Place::default())?;
                store.flush()?;
                vec![Place::default()]
            }
        };
        store.begin_use()?;
        let places: BTreeMap<Seq, Place> = known
            .into_iter()
            .filter(|place| place.can_be_read_from(opened.first_message))
            .map(|place| (place.seq, place))
            .collect();
        let Some((first, _)) = places.first_key_value() else {
            return Err(JournalError::Trimmed(format!(
                "the log was trimmed up to message {}, and {path} has no snapshot that reaches so far",
                opened.first_message.saturating_sub(1)
            )));
        };
        Ok(NatsJournal {
            first: first.next(),
            is_whole: opened.first_message <= 1,
            places,
            store,
            log: opened.log,
            understands: options.understands,
            listen_time: options.listen_time,
            patience: options.connect_timeout,
            status,
            orders: Some(orders),
            live,
            left_over: VecDeque::new(),
            thread: Some(thread),
            is_started: false,
            begun: false,
            returned: Place::default(),
            apart: None,
            barriers: 0,
            passed: 0,
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

    /// Begins to follow the log behind a position, unless that was done.
    fn start(&mut self, after: Seq) -> Result<(), JournalError> {
        if self.is_started {
            return Ok(());
        }
        let Some(place) = self.places.get(&after).cloned() else {
            let what = format!("where position {} of the log lies in the stream is not known", after.0);
            return Err(JournalError::Damaged(what));
        };
        self.is_started = true;
        self.returned = place.clone();
        self.order(Order::Start(place))
    }

    /// Takes a delivery up. Returns its entries, if it has any that come after `after`.
    fn take(&mut self, delivery: Delivery, after: Seq) -> Result<Option<Vec<Committed>>, JournalError> {
        match delivery {
            Delivery::Begun => self.begun = true,
            Delivery::Passed(barrier) => self.passed = barrier,
            Delivery::Failed(error) => {
                self.failed = Some(error.to_string());
                return Err(error);
            }
            Delivery::Entries(mut committed, place) => {
                self.returned = place.clone();
                self.places.insert(place.seq, place);
                if self.places.len() > PLACES_MAX {
                    let mut number = 0;
                    self.places.retain(|_, _| {
                        number += 1;
                        number % 2 == 1
                    });
                }
                committed.retain(|one| one.entry.seq > after);
                return Ok((!committed.is_empty()).then_some(committed));
            }
        }
        Ok(None)
    }

    /// Reads what was in the log when this process began.
    fn read_beginning(
        &mut self,
        after: Seq,
        sink: &mut dyn FnMut(Entry) -> Result<ControlFlow<()>, JournalError>,
    ) -> Result<(), JournalError> {
        while !self.begun {
            let delivery = match self.left_over.pop_front() {
                Some(delivery) => delivery,
                None => receive(&mut self.live, self.patience, &self.status)?,
            };
            let mut entries = self.take(delivery, after)?.unwrap_or_default().into_iter();
            while let Some(committed) = entries.next() {
                if sink(committed.entry)?.is_break() {
                    let rest = Delivery::Entries(entries.collect(), self.returned.clone());
                    self.left_over.push_front(rest);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// A reading behind a position: the last one, if it goes on there, or a new one.
    fn apart(&mut self, after: Seq) -> Result<Apart, JournalError> {
        if let Some(apart) = self.apart.take_if(|apart| apart.next == after.next()) {
            return Ok(apart);
        }
        let Some((_, place)) = self.places.range(..=after).next_back() else {
            return Err(JournalError::Damaged(format!("position {} is not in the log any more", after.0)));
        };
        let (sink, entries) = mpsc::channel(APART_MAX);
        let next = place.seq.next();
        self.order(Order::Read(place.clone(), sink))?;
        Ok(Apart { next, used_at: Instant::now(), entries, rest: VecDeque::new() })
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

/// Waits for the next value, but not for ever: the servers may be gone.
fn receive<T>(
    from: &mut mpsc::Receiver<T>,
    patience: Duration,
    status: &Replication,
) -> Result<T, JournalError> {
    let parker = Parker::new();
    let waker = Waker::from(parker.unparker());
    let until = Instant::now() + patience;
    loop {
        match from.poll_recv(&mut Context::from_waker(&waker)) {
            Poll::Ready(received) => return received.ok_or_else(ended),
            Poll::Pending if Instant::now() >= until => {
                let why = status.trouble().map_or(String::new(), |why| format!(": {why}"));
                let what = format!("the servers of the log have sent nothing for {patience:?}{why}");
                return Err(JournalError::Failed(what));
            }
            Poll::Pending => drop(parker.park_deadline(until)),
        }
    }
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
    Ok(())
}

/// Starts the thread and waits until it is connected.
fn start_thread(
    options: NatsOptions,
    may_create: bool,
    status: Arc<Replication>,
    orders: mpsc::UnboundedReceiver<Order>,
    deliveries: mpsc::Sender<Delivery>,
) -> Result<(JoinHandle<()>, Opened), JournalError> {
    let io = |error: std::io::Error| JournalError::Failed(format!("the log's thread: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(io)?;
    let (tell, told) = oneshot::channel();
    let serve = move || {
        runtime.block_on(async {
            let link = match Link::open(&options, may_create, &status).await {
                Ok(link) => link,
                Err(error) => return drop(tell.send(Err(error))),
            };
            let first_message = link.stream.cached_info().state.first_sequence;
            let _ = tell.send(Ok(Opened { log: link.log, first_message }));
            let client = link.client.clone();
            driver::run(link, options, status, orders, deliveries).await;
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
        self.status.note_applied(after);
        self.apart.take_if(|apart| apart.used_at.elapsed() >= APART_KEPT);
        loop {
            let delivery = match self.left_over.pop_front() {
                Some(delivery) => delivery,
                None => match ready!(self.live.poll_recv(context)) {
                    Some(delivery) => delivery,
                    None => return Poll::Ready(Err(ended())),
                },
            };
            match self.take(delivery, after) {
                Ok(None) => {}
                Ok(Some(committed)) => return Poll::Ready(Ok(committed)),
                Err(error) => return Poll::Ready(Err(error)),
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
        if !self.begun {
            return self.read_beginning(after, sink);
        }
        let last = self.last();
        if after > last || after.next() < self.first {
            let what = format!("the log holds positions {} to {}, not {}", self.first.0, last.0, after.0 + 1);
            return Err(JournalError::Damaged(what));
        }
        if after == last {
            return Ok(());
        }
        let mut apart = self.apart(after)?;
        while apart.next <= last {
            let Some(entry) = apart.rest.pop_front() else {
                let more = receive(&mut apart.entries, APART_PATIENCE, &self.status)??;
                apart.rest.extend(more);
                continue;
            };
            apart.next = entry.seq.next();
            if entry.seq > after && sink(entry)?.is_break() {
                break;
            }
        }
        apart.used_at = Instant::now();
        self.apart = Some(apart);
        Ok(())
    }

    fn prune(&mut self, through: Seq, _budget: u64) -> Result<bool, JournalError> {
        places::forget_before(&self.store, through)?;
        // Other nodes may need the entries, so they stay in the stream: this node only forgets where they are.
        let found = self.places.range(..=through).next_back().map(|(seq, _)| *seq);
        if let Some(seq) = found.filter(|seq| *seq >= self.first) {
            (self.first, self.is_whole) = (seq.next(), false);
            self.places.retain(|known, _| *known >= seq);
        }
        Ok(false)
    }

    fn settle(&mut self) -> Result<(), JournalError> {
        Ok(())
    }

    fn last(&self) -> Seq {
        self.returned.seq
    }

    fn first_available(&self) -> Seq {
        self.first
    }

    fn is_whole(&self) -> Result<bool, JournalError> {
        Ok(self.is_whole)
    }

    fn note_snapshot(&mut self, at: Seq) -> Result<(), JournalError> {
        self.store.check_reserve(0)?;
        match self.places.get(&at) {
            Some(place) => Ok(places::keep(&self.store, self.log, place)?),
            // It could not be read from again.
            None => {
                Err(JournalError::Failed(format!("where position {} lies in the stream is not known", at.0)))
            }
        }
    }

    fn place(&self, at: Seq) -> Result<Option<Vec<u8>>, JournalError> {
        Ok(places::encoded(&self.store, at)?)
    }

    fn barrier(&mut self) -> Result<Option<u64>, JournalError> {
        self.barriers += 1;
        self.order(Order::Barrier(self.barriers))?;
        Ok(Some(self.barriers))
    }

    fn passed(&self) -> u64 {
        self.passed
    }

    fn compare(&mut self, hash: StateHash) {
        // If the thread has ended, the next poll says why.
        let _ = self.order(Order::Compare(hash));
    }

    fn understands(&self) -> u16 {
        self.understands
    }

    fn understood(&self) -> u16 {
        self.status.understood(self.understands, self.listen_time)
    }

    fn replication(&self) -> Option<Arc<Replication>> {
        Some(self.status.clone())
    }
}
