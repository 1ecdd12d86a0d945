//! The words of a table in a build for Loom (`make test-long WHAT=loom`): mocks that try every order of loads and stores.

use crate::memory::{OutOfMemory, Remains};
use std::ops::Deref;

pub(crate) use loom::sync::atomic::AtomicU64;

pub(crate) struct Words(Vec<AtomicU64>);

impl Words {
    pub(crate) fn zeroed(len: usize) -> Result<Self, OutOfMemory> {
        Ok(Self((0..len).map(|_| AtomicU64::new(0)).collect()))
    }

    pub(crate) fn prefetch(&self, _: usize) {}

    pub(crate) fn is_mapped(&self) -> bool {
        false
    }

    pub(crate) fn into_remains(self) -> Option<Remains> {
        None
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}
