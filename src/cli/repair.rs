//! `cuckood repair`: for a service that does not trust the clock, when the clock is right, or that can't apply an entry of its log.

use crate::clock::{Clock, ClockLimits};
use crate::domain::Seq;
use crate::engine::repair::{self, ClockRepair, RepairError};
use crate::store::StoreOptions;
use std::io::{self, Write};
use std::path::PathBuf;

/// Repair a data directory that no server has open.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to repair.
    #[command(subcommand)]
    pub action: Action,
}

/// What can be repaired.
#[derive(clap::Subcommand, Debug)]
pub enum Action {
    /// Declare this machine's clock right. Check it first! Entries that were stamped in the future are moved back to now, and
    /// holds that had expired too soon become active again where their codes are still free.
    Clock {
        /// The data directory.
        dir: PathBuf,
    },
    /// Skip an entry that can't be applied. Its write is lost. Update cuckood first: a newer version may apply it. Every later
    /// `cuckood verify` of the directory lists the entry.
    Skip {
        /// The position of the entry, from the message of the service.
        #[arg(long, value_name = "N")]
        entry: u64,
        /// The data directory.
        dir: PathBuf,
    },
}

/// Why `cuckood repair` failed.
#[derive(Debug, thiserror::Error)]
pub enum RepairCommandError {
    /// There is no data directory.
    #[error("{0} is not a data directory: it has no file `format`")]
    NotOurs(PathBuf),
    /// The repair failed.
    #[error(transparent)]
    Repair(#[from] RepairError),
    /// The repair succeeded, but the directory can't be read afterwards.
    #[error("{0} was repaired, but can't be read now: {1}")]
    Unreadable(PathBuf, String),
}

/// Repairs the directory, reports what was done, and verifies that it can be read.
///
/// # Errors
/// [`RepairCommandError`].
pub fn run(args: &Args) -> Result<(), RepairCommandError> {
    let (Action::Clock { dir } | Action::Skip { dir, .. }) = &args.action;
    if !dir.join("format").exists() {
        return Err(RepairCommandError::NotOurs(dir.clone()));
    }
    let options = StoreOptions { free_space_min_bytes: 0, ..StoreOptions::default() };
    let clock = Clock::system(ClockLimits::default());
    if let Action::Skip { entry, .. } = &args.action {
        let last = repair::skip(dir, &options, &clock, Seq(*entry))?;
        tell(&format!("entry {entry} is skipped; its write has had no effect"));
        tell(&format!(
            "{}: a snapshot covers it, up to position {}; the service can be started",
            dir.display(),
            last.0
        ));
        return Ok(());
    }
    tell(&format!("the clock says {}, which is taken as right", clock.reading().wall));
    let repair = repair::clock(dir, &options, &clock)?;
    told(&repair).iter().for_each(|line| tell(line));
    let again = repair::clock(dir, &options, &clock)
        .map_err(|error| RepairCommandError::Unreadable(dir.clone(), error.to_string()))?;
    if again.turned_back.is_some() {
        let why = format!("its log ends at {:?}", again.logged);
        return Err(RepairCommandError::Unreadable(dir.clone(), why));
    }
    tell(&format!("{}: the service can be started", dir.display()));
    Ok(())
}

fn told(repair: &ClockRepair) -> Vec<String> {
    let Some(logged) = repair.logged else { return vec!["the log is empty: nothing to repair".into()] };
    let mut lines = vec![format!("the last entry of the log was written at {logged}")];
    match repair.turned_back {
        None => lines.push("that is not in the future: nothing to repair".into()),
        Some(turned) => {
            lines.push(format!(
                "entry {} turns the time back; nothing was removed from the log",
                turned.seq.0
            ));
            lines.push(format!("{} redemptions from the future were moved back to now", turned.redemptions));
            lines.push(format!("{} holds that had expired too soon are active again", turned.holds));
        }
    }
    lines
}

fn tell(line: &str) {
    // If nobody reads the output, the exit status still tells.
    let _ = writeln!(io::stdout(), "{line}");
}
