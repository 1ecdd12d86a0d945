//! `cuckood verify`: checks that a data directory or a backup is complete, and as it was written.

use super::progress;
use crate::clock::{Clock, ClockLimits};
use crate::engine::{restore_through, verify};
use crate::store::Findings;
use crate::store::{Store, StoreCopy, StoreOptions, archive};
use anyhow::{anyhow, bail};
use serde_json::json;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// Check a data directory that no server has open, or a backup. The original does not change: a copy is checked, or a restored
/// backup.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The data directory, or the file that `cuckood backup` wrote.
    pub path: PathBuf,
    /// Where to put the copy. It takes as much space as the data directory's `sled` unless the file system can share blocks. By
    /// default it goes beside `PATH`, or into the directory for temporary files if that is not writable.
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    /// Print the result as JSON: `{"path", "whole", "notes", "faults"}`.
    #[arg(long)]
    pub json: bool,
}

/// Checks the directory or backup, and prints what was found.
///
/// # Errors
/// If anything is wrong.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let is_backup = args.path.is_file();
    let findings = match if is_backup { of_backup(args) } else { of_directory(args) } {
        Ok(findings) => findings,
        Err(error) => {
            if args.json {
                let faults = vec![error.to_string()];
                print(&args.path, true, &Findings { faults, ..Findings::default() });
            }
            return Err(error);
        }
    };
    print(&args.path, args.json, &findings);
    let (path, faults) = (args.path.display(), findings.faults.len());
    let advice = match is_backup {
        _ if faults == 0 => return Ok(()),
        true => "take another backup with `cuckood backup FILE`",
        false => "restore a backup with `cuckood restore FILE DIR` into another directory",
    };
    bail!("{path}: {faults} faults; {advice}")
}

/// Opens a copy of the directory, checks the log and the snapshots, and rebuilds the state.
fn of_directory(args: &Args) -> anyhow::Result<Findings> {
    let copy = StoreCopy::of(&args.path, args.scratch.as_deref())?;
    let store = copy.open(&options()).map_err(|error| anyhow!(copy.of_original(&error.to_string())))?;
    let mut findings = verify(&Arc::new(store));
    for line in findings.notes.iter_mut().chain(&mut findings.faults) {
        *line = copy.of_original(line);
    }
    Ok(findings)
}

/// Reads the whole archive, restores it into a temporary directory, and verifies the result.
fn of_backup(args: &Args) -> anyhow::Result<Findings> {
    let file = &args.path;
    // Once to check it, and twice to restore it.
    let progress = progress::file(file, 3);
    let wrap = |archive: Box<dyn Read>| progress.wrap_read(archive);
    let read = archive::open(file).and_then(|opened| archive::read(file, wrap(Box::new(opened)), |_| Ok(())));
    if let Err(error) = read {
        return Ok(Findings { faults: vec![error.to_string()], ..Findings::default() });
    }
    let scratch = scratch(file, args.scratch.as_deref())?;
    let told = |text: &str| text.replace(&*scratch.path().to_string_lossy(), &file.to_string_lossy());
    let clock = Clock::system(ClockLimits::default()).reading();
    let last = restore_through(file, scratch.path(), &options(), clock, wrap)?;
    progress.finish_and_clear();
    let store = Store::open(scratch.path(), &options());
    let store = store.map_err(|error| anyhow!(told(&error.to_string())))?;
    let mut findings = verify(&Arc::new(store));
    for line in findings.notes.iter_mut().chain(&mut findings.faults) {
        *line = told(line);
    }
    findings.notes.insert(0, format!("archive: up to position {}, restored", last.0));
    Ok(findings)
}

/// Options that allow a full disk to be inspected.
fn options() -> StoreOptions {
    StoreOptions { free_space_min_bytes: 0, ballast_bytes: 0, ..StoreOptions::default() }
}

/// Creates a temporary directory to restore into.
fn scratch(file: &Path, scratch: Option<&Path>) -> anyhow::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".cuckood-verify-");
    let beside = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (path, made) = match scratch {
        Some(scratch) => (scratch, builder.tempdir_in(scratch)),
        None => (beside, builder.tempdir_in(beside).or_else(|_| builder.tempdir())),
    };
    made.map_err(|error| anyhow!("{}: can't make a folder in: {error}", path.display()))
}

fn print(path: &Path, as_json: bool, findings: &Findings) {
    let Findings { notes, faults } = findings;
    let path = path.display().to_string();
    let text = if as_json {
        let whole = faults.is_empty();
        format!("{}\n", json!({ "path": path, "whole": whole, "notes": notes, "faults": faults }))
    } else {
        let notes = notes.iter().map(|note| format!("{note}\n"));
        let faults_told = faults.iter().map(|fault| format!("FAULT {fault}\n"));
        let whole = faults.is_empty().then(|| format!("{path}: whole\n"));
        notes.chain(faults_told).chain(whole).collect()
    };
    // If nobody reads the report, the exit status still tells.
    let _ = io::stdout().write_all(text.as_bytes());
}
