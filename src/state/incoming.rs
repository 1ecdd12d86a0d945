//! Images that come in: of each a campaign or coupon is made part by part, which nobody sees before it is whole.
//!
//! Such a filter lies among the others, in snapshots and in the memory account too, but it is not in the catalog. Its redemptions lie in
//! its own queues, but none is due while it is hidden. An image that is damaged, or makes no progress for too long, is dropped whole.

use super::ledger::{Change, Ledger};
use super::loading::Loading;
use super::machine::{FilterState, State};
use super::subject::Subject;
use super::tables::{Tables, slot_state};
use super::view::FilterView;
use crate::domain::image::{
    ALGORITHM, IMAGE_IDLE_SECONDS, IMAGES_MAX, IMAGES_OF_KEY_MAX, LAST_CHANGE_MAX, TABLES_HAD_MAX,
};
use crate::domain::spec::STOCK_MAX;
use crate::domain::{
    Chunk, Command, FilterChange, FilterHead, FilterId, ImageFault, ImagePart, ImageSection, Kind, Name,
    Outcome, Redemption, Refusal, Sizing, Spec, Timestamp, UploadId,
};
use crate::filter::layout::{CAPACITY_MAX, ERROR_RATE_MAX, ERROR_RATE_MIN};
use crate::filter::{Filter, Layout, Mode};
use std::sync::Arc;

/// The campaign or coupon that is to be made of an image.
struct Beginning<'a> {
    id: FilterId,
    kind: Kind,
    name: &'a Name,
    head: &'a FilterHead,
}

impl State {
    /// The images that are coming in, and have made no progress since then.
    pub fn images_unmoved_since(&self, before: Timestamp) -> Vec<UploadId> {
        let unmoved = self.loading_changed_at().filter(|(_, changed_at)| *changed_at < before);
        unmoved.map(|(upload, _)| upload).collect()
    }

    /// When the image that has made no progress for the longest time is given up.
    pub(super) fn image_given_up_at(&self) -> Option<Timestamp> {
        let oldest = self.loading_changed_at().map(|(_, changed_at)| changed_at).min()?;
        Some(oldest.plus_seconds(IMAGE_IDLE_SECONDS))
    }

    /// The images that are coming in, and when each made progress last.
    fn loading_changed_at(&self) -> impl Iterator<Item = (UploadId, Timestamp)> {
        let changed_at = |id| Some(self.filters.get(id)?.loading.as_ref()?.changed_at);
        // One of which nothing is there can make no progress.
        self.shared.loading.iter().map(move |(upload, id)| (*upload, changed_at(id).unwrap_or_default()))
    }

    /// How many images the API key of this entry is sending. Requests without a key have no share of their own.
    fn images_of_key(&self) -> usize {
        let Some(by) = &self.shared.events.by else { return 0 };
        let loading = self.shared.loading.values().filter_map(|id| self.filters.get(id)?.loading.as_ref());
        loading.filter(|loading| loading.by.as_ref() == Some(by)).count()
    }

    /// How many images are coming in.
    pub fn images_loading(&self) -> u64 {
        self.shared.loading.len() as u64
    }

    /// Whether a filter is not to be seen yet.
    pub(super) fn is_hidden(&self, filter: FilterId) -> bool {
        !self.shared.loading.is_empty() && self.filters.get(&filter).is_some_and(FilterState::is_hidden)
    }

    /// Executes a command about an image.
    pub(super) fn take_image(&mut self, command: &Command) -> Result<Outcome, Refusal> {
        match command {
            Command::ImageBegin { upload, id, kind, name, head, checksum } => {
                self.give_image_up(*upload);
                let loading =
                    Loading::begun(*upload, self.shared.events.by.clone(), head, *checksum, self.shared.now);
                self.image_begin(&Beginning { id: *id, kind: *kind, name, head }, loading)?;
                self.shared.loading.insert(*upload, *id);
                Ok(Outcome::ImageReceived)
            }
            Command::ImagePart { upload, before, checksum, part } => {
                self.image_part(*upload, *before, *checksum, part)
            }
            Command::ImageEnd { upload, before, redemptions } => {
                self.image_end(*upload, *before, *redemptions)
            }
            Command::ImageAbandon { upload } => {
                self.give_image_up(*upload);
                Ok(Outcome::ImageAbandoned)
            }
            _ => Err(Refusal::ImageNotFound),
        }
    }

