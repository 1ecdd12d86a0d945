//! Imports: long uploads, logged piece by piece, so that a broken one can be continued.

use super::guards::{Guards, Tripped};
use super::import_warnings::ImportWarning;
use super::line_error::LineError;
use super::{FilterId, Kind, Name, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// The most line errors that an import tells of.
pub const LINE_ERRORS_MAX: usize = 100;

/// The most imports of one owner that are remembered when they are over.
pub const IMPORTS_KEPT_MAX: usize = 100;

/// The most imports that one owner may have running, or broken off and to be continued.
pub const IMPORTS_UNFINISHED_MAX: usize = 1_000;

/// Whose an import is: the name of an API key, or nothing where there are no keys.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyName(Box<str>);

impl KeyName {
    /// The key of this name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An import's name, unique in the server: 1 to 128 of `[A-Za-z0-9._-]`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ImportId(Box<str>);

/// Why a text is no [`ImportId`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("an import's id is 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-'")]
pub struct InvalidImportId;

impl ImportId {
    /// Parses an import's name.
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

/// Whether an import adds to what is there or takes its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ImportMode {
    /// Adds as it reads.
    Append,
    /// Builds aside and swaps in at the end.
    Replace,
}

impl ImportMode {
    /// What an import must keep to unless something else is asked for: a replacement is not empty.
    pub fn guards(self) -> Guards {
        Guards { min_items: u64::from(self == ImportMode::Replace), ..Guards::default() }
    }
}

/// How far an import has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ImportState {
    /// Its upload goes on.
    Running,
    /// Read to the end.
    Done,
    /// Refused by the filter: it was full, or is gone.
    Failed,
    /// It did not keep to a guard. The rest of an `append` was not added, and a `replace` has changed nothing.
    Guarded(Tripped),
    /// `mode=replace`: more was changed meanwhile than is kept to be repeated. It has changed nothing.
    Overtaken,
    /// The upload broke off; the same id continues it.
    Interrupted,
    /// Somebody has stopped the upload; the same id continues it.
    Stopped,
}

/// What tells whether an upload is the same as another: its decompressed bytes, and how they are to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UploadDigest {
    /// How many bytes.
    pub bytes: u64,
    /// XXH3-128 of them, behind the format and the column.
    pub hash: u128,
}

/// How an upload ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ending {
    /// With its last line.
    Whole {
        /// Which upload it was.
        upload: UploadDigest,
        /// What looks wrong about it.
        warnings: Vec<ImportWarning>,
    },
    /// It has broken off.
    BrokenOff,
    /// Somebody has stopped it.
    Stopped,
}

/// An import and its progress, as durable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Import {
    /// Its name.
    pub id: ImportId,
    /// Who began it.
    pub owner: KeyName,
    /// Whether its name was given: one that was made up is known to nobody until the end.
    pub is_named: bool,
    /// Where it goes.
    pub filter: FilterId,
    /// Whose filter that is.
    pub kind: Kind,
    /// The filter's name when it began.
    pub name: Name,
    /// Append or replace.
    pub mode: ImportMode,
    /// What it must keep to.
    pub guards: Guards,
    /// How far it has come.
    pub state: ImportState,
    /// When it began.
    pub started_at: Timestamp,
    /// When it last moved.
    pub changed_at: Timestamp,
    /// Lines read, blank and rejected ones included.
    pub lines: u64,
    /// Items that were added.
    pub added: u64,
    /// Items that were there already (or saturated).
    pub already_present: u64,
    /// Codes that have been used.
    pub already_redeemed: u64,
    /// Lines that hold no item.
    pub rejected: u64,
    /// The first [`LINE_ERRORS_MAX`] rejected lines.
    pub errors: Vec<LineError>,
    /// XXH3 over the digests of all lines so far, chained batch by batch: what a resumed upload must repeat.
    pub chain: u64,
    /// The whole upload, once it has been read to the end.
    pub upload: Option<UploadDigest>,
    /// What looks wrong about it.
    pub warnings: Vec<ImportWarning>,
}

impl Import {
    /// Items that the upload has brought so far. What a replacement holds already is not counted again.
    pub fn items(&self) -> u64 {
        let repeated = if self.mode == ImportMode::Append { self.already_present } else { 0 };
        self.added + self.already_redeemed + repeated
    }

    /// Whether somebody can go on with it. A broken `replace` begins anew, and nobody knows the name of one that was not
    /// given one.
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
