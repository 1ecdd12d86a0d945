//! An open pool under 64 clients, holds of 1 to 3 s that are never confirmed, and kills. Its responses must have an explanation: at no
//! moment were more codes in use than the stock allows, no code was used twice, and no two had the same ordinal.
//!
//! For each redemption, the times of certain and possible use are known: from the requests about it, when they were sent and answered, and
//! from the list after each start, which shows the outcome of lost requests.

use crate::cluster::{NODES, settled, strong};
use crate::service::{Answer, Client, Service};
use crate::three_nodes::{Closing, World, rounds, settle as settle_nodes};
use crate::timeouts::wait_until;
use crate::{CLIENTS, LIFE_SECONDS, SETTINGS, assert_refused_unlogged, number};
use cuckood_state::testing::random::Random;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const STOCK: u64 = 50;

/// Users who want to be in: somewhat more than can be.
const USERS: u64 = 90;

/// Redemptions that are made in each life of the service, however slow the machine is.
const MADE_MIN: usize = 200;

/// One in this many clients abandons a hold: the others cancel theirs long before they expire.
const ABANDONING: usize = 8;

/// Maximum difference between two readings of the machine's clock, in milliseconds.
const CLOCK_MARGIN: i64 = 100;

/// Later than any test.
const NEVER: i64 = i64::MAX;

const REDEMPTIONS: &str = "/v1/coupons/sale/redemptions";

/// The wall clock, in milliseconds since 1970.
fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// From one moment until just before another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    from: i64,
    to: i64,
}

/// A redemption, as the clients know it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Known {
    user: u64,
    ordinal: u64,
    /// When it was asked for, and when that was answered or seen to have been done.
    made: Span,
    /// Of a hold that was not confirmed.
    expires_at: Option<i64>,
    /// When its cancellation was sent, and when it was answered or seen to be done.
    cancelled: Option<Span>,
}

impl Known {
    /// When it was in use for sure.
    fn certainly(&self) -> Span {
        let expires_at = self.expires_at.map_or(NEVER, |at| at - CLOCK_MARGIN);
        let cancelled = self.cancelled.map_or(NEVER, |span| span.from);
        Span {
            from: self.made.to,
            to: expires_at.min(cancelled),
        }
    }

    /// When it may have been in use.
    fn possibly(&self) -> Span {
        let expires_at = self.expires_at.map_or(NEVER, |at| at + CLOCK_MARGIN);
        let cancelled = self.cancelled.map_or(NEVER, |span| span.to);
        Span {
            from: self.made.from,
            to: expires_at.min(cancelled),
        }
    }
}

/// What all clients have seen.
#[derive(Default)]
struct History {
    /// By id.
    redemptions: HashMap<String, Known>,
    /// When a client got `sold-out`.
    sold_out: Vec<Span>,
    /// Requests whose answers were lost, by reference, with the user and when they were sent.
    lost: HashMap<String, (u64, i64)>,
    /// Redemptions of which a cancellation was lost.
    lost_cancels: HashMap<String, i64>,
    /// Redemptions that were not in the list because their holds had run out, or that were.
    expired: u64,
    confirmed: u64,
    /// Several nodes have the pool: the outcome of a request may be unknown.
    is_cluster: bool,
}

impl History {
    /// Records the outcome of lost requests; `list` has all redemptions.
    fn resolve(&mut self, list: &[Value]) {
        let seen = now();
        let mut standing = BTreeSet::new();
        for redemption in list {
            let id = redemption["id"].as_str().unwrap().to_owned();
            let status = redemption["status"].as_str().unwrap();
            let ordinal = redemption["ordinal"].as_u64();
            if ["held", "redeemed"].contains(&status) {
                let ordinal = ordinal.expect("what is in use has a number");
                assert!(
                    (1..=STOCK).contains(&ordinal) && standing.insert(ordinal),
                    "{ordinal} twice"
                );
            }
            let reference = redemption["reference"].as_str().unwrap();
            if let Some((user, asked)) = self.lost.remove(reference) {
                let made = Span {
                    from: asked,
                    to: seen,
                };
                let expires_at = millisecond(&redemption["expires_at"]);
                let known = Known {
                    user,
                    ordinal: ordinal.unwrap_or(0),
                    made,
                    expires_at,
                    cancelled: None,
                };
                self.redemptions.insert(id.clone(), known);
            }
            let Some(known) = self.redemptions.get_mut(&id) else {
                continue;
            };
            match (status, self.lost_cancels.remove(&id)) {
                ("cancelled", Some(asked)) if known.cancelled.is_none() => {
                    known.cancelled = Some(Span {
                        from: asked,
                        to: seen,
                    });
                }
                ("redeemed", _) => known.expires_at = None,
                ("expired", _) => self.expired += 1,
                _ => {}
            }
        }
        assert!(
            standing.len() as u64 <= STOCK,
            "{} are in use",
            standing.len()
        );
        self.lost.clear();
        self.lost_cancels.clear();
    }

