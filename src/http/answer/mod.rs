//! What goes out: answers, and the one shape in which the service says no.

pub(crate) mod headers;
pub mod problem;
pub(crate) mod refusals;
pub(crate) mod reply;
