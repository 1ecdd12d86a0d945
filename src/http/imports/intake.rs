//! Collects the lines of an upload into batches.

use super::line::Line;
use super::lines::Format;
use super::noticed::Noticed;
use crate::domain::import::LINE_ERRORS_MAX;
use crate::domain::{ITEMS_MAX, Import, ImportWarning, LineError, LineFault};
use crate::engine::{Digest, FilterView};
use xxhash_rust::xxh3::xxh3_64;

/// Lines that become one command.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) digests: Vec<Digest>,
    pub(super) lines: u64,
    pub(super) rejected: u64,
    pub(super) errors: Vec<LineError>,
    pub(super) chain: u64,
}

/// Lines on their way into batches. Those that the log already has are skipped.
pub(super) struct Intake {
    batch: Batch,
    ready: Vec<Batch>,
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
    noticed: Noticed,
}

/// The lines differ from those that the log has.
pub(super) struct Differs;

impl Intake {
    /// Lines of an upload that continues an import.
    pub(super) fn after(import: &Import, format: &Format) -> Self {
        Self {
            batch: Batch::default(),
            ready: Vec::new(),
            lines: 0,
            durable: (import.lines, import.chain),
            chain: 0,
            rejected: (import.rejected, import.guards.max_rejected),
            has_tripped: false,
            noticed: Noticed::new(format),
        }
    }

    /// Takes the next line.
    ///
    /// # Errors
    /// [`Differs`].
    pub(super) fn take(&mut self, view: &FilterView, line: Line<'_>) -> Result<(), Differs> {
        if self.has_tripped {
            return Ok(());
        }
        let (digest, fault) = match line {
            Line::Item(item) if view.is_blank(item) => (None, Some(LineFault::Empty)),
            Line::Item(item) => {
                let digest = view.digest(item);
                self.noticed.item(item, digest, view.spec.ignore_case);
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
        if self.lines <= self.durable.0 {
            let differs = self.lines == self.durable.0 && self.chain != self.durable.1;
            return if differs { Err(Differs) } else { Ok(()) };
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
        Ok(())
    }

    /// Ends the upload.
    ///
    /// # Errors
    /// [`Differs`] if the upload has fewer lines than the log.
    pub(super) fn finish(&mut self) -> Result<(), Differs> {
        self.end_batch();
        if self.lines < self.durable.0 { Err(Differs) } else { Ok(()) }
    }

    /// Takes the batches that are complete.
    pub(super) fn ready(&mut self) -> Vec<Batch> {
        std::mem::take(&mut self.ready)
    }

    /// Whether too many lines were rejected, so that no batch follows those that are ready.
    pub(super) fn has_tripped(&self) -> bool {
        self.has_tripped
    }

    /// What looks wrong about the upload.
    pub(super) fn warnings(&self) -> Vec<ImportWarning> {
        self.noticed.warnings()
    }

    fn end_batch(&mut self) {
        if self.batch.lines > 0 {
            self.ready.push(std::mem::take(&mut self.batch));
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
}
