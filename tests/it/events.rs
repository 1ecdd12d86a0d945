//! The log of events: many events, over restarts, removal and damage. What commands report is tested with random logs in `restores`,
//! and through HTTP in `contract`.

use crate::memory_log::MemoryLog;
use crate::storage_faults::Faulty;
use crate::store_support::{CLOCK, append, open, open_journal, options};
use cuckood::clock::{Clock, ClockLimits};
use cuckood::domain::{
    ClockReading, Command, Digests, Entry, Event, FilterId, Happened, KeyName, Kind, Name, Proposal,
    RedemptionId, Reference, Settings, Sizing, Spec, Status, Target, Timestamp, Window,
};
use cuckood::engine::RunningSnapshot;
use cuckood::engine::event_log::{EventLog, EventsFound};
use cuckood::engine::recovery::{RecoveryError, load, recover};
use cuckood::engine::{
    Engine, EngineOptions, EventsError, NumberedEvent, Status as EngineStatus, archive, restore, verify,
};
use cuckood::filter::{Digest, Growth, Layout, Mode, Secret};
use cuckood::journal::Durability;
use cuckood::state::State;
use cuckood::store::backing::Backing;
use cuckood::store::{EventPack, Manifest, Store, StoreError};
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

const DAY: u64 = 86_400;

/// A coupon for many codes.
fn create() -> Command {
    let (mode, growth, capacity) = (Mode::Strict, Growth::Auto, 1_000);
    Command::Create {
        kind: Kind::Coupon,
        name: Name::new("welcome").unwrap(),
        id: FilterId(1),
        secret: Secret::new([7; 192]),
        spec: Spec {
            capacity,
            mode,
            growth,
            sizing: Sizing::Exact,
            ignore_case: false,
            stock: None,
            forget: None,
        },
        layout: Layout::strict(capacity).unwrap(),
        window: Window::default(),
        annotations: Default::default(),
    }
}

fn code(number: u64) -> Digest {
    Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))
}

fn add(codes: std::ops::Range<u64>) -> Command {
    let (target, digests) = (Target(FilterId(1)), Digests(codes.map(code).collect()));
    Command::Insert { target, digests, if_absent: false, revive: false }
}

/// A redemption whose event is as long as any.
fn redeem(number: u64) -> Command {
    Command::Redeem {
        target: Target(FilterId(1)),
        digest: code(number),
        redemption: RedemptionId(u128::from(number).to_be_bytes()),
        reference: Reference::new(&format!("{number:0128}")).unwrap(),
        hold_seconds: 0,
    }
}

/// A state and its log of events over a store that is reopened at each restart, and all reported events.
struct Life {
    directory: tempfile::TempDir,
    store: Option<Arc<Store>>,
    state: State,
    events: EventLog,
    latest: Option<Manifest>,
    log: Vec<Entry>,
    reported: Vec<(u64, Timestamp, Vec<u8>)>,
    at: u64,
    redeemed: u64,
}

