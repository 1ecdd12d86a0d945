//! The log of events: many events, over restarts, removal and damage. What commands report is tested with random logs in `restores`,
//! and through HTTP in `contract`.

use crate::engines;
use crate::life::{Life, stored, take_snapshot};
use cuckood::engine::event_log::{EventLog, EventsFound};
use cuckood::engine::recovery::{RecoveryError, recover};
use cuckood::engine::{
    Engine, EngineOptions, EventsError, NumberedEvent, archive, restore, verify,
};
use cuckood_log::journal::Durability;
use cuckood_log::store::backing::Backing;
use cuckood_log::store::{EventPack, Store, StoreError};
use cuckood_log::testing::faulty::Faulty;
use cuckood_log::testing::memory_log::MemoryLog;
use cuckood_log::testing::stores::{CLOCK, append, open, open_journal, options};
use cuckood_state::State;
use cuckood_state::domain::{
    ClockReading, Command, Entry, Event, Happened, KeyName, Proposal, RedemptionStatus, Settings,
    Target, Timestamp,
};
use cuckood_state::frame::decode;
use cuckood_state::testing::commands::{self, NewFilter, insert, target};
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

const DAY: u64 = 86_400;

const COUPON: Target = target(1);

fn create() -> Command {
    NewFilter::coupon(1_000).create(COUPON)
}

fn add(numbers: std::ops::Range<u64>) -> Command {
    insert(COUPON, numbers)
}

/// A redemption whose event is as long as any.
fn redeem(number: u64) -> Command {
    commands::redeem(COUPON, number, number, &format!("{number:0128}"), 0)
}

/// A life of a coupon by a clock, which redeems one code after the other.
struct Shop {
    life: Life,
    directory: tempfile::TempDir,
    now: Timestamp,
    redeemed: u64,
}

