//! Images that arrive: how far each has come of which a filter is made.

use crate::domain::image::IMAGE_IDLE_SECONDS;
use crate::domain::{FilterHead, FilterId, KeyName, Timestamp, UploadId};
use crate::filter::Filled;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An image that arrives.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Arriving {
    /// The filter that is made of it, which is hidden.
    pub(super) filter: FilterId,
    /// The API key of the request that began it.
    by: Option<KeyName>,
    /// How far the tables are filled.
    pub(super) filled: Filled,
    /// Items that each table is to have.
    pub(super) items: Vec<u64>,
    /// The checksum of all that has arrived.
    pub(super) checksum: u128,
    /// When the last part arrived.
    pub(super) changed_at: Timestamp,
}

impl Arriving {
    /// An image whose head has arrived.
    pub(super) fn begun(
        filter: FilterId,
        by: Option<KeyName>,
        head: &FilterHead,
        checksum: u128,
        now: Timestamp,
    ) -> Self {
        let (filled, items) = (Filled::default(), head.tables.items());
        Self { filter, by, filled, items, checksum, changed_at: now }
    }
}

/// All images that arrive.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct Images(pub(super) BTreeMap<UploadId, Arriving>);

impl Images {
    /// Those that have made no progress since then.
    pub(super) fn unmoved_since(&self, before: Timestamp) -> Vec<UploadId> {
        let unmoved = self.0.iter().filter(|(_, image)| image.changed_at < before);
        unmoved.map(|(upload, _)| *upload).collect()
    }

    /// When the one that has made no progress for the longest time is given up.
    pub(super) fn given_up_at(&self) -> Option<Timestamp> {
        let oldest = self.0.values().map(|image| image.changed_at).min()?;
        Some(oldest.plus_seconds(IMAGE_IDLE_SECONDS))
    }

    /// The number of images that this API key is sending. Requests without a key have no share of their own.
    pub(super) fn of_key(&self, by: Option<&KeyName>) -> usize {
        self.0.values().filter(|image| by.is_some() && image.by.as_ref() == by).count()
    }

    /// How far the tables of a hidden filter are filled.
    pub(super) fn filled(&self, filter: FilterId) -> Option<Filled> {
        self.0.values().find(|image| image.filter == filter).map(|image| image.filled)
    }
}
