//! The state machine: the same log gives the same bytes, with and without a snapshot in between, and no command breaks the promise of a
//! code.

use crate::random_log::{CODES, ITEMS, Numbers, RandomLog, code, numbers};
use cuckood::domain::{
    Command, Digests, Entry, FilterId, Kind, Name, Outcome, Proposal, RedemptionId, Reference, Refusal,
    SectionId, Sizing, Spec, Status, Target, Timestamp, Window,
};
use cuckood::filter::{Digest, Growth, Layout, Mode, Secret};
use cuckood::state::{RedemptionQuery, Sections, State};
use proptest::prelude::*;
use std::collections::HashMap;
use std::convert::Infallible;

/// The chunks of a snapshot's sections.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Chunks(HashMap<(SectionId, u32), Vec<u8>>);

impl Sections for &Chunks {
    type Error = Infallible;

    fn chunk(&mut self, section: SectionId, chunk: u32, out: &mut Vec<u8>) -> Result<bool, Infallible> {
        out.clear();
        let found = self.0.get(&(section, chunk));
        out.extend(found.into_iter().flatten());
        Ok(found.is_some())
    }
}

fn target(filter: u64) -> Target {
    Target(FilterId(filter))
}

fn create(id: u64, kind: Kind, mode: Mode) -> Command {
    let (layout, sizing) = match mode {
        Mode::Compact => (Layout::compact(50, 0.01, Growth::Auto).unwrap(), Sizing::ErrorRate(0.01)),
        Mode::Strict => (Layout::strict(50).unwrap(), Sizing::Exact),
    };
    let spec = Spec {
        capacity: 50,
        mode,
        growth: Growth::Auto,
        sizing,
        ignore_case: false,
        stock: None,
        forget: None,
    };
    let name = Name::new(&format!("f{id}")).unwrap();
    let secret = Secret::new([7; 192]);
    Command::Create {
        kind,
        name,
        id: FilterId(id),
        secret,
        spec,
        layout,
        window: Window::default(),
        annotations: Default::default(),
    }
}

fn log(numbers: &[Numbers]) -> Vec<Entry> {
    let mut log = RandomLog::new();
    let mut entries = log.beginning();
    entries.extend(numbers.iter().map(|&numbers| log.next(numbers)));
    entries
}

pub fn snapshot(state: &mut State, mut meanwhile: impl FnMut(&mut State)) -> (Vec<u8>, Chunks) {
    let image = state.begin_snapshot();
    let (mut chunks, mut chunk) = (Chunks::default(), Vec::new());
    for mut section in image.sections {
        for number in 0.. {
            meanwhile(state);
            if !section.next_chunk(&mut chunk) {
                break;
            }
            chunks.0.insert((section.id, number), chunk.clone());
        }
    }
    (image.head, chunks)
}

