//! A clock that can't be trusted: nothing is written, each response says so, reads continue, and a restart doesn't help.

use crate::service::{NOON, Service};
use serde_json::json;

const DAY: u64 = 86_400;
const YEAR: u64 = 365 * DAY;

async fn with_a_hold() -> (Service, String) {
    let service = Service::start().await;
    let hold = hold_code(&service).await;
    (service, hold)
}

/// Creates a coupon with a code that is held for a week. Returns the path of the redemption.
async fn hold_code(service: &Service) -> String {
    service
        .put("/v1/coupons/shop", json!({ "capacity": 100 }))
        .await
        .json(201);
    service
        .post(
            "/v1/coupons/shop/codes",
            json!({ "codes": ["held", "free"] }),
        )
        .await
        .json(200);
    let hold = json!({ "code": "held", "reference": "order-1", "hold_seconds": 7 * DAY });
    let hold = service
        .post("/v1/coupons/shop/redemptions", hold)
        .await
        .json(201);
    format!(
        "/v1/coupons/shop/redemptions/{}",
        hold["id"].as_str().unwrap()
    )
}

async fn assert_refused(service: &Service, hold: &str) {
    let refusal = service
        .post("/v1/coupons/shop/codes", json!({ "codes": ["more"] }))
        .await;
    let problem = refusal.problem(503, "clock-unsure");
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .contains("cuckood repair clock"),
        "{problem}"
    );
    assert!(!refusal.header("retry-after").is_empty());
    assert_eq!(
        service.get("/readyz").await.json(200)["writes"],
        "clock-unsure",
        "reads are served"
    );
    assert_eq!(service.get("/livez").await.status, 200);
    let metrics = service.get("/metrics").await.text();
    assert!(metrics.contains("\ncuckood_clock_unsure 1\n"), "{metrics}");
    assert!(
        metrics.contains("\ncuckood_clock_refused_total "),
        "{metrics}"
    );
    // Readers see the current state.
    assert_eq!(service.get(hold).await.json(200)["status"], "held");
    let codes = json!({ "codes": ["held", "free", "more"] });
    let valid = service
        .post("/v1/coupons/shop/codes/check", codes)
        .await
        .json(200);
    assert_eq!(valid, json!({ "valid": [false, true, false] }));
}

async fn assert_writes(service: &Service) {
    service
        .post("/v1/coupons/shop/codes", json!({ "codes": ["more"] }))
        .await
        .json(200);
    assert_eq!(service.get("/readyz").await.json(200).get("writes"), None);
    let metrics = service.get("/metrics").await.text();
    assert!(metrics.contains("\ncuckood_clock_unsure 0\n"), "{metrics}");
}

#[tokio::test]
async fn clock_jump_is_reported_until_corrected() {
    let (service, hold) = with_a_hold().await;
    for wrong in [NOON.plus_seconds(3_601), NOON.plus_seconds(YEAR)] {
        service.set_clock(wrong);
        assert_refused(&service, &hold).await;
    }
    service.set_clock(NOON);
    assert_writes(&service).await;
}

/// The first startup accepts the clock; a later one compares it with the saved reading.
#[tokio::test]
async fn restart_never_accepts_wrong_clock() {
    let (service, hold) = with_a_hold().await;
    service.set_clock(NOON.plus_seconds(YEAR));
    let service = service.restart().await;
    assert_refused(&service, &hold).await;
    let service = service.restart().await;
    assert_refused(&service, &hold).await;
    service.set_clock(NOON);
    assert_writes(&service).await;
}

#[tokio::test]
async fn stop_of_any_length_is_no_jump() {
    let (service, _) = with_a_hold().await;
    service.pass(2 * YEAR);
    assert_writes(&service.restart().await).await;
}

#[tokio::test]
async fn reboot_accepts_week_and_rejects_year() {
    let (service, hold) = with_a_hold().await;
    service.set_clock(NOON.plus_seconds(YEAR));
    let service = service.reboot().await;
    assert_refused(&service, &hold).await;
    service.set_clock(NOON.plus_seconds(7 * DAY));
    let service = service.reboot().await;
    assert_writes(&service).await;
}

/// The first timestamp of a new service can't be checked; but once the clock is right, the error is reported.
#[tokio::test]
async fn log_ahead_of_clock_is_reported() {
    let service = Service::start().await;
    service.pass(YEAR);
    let hold = hold_code(&service).await;
    service.set_clock(NOON);
    assert_refused(&service, &hold).await;
    let service = service.restart().await;
    assert_refused(&service, &hold).await;
    let service = service.reboot().await;
    assert_refused(&service, &hold).await;
}
