//! What a node tells the others about itself with each beat: its build, the entries that it understands, and the hash of its state.

use crate::domain::{STATE_HASH_EVERY, Seq, StateHash};
use serde::{Deserialize, Serialize};

/// The most bytes of a build's name that are kept.
const BUILD_BYTES_MAX: usize = 64;

/// A node's report about itself.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Report {
    /// Its build; empty if it is not known.
    pub(super) build: String,
    /// The highest version of entries that it understands; 0 if it is not known.
    pub(super) understands: u16,
    /// The hash of its state at the last position at which nodes compare.
    pub(super) hash: Option<(Seq, u128)>,
}

impl Report {
    /// The report of this build.
    pub(super) fn of_this_build(understands: u16, hash: Option<StateHash>) -> Report {
        let hash = hash.map(|StateHash { at, hash }| (at, hash));
        Report { build: env!("CARGO_PKG_VERSION").to_owned(), understands, hash }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("plain data always encodes")
    }

    /// Decodes a report. What a later build has added behind it is passed over; what can't be read tells nothing.
    pub(super) fn decode(bytes: &[u8]) -> Report {
        let read = postcard::take_from_bytes::<Report>(bytes);
        let known = read.map(|(report, _)| report).ok();
        known.filter(|report| report.build.len() <= BUILD_BYTES_MAX).unwrap_or_default()
    }

    /// The same without a hash that nobody can have who has read the log up to this position.
    pub(super) fn up_to(self, read: Seq) -> Report {
        let can_be = |at: Seq| at > Seq(0) && at <= read && at.0.is_multiple_of(STATE_HASH_EVERY);
        Report { hash: self.hash.filter(|(at, _)| can_be(*at)), ..self }
    }

    /// The hash that it tells.
    pub(super) fn hash(&self) -> Option<StateHash> {
        self.hash.map(|(at, hash)| StateHash { at, hash })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_comes_back_whatever_a_later_build_adds() {
        let report = Report::of_this_build(3, Some(StateHash { at: Seq(1 << 16), hash: u128::MAX - 5 }));
        let mut bytes = report.encode();
        assert_eq!(Report::decode(&bytes), report);
        bytes.extend_from_slice(b"more");
        assert_eq!(Report::decode(&bytes), report);
        assert_eq!(Report::decode(&bytes[..5]), Report::default());
        assert_eq!(Report::decode(&[]), Report::default());
    }

    /// Hashes of positions that are still to come would push those out by which nodes are compared.
    #[test]
    fn a_hash_that_nobody_can_have_is_dropped() {
        let kept = |at: u64, read: u64| {
            let report = Report::of_this_build(1, Some(StateHash { at: Seq(at), hash: 7 }));
            report.up_to(Seq(read)).hash().is_some()
        };
        let every = STATE_HASH_EVERY;
        assert!(kept(every, every) && kept(2 * every, 5 * every));
        assert!(!kept(0, every) && !kept(every + 1, 5 * every));
        assert!(!kept(2 * every, 2 * every - 1) && !kept(u64::MAX - (every - 1), every));
    }

    #[test]
    fn a_build_that_is_not_to_be_believed_is_not_kept() {
        let report = Report { build: "x".repeat(BUILD_BYTES_MAX + 1), ..Report::default() };
        assert_eq!(Report::decode(&report.encode()).build, "");
    }
}
