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
    Openapi(cli::print::Openapi),
    Plan(cli::plan::Args),
    Bench(cli::bench::Args),
    Key(cli::key::Args),
    Healthcheck(cli::healthcheck::Args),
    Completions(cli::print::Completions),
    Man(cli::print::Manual),
}

fn main() -> ExitCode {
    // Files that anything here creates, sled included, are for their owner only.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    #[cfg(debug_assertions)]
    cli::take_faults();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            use std::io::Write;
            // Standard error is gone, so there is nowhere left to report that.
            let _ = writeln!(std::io::stderr(), "cuckood: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        None => cli::serve::run(&arguments.serve),
        Some(Command::Serve(args)) => cli::serve::run(&args),
        Some(Command::Import(args)) => cli::import::run(&args),
        Some(Command::Shadow(args)) => cli::shadow::run(&args),
        Some(Command::Move(args)) => cli::move_filter::run(&args),
        Some(Command::Backup(args)) => cli::backup::run(&args),
        Some(Command::Restore(args)) => cli::restore::run(&args),
        Some(Command::Repair(args)) => cli::repair::run(&args),
        Some(Command::Verify(args)) => cli::verify::run(&args),
        Some(Command::Cluster(args)) => cli::cluster::run(&args),
        Some(Command::Openapi(_)) => cli::print::openapi(),
        Some(Command::Plan(args)) => cli::plan::run(&args),
        Some(Command::Bench(args)) => cli::bench::run(&args),
        Some(Command::Key(args)) => cli::key::run(&args),
        Some(Command::Healthcheck(args)) => cli::healthcheck::run(&args),
        Some(Command::Completions(args)) => cli::print::completions(&args, Arguments::command()),
        Some(Command::Man(args)) => cli::print::manual(&args, Arguments::command()),
    }
}
