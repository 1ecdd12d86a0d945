//! Snapshots that the nodes of a log share: one node uploads an archive at a time, and a node whose directory is empty, or whose log was
//! trimmed, loads the newest. The log is trimmed behind them alone.

use super::JournalError;
use crate::domain::{Seq, Timestamp};
use crate::store::StoreError;
use crate::store::archive::{self, Piece};
use serde::{Deserialize, Serialize};
use std::io::{BufReader, Read};
use std::path::Path;

/// How much of an archive is asked for at once.
const READ_BYTES: usize = 1 << 20;

/// A snapshot that was uploaded, read back and found complete.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SharedSnapshot {
    /// Its name, which no other ever had.
    pub name: String,
    /// The last entry that it covers.
    pub seq: Seq,
    /// When it was taken, by the clock of the node that did.
    pub taken_at: Timestamp,
    /// The node that uploaded it.
    pub node: String,
    /// The length of its archive.
    pub bytes: u64,
    /// SHA-256 of its archive, as the adapter writes it.
    pub digest: String,
    /// Where the log goes on behind it. [`super::NatsSnapshots::adopt`] interprets it.
    pub place: Vec<u8>,
}

/// A snapshot that is to be shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The last entry that it covers.
    pub seq: Seq,
    /// When it was taken.
    pub taken_at: Timestamp,
    /// Where the log goes on behind it: what [`super::Journal::place`] says.
    pub place: Vec<u8>,
}

/// The pieces of an archive, one after the other; `None` after the last one.
pub type Parts<'a> = dyn FnMut() -> Result<Option<Vec<u8>>, JournalError> + 'a;

/// Says why nothing of this node may be shared, if it must not: it may be found out while a snapshot is being uploaded.
pub type Check<'a> = dyn Fn() -> Result<(), JournalError> + 'a;

/// Reads an archive and passes its pieces to `sink`. Checks that it is the snapshot that it should be, without any log behind it.
///
/// # Errors
/// As [`archive::read`].
pub fn read_shared(
    snapshot: &SharedSnapshot,
    from: impl Read,
    mut sink: impl FnMut(Piece<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let path = Path::new(&snapshot.name);
    let damaged = |what: &str| StoreError::Damaged {
        path: path.to_owned(),
        what: format!("the shared snapshot {what}"),
        command: "cuckood backup FILE` on a node that is ready, then `cuckood restore FILE --into-cluster"
            .to_owned(),
    };
    let mut has_manifest = false;
    archive::read(path, BufReader::with_capacity(READ_BYTES, from), |piece| {
        match &piece {
            Piece::Manifest(manifest) if manifest.seq == snapshot.seq => has_manifest = true,
            Piece::Manifest(_) => return Err(damaged("is of another position")),
            Piece::Entries { .. } => return Err(damaged("has a log")),
            _ => {}
        }
        sink(piece)
    })?;
    if has_manifest { Ok(()) } else { Err(damaged("is empty")) }
}

/// Checks that the whole of an archive is there and as it should be.
///
/// # Errors
/// As [`read_shared`].
pub fn check_shared(snapshot: &SharedSnapshot, from: impl Read) -> Result<(), StoreError> {
    read_shared(snapshot, from, |_| Ok(()))
}
