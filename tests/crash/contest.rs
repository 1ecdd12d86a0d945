//! Codes that every client tries to redeem: each has one winner, before a crash and after it.

use crate::service::{Answer, Client};
use serde_json::json;
use std::collections::{HashMap, HashSet};

const PATH: &str = "/v1/coupons/contest";

/// Codes that there are.
const CODES: u64 = 2_000;

/// Attempts at one code before the next one.
const ATTEMPTS: u64 = 12;

/// Who won what.
#[derive(Default)]
pub struct Contest {
    attempts: u64,
    winners: HashMap<String, Winner>,
    lost: HashSet<String>,
}

struct Winner {
    reference: String,
    id: String,
}

/// An attempt at a code, which may have to be sent twice.
#[derive(Clone, Debug)]
pub struct Bid {
    pub code: String,
    pub reference: String,
}

impl Bid {
    /// Without a key the reference alone identifies the bid, and a losing one may be refused without an entry in the log.
    pub fn send(&self, client: &Client, key: Option<&str>) -> Result<Answer, ureq::Error> {
        let path = format!("{PATH}/redemptions");
        let body = json!({ "code": self.code, "reference": self.reference });
        match key {
            Some(key) => client.post_once(&path, &body, key),
            None => client.post(&path, &body),
        }
    }
}

impl Contest {
    /// Makes the coupon that it is about.
    pub fn create(&self, client: &Client) {
        let answer = client.put(PATH, &json!({ "capacity": 100 })).unwrap();
        assert_eq!(answer.status, 201, "{answer:?}");
        let codes: Vec<String> = (0..CODES).map(code).collect();
        let answer = client
            .post(&format!("{PATH}/codes"), &json!({ "codes": codes }))
            .unwrap();
        assert_eq!(answer.body["added"], CODES, "{answer:?}");
    }

    /// Starts again with the first code.
    pub fn renew(&mut self, client: &Client) {
        assert_eq!(
            client.delete(&format!("{PATH}?force=true")).unwrap().status,
            204
        );
        *self = Contest::default();
        self.create(client);
    }

    /// The code whose turn it is, from the first again after the last.
    pub fn next(&mut self) -> String {
        self.attempts += 1;
        code(self.attempts / ATTEMPTS % CODES)
    }

    /// Checks and records the response to a bid.
    pub fn record(&mut self, bid: Bid, answer: &Answer) {
        let body = &answer.body;
        if body["code"] == "code-redeemed" {
            self.lost.insert(bid.code);
            return;
        }
        let won = matches!(answer.status, 200 | 201) && body["status"] == "redeemed";
        assert!(won, "{bid:?} was answered {answer:?}");
        let id = body["id"].as_str().unwrap_or_default().to_owned();
        let message = format!("{bid:?} has won");
        let before = self.winners.insert(
            bid.code,
            Winner {
                reference: bid.reference,
                id,
            },
        );
        assert!(
            before.is_none(),
            "{message}, and before it {}",
            before.expect("checked").reference
        );
    }

    /// If a client has lost, the code is still used, whether or not the winner got a response: no client sees a write that a crash takes
    /// back.
    pub fn verify_lost(&self, client: &Client) {
        let used: Vec<&String> = self.lost.iter().chain(self.winners.keys()).collect();
        if used.is_empty() {
            return;
        }
        let answer = client.post(&format!("{PATH}/codes/check"), &json!({ "codes": used }));
        let answer = answer.expect("the service is up");
        let valid = answer.body["valid"].as_array().expect("a list");
        for (code, valid) in used.iter().zip(valid) {
            assert_eq!(valid, false, "{code} was used and is there again");
        }
    }

    /// The winners' redemptions.
    pub fn redemptions(&self) -> impl Iterator<Item = &str> {
        self.winners.values().map(|winner| winner.id.as_str())
    }

    /// Each loser lost to a winner, which is still the only one. Nothing may be in flight.
    pub fn verify(&self, client: &Client) {
        for code in &self.lost {
            assert!(
                self.winners.contains_key(code),
                "{code} is redeemed, but no client has won it"
            );
        }
        let redemptions = format!("{PATH}/redemptions");
        for (code, winner) in self.winners.iter().take(100) {
            let again = json!({ "code": code, "reference": winner.reference });
            let answer = client
                .post(&redemptions, &again)
                .expect("the service is up");
            assert_eq!(
                (answer.status, &answer.body["id"]),
                (200, &json!(winner.id)),
                "{code}: {answer:?}"
            );
            let stranger = json!({ "code": code, "reference": "stranger" });
            let answer = client
                .post(&redemptions, &stranger)
                .expect("the service is up");
            assert_eq!(
                (answer.status, &answer.body["code"]),
                (409, &json!("code-redeemed")),
                "{code}: {answer:?}"
            );
        }
        let stats = client.get(PATH).expect("the service is up").body["stats"].clone();
        assert_eq!(stats["redeemed"], self.winners.len(), "{stats}");
        assert_eq!(
            stats["available"],
            CODES - self.winners.len() as u64,
            "{stats}"
        );
    }
}

fn code(number: u64) -> String {
    format!("contest-{number}")
}
