//! A memory budget: one limit for all buffers of requests, or of responses.
//!
//! Each of them holds a [`Share`]. It grows the share before it stores more, unless the data is already in memory. Dropping the share
//! returns it, even if the client disconnects or a handler panics.
//!
//! No owner can keep out the others: an owner's shares of more than 4 KiB may hold at most [`OWNER_FACTOR`] times the free space (dynamic thresholds: Choudhury and
//! Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998). A single owner can use 8/9 of the
//! budget; `n` owners share it equally, and space is left for one more.

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

/// A share of up to this many bytes may use the reserve that large shares may not, so that a few large, slow clients don't keep
/// out many small ones.
const SMALL_BYTES: u64 = 64 << 10;

/// The largest reserve.
const RESERVE_BYTES_MAX: u64 = 4 << 20;

/// How many times the free space an owner may hold.
const OWNER_FACTOR: u64 = 8;

/// Shares of up to this many bytes count toward no owner: they are frequent, short-lived, and bounded by the number of connections.
const UNOWNED_BYTES_MAX: u64 = 4 << 10;

/// A request's or response's body of up to this many bytes is part of the memory of its connection (`server/capacity.rs`) and needs no share.
pub const FREE_BYTES: u64 = 16 << 10;

/// The client that holds memory and connections: an API key, or an address if no keys are configured.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Owner(u64);

impl Owner {
    /// The owner of this name. No name is empty.
    pub fn named(name: &[u8]) -> Self {
        Self(xxh3_64(name).max(1))
    }

    /// A number other than 0.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The owner of this number; `None` for 0.
    pub fn from_number(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }
}

/// The memory that many may take together.
#[derive(Debug)]
pub struct Budget {
    limit_bytes: u64,
    /// Bytes in use. This is the metric itself, so the two can't differ.
    pub taken_bytes: Gauge<u64, AtomicU64>,
    /// Shares rejected so far.
    pub refused: Counter,
    /// Bytes of the large shares of each owner that has any.
    owners: Mutex<HashMap<Owner, u64>>,
}

/// The error if the budget has too little space for a larger share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the memory budget is used up")]
pub struct UsedUp;

impl Budget {
    /// A budget of this size.
    pub fn new(limit_bytes: u64) -> Self {
        let (taken_bytes, refused, owners) = Default::default();
        Self {
            limit_bytes,
            taken_bytes,
            refused,
            owners,
        }
    }

    /// Registers the two metrics by these names and help texts.
    pub fn register(&self, registry: &mut Registry, taken: (&str, &str), refused: (&str, &str)) {
        registry.register(taken.0, taken.1, self.taken_bytes.clone());
        registry.register(refused.0, refused.1, self.refused.clone());
    }

    /// The largest share that there can be, in bytes.
    pub fn share_bytes_max(&self) -> u64 {
        let owned = self.limit_bytes / (OWNER_FACTOR + 1) * OWNER_FACTOR;
        self.limit_bytes_of(u64::MAX).min(owned)
    }

    fn limit_bytes_of(&self, share_bytes: u64) -> u64 {
        if share_bytes <= SMALL_BYTES {
            return self.limit_bytes;
        }
        self.limit_bytes - (self.limit_bytes / 8).min(RESERVE_BYTES_MAX)
    }

    /// Takes `more` bytes for a share that will have `share_bytes`.
    fn take(&self, more: u64, share_bytes: u64) -> Result<(), UsedUp> {
        let limit = self.limit_bytes_of(share_bytes);
        let grown = |taken: u64| taken.checked_add(more).filter(|&taken| taken <= limit);
        match self
            .taken_bytes
            .inner()
            .fetch_update(Relaxed, Relaxed, grown)
        {
            Ok(_) => Ok(()),
            Err(_) => Err(UsedUp),
        }
    }

    /// Changes what an owner holds from `before` to `after` bytes of one share, whose bytes are taken already.
    fn attribute(
        &self,
        owner: Owner,
        before: u64,
        after: u64,
        must_fit: bool,
    ) -> Result<(), UsedUp> {
        let mut owners = self.owners.lock();
        let held = owners.entry(owner).or_default();
        let sum = (*held + after).saturating_sub(before);
        let free = self.limit_bytes.saturating_sub(self.taken_bytes.get());
        if must_fit && after > before && sum > free.saturating_mul(OWNER_FACTOR) {
            if *held == 0 {
                owners.remove(&owner);
            }
            return Err(UsedUp);
        }
        *held = sum;
        if sum == 0 {
            owners.remove(&owner);
        }
        Ok(())
    }
}

