//! The state machine: a batch has the effect of single commands, no code has two winners, and time can be turned back.

use cuckood_state::domain::statistics::{HourRetention, Unit};
use cuckood_state::domain::{
    Command, Digests, Entry, FilterId, Kind, Outcome, Proposal, Redeem, RedemptionId,
    RedemptionStatus, Refusal, Target,
};
use cuckood_state::testing::commands::{
    NewFilter, code, codes, insert, redemption, remove, target,
};
use cuckood_state::testing::machine::{Machine, filters};
use cuckood_state::testing::random_log::{CODES, EntryNumbers, ITEMS, RandomLog, numbers};
use cuckood_state::{RedemptionQuery, State};
use proptest::prelude::*;
use std::collections::HashMap;

fn log(numbers: &[EntryNumbers]) -> Vec<Entry> {
    let mut log = RandomLog::new();
    let mut entries = log.beginning();
    entries.extend(numbers.iter().map(|&numbers| log.next(numbers)));
    entries
}

/// An outcome without values that depend on the progress of moves between tables: every entry continues those.
fn without_tables(mut outcome: Outcome) -> Outcome {
    if let Outcome::Created(of) | Outcome::Exists(of) | Outcome::Updated(of) = &mut outcome {
        of.stats.segments.clear();
        of.stats.memory_bytes = 0;
    }
    outcome
}

/// Describes a state's filters, their items and redemptions. The position of an item in a table, and the number of freed slots, also depend
/// on the number of entries, and have no effect.
fn describe(state: &mut State) -> Vec<String> {
    state.publish();
    let now = state.now();
    let items = codes(0..ITEMS).0;
    let descriptions = filters(state).into_iter().map(|filter| {
        let stats = filter.describe(now).stats;
        let total = filter.spec.forget.is_none().then_some(stats.items);
        let counts: Vec<u32> = items.iter().map(|item| filter.count(*item, now)).collect();
        let codes = stats.codes;
        let found = filter.look_up(&items, now);
        let page = filter.redemptions(&RedemptionQuery::default(), None, 1_000, now);
        let statistics = Unit::ALL.map(|unit| {
            filter.statistics(unit, unit.periods_max(HourRetention::ThirtySixDays), now)
        });
        format!(
            "{}: {total:?}, {codes:?}, {counts:?}, {found:?}, {:?}, {statistics:?}",
            filter.name, page.redemptions
        )
    });
    descriptions.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A batch is taken out as if item by item, whatever is in it twice, held or used.
    #[test]
    fn batch_remove_equals_single_removes(
        operations in proptest::collection::vec(any::<(u8, u64, u64, u16)>(), 1..300),
    ) {
        let mut batch = Machine::new();
        let mut single = Machine::new();
        for Entry { proposal: Proposal { at, command, .. }, .. } in log(&operations) {
            (batch.now, single.now) = (at, at);
            match command {
                // They keep the writes of others, which are batches there and single ones here.
                Command::ImportBegin(_) | Command::ImportLines(_) | Command::ImportEnd(_) => {}
                Command::Remove { target, mut digests, all } => {
                    digests.0.extend_from_within(digests.0.len() / 2..);
                    let mut outcomes = Vec::new();
                    let mut removed = 0;
                    for &digest in &digests.0 {
                        let digests = Digests(vec![digest]);
                        if let Outcome::Removed(one) = single.apply(Command::Remove { target, digests, all }) {
                            outcomes.extend(one.outcomes);
                            removed += one.removed;
                        }
                    }
                    match batch.apply(Command::Remove { target, digests, all }) {
                        Outcome::Removed(all) => prop_assert_eq!((all.outcomes, all.removed), (outcomes, removed)),
                        refused => prop_assert!(outcomes.is_empty(), "{:?}", refused),
                    }
                }
                command => {
                    let one = batch.apply(command.clone());
                    let other = single.apply(command);
                    prop_assert_eq!(without_tables(one), without_tables(other));
                }
            }
        }
        prop_assert_eq!(describe(&mut batch.state), describe(&mut single.state), "the end differs");
    }

    /// After any commands, a code has one current redemption, and its slot has the matching state.
    #[test]
    fn slot_and_redemption_agree(numbers in numbers(300)) {
        let mut state = State::default();
        let mut standing: HashMap<(FilterId, u64), RedemptionId> = HashMap::new();
        for entry in log(&numbers) {
            let asked = entry.proposal.command.clone();
            let key = entry.proposal.idempotency;
            let outcome = state.apply(entry).outcome;
            state.publish();
            let (Command::Redeem(Redeem { target, digest, .. }), Outcome::Redeemed(redemption), None) = (asked, outcome, key)
            else {
                continue;
            };
            let number = (0..CODES).find(|&number| code(number) == digest).unwrap();
            if let Some(previous) = standing.insert((target.0, number), redemption.id) {
                let coupons = state.view().list(Kind::Coupon, "", None, 10);
                let view = coupons.iter().find(|view| view.id == target.0).unwrap();
                // Expired, cancelled or past its retention: never still current.
                let stands = view
                    .redemption(&previous, state.now())
                    .is_some_and(|r| matches!(r.status, RedemptionStatus::Held | RedemptionStatus::Redeemed));
                prop_assert!(previous == redemption.id || !stands, "two winners for code {number}");
            }
        }
    }
}

