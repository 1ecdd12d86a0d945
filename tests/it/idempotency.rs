//! Outcomes stored for repeated requests: retention, memory, and behavior at the limit.

use cuckood::domain::{
    Applied, Command, Digests, Entry, FilterId, IdempotencyKey, Kind, Name, Outcome, Proposal, RedemptionId,
    Reference, Refusal, Settings, Sizing, Spec, Target, Timestamp, Window,
};
use cuckood::filter::{Digest, Growth, Layout, Mode, Secret};
use cuckood::state::{IDEMPOTENCY_FIXED_BYTES, State};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64;

const CAMPAIGN: Target = Target(FilterId(1));
const COUPON: Target = Target(FilterId(2));

const RETENTION: u64 = 100_000;
const RETENTION_MIN: u64 = 20_000;
const ROOM: u64 = IDEMPOTENCY_FIXED_BYTES + 4_000;
/// More than a record of this test takes, and than a page's end may waste on it.
const RECORD_MAX: u64 = 600;

/// A state with a campaign and a coupon, and the time.
struct Machine {
    state: State,
    now: u64,
}

impl Machine {
    fn new(settings: Settings) -> Self {
        let mut machine = Self { state: State::new(), now: 1_000 };
        machine.apply(Command::Configure(settings), None);
        for (target, mode) in [(CAMPAIGN, Mode::Compact), (COUPON, Mode::Strict)] {
            let (layout, sizing) = match mode {
                Mode::Compact => (Layout::compact(100, 0.01, Growth::Auto), Sizing::ErrorRate(0.01)),
                Mode::Strict => (Layout::strict(100), Sizing::Exact),
            };
            let command = Command::Create {
                kind: Kind::Coupon,
                name: Name::new(&format!("f{}", target.0.0)).unwrap(),
                id: target.0,
                secret: Secret::new([7; 192]),
                spec: Spec {
                    capacity: 100,
                    mode,
                    growth: Growth::Auto,
                    sizing,
                    ignore_case: false,
                    stock: None,
                    forget: None,
                },
                layout: layout.unwrap(),
                window: Window::default(),
                annotations: Default::default(),
            };
            assert!(matches!(machine.apply(command, None).outcome, Outcome::Created(_)));
        }
        machine
    }

    fn apply(&mut self, command: Command, idempotency: Option<IdempotencyKey>) -> Applied {
        let proposal = Proposal { idempotency, ..Proposal::new(Timestamp(self.now), command) };
        self.state.apply(Entry { seq: self.state.applied().next(), proposal })
    }

    /// Bytes by which a command's record makes the records grow.
    fn record_bytes(&mut self, command: Command, scope: u128) -> u64 {
        let before = self.state.sizes().idempotency_bytes;
        self.apply(command, Some(IdempotencyKey { scope, request: 0 }));
        self.state.sizes().idempotency_bytes - before
    }
}

fn digests(numbers: impl Iterator<Item = u64>) -> Digests {
    Digests(numbers.map(|number| Digest(xxh3_64(&number.to_le_bytes()))).collect())
}

fn insert(target: Target, numbers: impl Iterator<Item = u64>) -> Command {
    Command::Insert { target, digests: digests(numbers), if_absent: true, revive: false }
}

static DRAWN: AtomicU64 = AtomicU64::new(1);

