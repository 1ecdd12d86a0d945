//! The program: parses the subcommand and runs it. The library does the work.

use clap::{CommandFactory, Parser, Subcommand};
use cuckood::cli;
use rustix::fs::Mode;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Campaign and coupon membership over HTTP: durable cuckoo filters with exactly-once redemption.
///
/// A bare `cuckood` serves, with the documented defaults.
///
/// Environment: CUCKOOD__SECTION__KEY overrides a setting of the configuration file; its value is TOML, or a plain string. CUCKOOD_CONFIG
/// names the configuration file. CUCKOOD_URL, CUCKOOD_KEY and CUCKOOD_CACERT state how the other commands reach the service, and
/// CUCKOOD_REDIS how shadow reaches Redis. SSL_CERT_FILE and SSL_CERT_DIR name certificates to trust instead of the system's.
///
/// Files of the Debian package: /etc/cuckood/config.toml is the unit's configuration, /var/lib/cuckood its data directory (elsewhere
/// ./data), and /usr/share/doc/cuckood/examples/config.toml has every setting with its default and its meaning.
///
/// Signals: SIGTERM and SIGINT drain and end; allow for server.drain_delay, server.drain_timeout and a snapshot. SIGHUP reloads keys and
/// certificate; requests continue, and an invalid file changes nothing and is logged.
///
/// Exit status: 0 for success, 1 for a failure, which standard error describes, and 2 for an invalid command line.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<CliCommand>,
    #[command(flatten)]
    serve: cli::serve::Args,
}

#[derive(Subcommand)]
enum CliCommand {
    Serve(cli::serve::Args),
    Import(cli::import::Args),
    Shadow(cli::shadow::Args),
    Move(cli::move_filter::Args),
    Backup(cli::backup::Args),
    Restore(cli::restore::Args),
    #[command(subcommand)]
    Repair(cli::repair::Args),
    Verify(cli::verify::Args),
    #[command(subcommand)]
    Cluster(cli::cluster::Args),
    /// Print the OpenAPI document.
    Openapi,
    Plan(cli::plan::Args),
    #[command(subcommand)]
    Bench(cli::bench::Args),
    #[command(subcommand)]
    Key(cli::key::Args),
    Healthcheck(cli::healthcheck::Args),
    Completions(cli::print::Completions),
    Man(cli::print::Manual),
}

fn main() -> ExitCode {
    // Files that anything here creates, sled included, are for their owner only.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    #[cfg(feature = "testing")]
    cli::take_faults();
    match run(CommandLine::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            use std::io::Write;
            // Standard error is closed, so this can't be reported.
            let _ = writeln!(std::io::stderr(), "cuckood: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: CommandLine) -> anyhow::Result<()> {
    match arguments.command {
        None => cli::serve::run(&arguments.serve),
        Some(CliCommand::Serve(args)) => cli::serve::run(&args),
        Some(CliCommand::Import(args)) => cli::import::run(&args),
        Some(CliCommand::Shadow(args)) => cli::shadow::run(&args),
        Some(CliCommand::Move(args)) => cli::move_filter::run(&args),
        Some(CliCommand::Backup(args)) => cli::backup::run(&args),
        Some(CliCommand::Restore(args)) => cli::restore::run(&args),
        Some(CliCommand::Repair(args)) => cli::repair::run(&args),
        Some(CliCommand::Verify(args)) => cli::verify::run(&args),
        Some(CliCommand::Cluster(args)) => cli::cluster::run(&args),
        Some(CliCommand::Openapi) => cli::print::openapi(),
        Some(CliCommand::Plan(args)) => cli::plan::run(&args),
        Some(CliCommand::Bench(args)) => cli::bench::run(&args),
        Some(CliCommand::Key(args)) => cli::key::run(&args),
        Some(CliCommand::Healthcheck(args)) => cli::healthcheck::run(&args),
        Some(CliCommand::Completions(args)) => {
            cli::print::completions(&args, CommandLine::command())
        }
        Some(CliCommand::Man(args)) => cli::print::manual(&args, CommandLine::command()),
    }
}
