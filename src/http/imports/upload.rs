//! An upload: pieces of the body become batches of lines, each when it is asked for.

use super::lines::{Delimiter, Line, Lines, UploadFault, UploadFormat};
use super::live::LiveImport;
use super::observations::Observations;
use super::pace::Pace;
use crate::access::{Caller, Scope};
use crate::http::api::ApiHandle;
use crate::http::request::body::Pieces;
use crate::http::response::{Code, Problem};
use crate::turn::Turn;
use bytes::Bytes;
use cuckood_filter::Digest;
use cuckood_state::FilterView;
use cuckood_state::domain::import::LINE_ERRORS_MAX;
use cuckood_state::domain::{
    Ending, ITEMS_MAX, Import, LineError, LineFault, Unusable, UploadDigest,
};
use std::sync::Arc;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// A byte that no UTF-8 text contains; it ends the name of the column.
const END: u8 = 0xff;

/// Lines that become one command.
#[derive(Default)]
pub(super) struct LineBatch {
    pub(super) digests: Vec<Digest>,
    pub(super) lines: u64,
    pub(super) rejected: u64,
    pub(super) errors: Vec<LineError>,
    pub(super) chain: u64,
}

/// The pieces of an upload as they arrive.
pub(super) struct UploadPieces {
    pub(super) api: ApiHandle,
    pub(super) caller: Caller,
    pub(super) view: Arc<FilterView>,
    pub(super) live: LiveImport,
    pub(super) pieces: Pieces,
}

impl UploadPieces {
    /// The next piece, unless the import is stopped, or its key was removed, has expired, or no longer covers the upload.
    async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        let UploadPieces {
            api,
            caller,
            view,
            live,
            pieces,
        } = self;
        let piece = tokio::select! {
            biased;
            () = live.stopped() => return Err(Code::ImportStopped.into()),
            piece = pieces.next() => piece?,
        };
        api.access.renew(caller, || api.engine.time_of_day())?;
        caller.require(Scope::Write)?;
        caller.require_name(view.name.as_str())?;
        Ok(piece)
    }
}

/// The body of an import.
pub(super) struct Upload {
    pub(super) source: UploadPieces,
    lines: Lines,
    intake: Intake,
    pace: Pace,
    /// Normalization of a piece's items can take longer than their transfer.
    turn: Turn,
    /// Bytes read, and their hash.
    bytes: u64,
    hash: Box<Xxh3>,
}

impl Upload {
    /// Reads the upload until it is known to be readable.
    ///
    /// # Errors
    /// If it is not readable, incomplete or stopped.
    pub(super) async fn open(
        format: UploadFormat,
        delimiter: Delimiter,
        column: Option<String>,
        source: UploadPieces,
    ) -> Result<Self, Problem> {
        let hash = seeded(format, delimiter, column.as_deref());
        let intake = Intake::new(source.view.clone(), format);
        let lines = Lines::new(format, delimiter, column);
        let mut upload = Self {
            source,
            lines,
            intake,
            pace: Pace::default(),
            turn: Turn::default(),
            bytes: 0,
            hash,
        };
        while !upload.lines.open().map_err(unreadable)? {
            upload.read().await?;
        }
        if let Some(name) = upload.lines.only_column() {
            upload.intake.observations.header(name);
        }
        Ok(upload)
    }

    /// Continues an import after the lines that the log already has.
    pub(super) fn continue_after(&mut self, import: &Import) {
        self.intake.durable = (import.counts.lines, import.chain);
        self.intake.rejected = (import.counts.rejected, import.guards.max_rejected);
        self.intake
            .observations
            .watch_copies(&self.source.view, import);
    }

    /// Reads the next piece of the body, or its end.
    async fn read(&mut self) -> Result<(), Problem> {
        match self.piece().await? {
            Some(piece) => self.lines.push(&piece),
            None => self.lines.end(),
        }
        Ok(())
    }

