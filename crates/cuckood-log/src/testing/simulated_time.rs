//! The time of a simulation, which passes only when the simulation says so, and the clocks of its machines, which show it wrongly.

use cuckood_state::domain::{ClockReading, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long the machines have been up at the start.
const UPTIME: Duration = Duration::from_secs(3_600);

/// The true time; clones show the same.
#[derive(Clone, Debug)]
pub struct SimulatedTime {
    start: Instant,
    epoch: Timestamp,
    nanoseconds: Arc<AtomicU64>,
}

impl SimulatedTime {
    /// The time at the start of a simulation, which is `epoch` by the calendar.
    pub fn new(epoch: Timestamp) -> SimulatedTime {
        SimulatedTime {
            // Deadlines are subtracted from it.
            start: Instant::now() + Duration::from_secs(86_400),
            epoch,
            nanoseconds: Arc::default(),
        }
    }

    /// A monotonic clock that is right.
    pub fn now(&self) -> Instant {
        self.start + self.passed()
    }

    /// The time that has passed since the start.
    pub fn passed(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Relaxed))
    }

    /// The true time of day.
    pub fn of_day(&self) -> Timestamp {
        self.epoch.plus(self.passed())
    }

    pub fn pass(&self, time: Duration) {
        self.nanoseconds.fetch_add(time.as_nanos() as u64, Relaxed);
    }
}

/// The clocks of a machine; clones are the same clocks.
#[derive(Clone, Debug)]
pub struct MachineClock {
    time: SimulatedTime,
    /// How much faster than the true time both clocks are, in parts per million.
    drift: i64,
    /// How far the wall clock is set ahead, in milliseconds.
    ahead: Arc<AtomicI64>,
}

impl MachineClock {
    pub fn new(time: &SimulatedTime, drift: i64) -> MachineClock {
        MachineClock {
            time: time.clone(),
            drift,
            ahead: Arc::default(),
        }
    }

    /// Sets the wall clock this much ahead of the true time, in milliseconds. The drift is added to it.
    pub fn set_ahead(&self, milliseconds: i64) {
        self.ahead.store(milliseconds, Relaxed);
    }

    fn passed(&self) -> Duration {
        let true_time = self.time.passed().as_nanos() as i128;
        let shown = true_time + true_time * i128::from(self.drift) / 1_000_000;
        Duration::from_nanos(shown as u64)
    }

    /// The monotonic clock.
    pub fn now(&self) -> Instant {
        self.time.start + self.passed()
    }

    /// The wall clock, and the time since the boot.
    pub fn reading(&self) -> ClockReading {
        let wall = self.time.epoch.plus(self.passed()).0;
        ClockReading {
            wall: Timestamp(wall.saturating_add_signed(self.ahead.load(Relaxed))),
            uptime: UPTIME + self.passed(),
        }
    }
}
