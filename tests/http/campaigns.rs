//! Campaigns and their users.

use crate::service::Service;
use serde_json::json;

#[tokio::test]
async fn full_filter_adds_all_or_nothing() {
    let service = Service::start().await;
    let users: Vec<String> = (0..10_000).map(|n| format!("u{n}")).collect();
    for mode in ["compact", "strict"] {
        let path = format!("/v1/campaigns/{mode}");
        service
            .put(
                &path,
                json!({"capacity": 500, "growth": "fixed", "mode": mode}),
            )
            .await
            .json(201);
        let add = format!("{path}/users");
        service
            .post(&add, json!({"users": users}))
            .await
            .problem(409, "filter-full");
        assert_eq!(
            service.get(&path).await.json(200)["stats"]["items"],
            0,
            "{mode}"
        );
        assert_eq!(
            service
                .post(&add, json!({"users": users[..500]}))
                .await
                .json(200)["added"],
            500,
            "{mode}"
        );
    }
}

#[tokio::test]
async fn grown_filter_reports_capacities() {
    let service = Service::start().await;
    let users: Vec<String> = (0..700).map(|n| format!("u{n}")).collect();
    let path = "/v1/campaigns/tiny";
    let made = service.put(path, json!({"capacity": 1})).await.json(201);
    service
        .post("/v1/campaigns/tiny/users", json!({"users": users}))
        .await
        .json(200);
    let stats = service.get(path).await.json(200)["stats"].clone();
    assert!(
        stats["capacity_now"].as_u64() >= stats["items"].as_u64(),
        "{stats}"
    );
    assert!(stats["capacity_max"].as_u64() >= Some(100_000), "{stats}");
    assert!(
        made["stats"]["capacity_max"].as_u64() >= Some(100_000),
        "{made}"
    );
    // The end of growth: the refusal names what helps.
    let spec = json!({"capacity": 10, "error_rate": 0.000_000_01});
    let most =
        service.put("/v1/campaigns/exact", spec).await.json(201)["stats"]["capacity_max"].as_u64();
    let most = most.unwrap() as usize;
    let add =
        |users: &[String]| service.post("/v1/campaigns/exact/users", json!({ "users": users }));
    add(&users[..most]).await.json(200);
    let full = add(&users).await.problem(409, "filter-full");
    assert!(
        full["detail"].as_str().unwrap().contains("strict"),
        "{full}"
    );
    let larger = service
        .patch("/v1/campaigns/exact", json!({"capacity": 100_000}))
        .await;
    assert!(
        larger.problem(422, "invalid-request")["detail"]
            .as_str()
            .unwrap()
            .contains("strict")
    );
}

/// Its error rate follows from the layout.
#[tokio::test]
async fn filter_with_layout_reports_error_rate() {
    let service = Service::start().await;
    for (growth, most) in [("fixed", 0.000_123), ("auto", 0.000_245)] {
        let spec = json!({"capacity": 100, "growth": growth, "layout": {"fingerprint_bits": 16}});
        let made = service
            .put(&format!("/v1/campaigns/{growth}"), spec)
            .await
            .json(201);
        let rate = made["error_rate"].as_f64().unwrap();
        assert!(rate <= most && rate > 0.99 * most, "{made}");
    }
}

/// Frequent requests are routed directly if their path has no escapes.
#[tokio::test]
async fn escaped_name_addresses_same_filter() {
    let service = Service::start().await;
    service
        .put("/v1/campaigns/spring", json!({"capacity": 100}))
        .await
        .json(201);
    for (name, user) in [("spring", "u1"), ("spr%69ng", "u2")] {
        let added = service
            .post(
                &format!("/v1/campaigns/{name}/users"),
                json!({"users": [user]}),
            )
            .await;
        assert_eq!(added.json(200)["added"], 1, "{name}");
        let users = json!({"users": ["u1", user]});
        let present = service
            .post(&format!("/v1/campaigns/{name}/users/check"), users)
            .await
            .json(200);
        assert_eq!(present["present"], json!([true, true]), "{name}");
    }
    let unknown = service
        .post("/v1/campaigns/none/users/check", json!({"users": ["u1"]}))
        .await;
    unknown.problem(404, "campaign-not-found");
}

