//! Imports: long uploads, logged in batches, so that an interrupted one can be continued, and warnings about suspicious ones.

use super::text::text_type;
use super::{FilterId, ImportBegin, Invalid, ItemOutcome, Kind, Name, Timestamp};
use derive_more::Display;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The most line errors that an import reports.
pub const LINE_ERRORS_MAX: usize = 100;

/// Maximum number of an owner's finished imports that are stored.
pub const IMPORTS_KEPT_MAX: usize = 100;

/// The most imports of one owner that are running, or interrupted and can be continued.
pub const IMPORTS_UNFINISHED_MAX: usize = 1_000;

/// The longest name of an API key, in bytes.
pub const KEY_NAME_BYTES_MAX: usize = 128;

text_type! {
    /// The name of an API key. The owner of an import has an empty one if there are no keys.
    #[derive(Default)]
    KeyName, "the name of an API key: at most 128 bytes", |text| text.len() <= KEY_NAME_BYTES_MAX
}

text_type! {
    /// An import's id, unique in the server: 1 to 128 of `[A-Za-z0-9._-]`.
    ImportId, "the ID of an import: 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-'", is_import_id
}

impl ImportId {
    /// Returns the ID of an import to which the client gave none, from random bytes.
    pub fn drawn(bytes: [u8; 16]) -> Self {
        Self(hex::encode(bytes).into())
    }
}

fn is_import_id(text: &str) -> bool {
    let well = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    well && (1..=128).contains(&text.len())
}

/// How an import changes the filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ImportMode {
    /// They are added as they are read.
    #[default]
    Append,
    /// They replace the existing ones, once the upload is complete.
    Replace,
}

impl ImportMode {
    /// The default guards: a replacement must not be empty.
    pub fn guards(self) -> Guards {
        Guards {
            min_items: u64::from(self == ImportMode::Replace),
            ..Guards::default()
        }
    }
}

/// The state of an import.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ImportState {
    /// Its upload is running.
    Running,
    /// Read to the end.
    Done,
    /// The filter rejected it: it was full, or is deleted.
    Failed,
    /// It violated a guard. The rest of an `append` was not added, and a `replace` has changed nothing.
    Guarded(Tripped),
    /// `mode=replace`: another replacement started, or more changes arrived during it than can be queued. It has changed nothing.
    Overtaken,
    /// The upload was interrupted; the same id continues it.
    Interrupted,
    /// The upload was stopped by a client; the same id continues it.
    Stopped,
}

/// The fingerprint of an upload: its bytes after decompression, and how they are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UploadDigest {
    /// Number of bytes.
    pub bytes: u64,
    /// XXH3-128 of the format, the column and the bytes.
    pub hash: u128,
}

/// How an upload ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ending {
    /// With its last line.
    Whole {
        /// The upload's fingerprint.
        upload: UploadDigest,
        /// Warnings about suspicious lines.
        warnings: Vec<ImportWarning>,
    },
    /// It was interrupted.
    BrokenOff,
    /// A client stopped it.
    Stopped,
}

/// An import and its progress, as logged.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Import {
    /// Its id.
    pub id: ImportId,
    /// The API key that started it.
    pub owner: KeyName,
    /// Whether the client chose the ID: a generated one is only known at the end.
    pub is_named: bool,
    /// The import's filter.
    pub filter: FilterId,
    /// The filter's kind.
    pub kind: Kind,
    /// The filter's name at its start.
    pub name: Name,
    /// Append or replace.
    pub mode: ImportMode,
    /// Whether items that are present, or were earlier in the upload, get no further copy.
    pub if_absent: bool,
    /// The guards that it must satisfy.
    pub guards: Guards,
    /// Its state.
    pub state: ImportState,
    /// When it started.
    pub started_at: Timestamp,
    /// When it last made progress.
    pub changed_at: Timestamp,
    /// Lines read, including blank and rejected ones, and their results.
    pub counts: ImportCounts,
    /// The first [`LINE_ERRORS_MAX`] rejected lines.
    pub errors: Vec<LineError>,
    /// XXH3 over the digests of all lines so far, chained line by line. A continued upload must repeat these lines.
    pub chain: u64,
    /// The upload's fingerprint, once it has been read to the end.
    pub upload: Option<UploadDigest>,
    /// Warnings about suspicious lines.
    pub warnings: Vec<ImportWarning>,
    /// Whether a clear or a later replacement has removed items that it had added. Not judged before
    /// [`Meaning::OvertakenImports`](super::Meaning::OvertakenImports) is enabled. Encoded imports have the fields of 0.1.0, so the head of a
    /// snapshot lists the overtaken ones.
    #[serde(skip)]
    pub is_overtaken: bool,
}