    /// The moments at which redemptions begin and cease to be in use, with how many are from then on.
    fn course(&self, span: impl Fn(&Known) -> Span) -> Vec<(i64, i64)> {
        let mut changes = BTreeMap::<i64, i64>::new();
        for Span { from, to } in self
            .redemptions
            .values()
            .map(span)
            .filter(|span| span.from < span.to)
        {
            *changes.entry(from).or_default() += 1;
            *changes.entry(to).or_default() -= 1;
        }
        let mut count = 0;
        let counted = changes.into_iter().map(|(at, change)| {
            count += change;
            (at, count)
        });
        counted.collect()
    }

    /// Whether the time of a hold is over.
    fn has_run_out(&self, id: &str) -> bool {
        self.redemptions[id]
            .expires_at
            .is_some_and(|at| at + CLOCK_MARGIN < now())
    }

    /// How often each thing happened that has to.
    fn counts(&self) -> [(&'static str, u64); 4] {
        let cancelled = self
            .redemptions
            .values()
            .filter(|known| known.cancelled.is_some())
            .count();
        [
            ("sold out", self.sold_out.len() as u64),
            ("confirmed", self.confirmed),
            ("cancelled", cancelled as u64),
            ("expired", self.expired),
        ]
    }

    /// Returns the contradiction, if there is one.
    fn fault(&self) -> Option<String> {
        let most = self
            .course(Known::certainly)
            .into_iter()
            .map(|(_, count)| count)
            .max();
        if most > Some(STOCK as i64) {
            return Some(format!("{most:?} were in use at once"));
        }
        for (what, of) in [
            ("number", (|known| known.ordinal) as fn(&Known) -> u64),
            ("user", |known| known.user),
        ] {
            let mut spans: Vec<_> = self
                .redemptions
                .values()
                .map(|known| (of(known), known.certainly()))
                .collect();
            spans.retain(|(_, span)| span.from < span.to);
            spans.sort_unstable_by_key(|(which, span)| (*which, span.from));
            let twice = spans
                .windows(2)
                .find(|two| two[0].0 == two[1].0 && two[1].1.from < two[0].1.to);
            if let Some(twice) = twice {
                return Some(format!("one {what} twice: {twice:?}"));
            }
        }
        let course = self.course(Known::possibly);
        let had_room = |span: &&Span| {
            let before = course
                .partition_point(|(at, _)| *at <= span.from)
                .saturating_sub(1);
            let within = course[before..].iter().take_while(|(at, _)| *at <= span.to);
            within.map(|(_, count)| *count).max().unwrap_or(0) < STOCK as i64
        };
        self.sold_out
            .iter()
            .find(had_room)
            .map(|span| format!("told to be sold out at {span:?}, but was not"))
    }
}

fn millisecond(time: &Value) -> Option<i64> {
    Some(
        time.as_str()?
            .parse::<jiff::Timestamp>()
            .ok()?
            .as_millisecond(),
    )
}

/// A client's next operation, and its redemptions that are not cancelled.
struct Shopper {
    random: Random,
    own: Vec<String>,
    /// Whether it leaves a hold alone at times.
    is_abandoning: bool,
    /// A hold that it returns to after it has expired.
    abandoned: Option<String>,
}

impl Shopper {
    fn all(seed: u64) -> Vec<Shopper> {
        let mut seeds = Random::new(seed);
        let shopper = |number| Shopper {
            random: Random::new(seeds.next()),
            own: Vec::new(),
            is_abandoning: number % ABANDONING == 0,
            abandoned: None,
        };
        (0..CLIENTS).map(shopper).collect()
    }

