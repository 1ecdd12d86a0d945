//! From an archive back to a data directory.

use super::archive::{self, Piece};
use super::backing::Change;
use super::log::{Link, Tail};
use super::open::{self, Purpose};
use super::snapshots::{Manifest, SnapshotWriter};
use super::{Store, StoreError, StoreOptions, layout, migrations};
use crate::domain::{ClockReading, Seq};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// Restores an archive into a directory that is empty or absent, and tells its last position. The archive is read
/// twice: found whole first, then written. `clock` is what the clocks say now.
///
/// # Errors
/// Those of the archive before anything is written; [`StoreError::NotOurs`] for a directory that holds something.
/// Broken off midway, the directory can't be served and says so.
pub fn restore(
    file: &Path,
    dir: &Path,
    options: &StoreOptions,
    clock: ClockReading,
) -> Result<Seq, StoreError> {
    let open = || {
        File::open(file)
            .map_err(StoreError::io(file, "open"))
            .map(|file| BufReader::with_capacity(1 << 20, file))
    };
    archive::read(file, open()?, |_| Ok(()))?;
    let store = open::open(dir, options, Purpose::Restore, |backing| backing)?;
    let mut target = Target { store: &store, manifest: None, writer: None, tail: None, unsynced_bytes: 0 };
    archive::read(file, open()?, |piece| target.write(piece))?;
    let last = target.settle()?;
    // However old the archive: from now on this machine's clock tells how much time has passed.
    store.keep_clock(clock);
    open::seal(&store)?;
    Ok(last)
}

struct Target<'a> {
    store: &'a Store,
    manifest: Option<Manifest>,
    writer: Option<SnapshotWriter>,
    tail: Option<Tail>,
    unsynced_bytes: usize,
}

impl Target<'_> {
    fn write(&mut self, piece: Piece<'_>) -> Result<(), StoreError> {
        match piece {
            Piece::Manifest(manifest) => {
                self.writer = Some(self.store.begin_snapshot(manifest.seq)?);
                self.manifest = Some(manifest);
                Ok(())
            }
            Piece::Chunk { key, index, bytes } => match &mut self.writer {
                Some(writer) => writer.put_chunk(self.store, key, index, bytes),
                None => Err(StoreError::Misuse("a chunk before the manifest".to_owned())),
            },
            Piece::Commit(commit) => {
                self.store.check_space()?;
                let tail = match &mut self.tail {
                    Some(tail) => tail,
                    None => self.tail.insert(begin_log(self.store, Seq(commit.first.0 - 1))?),
                };
                tail.append(self.store, commit.entries, commit.payload)?;
                self.unsynced_bytes += commit.payload.len();
                if self.unsynced_bytes >= 4 << 20 {
                    self.store.make_durable()?;
                    self.unsynced_bytes = 0;
                }
                Ok(())
            }
            Piece::End => Ok(()),
        }
    }

    fn settle(self) -> Result<Seq, StoreError> {
        let mut seq = Seq(0);
        if let (Some(manifest), Some(mut writer)) = (self.manifest, self.writer) {
            for section in &manifest.sections {
                writer.end_section(section.key, section.changes, section.chunks)?;
            }
            seq = manifest.seq;
            writer.finish(self.store, manifest.taken_at, manifest.meta)?;
        }
        let tail = match self.tail {
            Some(tail) => tail,
            None => begin_log(self.store, seq)?,
        };
        self.store.settle(tail.link())?;
        Ok(tail.link().seq)
    }
}

/// Lets the log of a new directory begin behind a position.
fn begin_log(store: &Store, seq: Seq) -> Result<Tail, StoreError> {
    let base = Link { seq, ..migrations::first_link(&store.identity) };
    store
        .write(layout::META_TREE, vec![Change::Put(layout::LOG_BASE_KEY.to_vec(), base.encode().to_vec())])?;
    Tail::find(store)
}
