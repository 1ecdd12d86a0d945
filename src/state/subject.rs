//! The filter that a command is about: the command looks it up once, and then works on it here.

use super::machine::{FilterState, Shared, State};
use super::staging::{ChangeKind, REPEATED_FOR_EACH, Staging};
use super::tables::Tables;
use super::view::FilterView;
use crate::domain::{
    FilterId, Happened, ImportId, ImportState, ItemOutcome, Redemption, RedemptionStep, Refusal, Status,
};
use crate::filter::{Digest, SlotState, Walk};
use std::borrow::Cow;
use std::sync::Arc;

/// The filter that a command works on, and what all filters share.
pub(super) struct Subject<'a> {
    pub(super) view: &'a mut Arc<FilterView>,
    pub(super) tables: &'a mut Tables,
    pub(super) staging: &'a mut Option<Box<Staging>>,
    pub(super) shared: &'a mut Shared,
}

/// Works on a filter, and brings totals and agenda up to date afterwards.
pub(super) fn work_on<T>(
    filter: &mut FilterState,
    shared: &mut Shared,
    work: impl FnOnce(&mut Subject<'_>) -> T,
) -> T {
    let FilterState { view, tables, staging, .. } = filter;
    let done = work(&mut Subject { view, tables, staging, shared });
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

    /// Gives a code another state. While an import catches up, `repeated` kept changes are repeated for it.
    pub(super) fn set_code(&mut self, digest: Digest, state: SlotState, repeated: u64) {
        self.tables.filter.set_state(digest, state);
        // Before an import begins to catch up this need not be kept: its walk will find the code in this state.
        if self.staging.as_ref().is_some_and(|staging| staging.is_catching_up()) {
            self.keep(ChangeKind::State, [digest], repeated);
        }
    }

    /// Keeps changes of items for the import that builds tables aside, if there is one. `repeated` others are repeated for each.
    pub(super) fn keep(
        &mut self,
        kind: ChangeKind,
        digests: impl IntoIterator<Item = Digest>,
        repeated: u64,
    ) {
        let Some(staging) = self.staging else { return };
        if let Err(why) = staging.keep(self.tables, kind, digests, repeated) {
            self.give_staging_up(why);
        }
    }

    /// Keeps an insert for the import that builds tables aside. Redeemed codes among its items have not changed.
    pub(super) fn keep_inserted(&mut self, digests: &[Digest], outcomes: &[ItemOutcome], if_absent: bool) {
        let kind = if if_absent { ChangeKind::AddIfAbsent } else { ChangeKind::Add };
        let taken = outcomes.iter().zip(digests).filter(|(o, _)| **o != ItemOutcome::AlreadyRedeemed);
        self.keep(kind, taken.map(|(_, &digest)| digest), REPEATED_FOR_EACH);
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
        staging.walk = Some(Walk::START);
        if std::mem::take(&mut staging.cleared) {
            let empty = self.shared.empty_tables(self.view);
            let replaced = std::mem::replace(&mut staging.tables, empty);
            self.shared.drop_tables(replaced);
        }
    }

    /// Sets empty tables up for an import to build aside. Another import that was doing so is overtaken.
    pub(super) fn stage(&mut self, import: ImportId) {
        let is_same = Staging::is_of(self.staging, &import);
        self.give_staging_up(if is_same { ImportState::Interrupted } else { ImportState::Overtaken });
        let changes = self.shared.next_epoch();
        let tables = self.shared.empty_tables(self.view);
        *self.staging = Some(Box::new(Staging::new(import, tables, changes)));
    }

    /// Drops the staged tables, if there are any, and ends their import in this state.
    pub(super) fn give_staging_up(&mut self, why: ImportState) {
        let Some(staging) = self.staging.take() else { return };
        self.shared.update_import(&staging.import, |import| import.state = why);
        self.shared.drop_tables(staging.tables);
    }
}