    /// Holds, redeems, confirms and cancels until the connection breaks or the time is over.
    fn work(&mut self, client: &Client, closed: &AtomicBool, history: &Mutex<History>) {
        while !closed.load(Ordering::Relaxed) {
            if self.step(client, history).is_err() {
                return;
            }
        }
    }

    fn step(&mut self, client: &Client, history: &Mutex<History>) -> Result<(), ureq::Error> {
        if let Some(id) = self
            .abandoned
            .take_if(|id| history.lock().unwrap().has_run_out(id))
        {
            self.own.push(id);
            return self.settle(client, self.own.len() - 1, "cancel", history);
        }
        let chance = self.random.below(100);
        if chance < 60 || self.own.is_empty() {
            let reference = format!("{:016x}", self.random.next());
            if let Some(id) = enter(client, &mut self.random, &reference, history)? {
                let is_left = self.is_abandoning
                    && self.abandoned.is_none()
                    && history.lock().unwrap().redemptions[&id]
                        .expires_at
                        .is_some();
                if is_left {
                    self.abandoned = Some(id)
                } else {
                    self.own.push(id)
                }
            }
            return Ok(());
        }
        let at = self.random.below(self.own.len() as u64) as usize;
        let how = if chance < 66 { "confirm" } else { "cancel" };
        self.settle(client, at, how, history)
    }

    fn settle(
        &mut self,
        client: &Client,
        at: usize,
        how: &str,
        history: &Mutex<History>,
    ) -> Result<(), ureq::Error> {
        if !settle(client, &self.own[at], how, history)? {
            self.own.swap_remove(at);
        }
        Ok(())
    }
}

/// Wants to be in. Returns the id of the redemption, if it is.
fn enter(
    client: &Client,
    random: &mut Random,
    reference: &str,
    history: &Mutex<History>,
) -> Result<Option<String>, ureq::Error> {
    let user = random.below(USERS);
    let hold_seconds = if random.below(12) == 0 {
        0
    } else {
        1 + random.below(3)
    };
    let body = json!({ "code": format!("user-{user}"), "reference": reference, "hold_seconds": hold_seconds });
    let from = now();
    let answer = client.post(REDEMPTIONS, &body);
    let made = Span { from, to: now() };
    let mut history = history.lock().unwrap();
    let Answer { status, body, .. } = match answer {
        Ok(answer) => answer,
        Err(lost) => {
            history.lost.insert(reference.to_owned(), (user, from));
            return Err(lost);
        }
    };
    match (status, body["code"].as_str()) {
        (201, _) => {
            let id = body["id"].as_str().unwrap().to_owned();
            let ordinal = body["ordinal"].as_u64().unwrap();
            assert!((1..=STOCK).contains(&ordinal), "{ordinal}");
            let expires_at = millisecond(&body["expires_at"]);
            let known = Known {
                user,
                ordinal,
                made,
                expires_at,
                cancelled: None,
            };
            assert_eq!(
                history.redemptions.insert(id.clone(), known),
                None,
                "{id} was made twice"
            );
            return Ok(Some(id));
        }
        (409, Some("sold-out")) => history.sold_out.push(made),
        (409, Some("code-held" | "code-redeemed")) => {}
        (503, _) if history.is_cluster => {
            history.lost.insert(reference.to_owned(), (user, from));
        }
        _ => panic!("{status}: {body}"),
    }
    Ok(None)
}

/// Confirms or cancels. Returns whether the redemption is still in use.
fn settle(
    client: &Client,
    id: &str,
    how: &str,
    history: &Mutex<History>,
) -> Result<bool, ureq::Error> {
    let from = now();
    let answer = client.post(&format!("{REDEMPTIONS}/{id}/{how}"), &json!({}));
    let to = now();
    let mut history = history.lock().unwrap();
    let Answer { status, body, .. } = match answer {
        Ok(answer) => answer,
        Err(lost) => {
            if how == "cancel" {
                history.lost_cancels.insert(id.to_owned(), from);
            }
            return Err(lost);
        }
    };
    if status == 503 && history.is_cluster {
        if how == "cancel" {
            history.lost_cancels.entry(id.to_owned()).or_insert(from);
        }
        return Ok(true);
    }
    let asked = if how == "cancel" {
        history.lost_cancels.remove(id)
    } else {
        None
    };
    let known = history.redemptions.get_mut(id).unwrap();
    match (
        how,
        status,
        body["status"].as_str().or(body["code"].as_str()),
    ) {
        ("confirm", 200, Some("redeemed")) => {
            known.expires_at = None;
            history.confirmed += 1;
            return Ok(true);
        }
        ("cancel", 200, Some("cancelled")) => {
            // An earlier request may have done it.
            known.cancelled.get_or_insert(Span {
                from: asked.unwrap_or(from),
                to,
            });
        }
        ("cancel", 200, Some("expired")) => history.expired += 1,
        ("confirm", 409, Some("hold-expired" | "redemption-cancelled")) => {}
        _ => panic!("{how}: {status}: {body}"),
    }
    Ok(false)
}

/// All redemptions.
fn list(client: &Client) -> Vec<Value> {
    list_by(|path| client.get(path).unwrap())
}

fn list_by(get: impl Fn(&str) -> Answer) -> Vec<Value> {
    let mut all = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = get(&format!("{REDEMPTIONS}?limit=1000{cursor}")).body;
        all.extend(page["redemptions"].as_array().unwrap().iter().cloned());
        let Some(next) = page["next_cursor"].as_str() else {
            return all;
        };
        cursor = format!("&cursor={next}");
    }
}

