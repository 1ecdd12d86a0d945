//! Who may do what: keys with their scopes and prefixes, how often a key may call, how many codes an end user may guess.
//!
//! It knows no protocol. A door hands over what it was sent, and puts what is [`Denied`] into words of its own.

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
