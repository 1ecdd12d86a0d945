//! Each path finds an item under each of its spellings. And what a node does before all nodes understand spellings.

use crate::service::{Service, request};
use axum::body::Body;
use cuckood::http::options::HttpOptions;
use cuckood_log::journal::{Journal as _, Ticket};
use cuckood_log::testing::memory_log::MemoryLog;
use cuckood_state::domain::{Command, Proposal, Timestamp};
use http::Method;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

/// When every test begins.
const BEGIN: Timestamp = Timestamp(1_795_262_400_000);

const RULES: [&str; 4] = ["exact", "ascii", "case", "code"];

/// Pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = xxh3_64(&self.0.to_le_bytes());
        self.0 as usize % bound
    }

    fn one_of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }

    /// Another spelling of a word of small letters and digits.
    fn spelling(&mut self, rule: &str, word: &str) -> String {
        let ends: &[&str] = match rule {
            "exact" => &[""],
            "ascii" => &["", " ", "\t"],
            _ => &["", " ", "\u{a0}", "\u{b}", "\u{3000}"],
        };
        let mut text = self.one_of(ends).to_owned();
        for letter in word.chars() {
            match (rule, self.below(4)) {
                ("exact", _) | (_, 0) => text.push(letter),
                ("case" | "code", 1) if letter == 'é' => text.push_str("e\u{301}"),
                ("code", 2) if letter.is_ascii_lowercase() => {
                    text.push(char::from_u32(u32::from(letter) + 0xfee0).unwrap());
                }
                ("ascii", _) => text.push(letter.to_ascii_uppercase()),
                _ => text.extend(letter.to_uppercase()),
            }
            if rule == "code" {
                text.push_str(
                    self.one_of(&["", "-", " ", "_", ".", "/", "·", "\u{2014}", "\u{200b}"]),
                );
            }
        }
        text + self.one_of(ends)
    }
}

/// Creates a strict filter that normalizes by the rule.
async fn create(service: &Service, path: &str, rule: &str) {
    let spec = json!({"capacity": 10_000, "mode": "strict", "normalize": rule});
    service.put(path, spec).await.json(201);
}

async fn import(service: &Service, path: &str, line: &str) -> Value {
    let content = [("content-type", "text/plain")];
    let body = Body::from(format!("{line}\n"));
    service
        .send(request(Method::POST, path, &content, body))
        .await
        .json(200)
}