pub fn restore((head, chunks): &(Vec<u8>, Chunks)) -> State {
    State::restore(head, &mut &*chunks).unwrap_or_else(|error| panic!("{error}"))
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
    let (view, now) = (state.view(), state.now());
    let items: Vec<Digest> = (0..ITEMS).map(code).collect();
    let filters = [Kind::Campaign, Kind::Coupon].map(|kind| view.list(kind, "", None, usize::MAX));
    let descriptions = filters.iter().flatten().map(|filter| {
        let stats = filter.describe(now).stats;
        let total = filter.spec.forget.is_none().then_some(stats.items);
        let counts: Vec<u32> = items.iter().map(|item| filter.count(*item, now)).collect();
        let (codes, found) = (stats.codes, filter.look_up(&items, now));
        let page = filter.redemptions(&RedemptionQuery::default(), None, 1_000, now);
        let statistics = filter.statistics();
        format!(
            "{}: {total:?}, {codes:?}, {counts:?}, {found:?}, {:?}, {statistics:?}",
            filter.name, page.redemptions
        )
    });
    descriptions.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A snapshot taken in the middle of commands restores to the state at its position; and the rest of the log leads from there to the
    /// same bytes.
    #[test]
    fn replay_matches_snapshot_bytes(
        numbers in numbers(300),
        middle in 0.0..1.0f64,
    ) {
        let entries = log(&numbers);
        let middle = (entries.len() as f64 * middle) as usize;
        let mut straight = State::new();
        let mut outcomes = Vec::new();
        for entry in &entries[..middle] {
            outcomes.push(straight.apply(entry.clone()));
        }
        let still = snapshot(&mut straight, |_| ());
        let mut rest = entries[middle..].iter();
        let moving = snapshot(&mut straight, |state| {
            for entry in rest.by_ref().take(3) {
                outcomes.push(state.apply(entry.clone()));
            }
        });
        prop_assert!(still == moving, "what happened meanwhile is in the snapshot");
        for entry in rest {
            outcomes.push(straight.apply(entry.clone()));
        }
        let mut restored = restore(&still);
        for (entry, outcome) in entries[middle..].iter().zip(&outcomes[middle..]) {
            prop_assert_eq!(&restored.apply(entry.clone()), outcome);
        }
        prop_assert_eq!(restored.sizes().tables_bytes, straight.sizes().tables_bytes);
        prop_assert_eq!(restored.sizes().records_bytes, straight.sizes().records_bytes);
        prop_assert!(snapshot(&mut restored, |_| ()) == snapshot(&mut straight, |_| ()), "the end differs");
    }

    /// A batch is taken out as if item by item, whatever is in it twice, held or used.
    #[test]
    fn batch_remove_equals_single_removes(
        operations in proptest::collection::vec(any::<(u8, u64, u64, u16)>(), 1..300),
    ) {
        fn apply(state: &mut State, at: Timestamp, command: Command) -> Outcome {
            let proposal = Proposal::new(at, command);
            state.apply(Entry { seq: state.applied().next(), proposal }).outcome
        }
        let (mut batch, mut single) = (State::new(), State::new());
        for Entry { proposal: Proposal { at, command, .. }, .. } in log(&operations) {
            match command {
                // They keep the writes of others, which are batches there and single ones here.
                Command::ImportBegin { .. } | Command::ImportLines { .. } | Command::ImportEnd { .. } => {}
                Command::Remove { target, mut digests, all } => {
                    digests.0.extend_from_within(digests.0.len() / 2..);
                    let (mut outcomes, mut removed) = (Vec::new(), 0);
                    for &digest in &digests.0 {
                        let digests = Digests(vec![digest]);
                        if let Outcome::Removed(one) = apply(&mut single, at, Command::Remove { target, digests, all }) {
                            outcomes.extend(one.outcomes);
                            removed += one.removed;
                        }
                    }
                    match apply(&mut batch, at, Command::Remove { target, digests, all }) {
                        Outcome::Removed(all) => prop_assert_eq!((all.outcomes, all.removed), (outcomes, removed)),
                        refused => prop_assert!(outcomes.is_empty(), "{:?}", refused),
                    }
                }
                command => {
                    let (one, other) = (apply(&mut batch, at, command.clone()), apply(&mut single, at, command));
                    prop_assert_eq!(without_tables(one), without_tables(other));
                }
            }
        }
        prop_assert_eq!(describe(&mut batch), describe(&mut single), "the end differs");
    }

    /// After any commands, a code has one current redemption, and its slot has the matching state.
    #[test]
    fn slot_and_redemption_agree(numbers in numbers(300)) {
        let mut state = State::new();
        let mut standing: HashMap<(FilterId, u64), RedemptionId> = HashMap::new();
        for entry in log(&numbers) {
            let (asked, key) = (entry.proposal.command.clone(), entry.proposal.idempotency);
            let outcome = state.apply(entry).outcome;
            state.publish();
            let (Command::Redeem { target, digest, .. }, Outcome::Redeemed(redemption), None) = (asked, outcome, key)
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
                    .is_some_and(|r| matches!(r.status, Status::Held | Status::Redeemed));
                prop_assert!(previous == redemption.id || !stands, "two winners for code {number}");
            }
        }
    }
}

/// Applies commands one after the other.
struct Machine {
    state: State,
    at: u64,
}

impl Machine {
    fn new() -> Self {
        let mut machine = Self { state: State::new(), at: 0 };
        machine.apply(create(1, Kind::Coupon, Mode::Strict));
        machine.apply(Command::Insert {
            target: target(1),
            digests: Digests((0..CODES).map(code).collect()),
            if_absent: false,
            revive: false,
        });
        machine
    }

    fn apply(&mut self, command: Command) -> Outcome {
        let seq = self.state.applied().next();
        let proposal = Proposal::new(Timestamp(self.at), command);
        self.state.apply(Entry { seq, proposal }).outcome
    }

    fn redeem(&mut self, number: u64, id: u8, reference: &str, hold_seconds: u64) -> Outcome {
        let reference = Reference::new(reference).unwrap();
        let redemption = RedemptionId([id; 16]);
        self.apply(Command::Redeem {
            target: target(1),
            digest: code(number),
            redemption,
            reference,
            hold_seconds,
        })
    }
}

