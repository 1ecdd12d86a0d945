//! Effects of time. As it passes, holds expire, and ended redemptions and old users are forgotten. Slots of forgotten users are freed, and
//! items move to other tables. Each entry does a bounded part of that, counted in redemptions and words: so no single one pays for many,
//! and a replay does the same.
//!
//! Time can also be turned back, after a clock that was far ahead has stamped entries. The log stays unchanged, and writes acknowledged
//! under the wrong time remain valid. Times in the future become now. A hold that only the wrong clock has ended is revived, if its code is
//! still free.
//!
//! Every time in the future was set by the wrong clock, except for the ends of holds, which are believed up to the maximum length of a
//! hold. Data that the wrong clock has forgotten stays forgotten: stored outcomes, and redemptions whose retention had passed by that
//! clock. Redeemed codes stay redeemed. A hold that the wrong clock has ended is still on record: its retention counts from the entry that
//! ended it, however far ahead the clock was. Users whom a campaign has forgotten stay forgotten; those added in the future count as added
//! now.

use super::agenda::Task;
use super::events::REVIVED_EVENTS_MAX;
use super::ledger::{ENDED_MAX, Ledger, RedemptionView};
use super::machine::{SWEEP_MAX, State, Subject};
use crate::domain::{
    Count, HOLD_SECONDS_MAX, Happened, Outcome, Redemption, RedemptionId, RedemptionStatus,
    RedemptionStep, Settings, Timestamp,
};
use cuckood_filter::{Digest, SlotState};
use std::sync::atomic::Ordering;

/// Words of tables that one entry looks through for forgotten users: two microseconds' work.
const WORDS_AN_ENTRY: u64 = 1_024;

/// For each bucket that [`Command::Advance`](crate::domain::Command::Advance) may empty it looks through this many words, which takes about as long.
const WORDS_A_BUCKET: u64 = 64;

/// Bytes of the event of a hold that has expired, on disk: with a name and a reference of the usual length.
const EVENT_BYTES: u64 = 256;

impl State {
    /// When something is due. A hold runs out. An ended redemption is forgotten, or the oldest users of a campaign are. An import or an image is
    /// aborted because its client does not continue it. The first entry at that time or later sees to it.
    ///
    /// Stored outcomes are only deleted by other entries: they yield as soon as a new one needs their space.
    pub fn due_at(&self) -> Option<Timestamp> {
        let Settings {
            redemptions_retention_seconds,
            imports_retention_seconds,
            ..
        } = self.shared.settings;
        let at = |task| self.shared.agenda.first(task).map(|(at, ..)| at);
        let unmoved_since = self.shared.view.imports.read().unmoved_since();
        let due = [
            at(Task::Expire),
            at(Task::Forget).map(|at| at.plus_seconds(redemptions_retention_seconds)),
            at(Task::ForgetUsers),
            unmoved_since.map(|at| at.plus_seconds(imports_retention_seconds)),
            self.shared.images.abort_at(),
        ];
        due.into_iter().flatten().min()
    }

    /// About the maximum size of the events that this many commands make by expiring holds at this time, in bytes.
    pub fn sweep_events_bytes(&self, commands: usize, at: Timestamp) -> u64 {
        let is_any_due = self
            .shared
            .agenda
            .first(Task::Expire)
            .is_some_and(|(until, ..)| until <= at);
        if !is_any_due || self.shared.settings.events_retention_seconds == 0 {
            return 0;
        }
        // A redemption may have to free stock in an open pool.
        let holds = (commands * (SWEEP_MAX + ENDED_MAX)) as u64;
        holds.min(self.shared.totals.holds) * EVENT_BYTES
    }

