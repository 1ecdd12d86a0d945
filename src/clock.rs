//! The wall clock, checked against the monotonic one: time that the log may trust, or a refusal to write.
//!
//! Every entry carries the time at which it was written, and applying it first expires what is due. A wall clock that is set
//! forward by a day would expire every hold at once, for good. So a writer that can't trust the clock writes nothing until the
//! clock is right again or an operator has declared it right.
//!
//! The time is expected within an interval that the monotonic clock moves on. While the process runs, it starts with the wall clock. It does so across restarts too, unless the machine
//! was booted: both clocks' readings are saved beside the log ([`Clock::resume`]). After a boot, or on another machine, nothing
//! tells how long the service was stopped. Then any time is believed that is not before the saved one, and not later by more than
//! [`ClockLimits::stop_max`].

use crate::domain::{ClockReading, Timestamp};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::Duration;

/// How far the wall clock may be behind the time of the last entry.
pub const LAG_MAX: Duration = Duration::from_secs(5);

/// How far the wall clock may differ from that of a log that several machines share. One that is further ahead would move the time
/// of all of them.
pub const DIFFERENCE_MAX: Duration = Duration::from_secs(2);

/// A reading of the shared log's clock that took longer is of no use. Slower round trips to its servers are not supported.
pub const ROUND_TRIP_MAX: Duration = Duration::from_secs(10);

/// Limits of what is believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockLimits {
    /// How far the wall clock may be stepped in total, where the monotonic clock can tell.
    pub jump_max: Duration,
    /// How long the service may have been stopped, where nothing can tell.
    pub stop_max: Duration,
}

impl Default for ClockLimits {
    fn default() -> Self {
        Self { jump_max: Duration::from_secs(3_600), stop_max: Duration::from_secs(30 * 86_400) }
    }
}

/// A source of time.
pub trait TimeSource: Send + Sync {
    /// The time of day. It may be stepped in either direction.
    fn wall(&self) -> Timestamp;

    /// Time since the machine's boot. It is never stepped, and goes on while the machine sleeps.
    fn monotonic(&self) -> Duration;
}

/// The operating system's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemTime;

impl TimeSource for SystemTime {
    fn wall(&self) -> Timestamp {
        let since_epoch =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp(milliseconds(since_epoch))
    }

    fn monotonic(&self) -> Duration {
        // std's `Instant` stops while a machine is suspended, and waking up would look like a jump.
        let time = clock_gettime(ClockId::Boottime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
    }
}

/// Clocks that are moved by hand, for tests.
#[derive(Debug)]
pub struct ManualTime(Mutex<ClockReading>);

impl ManualTime {
    /// Clocks that stand at this time of day.
    pub fn at(wall: Timestamp) -> ManualTime {
        ManualTime(Mutex::new(ClockReading { wall, uptime: Duration::ZERO }))
    }

    /// Lets time pass: both clocks go on.
    pub fn pass(&self, time: Duration) {
        let mut reading = self.0.lock();
        *reading = ClockReading { wall: reading.wall.plus(time), uptime: reading.uptime + time };
    }

    /// Steps only the wall clock.
    pub fn set_wall(&self, wall: Timestamp) {
        self.0.lock().wall = wall;
    }
}

impl TimeSource for ManualTime {
    fn wall(&self) -> Timestamp {
        self.0.lock().wall
    }

    fn monotonic(&self) -> Duration {
        self.0.lock().uptime
    }
}

/// Evidence for the expected time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// The wall clock when this process started.
    Start,
    /// The last trusted reading, taken since the machine's boot.
    LastRun,
    /// The last trusted reading, taken before the machine's boot or on another machine.
    BeforeBoot,
    /// The last entry of the log.
    LastEntry,
    /// The clock of the log that several machines share.
    Log,
    /// The same, and it is not known well enough.
    UnknownLog,
}

