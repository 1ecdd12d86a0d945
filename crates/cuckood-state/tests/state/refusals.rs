//! Certain refusals of readers are correct: random logs of all commands, in which redemptions are looked up before they are applied, at
//! other times than the entries have. A second log has [`Command::Advance`] in place of every such refusal: nothing else may differ.

use cuckood_filter::Digest;
use cuckood_state::domain::{
    Command, Entry, Kind, Outcome, Proposal, Redeem, RedemptionId, Reference, Refusal, Target,
    Timestamp, Update,
};
use cuckood_state::testing::commands::{code, name};
use cuckood_state::testing::random_log::{CODES, EntryNumbers, ITEMS, RandomLog};
use cuckood_state::{FilterView, FreshEvents, State};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How often each refusal was given, and how often it was certain beforehand.
type Counts = BTreeMap<&'static str, (u64, u64)>;

/// A state that has every entry, and one that has none that was certain to be refused.
struct Twins {
    all: State,
    others: State,
}

/// A possible redemption.
struct Wish {
    coupon: Arc<FilterView>,
    digest: Digest,
    reference: Reference,
    customer: Option<Digest>,
    hold_seconds: u64,
}

fn name_of(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::CodeUnknown => "unknown",
        Refusal::CodeRedeemed => "redeemed",
        Refusal::CodeHeld => "held",
        Refusal::SoldOut => "sold out",
        Refusal::OutsideWindow => "outside the window",
        Refusal::CustomerLimit => "customer limit",
        other => panic!("{other:?} can't be predicted"),
    }
}

fn fresh_events(state: &mut State) -> Vec<(u64, Vec<u8>)> {
    let mut fresh = FreshEvents::default();
    state.take_events(&mut fresh);
    fresh
        .iter()
        .map(|event| (event.number, event.bytes.to_vec()))
        .collect()
}

impl Twins {
    fn new() -> Self {
        Self {
            all: State::default(),
            others: State::default(),
        }
    }

    /// Applies an entry and returns its outcome.
    fn apply(&mut self, proposal: Proposal) -> Outcome {
        let instead = proposal.clone();
        self.apply_two(proposal, instead).0
    }

    fn apply_two(&mut self, one: Proposal, other: Proposal) -> (Outcome, Outcome) {
        let entry = |state: &State, proposal| Entry {
            seq: state.applied().next(),
            proposal,
        };
        let is_same = one == other;
        let one = self.all.apply(entry(&self.all, one));
        let other = self.others.apply(entry(&self.others, other));
        assert!(!is_same || one == other, "{one:?} and {other:?}");
        assert_eq!(
            fresh_events(&mut self.all),
            fresh_events(&mut self.others),
            "{one:?}"
        );
        let figures = |state: &State| {
            (
                state.now(),
                state.sizes().redemptions,
                state.sizes().codes,
                state.due_at(),
                state.sizes().idempotency_bytes,
            )
        };
        assert_eq!(figures(&self.all), figures(&self.others), "{one:?}");
        self.all.publish();
        self.others.publish();
        (one.outcome, other.outcome)
    }

    /// Asks about a redemption as of `now`, and has it applied at some time until then if it is certain to be refused.
    fn refuse(&mut self, wish: &Wish, now: Timestamp, at: Timestamp) -> Option<Refusal> {
        let Wish {
            coupon,
            digest,
            reference,
            customer,
            hold_seconds,
        } = wish;
        let logged = self.all.now();
        let refusal = coupon.certain_refusal(*digest, reference, *customer, logged, now)?;
        let redeem = Redeem {
            target: Target(coupon.id),
            digest: *digest,
            redemption: RedemptionId([255; 16]),
            reference: reference.clone(),
            hold_seconds: *hold_seconds,
        };
        let redeem = match *customer {
            None => Command::Redeem(redeem),
            Some(customer) => Command::RedeemFor { redeem, customer },
        };
        let advance = Command::Advance { buckets_max: 0 };
        let (refused, _) = self.apply_two(Proposal::new(at, redeem), Proposal::new(at, advance));
        assert_eq!(
            refused,
            Outcome::Refused(refusal.clone()),
            "at {at:?}, asked as of {now:?}"
        );
        Some(refusal)
    }

    /// Some redemption, by numbers.
    fn wish(&self, filter: u64, a: u64, b: u64) -> Option<Wish> {
        let name = name(&format!(
            "f{}",
            [0, 2, 3, 4, 6, 7, 8][(filter % 7) as usize]
        ));
        let coupon = self.all.view().find(Kind::Coupon, &name)?;
        let among = if a.is_multiple_of(4) { ITEMS } else { CODES };
        let reference = Reference::new(&format!("order-{}", b % 5)).unwrap();
        let hold_seconds = b / 5 % 2 * 60;
        Some(Wish {
            coupon,
            digest: code(a / 4 % among),
            reference,
            customer: (!(b / 10).is_multiple_of(4)).then(|| code(b / 10 % 4)),
            hold_seconds,
        })
    }
}

