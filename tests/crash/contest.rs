//! Codes that every client tries to redeem: each has one winner, before a crash and after it.

use crate::service::Client;
use serde_json::json;
use std::collections::{HashMap, HashSet};

/// Attempts at one code before the next one's turn comes.
const ATTEMPTS: u64 = 12;

/// Who won what.
pub struct Contest {
    attempts: u64,
    winners: HashMap<String, Winner>,
    lost: HashSet<String>,
}

struct Winner {
    reference: String,
    id: String,
}

impl Contest {
    pub fn new() -> Contest {
        Contest { attempts: 0, winners: HashMap::new(), lost: HashSet::new() }
    }

    /// All codes that `count` attempts can come to.
    pub fn codes(count: u64) -> Vec<String> {
        (0..count).map(code).collect()
    }

    /// The code whose turn it is.
    pub fn next(&mut self) -> String {
        self.attempts += 1;
        code(self.attempts / ATTEMPTS)
    }

    pub fn won(&mut self, code: String, reference: String, id: String) {
        let message = format!("{code} has two winners, one of them {reference}");
        let before = self.winners.insert(code, Winner { reference, id });
        assert!(before.is_none(), "{message}, the other {}", before.expect("checked").reference);
    }

    pub fn lost(&mut self, code: String) {
        self.lost.insert(code);
    }

    /// How many codes were won.
    pub fn count(&self) -> usize {
        self.winners.len()
    }

    /// What a client was told that it had lost is still used, whether or not the winner got an answer: nobody sees what
    /// a crash takes back.
    pub fn verify_lost(&self, client: &Client) {
        let lost: Vec<&String> = self.lost.iter().collect();
        for lost in lost.chunks(10_000) {
            let answer = client.post("/v1/coupons/codes/codes/check", &json!({ "codes": lost }));
            let answer = answer.expect("the service is up");
            let valid = answer.body["valid"].as_array().expect("a list");
            assert!(
                valid.iter().all(|valid| valid == false),
                "a code that was lost is there again: {answer:?}"
            );
        }
    }

    /// Whoever lost lost to somebody, and the winner is still the only one. Nothing may be under way.
    pub fn verify(&self, client: &Client) {
        for code in &self.lost {
            assert!(self.winners.contains_key(code), "{code} is redeemed, and nobody has redeemed it");
        }
        for (code, winner) in self.winners.iter().take(100) {
            let again = json!({ "code": code, "reference": winner.reference });
            let answer = client.post("/v1/coupons/codes/redemptions", &again).expect("the service is up");
            assert_eq!((answer.status, &answer.body["id"]), (200, &json!(winner.id)), "{code}: {answer:?}");
            let stranger = json!({ "code": code, "reference": "stranger" });
            let answer = client.post("/v1/coupons/codes/redemptions", &stranger).expect("the service is up");
            assert_eq!(
                (answer.status, &answer.body["code"]),
                (409, &json!("code-redeemed")),
                "{code}: {answer:?}"
            );
        }
    }
}

fn code(number: u64) -> String {
    format!("contest-{number}")
}
