//! Whatever decodes can be applied: commands of random logs with one field set to a value at which something may break.

use crate::images::{boundaries, forge, operation};
use cuckood_state::domain::{Entry, FilterId, Proposal, Target};
use cuckood_state::testing::machine::Snapshot;
use cuckood_state::testing::random_log::RandomLog;
use cuckood_state::{State, WaitingDemand};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use xxhash_rust::xxh3::xxh3_64;

/// Samples of each command.
const SAMPLES: usize = 6;

/// A command that needs more memory than this is not logged.
const MEMORY_BYTES_MAX: u64 = 64 << 20;

/// A command, and the state that it was made for.
struct Sample {
    /// States can't be cloned.
    before: Snapshot,
    proposal: Proposal,
}

/// Samples of every command that random logs have.
fn samples() -> &'static BTreeMap<&'static str, Vec<Sample>> {
    static SAMPLES_OF_ALL: LazyLock<BTreeMap<&'static str, Vec<Sample>>> = LazyLock::new(|| {
        let mut log = RandomLog::new();
        let mut state = State::default();
        let mut samples: BTreeMap<_, Vec<Sample>> = BTreeMap::new();
        let beginning = log.beginning();
        let random = |number: u64, which: u64| {
            xxh3_64(&[number.to_le_bytes(), which.to_le_bytes()].concat())
        };
        let rest = (0..3_000).map(|number| {
            log.next((
                random(number, 0) as u8,
                random(number, 1),
                random(number, 2),
                random(number, 3) as u16,
            ))
        });
        for entry in beginning.into_iter().chain(rest) {
            let known = samples.entry(entry.proposal.command.word()).or_default();
            // Later ones meet a state with more in it.
            if known.len() < SAMPLES && (known.len() < 2 || entry.seq.0 > 300 * known.len() as u64)
            {
                let before = Snapshot::of(&mut state);
                known.push(Sample {
                    before,
                    proposal: entry.proposal.clone(),
                });
            }
            state.apply(entry);
        }
        samples
    });
    &SAMPLES_OF_ALL
}

/// Applies a sample with one field set to a value, and something after it. Returns whether there is such a field.
fn apply_forged(sample: &Sample, field: usize, value: &Value) -> bool {
    let Some(forged) = forge(&sample.proposal, field, value) else {
        return false;
    };
    // A constructor has rejected it.
    let Some(proposal) = forged else { return true };
    let mut state = sample.before.restore();
    let is_keyed = proposal.idempotency.is_some();
    let is_repeated = state.repeats(&proposal.command, proposal.at);
    let claim = WaitingDemand::default().claim(&state, &proposal.command, is_repeated, is_keyed);
    if claim.unwrap().need.bytes > MEMORY_BYTES_MAX {
        return true;
    }
    let what = format!("field {field} = {value}: {proposal:.300?}");
    let target = proposal.command.target().unwrap_or(Target(FilterId(2)));
    state.apply(Entry {
        seq: state.applied().next(),
        proposal,
    });
    let go_on = |state: &mut State, from: u64, to: u64| {
        (from..to).for_each(|serial| {
            let random = xxh3_64(&[field as u64, serial].map(u64::to_le_bytes).concat());
            let command = operation(random as u8, random >> 8 & 63, 1_000_000 + serial, target);
            let proposal = Proposal::new(state.now().plus_seconds(20), command);
            state.apply(Entry {
                seq: state.applied().next(),
                proposal,
            });
        });
    };
    go_on(&mut state, 0, 20);
    let stored = Snapshot::of(&mut state);
    let mut restored = stored.restore();
    assert!(
        Snapshot::of(&mut restored) == stored,
        "the bytes differ after a restart: {what}"
    );
    go_on(&mut state, 20, 25);
    go_on(&mut restored, 20, 25);
    assert_eq!(state.hash(), restored.hash(), "{what}");
    assert!(
        Snapshot::of(&mut restored) == Snapshot::of(&mut state),
        "{what}"
    );
    true
}

/// [`apply_forged`] for one of all samples, by number.
pub fn apply_forged_sample(number: usize, field: usize, value: &Value) -> bool {
    let all: Vec<&Sample> = samples().values().flatten().collect();
    apply_forged(all[number % all.len()], field, value)
}

#[test]
fn samples_cover_every_command() {
    // `clock repair` and images that are taken up again are in the logs, too.
    assert_eq!(samples().len(), 24, "{:?}", samples().keys());
}

#[test]
#[ignore = "takes minutes: every field with every value"]
fn every_forged_field_is_rejected_or_works() {
    let mut failures = Vec::new();
    for (word, samples) in samples() {
        for (number, sample) in samples.iter().enumerate() {
            for value in boundaries() {
                for field in 0..60 {
                    let applied = std::panic::catch_unwind(|| apply_forged(sample, field, &value));
                    if applied.is_err() {
                        failures.push(format!(
                            "{word}, sample {number}, field {field} = {value:.20}"
                        ));
                    }
                    if applied.is_ok_and(|is_there| !is_there) {
                        break;
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever one field of a command says: the command is rejected, or the state works and is the same after a restart.
    #[test]
    fn forged_command_is_rejected_or_works(
        sample in any::<u16>(),
        field in 0..24_usize,
        value in any::<Index>(),
    ) {
        apply_forged_sample(sample.into(), field, value.get(&boundaries()));
    }
}
