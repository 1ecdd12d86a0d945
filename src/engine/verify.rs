//! Verifies a data directory: its log, its snapshots, and that the state can be rebuilt from them.

use super::recovery::{RecoveryError, recover};
use crate::domain::Seq;
use crate::journal::{Journal, JournalError, LocalJournal, LocalOptions};
use crate::store::Store;
use crate::store::verify::{Findings, check_snapshots};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Reads the whole log and every chunk of every snapshot, and checks them against their checksums, each other and the
/// acknowledged position. If nothing is wrong it rebuilds the state.
pub fn verify(store: &Arc<Store>) -> Findings {
    let mut findings = Findings::default();
    let opened = LocalJournal::open(store.clone(), LocalOptions::default()).map_err(JournalError::from);
    let mut journal = match opened {
        Ok(journal) => journal,
        Err(error) => {
            findings.faults.push(error.to_string());
            return findings;
        }
    };
    let checked = check_log(&mut journal, &mut findings);
    if let Err(error) = checked {
        findings.faults.push(error.to_string());
    }
    let is_whole = journal.is_whole().unwrap_or(false);
    if let Err(error) = check_snapshots(store, journal.first_available(), is_whole, &mut findings) {
        findings.faults.push(error.to_string());
    }
    if findings.faults.is_empty() {
        match rebuild(store, &mut journal) {
            Ok(note) => findings.notes.push(note),
            Err(error) => findings.faults.push(error.to_string()),
        }
    }
    findings
}

fn check_log(journal: &mut LocalJournal, findings: &mut Findings) -> Result<(), JournalError> {
    let (first, last) = (journal.first_available(), journal.last());
    let mut entries = 0u64;
    journal.read(Seq(first.0.saturating_sub(1)), &mut |_| {
        entries += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    let acknowledged = journal.acknowledged();
    findings.notes.push(format!(
        "log: positions {} to {}, {entries} entries; acknowledged up to {}",
        first.0, last.0, acknowledged.0
    ));
    Ok(())
}

fn rebuild(store: &Store, journal: &mut LocalJournal) -> Result<String, RecoveryError> {
    let recovered = recover(store, journal, &mut |_| ())?;
    let state = &recovered.state;
    Ok(format!(
        "state at position {}, written {}: {} filters, {} redemptions, {} stored answers; {} entries replayed",
        state.applied().0,
        state.now(),
        state.view().len(),
        state.redemptions(),
        state.idempotency_records(),
        recovered.replayed
    ))
}
