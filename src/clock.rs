//! The wall clock, held against the monotonic one: time that the log may trust, or a refusal to write.
//!
//! Every entry carries the time it was written at, and the first thing it does is to expire what is due. A wall
//! clock that is set forward by a day would expire every hold at once, for good; so a writer that can't trust
//! the clock writes nothing until the clock is right again or the process is restarted.

use crate::domain::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How far the wall clock may be stepped, in all, while the process runs.
pub const JUMP_MAX: Duration = Duration::from_secs(3_600);

/// How far the wall clock may be behind the time that was last logged.
pub const LAG_MAX: Duration = Duration::from_secs(5);

/// Where time comes from.
pub trait TimeSource: Send + Sync {
    /// The time of day. May be stepped in either direction.
    fn wall(&self) -> Timestamp;

    /// Time since some fixed moment. Never stepped; goes on while the machine sleeps.
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
        // Not std's Instant: that stops while a machine is suspended, and waking up would look like a jump.
        let time = clock_gettime(ClockId::Boottime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
    }
}

/// Time that is moved by hand, for tests.
#[derive(Debug, Default)]
pub struct ManualTime {
    wall_milliseconds: AtomicU64,
    monotonic_milliseconds: AtomicU64,
}

impl ManualTime {
    /// Clocks that stand at this time of day.
    pub fn at(wall: Timestamp) -> ManualTime {
        ManualTime { wall_milliseconds: AtomicU64::new(wall.0), monotonic_milliseconds: AtomicU64::new(0) }
    }

    /// Lets time pass: both clocks go on.
    pub fn pass(&self, time: Duration) {
        self.wall_milliseconds.fetch_add(milliseconds(time), Relaxed);
        self.monotonic_milliseconds.fetch_add(milliseconds(time), Relaxed);
    }

    /// Steps the wall clock alone.
    pub fn set_wall(&self, wall: Timestamp) {
        self.wall_milliseconds.store(wall.0, Relaxed);
    }
}

impl TimeSource for ManualTime {
    fn wall(&self) -> Timestamp {
        Timestamp(self.wall_milliseconds.load(Relaxed))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.monotonic_milliseconds.load(Relaxed))
    }
}

/// Why nothing may be written now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClockUnsure {
    /// The wall clock was stepped too far while the process ran.
    #[error(
        "the clock was set {} s {} since the start: set it right, or restart if it is right now",
        .seconds.unsigned_abs(),
        if *.seconds < 0 { "back" } else { "forward" }
    )]
    Jumped {
        /// By how much; negative for back.
        seconds: i64,
    },
    /// The wall clock is behind the log: it was right when the log was written, or will be wrong for longer.
    #[error("the clock is {seconds} s behind what was last logged: set it right, or wait")]
    Lags {
        /// By how much.
        seconds: u64,
    },
}

/// The one clock of a process.
#[derive(Clone)]
pub struct Clock {
    source: Arc<dyn TimeSource>,
    started_wall: Timestamp,
    started_monotonic: Duration,
}

impl Clock {
    /// Trusts the wall clock as it is now; later readings are held against it.
    pub fn new(source: Arc<dyn TimeSource>) -> Clock {
        Clock { started_wall: source.wall(), started_monotonic: source.monotonic(), source }
    }

    /// The operating system's clock.
    pub fn system() -> Clock {
        Clock::new(Arc::new(SystemTime))
    }

    /// The time for readers, who can't refuse: the wall clock's unless it has jumped, else what it would say
    /// had it not.
    pub fn read(&self) -> Timestamp {
        let (wall, expected) = (self.source.wall(), self.expected());
        if jump(wall, expected).is_some() { expected } else { wall }
    }

