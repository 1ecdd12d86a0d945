//! A state is built from its snapshot: the head first, then every section.

use super::events::Events;
use super::idempotency::Records;
use super::image::{FilterStateImage, Head, IMAGE_VERSION, StagingImage};
use super::imports::Imports;
use super::kept::KeptChanges;
use super::ledger::Ledger;
use super::machine::{FilterState, State};
use super::queue::{DamagedQueue, Extent};
use super::section::{SectionId, Sections};
use super::slab::{DamagedSlab, Slab};
use super::staging::Staging;
use super::tables::{Tables, TablesImage};
use super::view::{Counters, FilterView};
use crate::filter::{RestoreError, Restoring};
use parking_lot::RwLock;
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
    #[error("the snapshot's head has version {0}, this program reads {IMAGE_VERSION}")]
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

impl State {
    /// Builds a state from its snapshot.
    ///
    /// # Errors
    /// When anything is missing, damaged or of a newer version.
    pub fn restore<S: Sections>(head: &[u8], sections: &mut S) -> Result<Self, RestoreStateError<S::Error>> {
        let (version, rest) = postcard::take_from_bytes::<u16>(head).map_err(RestoreStateError::Head)?;
        if version != IMAGE_VERSION {
            return Err(RestoreStateError::Newer(version));
        }
        let head: Head = postcard::from_bytes(rest).map_err(RestoreStateError::Head)?;
        let mut state = Self::new();
        state.applied = head.applied;
        state.shared.now = head.now;
        let (last, next) = head.events;
        state.shared.events = Events::restore(last, next);
        state.shared.configure(head.settings);
        state.shared.epochs = head.epochs;
        state.records = restore_records(head.records, sections)?;
        *state.shared.view.imports.write() = Imports::restore(head.imports);
        for image in head.filters {
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
        let redemptions = load_all(sections, SectionId::only(image.ledger_epoch))?;
        let redemptions = Slab::restore(&redemptions, image.ledger_changes)?;
        let ledger = Ledger::restore(image.ledger_epoch, redemptions, image.ledger_last_change);
        ledger.iter().for_each(|redemption| self.shared.enqueue(id, redemption));
        self.shared.redemptions += ledger.len() as u64;
        self.shared.references_bytes += ledger.references_bytes();
        let tables = restore_tables(&image.tables, sections)?;
        let staging = image.staging.map(|image| restore_staging(image, sections)).transpose()?;
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
        self.shared.show(view.clone());
        let filter = FilterState { view, tables, staging };
        self.shared.tables_bytes += filter.tables_bytes();
        self.shared.kept_changes += filter.kept_changes();
        self.shared.catching_up += u64::from(filter.is_catching_up());
        self.filters.insert(id, filter);
        Ok(())
    }
}

fn restore_staging<S: Sections>(
    image: StagingImage,
    sections: &mut S,
) -> Result<Staging, RestoreStateError<S::Error>> {
    let StagingImage { import, tables, changes, cleared, walk } = image;
    let tables = restore_tables(&tables, sections)?;
    let bytes = load_all(sections, SectionId::only(changes.epoch))?;
    let changes = KeptChanges::restore(changes, &bytes)?;
    Ok(Staging { import, tables, changes, cleared, walk })
}

fn restore_tables<S: Sections>(
    image: &TablesImage,
    sections: &mut S,
) -> Result<Tables, RestoreStateError<S::Error>> {
    let mut load = |table: &Restoring<'_>| sections.table(SectionId::table(image.epoch, table.id()), table);
    Tables::restore(image, &mut load).map_err(RestoreStateError::Tables)
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
