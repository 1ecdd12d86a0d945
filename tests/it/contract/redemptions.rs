//! Redemptions: used, held, confirmed, cancelled, run out.

use super::service::{Answer, Service, json as json_request, request};
use crate::memory_log::MemoryLog;
use axum::body::Body;
use cuckood::engine::JournalOptions;
use cuckood::http::options::HttpOptions;
use http::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const REDEMPTIONS: &str = "/v1/coupons/welcome/redemptions";

async fn service() -> Service {
    filled(Service::start().await).await
}

async fn filled(service: Service) -> Service {
    service.put("/v1/coupons/welcome", json!({"capacity": 100})).await.json(201);
    service.post("/v1/coupons/welcome/codes", json!({"codes": ["A", "B"]})).await.json(200);
    service
}

async fn redeem(service: &Service, code: &str, reference: &str, hold_seconds: u64) -> Answer {
    let body = json!({"code": code, "reference": reference, "hold_seconds": hold_seconds});
    service.post(REDEMPTIONS, body).await
}

fn path(redemption: &Value) -> String {
    format!("{REDEMPTIONS}/{}", redemption["id"].as_str().unwrap())
}

fn fields(redemption: &Value) -> BTreeSet<&str> {
    redemption.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn redemption_is_repeatable_by_reference() {
    let service = service().await;
    let first = service.post(REDEMPTIONS, json!({"code": "A", "reference": "order-1"})).await;
    let redemption = first.json(201);
    assert_eq!(first.header("location"), path(&redemption));
    assert_eq!(
        fields(&redemption),
        BTreeSet::from(["id", "status", "reference", "created_at", "redeemed_at"])
    );
    assert_eq!(redemption["status"], "redeemed");
    assert_eq!(redemption["reference"], "order-1");
    assert_eq!(redemption["created_at"], "2026-11-21T12:00:00Z");
    service.pass(5);
    assert_eq!(redeem(&service, "A", "order-1", 0).await.json(200), redemption);
    // Asking for a hold doesn't undo it.
    assert_eq!(redeem(&service, "A", "order-1", 60).await.json(200), redemption);
    assert_eq!(service.get(&path(&redemption)).await.json(200), redemption);
    redeem(&service, "A", "order-2", 0).await.problem(409, "code-redeemed");
    redeem(&service, "Z", "order-1", 0).await.problem(404, "code-unknown");
    let found = service.get(&format!("{REDEMPTIONS}?reference=order-1")).await.json(200);
    assert_eq!(found, json!({"redemptions": [redemption]}));
    let none = service.get(&format!("{REDEMPTIONS}?reference=order-9")).await.json(200);
    assert_eq!(none, json!({"redemptions": []}));
}

/// A node with a local log only logs a refusal if the outcome has to be stored.
#[tokio::test]
async fn refusals_are_logged_only_on_shared_logs() {
    refuse_on(None).await;
    refuse_on(Some(MemoryLog::new().options())).await;
}

async fn refuse_on(journal: Option<JournalOptions>) {
    let is_shared = journal.is_some();
    let service = filled(Service::on(journal, HttpOptions::default(), |_| ()).await).await;
    redeem(&service, "A", "order-1", 0).await.json(201);
    redeem(&service, "B", "order-1", 60).await.json(201);
    let last = async || service.get("/v1/info").await.json(200)["last_seq"].as_u64().unwrap();
    let before = last().await;
    redeem(&service, "A", "order-2", 0).await.problem(409, "code-redeemed");
    redeem(&service, "B", "order-2", 60).await.problem(409, "code-held");
    redeem(&service, "Z", "order-1", 0).await.problem(404, "code-unknown");
    assert_eq!(last().await - before, if is_shared { 3 } else { 0 });

    let before = last().await;
    let body = json!({"code": "A", "reference": "order-2"});
    let with_key = json_request(Method::POST, REDEMPTIONS, &[("idempotency-key", "k1")], &body);
    service.send(with_key).await.problem(409, "code-redeemed");
    assert_eq!(last().await - before, 1);

    let metrics = service.get("/metrics").await.text();
    for (outcome, count) in [("code-redeemed", 2), ("code-held", 1), ("code-unknown", 1)] {
        let counted = format!("cuckood_redemptions_total{{outcome=\"{outcome}\"}} {count}\n");
        assert!(metrics.contains(&counted), "{outcome}: {metrics}");
    }
    assert_eq!(metrics.contains("cuckood_refused_unlogged_total 3\n"), !is_shared, "{metrics}");
    // An expired hold rejects no client, even before an entry expires it.
    service.pass(60);
    redeem(&service, "B", "order-2", 0).await.json(201);
}

#[tokio::test]
async fn hold_is_extended_and_confirmed() {
    let service = service().await;
    let hold = redeem(&service, "A", "order-1", 60).await.json(201);
    assert_eq!((&hold["status"], &hold["expires_at"]), (&json!("held"), &json!("2026-11-21T12:01:00Z")));
    redeem(&service, "A", "order-2", 0).await.problem(409, "code-held");
    // The later time wins.
    assert_eq!(redeem(&service, "A", "order-1", 30).await.json(200), hold);
    let longer = redeem(&service, "A", "order-1", 120).await.json(200);
    assert_eq!((&longer["id"], &longer["expires_at"]), (&hold["id"], &json!("2026-11-21T12:02:00Z")));
    let confirm = format!("{}/confirm", path(&hold));
    let confirmed = service.command(&confirm).await.json(200);
    assert_eq!((&confirmed["id"], &confirmed["status"]), (&hold["id"], &json!("redeemed")));
    service.pass(600);
    assert_eq!(service.command(&confirm).await.json(200), confirmed);

    let other = redeem(&service, "B", "order-3", 60).await.json(201);
    let by_reference = redeem(&service, "B", "order-3", 0).await.json(200);
    assert_eq!((&by_reference["id"], &by_reference["status"]), (&other["id"], &json!("redeemed")));
}

#[tokio::test]
async fn hold_expires_automatically() {
    let service = service().await;
    let hold = redeem(&service, "A", "order-1", 60).await.json(201);
    service.pass(60);
    let check = service.post("/v1/coupons/welcome/codes/check", json!({"codes": ["A"]})).await.json(200);
    assert_eq!(check, json!({"valid": [true]}));
    assert_eq!(service.get(&path(&hold)).await.json(200)["status"], "expired");
    service.command(&format!("{}/confirm", path(&hold))).await.problem(409, "hold-expired");
    // The same reference again is a new one.
    let again = redeem(&service, "A", "order-1", 0).await.json(201);
    assert_ne!(again["id"], hold["id"]);
    // Cancelling the old one doesn't touch it.
    assert_eq!(service.command(&format!("{}/cancel", path(&hold))).await.json(200)["status"], "expired");
    redeem(&service, "A", "order-2", 0).await.problem(409, "code-redeemed");
}

#[tokio::test]
async fn cancelled_code_is_available_again() {
    let service = service().await;
    for hold_seconds in [0, 60] {
        let redemption = redeem(&service, "A", "order-1", hold_seconds).await.json(201);
        let cancel = format!("{}/cancel", path(&redemption));
        let cancelled = service.command(&cancel).await.json(200);
        assert_eq!((&cancelled["id"], &cancelled["status"]), (&redemption["id"], &json!("cancelled")));
        service.command(&format!("{}/confirm", path(&redemption))).await.problem(409, "redemption-cancelled");
        let newer = redeem(&service, "A", "order-2", 0).await.json(201);
        assert_eq!(service.command(&cancel).await.json(200), cancelled);
        redeem(&service, "A", "order-3", 0).await.problem(409, "code-redeemed");
        service.command(&format!("{}/cancel", path(&newer))).await.json(200);
    }
}

#[tokio::test]
async fn hold_is_confirmed_after_window_end() {
    let service = service().await;
    let hold = redeem(&service, "A", "order-1", 600).await.json(201);
    service.patch("/v1/coupons/welcome", json!({"ends_at": "2026-11-21T12:00:30Z"})).await.json(200);
    service.pass(60);
    redeem(&service, "B", "order-2", 0).await.problem(409, "outside-window");
    assert_eq!(service.command(&format!("{}/confirm", path(&hold))).await.json(200)["status"], "redeemed");
}

#[tokio::test]
async fn one_of_concurrent_redemptions_wins() {
    let service = service().await;
    let references: Vec<String> = (0..32).map(|n| format!("order-{n}")).collect();
    let attempts = references.iter().map(|reference| redeem(&service, "A", reference, 0));
    let mut statuses: Vec<u16> =
        futures_util::future::join_all(attempts).await.iter().map(|answer| answer.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses[0], 201);
    assert!(statuses[1..].iter().all(|&status| status == 409), "{statuses:?}");
}

#[tokio::test]
async fn compact_coupon_rejects_redemption() {
    let service = Service::start().await;
    service.put("/v1/coupons/welcome", json!({"capacity": 100, "mode": "compact"})).await.json(201);
    service.post("/v1/coupons/welcome/codes", json!({"codes": ["A"]})).await.json(200);
    let check = service.post("/v1/coupons/welcome/codes/check", json!({"codes": ["A"]})).await.json(200);
    assert_eq!(check, json!({"valid": [true]}));
    redeem(&service, "A", "order-1", 0).await.problem(409, "requires-strict-mode");
}

#[tokio::test]
async fn invalid_redemption_is_rejected_with_location() {
    let service = service().await;
    for (bad, pointer) in [
        (json!({"reference": "order-1"}), "/code"),
        (json!({"code": 7, "reference": "order-1"}), "/code"),
        (json!({"code": "", "reference": "order-1"}), "/code"),
        (json!({"code": "c".repeat(513), "reference": "order-1"}), "/code"),
        (json!({"code": "A"}), "/reference"),
        (json!({"code": "A", "reference": ""}), "/reference"),
        (json!({"code": "A", "reference": "r".repeat(129)}), "/reference"),
        (json!({"code": "A", "reference": "order-1", "hold_seconds": 604_801}), "/hold_seconds"),
        (json!({"code": "A", "reference": "order-1", "hold_seconds": -1}), "/hold_seconds"),
        (json!({"code": "A", "reference": "order-1", "colour": "red"}), "/colour"),
    ] {
        assert_eq!(service.post(REDEMPTIONS, bad.clone()).await.pointers(), [pointer], "{bad}");
    }
    redeem(&service, "A", &"r".repeat(128), 604_800).await.json(201);
    for unknown in ["0".repeat(32), "nonsense".into()] {
        let path = format!("{REDEMPTIONS}/{unknown}");
        service.get(&path).await.problem(404, "redemption-not-found");
        service.command(&format!("{path}/confirm")).await.problem(404, "redemption-not-found");
        service.command(&format!("{path}/cancel")).await.problem(404, "redemption-not-found");
    }
    service.get("/v1/coupons/none/redemptions?reference=r").await.problem(404, "coupon-not-found");
}

#[tokio::test]
async fn expired_redemption_leaves_code_used() {
    let service = service().await;
    let redemption = redeem(&service, "A", "order-1", 0).await.json(201);
    service.pass(30 * 86_400 + 1);
    // Entries drive the sweep.
    redeem(&service, "B", "order-2", 0).await.json(201);
    service.get(&path(&redemption)).await.problem(404, "redemption-not-found");
    redeem(&service, "A", "order-3", 0).await.problem(409, "code-redeemed");
}

/// Nothing is written: the reader's clock decides.
#[tokio::test]
async fn redemption_expires_without_writes() {
    let service = service().await;
    let used = redeem(&service, "A", "order-1", 0).await.json(201);
    let held = redeem(&service, "B", "order-2", 60).await.json(201);
    service.pass(30 * 86_400 - 1);
    assert_eq!(service.get(&path(&used)).await.json(200)["status"], "redeemed");
    service.pass(1);
    service.get(&path(&used)).await.problem(404, "redemption-not-found");
    assert_eq!(service.get(&path(&held)).await.json(200)["status"], "expired");
    let list = service.get(REDEMPTIONS).await.json(200);
    assert_eq!(list["redemptions"].as_array().unwrap().len(), 1);
    service.pass(60);
    service.get(&path(&held)).await.problem(404, "redemption-not-found");
    assert_eq!(service.get(REDEMPTIONS).await.json(200), json!({"redemptions": []}));
    // A late discovery in the log revives nothing.
    service.command(&format!("{}/confirm", path(&held))).await.problem(404, "redemption-not-found");
    service.get(&path(&held)).await.problem(404, "redemption-not-found");
    redeem(&service, "B", "order-3", 0).await.json(201);
    redeem(&service, "A", "order-3", 0).await.problem(409, "code-redeemed");
}

#[tokio::test]
async fn redemptions_are_listed_in_pages() {
    let service = service().await;
    let codes: Vec<String> = (0..25).map(|n| format!("C{n}")).collect();
    service.post("/v1/coupons/welcome/codes", json!({"codes": codes})).await.json(200);
    let mut ids = Vec::new();
    for (n, code) in codes.iter().enumerate() {
        service.pass(1);
        let reference = ["even", "odd"][n % 2];
        let redemption = redeem(&service, code, reference, [0, 0, 600][n % 3]).await.json(201);
        ids.push(redemption["id"].as_str().unwrap().to_owned());
    }
    service.pass(1);
    // The first one changes last.
    service.command(&format!("{REDEMPTIONS}/{}/cancel", ids[0])).await.json(200);
    ids.rotate_left(1);
    let all = |query: &'static str| {
        let service = &service;
        async move {
            let (mut found, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
            loop {
                let page = service.get(&format!("{REDEMPTIONS}?{query}{cursor}")).await.json(200);
                let redemptions = page["redemptions"].as_array().unwrap();
                found.extend(redemptions.iter().map(|r| r["id"].as_str().unwrap().to_owned()));
                pages += 1;
                let Some(next) = page["next_cursor"].as_str() else { return (found, pages) };
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
    assert_eq!(all("limit=3&changed_after=2026-11-21T12:00:20Z").await.0, ids[19..]);
    for (bad, pointer) in [
        ("limit=0", "/limit"),
        ("limit=1001", "/limit"),
        ("cursor=x", "/cursor"),
        ("status=gone", "/status"),
        ("changed_after=soon", "/changed_after"),
        ("reference=", "/reference"),
    ] {
        let refused = service.get(&format!("{REDEMPTIONS}?{bad}")).await;
        assert_eq!(refused.pointers(), [pointer], "{bad}");
    }
}

#[tokio::test]
async fn redemption_contains_time_of_change() {
    let service = service().await;
    let hold = redeem(&service, "A", "order-1", 60).await.json(201);
    assert_eq!((hold.get("redeemed_at"), hold.get("cancelled_at")), (None, None));
    service.pass(10);
    let used = service.command(&format!("{}/confirm", path(&hold))).await.json(200);
    assert_eq!(used["redeemed_at"], "2026-11-21T12:00:10Z");
    assert_eq!((used.get("expires_at"), used.get("cancelled_at")), (None, None));
    service.pass(10);
    let cancelled = service.command(&format!("{}/cancel", path(&hold))).await.json(200);
    assert_eq!(cancelled["redeemed_at"], "2026-11-21T12:00:10Z");
    assert_eq!(cancelled["cancelled_at"], "2026-11-21T12:00:20Z");
    let service = service.restart().await;
    assert_eq!(service.get(&path(&hold)).await.json(200), cancelled);
}

#[tokio::test]
async fn codes_can_be_looked_up() {
    let service = service().await;
    service.post("/v1/coupons/welcome/codes", json!({"codes": ["C", "D", "E", "F"]})).await.json(200);
    let used = redeem(&service, "A", "order-1", 0).await.json(201);
    let hold = redeem(&service, "B", "order-2", 60).await.json(201);
    let cancelled = redeem(&service, "C", "order-3", 0).await.json(201);
    service.command(&format!("{}/cancel", path(&cancelled))).await.json(200);
    redeem(&service, "D", "order-4", 30).await.json(201);
    service.post("/v1/coupons/welcome/codes/remove", json!({"codes": ["E"]})).await.json(200);
    service.pass(30);
    let lookup = |codes: Value| service.post("/v1/coupons/welcome/codes/lookup", json!({ "codes": codes }));
    assert_eq!(
        lookup(json!(["A", "B", "C", "D", "E", "F", "G"])).await.json(200),
        json!({"codes": [
            {"status": "redeemed", "redemption": used},
            {"status": "held", "redemption": hold},
            {"status": "available"},
            // Its hold has run out, though no entry has said so.
            {"status": "available"},
            {"status": "absent"},
            {"status": "available"},
            {"status": "absent"},
        ]})
    );
    // A used code outlives its redemption; and the window doesn't matter.
    service.patch("/v1/coupons/welcome", json!({"ends_at": "2026-11-21T12:00:30Z"})).await.json(200);
    service.pass(31 * 86_400);
    assert_eq!(
        lookup(json!(["A", "B"])).await.json(200),
        json!({"codes": [{"status": "redeemed"}, {"status": "available"}]})
    );
    lookup(json!([])).await.problem(422, "invalid-request");
}

#[tokio::test]
async fn redemptions_are_exported_as_ndjson() {
    let service = service().await;
    // More than one look at the ledger goes through.
    let codes: Vec<String> = (0..2_500).map(|n| format!("C{n}")).collect();
    service.post("/v1/coupons/welcome/codes", json!({"codes": codes})).await.json(200);
    let uses = codes.iter().enumerate().map(|(n, code)| {
        let (service, reference) = (&service, ["even", "odd"][n % 2]);
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
            assert_eq!((answer.status, answer.header("content-type")), (200, "application/x-ndjson"));
            let text = answer.text();
            assert!(text.is_empty() || text.ends_with('\n'));
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
        }
    };
    for json in ["*/*", "application/json, application/x-ndjson;q=0.1", "application/x-ndjson;q=0"] {
        let request = request(Method::GET, REDEMPTIONS, &[("accept", json)], Body::empty());
        assert_eq!(service.send(request).await.header("content-type"), "application/json", "{json}");
    }
    let sorted = |mut redemptions: Vec<Value>| {
        redemptions.sort_by_key(|redemption| redemption["id"].to_string());
        redemptions
    };
    assert_eq!(sorted(export("").await), sorted(used));
    assert_eq!(export("reference=even").await.len(), 1_250);
    assert_eq!(export("status=held").await.len(), 0);
    let first = service.get(&format!("{REDEMPTIONS}?limit=1000")).await.json(200);
    let rest = format!("cursor={}", first["next_cursor"].as_str().unwrap());
    assert_eq!(export(rest.leak()).await.len(), 1_500);
}

#[tokio::test]
async fn restart_preserves_redemptions() {
    let service = service().await;
    let used = redeem(&service, "A", "order-1", 0).await.json(201);
    let hold = redeem(&service, "B", "order-2", 60).await.json(201);
    let service = service.restart().await;
    assert_eq!(redeem(&service, "A", "order-1", 0).await.json(200), used);
    assert_eq!(service.get(&path(&hold)).await.json(200), hold);
    redeem(&service, "B", "order-3", 0).await.problem(409, "code-held");
    service.pass(60);
    redeem(&service, "B", "order-3", 0).await.json(201);
}

#[tokio::test]
async fn csv_export_has_header_and_rows() {
    let service = service().await;
    redeem(&service, "A", "order,1", 0).await.json(201);
    redeem(&service, "B", "say \"hi\"", 60).await.json(201);
    let wanted = request(Method::GET, REDEMPTIONS, &[("accept", "text/csv")], Body::empty());
    let answer = service.send(wanted).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "text/csv"));
    let text = answer.text();
    let rows: Vec<&str> = text.split_terminator("\r\n").collect();
    assert_eq!(rows[0], "id,status,reference,created_at,expires_at,redeemed_at,cancelled_at,ordinal");
    assert!(rows[1].contains(",redeemed,\"order,1\",2026-11-21T12:00:00Z,,2026-11-21T12:00:00Z,,"), "{text}");
    assert!(
        rows[2].contains(",held,\"say \"\"hi\"\"\",2026-11-21T12:00:00Z,2026-11-21T12:01:00Z,,,"),
        "{text}"
    );
    assert_eq!(rows.len(), 3);
}
