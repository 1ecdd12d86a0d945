//! A store's port that fails once, at a chosen operation.

use crate::store::backing::{Backing, BackingFault, KeyChange, VisitEntry};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Lets a number of writing operations pass, fails the next one, and lets the others pass again.
pub struct Faulty {
    pub under: Box<dyn Backing>,
    pub left: Arc<AtomicI64>,
    pub takes_effect: bool,
}

impl Faulty {
    fn run(
        &self,
        operation: impl FnOnce() -> Result<(), BackingFault>,
    ) -> Result<(), BackingFault> {
        if self.left.fetch_sub(1, Relaxed) != 0 {
            return operation();
        }
        if self.takes_effect {
            operation()?;
        }
        Err(BackingFault {
            operation: "testing",
            detail: "injected".to_owned(),
        })
    }
}

impl Backing for Faulty {
    fn tree_names(&self) -> Vec<String> {
        self.under.tree_names()
    }
    fn drop_tree(&self, tree: &str) -> Result<(), BackingFault> {
        self.run(|| self.under.drop_tree(tree))
    }
    fn write(&self, tree: &str, changes: Vec<KeyChange>) -> Result<(), BackingFault> {
        self.run(|| self.under.write(tree, changes))
    }
    fn read(&self, tree: &str, key: &[u8], value: &mut Vec<u8>) -> Result<bool, BackingFault> {
        self.under.read(tree, key, value)
    }
    fn scan(
        &self,
        tree: &str,
        from: &[u8],
        visit: &mut VisitEntry<'_>,
    ) -> Result<(), BackingFault> {
        self.under.scan(tree, from, visit)
    }
    fn last_key(&self, tree: &str, to: Option<&[u8]>) -> Result<Option<Vec<u8>>, BackingFault> {
        self.under.last_key(tree, to)
    }
    fn flush(&self) -> Result<(), BackingFault> {
        self.run(|| self.under.flush())
    }
    fn sync(&self) -> Result<(), BackingFault> {
        self.run(|| self.under.sync())
    }
    fn read_record(&self, slot: u64, record: &mut [u8]) -> Result<(), BackingFault> {
        self.under.read_record(slot, record)
    }
    fn write_record(&self, slot: u64, record: &[u8]) -> Result<(), BackingFault> {
        self.run(|| self.under.write_record(slot, record))
    }
    fn sync_record(&self) -> Result<(), BackingFault> {
        self.run(|| self.under.sync_record())
    }
}
