//! The commands of imports: start, lines, end; and the swap at the end of `mode=replace`.

use super::machine::{SWEEP_MAX, SharedState, State, Subject};
use super::staging::Staging;
use crate::domain::{
    Count, Ending, FilterId, Guards, Happened, Import, ImportBegin, ImportEnd, ImportId,
    ImportLines, ImportMode, ImportState, ItemOutcome, Meaning, Outcome, Refusal, Timestamp,
    Tripped,
};
use cuckood_filter::{Full, SlotState};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Subject<'_> {
    /// Starts an import, continues an interrupted `append`, restarts an interrupted `replace`, or returns the result of a finished one.
    /// Until it has finished its guards may be changed. It rejects results and lines whose items were cleared or replaced since.
    pub(super) fn import_begin(&mut self, begin: &ImportBegin) -> Result<Outcome, Refusal> {
        self.filter.view.require_added_codes()?;
        let &ImportBegin {
            import: ref id,
            mode,
            if_absent,
            guards,
            is_named,
            ..
        } = begin;
        let now = self.shared.now;
        let known = self.shared.view.imports.read().get(id).cloned();
        if let Some(known) = &known {
            if known.filter != self.filter.view.id
                || known.mode != mode
                || known.if_absent != if_absent
            {
                return Err(Refusal::ImportDiffers);
            }
            let is_done = known.state == ImportState::Done;
            if is_done && known.guards != guards {
                return Err(Refusal::ImportDiffers);
            }
            // A replacement that is not done starts over.
            if known.is_overtaken && (is_done || mode == ImportMode::Append) {
                return Err(Refusal::ImportOvertaken);
            }
            if is_done {
                return Ok(Outcome::Import(Box::new(Import::clone(known))));
            }
        }
        let import = match known {
            Some(known) if mode == ImportMode::Append => {
                let state = ImportState::Running;
                Import {
                    state,
                    guards,
                    is_named,
                    changed_at: now,
                    ..Import::clone(&known)
                }
            }
            known => {
                let owner = known.map_or_else(|| begin.owner.clone(), |known| known.owner.clone());
                Import {
                    owner,
                    ..Import::begun(
                        begin,
                        self.filter.view.kind,
                        self.filter.view.name.clone(),
                        now,
                    )
                }
            }
        };
        self.shared
            .view
            .imports
            .write()
            .make_room(&import.owner, id)?;
        if mode == ImportMode::Replace {
            self.stage(id.clone());
        }
        self.shared.view.imports.write().insert(import.clone());
        Ok(Outcome::Import(Box::new(import)))
    }

    /// Adds the next piece of an upload: all of it or, if the filter is full or a guard trips, nothing.
    pub(super) fn import_lines(
        &mut self,
        piece: &ImportLines,
        running: &Import,
    ) -> Result<Outcome, Refusal> {
        let id = &piece.import;
        let digests = &piece.digests.0;
        let &Import {
            mode,
            if_absent,
            guards,
            counts,
            ..
        } = running;
        let rejected = counts.rejected + piece.rejected;
        let allowed = guards.allow_rejected(rejected, piece.errors.last().copied());
        allowed.map_err(|tripped| self.import_trips(id, tripped))?;
        let tables = match mode {
            ImportMode::Append => &mut self.filter.tables,
            ImportMode::Replace => {
                let staging = self.filter.staging.as_mut();
                let staging =
                    staging.filter(|staging| staging.import == *id && !staging.is_catching_up());
                &mut staging.ok_or(Refusal::ImportNotFound)?.tables
            }
        };
        let Ok(mut outcomes) = tables.insert_many(digests, if_absent) else {
            return Err(self.import_fails(id, ImportState::Failed, Refusal::FilterFull));
        };
        if mode == ImportMode::Replace {
            // A code that is redeemed in the live tables will be so in the staged ones.
            for (outcome, &digest) in outcomes.iter_mut().zip(digests) {
                if self.filter.tables.filter.state(digest) == Some(SlotState::Redeemed) {
                    *outcome = ItemOutcome::AlreadyRedeemed;
                }
            }
        }
        if mode == ImportMode::Append {
            let added = outcomes
                .iter()
                .filter(|outcome| **outcome == ItemOutcome::Added)
                .count() as u64;
            self.filter
                .view
                .counters
                .adds
                .fetch_add(added, Ordering::Relaxed);
            self.count(Count::Imported, added);
            self.put_back(digests, &outcomes);
            self.queue_inserted(digests, &outcomes, if_absent);
        }
        self.shared.answer_import(id, |import| {
            import.count_lines(&outcomes, piece.lines, piece.rejected, &piece.errors);
            import.chain = piece.chain;
        })
    }

    /// Ends an upload. With `mode=replace`, the staged tables of an interrupted upload are dropped. Those of a complete one are swapped in
    /// once they have caught up: until then the import is still running, and each further end advances it by at most `entries_max` entries.
    ///
    /// A tripped guard fails the import: too few items immediately, and too much shrinkage once all queued changes are repeated.
    pub(super) fn import_end(
        &mut self,
        end: &ImportEnd,
        running: &Import,
    ) -> Result<Outcome, Refusal> {
        let ImportEnd {
            import: id,
            ending,
            entries_max,
            ..
        } = end;
        let Ending::Whole { upload, warnings } = ending else {
            let state = if *ending == Ending::Stopped {
                ImportState::Stopped
            } else {
                ImportState::Interrupted
            };
            if running.mode == ImportMode::Replace {
                self.abort_staging(state);
            }
            return self.shared.answer_import(id, |import| import.state = state);
        };
        let &Import { mode, guards, .. } = running;
        guards
            .allow_items(running.items())
            .map_err(|tripped| self.import_trips(id, tripped))?;
        if mode == ImportMode::Replace {
            match self.catch_up((*entries_max).into()) {
                Ok(true) => {
                    self.swap(&guards)
                        .map_err(|tripped| self.import_trips(id, tripped))?;
                    self.overtake_imports(Some(running));
                    self.count(Count::Imported, running.counts.added);
                }
                Ok(false) => return self.shared.answer_import(id, |_| ()),
                Err(Full) => {
                    return Err(self.import_fails(id, ImportState::Failed, Refusal::FilterFull));
                }
            }
        }
        self.shared.answer_import(id, |import| {
            import.state = ImportState::Done;
            import.upload = Some(*upload);
            import.warnings = warnings.clone();
        })
    }

    /// Marks the imports whose items a clear, or this replacement, has removed.
    pub(super) fn overtake_imports(&mut self, by: Option<&Import>) {
        if self.shared.has(Meaning::OvertakenImports) {
            let staged = self.filter.staging.as_ref().map(|staging| &staging.import);
            self.shared
                .view
                .imports
                .write()
                .overtake(self.filter.view.id, by, staged);
        }
    }

    /// Ends an import that can't continue, with the reason.
    fn import_fails(&mut self, id: &ImportId, state: ImportState, why: Refusal) -> Refusal {
        if Staging::is_of(&self.filter.staging, id) {
            self.abort_staging(state);
        } else {
            self.shared.update_import(id, |import| import.state = state);
        }
        why
    }

    fn import_trips(&mut self, id: &ImportId, tripped: Tripped) -> Refusal {
        self.import_fails(
            id,
            ImportState::Guarded(tripped),
            Refusal::ImportGuarded(tripped),
        )
    }

    /// Lets the staged tables catch up by at most `entries_max` entries. Returns whether they have.
    fn catch_up(&mut self, entries_max: u64) -> Result<bool, Full> {
        if self
            .filter
            .staging
            .as_ref()
            .is_some_and(|staging| !staging.is_catching_up())
        {
            self.begin_catching_up();
        }
        let staging = self.filter.staging.as_mut().ok_or(Full)?;
        let ledger = self.filter.view.ledger.read();
        staging.catch_up(&self.filter.tables, &ledger, entries_max)
    }

    /// Replaces the live tables by the staged ones, which have caught up.
    ///
    /// # Errors
    /// The guard that forbids it.
    fn swap(&mut self, guards: &Guards) -> Result<(), Tripped> {
        let after = self
            .filter
            .staging
            .as_ref()
            .map_or(0, |staging| staging.tables.available());
        guards.allow_swap(self.filter.tables.available(), after)?;
        let Some(staging) = self.filter.staging.take() else {
            return Ok(());
        };
        let replaced = std::mem::replace(&mut self.filter.tables, staging.tables);
        let is_any_used = self.filter.tables.used() != (0, 0);
        let pool = staging.membership.filter(|_| is_any_used);
        let mut ledger = self.filter.view.ledger.write();
        ledger.membership.replace(pool.unwrap_or_default());
        drop(ledger);
        // Where users are forgotten, all that are there now count as added now: the upload may have taken long.
        self.filter
            .tables
            .advance(&self.filter.view.spec, self.shared.now);
        let counters = &self.filter.view.counters;
        counters
            .removes
            .fetch_add(replaced.filter.items(), Ordering::Relaxed);
        counters
            .adds
            .fetch_add(self.filter.tables.filter.items(), Ordering::Relaxed);
        let reader = self.filter.tables.filter.reader();
        self.change_view(|view| view.reader = reader);
        self.shared.drop_tables(replaced);
        Ok(())
    }
}

