//! Users and codes: the routes of each, and what they share, an item being either.

pub(crate) mod codes;
mod handlers;
pub(crate) mod users;
