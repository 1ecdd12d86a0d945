//! How far an image has come in of which a filter is made.

use crate::domain::{FilterHead, KeyName, Timestamp, UploadId};
use crate::filter::Filled;
use serde::{Deserialize, Serialize};

/// What is known of an image while it comes in.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Loading {
    pub(super) upload: UploadId,
    /// The API key of the request that began it.
    pub(super) by: Option<KeyName>,
    /// How far the tables are filled.
    pub(super) filled: Filled,
    /// Items that each table is to have.
    pub(super) items: Vec<u64>,
    /// The checksum of all that has come.
    pub(super) checksum: u128,
    /// When the last part came.
    pub(super) changed_at: Timestamp,
}

impl Loading {
    /// An image whose head has come.
    pub(super) fn begun(
        upload: UploadId,
        by: Option<KeyName>,
        head: &FilterHead,
        checksum: u128,
        now: Timestamp,
    ) -> Self {
        let (filled, items) = (Filled::default(), head.tables.items());
        Self { upload, by, filled, items, checksum, changed_at: now }
    }
}
