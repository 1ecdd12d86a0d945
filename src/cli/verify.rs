//! `cuckood verify DIR`: is everything there, and as it was written?

use crate::engine::verify;
use crate::store::{StoreCopy, StoreError, StoreOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

/// Check a data directory that no server has open. It is left as it is: a copy is looked into.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The data directory.
    pub dir: PathBuf,
    /// Where the copy goes, which takes as much room as `DIR/sled` where the file system can't share it; beside `DIR` unless
    /// said otherwise, or among the temporary files if nothing may be written there.
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
}

/// Why `cuckood verify` ends with a failure.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// It could not be copied.
    #[error(transparent)]
    Copy(#[from] StoreError),
    /// It could not be opened.
    #[error("{0}")]
    Open(String),
    /// So many things are wrong; they have been printed.
    #[error(
        "{path}: {faults} faults; restore a backup with `cuckood restore FILE DIR` into another directory"
    )]
    Faults {
        /// The data directory.
        path: PathBuf,
        /// How many.
        faults: usize,
    },
}

/// Opens a copy of the directory, checks the log and the snapshots, rebuilds the state, and prints what was found.
///
/// # Errors
/// [`VerifyError`] if anything is wrong.
pub fn run(args: &Args) -> Result<(), VerifyError> {
    let copy = StoreCopy::of(&args.dir, args.scratch.as_deref())?;
    // To look at a full disk is allowed.
    let options = StoreOptions { free_space_min_bytes: 0, ballast_bytes: 0, ..StoreOptions::default() };
    let store =
        copy.open(&options).map_err(|error| VerifyError::Open(copy.of_original(&error.to_string())))?;
    let mut findings = verify(&Arc::new(store));
    for line in findings.notes.iter_mut().chain(&mut findings.faults) {
        *line = copy.of_original(line);
    }
    let mut out = io::stdout().lock();
    let notes = findings.notes.iter().map(|note| format!("{note}\n"));
    let faults = findings.faults.iter().map(|fault| format!("FAULT {fault}\n"));
    for line in notes.chain(faults) {
        // The exit status still tells when nobody reads the report.
        let _ = out.write_all(line.as_bytes());
    }
    match findings.faults.len() {
        0 => {
            let _ = writeln!(out, "{}: whole", args.dir.display());
            Ok(())
        }
        faults => Err(VerifyError::Faults { path: args.dir.clone(), faults }),
    }
}
