//! What the writer tells those who refuse without it: when the state is whole, and which redemptions are under way.

use crate::domain::Command;
use crate::filter::Digest;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Counts of attempts. Codes that share one only send each other to the writer.
const COUNTS: usize = 1_024;

/// What the writer tells those who refuse without it.
pub(super) struct Refusals {
    /// Odd while entries are applied: a sequence lock over the whole state.
    applying: AtomicU64,
    /// By code: redemptions that were accepted, and that the log has not decided yet.
    attempts: [AtomicU32; COUNTS],
}

/// A redemption that is under way. It ends when this is dropped.
pub(super) struct Attempt {
    refusals: Arc<Refusals>,
    digest: Digest,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { applying: AtomicU64::new(0), attempts: [const { AtomicU32::new(0) }; COUNTS] }
    }
}

impl Refusals {
    /// Entries are applied from here on. Only the writer says so.
    pub(super) fn begin(&self) {
        self.applying.fetch_add(1, Ordering::Relaxed);
        // Whoever sees something of the entries sees that they are being applied.
        fence(Ordering::Release);
    }

    /// All of them are applied, and readers can see it.
    pub(super) fn end(&self) {
        self.applying.fetch_add(1, Ordering::Release);
    }

    /// Reads the state, and returns what was read if no entry was being applied meanwhile.
    pub(super) fn between_commits<T>(&self, read: impl FnOnce() -> Option<T>) -> Option<T> {
        let before = self.applying.load(Ordering::Acquire);
        if !before.is_multiple_of(2) {
            return None;
        }
        let found = read();
        fence(Ordering::Acquire);
        found.filter(|_| self.applying.load(Ordering::Relaxed) == before)
    }

    /// Whether an attempt at this code may be under way. Whoever sees that it is over sees what it has done.
    pub(super) fn is_attempted(&self, digest: Digest) -> bool {
        self.attempts(digest).load(Ordering::Acquire) > 0
    }

    fn attempts(&self, digest: Digest) -> &AtomicU32 {
        // The low bits of a digest choose its bucket, and any bits do here.
        &self.attempts[(digest.0 >> 32) as usize % COUNTS]
    }
}

impl Attempt {
    /// Notes the attempt that a command is, if it is one.
    pub(super) fn of(refusals: &Arc<Refusals>, command: &Command) -> Option<Attempt> {
        let Command::Redeem { digest, .. } = *command else { return None };
        refusals.attempts(digest).fetch_add(1, Ordering::Relaxed);
        Some(Attempt { refusals: refusals.clone(), digest })
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // What a writer that panics leaves behind is decided by the next start.
        if std::thread::panicking() {
            return;
        }
        // Whoever sees that it is over sees what it has done.
        self.refusals.attempts(self.digest).fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_all_of_one_commit() {
        const COMMITS: u64 = 200_000;
        let (refusals, [one, other]) = (Refusals::default(), [const { AtomicU64::new(0) }; 2]);
        let read = || {
            let (one, other) = (one.load(Ordering::Relaxed), other.load(Ordering::Relaxed));
            Some((one, other))
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=COMMITS {
                    refusals.begin();
                    one.store(number, Ordering::Relaxed);
                    other.store(number, Ordering::Relaxed);
                    refusals.end();
                }
            });
            while one.load(Ordering::Relaxed) < COMMITS {
                if let Some((one, other)) = refusals.between_commits(read) {
                    assert_eq!(one, other);
                }
            }
        });
        assert_eq!(refusals.between_commits(read), Some((COMMITS, COMMITS)));
    }
}
