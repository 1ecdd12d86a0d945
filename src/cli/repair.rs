//! `cuckood repair`: for a service that does not trust the clock, when the clock is right, or that can't apply an entry of its log.

use super::print_line;
use crate::clock::{Clock, ClockLimits};
use crate::engine::{ClockRepair, repair_clock, skip_entry};
use anyhow::{Context, bail};
use cuckood_log::store::{refuse_other_owner, refuse_unused};
use cuckood_state::domain::{Seq, counted};
use std::path::PathBuf;

/// Repair a data directory that no server has open.
#[derive(clap::Subcommand, Debug)]
pub enum Args {
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

/// Repairs the directory, reports the changes, and verifies that it can be read.
///
/// # Errors
/// If there is no data directory, or the repair failed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let (Args::Clock { dir } | Args::Skip { dir, .. }) = args;
    refuse_unused(dir)?;
    refuse_other_owner(dir)?;
    let clock = Clock::system(ClockLimits::default()).reading();
    let name = dir.display();
    if let Args::Skip { entry, .. } = args {
        let last = skip_entry(dir, clock.wall, Seq(*entry))?.0;
        print_line(&format!(
            "entry {entry} is skipped; its write has had no effect"
        ));
        print_line(&format!(
            "{name}: a snapshot covers it, up to position {last}; the service can be started"
        ));
        return Ok(());
    }
    print_line(&format!(
        "accepting the clock's time {} as right",
        clock.wall
    ));
    print_line(&describe(&repair_clock(dir, clock)?));
    let unreadable = || format!("{name} was repaired, and can't be read");
    let again = repair_clock(dir, clock).with_context(unreadable)?;
    if again.turned_back.is_some() {
        bail!(
            "{}: its log is in the future again; stop the service that writes to it, then repeat this",
            unreadable()
        );
    }
    print_line(&format!("{name}: the service can be started"));
    Ok(())
}

fn describe(repair: &ClockRepair) -> String {
    let Some(logged) = repair.logged else {
        return "the log is empty: nothing to repair".to_owned();
    };
    let last = format!("the last entry of the log was written at {logged}");
    let Some(Seq(entry)) = repair.turned_back else {
        return format!("{last}\nit is not in the future: nothing to repair");
    };
    let ClockRepair {
        redemptions, holds, ..
    } = repair;
    let redemptions = counted(*redemptions, "redemption");
    let holds = counted(*holds, "hold");
    format!(
        "{last}\nentry {entry} turns the time back; nothing was removed from the log\n\
         moved back to now: {redemptions} from the future\nactive again: {holds} that had expired too early"
    )
}
