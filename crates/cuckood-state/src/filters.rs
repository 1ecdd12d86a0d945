//! How campaigns, coupons and line-ups are created, changed and deleted.

use super::catalog::NamedLineUp;
use super::ledger::ChangeNumber;
use super::machine::{FilterState, SharedState, State, Subject};
use super::tables::EpochFilter;
use super::view::FilterView;
use crate::domain::{
    Annotations, FilterChange, FilterId, Happened, ImportState, Kind, LINE_UPS_BYTES_MAX,
    LineUpChange, Name, Outcome, Profile, PutLineUp, Raise, Refusal, Seq, Spec, Update,
};
use cuckood_filter::{Full, Growth};
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

impl State {
    /// Creates a campaign or coupon. If an equal one exists, only sets its title and labels.
    pub(super) fn create(
        &mut self,
        id: FilterId,
        mut profile: Profile,
    ) -> Result<Outcome, Refusal> {
        if let Some(existing) = self.shared.catalog.get(profile.kind, &profile.name) {
            let differences = existing.differences(&profile);
            if !differences.is_empty() {
                return Err(Refusal::AlreadyExists(
                    differences.into_iter().map(String::from).collect(),
                ));
            }
            let id = existing.id;
            return self.on(id, |subject| {
                if subject.filter.view.annotations != profile.annotations {
                    subject.change_view(|view| view.profile.annotations = profile.annotations);
                    subject.record_updated();
                }
                let now = subject.shared.now;
                Outcome::Exists(Box::new(subject.filter.view.describe(now)))
            });
        }
        profile.spec.resolve_normalization(profile.kind);
        let Profile {
            kind,
            ref spec,
            layout,
            ref window,
            ..
        } = profile;
        if !window.is_ordered() {
            return Err(Refusal::WindowEndsFirst);
        }
        if !spec.fits(kind, &layout) {
            return Err(Refusal::CapacityBeyondReach);
        }
        if self.filters.contains_key(&id) {
            return Err(Refusal::AlreadyExists(vec!["id".into()]));
        }
        // Hidden ones count, too.
        if self.filters.len() as u64 >= self.shared.settings.filters_max {
            return Err(Refusal::TooManyFilters);
        }
        let rule = self.shared.growth_rule();
        let tables = EpochFilter::new(self.shared.next_epoch(), spec, layout, rule);
        let ledger = self.shared.empty_ledger(&profile, ChangeNumber::default());
        let counters = Arc::default();
        let reader = tables.filter.reader();
        let redemptions_retention = self.shared.view.redemptions_retention.clone();
        let view = Arc::new(FilterView {
            id,
            profile,
            counters,
            reader,
            ledger,
            redemptions_retention,
            capacity_max: OnceLock::new(),
        });
        self.shared.show(view.clone());
        let description = view.describe(self.shared.now);
        self.shared.record_filter(&view, FilterChange::Created);
        let mut filter = FilterState::new(view, tables, false);
        self.shared.note(&mut filter);
        self.filters.insert(id, filter);
        Ok(Outcome::Created(Box::new(description)))
    }

    /// Deletes a campaign or coupon with everything that belongs to it. It disappears immediately; its memory is freed later.
    pub(super) fn delete(&mut self, kind: Kind, name: &Name) -> Result<Outcome, Refusal> {
        let id = self
            .shared
            .catalog
            .get(kind, name)
            .map(|view| view.id)
            .ok_or(Refusal::FilterGone)?;
        self.on(id, |subject| {
            subject.abort_staging(ImportState::Interrupted)
        })?;
        self.shared.interrupt_imports(id);
        let filter = self.filters.remove(&id).ok_or(Refusal::FilterGone)?;
        let view = filter.view.clone();
        self.shared.drop_filter(*filter);
        self.shared.catalog.remove(kind, name);
        self.shared.catalog_changed = true;
        self.shared.record_filter(&view, FilterChange::Deleted);
        Ok(Outcome::Deleted)
    }
}

