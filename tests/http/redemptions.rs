//! Redemptions: many, concurrent and exported ones. The script `redemptions` has the rest.

use crate::service::{Answer, Service, json as json_request, request};
use axum::body::Body;
use cuckood::engine::journal::JournalOptions;
use cuckood::http::options::HttpOptions;
use cuckood_log::testing::memory_log::MemoryLog;
use http::Method;
use serde_json::{Value, json};

const REDEMPTIONS: &str = "/v1/coupons/welcome/redemptions";

async fn service() -> Service {
    filled(Service::start().await).await
}

async fn filled(service: Service) -> Service {
    service
        .put("/v1/coupons/welcome", json!({"capacity": 100}))
        .await
        .json(201);
    service
        .post("/v1/coupons/welcome/codes", json!({"codes": ["A", "B"]}))
        .await
        .json(200);
    service
}

async fn redeem(service: &Service, code: &str, reference: &str, hold_seconds: u64) -> Answer {
    let body = json!({"code": code, "reference": reference, "hold_seconds": hold_seconds});
    service.post(REDEMPTIONS, body).await
}

/// A node with a local log only logs a refusal if the outcome has to be stored.
#[tokio::test]
async fn refusals_are_logged_only_on_shared_logs() {
    refuse_on(None).await;
    refuse_on(Some(crate::engines::on_log(&MemoryLog::new()))).await;
}

async fn refuse_on(journal: Option<JournalOptions>) {
    let is_shared = journal.is_some();
    let service = filled(Service::on(journal, HttpOptions::default(), |_| ()).await).await;
    redeem(&service, "A", "order-1", 0).await.json(201);
    redeem(&service, "B", "order-1", 60).await.json(201);
    let last = async || {
        service.get("/v1/info").await.json(200)["last_seq"]
            .as_u64()
            .unwrap()
    };
    let before = last().await;
    redeem(&service, "A", "order-2", 0)
        .await
        .problem(409, "code-redeemed");
    redeem(&service, "B", "order-2", 60)
        .await
        .problem(409, "code-held");
    redeem(&service, "Z", "order-1", 0)
        .await
        .problem(404, "code-unknown");
    assert_eq!(last().await - before, if is_shared { 3 } else { 0 });

    let before = last().await;
    let body = json!({"code": "A", "reference": "order-2"});
    let with_key = json_request(
        Method::POST,
        REDEMPTIONS,
        &[("idempotency-key", "k1")],
        &body,
    );
    service.send(with_key).await.problem(409, "code-redeemed");
    assert_eq!(last().await - before, 1);

    let metrics = service.get("/metrics").await.text();
    for (outcome, count) in [("code-redeemed", 2), ("code-held", 1), ("code-unknown", 1)] {
        let counted = format!("cuckood_redemptions_total{{outcome=\"{outcome}\"}} {count}\n");
        assert!(metrics.contains(&counted), "{outcome}: {metrics}");
    }
    assert_eq!(
        metrics.contains("cuckood_refused_unlogged_total 3\n"),
        !is_shared,
        "{metrics}"
    );
    // An expired hold rejects no client, even before an entry expires it.
    service.pass(60);
    redeem(&service, "B", "order-2", 0).await.json(201);
}

#[tokio::test]
async fn one_of_concurrent_redemptions_wins() {
    let service = service().await;
    let references: Vec<String> = (0..32).map(|n| format!("order-{n}")).collect();
    let attempts = references
        .iter()
        .map(|reference| redeem(&service, "A", reference, 0));
    let mut statuses: Vec<u16> = futures_util::future::join_all(attempts)
        .await
        .iter()
        .map(|answer| answer.status)
        .collect();
    statuses.sort_unstable();
    assert_eq!(statuses[0], 201);
    assert!(
        statuses[1..].iter().all(|&status| status == 409),
        "{statuses:?}"
    );
}

