//! The published names: campaigns, coupons and line-ups at one moment, and imports. The writer publishes it.

use super::import_records::Imports;
use super::view::FilterView;
use crate::domain::{Annotations, Import, ImportId, Kind, LineUp, Name, Seq};
use arc_swap::{ArcSwap, Guard};
use parking_lot::RwLock;
use rpds::RedBlackTreeMapSync;
use serde::{Deserialize, Serialize};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A line-up with its name.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NamedLineUp {
    /// Its name.
    pub name: Name,
    /// The line-up.
    pub line_up: LineUp,
    /// Its title and labels.
    pub annotations: Annotations,
    /// The entry that created it. A line-up that was deleted and created again is another one, which has another entry.
    pub(super) created_by: Seq,
}

impl NamedLineUp {
    /// Memory that it takes, in bytes, approximately.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.line_up.memory_bytes(&self.name) + self.annotations.memory_bytes()
    }
}

/// A filter or a line-up that a reader borrows. It counts no reference, since all workers would write to that count, and it keeps one of
/// the few places of its thread: hold it while computing, but not while waiting for a client or the writer.
pub type Borrowed<T> = Guard<Arc<T>>;

/// A filter or a line-up of the catalog.
struct CatalogEntry<T> {
    value: Arc<T>,
    /// The same, to be borrowed.
    lent: ArcSwap<T>,
}

/// Filters of one kind, or line-ups, by name. The map is persistent: a copy shares all nodes with its original, and a change copies only
/// the path to one node. So publishing 100 000 filters costs no more than publishing ten.
struct ByName<T>(RedBlackTreeMapSync<Name, CatalogEntry<T>>);

impl<T> Clone for ByName<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for ByName<T> {
    fn default() -> Self {
        Self(RedBlackTreeMapSync::default())
    }
}

impl<T> ByName<T> {
    fn get(&self, name: &str) -> Option<&Arc<T>> {
        self.0.get(name).map(|entry| &entry.value)
    }

    fn borrow(&self, name: &str) -> Option<Borrowed<T>> {
        self.0.get(name).map(|entry| entry.lent.load())
    }

    fn insert(&mut self, name: Name, value: Arc<T>) {
        let lent = ArcSwap::new(value.clone());
        self.0.insert_mut(name, CatalogEntry { value, lent });
    }

    fn remove(&mut self, name: &Name) {
        self.0.remove_mut(name);
    }

    fn len(&self) -> usize {
        self.0.size()
    }

    fn values(&self) -> impl Iterator<Item = &Arc<T>> {
        self.0.values().map(|entry| &entry.value)
    }

    /// Those whose names start with `prefix`, after `after`, in order. Scans only that range.
    fn page<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a Name>,
    ) -> impl Iterator<Item = &'a Arc<T>> {
        let start = match after.map(Name::as_str) {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let found = self.0.range::<str, _>((start, Bound::Unbounded));
        found
            .take_while(move |(name, _)| name.as_str().starts_with(prefix))
            .map(|(_, entry)| &entry.value)
    }
}

/// The filters of both kinds and the line-ups by name, at one moment. Cheap to copy.
#[derive(Default, Clone)]
pub struct Catalog {
    /// In the order of [`Kind`].
    filters: [ByName<FilterView>; 2],
    /// Number of filters inserted and removed so far. Equal versions have the same names.
    version: u64,
    line_ups: ByName<NamedLineUp>,
}

impl Catalog {
    /// The filter of this name.
    pub fn get(&self, kind: Kind, name: &(impl AsRef<str> + ?Sized)) -> Option<&Arc<FilterView>> {
        self.filters[kind as usize].get(name.as_ref())
    }

    pub(super) fn insert(&mut self, view: Arc<FilterView>) {
        self.version += 1;
        self.filters[view.kind as usize].insert(view.name.clone(), view);
    }

    pub(super) fn remove(&mut self, kind: Kind, name: &Name) {
        self.version += 1;
        self.filters[kind as usize].remove(name);
    }

    pub(super) fn line_up(&self, name: &Name) -> Option<&Arc<NamedLineUp>> {
        self.line_ups.get(name.as_str())
    }

    pub(super) fn line_ups(&self) -> impl Iterator<Item = &Arc<NamedLineUp>> {
        self.line_ups.values()
    }

    pub(super) fn line_ups_len(&self) -> usize {
        self.line_ups.len()
    }

    pub(super) fn insert_line_up(&mut self, line_up: Arc<NamedLineUp>) {
        self.line_ups.insert(line_up.name.clone(), line_up);
    }

    pub(super) fn remove_line_up(&mut self, name: &Name) {
        self.line_ups.remove(name);
    }
}

/// The read side, shared by all requests. The writer publishes to it.
#[derive(Clone, Default)]
pub struct Views {
    pub(super) catalog: Arc<ArcSwap<Catalog>>,
    pub(super) imports: Arc<RwLock<Imports>>,
    /// How long a redemption can be looked up after its last change, in seconds.
    pub(super) redemptions_retention: Arc<AtomicU64>,
}

impl Views {
    /// The filter of this name.
    pub fn find(&self, kind: Kind, name: &(impl AsRef<str> + ?Sized)) -> Option<Arc<FilterView>> {
        self.catalog.load().get(kind, name).cloned()
    }

    /// The filter of this name, for a check.
    pub fn borrow(
        &self,
        kind: Kind,
        name: &(impl AsRef<str> + ?Sized),
    ) -> Option<Borrowed<FilterView>> {
        self.catalog.load().filters[kind as usize].borrow(name.as_ref())
    }

