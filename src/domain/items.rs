//! Outcomes for the items of a list.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The outcome for one item of a list.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ItemOutcome {
    /// The item was added.
    Added,
    /// The item was already present.
    AlreadyPresent,
    /// The filter holds as many copies of the item as it can; nothing was stored.
    Saturated,
    /// The code is redeemed: it can't be added again or removed.
    AlreadyRedeemed,
    /// The redeemed code is available again.
    Revived,
    /// The item was removed.
    Removed,
    /// The item was not present.
    Absent,
    /// The item was replaced by the other one of its pair.
    Replaced,
}

/// The outcomes of an insert, one per item.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = InsertedItems, example = json!({"outcomes": ["added", "already_present"], "added": 1}))]
pub struct Inserted {
    /// In the order of the request.
    pub outcomes: Vec<ItemOutcome>,
    /// How many were added or revived.
    pub added: u64,
}

/// The outcomes of a removal, one per item.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = RemovedItems, example = json!({"outcomes": ["removed", "absent"], "removed": 1}))]
pub struct Removed {
    /// In the order of the request.
    pub outcomes: Vec<ItemOutcome>,
    /// How many copies were removed.
    pub removed: u64,
}
