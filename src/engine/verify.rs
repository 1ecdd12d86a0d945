//! Verifies a data directory: its log, its snapshots and events, and that the state can be rebuilt from them.

use super::applying::catch;
use super::recovery::{RecoveryError, load, recover};
use crate::domain::{Event, Kind, Seq};
use crate::journal::{Journal, JournalError, LocalJournal, LocalOptions, is_of_replicated_log};
use crate::store::{Findings, Store, StoreError, check_snapshots};
use std::fmt::Display;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Reads the whole log, every chunk of every snapshot and every event, and checks them against their checksums, each other and the
/// acknowledged position. If nothing is wrong it rebuilds the state.
pub fn verify(store: &Arc<Store>) -> Findings {
    let mut findings = Findings::default();
    if is_of_replicated_log(store) {
        verify_without_log(store, &mut findings);
        return findings;
    }
    let opened = LocalJournal::open(store.clone(), LocalOptions::default()).map_err(JournalError::from);
    let Some(mut journal) = findings.take(opened) else { return findings };
    let checked = check_log(&mut journal, &mut findings);
    findings.take(checked);
    let is_whole = journal.is_whole().unwrap_or(false);
    let checked = check_snapshots(store, journal.first_available(), is_whole, &mut findings);
    findings.take(checked);
    let checked = check_events(store, &mut findings);
    findings.take(checked);
    for (entry, at) in findings.take(store.skipped_entries()).unwrap_or_default() {
        findings.notes.push(format!("log: entry {} is skipped, by `cuckood repair skip` at {at}", entry.0));
    }
    if findings.faults.is_empty() {
        let rebuilt = catch(|| rebuild(store, &mut journal, &mut findings));
        take_rebuilt(store, rebuilt, &mut findings);
    }
    findings
}

/// The servers have the log: the directory has snapshots and events alone.
fn verify_without_log(store: &Store, findings: &mut Findings) {
    findings.notes.push("log: a replicated one, which its servers have".to_owned());
    let checked = check_snapshots(store, Seq(0), true, findings);
    let checked = checked.and_then(|()| check_events(store, findings)).and_then(|()| store.manifests());
    match checked.map(|manifests| manifests.into_iter().next()) {
        Err(error) => findings.faults.push(error.to_string()),
        Ok(Some(newest)) if findings.faults.is_empty() => {
            take_rebuilt(store, catch(|| load(store, &newest, &mut |_| ()).map(drop)), findings);
        }
        Ok(_) => {}
    }
}

/// Takes the result of building the state, which may have panicked.
fn take_rebuilt<E: Display>(store: &Store, rebuilt: Result<Result<(), E>, String>, findings: &mut Findings) {
    let panicked = |panic| format!("{}: the state can't be rebuilt: {panic}", store.path().display());
    if let Some(rebuilt) = findings.take(rebuilt.map_err(panicked)) {
        findings.take(rebuilt);
    }
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

/// Reads every event, and checks that none is missing between two others.
fn check_events(store: &Store, findings: &mut Findings) -> Result<(), StoreError> {
    let (mut first, mut last, mut count, mut faults) = (None, None, 0, Vec::new());
    for tree in store.events().trees() {
        store.events().scan(tree, &[], |pack| {
            let Some(pack) = pack else { return ControlFlow::Continue(()) };
            if last.is_some_and(|last| pack.previous != last) {
                faults.push(format!("events before event {} are missing", pack.first));
            }
            if pack.first < tree.first {
                faults.push(format!("event {} is in a tree of later ones", pack.first));
            }
            if let Some((bad, _)) = pack.events().find(|(_, event)| Event::decode(event).is_none()) {
                faults.push(format!("event {bad} can't be decoded"));
            }
            first = first.or(Some(pack.first));
            last = Some(pack.last());
            count += u64::from(pack.count);
            ControlFlow::Continue(())
        })?;
    }
    findings.faults.append(&mut faults);
    if let (Some(first), Some(last)) = (first, last) {
        findings.notes.push(format!("events: {count}, numbers {first} to {last}"));
    }
    Ok(())
}

fn rebuild(store: &Store, journal: &mut LocalJournal, findings: &mut Findings) -> Result<(), RecoveryError> {
    let recovered = recover(store, journal, &mut |_| ())?;
    if recovered.events.differing() > 0 {
        findings.faults.push("stored events are not those that the log makes".to_owned());
    }
    let state = &recovered.state;
    findings.notes.push(format!(
        "state at position {}, written {}: {} filters, {} redemptions, {} stored answers; {} entries replayed",
        state.applied().0,
        state.now(),
        [Kind::Campaign, Kind::Coupon].map(|kind| state.view().count(kind)).iter().sum::<usize>(),
        state.sizes().redemptions,
        state.sizes().idempotency_records,
        recovered.replayed
    ));
    Ok(())
}
