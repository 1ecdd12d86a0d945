//! What campaigns that forget have to do as time passes. Every entry does a part of it, counted in words: so no single one pays for a
//! whole table, and a replay does the same.
//!
//! When a step is over, its campaign is told so, which is cheap, and readers need not wait for that: they go by their own clock. What
//! takes long is to free the slots of the forgotten users.

use super::agenda::Task;
use super::machine::{FilterState, SWEEP_MAX, State};

/// Words of tables that one entry looks through for forgotten users: two microseconds' work.
const WORDS_AN_ENTRY: u64 = 1_024;

/// For each bucket that [`crate::domain::Command::Advance`] may empty it looks through so many words, which takes about as long.
const WORDS_A_BUCKET: u64 = 64;

impl FilterState {
    /// What the filter has to do as time passes.
    pub(super) fn task(&self) -> Task {
        if self.is_hidden() {
            return Task::default();
        }
        Task { due: self.tables.due(&self.view.spec), is_retiring: self.tables.is_retiring() }
    }
}

impl State {
    /// Forgets the users whose time is over, in a limited number of campaigns, and frees some of their slots.
    pub(super) fn forget_users(&mut self) {
        let mut left = SWEEP_MAX;
        while left > 0
            && let Some((due, filter)) = self.shared.agenda.first()
            && due <= self.shared.now
        {
            // Whoever works on a campaign lets it go on to the present step first.
            let _ = self.on(filter, |_| ());
            left -= 1;
        }
        self.free_forgotten(WORDS_AN_ENTRY);
    }

    /// Frees more slots of forgotten users, as much as takes as long as emptying so many buckets.
    pub(super) fn free_forgotten_as_in(&mut self, buckets: u64) {
        self.free_forgotten(buckets.saturating_mul(WORDS_A_BUCKET));
    }

    fn free_forgotten(&mut self, mut words: u64) {
        while words > 0
            && let Some(filter) = self.shared.agenda.next_retiring()
        {
            let done = self.on(filter, |filter| filter.tables.retire(words)).unwrap_or(0);
            words = words.saturating_sub(done.max(1));
        }
    }

    /// Users who were forgotten since this state was made. Copies count.
    pub fn users_forgotten(&self) -> u64 {
        self.shared.users_forgotten
    }
}
