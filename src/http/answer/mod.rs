//! Outgoing answers, and the problem documents of all failures.

pub(crate) mod headers;
pub(crate) mod held;
pub mod problem;
pub(crate) mod refusals;
pub(crate) mod reply;
