//! The records of imports. An unfinished record is stored while its import runs, and for a time after an interruption. Of the finished
//! ones, each owner's last few are stored.

use crate::domain::{
    FilterId, IMPORTS_KEPT_MAX, IMPORTS_UNFINISHED_MAX, Import, ImportId, KeyName, Name, Refusal,
    Timestamp,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Memory of a record and its entries in the indexes, in bytes, rounded up. Texts and line errors are not counted.
const IMPORT_BYTES: u64 = 600;

/// The records of all imports.
#[derive(Debug, Default)]
pub struct Imports {
    records: BTreeMap<ImportId, Arc<Import>>,
    /// No unfinished import has its last change before this time.
    unmoved_since: Timestamp,
    bytes: u64,
}

/// Memory of a record without line errors, in bytes.
pub(super) fn record_bytes(id: &ImportId, owner: &KeyName, name: &Name) -> u64 {
    let texts = 3 * id.as_str().len() + 2 * owner.as_str().len() + name.as_str().len();
    IMPORT_BYTES + texts as u64
}

fn bytes_of(import: &Import) -> u64 {
    let lists = size_of_val(import.errors.as_slice()) + size_of_val(import.warnings.as_slice());
    record_bytes(&import.id, &import.owner, &import.name) + lists as u64
}

impl Imports {
    /// Restores the records from a snapshot.
    pub fn restore(imports: Vec<Import>) -> Self {
        let mut all = Self::default();
        imports.into_iter().for_each(|import| all.insert(import));
        all
    }

    /// Marks the imports whose items a filter has lost: at a clear all, at the end of a replacement those that started before it or with
    /// it. Items that arrive during a replacement are in its tables, too. A clear also empties the tables of the staged import.
    pub(super) fn overtake(
        &mut self,
        filter: FilterId,
        by: Option<&Import>,
        staged: Option<&ImportId>,
    ) {
        for import in self.records.values_mut() {
            let is_earlier =
                by.is_none_or(|by| by.id != import.id && import.started_at <= by.started_at);
            let has_items = import.counts.lines > 0 || staged == Some(&import.id);
            if import.filter == filter && is_earlier && has_items && !import.is_overtaken {
                Arc::make_mut(import).is_overtaken = true;
            }
        }
    }

    /// Every record, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Import>> {
        self.records.values()
    }

    /// One record.
    pub fn get(&self, id: &ImportId) -> Option<&Arc<Import>> {
        self.records.get(id)
    }

    /// Memory of all records, about.
    pub fn memory_bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes a record, if it is there, and returns it.
    pub fn update(
        &mut self,
        id: &ImportId,
        now: Timestamp,
        change: impl FnOnce(&mut Import),
    ) -> Option<&Import> {
        let import = Arc::make_mut(self.records.get_mut(id)?);
        self.bytes -= bytes_of(import);
        change(import);
        import.changed_at = now;
        self.bytes += bytes_of(import);
        Some(import)
    }

    /// Checks that an owner may start or continue this import. Deletes the owner's finished imports, except for the last ones.
    ///
    /// # Errors
    /// [`Refusal::TooManyImports`] when the owner has the maximum number of other unfinished imports.
    pub fn make_room(&mut self, owner: &KeyName, id: &ImportId) -> Result<(), Refusal> {
        let others = self
            .records
            .values()
            .filter(|import| import.owner == *owner && import.id != *id);
        let (unfinished, mut over): (Vec<_>, Vec<_>) =
            others.partition(|import| import.is_unfinished());
        if unfinished.len() >= IMPORTS_UNFINISHED_MAX {
            return Err(Refusal::TooManyImports);
        }
        over.sort_by_key(|import| (import.changed_at, &import.id));
        let spare = over.len().saturating_sub(IMPORTS_KEPT_MAX);
        let spare: Vec<ImportId> = over[..spare]
            .iter()
            .map(|import| import.id.clone())
            .collect();
        for id in spare {
            self.remove(&id);
        }
        Ok(())
    }

    /// Turns the time back: times after `now` become `now`.
    pub fn turn_back(&mut self, now: Timestamp) {
        for import in self.records.values_mut() {
            let import = Arc::make_mut(import);
            import.started_at = import.started_at.min(now);
            import.changed_at = import.changed_at.min(now);
        }
        self.unmoved_since = self.unmoved_since.min(now);
    }

    /// Stores a record. It replaces one with the same id.
    pub fn insert(&mut self, import: Import) {
        self.remove(&import.id);
        self.bytes += bytes_of(&import);
        self.unmoved_since = self.unmoved_since.min(import.changed_at);
        self.records.insert(import.id.clone(), Arc::new(import));
    }

    fn remove(&mut self, id: &ImportId) -> Option<Arc<Import>> {
        let import = self.records.remove(id)?;
        self.bytes -= bytes_of(&import);
        Some(import)
    }

    /// When the unfinished import that has not moved for the longest time was changed last, or earlier; none if there can be no such
    /// import. This is cheap, and [`Self::forget_unmoved`] makes it exact.
    pub fn unmoved_since(&self) -> Option<Timestamp> {
        let is_any = !self.records.is_empty() && self.unmoved_since < Timestamp::MAX;
        is_any.then_some(self.unmoved_since)
    }

    /// Deletes unfinished imports whose last change is not after `before`, at most `imports_max`, and returns them.
    pub fn forget_unmoved(&mut self, before: Timestamp, imports_max: usize) -> Vec<Arc<Import>> {
        let unfinished = self
            .records
            .values()
            .filter(|import| import.is_unfinished());
        let unmoved = unfinished.filter(|import| import.changed_at <= before);
        let ids: Vec<ImportId> = unmoved
            .map(|import| import.id.clone())
            .take(imports_max)
            .collect();
        let forgotten = ids.iter().filter_map(|id| self.remove(id)).collect();
        let left = self
            .records
            .values()
            .filter(|import| import.is_unfinished());
        self.unmoved_since = left
            .map(|import| import.changed_at)
            .min()
            .unwrap_or(Timestamp::MAX);
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{ImportBegin, ImportMode, ImportState, Kind, Target};
    use proptest::prelude::*;

    fn import(number: u64, owner: u64, mode: ImportMode, is_named: bool, now: Timestamp) -> Import {
        let begin = ImportBegin {
            target: Target(FilterId(1)),
            import: ImportId::new(&format!("i{number}")).unwrap(),
            mode,
            if_absent: false,
            guards: mode.guards(),
            owner: KeyName::new(&format!("key-{owner}")).unwrap(),
            is_named,
        };
        Import::begun(&begin, Kind::Campaign, Name::new("spring").unwrap(), now)
    }

    fn count(imports: &Imports, owner: &KeyName, unfinished: bool) -> usize {
        imports
            .iter()
            .filter(|i| i.owner == *owner && i.is_unfinished() == unfinished)
            .count()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// For any starts, ends and interruptions of imports: an unfinished one is deleted by age only, a finished one only for others of its
        /// owner, and the number of each is limited per owner.
        #[test]
        fn only_ended_imports_are_evicted(
            steps in proptest::collection::vec((0..8u8, 0..3u64, 0..200usize), 1..600),
            stock in 0..=IMPORTS_UNFINISHED_MAX,
        ) {
            let mut imports = Imports::default();
            for number in 0..stock as u64 {
                imports.insert(import(1_000_000 + number, 0, ImportMode::Append, true, Timestamp(5)));
            }
            let mut ids: Vec<ImportId> = Vec::new();
            for (at, (step, owner, which)) in (10..).zip(steps) {
                let now = Timestamp(at);
                let before = imports.records.clone();
                match (step, ids.get(which)) {
                    (0..4, _) => {
                        let mode = if which % 3 == 0 { ImportMode::Replace } else { ImportMode::Append };
                        let new = import(at, owner, mode, which % 2 == 0, now);
                        let owner = new.owner.clone();
                        let id = new.id.clone();
                        let is_full = count(&imports, &owner, true) >= IMPORTS_UNFINISHED_MAX;
                        prop_assert_eq!(imports.make_room(&owner, &id).is_err(), is_full);
                        if !is_full {
                            imports.insert(new);
                            ids.push(id);
                        }
                        prop_assert!(count(&imports, &owner, false) <= IMPORTS_KEPT_MAX);
                        for gone in before.values().filter(|import| imports.get(&import.id).is_none()) {
                            prop_assert!(gone.owner == owner && !gone.is_unfinished());
                        }
                    }
                    (4..7, Some(id)) => {
                        let state = [ImportState::Done, ImportState::Failed, ImportState::Interrupted];
                        imports.update(id, now, |import| import.state = state[usize::from(step - 4)]);
                    }
                    (7, _) => {
                        let limit = Timestamp(at.saturating_sub(which as u64));
                        let is_due = |import: &Import| import.is_unfinished() && import.changed_at <= limit;
                        prop_assert!(imports.unmoved_since().is_some_and(|since| since <= limit) || !imports.iter().any(|i| is_due(i)));
                        let forgotten = imports.forget_unmoved(limit, usize::MAX);
                        prop_assert!(forgotten.iter().all(|import| is_due(import)));
                        prop_assert!(!imports.iter().any(|import| is_due(import)));
                        prop_assert_eq!(forgotten.len() + imports.records.len(), before.len());
                    }
                    _ => {}
                }
            }
            let records = imports.iter().map(|import| Import::clone(import)).collect();
            let restored = Imports::restore(records);
            prop_assert_eq!(restored.memory_bytes(), imports.memory_bytes());
            prop_assert_eq!(imports.memory_bytes(), imports.iter().map(|i| bytes_of(i)).sum::<u64>());
        }
    }
}
