//! Pages of lists: how long one may be, and what a cursor may be that asks for the next.

use crate::http::answer::problem::Problem;

/// The most entries of one page.
const PAGE_MAX: usize = 1_000;

/// Entries of a page unless said otherwise.
pub(crate) fn limit_default() -> usize {
    100
}

/// Refuses a page that is too long, or has nothing on it.
pub(crate) fn check_limit(limit: usize) -> Result<(), Problem> {
    if (1..=PAGE_MAX).contains(&limit) {
        return Ok(());
    }
    Err(Problem::invalid_at("/limit", format!("expected 1 to {PAGE_MAX}")))
}

/// A cursor that was not given out.
pub(crate) fn strange_cursor() -> Problem {
    Problem::invalid_at("/cursor", "not a next_cursor of this service")
}