impl Shop {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), &options(Durability::Flush)).unwrap();
        Self::over(directory, store)
    }

    fn over(directory: tempfile::TempDir, store: Store) -> Self {
        let life = Life::new(Arc::new(store));
        let now = Timestamp(1_000_000);
        let mut shop = Self {
            life,
            directory,
            now,
            redeemed: 0,
        };
        shop.submit(create());
        shop.submit(add(0..9_000));
        shop
    }

    /// The same over its directory opened again.
    fn reopened(self) -> Self {
        let Self {
            life:
                Life {
                    store,
                    state,
                    events,
                    log,
                    reported,
                    latest,
                    ..
                },
            directory,
            now,
            redeemed,
        } = self;
        drop(store);
        let life = Life {
            store: open(directory.path()),
            state,
            events,
            log,
            reported,
            latest,
            running: None,
        };
        Self {
            life,
            directory,
            now,
            redeemed,
        }
    }

    fn submit(&mut self, command: Command) {
        self.life.submit(self.now, command);
    }

    fn redeem(&mut self, count: u64) {
        for _ in 0..count {
            self.submit(redeem(self.redeemed));
            self.redeemed += 1;
        }
    }

    fn pass_seconds(&mut self, seconds: u64) {
        self.now = self.now.plus_seconds(seconds);
    }

    /// Removes everything that is old.
    fn clean(&mut self) {
        while self.clean_a_little() {}
    }

    /// Removes a few old events. Returns whether there were any.
    fn clean_a_little(&mut self) -> bool {
        let Life { events, store, .. } = &mut self.life;
        let has_old = events.has_old(self.now);
        if has_old {
            events.remove_old(store, self.now, 1 << 20).unwrap();
        }
        has_old
    }

    /// The clock is ahead for a while, and is turned back.
    fn be_ahead(&mut self, seconds: u64, redeemed: u64) {
        let right = self.now;
        self.pass_seconds(seconds);
        self.redeem(redeemed);
        self.now = right;
        self.submit(Command::TurnBack);
    }

    /// The times of all reported events. A clock that was ahead does not make an event younger than later ones.
    fn times(&self) -> Vec<Timestamp> {
        let mut times: Vec<Timestamp> = self.life.reported.iter().map(|(_, at, _)| *at).collect();
        for later in (1..times.len()).rev() {
            times[later - 1] = times[later - 1].min(times[later]);
        }
        times
    }

    /// The stored events are the latest reported ones, in order, each once. No recent one is missing. After a cleanup, none is much older
    /// than the retention.
    fn check(&self, is_clean: bool) {
        let stored = self.life.stored();
        let reported = &self.life.reported;
        assert_eq!(self.life.events.figures().kept, stored.len() as u64);
        let gone = reported.len() - stored.len();
        let reported = reported[gone..]
            .iter()
            .map(|(number, _, bytes)| (*number, bytes.clone()));
        assert!(reported.eq(stored), "events are lost, or there twice");
        let retention = self.life.state.settings().events_retention_seconds;
        let over = |at: &Timestamp, seconds| at.plus_seconds(seconds) <= self.now;
        let times = self.times();
        assert!(
            times[..gone].iter().all(|at| over(at, retention)),
            "events are gone too soon"
        );
        if is_clean {
            let late = retention + retention / 32 + 61;
            assert!(
                !times[gone..].iter().any(|at| over(at, late)),
                "events are not gone"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens to the process, and whatever the log has lost with it.
    #[test]
    fn events_are_neither_lost_nor_duplicated(steps in proptest::collection::vec((0..11u8, 0..700u64), 1..24)) {
        let mut shop = Shop::new();
        for (step, number) in steps {
            match step {
                0..3 => shop.redeem(number),
                3 => shop.life.snapshot(),
                4 => shop.life.restart(0),
                5 => shop.life.restart(number as usize),
                // From seconds to a little more than the retention.
                6 => shop.pass_seconds(number * number * 6),
                7 => shop.clean(),
                8 => shop.be_ahead(number * number * 6, number % 50),
                _ => {
                    shop.clean_a_little();
                }
            }
            shop.check(step == 7);
        }
        shop.life.restart(0);
        shop.check(false);
    }
}

/// A start makes them again.
#[test]
fn events_stay_readable_after_failed_write() {
    let directory = tempfile::tempdir().unwrap();
    let left = Arc::new(AtomicI64::new(i64::MAX));
    let under = |under| -> Box<dyn Backing> {
        Box::new(Faulty {
            under,
            left: left.clone(),
            takes_effect: false,
        })
    };
    let store = Store::open_over(directory.path(), &options(Durability::Fsync), under).unwrap();
    let mut shop = Shop::over(directory, store);
    shop.redeem(10);
    shop.life.snapshot();
    left.store(0, Relaxed);
    // Several times the number that fits into a pack.
    let mut stored = Ok(());
    for number in 10..2_000 {
        let proposal = Proposal::new(shop.now, redeem(number));
        shop.life.record(Entry {
            seq: shop.life.state.applied().next(),
            proposal,
        });
        let Life {
            events,
            store,
            state,
            ..
        } = &mut shop.life;
        stored = stored.and(events.take(store, state));
    }
    assert!(
        matches!(stored, Err(StoreError::Failed { .. })),
        "{stored:?}"
    );
    shop.check(false);
    let mut shop = shop.reopened();
    shop.life.restart(0);
    shop.check(false);
}

/// The tree started under the longer retention gets no more events, and expires by the time of later events.
#[test]
fn shorter_retention_applies_to_current_tree() {
    let mut shop = Shop::new();
    shop.redeem(3);
    shop.submit(Command::Configure(Settings {
        events_retention_seconds: 3_600,
        ..Settings::default()
    }));
    for _ in 0..60 {
        shop.pass_seconds(120);
        shop.redeem(1);
        shop.clean();
        shop.check(true);
    }
    assert!(
        shop.life.stored().len() < 40,
        "{}",
        shop.life.stored().len()
    );
}

/// All are over: they go, and numbers go on, also when the process dies in between.
#[test]
fn expired_events_leave_numbering_unchanged() {
    let mut shop = Shop::new();
    shop.redeem(400);
    shop.life.snapshot();
    shop.redeem(5);
    shop.pass_seconds(31 * DAY);
    shop.clean();
    assert_eq!(shop.life.stored(), []);
    shop.life.restart(0);
    shop.check(false);
    shop.life.restart(3);
    shop.redeem(1);
    assert_eq!(shop.life.stored().len(), 1);
    shop.check(false);
    shop.life.restart(0);
    shop.life.snapshot();
    shop.life.restart(0);
    shop.check(true);
    assert_eq!(shop.life.stored()[0].0, shop.life.state.events().last());
}

#[test]
fn events_stay_within_space_limit() {
    let mut shop = Shop::new();
    shop.life.events.room_bytes = 200_000;
    for _ in 0..20 {
        shop.redeem(300);
        // Longer than a tree lasts.
        shop.pass_seconds(DAY);
        shop.clean();
        let figures = shop.life.events.figures();
        assert!(figures.bytes < 300_000, "{figures:?}");
    }
    let stored = shop.life.stored();
    let reported = shop.life.reported.len();
    assert!(
        stored.len() > 500 && stored.len() < reported,
        "{} of {reported}",
        stored.len()
    );
    assert_eq!(shop.life.reported[reported - stored.len()].0, stored[0].0);
    // After reopening, it knows its size.
    let before = shop.life.events.figures();
    shop.life.snapshot();
    shop.life.restart(0);
    assert_eq!(shop.life.events.figures().kept, before.kept);
}

#[test]
fn missing_event_number_is_reported() {
    let mut shop = Shop::new();
    shop.redeem(400);
    shop.pass_seconds(31 * DAY);
    shop.clean();
    shop.redeem(3);
    let store = shop.life.store.clone();
    let find = |number, is_wanted| shop.life.events.find(&store, number, is_wanted).unwrap();
    let first = shop.life.stored()[0].0;
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
    let engine = engines::start(engines::options(path)).await;
    engine.submit(None, create(), None).await.unwrap();
    engine.submit(None, add(0..3_000), None).await.unwrap();
    for number in 0..2_000 {
        if number == 1_700 {
            engine.snapshot().await.unwrap();
        }
        engine.submit(None, redeem(number), None).await.unwrap();
    }
    let last = all(&engine).await.last().unwrap().number;
    engine.shutdown().await;
    last
}

async fn all(engine: &Engine) -> Vec<NumberedEvent> {
    let mut reader = engine.events_after(None);
    let mut events = Vec::new();
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
        sound
            .notes
            .iter()
            .any(|note| note.contains(&format!("events: {last}, numbers 1 to {last}"))),
        "{sound:?}"
    );
    let trees = store.events().trees();
    let tree = trees[0];
    let packs = |number| store.events().find_from(&trees, number).unwrap().unwrap();
    let first = packs(1);
    let final_pack = packs(last);
    assert!(
        first.last() + 1 < final_pack.first,
        "there are at least three"
    );

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
    assert!(
        verify(&store).unwrap().faults.contains(&gap),
        "{:?}",
        verify(&store).unwrap()
    );

    // The last pack is gone.
    store.events().remove_from(tree, final_pack.first).unwrap();
    let refused = recover(&store, &mut open_journal(&store).unwrap(), &mut |_| ());
    let Err(RecoveryError::Store(StoreError::Damaged { what, command, .. })) = refused else {
        panic!()
    };
    assert!(
        what.contains(&format!("event {last} is missing")) && command.contains("verify"),
        "{what}"
    );
    assert_ne!(verify(&store).unwrap().faults, [""; 0]);
}

/// A backup has the events, and its restore is one. Numbers leap, so that none means two things.
#[tokio::test]
async fn backup_contains_events_and_restore_event() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let file = directory.path().join("backup");
    let last = directory_of_an_engine(&data).await;
    let before = {
        let store = open(&data);
        let mut journal = open_journal(&store).unwrap();
        write_backup(&store, &file);
        let recovered = recover(&store, &mut journal, &mut |_| ()).unwrap();
        stored(&store, &recovered.events)
    };
    assert_eq!(before.len() as u64, last);
    let restored = directory.path().join("restored");
    restore(
        &file,
        &restored,
        &options(Durability::Fsync),
        CLOCK,
        |archive| archive,
    )
    .unwrap();
    let store = open(&restored);
    assert_eq!(verify(&store).unwrap().faults, [""; 0]);
    let mut journal = open_journal(&store).unwrap();
    let recovered = recover(&store, &mut journal, &mut |_| ()).unwrap();
    let after = stored(&store, &recovered.events);
    assert_eq!(after[..before.len()], before[..]);
    let [(number, event)] = &after[before.len()..] else {
        panic!("{} events", after.len())
    };
    assert!(*number > last + 1_000_000, "{number} after {last}");
    assert_eq!(decode::<Event<'_>>(event).unwrap().what, Happened::Restored);
    // A client that had read further in the lost directory gets all events of this one.
    let found = recovered.events.find(&store, last + 500, true).unwrap();
    assert!(matches!(found, EventsFound::Pack(pack) if pack.last() == *number));
    assert_eq!(recovered.state.events().last(), *number);

    // A second restore of the same backup, a second later, is not taken for the first one.
    let again = directory.path().join("again");
    let clock = ClockReading {
        wall: CLOCK.wall.plus_seconds(1),
        ..CLOCK
    };
    restore(
        &file,
        &again,
        &options(Durability::Fsync),
        clock,
        |archive| archive,
    )
    .unwrap();
    let store = open(&again);
    let recovered = recover(&store, &mut open_journal(&store).unwrap(), &mut |_| ()).unwrap();
    assert!(recovered.state.events().last() > number + 1_000_000);
}

/// A backup of a directory whose events are all gone can be restored, too.
#[test]
fn backup_without_events_can_be_restored() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let file = directory.path().join("backup");
    let store = open(&data);
    let mut journal = open_journal(&store).unwrap();
    let mut state = State::default();
    let mut events = EventLog::open(&store, &State::default()).unwrap();
    let commands =
        [create(), add(0..10), redeem(1)].map(|command| Proposal::new(Timestamp(1_000), command));
    for committed in append(&mut journal, commands.to_vec()).unwrap() {
        state.apply(committed.entry);
        events.take(&store, &mut state).unwrap();
    }
    let later = Timestamp(1_000).plus_seconds(31 * DAY);
    while events.has_old(later) {
        events.remove_old(&store, later, 1 << 20).unwrap();
    }
    take_snapshot(&store, &mut state, &mut events, later);
    write_backup(&store, &file);
    let restored = directory.path().join("restored");
    restore(
        &file,
        &restored,
        &options(Durability::Fsync),
        CLOCK,
        |archive| archive,
    )
    .unwrap();
    let store = open(&restored);
    let recovered = recover(&store, &mut open_journal(&store).unwrap(), &mut |_| ()).unwrap();
    assert_eq!(
        stored(&store, &recovered.events).len(),
        1,
        "only that it was restored"
    );
}