/// Why nothing may be written now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the clock says {clock}, {} {expected}: {}", .evidence.words().0, .evidence.words().1)]
pub struct ClockUnsure {
    /// What the wall clock says.
    pub clock: Timestamp,
    /// What it should say; after a boot and for the log's last entry, the least.
    pub expected: Timestamp,
    /// Where the expected time comes from.
    pub evidence: Evidence,
}

const SET_RIGHT: &str = "set it right; if it is right, stop the service and run `cuckood repair clock DIR`";

impl Evidence {
    /// What the message says before and after the expected time.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Evidence::Start => ("but by the time that has passed since the start it should be", SET_RIGHT),
            Evidence::LastRun => {
                ("but by the time that has passed since the service last ran it should be", SET_RIGHT)
            }
            Evidence::BeforeBoot => ("but the service last ran before the machine was booted, at", SET_RIGHT),
            Evidence::LastEntry => ("but the last entry of the log was written at", SET_RIGHT),
            Evidence::Log => (
                "but that of the log's servers says",
                "let both follow the same time (NTP); whichever is wrong, this node must not write",
            ),
            Evidence::UnknownLog => (
                "which nothing confirms; expected is",
                "the log's servers have not responded fast enough to tell their time since startup",
            ),
        }
    }
}

/// The interval in which the time is expected.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    /// The monotonic clock's reading for which it holds.
    uptime: Duration,
    expected: Timestamp,
    /// How much earlier and later than expected the wall clock may be.
    earlier: Duration,
    later: Duration,
    evidence: Evidence,
}

/// The clock of a process; clones share the same clock.
#[derive(Clone)]
pub struct Clock {
    source: Arc<dyn TimeSource>,
    limits: ClockLimits,
    anchor: Arc<Mutex<Anchor>>,
}

impl Clock {
    /// Trusts the wall clock as it is now; later readings are checked against it.
    pub fn new(source: Arc<dyn TimeSource>, limits: ClockLimits) -> Clock {
        let reading = ClockReading { wall: source.wall(), uptime: source.monotonic() };
        Clock { source, limits, anchor: Arc::new(Mutex::new(limits.within_jump(reading, Evidence::Start))) }
    }

    /// The operating system's clock.
    pub fn system(limits: ClockLimits) -> Clock {
        Clock::new(Arc::new(SystemTime), limits)
    }

    /// The readings of the two clocks, trusted or not.
    pub fn reading(&self) -> ClockReading {
        ClockReading { wall: self.source.wall(), uptime: self.source.monotonic() }
    }

    /// Checks the clock against the last reading that an earlier process trusted, instead of trusting it as it was at startup.
    /// Call it once; `same_boot` says that the machine was not booted since.
    pub fn resume(&self, last: ClockReading, same_boot: bool) {
        let now = self.reading();
        if same_boot && last.uptime <= now.uptime {
            *self.anchor.lock() = self.limits.within_jump(last, Evidence::LastRun);
            return;
        }
        let later = self.limits.stop_max.max(self.limits.jump_max);
        let last = ClockReading { wall: last.wall, uptime: now.uptime };
        let anchor = Anchor { later, ..self.limits.within_jump(last, Evidence::BeforeBoot) };
        if !anchor.has(now.wall, anchor.expected) {
            *self.anchor.lock() = anchor;
        }
    }

    /// Compares the clock with that of a log that several machines share, which is better evidence than time that has passed here. It
    /// said `log` at some moment that is at most `longest_ago` and at least `shortest_ago` past.
    pub fn compare(&self, log: Timestamp, longest_ago: Duration, shortest_ago: Duration) {
        let round_trip = longest_ago.saturating_sub(shortest_ago);
        *self.anchor.lock() = Anchor {
            uptime: self.source.monotonic(),
            expected: log.plus(shortest_ago),
            earlier: DIFFERENCE_MAX,
            later: DIFFERENCE_MAX + round_trip,
            evidence: if round_trip > ROUND_TRIP_MAX { Evidence::UnknownLog } else { Evidence::Log },
        };
    }

