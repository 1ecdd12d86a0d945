//! The handful of operations that the journal and the snapshots are built on. sled stands behind it in
//! service; tests put an adapter between that makes them fail.

use std::ops::ControlFlow;

/// Why an operation failed, in the words of whoever failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{doing}: {detail}")]
pub struct Fault {
    /// What was tried.
    pub doing: &'static str,
    /// The answer.
    pub detail: String,
}

/// One change to a tree.
#[derive(Clone, Debug)]
pub enum Change {
    /// Set a key.
    Put(Vec<u8>, Vec<u8>),
    /// Remove a key, if it is there.
    Remove(Vec<u8>),
}

/// What [`Backing::scan`] calls for each key and value.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Ordered trees of keys and values, and one small record in two slots beside them. Called by one thread.
pub trait Backing: Send + Sync {
    /// The names of the trees.
    fn tree_names(&self) -> Vec<String>;
    /// Drops a tree with all that is in it; no fault if there is none.
    fn drop_tree(&self, tree: &str) -> Result<(), Fault>;
    /// Makes the changes, all or none, in a tree that is made if need be.
    fn write(&self, tree: &str, changes: Vec<Change>) -> Result<(), Fault>;
    /// Appends the key's value to `value`; `false` if there is none.
    fn read(&self, tree: &str, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Fault>;
    /// Visits the keys from `from` on, in order, until told to stop.
    fn scan(&self, tree: &str, from: &[u8], visit: &mut Visit<'_>) -> Result<(), Fault>;
    /// The last key of a tree.
    fn last_key(&self, tree: &str) -> Result<Option<Vec<u8>>, Fault>;
    /// Hands all that was written to the operating system: it survives the death of the process.
    fn flush(&self) -> Result<(), Fault>;
    /// Makes all that was flushed survive the death of the machine.
    fn sync(&self) -> Result<(), Fault>;
    /// Reads a slot of the small record; what was never written reads as zeros.
    fn read_record(&self, slot: u64, record: &mut [u8]) -> Result<(), Fault>;
    /// Writes a slot of the small record: it survives the death of the process.
    fn write_record(&self, slot: u64, record: &[u8]) -> Result<(), Fault>;
    /// Waits until the record would survive the death of the machine.
    fn sync_record(&self) -> Result<(), Fault>;
}
