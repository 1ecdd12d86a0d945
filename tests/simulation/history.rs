//! What the log was found to contain, and what must follow from it: the entries in order, and a reference state that has applied each of
//! them once, without restarts and snapshots. The first node that gets an entry decides what the others must get.

use cuckood::engine::stepped::SteppedEngine;
use cuckood_log::journal::{Committed, Delivery, Journal, JournalError, OpenJournal, Ticket};
use cuckood_log::store::{Store, StoreError, StoreOptions};
use cuckood_log::testing::simulated_time::SimulatedTime;
use cuckood_state::domain::{Applied, Entry, Outcome, Proposal, Seq};
use cuckood_state::testing::machine::Snapshot;
use cuckood_state::{FreshEvents, State};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The outcomes under keys of at least this scope must be stored until the end.
pub const STRICT_SCOPE: u128 = 1 << 64;

/// How far the time of an entry of a shared log may be ahead of the true time: by the difference that nodes tolerate, the longest round trip
/// that counts, and what their clocks drift until they are compared again.
const AHEAD_MAX: Duration = Duration::from_millis(12_500);

/// The history of a log; clones share it.
#[derive(Clone)]
pub struct History(Arc<Mutex<Known>>);

struct Known {
    time: SimulatedTime,
    /// Whether several nodes share the log. A single node may follow its clock further.
    is_shared: bool,
    entries: Vec<Entry>,
    reference: State,
    /// What the reference answered to each entry, and its hash after it.
    answers: Vec<(Applied, u128)>,
    /// The position of each attempt of a client.
    attempts: BTreeMap<String, Seq>,
    /// The position after which an attempt must be, because a client had the answer to it before.
    floors: BTreeMap<String, Seq>,
    /// Attempts of which a client knows that they have no effect.
    rejected: BTreeSet<String>,
    /// The first outcome under each key that must be stored, by the key's scope.
    outcomes: BTreeMap<u128, Outcome>,
    /// The last position whose answer a client has.
    acknowledged: Seq,
    /// The events of the reference, by their numbers.
    events: BTreeMap<u64, Vec<u8>>,
    fresh: FreshEvents,
    /// The shortest time for which any settings have stored events.
    retention_min_seconds: u64,
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "History({})", self.last().0)
    }
}

impl History {
    pub fn new(time: &SimulatedTime, is_shared: bool) -> History {
        History(Arc::new(Mutex::new(Known {
            time: time.clone(),
            is_shared,
            entries: Vec::new(),
            reference: State::default(),
            answers: Vec::new(),
            attempts: BTreeMap::new(),
            floors: BTreeMap::new(),
            rejected: BTreeSet::new(),
            outcomes: BTreeMap::new(),
            acknowledged: Seq(0),
            events: BTreeMap::new(),
            fresh: FreshEvents::default(),
            retention_min_seconds: u64::MAX,
        })))
    }

    /// The last position that any node got.
    pub fn last(&self) -> Seq {
        Seq(self.0.lock().entries.len() as u64)
    }

    /// The last position whose answer a client has.
    pub fn acknowledged(&self) -> Seq {
        self.0.lock().acknowledged
    }

    /// A client makes an attempt: it must be logged after everything that any client knows.
    pub fn begin_attempt(&self, attempt: &str) {
        let mut known = self.0.lock();
        let floor = known.acknowledged;
        known.floors.insert(attempt.to_owned(), floor);
    }

    /// A client got the answer to an attempt. Returns its position.
    pub fn acknowledge(&self, attempt: &str, applied: &Applied) -> Seq {
        let mut known = self.0.lock();
        let position = known.attempts.get(attempt);
        let position =
            *position.unwrap_or_else(|| panic!("{attempt} is acknowledged, and not in the log"));
        let (expected, _) = &known.answers[position.0 as usize - 1];
        assert_eq!(applied, expected, "the answer to {attempt} at {position:?}");
        known.acknowledged = known.acknowledged.max(position);
        position
    }

    /// A client was told that an attempt has no effect.
    pub fn reject(&self, attempt: &str) {
        let mut known = self.0.lock();
        let position = known.attempts.get(attempt);
        assert_eq!(position, None, "{attempt} is rejected, and in the log");
        known.rejected.insert(attempt.to_owned());
    }

    /// Checks the hash of a node's state.
    pub fn check_hash(&self, node: &str, at: Seq, hash: u128) {
        let known = self.0.lock();
        let expected = match at.0.checked_sub(1) {
            None => known.reference_at_start(),
            Some(index) => match known.answers.get(index as usize) {
                Some((_, hash)) => *hash,
                None => panic!("{node} is at {at:?}, which no node has got"),
            },
        };
        assert_eq!(hash, expected, "the state of {node} at {at:?} differs");
    }

    /// Checks that a state at the end of the history has the bytes of the reference.
    pub fn check_bytes(&self, node: &str, state: &mut State) {
        let mut known = self.0.lock();
        assert_eq!(state.applied(), known.reference.applied(), "{node}");
        // A snapshot that leaves something out does so for the reference, too.
        assert_eq!(
            state.view().imports(),
            known.reference.view().imports(),
            "the imports of {node}"
        );
        let expected = Snapshot::of(&mut known.reference);
        let found = Snapshot::of(state);
        assert_eq!(
            found.head, expected.head,
            "the head of a snapshot of {node}"
        );
        assert!(
            found == expected,
            "the sections of a snapshot of {node} differ"
        );
        assert!(
            Snapshot::of(&mut found.restore()) == expected,
            "the restored state of {node} differs"
        );
    }

