//! The log's entries that `cuckood repair skip` has marked: no replay of this directory applies them.

use super::backing::Change;
use super::{META_TREE, Store, StoreError, layout};
use crate::domain::{Seq, Timestamp};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

impl Store {
    /// Marks an entry as skipped, at this time by the machine's clock. The mark is durable on return, and is never removed.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    pub fn mark_skipped(&self, entry: Seq, at: Timestamp) -> Result<(), StoreError> {
        let key = [layout::SKIPPED_KEYS, &layout::number_key(entry.0)].concat();
        self.write(META_TREE, vec![Change::Put(key, at.0.to_le_bytes().to_vec())])?;
        self.flush()?;
        self.sync()
    }

    /// The marked entries, and when each was marked.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn skipped_entries(&self) -> Result<BTreeMap<Seq, Timestamp>, StoreError> {
        let mut found = BTreeMap::new();
        let mut is_damaged = false;
        self.run(self.backing().scan(META_TREE, layout::SKIPPED_KEYS, &mut |key, value| {
            let Some(entry) = key.strip_prefix(layout::SKIPPED_KEYS) else { return ControlFlow::Break(()) };
            match (layout::number_of_key(entry), value.try_into().map(u64::from_le_bytes)) {
                (Some(entry), Ok(at)) => drop(found.insert(Seq(entry), Timestamp(at))),
                _ => is_damaged = true,
            }
            ControlFlow::Continue(())
        }))?;
        if is_damaged {
            Err(self.damaged("tree meta: the mark of a skipped entry is damaged"))
        } else {
            Ok(found)
        }
    }
}