impl SharedState {
    /// Changes the record of an import, if there is one, and returns it. Reports the end of one that was running.
    pub(super) fn update_import(
        &mut self,
        id: &ImportId,
        change: impl FnOnce(&mut Import),
    ) -> Option<Import> {
        let mut imports = self.view.imports.write();
        let was_running = imports.get(id)?.state == ImportState::Running;
        let import = imports.update(id, self.now, change)?.clone();
        drop(imports);
        if was_running && import.state != ImportState::Running {
            self.record_ended_import(&import);
        }
        Some(import)
    }

    /// A running import into this filter.
    ///
    /// # Errors
    /// Why it is not running.
    pub(super) fn running_import(
        &self,
        filter: FilterId,
        id: &ImportId,
    ) -> Result<Arc<Import>, Refusal> {
        let imports = self.view.imports.read();
        let import = imports.get(id).filter(|import| import.filter == filter);
        let import = import.ok_or(Refusal::ImportNotFound)?;
        match import.state {
            ImportState::Running => Ok(import.clone()),
            ImportState::Overtaken => Err(Refusal::ImportOvertaken),
            ImportState::Failed => Err(Refusal::FilterFull),
            ImportState::Guarded(tripped) => Err(Refusal::ImportGuarded(tripped)),
            ImportState::Done | ImportState::Interrupted | ImportState::Stopped => {
                Err(Refusal::ImportNotFound)
            }
        }
    }