    /// The log's clock is not known yet.
    pub fn compare_with_unknown(&self) {
        self.anchor.lock().evidence = Evidence::UnknownLog;
    }

    /// The time for readers, who can't reject: the wall clock, unless it is outside the expected interval; then the expected time. If it is
    /// unknown which of two times is wrong, the earlier one, so that no hold looks expired that isn't.
    pub fn read(&self) -> Timestamp {
        let (wall, anchor) = (self.source.wall(), *self.anchor.lock());
        let expected = self.expected(&anchor);
        match anchor.evidence {
            _ if anchor.has(wall, expected) => wall,
            Evidence::Start | Evidence::Log | Evidence::UnknownLog => expected,
            Evidence::LastRun | Evidence::BeforeBoot | Evidence::LastEntry => expected.min(wall),
        }
    }

    /// The time for the next entry: never before `last_logged`.
    ///
    /// # Errors
    /// [`ClockUnsure`] if the wall clock is outside the expected interval, or is behind `last_logged` by more than [`LAG_MAX`].
    pub fn stamp(&self, last_logged: Timestamp) -> Result<Timestamp, ClockUnsure> {
        let (clock, mut anchor) = (self.source.wall(), self.anchor.lock());
        let expected = self.expected(&anchor);
        let unsure = |expected, evidence| Err(ClockUnsure { clock, expected, evidence });
        if last_logged.0.saturating_sub(clock.0) > milliseconds(LAG_MAX) {
            return unsure(last_logged, Evidence::LastEntry);
        }
        if !anchor.has(clock, expected) || anchor.evidence == Evidence::UnknownLog {
            return unsure(expected, anchor.evidence);
        }
        if anchor.evidence == Evidence::BeforeBoot {
            // From here on the monotonic clock shows how much time has passed.
            *anchor = self.limits.within_jump(self.reading(), Evidence::Start);
        }
        Ok(clock.max(last_logged))
    }

    /// How far the wall clock is ahead of the expected time, in seconds; negative if it is behind.
    pub fn offset_seconds(&self) -> i64 {
        let expected = self.expected(&self.anchor.lock());
        (self.source.wall().0 as i64 - expected.0 as i64) / 1_000
    }

    fn expected(&self, anchor: &Anchor) -> Timestamp {
        anchor.expected.plus(self.source.monotonic().saturating_sub(anchor.uptime))
    }
}

impl ClockLimits {
    /// The interval around a reading that a step may reach.
    fn within_jump(&self, reading: ClockReading, evidence: Evidence) -> Anchor {
        let ClockReading { wall, uptime } = reading;
        Anchor { uptime, expected: wall, earlier: self.jump_max, later: self.jump_max, evidence }
    }
}

impl Anchor {
    /// Whether the wall clock is in the interval, while this time is expected.
    fn has(&self, wall: Timestamp, expected: Timestamp) -> bool {
        wall.plus(self.earlier) >= expected && wall <= expected.plus(self.later)
    }
}

impl Timestamp {
    fn plus(self, time: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(milliseconds(time)))
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: Timestamp = Timestamp(1_800_000_000_000);
    const HOUR: u64 = 3_600;
    const DAY: u64 = 24 * HOUR;

    fn clock() -> (Arc<ManualTime>, Clock) {
        let time = Arc::new(ManualTime::at(START));
        (time.clone(), Clock::new(time, ClockLimits::default()))
    }

    fn unsure(clock: Timestamp, expected: Timestamp, evidence: Evidence) -> Result<Timestamp, ClockUnsure> {
        Err(ClockUnsure { clock, expected, evidence })
    }

    #[test]
    fn time_that_passes_is_no_jump() {
        let (time, clock) = clock();
        time.pass(Duration::from_secs(400 * DAY));
        assert_eq!(clock.stamp(START), Ok(START.plus_seconds(400 * DAY)));
        assert_eq!(clock.read(), START.plus_seconds(400 * DAY));
    }

