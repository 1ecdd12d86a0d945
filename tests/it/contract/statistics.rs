//! Statistics: what happened to a campaign or coupon, per day and per hour.

use super::service::{Service, request};
use http::Method;
use serde_json::{Value, json};

const HOUR: u64 = 3_600;

async fn statistics(service: &Service, path: &str) -> Value {
    service.get(&format!("{path}/statistics")).await.json(200)
}

/// A period of a campaign.
fn of_campaign(label: &str, begin: &str, [added, removed, imported]: [u64; 3]) -> Value {
    json!({label: begin, "added": added, "removed": removed, "imported": imported})
}

async fn import(service: &Service, path: &str, query: &str, lines: &str) {
    let path = format!("{path}/imports?{query}");
    service.import(&path, "text/plain", lines.to_owned()).await.json(200);
}

#[tokio::test]
async fn statistics_count_items_per_day_and_hour() {
    let service = Service::start().await;
    let path = "/v1/campaigns/spring";
    service.put(path, json!({"capacity": 100, "mode": "strict"})).await.json(201);
    assert_eq!(statistics(&service, path).await, json!({"days": [], "hours": []}));

    let users = |users: &[&str]| json!({ "users": users });
    service.post(&format!("{path}/users"), users(&["a", "b", "c", "c"])).await.json(200);
    service.post(&format!("{path}/users/remove"), users(&["a", "x"])).await.json(200);
    service.pass(HOUR);
    let replacements = json!({"replacements": [{"from": "b", "to": "d"}, {"from": "x", "to": "y"}]});
    service.post(&format!("{path}/users/replace"), replacements).await.json(200);
    // Nothing is imported by a dry run, and what is there already is not imported either.
    import(&service, path, "dry_run=true", "e\nf\n").await;
    import(&service, path, "mode=append", "c\ne\nf\n").await;
    let noon = of_campaign("hour", "2026-11-21T12:00:00Z", [3, 1, 0]);
    let one = of_campaign("hour", "2026-11-21T13:00:00Z", [1, 1, 2]);
    let today = of_campaign("date", "2026-11-21", [4, 2, 2]);
    assert_eq!(statistics(&service, path).await, json!({"days": [today], "hours": [noon, one]}));

    // The next day: a replacement counts its own items, and no items as removed.
    service.pass(24 * HOUR);
    import(&service, path, "mode=replace", "c\ng\nh\n").await;
    service.command(&format!("{path}/clear")).await.json(200);
    let later = of_campaign("hour", "2026-11-22T13:00:00Z", [0, 3, 3]);
    let tomorrow = of_campaign("date", "2026-11-22", [0, 3, 3]);
    let all = json!({"days": [today, tomorrow], "hours": [noon, one, later]});
    assert_eq!(statistics(&service, path).await, all);
    let last = service.get(&format!("{path}/statistics?days=1")).await.json(200);
    assert_eq!(last, json!({"days": [tomorrow], "hours": all["hours"]}));

    let service = service.restart().await;
    assert_eq!(statistics(&service, path).await, all);

    // They are read as of the last write anywhere: later, hours and days are too old.
    service.pass(46 * HOUR);
    service.put("/v1/campaigns/other", json!({"capacity": 1})).await.json(201);
    assert_eq!(statistics(&service, path).await["hours"], json!([later]));
    service.pass(27 * 24 * HOUR);
    service.delete("/v1/campaigns/other").await;
    assert_eq!(statistics(&service, path).await, json!({"days": [tomorrow], "hours": []}));
    let all_days = service.get(&format!("{path}/statistics?days=400")).await.json(200);
    assert_eq!(all_days, json!({"days": [today, tomorrow], "hours": []}));

    // What is created again has none.
    service.delete(path).await;
    service.put(path, json!({"capacity": 100})).await.json(201);
    assert_eq!(statistics(&service, path).await, json!({"days": [], "hours": []}));
}