/// As many win as the code has uses, with or without other limits.
#[tokio::test]
async fn concurrent_redemptions_win_as_often_as_code_has_uses() {
    let service = Service::start().await;
    for (coupon, spec, wins) in [
        ("several", json!({"capacity": 10, "uses": 5}), 5),
        (
            "customers",
            json!({"capacity": 10, "uses": 64, "per_customer": 3}),
            12,
        ),
        ("stock", json!({"capacity": 10, "stock": 7, "uses": 64}), 7),
    ] {
        let path = format!("/v1/coupons/{coupon}");
        service.put(&path, spec.clone()).await.json(201);
        if spec.get("stock").is_none() {
            let codes = format!("{path}/codes");
            let added = service.post(&codes, json!({"codes": ["A"]}));
            added.await.json(200);
        }
        let redemptions = format!("{path}/redemptions");
        let attempts = (0..64).map(|number| {
            let customer = format!("c-{}", number % 4);
            let reference = format!("order-{number}");
            let body = json!({"code": "A", "reference": reference, "customer": customer});
            service.post(&redemptions, body)
        });
        let answers = futures_util::future::join_all(attempts).await;
        let won = answers.iter().filter(|answer| answer.status == 201);
        assert_eq!(won.count(), wins, "{coupon}");
        let lost = answers.iter().filter(|answer| answer.status == 409);
        assert_eq!(lost.count(), 64 - wins, "{coupon}");
    }
}

#[tokio::test]
async fn overlong_code_or_reference_is_rejected() {
    let service = service().await;
    assert_eq!(
        redeem(&service, &"c".repeat(513), "order-1", 0)
            .await
            .pointers(),
        ["/code"]
    );
    assert_eq!(
        redeem(&service, "A", &"r".repeat(129), 0).await.pointers(),
        ["/reference"]
    );
    redeem(&service, "A", &"r".repeat(128), 604_800)
        .await
        .json(201);
}

#[tokio::test]
async fn redemptions_are_listed_in_pages() {
    let service = service().await;
    let codes: Vec<String> = (0..25).map(|n| format!("C{n}")).collect();
    service
        .post("/v1/coupons/welcome/codes", json!({"codes": codes}))
        .await
        .json(200);
    let mut ids = Vec::new();
    for (n, code) in codes.iter().enumerate() {
        service.pass(1);
        let reference = ["even", "odd"][n % 2];
        let redemption = redeem(&service, code, reference, [0, 0, 600][n % 3])
            .await
            .json(201);
        ids.push(redemption["id"].as_str().unwrap().to_owned());
    }
    service.pass(1);
    // The first one changes last.
    service
        .command(&format!("{REDEMPTIONS}/{}/cancel", ids[0]))
        .await
        .json(200);
    ids.rotate_left(1);
    let all = |query: &'static str| {
        let service = &service;
        async move {
            let mut found = Vec::new();
            let mut cursor = String::new();
            let mut pages = 0;
            loop {
                let page = service
                    .get(&format!("{REDEMPTIONS}?{query}{cursor}"))
                    .await
                    .json(200);
                let redemptions = page["redemptions"].as_array().unwrap();
                found.extend(
                    redemptions
                        .iter()
                        .map(|r| r["id"].as_str().unwrap().to_owned()),
                );
                pages += 1;
                let Some(next) = page["next_cursor"].as_str() else {
                    return (found, pages);
                };
                cursor = format!("&cursor={next}");
            }
        }
    };
    assert_eq!(all("limit=100").await, (ids.clone(), 1));
    assert_eq!(all("limit=10").await, (ids.clone(), 3));
    assert_eq!(all("limit=25").await, (ids.clone(), 1));
    let (even, pages) = all("limit=5&reference=even").await;
    assert_eq!((even.len(), pages), (13, 3));
    assert_eq!(even.last(), ids.last());
    assert_eq!(all("limit=100&status=cancelled").await.0, ids[24..]);
    assert_eq!(all("limit=3&status=held").await.0.len(), 8);
    assert_eq!(
        all("limit=3&changed_after=2026-11-21T12:00:20Z").await.0,
        ids[19..]
    );
    ids.reverse();
    for (query, found) in [
        ("limit=10&order=newest", &ids[..]),
        ("limit=2&order=newest&status=cancelled", &ids[..1]),
        (
            "limit=3&order=newest&changed_after=2026-11-21T12:00:20Z",
            &ids[..6],
        ),
    ] {
        assert_eq!(all(query).await.0, found, "{query}");
    }
    let (mut newest, pages) = all("limit=5&order=newest&reference=even").await;
    newest.reverse();
    assert_eq!((newest, pages), (even, 3));
    for (bad, pointer) in [
        ("limit=0", "/limit"),
        ("limit=1001", "/limit"),
        ("cursor=x", "/cursor"),
        ("status=gone", "/status"),
        ("order=latest", "/order"),
        ("changed_after=soon", "/changed_after"),
        ("reference=", "/reference"),
    ] {
        let refused = service.get(&format!("{REDEMPTIONS}?{bad}")).await;
        assert_eq!(refused.pointers(), [pointer], "{bad}");
    }
}

