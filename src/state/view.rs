//! The read side of the state: what requests see while the writer changes it. Look-ups in filters take no lock.

use super::imports::Imports;
use super::ledger::{Change, Ledger, RedemptionPage, RedemptionQuery};
use crate::domain::spec::CodeCounts;
use crate::domain::{
    Description, FilterId, Import, ImportId, Kind, LineUp, Name, Redemption, RedemptionId, SegmentStats, Seq,
    Spec, Stats, Status, Timestamp, Window,
};
use crate::filter::{Digest, FilterStats, Layout, Mode, Reader, Secret, SlotState};
use arc_swap::{ArcSwap, Guard};
use parking_lot::RwLock;
use rpds::RedBlackTreeMapSync;
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most redemptions that one query looks at, so that the writer need not wait long for the ledger.
const LOOKED_AT_MAX: usize = 1_000;

/// The most codes that are looked up while the writer waits for the ledger.
const LOOKED_UP_MAX: usize = 1_000;

/// What has become of a code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CodeFound {
    /// It was never added, or it was removed.
    Absent,
    /// It may be redeemed.
    Available,
    /// It is held.
    Held(Redemption),
    /// It has been redeemed. Once the retention of its redemption has passed, that is missing.
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

/// One campaign or coupon, as readers see it. A new one replaces it when its window, its capacity or its tables are replaced.
pub struct FilterView {
    /// Its id.
    pub id: FilterId,
    /// Campaign or coupon.
    pub kind: Kind,
    /// Its name.
    pub name: Name,
    /// What it was asked to be.
    pub spec: Spec,
    /// The layout that it begins with when it is empty.
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
    /// The digest of an item under this filter's secret. If the spec says so, the item is trimmed and upper-cased first.
    #[inline]
    pub fn digest(&self, item: &str) -> Digest {
        self.digest_of(item.as_bytes())
    }

    /// [`Self::digest`] of an item's bytes, which need not be text.
    #[inline]
    pub fn digest_of(&self, item: &[u8]) -> Digest {
        if self.spec.ignore_case {
            self.secret.digest(&item.trim_ascii().to_ascii_uppercase())
        } else {
            self.secret.digest(item)
        }
    }

    /// Whether an item has nothing left once it is trimmed, if the spec says so.
    #[inline]
    pub fn is_blank(&self, item: impl AsRef<[u8]>) -> bool {
        self.spec.ignore_case && item.as_ref().trim_ascii().is_empty()
    }

    /// In a campaign: whether it has the user, whatever its window. In a coupon: whether the code may be redeemed at `now`, because the
    /// coupon is active and the code is available, or its hold has run out.
    #[inline]
    pub fn contains(&self, digest: Digest, now: Timestamp) -> bool {
        self.answers(now) && self.reader.contains(digest, |state| self.is_valid(digest, state, now))
    }

    /// [`Self::contains`] for a list; `out` is cleared first.
    pub fn contains_many(&self, digests: &[Digest], now: Timestamp, out: &mut Vec<bool>) {
        if self.answers(now) {
            self.reader.contains_many(digests, out, |digest, state| self.is_valid(digest, state, now));
        } else {
            out.clear();
            out.resize(digests.len(), false);
        }
    }

    /// Copies of an item. In a strict filter 0 or 1; in a compact one never too low, and items that look alike count too.
    pub fn count(&self, digest: Digest) -> u32 {
        self.reader.count(digest)
    }

    /// The most copies of an item that [`Self::count`] can tell.
    pub fn copies_max(&self) -> u32 {
        self.reader.copies_max()
    }

    /// Prefetches what a look-up of this item will need.
    #[inline]
    pub fn prefetch(&self, digest: Digest) {
        self.reader.prefetch(digest);
    }

