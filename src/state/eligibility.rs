//! Eligibility: which campaigns of a line-up a user may see.
//!
//! Look-ups are prefetched in groups: while one waits for memory the others are on their way. That holds for the campaigns and
//! for the conditions that leave users out of them.

use super::catalog::{Catalog, View};
use super::view::FilterView;
use crate::domain::{Kind, LineUp, Timestamp, Unless, WindowPosition};
use crate::filter::Digest;
use std::sync::Arc;
use thiserror::Error;

/// The most campaigns that are looked up together. As many as a filter's own batches have, so that the memory is never idle.
const GROUP: usize = 32;

/// How many campaigns are looked up together at first. Often one of the first few is eligible, and the rest would be in vain.
const FIRST_GROUP: usize = 4;

/// A question: which campaigns may this user see?
#[derive(Debug)]
pub struct Question<'a, N> {
    /// The user's id.
    pub user: &'a str,
    /// The campaigns to choose from.
    pub line_up: &'a LineUp<N>,
    /// The most campaigns to select.
    pub limit: usize,
    /// Whether the answer has explanations.
    pub explain: bool,
}

/// The campaigns that a user may see, in order of preference. Evaluation ends with the last one that is selected, and the rest tells
/// of those that were evaluated.
#[derive(Debug, Default)]
pub struct Eligibility<'a> {
    /// Active campaigns that hold the user and that no condition leaves the user out of.
    pub eligible: Vec<&'a str>,
    /// How many were evaluated.
    pub evaluated: usize,
    /// Those that don't exist. Then the campaigns of conditions that don't.
    pub unknown: Vec<&'a str>,
    /// Those outside their window.
    pub inactive: Vec<&'a str>,
    /// Active campaigns that hold the user, but a condition leaves the user out.
    pub excluded: Vec<&'a str>,
    /// One for each that exists, if they are wanted.
    pub explanations: Vec<Explanation<'a>>,
}

/// Why a campaign was selected or not.
pub struct Explanation<'a> {
    /// The campaign's name.
    pub campaign: &'a str,
    /// The campaign as it was then.
    pub view: Arc<FilterView>,
    /// Whether it holds the user.
    pub present: bool,
    /// Whether it is active.
    pub window: WindowPosition,
    /// The campaign of the first condition that leaves the user out, whatever else does.
    pub excluded_by: Option<&'a str>,
}

impl Explanation<'_> {
    /// Whether the user may see the campaign.
    pub fn is_eligible(&self) -> bool {
        self.present && self.window == WindowPosition::Inside && self.excluded_by.is_none()
    }
}

impl std::fmt::Debug for Explanation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { campaign, present, window, excluded_by, view: _ } = self;
        write!(f, "{campaign}: present {present}, {window:?}, excluded by {excluded_by:?}")
    }
}

/// A condition asks for more copies of a user than its campaign can count, so it would never leave anybody out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the campaign counts up to {copies_max} copies of a user")]
pub struct Uncountable {
    /// The index of the condition.
    pub condition: usize,
    /// The most copies that its campaign can count.
    pub copies_max: u32,
}

impl View {
    /// Selects the campaigns that a user may see at `now`.
    ///
    /// # Errors
    /// [`Uncountable`].
    pub fn evaluate<'a, N: AsRef<str>>(
        &self,
        question: &Question<'a, N>,
        now: Timestamp,
    ) -> Result<Eligibility<'a>, Uncountable> {
        let catalog = self.catalog();
        let mut conditions = Conditions::new(&catalog, question, now)?;
        let mut found = Eligibility::default();
        let mut rest = &question.line_up.campaigns[..];
        let mut ahead = question.limit.clamp(FIRST_GROUP, GROUP);
        let mut group = Vec::with_capacity(ahead.min(rest.len()));
        while !rest.is_empty() && found.eligible.len() < question.limit {
            let names;
            (names, rest) = rest.split_at(ahead.min(rest.len()));
            ahead = GROUP;
            group.extend(names.iter().map(|name| Candidate::new(&catalog, question, name.as_ref(), now)));
            group.iter().filter(|candidate| candidate.is_wanted()).for_each(|candidate| {
                conditions.prefetch(candidate.name);
            });
            for candidate in group.drain(..) {
                candidate.judge(question.explain, now, &mut conditions, &mut found);
                if found.eligible.len() == question.limit {
                    break;
                }
            }
        }
        conditions.note_unknown(&mut found.unknown);
        Ok(found)
    }
}

/// A campaign to choose from.
struct Candidate<'a, 'c> {
    name: &'a str,
    view: Option<&'c Arc<FilterView>>,
    window: WindowPosition,
    /// The user's digest, if the campaign is to be looked at. Its cache lines are on their way.
    digest: Option<Digest>,
}

