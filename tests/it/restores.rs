//! After any history, a snapshot restores the state: logs of all commands, snapshots taken in pieces between them and aborted sometimes,
//! restarts. A restored state equals the live one byte for byte, and stays equal. The log of events has each event once, in order, even if
//! the end of the log is lost.
//!
//! The snapshots are those of the engine, including the sections it reuses from the previous one, in a store on disk. `SOAK_SECONDS` sets
//! the duration; the default is a few hundred random logs.

use crate::random_log::{Numbers, RandomLog, code};
use crate::store_support::options;
use cuckood::domain::{
    Applied, Command, Digests, Ending, Entry, FilterId, Guards, ImportId, ImportMode, ImportState, KeyName,
    Kind, Proposal, SectionId, Seq, Target, Timestamp, UploadDigest,
};
use cuckood::engine::RunningSnapshot;
use cuckood::engine::event_log::{EventLog, EventsFound};
use cuckood::engine::recovery;
use cuckood::filter::StateCounts;
use cuckood::journal::Durability;
use cuckood::state::State;
use cuckood::store::{Manifest, Store};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use std::time::{Duration, Instant};

/// All that a state is, as a snapshot would hold it.
type Image = (Vec<u8>, Vec<((SectionId, u64), Vec<Vec<u8>>)>);

fn image(state: &mut State) -> Image {
    let begun = state.begin_snapshot();
    let sections = begun.sections.into_iter().map(|mut section| {
        let chunks = std::iter::from_fn(|| {
            let mut chunk = Vec::new();
            section.next_chunk(&mut chunk).then_some(chunk)
        });
        let chunks = chunks.collect();
        ((section.id, section.changes), chunks)
    });
    let sections = sections.collect();
    (begun.head, sections)
}

fn assert_equal(restored: &mut State, live: &mut State) {
    assert_eq!(restored.sizes().tables_bytes, live.sizes().tables_bytes);
    assert_eq!(restored.sizes().records_bytes, live.sizes().records_bytes);
    assert_eq!(restored.sizes().redemptions, live.sizes().redemptions);
    assert_eq!((restored.sizes().codes, codes(restored)), (live.sizes().codes, codes(live)));
    assert_imports_have_filters(restored);
    assert_eq!(restored.sizes().idempotency_records, live.sizes().idempotency_records);
    let ((head, sections), (live_head, live_sections)) = (image(restored), image(live));
    assert!(head == live_head, "the heads differ");
    for ((section, chunks), (live_section, live_chunks)) in sections.iter().zip(&live_sections) {
        assert_eq!(section, live_section);
        assert!(chunks == live_chunks, "{section:?} differs");
    }
    assert_eq!(sections.len(), live_sections.len());
}

/// No import runs into a filter that is gone. The state must have been published.
fn assert_imports_have_filters(state: &State) {
    let view = state.view();
    for import in view.imports().iter().filter(|import| import.state == ImportState::Running) {
        let filter = view.find(import.kind, &import.name).map(|view| view.id);
        assert_eq!(filter, Some(import.filter), "{import:?}");
    }
}

/// Codes of all strict coupons, counted one coupon at a time.
fn codes(state: &mut State) -> StateCounts {
    state.publish();
    let mut sum = StateCounts::default();
    for counts in state
        .view()
        .list(Kind::Coupon, "", None, usize::MAX)
        .iter()
        .filter_map(|it| it.describe(Timestamp(0)).stats.codes)
    {
        sum += counts;
    }
    sum
}

/// A service without its threads: a state, its log, and snapshots in a store.
struct Service<'a> {
    store: &'a Store,
    state: State,
    events: EventLog,
    log: Vec<(Entry, Applied)>,
    /// The events of each entry, all of which must be stored.
    reported: Vec<Vec<(u64, Vec<u8>)>>,
    running: Option<RunningSnapshot>,
    latest: Option<Manifest>,
}

impl<'a> Service<'a> {
    fn new(store: &'a Store) -> Self {
        let state = State::new();
        // Whatever an earlier one has left goes.
        let mut events = EventLog::open(store, &state).unwrap();
        events.settle(store, &state).unwrap();
        Self { store, state, events, log: Vec::new(), reported: Vec::new(), running: None, latest: None }
    }

    fn apply(&mut self, entry: Entry) -> Applied {
        let applied = self.state.apply(entry.clone());
        let fresh = self.state.events().fresh().iter();
        self.reported.push(fresh.map(|event| (event.number, event.bytes.to_vec())).collect());
        self.events.take(self.store, &mut self.state).unwrap();
        // When it is done makes no difference.
        self.state.free_discarded(self.log.len() as u64 % 40);
        self.log.push((entry, applied.clone()));
        applied
    }

    fn submit(&mut self, command: Command) -> Applied {
        let seq = self.state.applied().next();
        self.apply(Entry { seq, proposal: Proposal::new(Timestamp(1_000), command) })
    }

    fn begin(&mut self) {
        let (latest, now) = (self.latest.as_ref(), Timestamp(0));
        let (state, events) = (&mut self.state, &mut self.events);
        let begun = RunningSnapshot::begin(self.store, state, events, latest, Vec::new(), now);
        self.running = Some(begun.unwrap());
    }

    /// Continues the running snapshot; once it is complete, it is restored and compared.
    fn write(&mut self, budget: u64) {
        let Some(mut running) = self.running.take() else { return };
        running.write(self.store, budget, Duration::MAX).unwrap();
        if !running.is_complete() {
            self.running = Some(running);
            return;
        }
        let manifest = running.finish(self.store).unwrap();
        self.latest = Some(manifest);
        let mut restored = self.restored();
        assert_equal(&mut restored, &mut self.state);
    }

