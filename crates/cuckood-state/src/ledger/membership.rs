//! Which used codes are in the pool of a coupon.
//!
//! A held or redeemed code stays in the table when it is removed, cleared, or absent from a replacement: it is used. Whether it comes back
//! when its use ends depends on whether it is a member by then. Codes have numbers here: the slot of their redemption in the ledger or, if
//! they have several uses, the slot of their tally.
//!
//! The set is stored as its difference from all numbers, or from none. So a clear takes no time however many codes are used. A set that was
//! cleared always has one number, which is no code's: so it has something to store.

use crate::paged::Numbers;

/// A set of used codes. Initially it has all of them.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    /// Codes are only members if they have joined since the set was cleared.
    is_cleared: bool,
    /// The members if the set was cleared, otherwise all other codes.
    exceptions: Numbers,
}

/// The number that every cleared set has.
const CLEARED: u64 = 1;

/// The number of a code in the set.
fn number(code: u32) -> u64 {
    u64::from(code) + 1 + CLEARED
}

impl Membership {
    /// A set without members.
    pub(crate) fn none() -> Self {
        let mut none = Self::loading(true);
        none.exceptions.take(CLEARED);
        none
    }

    /// A set without members, for a pool that has this many held and redeemed codes. If there are none, the set of all is the same.
    pub(crate) fn without_members(used: (u64, u64)) -> Self {
        if used == (0, 0) {
            Self::default()
        } else {
            Self::none()
        }
    }

    /// A set whose exceptions are going to be [loaded](Self::load).
    pub(crate) fn loading(is_cleared: bool) -> Self {
        Self {
            is_cleared,
            exceptions: Numbers::default(),
        }
    }

    pub(crate) fn is_cleared(&self) -> bool {
        self.is_cleared
    }

    /// Whether all codes are members.
    pub(crate) fn is_whole(&self) -> bool {
        !self.is_cleared && self.exceptions.is_empty()
    }

    /// Whether all codes have always been members.
    pub(crate) fn is_untouched(&self) -> bool {
        self.is_whole() && self.exceptions.pages.changes == 0
    }

    pub(crate) fn contains(&self, code: u32) -> bool {
        self.exceptions.contains(number(code)) == self.is_cleared
    }

    pub(crate) fn join(&mut self, code: u32) {
        self.set(code, true);
    }

    pub(crate) fn leave(&mut self, code: u32) {
        self.set(code, false);
    }

    fn set(&mut self, code: u32, is_member: bool) {
        if is_member == self.is_cleared {
            self.exceptions.take(number(code));
        } else {
            self.exceptions.release(number(code));
        }
    }

    /// Removes all members.
    pub(crate) fn clear(&mut self) {
        self.replace(Self::none());
    }

    /// Becomes another set.
    pub(crate) fn replace(&mut self, other: Self) {
        if other.is_whole() && self.is_whole() {
            return;
        }
        let changes = self.exceptions.pages.changes;
        *self = other;
        // No count may stand for two contents.
        self.exceptions.pages.changes = changes.max(self.exceptions.pages.changes) + 1;
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.exceptions.memory_bytes()
    }

    /// Maximum memory of a set without members, in bytes.
    pub(crate) fn none_bytes() -> u64 {
        Numbers::growth_bytes(CLEARED)
    }

    /// Maximum memory by which it grows, if numbers are below `end`, in bytes.
    pub(crate) fn growth_bytes(&self, end: u64) -> u64 {
        Numbers::growth_bytes(end.saturating_add(CLEARED)).saturating_sub(self.memory_bytes())
    }

    /// The numbers that a snapshot stores.
    pub(crate) fn exceptions(&mut self) -> &mut Numbers {
        &mut self.exceptions
    }

    /// Takes the next chunk of the exceptions. Returns whether it is sound.
    pub(crate) fn load(&mut self, chunk: &[u8]) -> bool {
        self.exceptions.load(chunk).is_some()
    }

    /// Whether the exceptions can be complete.
    pub(crate) fn is_trimmed(&self) -> bool {
        self.exceptions.is_trimmed()
    }

    /// Frees a page. Returns whether there was one.
    pub(crate) fn free_page(&mut self) -> bool {
        self.exceptions.free_page().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Join(u32),
        Leave(u32),
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            10 => (0..9_000_u32).prop_map(Step::Join),
            10 => (0..9_000_u32).prop_map(Step::Leave),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        #[test]
        fn membership_is_a_set(steps in proptest::collection::vec(step(), 0..200)) {
            let mut membership = Membership::default();
            let mut others = BTreeSet::new();
            let mut members = BTreeSet::new();
            let mut is_cleared = false;
            let most = membership.growth_bytes(9_000);
            for step in steps {
                match step {
                    Step::Join(code) => {
                        membership.join(code);
                        others.remove(&code);
                        members.insert(code);
                    }
                    Step::Leave(code) => {
                        membership.leave(code);
                        others.insert(code);
                        members.remove(&code);
                    }
                    Step::Clear => {
                        membership.clear();
                        (is_cleared, others, members) = (true, BTreeSet::new(), BTreeSet::new());
                    }
                }
                prop_assert!(membership.memory_bytes() <= most);
            }
            for code in (0..9_000).step_by(7).chain(others.clone()).chain(members.clone()) {
                let expected = if is_cleared { members.contains(&code) } else { !others.contains(&code) };
                prop_assert_eq!(membership.contains(code), expected);
            }
        }
    }
}