impl Life {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        let state = State::new();
        let events = EventLog::open(&store, &state).unwrap();
        let (log, reported) = (Vec::new(), Vec::new());
        let (store, latest, at, redeemed) = (Some(store), None, 1_000_000, 0);
        let mut life = Self { directory, store, state, events, latest, log, reported, at, redeemed };
        life.submit(create());
        life.submit(add(0..9_000));
        life
    }

    fn store(&self) -> Arc<Store> {
        self.store.clone().unwrap()
    }

    fn submit(&mut self, command: Command) {
        let proposal =
            Proposal { by: Some(KeyName::new("shop")), ..Proposal::new(Timestamp(self.at), command) };
        let entry = Entry { seq: self.state.applied().next(), proposal };
        self.log.push(entry.clone());
        self.state.apply(entry);
        let fresh = self.state.events().fresh().iter();
        self.reported.extend(fresh.map(|event| (event.number, event.at, event.bytes.to_vec())));
        self.events.take(&self.store(), &mut self.state).unwrap();
    }

    fn redeem(&mut self, count: u64) {
        for _ in 0..count {
            self.submit(redeem(self.redeemed));
            self.redeemed += 1;
        }
    }

    fn snapshot(&mut self) {
        let (store, latest, now) = (self.store(), self.latest.as_ref(), Timestamp(self.at));
        let mut running =
            RunningSnapshot::begin(&store, &mut self.state, &mut self.events, latest, Vec::new(), now)
                .unwrap();
        while !running.is_complete() {
            running.write(&store, 1 << 30, Duration::MAX).unwrap();
        }
        self.latest = Some(running.finish(&store).unwrap());
    }

    /// Restarts as after a kill. The log has lost `lost` entries, but none covered by a snapshot.
    fn restart(&mut self, lost: usize) {
        self.store = None;
        let store = open(self.directory.path());
        self.state = match &self.latest {
            Some(latest) => load(&store, latest, &mut |_| ()).unwrap(),
            None => State::new(),
        };
        let kept = self.log.len().saturating_sub(lost).max(self.state.applied().0 as usize);
        self.log.truncate(kept);
        self.events = EventLog::open(&store, &self.state).unwrap();
        for entry in &self.log[self.state.applied().0 as usize..] {
            self.state.apply(entry.clone());
            self.events.take(&store, &mut self.state).unwrap();
        }
        self.events.settle(&store, &self.state).unwrap();
        self.reported.retain(|(number, ..)| *number <= self.state.events().last());
        self.store = Some(store);
    }

    /// Removes everything that is old.
    fn clean(&mut self) {
        while self.clean_a_little() {}
    }

    /// Removes a few old events. Returns whether there were any.
    fn clean_a_little(&mut self) -> bool {
        let (store, now) = (self.store(), Timestamp(self.at));
        let has_old = self.events.has_old(now);
        if has_old {
            self.events.remove_old(&store, now, 1 << 20).unwrap();
        }
        has_old
    }

    /// The clock is ahead for a while, and is turned back.
    fn be_ahead(&mut self, milliseconds: u64, redeemed: u64) {
        self.at += milliseconds;
        self.redeem(redeemed);
        self.at -= milliseconds;
        self.submit(Command::TurnBack);
    }

    /// The times of all reported events. A clock that was ahead does not make an event younger than later ones.
    fn times(&self) -> Vec<Timestamp> {
        let mut times: Vec<Timestamp> = self.reported.iter().map(|(_, at, _)| *at).collect();
        for later in (1..times.len()).rev() {
            times[later - 1] = times[later - 1].min(times[later]);
        }
        times
    }

    fn stored(&self) -> Vec<(u64, Vec<u8>)> {
        let (mut next, mut all) = (0, Vec::new());
        while let EventsFound::Pack(pack) = self.events.find(&self.store(), next, false).unwrap() {
            let new = pack.events().filter(|(number, _)| *number >= next);
            all.extend(new.map(|(number, event)| (number, event.to_vec())));
            next = pack.last() + 1;
        }
        all
    }

    /// The stored events are the latest reported ones, in order, each once. No recent one is missing. After a cleanup, none is much older
    /// than the retention.
    fn check(&self, is_clean: bool) {
        let stored = self.stored();
        assert_eq!(self.events.figures().kept, stored.len() as u64);
        let gone = self.reported.len() - stored.len();
        let reported = self.reported[gone..].iter().map(|(number, _, bytes)| (*number, bytes.clone()));
        assert!(reported.eq(stored), "events are lost, or there twice");
        let retention = self.state.settings().events_retention_seconds;
        let over = |at: &Timestamp, seconds| at.plus_seconds(seconds) <= Timestamp(self.at);
        let times = self.times();
        assert!(times[..gone].iter().all(|at| over(at, retention)), "events are gone too soon");
        if is_clean {
            let late = retention + retention / 32 + 61;
            assert!(!times[gone..].iter().any(|at| over(at, late)), "events are not gone");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens to the process, and whatever the log has lost with it.
    #[test]
    fn events_are_neither_lost_nor_duplicated(steps in proptest::collection::vec((0..11u8, 0..700u64), 1..24)) {
        let mut life = Life::new();
        for (step, number) in steps {
            match step {
                0..3 => life.redeem(number),
                3 => life.snapshot(),
                4 => life.restart(0),
                5 => life.restart(number as usize),
                // From seconds to a little more than the retention.
                6 => life.at += number * number * 6_000,
                7 => life.clean(),
                8 => life.be_ahead(number * number * 6_000, number % 50),
                _ => {
                    life.clean_a_little();
                }
            }
            life.check(step == 7);
        }
        life.restart(0);
        life.check(false);
    }
}

/// A start makes them again.
#[test]
fn events_stay_readable_after_failed_write() {
    let mut life = Life::new();
    life.redeem(10);
    life.snapshot();
    life.store = None;
    let left = Arc::new(AtomicI64::new(i64::MAX));
    let under =
        |under| -> Box<dyn Backing> { Box::new(Faulty { under, left: left.clone(), takes_effect: false }) };
    let store = Store::open_over(life.directory.path(), &options(Durability::Fsync), under).unwrap();
    life.events = EventLog::open(&store, &life.state).unwrap();
    life.store = Some(Arc::new(store));
    left.store(0, Relaxed);
    // Several times the number that fits into a pack.
    let mut stored = Ok(());
    for number in 10..2_000 {
        let entry = Entry {
            seq: life.state.applied().next(),
            proposal: Proposal::new(Timestamp(life.at), redeem(number)),
        };
        life.log.push(entry.clone());
        life.state.apply(entry);
        let fresh = life.state.events().fresh().iter();
        life.reported.extend(fresh.map(|event| (event.number, event.at, event.bytes.to_vec())));
        stored = stored.and(life.events.take(&life.store(), &mut life.state));
    }
    assert!(matches!(stored, Err(StoreError::Failed { .. })), "{stored:?}");
    life.check(false);
    life.restart(0);
    life.check(false);
}

/// The tree started under the longer retention gets no more events, and expires by the time of later events.
#[test]
fn shorter_retention_applies_to_current_tree() {
    let mut life = Life::new();
    life.redeem(3);
    life.submit(Command::Configure(Settings { events_retention_seconds: 3_600, ..Settings::default() }));
    for _ in 0..60 {
        life.at += 120_000;
        life.redeem(1);
        life.clean();
        life.check(true);
    }
    assert!(life.stored().len() < 40, "{}", life.stored().len());
}

/// All are over: they go, and numbers go on, also when the process dies in between.
#[test]
fn expired_events_leave_numbering_unchanged() {
    let mut life = Life::new();
    life.redeem(400);
    life.snapshot();
    life.redeem(5);
    life.at += 31 * DAY * 1_000;
    life.clean();
    assert_eq!(life.stored(), []);
    life.restart(0);
    life.check(false);
    life.restart(3);
    life.redeem(1);
    assert_eq!(life.stored().len(), 1);
    life.check(false);
    life.restart(0);
    life.snapshot();
    life.restart(0);
    life.check(true);
    assert_eq!(life.stored()[0].0, life.state.events().last());
}

#[test]
fn events_stay_within_space_limit() {
    let mut life = Life::new();
    life.events.room_bytes = 200_000;
    for _ in 0..20 {
        life.redeem(300);
        // Longer than a tree lasts.
        life.at += DAY * 1_000;
        life.clean();
        let figures = life.events.figures();
        assert!(figures.bytes < 300_000, "{figures:?}");
    }
    let (stored, reported) = (life.stored(), life.reported.len());
    assert!(stored.len() > 500 && stored.len() < reported, "{} of {reported}", stored.len());
    assert_eq!(life.reported[reported - stored.len()].0, stored[0].0);
    // After reopening, it knows its size.
    let before = life.events.figures();
    life.snapshot();
    life.restart(0);
    assert_eq!(life.events.figures().kept, before.kept);
}

#[test]
fn missing_event_number_is_reported() {
    let mut life = Life::new();
    life.redeem(400);
    life.at += 31 * DAY * 1_000;
    life.clean();
    life.redeem(3);
    let store = life.store();
    let find = |number, is_wanted| life.events.find(&store, number, is_wanted).unwrap();
    let first = life.stored()[0].0;
    assert_eq!(find(first - 1, true), EventsFound::Gone);
    for (number, is_wanted) in [(first, true), (first - 1, false), (0, false)] {
        assert!(
            matches!(find(number, is_wanted), EventsFound::Pack(pack) if pack.first == first),
            "{number}"
        );
    }
    assert_eq!(find(first + 3, true), EventsFound::Nothing);
}

/// A directory with a snapshot and more entries after it, made by an engine.
async fn directory_of_an_engine(path: &Path) -> u64 {
    let mut options = EngineOptions::new(path);
    options.store.free_space_min_bytes = 0;
    options.store.ballast_bytes = 0;
    let engine = Engine::start(options, Clock::system(ClockLimits::default()));
    assert_eq!(engine.recovered().await, EngineStatus::Ready);
    engine.submit(create(), None).await.unwrap();
    engine.submit(add(0..3_000), None).await.unwrap();
    for number in 0..2_000 {
        if number == 1_700 {
            engine.snapshot().await.unwrap();
        }
        engine.submit(redeem(number), None).await.unwrap();
    }
    let last = all(&engine).await.last().unwrap().number;
    engine.shutdown().await;
    last
}

async fn all(engine: &Engine) -> Vec<NumberedEvent> {
    let (mut reader, mut events) = (engine.events_after(None), Vec::new());
    loop {
        let more = reader.read().await.unwrap();
        if more.is_empty() {
            return events;
        }
        events.extend(more);
    }
}

/// Missing or altered events are reported, and never replaced silently.
#[tokio::test]
async fn damaged_events_are_detected() {
    let directory = tempfile::tempdir().unwrap();
    let last = directory_of_an_engine(directory.path()).await;
    let store = open(directory.path());
    let sound = verify(&store).unwrap();
    assert_eq!(sound.faults, [""; 0]);
    assert!(
        sound.notes.iter().any(|note| note.contains(&format!("events: {last}, numbers 1 to {last}"))),
        "{sound:?}"
    );
    let trees = store.events().trees();
    let tree = trees[0];
    let packs = |number| store.events().find_from(&trees, number).unwrap().unwrap();
    let (first, final_pack) = (packs(1), packs(last));
    assert!(first.last() + 1 < final_pack.first, "there are at least three");

    // A pack that says something else, as a whole pack would.
    let mut forged = EventPack::empty(final_pack.first, final_pack.previous);
    for (_, event) in final_pack.events() {
        let mut event = event.to_vec();
        *event.last_mut().unwrap() ^= 1;
        forged.push(final_pack.since, &event);
    }
    store.events().put(tree, &forged).unwrap();
    assert_ne!(verify(&store).unwrap().faults, [""; 0]);
    store.events().put(tree, &final_pack).unwrap();
    assert_eq!(verify(&store).unwrap().faults, [""; 0]);

    // A pack between two others is gone.
    store.events().remove_from(tree, first.last() + 1).unwrap();
    store.events().put(tree, &final_pack).unwrap();
    let gap = format!("events before event {} are missing", final_pack.first);
    assert!(verify(&store).unwrap().faults.contains(&gap), "{:?}", verify(&store).unwrap());

    // The last pack is gone.
    store.events().remove_from(tree, final_pack.first).unwrap();
    let refused = recover(&store, &mut open_journal(&store).unwrap(), &mut |_| ());
    let Err(RecoveryError::Store(StoreError::Damaged { what, command, .. })) = refused else { panic!() };
    assert!(what.contains(&format!("event {last} is missing")) && command.contains("verify"), "{what}");
    assert_ne!(verify(&store).unwrap().faults, [""; 0]);
}

/// A backup has the events, and its restore is one. Numbers leap, so that none means two things.
#[tokio::test]
async fn backup_contains_events_and_restore_event() {
    let directory = tempfile::tempdir().unwrap();
    let (data, file) = (directory.path().join("data"), directory.path().join("backup"));
    let last = directory_of_an_engine(&data).await;
    let before = {
        let store = open(&data);
        let mut journal = open_journal(&store).unwrap();
        write_backup(&store, &file);
        let recovered = recover(&store, &mut journal, &mut |_| ()).unwrap();
        numbers_and_bytes(&store, &recovered.events)
    };
    assert_eq!(before.len() as u64, last);
    let restored = directory.path().join("restored");
    restore(&file, &restored, &options(Durability::Fsync), CLOCK, |archive| archive).unwrap();
    let store = open(&restored);
    assert_eq!(verify(&store).unwrap().faults, [""; 0]);
    let mut journal = open_journal(&store).unwrap();
    let recovered = recover(&store, &mut journal, &mut |_| ()).unwrap();
    let after = numbers_and_bytes(&store, &recovered.events);
    assert_eq!(after[..before.len()], before[..]);
    let [(number, event)] = &after[before.len()..] else { panic!("{} events", after.len()) };
    assert!(*number > last + 1_000_000, "{number} after {last}");
    assert_eq!(Event::decode(event).unwrap().what, Happened::Restored);
    // A client that had read further in the lost directory gets all events of this one.
    let found = recovered.events.find(&store, last + 500, true).unwrap();
    assert!(matches!(found, EventsFound::Pack(pack) if pack.last() == *number));
    assert_eq!(recovered.state.events().last(), *number);

    // A second restore of the same backup, a second later, is not taken for the first one.
    let again = directory.path().join("again");
    let clock = ClockReading { wall: CLOCK.wall.plus_seconds(1), ..CLOCK };
    restore(&file, &again, &options(Durability::Fsync), clock, |archive| archive).unwrap();
    let store = open(&again);
    let recovered = recover(&store, &mut open_journal(&store).unwrap(), &mut |_| ()).unwrap();
    assert!(recovered.state.events().last() > number + 1_000_000);
}

/// A backup of a directory whose events are all gone can be restored, too.
#[test]
fn backup_without_events_can_be_restored() {
    let directory = tempfile::tempdir().unwrap();
    let (data, file) = (directory.path().join("data"), directory.path().join("backup"));
    let store = open(&data);
    let mut journal = open_journal(&store).unwrap();
    let (mut state, mut events) = (State::new(), EventLog::open(&store, &State::new()).unwrap());
    let commands = [create(), add(0..10), redeem(1)].map(|command| Proposal::new(Timestamp(1_000), command));
    for committed in append(&mut journal, commands.to_vec()).unwrap() {
        state.apply(committed.entry);
        events.take(&store, &mut state).unwrap();
    }
    let later = Timestamp(1_000).plus_seconds(31 * DAY);
    while events.has_old(later) {
        events.remove_old(&store, later, 1 << 20).unwrap();
    }
    RunningSnapshot::take(&store, &mut state, &mut events, None, later).unwrap();
    write_backup(&store, &file);
    let restored = directory.path().join("restored");
    restore(&file, &restored, &options(Durability::Fsync), CLOCK, |archive| archive).unwrap();
    let store = open(&restored);
    let recovered = recover(&store, &mut open_journal(&store).unwrap(), &mut |_| ()).unwrap();
    assert_eq!(numbers_and_bytes(&store, &recovered.events).len(), 1, "only that it was restored");
}

/// Later snapshots store further events in the pack that a download reads last.
#[test]
fn backup_is_unaffected_by_stored_events() {
    let mut life = Life::new();
    life.redeem(10);
    life.snapshot();
    let store = life.store();
    let [mut quiet, mut busy] = [(); 2].map(|()| archive(store.pin_newest().unwrap().unwrap()));
    let parts: Vec<_> = std::iter::from_fn(|| quiet(&store).unwrap()).collect();
    for part in parts.into_iter().map(Some).chain([None, None]) {
        assert!(busy(&store).unwrap() == part);
        life.redeem(1);
        life.snapshot();
    }
}

/// A backup of the newest snapshot.
fn write_backup(store: &Arc<Store>, file: &Path) {
    let mut parts = archive(store.pin_newest().unwrap().unwrap());
    let parts = std::iter::from_fn(|| parts(store).unwrap());
    std::fs::write(file, parts.collect::<Vec<_>>().concat()).unwrap();
}

fn numbers_and_bytes(store: &Store, events: &EventLog) -> Vec<(u64, Vec<u8>)> {
    let (mut next, mut all) = (0, Vec::new());
    while let EventsFound::Pack(pack) = events.find(store, next, false).unwrap() {
        let new = pack.events().filter(|(number, _)| *number >= next);
        all.extend(new.map(|(number, event)| (number, event.to_vec())));
        next = pack.last() + 1;
    }
    all
}

/// Every node of a log has the same events under the same numbers, whichever node logged them.
#[tokio::test]
async fn nodes_produce_identical_events() {
    let log = MemoryLog::new();
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let nodes = directories.each_ref().map(|directory| {
        let mut options = EngineOptions::new(directory.path());
        options.journal = log.options();
        options.store.free_space_min_bytes = 0;
        options.store.ballast_bytes = 0;
        Engine::start(options, Clock::system(ClockLimits::default()))
    });
    for node in &nodes {
        assert_eq!(node.recovered().await, EngineStatus::Ready);
    }
    nodes[0].submit(create(), None).await.unwrap();
    nodes[1].submit_by(Some(KeyName::new("shop")), add(0..100), None).await.unwrap();
    for number in 0..50 {
        nodes[number as usize % 2].submit(redeem(number), None).await.unwrap();
    }
    let mut reported = Vec::new();
    for node in &nodes {
        let mut reader = node.events_after(Some(51));
        reader.wait().await.unwrap();
        assert_eq!(reader.read().await.unwrap().len(), 1);
        reported.push(all(node).await);
    }
    assert_eq!(reported[0], reported[1]);
    let redeemed = reported[0].iter().filter(|NumberedEvent { event, .. }| {
        matches!(event.what, Happened::Redemption { status: Status::Redeemed, .. })
    });
    assert_eq!(redeemed.count(), 50);
    assert_eq!(reported[0][1].event.by.as_deref(), Some("shop"));
    assert_eq!(nodes[0].events_after(Some(52)).read().await, Ok::<_, EventsError>(Vec::new()));
}
