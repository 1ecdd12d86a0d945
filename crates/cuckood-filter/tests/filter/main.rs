//! Tests of the filters through their public interface: models over random operations, error rates, and how full a table gets.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, unreachable_pub)]

mod doubling;
mod figures;
mod fill;
mod forgetting;
mod model;
