//! An upload: pieces of the body become batches of lines, each when it is asked for.

use super::lines::{Format, LINE_BYTES_MAX, Line, Lines, UploadFault};
use super::noticed::Noticed;
use crate::access::{Caller, Scope};
use crate::domain::import::LINE_ERRORS_MAX;
use crate::domain::{Ending, ITEMS_MAX, Import, LineError, LineFault, Name, UploadDigest};
use crate::engine::imports::LiveImport;
use crate::engine::{Digest, FilterView};
use crate::http::answer::{Code, Problem};
use crate::http::api::Api;
use crate::http::request::body::Pieces;
use std::collections::VecDeque;
use std::sync::Arc;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// A byte that no UTF-8 text contains; it ends the name of the column.
const END: u8 = 0xff;

/// Lines that become one command.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) digests: Vec<Digest>,
    pub(super) lines: u64,
    pub(super) rejected: u64,
    pub(super) errors: Vec<LineError>,
    pub(super) chain: u64,
}

/// The pieces of an upload as they arrive.
pub(super) struct Source {
    pub(super) pieces: Pieces,
    pub(super) live: LiveImport,
    pub(super) api: Arc<Api>,
    pub(super) caller: Caller,
    pub(super) filter: Name,
}

impl Source {
    /// The next piece, unless the import is stopped, or its key has gone or expired, or no longer covers the upload.
    async fn next(&mut self) -> Result<Option<&[u8]>, Problem> {
        let Source { pieces, live, api, caller, filter } = self;
        let piece = tokio::select! {
            biased;
            () = live.stopped() => return Err(Code::ImportStopped.into()),
            piece = pieces.next() => piece?,
        };
        api.access.renew(caller, || api.engine.now())?;
        caller.require(Scope::Write)?;
        caller.require_name(filter.as_str())?;
        Ok(piece)
    }
}

/// The body of an import.
pub(super) struct Upload {
    pub(super) source: Source,
    /// What was read to see that the upload is readable.
    begin: Vec<u8>,
    /// The body has ended.
    is_complete: bool,
    lines: Lines,
    intake: Intake,
    /// Bytes read, and their hash.
    bytes: u64,
    hash: Box<Xxh3>,
    has_ended: bool,
}

impl Upload {
    /// Reads as much of an upload as shows whether it is readable at all.
    ///
    /// # Errors
    /// If it is not readable, incomplete or stopped.
    pub(super) async fn open(
        format: Format,
        column: Option<String>,
        mut source: Source,
        view: Arc<FilterView>,
    ) -> Result<Self, Problem> {
        let (mut begin, mut probe, mut is_complete) = (Vec::new(), Lines::new(format, column.clone()), false);
        while !probe.is_readable() && !is_complete && begin.len() <= LINE_BYTES_MAX {
            let read = match source.next().await? {
                Some(piece) => {
                    begin.extend_from_slice(piece);
                    probe.push(piece, &mut |_| ())
                }
                None => {
                    is_complete = true;
                    probe.finish(&mut |_| ())
                }
            };
            read.map_err(unreadable)?;
        }
        let (hash, intake) = (seeded(format, column.as_deref()), Intake::new(view, format));
        let (lines, has_ended) = (Lines::new(format, column), false);
        Ok(Self { source, begin, is_complete, lines, intake, bytes: 0, hash, has_ended })
    }

    /// Continues an import after the lines that the log already has.
    pub(super) fn continue_after(&mut self, import: &Import) {
        self.intake.durable = (import.counts.lines, import.chain);
        self.intake.rejected = (import.counts.rejected, import.guards.max_rejected);
        self.intake.noticed.watch_copies(import);
    }

    /// The next batch; none at the end, or once more lines were rejected than allowed.
    ///
    /// # Errors
    /// If the upload is incomplete, invalid or stopped, or differs from what the log has.
    pub(super) async fn next(&mut self) -> Result<Option<Batch>, Problem> {
        loop {
            if let Some(batch) = self.intake.ready.pop_front() {
                return Ok(Some(batch));
            }
            if self.has_ended || self.intake.has_tripped {
                return Ok(None);
            }
            let begin = std::mem::take(&mut self.begin);
            let piece = match (begin.is_empty(), self.is_complete) {
                (false, _) => Some(&begin[..]),
                (true, false) => self.source.next().await?,
                (true, true) => None,
            };
            let (lines, intake) = (&mut self.lines, &mut self.intake);
            let read = match piece {
                Some(piece) => {
                    self.bytes += piece.len() as u64;
                    self.hash.update(piece);
                    lines.push(piece, &mut |line| intake.take(line))
                }
                None => {
                    self.has_ended = true;
                    let read = lines.finish(&mut |line| intake.take(line));
                    intake.finish();
                    read
                }
            };
            read.map_err(unreadable)?;
            if self.intake.differs {
                return Err(Code::ImportDiffers.into());
            }
        }
    }

    /// How the upload ended, after its last batch.
    pub(super) fn ending(&self) -> Ending {
        Ending::Whole { upload: self.fingerprint(), warnings: self.intake.noticed.warnings() }
    }

