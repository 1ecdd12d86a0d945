//! Whether some order of a code's operations explains every response, each operation taking effect at one moment between its call and its
//! return: Wing & Gong's search, ordered as in Lowe's "Testing for linearizability" (2017).
//!
//! The history is walked call by call and return by return with every possible configuration: a state of the code, and the operations in
//! progress that have taken effect. An operation takes effect only when it returns; one that changes nothing does so as soon as
//! possible, which loses no order. A hold expires when an operation needs it, at the latest at its deadline.
//!
//! Lost operations stay in progress until nothing can complete them, and need not take effect. Of several equal ones, the first takes
//! effect first; and a configuration is dropped if another one differs from it only in that fewer of them have taken effect. So their number
//! hardly matters.

use crate::model::{Answer, Code, Model, Request, Status, changes_nothing};
use std::collections::HashMap;

/// More configurations than this at once are a history too wild to be checked.
const CONFIGURATIONS_MAX: usize = 200_000;

/// An operation on one code. Moments are microseconds since 1970.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    pub request: Request,
    /// None if it was lost: it may have taken effect or not.
    pub answer: Option<Answer>,
    pub called: u64,
    /// When it was answered; of a lost one, from when on it can no longer take effect.
    pub returned: u64,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Configuration {
    code: Code,
    /// Answered operations in progress that have taken effect, sorted.
    done: Vec<usize>,
    /// Lost operations in progress that have taken effect, sorted.
    lost: Vec<usize>,
}

/// Configurations without those that can't do more than another one.
#[derive(Default)]
struct Front {
    by_state: HashMap<(Code, Vec<usize>), Vec<Vec<usize>>>,
    count: usize,
}

impl Front {
    /// Returns whether it can do more than those before.
    fn insert(&mut self, Configuration { code, done, lost }: Configuration) -> bool {
        let known = self.by_state.entry((code, done)).or_default();
        if known.iter().any(|known| is_subset(known, &lost)) {
            return false;
        }
        self.count -= known.len();
        known.retain(|known| !is_subset(&lost, known));
        known.push(lost);
        self.count += known.len();
        assert!(self.count < CONFIGURATIONS_MAX, "too many configurations");
        true
    }

    fn all(&self) -> impl Iterator<Item = Configuration> {
        self.by_state.iter().flat_map(|((code, done), known)| {
            known.iter().map(|lost| Configuration {
                code: code.clone(),
                done: done.clone(),
                lost: lost.clone(),
            })
        })
    }
}

impl FromIterator<Configuration> for Front {
    fn from_iter<T: IntoIterator<Item = Configuration>>(all: T) -> Front {
        let mut front = Front::default();
        for one in all {
            front.insert(one);
        }
        front
    }
}

fn is_subset(few: &[usize], many: &[usize]) -> bool {
    few.iter().all(|one| many.binary_search(one).is_ok())
}

/// Something that happens at a moment; calls come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Called(usize),
    Returned(usize),
    /// Lost operations can no longer take effect.
    Over,
    /// Holds that expire at a certain time are gone.
    Deadline,
}

/// Checks the history of one code, which is available at first. Its holds may be seen for `late` microseconds after their time.
///
/// # Errors
/// No order explains it; the operation at which that shows, and what surrounds it.
pub fn check(history: &[Operation], late: u64) -> Result<(), String> {
    let answers = history
        .iter()
        .filter_map(|operation| Some((operation.request, operation.answer?)));
    let model = Model::of(answers.clone(), late)?;
    let mut events: Vec<(u64, Event)> = Vec::new();
    for (at, operation) in history.iter().enumerate() {
        let end = operation
            .answer
            .map_or(Event::Over, |_| Event::Returned(at));
        events.extend([
            (operation.called, Event::Called(at)),
            (operation.returned, end),
        ]);
    }
    events.extend(answers.filter_map(|(_, answer)| {
        let (Answer::Created(seen) | Answer::Found(seen)) = answer else {
            return None;
        };
        (seen.status == Status::Held)
            .then(|| Some((model.deadline(seen.expires_at?), Event::Deadline)))?
    }));
    events.sort_unstable();
    events.dedup();
    let mut walk = Walk {
        history,
        model,
        pending: Vec::new(),
        lost: Vec::new(),
        now: 0,
    };
    let start = Configuration {
        code: Code::default(),
        done: Vec::new(),
        lost: Vec::new(),
    };
    let mut front = Front::from_iter([start]);
    for (now, event) in events {
        walk.now = now;
        let mut returned = None;
        front = match event {
            Event::Called(at) if history[at].answer.is_none() => {
                walk.call_lost(at);
                continue;
            }
            Event::Called(at) => {
                walk.pending.push(at);
                front.all().map(|found| walk.settled(found)).collect()
            }
            Event::Returned(at) => {
                returned = Some(at);
                let (_, done) = walk.explore(&front, |found| found.done.binary_search(&at).is_ok());
                walk.pending.retain(|pending| *pending != at);
                done.all()
                    .map(|mut found| {
                        found.done.retain(|done| *done != at);
                        found
                    })
                    .collect()
            }
            Event::Over => {
                let (all, _) = walk.explore(&front, |_| false);
                let is_over = |at: &usize| history[*at].returned <= now;
                walk.lost
                    .iter_mut()
                    .for_each(|(_, equal)| equal.retain(|at| !is_over(at)));
                all.all()
                    .filter(|found| !walk.model.is_overdue(&found.code, now))
                    .map(|mut found| {
                        found.lost.retain(|at| !is_over(at));
                        found
                    })
                    .collect()
            }
            Event::Deadline => walk.explore(&front, |_| true).1,
        };
        if front.count == 0 {
            return Err(walk.explain(returned));
        }
    }
    Ok(())
}

