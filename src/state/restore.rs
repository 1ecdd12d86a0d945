//! A state is built from its snapshot: the head first, then every section.

use super::events::Events;
use super::history::History;
use super::idempotency::Records;
use super::image::{
    Beginning, FilterStateImage, Head, IMAGE_VERSION, LedgerImage, RestoreStateError, StagingImage,
};
use super::imports::Imports;
use super::ledger::{Change, Ledger};
use super::machine::{FilterState, State};
use super::section::Epoch;
use super::section::{RECORDS, SectionId, Sections};
use super::staging::{KeptChanges, Staging};
use super::tables::Tables;
use super::view::FilterView;
use crate::domain::{Redemption, Spec};
use crate::filter::{Filled, Filter, FilterImage, RestoreError, Restoring};
use crate::paged::{Extent, PAGE_BYTES, Queue};
use std::sync::Arc;

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
        let records = restore_queue(RECORDS, records, sections)?;
        state.records =
            Records::restore(records).ok_or(RestoreStateError::Damaged("a stored answer is too short"))?;
        *state.shared.view.imports.write() = Imports::restore(head.imports);
        state.shared.agenda.last_retired = head.last_retired;
        state.shared.images = head.images;
        for image in filters {
            restore_filter(&mut state, image, sections)?;
        }
        for line_up in head.line_ups {
            state.shared.line_ups_bytes += line_up.memory_bytes();
            state.shared.catalog.insert_line_up(Arc::new(line_up));
        }
        state.shared.catalog_changed = true;
        state.publish();
        Ok(state)
    }
}

fn restore_filter<S: Sections>(
    state: &mut State,
    image: FilterStateImage,
    sections: &mut S,
) -> Result<(), RestoreStateError<S::Error>> {
    let FilterStateImage { id, head, tables, ledger, staging, is_hidden } = image;
    let ledger = restore_ledger(&ledger, Change(head.last_change), is_hidden, sections)?;
    let filled = state.shared.images.filled(id).filter(|_| is_hidden);
    let tables = restore_tables(tables, &head.tables, &head.spec, filled, sections)?;
    let staging =
        staging.map(|staging| restore_staging(staging, &head.spec, sections)).transpose()?.map(Box::new);
    let retention = &state.shared.view.redemptions_retention;
    let view = Arc::new(FilterView::of(id, &head, tables.filter.reader(), ledger, retention));
    if !is_hidden {
        state.shared.show(view.clone());
    }
    let mut filter = FilterState::new(view, tables, staging, is_hidden);
    state.shared.note(&mut filter);
    state.filters.insert(id, filter);
    Ok(())
}

fn restore_ledger<S: Sections>(
    image: &LedgerImage,
    last_change: Change,
    is_loading: bool,
    sections: &mut S,
) -> Result<Ledger, RestoreStateError<S::Error>> {
    sections.reserve(image.memory_bytes).map_err(RestoreStateError::Load)?;
    let &LedgerImage { epoch, changes, ordinals_changes, .. } = image;
    let mut ledger = Ledger::new(epoch, ordinals_changes.is_some(), last_change);
    let damaged = || RestoreStateError::Damaged("a ledger can't be read");
    if ordinals_changes.is_some() {
        for_each_chunk(sections, SectionId::ordinals(epoch), |chunk| {
            ledger.load_ordinals(chunk).then_some(()).ok_or_else(damaged)
        })?;
    }
    for_each_chunk(sections, SectionId::redemptions(epoch), |chunk| {
        ledger.load(chunk, |_: &Redemption| true).then_some(()).ok_or_else(damaged)
    })?;
    ledger.resume(changes, ordinals_changes);
    if is_loading || ledger.finish_loading() { Ok(ledger) } else { Err(damaged()) }
}

fn restore_staging<S: Sections>(
    image: StagingImage,
    spec: &Spec,
    sections: &mut S,
) -> Result<Staging, RestoreStateError<S::Error>> {
    let StagingImage { import, tables, changes, cleared, walk } = image;
    let tables = restore_tables(tables.0, &tables.1, spec, None, sections)?;
    let (epoch, extent) = changes;
    let changes = KeptChanges::restore(epoch, restore_queue(epoch, extent, sections)?);
    let changes = changes.ok_or(RestoreStateError::Damaged("a kept change can't be read"))?;
    Ok(Staging { import, tables, changes, cleared, walk })
}

fn restore_tables<S: Sections>(
    epoch: Epoch,
    image: &FilterImage,
    spec: &Spec,
    filled: Option<Filled>,
    sections: &mut S,
) -> Result<Tables, RestoreStateError<S::Error>> {
    let mut load = |table: &Restoring<'_>| sections.table(SectionId::table(epoch, table.id()), table);
    if image.forgets_after() != spec.forget.map(|forget| forget.steps()) {
        return Err(RestoreStateError::Tables(RestoreError::Image(
            "a filter forgets in other steps than its spec says",
        )));
    }
    // If an image is arriving, the tables are filled as far as it has come.
    let filter = Filter::restore(spec.mode, image, filled, &mut load).map_err(RestoreStateError::Tables)?;
    Ok(Tables { epoch, filter })
}

fn restore_queue<S: Sections>(
    epoch: Epoch,
    extent: Extent,
    sections: &mut S,
) -> Result<Queue, RestoreStateError<S::Error>> {
    let mut pages = Vec::new();
    for number in extent.first..extent.first.saturating_add(extent.pages) {
        sections.reserve(2 * PAGE_BYTES as u64).map_err(RestoreStateError::Load)?;
        let mut page = Vec::new();
        for_each_chunk(sections, SectionId::page(epoch, number), |chunk| {
            page.extend_from_slice(chunk);
            Ok(())
        })?;
        if page.is_empty() {
            return Err(RestoreStateError::Damaged("a page of stored answers or kept changes is missing"));
        }
        pages.push(page);
    }
    Queue::restore(extent, pages)
        .ok_or(RestoreStateError::Damaged("a page of stored answers or kept changes can't be read"))
}

/// Passes all chunks of a section on, in order.
fn for_each_chunk<S: Sections>(
    sections: &mut S,
    section: SectionId,
    mut each: impl FnMut(&[u8]) -> Result<(), RestoreStateError<S::Error>>,
) -> Result<(), RestoreStateError<S::Error>> {
    let mut chunk = Vec::new();
    for number in 0.. {
        chunk.clear();
        if !sections.chunk(section, number, &mut chunk).map_err(RestoreStateError::Load)? {
            break;
        }
        each(&chunk)?;
    }
    Ok(())
}
