//! Pages of lists: their length, and the cursor of the next one.

use crate::access::Caller;
use crate::domain::Name;
use crate::http::answer::Problem;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use utoipa::IntoParams;

/// The most entries on a page.
const PAGE_MAX: usize = 1_000;

/// The default number of entries on a page.
const PAGE_DEFAULT: usize = 100;

/// Which part of a list to return.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// The most entries to return.
    #[serde(default = "limit_default")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: usize,
    /// The `next_cursor` of the previous page.
    #[param(value_type = Option<String>)]
    cursor: Option<String>,
    /// Only names that begin with this.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    prefix: String,
}

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

/// The page of a collection that is asked for, and the cursor of the next one. `find` is asked for one entry more than are on the page.
pub(crate) fn of<T>(
    asked: PageQuery,
    caller: &Caller,
    find: impl FnOnce(&str, Option<&Name>, usize) -> Vec<T>,
    name: impl Fn(&T) -> &str,
) -> Result<(Vec<T>, Option<String>), Problem> {
    check_limit(asked.limit)?;
    let after = asked.cursor.as_deref().map(|cursor| {
        let name = read_cursor(cursor)?;
        str::from_utf8(&name).ok().and_then(|name| Name::new(name).ok()).ok_or_else(strange_cursor)
    });
    let after = after.transpose()?;
    let Some(prefix) = caller.narrow(&asked.prefix) else { return Ok((Vec::new(), None)) };
    let mut found = find(prefix, after.as_ref(), asked.limit + 1);
    let has_more = found.len() > asked.limit;
    found.truncate(asked.limit);
    let next = found.last().filter(|_| has_more).map(|last| write_cursor(name(last)));
    Ok((found, next))
}

/// A cursor that stands for these bytes.
pub(crate) fn write_cursor(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// The bytes that a cursor stands for.
pub(crate) fn read_cursor(cursor: &str) -> Result<Vec<u8>, Problem> {
    BASE64_URL_SAFE_NO_PAD.decode(cursor).map_err(|_| strange_cursor())
}

/// The problem of a cursor that the service never issued.
pub(crate) fn strange_cursor() -> Problem {
    Problem::invalid_at("/cursor", "not a next_cursor of this service")
}
