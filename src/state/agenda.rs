//! Which campaigns that forget have something to do as time passes, and when. It follows from what they are, but for whose turn it is.

use crate::domain::{FilterId, Timestamp};
use std::collections::BTreeSet;
use std::ops::Bound;

/// Which campaigns have something to do, and when.
#[derive(Default)]
pub(super) struct Agenda {
    /// When the oldest users of a campaign are forgotten.
    due: BTreeSet<(Timestamp, FilterId)>,
    /// Campaigns whose tables have forgotten users.
    retiring: BTreeSet<FilterId>,
    /// The one of them whose turn was last.
    pub(super) last: Option<FilterId>,
}

/// What one filter has to do.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Task {
    /// When its oldest users are forgotten.
    pub(super) due: Option<Timestamp>,
    /// Whether its tables have forgotten users.
    pub(super) is_retiring: bool,
}

impl Agenda {
    /// Notes that a filter has this to do now, where it had that before.
    pub(super) fn change(&mut self, filter: FilterId, before: Task, now: Task) {
        if before == now {
            return;
        }
        if let Some(due) = before.due {
            self.due.remove(&(due, filter));
        }
        if let Some(due) = now.due {
            self.due.insert((due, filter));
        }
        if now.is_retiring {
            self.retiring.insert(filter);
        } else {
            self.retiring.remove(&filter);
        }
    }

    /// When the oldest users of any campaign are forgotten, and the campaign.
    pub(super) fn first(&self) -> Option<(Timestamp, FilterId)> {
        self.due.first().copied()
    }

    /// Whether any campaign's tables have forgotten users.
    pub(super) fn is_any_retiring(&self) -> bool {
        !self.retiring.is_empty()
    }

    /// The campaign whose turn it is to free the slots of forgotten users, if there is one: they take turns, in the order of their ids.
    pub(super) fn next_retiring(&mut self) -> Option<FilterId> {
        let after = (self.last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let next = self.retiring.range(after).next().or(self.retiring.first()).copied()?;
        self.last = Some(next);
        self.last
    }
}