#[tokio::test]
async fn each_path_finds_each_spelling() {
    let service = Service::start().await;
    let random = &mut Random(1);
    for rule in RULES {
        let users = format!("/v1/campaigns/{rule}/users");
        let codes = format!("/v1/coupons/{rule}/codes");
        for path in ["campaigns", "coupons"] {
            create(&service, &format!("/v1/{path}/{rule}"), rule).await;
        }
        create(&service, &format!("/v1/campaigns/{rule}.out"), rule).await;
        let post = async |path: &str, body: Value| service.post(path, body).await.json(200);
        for number in 0..12 {
            let word = format!("{}z{number}é", random.one_of(&["anna", "k7q2", "aß"]));
            let mut word = || random.spelling(rule, &word);
            let what = format!("{rule}: {}", word());

            let added = post(&users, json!({"users": [word()]})).await;
            assert_eq!(added["added"], 1, "{what}");
            let again = post(&users, json!({"users": [word()]})).await;
            assert_eq!(again["outcomes"][0], "already_present", "{what}");
            let found = post(&format!("{users}/check"), json!({"users": [word()]})).await;
            assert_eq!(found["present"][0], true, "{what}");
            let counted = post(&format!("{users}/count"), json!({"users": [word()]})).await;
            assert_eq!(counted["counts"][0], 1, "{what}");

            let unless = json!([{"campaign": format!("{rule}.out")}]);
            let question = json!({"user": word(), "campaigns": [rule], "unless": unless});
            let shown = post("/v1/eligibility", question.clone()).await;
            assert_eq!(shown["eligible"][0], rule, "{what}");
            post(
                &format!("/v1/campaigns/{rule}.out/users"),
                json!({"users": [word()]}),
            )
            .await;
            let hidden = post("/v1/eligibility", question).await;
            assert_eq!(hidden["excluded"][0], rule, "{what}");

            let replacements =
                json!([{"from": word(), "to": "other"}, {"from": "other", "to": word()}]);
            let replaced = post(
                &format!("{users}/replace"),
                json!({"replacements": replacements}),
            )
            .await;
            assert_eq!(
                replaced["outcomes"],
                json!(["replaced", "replaced"]),
                "{what}"
            );
            let removed = post(&format!("{users}/remove"), json!({"users": [word()]})).await;
            assert_eq!(removed["removed"], 1, "{what}");

            let imports = format!("/v1/coupons/{rule}/imports");
            let tried = import(&service, &format!("{imports}?dry_run=true"), &word()).await;
            assert_eq!(tried["added"], 1, "{what}");
            let imported = import(&service, &imports, &word()).await;
            assert_eq!(imported["added"], 1, "{what}");
            for query in ["?dry_run=true", ""] {
                let again = import(&service, &format!("{imports}{query}"), &word()).await;
                assert_eq!(again["already_present"], 1, "{what}");
            }
            let valid = post(&format!("{codes}/check"), json!({"codes": [word()]})).await;
            assert_eq!(valid["valid"][0], true, "{what}");
            let redemption = json!({"code": word(), "reference": "order"});
            let redemptions = format!("/v1/coupons/{rule}/redemptions");
            let redeemed = service.post(&redemptions, redemption).await.json(201);
            let repeated = post(&redemptions, json!({"code": word(), "reference": "order"})).await;
            assert_eq!(repeated["id"], redeemed["id"], "{what}");
            let status = post(&format!("{codes}/lookup"), json!({"codes": [word()]})).await;
            assert_eq!(status["codes"][0]["status"], "redeemed", "{what}");
        }
    }
}

/// Generated codes are found as a customer types them.
#[tokio::test]
async fn generated_codes_have_spellings() {
    let service = Service::start().await;
    create(&service, "/v1/coupons/code", "code").await;
    let wanted = json!({"count": 3, "pattern": "SUMMER-####-####"});
    let generated = service
        .post("/v1/coupons/code/codes/generate", wanted)
        .await;
    let typed: Vec<String> = generated
        .text()
        .lines()
        .skip(1)
        .map(|code| code.replace('-', " ").to_lowercase())
        .collect();
    assert_eq!(typed.len(), 3);
    let valid = service
        .post("/v1/coupons/code/codes/check", json!({"codes": typed}))
        .await
        .json(200);
    assert_eq!(valid["valid"], json!([true, true, true]));
}

/// The log of 0.1.0 has no command that enables version 2.
#[tokio::test]
async fn spellings_wait_for_version_2() {
    let log = MemoryLog::new();
    let earlier = Proposal::new(BEGIN, Command::Advance { buckets_max: 0 });
    log.join().propose(Ticket(0), vec![earlier]).unwrap();
    let node = Service::on(
        Some(crate::engines::on_log(&log)),
        HttpOptions::default(),
        |_| (),
    )
    .await;
    let put = async |path: &str, fields: Value| {
        let mut spec = json!({"capacity": 10});
        spec.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        node.put(path, spec).await
    };
    for (path, normalize) in [
        ("/v1/coupons/a", "case"),
        ("/v1/coupons/a", "code"),
        ("/v1/campaigns/a", "ascii"),
        ("/v1/campaigns/a", "case"),
    ] {
        let refused = put(path, json!({"normalize": normalize})).await;
        refused.problem(503, "not-enabled");
    }
    let coupon = put("/v1/coupons/a", json!({})).await.json(201);
    assert_eq!(coupon["normalize"], "exact");
    let coupon = put("/v1/coupons/b", json!({"ignore_case": true}))
        .await
        .json(201);
    assert_eq!(coupon["normalize"], "ascii");
    // It accepts an existing one with any.
    assert_eq!(put("/v1/coupons/b", json!({})).await.json(200), coupon);
    put("/v1/coupons/b", json!({"normalize": "exact"}))
        .await
        .problem(409, "already-exists");
}
