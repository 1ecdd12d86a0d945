//! The program: parses the subcommand and runs it. The library does the work.

use clap::{CommandFactory, Parser, Subcommand};
use cuckood::cli;
use rustix::fs::Mode;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Campaign and coupon membership over HTTP: durable cuckoo filters with exactly-once redemption.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: cli::serve::Args,
}

#[derive(Subcommand)]
enum Command {
    Serve(cli::serve::Args),
    Import(cli::import::Args),
    Shadow(cli::shadow::Args),
    Move(cli::move_filter::Args),
    Backup(cli::backup::Args),
    Restore(cli::restore::Args),
    Repair(cli::repair::Args),
    Verify(cli::verify::Args),
    Cluster(cli::cluster::Args),
    Openapi(cli::openapi::Args),
    Plan(cli::plan::Args),
    Bench(cli::bench::Args),
    Key(cli::key::Args),
    Healthcheck(cli::healthcheck::Args),
    Completions(cli::completions::Args),
    Man(cli::man::Args),
}

fn main() -> ExitCode {
    // Files that anything here creates, sled included, are for their owner only.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    #[cfg(debug_assertions)]
    cli::take_faults();
    let arguments = Arguments::parse();
    let ended = match arguments.command {
        None => cli::serve::run(&arguments.serve).map_err(Into::into),
        Some(Command::Serve(args)) => cli::serve::run(&args).map_err(Into::into),
        Some(Command::Import(args)) => cli::import::run(&args).map_err(Into::into),
        Some(Command::Shadow(args)) => cli::shadow::run(&args).map_err(Into::into),
        Some(Command::Move(args)) => cli::move_filter::run(&args).map_err(Into::into),
        Some(Command::Backup(args)) => cli::backup::run(&args).map_err(Into::into),
        Some(Command::Restore(args)) => cli::restore::run(&args).map_err(Into::into),
        Some(Command::Repair(args)) => cli::repair::run(&args).map_err(Into::into),
        Some(Command::Verify(args)) => cli::verify::run(&args).map_err(Into::into),
        Some(Command::Cluster(args)) => cli::cluster::run(&args).map_err(Into::into),
        Some(Command::Openapi(args)) => cli::openapi::run(&args).map_err(Into::into),
        Some(Command::Plan(args)) => cli::plan::run(&args).map_err(Into::into),
        Some(Command::Bench(args)) => cli::bench::run(&args).map_err(Into::into),
        Some(Command::Key(args)) => cli::key::run(&args).map_err(Into::into),
        Some(Command::Healthcheck(args)) => cli::healthcheck::run(&args).map_err(Into::into),
        Some(Command::Completions(args)) => {
            cli::completions::run(&args, Arguments::command()).map_err(Into::into)
        }
        Some(Command::Man(args)) => cli::man::run(&args, Arguments::command()).map_err(Into::into),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

fn fail(error: Box<dyn std::error::Error>) -> ExitCode {
    use std::io::Write;
    // Standard error is gone, so there is nowhere left to report that.
    let _ = writeln!(std::io::stderr(), "cuckood: {error}");
    ExitCode::FAILURE
}
