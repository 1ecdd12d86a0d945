//! The read side: what every request sees, while one writer changes it. Readers of filters take no lock.

use super::imports::Imports;
use super::ledger::{Change, Ledger, RedemptionPage, RedemptionQuery};
use crate::domain::spec::CodeCounts;
use crate::domain::{
    Description, FilterId, Import, ImportId, Kind, Name, Redemption, RedemptionId, SegmentStats, Spec, Stats,
    Status, Timestamp, Window,
};
use crate::filter::{CompactReader, Digest, Layout, Secret, SlotState, StrictReader};
use arc_swap::ArcSwap;
use parking_lot::RwLock;
use rpds::RedBlackTreeMapSync;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Redemptions that one look at a ledger goes through at most.
const LOOKED_AT_MAX: usize = 1_000;

/// Codes that are looked up at most while the writer waits for the ledger.
const LOOKED_UP_MAX: usize = 1_000;

/// What has become of a code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CodeFound {
    /// Nobody has added it, or it was withdrawn.
    Absent,
    /// It may be used.
    Available,
    /// It is held.
    Held(Redemption),
    /// It is used; without its redemption once the retention of that is over.
    Redeemed(Option<Redemption>),
}

/// Items added and removed since a filter's creation.
#[derive(Debug, Default)]
pub struct Counters {
    /// Items added.
    pub adds: AtomicU64,
    /// Items removed.
    pub removes: AtomicU64,
}

/// A filter's tables, for reading.
#[derive(Clone)]
pub enum Reader {
    /// Fingerprints.
    Compact(CompactReader),
    /// Digests and states.
    Strict(StrictReader),
}

/// One campaign or coupon, for reading. Replaced as a whole when its window or its tables are; cheap to keep.
pub struct FilterView {
    /// Its identity.
    pub id: FilterId,
    /// Campaign or coupon.
    pub kind: Kind,
    /// Its name.
    pub name: Name,
    /// What it was asked to be.
    pub spec: Spec,
    /// The shape of its first table.
    pub layout: Layout,
    /// When it is active.
    pub window: Window,
    /// When it was created.
    pub created_at: Timestamp,
    pub(super) secret: Secret,
    pub(super) reader: Reader,
    pub(super) counters: Arc<Counters>,
    pub(super) ledger: Arc<RwLock<Ledger>>,
    pub(super) redemptions_retention: Arc<AtomicU64>,
}

impl FilterView {
    /// The item's digest under this filter's secret, case and white space folded if its spec says so.
    #[inline]
    pub fn digest(&self, item: &str) -> Digest {
        if self.spec.ignore_case {
            self.secret.digest(item.trim_ascii().to_ascii_uppercase().as_bytes())
        } else {
            self.secret.digest(item.as_bytes())
        }
    }

    /// Whether nothing is left of an item once case and white space are folded as its spec says.
    #[inline]
    pub fn is_blank(&self, item: &str) -> bool {
        self.spec.ignore_case && item.trim_ascii().is_empty()
    }

    /// Campaigns: whether the user is in (the window is not judged). Coupons: whether the code may be
    /// redeemed at `now`: it is available or its hold has run out, and the coupon is active.
    #[inline]
    pub fn contains(&self, digest: Digest, now: Timestamp) -> bool {
        match &self.reader {
            Reader::Compact(reader) => self.answers(now) && reader.view().contains(digest),
            Reader::Strict(reader) => {
                self.answers(now) && self.is_valid(reader.view().get(digest), digest, now)
            }
        }
    }

    /// [`Self::contains`] for a list; `out` is cleared first.
    pub fn contains_many(&self, digests: &[Digest], now: Timestamp, out: &mut Vec<bool>) {
        out.clear();
        if !self.answers(now) {
            out.resize(digests.len(), false);
            return;
        }
        match &self.reader {
            Reader::Compact(reader) => reader.view().contains_many(digests, out),
            Reader::Strict(reader) => {
                let mut states = Vec::with_capacity(digests.len());
                reader.view().get_many(digests, &mut states);
                out.extend(
                    states.iter().zip(digests).map(|(&state, &digest)| self.is_valid(state, digest, now)),
                );
            }
        }
    }