/// PATCH raises a capacity immediately and permanently; a rejected one changes nothing, the window included.
#[tokio::test]
async fn capacity_can_be_raised() {
    let service = Service::start().await;
    let users: Vec<String> = (0..400).map(|n| format!("u{n}")).collect();
    let rate = json!({"capacity": 500, "error_rate": 0.01});
    let layout = json!({"capacity": 500, "layout": {"fingerprint_bits": 10}});
    let strict = json!({"capacity": 500, "mode": "strict"});
    for (name, spec) in [("rate", rate), ("layout", layout), ("strict", strict)] {
        let path = &format!("/v1/campaigns/{name}");
        service.put(path, spec.clone()).await.json(201);
        for filled in [false, true] {
            let added = json!({ "users": &users[..if filled { 400 } else { 0 }.max(1)] });
            service
                .post(&format!("{path}/users"), added)
                .await
                .json(200);
            let wanted = if filled { 300_000 } else { 600 };
            let raised = service
                .patch(path, json!({ "capacity": wanted }))
                .await
                .json(200);
            assert_eq!(raised["capacity"], wanted, "{name}");
            assert!(
                raised["stats"]["capacity_now"].as_u64() >= Some(wanted),
                "{name}: {raised}"
            );
            assert_eq!(service.get(path).await.json(200), raised);
            assert_eq!(
                service
                    .patch(path, json!({ "capacity": wanted }))
                    .await
                    .json(200),
                raised
            );
            let answer = service
                .patch(path, json!({ "capacity": wanted - 1, "ends_at": null }))
                .await;
            assert_eq!(answer.pointers(), ["/capacity"]);
            assert_eq!(service.get(path).await.json(200), raised);
        }
        for bad in [
            json!(null),
            json!("1"),
            json!(1.5),
            json!(-1),
            json!(0),
            json!(4_294_967_297_u64),
        ] {
            let answer = service
                .patch(
                    path,
                    json!({ "capacity": bad, "ends_at": "2027-01-01T00:00:00Z" }),
                )
                .await;
            assert_eq!(answer.pointers(), ["/capacity"], "{name}: {bad}");
        }
        let check = service
            .post(&format!("{path}/users/check"), json!({ "users": users }))
            .await
            .json(200);
        assert!(
            check["present"]
                .as_array()
                .unwrap()
                .iter()
                .all(|present| present == true),
            "{name}"
        );
        let standing = service.get(path).await.json(200);
        assert!(standing.get("ends_at").is_none());
        // PUT also compares the capacity.
        service
            .put(path, spec.clone())
            .await
            .problem(409, "already-exists");
        let mut spec = spec;
        spec["capacity"] = json!(300_000);
        service.put(path, spec).await.json(200);
        // An empty one begins with it.
        service
            .post(&format!("{path}/clear"), json!({}))
            .await
            .json(200);
        let cleared = service.get(path).await.json(200);
        assert_eq!(
            cleared["stats"]["segments"].as_array().unwrap().len(),
            1,
            "{name}"
        );
        assert!(
            cleared["stats"]["capacity_now"].as_u64() >= Some(300_000),
            "{name}"
        );
    }
}

#[tokio::test]
async fn impossible_capacity_change_is_rejected() {
    let service = Service::start().await;
    let fixed = "/v1/campaigns/fixed";
    let made = service
        .put(fixed, json!({"capacity": 500, "growth": "fixed"}))
        .await
        .json(201);
    for other in [499, 501, 1_000_000] {
        assert_eq!(
            service
                .patch(fixed, json!({ "capacity": other }))
                .await
                .pointers(),
            ["/capacity"]
        );
    }
    assert_eq!(
        service
            .patch(fixed, json!({"capacity": 500}))
            .await
            .json(200),
        made
    );
    // A fingerprint has at most 32 bits, and a further segment needs a longer one.
    for (bits, can_grow) in [(31, true), (32, false)] {
        let long = format!("/v1/campaigns/long{bits}");
        service
            .put(
                &long,
                json!({"capacity": 500, "layout": {"fingerprint_bits": bits}}),
            )
            .await
            .json(201);
        service
            .post(&format!("{long}/users"), json!({"users": ["u1"]}))
            .await
            .json(200);
        let raised = service.patch(&long, json!({"capacity": 1_500})).await;
        if can_grow {
            raised.json(200);
        } else {
            assert_eq!(raised.pointers(), ["/capacity"]);
        }
        service
            .post(&format!("{long}/clear"), json!({}))
            .await
            .json(200);
        service
            .patch(&long, json!({"capacity": 3_000}))
            .await
            .json(200);
    }
}

#[tokio::test]
async fn auto_filter_grows() {
    let service = Service::start().await;
    let users: Vec<String> = (0..10_000).map(|n| format!("u{n}")).collect();
    for mode in ["compact", "strict"] {
        let path = format!("/v1/campaigns/{mode}");
        service
            .put(&path, json!({"capacity": 500, "mode": mode}))
            .await
            .json(201);
        assert_eq!(
            service
                .post(&format!("{path}/users"), json!({"users": users}))
                .await
                .json(200)["added"],
            10_000
        );
        let check = service
            .post(&format!("{path}/users/check"), json!({"users": users}))
            .await
            .json(200);
        assert!(
            check["present"]
                .as_array()
                .unwrap()
                .iter()
                .all(|present| present == true),
            "{mode}"
        );
        assert!(
            service.get(&path).await.json(200)["stats"]["capacity_now"].as_u64() >= Some(10_000),
            "{mode}"
        );
    }
}
