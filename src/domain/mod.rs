//! The domain types: names, specs, commands, outcomes, redemptions. They are parsed once and then trusted.
//!
//! Pure data. Nothing here does I/O, reads a clock or knows HTTP. Of the filter it uses the digest, the secret and the layout,
//! because commands carry them.

pub mod command;
pub mod event;
pub mod forget;
pub mod guards;
pub mod image;
pub mod import;
pub mod items;
pub mod line_up;
pub mod name;
pub mod outcome;
pub mod redemption;
pub mod seq;
pub mod settings;
pub mod spec;
pub mod time;

pub use command::{Command, Entry, IdempotencyKey, Proposal, Raise, Target};
pub use event::{Event, FilterChange, Happened, LineUpChange, RedemptionStep};
pub use forget::{Forget, ForgetError};
pub use guards::{Guards, LineError, LineFault, Share, Tripped};
pub use image::{Chunk, FilterHead, ImageFault, ImagePart, ImageSection, SectionId, UploadId};
pub use import::{
    Ending, Import, ImportCounts, ImportId, ImportMode, ImportState, ImportWarning, KeyName, UploadDigest,
};
pub use items::{Digests, Inserted, ItemOutcome, Removed};
pub use line_up::{LineUp, Unless};
pub use name::{FilterId, Kind, Name};
pub use outcome::{Applied, Outcome, Refusal};
pub use redemption::{Redemption, RedemptionId, Reference, Status};
pub use seq::{FORMAT_VERSION, STATE_HASH_EVERY, Seq, StateHash};
pub use settings::Settings;
pub use spec::{Description, Sizing, Spec, Stats, StepStats, Window, WindowPosition};
pub use time::{ClockReading, Timestamp};

/// The longest item (a user id or a code), in bytes of UTF-8.
pub const ITEM_BYTES_MAX: usize = 512;

/// The most items that one command may carry.
pub const ITEMS_MAX: usize = 10_000;
