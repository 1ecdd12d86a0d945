//! A service without its threads: a state, its log and its events, with snapshots in a store. It survives restarts, as startup and the
//! engine's snapshots do it.

use cuckood::engine::RunningSnapshot;
use cuckood::engine::event_log::{EventLog, EventsFound};
use cuckood::engine::recovery;
use cuckood_log::store::{Manifest, Store};
use cuckood_state::State;
use cuckood_state::domain::{Applied, Command, Entry, KeyName, Proposal, Seq, Timestamp};
use std::sync::Arc;

pub struct Life {
    pub store: Arc<Store>,
    pub state: State,
    pub events: EventLog,
    /// All entries with their outcomes, except those that were lost.
    pub log: Vec<(Entry, Applied)>,
    /// All events that the entries have reported: number, time and bytes.
    pub reported: Vec<(u64, Timestamp, Vec<u8>)>,
    pub latest: Option<Manifest>,
    pub running: Option<RunningSnapshot>,
}

/// Takes a snapshot in one go, after the newest one of the store.
pub fn take_snapshot(
    store: &Store,
    state: &mut State,
    events: &mut EventLog,
    now: Timestamp,
) -> Manifest {
    let latest = store.pin_newest().unwrap();
    let mut running =
        RunningSnapshot::begin(store, state, events, latest.as_deref(), Vec::new(), now).unwrap();
    running.write(store, u64::MAX).unwrap();
    running.finish(store).unwrap()
}

impl Life {
    /// A life that starts with an empty log. Events that an earlier one has left are removed.
    pub fn new(store: Arc<Store>) -> Life {
        let state = State::default();
        let mut events = EventLog::open(&store, &state).unwrap();
        events.settle(&store, &state).unwrap();
        let log = Vec::new();
        let reported = Vec::new();
        Life {
            store,
            state,
            events,
            log,
            reported,
            latest: None,
            running: None,
        }
    }

    pub fn apply(&mut self, entry: Entry) -> Applied {
        let applied = self.record(entry);
        self.events.take(&self.store, &mut self.state).unwrap();
        applied
    }

    /// Applies an entry, and leaves its events to be stored.
    pub fn record(&mut self, entry: Entry) -> Applied {
        let applied = self.state.apply(entry.clone());
        let fresh = self.state.events().fresh().iter();
        self.reported
            .extend(fresh.map(|event| (event.number, event.at, event.bytes.to_vec())));
        self.log.push((entry, applied.clone()));
        applied
    }

    pub fn submit(&mut self, at: Timestamp, command: Command) -> Applied {
        let proposal = Proposal {
            by: Some(KeyName::new("shop").unwrap()),
            ..Proposal::new(at, command)
        };
        self.apply(Entry {
            seq: self.state.applied().next(),
            proposal,
        })
    }

    pub fn begin_snapshot(&mut self) {
        let latest = self.latest.as_ref();
        let now = self.state.now();
        let state = &mut self.state;
        let events = &mut self.events;
        self.running = Some(
            RunningSnapshot::begin(&self.store, state, events, latest, Vec::new(), now).unwrap(),
        );
    }

    /// Continues the running snapshot. Returns whether this has completed it.
    pub fn write_snapshot(&mut self, budget: u64) -> bool {
        let Some(mut running) = self.running.take() else {
            return false;
        };
        running.write(&self.store, budget).unwrap();
        let is_complete = running.is_complete();
        if is_complete {
            self.latest = Some(running.finish(&self.store).unwrap());
        } else {
            self.running = Some(running);
        }
        is_complete
    }

    pub fn snapshot(&mut self) {
        self.begin_snapshot();
        while !self.write_snapshot(u64::MAX / 2) {}
    }

    /// The state of the latest snapshot.
    fn loaded(&self) -> State {
        match &self.latest {
            Some(latest) => recovery::load(&self.store, latest, &mut |_| ()).unwrap(),
            None => State::default(),
        }
    }

    /// The state after a restart, from the latest snapshot and the log after it. Each entry has its outcome again.
    pub fn restored(&self) -> State {
        let mut state = self.loaded();
        let Seq(from) = state.applied();
        for (entry, applied) in &self.log[from as usize..] {
            assert_eq!(&state.apply(entry.clone()), applied, "{entry:?}");
        }
        state.publish();
        state
    }

    /// Restarts as after a power loss: the log has lost its last `lost` entries, but none covered by a snapshot.
    pub fn restart(&mut self, lost: usize) {
        self.running = None;
        self.state = self.loaded();
        let Seq(covered) = self.state.applied();
        self.log
            .truncate(self.log.len().saturating_sub(lost).max(covered as usize));
        self.events = EventLog::open(&self.store, &self.state).unwrap();
        for (entry, _) in &self.log[covered as usize..] {
            self.state.apply(entry.clone());
            self.events.take(&self.store, &mut self.state).unwrap();
        }
        self.events.settle(&self.store, &self.state).unwrap();
        self.state.publish();
        self.reported
            .retain(|(number, ..)| *number <= self.state.events().last());
    }

    /// The numbers and bytes of all stored events.
    pub fn stored(&self) -> Vec<(u64, Vec<u8>)> {
        stored(&self.store, &self.events)
    }
}

/// The numbers and bytes of all stored events.
pub fn stored(store: &Store, events: &EventLog) -> Vec<(u64, Vec<u8>)> {
    let mut next = 0;
    let mut all = Vec::new();
    while let EventsFound::Pack(pack) = events.find(store, next, false).unwrap() {
        let new = pack.events().filter(|(number, _)| *number >= next);
        all.extend(new.map(|(number, event)| (number, event.to_vec())));
        next = pack.last() + 1;
    }
    all
}
