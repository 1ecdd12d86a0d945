//! Eligibility: which campaigns of a line-up a user may see.
//!
//! Lookups are prefetched in groups: while one waits for memory, the others load. That applies to the campaigns and to the conditions that
//! exclude users from them.

use super::catalog::{Catalog, Views};
use super::view::FilterView;
use crate::domain::{Kind, LineUp, Normalization, Timestamp, Unless, WindowPosition};
use cuckood_filter::Digest;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;
use thiserror::Error;

/// Maximum number of campaigns that are looked up together: the size of a filter's own groups, so that the memory is never idle.
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
    /// Whether the response has explanations.
    pub explain: bool,
}

/// The campaigns that the user may see.
#[derive(Debug, Default)]
pub struct Eligibility<'a> {
    /// The first `limit` campaigns, in order, that are active, contain the user, and are not excluded by `unless`.
    pub eligible: Vec<&'a str>,
    /// How many of the campaigns were evaluated, including unknown and inactive ones.
    pub evaluated: usize,
    /// Evaluated campaigns that don't exist, then those in `unless` that don't.
    pub unknown: Vec<&'a str>,
    /// Evaluated campaigns that are outside their window, then those that `unless` requires.
    pub inactive: Vec<&'a str>,
    /// Evaluated campaigns that are active and contain the user, but are excluded by `unless`.
    pub excluded: Vec<&'a str>,
    /// With `explain`: one for each evaluated campaign that exists.
    pub explanations: Option<Vec<Explanation<'a>>>,
}

/// The reasons for or against a campaign.
#[derive(Debug)]
pub struct Explanation<'a> {
    /// The campaign's name.
    pub campaign: &'a str,
    /// Whether the campaign contains the user.
    pub present: bool,
    /// The current time relative to the campaign's window.
    pub window: WindowPosition,
    /// The campaign of the first `unless` that excludes the user, even if there are other reasons.
    pub excluded_by: Option<&'a str>,
    /// The probability that `present` is true for an absent user.
    pub error_rate: f64,
    /// Whether the user may see the campaign.
    pub eligible: bool,
}

/// A condition with more copies of a user than its campaign can count, so it would never exclude a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the campaign counts up to {copies_max} copies of a user")]
pub struct Uncountable {
    /// The index of the condition.
    pub condition: usize,
    /// The most copies that its campaign can count.
    pub copies_max: u32,
}

impl Views {
    /// Selects the campaigns that a user may see at `now`.
    ///
    /// # Errors
    /// [`Uncountable`].
    pub fn evaluate<'a, N: AsRef<str>>(
        &self,
        question: &Question<'a, N>,
        now: Timestamp,
    ) -> Result<Eligibility<'a>, Uncountable> {
        let catalog = self.catalog.load();
        let user = User::new(question.user);
        let mut conditions = Conditions::new(&catalog, question, &user, now)?;
        let mut found = Eligibility {
            explanations: question.explain.then(Vec::new),
            ..Eligibility::default()
        };
        let mut rest = &question.line_up.campaigns[..];
        let mut ahead = question.limit.clamp(FIRST_GROUP, GROUP);
        let mut group = Vec::with_capacity(ahead.min(rest.len()));
        while !rest.is_empty() && found.eligible.len() < question.limit {
            let names;
            (names, rest) = rest.split_at(ahead.min(rest.len()));
            ahead = GROUP;
            group.extend(
                names.iter().map(|name| {
                    Candidate::new(&catalog, &user, name.as_ref(), now, question.explain)
                }),
            );
            group
                .iter()
                .filter(|candidate| candidate.digest.is_some())
                .for_each(|candidate| {
                    conditions.prefetch(candidate.name);
                });
            for candidate in group.drain(..) {
                candidate.decide(&mut conditions, &mut found);
                if found.eligible.len() == question.limit {
                    break;
                }
            }
        }
        conditions.note_unknown(&mut found.unknown);
        conditions.note_inactive(&mut found.inactive);
        Ok(found)
    }
}

/// A user, normalized once for each rule that a filter needs.
struct User<'a> {
    raw: &'a str,
    ascii: Form<'a>,
    case: Form<'a>,
    code: Form<'a>,
}

/// A user's normalized spelling; `None` if nothing is left.
type Form<'a> = OnceCell<Option<Cow<'a, [u8]>>>;

impl<'a> User<'a> {
    fn new(raw: &'a str) -> Self {
        Self {
            raw,
            ascii: Form::new(),
            case: Form::new(),
            code: Form::new(),
        }
    }

    /// Returns the user's digest in a filter; `None` if the filter can't contain the user.
    fn digest(&self, view: &FilterView) -> Option<Digest> {
        let rule = view.spec.normalization;
        let form = match rule {
            Normalization::Exact | Normalization::ByDefault => {
                return Some(view.secret.digest(self.raw.as_bytes()));
            }
            Normalization::Ascii => &self.ascii,
            Normalization::Case => &self.case,
            Normalization::Code => &self.code,
        };
        let normalized = form.get_or_init(|| rule.apply(self.raw.as_bytes()).ok());
        Some(view.secret.digest(normalized.as_deref()?))
    }

    /// Returns the user's digest in a filter, whose cache lines are prefetched.
    fn prefetched(&self, view: &FilterView) -> Option<Digest> {
        let digest = self.digest(view)?;
        view.prefetch(digest);
        Some(digest)
    }
}

