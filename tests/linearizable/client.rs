//! One client: redeems, holds, extends, confirms, cancels and reads codes at random over HTTP, or adds, removes and reads them as a Redis
//! client. It records each operation with its response and times.

use crate::checker::Operation;
use crate::model::{Answer, Id, Request, Seen, Status};
use crate::redis_client::{Connection, Reply, line};
use crate::service::{self, Client};
use cuckood_state::testing::random::Random;
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Codes that everybody wants.
pub const CODES: usize = 100;

/// Every second request goes to one of this many codes, for contention.
const CROWDED: u64 = 8;

/// The last codes, whose holds no client ends: however fast the machine is, some expire.
const UNENDED: usize = 10;

/// One of this many clients is a Redis client.
const REDIS_CLIENTS: usize = 8;

/// References that the clients share for a code, so that the same one asks again.
const REFERENCES: u64 = 4;

/// Ids of a code that are remembered.
const IDS_MAX: usize = 4;

/// Seconds of holds that expire during the test; others outlast it.
const BRIEF_SECONDS: u64 = 1;

const LONG_SECONDS: u64 = 86_400;

/// A client that was rejected leaves the processors to the servers for a while.
const PAUSE: Duration = Duration::from_millis(10);

/// The clients' shared state.
pub struct Shop {
    /// The newest ids of each code.
    ids: Vec<Mutex<Vec<Id>>>,
    /// Set to stop the clients.
    pub closed: AtomicBool,
    /// Clients whose connection broke.
    pub broken: AtomicUsize,
    /// Operations that have a response.
    pub answered: AtomicU64,
    /// Operations that were rejected: they have no effect, now or later.
    pub rejected: AtomicU64,
    /// Several nodes have the codes: reads ask for what is acknowledged anywhere, and what becomes of a write may be unknown.
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
            ids: (0..CODES).map(|_| Mutex::default()).collect(),
            closed: AtomicBool::new(false),
            broken: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
        }
    }

    fn some_id(&self, code: usize, random: &mut Random) -> Option<Id> {
        let ids = self.ids[code].lock().unwrap();
        // Usually the newest, which may still be current.
        let back = random
            .below(IDS_MAX as u64)
            .saturating_sub(IDS_MAX as u64 - 2) as usize;
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

/// The current moment: microseconds since 1970.
pub fn now() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_microsecond()).expect("after 1970")
}

/// How a client speaks to the service.
pub enum Door {
    Http(Client),
    Redis(Connection),
}

impl Door {
    /// The door of one of several clients.
    pub fn of(number: usize, service: &service::Service) -> Door {
        match number % REDIS_CLIENTS {
            0 => Door::Redis(Connection::to(service.redis_address())),
            _ => Door::Http(service.client().another()),
        }
    }
}

/// What became of a request.
enum Fate {
    Answered(Answer),
    /// It may take effect, or not.
    Unknown,
    /// It never takes effect.
    Rejected,
    /// The connection broke.
    Broken,
}

