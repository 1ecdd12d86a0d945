//! The clock: steps, restarts, boots, and the clock of a shared log.

use crate::engines;
use crate::manual_time::ManualTime;
use cuckood::clock::{Clock, ClockLimits, ClockUnsure, Evidence, system_reading};
use cuckood_state::domain::{ClockReading, Command, Kind, Name, Timestamp};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const START: Timestamp = Timestamp(1_800_000_000_000);
const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;

fn clock() -> (Arc<ManualTime>, Clock) {
    let time = Arc::new(ManualTime::at(START));
    (time.clone(), time.clock(ClockLimits::default()))
}

fn unsure(
    clock: Timestamp,
    expected: Timestamp,
    evidence: Evidence,
) -> Result<Timestamp, ClockUnsure> {
    Err(ClockUnsure {
        clock,
        expected,
        evidence,
    })
}

#[test]
fn passing_time_is_no_jump() {
    let (time, clock) = clock();
    time.pass(Duration::from_secs(400 * DAY));
    assert_eq!(clock.stamp(START), Ok(START.plus_seconds(400 * DAY)));
    assert_eq!(clock.read(), START.plus_seconds(400 * DAY));
}

#[test]
fn step_up_to_hour_is_accepted() {
    let (time, clock) = clock();
    time.set_wall(START.plus_seconds(HOUR));
    assert_eq!(clock.stamp(START), Ok(START.plus_seconds(HOUR)));
    assert_eq!(clock.read(), START.plus_seconds(HOUR));
    assert_eq!(clock.offset_seconds(), 3_600);
}

#[test]
fn jump_rejects_writes_and_allows_reads() {
    let (time, clock) = clock();
    time.pass(Duration::from_secs(10));
    let right = START.plus_seconds(10);
    time.set_wall(right.plus_seconds(HOUR + 1));
    assert_eq!(
        clock.stamp(START),
        unsure(right.plus_seconds(HOUR + 1), right, Evidence::Start)
    );
    assert_eq!(clock.read(), right);
    time.set_wall(Timestamp(START.0 - 4_000_000));
    assert_eq!(
        clock.stamp(Timestamp(0)),
        unsure(Timestamp(START.0 - 4_000_000), right, Evidence::Start)
    );
    assert_eq!((clock.read(), clock.offset_seconds()), (right, -4_010));
    time.set_wall(right);
    assert_eq!(clock.stamp(START), Ok(right));
}

#[test]
fn clock_lag_over_five_seconds_rejects_writes() {
    let (_, clock) = clock();
    assert_eq!(
        clock.stamp(START.plus_seconds(5)),
        Ok(START.plus_seconds(5))
    );
    let logged = Timestamp(START.0 + 5_001);
    assert_eq!(
        clock.stamp(logged),
        unsure(START, logged, Evidence::LastEntry)
    );
}

/// The log's clock is only known to be between two times: within those, there is no difference.
#[test]
fn clock_differing_from_shared_log_rejects_writes() {
    let (time, clock) = clock();
    time.pass(Duration::from_secs(60));
    let now = START.plus_seconds(60);
    let compare = |ahead_milliseconds: u64| {
        let log = Timestamp(now.0 + ahead_milliseconds - 10_000);
        clock.compare(log, Duration::from_secs(6), Duration::from_secs(5));
    };
    // A log time of now - 10 s, 5 to 6 s ago, is now - 5 s to now - 4 s.
    for (ahead, is_fine) in [(1_999, false), (2_000, true), (7_000, true), (7_001, false)] {
        compare(ahead);
        assert_eq!(clock.stamp(START).is_ok(), is_fine, "{ahead}");
    }
    let log = Timestamp(now.0 + 2_001);
    assert_eq!(clock.stamp(START), unsure(now, log, Evidence::Log));
    assert_eq!(clock.read(), log);
    time.set_wall(log);
    assert_eq!(clock.stamp(START), Ok(log));
    // Stepped after the comparison.
    time.set_wall(now.plus_seconds(60));
    assert!(clock.stamp(START).is_err());
    // Other clocks are better evidence than how much time has passed here.
    time.set_wall(now.plus_seconds(DAY));
    clock.compare(now.plus_seconds(DAY), Duration::ZERO, Duration::ZERO);
    assert_eq!(
        (clock.stamp(START), clock.read()),
        (Ok(time.wall()), time.wall())
    );
}