    /// Up to `limit` filters whose names start with `prefix`, after `after`, in order.
    pub fn list(
        &self,
        kind: Kind,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Vec<Arc<FilterView>> {
        let catalog = self.catalog.load();
        catalog.filters[kind as usize]
            .page(prefix, after)
            .take(limit)
            .cloned()
            .collect()
    }

    /// The line-up of this name.
    pub fn line_up(&self, name: &Name) -> Option<Borrowed<NamedLineUp>> {
        self.catalog.load().line_ups.borrow(name.as_str())
    }

    /// Up to `limit` line-ups whose names start with `prefix`, after `after`, in order.
    pub fn list_line_ups(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Vec<Arc<NamedLineUp>> {
        let catalog = self.catalog.load();
        catalog
            .line_ups
            .page(prefix, after)
            .take(limit)
            .cloned()
            .collect()
    }

    /// How many line-ups there are.
    pub fn line_ups_len(&self) -> usize {
        self.catalog.load().line_ups.len()
    }

    /// How many filters of this kind there are.
    pub fn count(&self, kind: Kind) -> usize {
        self.catalog.load().filters[kind as usize].len()
    }

    /// Changes whenever a filter is created or deleted.
    pub fn version(&self) -> u64 {
        self.catalog.load().version
    }

    /// Every import on record, by id.
    pub fn imports(&self) -> Vec<Arc<Import>> {
        self.imports.read().iter().cloned().collect()
    }

    /// One import.
    pub fn import(&self, id: &ImportId) -> Option<Arc<Import>> {
        self.imports.read().get(id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{FilterId, Normalization, Profile, Spec, Supply, Timestamp, Window};
    use crate::ledger::Ledger;
    use crate::section::Epoch;
    use cuckood_filter::{Filter, Growth, Layout, Mode, Reader, Secret};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn named(reader: &Reader, name: &str) -> Arc<FilterView> {
        let profile = Profile {
            kind: Kind::Campaign,
            name: Name::new(name).unwrap(),
            spec: Spec {
                capacity: 1,
                mode: Mode::Strict,
                growth: Growth::Fixed,
                sizing: crate::domain::Sizing::Exact,
                normalization: Normalization::Exact,
                supply: Supply::default(),
                forget: None,
            },
            layout: Layout::strict(1).unwrap(),
            window: Window::default(),
            created_at: Timestamp(0),
            annotations: Annotations::default(),
            secret: Secret::new([0; cuckood_filter::hash::SECRET_BYTES]),
        };
        Arc::new(FilterView {
            id: FilterId(0),
            profile,
            reader: reader.clone(),
            counters: Arc::default(),
            ledger: Arc::new(RwLock::new(Ledger::new(
                Epoch(0),
                &Secret::new([0; cuckood_filter::hash::SECRET_BYTES]),
                &Supply::default(),
                Default::default(),
            ))),
            redemptions_retention: Arc::default(),
            capacity_max: std::sync::OnceLock::new(),
        })
    }

    fn reader() -> Reader {
        Filter::new(
            Mode::Strict,
            Layout::strict(1).unwrap(),
            Growth::Fixed,
            None,
        )
        .reader()
    }

    /// Workers that check one filter would all write to the count of its references.
    #[test]
    fn borrowing_counts_no_reference() {
        let views = Views::default();
        let view = named(&reader(), "c");
        let mut catalog = Catalog::default();
        catalog.insert(view.clone());
        views.catalog.store(Arc::new(catalog));
        let references = Arc::strong_count(&view);

        let borrowed = views.borrow(Kind::Campaign, "c").unwrap();
        assert!(Arc::ptr_eq(&borrowed, &view));
        assert_eq!(Arc::strong_count(&view), references);

        views.catalog.store(Arc::new(Catalog::default()));
        assert!(
            Arc::strong_count(&view) == 2,
            "one here, one borrowed from a catalog that is gone"
        );
        drop(borrowed);
        assert_eq!(Arc::strong_count(&view), 1);
    }

    #[test]
    fn change_copies_few_filters() {
        let reader = reader();
        let mut catalog = Catalog::default();
        let views: Vec<_> = (0..10_000)
            .map(|number| named(&reader, &format!("c{number}")))
            .collect();
        views.iter().cloned().for_each(|view| catalog.insert(view));
        let before: Vec<usize> = views.iter().map(Arc::strong_count).collect();

        let published = catalog.clone();
        catalog.insert(named(&reader, "c5000"));
        catalog.insert(named(&reader, "new"));
        catalog.remove(Kind::Campaign, &Name::new("c7000").unwrap());

        let copied = views
            .iter()
            .zip(&before)
            .filter(|(view, before)| Arc::strong_count(view) > **before);
        assert!(copied.count() < 100);
        assert_eq!(
            [&published, &catalog].map(|catalog| catalog.filters[0].len()),
            [10_000; 2]
        );
    }

    proptest! {
        #[test]
        fn page_matches_full_scan(
            changes in proptest::collection::vec(("[ab0]{1,3}", any::<bool>()), 0..60),
            prefix in "[-abA]{0,2}",
            after in proptest::option::of("[ab0]{1,3}"),
        ) {
            let reader = reader();
            let mut catalog = Catalog::default();
            let mut names = BTreeSet::new();
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
            let page = catalog.filters[Kind::Campaign as usize].page(&prefix, after.as_ref());
            let found: Vec<&str> = page.map(|view| view.name.as_str()).collect();
            prop_assert_eq!(found, names.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
}
