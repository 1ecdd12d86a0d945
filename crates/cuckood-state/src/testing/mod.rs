//! What tests, benchmarks and tools share: a state that is driven by hand, commands by the arguments that matter, and random logs. Only the
//! feature `testing` has it. A failed `unwrap` fails the test.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::new_without_default,
    clippy::should_implement_trait
)]

pub mod commands;
pub mod filter_image;
pub mod machine;
pub mod random;
pub mod random_images;
pub mod random_log;
pub mod seeded;