    /// Checks that a node at the end of the history has every event once, in order and unchanged. Old ones may be gone.
    pub fn check_events(&self, node: &str, engine: &SteppedEngine) {
        let known = self.0.lock();
        let mut next = 1;
        let mut first = None;
        let mut found = BTreeMap::new();
        while let Some(pack) = engine.events(next).unwrap() {
            let last = pack.events().last().map_or(next, |(number, _)| number);
            for (number, event) in pack.events().filter(|(number, _)| *number >= next) {
                first.get_or_insert(number);
                found.insert(number, event.to_vec());
            }
            next = last + 1;
        }
        let from = first.unwrap_or(known.reference.events().next());
        let expected: BTreeMap<u64, Vec<u8>> = known
            .events
            .range(from..)
            .map(|(number, event)| (*number, event.clone()))
            .collect();
        assert!(
            found == expected,
            "{node} has the events {:?}, not {:?}",
            found.keys(),
            expected.keys()
        );
        let is_retained = known.retention_min_seconds >= 86_400;
        assert!(
            !is_retained || expected.len() == known.events.len(),
            "{node} has lost events before {from}"
        );
    }

    fn note(&self, node: &str, committed: &[Committed]) {
        let mut known = self.0.lock();
        for Committed { entry, .. } in committed {
            known.note(node, entry);
        }
    }
}

impl Known {
    fn reference_at_start(&self) -> u128 {
        State::default().hash().hash
    }

    fn note(&mut self, node: &str, entry: &Entry) {
        let index = (entry.seq.0 - 1) as usize;
        if let Some(known) = self.entries.get(index) {
            assert_eq!(entry, known, "{node} got another entry");
            return;
        }
        assert_eq!(index, self.entries.len(), "{node} got an entry too early");
        if let Some(attempt) = &entry.proposal.by {
            let attempt = attempt.as_str().to_owned();
            let before = self.attempts.insert(attempt.clone(), entry.seq);
            assert_eq!(before, None, "{attempt} is logged again at {:?}", entry.seq);
            assert!(
                !self.rejected.contains(&attempt),
                "{attempt} was rejected, and is logged at {:?}",
                entry.seq
            );
            let floor = self.floors.get(&attempt).copied().unwrap_or_default();
            assert!(
                entry.seq > floor,
                "{attempt} at {:?} was made after {floor:?}",
                entry.seq
            );
        }
        let latest = self.time.of_day().plus(AHEAD_MAX);
        assert!(
            !self.is_shared || entry.proposal.at <= latest,
            "{node} got {:?} of the future",
            entry.seq
        );
        let applied = self.reference.apply(entry.clone());
        let retention_seconds = self.reference.settings().events_retention_seconds;
        self.retention_min_seconds = self.retention_min_seconds.min(retention_seconds);
        self.reference.take_events(&mut self.fresh);
        for event in self.fresh.iter() {
            self.events.insert(event.number, event.bytes.to_vec());
        }
        self.reference.publish();
        self.reference.free_discarded(u64::MAX);
        if let Some(key) = entry
            .proposal
            .idempotency
            .filter(|key| key.scope >= STRICT_SCOPE)
        {
            match self.outcomes.get(&key.scope) {
                Some(first) => {
                    assert_eq!(
                        (&applied.outcome, applied.replayed),
                        (first, true),
                        "the repeat at {:?}",
                        entry.seq
                    );
                }
                None if matches!(applied.outcome, Outcome::Refused(_)) => {}
                None => {
                    assert!(!applied.replayed, "the first request at {:?}", entry.seq);
                    self.outcomes.insert(key.scope, applied.outcome.clone());
                }
            }
        }
        self.answers.push((applied, self.reference.hash().hash));
        self.entries.push(entry.clone());
    }
}

/// A log of which everything that it delivers is noted.
#[derive(Debug)]
pub struct ObservedLog {
    pub node: String,
    pub log: Arc<dyn OpenJournal>,
    pub history: History,
}

impl OpenJournal for ObservedLog {
    fn open(&self, store: &Arc<Store>) -> Result<Box<dyn Journal>, JournalError> {
        Ok(Box::new(ObservedJournal {
            node: self.node.clone(),
            journal: self.log.open(store)?,
            history: self.history.clone(),
        }))
    }

    fn open_store(&self, path: &Path, options: &StoreOptions) -> Result<Store, StoreError> {
        self.log.open_store(path, options)
    }

    fn is_shared(&self) -> bool {
        self.log.is_shared()
    }
}

struct ObservedJournal {
    node: String,
    journal: Box<dyn Journal>,
    history: History,
}

impl Journal for ObservedJournal {
    fn propose(&mut self, first: Ticket, batch: Vec<Proposal>) -> Result<(), JournalError> {
        self.journal.propose(first, batch)
    }

    fn poll(
        &mut self,
        after: Seq,
        now: Instant,
        context: &mut Context<'_>,
    ) -> Poll<Result<Delivery, JournalError>> {
        let news = self.journal.poll(after, now, context);
        if let Poll::Ready(Ok(Delivery::Entries(committed))) = &news {
            assert_eq!(committed[0].entry.seq, after.next(), "{}", self.node);
            self.history.note(&self.node, committed);
        }
        news
    }

    fn wake_at(&self, now: Instant) -> Option<Instant> {
        self.journal.wake_at(now)
    }

    fn barrier(&mut self, barrier: Ticket) {
        self.journal.barrier(barrier);
    }

    fn place(&self) -> Vec<u8> {
        self.journal.place()
    }

    fn replication(&self) -> Option<Arc<Mutex<cuckood_log::journal::Replication>>> {
        self.journal.replication()
    }

    fn prune(&mut self, through: Seq, budget: u64) -> Result<bool, JournalError> {
        self.journal.prune(through, budget)
    }

    fn settle(&mut self) -> Result<(), JournalError> {
        self.journal.settle()
    }
}
