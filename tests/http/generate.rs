//! `POST …/codes/generate`: new, valid, hard to guess, and the same ones for a repeated request.

use crate::service::{Answer, Service, json as json_request, request};
use axum::body::Body;
use cuckood::http::options::HttpOptions;
use cuckood_log::testing::memory_log::MemoryLog;
use http::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const GENERATE: &str = "/v1/coupons/p/codes/generate";

async fn generate(
    service: &Service,
    headers: &[(&str, &str)],
    count: u64,
    pattern: &str,
) -> Answer {
    let body = json!({"count": count, "pattern": pattern});
    service
        .send(json_request(Method::POST, GENERATE, headers, &body))
        .await
}

/// The codes of a response in CSV.
#[track_caller]
fn codes(answer: &Answer) -> Vec<String> {
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, "text/csv"),
        "{}",
        answer.text()
    );
    let text = answer.text();
    let mut rows = text.split_terminator("\r\n").map(str::to_owned);
    assert_eq!(rows.next().as_deref(), Some("code"));
    rows.collect()
}

async fn pool(spec: Value) -> Service {
    let service = Service::start().await;
    service.put("/v1/coupons/p", spec).await.json(201);
    service
}

#[tokio::test]
async fn generated_codes_are_distinct_and_valid() {
    let service = pool(json!({"capacity": 100})).await;
    let generated = codes(&generate(&service, &[], 9_000, "SUMMER-####-####").await);
    let distinct: BTreeSet<&str> = generated.iter().map(String::as_str).collect();
    assert_eq!(distinct.len(), 9_000);
    let is_of_pattern = |code: &&str| {
        let places: Vec<char> = code.chars().collect();
        code.starts_with("SUMMER-")
            && places.len() == 16
            && places[11] == '-'
            && places[7..]
                .iter()
                .all(|place| "-23456789BCDFGHJKLMNPQRSTVWXZ".contains(*place))
    };
    assert!(distinct.iter().all(is_of_pattern));
    let check = service
        .post("/v1/coupons/p/codes/check", json!({"codes": generated}))
        .await
        .json(200);
    assert!(
        check["valid"]
            .as_array()
            .unwrap()
            .iter()
            .all(|valid| valid == true)
    );
    let stats = &service.get("/v1/coupons/p").await.json(200)["stats"];
    assert_eq!(stats["available"], 9_000);
    // Without a key, each request is another one.
    let other = codes(&generate(&service, &[], 10, "SUMMER-####-####").await);
    assert!(other.iter().all(|code| !distinct.contains(code.as_str())));
}

#[tokio::test]
async fn repeated_key_returns_same_codes() {
    for mode in ["strict", "compact"] {
        let service = pool(json!({"capacity": 25_000, "mode": mode, "growth": "fixed"})).await;
        let key = [("idempotency-key", "spring")];
        let first = generate(&service, &key, 12_000, "########").await;
        assert!(first.headers.get("idempotency-replayed").is_none());
        let again = generate(&service, &key, 12_000, "########").await;
        assert_eq!(again.header("idempotency-replayed"), "true");
        assert!(codes(&first) == codes(&again));
        generate(&service, &key, 12_001, "########")
            .await
            .problem(422, "idempotency-key-reused");
        generate(
            &service,
            &[("idempotency-key", "other")],
            14_000,
            "########",
        )
        .await
        .problem(409, "filter-full");
    }
}

async fn items(service: &Service) -> u64 {
    service.get("/v1/coupons/p").await.json(200)["stats"]["items"]
        .as_u64()
        .unwrap()
}

async fn are_valid(service: &Service, codes: &[String]) -> Vec<bool> {
    let mut valid = Vec::new();
    for codes in codes.chunks(10_000) {
        let check = service
            .post("/v1/coupons/p/codes/check", json!({"codes": codes}))
            .await
            .json(200);
        valid.extend(
            check["valid"]
                .as_array()
                .unwrap()
                .iter()
                .map(|valid| valid == true),
        );
    }
    valid
}

/// A pattern that could be guessed is rejected in the same way whether its codes exist or not.
#[tokio::test]
async fn pattern_check_precedes_every_lookup() {
    for mode in ["strict", "compact"] {
        let service = pool(json!({"capacity": 100, "mode": mode})).await;
        service
            .post(
                "/v1/coupons/p/codes",
                json!({"codes": ["SECRET-7KQ2", "USED"]}),
            )
            .await
            .json(200);
        if mode == "strict" {
            let redeem = json!({"code": "USED", "reference": "r"});
            service
                .post("/v1/coupons/p/redemptions", redeem)
                .await
                .json(201);
        }
        for (count, key) in [(1, ""), (1, "k1"), (40, "k40")] {
            let headers = if key.is_empty() {
                vec![]
            } else {
                vec![("idempotency-key", key)]
            };
            let ask = async |pattern: &str| {
                let problem = generate(&service, &headers, count, pattern).await;
                let mut problem = problem.problem(422, "invalid-request");
                problem.as_object_mut().unwrap().remove("request_id");
                problem
            };
            let absent = ask("SECRET-9999").await;
            for present in ["SECRET-7KQ2", "USED"] {
                assert_eq!(ask(present).await, absent, "{mode} {key}");
            }
        }
        // Few codes have the pattern, and all of them would be found.
        generate(&service, &[("idempotency-key", "t")], 40, "T#")
            .await
            .problem(422, "invalid-request");
        assert_eq!(items(&service).await, 2);
    }
}

