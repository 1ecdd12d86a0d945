//! Pages of lists: their length, and the cursor of the next one.

use crate::http::answer::problem::Problem;

/// The most entries on a page.
const PAGE_MAX: usize = 1_000;

/// The default number of entries on a page.
const PAGE_DEFAULT: usize = 100;

/// [`PAGE_DEFAULT`], for serde.
pub(crate) fn limit_default() -> usize {
    PAGE_DEFAULT
}

/// Refuses a page that is too long or empty.
pub(crate) fn check_limit(limit: usize) -> Result<(), Problem> {
    if (1..=PAGE_MAX).contains(&limit) {
        return Ok(());
    }
    Err(Problem::invalid_at("/limit", format!("expected 1 to {PAGE_MAX}")))
}

/// The problem of a cursor that the service never issued.
pub(crate) fn strange_cursor() -> Problem {
    Problem::invalid_at("/cursor", "not a next_cursor of this service")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_something_on_it_and_an_end() {
        assert!(
            check_limit(1).is_ok() && check_limit(limit_default()).is_ok() && check_limit(PAGE_MAX).is_ok()
        );
        for limit in [0, PAGE_MAX + 1, usize::MAX] {
            assert_eq!(check_limit(limit).unwrap_err().faults[0].pointer, "/limit");
        }
    }
}
