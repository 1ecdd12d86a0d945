//! Coupons and their codes.

use super::service::Service;
use serde_json::{Value, json};

#[tokio::test]
async fn coupon_counts_codes_by_state() {
    let service = Service::start().await;
    let created = service.put("/v1/coupons/welcome", json!({"capacity": 100})).await;
    assert_eq!(created.header("location"), "/v1/coupons/welcome");
    let coupon = created.json(201);
    assert_eq!(coupon["mode"], "strict");
    assert_eq!(coupon["ignore_case"], false);
    assert!(coupon.get("error_rate").is_none() && coupon.get("layout").is_none());
    let stats = &coupon["stats"];
    assert_eq!(
        (&stats["available"], &stats["held"], &stats["redeemed"]),
        (&json!(0), &json!(0), &json!(0)),
        "{stats}"
    );
    service.put("/v1/coupons/welcome", json!({"capacity": 100})).await.json(200);
    service
        .put("/v1/coupons/welcome", json!({"capacity": 100, "ignore_case": true}))
        .await
        .problem(409, "already-exists");
    let list = service.get("/v1/coupons").await.json(200);
    assert_eq!(list["coupons"].as_array().unwrap().len(), 1);
    // The two kinds have separate names.
    service.get("/v1/campaigns/welcome").await.problem(404, "campaign-not-found");
    let patched =
        service.patch("/v1/coupons/welcome", json!({"ends_at": "2027-01-01T00:00:00Z"})).await.json(200);
    assert_eq!(patched["ends_at"], "2027-01-01T00:00:00Z");
    assert_eq!(service.delete("/v1/coupons/welcome").await.status, 204);
    service.get("/v1/coupons/welcome").await.problem(404, "coupon-not-found");
    service.post("/v1/coupons/welcome/codes", json!({"codes": ["A"]})).await.problem(404, "coupon-not-found");
}

/// Posts to the codes of `welcome` and expects 200.
async fn codes(service: &Service, operation: &str, body: Value) -> Value {
    service.post(&format!("/v1/coupons/welcome/codes{operation}"), body).await.json(200)
}

async fn redeem(service: &Service, code: &str, hold_seconds: u64) {
    let body = json!({"code": code, "reference": format!("order-{code}"), "hold_seconds": hold_seconds});
    service.post("/v1/coupons/welcome/redemptions", body).await.json(201);
}

#[tokio::test]
async fn code_has_one_use() {
    let service = Service::start().await;
    service.put("/v1/coupons/welcome", json!({"capacity": 100})).await.json(201);
    let added = codes(&service, "", json!({"codes": ["A", "B", "C", "A"]})).await;
    assert_eq!(added, json!({"outcomes": ["added", "added", "added", "already_present"], "added": 3}));
    redeem(&service, "A", 0).await;
    redeem(&service, "B", 600).await;

    let all = json!({"codes": ["A", "B", "C", "D"]});
    assert_eq!(codes(&service, "/check", all.clone()).await, json!({"valid": [false, false, true, false]}));
    assert_eq!(codes(&service, "/count", all.clone()).await, json!({"counts": [1, 1, 1, 0]}));
    let stats = &service.get("/v1/coupons/welcome").await.json(200)["stats"];
    assert_eq!((&stats["available"], &stats["held"], &stats["redeemed"]), (&json!(1), &json!(1), &json!(1)));

    let again = codes(&service, "", json!({"codes": ["A", "B", "C"]})).await;
    assert_eq!(
        again,
        json!({"outcomes": ["already_redeemed", "already_present", "already_present"], "added": 0})
    );
    assert_eq!(codes(&service, "/check", json!({"codes": ["A"]})).await, json!({"valid": [false]}));

    let cleared = service.command("/v1/coupons/welcome/clear").await.json(200);
    assert_eq!(cleared, json!({"removed": 1}));
    assert_eq!(codes(&service, "/count", all.clone()).await, json!({"counts": [1, 1, 0, 0]}));

    let removed = codes(&service, "/remove", all).await;
    assert_eq!(
        removed,
        json!({"outcomes": ["already_redeemed", "removed", "absent", "absent"], "removed": 1})
    );
    // The hold went with its code.
    let found = service.get("/v1/coupons/welcome/redemptions?reference=order-B").await.json(200);
    assert_eq!(found["redemptions"][0]["status"], "cancelled");

    let revived = codes(&service, "", json!({"codes": ["A"], "revive": true})).await;
    assert_eq!(revived["outcomes"], json!(["revived"]));
    assert_eq!(codes(&service, "/check", json!({"codes": ["A"]})).await, json!({"valid": [true]}));
}