/// The codes of the request itself don't count when it is repeated, against the pattern as little as against the capacity.
#[tokio::test]
async fn repeat_does_not_count_own_codes() {
    let service = pool(json!({"capacity": 10, "growth": "fixed"})).await;
    let key = [("idempotency-key", "one")];
    // 28^5 is enough for 17 codes.
    let first = generate(&service, &key, 10, "#####").await;
    for _ in 0..2 {
        let again = generate(&service, &key, 10, "#####").await;
        assert_eq!(
            (codes(&again), again.header("idempotency-replayed")),
            (codes(&first), "true")
        );
    }
    generate(&service, &[("idempotency-key", "two")], 10, "#####")
        .await
        .problem(422, "invalid-request");
    generate(&service, &[("idempotency-key", "two")], 10, "######")
        .await
        .problem(409, "filter-full");
}

/// Withdrawn codes stay withdrawn: within the retention, when a repeat returns them, and afterwards, when it returns others.
#[tokio::test]
async fn repeat_never_revives_withdrawn_code() {
    for mode in ["strict", "compact"] {
        let service = pool(json!({"capacity": 50_000, "mode": mode})).await;
        let key = [("idempotency-key", "spring")];
        let first = codes(&generate(&service, &key, 5_000, "##########").await);
        let withdrawn = [first[0].clone(), first[4_999].clone()];
        service
            .post("/v1/coupons/p/codes/remove", json!({"codes": withdrawn}))
            .await
            .json(200);
        // Periods end in between: a repeat finds the period of the first attempt.
        let mut service = service;
        for seconds in [1, 3_600, 10 * 3_600, 12 * 3_600 + 3_598] {
            service.pass(seconds);
            service = service.restart().await;
            let again = generate(&service, &key, 5_000, "##########").await;
            assert_eq!(again.header("idempotency-replayed"), "true", "{seconds}");
            assert!(codes(&again) == first);
            assert_eq!(are_valid(&service, &withdrawn).await, [false; 2]);
        }
        service.pass(1);
        let later = generate(&service, &key, 5_000, "##########").await;
        assert_eq!(later.header("idempotency-replayed"), "");
        let later = codes(&later);
        assert!(later.iter().all(|code| !first.contains(code)));
        assert_eq!(
            (are_valid(&service, &withdrawn).await, items(&service).await),
            (vec![false; 2], 9_998)
        );
        assert!(codes(&generate(&service, &key, 5_000, "##########").await) == later);
    }
}

/// A stored outcome may be deleted for others before its retention is over. The code that it has generated and that was withdrawn since
/// stays withdrawn.
#[tokio::test]
async fn evicted_outcome_makes_repeat_new_request() {
    let service = Service::on(None, HttpOptions::default(), |setup| {
        setup.settings.idempotency_room_bytes = 1 << 20;
    })
    .await;
    service
        .put("/v1/coupons/p", json!({"capacity": 100}))
        .await
        .json(201);
    let key = [("idempotency-key", "spring")];
    let first = codes(&generate(&service, &key, 1, "########").await);
    service
        .post("/v1/coupons/p/codes/remove", json!({"codes": first}))
        .await
        .json(200);
    service.pass(3_600);
    // Each outcome has the labels.
    let labels: serde_json::Map<_, _> = (0..16)
        .map(|number| (format!("{number:0>128}"), json!("v".repeat(64))))
        .collect();
    let patch = async |number: u32| {
        let headers = [("idempotency-key", &*format!("k{number}"))];
        let labels = json!({"labels": labels});
        service
            .send(json_request(
                Method::PATCH,
                "/v1/coupons/p",
                &headers,
                &labels,
            ))
            .await
    };
    let mut number = 0;
    while patch(number).await.status == 200 {
        number += 1;
    }
    patch(number).await.problem(429, "idempotency-full");
    service.pass(3_600);
    let later = generate(&service, &key, 1, "########").await;
    assert_eq!(
        later.header("idempotency-replayed"),
        "",
        "the outcome was not deleted"
    );
    assert_ne!(codes(&later), first);
    assert_eq!(are_valid(&service, &first).await, [false]);
}

