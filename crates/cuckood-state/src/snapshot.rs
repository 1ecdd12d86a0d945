//! The image of the state that a snapshot stores, and the state restored from one. It has a small head, and sections, which own their data
//! as of the snapshot's start. So commands continue while their chunks are taken.
//!
//! Sections are the tables and earlier statistics of every filter, the ledgers of coupons, the changes queued for imports, and the pages of
//! stored outcomes. Titles and labels are in the head: they are short, and readers need them with the rest of it.

use super::catalog::NamedLineUp;
use super::idempotency::Records;
use super::import_records::Imports;
use super::ledger::{ChangeNumber, Ledger, Membership, StoredLedger, StoredUses};
use super::machine::{FilterState, State};
use super::section::{
    CUSTOMERS, Epoch, MEMBERSHIP, ORDINALS, RECORDS, REDEMPTIONS, STAGED_MEMBERSHIP, STATISTICS,
    Section, USES, freeze, freeze_queue,
};
use super::staging::Staging;
use super::statistics::FilterStatistics;
use super::tables::EpochFilter;
use super::view::{Counters, FilterView};
use crate::domain::{
    FilterHead, FilterId, ImageSection, Import, ImportId, Kind, Meaning, SectionId, Spec,
    understood_version,
};
use crate::frame::{append, encode};
use crate::paged::{Copied, Extent, PAGE_BYTES, Queue};
use cuckood_filter::{Filled, Filter, FilterImage, RestoreError, Restoring, Walk};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use thiserror::Error;

/// Where a state that is being restored gets its sections from.
pub trait Sections {
    /// Why a chunk could not be loaded.
    type Error;

    /// Replaces `out` with a section's chunk of this number, counted from 0; false after the last.
    fn chunk(
        &mut self,
        section: SectionId,
        chunk: u32,
        out: &mut Vec<u8>,
    ) -> Result<bool, Self::Error>;

    /// Checks that memory is available for a part of this size in bytes, before its sections are loaded.
    fn reserve(&mut self, bytes: u64) -> Result<(), Self::Error>;

    /// Loads all chunks of a table.
    fn table(
        &mut self,
        section: SectionId,
        table: &Restoring<'_>,
    ) -> Result<(), RestoreError<Self::Error>>;
}

/// The head of a snapshot.
pub struct SnapshotParts {
    /// The head, encoded.
    pub head: Vec<u8>,
    /// The sections that belong to it.
    pub sections: Vec<Section>,
}

/// The fields of a head: the state without the parts that have sections or can be derived. From version 2 on, a [`LaterHead`] follows.
#[derive(Serialize, Deserialize)]
struct SnapshotHead<S> {
    state: S,
    records: Extent,
    filters: Vec<StoredFilter>,
    imports: Vec<Import>,
    line_ups: Vec<NamedLineUp>,
}

#[derive(Serialize, Deserialize)]
struct StoredFilter {
    id: FilterId,
    head: FilterHead,
    tables: Epoch,
    /// A coupon's.
    ledger: Option<StoredLedger>,
    /// The number of changes of its earlier statistics.
    statistics: u64,
    staging: Option<StoredStaging>,
    is_hidden: bool,
    /// What version 1 of entries does not have. It is stored in the [`LaterHead`].
    #[serde(skip)]
    later: StoredLater,
}

/// The fields of a head that version 1 of entries does not have.
#[derive(Default, Serialize, Deserialize)]
struct LaterHead {
    /// The imports that a clear or a replacement has overtaken.
    overtaken: BTreeSet<ImportId>,
    /// Of those filters that have any.
    filters: BTreeMap<FilterId, StoredLater>,
}

/// The metadata of a filter that version 1 of entries does not have.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
struct StoredLater {
    ledger: StoredUses,
    /// The membership of staged tables that catch up: whether it was cleared, and the number of changes of its exceptions.
    staged: Option<(bool, u64)>,
}

#[derive(Serialize, Deserialize)]
struct StoredStaging {
    import: ImportId,
    tables: (Epoch, FilterImage),
    changes: (Epoch, Extent),
    cleared: bool,
    walk: Option<Walk>,
}