    /// Changes the record of an import, which is the response.
    fn answer_import(
        &mut self,
        id: &ImportId,
        change: impl FnOnce(&mut Import),
    ) -> Result<Outcome, Refusal> {
        let import = self
            .update_import(id, change)
            .ok_or(Refusal::ImportNotFound)?;
        Ok(Outcome::Import(Box::new(import)))
    }

    /// Ends all running imports into a filter that is being deleted: they can't be continued.
    pub(super) fn interrupt_imports(&mut self, filter: FilterId) {
        for import in self.view.imports() {
            if import.filter == filter && import.state == ImportState::Running {
                self.update_import(&import.id, |import| import.state = ImportState::Interrupted);
            }
        }
    }

    /// Reports the end of an import.
    fn record_ended_import(&mut self, import: &Import) {
        self.events.record(self.now, || Happened::ImportEnded {
            kind: import.kind,
            name: Cow::Borrowed(import.name.as_str()),
            import: Cow::Borrowed(import.id.as_str()),
            mode: import.mode,
            state: import.state,
            counts: import.counts,
        });
    }
}

impl State {
    /// Deletes unfinished imports that were not continued within the retention time.
    pub(super) fn forget_unmoved_imports(&mut self) {
        let retention_ms = self
            .shared
            .settings
            .imports_retention_seconds
            .saturating_mul(1_000);
        let Some(before) = self.shared.now.0.checked_sub(retention_ms).map(Timestamp) else {
            return;
        };
        if self
            .shared
            .view
            .imports
            .read()
            .unmoved_since()
            .is_none_or(|since| since > before)
        {
            return;
        }
        let forgotten = self
            .shared
            .view
            .imports
            .write()
            .forget_unmoved(before, SWEEP_MAX);
        for import in forgotten {
            if import.state == ImportState::Running {
                let state = ImportState::Interrupted;
                self.shared.record_ended_import(&Import {
                    state,
                    ..Import::clone(&import)
                });
            }
            // Its filter may be deleted.
            let _ = self.on(import.filter, |subject| {
                if Staging::is_of(&subject.filter.staging, &import.id) {
                    subject.abort_staging(ImportState::Interrupted);
                }
            });
        }
    }
}
