//! Imports: long uploads, logged piece by piece, so that a broken one can be continued.

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

/// How far an import has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ImportState {
    /// Its upload goes on.
    Running,
    /// Read to the end.
    Done,
    /// Refused by the filter: it was full, or is gone.
    Failed,
    /// `mode=replace`: more was changed meanwhile than is kept to be repeated. It has changed nothing.
    Overtaken,
    /// The upload broke off; the same id continues it.
    Interrupted,
}

/// What was wrong with a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LineFault {
    /// Longer than 512 bytes.
    ItemTooLong,
    /// Not UTF-8.
    NotUtf8,
    /// NDJSON: neither a string nor an object with a string `item`. CSV: no record, or one without the column.
    Malformed,
    /// An empty item.
    Empty,
}

/// One rejected line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LineError {
    /// Its number, the first line being 1.
    pub line: u64,
    /// What was wrong with it.
    pub fault: LineFault,
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
}

impl Import {
    /// Whether somebody can go on with it. A broken `replace` begins anew, and nobody knows the name of one that was not
    /// given one.
    pub fn is_unfinished(&self) -> bool {
        match self.state {
            ImportState::Running => true,
            ImportState::Interrupted => self.mode == ImportMode::Append && self.is_named,
            ImportState::Done | ImportState::Failed | ImportState::Overtaken => false,
        }
    }
}