impl Subject<'_> {
    /// Changes when the filter is active, raises its capacity, and changes its stock, title and labels; all or nothing.
    pub(super) fn update(&mut self, update: &Update) -> Result<Outcome, Refusal> {
        let &Update {
            starts_at,
            ends_at,
            capacity: ref raise,
            stock,
            annotations: ref change,
            ..
        } = update;
        let annotations = self
            .filter
            .view
            .annotations
            .changed(change)
            .ok_or(Refusal::TooManyLabels)?;
        let mut window = self.filter.view.window;
        window.starts_at = starts_at.unwrap_or(window.starts_at);
        window.ends_at = ends_at.unwrap_or(window.ends_at);
        if !window.is_ordered() {
            return Err(Refusal::WindowEndsFirst);
        }
        if let Some(stock) = stock {
            self.filter.view.check_stock(stock)?;
        }
        let before = self.filter.view.clone();
        if let Some(raise) = raise
            .as_ref()
            .filter(|raise| raise.capacity != self.filter.view.spec.capacity)
        {
            self.raise(raise)?;
        }
        let stock = stock.or(self.filter.view.spec.supply.stock);
        self.change_view(|view| {
            (view.profile.window, view.profile.spec.supply.stock) = (window, stock);
            view.profile.annotations = annotations;
        });
        if self.filter.view.profile != before.profile {
            self.record_updated();
        }
        Ok(Outcome::Updated(Box::new(
            self.filter.view.describe(self.shared.now),
        )))
    }

    /// Records that the filter was changed.
    fn record_updated(&mut self) {
        let Profile {
            window,
            spec: Spec {
                capacity, supply, ..
            },
            ..
        } = self.filter.view.profile;
        self.shared.record_filter(
            &self.filter.view,
            FilterChange::Updated {
                window,
                capacity,
                stock: supply.stock,
            },
        );
    }

    /// Raises the capacity, also of staged tables.
    fn raise(&mut self, &Raise { capacity, layout }: &Raise) -> Result<(), Refusal> {
        let spec = &self.filter.view.spec;
        if spec.growth == Growth::Fixed {
            return Err(Refusal::CapacityFixed);
        }
        if capacity < spec.capacity {
            return Err(Refusal::CapacityLowered {
                capacity: spec.capacity,
            });
        }
        if !(Spec {
            capacity,
            ..spec.clone()
        })
        .fits(self.filter.view.kind, &layout)
        {
            return Err(Refusal::CapacityBeyondReach);
        }
        let beyond_reach = |Full| Refusal::CapacityBeyondReach;
        if let Some(staging) = &mut self.filter.staging {
            self.filter
                .tables
                .filter
                .tables()
                .raising(&layout)
                .map_err(beyond_reach)?;
            staging.tables.filter.raise(layout).map_err(beyond_reach)?;
        }
        self.filter
            .tables
            .filter
            .raise(layout)
            .map_err(beyond_reach)?;
        self.change_view(|view| {
            view.profile.spec.capacity = capacity;
            view.profile.layout = layout;
            view.capacity_max = OnceLock::new();
        });
        Ok(())
    }

    /// Changes the view that readers have of the filter.
    pub(super) fn change_view(&mut self, change: impl FnOnce(&mut FilterView)) {
        change(Arc::make_mut(&mut self.filter.view));
        self.shared.show(self.filter.view.clone());
    }
}

impl SharedState {
    /// Creates a line-up, or replaces it.
    pub(super) fn put_line_up(&mut self, by: Seq, put: &PutLineUp) -> Result<Outcome, Refusal> {
        let PutLineUp {
            name,
            line_up,
            annotations: change,
        } = put;
        let before = self.catalog.line_up(name).cloned();
        let (created_by, bytes_before) = before
            .as_ref()
            .map_or((by, 0), |before| (before.created_by, before.memory_bytes()));
        let none = Annotations::default();
        let annotations = before
            .as_ref()
            .map_or(&none, |before| &before.annotations)
            .changed(change);
        let annotations = annotations.ok_or(Refusal::TooManyLabels)?;
        let stored = NamedLineUp {
            name: name.clone(),
            line_up: line_up.clone(),
            annotations,
            created_by,
        };
        let bytes = self.line_ups_bytes - bytes_before + stored.memory_bytes();
        let is_one_too_many =
            before.is_none() && self.catalog.line_ups_len() as u64 >= self.settings.line_ups_max;
        if is_one_too_many || bytes > LINE_UPS_BYTES_MAX {
            return Err(Refusal::TooManyLineUps);
        }
        self.line_ups_bytes = bytes;
        let stored = Arc::new(stored);
        self.catalog.insert_line_up(stored.clone());
        self.catalog_changed = true;
        match &before {
            None => self.record_line_up(name, LineUpChange::Created),
            Some(before) if *before != stored => self.record_line_up(name, LineUpChange::Replaced),
            Some(_) => {}
        }
        let annotations = Box::new(stored.annotations.clone());
        Ok(Outcome::LineUpStored {
            created: before.is_none(),
            annotations,
        })
    }

    /// Deletes a line-up.
    pub(super) fn delete_line_up(&mut self, name: &Name) -> Result<Outcome, Refusal> {
        let bytes = self
            .catalog
            .line_up(name)
            .ok_or(Refusal::LineUpNotFound)?
            .memory_bytes();
        self.catalog.remove_line_up(name);
        self.line_ups_bytes -= bytes;
        self.catalog_changed = true;
        self.record_line_up(name, LineUpChange::Deleted);
        Ok(Outcome::LineUpDeleted)
    }

    fn record_line_up(&mut self, name: &Name, change: LineUpChange) {
        self.events.record(self.now, || Happened::LineUp {
            name: Cow::Borrowed(name.as_str()),
            change,
        });
    }
}
