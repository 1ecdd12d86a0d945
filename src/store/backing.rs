//! The few storage operations that the journal and the snapshots are built on. sled implements them in service; tests put an
//! adapter in front that injects faults.

use std::ops::ControlFlow;

/// A failed operation, described by whatever failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{doing}: {detail}")]
pub struct Fault {
    /// What was tried.
    pub doing: &'static str,
    /// What went wrong.
    pub detail: String,
}

/// One change to a tree.
#[derive(Clone, Debug)]
pub enum Change {
    /// Set a key.
    Put(Vec<u8>, Vec<u8>),
    /// Remove a key if it exists.
    Remove(Vec<u8>),
}

/// The callback of [`Backing::scan`] for each key and value.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Ordered trees of keys and values, and one small record with two slots beside them. One thread calls it.
pub trait Backing: Send + Sync {
    /// The names of all trees.
    fn tree_names(&self) -> Vec<String>;
    /// Drops a tree and everything in it; no error if it does not exist.
    fn drop_tree(&self, tree: &str) -> Result<(), Fault>;
    /// Applies the changes to a tree, all or none. Creates the tree if needed.
    fn write(&self, tree: &str, changes: Vec<Change>) -> Result<(), Fault>;
    /// Appends the key's value to `value`; `false` if the key does not exist.
    fn read(&self, tree: &str, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Fault>;
    /// Visits the keys from `from` on, in order, until the callback stops it.
    fn scan(&self, tree: &str, from: &[u8], visit: &mut Visit<'_>) -> Result<(), Fault>;
    /// The last key of a tree, or its last one that is not after `to`.
    fn last_key(&self, tree: &str, to: Option<&[u8]>) -> Result<Option<Vec<u8>>, Fault>;
    /// Hands everything written to the operating system, so that it survives the death of the process.
    fn flush(&self) -> Result<(), Fault>;
    /// Makes everything flushed survive the death of the machine.
    fn sync(&self) -> Result<(), Fault>;
    /// Reads a slot of the small record; a slot that was never written reads as zeros.
    fn read_record(&self, slot: u64, record: &mut [u8]) -> Result<(), Fault>;
    /// Writes a slot of the small record, which then survives the death of the process.
    fn write_record(&self, slot: u64, record: &[u8]) -> Result<(), Fault>;
    /// Waits until the record would survive the death of the machine.
    fn sync_record(&self) -> Result<(), Fault>;
}
