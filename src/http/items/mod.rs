//! Users and codes: the routes of each, and what they share.

pub(crate) mod codes;
mod handlers;
pub(crate) mod users;
