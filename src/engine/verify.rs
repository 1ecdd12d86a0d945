//! Verifies a data directory: its log, its snapshots and events, and that the state can be rebuilt from them.

use super::applying::catch;
use super::offline::local_log;
use super::recovery::{RecoveryError, Result, load, recover};
use crate::clock::MonotonicClock;
use cuckood_log::journal::{Delivery, Journal, JournalError};
use cuckood_log::store::{Findings, Store, StoreError, check_snapshots};
use cuckood_state::State;
use cuckood_state::domain::{Event, Kind, Seq, counted};
use cuckood_state::frame::decode;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Reads the complete log, every chunk of every snapshot and every event, and checks them against their checksums, each other and the
/// acknowledged position. If nothing is wrong it rebuilds the state.
///
/// # Errors
/// [`JournalError::Newer`]: a later version has to verify it.
pub fn verify(store: &Arc<Store>) -> Result<Findings> {
    let mut findings = Findings::default();
    let log = match check_log(store, &mut findings.notes) {
        Err(newer @ JournalError::Newer(_)) => return Err(newer.into()),
        log => log,
    };
    let first = findings.take(log).unwrap_or(Seq(0));
    let checked = check_snapshots(store, first, &mut findings);
    findings.take(checked);
    let checked = check_events(store, &mut findings);
    findings.take(checked);
    for (entry, at) in findings.take(store.skipped_entries()).unwrap_or_default() {
        findings.notes.push(format!(
            "log: entry {} is skipped, by `cuckood repair skip` at {at}",
            entry.0
        ));
    }
    if findings.faults.is_empty() {
        let panicked = |panic| {
            format!(
                "{}: the state can't be rebuilt: {panic}",
                store.path().display()
            )
        };
        let rebuilt = catch(|| rebuild(store, &mut findings.faults)).map_err(panicked);
        let rebuilt = findings.take(rebuilt).transpose();
        if rebuilt.as_ref().is_err_and(RecoveryError::is_newer) {
            return rebuilt.map(|_| findings);
        }
        let note = findings.take(rebuilt).flatten();
        findings.notes.extend(note);
    }
    Ok(findings)
}

/// Reads the log. Returns its first position. A replicated one is its servers'.
fn check_log(store: &Arc<Store>, notes: &mut Vec<String>) -> Result<Seq, JournalError> {
    let Some(mut journal) = local_log(store)? else {
        notes.push("log: a replicated one, which its servers have".to_owned());
        return Ok(Seq(0));
    };
    let first = journal.first_available();
    let last = journal.last();
    let mut at = Seq(first.0.saturating_sub(1));
    let now = MonotonicClock::system().now();
    let mut context = Context::from_waker(Waker::noop());
    while let Poll::Ready(delivery) = journal.poll(at, now, &mut context) {
        if let Delivery::Entries(entries) = delivery? {
            at = entries.last().map_or(at, |committed| committed.entry.seq);
        }
    }
    let entries = counted((at.0 + 1).saturating_sub(first.0), "entry");
    notes.push(format!(
        "log: positions {} to {}, {entries}",
        first.0, last.0
    ));
    Ok(first)
}

/// Reads every event, and checks that none is missing between two others.
fn check_events(store: &Store, findings: &mut Findings) -> Result<(), StoreError> {
    let mut first = None;
    let mut last = None;
    let mut count = 0;
    let Findings { notes, faults } = findings;
    for tree in store.events().trees() {
        store.events().scan(tree, &[], |pack| {
            if last.is_some_and(|last| pack.previous != last) {
                faults.push(format!("events before event {} are missing", pack.first));
            }
            if pack.first < tree.first {
                faults.push(format!("event {} is in a tree of later ones", pack.first));
            }
            if let Some((bad, _)) = pack
                .events()
                .find(|(_, event)| decode::<Event<'_>>(event).is_none())
            {
                faults.push(format!("event {bad} can't be decoded"));
            }
            first = first.or(Some(pack.first));
            last = Some(pack.last());
            count += u64::from(pack.count);
            ControlFlow::Continue(())
        })?;
    }
    if let (Some(first), Some(last)) = (first, last) {
        notes.push(format!("events: {count}, numbers {first} to {last}"));
    }
    Ok(())
}

/// Builds the state from the newest snapshot, and the log after it if the directory has that. Returns a note. A snapshot that can't be loaded
/// is a fault, even if the one before it and the log make up for it.
fn rebuild(store: &Arc<Store>, faults: &mut Vec<String>) -> Result<String> {
    let (state, replayed) = match (local_log(store)?, store.manifests()?.first()) {
        (Some(mut log), _) => {
            let recovered = recover(store, &mut log, &mut |_| ())?;
            let damaged = recovered.damaged.iter().map(|manifest| manifest.generation);
            faults.extend(damaged.map(|number| format!("snapshot {number}: it can't be loaded")));
            (recovered.state, recovered.replayed)
        }
        (None, Some(newest)) => (load(store, newest, &mut |_| ())?, 0),
        (None, None) => (State::default(), 0),
    };
    let filters = [Kind::Campaign, Kind::Coupon].map(|kind| state.view().count(kind) as u64);
    let sizes = state.sizes();
    Ok(format!(
        "state at position {}, written {}: {}, {}, {}; {} replayed",
        state.applied().0,
        state.now(),
        counted(filters.iter().sum(), "filter"),
        counted(sizes.redemptions, "redemption"),
        counted(sizes.idempotency_records, "stored response"),
        counted(replayed, "entry"),
    ))
}