/// Why a state can't be built from a snapshot.
#[derive(Debug, Error)]
pub enum RestoreStateError<E> {
    /// The head can't be read.
    #[error("the snapshot's head can't be read: {0}")]
    Head(postcard::Error),
    /// A newer program wrote the head.
    #[error("the snapshot's head has version {0}, this program reads 1 to {known}", known = understood_version())]
    Newer(u16),
    /// A filter's tables can't be read.
    #[error(transparent)]
    Tables(RestoreError<E>),
    /// Redemptions, stored outcomes or queued changes can't be read.
    #[error("the snapshot is damaged: {0}")]
    Damaged(&'static str),
    /// A chunk could not be loaded.
    #[error(transparent)]
    Load(E),
}

/// Something that is restored from sections, or why it can't be.
type Restored<T, S> = Result<T, RestoreStateError<<S as Sections>::Error>>;

/// The version of entries that is enabled in a snapshot.
///
/// # Errors
/// [`RestoreStateError::Head`] or [`RestoreStateError::Newer`] if the head can't be read.
pub fn enabled_in(head: &[u8]) -> Result<u16, RestoreStateError<Infallible>> {
    Ok(read_head(head)?.state.shared.format)
}

/// Reads a head of a known version: that of the enabled entries, for these decide which fields it has. So a build that doesn't know it
/// reports a newer version, not damage.
fn read_head<E>(head: &[u8]) -> Result<SnapshotHead<State>, RestoreStateError<E>> {
    let (version, rest) =
        postcard::take_from_bytes::<u16>(head).map_err(RestoreStateError::Head)?;
    if !(1..=understood_version()).contains(&version) {
        return Err(RestoreStateError::Newer(version));
    }
    let (mut head, rest) =
        postcard::take_from_bytes::<SnapshotHead<State>>(rest).map_err(RestoreStateError::Head)?;
    if version >= Meaning::OvertakenImports.since() {
        let mut later: LaterHead = postcard::from_bytes(rest).map_err(RestoreStateError::Head)?;
        for import in &mut head.imports {
            import.is_overtaken = later.overtaken.contains(&import.id);
        }
        for filter in &mut head.filters {
            filter.later = later.filters.remove(&filter.id).unwrap_or_default();
        }
    }
    Ok(head)
}

impl State {
    /// Begins a snapshot of the state as it is now. A dropped section is left out.
    pub fn begin_snapshot(&mut self) -> SnapshotParts {
        let mut sections = Vec::new();
        let copied = self.shared.copied.clone();
        let records = freeze_queue(&mut self.records.queue, RECORDS, &copied, &mut sections);
        let filters: Vec<StoredFilter> = self
            .filters
            .values_mut()
            .map(|filter| filter.freeze(&copied, &mut sections))
            .collect();
        let imports: Vec<Import> = self
            .shared
            .view
            .imports
            .read()
            .iter()
            .map(|import| Import::clone(import))
            .collect();
        let overtaken: BTreeSet<ImportId> = imports
            .iter()
            .filter(|import| import.is_overtaken)
            .map(|import| import.id.clone())
            .collect();
        let none = StoredLater::default();
        let with_later = filters.iter().filter(|filter| filter.later != none);
        let later = LaterHead {
            overtaken,
            filters: with_later
                .map(|filter| (filter.id, filter.later.clone()))
                .collect(),
        };
        let line_ups = self
            .shared
            .catalog
            .line_ups()
            .map(|line_up| NamedLineUp::clone(line_up))
            .collect();
        let head = SnapshotHead {
            state: &*self,
            records,
            filters,
            imports,
            line_ups,
        };
        let version = self.shared.format.min(understood_version());
        let mut head = encode(&(version, head));
        if version >= Meaning::OvertakenImports.since() {
            append(&later, &mut head);
        }
        SnapshotParts { head, sections }
    }
}

impl EpochFilter {
    /// Adds a section for each table.
    fn freeze(&mut self, copied: &Copied, sections: &mut Vec<Section>) -> (Epoch, FilterImage) {
        let epoch = self.epoch;
        let (image, tables) = self.filter.freeze(copied);
        sections.extend(tables.into_iter().map(|mut table| {
            let id = SectionId::new(epoch, table.id().0);
            let changes = table.changes();
            Section {
                id,
                changes,
                chunks: Box::new(move |out| table.next_chunk(out)),
            }
        }));
        (epoch, image)
    }
}

impl FilterState {
    fn freeze(&mut self, copied: &Copied, sections: &mut Vec<Section>) -> StoredFilter {
        let is_coupon = self.view.kind == Kind::Coupon;
        let mut later = StoredLater::default();
        let ledger = is_coupon.then(|| {
            let mut ledger = self.view.ledger.write();
            later.ledger = ledger.freeze_uses(copied, sections);
            ledger.freeze(copied, sections)
        });
        let (tables, image) = self.tables.freeze(copied, sections);
        let staging = self.staging.as_mut().map(|staging| {
            let epoch = staging.epoch;
            later.staged = staging.membership.as_mut().map(|membership| {
                let id = SectionId::new(epoch, STAGED_MEMBERSHIP);
                let pages = &mut membership.exceptions().pages;
                let changes = freeze(id, pages, copied, sections);
                (membership.is_cleared(), changes)
            });
            StoredStaging {
                import: staging.import.clone(),
                tables: staging.tables.freeze(copied, sections),
                changes: (
                    epoch,
                    freeze_queue(&mut staging.changes, epoch, copied, sections),
                ),
                cleared: staging.cleared,
                walk: staging.walk,
            }
        });
        let statistics = self
            .view
            .counters
            .statistics
            .lock()
            .freeze(tables, copied, sections);
        let id = self.view.id;
        let head = self.view.head(image);
        let is_hidden = self.is_hidden;
        StoredFilter {
            id,
            head,
            tables,
            ledger,
            statistics,
            staging,
            is_hidden,
            later,
        }
    }
}

/// The parts of an image of one filter.
#[derive(PartialEq)]
pub struct Export {
    /// The head.
    pub head: FilterHead,
    /// The sections of the snapshot that follow, in order.
    pub sections: Vec<(ImageSection, SectionId)>,
    /// Number of redemptions.
    pub redemptions: u64,
}

impl Export {
    /// Finds a filter in a snapshot's head; `None` if it is not there, or not complete itself.
    ///
    /// # Errors
    /// [`RestoreStateError::Head`] or [`RestoreStateError::Newer`] if the head can't be read.
    pub fn find(
        head: &[u8],
        filter: FilterId,
    ) -> Result<Option<Self>, RestoreStateError<Infallible>> {
        let found = read_head(head)?
            .filters
            .into_iter()
            .find(|image| image.id == filter && !image.is_hidden);
        Ok(found.map(Self::of))
    }