impl<'a, 'c> Candidate<'a, 'c> {
    fn new<N>(catalog: &'c Catalog, question: &Question<'a, N>, name: &'a str, now: Timestamp) -> Self {
        let view = catalog.get(Kind::Campaign, name);
        let window = view.map_or(WindowPosition::Inside, |view| view.window.position(now));
        let looked_at = view.filter(|_| window == WindowPosition::Inside || question.explain);
        Self { name, view, window, digest: looked_at.map(|view| prefetched(view, question.user)) }
    }

    /// Whether the campaign is to be looked at.
    fn is_wanted(&self) -> bool {
        self.digest.is_some()
    }

    fn judge<N: AsRef<str>>(
        self,
        explain: bool,
        now: Timestamp,
        conditions: &mut Conditions<'a, 'c, N>,
        found: &mut Eligibility<'a>,
    ) {
        let Self { name: campaign, view, window, digest } = self;
        found.evaluated += 1;
        let Some(view) = view else {
            found.unknown.push(campaign);
            return;
        };
        let present = digest.is_some_and(|digest| view.contains(digest, now));
        let is_active = window == WindowPosition::Inside;
        let excluded_by = if explain || is_active && present { conditions.first(campaign) } else { None };
        match (is_active, present, excluded_by) {
            (false, _, _) => found.inactive.push(campaign),
            (true, true, None) => found.eligible.push(campaign),
            (true, true, Some(_)) => found.excluded.push(campaign),
            (true, false, _) => {}
        }
        if explain {
            let view = view.clone();
            found.explanations.push(Explanation { campaign, view, present, window, excluded_by });
        }
    }
}

/// The digest of a user in a campaign, whose cache lines are prefetched.
fn prefetched(view: &FilterView, user: &str) -> Digest {
    let digest = view.digest(user);
    view.prefetch(digest);
    digest
}

/// The conditions of a line-up. Each is looked at once, when a campaign first needs it.
struct Conditions<'a, 'c, N> {
    user: &'a str,
    now: Timestamp,
    all: Vec<Condition<'a, 'c, N>>,
}

struct Condition<'a, 'c, N> {
    unless: &'a Unless<N>,
    view: Option<&'c Arc<FilterView>>,
    /// The user's digest, once its cache lines are on their way.
    digest: Option<Digest>,
    /// Whether it leaves the user out, once that is known.
    answer: Option<bool>,
}

impl<'a, 'c, N: AsRef<str>> Conditions<'a, 'c, N> {
    fn new(catalog: &'c Catalog, question: &Question<'a, N>, now: Timestamp) -> Result<Self, Uncountable> {
        let mut all = Vec::with_capacity(question.line_up.unless.len());
        for (condition, unless) in question.line_up.unless.iter().enumerate() {
            let view = catalog.get(Kind::Campaign, unless.campaign.as_ref());
            if unless.at_least > 1
                && let Some(copies_max) = view.map(|view| view.copies_max())
                && unless.at_least > copies_max
            {
                return Err(Uncountable { condition, copies_max });
            }
            let is_active = view.is_some_and(|view| view.window.contains(now));
            all.push(Condition { unless, view, digest: None, answer: (!is_active).then_some(false) });
        }
        Ok(Self { user: question.user, now, all })
    }

    /// Prefetches what the conditions for this campaign need.
    fn prefetch(&mut self, campaign: &str) {
        for condition in &mut self.all {
            if let (None, None, Some(view)) = (condition.answer, condition.digest, condition.view)
                && condition.unless.concerns(campaign)
            {
                condition.digest = Some(prefetched(view, self.user));
            }
        }
    }

    /// The campaign of the first condition that leaves the user out of this campaign.
    fn first(&mut self, campaign: &str) -> Option<&'a str> {
        let mut concerned = self.all.iter_mut().filter(|condition| condition.unless.concerns(campaign));
        let first = concerned
            .find_map(|condition| condition.leaves_out(self.user, self.now).then_some(condition.unless))?;
        Some(first.campaign.as_ref())
    }

    /// Adds the campaigns of conditions that don't exist, each once.
    fn note_unknown(&self, unknown: &mut Vec<&'a str>) {
        for condition in self.all.iter().filter(|condition| condition.view.is_none()) {
            let name = condition.unless.campaign.as_ref();
            if !unknown.contains(&name) {
                unknown.push(name);
            }
        }
    }
}

impl<N> Condition<'_, '_, N> {
    fn leaves_out(&mut self, user: &str, now: Timestamp) -> bool {
        let (None, Some(view)) = (self.answer, self.view) else { return self.answer == Some(true) };
        let digest = self.digest.unwrap_or_else(|| view.digest(user));
        let answer = match self.unless.at_least {
            ..=1 => view.contains(digest, now),
            at_least => view.count(digest, now) >= at_least,
        };
        self.answer = Some(answer);
        answer
    }
}
