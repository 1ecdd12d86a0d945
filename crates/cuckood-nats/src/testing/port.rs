//! A node's connection to a simulated stream.

use super::servers::{Servers, SimulatedStream};
use crate::order::{self, StreamPlace};
use crate::outbox::DeliveryAttempt;
use crate::port::{Publication, StreamPort};
use crate::reader::StreamMessage;
use crate::{NatsLogin, NatsOptions, NatsTls, OPEN_TIME, StreamJournal};
use bytes::Bytes;
use cuckood_log::journal::{Journal, JournalError, OpenJournal, Replication, Result};
use cuckood_log::store::{Store, StoreError, StoreOptions};
use cuckood_log::testing::fuse::Fuse;
use cuckood_log::testing::memory_disk::MemoryDisk;
use cuckood_log::testing::simulated_time::{MachineClock, SimulatedTime};
use cuckood_state::testing::random::Random;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// The time that passes while a starting node waits for the next message.
const WAIT: Duration = Duration::from_millis(5);

/// A node of a simulation: what its journal runs on.
#[derive(Clone, Debug)]
pub struct SimulatedNode {
    pub name: String,
    pub stream: SimulatedStream,
    pub disk: MemoryDisk,
    pub fuse: Fuse,
    pub time: SimulatedTime,
    pub clock: MachineClock,
    /// Decides when messages reach the node.
    pub random: Arc<Mutex<Random>>,
    /// The node is starting: nothing else happens until it has read the log, so its waiting passes the time.
    pub is_starting: Arc<AtomicBool>,
}

impl SimulatedNode {
    fn options(&self) -> NatsOptions {
        NatsOptions {
            servers: Vec::new(),
            stream: "simulated".to_owned(),
            cluster: "simulated".to_owned(),
            replicas: 3,
            node: self.name.clone(),
            login: NatsLogin::default(),
            tls: NatsTls::default(),
            connect_timeout: Duration::from_secs(20),
            log_margin: 0,
            open_time: OPEN_TIME,
        }
    }
}

impl OpenJournal for SimulatedNode {
    fn open(&self, store: &Arc<Store>) -> Result<Box<dyn Journal>> {
        let servers = self.stream.0.clone();
        let status: Arc<Mutex<Replication>> = Arc::default();
        let mut shared = servers.lock();
        shared.advance();
        if shared.is_cut(&self.name) || shared.is_leaderless() {
            let what = "the servers can't be reached".to_owned();
            return Err(JournalError::Failed(what));
        }
        let (log, first) = (shared.log, shared.first);
        let last = shared.last();
        let process = shared.connect(&self.name, self.clock.clone(), status.clone());
        drop(shared);
        if order::log_of(store)?.is_some_and(|stored| stored != log) {
            let what = "the directory belongs to another log".to_owned();
            return Err(JournalError::Damaged(what));
        }
        {
            let mut known = status.lock();
            (known.node, known.stream) = (self.name.clone(), "simulated".to_owned());
            (known.replicas, known.known_end) = (3, last);
        }
        let port = SimulatedPort {
            node: self.clone(),
            servers,
            process,
            status: status.clone(),
            next: 1,
            has_own: false,
            delay: Duration::ZERO,
        };
        let options = self.options();
        let journal = StreamJournal::over(port, store.clone(), &options, log, first, status)?;
        Ok(Box::new(journal))
    }

    fn open_store(&self, path: &Path, options: &StoreOptions) -> Result<Store, StoreError> {
        Store::open_without_sled(path, options, |is_new| self.disk.open(&self.fuse, is_new))
    }
}

struct SimulatedPort {
    node: SimulatedNode,
    servers: Arc<Mutex<Servers>>,
    process: u64,
    status: Arc<Mutex<Replication>>,
    /// The number of the next message.
    next: u64,
    has_own: bool,
    /// After this time, the next message reaches the node.
    delay: Duration,
}

impl SimulatedPort {
    fn read(&mut self) -> Option<Result<StreamMessage>> {
        let mut servers = self.servers.lock();
        servers.advance();
        if servers.is_cut(&self.node.name) {
            return None;
        }
        if self.next < servers.first {
            let what = format!("the log was trimmed up to message {}", servers.first - 1);
            return Some(Err(JournalError::Trimmed(what)));
        }
        let stored = servers.message(self.next, self.delay)?.clone();
        let later = servers.last() - self.next;
        drop(servers);
        let now = self.now();
        let read =
            StreamMessage::decode(self.next, later, stored.bytes, self.has_own, stored.at, now);
        if let Ok(message) = &read {
            self.has_own |= message.message.is_some();
            let mut known = self.status.lock();
            known.show(message.number + message.later, now);
            known.trouble = None;
        }
        self.next += 1;
        let mut random = self.node.random.lock();
        self.delay = match random.below(20) {
            0 => Duration::from_millis(random.below(400)),
            _ => Duration::from_micros(100 + random.below(4_000)),
        };
        Some(read)
    }
}

impl StreamPort for SimulatedPort {
    fn runtime(&self) -> Option<Handle> {
        None
    }

    fn now(&self) -> Instant {
        self.node.clock.now()
    }

    fn is_connected(&self) -> bool {
        self.status.lock().disconnected_since.is_none()
    }

    fn server(&self) -> (String, String) {
        ("simulated".to_owned(), "0".to_owned())
    }

    fn follow(&mut self, place: &StreamPlace) {
        self.next = place.stream + 1;
        self.has_own = place.stream > 0;
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Result<StreamMessage>> {
        self.node.fuse.step();
        match self.read() {
            Some(read) => Poll::Ready(read),
            None => {
                if self.node.is_starting.load(Relaxed) {
                    self.node.time.pass(WAIT);
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }

    fn publish(&mut self, attempt: DeliveryAttempt, bytes: Bytes) {
        self.node.fuse.step();
        self.servers.lock().publish(self.process, attempt, bytes);
    }

    fn poll_answer(&mut self, _: &mut Context<'_>) -> Poll<(DeliveryAttempt, Publication)> {
        let mut servers = self.servers.lock();
        servers.advance();
        servers
            .answer(self.process)
            .map_or(Poll::Pending, Poll::Ready)
    }

    fn is_unanswered(&self) -> bool {
        self.servers.lock().is_unanswered(self.process)
    }

    fn reconnect(&mut self) {
        self.servers.lock().reconnect(&self.node.name);
    }
}
