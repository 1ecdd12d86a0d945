//! Clocks that are moved by hand.

use cuckood::clock::{Clock, ClockLimits};
use cuckood_state::domain::{ClockReading, Timestamp};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The time of day and the time since the boot.
#[derive(Debug)]
pub struct ManualTime(Mutex<ClockReading>);

impl ManualTime {
    /// Clocks that are stopped at this time of day.
    pub fn at(wall: Timestamp) -> ManualTime {
        ManualTime(Mutex::new(ClockReading {
            wall,
            uptime: Duration::ZERO,
        }))
    }

    /// A process' clock that reads them.
    pub fn clock(self: &Arc<Self>, limits: ClockLimits) -> Clock {
        let time = self.clone();
        Clock::new(move || *time.0.lock().unwrap(), limits)
    }

    /// The time of day.
    pub fn wall(&self) -> Timestamp {
        self.0.lock().unwrap().wall
    }

    /// Lets time pass: both clocks go on.
    pub fn pass(&self, time: Duration) {
        let mut reading = self.0.lock().unwrap();
        reading.wall.0 += u64::try_from(time.as_millis()).unwrap();
        reading.uptime += time;
    }

    /// Steps only the wall clock.
    pub fn set_wall(&self, wall: Timestamp) {
        self.0.lock().unwrap().wall = wall;
    }
}
