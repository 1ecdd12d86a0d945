//! The backup archive: one snapshot and the log after it, in a format of our own that needs no sled to read.
//!
//! ```text
//! archive: "cuckood archive\n"  version u32  record…  end  XXH3-128 of all before           (little-endian)
//! record:  kind u8  length u32  payload
//!   M  a piece of the manifest, as it lies in the store; all of them first; none if no snapshot was taken yet
//!   C  place of the section in the manifest u32, number of the chunk u32, bytes; in the manifest's order
//!   L  first position u64, entries u32, the group commit's entries
//! end:     E  last position u64
//! ```
//!
//! Nothing of an archive counts before its end was read and its hash found right.

use super::log::{self, Commit, Link};
use super::snapshots::{self, Manifest, SectionKey};
use super::{Store, StoreError};
use crate::domain::Seq;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3Default;

const MAGIC: &[u8; 16] = b"cuckood archive\n";
const VERSION: u32 = 1;
const MANIFEST: u8 = b'M';
const CHUNK: u8 = b'C';
const LOG: u8 = b'L';
const END: u8 = b'E';

/// The most bytes that [`ArchiveSource::next_part`] hands out at once.
pub const PART_BYTES_MAX: usize = 1 << 20;

/// A backup under way, produced piece by piece between commits. Its snapshot and the log after it are kept until
/// it is dropped.
pub struct ArchiveSource {
    store: Arc<Store>,
    manifest: Option<Arc<Manifest>>,
    next: Step,
    through: Seq,
    pending: VecDeque<u8>,
    hash: Xxh3Default,
}

/// What comes next.
enum Step {
    Chunk { section: usize, index: u32 },
    Log(Option<Link>),
    Done,
}

impl Store {
    /// Begins a backup of the newest snapshot and the log after it, up to `through`, which must be the end of a
    /// group commit, such as the journal's last position.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the snapshot can't be read.
    pub fn begin_backup(self: &Arc<Self>, through: Seq) -> Result<ArchiveSource, StoreError> {
        let manifest = self.manifests()?.into_iter().next().map(Arc::new);
        let mut source = ArchiveSource {
            store: self.clone(),
            manifest: None,
            next: Step::Chunk { section: 0, index: 0 },
            through,
            pending: VecDeque::new(),
            hash: Xxh3Default::new(),
        };
        source.push(MAGIC);
        source.push(&VERSION.to_le_bytes());
        if let Some(manifest) = manifest {
            if manifest.seq > through {
                let (seq, through) = (manifest.seq.0, through.0);
                return Err(StoreError::Misuse(format!("a backup up to {through} of a snapshot at {seq}")));
            }
            for part in snapshots::encode(&manifest)? {
                source.push_record(MANIFEST, &[&part]);
            }
            self.pinned().push(manifest.clone());
            source.manifest = Some(manifest);
        }
        Ok(source)
    }
}

impl ArchiveSource {
    /// The last position that the backup holds.
    pub fn through(&self) -> Seq {
        self.through
    }

    /// The next piece of the archive, of at most [`PART_BYTES_MAX`] bytes; `None` once it is whole.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if something can't be read: the archive then lacks its end and is refused.
    pub fn next_part(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        while self.pending.len() < PART_BYTES_MAX {
            match self.next {
                Step::Chunk { section, index } => self.push_chunk(section, index)?,
                Step::Log(link) => self.push_commits(link)?,
                Step::Done => break,
            }
        }
        let length = self.pending.len().min(PART_BYTES_MAX);
        let part: Vec<u8> = self.pending.drain(..length).collect();
        Ok((!part.is_empty()).then_some(part))
    }

    fn push_chunk(&mut self, section: usize, index: u32) -> Result<(), StoreError> {
        let Some(found) = self.manifest.as_ref().and_then(|manifest| manifest.sections.get(section).copied())
        else {
            self.next = Step::Log(None);
            return Ok(());
        };
        if index == found.chunks {
            self.next = Step::Chunk { section: section + 1, index: 0 };
            return Ok(());
        }
        let mut bytes = Vec::new();
        self.store.read_chunk(&found, index, &mut bytes)?;
        self.push_record(CHUNK, &[&(section as u32).to_le_bytes(), &index.to_le_bytes(), &bytes]);
        self.next = Step::Chunk { section, index: index + 1 };
        Ok(())
    }

