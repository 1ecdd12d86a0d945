//! Campaigns and coupons: the routes of each, and what they share.

pub(crate) mod campaigns;
pub(crate) mod coupons;
mod handlers;
pub(crate) mod images;
pub(crate) mod line_ups;
pub(crate) mod representation;
pub(crate) mod selection;
pub(crate) mod spec;
mod steps;