    /// Copies of an item: compact never too low; strict 0 or 1.
    pub fn count(&self, digest: Digest) -> u32 {
        match &self.reader {
            Reader::Compact(reader) => reader.view().count(digest),
            Reader::Strict(reader) => u32::from(reader.view().get(digest).is_some()),
        }
    }

    /// What has become of codes as of `now`, whatever the window. None for a compact filter, which knows no states.
    ///
    /// The writer sets a code's state first and enters the redemption next. So a code whose hold is just being made is still
    /// available here, and one that is just being used has no redemption yet.
    pub fn look_up(&self, digests: &[Digest], now: Timestamp) -> Option<Vec<CodeFound>> {
        let Reader::Strict(reader) = &self.reader else { return None };
        let mut found = Vec::with_capacity(digests.len());
        for digests in digests.chunks(LOOKED_UP_MAX) {
            let ledger = self.ledger.read();
            let mut states = Vec::with_capacity(digests.len());
            reader.view().get_many(digests, &mut states);
            found.extend(states.into_iter().zip(digests).map(|(state, digest)| {
                let current = ledger.current(*digest).filter(|current| !current.has_run_out(now));
                match (state, current) {
                    (None, _) => CodeFound::Absent,
                    (Some(_), Some(current)) if current.status == Status::Held => {
                        CodeFound::Held(current.clone())
                    }
                    (Some(_), Some(current)) => CodeFound::Redeemed(self.seen_at(current, now)),
                    (Some(SlotState::Redeemed), None) => CodeFound::Redeemed(None),
                    (Some(SlotState::Available | SlotState::Held), None) => CodeFound::Available,
                }
            }));
        }
        Some(found)
    }

    fn answers(&self, now: Timestamp) -> bool {
        self.kind == Kind::Campaign || self.window.contains(now)
    }

    fn is_valid(&self, state: Option<SlotState>, digest: Digest, now: Timestamp) -> bool {
        match state {
            None | Some(SlotState::Redeemed) => false,
            Some(SlotState::Available) => true,
            Some(SlotState::Held) => {
                let ledger = self.ledger.read();
                ledger.current(digest).is_some_and(|hold| hold.has_run_out(now))
            }
        }
    }

    /// The redemption of this id, as seen at `now`; none past its retention.
    pub fn redemption(&self, id: &RedemptionId, now: Timestamp) -> Option<Redemption> {
        self.ledger.read().get(id).and_then(|redemption| self.seen_at(redemption, now))
    }

    /// Redemptions as seen at `now`, in the order of their last change, those after `after`: up to `limit`. Looks at so few
    /// at once that the writer hardly waits, so it may find fewer though there are more.
    pub fn redemptions(
        &self,
        query: &RedemptionQuery,
        after: Option<Change>,
        limit: usize,
        now: Timestamp,
    ) -> RedemptionPage {
        self.ledger.read().page(query, after, limit, LOOKED_AT_MAX, |redemption| {
            let seen = self.seen_at(redemption, now)?;
            query.status.is_none_or(|status| status == seen.status).then_some(seen)
        })
    }

    fn seen_at(&self, redemption: &Redemption, now: Timestamp) -> Option<Redemption> {
        let retention = self.redemptions_retention.load(Ordering::Relaxed);
        (!redemption.is_over(now, retention)).then(|| redemption.clone().seen_at(now))
    }

    /// The filter as its owner sees it.
    pub fn describe(&self) -> Description {
        let (items, memory_bytes, segments, codes) = match &self.reader {
            Reader::Compact(reader) => {
                let tables = reader.view();
                (tables.items(), tables.memory_bytes(), tables.segments(), None)
            }
            Reader::Strict(reader) => {
                let tables = reader.view();
                let counts = tables.counts();
                let codes =
                    CodeCounts { available: counts.available, held: counts.held, redeemed: counts.redeemed };
                (tables.items(), tables.memory_bytes(), tables.segments(), Some(codes))
            }
        };
        let segments = segments
            .into_iter()
            .map(|segment| SegmentStats {
                items: segment.items,
                capacity: segment.capacity,
                slots: segment.buckets * u64::from(segment.bucket_size),
                fingerprint_bits: segment.fingerprint_bits,
                bucket_size: segment.bucket_size,
            })
            .collect();
        let stats = Stats {
            items,
            memory_bytes,
            segments,
            adds: self.counters.adds.load(Ordering::Relaxed),
            removes: self.counters.removes.load(Ordering::Relaxed),
            codes,
        };
        Description {
            id: self.id,
            kind: self.kind,
            name: self.name.clone(),
            spec: self.spec.clone(),
            window: self.window,
            created_at: self.created_at,
            stats,
        }
    }

