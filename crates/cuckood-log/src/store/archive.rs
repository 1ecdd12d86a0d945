//! Archives: chains of frames that can be read without sled. A backup has a snapshot; an image has one filter.
//!
//! A backup consists of frames "ckar" with a [`BackupPiece`] each, an image of frames "ckim" with an [`ImageBody`] each. The last frame has a
//! separate kind.
//!
//! Each frame has the checksum of the one before. No part of an archive is valid before its end has been read.

use super::StoreError;
use super::events::EventPack;
use super::snapshots::{CHUNK_BYTES_MAX, MANIFEST_BYTES_MAX, Manifest};
use cuckood_state::domain::{
    FORMAT_FIRST, FORMAT_VERSION, ImageBody, ImageFault, ImageRecord, SectionId,
};
use cuckood_state::frame::{FRAME_BYTES, Frame, FrameFormat, decode, encode};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::iter::repeat_n;
use std::path::Path;

/// A manifest is the largest payload, and the kind of the piece is before it.
const BACKUP: FrameFormat = FrameFormat {
    magic: *b"ckar",
    version: 1,
    oldest: 1,
    payload_max: MANIFEST_BYTES_MAX + 1,
};

/// Each frame becomes a command, which must not be longer than 64 KiB. The version is that of the entries that were enabled where the image
/// was made.
const IMAGE: FrameFormat = FrameFormat {
    magic: *b"ckim",
    version: FORMAT_VERSION,
    oldest: FORMAT_FIRST,
    payload_max: 60 << 10,
};

/// A part of an image that has reached this size is written, in bytes. It leaves space for another chunk.
pub const IMAGE_PART_BYTES: usize = 36 << 10;

/// Bytes of an archive that are read together.
const READ_BYTES: u64 = 1 << 20;

/// The kind of the last frame; all others have kind 0.
const END: u8 = b'E';

/// Reads a chain of frames as its bytes arrive.
struct Chain {
    format: FrameFormat,
    bytes: Vec<u8>,
    /// Bytes that were read already.
    read: usize,
    /// The checksum of the last frame; 0 before the first.
    checksum: u128,
    has_ended: bool,
}

impl Chain {
    fn new(format: FrameFormat) -> Self {
        Self {
            format,
            bytes: Vec::new(),
            read: 0,
            checksum: 0,
            has_ended: false,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame, if it has arrived completely.
    fn next(&mut self) -> Result<Option<Frame<'_>>, ImageFault> {
        let left = &self.bytes[self.read..];
        if self.has_ended {
            return if left.is_empty() {
                Ok(None)
            } else {
                Err(ImageFault::TooLong)
            };
        }
        let Some((frame, length)) = self.format.open(left)? else {
            return Ok(None);
        };
        if frame.before != self.checksum {
            return Err(ImageFault::Order);
        }
        self.read += length;
        self.checksum = frame.checksum;
        self.has_ended = frame.kind == END;
        Ok(Some(frame))
    }

    /// Validates the received records at the end of the input.
    fn finish(&self) -> Result<(), ImageFault> {
        match self.has_ended {
            true if self.read == self.bytes.len() => Ok(()),
            true => Err(ImageFault::TooLong),
            false if self.checksum == 0 && self.bytes.len() < FRAME_BYTES => {
                Err(ImageFault::Foreign)
            }
            false => Err(ImageFault::CutShort),
        }
    }
}

/// Writes a chain of frames: a backup or the records of one image.
#[derive(Default)]
pub struct ArchiveWriter {
    checksum: u128,
}

impl ArchiveWriter {
    /// Returns the frame of the next piece of a backup.
    pub fn frame(&mut self, piece: &BackupPiece<'_>) -> Vec<u8> {
        self.seal(BACKUP, piece, matches!(piece, BackupPiece::End))
    }

