//! What commands have dropped. To free the redemptions of a large coupon takes seconds, so it is done a little at a time.
//!
//! It is no part of the state: no image has it, no command sees it, and it makes no difference when it is freed. The memory account
//! counts it until then. What readers still look at, or a snapshot needs, waits.

use super::ledger::Ledger;
use crate::filter::Dropped;
use parking_lot::RwLock;
use std::sync::Arc;

/// Bytes of tables that take about as long to be given back as one entry of a ledger.
const TABLE_BYTES_AN_ENTRY: u64 = 1 << 10;

/// What commands have dropped, and is not freed yet.
#[derive(Default)]
pub(super) struct Discarded {
    pub(super) tables: Dropped,
    ledgers: Vec<Arc<RwLock<Ledger>>>,
}

impl Discarded {
    pub(super) fn push_ledger(&mut self, ledger: Arc<RwLock<Ledger>>) {
        if ledger.read().memory_bytes() > 0 {
            self.ledgers.push(ledger);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.ledgers.is_empty()
    }

    /// Bytes of ledgers, estimated.
    pub(super) fn records_bytes(&self) -> u64 {
        self.ledgers.iter().map(|ledger| ledger.read().memory_bytes()).sum()
    }

    /// Frees about this many entries of ledgers, or as much of tables as takes as long. Returns how many entries those were; none only if all
    /// that is left has to wait.
    pub(super) fn free(&mut self, entries_max: u64) -> u64 {
        let mut freed = 0;
        self.ledgers.retain_mut(|ledger| {
            if let Some(ledger) = Arc::get_mut(ledger) {
                freed += ledger.get_mut().free(entries_max.saturating_sub(freed));
            }
            ledger.read().memory_bytes() > 0
        });
        let bytes_max = entries_max.saturating_sub(freed).saturating_mul(TABLE_BYTES_AN_ENTRY);
        freed + self.tables.give_back(bytes_max).div_ceil(TABLE_BYTES_AN_ENTRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Redemption, RedemptionId, Reference, Status, Timestamp};
    use crate::filter::{Digest, Filter, Growth, Layout, Mode};
    use crate::state::ledger::REDEMPTION_BYTES;
    use crate::state::section::Epoch;

    fn ledger(redemptions: u64) -> Ledger {
        let mut ledger = Ledger::new(Epoch(1), false, Default::default());
        for number in 0..redemptions {
            ledger.insert(Redemption {
                id: RedemptionId(u128::from(number).to_be_bytes()),
                digest: Digest(number),
                reference: Reference::new("order").unwrap(),
                status: Status::Redeemed,
                created_at: Timestamp(number),
                changed_at: Timestamp(number),
                expires_at: None,
                redeemed_at: None,
                ordinal: None,
            });
        }
        ledger
    }

    fn strict(capacity: u64) -> Filter {
        let layout = Layout::strict(capacity).unwrap();
        Filter::new(Mode::Strict, layout, Growth::Auto, None)
    }

    /// However large it is, a step frees hardly more than it may. In the end all is gone, and so is its memory from the account.
    #[test]
    fn a_step_frees_a_bounded_number_of_entries() {
        let mut discarded = Discarded::default();
        discarded.push_ledger(Arc::new(RwLock::new(ledger(5_000))));
        let filter = strict(500_000);
        let tables_bytes = filter.tables().memory_bytes();
        discarded.tables.append(&mut filter.into_dropped());
        let records_bytes = discarded.records_bytes();
        assert!(records_bytes >= 5_000 * REDEMPTION_BYTES);
        let (mut steps, mut all) = (0, 0);
        while !discarded.is_empty() {
            let before = (discarded.records_bytes(), discarded.tables.memory_bytes());
            let freed = discarded.free(1_000);
            assert!((1..=1_000 + 2_048).contains(&freed), "{freed} entries");
            let after = (discarded.records_bytes(), discarded.tables.memory_bytes());
            assert!(after.0 <= before.0 && after.1 <= before.1 && before != after);
            (steps, all) = (steps + 1, all + freed);
        }
        assert!(
            all >= 5_000 * 5 + tables_bytes / TABLE_BYTES_AN_ENTRY && steps > 20,
            "{all} entries in {steps}"
        );
        assert_eq!(discarded.free(1_000), 0);
    }

    /// What a reader still looks at is not freed under its eyes, and keeps nothing else waiting.
    #[test]
    fn what_readers_look_at_waits() {
        let mut discarded = Discarded::default();
        let (looked_at, other) = (Arc::new(RwLock::new(ledger(10))), Arc::new(RwLock::new(ledger(10))));
        discarded.push_ledger(looked_at.clone());
        discarded.push_ledger(other);
        let filter = strict(500_000);
        let reader = filter.reader();
        discarded.tables.append(&mut filter.into_dropped());
        while discarded.free(100) > 0 {}
        assert_eq!(looked_at.read().len(), 10);
        assert!(discarded.records_bytes() > 0 && discarded.records_bytes() < 20 * REDEMPTION_BYTES);
        assert_eq!(discarded.tables.memory_bytes(), reader.view(0).memory_bytes());
        drop((looked_at, reader));
        while discarded.free(100) > 0 {}
        assert!(discarded.is_empty());
    }
}
