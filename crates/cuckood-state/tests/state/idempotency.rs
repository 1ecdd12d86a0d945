//! Outcomes stored for repeated requests: retention, memory, and behavior at the limit.

use cuckood_state::IDEMPOTENCY_FIXED_BYTES;
use cuckood_state::domain::{
    Applied, Command, IdempotencyKey, Kind, Outcome, Proposal, Refusal, Settings, Target, Timestamp,
};
use cuckood_state::testing::commands::{NewFilter, codes, redeem, remove, target};
use cuckood_state::testing::machine::Machine;
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

const CAMPAIGN: Target = target(1);
const COUPON: Target = target(2);

const RETENTION: u64 = 100_000;
const RETENTION_MIN: u64 = 20_000;
const ROOM: u64 = IDEMPOTENCY_FIXED_BYTES + 4_000;
/// More than a record of this test takes, and than a page's end may waste on it.
const RECORD_MAX: u64 = 600;

/// A state with a compact coupon and a strict one.
fn machine(settings: Settings) -> Machine {
    let mut machine = Machine {
        now: Timestamp(1_000),
        ..Machine::new()
    };
    machine.apply(Command::Configure(settings));
    machine.create(
        CAMPAIGN,
        &NewFilter {
            kind: Kind::Coupon,
            ..NewFilter::campaign(100, 0.01)
        },
    );
    machine.create(COUPON, &NewFilter::coupon(100));
    machine
}

/// Applies a command under an idempotency key.
fn apply(machine: &mut Machine, command: Command, scope: u128, request: u64) -> Applied {
    let idempotency = Some(IdempotencyKey { scope, request });
    machine.propose(Proposal {
        idempotency,
        ..Proposal::new(machine.now, command)
    })
}

/// Returns the size of a command's record.
fn record_bytes(machine: &mut Machine, command: Command, scope: u128) -> u64 {
    let before = machine.state.sizes().idempotency_bytes;
    apply(machine, command, scope, 0);
    machine.state.sizes().idempotency_bytes - before
}

fn insert_if_absent(target: Target, numbers: impl IntoIterator<Item = u64>) -> Command {
    Command::Insert {
        target,
        digests: codes(numbers),
        if_absent: true,
        revive: false,
    }
}

/// A redemption with an ID that no other one has, even if the request is repeated.
fn redeem_once(number: u64, reference: &str, hold_seconds: u64) -> Command {
    static DRAWN: AtomicU64 = AtomicU64::new(1);
    redeem(
        COUPON,
        number,
        DRAWN.fetch_add(1, Ordering::Relaxed),
        reference,
        hold_seconds,
    )
}

fn settings() -> Settings {
    Settings {
        idempotency_retention_seconds: RETENTION / 1_000,
        idempotency_retention_min_seconds: RETENTION_MIN / 1_000,
        idempotency_room_bytes: ROOM,
        ..Settings::default()
    }
}

/// A request under a key, always the same for both numbers: one item or many, with outcomes alike or mixed. A key goes to
/// one filter, since another filter's keys are others.
fn request(key: u64, variant: u64) -> Command {
    let number = key * 2 + variant;
    match (key % 2, number / 2 % 3) {
        (0, 0) => insert_if_absent(CAMPAIGN, [number]),
        (0, 1) => insert_if_absent(CAMPAIGN, (number..number + 90).map(|n| n * 3 % 151)),
        (0, _) => Command::Remove {
            target: CAMPAIGN,
            digests: codes(number..number + 40),
            all: true,
        },
        (_, 0) => remove(COUPON, number..number + 10),
        (_, 1) => insert_if_absent(COUPON, number..number + 30),
        _ => redeem_once(number % 40, &format!("order-{}", number % 7), number % 3),
    }
}

