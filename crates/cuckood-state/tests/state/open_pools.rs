//! Open pools against a plain program: holds that expire, a stock that changes, redemptions that are forgotten.

use cuckood_state::FreshEvents;
use cuckood_state::domain::{
    Command, Outcome, Redemption, RedemptionStatus, Refusal, Settings, Target, Timestamp,
};
use cuckood_state::testing::commands::{
    NewFilter, code, codes, redeem, redemption, set_stock, target,
};
use cuckood_state::testing::machine::Machine;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const POOL: Target = target(1);
const OTHER: Target = target(2);

const CODES: u64 = 9;

/// How long an ended redemption is kept.
const RETENTION_SECONDS: u64 = 30;

/// One redemption, as the program knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    code: u64,
    reference: u64,
    status: RedemptionStatus,
    ordinal: u64,
    expires_at: u64,
    changed_at: u64,
}

impl Known {
    fn stands(&self) -> bool {
        matches!(
            self.status,
            RedemptionStatus::Held | RedemptionStatus::Redeemed
        )
    }

    fn is_past_retention(&self, now: u64) -> bool {
        let last = if self.status == RedemptionStatus::Expired {
            self.expires_at
        } else {
            self.changed_at
        };
        self.status != RedemptionStatus::Held && last + RETENTION_SECONDS * 1_000 <= now
    }
}

/// A pool as maps.
struct Model {
    stock: u64,
    now: u64,
    redemptions: BTreeMap<u64, Known>,
}

/// The expected response to a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Made(u64),
    Found(u64),
    Refused(&'static str),
}

impl Model {
    fn standing(&self) -> impl Iterator<Item = (u64, Known)> {
        self.redemptions
            .iter()
            .map(|(id, known)| (*id, *known))
            .filter(|(_, known)| known.stands())
    }

    fn of_code(&self, code: u64) -> Option<(u64, Known)> {
        self.standing().find(|(_, known)| known.code == code)
    }

    /// Time has advanced, and an entry carries it.
    fn pass(&mut self, milliseconds: u64) {
        self.now += milliseconds;
        for known in self.redemptions.values_mut() {
            if known.status == RedemptionStatus::Held && known.expires_at <= self.now {
                *known = Known {
                    status: RedemptionStatus::Expired,
                    changed_at: self.now,
                    ..*known
                };
            }
        }
    }

    fn redeem(&mut self, id: u64, code: u64, reference: u64, hold_seconds: u64) -> Answer {
        let now = self.now;
        let expires_at = self.now + hold_seconds * 1_000;
        let status = if hold_seconds > 0 {
            RedemptionStatus::Held
        } else {
            RedemptionStatus::Redeemed
        };
        if let Some((known_id, mut known)) = self.of_code(code) {
            let is_same = known.reference == reference && !known.is_past_retention(now);
            return match (known.status, is_same) {
                (RedemptionStatus::Held, false) => Answer::Refused("code held"),
                (_, false) => Answer::Refused("code redeemed"),
                (RedemptionStatus::Held, true) => {
                    known.changed_at = now;
                    known.expires_at = known.expires_at.max(expires_at);
                    known.status = status;
                    self.redemptions.insert(known_id, known);
                    Answer::Found(known_id)
                }
                (_, true) => Answer::Found(known_id),
            };
        }
        if self.standing().count() as u64 >= self.stock {
            return Answer::Refused("sold out");
        }
        let taken: BTreeSet<u64> = self.standing().map(|(_, known)| known.ordinal).collect();
        let ordinal = (1..).find(|ordinal| !taken.contains(ordinal)).unwrap();
        self.redemptions.insert(
            id,
            Known {
                code,
                reference,
                status,
                ordinal,
                expires_at,
                changed_at: now,
            },
        );
        Answer::Made(id)
    }

    fn settle(&mut self, id: u64, status: RedemptionStatus) -> Answer {
        let now = self.now;
        let Some(known) = self
            .redemptions
            .get_mut(&id)
            .filter(|known| !known.is_past_retention(now))
        else {
            return Answer::Refused("redemption not found");
        };
        match (known.status, status) {
            (RedemptionStatus::Expired, RedemptionStatus::Redeemed) => {
                return Answer::Refused("hold expired");
            }
            (RedemptionStatus::Cancelled, RedemptionStatus::Redeemed) => {
                return Answer::Refused("redemption cancelled");
            }
            (RedemptionStatus::Held, _)
            | (RedemptionStatus::Redeemed, RedemptionStatus::Cancelled) => {
                (known.status, known.changed_at) = (status, now);
            }
            _ => {}
        }
        Answer::Found(id)
    }

    /// Whether a reader at this time sees a code as redeemable.
    fn admits(&self, code: u64, now: u64) -> bool {
        let stands =
            |known: &Known| known.status == RedemptionStatus::Redeemed || known.expires_at > now;
        let is_taken = self.of_code(code).is_some_and(|(_, known)| stands(&known));
        let standing = self.standing().filter(|(_, known)| stands(known)).count() as u64;
        !is_taken && standing < self.stock
    }
}

