//! `cuckood man`: writes the manual pages, one for the program and one for each subcommand.

use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// What the pages belong to, in the middle of their first line.
const MANUAL: &str = "cuckood manual";

/// What the command line does not know of the service: the titles of sections, and their entries.
const SECTIONS: &[(&str, &[(&str, &str)])] = &[
    (
        "ENVIRONMENT",
        &[
            (
                "CUCKOOD__SECTION__KEY",
                "A setting of the configuration file, which it overrides. Its value is TOML, or plain text.",
            ),
            ("CUCKOOD_CONFIG", "The configuration file."),
            (
                "CUCKOOD_URL, CUCKOOD_KEY, CUCKOOD_CACERT",
                "How import, shadow, backup and healthcheck reach the service.",
            ),
            ("CUCKOOD_REDIS", "How shadow reaches Redis."),
            ("SSL_CERT_FILE, SSL_CERT_DIR", "Certificates to trust instead of the system's."),
        ],
    ),
    (
        "FILES",
        &[
            (
                "/etc/cuckood/config.toml",
                "The configuration file of the Debian package's unit. Without a file the defaults apply.",
            ),
            (
                "/usr/share/doc/cuckood/examples/config.toml",
                "Every setting, with its default and what it means.",
            ),
            ("/var/lib/cuckood", "The data directory of the Debian package's unit. Elsewhere it is ./data."),
        ],
    ),
    (
        "SIGNALS",
        &[
            (
                "SIGTERM, SIGINT",
                "Drains and ends. Give it the time of server.drain_delay, server.drain_timeout and a snapshot.",
            ),
            (
                "SIGHUP",
                "Reads keys and certificate again. Requests go on; an invalid file changes nothing and is logged.",
            ),
        ],
    ),
    (
        "EXIT STATUS",
        &[
            ("0", "Success."),
            ("1", "A failure, which is told on standard error."),
            ("2", "A wrong command line."),
        ],
    ),
];

/// Write the manual pages: cuckood.1, and one for each subcommand.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The directory to write them to. It is created if it does not exist.
    pub dir: PathBuf,
}

/// A page can't be written.
#[derive(Debug, Error)]
#[error("can't write {}: {source}", path.display())]
pub struct ManError {
    /// The file or directory.
    path: PathBuf,
    /// What failed.
    source: io::Error,
}

/// Writes the pages of `program`, the whole command line with its subcommands.
///
/// # Errors
/// [`ManError`].
pub fn run(args: &Args, program: clap::Command) -> Result<(), ManError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ManError { path, source }
    };
    fs::create_dir_all(&args.dir).map_err(failed(&args.dir))?;
    // A page about `help` would tell nothing.
    let mut program = program.disable_help_subcommand(true);
    program.build();
    for (page, is_first) in pages(&program) {
        let path = args.dir.join(page.get_filename());
        write(&page, is_first, &path).map_err(failed(&path))?;
    }
    Ok(())
}

/// The pages of a command and of all below it; the first one is the program's own.
fn pages(program: &clap::Command) -> Vec<(Man, bool)> {
    let mut commands = vec![program];
    let mut found = Vec::new();
    while let Some(command) = commands.pop() {
        commands.extend(command.get_subcommands().filter(|below| !below.is_hide_set()));
        let version = program.get_version().unwrap_or_default();
        let source = format!("{} {version}", program.get_name());
        found.push((Man::new(command.clone()).manual(MANUAL).source(source), found.is_empty()));
    }
    found
}

fn write(page: &Man, is_first: bool, path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    page.render(&mut file)?;
    if is_first {
        service_sections().to_writer(&mut file)?;
    }
    file.flush()
}

fn service_sections() -> Roff {
    let mut roff = Roff::default();
    for (title, entries) in SECTIONS {
        roff.control("SH", [*title]);
        for (term, text) in *entries {
            roff.control("TP", []);
            roff.text([bold(*term)]);
            roff.text([roman(*text)]);
        }
    }
    roff
}
