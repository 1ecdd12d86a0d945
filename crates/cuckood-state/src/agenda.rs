//! The due work of all filters, in the order in which it is due.

use crate::domain::{FilterId, RedemptionId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::{Bound, Index, IndexMut};

/// Something that a filter has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    /// The first of its holds expires.
    Expire,
    /// The first of its ended redemptions is forgotten, once its retention has passed.
    Forget,
    /// Its oldest users are forgotten: it advances to its next step.
    ForgetUsers,
    /// The slots of forgotten users are freed.
    Retire,
    /// Items move to another table.
    Move,
}

/// When a filter has something to do, and for which redemption.
pub(super) type Due = (Timestamp, RedemptionId);

/// Due at any time, for no redemption.
pub(super) const AT_ONCE: Due = (Timestamp(0), RedemptionId([0; 16]));

/// When each [`Task`] of one filter is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tasks([Option<Due>; Task::Move as usize + 1]);

/// The tasks of a filter that has none.
pub(super) const NO_TASKS: Tasks = Tasks([None; Task::Move as usize + 1]);

impl Index<Task> for Tasks {
    type Output = Option<Due>;

    fn index(&self, task: Task) -> &Option<Due> {
        &self.0[task as usize]
    }
}

impl IndexMut<Task> for Tasks {
    fn index_mut(&mut self, task: Task) -> &mut Option<Due> {
        &mut self.0[task as usize]
    }
}

/// The tasks of all filters.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Agenda {
    /// For each task, in the order of [`Task`]: when it is due in which filter.
    #[serde(skip)]
    tasks: [BTreeSet<(Due, FilterId)>; Task::Move as usize + 1],
    /// The campaign that was the last to free slots of forgotten users.
    pub(super) last_retired: Option<FilterId>,
}

impl Agenda {
    /// Notes that a filter has these tasks now, where it had those before.
    pub(super) fn change(&mut self, filter: FilterId, before: &Tasks, now: &Tasks) {
        for ((tasks, before), now) in self.tasks.iter_mut().zip(before.0).zip(now.0) {
            if before != now {
                if let Some(due) = before {
                    tasks.remove(&(due, filter));
                }
                tasks.extend(now.map(|due| (due, filter)));
            }
        }
    }

    /// How many filters have this task.
    pub(super) fn len(&self, task: Task) -> u64 {
        self.tasks[task as usize].len() as u64
    }

    /// When the task is due next, for which redemption, and in which filter.
    pub(super) fn first(&self, task: Task) -> Option<(Timestamp, RedemptionId, FilterId)> {
        self.tasks[task as usize]
            .first()
            .map(|&((at, redemption), filter)| (at, redemption, filter))
    }

    /// The campaign whose turn it is to free the slots of forgotten users, if there is one: they take turns, in the order of their ids.
    pub(super) fn next_retiring(&mut self) -> Option<FilterId> {
        let (.., first) = self.first(Task::Retire)?;
        let after = self
            .last_retired
            .map_or(Bound::Unbounded, |last| Bound::Excluded((AT_ONCE, last)));
        let next = self.tasks[Task::Retire as usize]
            .range((after, Bound::Unbounded))
            .next();
        self.last_retired = Some(next.map_or(first, |(_, filter)| *filter));
        self.last_retired
    }
}