/// A pool that has to grow.
fn machine(stock: u64) -> Machine {
    let mut machine = Machine::new();
    let settings = Settings {
        redemptions_retention_seconds: RETENTION_SECONDS,
        ..Settings::default()
    };
    machine.apply(Command::Configure(settings));
    machine.create(POOL, &NewFilter::pool(2, stock));
    machine
}

/// A machine with another pool, whose complete stock is held for ten seconds.
fn machine_with_crowd(crowd: u64) -> Machine {
    let mut machine = machine(1);
    machine.create(OTHER, &NewFilter::pool(2, crowd));
    machine.apply(Command::Configure(Settings {
        events_retention_seconds: 60,
        ..Settings::default()
    }));
    for number in 0..crowd {
        assert!(
            matches!(
                machine.redeem(OTHER, number, "order", 10),
                Outcome::Redeemed(_)
            ),
            "{number}"
        );
    }
    machine
}

fn refusal(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::SoldOut => "sold out",
        Refusal::CodeHeld => "code held",
        Refusal::CodeRedeemed => "code redeemed",
        Refusal::RedemptionNotFound => "redemption not found",
        Refusal::HoldExpired => "hold expired",
        Refusal::RedemptionCancelled => "redemption cancelled",
        other => panic!("{other:?}"),
    }
}

fn assert_alike(found: &Redemption, known: &Known) {
    let Known {
        code: number,
        reference,
        status,
        ordinal,
        expires_at,
        changed_at,
    } = *known;
    assert_eq!((found.digest, found.status), (code(number), status));
    assert_eq!(
        (found.details.ordinal, found.reference.as_str()),
        (Some(ordinal), &*format!("order-{reference}"))
    );
    assert_eq!(found.changed_at, Timestamp(changed_at));
    if status == RedemptionStatus::Held {
        assert_eq!(found.expires_at, Some(Timestamp(expires_at)));
    }
}

/// Numbers that make a step.
type Step = (u8, u64, u64, u16);

