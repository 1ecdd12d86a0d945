//! Everything that can be checked of a data directory without knowing what its bytes mean.

use super::{Store, StoreError, log};
use std::collections::BTreeSet;

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// What there is, a line each.
    pub notes: Vec<String>,
    /// What is wrong, a line each; empty if nothing is.
    pub faults: Vec<String>,
}

/// Reads the whole log and every chunk of every snapshot, and checks them against their checksums, each other
/// and what was acknowledged.
pub fn verify(store: &Store) -> Findings {
    let mut findings = Findings::default();
    let result = check_log(store, &mut findings).and_then(|()| check_snapshots(store, &mut findings));
    if let Err(error) = result {
        findings.faults.push(error.to_string());
    }
    findings
}

fn check_log(store: &Store, findings: &mut Findings) -> Result<(), StoreError> {
    let acknowledged = store.acknowledged().seq.0;
    let tail = log::Tail::find(store)?.link();
    let first = log::first_available(store).unwrap_or(tail.seq.next());
    let (mut commits, mut bytes) = (0u64, 0u64);
    let read = log::read(store, crate::domain::Seq(first.0.saturating_sub(1)), |commit, _| {
        commits += 1;
        bytes += commit.payload.len() as u64;
        Ok::<(), StoreError>(())
    });
    match read {
        Ok(end) if end == tail => {}
        Ok(end) => findings.faults.push(format!("the log was read to {}, not to {}", end.seq.0, tail.seq.0)),
        Err(error) => findings.faults.push(error.to_string()),
    }
    let (first, last) = (first.0, tail.seq.0);
    findings.notes.push(format!(
        "log: positions {first} to {last} in {commits} commits, {bytes} bytes; acknowledged up to {acknowledged}"
    ));
    Ok(())
}

fn check_snapshots(store: &Store, findings: &mut Findings) -> Result<(), StoreError> {
    let first = log::first_available(store);
    let manifests = store.manifests()?;
    let readable: BTreeSet<u64> = manifests.iter().map(|manifest| manifest.generation).collect();
    for generation in super::snapshots::generations(store)? {
        if !readable.contains(&generation) {
            findings.faults.push(format!("snapshot {generation}: its manifest is damaged"));
        }
    }
    let mut out = Vec::new();
    for manifest in &manifests {
        let (mut chunks, mut bytes) = (0u64, manifest.meta.len() as u64);
        for section in &manifest.sections {
            for index in 0..section.chunks {
                match store.read_chunk(section, index, &mut out) {
                    Ok(()) => (chunks, bytes) = (chunks + 1, bytes + out.len() as u64),
                    Err(error) => findings.faults.push(error.to_string()),
                }
            }
        }
        let (generation, seq, sections) = (manifest.generation, manifest.seq.0, manifest.sections.len());
        findings.notes.push(format!(
            "snapshot {generation}: position {seq}, {sections} sections, {chunks} chunks, {bytes} bytes"
        ));
        if first.is_some_and(|first| first.0 > seq + 1) {
            findings.faults.push(format!("snapshot {generation}: the log begins after position {seq}"));
        }
    }
    if manifests.is_empty()
        && first.is_some_and(|first| first != store.log_base().map_or(first, |base| base.seq.next()))
    {
        findings.faults.push("the beginning of the log is gone, and there is no snapshot".to_owned());
    }
    Ok(())
}
