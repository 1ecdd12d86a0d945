//! cuckood: durable cuckoo filters for campaigns and coupons over HTTP.

pub mod cli;
pub mod clock;
pub mod domain;
pub mod engine;
pub mod filter;
pub mod journal;
pub mod state;
pub mod store;