const COUPON: Target = target(1);

/// A coupon with all codes.
fn machine() -> Machine {
    let mut machine = Machine::new();
    machine.create(COUPON, &NewFilter::coupon(50));
    machine.apply(insert(COUPON, 0..CODES));
    machine
}

/// A year ahead for a while: expired holds are held again, finished redemptions stay, and no time is left in the future.
#[test]
fn turned_back_time_revives_holds() {
    const DAY: u64 = 86_400;
    let mut machine = machine();
    let start = machine.now;
    for number in 1..=3 {
        machine.redeem(COUPON, number, "a", 7 * DAY);
    }
    machine.redeem(COUPON, 4, "a", 0);
    // Beyond the holds, and the retention of ended redemptions.
    machine.pass_seconds(365 * DAY);
    // Other clients have used one of the codes since, and hold another for a quarter of an hour.
    assert!(matches!(
        machine.redeem(COUPON, 2, "b", 0),
        Outcome::Redeemed(_)
    ));
    assert!(matches!(
        machine.redeem(COUPON, 5, "b", 900),
        Outcome::Redeemed(_)
    ));
    machine.apply(remove(COUPON, [3]));
    machine.now = start.plus_seconds(DAY);
    let turned = machine.apply(Command::TurnBack);
    assert_eq!(
        turned,
        Outcome::TurnedBack {
            redemptions: 5,
            holds: 1
        }
    );
    let now = machine.state.now();
    assert_eq!(now, machine.now);
    let view = machine.filter(COUPON);
    let find = |serial: u64| view.redemption(&redemption(serial), now).unwrap();
    let describe = |serial| (find(serial).status, find(serial).expires_at);
    assert_eq!(
        describe(1),
        (RedemptionStatus::Held, Some(start.plus_seconds(7 * DAY)))
    );
    assert_eq!(
        (find(2).status, find(3).status),
        (RedemptionStatus::Expired, RedemptionStatus::Expired)
    );
    assert_eq!(view.redemption(&redemption(4), now), None);
    assert_eq!(describe(5), (RedemptionStatus::Redeemed, None));
    assert_eq!(
        describe(6),
        (RedemptionStatus::Held, Some(now.plus_seconds(900)))
    );
    for serial in [1, 2, 3, 5, 6] {
        assert!(
            find(serial).created_at <= now && find(serial).changed_at <= now,
            "{serial}"
        );
    }
    // Again is no more than once, and holds run out as they do.
    assert_eq!(
        machine.apply(Command::TurnBack),
        Outcome::TurnedBack {
            redemptions: 0,
            holds: 0
        }
    );
    assert_eq!(
        machine.redeem(COUPON, 1, "b", 0),
        Outcome::Refused(Refusal::CodeHeld)
    );
    assert_eq!(
        machine.redeem(COUPON, 4, "b", 0),
        Outcome::Refused(Refusal::CodeRedeemed)
    );
    machine.now = start.plus_seconds(7 * DAY);
    assert!(matches!(
        machine.redeem(COUPON, 1, "b", 0),
        Outcome::Redeemed(_)
    ));
}
