//! Campaigns to choose from, and who is left out of them: what eligibility requests and line-ups have in common, as JSON.

use super::answer::problem::Problem;
use super::request::faults::Faults;
use super::request::json::Text;
use crate::access::Caller;
use crate::domain::line_up::{CAMPAIGNS_MAX, UNLESS_MAX};
use crate::domain::{LineUp, Name, Unless};
use crate::engine::Uncountable;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Leaves the user out while another campaign is active and holds enough copies of the user.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"campaign": "summer.seen", "at_least": 3, "for": "summer"}))]
pub(crate) struct Exclusion<'a> {
    /// The campaign to look at. One that doesn't exist excludes no user, and is listed under `unknown`.
    #[serde(borrow)]
    #[schema(value_type = String, pattern = "^[a-z0-9][a-z0-9._-]{0,127}$")]
    pub(crate) campaign: Text<'a>,
    /// How many copies it must hold: 1 for an exclusion list, more for a frequency cap. At most its `stats.copies_max`.
    #[serde(default = "at_least_default")]
    #[schema(value_type = u64, minimum = 1, maximum = 4_294_967_295_u64, default = 1)]
    pub(crate) at_least: u32,
    /// The campaign that the user is left out of; by default all.
    #[serde(borrow, rename = "for", default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^[a-z0-9][a-z0-9._-]{0,127}$")]
    pub(crate) only_for: Option<Text<'a>>,
}

fn at_least_default() -> u32 {
    1
}

/// Adds what is wrong with campaigns and conditions to `faults`. The pointers begin with `at`.
///
/// # Errors
/// A name that the caller may not use (403).
pub(crate) fn check(
    campaigns: &[Text<'_>],
    unless: &[Exclusion<'_>],
    at: &str,
    caller: &Caller,
    faults: &mut Faults,
) -> Result<(), Problem> {
    if !(1..=CAMPAIGNS_MAX).contains(&campaigns.len()) {
        faults.note(|| format!("{at}/campaigns"), format!("expected 1 to {CAMPAIGNS_MAX} elements"));
        return Ok(());
    }
    if unless.len() > UNLESS_MAX {
        faults.note(|| format!("{at}/unless"), format!("expected at most {UNLESS_MAX} elements"));
        return Ok(());
    }
    for (index, Text(campaign)) in campaigns.iter().enumerate() {
        check_name(campaign, || format!("{at}/campaigns/{index}"), caller, faults)?;
    }
    for (index, Exclusion { campaign: Text(campaign), at_least, only_for }) in unless.iter().enumerate() {
        check_name(campaign, || format!("{at}/unless/{index}/campaign"), caller, faults)?;
        if *at_least == 0 {
            faults.note(|| format!("{at}/unless/{index}/at_least"), "expected 1 or more");
        }
        if let Some(Text(only_for)) = only_for {
            check_name(only_for, || format!("{at}/unless/{index}/for"), caller, faults)?;
        }
    }
    Ok(())
}

/// Adds to `faults` that a limit is too low or too high.
pub(crate) fn check_limit(limit: u32, at: &str, faults: &mut Faults) {
    if !(1..=CAMPAIGNS_MAX as u32).contains(&limit) {
        faults.note(|| format!("{at}/limit"), format!("expected 1 to {CAMPAIGNS_MAX}"));
    }
}

/// Adds a name that is none to `faults`.
///
/// # Errors
/// A name that the caller may not use (403).
pub(crate) fn check_name(
    name: &str,
    at: impl FnOnce() -> String,
    caller: &Caller,
    faults: &mut Faults,
) -> Result<(), Problem> {
    if let Err(error) = Name::new(name) {
        faults.note(at, error.to_string());
    }
    Ok(caller.require_name(name)?)
}

/// The line-up that these make up.
pub(crate) fn line_up<'a>(
    campaigns: Vec<Text<'a>>,
    unless: Vec<Exclusion<'a>>,
    limit: u32,
) -> LineUp<Text<'a>> {
    let unless = unless
        .into_iter()
        .map(|Exclusion { campaign, at_least, only_for }| Unless { campaign, at_least, only_for })
        .collect();
    LineUp { campaigns, unless, limit }
}

/// The problem of a condition that asks for too many copies.
pub(crate) fn uncountable(uncountable: &Uncountable, at: &str) -> Problem {
    let pointer = format!("{at}/unless/{}/at_least", uncountable.condition);
    Problem::invalid_at(&pointer, uncountable.to_string())
}