/// A share of a budget that many tasks use.
pub type BudgetShare = Share<Arc<Budget>>;

/// A share of the budget; returned when it is dropped.
#[derive(Debug)]
pub struct Share<B: Deref<Target = Budget>> {
    budget: B,
    owner: Option<Owner>,
    bytes: u64,
}

impl<B: Deref<Target = Budget>> Share<B> {
    /// An empty share. Without an owner, only the budget limits it.
    pub fn empty(budget: B, owner: Option<Owner>) -> Self {
        Self {
            budget,
            owner,
            bytes: 0,
        }
    }

    /// A share of this many bytes.
    ///
    /// # Errors
    /// [`UsedUp`].
    pub fn of(budget: B, owner: Option<Owner>, bytes: u64) -> Result<Self, UsedUp> {
        let mut share = Self::empty(budget, owner);
        share.hold(bytes)?;
        Ok(share)
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Grows or shrinks it to this many bytes.
    ///
    /// # Errors
    /// [`UsedUp`] if it would grow; it is unchanged then.
    pub fn hold(&mut self, bytes: u64) -> Result<(), UsedUp> {
        if bytes <= self.bytes {
            self.hold_anyway(bytes);
            return Ok(());
        }
        let grown = self.grow(bytes);
        if grown.is_err() {
            self.budget.refused.inc();
        }
        grown
    }

    /// Grows the share to this many bytes if there is space. Does not count as rejected otherwise.
    pub fn hold_if_free(&mut self, bytes: u64) -> bool {
        bytes <= self.bytes || self.grow(bytes).is_ok()
    }

    fn grow(&mut self, bytes: u64) -> Result<(), UsedUp> {
        let more = bytes - self.bytes;
        self.budget.take(more, bytes)?;
        let before = owned(self.bytes);
        let after = owned(bytes);
        // Most shares stay too small to count for their owner, and the owners have one lock.
        if let Some(owner) = self.owner
            && before != after
            && let Err(used_up) = self.budget.attribute(owner, before, after, true)
        {
            self.budget.taken_bytes.inner().fetch_sub(more, Relaxed);
            return Err(used_up);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Grows or shrinks the share to this many bytes, even beyond the limit: for data that is already stored and must stay.
    pub fn hold_anyway(&mut self, bytes: u64) {
        let taken = self.budget.taken_bytes.inner();
        match bytes.cmp(&self.bytes) {
            Ordering::Greater => taken.fetch_add(bytes - self.bytes, Relaxed),
            Ordering::Less => taken.fetch_sub(self.bytes - bytes, Relaxed),
            Ordering::Equal => return,
        };
        let before = owned(self.bytes);
        let after = owned(bytes);
        if let Some(owner) = self.owner
            && before != after
        {
            // Without the condition it can't fail.
            let _ = self.budget.attribute(owner, before, after, false);
        }
        self.bytes = bytes;
    }

    /// Attributes the share to another owner.
    pub fn assign(&mut self, owner: Option<Owner>) {
        if owner == self.owner {
            return;
        }
        let bytes = std::mem::take(&mut self.bytes);
        if let Some(before) = self.owner {
            let _ = self.budget.attribute(before, owned(bytes), 0, false);
        }
        if let Some(after) = owner {
            let _ = self.budget.attribute(after, 0, owned(bytes), false);
        }
        self.owner = owner;
        self.bytes = bytes;
    }
}

/// The bytes of a share that count toward its owner.
fn owned(bytes: u64) -> u64 {
    if bytes <= UNOWNED_BYTES_MAX { 0 } else { bytes }
}

impl<B: Deref<Target = Budget>> Drop for Share<B> {
    fn drop(&mut self) {
        self.hold_anyway(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Returns a budget of this size, and the gauge of its use.
    fn budget(limit_bytes: u64) -> (Budget, Gauge<u64, AtomicU64>) {
        let budget = Budget::new(limit_bytes);
        let taken = budget.taken_bytes.clone();
        (budget, taken)
    }

    #[test]
    fn large_shares_leave_space_for_small() {
        let (budget, _) = budget(16 << 20);
        let mut large = Share::of(&budget, None, 14 << 20).unwrap();
        assert_eq!(large.hold((14 << 20) + 1), Err(UsedUp));
        assert!(Share::of(&budget, None, SMALL_BYTES + 1).is_err());
        let small: Vec<_> = (0..32)
            .map(|_| Share::of(&budget, None, SMALL_BYTES).unwrap())
            .collect();
        assert!(Share::of(&budget, None, 1).is_err());
        assert_eq!(budget.refused.get(), 3);
        drop(small);
        assert!(Share::of(&budget, None, SMALL_BYTES).is_ok());
    }

    #[test]
    fn owner_leaves_space_for_others() {
        let limit = 90 << 20;
        let (budget, taken) = budget(limit);
        let [first, second] = [b"first", b"later"].map(|name| Some(Owner::named(name)));
        let fill = |owner| {
            let mut shares = Vec::new();
            while let Ok(share) = Share::of(&budget, owner, 1 << 20) {
                shares.push(share);
            }
            shares
        };
        let mut of_first = fill(first);
        assert_eq!(
            taken.get(),
            limit / 9 * 8,
            "a single owner may use nearly all"
        );
        let of_second = fill(second);
        assert!(
            of_second.len() > 5,
            "{} MiB are left for the second",
            of_second.len()
        );
        of_first.truncate(20);
        assert!(fill(second).len() > 20, "space returns to both");
        drop((of_first, of_second));
        assert!(budget.owners.lock().is_empty());
    }

    #[test]
    fn small_shares_have_no_owner() {
        let (budget, _) = budget(1 << 20);
        let owner = Some(Owner::named(b"shop"));
        let mut shares = Vec::new();
        while let Ok(share) = Share::of(&budget, owner, UNOWNED_BYTES_MAX) {
            shares.push(share);
        }
        assert_eq!(shares.len() as u64, (1 << 20) / UNOWNED_BYTES_MAX);
        assert!(budget.owners.lock().is_empty());
    }

    proptest! {
        /// Shares may do anything in any order, and end in any way. Only data that must stay exceeds the limit, and the bytes in use always
        /// equal the sum of the shares. In the end all are returned.
        #[test]
        fn shares_stay_within_limit_and_return(
            limit in 0u64..300_000,
            steps in prop::collection::vec((0usize..6, 0usize..8, 0u64..100_000), 0..200),
        ) {
            let (budget, taken) = budget(limit);
            let mut shares: Vec<Option<Share<&Budget>>> = (0..8).map(|_| None).collect();
            let mut is_beyond = false;
            let owners = [None, Some(Owner::named(b"a")), Some(Owner::named(b"b"))];
            for (step, which, bytes) in steps {
                let owner = owners[which % 3];
                let place = &mut shares[which];
                match (step, &mut *place) {
                    (0..=3, None) => *place = Share::of(&budget, owner, bytes).ok(),
                    (0..=2, Some(share)) => {
                        let before = share.bytes();
                        let held = taken.get();
                        match share.hold(bytes) {
                            Ok(()) => prop_assert_eq!(share.bytes(), bytes),
                            Err(UsedUp) => prop_assert_eq!((share.bytes(), taken.get()), (before, held)),
                        }
                        prop_assert!(share.bytes() <= before || taken.get() <= limit);
                    }
                    (3, Some(share)) => {
                        share.hold_anyway(bytes);
                        is_beyond |= taken.get() > limit;
                    }
                    (4, Some(share)) if bytes % 2 == 0 => share.assign(owners[bytes as usize % 3]),
                    (4, Some(_)) => *place = None,
                    (5, Some(_)) => {
                        let share = place.take();
                        let panics = catch_unwind(AssertUnwindSafe(move || {
                            let _held = share;
                            std::panic::resume_unwind(Box::new("on purpose"));
                        }));
                        prop_assert!(panics.is_err());
                    }
                    _ => {}
                }
                prop_assert!(is_beyond || taken.get() <= limit, "{} of {limit}", taken.get());
                prop_assert_eq!(taken.get(), shares.iter().flatten().map(Share::bytes).sum::<u64>());
                for owner in owners.into_iter().flatten() {
                    let own = shares.iter().flatten().filter(|share| share.owner == Some(owner));
                    let held = budget.owners.lock().get(&owner).copied().unwrap_or_default();
                    prop_assert_eq!(held, own.map(|share| owned(share.bytes)).sum::<u64>());
                }
            }
            drop(shares);
            prop_assert!(budget.owners.lock().is_empty());
            prop_assert_eq!(taken.get(), 0);
        }
    }
}