    fn push_commits(&mut self, link: Option<Link>) -> Result<(), StoreError> {
        let store = self.store.clone();
        let from = match link {
            Some(link) => link,
            None => self.log_start()?,
        };
        let mut end = from;
        if from.seq < self.through {
            log::read_on(&store, from, |commit, link| {
                let Commit { first, entries, payload } = commit;
                self.push_record(LOG, &[&first.0.to_le_bytes(), &entries.to_le_bytes(), payload]);
                end = link;
                let enough = end.seq >= self.through || self.pending.len() >= PART_BYTES_MAX;
                if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        }
        if end.seq < self.through {
            if end == from {
                return Err(store.damaged(format!("the log ends at position {}", end.seq.0)));
            }
            self.next = Step::Log(Some(end));
            return Ok(());
        }
        if end.seq > self.through && link.is_none() == (end == from) && end != from {
            let through = self.through.0;
            return Err(StoreError::Misuse(format!("a backup up to {through}, in the middle of a commit")));
        }
        self.push_record(END, &[&self.through.0.to_le_bytes()]);
        let hash = self.hash.digest128();
        self.push(&hash.to_le_bytes());
        self.next = Step::Done;
        Ok(())
    }

    /// Where the log after the snapshot begins: behind it, or with the commit that it was taken in the midst of.
    fn log_start(&self) -> Result<Link, StoreError> {
        let after = self.manifest.as_ref().map_or(Seq(0), |manifest| manifest.seq);
        let base = self.store.log_base()?;
        if after == self.through || after == base.seq {
            return Ok(Link { seq: after, checksum: base.checksum });
        }
        if let Some(link) = log::link_at(&self.store, after)? {
            return Ok(link);
        }
        let mut start = None;
        log::read(&self.store, after, |commit, _| {
            start.get_or_insert(commit.first);
            Ok::<(), StoreError>(())
        })?;
        let first =
            start.ok_or_else(|| self.store.damaged(format!("the log ends at position {}", after.0)))?;
        log::link_at(&self.store, Seq(first.0 - 1))?
            .ok_or_else(|| self.store.damaged(format!("position {} of the log is missing", first.0)))
    }

    fn push_record(&mut self, kind: u8, pieces: &[&[u8]]) {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.push(&[kind]);
        self.push(&(length as u32).to_le_bytes());
        for piece in pieces {
            self.push(piece);
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.pending.extend(bytes);
    }
}

impl Drop for ArchiveSource {
    fn drop(&mut self) {
        let Some(manifest) = &self.manifest else { return };
        let mut pinned = self.store.pinned();
        if let Some(at) = pinned.iter().position(|pinned| Arc::ptr_eq(pinned, manifest)) {
            pinned.swap_remove(at);
        }
    }
}

/// A piece of an archive.
pub(crate) enum Piece<'a> {
    Manifest(Manifest),
    Chunk {
        key: SectionKey,
        index: u32,
        bytes: &'a [u8],
    },
    Commit(Commit<'a>),
    /// Everything was found whole.
    End,
}

/// Reads an archive from its first byte to its last and hands on its pieces in order.
///
/// # Errors
/// [`StoreError::Damaged`] for whatever is not as it was written, [`StoreError::Newer`] for a later version,
/// [`StoreError::NotOurs`] for something else; errors of the sink pass through. Pieces that were handed on before
/// an error are worth nothing.
pub(crate) fn read(
    path: &Path,
    from: impl Read,
    mut sink: impl FnMut(Piece<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut reader = Reader { path: path.to_owned(), from, hash: Xxh3Default::new() };
    let not_ours =
        || StoreError::NotOurs { path: path.to_owned(), found: "it is no cuckood archive".to_owned() };
    if &reader.take::<16>().map_err(|_| not_ours())? != MAGIC {
        return Err(not_ours());
    }
    let version = u32::from_le_bytes(reader.take()?);
    if version != VERSION {
        return Err(StoreError::Newer { path: path.to_owned(), found: version, known: VERSION });
    }
    let mut manifest_bytes = Vec::new();
    let mut state = Expected::default();
    let mut in_manifest = true;
    let mut payload = Vec::new();
    loop {
        let kind = reader.record(&mut payload)?;
        if in_manifest && kind == MANIFEST {
            manifest_bytes.extend_from_slice(&payload);
            continue;
        }
        if in_manifest {
            in_manifest = false;
            if !manifest_bytes.is_empty() {
                let manifest = snapshots::decode(&manifest_bytes)
                    .map_err(|why| reader.damaged(&format!("its manifest: {why}")))?;
                manifest_bytes = Vec::new();
                state = Expected::after(&manifest);
                sink(Piece::Manifest(manifest))?;
            }
        }
        match kind {
            CHUNK => {
                let Some((header, bytes)) = payload.split_first_chunk::<8>() else {
                    return Err(reader.damaged("a chunk is too short"));
                };
                let (key, index) = state.chunk().ok_or_else(|| reader.damaged("a chunk too many"))?;
                let (section, number) = header.split_at(4);
                let place = (state.section as u32).to_le_bytes();
                if section != place
                    || number != index.to_le_bytes()
                    || bytes.len() > snapshots::CHUNK_BYTES_MAX
                {
                    return Err(reader.damaged("a chunk is missing or out of place"));
                }
                sink(Piece::Chunk { key, index, bytes })?;
                state.advance();
            }
            LOG => {
                let commit = commit(&payload).ok_or_else(|| reader.damaged("a commit contradicts itself"))?;
                let follows = match state.log_end {
                    Some(end) => commit.first == end.next(),
                    None => commit.first <= state.seq.next() && commit.last() > state.seq,
                };
                if state.chunk().is_some() || !follows {
                    return Err(reader.damaged("chunks or commits are missing"));
                }
                state.log_end = Some(commit.last());
                sink(Piece::Commit(commit))?;
            }
            END => {
                let through = Seq(u64::from_le_bytes(
                    payload
                        .as_slice()
                        .try_into()
                        .map_err(|_| reader.damaged("its end has a wrong length"))?,
                ));
                if state.chunk().is_some() || state.log_end.unwrap_or(state.seq) != through {
                    return Err(reader.damaged("it ends too early"));
                }
                let hash = reader.hash.digest128();
                if u128::from_le_bytes(reader.take()?) != hash {
                    return Err(reader.damaged("its hash is wrong"));
                }
                if !reader.at_end()? {
                    return Err(reader.damaged("something follows its end"));
                }
                return sink(Piece::End);
            }
            _ => return Err(reader.damaged("a record of an unknown kind, or out of place")),
        }
    }
}

fn commit(payload: &[u8]) -> Option<Commit<'_>> {
    let (first, rest) = payload.split_first_chunk::<8>()?;
    let (entries, payload) = rest.split_first_chunk::<4>()?;
    let commit =
        Commit { first: Seq(u64::from_le_bytes(*first)), entries: u32::from_le_bytes(*entries), payload };
    let sound = commit.entries > 0
        && commit.first.0 > 0
        && commit.first.0.checked_add(commit.entries.into()).is_some();
    sound.then_some(commit)
}

/// What must come next.
#[derive(Default)]
struct Expected {
    sections: Vec<(SectionKey, u32)>,
    section: usize,
    index: u32,
    seq: Seq,
    log_end: Option<Seq>,
}

impl Expected {
    fn after(manifest: &Manifest) -> Expected {
        let sections = manifest.sections.iter().map(|section| (section.key, section.chunks)).collect();
        let mut expected = Expected { sections, seq: manifest.seq, ..Expected::default() };
        expected.skip_empty();
        expected
    }

    fn chunk(&self) -> Option<(SectionKey, u32)> {
        self.sections.get(self.section).map(|(key, _)| (*key, self.index))
    }

    fn advance(&mut self) {
        self.index += 1;
        self.skip_empty();
    }

    fn skip_empty(&mut self) {
        while self.sections.get(self.section).is_some_and(|(_, chunks)| self.index == *chunks) {
            self.section += 1;
            self.index = 0;
        }
    }
}

struct Reader<R> {
    path: PathBuf,
    from: R,
    hash: Xxh3Default,
}

impl<R: Read> Reader<R> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn record(&mut self, payload: &mut Vec<u8>) -> Result<u8, StoreError> {
        let [kind] = self.take()?;
        let length = u32::from_le_bytes(self.take()?) as u64;
        payload.clear();
        // Grows with what is really there: a wrong length can't ask for memory.
        let read =
            (&mut self.from).take(length).read_to_end(payload).map_err(StoreError::io(&self.path, "read"))?;
        if (read as u64) < length {
            return Err(self.damaged("it is cut off"));
        }
        self.hash.update(payload);
        Ok(kind)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), StoreError> {
        match self.from.read_exact(bytes) {
            Ok(()) => {
                self.hash.update(bytes);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(self.damaged("it is cut off")),
            Err(error) => Err(StoreError::io(&self.path, "read")(error)),
        }
    }

    fn at_end(&mut self) -> Result<bool, StoreError> {
        let mut byte = [0];
        Ok(self.from.read(&mut byte).map_err(StoreError::io(&self.path, "read"))? == 0)
    }

    fn damaged(&self, what: &str) -> StoreError {
        StoreError::Damaged {
            path: self.path.clone(),
            what: what.to_owned(),
            command: "cuckood restore FILE DIR` with another backup `FILE".to_owned(),
        }
    }
}