/// Works until the shop closes or the connection breaks. Returns every operation that may have had an effect, with its code.
pub fn work(shop: &Shop, mut door: Door, random: &mut Random) -> Vec<(usize, Operation)> {
    let mut operations = Vec::new();
    while !shop.closed.load(Ordering::Relaxed) {
        let crowd = if random.below(2) == 0 {
            CROWDED
        } else {
            CODES as u64
        };
        let code = random.below(crowd) as usize;
        let request = match door {
            Door::Http(_) => choose(shop, code, random),
            Door::Redis(_) => choose_command(shop, random),
        };
        let called = now();
        let fate = match &mut door {
            Door::Http(client) => send(shop, client, code, request),
            Door::Redis(connection) => send_command(shop, connection, code, request),
        };
        let answer = match fate {
            Fate::Answered(answer) => Some(answer),
            Fate::Unknown | Fate::Broken => None,
            Fate::Rejected => {
                shop.rejected.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        if let Some(Answer::Created(seen) | Answer::Found(seen)) = answer {
            shop.note_id(code, seen.id);
        }
        let is_read = matches!(request, Request::LookUp(_) | Request::Check);
        if answer.is_some() || !is_read {
            operations.push((
                code,
                Operation {
                    request,
                    answer,
                    called,
                    returned: now(),
                },
            ));
        }
        if matches!(fate, Fate::Broken) {
            shop.broken.fetch_add(1, Ordering::SeqCst);
            break;
        }
        shop.answered
            .fetch_add(u64::from(answer.is_some()), Ordering::Relaxed);
    }
    operations
}

fn choose(shop: &Shop, code: usize, random: &mut Random) -> Request {
    let redeem = |random: &mut Random, hold| {
        let reference = random.below(REFERENCES) as u32;
        Request::Redeem { reference, hold }
    };
    let is_ended = code < CODES - UNENDED;
    let chance = match random.below(100) {
        10..87 if !is_ended => 87,
        chance => chance,
    };
    match (chance, shop.some_id(code, random)) {
        (0..10, _) | (_, None) if !is_ended => redeem(random, Some(BRIEF_SECONDS as u32)),
        (0..35, _) | (_, None) => {
            let is_long = random.below(3) == 0;
            let seconds = if is_long {
                LONG_SECONDS + random.below(LONG_SECONDS)
            } else {
                BRIEF_SECONDS
            };
            redeem(random, Some(seconds as u32))
        }
        (35..50, _) => redeem(random, None),
        (50..62, Some(id)) => Request::Confirm(id),
        (62..87, Some(id)) => Request::Cancel(id),
        // A code and its redemption are looked up in two places, which change one after the other: a code is read
        // in one of the two ways only.
        (87.., Some(id)) if code.is_multiple_of(2) => Request::LookUp(id),
        (87.., Some(_)) => Request::Check,
    }
}

/// A Redis client can't ask for a strong read.
fn choose_command(shop: &Shop, random: &mut Random) -> Request {
    match random.below(if shop.is_cluster { 8 } else { 10 }) {
        0..6 => Request::Add,
        6..8 => Request::Remove,
        _ => Request::Check,
    }
}

fn send(shop: &Shop, client: &Client, code: usize, request: Request) -> Fate {
    const REDEMPTIONS: &str = "/v1/coupons/shop/redemptions";
    let nothing = json!({});
    let strong = [
        ("X-Cuckood-Consistency", "strong"),
        ("Content-Type", "application/json"),
    ];
    let strong = if shop.is_cluster {
        &strong[..]
    } else {
        &strong[1..]
    };
    let answer = match request {
        Request::Redeem { reference, hold } => {
            let reference = format!("order-{reference}");
            let hold = hold.unwrap_or(0);
            let body =
                json!({ "code": code_name(code), "reference": reference, "hold_seconds": hold });
            client.post(REDEMPTIONS, &body)
        }
        Request::Confirm(id) => client.post(&format!("{REDEMPTIONS}/{id:032x}/confirm"), &nothing),
        Request::Cancel(id) => client.post(&format!("{REDEMPTIONS}/{id:032x}/cancel"), &nothing),
        Request::LookUp(id) => client.send("GET", &format!("{REDEMPTIONS}/{id:032x}"), strong, b""),
        Request::Check => {
            let body = json!({ "codes": [code_name(code)] }).to_string();
            client.send(
                "POST",
                "/v1/coupons/shop/codes/check",
                strong,
                body.as_bytes(),
            )
        }
        Request::Add | Request::Remove => unreachable!("only Redis clients do so"),
    };
    match answer {
        Err(_) => Fate::Broken,
        Ok(answer) if shop.is_cluster && answer.status == 503 => match answer.body["code"].as_str()
        {
            Some("storage-failed") => Fate::Unknown,
            _ => Fate::Rejected,
        },
        Ok(answer) => Fate::Answered(read(&answer).unwrap_or(Answer::Odd)),
    }
}

fn send_command(shop: &Shop, connection: &mut Connection, code: usize, request: Request) -> Fate {
    let command = match request {
        Request::Add => "CF.ADD",
        Request::Remove => "CF.DEL",
        Request::Check => "CF.EXISTS",
        _ => unreachable!("HTTP clients do so"),
    };
    let sent = connection.send(&line(&format!("{command} coupon:shop {}", code_name(code))));
    match sent.then(|| connection.reply()).flatten() {
        None => Fate::Broken,
        Some(Reply::Integer(number)) if request == Request::Check => {
            Fate::Answered(Answer::Valid(number == 1))
        }
        Some(Reply::Integer(number)) => Fate::Answered(Answer::Changed(number == 1)),
        Some(Reply::Error(error)) if shop.is_cluster => match error.starts_with("MISCONF") {
            true => Fate::Unknown,
            false => Fate::Rejected,
        },
        Some(_) => Fate::Answered(Answer::Odd),
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
            "hold-expired" => Answer::HoldExpired,
            _ => return None,
        },
        404 if body["code"] == "code-unknown" => Answer::CodeUnknown,
        _ => return None,
    })
}

fn seen(redemption: &Value) -> Option<Seen> {
    Some(Seen {
        id: Id::from_str_radix(redemption["id"].as_str()?, 16).ok()?,
        reference: redemption["reference"]
            .as_str()?
            .strip_prefix("order-")?
            .parse()
            .ok()?,
        status: match redemption["status"].as_str()? {
            "held" => Status::Held,
            "redeemed" => Status::Redeemed,
            "cancelled" => Status::Cancelled,
            "expired" => Status::Expired,
            _ => return None,
        },
        expires_at: match redemption["expires_at"].as_str() {
            Some(at) => Some(at.parse::<jiff::Timestamp>().ok()?.as_millisecond()),
            None => None,
        },
    })
}
