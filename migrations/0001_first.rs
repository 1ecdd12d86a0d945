//! Format 1, the first: the directory's identity, and a log that begins at position 0.

use super::super::backing::KeyChange;
use super::super::{Store, StoreError, directory};
use cuckood_state::frame::encode;
use xxhash_rust::xxh3::xxh3_128;

pub(super) fn run(store: &Store) -> Result<(), StoreError> {
    // A position and the checksum of what is before it.
    let base = encode(&(0u64, xxh3_128(&store.identity)));
    let changes = vec![
        KeyChange::Put(directory::IDENTITY_KEY.to_vec(), store.identity.to_vec()),
        KeyChange::Put(directory::LOG_BASE_KEY.to_vec(), base),
    ];
    store.write(directory::META_TREE, changes)
}