    fn of(
        StoredFilter {
            head,
            tables,
            ledger,
            statistics,
            later,
            ..
        }: StoredFilter,
    ) -> Self {
        let ids = head
            .tables
            .tables()
            .map(|(table, ..)| SectionId::new(tables, table.0));
        let sections = ids.map(|id| (ImageSection::Tables, id));
        let ledgers = ledger.iter().flat_map(|ledger| {
            let id = |part| SectionId::new(ledger.epoch, part);
            let ordinals = ledger
                .ordinals_changes
                .map(|_| (ImageSection::Ordinals, id(ORDINALS)));
            let membership = later.ledger.membership.map(|(is_cleared, _)| {
                let section = if is_cleared {
                    ImageSection::Members
                } else {
                    ImageSection::Withdrawn
                };
                (section, id(MEMBERSHIP))
            });
            let uses = later.ledger.uses.map(|_| (ImageSection::Uses, id(USES)));
            let customers = later.ledger.customers;
            let customers = customers.map(|_| (ImageSection::Customers, id(CUSTOMERS)));
            let sections = [
                ordinals,
                membership,
                uses,
                customers,
                Some((ImageSection::Redemptions, id(REDEMPTIONS))),
            ];
            sections.into_iter().flatten()
        });
        let statistics = (statistics > 0)
            .then_some((ImageSection::Statistics, SectionId::new(tables, STATISTICS)));
        let sections = sections.chain(ledgers).chain(statistics).collect();
        Self {
            sections,
            head,
            redemptions: ledger.map_or(0, |ledger| ledger.redemptions),
        }
    }
}

/// One filter as of a moment, for an image of it. It owns its data like the sections of a snapshot.
pub struct FrozenFilter {
    /// The parts of the image.
    pub export: Export,
    /// The sections, in the order of the image.
    pub sections: VecDeque<(ImageSection, Section)>,
}

impl State {
    /// Freezes one filter as it is now, whether or not a snapshot is running; `None` if there is none, or it is not complete itself.
    pub fn freeze_filter(&mut self, filter: FilterId) -> Option<FrozenFilter> {
        let filter = self
            .filters
            .get_mut(&filter)
            .filter(|filter| !filter.is_hidden)?;
        let mut sections = Vec::new();
        // A staged import is not part of an image.
        let staging = filter.staging.take();
        let image = filter.freeze(&self.shared.copied, &mut sections);
        filter.staging = staging;
        let export = Export::of(image);
        let mut find = |(kind, id): &(ImageSection, SectionId)| {
            let at = sections
                .iter()
                .position(|section: &Section| section.id == *id)?;
            Some((*kind, sections.swap_remove(at)))
        };
        let sections = export.sections.iter().filter_map(&mut find).collect();
        Some(FrozenFilter { export, sections })
    }

