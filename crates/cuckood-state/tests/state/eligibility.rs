//! Eligibility: campaigns of random windows and users, asked with random conditions, against a plain program over maps.

use cuckood_filter::Growth;
use cuckood_state::domain::{
    Command, Digests, Kind, LineUp, Sizing, Timestamp, Unless, UnlessReach, Window, WindowPosition,
};
use cuckood_state::testing::commands::{NewFilter, target};
use cuckood_state::testing::machine::Machine;
use cuckood_state::{Question, Uncountable, Views};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Names that are asked for. Not all campaigns are there.
const NAMES: usize = 10;

const USERS: usize = 6;

/// The middle of all windows.
const NOW: u64 = 1_000;

fn name(campaign: usize) -> String {
    format!("f{}", campaign + 1)
}

/// A campaign, as a program with maps would have it.
#[derive(Clone, Debug)]
struct Campaign {
    is_strict: bool,
    window: Window,
    copies: BTreeMap<usize, u32>,
}

impl Campaign {
    fn copies_max(&self) -> u32 {
        if self.is_strict { 1 } else { 8 }
    }

    fn add(&mut self, user: usize) {
        let most = self.copies_max();
        let copies = self.copies.entry(user).or_default();
        *copies = most.min(*copies + 1);
    }

    fn copies(&self, user: usize) -> u32 {
        self.copies.get(&user).copied().unwrap_or(0)
    }

    fn position(&self, now: u64) -> WindowPosition {
        match self.window {
            Window {
                starts_at: Some(start),
                ..
            } if now < start.0 => WindowPosition::Before,
            Window {
                ends_at: Some(end), ..
            } if now >= end.0 => WindowPosition::After,
            _ => WindowPosition::Inside,
        }
    }
}

type Campaigns = BTreeMap<String, Campaign>;

/// The explanation of each existing campaign.
type Reason = (String, bool, WindowPosition, Option<String>, bool);

#[derive(PartialEq, Debug, Default)]
struct Answer {
    eligible: Vec<String>,
    evaluated: usize,
    unknown: Vec<String>,
    inactive: Vec<String>,
    excluded: Vec<String>,
    reasons: Vec<Reason>,
}

/// One after the other, as the contract says it.
fn expected(
    campaigns: &Campaigns,
    line_up: &LineUp<String>,
    user: usize,
    now: u64,
    limit: usize,
) -> Result<Answer, usize> {
    let is_uncountable = |unless: &Unless<String>| {
        campaigns
            .get(&unless.campaign)
            .is_some_and(|c| unless.at_least > c.copies_max())
    };
    if let Some(condition) = line_up.unless.iter().position(is_uncountable) {
        return Err(condition);
    }
    let mut answer = Answer::default();
    for name in &line_up.campaigns {
        answer.evaluated += 1;
        let Some(campaign) = campaigns.get(name) else {
            answer.unknown.push(name.clone());
            continue;
        };
        let excluded_by = line_up.unless.iter().find(|unless| {
            let reach = &unless.reach;
            let active = campaigns.get(&unless.campaign);
            let active = active.filter(|other| other.position(now) == WindowPosition::Inside);
            reach.only_for.as_ref().is_none_or(|only| only == name)
                && active.map_or(reach.is_required, |other| {
                    other.copies(user) >= unless.at_least
                })
        });
        let position = campaign.position(now);
        let present = campaign.copies(user) > 0;
        let is_eligible = position == WindowPosition::Inside && present && excluded_by.is_none();
        let excluded_by = excluded_by.map(|unless| unless.campaign.clone());
        if position != WindowPosition::Inside {
            answer.inactive.push(name.clone());
        } else if is_eligible {
            answer.eligible.push(name.clone());
        } else if present {
            answer.excluded.push(name.clone());
        }
        answer
            .reasons
            .push((name.clone(), present, position, excluded_by, is_eligible));
        if answer.eligible.len() == limit {
            break;
        }
    }
    for unless in &line_up.unless {
        if !campaigns.contains_key(&unless.campaign) && !answer.unknown.contains(&unless.campaign) {
            answer.unknown.push(unless.campaign.clone());
        }
        let is_inactive = campaigns
            .get(&unless.campaign)
            .is_some_and(|other| other.position(now) != WindowPosition::Inside);
        if unless.reach.is_required && is_inactive && !answer.inactive.contains(&unless.campaign) {
            answer.inactive.push(unless.campaign.clone());
        }
    }
    Ok(answer)
}