    /// Makes the filter of an image, with empty tables. It is not shown.
    fn image_begin(&mut self, beginning: &Beginning<'_>, loading: Loading) -> Result<(), Refusal> {
        let Beginning { id, kind, name, head } = *beginning;
        if self.shared.catalog.get(kind, name).is_some() {
            return Err(Refusal::NameTaken);
        }
        if self.filters.len() as u64 >= self.shared.settings.filters_max || self.filters.contains_key(&id) {
            return Err(Refusal::TooManyFilters);
        }
        if self.shared.loading.len() >= IMAGES_MAX || self.images_of_key() >= IMAGES_OF_KEY_MAX {
            return Err(Refusal::TooManyImages);
        }
        check(head, kind).map_err(Refusal::ImageDamaged)?;
        let contradicts = |_| Refusal::ImageDamaged(ImageFault::Contradiction);
        let filter = Filter::hollow(head.spec.mode, &head.tables).map_err(contradicts)?;
        let tables = Tables { epoch: self.shared.next_epoch(), filter };
        let (last_change, is_open_pool) = (Change(head.last_change), head.spec.stock.is_some());
        let ledger = Ledger::new(self.shared.next_epoch(), is_open_pool, last_change);
        let created_at = head.created_at.min(self.shared.now);
        let retention = &self.shared.view.redemptions_retention;
        let view = FilterView::of(id, head, tables.filter.reader(), ledger, retention);
        let view = FilterView { name: name.clone(), created_at, ..view };
        let mut filter = FilterState::new(Arc::new(view), tables, None, Some(Box::new(loading)));
        self.shared.note(&mut filter);
        self.filters.insert(id, filter);
        Ok(())
    }

    /// Takes the next part of an image.
    fn image_part(
        &mut self,
        upload: UploadId,
        before: u128,
        checksum: u128,
        part: &ImagePart,
    ) -> Result<Outcome, Refusal> {
        let id = self.loading(upload)?;
        let taken = self.on_as_it_is(id, |filter| filter.take_part(before, checksum, part));
        self.unless_damaged(upload, taken)
    }

    /// Ends an image: shows its filter if it is whole.
    fn image_end(&mut self, upload: UploadId, before: u128, redemptions: u64) -> Result<Outcome, Refusal> {
        let id = self.loading(upload)?;
        let whole = self.on_as_it_is(id, |filter| filter.finish_loading(before, redemptions));
        self.unless_damaged(upload, whole)?;
        let Some(filter) = self.filters.get_mut(&id) else { return Err(Refusal::ImageNotFound) };
        if self.shared.catalog.get(filter.view.kind, &filter.view.name).is_some() {
            self.give_image_up(upload);
            return Err(Refusal::NameTaken);
        }
        filter.loading = None;
        let shared = &mut self.shared;
        shared.loading.remove(&upload);
        shared.note(filter);
        let view = filter.view.clone();
        shared.show(view.clone());
        shared.tell_filter(&view, FilterChange::Created);
        // A campaign that forgets goes on to the present step.
        self.on(id, |_| ())?;
        Ok(Outcome::Created(Box::new(view.describe(self.shared.now))))
    }

    /// Drops what has come of an image, if it is coming in.
    fn give_image_up(&mut self, upload: UploadId) {
        if let Some(id) = self.shared.loading.remove(&upload) {
            self.drop_filter(id);
        }
    }

    /// Drops the images that have made no progress for too long.
    pub(super) fn forget_unmoved_images(&mut self) {
        if self.shared.loading.is_empty() {
            return;
        }
        let idle_since = self.shared.now.0.checked_sub(IMAGE_IDLE_SECONDS * 1_000);
        let Some(before) = idle_since.map(|at| Timestamp(at + 1)) else { return };
        for upload in self.images_unmoved_since(before) {
            self.give_image_up(upload);
        }
    }

    /// Drops all images that are coming in.
    pub(super) fn give_images_up(&mut self) {
        for upload in self.images_unmoved_since(Timestamp::MAX) {
            self.give_image_up(upload);
        }
    }

    fn loading(&self, upload: UploadId) -> Result<FilterId, Refusal> {
        self.shared.loading.get(&upload).copied().ok_or(Refusal::ImageNotFound)
    }

