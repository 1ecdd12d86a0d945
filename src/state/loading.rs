//! How far an image has come in of which a filter is made.

use crate::domain::{ImageHead, Timestamp, UploadId};
use crate::filter::Filled;
use serde::{Deserialize, Serialize};

/// What is known of an image while it comes in.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Loading {
    pub(super) upload: UploadId,
    /// How far the tables are filled.
    pub(super) filled: Filled,
    /// Items that each table is to have.
    pub(super) items: Vec<u64>,
    /// The checksum of all that has come.
    pub(super) checksum: u128,
    /// Redemptions that have come.
    pub(super) redemptions: u64,
    /// When the last part came.
    pub(super) changed_at: Timestamp,
}

impl Loading {
    /// An image whose head has come.
    pub(super) fn begun(upload: UploadId, head: &ImageHead, checksum: u128, now: Timestamp) -> Self {
        let (filled, items) = (Filled::default(), head.tables.items());
        Self { upload, filled, items, checksum, redemptions: 0, changed_at: now }
    }
}
