//! States with a campaign that forgets, against a model with the time of each copy: no user expires early, none stays longer than promised,
//! whatever clocks and operations do; and a restored state continues the same.

use cuckood_filter::Growth;
use cuckood_state::domain::{
    Command, Forget, Guards, ImportMode, ImportState, ItemOutcome, Outcome, Refusal, Sizing,
    Target, Timestamp, Update,
};
use cuckood_state::testing::commands::{
    NewFilter, codes, import_begin, import_end, import_lines, name, replace, target,
};
use cuckood_state::testing::machine::Machine;
use proptest::prelude::*;
use std::collections::BTreeMap;

const TARGET: Target = target(1);

/// Users are added from these on, up to the same number more.
const USERS: u64 = 100;

const YEAR: u64 = 365 * 86_400_000;

#[derive(Clone, Debug)]
enum Act {
    Add {
        from: u64,
        count: u64,
        if_absent: bool,
    },
    Remove {
        from: u64,
        count: u64,
        all: bool,
    },
    Replace {
        from: u64,
        to: u64,
    },
    Clear,
    Raise(u64),
    /// A command about something else.
    Other,
    /// This many milliseconds pass.
    Pass(u64),
    /// The clock was ahead by this much, until the time is turned back.
    Ahead(u64),
    /// A replacing import begins, and brings these.
    Upload {
        from: u64,
        count: u64,
    },
    /// It ends.
    Swap,
    Restart,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        12 => (0..USERS, 1_u64..100, 0_u8..5)
            .prop_map(|(from, count, absent)| Act::Add { from, count, if_absent: absent == 0 }),
        5 => (0..USERS, 1_u64..100, 0_u8..4)
            .prop_map(|(from, count, all)| Act::Remove { from, count, all: all == 0 }),
        2 => (0..USERS, 0..USERS).prop_map(|(from, to)| Act::Replace { from, to }),
        1 => Just(Act::Clear),
        1 => (1_u64..1_000).prop_map(Act::Raise),
        6 => Just(Act::Other),
        12 => (0_u64..30_000).prop_map(Act::Pass),
        1 => Just(Act::Pass(YEAR)),
        1 => prop_oneof![0_u64..60_000, Just(YEAR)].prop_map(Act::Ahead),
        2 => (0..USERS, 1_u64..100).prop_map(|(from, count)| Act::Upload { from, count }),
        3 => Just(Act::Swap),
        3 => Just(Act::Restart),
    ];
    proptest::collection::vec(act, 1..100)
}

/// A change that the staged import repeats at its end.
#[derive(Clone, Debug)]
enum Change {
    Add(u64),
    AddIfAbsent(u64),
    Remove(u64),
    RemoveAll(u64),
}

#[derive(Clone, Default)]
struct Model {
    /// When each copy of a user was added.
    copies: BTreeMap<u64, Vec<u64>>,
    /// The copies in a staged import, and the changes since its start.
    staged: Option<(BTreeMap<u64, u32>, Vec<Change>)>,
}

/// A campaign next to its model.
struct Campaign {
    machine: Machine,
    model: Model,
    forget: Forget,
    copies_max: u32,
    imports: u64,
    /// How often the time was turned back.
    turned_back: u32,
}

impl Campaign {
    fn apply(&mut self, command: Command) -> Outcome {
        self.machine.apply(command)
    }

    fn now(&self) -> u64 {
        self.machine.now.0
    }

    /// The step of a time by the spec: the number of steps since 1970.
    fn step(&self, at: u64) -> u64 {
        let step = u128::from(at) * u128::from(self.forget.steps());
        (step / (u128::from(self.forget.after_seconds()) * 1_000)) as u64
    }

