//! `cuckood restore FILE DIR`: creates a data directory from a backup. `cuckood restore FILE --into-cluster`: begins a log that nodes
//! share with it.

use super::serve::configuration;
use crate::clock::{Clock, ClockLimits};
use crate::config::ConfigError;
use crate::domain::{ClockReading, Seq};
use crate::engine::{RecoveryError, restore, restore_into_cluster};
use crate::store::{StoreError, StoreOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Restore a backup into an empty or absent directory, or into an empty log of several nodes.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The archive that `cuckood backup` wrote.
    pub file: PathBuf,
    /// The data directory to create: absent, or empty.
    #[arg(required_unless_present = "into_cluster", conflicts_with = "into_cluster")]
    pub dir: Option<PathBuf>,
    /// Begin the log that the configuration names (`journal.kind = "nats"`) with the backup; its stream must be absent, or empty. The
    /// nodes are started afterwards, each with an empty directory.
    #[arg(long)]
    pub into_cluster: bool,
    /// Configuration file, for `--into-cluster`; without one the environment counts alone.
    #[arg(long, value_name = "FILE", env = "CUCKOOD_CONFIG")]
    pub config: Option<PathBuf>,
    /// Where the backup is unpacked meanwhile, for `--into-cluster`; without it, where temporary files go. It takes as much room as a
    /// data directory.
    #[arg(long, value_name = "DIR", requires = "into_cluster")]
    pub scratch: Option<PathBuf>,
}

/// Why a backup was not restored.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The archive can't be read, or the directory can't be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The backup can't be put into the log.
    #[error(transparent)]
    Log(#[from] RecoveryError),
    /// There is no place for temporary files.
    #[error("can't make a folder for temporary files: {0}")]
    Scratch(io::Error),
}

/// Verifies the whole archive, then restores it, then reports it.
///
/// # Errors
/// Whatever [`restore`] or [`restore_into_cluster`] refuses.
pub fn run(args: &Args) -> Result<(), RestoreError> {
    let clock = Clock::system(ClockLimits::default()).reading();
    let file = args.file.display();
    let told = match &args.dir {
        Some(dir) => {
            let last = restore(&args.file, dir, &StoreOptions::default(), clock)?;
            format!("restored {file} into {}, up to position {}", dir.display(), last.0)
        }
        None => {
            let last = into_cluster(args, clock)?;
            format!(
                "the log begins with {file}, behind position {}: start its nodes with empty directories",
                last.0
            )
        }
    };
    // A closed terminal is no reason to fail after the work is done.
    let _ = writeln!(io::stdout(), "{told}");
    Ok(())
}

fn into_cluster(args: &Args, clock: ClockReading) -> Result<Seq, RestoreError> {
    let config = configuration(args.config.as_deref())?;
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("cuckood-restore-");
    let folder = |scratch: &Path| builder.tempdir_in(scratch);
    let folder = args.scratch.as_deref().map_or_else(|| builder.tempdir(), folder);
    let folder = folder.map_err(RestoreError::Scratch)?;
    Ok(restore_into_cluster(&args.file, folder.path(), &config.engine_options().journal, clock)?)
}
