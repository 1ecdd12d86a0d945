//! The domain types: names, specs, commands, outcomes, redemptions. They are parsed once and then trusted.
//!
//! Pure data. Nothing here does I/O, reads a clock or depends on HTTP. From the filter it uses the digest, the secret and the layout,
//! because commands contain them.

pub mod annotations;
pub mod command;
pub mod event;
pub mod image;
pub mod import;
pub mod items;
pub mod name;
pub mod outcome;
pub mod redemption;
pub mod spec;
pub mod statistics;
pub mod time;

use thiserror::Error;

pub use annotations::{Annotations, AnnotationsChange, Label, LabelChanges, LabelValue, Labels, Title};
pub use command::{
    Command, Entry, FORMAT_VERSION, IdempotencyKey, Proposal, Raise, STATE_HASH_EVERY, Seq, Settings,
    StateHash, Target, understood_version,
};
pub use event::{Event, FilterChange, Happened, LineUpChange, RedemptionStep};
pub use image::{
    Chunk, FilterHead, ImageBody, ImageFault, ImagePart, ImageRecord, ImageSection, SectionId, UploadId,
};
pub use import::{
    Ending, Guards, Import, ImportCounts, ImportId, ImportMode, ImportState, ImportWarning, KeyName,
    LineError, LineFault, Share, Tripped, UploadDigest,
};
pub use items::{Digests, Inserted, ItemOutcome, Removed};
pub use name::{FilterId, Kind, LineUp, Name, Unless};
pub use outcome::{Applied, Outcome, Refusal};
pub use redemption::{Redemption, RedemptionId, Reference, Status};
pub use spec::{
    Description, Forget, ForgetError, Profile, Sizing, Spec, Stats, StepStats, Window, WindowPosition,
};
pub use statistics::{Count, Counts};
pub use time::{ClockReading, Timestamp};

/// The error for a value that breaks the rule of its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("expected {0}")]
pub struct Invalid(&'static str);

/// The longest item (a user id or a code), in bytes of UTF-8.
pub const ITEM_BYTES_MAX: usize = 512;

/// The most items that one command may carry.
pub const ITEMS_MAX: usize = 10_000;
