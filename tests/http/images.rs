//! Images: transfer of one campaign or coupon to another name or another server.

use crate::service::{Answer, Service, request};
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::Method;
use serde_json::{Value, json};
use std::io::Write as _;

async fn take(service: &Service, path: &str) -> Vec<u8> {
    let image = service.get(&format!("{path}/image")).await;
    assert_eq!(
        (image.status, image.header("content-type")),
        (200, "application/octet-stream")
    );
    image.body
}

async fn bring(service: &Service, path: &str, image: impl Into<Body>) -> Answer {
    service
        .send(request(
            Method::PUT,
            &format!("{path}/image"),
            &[],
            image.into(),
        ))
        .await
}

async fn images_loading(service: &Service) -> String {
    let metrics = service.get("/metrics").await.text();
    metrics
        .lines()
        .find_map(|line| line.strip_prefix("cuckood_images_loading "))
        .unwrap()
        .to_owned()
}

/// A filter's description under another name.
fn renamed(mut filter: Value, name: &str) -> Value {
    filter["name"] = json!(name);
    filter
}

/// Ends of the records of an image: all bytes of a record precede its end.
fn ends(image: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut at = 0;
    while at < image.len() {
        let length = u32::from_le_bytes(image[at + 8..at + 12].try_into().unwrap());
        at += 28 + length as usize + 16;
        ends.push(at);
    }
    ends
}

fn users(from: u64, to: u64) -> Vec<String> {
    (from..to).map(|number| format!("user-{number}")).collect()
}

async fn check(service: &Service, path: &str, users: &[String]) -> Value {
    service
        .post(&format!("{path}/users/check"), json!({ "users": users }))
        .await
        .json(200)["present"]
        .take()
}

fn present(answers: &Value) -> usize {
    answers
        .as_array()
        .unwrap()
        .iter()
        .filter(|answer| **answer == json!(true))
        .count()
}

#[tokio::test]
async fn campaign_image_contains_all_users() {
    let here = Service::start().await;
    let there = Service::start().await;
    // Grown in several segments, grown in one table, fixed, and with steps.
    for (name, spec) in [
        ("compact", json!({"capacity": 1_000, "error_rate": 0.01})),
        ("strict", json!({"capacity": 1_000, "mode": "strict"})),
        (
            "fixed",
            json!({"capacity": 20_000, "growth": "fixed", "starts_at": "2026-11-01T00:00:00Z"}),
        ),
        (
            "layout",
            json!({"capacity": 5_000, "layout": {"fingerprint_bits": 13, "bucket_size": 2}}),
        ),
        ("forgets", json!({"capacity": 1_000, "forget_after": "8d"})),
        ("empty", json!({"capacity": 10})),
    ] {
        let path = format!("/v1/campaigns/{name}");
        here.put(&path, spec).await.json(201);
        if name != "empty" {
            for from in (0..20_000).step_by(10_000) {
                here.post(
                    &format!("{path}/users"),
                    json!({"users": users(from, from + 10_000)}),
                )
                .await
                .json(200);
            }
            here.post(
                &format!("{path}/users/remove"),
                json!({"users": users(0, 500)}),
            )
            .await
            .json(200);
        }
        let image = take(&here, &path).await;
        let moved = "/v1/campaigns/moved";
        let answer = bring(&there, moved, image.clone()).await;
        assert_eq!(answer.header("location"), moved);
        let made = answer.json(201);
        assert_eq!(made, renamed(here.get(&path).await.json(200), "moved"));
        assert_eq!(there.get(moved).await.json(200), made);
        let asked = users(0, 10_000);
        assert_eq!(
            check(&there, moved, &asked).await,
            check(&here, &path, &asked).await
        );
        // The one goes on without the other.
        let new = users(20_000, 20_100);
        there
            .post(&format!("{moved}/users"), json!({"users": new}))
            .await
            .json(200);
        assert_eq!(present(&check(&there, moved, &new).await), 100);
        // A full filter may have false positives.
        assert!(present(&check(&here, &path, &new).await) < 20);
        // On the same server, too, whose secret it shares.
        bring(&here, &format!("{path}-copy"), image).await.json(201);
        assert_eq!(
            check(&here, &format!("{path}-copy"), &asked).await,
            check(&here, &path, &asked).await
        );
        there.delete(moved).await;
    }
    assert_eq!(images_loading(&there).await, "0");
}