    /// Bytes of its tables.
    pub fn memory_bytes(&self) -> u64 {
        match &self.reader {
            Reader::Compact(reader) => reader.view().memory_bytes(),
            Reader::Strict(reader) => reader.view().memory_bytes(),
        }
    }

    /// The same filter, active at other times.
    pub(super) fn with_window(&self, window: Window) -> Self {
        Self { window, ..self.copy() }
    }

    /// The same filter, created at another time.
    pub(super) fn with_created_at(&self, created_at: Timestamp) -> Self {
        Self { created_at, ..self.copy() }
    }

    /// The same filter with other tables.
    pub(super) fn with_reader(&self, reader: Reader) -> Self {
        Self { reader, ..self.copy() }
    }

    fn copy(&self) -> Self {
        Self {
            id: self.id,
            kind: self.kind,
            name: self.name.clone(),
            spec: self.spec.clone(),
            layout: self.layout,
            window: self.window,
            created_at: self.created_at,
            secret: self.secret.clone(),
            reader: self.reader.clone(),
            counters: self.counters.clone(),
            ledger: self.ledger.clone(),
            redemptions_retention: self.redemptions_retention.clone(),
        }
    }
}

/// Filters of one kind by name. A persistent map: a copy shares all nodes with its original, and a change copies the
/// path to one of them, so that publishing costs the same for ten filters and for 100 000.
type ByName = RedBlackTreeMapSync<Name, Arc<FilterView>>;

/// Everything that readers see of the state at one moment. Cheap to copy.
#[derive(Default, Clone)]
pub struct Catalog {
    campaigns: ByName,
    coupons: ByName,
}

impl Catalog {
    fn of(&self, kind: Kind) -> &ByName {
        match kind {
            Kind::Campaign => &self.campaigns,
            Kind::Coupon => &self.coupons,
        }
    }

    fn of_mut(&mut self, kind: Kind) -> &mut ByName {
        match kind {
            Kind::Campaign => &mut self.campaigns,
            Kind::Coupon => &mut self.coupons,
        }
    }

    /// The bearer of a name.
    pub fn get(&self, kind: Kind, name: &Name) -> Option<&Arc<FilterView>> {
        self.of(kind).get(name)
    }

    /// Filters of both kinds.
    pub fn len(&self) -> usize {
        self.campaigns.size() + self.coupons.size()
    }

    /// Filters by name, those with `prefix`, after `after`. Passes over none that it doesn't give.
    fn page<'a>(
        &'a self,
        kind: Kind,
        prefix: &'a str,
        after: Option<&'a Name>,
    ) -> impl Iterator<Item = &'a Arc<FilterView>> {
        // Whatever begins a name is a name itself, but for the empty text.
        let first = Name::new(prefix).ok();
        let is_possible = prefix.is_empty() || first.is_some();
        let start = match (after, first) {
            (Some(after), Some(first)) if *after < first => Bound::Included(first),
            (Some(after), _) => Bound::Excluded(after.clone()),
            (None, Some(first)) => Bound::Included(first),
            (None, None) => Bound::Unbounded,
        };
        let views = self.of(kind).range((start, Bound::Unbounded)).map(|(_, view)| view);
        views.take_while(move |view| is_possible && view.name.as_str().starts_with(prefix))
    }

    pub(super) fn insert(&mut self, view: Arc<FilterView>) {
        self.of_mut(view.kind).insert_mut(view.name.clone(), view);
    }

    pub(super) fn remove(&mut self, kind: Kind, name: &Name) {
        self.of_mut(kind).remove_mut(name);
    }
}

/// The shared end of the read side: the writer publishes, requests load.
#[derive(Clone, Default)]
pub struct View {
    catalog: Arc<ArcSwap<Catalog>>,
    pub(super) imports: Arc<RwLock<Imports>>,
    /// How long a redemption is shown after its last change, in seconds.
    pub(super) redemptions_retention: Arc<AtomicU64>,
}

