//! The servers of a simulated stream, and the network before them. They store messages late, twice or never, lose responses, reject what
//! they have stored, change their leader, and lose nodes. A stored message stays in its place; readers get it after a delay.

use crate::message;
use crate::order::{self, LogId, StreamPlace};
use crate::outbox::{DeliveryAttempt, Outbox};
use crate::port::Publication;
use bytes::Bytes;
use cuckood_log::journal::{Replication, Ticket};
use cuckood_log::testing::simulated_time::{MachineClock, SimulatedTime};
use cuckood_state::domain::{Proposal, Timestamp};
use cuckood_state::testing::random::Random;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A message is answered within this time, or counts as rejected.
const ACK_TIMEOUT: Duration = Duration::from_secs(2);

/// A node that was silent for this long has stopped.
const LONG_AGO: Duration = Duration::from_secs(3_600);

/// Maximum delay of a message.
const LATE_MS_MAX: u64 = 15_000;

/// How often each fault happens to a message, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamFaults {
    /// It never arrives.
    pub lost: u64,
    /// It arrives seconds later.
    pub late: u64,
    /// It is stored again, later.
    pub copied: u64,
    /// The response is lost.
    pub unanswered: u64,
    /// It is stored and rejected.
    pub misjudged: u64,
    /// Something else is published to the stream before it.
    pub foreign: u64,
}

/// How often each fault happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamCounts {
    pub stored: u64,
    pub lost: u64,
    pub late: u64,
    pub copied: u64,
    pub unanswered: u64,
    pub misjudged: u64,
    pub foreign: u64,
    pub elections: u64,
    pub cuts: u64,
}

impl StreamCounts {
    pub fn add(&mut self, other: &StreamCounts) {
        self.stored += other.stored;
        self.lost += other.lost;
        self.late += other.late;
        self.copied += other.copied;
        self.unanswered += other.unanswered;
        self.misjudged += other.misjudged;
        self.foreign += other.foreign;
        self.elections += other.elections;
        self.cuts += other.cuts;
    }
}

/// A stored message.
#[derive(Clone, Debug)]
pub(super) struct StoredMessage {
    pub(super) bytes: Bytes,
    /// When the leader got it, by its clock.
    pub(super) at: Timestamp,
    /// When it was stored.
    stored_at: Duration,
}

/// A message that was sent to the servers and has not arrived.
#[derive(Debug)]
struct Travelling {
    arrives_at: Duration,
    bytes: Bytes,
    /// Who waits for the response.
    attempt: Option<(u64, DeliveryAttempt)>,
    is_unanswered: bool,
    is_misjudged: bool,
}

/// A response that was sent to a node and has not arrived, or the timeout of a missing one.
#[derive(Debug)]
struct Answer {
    attempt: DeliveryAttempt,
    arrives_at: Duration,
    publication: Option<Publication>,
}

/// A process that is connected to the servers.
#[derive(Debug)]
struct Connected {
    name: String,
    clock: MachineClock,
    status: Arc<Mutex<Replication>>,
    answers: Vec<Answer>,
}

/// How a node is separated from the servers, and until when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cut {
    until: Duration,
    /// The node sees that its connection is broken.
    is_seen: bool,
}

#[derive(Debug)]
pub(super) struct Servers {
    time: SimulatedTime,
    random: Random,
    faults: StreamFaults,
    pub(super) log: LogId,
    messages: Vec<StoredMessage>,
    /// The number of the first message that is not trimmed.
    pub(super) first: u64,
    travelling: Vec<Travelling>,
    processes: u64,
    connected: BTreeMap<u64, Connected>,
    cuts: BTreeMap<String, Cut>,
    leaderless_until: Duration,
    counts: StreamCounts,
}

/// A stream; clones share it.
#[derive(Clone, Debug)]
pub struct SimulatedStream(pub(super) Arc<Mutex<Servers>>);

impl SimulatedStream {
    /// An empty stream. The clocks of its servers are right.
    pub fn new(time: SimulatedTime, seed: u64) -> SimulatedStream {
        let mut random = Random::new(seed);
        let log = LogId(u128::from(random.next()));
        SimulatedStream(Arc::new(Mutex::new(Servers {
            time,
            random,
            faults: StreamFaults::default(),
            log,
            messages: Vec::new(),
            first: 1,
            travelling: Vec::new(),
            processes: 0,
            connected: BTreeMap::new(),
            cuts: BTreeMap::new(),
            leaderless_until: Duration::ZERO,
            counts: StreamCounts::default(),
        })))
    }

