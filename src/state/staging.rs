//! What an import with `mode=replace` builds aside, and how it comes to take the place of the live tables.
//!
//! While the upload goes on, whatever is done to the filter's items is kept besides, in order. Once it is whole, what was built
//! aside *catches up*: codes that are held or used come over, and what was kept is repeated. Each command does a bounded part
//! of that. What happens meanwhile is kept as well, codes that are held, used or given back included. When nothing is left,
//! only the tables have to change places.
//!
//! What was refused is not kept. An item that was to be there or gone, and was, is: the upload may say otherwise.

use super::kept::{ChangeKind, KeptChange, KeptChanges};
use super::tables::Tables;
use super::{Epoch, State};
use crate::domain::{FilterId, ImportId, ImportState};
use crate::filter::{Digest, Full, SlotState, Walk};

/// The most changes that are kept for one import, 32 MiB. One that is overtaken by more fails; nobody else has to wait or is
/// refused because of it.
const KEPT_CHANGES_MAX: u64 = 2 << 20;

/// Waiting changes that each further one repeats while an import catches up: so they get fewer, however many come.
pub(super) const REPEATED_FOR_EACH: u64 = 2;

/// Buckets that may be walked in the time that one code takes to come over.
const BUCKETS_AN_ENTRY: u64 = 8;

/// Buckets that are walked at once.
const BUCKETS_AT_ONCE: u64 = 16;

/// Codes that come over at most beyond those asked for: what is met in the last buckets.
pub(super) const TAKEN_OVER_BESIDE: u64 = BUCKETS_AT_ONCE * 4;

/// Tables beside a filter's own.
pub(super) struct Staging {
    pub(super) import: ImportId,
    pub(super) tables: Tables,
    /// What has been done to the filter meanwhile.
    pub(super) changes: KeptChanges,
    /// The filter was cleared during the upload, and so is what the upload has built.
    pub(super) cleared: bool,
    /// Once the upload is whole: how far held and used codes have come over.
    pub(super) walk: Option<Walk>,
}

fn is_used(state: Option<SlotState>) -> bool {
    matches!(state, Some(SlotState::Held | SlotState::Redeemed))
}

impl Staging {
    pub(super) fn new(import: ImportId, tables: Tables, changes: Epoch) -> Self {
        Self { import, tables, changes: KeptChanges::new(changes), cleared: false, walk: None }
    }

    /// Whether the upload is whole.
    pub(super) fn is_catching_up(&self) -> bool {
        self.walk.is_some()
    }

    /// Takes held and used codes over from the live tables, then repeats changes, at most so many entries of each. Tells
    /// whether nothing is left to be done.
    fn catch_up(&mut self, live: &Tables, entries_max: u64) -> Result<bool, Full> {
        let entries_max = entries_max.max(1);
        let walked = self.take_over(live, entries_max)?;
        self.repeat(live, entries_max)?;
        if !walked || self.changes.len() > 0 {
            return Ok(false);
        }
        // A code that moved in the live tables may have been missed: then it is looked for again.
        let caught_up = self.tables.used() == live.used();
        if !caught_up {
            self.walk = Some(Walk::START);
        }
        Ok(caught_up)
    }

    /// Goes on with the walk; tells whether it has come to its end.
    fn take_over(&mut self, live: &Tables, entries_max: u64) -> Result<bool, Full> {
        let Some(walk) = &mut self.walk else { return Ok(false) };
        let (mut buckets, mut found, mut at_end) = (0, Vec::new(), false);
        while !at_end && buckets + found.len() as u64 * BUCKETS_AN_ENTRY < entries_max * BUCKETS_AN_ENTRY {
            let walked = live.walk_used(walk, BUCKETS_AT_ONCE, &mut found);
            buckets += walked;
            at_end = walked == 0;
        }
        found.into_iter().try_for_each(|(digest, state)| self.tables.put(digest, state))?;
        Ok(at_end)
    }

    /// Repeats the oldest changes, at most so many.
    fn repeat(&mut self, live: &Tables, changes_max: u64) -> Result<(), Full> {
        let mut left = changes_max;
        while left > 0 && self.changes.len() > 0 {
            let run = self.changes.first(left);
            repeat_all(&mut self.tables, live, run)?;
            left -= run.len() as u64;
            let repeated = run.len();
            self.changes.drop_first(repeated);
        }
        Ok(())
    }

    /// Puts empty tables in the place of those built so far, and answers these.
    fn empty(&mut self, tables: Tables) -> Tables {
        self.cleared = false;
        std::mem::replace(&mut self.tables, tables)
    }
}

/// Repeats changes of one kind.
fn repeat_all(tables: &mut Tables, live: &Tables, changes: &[KeptChange]) -> Result<(), Full> {
    let Some(KeptChange { kind, .. }) = changes.first() else { return Ok(()) };
    match kind {
        ChangeKind::Add | ChangeKind::AddIfAbsent => {
            let digests: Vec<Digest> = changes.iter().map(|change| change.digest).collect();
            tables.insert_many(&digests, *kind == ChangeKind::AddIfAbsent)?;
        }
        ChangeKind::Remove | ChangeKind::RemoveAll => {
            for &KeptChange { digest, .. } in changes {
                // A code that was added again since, and is used by now, is as the live tables have it.
                if !is_used(live.state(digest)) {
                    while tables.remove(digest) && *kind == ChangeKind::RemoveAll {}
                }
            }
        }
        ChangeKind::State => {
            for &KeptChange { digest, .. } in changes {
                match live.state(digest) {
                    Some(state) if is_used(Some(state)) => tables.put(digest, state)?,
                    _ if is_used(tables.state(digest)) => tables.set_state(digest, SlotState::Available),
                    _ => {}
                }
            }
        }
    }
    Ok(())
}