    /// Builds a state from its snapshot.
    ///
    /// # Errors
    /// When anything is missing, damaged or of a newer version.
    pub fn restore<S: Sections>(
        head: &[u8],
        sections: &mut S,
    ) -> Result<Self, RestoreStateError<S::Error>> {
        let SnapshotHead {
            mut state,
            records,
            filters,
            imports,
            line_ups,
        } = read_head(head)?;
        let settings = std::mem::take(&mut state.shared.settings);
        state.shared.configure(settings);
        let records = restore_queue(RECORDS, records, sections)?;
        state.records = Records::restore(records)
            .ok_or(RestoreStateError::Damaged("a stored outcome is too short"))?;
        *state.shared.view.imports.write() = Imports::restore(imports);
        for image in filters {
            restore_filter(&mut state, image, sections)?;
        }
        for line_up in line_ups {
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
    image: StoredFilter,
    sections: &mut S,
) -> Restored<(), S> {
    let StoredFilter {
        id,
        head,
        tables: epoch,
        ledger,
        statistics: changes,
        staging,
        is_hidden,
        later,
    } = image;
    let ledger = match (head.profile.kind, ledger) {
        (Kind::Campaign, None) => state.shared.no_redemptions.clone(),
        (Kind::Coupon, Some(ledger)) => {
            let last_change = ChangeNumber(head.last_change);
            let empty = Ledger::new(
                ledger.epoch,
                &head.profile.secret,
                &head.profile.spec.supply,
                last_change,
            );
            let restored = restore_ledger(empty, &ledger, &later.ledger, is_hidden, sections)?;
            Arc::new(RwLock::new(restored))
        }
        (Kind::Campaign, Some(_)) | (Kind::Coupon, None) => {
            return Err(RestoreStateError::Damaged(
                "coupons have a ledger, campaigns have none",
            ));
        }
    };
    let filled = state.shared.images.filled(id).filter(|_| is_hidden);
    let tables = restore_tables(epoch, &head.tables, &head.profile.spec, filled, sections)?;
    let staging = staging
        .map(|staging| restore_staging(staging, later.staged, &head.profile.spec, sections))
        .transpose()?;
    let mut statistics = FilterStatistics {
        latest: head.latest,
        ..FilterStatistics::default()
    };
    let hours = state.shared.hour_retention();
    let unreadable = "statistics can't be read";
    load_chunks(
        sections,
        SectionId::new(epoch, STATISTICS),
        unreadable,
        |chunk| statistics.load(chunk, hours),
    )?;
    statistics.earlier.changes = changes;
    if !is_hidden && !statistics.is_complete() {
        return Err(RestoreStateError::Damaged(unreadable));
    }
    let FilterHead {
        adds,
        removes,
        profile,
        ..
    } = head;
    let counters = Counters {
        adds: adds.into(),
        removes: removes.into(),
        statistics: statistics.into(),
    };
    let counters = counters.into();
    let reader = tables.filter.reader();
    let redemptions_retention = state.shared.view.redemptions_retention.clone();
    let view = Arc::new(FilterView {
        id,
        profile,
        counters,
        reader,
        ledger,
        redemptions_retention,
        capacity_max: OnceLock::new(),
    });
    if !is_hidden {
        state.shared.show(view.clone());
    }
    let mut filter = FilterState::new(view, tables, is_hidden);
    filter.staging = staging.map(Box::new);
    state.shared.note(&mut filter);
    state.filters.insert(id, filter);
    Ok(())
}

fn restore_ledger<S: Sections>(
    mut ledger: Ledger,
    image: &StoredLedger,
    later: &StoredUses,
    is_loading: bool,
    sections: &mut S,
) -> Restored<Ledger, S> {
    let restoring_bytes = image.restoring_bytes() + later.restoring_bytes(image.redemptions);
    sections
        .reserve(restoring_bytes)
        .map_err(RestoreStateError::Load)?;
    let &StoredLedger {
        epoch,
        changes,
        ordinals_changes,
        ..
    } = image;
    let unreadable = "a ledger can't be read";
    let id = |part| SectionId::new(epoch, part);
    if ordinals_changes.is_some() {
        load_chunks(sections, id(ORDINALS), unreadable, |chunk| {
            ledger.load_ordinals(chunk)
        })?;
    }
    if let Some((is_cleared, _)) = later.membership {
        ledger.membership = Membership::loading(is_cleared);
        load_chunks(sections, id(MEMBERSHIP), unreadable, |chunk| {
            ledger.membership.load(chunk)
        })?;
    }
    if later.uses.is_some() {
        load_chunks(sections, id(USES), unreadable, |chunk| {
            ledger.restore_uses(chunk)
        })?;
    }
    if later.customers.is_some() {
        load_chunks(sections, id(CUSTOMERS), unreadable, |chunk| {
            ledger.restore_customers(chunk)
        })?;
    }
    let redemptions = SectionId::new(epoch, REDEMPTIONS);
    load_chunks(sections, redemptions, unreadable, |chunk| {
        ledger.restore(chunk)
    })?;
    let is_sound = ledger.finish_restoring();
    ledger.resume(changes, ordinals_changes);
    ledger.resume_uses(later);
    let is_complete = is_sound && (is_loading || ledger.finish_loading());
    is_complete
        .then_some(ledger)
        .ok_or(RestoreStateError::Damaged(unreadable))
}

fn restore_staging<S: Sections>(
    image: StoredStaging,
    membership: Option<(bool, u64)>,
    spec: &Spec,
    sections: &mut S,
) -> Restored<Staging, S> {
    let StoredStaging {
        import,
        tables,
        changes,
        cleared,
        walk,
    } = image;
    let tables = restore_tables(tables.0, &tables.1, spec, None, sections)?;
    let (epoch, extent) = changes;
    let changes = restore_queue(epoch, extent, sections)?;
    let membership = match membership {
        None => None,
        Some((is_cleared, changes)) => {
            let mut membership = Membership::loading(is_cleared);
            let id = SectionId::new(epoch, STAGED_MEMBERSHIP);
            let unreadable = "a staged pool can't be read";
            load_chunks(sections, id, unreadable, |chunk| membership.load(chunk))?;
            membership.exceptions().pages.changes = changes;
            Some(membership)
        }
    };
    let staging = Staging {
        membership,
        import,
        tables,
        changes,
        epoch,
        cleared,
        walk,
    };
    staging
        .is_readable()
        .then_some(staging)
        .ok_or(RestoreStateError::Damaged("a kept change can't be read"))
}

fn restore_tables<S: Sections>(
    epoch: Epoch,
    image: &FilterImage,
    spec: &Spec,
    filled: Option<Filled>,
    sections: &mut S,
) -> Restored<EpochFilter, S> {
    let mut load =
        |table: &Restoring<'_>| sections.table(SectionId::new(epoch, table.id().0), table);
    if image.forgets_after() != spec.forget.map(|forget| forget.steps()) {
        return Err(RestoreStateError::Tables(RestoreError::Image(
            "a filter forgets in other steps than its spec says",
        )));
    }
    // If an image is being uploaded, the tables are filled up to its progress.
    let filter =
        Filter::restore(spec.mode, image, filled, &mut load).map_err(RestoreStateError::Tables)?;
    Ok(EpochFilter { epoch, filter })
}

fn restore_queue<S: Sections>(
    epoch: Epoch,
    extent: Extent,
    sections: &mut S,
) -> Restored<Queue, S> {
    let mut pages = Vec::new();
    let unreadable = "a page of stored outcomes or kept changes can't be read";
    for number in extent.first..extent.first.saturating_add(extent.pages) {
        sections
            .reserve(2 * PAGE_BYTES as u64)
            .map_err(RestoreStateError::Load)?;
        let mut page = Vec::new();
        load_chunks(
            sections,
            SectionId::new(epoch, number),
            unreadable,
            |chunk| {
                page.extend_from_slice(chunk);
                page.len() <= PAGE_BYTES
            },
        )?;
        if page.is_empty() {
            return Err(RestoreStateError::Damaged(unreadable));
        }
        pages.push(page);
    }
    Queue::restore(extent, pages).ok_or(RestoreStateError::Damaged(unreadable))
}

/// Loads all chunks of a section in order. `load` returns whether one is sound, and `unreadable` says that it is not.
fn load_chunks<S: Sections>(
    sections: &mut S,
    section: SectionId,
    unreadable: &'static str,
    mut load: impl FnMut(&[u8]) -> bool,
) -> Restored<(), S> {
    let mut chunk = Vec::new();
    for number in 0.. {
        chunk.clear();
        if !sections
            .chunk(section, number, &mut chunk)
            .map_err(RestoreStateError::Load)?
        {
            break;
        }
        if !load(&chunk) {
            return Err(RestoreStateError::Damaged(unreadable));
        }
    }
    Ok(())
}