/// The lines of an import, and their results.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ImportCounts {
    /// Lines read.
    pub lines: u64,
    /// Items added.
    pub added: u64,
    /// Items that were already present.
    pub already_present: u64,
    /// Codes that were already redeemed.
    pub already_redeemed: u64,
    /// Lines without a valid item.
    pub rejected: u64,
}

impl Import {
    /// A new import, without any lines.
    pub fn begun(begin: &ImportBegin, kind: Kind, name: Name, now: Timestamp) -> Self {
        Self {
            id: begin.import.clone(),
            owner: begin.owner.clone(),
            is_named: begin.is_named,
            filter: begin.target.0,
            kind,
            name,
            mode: begin.mode,
            if_absent: begin.if_absent,
            guards: begin.guards,
            state: ImportState::Running,
            started_at: now,
            changed_at: now,
            counts: ImportCounts::default(),
            errors: Vec::new(),
            chain: 0,
            upload: None,
            warnings: Vec::new(),
            is_overtaken: false,
        }
    }

    /// Counts further lines, and the outcomes of the items in them.
    pub fn count_lines(
        &mut self,
        outcomes: &[ItemOutcome],
        lines: u64,
        rejected: u64,
        errors: &[LineError],
    ) {
        let count = |wanted| {
            outcomes
                .iter()
                .filter(|outcome| **outcome == wanted)
                .count() as u64
        };
        let added = count(ItemOutcome::Added);
        let already_redeemed = count(ItemOutcome::AlreadyRedeemed);
        let counts = &mut self.counts;
        counts.lines += lines;
        counts.added += added;
        counts.already_redeemed += already_redeemed;
        counts.already_present += outcomes.len() as u64 - added - already_redeemed;
        counts.rejected += rejected;
        let room = LINE_ERRORS_MAX - self.errors.len();
        self.errors.extend(errors.iter().take(room));
    }

    /// Items that the upload has contributed so far. An item that a replacement already has is not counted again.
    pub fn items(&self) -> u64 {
        let repeated = if self.mode == ImportMode::Append {
            self.counts.already_present
        } else {
            0
        };
        self.counts.added + self.counts.already_redeemed + repeated
    }

    /// Whether a client can continue it. An interrupted `replace` starts again, and a generated ID is unknown.
    pub fn is_unfinished(&self) -> bool {
        match self.state {
            ImportState::Running => true,
            ImportState::Interrupted | ImportState::Stopped => {
                self.mode == ImportMode::Append && self.is_named
            }
            ImportState::Done
            | ImportState::Failed
            | ImportState::Guarded(_)
            | ImportState::Overtaken => false,
        }
    }
}