    /// The time for an entry: never before `last_logged`.
    ///
    /// # Errors
    /// [`ClockUnsure`] if the wall clock has been stepped by more than [`JUMP_MAX`] since the start or is
    /// behind `last_logged` by more than [`LAG_MAX`].
    pub fn stamp(&self, last_logged: Timestamp) -> Result<Timestamp, ClockUnsure> {
        let wall = self.source.wall();
        if let Some(seconds) = jump(wall, self.expected()) {
            return Err(ClockUnsure::Jumped { seconds });
        }
        let behind = last_logged.0.saturating_sub(wall.0);
        if behind > milliseconds(LAG_MAX) {
            return Err(ClockUnsure::Lags { seconds: behind.div_ceil(1_000) });
        }
        Ok(wall.max(last_logged))
    }

    fn expected(&self) -> Timestamp {
        let elapsed = self.source.monotonic().saturating_sub(self.started_monotonic);
        Timestamp(self.started_wall.0.saturating_add(milliseconds(elapsed)))
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clock").field("started_wall", &self.started_wall).finish_non_exhaustive()
    }
}

/// By how many seconds the wall clock has been stepped, if by more than is allowed.
fn jump(wall: Timestamp, expected: Timestamp) -> Option<i64> {
    let seconds = i64::try_from(wall.0.abs_diff(expected.0) / 1_000).unwrap_or(i64::MAX);
    (wall.0.abs_diff(expected.0) > milliseconds(JUMP_MAX)).then_some(if wall < expected {
        -seconds
    } else {
        seconds
    })
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp(1_800_000_000_000);

    fn clock() -> (Arc<ManualTime>, Clock) {
        let time = Arc::new(ManualTime::at(START));
        (time.clone(), Clock::new(time))
    }

    #[test]
    fn time_that_passes_is_no_jump() {
        let (time, clock) = clock();
        time.pass(Duration::from_secs(400 * 86_400));
        assert_eq!(clock.stamp(START), Ok(START.plus_seconds(400 * 86_400)));
        assert_eq!(clock.read(), START.plus_seconds(400 * 86_400));
    }

    #[test]
    fn a_step_of_up_to_an_hour_is_taken_over() {
        let (time, clock) = clock();
        time.set_wall(START.plus_seconds(3_600));
        assert_eq!(clock.stamp(START), Ok(START.plus_seconds(3_600)));
        assert_eq!(clock.read(), START.plus_seconds(3_600));
    }

    #[test]
    fn a_jump_refuses_writes_until_the_clock_is_right_and_readers_go_on() {
        let (time, clock) = clock();
        time.pass(Duration::from_secs(10));
        time.set_wall(START.plus_seconds(10 + 3_601));
        assert_eq!(clock.stamp(START), Err(ClockUnsure::Jumped { seconds: 3_601 }));
        assert_eq!(clock.read(), START.plus_seconds(10));
        time.set_wall(Timestamp(START.0 - 4_000_000));
        assert_eq!(clock.stamp(Timestamp(0)), Err(ClockUnsure::Jumped { seconds: -4_010 }));
        assert_eq!(clock.read(), START.plus_seconds(10));
        time.set_wall(START.plus_seconds(10));
        assert_eq!(clock.stamp(START), Ok(START.plus_seconds(10)));
    }

    #[test]
    fn a_clock_behind_the_log_refuses_writes_past_five_seconds() {
        let (_, clock) = clock();
        assert_eq!(clock.stamp(START.plus_seconds(5)), Ok(START.plus_seconds(5)));
        assert_eq!(clock.stamp(Timestamp(START.0 + 5_001)), Err(ClockUnsure::Lags { seconds: 6 }));
    }

    #[test]
    fn the_messages_say_what_to_do() {
        assert_eq!(
            ClockUnsure::Jumped { seconds: -7_200 }.to_string(),
            "the clock was set 7200 s back since the start: set it right, or restart if it is right now"
        );
    }

    #[test]
    fn the_systems_clocks_go_on() {
        let (wall, monotonic) = (SystemTime.wall(), SystemTime.monotonic());
        assert!(wall > Timestamp(1_700_000_000_000));
        assert!(SystemTime.monotonic() >= monotonic);
    }
}