impl View {
    /// The bearer of a name.
    pub fn find(&self, kind: Kind, name: &Name) -> Option<Arc<FilterView>> {
        self.catalog.load().get(kind, name).cloned()
    }

    /// Up to `limit` filters by name, those with `prefix`, after `after`.
    pub fn list(&self, kind: Kind, prefix: &str, after: Option<&Name>, limit: usize) -> Vec<Arc<FilterView>> {
        let catalog = self.catalog.load();
        catalog.page(kind, prefix, after).take(limit).cloned().collect()
    }

    /// Filters of both kinds.
    pub fn len(&self) -> usize {
        self.catalog.load().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every import on record, by id.
    pub fn imports(&self) -> Vec<Arc<Import>> {
        self.imports.read().iter().cloned().collect()
    }

    /// One import.
    pub fn import(&self, id: &ImportId) -> Option<Arc<Import>> {
        self.imports.read().get(id).cloned()
    }

    pub(super) fn publish(&self, catalog: Catalog) {
        self.catalog.store(Arc::new(catalog));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{Growth, Mode, Secret};
    use crate::state::Epoch;
    use crate::state::tables::Tables;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn named(reader: &Reader, name: &str) -> Arc<FilterView> {
        Arc::new(FilterView {
            id: FilterId(0),
            kind: Kind::Campaign,
            name: Name::new(name).unwrap(),
            spec: Spec {
                capacity: 1,
                mode: Mode::Strict,
                growth: Growth::Fixed,
                sizing: crate::domain::Sizing::Exact,
                ignore_case: false,
            },
            layout: Layout::strict(1).unwrap(),
            window: Window::default(),
            created_at: Timestamp(0),
            secret: Secret::new([0; crate::filter::hash::SECRET_BYTES]),
            reader: reader.clone(),
            counters: Arc::default(),
            ledger: Arc::new(RwLock::new(Ledger::new(Epoch(0)))),
            redemptions_retention: Arc::default(),
        })
    }

    fn reader() -> Reader {
        Tables::new(Epoch(0), Mode::Strict, Layout::strict(1).unwrap(), Growth::Fixed).reader()
    }

    #[test]
    fn a_change_copies_few_of_many_filters() {
        let (reader, mut catalog) = (reader(), Catalog::default());
        let views: Vec<_> = (0..10_000).map(|number| named(&reader, &format!("c{number}"))).collect();
        views.iter().cloned().for_each(|view| catalog.insert(view));
        let before: Vec<usize> = views.iter().map(Arc::strong_count).collect();

        let published = catalog.clone();
        catalog.insert(named(&reader, "c5000"));
        catalog.insert(named(&reader, "new"));
        catalog.remove(Kind::Campaign, &Name::new("c7000").unwrap());

        let copied = views.iter().zip(&before).filter(|(view, before)| Arc::strong_count(view) > **before);
        assert!(copied.count() < 100);
        assert_eq!((published.len(), catalog.len()), (10_000, 10_000));
    }

    proptest! {
        #[test]
        fn a_page_is_what_a_search_through_all_names_finds(
            changes in proptest::collection::vec(("[ab0]{1,3}", any::<bool>()), 0..60),
            prefix in "[-abA]{0,2}",
            after in proptest::option::of("[ab0]{1,3}"),
        ) {
            let (reader, mut catalog, mut names) = (reader(), Catalog::default(), BTreeSet::new());
            for (name, stays) in changes {
                if stays {
                    catalog.insert(named(&reader, &name));
                    names.insert(name);
                } else {
                    catalog.remove(Kind::Campaign, &Name::new(&name).unwrap());
                    names.remove(&name);
                }
            }
            names.retain(|name| name.starts_with(&prefix) && after.as_ref().is_none_or(|after| name > after));
            let after = after.map(|after| Name::new(&after).unwrap());
            let page = catalog.page(Kind::Campaign, &prefix, after.as_ref());
            let found: Vec<&str> = page.map(|view| view.name.as_str()).collect();
            prop_assert_eq!(found, names.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
}
