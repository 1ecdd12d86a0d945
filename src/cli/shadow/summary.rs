//! What a run of the mirror has done, and what it knows to be missing.

use serde::Serialize;
use std::collections::BTreeMap;

/// The most names of commands that are told apart.
const NAMES_MAX: usize = 100;

/// The summary of a run, as it is printed.
#[derive(Serialize, Default)]
pub struct Summary {
    /// Commands that were mirrored.
    pub commands: u64,
    /// Items that were added.
    pub added: u64,
    /// Items that were removed.
    pub removed: u64,
    /// Items that went when the key was deleted.
    pub cleared: u64,
    /// Items that the service can't have.
    pub skipped: u64,
    /// How often the connection to Redis broke.
    pub gaps: u64,
    /// Commands that may have changed the key and were not mirrored, by name.
    not_mirrored: BTreeMap<String, u64>,
    /// How long it took.
    pub seconds: f64,
}

impl Summary {
    /// Counts a command that was not mirrored. Returns whether it is the first of its name.
    pub fn not_mirrored(&mut self, name: &str) -> bool {
        if let Some(count) = self.not_mirrored.get_mut(name) {
            *count += 1;
            return false;
        }
        let name = if self.not_mirrored.len() < NAMES_MAX { name } else { "others" };
        let count = self.not_mirrored.entry(name.to_owned()).or_default();
        *count += 1;
        *count == 1
    }

    /// Whether nothing is known to be missing.
    pub fn is_complete(&self) -> bool {
        self.gaps == 0 && self.skipped == 0 && self.not_mirrored.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_complete_unless_something_is_missing() {
        assert!(Summary::default().is_complete());
        assert!(!Summary { gaps: 1, ..Summary::default() }.is_complete());
        assert!(!Summary { skipped: 1, ..Summary::default() }.is_complete());
        let mut summary = Summary::default();
        assert!(summary.not_mirrored("spop") && !summary.not_mirrored("spop"));
        assert!(!summary.is_complete());
        for number in 0..2 * NAMES_MAX {
            summary.not_mirrored(&format!("name-{number}"));
        }
        assert_eq!((summary.not_mirrored["spop"], summary.not_mirrored["others"]), (2, 101));
    }
}
