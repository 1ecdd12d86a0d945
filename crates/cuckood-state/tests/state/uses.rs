//! Several uses, customers, withdrawn codes and kept uses against a model of maps. The limits per code, per customer and of the stock always
//! hold. A withdrawn code becomes available only when it is added again.

use cuckood_state::LookUpScan;
use cuckood_state::domain::{
    Command, ImportMode, ImportState, ItemOutcome, Outcome, RedemptionId, RedemptionStatus,
    Refusal, Settings, Supply, Target, Timestamp,
};
use cuckood_state::testing::commands::{
    NewFilter, code, codes, import_begin, import_end, import_lines, redeem_for, redemption, target,
};
use cuckood_state::testing::machine::Machine;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const COUPON: Target = target(1);

const CODES: u64 = 6;

const CUSTOMERS: u64 = 3;

/// How long an ended redemption is kept.
const RETENTION_SECONDS: u64 = 30;

/// One redemption, as the program knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    code: u64,
    reference: u64,
    customer: Option<u64>,
    status: RedemptionStatus,
    expires_at: u64,
    changed_at: u64,
    is_unreleased: bool,
}

impl Known {
    fn stands(&self) -> bool {
        matches!(
            self.status,
            RedemptionStatus::Held | RedemptionStatus::Redeemed
        )
    }

    fn is_past_retention(&self, now: u64) -> bool {
        let last = match self.status {
            RedemptionStatus::Held => return false,
            RedemptionStatus::Expired => self.expires_at.min(self.changed_at),
            RedemptionStatus::Redeemed | RedemptionStatus::Cancelled => self.changed_at,
        };
        last + RETENTION_SECONDS * 1_000 <= now
    }
}

/// A replacement that is being uploaded or catches up.
#[derive(Default)]
struct Upload {
    import: String,
    codes: BTreeSet<u64>,
    /// Codes added and removed since it began, in order.
    changes: Vec<(u64, bool)>,
    is_whole: bool,
    was_cleared: bool,
}

/// The expected response to a request about a redemption.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Answer {
    Made(u64),
    Found(u64, RedemptionStatus, bool),
    Refused(Refusal),
}

/// A coupon as maps.
struct Model {
    supply: Supply,
    now: u64,
    /// Codes that were added and not removed since.
    pool: BTreeSet<u64>,
    /// Uses that are taken.
    taken: BTreeMap<u64, u32>,
    customers: BTreeMap<u64, u32>,
    redemptions: BTreeMap<u64, Known>,
    upload: Option<Upload>,
}

impl Model {
    fn taken(&self, code: u64) -> u32 {
        self.taken.get(&code).copied().unwrap_or(0)
    }

    fn is_used_up(&self, code: u64) -> bool {
        self.taken(code) >= self.supply.uses
    }

    fn has_hold(&self, code: u64) -> bool {
        let mut redemptions = self.redemptions.values();
        redemptions.any(|known| known.code == code && known.status == RedemptionStatus::Held)
    }

    fn is_in_pool(&self, code: u64) -> bool {
        self.supply.is_open_pool() || self.pool.contains(&code)
    }

    /// Whether `check` finds a code valid, if no hold has run out.
    fn admits(&self, code: u64) -> bool {
        let taken: u32 = self.taken.values().sum();
        let has_stock = self
            .supply
            .stock
            .is_none_or(|stock| u64::from(taken) < stock);
        self.is_in_pool(code) && !self.is_used_up(code) && has_stock
    }

    /// Time has advanced, and an entry carries it.
    fn pass(&mut self, milliseconds: u64) {
        self.now += milliseconds;
        let mut due: Vec<(u64, u64)> = Vec::new();
        for (id, known) in &self.redemptions {
            if known.status == RedemptionStatus::Held && known.expires_at <= self.now {
                due.push((known.expires_at, *id));
            }
        }
        due.sort_unstable();
        for (_, id) in due {
            self.end(id, RedemptionStatus::Expired, false);
        }
    }

    /// Ends a held or redeemed redemption.
    fn end(&mut self, id: u64, status: RedemptionStatus, keeps_use: bool) {
        let mut known = self.redemptions[&id];
        if !keeps_use {
            *self.taken.get_mut(&known.code).unwrap() -= 1;
            if let Some(customer) = known.customer {
                *self.customers.get_mut(&customer).unwrap() -= 1;
            }
        }
        known.status = status;
        known.changed_at = self.now;
        let is_available = self.is_in_pool(known.code) && !self.is_used_up(known.code);
        known.is_unreleased = keeps_use || !self.supply.is_open_pool() && !is_available;
        self.redemptions.insert(id, known);
    }

