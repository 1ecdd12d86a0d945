//! Whether some order of a code's operations explains every answer, each operation taking effect at one moment
//! between its call and its return: Wing & Gong's search, ordered as in Lowe's "Testing for linearizability" (2017).
//!
//! The history is walked call by call and return by return with every possible configuration: a state of the code, and the operations in
//! flight that have taken effect. An operation need take effect only when it returns; those that change nothing do so as early as possible,
//! which loses no order.

use crate::model::{Answer, Code, Model, Request, changes_nothing};
use std::collections::HashSet;

/// More configurations than this at once are a history too wild to be checked.
const CONFIGURATIONS_MAX: usize = 200_000;

/// An operation on one code. Moments are numbers that grow.
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
    /// Operations in flight that have taken effect, sorted.
    done: Vec<usize>,
}

/// Checks the history of one code, which begins available.
///
/// # Errors
/// No order explains it; the operation at which that shows, and what surrounds it.
pub fn check(history: &[Operation]) -> Result<(), String> {
    let model = Model::of(history.iter().filter_map(|operation| operation.answer))?;
    let mut moments: Vec<(u64, usize, bool)> = history
        .iter()
        .enumerate()
        .flat_map(|(at, operation)| [(operation.called, at, true), (operation.returned, at, false)])
        .collect();
    moments.sort_unstable();
    let mut walk = Walk { history, model, pending: Vec::new() };
    let mut configurations = HashSet::from([Configuration { code: Code::default(), done: Vec::new() }]);
    for (_, at, is_call) in moments {
        if is_call {
            walk.pending.push(at);
            configurations = configurations.into_iter().map(|found| walk.settled(found)).collect();
            continue;
        }
        let done = walk.until_done(configurations.clone(), at);
        if history[at].answer.is_some() {
            configurations = done;
        } else {
            configurations.extend(done);
        }
        walk.pending.retain(|&pending| pending != at);
        configurations = configurations
            .into_iter()
            .map(|mut found| {
                found.done.retain(|&done| done != at);
                found
            })
            .collect();
        if configurations.is_empty() {
            return Err(walk.explain(at));
        }
        assert!(configurations.len() < CONFIGURATIONS_MAX, "too many configurations");
    }
    Ok(())
}

struct Walk<'a> {
    history: &'a [Operation],
    model: Model,
    /// Called, not yet returned.
    pending: Vec<usize>,
}

impl Walk<'_> {
    /// Every configuration in which `target` has taken effect, after any of the others.
    fn until_done(&self, from: HashSet<Configuration>, target: usize) -> HashSet<Configuration> {
        let mut seen = from;
        let mut open: Vec<Configuration> = seen.iter().cloned().collect();
        let mut reached = HashSet::new();
        while let Some(configuration) = open.pop() {
            if configuration.done.binary_search(&target).is_ok() {
                reached.insert(configuration);
                continue;
            }
            for &next in &self.pending {
                if let Some(after) = self.take_effect(&configuration, next)
                    && seen.insert(after.clone())
                {
                    assert!(seen.len() < CONFIGURATIONS_MAX, "too many configurations");
                    open.push(after);
                }
            }
        }
        reached
    }

    fn take_effect(&self, configuration: &Configuration, at: usize) -> Option<Configuration> {
        let slot = configuration.done.binary_search(&at).err()?;
        let Operation { request, answer, .. } = self.history[at];
        let code = match answer {
            Some(answer) => self.model.step(&configuration.code, request, answer)?,
            None => self.model.step_unseen(&configuration.code, request)?,
        };
        let mut done = configuration.done.clone();
        done.insert(slot, at);
        Some(self.settled(Configuration { code, done }))
    }

    /// The same after all operations in flight that change nothing and fit.
    fn settled(&self, mut configuration: Configuration) -> Configuration {
        for &at in &self.pending {
            let Operation { request, answer: Some(answer), .. } = self.history[at] else { continue };
            if changes_nothing(request, answer)
                && let Err(slot) = configuration.done.binary_search(&at)
                && self.model.step(&configuration.code, request, answer).is_some()
            {
                configuration.done.insert(slot, at);
            }
        }
        configuration
    }

    fn explain(&self, at: usize) -> String {
        let returned = self.history[at].returned;
        let mut before: Vec<&Operation> =
            self.history.iter().filter(|operation| operation.called < returned).collect();
        before.sort_by_key(|operation| operation.returned);
        let last = before.len().saturating_sub(30);
        let lines: Vec<String> = before[last..]
            .iter()
            .map(|operation| {
                let Operation { request, answer, called, returned } = operation;
                format!("  {called}..{returned} {request:x?}: {answer:x?}")
            })
            .collect();
        format!("nothing explains {:x?}; around it:\n{}", self.history[at], lines.join("\n"))
    }
}
