//! The store and the journal on a real disk: damage, faults, and one suite for every adapter.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub
)] // A failed `unwrap` fails the test; nothing here is public outside.

mod damage;
mod journal;
mod storage_faults;