    /// Reads the upload to its end only to compute its fingerprint.
    ///
    /// # Errors
    /// If it is incomplete or stopped.
    pub(super) async fn digest(&mut self) -> Result<UploadDigest, Problem> {
        let begin = std::mem::take(&mut self.begin);
        self.bytes += begin.len() as u64;
        self.hash.update(&begin);
        while !self.is_complete
            && let Some(piece) = self.source.next().await?
        {
            self.bytes += piece.len() as u64;
            self.hash.update(piece);
        }
        Ok(self.fingerprint())
    }

    fn fingerprint(&self) -> UploadDigest {
        UploadDigest { bytes: self.bytes, hash: self.hash.digest128() }
    }
}

fn unreadable(fault: UploadFault) -> Problem {
    let is_column = matches!(fault, UploadFault::NoSuchColumn | UploadFault::WhichColumn(_));
    Problem::invalid_at(if is_column { "/column" } else { "" }, fault.to_string())
}

/// The hash of an upload that has not begun: the same bytes in another format are another upload.
fn seeded(format: Format, column: Option<&str>) -> Box<Xxh3> {
    let mut hash = Box::new(Xxh3::new());
    match format {
        Format::Text => hash.update(b"text"),
        Format::NdJson => hash.update(b"ndjson"),
        Format::Csv => hash.update(b"csv"),
    }
    if let Some(column) = column {
        hash.update(b":");
        hash.update(column.as_bytes());
    }
    hash.update(&[END]);
    hash
}

/// Lines on their way into batches. Those that the log already has are skipped.
struct Intake {
    view: Arc<FilterView>,
    batch: Batch,
    ready: VecDeque<Batch>,
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
    /// The lines differ from those that the log has.
    differs: bool,
    noticed: Noticed,
}

impl Intake {
    fn new(view: Arc<FilterView>, format: Format) -> Self {
        Self {
            noticed: Noticed::new(view.clone(), format),
            view,
            batch: Batch::default(),
            ready: VecDeque::new(),
            lines: 0,
            durable: (0, 0),
            chain: 0,
            rejected: (0, None),
            has_tripped: false,
            differs: false,
        }
    }

    /// Takes the next line.
    fn take(&mut self, line: Line<'_>) {
        if self.has_tripped || self.differs {
            return;
        }
        let is_new = self.lines >= self.durable.0;
        let (digest, fault) = match line {
            Line::Item(item) if self.view.is_blank(item) => (None, Some(LineFault::Empty)),
            Line::Item(item) => {
                let digest = self.view.digest(item);
                self.noticed.item(item, digest, is_new);
                (Some(digest), None)
            }
            Line::Blank => (None, None),
            Line::Rejected(fault) => (None, Some(fault)),
        };
        if fault.is_some() {
            self.noticed.rejected();
        }
        self.lines += 1;
        self.chain = chained(self.chain, digest.map(|digest| digest.0), fault);
        if !is_new {
            self.differs = self.lines == self.durable.0 && self.chain != self.durable.1;
            return;
        }
        if fault.is_some() {
            self.rejected.0 += 1;
            self.has_tripped = self.rejected.1.is_some_and(|max| self.rejected.0 > max);
        }
        if self.has_tripped {
            // The state refuses a batch that violates a guard, so the lines before this one go into another batch.
            self.end_batch();
        }
        self.batch.lines += 1;
        self.batch.chain = self.chain;
        self.batch.digests.extend(digest);
        if let Some(fault) = fault {
            self.batch.rejected += 1;
            if self.batch.errors.len() < LINE_ERRORS_MAX {
                self.batch.errors.push(LineError { line: self.lines, fault });
            }
        }
        if self.batch.lines == ITEMS_MAX as u64 || self.has_tripped {
            self.end_batch();
        }
    }

    /// Ends the upload, which must not have fewer lines than the log.
    fn finish(&mut self) {
        self.end_batch();
        self.differs |= self.lines < self.durable.0;
    }

    fn end_batch(&mut self) {
        if self.batch.lines > 0 {
            self.ready.push_back(std::mem::take(&mut self.batch));
        }
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
    fn the_hash_of_lines_tells_their_content_and_their_order() {
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
        (format, column): (Format, Option<&str>),
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> u128 {
        let mut hash = seeded(format, column);
        pieces.into_iter().for_each(|piece| hash.update(piece));
        hash.digest128()
    }

    #[test]
    fn the_same_bytes_read_in_another_way_are_another_upload() {
        let csv = |column| (Format::Csv, column);
        let formats =
            [(Format::Text, None), (Format::NdJson, None), csv(None), csv(Some("a")), csv(Some("b"))];
        for (at, one) in formats.iter().enumerate() {
            for other in &formats[..at] {
                assert_ne!(digest(*one, [&b"a\nb\n"[..]]), digest(*other, [&b"a\nb\n"[..]]));
            }
        }
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(bytes: Vec<u8>, cut: usize, other: u8) {
            let (head, tail) = bytes.split_at(cut % (bytes.len() + 1));
            let whole = digest((Format::Text, None), [&bytes[..]]);
            prop_assert_eq!(digest((Format::Text, None), [head, tail]), whole);
            prop_assert_ne!(digest((Format::Text, None), [&bytes[..], &[other]]), whole);
        }
    }
}
