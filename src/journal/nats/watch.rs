//! Whether the reader comes to what is known to be in the log, because a server has acknowledged it.

use super::link::ACK_TIMEOUT;
use std::time::Instant;

/// What the reader should come to, and when it last came to anything.
#[derive(Debug)]
pub(super) struct Watch {
    /// The last message that a server has acknowledged.
    acked: u64,
    /// The last message that was read.
    read: u64,
    /// When a message was last read, or became something to wait for.
    moved_at: Instant,
}

impl Watch {
    pub(super) fn new(read: u64, now: Instant) -> Watch {
        Watch { acked: 0, read, moved_at: now }
    }

    /// A server has acknowledged a message.
    pub(super) fn acked(&mut self, number: u64, now: Instant) {
        if self.has_read_all() && number > self.read {
            self.moved_at = now;
        }
        self.acked = self.acked.max(number);
    }

    /// A message was read.
    pub(super) fn read(&mut self, number: u64, now: Instant) {
        (self.read, self.moved_at) = (number, now);
    }

    /// Whether everything was read that a server has acknowledged.
    pub(super) fn has_read_all(&self) -> bool {
        self.acked <= self.read
    }

    /// When the reader is late. One that is being opened, `opened` is `None` then, has limits of its own.
    pub(super) fn late_at(&self, opened: Option<Instant>) -> Option<Instant> {
        let opened = opened.filter(|_| !self.has_read_all())?;
        Some(self.moved_at.max(opened) + ACK_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_reader_is_late_only_if_it_is_open_and_gets_nothing_of_what_there_is() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut watch = Watch::new(10, start);
        assert_eq!(watch.late_at(Some(start)), None, "nothing is known to be there");
        // A node that starts far behind.
        watch.acked(5_000, at(1));
        assert_eq!(watch.late_at(None), None, "it is being opened");
        assert_eq!(watch.late_at(Some(at(20))), Some(at(20) + ACK_TIMEOUT));
        for second in 21..600 {
            watch.read(second, at(second));
            watch.acked(5_000 + second, at(second));
            assert_eq!(watch.late_at(Some(at(20))), Some(at(second) + ACK_TIMEOUT), "it comes along");
        }
        watch.read(6_000, at(600));
        assert!(watch.has_read_all());
        assert_eq!(watch.late_at(Some(at(20))), None);
        watch.acked(6_001, at(700));
        watch.acked(6_002, at(701));
        assert_eq!(watch.late_at(Some(at(20))), Some(at(700) + ACK_TIMEOUT));
    }
}
