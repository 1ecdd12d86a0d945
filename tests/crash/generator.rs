//! A client's next operation, random among those whose result its model can predict.

use crate::model::{BULK, Filter, Item, Kind, STOCK};
use crate::operation::Operation;
use crate::worker::Part;
use cuckood_state::testing::random::Random;
use std::collections::BTreeSet;

/// Items of a client: few in its own filter, so that they meet repeatedly.
const SHARED_ITEMS: u64 = 1_500;
const OWN_ITEMS: u64 = 160;

/// Users of an open pool, who are more than its stock.
const POOL_ITEMS: u64 = 40;

/// Items of large imports: more than the log takes in one piece.
const BULK_ITEMS: u64 = 20_000;

/// One in this many imports is a large one.
const BULK_RARITY: u64 = 25;

/// Redemptions of a coupon before it is deleted: each is looked up after every start.
const REDEMPTIONS_MAX: usize = 40;

pub enum Action {
    Perform(Operation),
    BeginReplacement {
        id: String,
        items: Vec<Item>,
    },
    BreakOff,
    /// The filter goes and comes back from its image.
    Move,
}

/// The next operation on a filter; `None` if the drawn one can't be done or predicted now. `name` is new.
pub fn choose(part: &Part, random: &mut Random, name: &str) -> Option<Action> {
    let mut choice = Choice {
        filter: &part.filter,
        is_shared: part.is_shared,
        random,
        unsure: BTreeSet::new(),
    };
    choice.unsure = part.filter.unsure(crate::model::now());
    if !part.filter.stands {
        let is_moved = part.filter.image.is_some();
        return Some(Action::Perform(if is_moved {
            Operation::PutImage
        } else {
            Operation::Create
        }));
    }
    // In an open pool a hold that may have run out concerns everybody.
    if part.filter.kind == Kind::OpenPool && !choice.unsure.is_empty() {
        return None;
    }
    if !part.is_shared
        && let Some(action) = choice.whole(name)
    {
        return Some(action);
    }
    let operation = match part.filter.kind {
        Kind::OpenPool if choice.random.below(100) < 95 => choice.code(name),
        Kind::Coupon if choice.random.below(100) < 60 => choice.code(name),
        _ => choice.items(name),
    };
    operation.map(Action::Perform)
}

struct Choice<'a> {
    filter: &'a Filter,
    is_shared: bool,
    random: &'a mut Random,
    /// Codes whose holds may or may not have expired.
    unsure: BTreeSet<Item>,
}