    /// What has become of codes as of `now`, whatever the window. None for a compact filter, which keeps no states.
    ///
    /// The writer first changes a code's state, then its redemption. So a code that is just being held may still look available here, and
    /// one that is just being redeemed may have no redemption yet.
    pub fn look_up(&self, digests: &[Digest], now: Timestamp) -> Option<Vec<CodeFound>> {
        if self.spec.mode == Mode::Compact {
            return None;
        }
        let mut found = Vec::with_capacity(digests.len());
        for digests in digests.chunks(LOOKED_UP_MAX) {
            let ledger = self.ledger.read();
            let states = self.reader.states(digests);
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

    fn is_valid(&self, digest: Digest, state: SlotState, now: Timestamp) -> bool {
        match state {
            SlotState::Redeemed => false,
            SlotState::Available => true,
            SlotState::Held => {
                let ledger = self.ledger.read();
                ledger.current(digest).is_some_and(|hold| hold.has_run_out(now))
            }
        }
    }

    /// The redemption of this id, as it is seen at `now`; none once its retention has passed.
    pub fn redemption(&self, id: &RedemptionId, now: Timestamp) -> Option<Redemption> {
        self.ledger.read().get(id).and_then(|redemption| self.seen_at(redemption, now))
    }

    /// A page of up to `limit` redemptions after `after`, as they are seen at `now`, in the order of their last change. It looks at a
    /// limited number of redemptions, so a page may have fewer though more follow.
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

    /// The campaign or coupon as its owner sees it.
    pub fn describe(&self) -> Description {
        let FilterStats { items, memory_bytes, segments, states, copies_max } = self.reader.stats();
        let codes = states.map(|states| CodeCounts {
            available: states.available,
            held: states.held,
            redeemed: states.redeemed,
        });
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
            copies_max,
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
        self.reader.memory_bytes()
    }

    /// The same filter with another window.
    pub(super) fn with_window(&self, window: Window) -> Self {
        Self { window, ..self.copy() }
    }

    /// The same filter with another capacity, and the layout for it.
    pub(super) fn with_capacity(&self, capacity: u64, layout: Layout) -> Self {
        Self { spec: Spec { capacity, ..self.spec.clone() }, layout, ..self.copy() }
    }

    /// The same filter with another time of creation.
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

/// A line-up under its name.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NamedLineUp {
    /// Its name.
    pub name: Name,
    /// What it is.
    pub line_up: LineUp,
    /// The entry that created it. A line-up that was deleted and created again is another one, which has another entry.
    pub(super) created_by: Seq,
}

impl NamedLineUp {
    /// Memory that it takes, in bytes, approximately.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.line_up.memory_bytes(&self.name)
    }
}

/// Filters of one kind, or line-ups, by name. The map is persistent: a copy shares all nodes with its original, and a change copies only
/// the path to one node. So publishing 100 000 filters costs no more than publishing ten.
type ByName<T> = RedBlackTreeMapSync<Name, Arc<T>>;

/// The filters of both kinds and the line-ups by name, at one moment. Cheap to copy.
#[derive(Default, Clone)]
pub struct Catalog {
    campaigns: ByName<FilterView>,
    coupons: ByName<FilterView>,
    line_ups: ByName<NamedLineUp>,
}

/// What stands under names that begin with `prefix`, after `after`, in order. It looks at no others.
fn page<'a, T>(
    all: &'a ByName<T>,
    prefix: &'a str,
    after: Option<&'a Name>,
) -> impl Iterator<Item = &'a Arc<T>> {
    // Every prefix of a name is a name itself, except for the empty one.
    let first = Name::new(prefix).ok();
    let is_possible = prefix.is_empty() || first.is_some();
    let start = match (after, first) {
        (Some(after), Some(first)) if *after < first => Bound::Included(first),
        (Some(after), _) => Bound::Excluded(after.clone()),
        (None, Some(first)) => Bound::Included(first),
        (None, None) => Bound::Unbounded,
    };
    let found = all.range((start, Bound::Unbounded));
    found
        .take_while(move |(name, _)| is_possible && name.as_str().starts_with(prefix))
        .map(|(_, found)| found)
}

impl Catalog {
    fn of(&self, kind: Kind) -> &ByName<FilterView> {
        match kind {
            Kind::Campaign => &self.campaigns,
            Kind::Coupon => &self.coupons,
        }
    }

