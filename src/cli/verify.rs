//! `cuckood verify`: checks that a data directory or a backup is complete and unchanged.

use super::{progress, report};
use crate::clock::{Clock, ClockLimits};
use crate::engine::{restore, verify};
use anyhow::{Context, anyhow, bail};
use cuckood_log::store::{Findings, Store, StoreCopy, StoreError, StoreOptions, archive};
use cuckood_state::domain::counted;
use serde_json::json;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// Check a data directory that no server has open, or a backup. The original does not change: a copy is checked, or a restored
/// backup.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The data directory, or the file that `cuckood backup` wrote.
    pub path: PathBuf,
    /// Directory for the copy. It takes the space of the data directory's `sled` unless the file system can share blocks. Defaults to the
    /// parent of `PATH`, or to the directory for temporary files if that is not writable.
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    /// Print the result as JSON: `{"path", "whole", "notes", "faults"}`.
    #[arg(long)]
    pub json: bool,
}

/// Checks the directory or backup, and prints the findings.
///
/// # Errors
/// If anything is wrong.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let is_backup = args.path.is_file();
    let found = if is_backup {
        of_backup(args)
    } else {
        of_directory(args)
    };
    if let (Err(error), true) = (&found, args.json) {
        let faults = vec![format!("{error:#}")];
        print(
            &args.path,
            true,
            &Findings {
                faults,
                ..Findings::default()
            },
        );
    }
    let findings = found?;
    print(&args.path, args.json, &findings);
    match findings.faults.len() as u64 {
        0 => Ok(()),
        faults => bail!(
            "{}: {}; {}",
            args.path.display(),
            counted(faults, "fault"),
            advice(is_backup)
        ),
    }
}

/// Returns the next step after damage was found.
fn advice(is_backup: bool) -> &'static str {
    match is_backup {
        true => "take another backup with `cuckood backup FILE`",
        false => "restore a backup with `cuckood restore FILE DIR` into another directory",
    }
}

/// The advice to run this command, at the end of some [`StoreError`]s.
const TO_VERIFY: [&str; 2] = [
    "; run `cuckood verify ",
    "; restart, and if that fails run `cuckood verify ",
];

/// Replaces the advice to run this command with the next one.
fn advised(fault: &str, is_backup: bool) -> String {
    for to_verify in TO_VERIFY {
        if let Some((fault, _)) = fault.split_once(to_verify) {
            return format!("{fault}; {}", advice(is_backup));
        }
    }
    fault.to_owned()
}

/// Opens a copy of the directory, checks the log and the snapshots, and rebuilds the state.
fn of_directory(args: &Args) -> anyhow::Result<Findings> {
    let copy = StoreCopy::of(&args.path, args.scratch.as_deref())?;
    findings(copy.open(&options()), false, |text| copy.of_original(text))
}

/// Reads the complete archive, restores it into a temporary directory, and verifies the result.
fn of_backup(args: &Args) -> anyhow::Result<Findings> {
    let file = &args.path;
    // Once to check it, and twice to restore it.
    let progress = progress::file(file, 3);
    let wrap = |archive: Box<dyn Read>| progress.wrap_read(archive);
    let read = archive::open(file)
        .and_then(|opened| archive::read(file, wrap(Box::new(opened)), |_| Ok(())));
    if let Err(error) = read {
        return Ok(Findings {
            faults: vec![error.to_string()],
            ..Findings::default()
        });
    }
    let scratch = scratch(file, args.scratch.as_deref())?;
    let clock = Clock::system(ClockLimits::default()).reading();
    let rename =
        |text: &str| text.replace(&*scratch.path().to_string_lossy(), &file.to_string_lossy());
    let last = restore(file, scratch.path(), &options(), clock, wrap)
        .map_err(|error| anyhow!(rename(&advised(&error.to_string(), true))))?;
    progress.finish_and_clear();
    let mut findings = findings(Store::open(scratch.path(), &options()), true, rename)?;
    findings
        .notes
        .insert(0, format!("archive: up to position {}, restored", last.0));
    Ok(findings)
}

/// Verifies a copy. `rename` names the original in a message about it.
fn findings(
    copy: Result<Store, StoreError>,
    is_backup: bool,
    rename: impl Fn(&str) -> String,
) -> anyhow::Result<Findings> {
    let text = |text: &str| rename(&advised(text, is_backup));
    let store = copy.map_err(|error| anyhow!(text(&error.to_string())))?;
    let mut findings =
        verify(&Arc::new(store)).map_err(|error| anyhow!(text(&error.to_string())))?;
    for line in findings.notes.iter_mut().chain(&mut findings.faults) {
        *line = text(line);
    }
    Ok(findings)
}

/// Options that allow a full disk to be inspected.
fn options() -> StoreOptions {
    StoreOptions {
        free_space_min_bytes: 0,
        ballast_bytes: 0,
        ..StoreOptions::default()
    }
}

/// Creates a temporary directory to restore into.
fn scratch(file: &Path, scratch: Option<&Path>) -> anyhow::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".cuckood-verify-");
    let parent = file
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let made = match scratch {
        Some(scratch) => builder.tempdir_in(scratch),
        None => builder.tempdir_in(parent).or_else(|_| builder.tempdir()),
    };
    made.with_context(|| {
        format!(
            "{}: can't make a directory for the copy; name another with --scratch",
            scratch.unwrap_or(parent).display()
        )
    })
}

fn print(path: &Path, is_json: bool, Findings { notes, faults }: &Findings) {
    let path = path.display().to_string();
    let whole = faults.is_empty();
    let json = json!({ "path": path, "whole": whole, "notes": notes, "faults": faults });
    let faults = faults.iter().map(|fault| format!("FAULT {fault}"));
    let lines = notes
        .iter()
        .cloned()
        .chain(faults)
        .chain(whole.then(|| format!("{path}: whole")));
    report(is_json, &json, &lines.collect::<Vec<_>>().join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_to_verify_is_replaced() {
        let dir = Path::new("data");
        for error in [
            StoreError::damaged(dir, "a; b"),
            StoreError::failed(dir, "a; b".to_owned()),
        ] {
            let text = error.to_string();
            let advised = advised(&error.to_string(), false);
            assert!(
                text.contains("`cuckood verify data`") && !advised.contains("`cuckood verify"),
                "{advised}"
            );
            assert!(
                advised.contains("a; b") && advised.contains("; restore a backup with"),
                "{advised}"
            );
        }
        let other = "data: can't read: no such file; name another";
        assert_eq!(advised(other, false), other);
    }
}
