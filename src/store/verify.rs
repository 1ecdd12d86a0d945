//! Checks of snapshots that don't need to know what their bytes mean.

use super::{Store, StoreError};
use crate::domain::Seq;
use std::collections::BTreeSet;
use std::fmt::Display;

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// What there is, one line each.
    pub notes: Vec<String>,
    /// What is wrong, one line each; empty if nothing is.
    pub faults: Vec<String>,
}

impl Findings {
    /// Takes the result of a check. A check that fails is a fault, and has no result.
    pub fn take<T, E: Display>(&mut self, checked: Result<T, E>) -> Option<T> {
        checked.map_err(|error| self.faults.push(error.to_string())).ok()
    }
}

/// Reads every chunk of every snapshot and checks its checksum. `log_first` is the first position that the log still has;
/// `log_is_whole` says that it reaches back to the beginning.
///
/// # Errors
/// [`StoreError::Damaged`] if the snapshots can't even be listed.
pub fn check_snapshots(
    store: &Store,
    log_first: Seq,
    log_is_whole: bool,
    findings: &mut Findings,
) -> Result<(), StoreError> {
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
                if findings.take(store.read_chunk(section, index, &mut out)).is_some() {
                    (chunks, bytes) = (chunks + 1, bytes + out.len() as u64);
                }
            }
        }
        let (generation, seq, sections) = (manifest.generation, manifest.seq.0, manifest.sections.len());
        findings.notes.push(format!(
            "snapshot {generation}: position {seq}, {sections} sections, {chunks} chunks, {bytes} bytes"
        ));
        if log_first.0 > seq + 1 {
            findings.faults.push(format!("snapshot {generation}: the log begins after position {seq}"));
        }
    }
    if manifests.is_empty() && !log_is_whole {
        findings.faults.push("the beginning of the log is gone, and there is no snapshot".to_owned());
    }
    Ok(())
}