/// The stored outcomes by the contract, oldest first.
#[derive(Clone)]
struct Stored {
    key: u64,
    variant: u64,
    at: u64,
    outcome: Outcome,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Within the shorter retention an outcome is always present, within the longer one while there is space; another request under a known
    /// key is reported; and a request is only rejected while all space is taken by outcomes younger than the shorter retention.
    #[test]
    fn outcomes_are_stored_within_time_and_space(
        requests in proptest::collection::vec((0..40u64, 0..8u64, 0..6_000u64), 1..400),
        busy in any::<bool>(),
    ) {
        let mut machine = machine(settings());
        let mut stored: Vec<Stored> = Vec::new();
        for (key, variant, pause) in requests {
            machine.now.0 += if busy { pause / 50 } else { pause };
            let now = machine.now.0;
            let variant = variant / 7;
            let Applied { outcome, replayed } = apply(&mut machine, request(key, variant), key.into(), variant);
            let known = stored.iter().rev().find(|record| record.key == key && now - record.at < RETENTION).cloned();
            let kept = machine.state.sizes().idempotency_records as usize;
            prop_assert!(machine.state.sizes().idempotency_bytes <= ROOM);
            match (&outcome, replayed) {
                (outcome, true) => {
                    let known = known.expect("an answer that was given");
                    prop_assert_eq!((&known.outcome, known.variant), (outcome, variant));
                }
                (Outcome::Refused(Refusal::KeyReused), _) => {
                    prop_assert!(known.is_some_and(|known| known.variant != variant));
                }
                (Outcome::Refused(Refusal::IdempotencyFull { retry_after_seconds }), _) => {
                    prop_assert!(known.is_none_or(|known| now - known.at >= RETENTION_MIN));
                    let oldest = stored[stored.len() - kept].at;
                    prop_assert!(now - oldest < RETENTION_MIN, "one could have made way");
                    prop_assert!(machine.state.sizes().idempotency_bytes + RECORD_MAX > ROOM, "there was room");
                    prop_assert_eq!(*retry_after_seconds, (oldest + RETENTION_MIN - now).div_ceil(1_000).max(1));
                }
                // What changed nothing is not stored.
                (Outcome::Refused(_), false) => {}
                (outcome, false) => {
                    prop_assert!(known.is_none_or(|known| now - known.at >= RETENTION_MIN), "it was to be kept");
                    stored.push(Stored { key, variant, at: now, outcome: outcome.clone() });
                }
            }
            // The newest are kept, and the others only gone for want of room.
            let gone = stored.len() - kept;
            if gone > 0 && now - stored[gone - 1].at < RETENTION {
                prop_assert!(machine.state.sizes().idempotency_bytes + RECORD_MAX > ROOM, "there was room");
            }
        }
    }
}

/// A day exceeds the space: the oldest outcomes are evicted, and no request is rejected.
#[test]
fn day_of_keyed_writes_fits() {
    const WRITES: u64 = 100_000;
    const ROOM: u64 = 4 << 20;
    let mut machine = machine(Settings {
        idempotency_room_bytes: ROOM,
        ..Settings::default()
    });
    let clear = |machine: &mut Machine, number: u64| {
        let scope = u128::from(number).wrapping_mul(1 << 70 | 12_345);
        apply(machine, Command::Clear { target: CAMPAIGN }, scope, number)
    };
    for number in 0..WRITES {
        machine.now.0 += 500;
        assert_eq!(
            clear(&mut machine, number).outcome,
            Outcome::Cleared(0),
            "write {number}"
        );
    }
    let sizes = machine.state.sizes();
    assert!(
        sizes.idempotency_records > 70_000,
        "{}",
        sizes.idempotency_records
    );
    assert!(sizes.idempotency_bytes <= ROOM);
    let hour_old = WRITES - 3_600_000 / 500;
    assert!(clear(&mut machine, hour_old).replayed);
}

#[test]
fn idempotency_record_is_small() {
    let mut machine = machine(Settings::default());
    let mut bytes = |command, scope| record_bytes(&mut machine, command, scope);
    bytes(Command::Clear { target: CAMPAIGN }, 0);
    for (scope, count) in [(1, 1), (2, 100), (3, 10_000)] {
        let numbers = scope as u64 * 100_000..scope as u64 * 100_000 + count;
        let bytes = bytes(insert_if_absent(COUPON, numbers), scope);
        assert!(bytes <= 64, "{count} items: {bytes} bytes");
    }
    // One of the ten thousand is there already.
    let repeated = bytes(insert_if_absent(COUPON, 100_000..110_000), 4);
    assert!(repeated <= 64, "{repeated} bytes");
    // Every other one is: no two neighbors have the same outcome.
    let mixed = (0..10_000).map(|number| {
        if number % 2 == 0 {
            300_000 + number
        } else {
            500_000 + number
        }
    });
    let mixed = bytes(insert_if_absent(COUPON, mixed), 5);
    assert!((5_000..5_064).contains(&mixed), "{mixed} bytes");
    for (scope, hold_seconds) in [(6, 0), (7, 900)] {
        let bytes = bytes(
            redeem_once(200_000 + scope as u64 * 2, "order-4711", hold_seconds),
            scope,
        );
        assert!(bytes <= 80, "{bytes} bytes");
    }
    let cleared = bytes(Command::Clear { target: COUPON }, 8);
    assert!(cleared <= 64, "{cleared} bytes");
}

/// After the limit was lowered, space is freed incrementally, and no request is rejected unnecessarily.
#[test]
fn smaller_limit_is_reached_incrementally() {
    let mut machine = machine(Settings::default());
    let clear = || Command::Clear { target: CAMPAIGN };
    for number in 0..10_000 {
        apply(&mut machine, clear(), number, 0);
    }
    machine.pass_seconds(3_600);
    machine.apply(Command::Configure(Settings {
        idempotency_room_bytes: ROOM,
        ..Settings::default()
    }));
    for number in 10_000..10_020 {
        let before = machine.state.sizes().idempotency_records;
        assert_eq!(
            apply(&mut machine, clear(), number, 0).outcome,
            Outcome::Cleared(0)
        );
        assert!(
            before < machine.state.sizes().idempotency_records + 2_500,
            "one entry deleted too many outcomes"
        );
    }
    assert!(machine.state.sizes().idempotency_bytes <= ROOM);
}
