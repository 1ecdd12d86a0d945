//! An hour of an ad server compared with an exact program: two million users, forty campaigns on two pages, at most three impressions of
//! each in seven days; one user in a hundred has opted out. A compact filter may take a stranger for a member, with a probability of its
//! error rate, so an advertisement may be shown or left out too early; but no cap is ever exceeded, and users who have opted out see
//! nothing.
//!
//! `REPLAY_SEED` repeats an hour, `REPLAY_USERS` makes it another size.

use crate::service::Client;
use crate::{ensure, expect, timed};
use cuckood_state::testing::random::Random;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::error::Error;
use std::io::Cursor;

const CAMPAIGNS: usize = 40;
const PAGES: [(&str, std::ops::Range<usize>); 2] = [
    ("home", 0..CAMPAIGNS / 2),
    ("news", CAMPAIGNS / 2..CAMPAIGNS),
];

/// Impressions of one campaign for each user.
const CAP: u8 = 3;

/// The filters' error rate.
const ERROR_RATE: f64 = 0.001;

/// Visits per request.
const BATCH: usize = 1_000;

/// One in `BUSY` users makes half of all visits.
const BUSY: u64 = 20;

/// Counts that are compared for each campaign.
const COMPARED: usize = 10_000;

/// A user, as the exact program knows it.
#[derive(Clone)]
struct User {
    /// The campaigns that it may see, as bits.
    audiences: u64,
    opted_out: bool,
    seen: [u8; CAMPAIGNS],
}

impl User {
    fn may_see(&self, campaign: usize) -> bool {
        self.audiences >> campaign & 1 == 1
    }

    /// The first campaign of a page that it is to see.
    fn decide(&self, page: usize) -> Option<usize> {
        let mut campaigns = PAGES[page].1.clone();
        campaigns.find(|&campaign| {
            !self.opted_out && self.may_see(campaign) && self.seen[campaign] < CAP
        })
    }
}

/// The totals of an hour.
#[derive(Default)]
struct Hour {
    /// Impressions of each campaign: how many there should have been, and how many there were.
    wanted: Vec<u64>,
    shown: Vec<u64>,
    /// How often a stranger was looked up, and how often a member's impressions were counted.
    strangers: u64,
    counted: u64,
    /// How often a stranger was taken for a member, and how often a cap was reached too soon.
    shown_to_strangers: u64,
    capped_too_soon: u64,
    nothing: u64,
}

