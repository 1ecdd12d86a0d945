//! Collects the faults of a request, each with a pointer to the part that is not valid.

use crate::http::answer::problem::{FAULTS_MAX, Fault, Problem};
use std::borrow::Cow;

/// The longest field name that a pointer spells out, in characters.
const NAME_CHARACTERS_MAX: usize = 64;

/// A field's name as a step of a JSON pointer; a very long name is cut.
pub(super) fn escaped(name: &str) -> String {
    let cut: String = name.chars().take(NAME_CHARACTERS_MAX).collect();
    cut.replace('~', "~0").replace('/', "~1")
}

/// The faults of a request, up to a limit.
#[derive(Default)]
pub(crate) struct Faults(Vec<Fault>);

impl Faults {
    /// Adds a fault.
    pub(crate) fn note(&mut self, pointer: impl FnOnce() -> String, detail: impl Into<Cow<'static, str>>) {
        if self.0.len() < FAULTS_MAX {
            self.0.push(Fault { pointer: pointer(), detail: detail.into() });
        }
    }

    /// The problem that the faults make up, if there are any.
    pub(crate) fn check(self) -> Result<(), Problem> {
        if self.0.is_empty() { Ok(()) } else { Err(Problem::invalid(self.0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_becomes_one_step_of_a_pointer() {
        assert_eq!(escaped("a/b~c"), "a~1b~0c");
        assert_eq!(escaped(&"ä".repeat(100)), "ä".repeat(NAME_CHARACTERS_MAX));
    }

    #[test]
    fn no_more_faults_are_noted_than_a_problem_tells_of() {
        let mut faults = Faults::default();
        for index in 0..2 * FAULTS_MAX {
            faults.note(|| format!("/users/{index}"), "empty");
        }
        let problem = faults.check().unwrap_err();
        assert_eq!(problem.faults.len(), FAULTS_MAX);
        assert_eq!(problem.faults[0].pointer, "/users/0");
        assert!(Faults::default().check().is_ok());
    }
}