#[tokio::test]
async fn coupon_statistics_count_codes_by_outcome() {
    let service = Service::start().await;
    let path = "/v1/coupons/spring";
    service.put(path, json!({"capacity": 100})).await.json(201);
    service.post(&format!("{path}/codes"), json!({"codes": ["A", "B", "C", "D", "E"]})).await.json(200);
    let redeem = async |code: &str, hold_seconds: u64| {
        let body = json!({"code": code, "reference": code, "hold_seconds": hold_seconds});
        let answer = service.post(&format!("{path}/redemptions"), body).await;
        assert!(answer.status < 300, "{}", answer.text());
        answer.header("location").to_owned()
    };
    redeem("A", 0).await;
    // Repeated, it counts once.
    let repeated = json!({"code": "A", "reference": "A"});
    service.post(&format!("{path}/redemptions"), repeated).await.json(200);
    let confirmed = redeem("B", 60).await;
    service.command(&format!("{confirmed}/confirm")).await.json(200);
    let cancelled = redeem("C", 60).await;
    for _ in 0..2 {
        service.command(&format!("{cancelled}/cancel")).await.json(200);
    }
    redeem("D", 60).await;
    // A code that is withdrawn takes its hold with it.
    redeem("E", 60).await;
    service.post(&format!("{path}/codes/remove"), json!({"codes": ["E"]})).await.json(200);
    // A revived code is added again.
    service.post(&format!("{path}/codes"), json!({"codes": ["A"], "revive": true})).await.json(200);
    service.pass(2 * HOUR);
    // It expires when the log notices that.
    service.post(&format!("{path}/codes"), json!({"codes": ["F"]})).await.json(200);
    let found = statistics(&service, path).await;
    let noon = json!({
        "hour": "2026-11-21T12:00:00Z", "added": 6, "removed": 1, "imported": 0,
        "redeemed": 2, "held": 4, "cancelled": 3, "expired": 0,
    });
    let later = json!({
        "hour": "2026-11-21T14:00:00Z", "added": 1, "removed": 0, "imported": 0,
        "redeemed": 0, "held": 0, "cancelled": 0, "expired": 1,
    });
    let today = json!({
        "date": "2026-11-21", "added": 7, "removed": 1, "imported": 0,
        "redeemed": 2, "held": 4, "cancelled": 3, "expired": 1,
    });
    assert_eq!(found, json!({"days": [today], "hours": [noon, later]}));

    // An image has them with it.
    let image = service.get(&format!("{path}/image")).await.body;
    let moved = "/v1/coupons/moved";
    service.send(request(Method::PUT, &format!("{moved}/image"), &[], image.into())).await.json(201);
    assert_eq!(statistics(&service, moved).await, found);
}

#[tokio::test]
async fn codes_of_open_pool_count_as_redeemed_only() {
    let service = Service::start().await;
    let path = "/v1/coupons/pool";
    service.put(path, json!({"capacity": 100, "stock": 5})).await.json(201);
    for user in ["a", "b"] {
        let body = json!({"code": user, "reference": user});
        service.post(&format!("{path}/redemptions"), body).await.json(201);
    }
    let found = statistics(&service, path).await;
    assert_eq!((&found["days"][0]["added"], &found["days"][0]["redeemed"]), (&json!(0), &json!(2)));
}

#[tokio::test]
async fn statistics_reject_days_out_of_range() {
    let service = Service::start().await;
    service.put("/v1/campaigns/spring", json!({"capacity": 10})).await.json(201);
    for days in ["0", "401", "-1", "x", ""] {
        let answer = service.get(&format!("/v1/campaigns/spring/statistics?days={days}")).await;
        answer.problem(422, "invalid-request");
        assert_eq!(answer.pointers(), ["/days"], "{days}");
    }
    let unknown = service.get("/v1/campaigns/spring/statistics?day=1").await;
    unknown.problem(422, "invalid-request");
    service.get("/v1/campaigns/none/statistics").await.problem(404, "campaign-not-found");
    service.get("/v1/coupons/spring/statistics").await.problem(404, "coupon-not-found");
}
