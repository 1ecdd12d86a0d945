//! The wall clock, checked against the monotonic one: a time for the log, or a reason to reject commands.
//!
//! Every entry carries the time at which it was written, and applying it first expires due holds. A wall clock set forward by a day would
//! expire every hold irrevocably. So a writer that can't trust the clock rejects commands until the clock is right again or an operator
//! has declared it right.
//!
//! The time is expected within an interval that moves with the monotonic clock. At startup, the interval extends
//! [`ClockLimits::jump_max`] to both sides of the wall clock. A
//! restart without a reboot continues the interval: both clocks' readings are saved in the data directory ([`Clock::resume`]). After a
//! boot, or on another machine, the length of the stop is unknown. Then any time is believed from
//! [`ClockLimits::jump_max`] before the saved one to [`ClockLimits::stop_max`] after it.
//!
//! Readers judge holds by the same clock. With a local log, their time stops while an entry is being logged: no entry with an earlier time
//! can confirm or cancel a hold that a reader has seen expired.
//!
//! Durations and deadlines go by a third clock, [`MonotonicClock`]. The engine reads no other clock than these, so a simulation can
//! replace all of them.

use arc_swap::ArcSwap;
use cuckood_state::domain::{ClockReading, Timestamp};
use derive_more::Display;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Maximum lag of the wall clock relative to the last entry's time.
pub const LAG_MAX: Duration = Duration::from_secs(5);

/// How far the wall clock may differ from that of a log that several machines share. One that is further ahead would move the time
/// of all of them.
pub const DIFFERENCE_MAX: Duration = Duration::from_secs(2);

/// A reading of the shared log's clock that took longer is of no use. Slower round trips to its servers are not supported.
pub const ROUND_TRIP_MAX: Duration = Duration::from_secs(10);

/// Limits of plausible times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockLimits {
    /// Maximum sum of the wall clock's steps, as measured by the monotonic clock.
    pub jump_max: Duration,
    /// Maximum length of a stop that can't be measured.
    pub stop_max: Duration,
}

impl Default for ClockLimits {
    fn default() -> Self {
        Self {
            jump_max: Duration::from_secs(3_600),
            stop_max: Duration::from_secs(30 * 86_400),
        }
    }
}

/// Reads the operating system's clocks.
pub fn system_reading() -> ClockReading {
    let since_epoch = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    // std's `Instant` stops while a machine is suspended, and waking up would look like a jump.
    let time = clock_gettime(ClockId::Boottime);
    let uptime = Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    );
    ClockReading {
        wall: Timestamp(0).plus(since_epoch),
        uptime,
    }
}

const SET_RIGHT: &str =
    "set it right; if it is right, stop the service and run `cuckood repair clock DIR`";

/// Evidence for the expected time, displayed as what to do if the clock contradicts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Display)]
pub enum Evidence {
    /// The wall clock when this process started, or when it was first trusted.
    #[display("{SET_RIGHT}")]
    Start,
    /// The last trusted reading of an earlier process.
    #[display("{SET_RIGHT}")]
    LastRun,
    /// The last entry of the log.
    #[display("{SET_RIGHT}")]
    LastEntry,
    /// The clock of the log that several machines share.
    #[display(
        "let it and the log's servers follow the same time (NTP); whichever is wrong, this node must not write"
    )]
    Log,
    /// The same, and it is not known well enough.
    #[display(
        "no response of the log's servers was fast enough to measure their time since startup"
    )]
    UnknownLog,
}

/// Why nothing may be written now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the clock says {clock}, but {expected} is expected: {evidence}")]
pub struct ClockUnsure {
    /// The wall clock.
    pub clock: Timestamp,
    /// The expected time; after a boot and for the log's last entry, the minimum.
    pub expected: Timestamp,
    /// The source of the expected time.
    pub evidence: Evidence,
}

/// The interval in which the time is expected.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    /// The expected time of day, and the monotonic clock's reading for which it holds.
    reading: ClockReading,
    /// How much earlier and later than expected the wall clock may be.
    earlier: Duration,
    later: Duration,
    evidence: Evidence,
}

