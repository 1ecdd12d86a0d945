//! Imports, piece by piece: what they add, how they are continued, and the swap at the end of `mode=replace`.

use super::staging::Staging;
use super::tables::Tables;
use super::{SWEEP_MAX, State};
use crate::domain::import::LINE_ERRORS_MAX;
use crate::domain::{
    Command, FilterId, Import, ImportId, ImportMode, ImportState, ItemOutcome, Outcome, Refusal, Target,
    Timestamp,
};
use crate::filter::{Full, SlotState};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl State {
    /// Begins an import, continues a broken `append`, begins a broken `replace` anew, or answers a finished one.
    pub(super) fn import_begin(&mut self, command: Command) -> Outcome {
        let Command::ImportBegin { target, import: id, mode, owner, is_named } = command else {
            unreachable!("import_begin is called for the beginnings of imports")
        };
        let Some(bearer) = self.filters.get(&target.0) else {
            return Outcome::Refused(Refusal::FilterGone);
        };
        let mut import = Import {
            id: id.clone(),
            owner,
            is_named,
            filter: target.0,
            kind: bearer.view.kind,
            name: bearer.view.name.clone(),
            mode,
            state: ImportState::Running,
            started_at: self.now,
            changed_at: self.now,
            lines: 0,
            added: 0,
            already_present: 0,
            already_redeemed: 0,
            rejected: 0,
            errors: Vec::new(),
            chain: 0,
        };
        let known = self.view.imports.read().get(&id).cloned();
        if let Some(known) = known {
            if known.filter != target.0 || known.mode != mode {
                return Outcome::Refused(Refusal::ImportDiffers);
            }
            if known.state == ImportState::Done {
                return Outcome::Import(Box::new(Import::clone(&known)));
            }
            import.owner = known.owner.clone();
            if mode == ImportMode::Append {
                let known = Import::clone(&known);
                import = Import { state: ImportState::Running, is_named, changed_at: self.now, ..known };
            }
        }
        if self.view.imports.write().make_room(&import.owner, &id).is_err() {
            return Outcome::Refused(Refusal::TooManyImports);
        }
        if mode == ImportMode::Replace {
            self.stage(target.0, id);
        }
        self.view.imports.write().insert(import.clone());
        Outcome::Import(Box::new(import))
    }

    /// Takes the next piece in, all of it or, if the filter is full, none.
    pub(super) fn import_lines(&mut self, command: Command) -> Outcome {
        let Command::ImportLines { target, import: id, digests, lines, rejected, errors, chain } = command
        else {
            unreachable!("import_lines is called for pieces of imports")
        };
        let mode = match self.running(target, &id) {
            Ok(mode) => mode,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        let Some(bearer) = self.filters.get_mut(&target.0) else {
            return Outcome::Refused(Refusal::FilterGone);
        };
        let tables = match (mode, &mut bearer.staging) {
            (ImportMode::Append, _) => &mut bearer.tables,
            (ImportMode::Replace, Some(staging)) if staging.import == id && !staging.is_catching_up() => {
                &mut staging.tables
            }
            (ImportMode::Replace, _) => return Outcome::Refused(Refusal::ImportNotFound),
        };
        let before = tables.memory_bytes();
        let inserted = tables.insert_many(&digests.0, false);
        self.tables_bytes = self.tables_bytes + tables.memory_bytes() - before;
        let Ok(mut outcomes) = inserted else { return self.import_fails(target, &id) };

        if mode == ImportMode::Replace {
            // A code that is used in the live tables stays used after the swap.
            for (outcome, &digest) in outcomes.iter_mut().zip(&digests.0) {
                if bearer.tables.state(digest) == Some(SlotState::Redeemed) {
                    *outcome = ItemOutcome::AlreadyRedeemed;
                }
            }
        }
        let count = |wanted| outcomes.iter().filter(|&&outcome| outcome == wanted).count() as u64;
        let (added, already_redeemed) = (count(ItemOutcome::Added), count(ItemOutcome::AlreadyRedeemed));
        if mode == ImportMode::Append {
            bearer.view.counters.adds.fetch_add(added, Ordering::Relaxed);
            self.keep_inserted(target.0, &digests.0, &outcomes, false);
        }
        self.answer_import(&id, |import| {
            import.lines += lines;
            import.added += added;
            import.already_redeemed += already_redeemed;
            import.already_present += digests.0.len() as u64 - added - already_redeemed;
            import.rejected += rejected;
            let room = LINE_ERRORS_MAX - import.errors.len();
            import.errors.extend(errors.into_iter().take(room));
            import.chain = chain;
        })
    }

    /// Ends an upload. What a whole one with `mode=replace` has built is swapped in once it has caught up: the import runs on
    /// until then, and is to be ended again. What a broken one has built is dropped.
    pub(super) fn import_end(
        &mut self,
        target: Target,
        id: &ImportId,
        complete: bool,
        entries_max: u32,
    ) -> Outcome {
        let mode = match self.running(target, id) {
            Ok(mode) => mode,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        let state = match (mode, complete) {
            (_, false) => ImportState::Interrupted,
            (ImportMode::Append, true) => ImportState::Done,
            (ImportMode::Replace, true) => match self.catch_up(target.0, u64::from(entries_max)) {
                Ok(true) => {
                    self.swap(target.0);
                    ImportState::Done
                }
                Ok(false) => ImportState::Running,
                Err(Full) => return self.import_fails(target, id),
            },
        };
        if mode == ImportMode::Replace && !complete {
            self.unstage(target.0);
        }
        self.answer_import(id, |import| import.state = state)
    }

    /// The mode of an import into this filter, if it is running.
    fn running(&self, target: Target, id: &ImportId) -> Result<ImportMode, Refusal> {
        let imports = self.view.imports.read();
        let import = imports.get(id).filter(|import| import.filter == target.0);
        match import.map(|import| (import.state, import.mode)) {
            Some((ImportState::Running, mode)) => Ok(mode),
            Some((ImportState::Overtaken, _)) => Err(Refusal::ImportOvertaken),
            Some((ImportState::Failed, _)) => Err(Refusal::FilterFull),
            _ => Err(Refusal::ImportNotFound),
        }
    }

    fn answer_import(&mut self, id: &ImportId, change: impl FnOnce(&mut Import)) -> Outcome {
        match self.view.imports.write().update(id, self.now, change) {
            Some(import) => Outcome::Import(Box::new(import.clone())),
            None => Outcome::Refused(Refusal::ImportNotFound),
        }
    }

    fn import_fails(&mut self, target: Target, id: &ImportId) -> Outcome {
        if self.staging_import(target.0) == Some(id) {
            self.unstage(target.0);
        }
        self.answer_import(id, |import| import.state = ImportState::Failed);
        Outcome::Refused(Refusal::FilterFull)
    }

    /// Forgets imports that were broken off long ago, or whose upload died with its process.
    pub(super) fn forget_unmoved_imports(&mut self) {
        let retention_ms = self.settings.imports_retention_seconds.saturating_mul(1_000);
        let Some(before) = self.now.0.checked_sub(retention_ms).map(Timestamp) else { return };
        if !self.view.imports.read().may_be_unmoved(before) {
            return;
        }
        let forgotten = self.view.imports.write().forget_unmoved(before, SWEEP_MAX);
        for import in forgotten {
            let staging = self.filters.get(&import.filter).and_then(|bearer| bearer.staging.as_ref());
            if staging.is_some_and(|staging| staging.import == import.id) {
                self.unstage(import.filter);
            }
        }
    }

    /// The import that builds aside.
    fn staging_import(&self, filter: FilterId) -> Option<&ImportId> {
        Some(&self.filters.get(&filter)?.staging.as_ref()?.import)
    }

    /// Marks an import whose filter or tables are gone.
    pub(super) fn interrupt(&mut self, id: &ImportId) {
        self.view.imports.write().update(id, self.now, |import| import.state = ImportState::Interrupted);
    }

    /// Empty tables for a filter.
    pub(super) fn empty_tables(&mut self, filter: FilterId) -> Option<Tables> {
        let epoch = self.next_epoch();
        let view = &self.filters.get(&filter)?.view;
        Some(Tables::new(epoch, view.spec.mode, view.layout, view.spec.growth))
    }

    /// Sets empty tables up beside a filter's own. An import that was building there has lost its place.
    fn stage(&mut self, filter: FilterId, import: ImportId) {
        self.unstage(filter);
        let changes = self.next_epoch();
        let Some(tables) = self.empty_tables(filter) else { return };
        if let Some(bearer) = self.filters.get_mut(&filter) {
            self.tables_bytes += tables.memory_bytes();
            bearer.staging = Some(Staging::new(import, tables, changes));
        }
    }

    fn unstage(&mut self, filter: FilterId) {
        if let Some(staging) = self.take_staging(filter) {
            self.interrupt(&staging.import);
            self.drop_staging(staging);
        }
    }

    /// Drops what an import has built aside, and says what became of it.
    pub(super) fn give_staging_up(&mut self, filter: FilterId, why: ImportState) {
        if let Some(staging) = self.take_staging(filter) {
            self.view.imports.write().update(&staging.import, self.now, |import| import.state = why);
            self.drop_staging(staging);
        }
    }

    pub(super) fn drop_staging(&mut self, staging: Staging) {
        self.tables_bytes -= staging.tables.memory_bytes();
        self.kept_changes -= staging.changes.len();
        self.snapshot.keep_tables_alive(staging.tables);
        self.snapshot.keep_changes_alive(staging.changes);
    }

    /// Puts the tables built aside in the place of the filter's own. They have caught up.
    fn swap(&mut self, filter: FilterId) {
        let Some(staging) = self.take_staging(filter) else { return };
        let Some(bearer) = self.filters.get_mut(&filter) else { return };
        let replaced = std::mem::replace(&mut bearer.tables, staging.tables);
        self.tables_bytes -= replaced.memory_bytes();
        let view = Arc::new(bearer.view.with_reader(bearer.tables.reader()));
        let counters = &view.counters;
        counters.removes.fetch_add(replaced.items(), Ordering::Relaxed);
        counters.adds.fetch_add(bearer.tables.items(), Ordering::Relaxed);
        bearer.view = view.clone();
        self.show(view);
        self.snapshot.keep_tables_alive(replaced);
        self.snapshot.keep_changes_alive(staging.changes);
    }
}