    /// Reads the next piece of the body into the fingerprint; `None` at the end.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, Problem> {
        let piece = if self.lines.has_ended() {
            None
        } else {
            self.source.next().await?
        };
        let bytes = piece.as_deref().unwrap_or_default();
        self.bytes += bytes.len() as u64;
        self.hash.update(bytes);
        Ok(piece)
    }

    /// The next batch; none at the end, or once more lines were rejected than allowed.
    ///
    /// # Errors
    /// If the upload is incomplete, invalid or stopped, or differs from the logged lines.
    pub(super) async fn next(&mut self) -> Result<Option<LineBatch>, Problem> {
        while !self.intake.has_tripped {
            if let Some(line) = self.lines.next_line().map_err(unreadable)? {
                let bytes = match &line {
                    Line::Item(item) => item.len(),
                    Line::Blank | Line::Rejected(_) => 0,
                };
                if let Some(batch) = self.intake.take(line)? {
                    return Ok(Some(batch));
                }
                self.turn.work(bytes).await;
            } else if self.lines.has_ended() {
                break;
            } else {
                self.pace.turn(self.bytes).await;
                self.read().await?;
            }
        }
        self.intake.rest()
    }

    /// How the upload ended, after its last batch.
    pub(super) fn ending(&self) -> Ending {
        Ending::Whole {
            upload: self.fingerprint(),
            warnings: self.intake.observations.warnings(),
        }
    }

    /// Returns the fingerprint of the part read so far.
    pub(super) fn fingerprint(&self) -> UploadDigest {
        UploadDigest {
            bytes: self.bytes,
            hash: self.hash.digest128(),
        }
    }
}

fn unreadable(fault: UploadFault) -> Problem {
    let pointer = match fault {
        UploadFault::NoSuchColumn(_) | UploadFault::WhichColumn(_) => "/column",
        UploadFault::OtherDelimiter(_) => "/delimiter",
        UploadFault::Utf16
        | UploadFault::CarriageReturns
        | UploadFault::UnknownDelimiter
        | UploadFault::BadHeader => "",
    };
    Problem::invalid_at(pointer, fault.to_string())
}

/// The initial hash of an upload: the same bytes in another format are another upload. The comma adds nothing, as in 0.1.0.
fn seeded(format: UploadFormat, delimiter: Delimiter, column: Option<&str>) -> Box<Xxh3> {
    let mut hash = Box::new(Xxh3::new());
    match format {
        UploadFormat::Text => hash.update(b"text"),
        UploadFormat::NdJson => hash.update(b"ndjson"),
        UploadFormat::Csv => hash.update(b"csv"),
    }
    if delimiter != Delimiter::Comma {
        hash.update(&[delimiter.byte()]);
    }
    if let Some(column) = column {
        hash.update(b":");
        hash.update(column.as_bytes());
    }
    hash.update(&[END]);
    hash
}

/// Lines that are collected into batches. Those that the log already has are skipped.
struct Intake {
    view: Arc<FilterView>,
    batch: LineBatch,
    /// Lines read.
    lines: u64,
    /// Lines that the log has, and their hash.
    durable: (u64, u64),
    /// The hash of all lines read.
    chain: u64,
    /// Lines rejected, and how many may be.
    rejected: (u64, Option<u64>),
    /// More lines were rejected than allowed: no further line is taken.
    has_tripped: bool,
    observations: Observations,
}

impl Intake {
    fn new(view: Arc<FilterView>, format: UploadFormat) -> Self {
        let batch = LineBatch::default();
        let observations = Observations::new(format);
        let durable = (0, 0);
        let rejected = (0, None);
        let has_tripped = false;
        Self {
            view,
            batch,
            lines: 0,
            durable,
            chain: 0,
            rejected,
            has_tripped,
            observations,
        }
    }