/// Later snapshots store further events in the pack that a download reads last.
#[test]
fn backup_is_unaffected_by_stored_events() {
    let mut shop = Shop::new();
    shop.redeem(10);
    shop.life.snapshot();
    let store = shop.life.store.clone();
    let [mut quiet, mut busy] = [(); 2].map(|()| archive(store.pin_newest().unwrap().unwrap()));
    let parts: Vec<_> = std::iter::from_fn(|| quiet(&store).unwrap()).collect();
    for part in parts.into_iter().map(Some).chain([None, None]) {
        assert!(busy(&store).unwrap() == part);
        shop.redeem(1);
        shop.life.snapshot();
    }
}

/// A backup of the newest snapshot.
fn write_backup(store: &Arc<Store>, file: &Path) {
    let mut parts = archive(store.pin_newest().unwrap().unwrap());
    let parts = std::iter::from_fn(|| parts(store).unwrap());
    std::fs::write(file, parts.collect::<Vec<_>>().concat()).unwrap();
}

/// Every node of a log has the same events under the same numbers, whichever node logged them.
#[tokio::test]
async fn nodes_produce_identical_events() {
    let log = MemoryLog::new();
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [first, second] = directories.each_ref().map(|directory| {
        engines::start(EngineOptions {
            journal: crate::engines::on_log(&log),
            ..engines::options(directory.path())
        })
    });
    let nodes = [first.await, second.await];
    nodes[0].submit(None, create(), None).await.unwrap();
    nodes[1]
        .submit(Some(KeyName::new("shop").unwrap()), add(0..100), None)
        .await
        .unwrap();
    for number in 0..50 {
        nodes[number as usize % 2]
            .submit(None, redeem(number), None)
            .await
            .unwrap();
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
        matches!(
            event.what,
            Happened::Redemption {
                status: RedemptionStatus::Redeemed,
                ..
            }
        )
    });
    assert_eq!(redeemed.count(), 50);
    assert_eq!(reported[0][1].event.by.as_deref(), Some("shop"));
    assert_eq!(
        nodes[0].events_after(Some(52)).read().await,
        Ok::<_, EventsError>(Vec::new())
    );
}
