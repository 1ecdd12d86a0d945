//! Access control: keys with scopes and prefixes, request rates per key, and the limit on guessing codes.
//!
//! It knows no protocol. Each front door passes in what it received, and maps [`Denied`] to its own answers.

mod denied;
mod entry;
mod guessing;
mod keys;
mod options;
mod rates;
mod sketch;

pub use denied::Denied;
pub use entry::Entry;
pub use guessing::{Client, Guesses, Guessing};
pub use keys::{Caller, InvalidKey, Keys};
pub use options::{AuthOptions, GuessingOptions, KeyOptions, RateLimitOptions, Scope};
