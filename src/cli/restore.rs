//! `cuckood restore FILE DIR`: creates a data directory from a backup.

use crate::clock::{Clock, ClockLimits};
use crate::engine::restore;
use crate::store::{StoreError, StoreOptions};
use std::io::{self, Write};
use std::path::PathBuf;

/// Restore a backup into an empty or absent directory.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The archive that `cuckood backup` wrote.
    pub file: PathBuf,
    /// The data directory to create: absent, or empty.
    pub dir: PathBuf,
}

/// Verifies the whole archive, then writes the directory, then reports it.
///
/// # Errors
/// Whatever [`restore`] refuses.
pub fn run(args: &Args) -> Result<(), StoreError> {
    let clock = Clock::system(ClockLimits::default()).reading();
    let last = restore(&args.file, &args.dir, &StoreOptions::default(), clock)?;
    // A closed terminal is no reason to fail after the work is done.
    let _ = writeln!(
        io::stdout(),
        "restored {} into {}, up to position {}",
        args.file.display(),
        args.dir.display(),
        last.0
    );
    Ok(())
}