/// Something that looks wrong about an upload. It is stored as a [`StoredWarning`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
#[serde(from = "StoredWarning", into = "StoredWarning")]
pub enum ImportWarning {
    /// Nearly all items are equal.
    #[error("only about {different} of {items} items are different: is it the right column?")]
    ItemsAlike {
        /// Number of items.
        items: u64,
        /// Approximate number of distinct items.
        different: u64,
    },
    /// Some items occur several times, and have a copy for each.
    #[error(
        "about {:.1}% of {items} items are repeated and get another copy: use if_absent=true",
        repeated_percent(*.items, *.different)
    )]
    ItemsRepeated {
        /// Number of items.
        items: u64,
        /// Approximate number of distinct items.
        different: u64,
    },
    /// Most items were present already, and now have a further copy.
    #[error(
        "about {present} of {items} items were present already and get another copy: use if_absent=true or mode=replace"
    )]
    MostPresent {
        /// Approximate number of such items.
        present: u64,
        /// Number of items.
        items: u64,
    },
    /// The lines of a text look like records.
    #[error(
        "most of the lines have the same number of {separator:?}: if this is CSV, send it as text/csv, and name the column"
    )]
    LooksLikeCsv {
        /// The character that separates the fields.
        separator: char,
    },
    /// The lines of a text look like JSON.
    #[error("most of the lines look like JSON: if this is NDJSON, send it as application/x-ndjson")]
    LooksLikeJson,
    /// The first line of a text looks like a header, but is an item.
    #[error(
        "the first line looks like a header, but is an item: with a header, send it as text/csv"
    )]
    HeaderInText,
    /// The header row of CSV looks like an item, but is none.
    #[error(
        "the header row looks like an item, but is not imported: without a header, send it as text/plain"
    )]
    ItemInHeader,
    /// Items start or end with white space or invisible characters, which belong to them.
    #[error(
        "{items} items begin or end with white space or invisible characters, which are a part of them"
    )]
    WhiteSpace {
        /// Number of such items.
        items: u64,
    },
    /// Lines are equal to an earlier line only after normalization.
    #[error(
        "about {items} lines equal an earlier one only after normalization: are they meant to be different items?"
    )]
    Respelled {
        /// Approximate number of such lines.
        items: u64,
    },
    /// Nearly all lines were rejected.
    #[error("{rejected} of {lines} lines were rejected: is it the right format?")]
    MostRejected {
        /// Rejected lines.
        rejected: u64,
        /// All lines.
        lines: u64,
    },
}

impl ImportWarning {
    /// The warning about an upload with so few distinct items that nearly all are equal, if it has.
    pub fn items_alike(items: u64, different: u64) -> Option<Self> {
        (different <= items / 10).then_some(Self::ItemsAlike { items, different })
    }
}

/// The share of items that occurred earlier in the upload, in percent.
fn repeated_percent(items: u64, different: u64) -> f64 {
    100.0 * items.saturating_sub(different) as f64 / items.max(1) as f64
}

/// A warning as the log and the state store it. A build can't read an entry with an unknown tag. So a warning that is new since 0.1.0 is
/// stored under a known tag, with values that this tag's own warning never has.
#[derive(Serialize, Deserialize)]
enum StoredWarning {
    /// Also [`ImportWarning::ItemsRepeated`].
    ItemsAlike {
        items: u64,
        different: u64,
    },
    MostPresent {
        present: u64,
        items: u64,
    },
    /// Also [`ImportWarning::HeaderInText`]: with a line feed as the separator.
    LooksLikeCsv {
        separator: char,
    },
    LooksLikeJson,
    WhiteSpace {
        items: u64,
    },
    /// Also [`ImportWarning::ItemInHeader`]: 0 of 1. And [`ImportWarning::Respelled`]: one or more of 0.
    MostRejected {
        rejected: u64,
        lines: u64,
    },
}

impl From<StoredWarning> for ImportWarning {
    fn from(stored: StoredWarning) -> Self {
        match stored {
            StoredWarning::ItemsAlike { items, different } => Self::items_alike(items, different)
                .unwrap_or(Self::ItemsRepeated { items, different }),
            StoredWarning::MostPresent { present, items } => Self::MostPresent { present, items },
            StoredWarning::LooksLikeCsv { separator: '\n' } => Self::HeaderInText,
            StoredWarning::LooksLikeCsv { separator } => Self::LooksLikeCsv { separator },
            StoredWarning::LooksLikeJson => Self::LooksLikeJson,
            StoredWarning::WhiteSpace { items } => Self::WhiteSpace { items },
            StoredWarning::MostRejected {
                rejected: 0,
                lines: 1,
            } => Self::ItemInHeader,
            StoredWarning::MostRejected { rejected, lines: 0 } if rejected > 0 => {
                Self::Respelled { items: rejected }
            }
            StoredWarning::MostRejected { rejected, lines } => {
                Self::MostRejected { rejected, lines }
            }
        }
    }
}

impl From<ImportWarning> for StoredWarning {
    fn from(warning: ImportWarning) -> Self {
        match warning {
            ImportWarning::ItemsAlike { items, different }
            | ImportWarning::ItemsRepeated { items, different } => {
                Self::ItemsAlike { items, different }
            }
            ImportWarning::MostPresent { present, items } => Self::MostPresent { present, items },
            ImportWarning::LooksLikeCsv { separator } => Self::LooksLikeCsv { separator },
            ImportWarning::LooksLikeJson => Self::LooksLikeJson,
            ImportWarning::HeaderInText => Self::LooksLikeCsv { separator: '\n' },
            ImportWarning::ItemInHeader => Self::MostRejected {
                rejected: 0,
                lines: 1,
            },
            ImportWarning::WhiteSpace { items } => Self::WhiteSpace { items },
            ImportWarning::Respelled { items } => Self::MostRejected {
                rejected: items,
                lines: 0,
            },
            ImportWarning::MostRejected { rejected, lines } => {
                Self::MostRejected { rejected, lines }
            }
        }
    }
}