    /// The copies of a user that are there at a time; each by the promise, and by its step where the promise leaves it open.
    fn count(&self, user: u64, now: u64) -> u32 {
        let after = self.forget.after_seconds() * 1_000;
        let longest = after + after.div_ceil(u64::from(self.forget.steps()));
        let is_there = |added: u64| {
            let is_there = self.step(added) + u64::from(self.forget.steps()) >= self.step(now);
            assert!(is_there || now >= added + after, "gone early");
            assert!(!is_there || now < added + longest, "kept for longer");
            is_there
        };
        self.model
            .copies
            .get(&user)
            .into_iter()
            .flatten()
            .filter(|added| is_there(**added))
            .count() as u32
    }

    fn note_added(&mut self, user: u64, if_absent: bool) {
        let now = self.now();
        self.model.copies.entry(user).or_default().push(now);
        self.note(if if_absent {
            Change::AddIfAbsent(user)
        } else {
            Change::Add(user)
        });
    }

    fn note(&mut self, change: Change) {
        if let Some((_, changes)) = &mut self.model.staged {
            changes.push(change);
        }
    }

    fn add(&mut self, from: u64, count: u64, if_absent: bool) {
        let users = from..from + count;
        let digests = codes(users.clone());
        let insert = Command::Insert {
            target: TARGET,
            digests,
            if_absent,
            revive: false,
        };
        let inserted = match self.apply(insert) {
            Outcome::Inserted(inserted) => inserted,
            Outcome::Refused(Refusal::FilterFull) => return,
            other => panic!("{other:?}"),
        };
        for (user, outcome) in users.zip(inserted.outcomes) {
            let expected = match self.count(user, self.now()) {
                1.. if if_absent => ItemOutcome::AlreadyPresent,
                copies if copies >= self.copies_max => ItemOutcome::Saturated,
                _ => ItemOutcome::Added,
            };
            assert_eq!(outcome, expected, "{user}");
            match outcome {
                ItemOutcome::Added => self.note_added(user, if_absent),
                _ => self.note(if if_absent {
                    Change::AddIfAbsent(user)
                } else {
                    Change::Add(user)
                }),
            }
        }
    }

    fn remove(&mut self, from: u64, count: u64, all: bool) {
        let users = from..from + count;
        let remove = Command::Remove {
            target: TARGET,
            digests: codes(users.clone()),
            all,
        };
        let Outcome::Removed(removed) = self.apply(remove) else {
            panic!()
        };
        let mut gone = 0;
        for (user, outcome) in users.zip(removed.outcomes) {
            let there = self.count(user, self.now());
            let expected = if there > 0 {
                ItemOutcome::Removed
            } else {
                ItemOutcome::Absent
            };
            assert_eq!(outcome, expected, "{user}");
            gone += if all { there } else { there.min(1) };
            self.take_out(user, if all { there } else { there.min(1) });
            self.note(if all {
                Change::RemoveAll(user)
            } else {
                Change::Remove(user)
            });
        }
        assert_eq!(removed.removed, u64::from(gone));
    }

    /// The newest ones go.
    fn take_out(&mut self, user: u64, copies: u32) {
        let there = self.model.copies.entry(user).or_default();
        there.sort_unstable();
        there.truncate(there.len() - copies as usize);
    }

    fn replace(&mut self, from: u64, to: u64) {
        let there = self.count(from, self.now());
        let other = self.count(to, self.now());
        match self.apply(replace(TARGET, [from], [to])) {
            Outcome::Refused(Refusal::FilterFull) => {}
            Outcome::Replaced(outcomes) if there == 0 => {
                assert_eq!(outcomes, [ItemOutcome::Absent])
            }
            Outcome::Replaced(outcomes) => {
                assert_eq!(outcomes, [ItemOutcome::Replaced]);
                if from == to {
                    self.note(Change::AddIfAbsent(to));
                    return;
                }
                if other < self.copies_max {
                    self.note_added(to, false);
                } else {
                    self.note(Change::Add(to));
                }
                self.take_out(from, 1);
                self.note(Change::Remove(from));
            }
            other => panic!("{other:?}"),
        }
    }

