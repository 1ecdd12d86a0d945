//! The agenda: what filters have to do as time passes or entries come, in the order in which it is due.

use crate::domain::{FilterId, RedemptionId, Timestamp};
use std::collections::BTreeSet;
use std::ops::Bound;

/// Something that a filter has to do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Task {
    /// The first of its holds expires.
    Expire,
    /// The first of its ended redemptions is forgotten, once its retention has passed.
    Forget,
    /// Its oldest users are forgotten: it goes on to its next step.
    ForgetUsers,
    /// The slots of forgotten users are freed.
    Retire,
    /// Items move to another table.
    Move,
}

impl Task {
    const ALL: [Task; 5] = [Task::Expire, Task::Forget, Task::ForgetUsers, Task::Retire, Task::Move];
}

/// When a filter has something to do, and for which redemption.
pub(super) type Due = (Timestamp, RedemptionId);

/// Due at any time, for no redemption.
pub(super) const AT_ONCE: Due = (Timestamp(0), RedemptionId([0; 16]));

/// The tasks of one filter, in the order of [`Task::ALL`].
pub(super) type Tasks = [Option<Due>; Task::ALL.len()];

/// The tasks of all filters.
#[derive(Default)]
pub(super) struct Agenda {
    tasks: BTreeSet<(Task, Due, FilterId)>,
    /// The campaign that was the last to free slots of forgotten users.
    pub(super) last_retired: Option<FilterId>,
}

impl Agenda {
    /// Notes that a filter has these tasks now, where it had those before.
    pub(super) fn change(&mut self, filter: FilterId, before: &Tasks, now: &Tasks) {
        for ((task, before), now) in Task::ALL.into_iter().zip(before).zip(now) {
            if before != now {
                if let Some(due) = *before {
                    self.tasks.remove(&(task, due, filter));
                }
                self.tasks.extend(now.map(|due| (task, due, filter)));
            }
        }
    }

    /// The filter whose turn it is, and when.
    pub(super) fn first(&self, task: Task) -> Option<(Timestamp, FilterId)> {
        let first = (task, AT_ONCE, FilterId(0));
        let (found, (at, _), filter) = self.tasks.range(first..).next().copied()?;
        (found == task).then_some((at, filter))
    }

    /// The campaign whose turn it is to free the slots of forgotten users, if there is one: they take turns, in the order of their ids.
    pub(super) fn next_retiring(&mut self) -> Option<FilterId> {
        let (_, first) = self.first(Task::Retire)?;
        let after = self.last_retired.and_then(|last| {
            let after = (Bound::Excluded((Task::Retire, AT_ONCE, last)), Bound::Unbounded);
            self.tasks.range(after).next().filter(|(task, ..)| *task == Task::Retire)
        });
        self.last_retired = Some(after.map_or(first, |(.., filter)| *filter));
        self.last_retired
    }
}