fn run(stock: u64, steps: &[Step]) {
    let mut machine = machine(stock);
    let mut model = Model {
        stock,
        now: 1_000_000,
        redemptions: BTreeMap::new(),
    };
    for (serial, &(kind, a, b, pause)) in (1..).zip(steps) {
        let pause = if pause.is_multiple_of(3) {
            0
        } else {
            u64::from(pause) % 4_000
        };
        machine.now.0 += pause;
        model.pass(pause);
        let recent = u64::saturating_sub(serial, 1 + a % 12);
        let number = a % CODES;
        let reference = b % 3;
        let hold_seconds = [0, 2, 5, 40][(b / 3 % 4) as usize];
        let (command, expected) = match kind % 16 {
            0..9 => {
                let command = redeem(
                    POOL,
                    number,
                    serial,
                    &format!("order-{reference}"),
                    hold_seconds,
                );
                (
                    command,
                    Some(model.redeem(serial, number, reference, hold_seconds)),
                )
            }
            9..11 => {
                let command = Command::Confirm {
                    target: POOL,
                    redemption: redemption(recent),
                };
                (
                    command,
                    Some(model.settle(recent, RedemptionStatus::Redeemed)),
                )
            }
            11..14 => {
                let command = Command::Cancel {
                    target: POOL,
                    redemption: redemption(recent),
                };
                (
                    command,
                    Some(model.settle(recent, RedemptionStatus::Cancelled)),
                )
            }
            14 => (Command::Clear { target: POOL }, None),
            _ => {
                model.stock = b % 8 + 1;
                (set_stock(POOL, model.stock), None)
            }
        };
        let outcome = machine.apply(command);
        let answer = match &outcome {
            Outcome::Redeemed(found) | Outcome::Settled(found) => {
                let id = u128::from_be_bytes(found.id.0) as u64;
                assert_alike(found, &model.redemptions[&id]);
                let is_new = matches!(outcome, Outcome::Redeemed(_));
                Some(if is_new {
                    Answer::Made(id)
                } else {
                    Answer::Found(id)
                })
            }
            Outcome::Refused(why) => Some(Answer::Refused(refusal(why))),
            Outcome::Cleared(removed) => {
                assert_eq!(*removed, 0);
                None
            }
            Outcome::Updated(_) => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(answer, expected, "step {serial}");
        compare(&machine, &model, b % 7_000);
    }
}

/// What readers see, now and somewhat later.
fn compare(machine: &Machine, model: &Model, later: u64) {
    let view = machine.filter(POOL);
    let standing: Vec<Known> = model.standing().map(|(_, known)| known).collect();
    let ordinals: BTreeSet<u64> = standing.iter().map(|known| known.ordinal).collect();
    assert_eq!(ordinals.len(), standing.len(), "an ordinal twice");
    let stats = view.describe(Timestamp(model.now)).stats;
    let counts = stats.codes.states.unwrap();
    assert_eq!(
        (stats.items, counts.held + counts.redeemed),
        (standing.len() as u64, standing.len() as u64)
    );
    assert_eq!(
        counts.available,
        model.stock.saturating_sub(standing.len() as u64)
    );
    let mut found = Vec::new();
    for now in [model.now, model.now + later] {
        view.contains_many(&codes(0..CODES).0, Timestamp(now), &mut found);
        for number in 0..CODES {
            let expected = model.admits(number, now);
            assert_eq!(found[number as usize], expected, "code {number} at {now}");
            assert_eq!(
                view.contains(code(number), Timestamp(now)),
                expected,
                "code {number} at {now}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn pool_matches_naive_model(
        stock in 1..8u64,
        steps in proptest::collection::vec(any::<Step>(), 1..250),
    ) {
        run(stock, &steps);
    }
}

/// More holds expire together than a single entry ends: expired ones block no redemption.
#[test]
fn expired_holds_never_block_redemptions() {
    let crowd = 3_000;
    let mut machine = machine_with_crowd(crowd);
    assert!(matches!(
        machine.redeem(POOL, 1, "order", 11),
        Outcome::Redeemed(_)
    ));
    assert_eq!(
        machine.redeem(POOL, 2, "order", 0),
        Outcome::Refused(Refusal::SoldOut)
    );
    machine.pass_seconds(11);
    let Outcome::Redeemed(second) = machine.redeem(POOL, 2, "order", 0) else {
        panic!("the hold has expired")
    };
    assert_eq!(second.details.ordinal, Some(1));
    assert!(machine.state.sizes().holds_expired < crowd);
}

/// The stock is lowered below the number that one redemption can free. If a check says that a code can be redeemed, it can.
#[test]
fn check_predicts_redemption() {
    let crowd = 5_000;
    let mut machine = machine_with_crowd(crowd);
    machine.apply(set_stock(OTHER, 1));
    machine.pass_seconds(11);
    let mut refused = 0;
    for number in crowd.. {
        let is_valid = machine.filter(OTHER).contains(code(number), machine.now);
        match machine.redeem(OTHER, number, "order", 0) {
            Outcome::Redeemed(_) => break,
            other => assert_eq!(
                (other, is_valid),
                (Outcome::Refused(Refusal::SoldOut), false)
            ),
        }
        refused += 1;
    }
    assert!(refused > 1);
}

/// One redemption may end holds to free stock, in addition to those that every entry ends. The forecast includes both.
#[test]
fn redemption_events_stay_within_forecast() {
    let mut machine = machine_with_crowd(3_000);
    machine.apply(set_stock(OTHER, 900));
    machine.state.take_events(&mut FreshEvents::default());
    machine.pass_seconds(11);
    let room = machine.state.sweep_events_bytes(1, machine.now);
    machine.redeem(OTHER, 3_000, "order", 0);
    let events = machine.state.events().fresh().iter().count() as u64;
    assert!(events > 2_000, "{events} events");
    assert!(
        events * 250 < room,
        "{events} events, room for {room} bytes"
    );
}

/// Holds that only a wrong clock has expired are held again, and count as added.
#[test]
fn revived_entries_are_counted_after_turning_back() {
    let mut machine = machine(10);
    for number in 0..6 {
        machine.redeem(POOL, number, "order", 40);
    }
    let right = machine.now;
    machine.pass_seconds(50);
    machine.redeem(POOL, 100, "order", 0);
    machine.now = right.plus_seconds(1);
    assert!(matches!(
        machine.apply(Command::TurnBack),
        Outcome::TurnedBack { holds: 6, .. }
    ));
    let stats = machine.filter(POOL).describe(machine.now).stats;
    assert_eq!((stats.items, stats.adds - stats.removes), (7, 7));
}

/// What turning the time back reports follows from the log, not from when the events were taken.
#[test]
fn turn_back_events_are_independent_of_timing() {
    let crowd = 5_100;
    let reported = [true, false].map(|at_once| {
        let mut machine = machine(crowd);
        machine.apply(Command::Configure(Settings { events_retention_seconds: 60, ..Settings::default() }));
        let mut taken = FreshEvents::default();
        let mut take = |machine: &mut Machine| {
            if at_once {
                machine.state.take_events(&mut taken);
            }
        };
        for number in 0..crowd {
            machine.redeem(POOL, number, "order", 3_600);
            take(&mut machine);
        }
        let right = machine.now;
        machine.pass_seconds(7_200);
        for _ in 0..5 {
            machine.apply(Command::Advance { buckets_max: 0 });
            take(&mut machine);
        }
        machine.now = right.plus_seconds(1);
        let before = machine.state.events().last();
        assert!(
            matches!(machine.apply(Command::TurnBack), Outcome::TurnedBack { holds, .. } if holds == crowd)
        );
        machine.state.events().last() - before
    });
    assert_eq!(reported, [crowd + 1; 2]);
}
