//! `cuckood openapi`: the contract, as the code has it.

use std::io::{self, Write};

/// Print the OpenAPI document.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Prints the document.
///
/// # Errors
/// When the terminal is gone.
pub fn run(_args: &Args) -> io::Result<()> {
    write!(io::stdout(), "{}", crate::http::openapi::pretty())
}
