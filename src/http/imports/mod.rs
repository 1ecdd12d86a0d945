//! Imports: uploads of any size, read line by line and passed on as commands.

pub(crate) mod lines;
mod noticed;
pub(crate) mod routes;
mod run;
mod upload;