    fn redeem(
        &mut self,
        id: u64,
        code: u64,
        reference: u64,
        customer: Option<u64>,
        hold_seconds: u64,
    ) -> Answer {
        let now = self.now;
        let expires_at = now + hold_seconds * 1_000;
        let status = if hold_seconds > 0 {
            RedemptionStatus::Held
        } else {
            RedemptionStatus::Redeemed
        };
        let current = self.redemptions.iter_mut().find(|(_, known)| {
            known.stands()
                && known.code == code
                && known.reference == reference
                && !known.is_past_retention(now)
        });
        if let Some((id, known)) = current {
            if known.status == RedemptionStatus::Held {
                known.changed_at = now;
                known.expires_at = known.expires_at.max(expires_at);
                known.status = status;
            }
            return Answer::Found(*id, known.status, false);
        }
        if self.supply.per_customer.is_some() && customer.is_none() {
            return Answer::Refused(Refusal::CustomerRequired);
        }
        let customer_taken = customer.map_or(0, |customer| {
            self.customers.get(&customer).copied().unwrap_or(0)
        });
        let limit = self.supply.per_customer.unwrap_or(u32::MAX);
        let all_taken: u32 = self.taken.values().sum();
        let stock = self.supply.stock.unwrap_or(u64::MAX);
        let refusal = if self.is_used_up(code) && self.has_hold(code) {
            Some(Refusal::CodeHeld)
        } else if self.is_used_up(code) {
            Some(Refusal::CodeRedeemed)
        } else if !self.is_in_pool(code) {
            Some(Refusal::CodeUnknown)
        } else if customer.is_some() && customer_taken >= limit {
            Some(Refusal::CustomerLimit)
        } else if u64::from(all_taken) >= stock {
            Some(Refusal::SoldOut)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            return Answer::Refused(refusal);
        }
        *self.taken.entry(code).or_default() += 1;
        if let Some(customer) = customer {
            *self.customers.entry(customer).or_default() += 1;
        }
        let known = Known {
            code,
            reference,
            customer,
            status,
            expires_at,
            changed_at: now,
            is_unreleased: false,
        };
        self.redemptions.insert(id, known);
        Answer::Made(id)
    }

    fn settle(&mut self, id: u64, status: RedemptionStatus, keeps_use: bool) -> Answer {
        let now = self.now;
        let known = self.redemptions.get_mut(&id);
        let Some(known) = known.filter(|known| !known.is_past_retention(now)) else {
            return Answer::Refused(Refusal::RedemptionNotFound);
        };
        match (known.status, status) {
            (RedemptionStatus::Expired, RedemptionStatus::Redeemed) => {
                return Answer::Refused(Refusal::HoldExpired);
            }
            (RedemptionStatus::Cancelled, RedemptionStatus::Redeemed) => {
                return Answer::Refused(Refusal::RedemptionCancelled);
            }
            (RedemptionStatus::Held, RedemptionStatus::Redeemed) => {
                (known.status, known.changed_at) = (status, now);
            }
            (RedemptionStatus::Held | RedemptionStatus::Redeemed, RedemptionStatus::Cancelled) => {
                self.end(id, status, keeps_use);
            }
            _ => {}
        }
        let known = self.redemptions[&id];
        Answer::Found(id, known.status, known.is_unreleased)
    }

    fn note_change(&mut self, code: u64, is_added: bool) {
        if let Some(upload) = &mut self.upload {
            upload.changes.push((code, is_added));
        }
    }

    fn add(&mut self, code: u64, revives: bool) -> ItemOutcome {
        self.note_change(code, true);
        let was_there = !self.pool.insert(code);
        if !self.is_used_up(code) {
            return if was_there {
                ItemOutcome::AlreadyPresent
            } else {
                ItemOutcome::Added
            };
        }
        if self.has_hold(code) {
            return ItemOutcome::AlreadyPresent;
        }
        if !revives || self.supply.has_several_uses() {
            return ItemOutcome::AlreadyRedeemed;
        }
        let now = self.now;
        let current = self.redemptions.iter().find(|(_, known)| {
            known.stands() && known.code == code && !known.is_past_retention(now)
        });
        if let Some((&id, _)) = current {
            self.end(id, RedemptionStatus::Cancelled, false);
        } else {
            self.taken.insert(code, 0);
        }
        ItemOutcome::Revived
    }

