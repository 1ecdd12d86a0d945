//! `cuckood openapi`, `cuckood completions`, `cuckood man`: documents that the program generates about itself.

use anyhow::anyhow;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

/// Print a completion script for a shell.
///
/// For bash: cuckood completions bash > ~/.local/share/bash-completion/completions/cuckood
#[derive(clap::Args, Debug)]
pub struct Completions {
    /// The shell.
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Write the manual pages: cuckood.1, and one for each subcommand.
#[derive(clap::Args, Debug)]
pub struct Manual {
    /// The directory to write them to. It is created if it does not exist.
    pub dir: PathBuf,
}

/// Prints the OpenAPI document.
///
/// # Errors
/// If standard output can't be written to.
pub fn openapi() -> anyhow::Result<()> {
    Ok(write!(
        io::stdout(),
        "{}",
        crate::http::openapi::served(true)
    )?)
}

/// Prints the script for `program`, the command line with all subcommands.
///
/// # Errors
/// If standard output can't be written to.
pub fn completions(args: &Completions, mut program: clap::Command) -> anyhow::Result<()> {
    let name = program.get_name().to_owned();
    // A generator panics if its output is closed; memory never is.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, name, &mut script);
    Ok(io::stdout().write_all(&script)?)
}

/// Writes the pages of `program`, the command line with all subcommands.
///
/// # Errors
/// If a page can't be written.
pub fn manual(args: &Manual, program: clap::Command) -> anyhow::Result<()> {
    let written =
        fs::create_dir_all(&args.dir).and_then(|()| clap_mangen::generate_to(program, &args.dir));
    written.map_err(|error| {
        anyhow!(
            "can't write {}: {error}; name another directory",
            args.dir.display()
        )
    })
}
