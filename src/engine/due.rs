//! What is due by itself: holds run out, redemptions are forgotten, and so are users of campaigns that forget. Every entry sees to it. While
//! no command comes, the writer logs an entry for it: otherwise nobody would be told that a hold has run out.

use super::writer::Writer;
use crate::domain::Timestamp;
use std::time::{Duration, Instant};

/// How long the writer waits before it logs an entry. All that is due by then is done by one.
const GATHERED: Duration = Duration::from_millis(100);

impl Writer {
    /// Whether an entry must be logged because something is due.
    pub(super) fn is_due(&self) -> bool {
        self.due_at().is_some_and(|at| at <= self.time.read())
    }

    /// When the writer must wake up because something is due, if nothing else happens before.
    pub(super) fn due_wake_at(&self) -> Option<Instant> {
        if self.is_held_up() {
            return None;
        }
        let left = self.due_at()?.0.saturating_sub(self.time.read().0);
        Instant::now().checked_add(Duration::from_millis(left))
    }

    /// When an entry must be logged because something is due. Only a clock that can be trusted says so. One entry of any node is enough,
    /// so nodes that share a log wait differently long after its last one.
    fn due_at(&self) -> Option<Timestamp> {
        let due = self.state.due_at().filter(|_| self.time.is_trusted())?;
        let after = |moment: Timestamp, wait: Duration| {
            Timestamp(moment.0.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
        };
        Some(match self.sharing.turn(due) {
            None => after(due, GATHERED),
            Some(turn) => after(due.max(self.state.now()), GATHERED + turn),
        })
    }
}