#[test]
fn cancel_of_expired_hold_has_no_effect() {
    let mut machine = Machine::new();
    assert!(matches!(machine.redeem(1, 1, "a", 10), Outcome::Redeemed(r) if r.status == Status::Held));
    assert_eq!(machine.redeem(1, 2, "b", 0), Outcome::Refused(Refusal::CodeHeld));
    machine.at = 10_000;
    assert!(matches!(machine.redeem(1, 3, "b", 0), Outcome::Redeemed(r) if r.status == Status::Redeemed));
    let confirm = Command::Confirm { target: target(1), redemption: RedemptionId([1; 16]) };
    assert_eq!(machine.apply(confirm), Outcome::Refused(Refusal::HoldExpired));
    let cancel = Command::Cancel { target: target(1), redemption: RedemptionId([1; 16]) };
    assert!(matches!(machine.apply(cancel), Outcome::Settled(r) if r.status == Status::Expired));
    assert_eq!(machine.redeem(1, 4, "c", 0), Outcome::Refused(Refusal::CodeRedeemed));
}

#[test]
fn repeated_redemption_confirms_or_extends_hold() {
    let mut machine = Machine::new();
    machine.redeem(1, 1, "a", 10);
    assert!(matches!(machine.redeem(1, 2, "a", 60), Outcome::Settled(r)
        if r.id == RedemptionId([1; 16]) && r.expires_at == Some(Timestamp(60_000))));
    assert!(
        matches!(machine.redeem(1, 3, "a", 5), Outcome::Settled(r) if r.expires_at == Some(Timestamp(60_000)))
    );
    assert!(matches!(machine.redeem(1, 4, "a", 0), Outcome::Settled(r) if r.status == Status::Redeemed));
    assert!(matches!(machine.redeem(1, 5, "a", 0), Outcome::Settled(r) if r.id == RedemptionId([1; 16])));
}

/// A year ahead for a while: expired holds are held again, finished redemptions stay, and no time is left in the future.
#[test]
fn turned_back_time_revives_holds() {
    const DAY: u64 = 86_400_000;
    let mut machine = Machine::new();
    machine.at = 100 * DAY;
    let week = 7 * DAY / 1_000;
    for (number, id) in [(1, 1), (2, 2), (3, 3)] {
        machine.redeem(number, id, "a", week);
    }
    machine.redeem(4, 4, "a", 0);
    // Beyond the holds, and the retention of ended redemptions.
    machine.at += 365 * DAY;
    // Other clients have used one of the codes since, and hold another for a quarter of an hour.
    assert!(matches!(machine.redeem(2, 5, "b", 0), Outcome::Redeemed(_)));
    assert!(matches!(machine.redeem(5, 6, "b", 900), Outcome::Redeemed(_)));
    machine.apply(Command::Remove { target: target(1), digests: Digests(vec![code(3)]), all: false });
    machine.at = 101 * DAY;
    let turned = machine.apply(Command::TurnBack);
    assert_eq!(turned, Outcome::TurnedBack { redemptions: 5, holds: 1 });
    machine.state.publish();
    let now = machine.state.now();
    assert_eq!(now, Timestamp(101 * DAY));
    let view = machine.state.view().list(Kind::Coupon, "", None, 1).remove(0);
    let redemption = |id: u8| view.redemption(&RedemptionId([id; 16]), now).unwrap();
    let describe = |id| (redemption(id).status, redemption(id).expires_at);
    assert_eq!(describe(1), (Status::Held, Some(Timestamp(107 * DAY))));
    assert_eq!((redemption(2).status, redemption(3).status), (Status::Expired, Status::Expired));
    assert_eq!(view.redemption(&RedemptionId([4; 16]), now), None);
    assert_eq!(describe(5), (Status::Redeemed, None));
    assert_eq!(describe(6), (Status::Held, Some(now.plus_seconds(900))));
    for id in [1, 2, 3, 5, 6] {
        assert!(redemption(id).created_at <= now && redemption(id).changed_at <= now, "{id}");
    }
    // Again is no more than once, and holds run out as they do.
    assert_eq!(machine.apply(Command::TurnBack), Outcome::TurnedBack { redemptions: 0, holds: 0 });
    assert_eq!(machine.redeem(1, 7, "b", 0), Outcome::Refused(Refusal::CodeHeld));
    assert_eq!(machine.redeem(4, 7, "b", 0), Outcome::Refused(Refusal::CodeRedeemed));
    machine.at = 107 * DAY;
    assert!(matches!(machine.redeem(1, 8, "b", 0), Outcome::Redeemed(_)));
}
