//! Incoming requests: bodies, queries and headers, read and checked before a handler runs.

pub(crate) mod body;
pub(crate) mod decompression;
pub(crate) mod head;
pub(crate) mod json;
pub(crate) mod origin;
pub(crate) mod query;
pub(crate) mod source;