    fn of_mut(&mut self, kind: Kind) -> &mut ByName<FilterView> {
        match kind {
            Kind::Campaign => &mut self.campaigns,
            Kind::Coupon => &mut self.coupons,
        }
    }

    /// The filter of this name.
    pub fn get<N: Ord + ?Sized>(&self, kind: Kind, name: &N) -> Option<&Arc<FilterView>>
    where
        Name: Borrow<N>,
    {
        self.of(kind).get(name)
    }

    /// How many filters there are, of both kinds.
    pub fn len(&self) -> usize {
        self.campaigns.size() + self.coupons.size()
    }

    /// The line-up of this name.
    pub(super) fn line_up(&self, name: &Name) -> Option<&Arc<NamedLineUp>> {
        self.line_ups.get(name)
    }

    /// All line-ups, in the order of their names.
    pub(super) fn line_ups(&self) -> impl Iterator<Item = &Arc<NamedLineUp>> {
        self.line_ups.values()
    }

    /// How many line-ups there are.
    pub(super) fn line_ups_len(&self) -> usize {
        self.line_ups.size()
    }

    pub(super) fn insert_line_up(&mut self, line_up: Arc<NamedLineUp>) {
        self.line_ups.insert_mut(line_up.name.clone(), line_up);
    }

    /// Removes a line-up and returns it.
    pub(super) fn remove_line_up(&mut self, name: &Name) -> Option<Arc<NamedLineUp>> {
        let removed = self.line_ups.get(name).cloned();
        self.line_ups.remove_mut(name);
        removed
    }

    pub(super) fn insert(&mut self, view: Arc<FilterView>) {
        self.of_mut(view.kind).insert_mut(view.name.clone(), view);
    }

    pub(super) fn remove(&mut self, kind: Kind, name: &Name) {
        self.of_mut(kind).remove_mut(name);
    }
}

/// The read side, shared by all requests. The writer publishes to it.
#[derive(Clone, Default)]
pub struct View {
    catalog: Arc<ArcSwap<Catalog>>,
    pub(super) imports: Arc<RwLock<Imports>>,
    /// How long a redemption can be looked up after its last change, in seconds.
    pub(super) redemptions_retention: Arc<AtomicU64>,
}

impl View {
    /// The filter of this name.
    pub fn find(&self, kind: Kind, name: &Name) -> Option<Arc<FilterView>> {
        self.catalog.load().get(kind, name).cloned()
    }

    /// Up to `limit` filters whose names begin with `prefix`, after `after`, in order.
    pub fn list(&self, kind: Kind, prefix: &str, after: Option<&Name>, limit: usize) -> Vec<Arc<FilterView>> {
        let catalog = self.catalog.load();
        page(catalog.of(kind), prefix, after).take(limit).cloned().collect()
    }

    /// The line-up of this name.
    pub fn line_up(&self, name: &Name) -> Option<Arc<NamedLineUp>> {
        self.catalog.load().line_up(name).cloned()
    }

    /// Up to `limit` line-ups whose names begin with `prefix`, after `after`, in order.
    pub fn list_line_ups(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Vec<Arc<NamedLineUp>> {
        page(&self.catalog.load().line_ups, prefix, after).take(limit).cloned().collect()
    }

    /// How many line-ups there are.
    pub fn line_ups_len(&self) -> usize {
        self.catalog.load().line_ups_len()
    }

    /// How many filters there are, of both kinds.
    pub fn len(&self) -> usize {
        self.catalog.load().len()
    }

    /// Whether there is no filter.
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

    /// The filters as they are now.
    pub(super) fn catalog(&self) -> Guard<Arc<Catalog>> {
        self.catalog.load()
    }

    pub(super) fn publish(&self, catalog: Catalog) {
        self.catalog.store(Arc::new(catalog));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{Filter, Growth, Secret};
    use crate::state::epoch::Epoch;
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
        Filter::new(Mode::Strict, Layout::strict(1).unwrap(), Growth::Fixed).reader()
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
            let page = page(&catalog.campaigns, &prefix, after.as_ref());
            let found: Vec<&str> = page.map(|view| view.name.as_str()).collect();
            prop_assert_eq!(found, names.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
}
