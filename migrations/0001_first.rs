//! Format 1, the first: the directory's identity, and a log that begins at position 0.

use super::super::backing::Change;
use super::super::{Store, StoreError, layout};

pub(super) fn run(store: &Store) -> Result<(), StoreError> {
    let base = super::first_link(&store.identity).encode().to_vec();
    let changes = vec![
        Change::Put(layout::IDENTITY_KEY.to_vec(), store.identity.to_vec()),
        Change::Put(layout::LOG_BASE_KEY.to_vec(), base),
    ];
    store.write(layout::META_TREE, changes)
}
