//! Incoming requests: bodies, queries and headers, read and checked before a handler runs.

pub(crate) mod accept;
pub(crate) mod body;
pub(crate) mod body_memory;
pub(crate) mod decompression;
pub(crate) mod faults;
pub(crate) mod idempotency;
pub(crate) mod items;
pub(crate) mod json;
pub(crate) mod origin;
pub(crate) mod page;
pub(crate) mod query;