struct Walk<'a> {
    history: &'a [Operation],
    model: Model,
    /// Answered operations that were called and have not returned, in this order.
    pending: Vec<usize>,
    /// Lost operations, by request.
    lost: Vec<(Request, Vec<usize>)>,
    now: u64,
}

impl Walk<'_> {
    fn call_lost(&mut self, at: usize) {
        let request = self.history[at].request;
        match self.lost.iter_mut().find(|(other, _)| *other == request) {
            Some((_, equal)) => equal.push(at),
            None => self.lost.push((request, vec![at])),
        }
    }

    /// All configurations that can be reached, and those behind which no other one has to be: `is_enough`, and no hold is overdue.
    fn explore(&self, from: &Front, is_enough: impl Fn(&Configuration) -> bool) -> (Front, Front) {
        let mut seen: Front = from.all().collect();
        let mut open: Vec<Configuration> = seen.all().collect();
        let mut reached = Front::default();
        while let Some(configuration) = open.pop() {
            if is_enough(&configuration) && !self.model.is_overdue(&configuration.code, self.now) {
                reached.insert(configuration);
                continue;
            }
            let expired = self.model.step_expired(&configuration.code, self.now);
            let expired = expired.map(|code| {
                self.settled(Configuration {
                    code,
                    ..configuration.clone()
                })
            });
            let answered = self
                .pending
                .iter()
                .filter_map(|&next| self.take_effect(&configuration, next));
            let lost = self
                .lost
                .iter()
                .filter_map(|(_, equal)| self.take_effect_unseen(&configuration, equal));
            for after in answered.chain(lost).chain(expired) {
                if seen.insert(after.clone()) {
                    open.push(after);
                }
            }
        }
        (seen, reached)
    }

    fn take_effect(&self, configuration: &Configuration, at: usize) -> Option<Configuration> {
        let Operation {
            request,
            answer,
            called,
            ..
        } = self.history[at];
        let slot = configuration.done.binary_search(&at).err()?;
        let code = self
            .model
            .step(&configuration.code, request, answer?, called)?;
        let mut after = Configuration {
            code,
            ..configuration.clone()
        };
        after.done.insert(slot, at);
        Some(self.settled(after))
    }

    /// The same after the first of these equal lost operations that has not taken effect.
    fn take_effect_unseen(
        &self,
        configuration: &Configuration,
        equal: &[usize],
    ) -> Option<Configuration> {
        let slots = equal
            .iter()
            .map(|at| (configuration.lost.binary_search(at), *at));
        let (slot, at) = slots
            .into_iter()
            .find_map(|(slot, at)| Some((slot.err()?, at)))?;
        let Operation {
            request, called, ..
        } = self.history[at];
        let code = self
            .model
            .step_unseen(&configuration.code, request, called)?;
        let mut after = Configuration {
            code,
            ..configuration.clone()
        };
        after.lost.insert(slot, at);
        Some(self.settled(after))
    }

    /// The same after all operations in progress that change nothing and fit.
    fn settled(&self, mut configuration: Configuration) -> Configuration {
        for &at in &self.pending {
            let Operation {
                request,
                answer: Some(answer),
                called,
                ..
            } = self.history[at]
            else {
                continue;
            };
            if changes_nothing(request, answer)
                && let Err(slot) = configuration.done.binary_search(&at)
                && self
                    .model
                    .step(&configuration.code, request, answer, called)
                    .is_some()
            {
                configuration.done.insert(slot, at);
            }
        }
        configuration
    }

    fn explain(&self, at: Option<usize>) -> String {
        let returned = at.map_or(self.now, |at| self.history[at].returned);
        let mut before: Vec<&Operation> = self
            .history
            .iter()
            .filter(|operation| operation.called < returned)
            .collect();
        before.sort_by_key(|operation| operation.returned);
        let last = before.len().saturating_sub(30);
        let lines: Vec<String> = before[last..]
            .iter()
            .map(|operation| {
                let Operation {
                    request,
                    answer,
                    called,
                    returned,
                } = operation;
                format!("  {called}..{returned} {request:x?}: {answer:x?}")
            })
            .collect();
        let at = at.map(|at| &self.history[at]);
        format!(
            "nothing explains {at:x?} at {}; around it:\n{}",
            self.now,
            lines.join("\n")
        )
    }
}
