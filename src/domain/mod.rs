//! The domain types: names, specs, commands, outcomes, redemptions. They are parsed once and then trusted.
//!
//! Pure data. Nothing here does I/O, reads a clock or knows HTTP. Of the filter it uses the digest, the secret and the layout,
//! because commands carry them.

pub mod command;
pub mod digests;
pub mod event;
pub mod guards;
pub mod import;
pub mod import_warnings;
pub mod line_error;
pub mod line_up;
pub mod name;
pub mod outcome;
pub mod redemption;
pub mod settings;
pub mod spec;
pub mod time;

pub use command::{Command, Entry, IdempotencyKey, Proposal, Raise, Seq, Target};
pub use digests::Digests;
pub use event::{Event, FilterChange, Happened, ImportCounts, LineUpChange, RedemptionStep};
pub use guards::{Guards, Share, Tripped};
pub use import::{Ending, Import, ImportId, ImportMode, ImportState, KeyName, UploadDigest};
pub use import_warnings::ImportWarning;
pub use line_error::{LineError, LineFault};
pub use line_up::{LineUp, Unless};
pub use name::{FilterId, Kind, Name};
pub use outcome::{Applied, Inserted, ItemOutcome, Outcome, Refusal, Removed};
pub use redemption::{Redemption, RedemptionId, Reference, Status};
pub use settings::Settings;
pub use spec::{Description, SegmentStats, Sizing, Spec, Stats, Window, WindowPosition};
pub use time::{ClockReading, Timestamp};

/// The longest item (a user id or a code), in bytes of UTF-8.
pub const ITEM_BYTES_MAX: usize = 512;

/// The most items that one command may carry.
pub const ITEMS_MAX: usize = 10_000;
