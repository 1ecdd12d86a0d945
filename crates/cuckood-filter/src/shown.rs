//! What a writer shows its readers in one piece, and how a reader notices that it was replaced while it looked: an item that it did not
//! find may have moved from a table that it had seen already to one that it had not.

use arc_swap::{ArcSwap, Guard};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

/// A value that one writer replaces, and that readers see without a lock.
#[derive(Default)]
pub(super) struct Shown<T> {
    value: ArcSwap<T>,
    /// How often the value has been replaced.
    replaced: AtomicU64,
}

/// The value as it was when the look began.
pub(super) struct Look<'a, T> {
    shown: &'a Shown<T>,
    value: Guard<Arc<T>>,
    /// The count from before the value was loaded.
    replaced: u64,
}

impl<T> Shown<T> {
    /// Replaces the value. The writer moves an item to a new table only after this.
    pub(super) fn replace(&self, value: T) {
        self.value.store(Arc::new(value));
        // Behind the value: see `look`.
        self.replaced.fetch_add(1, Release);
    }

    /// The value as it is now.
    #[inline]
    pub(super) fn look(&self) -> Look<'_, T> {
        // The count must be loaded first. If the value is newer than the count, that costs a second look; if it were older, an item
        // could be missed.
        let replaced = self.replaced.load(Acquire);
        Look { shown: self, value: self.value.load(), replaced }
    }
}

impl<T> Deref for Look<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Look<'_, T> {
    /// Whether the value is still the same. Then an item that was not found in it is not there.
    #[inline]
    pub(super) fn is_current(&self) -> bool {
        self.shown.replaced.load(Acquire) == self.replaced
    }

    /// Looks again, until the value is the same before and after it or what was seen is `sure`.
    #[cold]
    pub(super) fn again<S>(&self, see: impl Fn(&T) -> S, is_sure: impl Fn(&S) -> bool) -> S {
        loop {
            let look = self.shown.look();
            let seen = see(&look);
            if is_sure(&seen) || look.is_current() {
                return seen;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_look_notices_a_replacement_and_a_second_one_sees_it() {
        let shown = Shown::<u64>::default();
        shown.replace(1);
        let look = shown.look();
        assert!(look.is_current());
        shown.replace(2);
        assert_eq!((*look, look.is_current()), (1, false));
        assert_eq!(look.again(|value| *value, |_| false), 2);
    }

    #[test]
    fn whoever_is_not_sure_looks_until_nothing_is_replaced_meanwhile() {
        let (shown, looks) = (Shown::<u64>::default(), Cell::new(0));
        let see = |value: &u64| {
            looks.set(looks.get() + 1);
            if *value < 3 {
                shown.replace(value + 1);
            }
            *value
        };
        let look = shown.look();
        assert_eq!((look.again(see, |seen| *seen == 1), looks.get()), (1, 2));
        assert_eq!((look.again(see, |_| false), looks.get()), (3, 4));
    }
}
