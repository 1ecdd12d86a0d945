//! The records of imports: those that run, and the last ones that ended.

use crate::domain::import::IMPORTS_KEPT_MAX;
use crate::domain::{Import, ImportId, ImportState, Timestamp};
use std::collections::BTreeMap;

/// Records of imports by id, at most [`IMPORTS_KEPT_MAX`] of them.
#[derive(Clone, Debug, Default)]
pub struct Imports(BTreeMap<ImportId, Import>);

impl Imports {
    /// The records of a snapshot.
    pub fn restore(imports: Vec<Import>) -> Self {
        Self(imports.into_iter().map(|import| (import.id.clone(), import)).collect())
    }

    /// Every record, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Import> {
        self.0.values()
    }

    /// One record.
    pub fn get(&self, id: &ImportId) -> Option<&Import> {
        self.0.get(id)
    }

    /// Changes a record.
    pub fn update(
        &mut self,
        id: &ImportId,
        now: Timestamp,
        change: impl FnOnce(&mut Import),
    ) -> Option<&Import> {
        let import = self.0.get_mut(id)?;
        change(import);
        import.changed_at = now;
        Some(import)
    }

    /// Enters a record and forgets the one that has ended longest ago, if there are too many; if none has
    /// ended, the one that has not moved for longest.
    pub fn insert(&mut self, import: Import) {
        self.0.insert(import.id.clone(), import);
        if self.0.len() > IMPORTS_KEPT_MAX {
            let oldest = self
                .0
                .values()
                .min_by_key(|import| (import.state == ImportState::Running, import.changed_at, &import.id))
                .map(|import| import.id.clone());
            if let Some(oldest) = oldest {
                self.0.remove(&oldest);
            }
        }
    }
}
