//! The model: the expected state of a filter, operation by operation, as known to the client that made all of them.
//!
//! It has no access to the service. Random values and times of the service (IDs, the end of a hold) are learned from responses.

use crate::operation::{Expected, Operation};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Maximum difference between the client's and the service's times, in milliseconds.
pub const CLOCK_MARGIN: i64 = 100;

/// The wall clock, in milliseconds since 1970.
pub fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// A user or a code, as a number.
pub type Item = u32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    StrictCampaign,
    CompactCampaign,
    Coupon,
    OpenPool,
}

impl Kind {
    /// The capacity that a filter is made with.
    pub fn capacity(self) -> u64 {
        match self {
            Kind::CompactCampaign => 200,
            Kind::StrictCampaign | Kind::Coupon => 50,
            Kind::OpenPool => 4,
        }
    }

    /// Whether its items are codes.
    pub fn is_coupon(self) -> bool {
        matches!(self, Kind::Coupon | Kind::OpenPool)
    }
}

/// The stock that an open pool is made with.
pub const STOCK: u64 = 12;

/// Where the items of large imports begin. Once they are known to be gone they are not asked for again.
pub const BULK: Item = 1_000_000;

/// A filter, or one client's part of a filter that several share.
#[derive(Clone)]
pub struct Filter {
    pub kind: Kind,
    pub name: String,
    /// Before each item's number.
    pub prefix: String,
    /// Whether it is there.
    pub stands: bool,
    pub capacity: u64,
    /// Of an open pool.
    pub stock: u64,
    slots: BTreeMap<Item, Slot>,
    /// Of a coupon: the codes that were added and not removed since. Others are in only as long as they are held or redeemed.
    pool: BTreeSet<Item>,
    pub redemptions: Vec<Redemption>,
    /// The staged tables of a `mode=replace` import.
    replacement: Option<Replacement>,
    /// Every item that is asked for.
    pub known: BTreeSet<Item>,
    /// The filter's image, downloaded before it was deleted.
    pub image: Option<Arc<Image>>,
}

/// A downloaded image, and what it must hold.
pub struct Image {
    pub bytes: Vec<u8>,
    pub filter: Filter,
}

/// An item that is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    /// Available. Strict filters have one copy of each.
    Copies(u32),
    /// By the redemption of this index.
    Held(usize),
    Redeemed(usize),
}

#[derive(Clone, Debug)]
pub struct Redemption {
    /// None until a response contains it.
    pub id: Option<String>,
    pub code: Item,
    pub reference: String,
    pub status: Status,
    /// In an open pool: its number.
    pub ordinal: Option<u64>,
    /// Of a hold, in milliseconds since 1970.
    pub expires_at: i64,
    /// Whether a response contained that; else it may be later.
    pub is_exact: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    Held,
    Redeemed,
    Cancelled,
    Expired,
}

#[derive(Clone)]
struct Replacement {
    upload: BTreeSet<Item>,
    /// Changes accepted during the upload, to be repeated at the swap.
    changes: Vec<Change>,
}

#[derive(Clone, Copy)]
enum Change {
    Add(Item),
    Remove { item: Item, all: bool },
    Clear,
}

/// Codes of a coupon by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    pub available: u64,
    pub held: u64,
    pub redeemed: u64,
}

impl Filter {
    pub fn new(kind: Kind, name: String, prefix: String) -> Filter {
        Filter {
            kind,
            name,
            prefix,
            stands: false,
            capacity: kind.capacity(),
            stock: STOCK,
            slots: BTreeMap::new(),
            pool: BTreeSet::new(),
            redemptions: Vec::new(),
            replacement: None,
            known: BTreeSet::new(),
            image: None,
        }
    }

    /// Copies of an item that are in, whatever their state.
    pub fn copies(&self, item: Item) -> u32 {
        match self.slots.get(&item) {
            None => 0,
            Some(Slot::Copies(copies)) => *copies,
            Some(Slot::Held(_) | Slot::Redeemed(_)) => 1,
        }
    }

