//! `cuckood openapi`: prints the OpenAPI document that the code generates.

use std::io::{self, Write};

/// Print the OpenAPI document.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Prints the document.
///
/// # Errors
/// If standard output can't be written to.
pub fn run(_args: &Args) -> io::Result<()> {
    write!(io::stdout(), "{}", crate::http::openapi::pretty())
}