    #[test]
    fn a_step_of_up_to_an_hour_is_taken_over() {
        let (time, clock) = clock();
        time.set_wall(START.plus_seconds(HOUR));
        assert_eq!(clock.stamp(START), Ok(START.plus_seconds(HOUR)));
        assert_eq!(clock.read(), START.plus_seconds(HOUR));
        assert_eq!(clock.offset_seconds(), 3_600);
    }

    #[test]
    fn a_jump_refuses_writes_until_the_clock_is_right_and_readers_go_on() {
        let (time, clock) = clock();
        time.pass(Duration::from_secs(10));
        let right = START.plus_seconds(10);
        time.set_wall(right.plus_seconds(HOUR + 1));
        assert_eq!(clock.stamp(START), unsure(right.plus_seconds(HOUR + 1), right, Evidence::Start));
        assert_eq!(clock.read(), right);
        time.set_wall(Timestamp(START.0 - 4_000_000));
        assert_eq!(clock.stamp(Timestamp(0)), unsure(Timestamp(START.0 - 4_000_000), right, Evidence::Start));
        assert_eq!((clock.read(), clock.offset_seconds()), (right, -4_010));
        time.set_wall(right);
        assert_eq!(clock.stamp(START), Ok(right));
    }

    #[test]
    fn a_clock_behind_the_log_refuses_writes_past_five_seconds() {
        let (_, clock) = clock();
        assert_eq!(clock.stamp(START.plus_seconds(5)), Ok(START.plus_seconds(5)));
        let logged = Timestamp(START.0 + 5_001);
        assert_eq!(clock.stamp(logged), unsure(START, logged, Evidence::LastEntry));
    }

    /// What the log's clock said is known to lie between two moments only: within those it is no difference.
    #[test]
    fn a_clock_that_differs_from_the_shared_logs_refuses_writes_until_they_agree() {
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
        assert_eq!((clock.stamp(START), clock.read()), (Ok(time.wall()), time.wall()));
    }

    /// Servers that are far away must not stop writes. A message that was in flight for minutes says nothing about a clock that is
    /// minutes ahead.
    #[test]
    fn slow_round_trips_are_accepted_up_to_a_limit() {
        let (time, clock) = clock();
        time.pass(Duration::from_secs(600));
        let right = START.plus_seconds(600);
        for (round_trip, is_fine) in [(2, true), (10, true), (11, false)] {
            clock.compare(right, Duration::from_secs(round_trip), Duration::ZERO);
            assert_eq!(clock.stamp(START).is_ok(), is_fine, "{round_trip}");
        }
        time.set_wall(right.plus_seconds(300));
        clock.compare(START.plus_seconds(590), Duration::from_secs(600), Duration::ZERO);
        assert!(matches!(clock.stamp(START), Err(ClockUnsure { evidence: Evidence::UnknownLog, .. })));
        clock.compare(right, Duration::from_secs(2), Duration::ZERO);
        assert!(matches!(clock.stamp(START), Err(ClockUnsure { evidence: Evidence::Log, .. })));
        time.set_wall(right);
        assert_eq!(clock.stamp(START), Ok(right));
        clock.compare_with_unknown();
        assert!(clock.stamp(START).is_err());
    }