/// A client that disconnects leaves some of the codes. The repeat adds the others.
#[tokio::test]
async fn repeat_completes_interrupted_request() {
    let service = pool(json!({"capacity": 30_000})).await;
    let headers = [("idempotency-key", "spring")];
    let body = json!({"count": 20_000, "pattern": "########"});
    let begun = service.begin(json_request(Method::POST, GENERATE, &headers, &body));
    let first_batch = async {
        while items(&service).await == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = first_batch => {}
        _ = begun => panic!("the response arrived too early"),
    }
    let left = items(&service).await;
    assert!((1..20_000).contains(&left), "{left}");
    let complete = generate(&service, &headers, 20_000, "########").await;
    assert_eq!(complete.header("idempotency-replayed"), "");
    let all = codes(&complete);
    assert!(all.iter().collect::<BTreeSet<_>>().len() == 20_000 && items(&service).await == 20_000);
    assert!(are_valid(&service, &all).await.iter().all(|valid| *valid));
    let again = generate(&service, &headers, 20_000, "########").await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert!(codes(&again) == all);
}

/// A repeat on another node that has not applied the first attempt yet, in the next period of the seed.
#[tokio::test]
async fn concurrent_repeat_on_other_node_returns_same_codes() {
    let log = MemoryLog::new();
    let node = async || {
        Service::on(
            Some(crate::engines::on_log(&log)),
            HttpOptions::default(),
            |_| (),
        )
        .await
    };
    let first = node().await;
    let second = node().await;
    first
        .put("/v1/coupons/p", json!({"capacity": 30_000}))
        .await
        .json(201);
    while second.get("/v1/coupons/p").await.status != 200 {
        tokio::task::yield_now().await;
    }
    first.pass(3_599);
    second.pass(3_599);
    log.hold();
    let key = [("idempotency-key", "spring")];
    let held = async |count| {
        while log.held() < count {
            tokio::task::yield_now().await;
        }
    };
    let on_second = async {
        held(1).await;
        second.pass(1);
        generate(&second, &key, 9_000, "########").await
    };
    let commit = async {
        held(2).await;
        log.go_on();
    };
    let (one, other, ()) =
        tokio::join!(generate(&first, &key, 9_000, "########"), on_second, commit);
    assert!(codes(&one) == codes(&other));
    let again = generate(&first, &key, 9_000, "########").await;
    assert!(codes(&again) == codes(&one) && again.header("idempotency-replayed") == "true");
    assert_eq!(items(&first).await, 9_000);
}

/// Codes that another request has added are never returned.
#[tokio::test]
async fn generated_codes_are_of_own_request() {
    let service = pool(json!({"capacity": 100, "mode": "compact", "error_rate": 0.3})).await;
    let mut all = BTreeSet::new();
    for number in 0..5 {
        let headers = [("idempotency-key", &*format!("k{number}"))];
        let generated = codes(&generate(&service, &headers, 2_000, "##########").await);
        all.extend(generated);
    }
    assert_eq!((all.len(), items(&service).await), (10_000, 10_000));
}

#[tokio::test]
async fn guessable_pattern_is_rejected_with_required_length() {
    let service = pool(json!({"capacity": 100})).await;
    let problem = generate(&service, &[], 1_000, "A-#####")
        .await
        .problem(422, "invalid-request");
    assert_eq!(problem["errors"][0]["pointer"], "/pattern");
    let detail = problem["errors"][0]["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("expected 7 to 32 '#' for 1000 codes"),
        "{detail}"
    );
    codes(&generate(&service, &[], 1_000, "A-#######").await);
    for (count, pattern) in [
        (0, "########"),
        (1_000_001, "########"),
        (1, ""),
        (1, "####\n"),
        (1, &"#".repeat(33)),
    ] {
        generate(&service, &[], count, pattern)
            .await
            .problem(422, "invalid-request");
    }
}

#[tokio::test]
async fn generated_codes_are_ndjson_on_request() {
    let service = pool(json!({"capacity": 100})).await;
    let answer = generate(
        &service,
        &[("accept", "application/x-ndjson")],
        2,
        "########",
    )
    .await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, "application/x-ndjson")
    );
    let text = answer.text();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert!(
        lines
            .iter()
            .all(|line| line["code"].as_str().unwrap().len() == 8)
    );
}

#[tokio::test]
async fn open_pools_and_campaigns_reject_generate() {
    let service = pool(json!({"capacity": 100, "stock": 10})).await;
    generate(&service, &[], 1, "########")
        .await
        .problem(409, "requires-added-codes");
    service
        .put("/v1/campaigns/p", json!({"capacity": 100}))
        .await
        .json(201);
    let path = "/v1/campaigns/p/codes/generate";
    service
        .send(request(Method::POST, path, &[], Body::empty()))
        .await
        .problem(404, "route-not-found");
}
