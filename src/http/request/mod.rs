//! Incoming requests: bodies, queries and headers, read and checked before a handler runs.

pub(crate) mod body;
pub(crate) mod decompression;
pub(crate) mod idempotency;
pub(crate) mod items;
pub(crate) mod json;
pub(crate) mod origin;
pub(crate) mod page;
pub(crate) mod query;