/// The clock of durations and deadlines: that of the operating system, or of a simulation. Clones share the same clock.
#[derive(Clone)]
pub struct MonotonicClock(Arc<dyn Fn() -> Instant + Send + Sync>);

impl MonotonicClock {
    /// A clock that shows the time of `source`, which never goes back.
    pub fn new(source: impl Fn() -> Instant + Send + Sync + 'static) -> MonotonicClock {
        MonotonicClock(Arc::new(source))
    }

    /// The operating system's clock.
    pub fn system() -> MonotonicClock {
        MonotonicClock::new(Instant::now)
    }

    /// Reads the clock.
    pub fn now(&self) -> Instant {
        (self.0)()
    }

    /// Returns the time that has passed since `start`.
    pub fn since(&self, start: Instant) -> Duration {
        self.now().saturating_duration_since(start)
    }
}

/// The clock of a process; clones share the same clock.
#[derive(Clone)]
pub struct Clock {
    source: Arc<dyn Fn() -> ClockReading + Send + Sync>,
    monotonic: MonotonicClock,
    limits: ClockLimits,
    shared: Arc<ClockState>,
}

/// Workers read it for every request, so reading writes nothing that they share.
struct ClockState {
    anchor: ArcSwap<Anchor>,
    /// The time of readers while it is stopped, in milliseconds since the epoch; otherwise [`RUNNING`].
    ///
    /// Sequentially consistent: a reader that finds the time running has read its clock before the writer stamps an entry.
    stopped_at: AtomicU64,
}

/// [`ClockState::stopped_at`] while the time of readers is not stopped: later than any time.
const RUNNING: u64 = u64::MAX;

impl Clock {
    /// Trusts the wall clock's current reading; later readings are checked against it. `source` reads both clocks: that of the day, which
    /// may be stepped, and the time since the machine's boot, which never is, and goes on while the machine sleeps.
    pub fn new(
        source: impl Fn() -> ClockReading + Send + Sync + 'static,
        limits: ClockLimits,
    ) -> Clock {
        let anchor = Anchor::around(source(), &limits);
        let shared = ClockState {
            anchor: ArcSwap::from_pointee(anchor),
            stopped_at: AtomicU64::new(RUNNING),
        };
        Clock {
            source: Arc::new(source),
            monotonic: MonotonicClock::system(),
            limits,
            shared: Arc::new(shared),
        }
    }

    /// The operating system's clock.
    pub fn system(limits: ClockLimits) -> Clock {
        Clock::new(system_reading, limits)
    }

    /// Replaces the clock of durations and deadlines, which is otherwise that of the operating system.
    pub fn with_monotonic(self, monotonic: MonotonicClock) -> Clock {
        Clock { monotonic, ..self }
    }

    /// Returns the clock of durations and deadlines.
    pub fn monotonic(&self) -> &MonotonicClock {
        &self.monotonic
    }

    /// The readings of the two clocks, trusted or not.
    pub fn reading(&self) -> ClockReading {
        (self.source)()
    }

    /// Checks the clock against the last reading that an earlier process trusted, instead of trusting its reading at startup. Call it once;
    /// `same_boot` says that the machine was not booted since.
    pub fn resume(&self, last: ClockReading, same_boot: bool) {
        let ClockReading { uptime, .. } = self.reading();
        let anchor = Anchor {
            evidence: Evidence::LastRun,
            ..Anchor::around(last, &self.limits)
        };
        let anchor = if same_boot && last.uptime <= uptime {
            anchor
        } else {
            let later = self.limits.stop_max.max(self.limits.jump_max);
            Anchor {
                reading: ClockReading { uptime, ..last },
                later,
                ..anchor
            }
        };
        self.shared.anchor.store(Arc::new(anchor));
    }

    /// Compares the clock with that of a log that several machines share, which is better evidence than the time that has passed here. It
    /// read `log` at most `longest_ago` and at least `shortest_ago` in the past.
    pub fn compare(&self, log: Timestamp, longest_ago: Duration, shortest_ago: Duration) {
        let round_trip = longest_ago.saturating_sub(shortest_ago);
        let evidence = if round_trip > ROUND_TRIP_MAX {
            Evidence::UnknownLog
        } else {
            Evidence::Log
        };
        let reading = ClockReading {
            wall: log.plus(shortest_ago),
            ..self.reading()
        };
        let earlier = DIFFERENCE_MAX;
        let later = DIFFERENCE_MAX + round_trip;
        self.shared.anchor.store(Arc::new(Anchor {
            reading,
            earlier,
            later,
            evidence,
        }));
    }