    fn import(&self) -> String {
        format!("i{}", self.imports)
    }

    fn upload(&mut self, from: u64, count: u64) {
        if self.model.staged.is_none() {
            self.imports += 1;
            let begin = import_begin(
                TARGET,
                &self.import(),
                ImportMode::Replace,
                Guards::default(),
            );
            self.machine.import(begin);
            self.model.staged = Some(Default::default());
        }
        let lines = import_lines(TARGET, &self.import(), from..from + count);
        match self.apply(lines) {
            Outcome::Import(_) => {}
            Outcome::Refused(Refusal::FilterFull | Refusal::ImportNotFound) => {
                self.model.staged = None;
                return;
            }
            other => panic!("{other:?}"),
        }
        let copies_max = self.copies_max;
        let (staged, _) = self.model.staged.as_mut().unwrap();
        for user in from..from + count {
            let copies = staged.entry(user).or_default();
            *copies = copies_max.min(*copies + 1);
        }
    }

    fn swap(&mut self) {
        let Some((mut staged, changes)) = self.model.staged.take() else {
            return;
        };
        let state = loop {
            match self.apply(import_end(TARGET, &self.import(), 1_000)) {
                Outcome::Import(import) if import.state == ImportState::Running => {}
                Outcome::Import(import) => break import.state,
                // It was aborted after its idle time.
                Outcome::Refused(Refusal::FilterFull | Refusal::ImportNotFound) => return,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(state, ImportState::Done);
        for change in changes {
            let (Change::Add(user)
            | Change::AddIfAbsent(user)
            | Change::Remove(user)
            | Change::RemoveAll(user)) = change;
            let copies = staged.entry(user).or_default();
            *copies = match change {
                Change::Add(_) => self.copies_max.min(*copies + 1),
                Change::AddIfAbsent(_) => 1.max(*copies),
                Change::Remove(_) => copies.saturating_sub(1),
                Change::RemoveAll(_) => 0,
            };
        }
        let at = self.now();
        let copies = staged
            .into_iter()
            .map(|(user, copies)| (user, vec![at; copies as usize]));
        self.model.copies = copies.collect();
    }

    /// Entries are stamped by a clock that is ahead; then the time is turned back. Only where that happens again and again within the
    /// time may a copy stay for longer.
    fn ahead(&mut self, by: u64) {
        if self.turned_back == 2 {
            return;
        }
        let right = self.machine.now;
        self.machine.now.0 += by;
        self.apply(other());
        self.add(0, 5, false);
        // Items forgotten by the wrong clock stay forgotten, and items added by it count as added now.
        let wrong = self.step(self.now());
        let mut copies = std::mem::take(&mut self.model.copies);
        for copies in copies.values_mut() {
            copies.retain(|added| self.step(*added) + u64::from(self.forget.steps()) >= wrong);
            copies
                .iter_mut()
                .for_each(|added| *added = right.0.min(*added));
        }
        self.model.copies = copies;
        self.machine.now = right;
        self.turned_back += u32::from(by > 0);
        assert!(matches!(
            self.apply(Command::TurnBack),
            Outcome::TurnedBack { .. }
        ));
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Add {
                from,
                count,
                if_absent,
            } => self.add(from, count, if_absent),
            Act::Remove { from, count, all } => self.remove(from, count, all),
            Act::Replace { from, to } => self.replace(from, to),
            Act::Clear => {
                // During a staged import, that would be emptied too: others test it.
                if self.model.staged.is_none() {
                    let there: u32 = (0..2 * USERS)
                        .map(|user| self.count(user, self.now()))
                        .sum();
                    let cleared = self.apply(Command::Clear { target: TARGET });
                    assert_eq!(cleared, Outcome::Cleared(u64::from(there)));
                    self.model.copies.clear();
                }
            }
            Act::Raise(capacity) => {
                let view = self.machine.filter(TARGET);
                let capacity = Some(view.raise(capacity).unwrap());
                let starts_at = None;
                let ends_at = None;
                let stock = None;
                let annotations = Default::default();
                self.apply(Command::Update(Update {
                    target: TARGET,
                    starts_at,
                    ends_at,
                    capacity,
                    stock,
                    annotations,
                }));
            }
            Act::Other => drop(self.apply(other())),
            Act::Pass(time) => self.machine.now.0 += time,
            Act::Ahead(by) => self.ahead(by),
            Act::Upload { from, count } => self.upload(from, count),
            Act::Swap => self.swap(),
            Act::Restart => self.machine.restart(),
        }
    }

    /// Readers agree with the model, by clocks that are right and `halves` half steps ahead.
    fn compare(&mut self, halves: u64) {
        let view = self.machine.filter(TARGET);
        let step = self.forget.after_seconds() * 1_000 / u64::from(self.forget.steps());
        let items = codes(0..2 * USERS).0;
        let last = self.machine.state.now().max(self.machine.now).0;
        for now in [last, last + halves * step / 2] {
            let mut found = Vec::new();
            let mut sum = 0;
            view.contains_many(&items, Timestamp(now), &mut found);
            for (user, &found) in (0..).zip(&found) {
                let copies = self.count(user, now);
                let seen = view.count(items[user as usize], Timestamp(now));
                assert_eq!(seen, copies, "{user} at {now}");
                assert_eq!(found, seen > 0);
                sum += u64::from(seen);
            }
            let stats = view.describe(Timestamp(now)).stats;
            assert_eq!(
                (
                    stats.items,
                    stats.steps.iter().map(|step| step.items).sum::<u64>()
                ),
                (sum, sum)
            );
            assert!(
                stats
                    .steps
                    .iter()
                    .all(|step| step.items > 0 && step.forgotten_at.0 > now)
            );
            assert!(stats.steps.is_sorted_by_key(|step| step.begin));
        }
    }
}

/// A command about something else.
fn other() -> Command {
    Command::DeleteLineUp {
        name: name("other"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Fingerprints are long enough that no two users collide.
    #[test]
    fn copies_expire_as_in_model(
        acts in acts(),
        capacity in 1_u64..150,
        bucket_size in prop_oneof![Just(4_u8), Just(8)],
        after_seconds in prop_oneof![Just(60_u64), 60_u64..100],
        steps in 2_u32..=32,
        is_fixed in 0_u8..6,
        begin in prop_oneof![0_u64..1_000, 1_700_000_000_000_u64..1_900_000_000_000],
    ) {
        let growth = if is_fixed == 0 { Growth::Fixed } else { Growth::Auto };
        let forget = Forget::new(after_seconds, steps).unwrap();
        let sizing = Sizing::Layout { fingerprint_bits: 28, bucket_size, max_search: 500 };
        let filter = NewFilter { growth, sizing, forget: Some(forget), ..NewFilter::campaign(capacity, 0.01) };
        let mut machine = Machine { now: Timestamp(begin), ..Machine::new() };
        machine.create(TARGET, &filter);
        let copies_max = 2 * u32::from(bucket_size);
        let mut campaign = Campaign { machine, model: Model::default(), forget, copies_max, imports: 0, turned_back: 0 };
        for (act, halves) in acts.iter().zip((0..).map(|number| [0, 1, 2, 5, 2 * u64::from(steps) + 3][number % 5])) {
            campaign.act(act);
            campaign.compare(halves);
        }
        // In the end no user is left, in the tables either.
        for _ in 0..2 {
            campaign.machine.now.0 += YEAR;
            (0..100).for_each(|_| campaign.act(&Act::Other));
            campaign.swap();
        }
        campaign.compare(0);
        let segments = campaign.machine.filter(TARGET).describe(campaign.machine.state.now()).stats.segments;
        prop_assert!(segments.iter().all(|segment| segment.items == 0), "{:?}", segments);
    }
}
