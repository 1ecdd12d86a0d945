//! Imports: uploads of any size, read line by line and passed on as commands.

mod csv;
mod dry_run;
mod fingerprint;
mod incoming;
mod intake;
pub(crate) mod line;
pub(crate) mod lines;
mod noticed;
pub(super) mod representation;
pub(crate) mod routes;
mod upload;