    /// Expires holds that have run out, and forgets redemptions whose retention has passed: a bounded number of each, the first ones first.
    /// Lets campaigns go on to the present step, and frees some slots of forgotten users.
    pub(super) fn sweep_filters(&mut self) {
        let retention = self.shared.settings.redemptions_retention_seconds;
        for (task, delay) in [
            (Task::Expire, 0),
            (Task::Forget, retention),
            (Task::ForgetUsers, 0),
        ] {
            for _ in 0..SWEEP_MAX {
                let due = self.shared.agenda.first(task);
                let due = due.filter(|(at, ..)| at.plus_seconds(delay) <= self.shared.now);
                let Some((_, id, filter)) = due else { break };
                // It is there: otherwise it would have nothing to do. Whatever works on a campaign lets it go on to the present step.
                let _ = self.on(filter, |subject| match task {
                    Task::Expire => subject.expire_hold(&id),
                    // Its code stays as it is: a redeemed code stays redeemed.
                    Task::Forget => subject.filter.view.ledger.write().remove(&id),
                    Task::ForgetUsers | Task::Retire | Task::Move => {}
                });
            }
        }
        self.free_forgotten(WORDS_AN_ENTRY);
    }

    /// Whether items of some filter are moving to another table, or slots of forgotten users are being freed. Every entry does some of
    /// that, and [`Command::Advance`](crate::domain::Command::Advance) a given amount.
    pub fn can_advance(&self) -> bool {
        [Task::Move, Task::Retire]
            .into_iter()
            .any(|task| self.shared.agenda.first(task).is_some())
    }

    /// Goes on with the first filter whose items are moving to another table: empties this many more buckets. Frees slots of forgotten users
    /// for as long.
    pub(super) fn advance(&mut self, buckets: u64) -> Outcome {
        self.free_forgotten(buckets.saturating_mul(WORDS_A_BUCKET));
        if let Some((.., moving)) = self.shared.agenda.first(Task::Move) {
            // It is there: otherwise it would have nothing to do.
            let _ = self.on(moving, |subject| match &mut subject.filter.staging {
                Some(staging) if !subject.filter.tables.filter.is_moving() => {
                    staging.tables.filter.move_items(buckets)
                }
                Some(_) | None => subject.filter.tables.filter.move_items(buckets),
            });
        }
        Outcome::Advanced
    }

    fn free_forgotten(&mut self, mut words: u64) {
        while words > 0
            && let Some(filter) = self.shared.agenda.next_retiring()
        {
            let done = self
                .on(filter, |subject| subject.filter.tables.filter.retire(words))
                .unwrap_or(0);
            words = words.saturating_sub(done.max(1));
        }
    }

    /// Turns the time back to `now`. The outcome says how much was changed.
    pub(super) fn turn_back(&mut self, now: Timestamp) -> Outcome {
        self.shared.now = now;
        self.records.turn_back(now);
        let first_event = self.shared.events.next();
        self.shared.view.imports.write().turn_back(now);
        // The times in an image are not this log's.
        self.abort_images(Timestamp::MAX);
        let mut redemptions = 0;
        let mut holds = 0;
        // They are as the last entries about them have left them.
        for filter in self.filters.values_mut() {
            let turn_back = |subject: &mut Subject<'_>| subject.turn_back(now, first_event);
            let (moved_to_present, held_again) = filter.work(&mut self.shared, turn_back);
            redemptions += moved_to_present;
            holds += held_again;
        }
        self.shared
            .events
            .record_unrequested(now, || Happened::TurnedBack { redemptions, holds });
        Outcome::TurnedBack { redemptions, holds }
    }
}

