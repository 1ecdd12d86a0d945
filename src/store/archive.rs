//! The backup archive: one snapshot and the log after it, in a format of our own that can be read without sled.
//!
//! ```text
//! archive: "cuckood archive\n"  version u32  record…  end  XXH3-128 of all before           (little-endian)
//! record:  kind u8  length u32  payload
//!   M  a piece of the manifest, as it lies in the store; all of them first; none if no snapshot was taken yet
//!   C  place of the section in the manifest u32, number of the chunk u32, bytes; in the manifest's order
//!   V  a pack of events, as it lies in the store; in order, up to the last event of the manifest; none without a manifest
//!   L  first position u64, count u32, so many entries of the log
//! end:     E  last position u64
//! ```
//!
//! No part of an archive is valid until its end has been read and its hash verified.

use super::events::EventPack;
use super::snapshots::{self, Manifest, SectionKey};
use super::{Store, StoreError};
use crate::domain::Seq;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3Default;

const MAGIC: &[u8; 16] = b"cuckood archive\n";
const VERSION: u32 = 1;
/// How many bytes of an archive are read at once.
const READ_BYTES: usize = 1 << 20;

const MANIFEST: u8 = b'M';
const CHUNK: u8 = b'C';
const EVENTS: u8 = b'V';
const LOG: u8 = b'L';
const END: u8 = b'E';

/// Writes an archive piece by piece: its manifest and chunks, then events, then the log, then its end.
pub struct ArchiveWriter {
    pending: VecDeque<u8>,
    hash: Xxh3Default,
}

impl ArchiveWriter {
    /// Begins an archive with the manifest of its snapshot, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Misuse`] if the manifest can't be encoded.
    pub fn begin(manifest: Option<&Manifest>) -> Result<ArchiveWriter, StoreError> {
        let mut writer = ArchiveWriter { pending: VecDeque::new(), hash: Xxh3Default::new() };
        writer.push(MAGIC);
        writer.push(&VERSION.to_le_bytes());
        if let Some(manifest) = manifest {
            for part in snapshots::encode(manifest)? {
                writer.push_record(MANIFEST, &[&part]);
            }
        }
        Ok(writer)
    }

    /// Writes chunk `index` of the manifest's section number `section`. All chunks must be written, in order.
    pub fn chunk(&mut self, section: u32, index: u32, bytes: &[u8]) {
        self.push_record(CHUNK, &[&section.to_le_bytes(), &index.to_le_bytes(), bytes]);
    }

    /// Writes the next pack of events. The last one ends with the manifest's last event.
    pub fn events(&mut self, pack: &EventPack) {
        self.push_record(EVENTS, &[&pack.encode()]);
    }

    /// Writes the next entries of the log: `count` entries, encoded one after the other, from position `first` on.
    pub fn entries(&mut self, first: Seq, count: u32, payload: &[u8]) {
        self.push_record(LOG, &[&first.0.to_le_bytes(), &count.to_le_bytes(), payload]);
    }

    /// Ends the archive, which covers everything up to and including `through`.
    pub fn end(&mut self, through: Seq) {
        self.push_record(END, &[&through.0.to_le_bytes()]);
        let hash = self.hash.digest128();
        self.push(&hash.to_le_bytes());
    }

