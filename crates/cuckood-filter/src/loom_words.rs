//! The words of a table as Loom has them: it tries every order in which threads may see what is stored in them.

use super::memory::OutOfMemory;
use std::ops::Deref;

pub(super) use super::memory::Remains;

pub(super) use loom::sync::atomic::AtomicU64;

pub(super) struct Words(Vec<AtomicU64>);

impl Words {
    pub(super) fn zeroed(len: usize) -> Self {
        Self((0..len).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn try_zeroed(len: usize) -> Result<Self, OutOfMemory> {
        Ok(Self::zeroed(len))
    }

    pub(super) fn prefetch(&self, _: usize) {}

    pub(super) fn is_mapped(&self) -> bool {
        false
    }

    pub(super) fn into_remains(self) -> Result<Remains, u64> {
        Err(self.0.len() as u64 * 8)
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}