/// A campaign to choose from.
struct Candidate<'a, 'c> {
    name: &'a str,
    view: Option<&'c Arc<FilterView>>,
    window: WindowPosition,
    /// The user's digest, if the campaign is looked up and can contain the user. Its cache lines have been prefetched.
    digest: Option<Digest>,
}

impl<'a, 'c> Candidate<'a, 'c> {
    fn new(
        catalog: &'c Catalog,
        user: &User<'_>,
        name: &'a str,
        now: Timestamp,
        explain: bool,
    ) -> Self {
        let view = catalog.get(Kind::Campaign, name);
        let window = view.map_or(WindowPosition::Inside, |view| view.window.position(now));
        let looked_at = view.filter(|_| window == WindowPosition::Inside || explain);
        Self {
            name,
            view,
            window,
            digest: looked_at.and_then(|view| user.prefetched(view)),
        }
    }

    fn decide<N: AsRef<str>>(
        self,
        conditions: &mut Conditions<'a, 'c, N>,
        found: &mut Eligibility<'a>,
    ) {
        let Self {
            name: campaign,
            view,
            window,
            digest,
        } = self;
        found.evaluated += 1;
        let Some(view) = view else {
            found.unknown.push(campaign);
            return;
        };
        let present = digest.is_some_and(|digest| view.contains(digest, conditions.now));
        let is_active = window == WindowPosition::Inside;
        let is_explained = found.explanations.is_some();
        let excluded_by = if is_explained || is_active && present {
            conditions.first(campaign)
        } else {
            None
        };
        match (is_active, present, excluded_by) {
            (false, _, _) => found.inactive.push(campaign),
            (true, true, None) => found.eligible.push(campaign),
            (true, true, Some(_)) => found.excluded.push(campaign),
            (true, false, _) => {}
        }
        if let Some(explanations) = &mut found.explanations {
            let error_rate = view.describe(conditions.now).stats.error_rate();
            let eligible = is_active && present && excluded_by.is_none();
            explanations.push(Explanation {
                campaign,
                present,
                window,
                excluded_by,
                error_rate,
                eligible,
            });
        }
    }
}

/// The conditions of a line-up. Each is looked up once, when a campaign first needs it.
struct Conditions<'a, 'c, N> {
    user: &'c User<'a>,
    now: Timestamp,
    all: Vec<Condition<'a, 'c, N>>,
}

struct Condition<'a, 'c, N> {
    unless: &'a Unless<N>,
    view: Option<&'c Arc<FilterView>>,
    /// The user's digest, once its cache lines have been prefetched.
    digest: Option<Digest>,
    /// Whether it leaves the user out, once that is known.
    answer: Option<bool>,
}

impl<'a, 'c, N: AsRef<str>> Conditions<'a, 'c, N> {
    fn new(
        catalog: &'c Catalog,
        question: &Question<'a, N>,
        user: &'c User<'a>,
        now: Timestamp,
    ) -> Result<Self, Uncountable> {
        let mut all = Vec::with_capacity(question.line_up.unless.len());
        for (condition, unless) in question.line_up.unless.iter().enumerate() {
            let view = catalog.get(Kind::Campaign, unless.campaign.as_ref());
            if unless.at_least > 1
                && let Some(copies_max) = view.map(|view| view.copies_max())
                && unless.at_least > copies_max
            {
                return Err(Uncountable {
                    condition,
                    copies_max,
                });
            }
            let is_active = view.is_some_and(|view| view.window.contains(now));
            all.push(Condition {
                unless,
                view,
                digest: None,
                answer: (!is_active).then_some(unless.reach.is_required),
            });
        }
        Ok(Self { user, now, all })
    }

    /// Prefetches the lookups of this campaign's conditions.
    fn prefetch(&mut self, campaign: &str) {
        for condition in &mut self.all {
            if let (None, None, Some(view)) = (condition.answer, condition.digest, condition.view)
                && condition.unless.concerns(campaign)
            {
                condition.digest = self.user.prefetched(view);
            }
        }
    }

    /// The campaign of the first condition that leaves the user out of this campaign.
    fn first(&mut self, campaign: &str) -> Option<&'a str> {
        let mut concerned = self
            .all
            .iter_mut()
            .filter(|condition| condition.unless.concerns(campaign));
        let first = concerned.find_map(|condition| {
            condition
                .leaves_out(self.user, self.now)
                .then_some(condition.unless)
        })?;
        Some(first.campaign.as_ref())
    }

    /// Adds the campaigns that conditions require, and that are outside their window, each once.
    fn note_inactive(&self, inactive: &mut Vec<&'a str>) {
        for condition in &self.all {
            let is_inactive = condition
                .view
                .is_some_and(|view| !view.window.contains(self.now));
            let name = condition.unless.campaign.as_ref();
            if condition.unless.reach.is_required && is_inactive && !inactive.contains(&name) {
                inactive.push(name);
            }
        }
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
    fn leaves_out(&mut self, user: &User<'_>, now: Timestamp) -> bool {
        let (None, Some(view)) = (self.answer, self.view) else {
            return self.answer == Some(true);
        };
        let digest = self.digest.or_else(|| user.digest(view));
        let answer = digest.is_some_and(|digest| match self.unless.at_least {
            ..=1 => view.contains(digest, now),
            at_least => view.count(digest, now) >= at_least,
        });
        self.answer = Some(answer);
        answer
    }
}
