//! Data that commands have dropped, and that is not freed yet.
//!
//! Freeing the redemptions of a large coupon takes seconds, so dropped data is freed incrementally. It is not part of the state: no image
//! contains it, no command sees it, and the time of freeing has no effect. The memory account counts it until then. Data in use by readers
//! or a snapshot is freed later.

use super::ledger::Ledger;
use cuckood_filter::Dropped;
use parking_lot::RwLock;
use std::sync::Arc;

/// Bytes of tables whose release costs about as much as one entry of a ledger.
const TABLE_BYTES_AN_ENTRY: u64 = 1 << 10;

/// Data that commands have dropped, and that is not freed yet.
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
        self.ledgers
            .iter()
            .map(|ledger| ledger.read().memory_bytes())
            .sum()
    }

    /// Frees about this many entries of ledgers, or tables of the same cost. Returns the equivalent number of entries; 0 only if all
    /// remaining data is in use.
    pub(super) fn free(&mut self, entries_max: u64) -> u64 {
        let mut freed = 0;
        self.ledgers.retain_mut(|ledger| {
            if let Some(ledger) = Arc::get_mut(ledger) {
                freed += ledger.get_mut().free(entries_max.saturating_sub(freed));
            }
            ledger.read().memory_bytes() > 0
        });
        let bytes_max = entries_max
            .saturating_sub(freed)
            .saturating_mul(TABLE_BYTES_AN_ENTRY);
        freed
            + self
                .tables
                .release(bytes_max)
                .div_ceil(TABLE_BYTES_AN_ENTRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        Redemption, RedemptionDetails, RedemptionId, RedemptionStatus, Reference, Supply, Timestamp,
    };
    use crate::section::Epoch;
    use cuckood_filter::hash::SECRET_BYTES;
    use cuckood_filter::{Digest, Filter, Growth, Layout, Mode, Secret};

    /// Less than a redemption takes.
    const REDEMPTION_BYTES: u64 = 100;

    fn ledger(redemptions: u64) -> Ledger {
        let secret = Secret::new([7; SECRET_BYTES]);
        let mut ledger = Ledger::new(Epoch(1), &secret, &Supply::default(), Default::default());
        for number in 0..redemptions {
            ledger.insert(Redemption {
                id: RedemptionId(u128::from(number).to_be_bytes()),
                digest: Digest(number),
                reference: Reference::new("order").unwrap(),
                status: RedemptionStatus::Redeemed,
                created_at: Timestamp(number),
                changed_at: Timestamp(number),
                expires_at: None,
                redeemed_at: None,
                details: RedemptionDetails::default(),
            });
        }
        ledger
    }

    fn strict(capacity: u64) -> Filter {
        let layout = Layout::strict(capacity).unwrap();
        Filter::new(Mode::Strict, layout, Growth::Auto, None)
    }

    /// For any size, a step frees hardly more than its limit. In the end everything is freed, also in the account.
    #[test]
    fn step_frees_bounded_number_of_entries() {
        let mut discarded = Discarded::default();
        discarded.push_ledger(Arc::new(RwLock::new(ledger(5_000))));
        let filter = strict(500_000);
        let tables_bytes = filter.tables().memory_bytes();
        discarded.tables.append(&mut filter.into_dropped());
        let records_bytes = discarded.records_bytes();
        assert!(records_bytes >= 5_000 * REDEMPTION_BYTES);
        let mut steps = 0;
        let mut all = 0;
        while !discarded.is_empty() {
            let before = (discarded.records_bytes(), discarded.tables.memory_bytes());
            let freed = discarded.free(1_000);
            assert!((1..=1_000 + 2_048).contains(&freed), "{freed} entries");
            let after = (discarded.records_bytes(), discarded.tables.memory_bytes());
            assert!(after.0 <= before.0 && after.1 <= before.1 && before != after);
            (steps, all) = (steps + 1, all + freed);
        }
        assert!(
            all >= 5_000 * 4 + tables_bytes / TABLE_BYTES_AN_ENTRY && steps > 15,
            "{all} entries in {steps}"
        );
        assert_eq!(discarded.free(1_000), 0);
    }

    /// Data in use by a reader is freed later, and delays nothing else.
    #[test]
    fn table_with_readers_is_freed_later() {
        let mut discarded = Discarded::default();
        let looked_at = Arc::new(RwLock::new(ledger(10)));
        let other = Arc::new(RwLock::new(ledger(10)));
        discarded.push_ledger(looked_at.clone());
        discarded.push_ledger(other);
        let filter = strict(500_000);
        let reader = filter.reader();
        discarded.tables.append(&mut filter.into_dropped());
        while discarded.free(100) > 0 {}
        assert_eq!(looked_at.read().len(), 10);
        assert!(discarded.records_bytes() > 0 && discarded.records_bytes() < 20_000);
        assert_eq!(
            discarded.tables.memory_bytes(),
            reader.view(0).memory_bytes()
        );
        drop((looked_at, reader));
        while discarded.free(100) > 0 {}
        assert!(discarded.is_empty());
    }
}