#[tokio::test]
async fn codes_are_replaced_pair_by_pair() {
    let service = Service::start().await;
    service.put("/v1/coupons/welcome", json!({"capacity": 100})).await.json(201);
    codes(&service, "", json!({"codes": ["A", "B"]})).await;
    let pairs = json!({"replacements": [{"from": "A", "to": "X"}, {"from": "Z", "to": "Y"}]});
    assert_eq!(codes(&service, "/replace", pairs).await, json!({"outcomes": ["replaced", "absent"]}));
    let valid = codes(&service, "/check", json!({"codes": ["A", "X", "Y", "B"]})).await;
    assert_eq!(valid, json!({"valid": [false, true, false, true]}));
    // In order: a held code that one pair removes and the next one adds is available, and its hold has ended.
    let held = json!({"code": "B", "reference": "r", "hold_seconds": 60});
    service.post("/v1/coupons/welcome/redemptions", held).await.json(201);
    let pairs = json!({"replacements": [{"from": "B", "to": "C"}, {"from": "X", "to": "B"}]});
    assert_eq!(codes(&service, "/replace", pairs).await, json!({"outcomes": ["replaced", "replaced"]}));
    let valid = codes(&service, "/check", json!({"codes": ["B", "C", "X"]})).await;
    assert_eq!(valid, json!({"valid": [true, true, false]}));
}

#[tokio::test]
async fn coupon_ignores_case_and_spaces_if_configured() {
    let service = Service::start().await;
    service.put("/v1/coupons/welcome", json!({"capacity": 100, "ignore_case": true})).await.json(201);
    codes(&service, "", json!({"codes": [" k7q2-9fxm"]})).await;
    let valid = codes(&service, "/check", json!({"codes": ["K7Q2-9FXM", "k7q2-9FXM\n", "K7Q29FXM"]})).await;
    assert_eq!(valid, json!({"valid": [true, true, false]}));
    service.put("/v1/coupons/exact", json!({"capacity": 100})).await.json(201);
    service.post("/v1/coupons/exact/codes", json!({"codes": ["ab"]})).await.json(200);
    let valid = service.post("/v1/coupons/exact/codes/check", json!({"codes": ["ab", "AB", " ab"]})).await;
    assert_eq!(valid.json(200), json!({"valid": [true, false, false]}));
}

#[tokio::test]
async fn codes_are_invalid_outside_window() {
    let service = Service::start().await;
    let spec =
        json!({"capacity": 10, "starts_at": "2026-11-21T12:00:10Z", "ends_at": "2026-11-21T12:00:20Z"});
    service.put("/v1/coupons/welcome", spec).await.json(201);
    codes(&service, "", json!({"codes": ["A"]})).await;
    for valid in [false, true, false] {
        assert_eq!(codes(&service, "/check", json!({"codes": ["A"]})).await, json!({"valid": [valid]}));
        service.pass(10);
    }
    let body = json!({"code": "A", "reference": "order-1"});
    service.post("/v1/coupons/welcome/redemptions", body).await.problem(409, "outside-window");
}

#[tokio::test]
async fn blank_code_is_rejected_if_spaces_ignored() {
    let service = Service::start().await;
    service.put("/v1/coupons/folded", json!({"capacity": 100, "ignore_case": true})).await.json(201);
    service.put("/v1/coupons/exact", json!({"capacity": 100})).await.json(201);
    let codes = json!({"codes": ["A", " ", "\t\r\n ", " b "]});
    for operation in ["", "/check", "/count", "/remove"] {
        let pointers =
            service.post(&format!("/v1/coupons/folded/codes{operation}"), codes.clone()).await.pointers();
        assert_eq!(pointers, ["/codes/1", "/codes/2"], "{operation}");
    }
    let pairs = json!({"replacements": [{"from": " ", "to": "x"}, {"from": "x", "to": "  "}]});
    let pointers = service.post("/v1/coupons/folded/codes/replace", pairs).await.pointers();
    assert_eq!(pointers, ["/replacements/0/from", "/replacements/1/to"]);
    let redeem = json!({"code": "  ", "reference": "r"});
    assert_eq!(service.post("/v1/coupons/folded/redemptions", redeem).await.pointers(), ["/code"]);
    let lines = " \nA\n\t\n b\n";
    let done = service.import("/v1/coupons/folded/imports", "text/plain", lines).await.json(200);
    assert_eq!((&done["added"], &done["rejected"]), (&json!(2), &json!(2)), "{done}");
    assert_eq!(done["errors"], json!([{"line": 1, "code": "empty"}, {"line": 3, "code": "empty"}]));
    // Elsewhere a blank is a character like any other.
    service.post("/v1/coupons/exact/codes", json!({"codes": [" "]})).await.json(200);
    let done = service.import("/v1/coupons/exact/imports", "text/plain", "  \n").await.json(200);
    assert_eq!((&done["added"], &done["rejected"]), (&json!(1), &json!(0)), "{done}");
}
