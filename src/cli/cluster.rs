//! `cuckood cluster init`: creates an empty log for several nodes, deliberately.

use super::print_line;
use super::serve::configuration;
use crate::engine::journal::JournalOptions;
use anyhow::bail;
use cuckood_nats::init_log;
use std::path::PathBuf;

/// Manage the log that nodes share.
#[derive(clap::Subcommand, Debug)]
pub enum Args {
    /// Create the stream of an empty log, although snapshots of an earlier log may exist. The earlier log is neither removed nor served: to
    /// continue with its data, use `cuckood restore --into-cluster`.
    Init {
        /// Configuration file; without one, only the environment applies.
        #[arg(long, value_name = "FILE", env = "CUCKOOD_CONFIG")]
        config: Option<PathBuf>,
    },
}

/// Creates the log and prints its identity.
///
/// # Errors
/// If the configuration is invalid or names no shared log, or the log can't be created.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Args::Init { config } = args;
    let journal = configuration(config.as_deref())?.engine_options().journal;
    let JournalOptions::Nats(options) = journal else {
        bail!(
            "journal.kind is \"local\", expected \"nats\"; set it to create a log for several nodes"
        )
    };
    let log = init_log(&options)?;
    let stream = options.stream;
    print_line(&format!(
        "created the stream {stream}, log {log}: start its nodes with empty directories"
    ));
    Ok(())
}