    /// Returns the record of an image with this content, made where entries of this version are enabled. The head must be the first, the end
    /// the last.
    pub fn record(&mut self, version: u16, body: &ImageBody) -> Vec<u8> {
        let version = version.clamp(IMAGE.oldest, IMAGE.version);
        let format = FrameFormat { version, ..IMAGE };
        self.seal(format, body, matches!(body, ImageBody::End { .. }))
    }

    fn seal(&mut self, format: FrameFormat, content: &impl Serialize, is_end: bool) -> Vec<u8> {
        let kind = if is_end { END } else { 0 };
        let mut frame = Vec::new();
        self.checksum = format.seal(kind, self.checksum, &encode(content), &mut frame);
        frame
    }
}

/// A piece of a backup, in this order.
#[derive(Serialize, Deserialize)]
pub enum BackupPiece<'a> {
    /// The manifest of the snapshot.
    Manifest(Manifest),
    /// A chunk, in the manifest's order.
    Chunk {
        /// Its section.
        key: SectionId,
        /// The content.
        #[serde(borrow, with = "serde_bytes")]
        bytes: Cow<'a, [u8]>,
    },
    /// Events, up to the last one of the manifest.
    Events(EventPack),
    /// The end.
    End,
}

/// Opens an archive for [`read`].
///
/// # Errors
/// [`StoreError::NotBackup`] if there is no such file; [`StoreError::Io`] if it can't be opened.
pub fn open(path: &Path) -> Result<File, StoreError> {
    if path.is_dir() {
        return Err(not_backup(path, "it is a directory"));
    }
    File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => not_backup(path, "it does not exist"),
        _ => StoreError::io(path, "open")(error),
    })
}

fn not_backup(path: &Path, found: &'static str) -> StoreError {
    StoreError::NotBackup {
        path: path.to_owned(),
        found,
    }
}

/// Reads a backup from start to end and passes its pieces to `sink` in order, the end once the archive is known to be intact.
///
/// # Errors
/// [`StoreError::Damaged`] if anything differs from the written bytes, [`StoreError::Newer`] for a later version, [`StoreError::NotBackup`]
/// for another kind of file. Errors of the sink are returned. After an error, the sink must discard its pieces.
pub fn read(
    path: &Path,
    mut from: impl Read,
    mut sink: impl FnMut(BackupPiece<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let damaged = |what: &str| StoreError::Damaged {
        path: path.to_owned(),
        what: what.to_owned(),
        command: "cuckood restore FILE DIR` with another backup `FILE".to_owned(),
    };
    let rejected = |fault| match fault {
        ImageFault::Foreign => not_backup(path, "it has another format"),
        ImageFault::Newer(version) => StoreError::Newer {
            path: path.to_owned(),
            found: version.into(),
            known: BACKUP.version.into(),
        },
        fault => damaged(&fault.to_string()),
    };
    let mut chain = Chain::new(BACKUP);
    let mut order = Order::default();
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        let mut next = from.by_ref().take(READ_BYTES);
        next.read_to_end(&mut buffer)
            .map_err(StoreError::io(path, "read"))?;
        chain.push(&buffer);
        if buffer.is_empty() {
            chain.finish().map_err(rejected)?;
            return sink(BackupPiece::End);
        }
        while let Some(frame) = chain.next().map_err(rejected)? {
            let piece = postcard::from_bytes(frame.payload)
                .map_err(|_| damaged("a piece can't be decoded"))?;
            order.check(&piece).map_err(damaged)?;
            if !matches!(piece, BackupPiece::End) {
                sink(piece)?;
            }
        }
    }
}

/// The next expected pieces of a backup. Checksums reveal missing bytes; this reveals pieces that were never written.
#[derive(Default)]
struct Order {
    has_begun: bool,
    /// The sections of the chunks that are missing.
    chunks: VecDeque<SectionId>,
}