    /// In the same boot the monotonic clock tells, however long the service was stopped.
    #[test]
    fn across_a_restart_a_long_stop_is_told_from_a_clock_that_was_set() {
        let (time, _) = clock();
        time.pass(Duration::from_secs(100));
        let before = Clock::new(time.clone(), ClockLimits::default()).reading();
        time.pass(Duration::from_secs(90 * DAY));
        let right = time.wall();
        let clock = Clock::new(time.clone(), ClockLimits::default());
        clock.resume(before, true);
        assert_eq!(clock.stamp(START), Ok(right));

        let wrong = right.plus_seconds(365 * DAY);
        time.set_wall(wrong);
        let clock = Clock::new(time.clone(), ClockLimits::default());
        clock.resume(before, true);
        assert_eq!(clock.stamp(START), unsure(wrong, right, Evidence::LastRun));
        assert_eq!(clock.read(), right);
        // Once the clock is right, no restart is needed.
        time.set_wall(right);
        assert_eq!(clock.stamp(START), Ok(right));
    }

    #[test]
    fn after_a_boot_a_stop_of_weeks_is_believed_and_a_year_is_not() {
        for (passed, is_believed) in [(0, true), (7 * DAY, true), (30 * DAY, true), (31 * DAY, false)] {
            let time = Arc::new(ManualTime::at(START.plus_seconds(passed)));
            let clock = Clock::new(time.clone(), ClockLimits::default());
            clock.resume(ClockReading { wall: START, uptime: Duration::from_secs(5) }, false);
            let expected = match is_believed {
                true => Ok(time.wall()),
                false => unsure(time.wall(), START, Evidence::BeforeBoot),
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
    fn when_the_log_is_in_the_future_readers_go_by_the_earlier_time() {
        for same_boot in [true, false] {
            let (_, clock) = clock();
            let future = START.plus_seconds(365 * DAY);
            clock.resume(ClockReading { wall: future, uptime: Duration::ZERO }, same_boot);
            assert_eq!(clock.stamp(future), unsure(START, future, Evidence::LastEntry));
            assert_eq!(clock.read(), START);
        }
    }

    #[test]
    fn the_messages_say_what_to_do() {
        let told = unsure(START.plus_seconds(31 * DAY), START, Evidence::BeforeBoot).unwrap_err();
        assert_eq!(
            told.to_string(),
            "the clock says 2027-02-15T08:00:00Z, but the service last ran before the machine was booted, at \
             2027-01-15T08:00:00Z: set it right; if it is right, stop the service and run \
             `cuckood repair clock DIR`"
        );
    }

    #[test]
    fn the_systems_clocks_go_on() {
        let (wall, monotonic) = (SystemTime.wall(), SystemTime.monotonic());
        assert!(wall > Timestamp(1_700_000_000_000));
        assert!(SystemTime.monotonic() >= monotonic);
    }

    proptest! {
        /// Whatever happens to the clock, an entry's time is never before the last one's. While the machine isn't booted, it is
        /// never further than the limit from the time that has really passed.
        #[test]
        fn no_entry_is_stamped_far_from_the_time_that_has_passed(
            steps in proptest::collection::vec((0u8..4, 0..200 * DAY), 1..60),
        ) {
            let time = Arc::new(ManualTime::at(START));
            let limits = ClockLimits::default();
            let mut clock = Clock::new(time.clone(), limits);
            let (mut logged, mut kept) = (START, clock.reading());
            for (what, seconds) in steps {
                match what {
                    0 => time.pass(Duration::from_secs(seconds)),
                    1 => time.set_wall(Timestamp(START.0 - DAY * 1_000).plus_seconds(seconds)),
                    2 => time.set_wall(clock.read().plus_seconds(seconds % (2 * HOUR))),
                    _ => {
                        clock = Clock::new(time.clone(), limits);
                        clock.resume(kept, true);
                    }
                }
                if let Ok(at) = clock.stamp(logged) {
                    prop_assert!(at >= logged);
                    let reading = clock.reading();
                    let passed = reading.uptime - kept.uptime;
                    let expected = kept.wall.plus_seconds(passed.as_secs());
                    // Twice, because the reading may have been off by as much when it was saved.
                    prop_assert!(at.0.abs_diff(expected.0) <= 2 * milliseconds(limits.jump_max) + 5_000);
                    (logged, kept) = (at, reading);
                }
            }
        }
    }
}
