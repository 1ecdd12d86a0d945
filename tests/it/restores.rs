//! Whatever has happened, a snapshot gives back what was there: logs of all commands, snapshots taken in pieces between them
//! and given up now and then, restarts. What a restore gives equals the live state byte for byte, and goes on equal.
//!
//! The snapshots are those of the engine, with its choice of what is taken over from the one before, in a store on disk.
//! `SOAK_SECONDS` has the random logs go on for so long; else it is a few hundred.

use crate::random_log::{Numbers, RandomLog, code};
use crate::store_support::options;
use cuckood::domain::{
    Applied, Command, Digests, Ending, Entry, FilterId, Guards, ImportId, ImportMode, KeyName, Proposal, Seq,
    Target, Timestamp, UploadDigest,
};
use cuckood::engine::recovery;
use cuckood::engine::running_snapshot::RunningSnapshot;
use cuckood::journal::Durability;
use cuckood::state::{Section, State};
use cuckood::store::{Manifest, Store};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use std::time::{Duration, Instant};

/// All that a state is, as a snapshot would hold it.
type Image = (Vec<u8>, Vec<(Section, Vec<Vec<u8>>)>);

fn image(state: &mut State) -> Image {
    let begun = state.begin_snapshot();
    let sections = begun.sections.into_iter().map(|section| {
        let chunks = (0..).map_while(|number| {
            let mut chunk = Vec::new();
            state.take_chunk(section.id, number, &mut chunk).then_some(chunk)
        });
        (section, chunks.collect())
    });
    let sections = sections.collect();
    state.end_snapshot();
    (begun.head, sections)
}

fn assert_equal(restored: &mut State, live: &mut State) {
    assert_eq!(restored.tables_bytes(), live.tables_bytes());
    assert_eq!(restored.records_bytes(), live.records_bytes());
    assert_eq!(restored.redemptions(), live.redemptions());
    assert_eq!(restored.idempotency_records(), live.idempotency_records());
    let ((head, sections), (live_head, live_sections)) = (image(restored), image(live));
    assert!(head == live_head, "the heads differ");
    for ((section, chunks), (live_section, live_chunks)) in sections.iter().zip(&live_sections) {
        assert_eq!(section, live_section);
        assert!(chunks == live_chunks, "{section:?} differs");
    }
    assert_eq!(sections.len(), live_sections.len());
}

/// A service without its threads: a state, its log, and snapshots in a store.
struct Service<'a> {
    store: &'a Store,
    state: State,
    log: Vec<(Entry, Applied)>,
    running: Option<RunningSnapshot>,
    latest: Option<Manifest>,
}

impl<'a> Service<'a> {
    fn new(store: &'a Store) -> Self {
        Self { store, state: State::new(), log: Vec::new(), running: None, latest: None }
    }

    fn apply(&mut self, entry: Entry) -> Applied {
        let applied = self.state.apply(entry.clone());
        self.log.push((entry, applied.clone()));
        applied
    }

    fn submit(&mut self, command: Command) -> Applied {
        let seq = self.state.applied().next();
        self.apply(Entry { seq, proposal: Proposal::new(Timestamp(1_000), command) })
    }

    fn begin(&mut self) {
        let begun = RunningSnapshot::begin(self.store, &mut self.state, self.latest.as_ref(), Timestamp(0));
        self.running = Some(begun.unwrap());
    }

    /// Goes on with the snapshot under way; once it is whole, it is restored and compared.
    fn write(&mut self, budget: u64) {
        let Some(mut running) = self.running.take() else { return };
        running
            .write(self.store, &mut self.state, budget, Instant::now() + Duration::from_secs(600))
            .unwrap();
        if !running.is_whole() {
            self.running = Some(running);
            return;
        }
        let manifest = running.finish(self.store, &mut self.state).unwrap();
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
        self.state.end_snapshot();
        self.running = None;
    }

    /// What a restart would come to: the latest snapshot and the log after it.
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
        self.state = restored;
    }
}

fn store_in(dir: &tempfile::TempDir) -> Store {
    // What the disk does is others' to test.
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
            _ => {}
        }
        service.apply(log.next(numbers));
    }
    service.abort();
    service.snapshot();
    service.latest = None;
    assert_equal(&mut service.restored(), &mut service.state);
    let mut sweep = store.sweep().unwrap();
    while sweep.step(store, 4 << 20).unwrap() {}
}

/// The general one: random logs of all commands.
#[test]
fn what_a_restore_gives_equals_the_live_state() {
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
fn a_section_of_one_import_is_not_taken_over_by_the_next() {
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
