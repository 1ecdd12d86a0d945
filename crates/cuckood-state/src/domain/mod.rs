//! The domain types: names, specs, commands, outcomes, redemptions. They are parsed once and then trusted.
//!
//! Pure data. Nothing here does I/O, reads a clock or depends on HTTP. From the filter it uses types only: commands, specs,
//! images and descriptions contain them.

pub mod annotations;
pub mod command;
pub mod event;
pub mod image;
pub mod import;
pub mod items;
pub mod name;
pub mod normalization;
pub mod outcome;
pub mod redemption;
pub mod spec;
pub mod statistics;
mod text;
pub mod time;
pub mod version;

use thiserror::Error;

pub use annotations::*;
pub use command::*;
pub use event::*;
pub use image::*;
pub use import::*;
pub use items::*;
pub use name::*;
pub use normalization::*;
pub use outcome::*;
pub use redemption::*;
pub use spec::*;
pub use statistics::*;
pub use text::{counted, is_invisible};
pub use time::*;
pub use version::*;

/// The error for a value that breaks the rule of its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("expected {0}")]
pub struct Invalid(&'static str);

/// The longest item (a user id or a code), in bytes of UTF-8.
pub const ITEM_BYTES_MAX: usize = 512;

/// The most items that one command may carry.
pub const ITEMS_MAX: usize = 10_000;