    fn remove(&mut self, code: u64) -> ItemOutcome {
        self.note_change(code, false);
        let was_there = self.pool.remove(&code);
        let outcome_there = if was_there {
            ItemOutcome::Removed
        } else {
            ItemOutcome::Absent
        };
        if !self.is_used_up(code) {
            return outcome_there;
        }
        if !self.has_hold(code) {
            return ItemOutcome::AlreadyRedeemed;
        }
        if self.supply.has_several_uses() {
            return outcome_there;
        }
        let held = self
            .redemptions
            .iter()
            .find(|(_, known)| known.code == code && known.status == RedemptionStatus::Held);
        if let Some((&id, _)) = held {
            self.end(id, RedemptionStatus::Cancelled, false);
        }
        ItemOutcome::Removed
    }

    fn clear(&mut self) {
        self.pool.clear();
        if let Some(upload) = &mut self.upload {
            upload.changes.clear();
            upload.was_cleared = true;
        }
    }

    fn swap(&mut self) {
        let Some(upload) = self.upload.take() else {
            return;
        };
        self.pool = if upload.was_cleared {
            BTreeSet::new()
        } else {
            upload.codes
        };
        for (code, is_added) in upload.changes {
            if is_added {
                self.pool.insert(code);
            } else {
                self.pool.remove(&code);
            }
        }
    }
}

/// A coupon and its model.
struct Twins {
    machine: Machine,
    model: Model,
    uploads: u64,
}

impl Twins {
    fn new(supply: Supply) -> Self {
        let mut machine = Machine::new();
        machine.apply(Command::Enable { version: 2 });
        machine.apply(Command::Configure(Settings {
            redemptions_retention_seconds: RETENTION_SECONDS,
            ..Settings::default()
        }));
        let filter = NewFilter {
            supply,
            ..NewFilter::coupon(3)
        };
        machine.create(COUPON, &filter);
        let model = Model {
            supply,
            now: machine.now.0,
            pool: BTreeSet::new(),
            taken: BTreeMap::new(),
            customers: BTreeMap::new(),
            redemptions: BTreeMap::new(),
            upload: None,
        };
        Self {
            machine,
            model,
            uploads: 0,
        }
    }

    fn pass(&mut self, milliseconds: u64) {
        self.machine.now = Timestamp(self.machine.now.0 + milliseconds);
        self.model.pass(milliseconds);
        self.machine.apply(Command::Advance { buckets_max: 0 });
    }

    fn answer(outcome: Outcome) -> Answer {
        match outcome {
            Outcome::Redeemed(made) => Answer::Made(number_of(&made.id)),
            Outcome::Settled(found) => Answer::Found(
                number_of(&found.id),
                found.status,
                found.details.is_unreleased,
            ),
            Outcome::Refused(refusal) => Answer::Refused(refusal),
            other => panic!("{other:?}"),
        }
    }

    fn redeem(
        &mut self,
        code_number: u64,
        reference: u64,
        customer: Option<u64>,
        hold_seconds: u64,
    ) {
        self.machine.redemptions += 1;
        let id = self.machine.redemptions;
        let expected = self
            .model
            .redeem(id, code_number, reference, customer, hold_seconds);
        let order = format!("order-{reference}");
        let customer = customer.map(|customer| 1_000 + customer);
        let command = redeem_for(COUPON, code_number, id, &order, hold_seconds, customer);
        assert_eq!(Self::answer(self.machine.apply(command)), expected);
    }

    fn settle(&mut self, id: u64, status: RedemptionStatus, keeps_use: bool) {
        let expected = self.model.settle(id, status, keeps_use);
        let redemption = redemption(id);
        let target = COUPON;
        let command = match (status, keeps_use) {
            (RedemptionStatus::Redeemed, _) => Command::Confirm { target, redemption },
            (_, false) => Command::Cancel { target, redemption },
            (_, true) => Command::Forfeit { target, redemption },
        };
        assert_eq!(Self::answer(self.machine.apply(command)), expected);
    }

    fn add(&mut self, code_number: u64, revive: bool) {
        let expected = self.model.add(code_number, revive);
        let added = self.machine.apply(Command::Insert {
            target: COUPON,
            digests: codes([code_number]),
            if_absent: false,
            revive,
        });
        let Outcome::Inserted(added) = added else {
            panic!("{added:?}")
        };
        assert_eq!(added.outcomes, [expected]);
    }

    fn remove(&mut self, code_number: u64) {
        let expected = self.model.remove(code_number);
        let removed = self.machine.apply(Command::Remove {
            target: COUPON,
            digests: codes([code_number]),
            all: false,
        });
        let Outcome::Removed(removed) = removed else {
            panic!("{removed:?}")
        };
        assert_eq!(removed.outcomes, [expected]);
    }