    /// Bytes that were written and not taken yet.
    pub fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    /// Takes the next bytes, at most `bytes_max`.
    pub fn take(&mut self, bytes_max: usize) -> Vec<u8> {
        let length = self.pending.len().min(bytes_max);
        self.pending.drain(..length).collect()
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

/// A snapshot that is protected from removal, with all its chunks, until this is dropped.
pub struct PinnedManifest {
    store: Arc<Store>,
    manifest: Arc<Manifest>,
}

impl Store {
    /// Protects the newest snapshot, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the manifests can't be read.
    pub fn pin_newest(self: &Arc<Self>) -> Result<Option<PinnedManifest>, StoreError> {
        let Some(manifest) = self.manifests()?.into_iter().next().map(Arc::new) else { return Ok(None) };
        self.pinned().push(manifest.clone());
        Ok(Some(PinnedManifest { store: self.clone(), manifest }))
    }
}

impl Deref for PinnedManifest {
    type Target = Manifest;

    fn deref(&self) -> &Manifest {
        &self.manifest
    }
}

impl Drop for PinnedManifest {
    fn drop(&mut self) {
        let mut pinned = self.store.pinned();
        if let Some(at) = pinned.iter().position(|pinned| Arc::ptr_eq(pinned, &self.manifest)) {
            pinned.swap_remove(at);
        }
    }
}

/// A piece of an archive.
pub enum Piece<'a> {
    /// The manifest of the snapshot.
    Manifest(Manifest),
    /// A chunk of one of its sections.
    Chunk {
        /// The section.
        key: SectionKey,
        /// The chunk's number in it.
        index: u32,
        /// What is in it.
        bytes: &'a [u8],
    },
    /// Events up to those of the manifest.
    Events(EventPack),
    /// Entries of the log.
    Entries {
        /// Position of the first.
        first: Seq,
        /// How many there are.
        count: u32,
        /// The encoded entries, one after the other.
        payload: &'a [u8],
    },
    /// The end: the whole archive was read and is intact.
    End,
}

/// Opens an archive for [`read`].
///
/// # Errors
/// [`StoreError::Io`] if the file can't be opened.
pub fn open(path: &Path) -> Result<impl Read + use<>, StoreError> {
    let file = File::open(path).map_err(StoreError::io(path, "open"))?;
    Ok(BufReader::with_capacity(READ_BYTES, file))
}

/// Reads an archive from start to end and passes its pieces to `sink` in order.
///
/// # Errors
/// [`StoreError::Damaged`] if anything differs from what was written, [`StoreError::Newer`] for a later version,
/// [`StoreError::NotOurs`] for another kind of file. Errors of the sink are passed on. After an error, the pieces that were
/// passed on must be discarded.
pub fn read(
    path: &Path,
    from: impl Read,
    mut sink: impl FnMut(Piece<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut reader = Reader { path: path.to_owned(), from, hash: Xxh3Default::new() };
    reader.header()?;
    let mut payload = Vec::new();
    let mut expected = Expected::default();
    let mut kind = reader.record(&mut payload)?;
    if kind == MANIFEST {
        let manifest;
        (manifest, kind) = reader.manifest(&mut payload)?;
        expected = Expected::after(&manifest);
        sink(Piece::Manifest(manifest))?;
    }
    loop {
        let piece = match kind {
            CHUNK => expected.take_chunk(&payload),
            EVENTS => expected.take_events(&payload),
            LOG => expected.take_entries(&payload),
            END => expected.take_end(&payload),
            _ => Err("a record of an unknown kind, or out of place"),
        };
        let piece = piece.map_err(|what| reader.damaged(what))?;
        if kind == END {
            reader.end()?;
            return sink(piece);
        }
        sink(piece)?;
        kind = reader.record(&mut payload)?;
    }
}

fn entries(payload: &[u8]) -> Option<(Seq, u32, &[u8])> {
    let (first, rest) = payload.split_first_chunk::<8>()?;
    let (count, payload) = rest.split_first_chunk::<4>()?;
    let (first, count) = (u64::from_le_bytes(*first), u32::from_le_bytes(*count));
    let sound = count > 0 && first > 0 && first.checked_add(count.into()).is_some();
    sound.then_some((Seq(first), count, payload))
}

/// What must come next.
#[derive(Default)]
struct Expected {
    sections: Vec<(SectionKey, u32)>,
    section: usize,
    index: u32,
    seq: Seq,
    /// The last event of the manifest, and the last one so far.
    events_last: u64,
    event: Option<u64>,
    log_end: Option<Seq>,
}

impl Expected {
    fn after(manifest: &Manifest) -> Expected {
        let sections = manifest.sections.iter().map(|section| (section.key, section.chunks)).collect();
        let (seq, events_last) = (manifest.seq, manifest.events_last);
        let mut expected = Expected { sections, seq, events_last, ..Expected::default() };
        expected.skip_empty();
        expected
    }

    fn chunk(&self) -> Option<(SectionKey, u32)> {
        self.sections.get(self.section).map(|(key, _)| (*key, self.index))
    }

    fn take_chunk<'a>(&mut self, payload: &'a [u8]) -> Result<Piece<'a>, &'static str> {
        let (header, bytes) = payload.split_first_chunk::<8>().ok_or("a chunk is too short")?;
        let (key, index) = self.chunk().ok_or("it has too many chunks")?;
        let (section, number) = header.split_at(4);
        if section != (self.section as u32).to_le_bytes()
            || number != index.to_le_bytes()
            || bytes.len() > snapshots::CHUNK_BYTES_MAX
        {
            return Err("a chunk is missing or out of place");
        }
        self.index += 1;
        self.skip_empty();
        Ok(Piece::Chunk { key, index, bytes })
    }

    fn take_events(&mut self, payload: &[u8]) -> Result<Piece<'static>, &'static str> {
        let pack = EventPack::decode(payload).map_err(|_| "events can't be read")?;
        if self.chunk().is_some() || self.log_end.is_some() {
            return Err("events are out of place");
        }
        if self.event.is_some_and(|last| pack.previous != last) {
            return Err("events are missing");
        }
        if pack.last() > self.events_last {
            return Err("there are later events than its snapshot has");
        }
        self.event = Some(pack.last());
        Ok(Piece::Events(pack))
    }

    /// Whether the snapshot is complete, so that the log may follow.
    fn is_whole(&self) -> bool {
        self.chunk().is_none() && self.event.is_none_or(|last| last == self.events_last)
    }

    fn take_entries<'a>(&mut self, payload: &'a [u8]) -> Result<Piece<'a>, &'static str> {
        let (first, count, payload) = entries(payload).ok_or("its log contradicts itself")?;
        let last = Seq(first.0 + u64::from(count) - 1);
        let follows = match self.log_end {
            Some(end) => first == end.next(),
            // In archives of earlier programs the log begins with the commit during which the snapshot was taken.
            None => first <= self.seq.next() && last > self.seq,
        };
        if !self.is_whole() || !follows {
            return Err("chunks, events or entries are missing");
        }
        self.log_end = Some(last);
        Ok(Piece::Entries { first, count, payload })
    }

