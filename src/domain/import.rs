//! Imports: long uploads, logged piece by piece, so that an interrupted one can be continued, and warnings about what looks wrong in one.

use super::guards::{Guards, LineError, Tripped};
use super::{FilterId, ItemOutcome, Kind, Name, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;
use utoipa::ToSchema;

/// The most line errors that an import reports.
pub const LINE_ERRORS_MAX: usize = 100;

/// The most finished imports of one owner that are kept on record.
pub const IMPORTS_KEPT_MAX: usize = 100;

/// The most imports of one owner that are running, or interrupted and can be continued.
pub const IMPORTS_UNFINISHED_MAX: usize = 1_000;

/// The longest name of an API key, in bytes.
pub const KEY_NAME_BYTES_MAX: usize = 128;

/// The name of an API key. The owner of an import has an empty one if there are no keys.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "Box<str>")]
pub struct KeyName(Box<str>);

/// The error for a name that no API key can have.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("the name of an API key is at most {KEY_NAME_BYTES_MAX} bytes")]
pub struct InvalidKeyName;

impl TryFrom<Box<str>> for KeyName {
    type Error = InvalidKeyName;

    fn try_from(name: Box<str>) -> Result<Self, InvalidKeyName> {
        if name.len() <= KEY_NAME_BYTES_MAX { Ok(Self(name)) } else { Err(InvalidKeyName) }
    }
}

impl KeyName {
    /// The key of this name, which is at most [`KEY_NAME_BYTES_MAX`] long.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An import's id, unique in the server: 1 to 128 of `[A-Za-z0-9._-]`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "Box<str>")]
pub struct ImportId(Box<str>);

impl TryFrom<Box<str>> for ImportId {
    type Error = InvalidImportId;

    fn try_from(text: Box<str>) -> Result<Self, InvalidImportId> {
        Self::new(&text)
    }
}

/// The error for a text that is not an [`ImportId`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("an import's id is 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-'")]
pub struct InvalidImportId;

impl ImportId {
    /// Parses an import's id.
    pub fn new(text: &str) -> Result<Self, InvalidImportId> {
        let well = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if well && (1..=128).contains(&text.len()) { Ok(Self(text.into())) } else { Err(InvalidImportId) }
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ImportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an import does with the items.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
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
        Guards { min_items: u64::from(self == ImportMode::Replace), ..Guards::default() }
    }
}

/// The state of an import.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ImportState {
    /// Its upload is running.
    Running,
    /// Read to the end.
    Done,
    /// The filter refused it: it was full, or is gone.
    Failed,
    /// It violated a guard. The rest of an `append` was not added, and a `replace` has changed nothing.
    Guarded(Tripped),
    /// `mode=replace`: another replacement began, or more changes arrived meanwhile than can be queued. It has changed nothing.
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
        /// What looks wrong about it.
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
    /// The API key that began it.
    pub owner: KeyName,
    /// Whether the client chose the id: nobody knows a generated one before the end.
    pub is_named: bool,
    /// The filter that it goes into.
    pub filter: FilterId,
    /// The filter's kind.
    pub kind: Kind,
    /// The filter's name when it began.
    pub name: Name,
    /// Append or replace.
    pub mode: ImportMode,
    /// Whether items that are present, or came earlier in the upload, get no further copy.
    pub if_absent: bool,
    /// The guards that it must satisfy.
    pub guards: Guards,
    /// Its state.
    pub state: ImportState,
    /// When it began.
    pub started_at: Timestamp,
    /// When it last made progress.
    pub changed_at: Timestamp,
    /// Lines read, including blank and rejected ones, and what became of them.
    pub counts: ImportCounts,
    /// The first [`LINE_ERRORS_MAX`] rejected lines.
    pub errors: Vec<LineError>,
    /// XXH3 over the digests of all lines so far, chained line by line. A continued upload must repeat these lines.
    pub chain: u64,
    /// The upload's fingerprint, once it has been read to the end.
    pub upload: Option<UploadDigest>,
    /// What looks wrong about it.
    pub warnings: Vec<ImportWarning>,
}

/// The lines of an import, and what became of them.
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

/// What an import goes into.
pub struct ImportTarget {
    /// The filter.
    pub filter: FilterId,
    /// The filter's kind.
    pub kind: Kind,
    /// The filter's name.
    pub name: Name,
}

impl Import {
    /// An import that begins now: nothing of it has been read.
    pub fn begun(
        id: ImportId,
        owner: KeyName,
        target: ImportTarget,
        mode: ImportMode,
        if_absent: bool,
        guards: Guards,
        now: Timestamp,
    ) -> Self {
        let ImportTarget { filter, kind, name } = target;
        Self {
            id,
            owner,
            is_named: false,
            filter,
            kind,
            name,
            mode,
            if_absent,
            guards,
            state: ImportState::Running,
            started_at: now,
            changed_at: now,
            counts: ImportCounts::default(),
            errors: Vec::new(),
            chain: 0,
            upload: None,
            warnings: Vec::new(),
        }
    }

    /// Counts further lines, and the outcomes of the items in them.
    pub fn count_lines(&mut self, outcomes: &[ItemOutcome], lines: u64, rejected: u64, errors: &[LineError]) {
        let count = |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count() as u64;
        let (added, already_redeemed) = (count(ItemOutcome::Added), count(ItemOutcome::AlreadyRedeemed));
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
        let repeated = if self.mode == ImportMode::Append { self.counts.already_present } else { 0 };
        self.counts.added + self.counts.already_redeemed + repeated
    }

    /// Whether a client can continue it. An interrupted `replace` begins again, and nobody knows a generated id.
    pub fn is_unfinished(&self) -> bool {
        match self.state {
            ImportState::Running => true,
            ImportState::Interrupted | ImportState::Stopped => {
                self.mode == ImportMode::Append && self.is_named
            }
            ImportState::Done | ImportState::Failed | ImportState::Guarded(_) | ImportState::Overtaken => {
                false
            }
        }
    }
}

/// Something that looks wrong about an upload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, Error)]
pub enum ImportWarning {
    /// Nearly all items are equal.
    #[error("only about {different} of {items} items are different: is it the right column?")]
    ItemsAlike {
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
    /// Items begin or end with white space, which belongs to them.
    #[error("{items} items begin or end with white space, which is a part of them")]
    WhiteSpace {
        /// Number of such items.
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