#[test]
fn open_pool_never_exceeds_stock() {
    let seconds = number("LINEARIZABLE_SECONDS").unwrap_or(6);
    let seed = number("LINEARIZABLE_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("LINEARIZABLE_SECONDS={seconds} LINEARIZABLE_SEED={seed}");
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut shoppers = Shopper::all(seed);
    let history = Mutex::new(History::default());
    let lives = (seconds / LIFE_SECONDS).max(3);
    for life in 1..=lives {
        let service =
            Service::start_ready(Path::new(env!("CARGO_BIN_EXE_cuckood")), &data, SETTINGS);
        if life == 1 {
            let made = service.client().put(
                "/v1/coupons/sale",
                &json!({ "capacity": 10, "stock": STOCK }),
            );
            assert_eq!(made.unwrap().status, 201);
        }
        history.lock().unwrap().resolve(&list(&service.client()));
        let before = history.lock().unwrap().redemptions.len();
        let closed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let spawn = |shopper| {
                let client = service.client().another();
                let closed = &closed;
                let history = &history;
                scope.spawn(move || Shopper::work(shopper, &client, closed, history))
            };
            let clients: Vec<_> = shoppers.iter_mut().map(spawn).collect();
            // Not for anything to happen, but for the load to last.
            std::thread::sleep(Duration::from_secs(LIFE_SECONDS));
            wait_until("a load", || {
                let history = history.lock().unwrap();
                let has_all = life < lives || history.counts().iter().all(|(_, count)| *count > 0);
                has_all && history.redemptions.len() >= before + MADE_MIN
            });
            let survivor = if life == lives {
                closed.store(true, Ordering::Relaxed);
                assert_refused_unlogged(&service);
                Some(service)
            } else {
                service.kill();
                None
            };
            clients
                .into_iter()
                .for_each(|client| client.join().unwrap());
            if let Some(service) = survivor {
                history.lock().unwrap().resolve(&list(&service.client()));
                assert!(service.terminate().success(), "SIGTERM ends it well");
            }
        });
    }
    verify(history.into_inner().unwrap(), lives - 1);
}

/// Judges the whole history, in which everything must have happened.
fn verify(mut history: History, kills: u64) {
    let most = history
        .course(Known::certainly)
        .into_iter()
        .map(|(_, count)| count)
        .max();
    eprintln!(
        "{:>8} kills, {:>8} redemptions, {most:?} at once",
        kills,
        history.redemptions.len()
    );
    for (what, count) in history.counts() {
        eprintln!("{count:>8} {what}");
        assert!(count > 0, "none {what}");
    }
    assert_eq!(history.fault(), None);
    // Another redemption with an ordinal in use would be detected.
    let has_stood = |known: &Known| known.certainly().from < known.certainly().to;
    let (id, known) = history
        .redemptions
        .iter()
        .find(|(_, known)| has_stood(known))
        .unwrap();
    let id = format!("not {id}");
    let known = Known {
        user: USERS,
        ..known.clone()
    };
    history.redemptions.insert(id, known);
    assert!(history.fault().is_some(), "a number twice was not noticed");
}

