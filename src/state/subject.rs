//! The filter that a command is about: the command looks it up once, and then works on it here.

use super::kept::ChangeKind;
use super::loading::Loading;
use super::machine::{FilterState, Shared, State};
use super::staging::{REPEATED_FOR_EACH, Staging};
use super::tables::Tables;
use super::view::FilterView;
use crate::domain::{
    FilterId, Happened, ImportId, ImportState, ItemOutcome, Redemption, RedemptionStep, Refusal, Status,
};
use crate::filter::{Digest, SlotState};
use std::borrow::Cow;
use std::sync::Arc;

/// The filter that a command works on, and what all filters share.
pub(super) struct Subject<'a> {
    pub(super) view: &'a mut Arc<FilterView>,
    pub(super) tables: &'a mut Tables,
    pub(super) staging: &'a mut Option<Staging>,
    pub(super) loading: &'a mut Option<Box<Loading>>,
    pub(super) shared: &'a mut Shared,
}

/// Works on a filter, and brings totals and agenda up to date afterwards.
fn work_on<T>(filter: &mut FilterState, shared: &mut Shared, work: impl FnOnce(&mut Subject<'_>) -> T) -> T {
    let FilterState { view, tables, staging, loading, .. } = filter;
    let done = work(&mut Subject { view, tables, staging, loading, shared });
    shared.note(filter);
    done
}

impl State {
    /// Works on the filter with this id as it is at the present time.
    ///
    /// # Errors
    /// [`Refusal::FilterGone`] if there is none.
    pub(super) fn on<T>(
        &mut self,
        filter: FilterId,
        work: impl FnOnce(&mut Subject<'_>) -> T,
    ) -> Result<T, Refusal> {
        let filter = self.filters.get_mut(&filter).ok_or(Refusal::FilterGone)?;
        Ok(work_on(filter, &mut self.shared, |filter| {
            filter.shared.users_forgotten += filter.tables.advance(&filter.view.spec, filter.shared.now);
            work(filter)
        }))
    }

    /// Works on the filter with this id as the last entry about it has left it: one that was just restored, or is hidden.
    pub(super) fn on_as_it_is<T>(
        &mut self,
        filter: FilterId,
        work: impl FnOnce(&mut Subject<'_>) -> T,
    ) -> Option<T> {
        let filter = self.filters.get_mut(&filter)?;
        Some(work_on(filter, &mut self.shared, work))
    }

    /// Works on every filter, in the order of their ids. They are as the last entries about them have left them.
    pub(super) fn on_each(&mut self, mut work: impl FnMut(&mut Subject<'_>)) {
        for filter in self.filters.values_mut() {
            work_on(filter, &mut self.shared, &mut work);
        }
    }
}

impl Subject<'_> {
    /// Reports a change of a redemption. Nobody asks for the end of a hold, or for a hold to stand again.
    pub(super) fn tell_redemption(&mut self, redemption: &Redemption, step: RedemptionStep) {
        let what = || Happened::Redemption {
            coupon: Cow::Borrowed(self.view.name.as_str()),
            id: redemption.id,
            reference: Cow::Borrowed(redemption.reference.as_str()),
            step,
            status: redemption.status,
            expires_at: redemption.expires_at.filter(|_| redemption.status == Status::Held),
            ordinal: redemption.ordinal,
        };
        let now = self.shared.now;
        match step {
            RedemptionStep::Expired | RedemptionStep::HeldAgain => self.shared.events.tell_unasked(now, what),
            _ => self.shared.events.tell(now, what),
        }
    }

    /// Gives a code another state, because a command says so.
    pub(super) fn set_code(&mut self, digest: Digest, state: SlotState) {
        self.set_code_and_repeat(digest, state, REPEATED_FOR_EACH);
    }

    /// Gives a code another state, because of the time. No command pays for that, so no kept change is repeated for it, and no table
    /// grows.
    pub(super) fn set_code_by_time(&mut self, digest: Digest, state: SlotState) {
        self.set_code_and_repeat(digest, state, 0);
    }

    fn set_code_and_repeat(&mut self, digest: Digest, state: SlotState, repeated: u64) {
        self.tables.filter.set_state(digest, state);
        // Before an import begins to catch up this need not be kept: its walk will find the code in this state.
        if self.staging.as_ref().is_some_and(Staging::is_catching_up) {
            self.keep_and_repeat(ChangeKind::State, [digest], repeated);
        }
    }

    /// Keeps changes of items for the import that builds tables aside, if there is one.
    pub(super) fn keep(&mut self, kind: ChangeKind, digests: impl IntoIterator<Item = Digest>) {
        self.keep_and_repeat(kind, digests, REPEATED_FOR_EACH);
    }

    fn keep_and_repeat(
        &mut self,
        kind: ChangeKind,
        digests: impl IntoIterator<Item = Digest>,
        repeated_for_each: u64,
    ) {
        let Some(staging) = self.staging else { return };
        if let Err(why) = staging.keep(self.tables, kind, digests, repeated_for_each) {
            self.give_staging_up(why);
        }
    }

    /// Keeps an insert for the import that builds tables aside. Redeemed codes among its items have not changed.
    pub(super) fn keep_inserted(&mut self, digests: &[Digest], outcomes: &[ItemOutcome], if_absent: bool) {
        let kind = if if_absent { ChangeKind::AddIfAbsent } else { ChangeKind::Add };
        let taken = outcomes.iter().zip(digests).filter(|(o, _)| **o != ItemOutcome::AlreadyRedeemed);
        self.keep(kind, taken.map(|(_, &digest)| digest));
    }

    /// Clears what an import builds aside, because the filter was cleared. If the upload still goes on, that is done at its end.
    pub(super) fn clear_staging(&mut self) {
        let Some(staging) = self.staging else { return };
        staging.changes.clear();
        staging.cleared = true;
        if staging.is_catching_up() {
            self.begin_catching_up();
        }
    }

    /// Lets the staged tables begin to catch up, or start over.
    pub(super) fn begin_catching_up(&mut self) {
        let Some(staging) = self.staging else { return };
        staging.begin_catching_up();
        if std::mem::take(&mut staging.cleared) {
            let empty = self.shared.empty_tables(self.view, self.tables.filter.expansion());
            let replaced = std::mem::replace(&mut staging.tables, empty);
            self.shared.drop_tables(replaced);
        }
    }

    /// Sets empty tables up for an import to build aside. Another import that was doing so is overtaken.
    pub(super) fn stage(&mut self, import: ImportId) {
        let is_same = self.is_staging(&import);
        self.give_staging_up(if is_same { ImportState::Interrupted } else { ImportState::Overtaken });
        let changes = self.shared.next_epoch();
        let tables = self.shared.empty_tables(self.view, self.tables.filter.expansion());
        *self.staging = Some(Staging::new(import, tables, changes));
    }

    /// Whether this import is the one that builds tables aside.
    pub(super) fn is_staging(&self, import: &ImportId) -> bool {
        self.staging.as_ref().is_some_and(|staging| staging.import == *import)
    }

    /// Drops the staged tables, if there are any, and ends their import in this state.
    pub(super) fn give_staging_up(&mut self, why: ImportState) {
        let Some(staging) = self.staging.take() else { return };
        self.shared.update_import(&staging.import, |import| import.state = why);
        self.shared.drop_tables(staging.tables);
    }
}
