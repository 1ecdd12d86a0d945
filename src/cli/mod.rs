//! The subcommands. Each is a struct of arguments and a `run`.

pub mod restore;
pub mod verify;