impl Order {
    fn check(&mut self, piece: &BackupPiece<'_>) -> Result<(), &'static str> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if is_first && !matches!(piece, BackupPiece::Manifest(_)) {
            return Err("it has no manifest");
        }
        match piece {
            BackupPiece::Manifest(Manifest { sections, .. })
                if !sections.is_sorted_by(|a, b| a.key < b.key) =>
            {
                return Err("it repeats a section, or has them in another order");
            }
            BackupPiece::Manifest(manifest) if is_first => {
                let sections = manifest.sections.iter();
                let chunks = sections.map(|section| repeat_n(section.key, section.chunks as usize));
                self.chunks = chunks.flatten().collect();
            }
            BackupPiece::Chunk { bytes, .. } if bytes.len() > CHUNK_BYTES_MAX => {
                return Err("a chunk is too long");
            }
            BackupPiece::Chunk { key, .. } if self.chunks.pop_front() == Some(*key) => {}
            BackupPiece::Events(pack) => pack.check()?,
            // The caller checks first that nothing follows.
            BackupPiece::End if self.chunks.is_empty() => {}
            BackupPiece::Manifest(_) | BackupPiece::Chunk { .. } | BackupPiece::End => {
                return Err("it lacks chunks, or has too many");
            }
        }
        Ok(())
    }
}

/// Reads bytes that are one record of an image.
///
/// # Errors
/// [`ImageFault`].
pub fn read_image_record(bytes: &[u8]) -> Result<ImageRecord, ImageFault> {
    let (frame, length) = IMAGE.open(bytes)?.ok_or(ImageFault::CutShort)?;
    if length == bytes.len() {
        image_record_of(frame)
    } else {
        Err(ImageFault::TooLong)
    }
}

fn image_record_of(frame: Frame<'_>) -> Result<ImageRecord, ImageFault> {
    let body = decode(frame.payload).ok_or(ImageFault::Contradiction)?;
    Ok(ImageRecord {
        before: frame.before,
        checksum: frame.checksum,
        body,
        version: frame.version,
    })
}

/// Reads an image as it arrives, and rejects one that is damaged, or longer than it says.
pub struct ImageReader(Chain);

impl Default for ImageReader {
    fn default() -> Self {
        Self(Chain::new(IMAGE))
    }
}