#[test]
#[ignore = "takes a minute: make test-long WHAT=cluster"]
fn open_pool_on_three_nodes_never_exceeds_stock() {
    let seed = number("LINEARIZABLE_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("LINEARIZABLE_ROUNDS={} LINEARIZABLE_SEED={seed}", rounds());
    let mut world = World::start();
    let made = world.cluster.client(0).put(
        "/v1/coupons/sale",
        &json!({ "capacity": 10, "stock": STOCK }),
    );
    assert_eq!(made.unwrap().status, 201);
    settle_nodes(&world.cluster, u64::MAX);
    let mut shoppers = Shopper::all(seed);
    let history = Mutex::new(History {
        is_cluster: true,
        ..History::default()
    });
    for round in 0..rounds() {
        let closed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (at, shopper) in shoppers.iter_mut().enumerate() {
                let client = world.cluster.client(at % NODES).another();
                let closed = &closed;
                let history = &history;
                scope.spawn(move || shopper.work(&client, closed, history));
            }
            let closing = Closing(&closed);
            let mut failed_at = None;
            world.disturb(round, || {
                let made = history.lock().unwrap().redemptions.len();
                made >= *failed_at.get_or_insert(made) + STOCK as usize
            });
            drop(closing);
        });
        settle_nodes(&world.cluster, round);
        for node in 0..NODES {
            let client = world.cluster.client(node);
            let list = list_by(|path| settled(|| strong(&client, path)));
            history.lock().unwrap().resolve(&list);
        }
    }
    verify(history.into_inner().unwrap(), rounds());
}

/// Histories that the comparison must accept or reject.
#[test]
fn faulty_pool_is_detected() {
    let known = |user, ordinal, from, to| Known {
        user,
        ordinal,
        made: Span { from, to: from + 1 },
        expires_at: None,
        cancelled: Some(Span {
            from: to,
            to: to + 1,
        }),
    };
    let history = |all: &[Known], sold_out: &[Span]| {
        let redemptions = all
            .iter()
            .enumerate()
            .map(|(id, known)| (id.to_string(), known.clone()));
        History {
            redemptions: redemptions.collect(),
            sold_out: sold_out.to_vec(),
            ..History::default()
        }
    };
    let full: Vec<Known> = (1..=STOCK)
        .map(|number| known(number, number, 0, 1_000))
        .collect();
    let with = |one: Known| [&full[..], &[one]].concat();
    let fault = |all: &[Known], sold_out: &[Span]| history(all, sold_out).fault().is_some();
    assert!(!fault(&full, &[]) && !fault(&with(known(99, 7, 1_001, 1_100)), &[]));
    assert!(fault(&with(known(99, 51, 500, 600)), &[]), "one too many");
    assert!(
        fault(&[known(1, 7, 0, 100), known(2, 7, 50, 150)], &[]),
        "one number twice"
    );
    assert!(
        fault(&[known(1, 7, 0, 100), known(1, 8, 50, 150)], &[]),
        "one user twice"
    );
    let mut held = known(2, 7, 500, 700);
    let expired = Known {
        expires_at: Some(300),
        cancelled: None,
        ..known(1, 7, 0, 0)
    };
    assert!(
        !fault(&[expired.clone(), held.clone()], &[]),
        "a hold that has run out"
    );
    (held.made.from, held.made.to) = (50, 51);
    assert!(fault(&[expired, held], &[]), "a hold that has not run out");
    assert!(
        !fault(&full, &[Span { from: 500, to: 501 }])
            && !fault(
                &full,
                &[Span {
                    from: 990,
                    to: 2_000
                }]
            )
    );
    assert!(
        fault(
            &full,
            &[Span {
                from: 1_500,
                to: 1_501
            }]
        ),
        "sold-out is accepted although the pool was empty"
    );
}