fn found(
    view: &Views,
    line_up: &LineUp<String>,
    user: usize,
    now: u64,
    limit: usize,
    explain: bool,
) -> Result<Answer, usize> {
    let user = format!("user-{user}");
    let question = Question {
        user: &user,
        line_up,
        limit,
        explain,
    };
    let found = match view.evaluate(&question, Timestamp(now)) {
        Ok(found) => found,
        Err(Uncountable { condition, .. }) => return Err(condition),
    };
    let texts = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let reasons = found.explanations.iter().flatten().map(|explanation| {
        let excluded_by = explanation.excluded_by.map(str::to_owned);
        let name = explanation.campaign.to_owned();
        let eligible = explanation.eligible;
        (
            name,
            explanation.present,
            explanation.window,
            excluded_by,
            eligible,
        )
    });
    Ok(Answer {
        reasons: reasons.collect(),
        eligible: texts(&found.eligible),
        evaluated: found.evaluated,
        unknown: texts(&found.unknown),
        inactive: texts(&found.inactive),
        excluded: texts(&found.excluded),
    })
}

/// Creates a campaign in the service.
fn create(machine: &mut Machine, id: usize, campaign: &Campaign) {
    // No two users look alike.
    let compact = Sizing::Layout {
        fingerprint_bits: 32,
        bucket_size: 4,
        max_search: 512,
    };
    let sizing = if campaign.is_strict {
        Sizing::Exact
    } else {
        compact
    };
    let target = target(id as u64 + 1);
    let growth = Growth::Fixed;
    let window = campaign.window;
    let filter = NewFilter {
        kind: Kind::Campaign,
        sizing,
        growth,
        window,
        ..NewFilter::coupon(100)
    };
    machine.create(target, &filter);
    let view = machine.filter(target);
    for (user, copies) in &campaign.copies {
        let digests = Digests(vec![
            view.digest(format!("user-{user}")).unwrap();
            *copies as usize
        ]);
        machine.apply(Command::Insert {
            target,
            digests,
            if_absent: false,
            revive: false,
        });
    }
}

fn moments() -> impl Strategy<Value = Window> {
    let moment = || proptest::option::of((NOW - 3..NOW + 4).prop_map(Timestamp));
    (moment(), moment()).prop_map(|(one, other)| match (one, other) {
        (Some(a), Some(b)) if a >= b => Window {
            starts_at: Some(b),
            ends_at: Some(Timestamp(a.0 + 1)),
        },
        (starts_at, ends_at) => Window { starts_at, ends_at },
    })
}

fn campaigns() -> impl Strategy<Value = Vec<Option<Campaign>>> {
    let users = proptest::collection::vec(0..USERS, 0..24);
    let campaign = (any::<bool>(), moments(), users).prop_map(|(is_strict, window, users)| {
        let mut campaign = Campaign {
            is_strict,
            window,
            copies: BTreeMap::new(),
        };
        users.into_iter().for_each(|user| campaign.add(user));
        campaign
    });
    proptest::collection::vec(proptest::option::weighted(0.85, campaign), NAMES)
}

fn line_up() -> impl Strategy<Value = LineUp<String>> {
    let unless = (
        0..NAMES,
        1..4u32,
        any::<bool>(),
        proptest::option::of(0..NAMES),
        any::<bool>(),
    );
    let unless = unless.prop_map(
        |(campaign, at_least, is_list, only_for, is_required)| Unless {
            campaign: name(campaign),
            at_least: if is_list { 1 } else { at_least },
            reach: UnlessReach {
                only_for: only_for.map(name),
                is_required,
            },
        },
    );
    // More than are looked up together.
    let campaigns = proptest::collection::vec((0..NAMES).prop_map(name), 1..90);
    let campaigns = prop_oneof![
        proptest::collection::vec((0..NAMES).prop_map(name), 1..5),
        campaigns
    ];
    (campaigns, proptest::collection::vec(unless, 0..6)).prop_map(|(campaigns, unless)| LineUp {
        campaigns,
        unless,
        limit: 1,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn eligibility_matches_naive_model(
        there in campaigns(),
        line_ups in proptest::collection::vec((line_up(), 0..USERS, 1..20usize, NOW - 4..NOW + 5), 1..12),
    ) {
        let mut machine = Machine { now: Timestamp(NOW), ..Machine::new() };
        let mut model = Campaigns::new();
        for (id, campaign) in there.into_iter().enumerate() {
            if let Some(campaign) = campaign {
                create(&mut machine, id, &campaign);
                model.insert(name(id), campaign);
            }
        }
        let view = machine.state.view();
        for (line_up, user, limit, now) in line_ups {
            let mut expected = expected(&model, &line_up, user, now, limit);
            let explained = found(&view, &line_up, user, now, limit, true);
            prop_assert_eq!(&explained, &expected);
            if let Ok(answer) = &mut expected {
                answer.reasons.clear();
            }
            prop_assert_eq!(found(&view, &line_up, user, now, limit, false), expected);
        }
    }
}