/// Counts the outcome of a redemption of the log, which readers predict as of the time of its entry.
fn count(twins: &mut Twins, entry: Entry, counts: &mut Counts) {
    let Entry { proposal, .. } = entry;
    let at = proposal.at;
    let logged = twins.all.now();
    let certain = match &proposal.command {
        Command::Redeem(redeem) | Command::RedeemFor { redeem, .. }
            if proposal.idempotency.is_none() =>
        {
            let Redeem {
                target,
                digest,
                reference,
                ..
            } = redeem;
            let customer = match &proposal.command {
                Command::RedeemFor { customer, .. } => Some(*customer),
                _ => None,
            };
            let coupons = twins.all.view().list(Kind::Coupon, "", None, usize::MAX);
            let coupon = coupons.into_iter().find(|coupon| coupon.id == target.0);
            Some(coupon.and_then(|it| {
                it.certain_refusal(*digest, reference, customer, logged, at.max(logged))
            }))
        }
        _ => None,
    };
    let outcome = twins.apply(proposal);
    match (certain, &outcome) {
        (Some(Some(certain)), _) => {
            assert_eq!(outcome, Outcome::Refused(certain.clone()));
            let (given, known) = counts.entry(name_of(&certain)).or_default();
            (*given, *known) = (*given + 1, *known + 1);
        }
        (Some(None), Outcome::Refused(refusal))
            if !matches!(
                refusal,
                Refusal::FilterGone
                    | Refusal::RequiresStrictMode
                    | Refusal::FilterFull
                    | Refusal::CustomerRequired
            ) =>
        {
            counts.entry(name_of(refusal)).or_default().0 += 1;
        }
        _ => {}
    }
}

/// Has a coupon begin or end soon, or be open again.
fn set_window(entry: &mut Entry, (_, a, b, _): EntryNumbers) {
    let soon = |ahead: u64| Some(Timestamp(entry.proposal.at.0 + ahead % 2_000));
    let window = match a % 4 {
        0 => (soon(b), None),
        1 => (None, soon(b)),
        2 => (soon(b), soon(b).map(|at| Timestamp(at.0 + 1 + b % 900))),
        _ => (None, None),
    };
    if let Command::Update(Update {
        starts_at,
        ends_at,
        capacity,
        ..
    }) = &mut entry.proposal.command
    {
        (*starts_at, *ends_at) = (Some(window.0), Some(window.1));
        // One that is too low would have all of it refused.
        *capacity = None;
    }
}

/// Numbers of a log that has hardly anything but codes, redemptions and changes of coupons, so that holds last until they run out.
fn dense((kind, a, b, pause): EntryNumbers) -> EntryNumbers {
    const REDEEM: u8 = 5;
    const RARE: u8 = 14;
    const UPDATE: u8 = 15;
    let filter = kind / 16 * 16;
    let command = kind % 16;
    let pause = pause % 600;
    match command {
        // All codes, and again.
        0 => (filter + RARE, a / 13 * 13 + 10, b, pause),
        8 | 9 => (filter + command, a % 4, b, pause),
        10..=12 if b.is_multiple_of(3) => (filter + UPDATE, a, b | 1, pause),
        14 if b.is_multiple_of(4) => (kind, a, b / 4, pause),
        _ => (filter + REDEEM, a, b, pause),
    }
}

fn run(
    numbers: &[EntryNumbers],
    questions: &[(u64, u64, u64, u16)],
    is_dense: bool,
    counts: &mut Counts,
) {
    let mut twins = Twins::new();
    let mut log = RandomLog::new();
    for entry in log.beginning() {
        twins.apply(entry.proposal);
    }
    for (step, numbers) in numbers.iter().enumerate() {
        let mut entry = log.next(if is_dense { dense(*numbers) } else { *numbers });
        if is_dense {
            set_window(&mut entry, *numbers);
        }
        count(&mut twins, entry, counts);
        for (filter, a, b, ahead) in questions.iter().skip(step % 7).step_by(7) {
            let Some(wish) = twins.wish(*filter, a.wrapping_add(step as u64), *b) else {
                continue;
            };
            let logged = twins.all.now();
            // Usually soon, sometimes after all due work. The entry follows at some time between, or the clock is set back.
            let ahead = if ahead.is_multiple_of(5) {
                u64::from(*ahead)
            } else {
                u64::from(*ahead % 300)
            };
            let now = Timestamp(logged.0 + ahead);
            let at = Timestamp(logged.0 + b % (ahead + 2) - 1);
            if let Some(refusal) = twins.refuse(&wish, now, at.min(now)) {
                let (given, known) = counts.entry(name_of(&refusal)).or_default();
                (*given, *known) = (*given + 1, *known + 1);
            }
        }
    }
}

#[test]
fn certain_refusal_needs_no_entry() {
    let counts = RefCell::new(Counts::new());
    let questions = proptest::collection::vec(any::<(u64, u64, u64, u16)>(), 7..40);
    let logs = (
        cuckood_state::testing::random_log::numbers(250),
        questions,
        any::<bool>(),
    );
    let config = Config {
        cases: 120,
        failure_persistence: None,
        ..Config::default()
    };
    let result = TestRunner::new(config).run(&logs, |(numbers, questions, is_dense)| {
        run(&numbers, &questions, is_dense, &mut counts.borrow_mut());
        Ok(())
    });
    result.unwrap();
    let counts = counts.into_inner();
    println!("{counts:?}");
    assert_eq!(counts.len(), 6, "{counts:?}");
    // Else hardly any would do without an entry.
    assert!(
        counts.values().all(|(given, known)| known * 2 > *given),
        "{counts:?}"
    );
}
