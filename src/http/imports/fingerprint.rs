//! The fingerprint of an upload: its bytes after decompression, and how they are read.

use super::lines::Format;
use crate::domain::UploadDigest;
use xxhash_rust::xxh3::Xxh3;

/// A byte that no UTF-8 text contains; it ends the name of the column.
const END: u8 = 0xff;

/// The fingerprint of the bytes so far.
pub(super) struct Fingerprint {
    bytes: u64,
    hash: Box<Xxh3>,
}

impl Fingerprint {
    /// The fingerprint of an upload that has not begun.
    pub(super) fn new(format: &Format) -> Self {
        let mut hash = Box::new(Xxh3::new());
        match format {
            Format::Text => hash.update(b"text"),
            Format::NdJson => hash.update(b"ndjson"),
            Format::Csv { column: None } => hash.update(b"csv"),
            Format::Csv { column: Some(column) } => {
                hash.update(b"csv:");
                hash.update(column.as_bytes());
            }
        }
        hash.update(&[END]);
        Self { bytes: 0, hash }
    }

    /// Adds the next piece.
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        self.hash.update(piece);
    }

    /// The fingerprint of the whole upload.
    pub(super) fn finish(&self) -> UploadDigest {
        UploadDigest { bytes: self.bytes, hash: self.hash.digest128() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digest<'a>(format: &Format, pieces: impl IntoIterator<Item = &'a [u8]>) -> UploadDigest {
        let mut fingerprint = Fingerprint::new(format);
        pieces.into_iter().for_each(|piece| fingerprint.push(piece));
        fingerprint.finish()
    }

    #[test]
    fn the_same_bytes_read_in_another_way_are_another_upload() {
        let csv = |column: Option<&str>| Format::Csv { column: column.map(str::to_owned) };
        let formats = [Format::Text, Format::NdJson, csv(None), csv(Some("a")), csv(Some("b"))];
        for (at, one) in formats.iter().enumerate() {
            for other in &formats[..at] {
                assert_ne!(digest(one, [&b"a\nb\n"[..]]), digest(other, [&b"a\nb\n"[..]]));
            }
        }
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(bytes: Vec<u8>, cut: usize, other: u8) {
            let (head, tail) = bytes.split_at(cut % (bytes.len() + 1));
            let whole = digest(&Format::Text, [&bytes[..]]);
            prop_assert_eq!(digest(&Format::Text, [head, tail]), whole);
            prop_assert_ne!(digest(&Format::Text, [&bytes[..], &[other]]), whole);
        }
    }
}
