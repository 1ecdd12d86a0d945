//! A state is built from its snapshot: the head first, then every section.

use super::agenda::Task;
use super::due::Due;
use super::events::Events;
use super::history::History;
use super::idempotency::Records;
use super::image::{Beginning, FilterStateImage, Head, IMAGE_VERSION, LedgerImage, StagingImage};
use super::imports::Imports;
use super::kept::KeptChanges;
use super::ledger::Ledger;
use super::machine::{FilterState, State};
use super::ordinals::Ordinals;
use super::queue::{DamagedQueue, Extent};
use super::section::{SectionId, Sections};
use super::slab::{DamagedSlab, Slab};
use super::staging::Staging;
use super::tables::{Tables, TablesImage};
use super::view::{Counters, FilterView};
use crate::domain::Spec;
use crate::filter::{Filled, RestoreError, Restoring};
use parking_lot::RwLock;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use thiserror::Error;

/// Why a state can't be built from a snapshot.
#[derive(Debug, Error)]
pub enum RestoreStateError<E> {
    /// The head can't be read.
    #[error("the snapshot's head can't be read: {0}")]
    Head(postcard::Error),
    /// A newer program wrote the head.
    #[error("the snapshot's head has version {0}, this program reads 1 to {IMAGE_VERSION}")]
    Newer(u16),
    /// A filter's tables can't be read.
    #[error(transparent)]
    Tables(RestoreError<E>),
    /// A ledger, or the changes kept for an import, can't be read.
    #[error(transparent)]
    Slab(#[from] DamagedSlab),
    /// The stored answers can't be read.
    #[error(transparent)]
    Records(#[from] DamagedQueue),
    /// A chunk could not be loaded.
    #[error(transparent)]
    Load(E),
}

/// The version of entries that is enabled in a snapshot.
///
/// # Errors
/// [`RestoreStateError::Head`] or [`RestoreStateError::Newer`] if the head can't be read.
pub fn enabled_in(head: &[u8]) -> Result<u16, RestoreStateError<Infallible>> {
    Ok(beginning(head)?.format)
}

/// What a head begins with. The imports and line-ups behind it may be many.
pub(super) fn beginning(head: &[u8]) -> Result<Beginning, RestoreStateError<Infallible>> {
    let (version, rest) = postcard::take_from_bytes::<u16>(head).map_err(RestoreStateError::Head)?;
    if !(1..=IMAGE_VERSION).contains(&version) {
        return Err(RestoreStateError::Newer(version));
    }
    let (beginning, _) = postcard::take_from_bytes(rest).map_err(RestoreStateError::Head)?;
    Ok(beginning)
}

impl State {
    /// Builds a state from its snapshot.
    ///
    /// # Errors
    /// When anything is missing, damaged or of a newer version.
    pub fn restore<S: Sections>(head: &[u8], sections: &mut S) -> Result<Self, RestoreStateError<S::Error>> {
        let (version, rest) = postcard::take_from_bytes::<u16>(head).map_err(RestoreStateError::Head)?;
        if !(1..=IMAGE_VERSION).contains(&version) {
            return Err(RestoreStateError::Newer(version));
        }
        let head: Head = postcard::from_bytes(rest).map_err(RestoreStateError::Head)?;
        let mut state = Self::new();
        let Beginning {
            applied,
            hashes: (hash, last),
            format,
            now,
            settings,
            epochs,
            events,
            records,
            filters,
        } = head.beginning;
        state.applied = applied;
        state.history = History::restore(hash, last);
        state.format = format;
        state.shared.now = now;
        let (last, next) = events;
        state.shared.events = Events::restore(last, next);
        state.shared.configure(settings);
        state.shared.epochs = epochs;
        state.records = restore_records(records, sections)?;
        *state.shared.view.imports.write() = Imports::restore(head.imports);
        state.shared.agenda.last = head.last_retired;
        for image in filters {
            state.restore_filter(image, sections)?;
        }
        for line_up in head.line_ups {
            state.shared.line_ups_bytes += line_up.memory_bytes();
            state.shared.catalog.insert_line_up(Arc::new(line_up));
        }
        state.shared.catalog_changed = true;
        state.publish();
        Ok(state)
    }

    fn restore_filter<S: Sections>(
        &mut self,
        image: FilterStateImage,
        sections: &mut S,
    ) -> Result<(), RestoreStateError<S::Error>> {
        let id = image.id;
        let ledger = restore_ledger(&image.ledger, image.loading.is_some(), sections)?;
        self.shared.redemptions += ledger.len() as u64;
        let filled = image.loading.as_ref().map(|loading| loading.filled);
        let tables = restore_tables(&image.tables, &image.spec, filled, sections)?;
        let loading = image.loading.map(Box::new);
        let staging =
            image.staging.map(|staging| restore_staging(staging, &image.spec, sections)).transpose()?;
        let counters = Counters::default();
        counters.adds.store(image.adds, Ordering::Relaxed);
        counters.removes.store(image.removes, Ordering::Relaxed);
        let view = Arc::new(FilterView {
            id,
            kind: image.kind,
            name: image.name,
            spec: image.spec,
            layout: image.layout,
            window: image.window,
            created_at: image.created_at,
            secret: image.secret,
            reader: tables.filter.reader(),
            counters: Arc::new(counters),
            ledger: Arc::new(RwLock::new(ledger)),
            redemptions_retention: self.shared.view.redemptions_retention.clone(),
        });
        if let Some(loading) = &loading {
            self.shared.loading.insert(loading.upload, id);
        } else {
            self.shared.show(view.clone());
        }
        let filter = FilterState { view, tables, due: Due::default(), staging, loading };
        self.shared.tables_bytes += filter.tables_bytes();
        self.shared.uncounted_bytes += filter.uncounted_bytes();
        self.shared.ledgers_bytes += filter.ledger_bytes();
        self.shared.kept_changes += filter.kept_changes();
        self.shared.catching_up += u64::from(filter.is_catching_up());
        self.shared.codes += filter.codes();
        self.shared.note_moving(id, filter.is_moving());
        self.shared.agenda.change(id, Task::default(), filter.task());
        self.filters.insert(id, filter);
        // It goes on exactly as the one that the snapshot was taken of, also if no entry was about it for a while.
        self.on_as_it_is(id, |filter| match filter.loading {
            None => filter.enqueue_all(),
            // Nothing is due while it is hidden.
            Some(_) => *filter.due = Due::of(filter.view.ledger.read().iter()),
        });
        Ok(())
    }
}

fn restore_ledger<S: Sections>(
    image: &LedgerImage,
    is_loading: bool,
    sections: &mut S,
) -> Result<Ledger, RestoreStateError<S::Error>> {
    sections.reserve(image.memory_bytes).map_err(RestoreStateError::Load)?;
    let redemptions = load_all(sections, SectionId::only(image.epoch))?;
    let redemptions = Slab::restore(&redemptions, image.changes)?;
    let ordinals = image.ordinals_changes.map(|changes| {
        let bytes = load_all(sections, SectionId::ordinals(image.epoch))?;
        let ordinals = match is_loading {
            true => Ordinals::restore_loading(&bytes, changes),
            false => Ordinals::restore(&bytes, changes),
        };
        ordinals.ok_or(RestoreStateError::Slab(DamagedSlab("the ordinals can't be read")))
    });
    let ledger =
        Ledger::restore(image.epoch, redemptions, image.last_change, ordinals.transpose()?, is_loading);
    ledger.ok_or(RestoreStateError::Slab(DamagedSlab("a redemption has an ordinal that is free")))
}

fn restore_staging<S: Sections>(
    image: StagingImage,
    spec: &Spec,
    sections: &mut S,
) -> Result<Staging, RestoreStateError<S::Error>> {
    let StagingImage { import, tables, changes, cleared, walk } = image;
    let tables = restore_tables(&tables, spec, None, sections)?;
    let bytes = load_all(sections, SectionId::only(changes.epoch))?;
    let changes = KeptChanges::restore(changes, &bytes)?;
    Ok(Staging { import, tables, changes, cleared, walk })
}

fn restore_tables<S: Sections>(
    image: &TablesImage,
    spec: &Spec,
    filled: Option<Filled>,
    sections: &mut S,
) -> Result<Tables, RestoreStateError<S::Error>> {
    let mut load = |table: &Restoring<'_>| sections.table(SectionId::table(image.epoch, table.id()), table);
    let tables = Tables::restore(image, filled, &mut load).map_err(RestoreStateError::Tables)?;
    if tables.filter.forgetting().map(|filter| filter.kept()) != spec.forget.map(|forget| forget.steps()) {
        return Err(RestoreStateError::Tables(RestoreError::Image(
            "a filter forgets in other steps than its spec says",
        )));
    }
    Ok(tables)
}

fn restore_records<S: Sections>(
    extent: Extent,
    sections: &mut S,
) -> Result<Records, RestoreStateError<S::Error>> {
    let numbers = extent.first..extent.first.saturating_add(extent.pages);
    let mut pages = Vec::new();
    for number in numbers {
        let page = load_all(sections, SectionId::records(number))?;
        if page.is_empty() {
            return Err(DamagedQueue::missing().into());
        }
        pages.push(page);
    }
    Ok(Records::restore(extent, pages)?)
}

/// All chunks of a section, joined.
fn load_all<S: Sections>(
    sections: &mut S,
    section: SectionId,
) -> Result<Vec<u8>, RestoreStateError<S::Error>> {
    let (mut all, mut chunk) = (Vec::new(), Vec::new());
    for number in 0.. {
        chunk.clear();
        if !sections.chunk(section, number, &mut chunk).map_err(RestoreStateError::Load)? {
            break;
        }
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}