#[tokio::test]
async fn forgetting_continues_after_image_load() {
    let here = Service::start().await;
    let there = Service::start().await;
    let path = "/v1/campaigns/seen";
    here.put(path, json!({"capacity": 1_000, "forget_after": "8d"}))
        .await
        .json(201);
    here.post(&format!("{path}/users"), json!({"users": ["early"]}))
        .await
        .json(200);
    here.pass(4 * 86_400);
    here.post(&format!("{path}/users"), json!({"users": ["late"]}))
        .await
        .json(200);
    let image = take(&here, path).await;
    let both = ["early".to_owned(), "late".to_owned()];
    there.pass(8 * 86_400);
    bring(&there, path, image.clone()).await.json(201);
    assert_eq!(check(&there, path, &both).await, json!([true, true]));
    there.pass(2 * 86_400);
    assert_eq!(check(&there, path, &both).await, json!([false, true]));
    // An old image: all in it is forgotten by now.
    there.pass(30 * 86_400);
    let old = bring(&there, "/v1/campaigns/old", image).await.json(201);
    assert_eq!(old["stats"]["items"], 0);
    assert_eq!(
        check(&there, "/v1/campaigns/old", &both).await,
        json!([false, false])
    );
}

#[tokio::test]
async fn coupon_image_contains_redemptions() {
    let here = Service::start().await;
    let mut there = Service::start().await;
    let path = "/v1/coupons/welcome";
    let spec = json!({"capacity": 50, "normalize": "code"});
    here.put(path, spec).await.json(201);
    let codes: Vec<String> = (0..2_000).map(|number| format!("CODE-{number}")).collect();
    here.post(&format!("{path}/codes"), json!({ "codes": codes }))
        .await
        .json(200);
    let redeem = async |service: &Service, code: &str, reference: &str, hold_seconds: u64| {
        let body = json!({"code": code, "reference": reference, "hold_seconds": hold_seconds});
        service.post(&format!("{path}/redemptions"), body).await
    };
    for number in 0..400 {
        redeem(
            &here,
            &format!("code-{number}"),
            &format!("order-{number}"),
            [0, 60][number % 2],
        )
        .await
        .json(201);
    }
    let cancelled = redeem(&here, "code-900", "order-900", 0).await.json(201);
    let cancelled = format!("{path}/redemptions/{}", cancelled["id"].as_str().unwrap());
    here.command(&format!("{cancelled}/cancel")).await.json(200);

    let image = take(&here, path).await;
    let made = bring(&there, path, image.clone()).await.json(201);
    assert_eq!(made, here.get(path).await.json(200));
    assert_eq!(
        (&made["stats"]["held"], &made["stats"]["redeemed"]),
        (&json!(200), &json!(200))
    );
    let asked = json!({"codes": codes});
    for question in ["check", "lookup", "count"] {
        let question = format!("{path}/codes/{question}");
        assert_eq!(
            there.post(&question, asked.clone()).await.json(200),
            here.post(&question, asked.clone()).await.json(200)
        );
    }
    let all = format!("{path}/redemptions?limit=1000");
    let redemptions = there.get(&all).await.json(200);
    assert_eq!(redemptions, here.get(&all).await.json(200));
    assert_eq!(redemptions["redemptions"].as_array().unwrap().len(), 401);
    assert_eq!(there.get(&cancelled).await.json(200)["status"], "cancelled");
    // It goes on there as here, after a restart too.
    there = there.restart().await;
    redeem(&there, "code-0", "another", 0)
        .await
        .problem(409, "code-redeemed");
    redeem(&there, "code-1", "another", 0)
        .await
        .problem(409, "code-held");
    assert_eq!(
        redeem(&there, "CODE-1", "order-1", 0).await.json(200)["status"],
        "redeemed"
    );
    there.pass(61);
    assert_eq!(
        redeem(&there, "code-3", "another", 0).await.json(201)["status"],
        "redeemed"
    );
    assert_eq!(there.get(path).await.json(200)["stats"]["held"], 0);
    let events = there.get("/v1/events").await.text();
    let first = events.lines().next().unwrap();
    assert!(
        first.contains("created") && first.contains("welcome"),
        "{events}"
    );
}