    /// The next command of a replacement.
    fn upload(&mut self, choice: u64, code_number: u64, entries_max: u32) {
        let Some(upload) = &mut self.model.upload else {
            self.uploads += 1;
            let import = format!("nightly-{}", self.uploads);
            let begun = import_begin(COUPON, &import, ImportMode::Replace, Default::default());
            assert_eq!(self.machine.import(begun), ImportState::Running);
            self.model.upload = Some(Upload {
                import,
                ..Upload::default()
            });
            return;
        };
        let import = &upload.import;
        if choice > 0 && !upload.is_whole {
            upload.codes.insert(code_number);
            let lines = import_lines(COUPON, import, [code_number]);
            assert_eq!(self.machine.import(lines), ImportState::Running);
            return;
        }
        upload.is_whole = true;
        let ended = self.machine.import(import_end(COUPON, import, entries_max));
        if ended == ImportState::Done {
            self.model.swap();
        }
    }

    fn step(&mut self, (kind, a, b, pause): (u8, u64, u64, u16)) {
        let pause = u64::from(pause);
        self.pass(if pause.is_multiple_of(40) {
            pause * 10
        } else {
            pause % 3_000
        });
        let code_number = a % CODES;
        let id = self.machine.redemptions.saturating_sub(b % 12);
        let is_open_pool = self.model.supply.is_open_pool();
        match kind % 16 {
            0..=4 => {
                let customer = (b % (CUSTOMERS + 1)).checked_sub(1);
                self.redeem(
                    code_number,
                    b / 4 % 5,
                    customer,
                    [0, 0, 3, 8][(b / 32 % 4) as usize],
                );
            }
            5 => self.settle(id, RedemptionStatus::Redeemed, false),
            6 | 7 => self.settle(id, RedemptionStatus::Cancelled, false),
            8 => self.settle(id, RedemptionStatus::Cancelled, true),
            9 => self.machine.restart(),
            _ if is_open_pool => {}
            10 | 11 => self.add(code_number, b.is_multiple_of(6)),
            12 => self.remove(code_number),
            13 if b.is_multiple_of(4) => {
                self.machine.apply(Command::Clear { target: COUPON });
                self.model.clear();
            }
            _ => self.upload(b % 3, code_number, 1 + (b / 3 % 3) as u32),
        }
        self.check();
    }

    fn check(&mut self) {
        let coupon = self.machine.filter(COUPON);
        for number in 0..CODES {
            let expected = self.model.admits(number);
            assert_eq!(
                coupon.contains(code(number), self.machine.now),
                expected,
                "{number}"
            );
        }
        let Some(uses) = coupon.describe(self.machine.now).stats.codes.uses else {
            return;
        };
        let taken: u32 = self.model.taken.values().sum();
        assert_eq!(uses.held + uses.redeemed, u64::from(taken));
        let all: Vec<_> = (0..CODES).map(code).collect();
        let found = coupon.look_up_uses(&all, &mut LookUpScan::at(self.machine.now));
        for (number, found) in found.iter().enumerate() {
            assert_eq!(found.taken, self.model.taken(number as u64));
        }
    }

    /// Ends everything. Then the codes of the pool that lost no use are valid, and no others.
    fn finish(&mut self) {
        while self.model.upload.is_some() {
            self.upload(0, 0, 5);
        }
        let ids: Vec<u64> = self.model.redemptions.keys().copied().collect();
        for id in ids {
            self.settle(id, RedemptionStatus::Cancelled, false);
        }
        self.check();
        self.machine.restart();
        self.check();
    }
}

/// The serial number of a redemption.
fn number_of(id: &RedemptionId) -> u64 {
    u128::from_be_bytes(id.0) as u64
}

fn supplies() -> impl Strategy<Value = Supply> {
    let stock = proptest::option::of(1..8_u64);
    let per_customer = proptest::option::of(1..4_u32);
    (stock, 1..4_u32, per_customer).prop_map(|(stock, uses, per_customer)| Supply {
        stock,
        uses,
        per_customer,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn limits_hold_through_everything(
        supply in supplies(),
        steps in proptest::collection::vec(any::<(u8, u64, u64, u16)>(), 1..150),
    ) {
        let mut twins = Twins::new(supply);
        for number in 0..CODES / 2 {
            if !supply.is_open_pool() {
                twins.add(number, false);
            }
        }
        for step in steps {
            twins.step(step);
        }
        twins.finish();
    }
}
