//! Imports: uploads of any size, read line by line and passed on as commands.

mod csv;
pub(crate) mod line;
pub(crate) mod lines;
mod noticed;
pub(super) mod representation;
pub(crate) mod routes;
mod run;
mod upload;