/// A share from 0 to 1, stored as an integer of millionths, so that it is equal on every machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Display, Serialize, Deserialize)]
#[display("{}", f64::from(*_0) / f64::from(WHOLE))]
#[serde(try_from = "u32")]
pub struct Fraction(u32);

impl TryFrom<u32> for Fraction {
    type Error = Invalid;

    fn try_from(millionths: u32) -> Result<Self, Invalid> {
        (millionths <= WHOLE)
            .then_some(Self(millionths))
            .ok_or(Invalid("a share from 0 to 1"))
    }
}

const WHOLE: u32 = 1_000_000;

impl Fraction {
    /// Creates a share, rounded to millionths.
    ///
    /// # Errors
    /// [`Invalid`] for a number below 0, above 1 or NaN.
    pub fn new(share: f64) -> Result<Self, Invalid> {
        let millionths = Self((share * f64::from(WHOLE)).round() as u32);
        (0.0..=1.0)
            .contains(&share)
            .then_some(millionths)
            .ok_or(Invalid("a share from 0 to 1"))
    }

    /// Whether `after` is below `before` by more than this share of `before`.
    pub fn is_exceeded(self, before: u64, after: u64) -> bool {
        u128::from(after) * u128::from(WHOLE) < u128::from(before) * u128::from(WHOLE - self.0)
    }
}

/// The error of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "utoipa", schema(as = LineErrorCode))]
pub enum LineFault {
    /// The item is longer than 512 bytes, or its line or CSV record is longer than 64 KiB.
    #[error("item-too-long")]
    ItemTooLong,
    /// Not UTF-8.
    #[error("not-utf8")]
    NotUtf8,
    /// Neither a JSON string nor `{"item":…}`; not a CSV record, or one without the column; a line with a NUL.
    #[error("malformed")]
    Malformed,
    /// An empty item.
    #[error("empty")]
    Empty,
}

/// A rejected line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[error("line {line} ({fault})")]
pub struct LineError {
    /// Its number; the first line is 1. In CSV, a record counts as one line, whatever it quotes.
    #[cfg_attr(feature = "utoipa", schema(minimum = 1))]
    pub line: u64,
    /// The error.
    #[serde(rename = "code")]
    pub fault: LineFault,
}

/// The conditions of an import.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Guards {
    /// Minimum number of items in a complete upload; 0 for no limit.
    pub min_items: u64,
    /// The share by which a replacement may be smaller than the previous content; `None` for no limit.
    pub max_shrink: Option<Fraction>,
    /// The most rejected lines; `None` for no limit.
    pub max_rejected: Option<u64>,
}

/// The guard that an import violated, with the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
pub enum Tripped {
    /// The upload was complete, and had too few items.
    #[error("the upload brings {items} items, and min_items is {min_items}")]
    TooFewItems {
        /// Items in the upload.
        items: u64,
        /// Items required.
        min_items: u64,
    },
    /// The replacement is too much smaller.
    #[error(
        "{after} available items would take the place of {before}, and max_shrink is {max_shrink}"
    )]
    Shrunk {
        /// Available items in the filter now.
        before: u64,
        /// Available items after the replacement.
        after: u64,
        /// The maximum share by which it may shrink.
        max_shrink: Fraction,
    },
    /// Too many lines were rejected.
    #[error("{rejected} lines were rejected, the last one {}, and max_rejected is {max_rejected}", .last.map_or("untold".to_owned(), |last| last.to_string()))]
    Rejected {
        /// Lines rejected.
        rejected: u64,
        /// Rejected lines allowed.
        max_rejected: u64,
        /// The last rejected line, if it was reported.
        last: Option<LineError>,
    },
}

