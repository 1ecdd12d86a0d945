//! Campaigns and coupons: the routes of each, and what they share, a filter being either.

pub(crate) mod campaigns;
pub(crate) mod coupons;
mod handlers;
pub(crate) mod representation;
