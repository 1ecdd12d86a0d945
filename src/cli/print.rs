//! `cuckood openapi`, `cuckood completions`, `cuckood man`: documents that the program generates about itself.

use anyhow::Context;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

/// Print the OpenAPI document.
#[derive(clap::Args, Debug)]
pub struct Openapi {}

/// Print a script with which a shell completes commands and options.
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

/// Sections of the program's own page: titles, and lines of a term and its meaning.
const SECTIONS: [(&str, &str); 4] = [
    (
        "ENVIRONMENT",
        "CUCKOOD__SECTION__KEY|Overrides a setting of the configuration file. Its value is TOML, or a plain string.
CUCKOOD_CONFIG|The configuration file.
CUCKOOD_URL, CUCKOOD_KEY, CUCKOOD_CACERT|How import, shadow, backup and healthcheck reach the service.
CUCKOOD_REDIS|How shadow reaches Redis.
SSL_CERT_FILE, SSL_CERT_DIR|Certificates to trust instead of the system's.",
    ),
    (
        "FILES",
        "/etc/cuckood/config.toml|Configuration of the Debian package's unit. Without a file the defaults apply.
/usr/share/doc/cuckood/examples/config.toml|Every setting, with its default and its meaning.
/var/lib/cuckood|The data directory of the Debian package's unit. Elsewhere it is ./data.",
    ),
    (
        "SIGNALS",
        "SIGTERM, SIGINT|Drains and ends. Allow for server.drain_delay, server.drain_timeout and a snapshot.
SIGHUP|Reloads keys and certificate. Requests continue; an invalid file changes nothing and is logged.",
    ),
    (
        "EXIT STATUS",
        "0|Success.
1|A failure, reported on standard error.
2|An invalid command line.",
    ),
];

/// Prints the OpenAPI document.
///
/// # Errors
/// If standard output can't be written to.
pub fn openapi() -> anyhow::Result<()> {
    Ok(write!(io::stdout(), "{}", crate::http::openapi::pretty())?)
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
    fs::create_dir_all(&args.dir).with_context(|| format!("can't write {}", args.dir.display()))?;
    // A page about `help` would tell nothing.
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let source = format!("{} {}", program.get_name(), program.get_version().unwrap_or_default());
    let mut commands = vec![&program];
    let mut sections = Some(sections());
    while let Some(command) = commands.pop() {
        commands.extend(command.get_subcommands().filter(|below| !below.is_hide_set()));
        let page = Man::new(command.clone()).manual("cuckood manual").source(&source);
        let path = args.dir.join(page.get_filename());
        let written = File::create(&path).and_then(|mut file| {
            page.render(&mut file)?;
            // The first page is the program's own.
            sections.take().map_or(Ok(()), |sections| sections.to_writer(&mut file))
        });
        written.with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(())
}

fn sections() -> Roff {
    let mut roff = Roff::default();
    for (title, entries) in SECTIONS {
        roff.control("SH", [title]);
        for (term, text) in entries.lines().filter_map(|entry| entry.split_once('|')) {
            roff.control("TP", []);
            roff.text([bold(term)]);
            roff.text([roman(text)]);
        }
    }
    roff
}
