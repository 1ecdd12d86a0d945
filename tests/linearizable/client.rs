//! One client: redeems, holds, extends, confirms, cancels and reads codes at random, and records the responses with their times.

use crate::checker::Operation;
use crate::model::{Answer, Id, Request, Seen, Status};
use crate::random::Random;
use crate::service::{self, Client};
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Codes that everybody wants.
pub const CODES: usize = 100;

/// Every second request goes to one of this many codes, for contention.
const CROWDED: u64 = 8;

/// References that the clients share for a code, so that the same one asks again.
const REFERENCES: u64 = 4;

/// Ids of a code that are remembered.
const IDS_MAX: usize = 4;

/// Holds outlast any test.
const HOLD_SECONDS_MIN: u64 = 86_400;

/// The clients' shared state.
pub struct Shop {
    /// Grows with every moment that matters.
    clock: AtomicU64,
    /// The newest ids of each code.
    ids: Vec<Mutex<Vec<Id>>>,
    /// Set to stop the clients.
    pub closed: AtomicBool,
    /// Clients whose connection broke.
    pub broken: AtomicUsize,
    /// Operations that were answered.
    pub answered: AtomicU64,
    /// Several nodes have the codes: reads ask for everything acknowledged anywhere, and the outcome of a write may be unknown.
    is_cluster: bool,
}

impl Shop {
    pub fn new() -> Shop {
        Shop::of(false)
    }

    /// One that several nodes have.
    pub fn of_several_nodes() -> Shop {
        Shop::of(true)
    }

    fn of(is_cluster: bool) -> Shop {
        Shop {
            is_cluster,
            clock: AtomicU64::new(0),
            ids: (0..CODES).map(|_| Mutex::default()).collect(),
            closed: AtomicBool::new(false),
            broken: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
        }
    }

    pub fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn some_id(&self, code: usize, random: &mut Random) -> Option<Id> {
        let ids = self.ids[code].lock().unwrap();
        // Usually the newest, which may still be current.
        let back = random.below(IDS_MAX as u64).saturating_sub(IDS_MAX as u64 - 2) as usize;
        ids.len().checked_sub(1 + back).map(|at| ids[at])
    }

    fn note_id(&self, code: usize, id: Id) {
        let mut ids = self.ids[code].lock().unwrap();
        if !ids.contains(&id) {
            ids.push(id);
            let surplus = ids.len().saturating_sub(IDS_MAX);
            ids.drain(..surplus);
        }
    }
}

pub fn code_name(code: usize) -> String {
    format!("code-{code}")
}

/// Works until the shop closes or the connection breaks; every operation, with the code that it was about.
pub fn work(shop: &Shop, client: &Client, random: &mut Random) -> Vec<(usize, Operation)> {
    let mut operations = Vec::new();
    while !shop.closed.load(Ordering::Relaxed) {
        let crowd = if random.below(2) == 0 { CROWDED } else { CODES as u64 };
        let code = random.below(crowd) as usize;
        let request = choose(shop, code, random);
        let called = shop.now();
        let answer = send(shop, client, code, request, random);
        let is_broken = answer.is_err();
        let is_unknown = shop.is_cluster && answer.as_ref().is_ok_and(|answer| answer.status == 503);
        let answer = answer.ok().filter(|_| !is_unknown);
        let answer = answer.map(|answer| read(&answer).unwrap_or(Answer::Odd));
        if let Some(Answer::Created(seen) | Answer::Found(seen)) = answer {
            shop.note_id(code, seen.id);
        }
        operations.push((code, Operation { request, answer, called, returned: shop.now() }));
        if is_broken {
            shop.broken.fetch_add(1, Ordering::SeqCst);
            break;
        }
        shop.answered.fetch_add(1, Ordering::Relaxed);
    }
    operations
}

fn choose(shop: &Shop, code: usize, random: &mut Random) -> Request {
    let redeem = |random: &mut Random, hold| {
        let reference = random.below(REFERENCES) as u32;
        Request::Redeem { reference, hold }
    };
    let chance = random.below(100);
    match (chance, shop.some_id(code, random)) {
        (0..35, _) | (_, None) => redeem(random, true),
        (35..50, _) => redeem(random, false),
        (50..62, Some(id)) => Request::Confirm(id),
        (62..87, Some(id)) => Request::Cancel(id),
        // A code and its redemption are looked up in two places, which change one after the other: a code is read
        // in one of the two ways only.
        (87.., Some(id)) if code.is_multiple_of(2) => Request::LookUp(id),
        (87.., Some(_)) => Request::Check,
    }
}

fn send(
    shop: &Shop,
    client: &Client,
    code: usize,
    request: Request,
    random: &mut Random,
) -> Result<service::Answer, ureq::Error> {
    const REDEMPTIONS: &str = "/v1/coupons/shop/redemptions";
    let nothing = json!({});
    let strong = [("X-Cuckood-Consistency", "strong"), ("Content-Type", "application/json")];
    let strong = if shop.is_cluster { &strong[..] } else { &strong[1..] };
    match request {
        Request::Redeem { reference, hold } => {
            let hold_seconds = if hold { HOLD_SECONDS_MIN + random.below(86_400) } else { 0 };
            let reference = format!("order-{reference}");
            let body =
                json!({ "code": code_name(code), "reference": reference, "hold_seconds": hold_seconds });
            client.post(REDEMPTIONS, &body)
        }
        Request::Confirm(id) => client.post(&format!("{REDEMPTIONS}/{id:032x}/confirm"), &nothing),
        Request::Cancel(id) => client.post(&format!("{REDEMPTIONS}/{id:032x}/cancel"), &nothing),
        Request::LookUp(id) => client.send("GET", &format!("{REDEMPTIONS}/{id:032x}"), strong, b""),
        Request::Check => {
            let body = json!({ "codes": [code_name(code)] }).to_string();
            client.send("POST", "/v1/coupons/shop/codes/check", strong, body.as_bytes())
        }
    }
}

fn read(answer: &service::Answer) -> Option<Answer> {
    let body = &answer.body;
    Some(match answer.status {
        200 if body["valid"].is_array() => Answer::Valid(body["valid"][0].as_bool()?),
        201 => Answer::Created(seen(body)?),
        200 => Answer::Found(seen(body)?),
        409 => match body["code"].as_str()? {
            "code-held" => Answer::CodeHeld,
            "code-redeemed" => Answer::CodeRedeemed,
            "redemption-cancelled" => Answer::RedemptionCancelled,
            _ => return None,
        },
        _ => return None,
    })
}

fn seen(redemption: &Value) -> Option<Seen> {
    Some(Seen {
        id: Id::from_str_radix(redemption["id"].as_str()?, 16).ok()?,
        reference: redemption["reference"].as_str()?.strip_prefix("order-")?.parse().ok()?,
        status: match redemption["status"].as_str()? {
            "held" => Status::Held,
            "redeemed" => Status::Redeemed,
            "cancelled" => Status::Cancelled,
            _ => return None,
        },
        expires_at: match redemption["expires_at"].as_str() {
            Some(at) => Some(at.parse::<jiff::Timestamp>().ok()?.as_millisecond()),
            None => None,
        },
    })
}