    /// The log's clock is not known yet.
    pub fn compare_with_unknown(&self) {
        self.shared.anchor.rcu(|anchor| Anchor {
            evidence: Evidence::UnknownLog,
            ..**anchor
        });
    }

    /// The time for readers of the state: [`Self::time_of_day`], unless it is stopped.
    pub fn read(&self) -> Timestamp {
        let now = self.time_of_day();
        now.min(Timestamp(self.shared.stopped_at.load(SeqCst)))
    }

    /// The time for those who can't reject: the wall clock, unless it is outside the expected interval; then the expected time. If
    /// either of two times may be wrong, the earlier one, so that no hold appears to expire early.
    pub fn time_of_day(&self) -> Timestamp {
        let ClockReading { wall, uptime } = self.reading();
        let anchor = self.shared.anchor.load();
        let expected = anchor.expected(uptime);
        match anchor.evidence {
            _ if anchor.has(wall, uptime) => wall,
            Evidence::Start | Evidence::Log | Evidence::UnknownLog => expected,
            Evidence::LastRun | Evidence::LastEntry => expected.min(wall),
        }
    }

    /// Stops the time of readers: entries that are stamped until [`Self::release_readers`] have no earlier time, unless the wall clock is
    /// set back.
    pub fn stop_readers(&self) {
        self.shared.stopped_at.store(self.read().0, SeqCst);
    }

    /// These entries are applied or rejected; after a failure of storage, the next start decides.
    pub fn release_readers(&self) {
        self.shared.stopped_at.store(RUNNING, SeqCst);
    }

    /// The time for the next entry: never before `last_logged`.
    ///
    /// # Errors
    /// [`ClockUnsure`] if the wall clock is outside the expected interval, or earlier than `last_logged` by more than [`LAG_MAX`].
    pub fn stamp(&self, last_logged: Timestamp) -> Result<Timestamp, ClockUnsure> {
        let reading = self.reading();
        let anchor = self.shared.anchor.load();
        let clock = reading.wall;
        if clock.plus(LAG_MAX) < last_logged {
            return Err(ClockUnsure {
                clock,
                expected: last_logged,
                evidence: Evidence::LastEntry,
            });
        }
        let evidence = anchor.evidence;
        if !anchor.has(clock, reading.uptime) || evidence == Evidence::UnknownLog {
            return Err(ClockUnsure {
                clock,
                expected: anchor.expected(reading.uptime),
                evidence,
            });
        }
        if evidence == Evidence::LastRun && anchor.later > self.limits.jump_max {
            // The machine was booted. From here on the monotonic clock measures the elapsed time, unless better evidence has just arrived.
            let measured = Arc::new(Anchor::around(reading, &self.limits));
            self.shared.anchor.compare_and_swap(&anchor, measured);
        }
        Ok(clock.max(last_logged))
    }

    /// Seconds by which the wall clock is ahead of the expected time; negative if it lags.
    pub fn offset_seconds(&self) -> i64 {
        let ClockReading { wall, uptime } = self.reading();
        (wall.0 as i64 - self.shared.anchor.load().expected(uptime).0 as i64) / 1_000
    }
}

impl Anchor {
    /// The interval around a trusted reading that a step may reach.
    fn around(reading: ClockReading, limits: &ClockLimits) -> Anchor {
        let earlier = limits.jump_max;
        let later = limits.jump_max;
        Anchor {
            reading,
            earlier,
            later,
            evidence: Evidence::Start,
        }
    }

    fn expected(&self, uptime: Duration) -> Timestamp {
        self.reading
            .wall
            .plus(uptime.saturating_sub(self.reading.uptime))
    }

    /// Whether the wall clock is in the interval.
    fn has(&self, wall: Timestamp, uptime: Duration) -> bool {
        let expected = self.expected(uptime);
        wall.plus(self.earlier) >= expected && wall <= expected.plus(self.later)
    }
}