    /// A node that has ended long ago has written the beginning of the log.
    pub fn begin_log(&self, node: &str, proposals: &[Proposal]) {
        let mut servers = self.0.lock();
        let mut outbox = Outbox::new(node);
        let mut place = StreamPlace::default();
        outbox.begin(place.stream);
        outbox.push(Ticket(0), proposals).unwrap();
        let now = servers.time.now();
        let at = Timestamp(servers.time.of_day().0 - LONG_AGO.as_millis() as u64);
        while let Some((_, bytes)) = outbox.next(now) {
            let message = message::decode(&bytes, false).unwrap().unwrap();
            place.read(&message, 0).unwrap().unwrap();
            outbox.read(message.session, message.number);
            servers.messages.push(StoredMessage {
                bytes,
                at,
                stored_at: Duration::ZERO,
            });
        }
    }

    pub fn set_faults(&self, faults: StreamFaults) {
        self.0.lock().faults = faults;
    }

    /// The leader is lost: for this time, nothing is stored.
    pub fn lose_leader(&self, time: Duration) {
        let mut servers = self.0.lock();
        servers.leaderless_until = servers.time.passed() + time;
        servers.counts.elections += 1;
    }

    /// A node can't reach the servers for this time; it may not notice.
    pub fn cut(&self, node: &str, time: Duration, is_seen: bool) {
        let mut servers = self.0.lock();
        let until = servers.time.passed() + time;
        // A broken connection stays broken until it is made again.
        let is_seen = is_seen || servers.cuts.get(node).is_some_and(|cut| cut.is_seen);
        servers.cuts.insert(node.to_owned(), Cut { until, is_seen });
        servers.counts.cuts += 1;
        if is_seen {
            for process in servers.of(node) {
                let now = process.clock.now();
                process.status.lock().note_disconnected(now);
            }
        }
    }

    /// Ends all faults. Messages that are on their way stay there.
    pub fn heal(&self) {
        let mut servers = self.0.lock();
        servers.faults = StreamFaults::default();
        servers.leaderless_until = Duration::ZERO;
        for cut in servers.cuts.values_mut() {
            cut.until = Duration::ZERO;
        }
        servers.advance();
    }

    /// A process of this node has ended. Its messages are still on their way.
    pub fn disconnect(&self, node: &str) {
        let mut servers = self.0.lock();
        servers.connected.retain(|_, process| process.name != node);
    }

    /// Stores what has arrived by now.
    pub fn advance(&self) {
        self.0.lock().advance();
    }

    /// Drops the messages before the earliest of these places, as snapshots store them. Returns whether any was dropped.
    pub fn trim_before(&self, places: &[Vec<u8>]) -> bool {
        let decoded = places.iter().map(|place| order::decode(place).unwrap().1);
        let Some(through) = decoded.map(|place| place.stream).min() else {
            return false;
        };
        let mut servers = self.0.lock();
        let is_later = servers.first <= through;
        servers.first = servers.first.max(through + 1);
        is_later
    }

    pub fn counts(&self) -> StreamCounts {
        self.0.lock().counts
    }
}

impl Servers {
    fn chance(&mut self, thousandths: u64) -> bool {
        self.random.below(1_000) < thousandths
    }

    fn of<'a>(&'a mut self, node: &'a str) -> impl Iterator<Item = &'a mut Connected> {
        self.connected
            .values_mut()
            .filter(move |process| process.name == node)
    }

    /// A process connects. Returns its number.
    pub(super) fn connect(
        &mut self,
        name: &str,
        clock: MachineClock,
        status: Arc<Mutex<Replication>>,
    ) -> u64 {
        self.processes += 1;
        let connected = Connected {
            name: name.to_owned(),
            clock,
            status,
            answers: Vec::new(),
        };
        self.connected.insert(self.processes, connected);
        self.processes
    }

    pub(super) fn last(&self) -> u64 {
        self.messages.len() as u64
    }

    /// A message by its number, once a reader can have it.
    pub(super) fn message(&self, number: u64, delay: Duration) -> Option<&StoredMessage> {
        let stored = self.messages.get(number as usize - 1)?;
        (stored.stored_at + delay <= self.time.passed()).then_some(stored)
    }

    pub(super) fn is_cut(&self, node: &str) -> bool {
        self.cuts
            .get(node)
            .is_some_and(|cut| self.time.passed() < cut.until)
    }

    pub(super) fn is_leaderless(&self) -> bool {
        self.time.passed() < self.leaderless_until
    }

    /// A process replaces its connection: the servers behind the new one can be reached.
    pub(super) fn reconnect(&mut self, node: &str) {
        if let Some(cut) = self.cuts.get_mut(node).filter(|cut| !cut.is_seen) {
            cut.until = Duration::ZERO;
        }
    }