/// Servers that are far away must not stop writes. A message that was in flight for minutes says nothing about a clock that is
/// minutes ahead.
#[test]
fn slow_round_trips_are_accepted_up_to_limit() {
    let (time, clock) = clock();
    time.pass(Duration::from_secs(600));
    let right = START.plus_seconds(600);
    for (round_trip, is_fine) in [(2, true), (10, true), (11, false)] {
        clock.compare(right, Duration::from_secs(round_trip), Duration::ZERO);
        assert_eq!(clock.stamp(START).is_ok(), is_fine, "{round_trip}");
    }
    time.set_wall(right.plus_seconds(300));
    clock.compare(
        START.plus_seconds(590),
        Duration::from_secs(600),
        Duration::ZERO,
    );
    assert!(matches!(
        clock.stamp(START),
        Err(ClockUnsure {
            evidence: Evidence::UnknownLog,
            ..
        })
    ));
    clock.compare(right, Duration::from_secs(2), Duration::ZERO);
    assert!(matches!(
        clock.stamp(START),
        Err(ClockUnsure {
            evidence: Evidence::Log,
            ..
        })
    ));
    time.set_wall(right);
    assert_eq!(clock.stamp(START), Ok(right));
    clock.compare_with_unknown();
    assert!(clock.stamp(START).is_err());
}

/// Within a boot, the monotonic clock measures any length of a stop.
#[test]
fn restart_distinguishes_stop_from_clock_change() {
    let (time, _) = clock();
    time.pass(Duration::from_secs(100));
    let before = time.clock(ClockLimits::default()).reading();
    time.pass(Duration::from_secs(90 * DAY));
    let right = time.wall();
    let clock = time.clock(ClockLimits::default());
    clock.resume(before, true);
    assert_eq!(clock.stamp(START), Ok(right));

    let wrong = right.plus_seconds(365 * DAY);
    time.set_wall(wrong);
    let clock = time.clock(ClockLimits::default());
    clock.resume(before, true);
    assert_eq!(clock.stamp(START), unsure(wrong, right, Evidence::LastRun));
    assert_eq!(clock.read(), right);
    // Once the clock is right, no restart is needed.
    time.set_wall(right);
    assert_eq!(clock.stamp(START), Ok(right));
}

#[test]
fn restarts_within_boot_allow_one_step() {
    let (time, clock) = clock();
    let before = clock.reading();
    let clock = time.clock(ClockLimits::default());
    clock.resume(before, true);
    time.set_wall(START.plus_seconds(3_000));
    assert_eq!(clock.stamp(START), Ok(START.plus_seconds(3_000)));
    time.set_wall(START.plus_seconds(6_000));
    assert_eq!(
        clock.stamp(START),
        unsure(START.plus_seconds(6_000), START, Evidence::LastRun)
    );
}

/// The saved readings are missing, and the log was idle for weeks.
#[tokio::test]
async fn snapshot_time_bounds_stop_without_saved_clock() {
    let directory = tempfile::tempdir().unwrap();
    let (time, _) = clock();
    let options = engines::options(directory.path());
    let delete = || Command::Delete {
        kind: Kind::Coupon,
        name: Name::new("none").unwrap(),
    };
    let engine = engines::start_by(time.clock(ClockLimits::default()), options.clone()).await;
    engine.submit(None, delete(), None).await.unwrap();
    time.pass(Duration::from_secs(20 * DAY));
    engine.snapshot().await.unwrap();
    engine.shutdown().await;
    drop(engine);
    std::fs::remove_file(directory.path().join("clock")).unwrap();
    time.pass(Duration::from_secs(25 * DAY));
    let engine = engines::start_by(time.clock(ClockLimits::default()), options).await;
    engine.submit(None, delete(), None).await.unwrap();
}

