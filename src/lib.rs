//! cuckood: durable cuckoo filters for campaigns and coupons over HTTP.

pub mod domain;
pub mod filter;