    fn unless_damaged(
        &mut self,
        upload: UploadId,
        taken: Option<Result<(), ImageFault>>,
    ) -> Result<Outcome, Refusal> {
        match taken {
            Some(Ok(())) => Ok(Outcome::ImageReceived),
            Some(Err(fault)) => {
                self.give_image_up(upload);
                Err(Refusal::ImageDamaged(fault))
            }
            None => Err(Refusal::ImageNotFound),
        }
    }
}

impl Subject<'_> {
    fn take_part(&mut self, before: u128, checksum: u128, part: &ImagePart) -> Result<(), ImageFault> {
        let loading = self.loading.as_mut().ok_or(ImageFault::Order)?;
        if loading.checksum == checksum {
            return Ok(());
        }
        if loading.checksum != before {
            return Err(ImageFault::Order);
        }
        loading.checksum = checksum;
        loading.changed_at = self.shared.now;
        let is_loaded = part.chunks.iter().all(|Chunk(chunk)| match part.section {
            ImageSection::Tables => self.tables.filter.fill(&mut loading.filled, chunk).is_ok(),
            ImageSection::Ordinals => self.view.ledger.write().load_ordinals(chunk),
            ImageSection::Redemptions => {
                let filter = &self.tables.filter;
                let is_strict = self.view.kind == Kind::Coupon && self.view.spec.mode == Mode::Strict;
                let is_right = |redemption: &Redemption| {
                    !redemption.stands()
                        || filter.state(redemption.digest) == Some(slot_state(redemption.status))
                };
                is_strict && self.view.ledger.write().load(chunk, is_right)
            }
        });
        is_loaded.then_some(()).ok_or(ImageFault::Contradiction)
    }

    fn finish_loading(&mut self, before: u128, redemptions: u64) -> Result<(), ImageFault> {
        let loading = self.loading.as_mut().ok_or(ImageFault::Order)?;
        if loading.checksum != before {
            return Err(ImageFault::Order);
        }
        let finished = self.tables.filter.finish_filling(loading.filled, &loading.items);
        let (held, _) = self.tables.used();
        let mut ledger = self.view.ledger.write();
        let is_whole = finished.is_ok()
            && ledger.len() as u64 == redemptions
            && ledger.holds_len() as u64 == held
            && ledger.finish_loading();
        is_whole.then_some(()).ok_or(ImageFault::Contradiction)
    }
}

/// Whether a filter of this kind can be as an image's head says. Its parts are judged as they come.
fn check(head: &FilterHead, kind: Kind) -> Result<(), ImageFault> {
    if head.algorithm != ALGORITHM {
        return Err(ImageFault::Algorithm(head.algorithm));
    }
    if head.kind != kind {
        return Err(ImageFault::Kind(head.kind));
    }
    let Spec { capacity, mode, growth, sizing, ignore_case, stock, forget } = &head.spec;
    let sizing_fits = match (sizing, mode) {
        (Sizing::Exact, Mode::Strict) => true,
        (Sizing::ErrorRate(rate), Mode::Compact) => (ERROR_RATE_MIN..=ERROR_RATE_MAX).contains(rate),
        (&Sizing::Layout { fingerprint_bits, bucket_size, max_search }, Mode::Compact) => {
            let asked = Layout { fingerprint_bits, bucket_size, max_search, ..head.layout };
            asked.check(*mode).is_ok()
        }
        (Sizing::Exact, Mode::Compact) | (Sizing::ErrorRate(_) | Sizing::Layout { .. }, Mode::Strict) => {
            false
        }
    };
    let steps = forget.map(|forget| forget.steps());
    let steps_fit = match steps {
        Some(steps) => head.layout.with_steps(steps) == Ok(head.layout),
        None => head.layout.step_bits == 0,
    };
    let is_possible = (1..=CAPACITY_MAX).contains(capacity)
        && sizing_fits
        && (kind == Kind::Coupon || (stock.is_none() && !ignore_case))
        && stock.is_none_or(|stock| *mode == Mode::Strict && (1..=STOCK_MAX).contains(&stock))
        && forget.is_none_or(|_| *mode == Mode::Compact && kind == Kind::Campaign)
        && head.layout.check(*mode).is_ok()
        && steps_fit
        && head.window.is_ordered()
        && head.last_change <= LAST_CHANGE_MAX
        && head.tables.tables_had() <= TABLES_HAD_MAX
        && head.tables.growth() == *growth
        && head.tables.forgets_after() == steps
        && head.tables.step_bits() == head.layout.step_bits;
    is_possible.then_some(()).ok_or(ImageFault::Contradiction)
}