#[test]
fn reboot_accepts_weeks_and_rejects_year() {
    for (passed, is_believed) in [
        (0, true),
        (7 * DAY, true),
        (30 * DAY, true),
        (31 * DAY, false),
    ] {
        let time = Arc::new(ManualTime::at(START.plus_seconds(passed)));
        let clock = time.clock(ClockLimits::default());
        clock.resume(
            ClockReading {
                wall: START,
                uptime: Duration::from_secs(5),
            },
            false,
        );
        let expected = match is_believed {
            true => Ok(time.wall()),
            false => unsure(time.wall(), START, Evidence::LastRun),
        };
        assert_eq!(clock.stamp(START), expected, "{passed}");
        assert_eq!(clock.read(), if is_believed { time.wall() } else { START });
        // Once the clock is right, no restart is needed, and jumps are noticed again.
        time.set_wall(START.plus_seconds(DAY));
        if !is_believed {
            assert_eq!(clock.stamp(START), Ok(START.plus_seconds(DAY)));
            time.set_wall(START.plus_seconds(2 * DAY));
            assert!(clock.stamp(START).is_err());
        }
    }
}

/// Two readings speak for the later time and one for the earlier, but a hold that is shown as expired might not be.
#[test]
fn readers_use_earlier_time_if_log_ahead() {
    for same_boot in [true, false] {
        let (_, clock) = clock();
        let future = START.plus_seconds(365 * DAY);
        clock.resume(
            ClockReading {
                wall: future,
                uptime: Duration::ZERO,
            },
            same_boot,
        );
        assert_eq!(
            clock.stamp(future),
            unsure(START, future, Evidence::LastEntry)
        );
        assert_eq!(clock.read(), START);
    }
}

#[test]
fn clock_errors_name_next_step() {
    let error = unsure(START.plus_seconds(31 * DAY), START, Evidence::LastRun).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the clock says 2027-02-15T08:00:00.000Z, but 2027-01-15T08:00:00.000Z is expected: set it right; if it is \
         right, stop the service and run `cuckood repair clock DIR`"
    );
}

#[test]
fn system_clocks_advance() {
    let ClockReading { wall, uptime } = system_reading();
    assert!(wall > Timestamp(1_700_000_000_000));
    assert!(system_reading().uptime >= uptime);
}

proptest! {
    /// Whatever happens to the clock, an entry's time is never before the last one's. While the machine isn't booted, it is
    /// never further than the limit from the time that has really passed.
    #[test]
    fn entry_time_stays_near_elapsed_time(
        steps in proptest::collection::vec((0u8..4, 0..200 * DAY), 1..60),
    ) {
        let time = Arc::new(ManualTime::at(START));
        let limits = ClockLimits::default();
        let mut clock = time.clock(limits);
        let mut logged = START;
        let mut kept = clock.reading();
        for (what, seconds) in steps {
            match what {
                0 => time.pass(Duration::from_secs(seconds)),
                1 => time.set_wall(Timestamp(START.0 - DAY * 1_000).plus_seconds(seconds)),
                2 => time.set_wall(clock.read().plus_seconds(seconds % (2 * HOUR))),
                _ => {
                    clock = time.clock(limits);
                    clock.resume(kept, true);
                }
            }
            if let Ok(at) = clock.stamp(logged) {
                prop_assert!(at >= logged);
                let reading = clock.reading();
                let passed = reading.uptime - kept.uptime;
                let expected = kept.wall.plus_seconds(passed.as_secs());
                // Twice, because the saved reading may have had the same error.
                prop_assert!(at.0.abs_diff(expected.0) <= 2 * 1_000 * limits.jump_max.as_secs() + 5_000);
                (logged, kept) = (at, reading);
            }
        }
    }
}