/// Replays an hour against a service without campaigns.
pub fn replay(client: &Client) -> Result<(), Box<dyn Error>> {
    let number = |variable: &str| {
        std::env::var(variable)
            .ok()
            .and_then(|number| number.parse().ok())
    };
    let count = number("REPLAY_USERS").unwrap_or(2_000_000);
    let seed = number("REPLAY_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("   REPLAY_USERS={count} REPLAY_SEED={seed}");
    let mut random = Random::new(seed);
    let mut users = timed("make up the users and their week", || {
        Ok(make_up(count, &mut random))
    })?;
    timed(
        "import 40 audiences, who has seen what, and who has opted out",
        || load(client, &users),
    )?;
    let hour = timed("serve an hour", || serve(client, &mut users, &mut random))?;
    hour.compare()?;
    timed("compare who has seen what", || compare_seen(client, &users))
}

fn name(user: usize) -> String {
    format!("user-{user:08}")
}

fn campaign(number: usize) -> String {
    format!("ad-{number:02}")
}

fn make_up(count: u64, random: &mut Random) -> Vec<User> {
    let shares: Vec<u64> = (0..CAMPAIGNS).map(|_| 50 + random.below(500)).collect();
    let make_up = |_| {
        let mut user = User {
            audiences: 0,
            opted_out: random.below(100) == 0,
            seen: [0; CAMPAIGNS],
        };
        for (campaign, share) in shares.iter().enumerate() {
            if random.below(1_000) < *share {
                user.audiences |= 1 << campaign;
                if random.below(8) == 0 {
                    user.seen[campaign] = 1 + random.below(u64::from(CAP)) as u8;
                }
            }
        }
        user
    };
    (0..count).map(make_up).collect()
}

fn load(client: &Client, users: &[User]) -> Result<(), Box<dyn Error>> {
    for number in 0..CAMPAIGNS {
        let name = campaign(number);
        let audience = |user: &User| u64::from(user.may_see(number));
        fill(
            client,
            &name,
            &json!({ "error_rate": ERROR_RATE }),
            users,
            audience,
        )?;
        let seen = |user: &User| u64::from(user.seen[number]);
        let spec = json!({ "error_rate": ERROR_RATE, "forget_after": "7d", "forget_steps": 7 });
        fill(client, &format!("{name}.seen"), &spec, users, seen)?;
    }
    let opted_out = |user: &User| u64::from(user.opted_out);
    fill(
        client,
        "opted-out",
        &json!({ "mode": "strict" }),
        users,
        opted_out,
    )?;
    for (page, campaigns) in PAGES {
        let names: Vec<String> = campaigns.map(campaign).collect();
        let cap = |name: &String| json!({ "campaign": format!("{name}.seen"), "at_least": CAP, "for": name });
        let unless: Vec<Value> = names
            .iter()
            .map(cap)
            .chain([json!({ "campaign": "opted-out" })])
            .collect();
        let line_up = json!({ "campaigns": names, "unless": unless });
        expect(201, client.put(&format!("/v1/line-ups/{page}"), &line_up)?)?;
    }
    Ok(())
}

/// Creates a campaign with `copies` copies of each user.
fn fill(
    client: &Client,
    name: &str,
    spec: &Value,
    users: &[User],
    copies: impl Fn(&User) -> u64,
) -> Result<(), Box<dyn Error>> {
    let (path, mut lines, mut count) = (format!("/v1/campaigns/{name}"), String::new(), 0);
    for (number, user) in users.iter().enumerate() {
        for _ in 0..copies(user) {
            lines += &self::name(number);
            lines.push('\n');
            count += 1;
        }
    }
    let mut spec = spec.clone();
    spec["capacity"] = (count + 1_000).into();
    expect(201, client.put(&path, &spec)?)?;
    let done = expect(
        200,
        client.import(&format!("{path}/imports"), Cursor::new(lines))?,
    )?;
    ensure(done["added"] == count, &done.to_string())
}

fn serve(client: &Client, users: &mut [User], random: &mut Random) -> Result<Hour, Box<dyn Error>> {
    let none = vec![0; CAMPAIGNS];
    let mut hour = Hour {
        wanted: none.clone(),
        shown: none,
        ..Hour::default()
    };
    for _ in 0..users.len() / 10 / BATCH {
        let visits = draw(users.len() as u64, random);
        let ask = |&(user, page): &(usize, usize)| json!({ "user": name(user), "line_up": PAGES[page].0 });
        let requests: Vec<Value> = visits.iter().map(ask).collect();
        let answer = client.post("/v1/eligibility/batch", &json!({ "requests": requests }))?;
        let answer = expect(200, answer)?;
        let results = answer["results"]
            .as_array()
            .filter(|results| results.len() == visits.len());
        let mut impressions = vec![Vec::new(); CAMPAIGNS];
        for (&(user, page), result) in visits.iter().zip(results.ok_or("results are missing")?) {
            let shown = result["eligible"][0].as_str();
            let shown = PAGES[page]
                .1
                .clone()
                .find(|&number| shown == Some(campaign(number).as_str()));
            hour.judge(&users[user], page, shown)?;
            if let Some(shown) = shown {
                users[user].seen[shown] += 1;
                impressions[shown].push(name(user));
            }
        }
        for (number, seen) in impressions
            .iter()
            .enumerate()
            .filter(|(_, seen)| !seen.is_empty())
        {
            let path = format!("/v1/campaigns/{}.seen/users", campaign(number));
            let added = expect(200, client.post(&path, &json!({ "users": seen }))?)?;
            ensure(added["added"] == seen.len(), &added.to_string())?;
        }
    }
    Ok(hour)
}

/// Visits by different users, each of a page.
fn draw(users: u64, random: &mut Random) -> Vec<(usize, usize)> {
    let mut drawn = HashSet::new();
    let mut visits = Vec::with_capacity(BATCH);
    while visits.len() < BATCH {
        let among = if random.below(2) == 0 {
            users / BUSY
        } else {
            users
        };
        let user = random.below(among) as usize;
        if drawn.insert(user) {
            visits.push((user, random.below(PAGES.len() as u64) as usize));
        }
    }
    visits
}

impl Hour {
    /// Compares the advertisement shown to a user with the correct one.
    fn judge(
        &mut self,
        user: &User,
        page: usize,
        shown: Option<usize>,
    ) -> Result<(), Box<dyn Error>> {
        let wanted = user.decide(page);
        match shown {
            Some(shown) => {
                ensure(!user.opted_out, "a user who has opted out is shown an ad")?;
                ensure(user.seen[shown] < CAP, "a cap is exceeded")?;
                self.shown[shown] += 1;
                self.shown_to_strangers += u64::from(!user.may_see(shown));
            }
            None => self.nothing += 1,
        }
        if let Some(wanted) = wanted {
            self.wanted[wanted] += 1;
            self.capped_too_soon += u64::from(shown.is_none_or(|shown| wanted < shown));
        }
        let end = shown.or(wanted).unwrap_or(PAGES[page].1.end - 1);
        for campaign in PAGES[page].1.start..=end {
            if user.may_see(campaign) {
                self.counted += 1
            } else {
                self.strangers += 1
            }
        }
        Ok(())
    }

    /// Checks the guarantees, and reports the margins.
    fn compare(&self) -> Result<(), Box<dyn Error>> {
        let [wanted, shown] = [&self.wanted, &self.shown].map(|of| of.iter().sum::<u64>());
        println!(
            "   impressions: {wanted} by the exact program, {shown} by the service; nothing shown {} times",
            self.nothing
        );
        for (number, (wanted, shown)) in self.wanted.iter().zip(&self.shown).enumerate() {
            let end = if number % 4 == 3 { "\n" } else { "" };
            print!("   {} {wanted:>6} {shown:>6}{end}", campaign(number));
        }
        for (what, wrong, of) in [
            (
                "shown to strangers",
                self.shown_to_strangers,
                self.strangers,
            ),
            ("capped too soon", self.capped_too_soon, self.counted),
        ] {
            within_the_error_rate(what, wrong, of)?;
        }
        Ok(())
    }
}

/// Checks that the wrong ones are within the error rate, plus a tolerance for chance.
fn within_the_error_rate(what: &str, wrong: u64, of: u64) -> Result<(), Box<dyn Error>> {
    let promised = of as f64 * ERROR_RATE;
    println!("   {what}: {wrong} of {of}, at most about {promised:.0} promised");
    ensure(
        wrong as f64 <= promised + 5.0 * promised.sqrt() + 5.0,
        "far too many",
    )
}

/// How often the busiest users have seen each campaign, by the service's count: never too low.
fn compare_seen(client: &Client, users: &[User]) -> Result<(), Box<dyn Error>> {
    let compared = &users[..users.len().min(COMPARED)];
    let names: Vec<String> = (0..compared.len()).map(name).collect();
    let (mut all, mut sum, mut counted, mut wrong) = (0, 0, 0, 0);
    for number in 0..CAMPAIGNS {
        let path = format!("/v1/campaigns/{}.seen/users/count", campaign(number));
        let answer = expect(200, client.post(&path, &json!({ "users": names }))?)?;
        let counts = answer["counts"]
            .as_array()
            .filter(|counts| counts.len() == compared.len());
        for (user, count) in compared.iter().zip(counts.ok_or("counts are missing")?) {
            let (seen, count) = (u64::from(user.seen[number]), count.as_u64().unwrap_or(0));
            ensure(count >= seen, "an impression is forgotten")?;
            (all, sum, counted, wrong) = (
                all + 1,
                sum + seen,
                counted + count,
                wrong + u64::from(count > seen),
            );
        }
    }
    println!(
        "   impressions of {} users: {sum} by the exact program, {counted} by the service",
        names.len()
    );
    within_the_error_rate("counted too high", wrong, all)
}