    fn snapshot(&mut self) {
        self.begin();
        while self.running.is_some() {
            self.write(u64::MAX / 2);
        }
    }

    fn abort(&mut self) {
        self.running = None;
    }

    /// The state after a restart: the latest snapshot and the log after it.
    fn restored(&self) -> State {
        let mut state = match &self.latest {
            Some(latest) => recovery::load(self.store, latest, &mut |_| ()).unwrap(),
            None => State::new(),
        };
        let Seq(from) = state.applied();
        for (entry, applied) in &self.log[from as usize..] {
            assert_eq!(&state.apply(entry.clone()), applied, "{entry:?}");
        }
        state.publish();
        state
    }

    fn restart(&mut self) {
        self.abort();
        let mut restored = self.restored();
        assert_equal(&mut restored, &mut self.state);
        self.recover();
        assert_equal(&mut restored, &mut self.state);
    }

    /// Rebuilds state and log of events, as startup does.
    fn recover(&mut self) {
        self.abort();
        self.state = match &self.latest {
            Some(latest) => recovery::load(self.store, latest, &mut |_| ()).unwrap(),
            None => State::new(),
        };
        self.events = EventLog::open(self.store, &self.state).unwrap();
        let Seq(from) = self.state.applied();
        for (entry, _) in &self.log[from as usize..] {
            self.state.apply(entry.clone());
            self.events.take(self.store, &mut self.state).unwrap();
        }
        self.events.settle(self.store, &self.state).unwrap();
        self.state.publish();
        self.assert_each_event_once();
    }

    /// The same after the last entries are lost, as they may be if they were not synced.
    fn lose(&mut self, entries: usize) {
        let Seq(kept) = self.latest.as_ref().map_or(Seq(0), |latest| latest.seq);
        let left = self.log.len().saturating_sub(entries).max(kept as usize);
        self.log.truncate(left);
        self.reported.truncate(left);
        self.recover();
    }

    fn assert_each_event_once(&self) {
        let reported: Vec<&(u64, Vec<u8>)> = self.reported.iter().flatten().collect();
        assert_eq!(self.events.figures().kept, reported.len() as u64);
        let (mut next, mut reported) = (0, reported.into_iter());
        while let EventsFound::Pack(pack) = self.events.find(self.store, next, false).unwrap() {
            for (number, event) in pack.events().filter(|(number, _)| *number >= next) {
                let (reported_number, reported_event) = reported.next().expect("an unreported event");
                assert_eq!((number, event), (*reported_number, reported_event.as_slice()));
            }
            next = pack.last() + 1;
        }
        assert_eq!(reported.next(), None, "an event is lost");
    }
}

fn store_in(dir: &tempfile::TempDir) -> Store {
    // Other tests cover the disk.
    Store::open(dir.path(), &options(Durability::Flush)).unwrap()
}

fn run(store: &Store, steps: &[(u8, Numbers)]) {
    let mut service = Service::new(store);
    let mut log = RandomLog::new();
    for entry in log.beginning() {
        service.apply(entry);
    }
    for &(step, numbers) in steps {
        match step {
            0..16 if service.running.is_none() => service.begin(),
            0..80 => service.write(u64::from(step) * 400),
            80..83 => service.abort(),
            83..86 => service.restart(),
            86 => {
                service.lose(usize::from(numbers.3 % 40));
                log.go_back_to(service.state.applied());
            }
            _ => {}
        }
        service.apply(log.next(numbers));
    }
    service.abort();
    service.snapshot();
    service.recover();
    service.latest = None;
    assert_equal(&mut service.restored(), &mut service.state);
    service.recover();
    let mut sweep = store.sweep().unwrap();
    while sweep.step(store, 4 << 20).unwrap() {}
}

/// The general one: random logs of all commands.
#[test]
fn restored_state_equals_live_state() {
    let soak = std::env::var("SOAK_SECONDS").ok().map(|seconds| seconds.parse().unwrap());
    let until = Instant::now() + Duration::from_secs(soak.unwrap_or(0));
    let steps = proptest::collection::vec((any::<u8>(), any::<Numbers>()), 1..400);
    loop {
        let dir = tempfile::tempdir().unwrap();
        let store = store_in(&dir);
        let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
        match TestRunner::new(config).run(&steps, |steps| {
            run(&store, &steps);
            Ok(())
        }) {
            Ok(()) => {}
            Err(TestError::Fail(reason, steps)) => panic!("{reason}\nafter {steps:?}"),
            Err(error) => panic!("{error}"),
        }
        if Instant::now() >= until {
            break;
        }
    }
}

/// Two snapshots, each inside another import into one filter, after the same number of changes.
#[test]
fn import_section_is_never_reused() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir);
    let mut service = Service::new(&store);
    for entry in RandomLog::new().beginning() {
        service.apply(entry);
    }
    let target = Target(FilterId(1));
    for (import, item) in [("first", 1), ("second", 2)] {
        let import = ImportId::new(import).unwrap();
        service.submit(Command::ImportBegin {
            target,
            import: import.clone(),
            mode: ImportMode::Replace,
            if_absent: false,
            guards: Guards::default(),
            owner: KeyName::new(""),
            is_named: true,
        });
        let digests = Digests(vec![code(item)]);
        service.submit(Command::Insert { target, digests, if_absent: false, revive: false });
        service.snapshot();
        let ending = Ending::Whole { upload: UploadDigest { bytes: 0, hash: 0 }, warnings: Vec::new() };
        service.submit(Command::ImportEnd { target, import, ending, entries_max: 9 });
        service.restart();
    }
}