impl Subject<'_> {
    /// Turns the time of one filter back; the events of this entry start at `first_event`. Returns the numbers of changed redemptions and
    /// of revived holds.
    fn turn_back(&mut self, now: Timestamp, first_event: u64) -> (u64, u64) {
        let shared = self.filter.view.ledger.clone();
        let mut ledger = shared.write();
        let ended_too_soon = prematurely_expired(&ledger, now);
        let redemptions = ledger.amend(|redemption| moved_to_present(redemption, now));
        let mut again: Vec<RedemptionId> = Vec::new();
        for (id, digest) in ended_too_soon {
            let ended = ledger.get(&id).map(RedemptionView::unpack);
            if !ended.is_some_and(|ended| ledger.may_hold_again(&ended)) {
                continue;
            }
            let supply = &self.filter.view.spec.supply;
            let taken = ledger.tally(digest).map_or(0, |tally| tally.taken);
            let is_last_use = taken.saturating_add(1) >= supply.uses;
            let is_free = match (self.filter.tables.filter.state(digest), supply.stock) {
                (Some(SlotState::Available), _) => true,
                (None, Some(stock)) if ledger.taken() < stock && !is_last_use => true,
                (None, Some(stock)) if ledger.taken() < stock => {
                    let is_added = self
                        .filter
                        .tables
                        .filter
                        .put(digest, SlotState::Held)
                        .is_ok();
                    self.filter
                        .view
                        .counters
                        .adds
                        .fetch_add(u64::from(is_added), Ordering::Relaxed);
                    is_added
                }
                _ => false,
            };
            if is_free && ledger.hold_again(&id) {
                again.push(id);
            }
        }
        let again: Vec<Redemption> = again
            .iter()
            .filter_map(|id| ledger.get(id))
            .map(RedemptionView::unpack)
            .collect();
        drop(ledger);
        if let Some(forget) = self.filter.view.spec.forget {
            self.filter.tables.filter.turn_back(forget.step_at(now));
        }
        self.filter.view.counters.statistics.lock().turn_back(now);
        self.count(Count::Held, again.len() as u64);
        if self.filter.view.created_at > now {
            self.change_view(|view| view.profile.created_at = now);
        }
        for redemption in &again {
            if let Some(state) = self.state_of_use(redemption.digest, SlotState::Held) {
                self.set_code(redemption.digest, state, 0);
            }
            if self.shared.events.next() - first_event < REVIVED_EVENTS_MAX {
                self.record_redemption(redemption, RedemptionStep::HeldAgain);
            }
        }
        (redemptions, again.len() as u64)
    }
}

/// The latest end of a hold that starts now.
fn latest_end(now: Timestamp) -> Timestamp {
    now.plus_seconds(HOLD_SECONDS_MAX)
}

/// Holds that the wrong clock has ended too early: they were created before now, to end after now. If a code has two, the older is first.
fn prematurely_expired(ledger: &Ledger, now: Timestamp) -> Vec<(RedemptionId, Digest)> {
    let ended_too_soon = |redemption: &Redemption| {
        let ends = redemption.expires_at.unwrap_or_default();
        redemption.created_at <= now && now < ends && ends <= latest_end(now)
    };
    let expired = ledger
        .iter()
        .filter(|redemption| redemption.status() == RedemptionStatus::Expired)
        .map(RedemptionView::unpack);
    let mut found: Vec<_> = expired.filter(ended_too_soon).collect();
    found.sort_by_key(|redemption| (redemption.created_at, redemption.id));
    found
        .into_iter()
        .map(|redemption| (redemption.id, redemption.digest))
        .collect()
}

/// A redemption as it should be, if the wrong clock has changed it: no time in it is later than now, except for the end of a hold, which
/// lasts from now for as long as it was asked for.
fn moved_to_present(redemption: &Redemption, now: Timestamp) -> Option<Redemption> {
    if redemption.changed_at <= now && redemption.created_at <= now {
        return None;
    }
    let lasted = |end: Timestamp| {
        Timestamp(
            now.0
                .saturating_add(end.0.saturating_sub(redemption.changed_at.0)),
        )
    };
    let brought = |end: Timestamp| match redemption.status {
        RedemptionStatus::Held if end > latest_end(now) => lasted(end).min(latest_end(now)),
        _ => end.min(latest_end(now)),
    };
    Some(Redemption {
        created_at: redemption.created_at.min(now),
        changed_at: redemption.changed_at.min(now),
        expires_at: redemption.expires_at.map(brought),
        redeemed_at: redemption.redeemed_at.map(|at| at.min(now)),
        ..redemption.clone()
    })
}