impl Choice<'_> {
    /// Something that concerns the whole filter.
    fn whole(&mut self, name: &str) -> Option<Action> {
        let filter = self.filter;
        let roll = self.random.below(100);
        if roll == 0 || filter.redemptions.len() > REDEMPTIONS_MAX {
            return Some(Action::Perform(Operation::Delete));
        }
        if roll == 99 && !filter.is_replacing() && self.unsure.is_empty() {
            return Some(Action::Move);
        }
        if filter.kind == Kind::OpenPool {
            return match roll {
                1..6 => Some(Action::Perform(Operation::Restock {
                    stock: 1 + self.random.below(2 * STOCK),
                })),
                6 => Some(Action::Perform(Operation::Raise {
                    capacity: self.capacity(),
                })),
                7 => Some(Action::Perform(Operation::Clear)),
                8 => Some(Action::Perform(Operation::Guarded {
                    id: name.into(),
                    items: self.upload(),
                })),
                _ => None,
            };
        }
        match (filter.is_replacing(), roll) {
            (true, 1..22) if self.unsure.is_empty() => Some(Action::Perform(Operation::Swap)),
            (true, 22..24) => Some(Action::BreakOff),
            (false, 1..15) => Some(Action::BeginReplacement {
                id: name.into(),
                items: self.upload(),
            }),
            (false, 15..20) => Some(Action::Perform(Operation::Guarded {
                id: name.into(),
                items: self.upload(),
            })),
            (_, 24..27) if self.unsure.is_empty() => Some(Action::Perform(Operation::Clear)),
            (_, 27..29) => Some(Action::Perform(Operation::Raise {
                capacity: self.capacity(),
            })),
            _ => None,
        }
    }

    /// Mostly a higher one, sometimes for large imports too.
    fn capacity(&mut self) -> u64 {
        match self.random.below(8) {
            0 => self.filter.capacity - 1,
            1 => self.filter.capacity,
            2 => self.filter.capacity.max(BULK_ITEMS) + self.random.below(1_000),
            _ => self.filter.capacity + self.random.below(500),
        }
    }

    /// The items of a replacement: about half of the present ones, few of them or many more.
    fn upload(&mut self) -> Vec<Item> {
        let share = 1 + self.random.below(9);
        let mut items: Vec<Item> = (0..OWN_ITEMS as Item)
            .filter(|_| self.random.below(10) < share)
            .collect();
        if self.random.below(BULK_RARITY) == 0 {
            items.extend(self.bulk());
        }
        if items.is_empty() {
            items.push(0);
        }
        items
    }

    fn bulk(&mut self) -> impl Iterator<Item = Item> + use<> {
        BULK..BULK + 10_000 + self.random.below(BULK_ITEMS - 10_000) as Item
    }

    fn items(&mut self, name: &str) -> Option<Operation> {
        let is_compact = self.filter.kind == Kind::CompactCampaign;
        let filter = self.filter;
        let roll = self.random.below(100);
        // More than a few copies are too many for a compact filter.
        let has_room = move |item: Item| !is_compact || filter.copies(item) < 2;
        // A stranger that is removed from a compact filter may take a member with it.
        let may_go = move |item: Item| !is_compact || filter.copies(item) > 0;
        match roll {
            0..40 => {
                let items = self.some(if self.is_shared { 40 } else { 12 }, has_room)?;
                let revive = filter.kind.is_coupon() && self.random.below(4) == 0;
                Some(Operation::Add { items, revive })
            }
            40..65 => {
                let items = self.some(if self.is_shared { 40 } else { 6 }, may_go)?;
                // In a compact filter also all copies of whatever looks like it.
                let may_take_all = !(filter.kind.is_coupon() || is_compact);
                let all = may_take_all && self.random.below(4) == 0;
                Some(Operation::Remove { items, all })
            }
            65..80 => {
                let from = self.some(4, may_go)?;
                let to = self.some(4, has_room)?;
                let to: Vec<Item> = to.into_iter().filter(|to| !from.contains(to)).collect();
                let pairs: Vec<_> = from.into_iter().zip(to).collect();
                (!pairs.is_empty()).then_some(Operation::Replace { pairs })
            }
            _ => {
                let mut items = self.some(if self.is_shared { 600 } else { 60 }, has_room)?;
                if !self.is_shared && self.random.below(BULK_RARITY) == 0 {
                    items = self.bulk().filter(|&item| has_room(item)).collect();
                }
                (!items.is_empty()).then(|| Operation::Append {
                    id: name.into(),
                    items,
                })
            }
        }
    }

    fn code(&mut self, name: &str) -> Option<Operation> {
        let filter = self.filter;
        let roll = self.random.below(100);
        let index = filter.redemptions.len() as u64;
        if roll < 60 || index == 0 {
            let code = self.some(1, |_| true)?[0];
            let reference = match filter.standing(code) {
                Some(standing) if self.random.below(3) == 0 => standing.reference.clone(),
                _ => name.into(),
            };
            let hold_seconds = match self.random.below(100) {
                0..50 => 0,
                // Few, since their codes are unpredictable for a second.
                50..53 => 1,
                _ => 3_600 + self.random.below(10_000),
            };
            return Some(Operation::Redeem {
                code,
                reference,
                hold_seconds,
            });
        }
        let redemption = self.random.below(index) as usize;
        if self.unsure.contains(&filter.redemptions[redemption].code) {
            return None;
        }
        Some(if roll < 75 {
            Operation::Confirm { redemption }
        } else {
            Operation::Cancel { redemption }
        })
    }

    /// Up to `max` different items with a predictable result.
    fn some(&mut self, max: u64, is_wanted: impl Fn(Item) -> bool) -> Option<Vec<Item>> {
        let filter = self.filter;
        let count = 1 + self.random.below(max);
        let own_items = if filter.kind == Kind::OpenPool {
            POOL_ITEMS
        } else {
            OWN_ITEMS
        };
        let has_bulk = filter.known.last().is_some_and(|&last| last >= BULK);
        let mut chosen = BTreeSet::new();
        for _ in 0..4 * count {
            let item = match self.is_shared {
                true => self.random.below(SHARED_ITEMS) as Item,
                false if has_bulk && self.random.below(4) == 0 => {
                    BULK + self.random.below(BULK_ITEMS) as Item
                }
                false => self.random.below(own_items) as Item,
            };
            if is_wanted(item) && !self.unsure.contains(&item) {
                chosen.insert(item);
                if chosen.len() as u64 == count {
                    break;
                }
            }
        }
        let mut chosen: Vec<Item> = chosen.into_iter().collect();
        // Sorted, pairs would always replace the smaller by the larger.
        for at in (1..chosen.len()).rev() {
            chosen.swap(at, self.random.below(at as u64 + 1) as usize);
        }
        (!chosen.is_empty()).then_some(chosen)
    }
}
