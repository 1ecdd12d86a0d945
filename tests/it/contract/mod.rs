//! The HTTP contract, a test for each of its rows: requests in, answers out, through the whole router over a real
//! engine. Knows nothing of how the service is made but how to start one.

mod annotations;
mod campaigns;
mod clock;
mod cluster;
mod compression;
mod console;
mod conventions;
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
mod operations;
mod problems;
mod queue;
mod redemptions;
mod responses;
mod scripts;
pub mod service;
mod sites;