    /// Takes the next line. Returns the batch that it completes, if it completes one.
    fn take(&mut self, line: Line<'_>) -> Result<Option<LineBatch>, Problem> {
        let is_new = self.lines >= self.durable.0;
        let (digest, fault) = match line {
            Line::Item(item) => match self.view.digest(&*item) {
                Ok(digest) => {
                    self.observations.item(&self.view, &item, digest, is_new);
                    (Some(digest), None)
                }
                Err(Unusable::Empty) => (None, Some(LineFault::Empty)),
                Err(Unusable::NotUtf8) => (None, Some(LineFault::NotUtf8)),
            },
            Line::Blank => (None, None),
            Line::Rejected(fault) => (None, Some(fault)),
        };
        if fault.is_some() {
            self.observations.rejected += 1;
        }
        self.lines += 1;
        self.chain = chained(self.chain, digest.map(|digest| digest.0), fault);
        if !is_new {
            let differs = self.lines == self.durable.0 && self.chain != self.durable.1;
            return if differs {
                Err(Code::ImportDiffers.into())
            } else {
                Ok(None)
            };
        }
        if fault.is_some() {
            self.rejected.0 += 1;
            self.has_tripped = self.rejected.1.is_some_and(|max| self.rejected.0 > max);
        }
        // The state rejects a batch that violates a guard, so the lines before this one are sent in another batch.
        let before = if self.has_tripped { self.rest()? } else { None };
        self.batch.lines += 1;
        self.batch.chain = self.chain;
        self.batch.digests.extend(digest);
        if let Some(fault) = fault {
            self.batch.rejected += 1;
            if self.batch.errors.len() < LINE_ERRORS_MAX {
                self.batch.errors.push(LineError {
                    line: self.lines,
                    fault,
                });
            }
        }
        if self.batch.lines == ITEMS_MAX as u64 {
            self.rest()
        } else {
            Ok(before)
        }
    }

    /// The lines of an incomplete batch. No further ones follow, unless the upload has fewer than the log.
    fn rest(&mut self) -> Result<Option<LineBatch>, Problem> {
        if self.lines < self.durable.0 {
            return Err(Code::ImportDiffers.into());
        }
        Ok((self.batch.lines > 0).then(|| std::mem::take(&mut self.batch)))
    }
}

/// The hash of all lines up to this one, from the hash up to the one before. It does not depend on how lines are batched.
fn chained(chain: u64, digest: Option<u64>, fault: Option<LineFault>) -> u64 {
    let (kind, digest) = match (digest, fault) {
        (Some(digest), _) => (1u8, digest),
        (None, None) => (2, 0),
        (None, Some(fault)) => (3, fault as u64),
    };
    let mut line = [kind; 17];
    line[..8].copy_from_slice(&chain.to_le_bytes());
    line[8..16].copy_from_slice(&digest.to_le_bytes());
    xxh3_64(&line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn line_hash_depends_on_content_and_order() {
        let a = |chain| chained(chain, Some(1), None);
        let b = |chain| chained(chain, Some(2), None);
        let blank = |chain| chained(chain, None, None);
        let bad = |chain, fault| chained(chain, None, Some(fault));
        let all = [
            a(b(0)),
            b(a(0)),
            a(0),
            a(blank(0)),
            blank(a(0)),
            bad(a(0), LineFault::Empty),
            bad(a(0), LineFault::NotUtf8),
            chained(0, Some(0), None),
            blank(0),
        ];
        let different: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
    }

    fn digest<'a>(
        (format, delimiter, column): (UploadFormat, Delimiter, Option<&str>),
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> u128 {
        let mut hash = seeded(format, delimiter, column);
        pieces.into_iter().for_each(|piece| hash.update(piece));
        hash.digest128()
    }

    #[test]
    fn format_is_part_of_upload_hash() {
        let comma = Delimiter::Comma;
        let tab = Delimiter::Tab;
        let formats = [
            (UploadFormat::Text, comma, None),
            (UploadFormat::NdJson, comma, None),
            (UploadFormat::Csv, comma, None),
            (UploadFormat::Csv, comma, Some("a")),
            (UploadFormat::Csv, comma, Some("b")),
            (UploadFormat::Csv, tab, None),
            (UploadFormat::Csv, tab, Some("a")),
            (UploadFormat::Csv, Delimiter::Pipe, Some("a")),
        ];
        for (at, one) in formats.iter().enumerate() {
            for other in &formats[..at] {
                assert_ne!(
                    digest(*one, [&b"a\nb\n"[..]]),
                    digest(*other, [&b"a\nb\n"[..]])
                );
            }
        }
    }

    proptest! {
        #[test]
        fn upload_hash_is_independent_of_pieces(bytes: Vec<u8>, cut: usize, other: u8) {
            let (head, tail) = bytes.split_at(cut % (bytes.len() + 1));
            let text = (UploadFormat::Text, Delimiter::Comma, None);
            let whole = digest(text, [&bytes[..]]);
            prop_assert_eq!(digest(text, [head, tail]), whole);
            prop_assert_ne!(digest(text, [&bytes[..], &[other]]), whole);
        }
    }
}
