//! Image uploads: each fills a campaign or coupon part by part, which is hidden until it is complete.
//!
//! Such a filter is stored with the others, also in snapshots and in the memory account, but it is not in the catalog. Its redemptions are
//! in its own queues, but none expires while it is hidden. A damaged image, or one without progress for too long, is dropped completely.

use super::ledger::{ChangeNumber, Membership};
use super::machine::{ArrivingImage, FilterState, State};
use super::statistics::FilterStatistics;
use super::tables::{EpochFilter, slot_state};
use super::view::{Counters, FilterView};
use crate::domain::{
    ALGORITHM, FilterChange, FilterHead, HourRetention, IMAGES_MAX, IMAGES_OF_KEY_MAX, ImageBegin,
    ImageBody, ImageChunk, ImageFault, ImagePart, ImageRecord, ImageSection, Kind, LAST_CHANGE_MAX,
    Meaning, Normalization, Outcome, Profile, Redemption, Refusal, Timestamp, UploadId,
};
use cuckood_filter::{Filter, Mode};
use std::sync::{Arc, OnceLock};

impl State {
    /// Returns the image uploads without progress since `before`.
    pub fn images_unmoved_since(&self, before: Timestamp) -> Vec<UploadId> {
        let unmoved = self
            .shared
            .images
            .0
            .iter()
            .filter(|(_, image)| image.changed_at < before);
        unmoved.map(|(upload, _)| *upload).collect()
    }

    /// Makes the filter of an image, with empty tables. It is not shown.
    pub(super) fn image_begin(&mut self, begin: &ImageBegin) -> Result<Outcome, Refusal> {
        let &ImageBegin {
            upload,
            id,
            kind,
            ref name,
            ref head,
            checksum,
        } = begin;
        self.abort_image(upload);
        let shared = &mut self.shared;
        if shared.catalog.get(kind, name).is_some() {
            return Err(Refusal::NameTaken);
        }
        if self.filters.len() as u64 >= shared.settings.filters_max
            || self.filters.contains_key(&id)
        {
            return Err(Refusal::TooManyFilters);
        }
        let by = shared.events.by.clone();
        if shared.images.0.len() >= IMAGES_MAX
            || shared.images.of_key(by.as_ref()) >= IMAGES_OF_KEY_MAX
        {
            return Err(Refusal::TooManyImages);
        }
        check(head, kind).map_err(Refusal::ImageDamaged)?;
        let contradicts = |_| Refusal::ImageDamaged(ImageFault::Contradiction);
        let filter = Filter::unfilled(head.profile.spec.mode, &head.tables).map_err(contradicts)?;
        let tables = EpochFilter {
            epoch: shared.next_epoch(),
            filter,
        };
        let ledger = shared.empty_ledger(&head.profile, ChangeNumber(head.last_change));
        let redemptions_retention = shared.view.redemptions_retention.clone();
        let created_at = head.profile.created_at.min(shared.now);
        let profile = Profile {
            name: name.clone(),
            created_at,
            ..head.profile.clone()
        };
        let statistics = FilterStatistics {
            latest: head.latest,
            ..FilterStatistics::default()
        };
        let FilterHead { adds, removes, .. } = **head;
        let counters = Counters {
            adds: adds.into(),
            removes: removes.into(),
            statistics: statistics.into(),
        };
        let counters = counters.into();
        let reader = tables.filter.reader();
        let view = FilterView {
            id,
            profile,
            counters,
            reader,
            ledger,
            redemptions_retention,
            capacity_max: OnceLock::new(),
        };
        let filled = Default::default();
        let items = head.tables.items();
        let changed_at = shared.now;
        shared.images.0.insert(
            upload,
            ArrivingImage {
                filter: id,
                by,
                filled,
                items,
                checksum,
                changed_at,
            },
        );
        let mut filter = FilterState::new(Arc::new(view), tables, true);
        shared.note(&mut filter);
        self.filters.insert(id, filter);
        Ok(Outcome::ImageReceived)
    }

    /// Takes the next record of an image. After the last one the filter is complete, and is shown.
    pub(super) fn image_record(
        &mut self,
        upload: UploadId,
        record: &ImageRecord,
    ) -> Result<Outcome, Refusal> {
        let hours = self.shared.hour_retention();
        let has_uses = self.shared.has(Meaning::Uses);
        let image = self
            .shared
            .images
            .0
            .get_mut(&upload)
            .ok_or(Refusal::ImageNotFound)?;
        let id = image.filter;
        let filter = self.filters.get_mut(&id).ok_or(Refusal::ImageNotFound)?;
        let received = filter.receive(image, record, self.shared.now, hours, has_uses);
        self.shared.note(filter);
        match received {
            Ok(true) => {}
            Ok(false) => return Ok(Outcome::ImageReceived),
            // Nothing is left of a damaged image.
            Err(fault) => {
                self.abort_image(upload);
                return Err(Refusal::ImageDamaged(fault));
            }
        }
        let shared = &mut self.shared;
        let view = filter.view.clone();
        if shared.catalog.get(view.kind, &view.name).is_some() {
            self.abort_image(upload);
            return Err(Refusal::NameTaken);
        }
        filter.is_hidden = false;
        shared.images.0.remove(&upload);
        shared.note(filter);
        shared.show(view.clone());
        shared.record_filter(&view, FilterChange::Created);
        // A campaign that forgets advances to the present step.
        self.on(id, |_| ())?;
        Ok(Outcome::Created(Box::new(view.describe(self.shared.now))))
    }

