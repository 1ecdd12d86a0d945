//! Snapshots of many filters with long statistics.

use cuckood::engine::RunningSnapshot;
use cuckood::engine::event_log::EventLog;
use cuckood_state::domain::{Command, Settings, Timestamp};
use cuckood_state::testing::commands::{NewFilter, insert, remove, target};
use cuckood_state::testing::machine::Machine;
use std::time::{Duration, Instant};

const HOUR: u64 = 3_600_000;

const DAY: u64 = 24 * HOUR;

/// Prints how long the writer is held by each kind of step of a snapshot of many filters that have been busy for a year.
#[test]
#[ignore = "measures: run it with --nocapture"]
fn snapshot_of_many_statistics_takes_small_steps() {
    const FILTERS: u64 = 10_000;
    let dir = tempfile::tempdir().unwrap();
    let store = cuckood_log::testing::stores::open(dir.path());
    let mut machine = Machine::new();
    let settings = Settings {
        filters_max: FILTERS,
        events_retention_seconds: 0,
        ..Settings::default()
    };
    machine.apply(Command::Configure(settings));
    for number in 1..=FILTERS {
        machine.create(target(number), &NewFilter::campaign(100, 0.001));
    }
    let change_all = |machine: &mut Machine, is_added: bool| {
        for number in 1..=FILTERS {
            let change = if is_added {
                insert(target(number), [number])
            } else {
                remove(target(number), [number])
            };
            machine.apply(change);
        }
    };
    let days = (1..365).map(|day| day * DAY);
    for (count, at) in days
        .chain((365 * 24..365 * 24 + 48).map(|hour| hour * HOUR))
        .enumerate()
    {
        machine.now = Timestamp(at);
        change_all(&mut machine, count % 2 == 0);
    }
    let mut events = EventLog::open(&store, &machine.state).unwrap();
    let mut latest = None;
    for what in ["first", "second"] {
        let began = Instant::now();
        let state = &mut machine.state;
        let no_place = Vec::new();
        let begun = RunningSnapshot::begin(
            &store,
            state,
            &mut events,
            latest.as_ref(),
            no_place,
            Timestamp(0),
        );
        let mut running = begun.unwrap();
        let begin = began.elapsed();
        let mut longest = Duration::ZERO;
        let mut bytes = 0;
        while !running.is_complete() {
            let began = Instant::now();
            bytes += running.write(&store, 64 << 10).unwrap();
            longest = longest.max(began.elapsed());
        }
        let began = Instant::now();
        let manifest = running.finish(&store).unwrap();
        let finish = began.elapsed();
        let head = manifest.meta.len();
        println!(
            "{what}: begin {begin:?}, step {longest:?}, finish {finish:?}; head {head}, sections {bytes} bytes"
        );
        latest = Some(manifest);
        change_all(&mut machine, true);
    }
}
