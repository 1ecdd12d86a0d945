//! The project itself: the rules of the code, and the files that deploy it.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub
)] // A failed `unwrap` fails the test; nothing here is public outside.

mod deploy;
mod tidy;