#[tokio::test]
async fn redemptions_are_exported_as_ndjson() {
    let service = service().await;
    // More than one look at the ledger goes through.
    let codes: Vec<String> = (0..2_500).map(|n| format!("C{n}")).collect();
    service
        .post("/v1/coupons/welcome/codes", json!({"codes": codes}))
        .await
        .json(200);
    let uses = codes.iter().enumerate().map(|(n, code)| {
        let service = &service;
        let reference = ["even", "odd"][n % 2];
        async move { redeem(service, code, reference, 0).await.json(201) }
    });
    let used = futures_util::future::join_all(uses).await;
    let export = |query: &'static str| {
        let request = request(
            Method::GET,
            &format!("{REDEMPTIONS}?{query}"),
            &[("accept", "application/x-ndjson")],
            Body::empty(),
        );
        async {
            let answer = service.send(request).await;
            assert_eq!(
                (answer.status, answer.header("content-type")),
                (200, "application/x-ndjson")
            );
            let text = answer.text();
            assert!(text.is_empty() || text.ends_with('\n'));
            text.lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect::<Vec<Value>>()
        }
    };
    for json in [
        "*/*",
        "application/json, application/x-ndjson;q=0.1",
        "application/x-ndjson;q=0",
    ] {
        let request = request(Method::GET, REDEMPTIONS, &[("accept", json)], Body::empty());
        assert_eq!(
            service.send(request).await.header("content-type"),
            "application/json",
            "{json}"
        );
    }
    let sorted = |mut redemptions: Vec<Value>| {
        redemptions.sort_by_key(|redemption| redemption["id"].to_string());
        redemptions
    };
    assert_eq!(sorted(export("").await), sorted(used));
    assert_eq!(export("reference=even").await.len(), 1_250);
    assert_eq!(export("status=held").await.len(), 0);
    let first = service
        .get(&format!("{REDEMPTIONS}?limit=1000"))
        .await
        .json(200);
    let rest = format!("cursor={}", first["next_cursor"].as_str().unwrap());
    assert_eq!(export(rest.leak()).await.len(), 1_500);
    for accept in ["application/x-ndjson", "text/csv"] {
        let path = format!("{REDEMPTIONS}?order=newest");
        let wanted = request(Method::GET, &path, &[("accept", accept)], Body::empty());
        assert_eq!(
            service.send(wanted).await.pointers(),
            ["/order"],
            "{accept}"
        );
    }
}