    /// Takes a message of a process.
    pub(super) fn publish(&mut self, process: u64, attempt: DeliveryAttempt, bytes: Bytes) {
        let now = self.time.passed();
        let Some(connected) = self.connected.get_mut(&process) else {
            return;
        };
        connected.answers.push(Answer {
            attempt,
            arrives_at: now + ACK_TIMEOUT,
            publication: None,
        });
        let name = connected.name.clone();
        let faults = self.faults;
        if self.is_cut(&name) || self.chance(faults.lost) {
            self.counts.lost += 1;
            return;
        }
        let is_late = self.chance(faults.late);
        let delay = if is_late {
            self.counts.late += 1;
            Duration::from_millis(self.random.below(LATE_MS_MAX))
        } else {
            Duration::from_micros(200 + self.random.below(5_000))
        };
        let is_unanswered = self.chance(faults.unanswered);
        let is_misjudged = self.chance(faults.misjudged);
        self.counts.unanswered += u64::from(is_unanswered);
        self.counts.misjudged += u64::from(is_misjudged);
        self.travelling.push(Travelling {
            arrives_at: now + delay,
            bytes: bytes.clone(),
            attempt: Some((process, attempt)),
            is_unanswered,
            is_misjudged,
        });
        if self.chance(faults.copied) {
            self.counts.copied += 1;
            let later = Duration::from_millis(self.random.below(LATE_MS_MAX));
            self.send_unasked(now + delay + later, bytes);
        }
        if self.chance(faults.foreign) {
            self.counts.foreign += 1;
            self.send_unasked(now + delay, Bytes::from_static(b"not of this service"));
        }
    }

    /// Sends a message for whose response nothing waits.
    fn send_unasked(&mut self, arrives_at: Duration, bytes: Bytes) {
        self.travelling.push(Travelling {
            arrives_at,
            bytes,
            attempt: None,
            is_unanswered: true,
            is_misjudged: false,
        });
    }

    /// Returns the next response that has reached a process.
    pub(super) fn answer(&mut self, process: u64) -> Option<(DeliveryAttempt, Publication)> {
        let now = self.time.passed();
        let answers = &mut self.connected.get_mut(&process)?.answers;
        let (at, _) = answers
            .iter()
            .enumerate()
            .filter(|(_, answer)| answer.arrives_at <= now)
            .min_by_key(|(_, answer)| answer.arrives_at)?;
        let answer = answers.remove(at);
        let publication = answer.publication.unwrap_or(Publication::Rejected {
            why: "no response".to_owned(),
            is_full: false,
        });
        Some((answer.attempt, publication))
    }

    pub(super) fn is_unanswered(&self, process: u64) -> bool {
        self.connected
            .get(&process)
            .is_some_and(|process| !process.answers.is_empty())
    }

    /// Stores what has arrived by now, and ends what is over.
    pub(super) fn advance(&mut self) {
        let now = self.time.passed();
        self.end_cuts(now);
        if self.is_leaderless() {
            return;
        }
        if self.leaderless_until > Duration::ZERO {
            self.leaderless_until = Duration::ZERO;
            for process in self.connected.values_mut() {
                // Some miss the news.
                if self.random.below(10) > 0 {
                    process.status.lock().elections += 1;
                }
            }
        }
        let mut arrived: Vec<Travelling> = self
            .travelling
            .extract_if(.., |message| message.arrives_at <= now)
            .collect();
        arrived.sort_by_key(|message| message.arrives_at);
        for message in arrived {
            self.store(message);
        }
    }

    fn end_cuts(&mut self, now: Duration) {
        for (node, cut) in &self.cuts {
            let ended = now >= cut.until && cut.is_seen;
            for process in self.connected.values_mut() {
                if ended && process.name == *node {
                    process.status.lock().note_connected();
                }
            }
        }
        self.cuts.retain(|_, cut| now < cut.until);
    }

    fn store(&mut self, message: Travelling) {
        let now = self.time.passed();
        self.counts.stored += 1;
        self.messages.push(StoredMessage {
            bytes: message.bytes,
            at: self.time.of_day(),
            stored_at: now,
        });
        let number = self.last();
        let answer_delay = Duration::from_micros(100 + self.random.below(3_000));
        let Some((process, attempt)) = message.attempt.filter(|_| !message.is_unanswered) else {
            return;
        };
        let Some(process) = self.connected.get_mut(&process) else {
            return;
        };
        let waiting = process
            .answers
            .iter_mut()
            .find(|answer| answer.attempt == attempt && answer.publication.is_none());
        if let Some(answer) = waiting {
            answer.arrives_at = answer.arrives_at.min(now + answer_delay);
            answer.publication = Some(match message.is_misjudged {
                true => Publication::Rejected {
                    why: "misjudged".to_owned(),
                    is_full: false,
                },
                false => Publication::Acknowledged(number),
            });
        }
    }
}