#[tokio::test]
async fn open_pool_image_contains_ordinals() {
    let here = Service::start().await;
    let there = Service::start().await;
    let path = "/v1/coupons/sale";
    here.put(path, json!({"capacity": 10, "stock": 100}))
        .await
        .json(201);
    let redeem = async |service: &Service, code: u64| {
        let body = json!({"code": format!("u{code}"), "reference": format!("order-{code}")});
        service.post(&format!("{path}/redemptions"), body).await
    };
    let mut ids = Vec::new();
    for code in 1..=60 {
        ids.push(
            redeem(&here, code).await.json(201)["id"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
    }
    for id in ids.iter().step_by(2).take(10) {
        here.command(&format!("{path}/redemptions/{id}/cancel"))
            .await
            .json(200);
    }
    // Long after the redemptions have expired; their ordinals stay taken.
    here.pass(31 * 86_400);
    for code in 61..=65 {
        redeem(&here, code).await.json(201);
    }
    let image = take(&here, path).await;
    there.pass(31 * 86_400);
    assert_eq!(
        bring(&there, path, image).await.json(201),
        here.get(path).await.json(200)
    );
    redeem(&there, 2).await.problem(409, "code-redeemed");
    for code in 100..=140 {
        assert_eq!(
            redeem(&there, code).await.json(201)["ordinal"],
            redeem(&here, code).await.json(201)["ordinal"]
        );
    }
    assert_eq!(here.get(path).await.json(200)["stats"]["available"], 4);
    assert_eq!(there.get(path).await.json(200)["stats"]["available"], 4);
}

#[tokio::test]
async fn damaged_or_foreign_image_is_rejected() {
    let here = Service::start().await;
    let there = Service::start().await;
    let path = "/v1/coupons/welcome";
    here.put(path, json!({"capacity": 20_000})).await.json(201);
    here.post(&format!("{path}/codes"), json!({"codes": users(0, 10_000)}))
        .await
        .json(200);
    let used = json!({"code": "user-1", "reference": "order"});
    here.post(&format!("{path}/redemptions"), used)
        .await
        .json(201);
    let image = take(&here, path).await;
    let ends = ends(&image);
    assert!(ends.len() > 4, "{} records", ends.len());
    let refused = async |bytes: Vec<u8>| {
        let answer = bring(&there, path, bytes).await;
        answer.problem(422, "image-damaged")["detail"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let mut begin = 0;
    for &end in &ends {
        // In the header, in the payload, in the checksum.
        for at in [begin + 6, (begin + end) / 2, end - 1] {
            let mut damaged = image.clone();
            damaged[at] ^= 1;
            refused(damaged).await;
        }
        refused(image[..end - 1].to_vec()).await;
        refused([&image[..begin], &image[end..]].concat()).await;
        refused([&image[..end], &image[begin..]].concat()).await;
        begin = end;
    }
    assert!(
        refused(b"\x1f\x8b RedisBloom".to_vec())
            .await
            .contains("not an image")
    );
    assert!(refused(Vec::new()).await.contains("not an image"));
    assert!(
        refused([&image[..], b"\0"].concat())
            .await
            .contains("follow its end")
    );
    let mut newer = image.clone();
    newer[4] = 9;
    assert!(refused(newer).await.contains("newer"));
    let campaign = bring(&there, "/v1/campaigns/welcome", image.clone()).await;
    let detail = campaign.problem(422, "image-damaged")["detail"].to_string();
    assert!(detail.contains("image of a coupon"), "{detail}");
    // Nothing is left, and the same name takes it whole.
    there.get(path).await.problem(404, "coupon-not-found");
    assert_eq!(images_loading(&there).await, "0");
    bring(&there, path, image.clone()).await.json(201);
    let taken = bring(&there, path, image)
        .await
        .problem(409, "already-exists");
    assert!(
        taken["detail"].as_str().unwrap().contains("new one"),
        "{taken}"
    );
    here.get("/v1/coupons/none/image")
        .await
        .problem(404, "coupon-not-found");
    bring(&there, "/v1/coupons/No", Vec::new())
        .await
        .problem(422, "invalid-request");
}

#[tokio::test]
async fn interrupted_upload_leaves_nothing() {
    let here = Service::start().await;
    let there = Service::start().await;
    let path = "/v1/campaigns/spring";
    here.put(path, json!({"capacity": 100_000, "mode": "strict"}))
        .await
        .json(201);
    here.post(&format!("{path}/users"), json!({"users": users(0, 10_000)}))
        .await
        .json(200);
    let image = take(&here, path).await;
    let before = there.get("/v1/info").await.json(200)["memory"].clone();
    let half = Bytes::copy_from_slice(&image[..image.len() / 2]);
    let broken = stream::iter([Ok(half), Err(std::io::Error::other("the client is gone"))]);
    let answer = bring(&there, path, Body::from_stream(broken)).await;
    answer.problem(400, "malformed-request");
    assert_eq!(images_loading(&there).await, "0");
    there.get(path).await.problem(404, "campaign-not-found");
    assert_eq!(
        there.get("/v1/info").await.json(200)["memory"]["records_bytes"],
        before["records_bytes"]
    );
    bring(&there, path, image).await.json(201);
}

#[tokio::test]
async fn image_transfer_may_be_compressed() {
    let service = Service::start().await;
    let path = "/v1/campaigns/spring";
    service
        .put(path, json!({"capacity": 10_000}))
        .await
        .json(201);
    service
        .post(&format!("{path}/users"), json!({"users": users(0, 5_000)}))
        .await
        .json(200);
    let packed = request(
        Method::GET,
        &format!("{path}/image"),
        &[("accept-encoding", "gzip")],
        Body::empty(),
    );
    let packed = service.send(packed).await;
    assert_eq!(
        (packed.status, packed.header("content-encoding")),
        (200, "gzip")
    );
    let headers = [("content-encoding", "gzip")];
    let copy = "/v1/campaigns/copy";
    let sent = request(
        Method::PUT,
        &format!("{copy}/image"),
        &headers,
        Body::from(packed.body),
    );
    service.send(sent).await.json(201);
    assert_eq!(
        check(&service, copy, &users(0, 100)).await,
        check(&service, path, &users(0, 100)).await
    );
    let mut twice = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    twice.write_all(&take(&service, path).await).unwrap();
    let headers = [("content-encoding", "zstd")];
    let sent = Body::from(twice.finish().unwrap());
    service
        .send(request(
            Method::PUT,
            "/v1/campaigns/third/image",
            &headers,
            sent,
        ))
        .await
        .json(201);
}

#[tokio::test]
async fn image_beyond_memory_is_rejected() {
    let here = Service::start().await;
    let there = Service::on(None, Default::default(), |setup| {
        setup.memory_max_bytes = 2 << 20;
    })
    .await;
    let path = "/v1/coupons/large";
    here.put(path, json!({"capacity": 1_000_000}))
        .await
        .json(201);
    let image = take(&here, path).await;
    bring(&there, path, image)
        .await
        .problem(507, "memory-limit");
    assert_eq!(images_loading(&there).await, "0");
}

/// A download waits for no snapshot of other filters.
#[tokio::test]
async fn image_starts_without_snapshot() {
    let service = Service::start().await;
    for path in ["/v1/campaigns/spring", "/v1/coupons/sale"] {
        service.put(path, json!({"capacity": 10})).await.json(201);
        assert!(!take(&service, path).await.is_empty());
    }
    let info = service.get("/v1/info").await.json(200);
    assert_eq!(
        (
            info.get("snapshot"),
            &info["storage"]["snapshot_bytes_written"]
        ),
        (None, &json!(0)),
        "{info}"
    );
}
