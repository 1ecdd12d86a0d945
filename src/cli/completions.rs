//! `cuckood completions`: prints the script with which a shell completes commands and options.

use std::io::{self, Write};

/// Print a script with which a shell completes commands and options.
///
/// For bash: cuckood completions bash > ~/.local/share/bash-completion/completions/cuckood
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The shell.
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Prints the script for `program`, the whole command line with its subcommands.
///
/// # Errors
/// If standard output can't be written to.
pub fn run(args: &Args, mut program: clap::Command) -> io::Result<()> {
    let name = program.get_name().to_owned();
    // A generator can't report that its output is gone, memory never is.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, name, &mut script);
    io::stdout().write_all(&script)
}