    /// Whether a code may be used, or a user is in; none while a hold may have run out or not.
    pub fn is_valid(&self, item: Item, from: i64, to: i64) -> Option<bool> {
        let is_free = match self.slots.get(&item) {
            None => Some(self.kind == Kind::OpenPool),
            Some(Slot::Redeemed(_)) => Some(false),
            Some(Slot::Copies(_)) => Some(true),
            Some(Slot::Held(index)) => self.redemptions[*index].has_run_out(from, to),
        };
        if is_free == Some(false) || self.kind != Kind::OpenPool {
            return is_free;
        }
        let in_use = |is_sure: bool| {
            let is_in_use = |slot: &&Slot| match slot {
                Slot::Held(index) => match self.redemptions[*index].has_run_out(from, to) {
                    Some(has_run_out) => !has_run_out,
                    None => !is_sure,
                },
                _ => true,
            };
            self.slots.values().filter(is_in_use).count() as u64
        };
        match (in_use(true) < self.stock, in_use(false) < self.stock) {
            (false, _) => Some(false),
            (true, true) => is_free,
            (true, false) => None,
        }
    }

    /// Whether it can be said if an item is in. A code whose hold has run out leaves an open pool with the next entry.
    pub fn is_surely_counted(&self, item: Item, from: i64, to: i64) -> bool {
        match self.slots.get(&item) {
            Some(Slot::Held(index)) if self.kind == Kind::OpenPool => {
                self.redemptions[*index].has_run_out(from, to) == Some(false)
            }
            _ => true,
        }
    }

    /// The current redemption of a code.
    pub fn standing(&self, code: Item) -> Option<&Redemption> {
        match self.slots.get(&code) {
            Some(Slot::Held(index) | Slot::Redeemed(index)) => Some(&self.redemptions[*index]),
            _ => None,
        }
    }

    /// Everything that is known was just found to be so.
    pub fn was_compared(&mut self) {
        let Filter { known, slots, .. } = self;
        known.retain(|item| *item < BULK || slots.contains_key(item));
    }

