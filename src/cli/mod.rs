//! The subcommands. Each is a struct of arguments and a `run`.

pub mod backup;
pub mod bench;
pub mod client;
pub mod cluster;
pub mod completions;
pub mod healthcheck;
pub mod import;
pub mod key;
pub mod man;
pub mod move_filter;
pub mod openapi;
pub mod plan;
pub mod repair;
pub mod restore;
pub mod serve;
pub mod shadow;
mod source;
mod upload;
pub mod verify;
