//! The running hash of everything that was applied: each entry, its outcome, and what the state counts after it, chained to the
//! hash before. Nodes that have applied the same log have the same one at every position, and two that differ once differ for good.
//!
//! So it shows that two nodes have read different entries, or have come to different outcomes, expiries or events: by a fault of a
//! program, by two builds that disagree, or by damaged memory as soon as an outcome depends on it. It is no checksum of the
//! tables: a bit that flips in one is not noticed before a command comes upon it.

use crate::domain::{Applied, Entry, STATE_HASH_EVERY, Seq, StateHash};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

/// Memory that is kept for encoding the next entry.
const BUFFER_KEPT_BYTES: usize = 64 << 10;

/// The hashes up to the last entry.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct History {
    /// After the last entry.
    pub(super) hash: u128,
    /// At the last position at which nodes compare.
    pub(super) last: StateHash,
    #[serde(skip)]
    buffer: Vec<u8>,
}

impl History {
    /// An entry is about to be applied.
    pub(super) fn begin(&mut self, entry: &Entry) {
        self.buffer.clear();
        self.buffer.extend_from_slice(&self.hash.to_le_bytes());
        encode(entry, &mut self.buffer);
    }

    /// It is applied, with this outcome, and the state has these figures now.
    pub(super) fn end(&mut self, at: Seq, applied: &Applied, figures: [u64; 8]) {
        encode(&applied.outcome, &mut self.buffer);
        self.buffer.push(u8::from(applied.replayed));
        for figure in figures {
            self.buffer.extend_from_slice(&figure.to_le_bytes());
        }
        self.hash = xxh3_128(&self.buffer);
        self.buffer.shrink_to(BUFFER_KEPT_BYTES);
        if at.0.is_multiple_of(STATE_HASH_EVERY) {
            self.last = StateHash { at, hash: self.hash };
        }
    }
}

fn encode(value: &impl Serialize, buffer: &mut Vec<u8>) {
    let bytes = std::mem::take(buffer);
    *buffer = postcard::to_extend(value, bytes).expect("plain data always encodes");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Command, Outcome, Proposal, Refusal, Timestamp};
    use crate::state::State;

    fn entry(seq: u64, at: u64) -> Entry {
        Entry { seq: Seq(seq), proposal: Proposal::new(Timestamp(at), Command::Advance { buckets_max: 1 }) }
    }

    fn state_after(times: impl IntoIterator<Item = u64>) -> State {
        let mut state = State::new();
        for (seq, at) in (1..).zip(times) {
            state.apply(entry(seq, at));
        }
        state
    }

    #[test]
    fn the_same_log_has_the_same_hash_and_any_other_has_another_for_good() {
        let hash = |times: [u64; 3]| state_after(times).hash();
        assert_eq!(hash([1, 2, 3]), hash([1, 2, 3]));
        assert_eq!(hash([1, 2, 3]).at, Seq(3));
        // The state itself is the same in the end.
        assert_ne!(hash([1, 2, 3]).hash, hash([2, 2, 3]).hash);
        assert_ne!(state_after([1, 2]).hash().hash, state_after([1, 2, 2]).hash().hash);
    }

    #[test]
    fn another_outcome_or_another_figure_gives_another_hash() {
        let hash = |outcome, replayed, figures| {
            let mut history = History::default();
            history.begin(&entry(1, 1));
            history.end(Seq(1), &Applied { outcome, replayed }, figures);
            history.hash
        };
        let usual = hash(Outcome::Advanced, false, [0; 8]);
        assert_eq!(hash(Outcome::Advanced, false, [0; 8]), usual);
        assert_ne!(hash(Outcome::Refused(Refusal::FilterGone), false, [0; 8]), usual);
        assert_ne!(hash(Outcome::Advanced, true, [0; 8]), usual);
        for number in 0..8 {
            let mut figures = [0; 8];
            figures[number] = 1;
            assert_ne!(hash(Outcome::Advanced, false, figures), usual, "figure {number}");
        }
    }

    #[test]
    fn the_hash_at_the_last_common_position_is_kept() {
        let mut state = state_after(std::iter::repeat_n(7, STATE_HASH_EVERY as usize - 1));
        assert_eq!(state.last_hash(), StateHash::default());
        state.apply(entry(STATE_HASH_EVERY, 7));
        let kept = state.hash();
        assert_eq!((state.last_hash(), kept.at), (kept, Seq(STATE_HASH_EVERY)));
        state.apply(entry(STATE_HASH_EVERY + 1, 7));
        assert_eq!(state.last_hash(), kept);
        assert_ne!(state.hash().hash, kept.hash);
    }
}
