//! The HTTP contract: extract, convert, one call to the engine, map the answer. Decides nothing itself.

mod api;
mod auth;
mod body;
mod campaigns;
mod coupons;
mod error;
mod filter_body;
mod filters;
mod idempotency;
mod item_list;
mod metrics;
pub mod options;
pub mod problem;
mod query;
mod rates;
mod time;
