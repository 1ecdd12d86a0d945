//! Periodic work needs only entries without effect, each at its predicted time: after any history, holds expire, and imports and images are
//! aborted, without further commands.

use crate::random_log::{RandomLog, numbers};
use cuckood::domain::{Command, Entry, Proposal, Timestamp};
use cuckood::state::State;
use proptest::prelude::*;

/// Longer than anything is kept that is due some time, in milliseconds.
const LONG: u64 = 90 * 86_400_000;

/// Far more entries than a log of this length leaves work for.
const ENTRIES_MAX: usize = 10_000;

fn advance(state: &mut State, at: Timestamp) {
    let proposal = Proposal::new(at, Command::Advance { buckets_max: 0 });
    state.apply(Entry { seq: state.applied().next(), proposal });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn idle_state_finishes_all_work(numbers in numbers(300)) {
        let (mut state, mut log) = (State::new(), RandomLog::new());
        for entry in log.beginning() {
            state.apply(entry);
        }
        for &numbers in &numbers {
            state.apply(log.next(numbers));
        }
        let end = Timestamp(state.now().0 + LONG);
        let mut entries = 0;
        while let Some(at) = state.due_at().filter(|at| *at <= end) {
            let now = state.now();
            advance(&mut state, at.max(now));
            entries += 1;
            prop_assert!(entries < ENTRIES_MAX, "due at {at:?}, and no end of it");
        }
        let unfinished = state.view().imports().iter().any(|import| import.is_unfinished());
        prop_assert!(!unfinished && state.sizes().images_loading == 0 && state.sizes().codes.held == 0);
    }
}