fn redeem(number: u64, reference: &str, hold_seconds: u64) -> Command {
    Command::Redeem {
        target: COUPON,
        digest: digests(number..=number).0[0],
        // Random for each request: no two redemptions have the same ID.
        redemption: RedemptionId(u128::from(DRAWN.fetch_add(1, Ordering::Relaxed)).to_be_bytes()),
        reference: Reference::new(reference).unwrap(),
        hold_seconds,
    }
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
        (0, 0) => insert(CAMPAIGN, number..number + 1),
        (0, 1) => insert(CAMPAIGN, (number..number + 90).map(|n| n * 3 % 151)),
        (0, _) => Command::Remove { target: CAMPAIGN, digests: digests(number..number + 40), all: true },
        (_, 0) => Command::Remove { target: COUPON, digests: digests(number..number + 10), all: false },
        (_, 1) => insert(COUPON, number..number + 30),
        _ => redeem(number % 40, &format!("order-{}", number % 7), number % 3),
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
        let mut machine = Machine::new(settings());
        let mut stored: Vec<Stored> = Vec::new();
        for (key, variant, pause) in requests {
            machine.now += if busy { pause / 50 } else { pause };
            let (now, variant) = (machine.now, variant / 7);
            let asked = IdempotencyKey { scope: u128::from(key), request: variant };
            let Applied { outcome, replayed } = machine.apply(request(key, variant), Some(asked));
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
    let mut machine = Machine::new(Settings { idempotency_room_bytes: ROOM, ..Settings::default() });
    for number in 0..WRITES {
        machine.now += 500;
        let key =
            IdempotencyKey { scope: u128::from(number).wrapping_mul(1 << 70 | 12_345), request: number };
        let applied = machine.apply(Command::Clear { target: CAMPAIGN }, Some(key));
        assert_eq!(applied.outcome, Outcome::Cleared(0), "write {number}");
    }
    assert!(
        machine.state.sizes().idempotency_records > 70_000,
        "{}",
        machine.state.sizes().idempotency_records
    );
    assert!(machine.state.sizes().idempotency_bytes <= ROOM);
    let hour_old = WRITES - 3_600_000 / 500;
    let key =
        IdempotencyKey { scope: u128::from(hour_old).wrapping_mul(1 << 70 | 12_345), request: hour_old };
    assert!(machine.apply(Command::Clear { target: CAMPAIGN }, Some(key)).replayed);
}

#[test]
fn idempotency_record_is_small() {
    let mut machine = Machine::new(Settings::default());
    machine.record_bytes(Command::Clear { target: CAMPAIGN }, 0);
    for (scope, count) in [(1, 1), (2, 100), (3, 10_000)] {
        let numbers = scope as u64 * 100_000..scope as u64 * 100_000 + count;
        let bytes = machine.record_bytes(insert(COUPON, numbers), scope);
        assert!(bytes <= 64, "{count} items: {bytes} bytes");
    }
    // One of the ten thousand is there already.
    let bytes = machine.record_bytes(insert(COUPON, 100_000..110_000), 4);
    assert!(bytes <= 64, "{bytes} bytes");
    // Every other one is: no two neighbors have the same outcome.
    let mixed = (0..10_000).map(|number| if number % 2 == 0 { 300_000 + number } else { 500_000 + number });
    let bytes = machine.record_bytes(insert(COUPON, mixed), 5);
    assert!((5_000..5_064).contains(&bytes), "{bytes} bytes");
    for (scope, hold_seconds) in [(6, 0), (7, 900)] {
        let bytes =
            machine.record_bytes(redeem(200_000 + scope as u64 * 2, "order-4711", hold_seconds), scope);
        assert!(bytes <= 80, "{bytes} bytes");
    }
    let clear = machine.record_bytes(Command::Clear { target: COUPON }, 8);
    assert!(clear <= 64, "{clear} bytes");
}

/// After the limit was lowered, space is freed incrementally, and no request is rejected unnecessarily.
#[test]
fn smaller_limit_is_reached_incrementally() {
    let mut machine = Machine::new(Settings::default());
    let clear = || Command::Clear { target: CAMPAIGN };
    for number in 0..10_000 {
        machine.apply(clear(), Some(IdempotencyKey { scope: number, request: 0 }));
    }
    machine.now += 3_600_000;
    machine.apply(Command::Configure(Settings { idempotency_room_bytes: ROOM, ..Settings::default() }), None);
    for number in 10_000..10_020 {
        let before = machine.state.sizes().idempotency_records;
        let applied = machine.apply(clear(), Some(IdempotencyKey { scope: number, request: 0 }));
        assert_eq!(applied.outcome, Outcome::Cleared(0));
        assert!(before < machine.state.sizes().idempotency_records + 2_500, "so many at a time");
    }
    assert!(machine.state.sizes().idempotency_bytes <= ROOM);
}
