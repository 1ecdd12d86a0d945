//! Codes that every client tries to redeem: each has as many winners as uses, before a crash and after it, and no customer wins more often
//! than allowed.

use crate::service::{Answer, Client};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

const PATH: &str = "/v1/coupons/contest";

/// Codes that there are.
const CODES: u64 = 2_000;

/// Attempts at one code before the next one.
const ATTEMPTS: u64 = 12;

/// Codes whose customers are the same, the number of these customers, and how often each may win.
const SHARED_CODES: u64 = 4;
const CUSTOMERS: u64 = 3;
const PER_CUSTOMER: usize = 2;

/// Who won what.
pub struct Contest {
    /// How often a code can be used. If several times, customers have a limit.
    uses: usize,
    attempts: u64,
    winners: HashMap<String, Vec<Winner>>,
    /// Codes that were refused because they are used up.
    lost: HashSet<String>,
    /// Customers that were refused because of their limit.
    refused: HashSet<String>,
}

struct Winner {
    reference: String,
    customer: Option<String>,
    id: String,
}

/// An attempt at a code, which may have to be sent twice.
#[derive(Clone, Debug)]
pub struct Bid {
    pub code: String,
    pub reference: String,
    /// If the uses of customers are limited.
    pub customer: Option<String>,
}

impl Bid {
    /// Without a key the reference alone identifies the bid, and a losing one may be refused without an entry in the log.
    pub fn send(&self, client: &Client, key: Option<&str>) -> Result<Answer, ureq::Error> {
        let path = format!("{PATH}/redemptions");
        let body = body(&self.code, &self.reference, self.customer.as_deref());
        match key {
            Some(key) => client.post_once(&path, &body, key),
            None => client.post(&path, &body),
        }
    }
}

impl Contest {
    /// A contest for codes with this many uses.
    pub fn new(uses: usize) -> Contest {
        Contest {
            uses,
            attempts: 0,
            winners: HashMap::new(),
            lost: HashSet::new(),
            refused: HashSet::new(),
        }
    }

    /// Makes the coupon that it is about.
    pub fn create(&self, client: &Client) {
        let mut spec = json!({ "capacity": 100, "uses": self.uses });
        if self.uses > 1 {
            spec["per_customer"] = json!(PER_CUSTOMER);
        }
        let answer = client.put(PATH, &spec).unwrap();
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
        *self = Contest::new(self.uses);
        self.create(client);
    }

    /// A bid for the code whose turn it is, from the first again after the last.
    pub fn next(&mut self, reference: String) -> Bid {
        self.attempts += 1;
        let number = self.attempts / ATTEMPTS % CODES;
        let customer = self.attempts % CUSTOMERS;
        let customer = (self.uses > 1).then(|| format!("{}-{customer}", number / SHARED_CODES));
        Bid {
            code: code(number),
            reference,
            customer,
        }
    }

    /// Checks and records the response to a bid.
    pub fn record(&mut self, bid: Bid, answer: &Answer) {
        let body = &answer.body;
        match (body["code"].as_str(), &bid.customer) {
            (Some("code-redeemed"), _) => {
                self.lost.insert(bid.code);
                return;
            }
            (Some("customer-limit"), Some(customer)) => {
                self.refused.insert(customer.clone());
                return;
            }
            _ => {}
        }
        let has_won = matches!(answer.status, 200 | 201) && body["status"] == "redeemed";
        assert!(has_won, "{bid:?} was answered {answer:?}");
        let id = body["id"].as_str().unwrap_or_default().to_owned();
        let winners = self.winners.entry(bid.code.clone()).or_default();
        winners.push(Winner {
            reference: bid.reference.clone(),
            customer: bid.customer.clone(),
            id,
        });
        let references: Vec<&str> = winners.iter().map(|it| it.reference.as_str()).collect();
        let count = references.iter().collect::<HashSet<_>>().len();
        let is_right = count == references.len() && count <= self.uses;
        assert!(is_right, "{bid:?} has won, the winners are {references:?}");
        let wins = self.wins();
        let within = wins.values().all(|wins| *wins <= PER_CUSTOMER);
        assert!(within, "{bid:?} has won, the customers are {wins:?}");
    }

    /// How often each customer has won.
    fn wins(&self) -> HashMap<&str, usize> {
        let mut wins = HashMap::new();
        for winner in self.winners.values().flatten() {
            if let Some(customer) = &winner.customer {
                *wins.entry(customer.as_str()).or_default() += 1;
            }
        }
        wins
    }

    /// The codes of which all uses are known to be won.
    fn used_up(&self) -> impl Iterator<Item = &String> {
        let all = self.winners.iter();
        let used_up = all.filter(|(_, winners)| winners.len() == self.uses);
        used_up.map(|(code, _)| code)
    }

    /// If a client has lost, the code is still used, whether or not the winner got a response: no client sees a write that a crash takes
    /// back.
    pub fn verify_lost(&self, client: &Client) {
        let used: Vec<&String> = self.lost.iter().chain(self.used_up()).collect();
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
        let winners = self.winners.values().flatten();
        winners.map(|winner| winner.id.as_str())
    }

    /// Each loser lost to winners, which are still the only ones. Nothing may be in flight.
    pub fn verify(&self, client: &Client) {
        let used_up: HashSet<&String> = self.used_up().collect();
        for code in &self.lost {
            assert!(
                used_up.contains(code),
                "{code} is used up, but no clients have won it"
            );
        }
        let wins = self.wins();
        for customer in &self.refused {
            assert_eq!(wins[customer.as_str()], PER_CUSTOMER, "{customer}");
        }
        let redemptions = format!("{PATH}/redemptions");
        let redeem = |code: &str, reference: &str, customer: Option<&str>| {
            let body = body(code, reference, customer);
            let answer = client.post(&redemptions, &body);
            answer.expect("the service is up")
        };
        for (code, winners) in self.winners.iter().take(100) {
            for winner in winners {
                let answer = redeem(code, &winner.reference, winner.customer.as_deref());
                assert_eq!(
                    (answer.status, &answer.body["id"]),
                    (200, &json!(winner.id)),
                    "{code}: {answer:?}"
                );
            }
            if used_up.contains(code) {
                let customer = winners[0].customer.as_ref().map(|_| "stranger");
                let answer = redeem(code, "stranger", customer);
                assert_eq!(
                    (answer.status, &answer.body["code"]),
                    (409, &json!("code-redeemed")),
                    "{code}: {answer:?}"
                );
            }
        }
        let limited = wins.iter().filter(|(_, wins)| **wins == PER_CUSTOMER);
        for (customer, _) in limited.take(20) {
            let unused = code(CODES - 1);
            let answer = redeem(&unused, "stranger", Some(customer));
            assert_eq!(answer.body["code"], "customer-limit", "{answer:?}");
        }
        let stats = client.get(PATH).expect("the service is up").body["stats"].clone();
        assert_eq!(stats["redeemed"], used_up.len(), "{stats}");
        assert_eq!(stats["available"], CODES - used_up.len() as u64, "{stats}");
        let won: usize = self.winners.values().map(Vec::len).sum();
        if self.uses > 1 {
            assert_eq!(stats["uses"]["redeemed"], won, "{stats}");
        }
    }
}

/// The body of a redemption.
fn body(code: &str, reference: &str, customer: Option<&str>) -> Value {
    let mut body = json!({ "code": code, "reference": reference });
    if let Some(customer) = customer {
        body["customer"] = json!(customer);
    }
    body
}

fn code(number: u64) -> String {
    format!("contest-{number}")
}