#[tokio::test]
async fn csv_export_has_header_and_rows() {
    let service = service().await;
    redeem(&service, "A", "order,1", 0).await.json(201);
    redeem(&service, "B", "say \"hi\"", 60).await.json(201);
    let wanted = request(
        Method::GET,
        REDEMPTIONS,
        &[("accept", "text/csv")],
        Body::empty(),
    );
    let answer = service.send(wanted).await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, "text/csv")
    );
    let text = answer.text();
    let rows: Vec<&str> = text.split_terminator("\r\n").collect();
    assert_eq!(
        rows[0],
        "id,status,reference,created_at,expires_at,redeemed_at,cancelled_at,ordinal,released"
    );
    assert!(
        rows[1]
            .contains(",redeemed,\"order,1\",2026-11-21T12:00:00.000Z,,2026-11-21T12:00:00.000Z,,"),
        "{text}"
    );
    assert!(
        rows[2].contains(
            ",held,\"say \"\"hi\"\"\",2026-11-21T12:00:00.000Z,2026-11-21T12:01:00.000Z,,,"
        ),
        "{text}"
    );
    assert_eq!(rows.len(), 3);
}

/// A client can wait for the hold's end, whether the refusal was logged or not.
#[tokio::test]
async fn held_code_states_end_of_hold() {
    for journal in [None, Some(crate::engines::on_log(&MemoryLog::new()))] {
        let service = filled(Service::on(journal, HttpOptions::default(), |_| ()).await).await;
        let held = redeem(&service, "A", "order-1", 90).await.json(201);
        assert!(held["expires_at"].is_string());
        let refused = redeem(&service, "A", "order-2", 0)
            .await
            .problem(409, "code-held");
        assert_eq!(refused["expires_at"], held["expires_at"]);
        let body = json!({"code": "A", "reference": "order-3"});
        let keyed = json_request(
            Method::POST,
            REDEMPTIONS,
            &[("idempotency-key", "k1")],
            &body,
        );
        assert_eq!(
            service.send(keyed).await.problem(409, "code-held")["expires_at"],
            held["expires_at"]
        );
        redeem(&service, "B", "order-1", 0).await.json(201);
        let used = redeem(&service, "B", "order-2", 0)
            .await
            .problem(409, "code-redeemed");
        assert!(used.get("expires_at").is_none(), "{used}");
    }
}

#[tokio::test]
async fn used_code_claims_no_other_reference_after_retention() {
    let service = Service::start().await;
    service
        .put("/v1/coupons/welcome", json!({"capacity": 100}))
        .await
        .json(201);
    service
        .post("/v1/coupons/welcome/codes", json!({"codes": ["A", "B"]}))
        .await
        .json(200);
    redeem(&service, "A", "order-1", 0).await.json(201);
    let other = redeem(&service, "A", "order-2", 0)
        .await
        .problem(409, "code-redeemed");
    assert_eq!(
        other["detail"],
        "the code was redeemed under another reference"
    );
    service.pass(31 * 86_400);
    for reference in ["order-1", "order-2"] {
        let used = redeem(&service, "A", reference, 0)
            .await
            .problem(409, "code-redeemed");
        let detail = used["detail"].as_str().unwrap();
        assert!(
            detail.contains("redemptions.retention") && !detail.contains("another"),
            "{used}"
        );
    }
}

#[tokio::test]
async fn empty_cursor_is_first_page() {
    let service = service().await;
    redeem(&service, "A", "order-1", 0).await.json(201);
    service
        .put("/v1/campaigns/spring", json!({"capacity": 10}))
        .await
        .json(201);
    service
        .put("/v1/line-ups/home", json!({"campaigns": ["spring"]}))
        .await
        .json(201);
    for path in [REDEMPTIONS, "/v1/coupons", "/v1/campaigns", "/v1/line-ups"] {
        let first = service.get(path).await.json(200);
        assert_eq!(
            service.get(&format!("{path}?cursor=")).await.json(200),
            first,
            "{path}"
        );
        service
            .get(&format!("{path}?cursor=%21"))
            .await
            .problem(422, "invalid-request");
    }
}
