//! Imports, piece by piece: what they add, how they are continued, and the swap at the end of `mode=replace`.

use super::slab::Slab;
use super::tables::Tables;
use super::{SWEEP_MAX, Staging, State};
use crate::domain::import::LINE_ERRORS_MAX;
use crate::domain::{
    Command, Import, ImportId, ImportMode, ImportState, ItemOutcome, Outcome, Refusal, Target, Timestamp,
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
            self.stage(target, id);
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
        let Some(mode) = self.running(target, &id) else {
            return Outcome::Refused(Refusal::ImportNotFound);
        };
        let Some(bearer) = self.filters.get_mut(&target.0) else {
            return Outcome::Refused(Refusal::FilterGone);
        };
        let tables = match (mode, &mut bearer.staging) {
            (ImportMode::Append, _) => &mut bearer.tables,
            (ImportMode::Replace, Some(staging)) if staging.import == id => &mut staging.tables,
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

    /// Ends an upload: a whole `replace` is swapped in, a broken one leaves no trace.
    pub(super) fn import_end(&mut self, target: Target, id: &ImportId, complete: bool) -> Outcome {
        let Some(mode) = self.running(target, id) else {
            return Outcome::Refused(Refusal::ImportNotFound);
        };
        if mode == ImportMode::Replace {
            if !complete {
                self.unstage(target);
            } else if self.swap(target, id).is_err() {
                return self.import_fails(target, id);
            }
        }
        let state = if complete { ImportState::Done } else { ImportState::Interrupted };
        self.answer_import(id, |import| import.state = state)
    }

    /// The mode of an import into this filter that is running.
    fn running(&self, target: Target, id: &ImportId) -> Option<ImportMode> {
        let imports = self.view.imports.read();
        imports
            .get(id)
            .filter(|import| import.state == ImportState::Running && import.filter == target.0)
            .map(|import| import.mode)
    }

    fn answer_import(&mut self, id: &ImportId, change: impl FnOnce(&mut Import)) -> Outcome {
        match self.view.imports.write().update(id, self.now, change) {
            Some(import) => Outcome::Import(Box::new(import.clone())),
            None => Outcome::Refused(Refusal::ImportNotFound),
        }
    }

    fn import_fails(&mut self, target: Target, id: &ImportId) -> Outcome {
        if self
            .filters
            .get(&target.0)
            .and_then(|bearer| bearer.staging.as_ref())
            .is_some_and(|s| s.import == *id)
        {
            self.unstage(target);
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
                self.unstage(Target(import.filter));
            }
        }
    }

    /// Marks an import whose filter or tables are gone.
    pub(super) fn interrupt(&mut self, id: &ImportId) {
        self.view.imports.write().update(id, self.now, |import| import.state = ImportState::Interrupted);
    }

    /// Sets empty tables up beside a filter's own. An import that was building there has lost its place.
    fn stage(&mut self, target: Target, import: ImportId) {
        self.unstage(target);
        let (epoch, writes_epoch) = (self.next_epoch(), self.next_epoch());
        if let Some(bearer) = self.filters.get_mut(&target.0) {
            let spec = &bearer.view.spec;
            let tables = Tables::new(epoch, spec.mode, bearer.view.layout, spec.growth);
            self.tables_bytes += tables.memory_bytes();
            bearer.staging = Some(Staging { import, tables, writes_epoch, writes: Slab::default() });
        }
    }

    fn unstage(&mut self, target: Target) {
        let staging = self.filters.get_mut(&target.0).and_then(|bearer| bearer.staging.take());
        if let Some(staging) = staging {
            self.tables_bytes -= staging.tables.memory_bytes();
            self.interrupt(&staging.import);
            self.snapshot.keep_tables_alive(staging.tables);
            self.snapshot.keep_writes_alive(staging.writes_epoch, staging.writes);
        }
    }

    /// Puts the tables built aside in the place of the filter's own: first the codes that are held or used come
    /// over, then the writes made meanwhile are repeated in order. Changes nothing if it doesn't all fit.
    fn swap(&mut self, target: Target, id: &ImportId) -> Result<(), Full> {
        let Some(bearer) = self.filters.get_mut(&target.0) else { return Err(Full) };
        let Some(mut staging) = bearer.staging.take_if(|staging| staging.import == *id) else {
            return Err(Full);
        };
        let before = staging.tables.memory_bytes();
        let built = repeat(&mut staging, &bearer.tables);
        self.tables_bytes = self.tables_bytes + staging.tables.memory_bytes() - before;
        if let Err(full) = built {
            bearer.staging = Some(staging);
            return Err(full);
        }
        let replaced = std::mem::replace(&mut bearer.tables, staging.tables);
        self.tables_bytes -= replaced.memory_bytes();
        let view = Arc::new(bearer.view.with_reader(bearer.tables.reader()));
        let counters = &view.counters;
        counters.removes.fetch_add(replaced.items(), Ordering::Relaxed);
        counters.adds.fetch_add(bearer.tables.items(), Ordering::Relaxed);
        bearer.view = view.clone();
        self.show(view);
        self.snapshot.keep_tables_alive(replaced);
        self.snapshot.keep_writes_alive(staging.writes_epoch, staging.writes);
        Ok(())
    }
}

/// Brings the tables built aside up to date with what has happened to the live ones meanwhile.
fn repeat(staging: &mut Staging, live: &Tables) -> Result<(), Full> {
    let Staging { tables, writes, .. } = staging;
    tables.take_over_used(live)?;
    // Held and used codes are as the live tables have them; the other writes are about available items.
    let untouched = |digest| matches!(live.state(digest), None | Some(SlotState::Available));
    for (_, write) in writes.iter() {
        match write {
            Command::Insert { digests, if_absent, .. } => drop(tables.insert_many(&digests.0, *if_absent)?),
            Command::Remove { digests, all, .. } => {
                for &digest in digests.0.iter().filter(|&&digest| untouched(digest)) {
                    while tables.remove(digest) && *all {}
                }
            }
            Command::Replace { from, to, .. } => {
                for (&from, &to) in from.0.iter().zip(&to.0) {
                    if from != to && untouched(from) && tables.count(from) > 0 {
                        tables.insert_many(&[to], false)?;
                        tables.remove(from);
                    }
                }
            }
            Command::Clear { .. } => drop(tables.clear()),
            _ => unreachable!("only changes to items are kept"),
        }
    }
    Ok(())
}
