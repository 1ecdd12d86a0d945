//! This node's beats, and the barriers that they pass. A beat is a message without entries: it shows that the log can be written and
//! read, compares the clocks, and tells the others that the node is there.

use super::under_way::{Bracket, UnderWay};
use std::time::{Duration, Instant};

/// A node that has read back nothing of its own for so long publishes a beat.
const BEAT_EVERY: Duration = Duration::from_secs(5);

/// This node's beats.
#[derive(Debug)]
pub(super) struct Beats {
    under_way: Option<UnderWay<u64>>,
    /// Since when one is under way, however often it was published anew.
    since: Option<Instant>,
    /// How many there were.
    count: u64,
    /// When something of this node's was last read back.
    read_back_at: Instant,
    /// The highest barrier that was asked for.
    asked: u64,
    /// The highest that the beat under way will pass.
    covered: u64,
    /// The highest that is passed.
    passed: u64,
}

impl Beats {
    pub(super) fn new(now: Instant) -> Beats {
        Beats { under_way: None, since: None, count: 0, read_back_at: now, asked: 0, covered: 0, passed: 0 }
    }

    /// Somebody waits for this barrier, and for all before it.
    pub(super) fn ask(&mut self, barrier: u64) {
        self.asked = barrier;
    }

    /// The number of the beat that is to be published now; it counts as published then. `is_wanted` says that one is, whatever the
    /// time.
    pub(super) fn due(&mut self, is_wanted: bool, now: Instant) -> Option<u64> {
        let is_due = match &self.under_way {
            Some(beat) => beat.is_due(now),
            None => is_wanted || self.asked > self.passed || self.read_back_at + BEAT_EVERY <= now,
        };
        is_due.then(|| {
            self.count += 1;
            self.covered = self.asked;
            self.under_way = Some(UnderWay::new(self.count, now));
            self.since.get_or_insert(now);
            self.count
        })
    }

    fn beat(&mut self, number: u64) -> Option<&mut UnderWay<u64>> {
        self.under_way.as_mut().filter(|beat| beat.what == number)
    }

    pub(super) fn acked(&mut self, number: u64, now: Instant) {
        if let Some(beat) = self.beat(number) {
            beat.acked(now);
        }
    }

    pub(super) fn refused(&mut self, number: u64, now: Instant) {
        if let Some(beat) = self.beat(number) {
            beat.refused(now);
        }
    }

    /// The beat of this number, of the current session, was read. If it was under way: when, and the barrier that is passed by
    /// it, if any.
    pub(super) fn read(&mut self, number: u64, now: Instant) -> Option<(Bracket, Option<u64>)> {
        let beat = self.under_way.take_if(|beat| beat.what == number)?;
        self.since = None;
        let is_news = self.covered > self.passed;
        self.passed = self.passed.max(self.covered);
        Some((beat.bracket(now), is_news.then_some(self.passed)))
    }

    /// Something of this node's was read back.
    pub(super) fn note_read_back(&mut self, now: Instant) {
        self.read_back_at = now;
    }

    /// A session has begun: the beat under way belongs to an earlier one.
    pub(super) fn start_over(&mut self) {
        (self.under_way, self.since) = (None, None);
    }

    /// Since when a beat is under way.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.since
    }

    /// Since when one is acknowledged that was not read back.
    pub(super) fn acked_since(&self) -> Option<Instant> {
        self.under_way.and_then(|beat| beat.acked_at)
    }

    /// When the next one is due; one is that has news in its report at `report_at`.
    pub(super) fn wake_at(&self, report_at: Instant) -> Option<Instant> {
        match &self.under_way {
            Some(beat) => beat.again_at,
            None => Some(report_at.min(self.read_back_at + BEAT_EVERY)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_passes_the_barriers_that_were_asked_for_before_it() {
        let now = Instant::now();
        let mut beats = Beats::new(now);
        assert_eq!(beats.due(false, now), None);
        beats.ask(2);
        assert_eq!(beats.due(false, now), Some(1));
        beats.ask(3);
        assert_eq!(beats.due(false, now), None, "one at a time");
        let bracket = Bracket { sent: now, seen: now };
        assert_eq!(beats.read(1, now), Some((bracket, Some(2))));
        assert_eq!(beats.read(1, now), None, "it came twice");
        assert_eq!(beats.due(false, now), Some(2));
        // Lost with its session.
        beats.start_over();
        assert_eq!(beats.read(2, now), None);
        assert_eq!(beats.due(false, now), Some(3));
        assert_eq!(beats.read(3, now), Some((bracket, Some(3))));
        assert_eq!(beats.due(false, now), None);
        assert_eq!(beats.due(true, now), Some(4));
        beats.refused(4, now);
        assert_eq!(beats.due(false, beats.wake_at(now).unwrap()), Some(5));
        assert_eq!(
            (beats.oldest(), beats.acked_since()),
            (Some(now), None),
            "it counts from the first attempt"
        );
        assert_eq!(beats.read(5, now).unwrap().1, None);
        assert_eq!(beats.due(false, now + BEAT_EVERY), Some(6));
    }
}