    /// Drops the filter of an image upload, if it exists.
    pub(super) fn abort_image(&mut self, upload: UploadId) {
        let image = self.shared.images.0.remove(&upload);
        if let Some(filter) = image.and_then(|image| self.filters.remove(&image.filter)) {
            self.shared.drop_filter(*filter);
        }
    }

    /// Drops the images that have made no progress since then.
    pub(super) fn abort_images(&mut self, before: Timestamp) {
        for upload in self.images_unmoved_since(before) {
            self.abort_image(upload);
        }
    }
}

impl FilterState {
    /// Takes the next record of an image. Returns whether the image is complete.
    fn receive(
        &mut self,
        image: &mut ArrivingImage,
        record: &ImageRecord,
        now: Timestamp,
        hours: HourRetention,
        has_uses: bool,
    ) -> Result<bool, ImageFault> {
        if image.checksum == record.checksum {
            return Ok(false);
        }
        if image.checksum != record.before {
            return Err(ImageFault::Order);
        }
        (image.checksum, image.changed_at) = (record.checksum, now);
        let (is_sound, is_complete) = match &record.body {
            ImageBody::Head(_) => return Err(ImageFault::Order),
            ImageBody::Part(ImagePart { section, chunks }) => (
                chunks
                    .iter()
                    .all(|ImageChunk(chunk)| self.load(image, *section, chunk, hours, has_uses)),
                false,
            ),
            ImageBody::End { redemptions } => (self.finish_loading(image, *redemptions, now), true),
        };
        is_sound
            .then_some(is_complete)
            .ok_or(ImageFault::Contradiction)
    }

    /// Takes the next chunk of an image. Returns whether it contradicts nothing.
    fn load(
        &mut self,
        image: &mut ArrivingImage,
        section: ImageSection,
        chunk: &[u8],
        hours: HourRetention,
        has_uses: bool,
    ) -> bool {
        let filter = &mut self.tables.filter;
        let view = &self.view;
        match section {
            ImageSection::Tables => filter.fill(&mut image.filled, chunk).is_ok(),
            ImageSection::Ordinals => view.ledger.write().load_ordinals(chunk),
            ImageSection::Redemptions => {
                let is_strict = view.kind == Kind::Coupon && view.spec.mode == Mode::Strict;
                let has_several_uses = view.spec.supply.has_several_uses();
                let is_right = |redemption: &Redemption| {
                    let state = slot_state(redemption.status);
                    let is_in_table = has_several_uses
                        || !redemption.stands()
                        || filter.state(redemption.digest) == Some(state);
                    is_in_table && (has_uses || !redemption.details.need_uses())
                };
                is_strict && view.ledger.write().load(chunk, is_right)
            }
            ImageSection::Statistics => view.counters.statistics.lock().load(chunk, hours),
            ImageSection::Members => {
                let mut ledger = view.ledger.write();
                if !ledger.membership.is_cleared() {
                    ledger.membership = Membership::loading(true);
                }
                ledger.membership.load(chunk)
            }
            ImageSection::Withdrawn => {
                let mut ledger = view.ledger.write();
                !ledger.membership.is_cleared() && ledger.membership.load(chunk)
            }
            ImageSection::Uses => view.ledger.write().load_uses(chunk),
            ImageSection::Customers => view.ledger.write().load_customers(chunk),
        }
    }

    /// Ends the image. Returns whether it is complete. The clock of its server may have been ahead.
    fn finish_loading(&mut self, image: &ArrivingImage, redemptions: u64, now: Timestamp) -> bool {
        let finished = self
            .tables
            .filter
            .finish_filling(image.filled, &image.items);
        let (held_codes, _) = self.tables.used();
        let mut ledger = self.view.ledger.write();
        let mut statistics = self.view.counters.statistics.lock();
        statistics.turn_back(now);
        let held = ledger.use_sums().map_or(held_codes, |(_, held)| held);
        finished.is_ok()
            && ledger.len() as u64 == redemptions
            && ledger.holds_len() as u64 == held
            && ledger.finish_loading()
            && statistics.is_complete()
    }
}

/// Validates an image's head for a filter of this kind. Its parts are validated on arrival.
fn check(head: &FilterHead, kind: Kind) -> Result<(), ImageFault> {
    if head.algorithm != ALGORITHM {
        return Err(ImageFault::Algorithm(head.algorithm));
    }
    let Profile {
        kind: own,
        spec,
        layout,
        window,
        ..
    } = &head.profile;
    if *own != kind {
        return Err(ImageFault::Kind(*own));
    }
    let is_possible = spec.fits(kind, layout)
        && spec.normalization != Normalization::ByDefault
        && window.is_ordered()
        && head.last_change <= LAST_CHANGE_MAX
        && head.tables.growth == spec.growth
        && head.tables.forgets_after() == spec.forget.map(|forget| forget.steps())
        && head.tables.first.step_bits == layout.step_bits;
    is_possible.then_some(()).ok_or(ImageFault::Contradiction)
}
