//! Epochs: they tell the parts of a state apart for as long as it lives.

use serde::{Deserialize, Serialize};

/// The identity of a part of the state that a snapshot stores by itself: the tables of a filter, a ledger, an import's queue of
/// changes. A state gives each number once, so nothing that comes later is taken for what a snapshot holds already.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);
