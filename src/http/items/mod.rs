//! Users and codes: the routes of each, and what they share.

pub(crate) mod codes;
pub(crate) mod generate;
mod handlers;
pub(crate) mod users;