impl Guards {
    /// Checks the number of rejected lines against the limit. `last` is the last rejected line.
    ///
    /// # Errors
    /// The violated guard.
    pub fn allow_rejected(&self, rejected: u64, last: Option<LineError>) -> Result<(), Tripped> {
        match self.max_rejected {
            Some(max_rejected) if rejected > max_rejected => Err(Tripped::Rejected {
                rejected,
                max_rejected,
                last,
            }),
            _ => Ok(()),
        }
    }

    /// Checks the number of items in a complete upload.
    ///
    /// # Errors
    /// The violated guard.
    pub fn allow_items(&self, items: u64) -> Result<(), Tripped> {
        let min_items = self.min_items;
        if items < min_items {
            Err(Tripped::TooFewItems { items, min_items })
        } else {
            Ok(())
        }
    }

    /// Checks that a filter may have `after` available items instead of `before`.
    ///
    /// # Errors
    /// The violated guard.
    pub fn allow_swap(&self, before: u64, after: u64) -> Result<(), Tripped> {
        match self.max_shrink {
            Some(max_shrink) if max_shrink.is_exceeded(before, after) => Err(Tripped::Shrunk {
                before,
                after,
                max_shrink,
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Nodes of 0.1.0 read the same log, so the tags and their fields are final.
    #[test]
    fn warnings_are_stored_with_known_tags() {
        for (warning, bytes) in [
            (
                ImportWarning::ItemsAlike {
                    items: 20,
                    different: 2,
                },
                vec![0, 20, 2],
            ),
            (
                ImportWarning::ItemsRepeated {
                    items: 20,
                    different: 3,
                },
                vec![0, 20, 3],
            ),
            (
                ImportWarning::MostPresent {
                    present: 3,
                    items: 4,
                },
                vec![1, 3, 4],
            ),
            (
                ImportWarning::LooksLikeCsv { separator: ';' },
                vec![2, 1, b';'],
            ),
            (ImportWarning::HeaderInText, vec![2, 1, b'\n']),
            (ImportWarning::LooksLikeJson, vec![3]),
            (ImportWarning::WhiteSpace { items: 5 }, vec![4, 5]),
            (
                ImportWarning::MostRejected {
                    rejected: 1,
                    lines: 1,
                },
                vec![5, 1, 1],
            ),
            (ImportWarning::ItemInHeader, vec![5, 0, 1]),
        ] {
            assert_eq!(postcard::to_stdvec(&warning).unwrap(), bytes, "{warning}");
            assert_eq!(
                postcard::from_bytes::<ImportWarning>(&bytes).unwrap(),
                warning
            );
        }
    }

    #[test]
    fn decoded_share_is_at_most_one() {
        for (millionths, is_possible) in [
            (0, true),
            (WHOLE, true),
            (WHOLE + 1, false),
            (u32::MAX, false),
        ] {
            let bytes = postcard::to_stdvec(&millionths).unwrap();
            assert_eq!(
                postcard::from_bytes::<Fraction>(&bytes).is_ok(),
                is_possible,
                "{millionths}"
            );
        }
    }

    #[test]
    fn share_at_limit_is_allowed() {
        let share = Fraction::new(0.2).unwrap();
        assert!(!share.is_exceeded(10, 8) && share.is_exceeded(10, 7));
        assert!(!share.is_exceeded(0, 0) && !share.is_exceeded(8, 10));
        assert!(
            Fraction::new(0.0).unwrap().is_exceeded(10, 9)
                && !Fraction::new(1.0).unwrap().is_exceeded(10, 0)
        );
        assert_eq!(share.to_string(), "0.2");
        for no_share in [-0.1, 1.000_001, f64::NAN, f64::INFINITY] {
            assert_eq!(Fraction::new(no_share), Err(Invalid("a share from 0 to 1")));
        }
    }

    proptest! {
        #[test]
        fn larger_share_implies_smaller_share_exceeded(
            a in 0.0..=1.0f64,
            b in 0.0..=1.0f64,
            before: u64,
            after: u64,
        ) {
            let smaller = Fraction::new(a.min(b)).unwrap();
            let larger = Fraction::new(a.max(b)).unwrap();
            prop_assert!(smaller.is_exceeded(before, after) || !larger.is_exceeded(before, after));
            prop_assert!(!larger.is_exceeded(before, before) && !Fraction::new(1.0).unwrap().is_exceeded(before, after));
        }
    }
}
