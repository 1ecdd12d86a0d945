//! The HTTP contract, a test for each of its rows: requests in, responses out, through the complete router over a real engine.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub
)] // A failed `unwrap` fails the test; nothing here is public outside.

mod allocations;
mod annotations;
mod campaigns;
mod clock;
mod cluster;
mod compression;
mod console;
mod conventions;
#[path = "../../crates/cuckood-state/tests/counting.rs"]
mod counting;
mod document;
mod eligibility;
mod events;
mod forgetting;
mod generate;
mod guessing;
mod images;
mod import_checks;
mod imports;
mod keys;
mod line_ups;
mod metrics;
mod openapi;
mod operations;
mod problems;
mod queue;
mod redemptions;
mod responses;
mod schema;
mod scripts;
mod service;
mod sites;
mod spellings;
#[path = "../support/mod.rs"]
mod support;

use support::{engines, manual_time};
