//! Periodic work needs only entries without effect, each at its predicted time: after any history, holds expire, and imports and images are
//! aborted, without further commands.

use cuckood_state::domain::{Command, Timestamp};
use cuckood_state::testing::machine::Machine;
use cuckood_state::testing::random_log::{RandomLog, numbers};
use proptest::prelude::*;

/// Longer than anything is kept that is due some time, in milliseconds.
const LONG: u64 = 90 * 86_400_000;

/// Far more entries than a log of this length leaves work for.
const ENTRIES_MAX: usize = 10_000;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn idle_state_finishes_all_work(numbers in numbers(300)) {
        let mut machine = Machine::new();
        let mut log = RandomLog::new();
        let beginning = log.beginning();
        for entry in beginning.into_iter().chain(numbers.iter().map(|&numbers| log.next(numbers))) {
            machine.propose(entry.proposal);
        }
        let end = Timestamp(machine.state.now().0 + LONG);
        let mut entries = 0;
        while let Some(at) = machine.state.due_at().filter(|at| *at <= end) {
            machine.now = at.max(machine.state.now());
            machine.apply(Command::Advance { buckets_max: 0 });
            entries += 1;
            prop_assert!(entries < ENTRIES_MAX, "due at {at:?}, and no end of it");
        }
        let state = &machine.state;
        let sizes = machine.state.sizes();
        let unfinished = state.view().imports().iter().any(|import| import.is_unfinished());
        prop_assert!(!unfinished && sizes.images_loading == 0 && sizes.codes.held == 0);
    }
}