impl State {
    /// Keeps changes to a filter's items for the import that builds aside, if there is one. Each repeats a few that wait.
    pub(super) fn keep(
        &mut self,
        filter: FilterId,
        kind: ChangeKind,
        digests: impl IntoIterator<Item = Digest>,
    ) {
        self.keep_and_repeat(filter, kind, digests, REPEATED_FOR_EACH);
    }

    fn keep_and_repeat(
        &mut self,
        filter: FilterId,
        kind: ChangeKind,
        digests: impl IntoIterator<Item = Digest>,
        repeated_for_each: u64,
    ) {
        let kept = self.with_staging(filter, |staging, live| {
            let before = staging.changes.len();
            digests.into_iter().for_each(|digest| staging.changes.push(KeptChange { kind, digest }));
            let come = staging.changes.len() - before;
            if staging.changes.len() > KEPT_CHANGES_MAX {
                return Err(ImportState::Overtaken);
            }
            match staging.is_catching_up() {
                true => staging.repeat(live, come * repeated_for_each).map_err(|Full| ImportState::Failed),
                false => Ok(()),
            }
        });
        if let Some(Err(why)) = kept {
            self.give_staging_up(filter, why);
        }
    }

    /// Gives a code of the live tables another state, because a command says so.
    pub(super) fn set_code(&mut self, filter: FilterId, digest: Digest, state: SlotState) {
        self.set_code_and_repeat(filter, digest, state, REPEATED_FOR_EACH);
    }

    /// Gives a code of the live tables another state, because of the time: no command that comes then pays for it, so nothing is
    /// repeated, and no table grows.
    pub(super) fn set_code_by_time(&mut self, filter: FilterId, digest: Digest, state: SlotState) {
        self.set_code_and_repeat(filter, digest, state, 0);
    }

    fn set_code_and_repeat(&mut self, filter: FilterId, digest: Digest, state: SlotState, repeated: u64) {
        let Some(bearer) = self.filters.get_mut(&filter) else { return };
        bearer.tables.set_state(digest, state);
        // Until it begins to catch up, the walk that is to come meets it.
        if bearer.staging.as_ref().is_some_and(Staging::is_catching_up) {
            self.keep_and_repeat(filter, ChangeKind::State, [digest], repeated);
        }
    }

    /// Takes away what an import builds aside.
    pub(super) fn take_staging(&mut self, filter: FilterId) -> Option<Staging> {
        let staging = self.filters.get_mut(&filter)?.staging.take()?;
        self.catching_up -= u64::from(staging.is_catching_up());
        Some(staging)
    }

    /// Notes that a filter was cleared: so is what an import builds aside, at its end.
    pub(super) fn note_cleared(&mut self, filter: FilterId) {
        let catching_up = self.with_staging(filter, |staging, _| {
            staging.changes.clear();
            staging.cleared = true;
            staging.is_catching_up()
        });
        if catching_up == Some(true) {
            self.begin_catching_up(filter);
        }
    }

    /// The upload is whole: from here on it catches up. If it has begun to already, it begins anew.
    fn begin_catching_up(&mut self, filter: FilterId) {
        let cleared = self
            .filters
            .get(&filter)
            .and_then(|bearer| bearer.staging.as_ref())
            .is_some_and(|staging| staging.cleared);
        let empty = cleared.then(|| self.empty_tables(filter)).flatten();
        let replaced = self.with_staging(filter, |staging, _| {
            staging.walk = Some(Walk::START);
            empty.map(|empty| staging.empty(empty))
        });
        if let Some(replaced) = replaced.flatten() {
            self.snapshot.keep_tables_alive(replaced);
        }
    }

    /// Goes on with catching up, by at most so many entries. Tells whether the tables can be swapped.
    pub(super) fn catch_up(&mut self, filter: FilterId, entries_max: u64) -> Result<bool, Full> {
        let begun = self.with_staging(filter, |staging, _| staging.is_catching_up());
        if begun == Some(false) {
            self.begin_catching_up(filter);
        }
        self.with_staging(filter, |staging, live| staging.catch_up(live, entries_max)).unwrap_or(Err(Full))
    }

    /// Does something to what an import builds aside, and keeps the figures of memory right.
    fn with_staging<T>(
        &mut self,
        filter: FilterId,
        change: impl FnOnce(&mut Staging, &Tables) -> T,
    ) -> Option<T> {
        let bearer = self.filters.get_mut(&filter)?;
        let staging = bearer.staging.as_mut()?;
        let (bytes, kept) = (staging.tables.memory_bytes(), staging.changes.len());
        let was_catching_up = staging.is_catching_up();
        let done = change(staging, &bearer.tables);
        self.catching_up += u64::from(!was_catching_up && staging.is_catching_up());
        self.tables_bytes = self.tables_bytes + staging.tables.memory_bytes() - bytes;
        self.kept_changes = self.kept_changes + staging.changes.len() - kept;
        Some(done)
    }
}
