//! What every entry does beside its command. As time passes, holds expire, and ended redemptions and old users are forgotten. Slots of
//! forgotten users are freed, and items move to other tables.
//!
//! Each entry does a bounded part of that, counted in redemptions and words: so no single one pays for a crowd, and a replay does the same.

use super::agenda::Task;
use super::ledger::ENDED_MAX;
use super::machine::{SWEEP_MAX, State};
use crate::domain::{Command, Outcome, Settings, Timestamp};

/// Words of tables that one entry looks through for forgotten users: two microseconds' work.
const WORDS_AN_ENTRY: u64 = 1_024;

/// For each bucket that [`Command::Advance`] may empty it looks through this many words, which takes about as long.
const WORDS_A_BUCKET: u64 = 64;

/// Bytes of the event of a hold that has expired, on disk: with a name and a reference of the usual length.
const EVENT_BYTES: u64 = 256;

impl State {
    /// When something is due. A hold runs out. An ended redemption is forgotten, or the oldest users of a campaign are. An import or an image is
    /// aborted because its client does not continue it. The first entry at that time or later sees to it.
    ///
    /// Stored answers are forgotten by other entries only: they give way as soon as a new one needs their room.
    pub fn due_at(&self) -> Option<Timestamp> {
        let Settings { redemptions_retention_seconds, imports_retention_seconds, .. } = self.shared.settings;
        let at = |task| self.shared.agenda.first(task).map(|(at, ..)| at);
        let unmoved_since = self.shared.view.imports.read().unmoved_since();
        let due = [
            at(Task::Expire),
            at(Task::Forget).map(|at| at.plus_seconds(redemptions_retention_seconds)),
            at(Task::ForgetUsers),
            unmoved_since.map(|at| at.plus_seconds(imports_retention_seconds)),
            self.shared.images.given_up_at(),
        ];
        due.into_iter().flatten().min()
    }

    /// About the maximum size of the events that commands make by expiring holds at this time, in bytes.
    pub fn sweep_events_bytes<'a>(
        &self,
        commands: impl IntoIterator<Item = &'a Command>,
        at: Timestamp,
    ) -> u64 {
        let is_any_due = self.shared.agenda.first(Task::Expire).is_some_and(|(until, ..)| until <= at);
        if !is_any_due || self.shared.settings.events_retention_seconds == 0 {
            return 0;
        }
        let ended = |command: &Command| match command {
            // It may have to make room in an open pool.
            Command::Redeem { .. } => SWEEP_MAX + ENDED_MAX,
            _ => SWEEP_MAX,
        };
        let holds = commands.into_iter().fold(0_u64, |holds, command| holds + ended(command) as u64);
        holds.min(self.shared.totals.holds) * EVENT_BYTES
    }

    /// Expires holds that have run out, and forgets redemptions whose retention has passed: a bounded number of each, the first ones first.
    /// Lets campaigns go on to the present step, and frees some slots of forgotten users.
    pub(super) fn sweep_filters(&mut self) {
        let retention = self.shared.settings.redemptions_retention_seconds;
        for (task, delay) in [(Task::Expire, 0), (Task::Forget, retention), (Task::ForgetUsers, 0)] {
            for _ in 0..SWEEP_MAX {
                let due = self.shared.agenda.first(task);
                let due = due.filter(|(at, ..)| at.plus_seconds(delay) <= self.shared.now);
                let Some((_, id, filter)) = due else { break };
                // It is there: otherwise it would have nothing to do. Whatever works on a campaign lets it go on to the present step.
                let _ = self.on(filter, |filter| match task {
                    Task::Expire => filter.expire_hold(&id),
                    // Its code stays as it is: a redeemed code stays redeemed.
                    Task::Forget => filter.view.ledger.write().remove(&id),
                    Task::ForgetUsers | Task::Retire | Task::Move => {}
                });
            }
        }
        self.free_forgotten(WORDS_AN_ENTRY);
    }

    /// Whether items of some filter are moving to another table, or the slots of forgotten users are being freed. Every entry does some of
    /// that, and [`Command::Advance`] as much as it says.
    pub fn can_advance(&self) -> bool {
        [Task::Move, Task::Retire].into_iter().any(|task| self.shared.agenda.first(task).is_some())
    }

    /// Goes on with the first filter whose items are moving to another table: empties this many more buckets. Frees slots of forgotten users
    /// for as long.
    pub(super) fn advance(&mut self, buckets: u64) -> Outcome {
        self.free_forgotten(buckets.saturating_mul(WORDS_A_BUCKET));
        if let Some((.., moving)) = self.shared.agenda.first(Task::Move) {
            // It is there: otherwise it would have nothing to do.
            let _ = self.on(moving, |filter| match filter.staging {
                Some(staging) if !filter.tables.filter.is_moving() => {
                    staging.tables.filter.move_items(buckets)
                }
                _ => filter.tables.filter.move_items(buckets),
            });
        }
        Outcome::Advanced
    }

    fn free_forgotten(&mut self, mut words: u64) {
        while words > 0
            && let Some(filter) = self.shared.agenda.next_retiring()
        {
            let done = self.on(filter, |filter| filter.tables.filter.retire(words)).unwrap_or(0);
            words = words.saturating_sub(done.max(1));
        }
    }
}