    /// All copies of all items.
    pub fn total(&self) -> u64 {
        self.slots
            .keys()
            .map(|&item| u64::from(self.copies(item)))
            .sum()
    }

    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for slot in self.slots.values() {
            match slot {
                Slot::Copies(copies) => counts.available += u64::from(*copies),
                Slot::Held(_) => counts.held += 1,
                Slot::Redeemed(_) => counts.redeemed += 1,
            }
        }
        counts
    }

    /// Codes whose hold has not run out throughout the time between two moments.
    pub fn held_throughout(&self, from: i64, to: i64) -> u64 {
        let held = |redemption: &&Redemption| {
            redemption.status == Status::Held && redemption.has_run_out(from, to) == Some(false)
        };
        self.redemptions.iter().filter(held).count() as u64
    }

    /// Whether a replacement is being built.
    pub fn is_replacing(&self) -> bool {
        self.replacement.is_some()
    }

    /// Begins a replacement by these items.
    pub fn begin_replacement(&mut self, upload: &[Item]) {
        self.known.extend(upload);
        self.replacement = Some(Replacement {
            upload: upload.iter().copied().collect(),
            changes: Vec::new(),
        });
    }

    /// The upload is broken off: it has no effect.
    pub fn drop_replacement(&mut self) {
        self.replacement = None;
    }

    /// Codes whose holds may or may not have expired.
    pub fn unsure(&self, now: i64) -> BTreeSet<Item> {
        let brief = |redemption: &&Redemption| {
            redemption.status == Status::Held && redemption.has_run_out(now, now + 60_000).is_none()
        };
        self.redemptions
            .iter()
            .filter(brief)
            .map(|redemption| redemption.code)
            .collect()
    }

    /// The service's expected response to an operation at this time; updates the filter.
    pub fn apply(&mut self, operation: &Operation, now: i64) -> Expected {
        self.expire(now);
        self.known.extend(operation.items());
        if !matches!(operation, Operation::Delete | Operation::PutImage) {
            // It is out of date: events would contradict the filter that it brings back.
            self.image = None;
        }
        if !self.stands && !matches!(operation, Operation::Create | Operation::PutImage) {
            return Expected::Refused(404, self.not_found());
        }
        if self.kind == Kind::OpenPool && operation.changes_items() {
            return Expected::Refused(409, "requires-added-codes");
        }
        match operation {
            Operation::Create => {
                let status = if self.stands { 200 } else { 201 };
                self.stands = true;
                Expected::Status(status)
            }
            Operation::Delete => {
                let known = std::mem::take(&mut self.known);
                let image = self.image.take();
                let new = Filter::new(self.kind, self.name.clone(), self.prefix.clone());
                *self = Filter {
                    known,
                    image,
                    ..new
                };
                Expected::Status(204)
            }
            Operation::PutImage => {
                let image = self
                    .image
                    .take()
                    .expect("only an image that was downloaded is put");
                *self = Filter {
                    known: std::mem::take(&mut self.known),
                    ..image.filter.clone()
                };
                self.expire(now);
                Expected::Status(201)
            }
            Operation::Add { items, revive } => {
                Expected::Outcomes(items.iter().map(|&item| self.add(item, *revive)).collect())
            }
            Operation::Remove { items, all } => {
                Expected::Outcomes(items.iter().map(|&item| self.remove(item, *all)).collect())
            }
            Operation::Replace { pairs } => Expected::Outcomes(
                pairs
                    .iter()
                    .map(|&(from, to)| self.replace(from, to))
                    .collect(),
            ),
            Operation::Clear => self.clear(),
            Operation::Raise { capacity } if *capacity < self.capacity => {
                Expected::Refused(422, "invalid-request")
            }
            Operation::Raise { capacity } => {
                let before = std::mem::replace(&mut self.capacity, *capacity);
                Expected::Raised {
                    before,
                    capacity: *capacity,
                }
            }
            Operation::Restock { stock } => {
                self.stock = *stock;
                Expected::Restocked { stock: *stock }
            }
            Operation::Append { items, .. } => {
                let outcomes: Vec<_> = items.iter().map(|&item| self.add(item, false)).collect();
                let count = |wanted| {
                    outcomes
                        .iter()
                        .filter(|&&outcome| outcome == wanted)
                        .count() as u64
                };
                Expected::Appended {
                    added: count("added"),
                    already_present: count("already_present"),
                    already_redeemed: count("already_redeemed"),
                }
            }
            Operation::Guarded { .. } => Expected::Refused(409, "import-guarded"),
            Operation::Swap => self.swap(),
            Operation::Redeem {
                code,
                reference,
                hold_seconds,
            } => self.redeem(*code, reference, *hold_seconds, now),
            Operation::Confirm { redemption } => self.confirm(*redemption),
            Operation::Cancel { redemption } => {
                if matches!(
                    self.redemptions[*redemption].status,
                    Status::Held | Status::Redeemed
                ) {
                    self.end(*redemption, Status::Cancelled);
                }
                Expected::Redemption {
                    status: 200,
                    index: *redemption,
                }
            }
        }
    }

    fn not_found(&self) -> &'static str {
        if self.kind.is_coupon() {
            "coupon-not-found"
        } else {
            "campaign-not-found"
        }
    }

    /// Keeps a change that was accepted, though it may have found nothing to do.
    fn keep(&mut self, change: Change) {
        if let Some(replacement) = &mut self.replacement {
            replacement.changes.push(change);
        }
    }

    fn add(&mut self, item: Item, revive: bool) -> &'static str {
        self.pool.insert(item);
        let outcome = match self.slots.get(&item) {
            None => "added",
            Some(_) if self.kind == Kind::CompactCampaign => "added",
            Some(&Slot::Redeemed(index)) if revive => {
                self.end(index, Status::Cancelled);
                "revived"
            }
            Some(Slot::Redeemed(_)) => "already_redeemed",
            Some(_) => "already_present",
        };
        put(&mut self.slots, self.kind, item);
        self.keep(Change::Add(item));
        outcome
    }

    fn remove(&mut self, item: Item, all: bool) -> &'static str {
        self.pool.remove(&item);
        self.keep(Change::Remove { item, all });
        let outcome = match self.slots.get(&item) {
            None => "absent",
            Some(Slot::Redeemed(_)) => return "already_redeemed",
            Some(&Slot::Held(index)) => {
                self.end(index, Status::Cancelled);
                "removed"
            }
            Some(Slot::Copies(_)) => "removed",
        };
        take(&mut self.slots, item, all);
        outcome
    }

    fn replace(&mut self, from: Item, to: Item) -> &'static str {
        let is_used = |item| matches!(self.slots.get(&item), Some(Slot::Redeemed(_)));
        if is_used(from) || is_used(to) {
            return "already_redeemed";
        }
        if !self.slots.contains_key(&from) {
            return "absent";
        }
        if self.kind != Kind::CompactCampaign && self.slots.contains_key(&to) {
            return "already_present";
        }
        self.add(to, false);
        self.remove(from, false);
        "replaced"
    }

    fn clear(&mut self) -> Expected {
        let before = self.total();
        self.slots
            .retain(|_, slot| !matches!(slot, Slot::Copies(_)));
        self.pool.clear();
        self.keep(Change::Clear);
        Expected::Cleared(before - self.total())
    }

    /// The upload replaces everything but held and used codes; then the changes accepted during it are repeated.
    fn swap(&mut self) -> Expected {
        let Some(Replacement { upload, changes }) = self.replacement.take() else {
            unreachable!("only an upload that is open is ended")
        };
        let used = |slot: &Slot| !matches!(slot, Slot::Copies(_));
        let live = std::mem::take(&mut self.slots);
        let lines = upload.len() as u64;
        self.pool = upload.clone();
        for change in &changes {
            match *change {
                Change::Add(item) => drop(self.pool.insert(item)),
                Change::Remove { item, .. } => drop(self.pool.remove(&item)),
                Change::Clear => self.pool.clear(),
            }
        }
        let mut slots: BTreeMap<_, _> = upload
            .into_iter()
            .map(|item| (item, Slot::Copies(1)))
            .collect();
        slots.extend(
            live.iter()
                .filter(|(_, slot)| used(slot))
                .map(|(&item, &slot)| (item, slot)),
        );
        for change in changes {
            match change {
                Change::Add(item) => put(&mut slots, self.kind, item),
                Change::Remove { item, .. } if live.get(&item).is_some_and(used) => {}
                Change::Remove { item, all } => take(&mut slots, item, all),
                Change::Clear => slots.retain(|_, slot| used(slot)),
            }
        }
        self.slots = slots;
        Expected::Swapped { lines }
    }

    fn redeem(&mut self, code: Item, reference: &str, hold_seconds: u64, now: i64) -> Expected {
        let hold_until = now + 1_000 * hold_seconds as i64 - CLOCK_MARGIN;
        let is_open = self.kind == Kind::OpenPool;
        let index = match self.slots.get(&code) {
            None if !is_open => return Expected::Refused(404, "code-unknown"),
            None if self.slots.len() as u64 >= self.stock => {
                return Expected::Refused(409, "sold-out");
            }
            Some(&(Slot::Held(index) | Slot::Redeemed(index))) => index,
            None | Some(Slot::Copies(_)) => {
                let index = self.redemptions.len();
                let ordinal = is_open.then(|| self.lowest_ordinal());
                let (status, slot) = match hold_seconds {
                    0 => (Status::Redeemed, Slot::Redeemed(index)),
                    _ => (Status::Held, Slot::Held(index)),
                };
                self.slots.insert(code, slot);
                self.redemptions.push(Redemption {
                    id: None,
                    code,
                    reference: reference.to_owned(),
                    status,
                    ordinal,
                    expires_at: hold_until,
                    is_exact: false,
                });
                return Expected::Redemption { status: 201, index };
            }
        };
        let redemption = &mut self.redemptions[index];
        match (redemption.reference == reference, redemption.status) {
            (false, Status::Held) => return Expected::Refused(409, "code-held"),
            (false, _) => return Expected::Refused(409, "code-redeemed"),
            (true, Status::Held) if hold_seconds > 0 => {
                redemption.expires_at = redemption.expires_at.max(hold_until);
                redemption.is_exact = false;
            }
            (true, Status::Held) => return self.confirm(index),
            (true, _) => {}
        }
        Expected::Redemption { status: 200, index }
    }

    /// The lowest number that no redemption in use has.
    fn lowest_ordinal(&self) -> u64 {
        let in_use = self
            .slots
            .keys()
            .filter_map(|&code| self.standing(code)?.ordinal);
        let in_use: BTreeSet<u64> = in_use.collect();
        (1..)
            .find(|ordinal| !in_use.contains(ordinal))
            .expect("there is always one more")
    }

    fn confirm(&mut self, index: usize) -> Expected {
        let redemption = &mut self.redemptions[index];
        match redemption.status {
            Status::Redeemed => {}
            Status::Held => {
                redemption.status = Status::Redeemed;
                self.slots.insert(redemption.code, Slot::Redeemed(index));
            }
            Status::Expired => return Expected::Refused(409, "hold-expired"),
            Status::Cancelled => return Expected::Refused(409, "redemption-cancelled"),
        }
        Expected::Redemption { status: 200, index }
    }

    /// Ends a current redemption; its code is available again, or absent if it was withdrawn, or in an open pool.
    fn end(&mut self, index: usize, status: Status) {
        let redemption = &mut self.redemptions[index];
        redemption.status = status;
        match self.kind {
            Kind::Coupon if !self.pool.contains(&redemption.code) => {
                self.slots.remove(&redemption.code)
            }
            Kind::OpenPool => self.slots.remove(&redemption.code),
            _ => self.slots.insert(redemption.code, Slot::Copies(1)),
        };
    }

    /// Ends the holds that have run out for sure.
    pub fn expire(&mut self, now: i64) {
        for index in 0..self.redemptions.len() {
            let redemption = &self.redemptions[index];
            if redemption.status == Status::Held && redemption.has_run_out(now, now) == Some(true) {
                self.end(index, Status::Expired);
            }
        }
    }
}

impl Redemption {
    /// Whether the hold has run out throughout the time between two moments; none if that can't be said.
    pub fn has_run_out(&self, from: i64, to: i64) -> Option<bool> {
        if self.is_exact && self.expires_at + CLOCK_MARGIN < from {
            Some(true)
        } else if self.expires_at > to + CLOCK_MARGIN {
            Some(false)
        } else {
            None
        }
    }
}

/// Adds an item, which strict filters have at most once.
fn put(slots: &mut BTreeMap<Item, Slot>, kind: Kind, item: Item) {
    match slots.entry(item).or_insert(Slot::Copies(0)) {
        Slot::Copies(copies) if kind == Kind::CompactCampaign => *copies += 1,
        Slot::Copies(copies) => *copies = 1,
        Slot::Held(_) | Slot::Redeemed(_) => {}
    }
}

/// Takes one copy of an item out, or all, if there is any.
fn take(slots: &mut BTreeMap<Item, Slot>, item: Item, all: bool) {
    match slots.get_mut(&item) {
        Some(Slot::Copies(copies)) if *copies > 1 && !all => *copies -= 1,
        Some(_) => drop(slots.remove(&item)),
        None => {}
    }
}