    fn take_end(&self, payload: &[u8]) -> Result<Piece<'static>, &'static str> {
        let through = payload.try_into().map_err(|_| "its end has a wrong length")?;
        if !self.is_whole() || self.log_end.unwrap_or(self.seq) != Seq(u64::from_le_bytes(through)) {
            return Err("it ends too early");
        }
        Ok(Piece::End)
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
    /// Reads the magic number and the version.
    fn header(&mut self) -> Result<(), StoreError> {
        if !self.take::<16>().is_ok_and(|magic| &magic == MAGIC) {
            let found = "it is not a cuckood archive".to_owned();
            return Err(StoreError::NotOurs { path: self.path.clone(), found });
        }
        let version = u32::from_le_bytes(self.take()?);
        if version != VERSION {
            return Err(StoreError::Newer { path: self.path.clone(), found: version, known: VERSION });
        }
        Ok(())
    }

    /// Reads the rest of the manifest, whose first piece is in `payload`, and the record after it. Returns the kind of that record.
    fn manifest(&mut self, payload: &mut Vec<u8>) -> Result<(Manifest, u8), StoreError> {
        let mut bytes = std::mem::take(payload);
        loop {
            let kind = self.record(payload)?;
            if kind != MANIFEST {
                let manifest = snapshots::decode(&bytes);
                let manifest = manifest.map_err(|why| self.damaged(&format!("its manifest: {why}")))?;
                return Ok((manifest, kind));
            }
            bytes.extend_from_slice(payload);
        }
    }

    /// Reads the hash of everything before, which nothing may follow.
    fn end(&mut self) -> Result<(), StoreError> {
        let hash = self.hash.digest128();
        if u128::from_le_bytes(self.take()?) != hash {
            return Err(self.damaged("its hash is wrong"));
        }
        let mut byte = [0];
        if self.from.read(&mut byte).map_err(StoreError::io(&self.path, "read"))? != 0 {
            return Err(self.damaged("something follows its end"));
        }
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn record(&mut self, payload: &mut Vec<u8>) -> Result<u8, StoreError> {
        let [kind] = self.take()?;
        let length = u32::from_le_bytes(self.take()?) as u64;
        payload.clear();
        // The buffer grows with the bytes that are really there, so a wrong length can't make it ask for memory.
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

    fn damaged(&self, what: &str) -> StoreError {
        StoreError::Damaged {
            path: self.path.clone(),
            what: what.to_owned(),
            command: "cuckood restore FILE DIR` with another backup `FILE".to_owned(),
        }
    }
}
