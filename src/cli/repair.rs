//! `cuckood repair clock DIR`: the way on when the service does not trust the clock, and the clock is right.

use crate::clock::{Clock, ClockLimits};
use crate::engine::repair::{self, ClockRepair, RepairError};
use crate::store::StoreOptions;
use std::io::{self, Write};
use std::path::PathBuf;

/// Mend a data directory that no server has open.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to mend.
    #[command(subcommand)]
    pub action: Action,
}

/// What can be mended.
#[derive(clap::Subcommand, Debug)]
pub enum Action {
    /// Take this machine's clock for right, as it is now: look at it first. Entries that a clock far ahead has stamped are brought
    /// back to now, and holds that it has ended too soon stand again where their codes are still free.
    Clock {
        /// The data directory.
        dir: PathBuf,
    },
}

/// Why `cuckood repair` ends with a failure.
#[derive(Debug, thiserror::Error)]
pub enum RepairCommandError {
    /// There is nothing to mend.
    #[error("{0} is no data directory: it has no file `format`")]
    NotOurs(PathBuf),
    /// It could not be mended.
    #[error(transparent)]
    Repair(#[from] RepairError),
    /// It could be mended, but not read afterwards.
    #[error("{0} was mended, but can't be read now: {1}")]
    Unreadable(PathBuf, String),
}

/// Mends the directory, tells what it has done, and reads everything again.
///
/// # Errors
/// [`RepairCommandError`].
pub fn run(args: &Args) -> Result<(), RepairCommandError> {
    let Action::Clock { dir } = &args.action;
    if !dir.join("format").exists() {
        return Err(RepairCommandError::NotOurs(dir.clone()));
    }
    let options = StoreOptions { free_space_min_bytes: 0, ..StoreOptions::default() };
    let clock = Clock::system(ClockLimits::default());
    tell(&format!("the clock says {}: this is taken for right", clock.reading().wall));
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
    let Some(logged) = repair.logged else { return vec!["the log is empty: nothing to mend".into()] };
    let mut lines = vec![format!("the last entry of the log was written at {logged}")];
    match repair.turned_back {
        None => lines.push("that is not in the future: nothing to mend".into()),
        Some(turned) => {
            lines.push(format!(
                "entry {} turns the time back; nothing was taken out of the log",
                turned.seq.0
            ));
            lines.push(format!("{} redemptions from the future are brought back to now", turned.redemptions));
            lines.push(format!("{} holds that were ended too soon stand again", turned.holds));
        }
    }
    lines
}

fn tell(line: &str) {
    // The exit status still tells when nobody reads.
    let _ = writeln!(io::stdout(), "{line}");
}
