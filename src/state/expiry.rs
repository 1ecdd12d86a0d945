//! What happens to redemptions by themselves: with every entry some holds expire, and some redemptions are forgotten.

use super::due::{Due, Heads, Queue};
use super::machine::{SWEEP_MAX, State};
use super::pool::ENDED_MAX;
use super::subject::Subject;
use crate::domain::{Command, Redemption, RedemptionId, Settings, Timestamp};

/// Bytes of the event of a hold that has expired, on disk: with a name and a reference of the usual length.
const EVENT_BYTES: u64 = 256;

impl State {
    /// When something is due by itself. A hold runs out. An ended redemption is forgotten, or the oldest users of a campaign are. An import
    /// or an image is given up because nobody goes on with it. The first entry at that time or later sees to it.
    ///
    /// Stored answers are forgotten by other entries only: they give way as soon as a new one needs their room.
    pub fn due_at(&self) -> Option<Timestamp> {
        let Settings { redemptions_retention_seconds, imports_retention_seconds, .. } = self.shared.settings;
        let ended_at = self.shared.ended.first().map(|(changed_at, _)| changed_at);
        let unmoved_since = self.shared.view.imports.read().unmoved_since();
        let due = [
            self.shared.holds.first().map(|(expires_at, _)| expires_at),
            ended_at.map(|at| at.plus_seconds(redemptions_retention_seconds)),
            self.shared.agenda.first().map(|(due, _)| due),
            unmoved_since.map(|at| at.plus_seconds(imports_retention_seconds)),
            self.image_given_up_at(),
        ];
        due.into_iter().flatten().min()
    }

    /// About the most bytes of events that commands make by expiring holds at this time.
    pub fn sweep_events_bytes<'a>(
        &self,
        commands: impl IntoIterator<Item = &'a Command>,
        at: Timestamp,
    ) -> u64 {
        let is_any_due = self.shared.holds.first().is_some_and(|(expires_at, _)| expires_at <= at);
        if !is_any_due || self.shared.settings.events_retention_seconds == 0 {
            return 0;
        }
        let ended = |command: &Command| match command {
            // It may have to make room in an open pool.
            Command::Redeem { .. } => SWEEP_MAX + ENDED_MAX,
            _ => SWEEP_MAX,
        };
        let holds = commands.into_iter().fold(0_u64, |holds, command| holds + ended(command) as u64);
        holds.min(self.shared.holds.len()) * EVENT_BYTES
    }

    /// Expires holds that have run out, and forgets redemptions whose retention has passed: a bounded number of each, the first ones first.
    pub(super) fn sweep_redemptions(&mut self) {
        let now = self.shared.now;
        for _ in 0..SWEEP_MAX {
            let Some((expires_at, filter)) = self.shared.holds.first() else { break };
            if expires_at > now || self.on(filter, |filter| filter.expire_next()).is_err() {
                break;
            }
        }
        let retention = self.shared.settings.redemptions_retention_seconds;
        for _ in 0..SWEEP_MAX {
            let Some((changed_at, filter)) = self.shared.ended.first() else { break };
            if changed_at.plus_seconds(retention) > now
                || self.on(filter, |filter| filter.forget_next()).is_err()
            {
                break;
            }
        }
    }
}

impl Subject<'_> {
    fn expire_next(&mut self) {
        let (filter, due) = (self.view.id, &mut *self.due);
        if let Some((_, id)) = self.shared.holds.change(filter, &mut due.holds, Queue::pop_first) {
            self.expire_hold(&id);
        }
    }

    fn forget_next(&mut self) {
        let (filter, due) = (self.view.id, &mut *self.due);
        if let Some((_, id)) = self.shared.ended.change(filter, &mut due.ended, Queue::pop_first) {
            self.forget_redemption(&id);
        }
    }

    /// Puts a redemption into the queue that its status belongs to.
    pub(super) fn enqueue(&mut self, redemption: &Redemption) {
        let filter = self.view.id;
        let (heads, queue, entry) = self.queue_of(redemption);
        heads.change(filter, queue, |queue| queue.insert(entry));
    }

    /// Takes a redemption out of its queue.
    pub(super) fn dequeue(&mut self, redemption: &Redemption) {
        let filter = self.view.id;
        let (heads, queue, entry) = self.queue_of(redemption);
        heads.change(filter, queue, |queue| queue.remove(&entry));
    }

    /// Fills the queues anew.
    pub(super) fn enqueue_all(&mut self) {
        let filter = self.view.id;
        let Due { holds, ended } = Due::of(self.view.ledger.read().iter());
        self.shared.holds.change(filter, &mut self.due.holds, |queue| *queue = holds);
        self.shared.ended.change(filter, &mut self.due.ended, |queue| *queue = ended);
    }

    fn queue_of(&mut self, redemption: &Redemption) -> (&mut Heads, &mut Queue, (Timestamp, RedemptionId)) {
        match redemption.held_until() {
            Some(expires_at) => (&mut self.shared.holds, &mut self.due.holds, (expires_at, redemption.id)),
            None => (&mut self.shared.ended, &mut self.due.ended, (redemption.changed_at, redemption.id)),
        }
    }
}