impl ImageReader {
    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.push(bytes);
    }

    /// The next record, if it has arrived completely.
    ///
    /// # Errors
    /// [`ImageFault`]. Earlier records are invalid then.
    pub fn next_record(&mut self) -> Result<Option<ImageRecord>, ImageFault> {
        let is_first = self.0.checksum == 0;
        let Some(frame) = self.0.next()? else {
            return Ok(None);
        };
        let record = image_record_of(frame)?;
        let is_head = matches!(record.body, ImageBody::Head(_));
        if is_head == is_first {
            Ok(Some(record))
        } else {
            Err(ImageFault::Order)
        }
    }

    /// Validates the received records at the end of the input.
    ///
    /// # Errors
    /// [`ImageFault`] if the image is incomplete.
    pub fn finish(&self) -> Result<(), ImageFault> {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::SectionRef;
    use cuckood_state::domain::{ImageChunk, ImagePart, ImageSection, Seq, Timestamp};
    use proptest::prelude::*;
    use std::iter;

    fn image(parts: &[Vec<u8>]) -> Vec<u8> {
        let mut writer = ArchiveWriter::default();
        let section = ImageSection::Tables;
        let chunks = parts.iter().map(|part| vec![ImageChunk(part.clone())]);
        let parts = chunks.map(|chunks| ImageBody::Part(ImagePart { section, chunks }));
        parts
            .chain([ImageBody::End { redemptions: 7 }])
            .flat_map(|body| writer.record(FORMAT_FIRST, &body))
            .collect()
    }

    /// Reads bytes in pieces of this size, after a head.
    fn read(bytes: &[u8], piece_bytes: usize) -> Result<Vec<Vec<u8>>, ImageFault> {
        let mut chain = Chain::new(IMAGE);
        let mut parts = Vec::new();
        for piece in bytes.chunks(piece_bytes) {
            chain.push(piece);
            while let Some(frame) = chain.next()? {
                match image_record_of(frame)?.body {
                    ImageBody::Part(part) => {
                        parts.extend(part.chunks.into_iter().map(|chunk| chunk.0))
                    }
                    ImageBody::End { redemptions } => assert_eq!(redemptions, 7),
                    other => panic!("{other:?}"),
                }
            }
        }
        chain.finish().map(|()| parts)
    }

    proptest! {
        /// An image in any pieces is read unchanged. Altered, truncated, extended or shuffled, it is rejected.
        #[test]
        fn image_is_read_completely_or_rejected(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..6),
            piece_bytes in 1usize..400,
            place in any::<prop::sample::Index>(),
            bit in 0..8u32,
        ) {
            let bytes = image(&parts);
            prop_assert_eq!(read(&bytes, piece_bytes), Ok(parts.clone()));
            let at = place.index(bytes.len());
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            prop_assert!(read(&damaged, piece_bytes).is_err());
            prop_assert!(read(&bytes[..at], piece_bytes).is_err());
            prop_assert_eq!(read(&[&bytes[..], b"c"].concat(), piece_bytes), Err(ImageFault::TooLong));
            if let Some(first) = parts.first() {
                // A missing part, and a duplicate one.
                let length = image(std::slice::from_ref(first)).len() - image(&[]).len();
                prop_assert_eq!(read(&bytes[length..], piece_bytes), Err(ImageFault::Order));
                prop_assert_eq!(read(&[&bytes[..length], &bytes].concat(), piece_bytes), Err(ImageFault::Order));
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic_reader(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut record = b"ckim\x01\0".to_vec();
            record.extend(&bytes);
            let _ = read_image_record(&record);
            prop_assert!(read(&bytes, 7).is_err());
        }
    }

    /// A restore would write a snapshot that can't be read.
    #[test]
    fn forged_backup_is_damaged() {
        let key = |part| SectionId { owner: 1, part };
        let section = |part| SectionRef {
            key: key(part),
            changes: 0,
            first_chunk: 0,
            chunks: 1,
            generation: 1,
        };
        let chunk = |part, length| BackupPiece::Chunk {
            key: key(part),
            bytes: vec![7; length].into(),
        };
        let read = |parts: &[u64], length| {
            let manifest = Manifest {
                generation: 1,
                seq: Seq(1),
                taken_at: Timestamp(1),
                events_last: 0,
                place: Vec::new(),
                sections: parts.iter().map(|part| section(*part)).collect(),
                meta: Vec::new(),
            };
            let chunks = parts.iter().map(|part| chunk(*part, length));
            let pieces = iter::once(BackupPiece::Manifest(manifest))
                .chain(chunks)
                .chain([BackupPiece::End]);
            let mut writer = ArchiveWriter::default();
            let archive: Vec<u8> = pieces.flat_map(|piece| writer.frame(&piece)).collect();
            super::read(Path::new("backup"), archive.as_slice(), |_| Ok(()))
        };
        read(&[1, 2], CHUNK_BYTES_MAX).unwrap();
        for (parts, length) in [
            (&[1, 2][..], CHUNK_BYTES_MAX + 1),
            (&[1, 2, 1], 9),
            (&[1, 1], 9),
            (&[2, 1], 9),
        ] {
            let error = read(parts, length).unwrap_err();
            assert!(
                matches!(error, StoreError::Damaged { .. }),
                "{parts:?}, {length} bytes: {error}"
            );
        }
    }

    #[test]
    fn newer_image_differs_from_foreign_file() {
        assert_eq!(read(b"RedisBloom", 3), Err(ImageFault::Foreign));
        assert_eq!(ImageReader::default().finish(), Err(ImageFault::Foreign));
        let mut reader = ImageReader::default();
        reader.push(&image(&[]));
        assert_eq!(
            reader.next_record(),
            Err(ImageFault::Order),
            "it has no head"
        );
        let mut newer = image(&[]);
        let version = FORMAT_VERSION + 1;
        newer[4..6].copy_from_slice(&version.to_le_bytes());
        assert_eq!(read(&newer, 100), Err(ImageFault::Newer(version)));
    }
}
