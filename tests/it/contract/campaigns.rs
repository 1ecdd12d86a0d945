//! Campaigns and their users.

use super::service::Service;
use serde_json::{Value, json};

#[tokio::test]
async fn put_creates_once_and_repeats() {
    let service = Service::start().await;
    let created = service.put("/v1/campaigns/spring", json!({"capacity": 1000})).await;
    assert_eq!(created.header("location"), "/v1/campaigns/spring");
    let campaign = created.json(201);
    assert_eq!(campaign["name"], "spring");
    assert_eq!(campaign["capacity"], 1000);
    assert_eq!(campaign["mode"], "compact");
    assert_eq!(campaign["error_rate"], 0.001);
    assert_eq!(campaign["growth"], "auto");
    assert_eq!(campaign["created_at"], "2026-11-21T12:00:00Z");
    for absent in ["starts_at", "ends_at", "layout", "ignore_case"] {
        assert!(campaign.get(absent).is_none(), "{absent} in {campaign}");
    }
    let stats = &campaign["stats"];
    for whole in ["items", "capacity_now", "memory_bytes", "adds", "removes"] {
        assert!(stats[whole].is_u64(), "{whole} in {stats}");
    }
    for share in ["load", "error_rate_now"] {
        assert!(stats[share].is_number(), "{share} in {stats}");
    }
    assert!(stats["capacity_now"].as_u64() >= Some(1000));
    for whole in ["items", "capacity", "fingerprint_bits", "bucket_size"] {
        assert!(stats["segments"][0][whole].is_u64(), "{whole} in {stats}");
    }
    assert!(stats.get("available").is_none());

    let again = service.put("/v1/campaigns/spring", json!({"capacity": 1000, "growth": "auto"})).await;
    assert_eq!(again.json(200), campaign);
    assert_eq!(service.get("/v1/campaigns/spring").await.json(200), campaign);

    let other = service.put("/v1/campaigns/spring", json!({"capacity": 2000, "growth": "fixed"})).await;
    let problem = other.problem(409, "already-exists").to_string();
    assert!(problem.contains("capacity") && problem.contains("growth"), "{problem}");
}

#[tokio::test]
async fn invalid_spec_is_rejected() {
    let service = Service::start().await;
    let layout = json!({"fingerprint_bits": 16, "bucket_size": 4, "max_search": 512});
    for bad in [
        json!({}),
        json!({"capacity": 0}),
        json!({"capacity": -1}),
        json!({"capacity": 1.5}),
        json!({"capacity": "1000"}),
        json!({"capacity": 10, "mode": "loose"}),
        json!({"capacity": 10, "growth": "slow"}),
        json!({"capacity": 10, "mode": {"strict": null}}),
        json!({"capacity": 10, "growth": ["fixed"]}),
        json!({"capacity": 10, "layout": [16, 4, 512]}),
        json!({"capacity": 10, "layout": null}),
        json!({"capacity": 10, "error_rate": 0}),
        json!({"capacity": 10, "error_rate": 1.5}),
        json!({"capacity": 10, "error_rate": 0.01, "layout": layout}),
        json!({"capacity": 10, "mode": "strict", "error_rate": 0.01}),
        json!({"capacity": 10, "mode": "strict", "layout": layout}),
        json!({"capacity": 10, "layout": {"fingerprint_bits": 16, "bucket_size": 3}}),
        json!({"capacity": 10_000, "growth": "fixed", "layout": {"fingerprint_bits": 4, "bucket_size": 2}}),
        json!({"capacity": 10, "growth": "fixed", "layout": {"fingerprint_bits": 16, "max_search": 249}}),
        json!({"capacity": 10, "colour": "red"}),
        json!({"capacity": 10, "ignore_case": true}),
        json!({"capacity": 10, "starts_at": "yesterday"}),
        json!({"capacity": 10, "starts_at": "2026-12-02T00:00:00Z", "ends_at": "2026-12-01T00:00:00Z"}),
    ] {
        let answer = service.put("/v1/campaigns/spring", bad.clone()).await;
        assert_eq!(answer.status, 422, "{bad}: {}", answer.text());
        assert!(!answer.pointers().is_empty(), "{bad}");
    }
    service.get("/v1/campaigns/spring").await.problem(404, "campaign-not-found");
    for name in ["Spring", "-a", "a%20b", &"a".repeat(129)] {
        let answer = service.put(&format!("/v1/campaigns/{name}"), json!({"capacity": 10})).await;
        assert_eq!(answer.status, 422, "{name}: {}", answer.text());
    }
}

#[tokio::test]
async fn layout_replaces_error_rate() {
    let service = Service::start().await;
    let layout = json!({"fingerprint_bits": 16, "bucket_size": 4, "max_search": 512});
    let created =
        service.put("/v1/campaigns/spring", json!({"capacity": 1000, "layout": layout})).await.json(201);
    assert_eq!(created["layout"], layout);
    assert!(created.get("error_rate").is_none());
    assert_eq!(created["stats"]["segments"][0]["fingerprint_bits"], 16);
}

#[tokio::test]
async fn campaigns_are_listed_by_name_in_pages() {
    let service = Service::start().await;
    for name in ["eu-b", "eu-a", "us-a", "eu-c"] {
        service.put(&format!("/v1/campaigns/{name}"), json!({"capacity": 10})).await.json(201);
    }
    let names = |page: &Value| -> Vec<String> {
        let campaigns = page["campaigns"].as_array().unwrap();
        campaigns.iter().map(|campaign| campaign["name"].as_str().unwrap().to_owned()).collect()
    };
    let all = service.get("/v1/campaigns").await.json(200);
    assert_eq!(names(&all), ["eu-a", "eu-b", "eu-c", "us-a"]);
    assert!(all.get("next_cursor").is_none());
    let first = service.get("/v1/campaigns?limit=2&prefix=eu-").await.json(200);
    assert_eq!(names(&first), ["eu-a", "eu-b"]);
    let cursor = first["next_cursor"].as_str().unwrap();
    let last = service.get(&format!("/v1/campaigns?limit=2&prefix=eu-&cursor={cursor}")).await.json(200);
    assert_eq!(names(&last), ["eu-c"]);
    assert!(last.get("next_cursor").is_none());
    for bad in ["limit=0", "limit=x", "colour=red"] {
        service.get(&format!("/v1/campaigns?{bad}")).await.problem(422, "invalid-request");
    }
}

#[tokio::test]
async fn patch_sets_keeps_and_clears_fields() {
    let service = Service::start().await;
    let path = "/v1/campaigns/spring";
    service.patch(path, json!({"ends_at": null})).await.problem(404, "campaign-not-found");
    service.put(path, json!({"capacity": 10, "starts_at": "2026-12-01T00:00:00Z"})).await.json(201);
    let both = service.patch(path, json!({"ends_at": "2026-12-31T00:00:00+01:00"})).await.json(200);
    assert_eq!(both["starts_at"], "2026-12-01T00:00:00Z");
    assert_eq!(both["ends_at"], "2026-12-30T23:00:00Z");
    let one = service.patch(path, json!({"starts_at": null})).await.json(200);
    assert!(one.get("starts_at").is_none() && one.get("ends_at").is_some());
    assert_eq!(service.get(path).await.json(200), one);
    assert_eq!(service.patch(path, json!({"mode": "strict"})).await.pointers(), ["/mode"]);
    service.patch(path, json!({"starts_at": "2027-01-01T00:00:00Z"})).await.problem(422, "invalid-request");
    assert_eq!(service.get(path).await.json(200), one);
}

#[tokio::test]
async fn delete_removes_campaign_and_users() {
    let service = Service::start().await;
    let path = "/v1/campaigns/spring";
    service.put(path, json!({"capacity": 10})).await.json(201);
    service.post(&format!("{path}/users"), json!({"users": ["u1"]})).await.json(200);
    let deleted = service.delete(path).await;
    assert_eq!((deleted.status, deleted.body.len()), (204, 0));
    service.delete(path).await.problem(404, "campaign-not-found");
    service
        .post(&format!("{path}/users/check"), json!({"users": ["u1"]}))
        .await
        .problem(404, "campaign-not-found");
    service.put(path, json!({"capacity": 10})).await.json(201);
    let present = service.post(&format!("{path}/users/check"), json!({"users": ["u1"]})).await.json(200);
    assert_eq!(present, json!({"present": [false]}));
}

#[tokio::test]
async fn compact_campaign_is_multiset() {
    let service = Service::start().await;
    service.put("/v1/campaigns/spring", json!({"capacity": 1000})).await.json(201);
    let post = |operation: &'static str, body: Value| {
        let path = format!("/v1/campaigns/spring/users{operation}");
        let service = &service;
        async move { service.post(&path, body).await.json(200) }
    };
    let added = post("", json!({"users": ["u1", "u1", "u2"]})).await;
    assert_eq!(added, json!({"outcomes": ["added", "added", "added"], "added": 3}));
    let added = post("", json!({"users": ["u1", "u3"], "if_absent": true})).await;
    assert_eq!(added, json!({"outcomes": ["already_present", "added"], "added": 1}));
    let users = json!({"users": ["u1", "nobody", "u2"]});
    assert_eq!(post("/check", users.clone()).await, json!({"present": [true, false, true]}));
    assert_eq!(post("/count", users).await, json!({"counts": [2, 0, 1]}));
    let removed = post("/remove", json!({"users": ["u1", "nobody"]})).await;
    assert_eq!(removed, json!({"outcomes": ["removed", "absent"], "removed": 1}));
    post("", json!({"users": ["u1", "u1"]})).await;
    let removed = post("/remove", json!({"users": ["u1"], "all": true})).await;
    assert_eq!(removed, json!({"outcomes": ["removed"], "removed": 3}));
    let pairs = json!({"replacements": [{"from": "u2", "to": "u4"}, {"from": "nobody", "to": "u5"}]});
    assert_eq!(post("/replace", pairs).await, json!({"outcomes": ["replaced", "absent"]}));
    let present = post("/check", json!({"users": ["u2", "u4", "u5"]})).await;
    assert_eq!(present, json!({"present": [false, true, false]}));
    assert_eq!(service.command("/v1/campaigns/spring/clear").await.json(200), json!({"removed": 2}));
    let stats = &service.get("/v1/campaigns/spring").await.json(200)["stats"];
    assert_eq!(stats["items"], 0);
}

#[tokio::test]
async fn excess_copies_are_saturated() {
    let service = Service::start().await;
    let layout = json!({"fingerprint_bits": 16, "bucket_size": 4});
    service.put("/v1/campaigns/spring", json!({"capacity": 1000, "layout": layout})).await.json(201);
    let users = json!({"users": vec!["u1"; 12]});
    let answer = service.post("/v1/campaigns/spring/users", users).await.json(200);
    assert_eq!(answer["added"], 8);
    assert_eq!(answer["outcomes"][7], "added");
    assert_eq!(answer["outcomes"][8], "saturated");
    let count = service.post("/v1/campaigns/spring/users/count", json!({"users": ["u1"]})).await.json(200);
    assert_eq!(count, json!({"counts": [8]}));
}

#[tokio::test]
async fn strict_campaign_is_set() {
    let service = Service::start().await;
    service.put("/v1/campaigns/spring", json!({"capacity": 1000, "mode": "strict"})).await.json(201);
    let users = "/v1/campaigns/spring/users";
    let added = service.post(users, json!({"users": ["u1", "u1"]})).await.json(200);
    assert_eq!(added, json!({"outcomes": ["added", "already_present"], "added": 1}));
    let removed = service.post(&format!("{users}/remove"), json!({"users": ["u1", "u1"]})).await.json(200);
    assert_eq!(removed, json!({"outcomes": ["removed", "absent"], "removed": 1}));
}

#[tokio::test]
async fn full_filter_adds_all_or_nothing() {
    let service = Service::start().await;
    let users: Vec<String> = (0..10_000).map(|n| format!("u{n}")).collect();
    for mode in ["compact", "strict"] {
        let path = format!("/v1/campaigns/{mode}");
        service.put(&path, json!({"capacity": 500, "growth": "fixed", "mode": mode})).await.json(201);
        let add = format!("{path}/users");
        service.post(&add, json!({"users": users})).await.problem(409, "filter-full");
        assert_eq!(service.get(&path).await.json(200)["stats"]["items"], 0, "{mode}");
        assert_eq!(
            service.post(&add, json!({"users": users[..500]})).await.json(200)["added"],
            500,
            "{mode}"
        );
    }
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
            service.post(&format!("{path}/users"), added).await.json(200);
            let wanted = if filled { 300_000 } else { 600 };
            let raised = service.patch(path, json!({ "capacity": wanted })).await.json(200);
            assert_eq!(raised["capacity"], wanted, "{name}");
            assert!(raised["stats"]["capacity_now"].as_u64() >= Some(wanted), "{name}: {raised}");
            assert_eq!(service.get(path).await.json(200), raised);
            assert_eq!(service.patch(path, json!({ "capacity": wanted })).await.json(200), raised);
            let answer = service.patch(path, json!({ "capacity": wanted - 1, "ends_at": null })).await;
            assert_eq!(answer.pointers(), ["/capacity"]);
            assert_eq!(service.get(path).await.json(200), raised);
        }
        for bad in [json!(null), json!("1"), json!(1.5), json!(-1), json!(0), json!(4_294_967_297_u64)] {
            let answer =
                service.patch(path, json!({ "capacity": bad, "ends_at": "2027-01-01T00:00:00Z" })).await;
            assert_eq!(answer.pointers(), ["/capacity"], "{name}: {bad}");
        }
        let check = service.post(&format!("{path}/users/check"), json!({ "users": users })).await.json(200);
        assert!(check["present"].as_array().unwrap().iter().all(|present| present == true), "{name}");
        let standing = service.get(path).await.json(200);
        assert!(standing.get("ends_at").is_none());
        // PUT also compares the capacity.
        service.put(path, spec.clone()).await.problem(409, "already-exists");
        let mut spec = spec;
        spec["capacity"] = json!(300_000);
        service.put(path, spec).await.json(200);
        // An empty one begins with it.
        service.post(&format!("{path}/clear"), json!({})).await.json(200);
        let cleared = service.get(path).await.json(200);
        assert_eq!(cleared["stats"]["segments"].as_array().unwrap().len(), 1, "{name}");
        assert!(cleared["stats"]["capacity_now"].as_u64() >= Some(300_000), "{name}");
    }
}

#[tokio::test]
async fn impossible_capacity_change_is_rejected() {
    let service = Service::start().await;
    let fixed = "/v1/campaigns/fixed";
    let made = service.put(fixed, json!({"capacity": 500, "growth": "fixed"})).await.json(201);
    for other in [499, 501, 1_000_000] {
        assert_eq!(service.patch(fixed, json!({ "capacity": other })).await.pointers(), ["/capacity"]);
    }
    assert_eq!(service.patch(fixed, json!({"capacity": 500})).await.json(200), made);
    // A fingerprint has at most 32 bits, and a further segment needs a longer one.
    for (bits, can_grow) in [(31, true), (32, false)] {
        let long = format!("/v1/campaigns/long{bits}");
        service.put(&long, json!({"capacity": 500, "layout": {"fingerprint_bits": bits}})).await.json(201);
        service.post(&format!("{long}/users"), json!({"users": ["u1"]})).await.json(200);
        let raised = service.patch(&long, json!({"capacity": 1_500})).await;
        if can_grow {
            raised.json(200);
        } else {
            assert_eq!(raised.pointers(), ["/capacity"]);
        }
        service.post(&format!("{long}/clear"), json!({})).await.json(200);
        service.patch(&long, json!({"capacity": 3_000})).await.json(200);
    }
}

#[tokio::test]
async fn auto_filter_grows() {
    let service = Service::start().await;
    let users: Vec<String> = (0..10_000).map(|n| format!("u{n}")).collect();
    for mode in ["compact", "strict"] {
        let path = format!("/v1/campaigns/{mode}");
        service.put(&path, json!({"capacity": 500, "mode": mode})).await.json(201);
        assert_eq!(
            service.post(&format!("{path}/users"), json!({"users": users})).await.json(200)["added"],
            10_000
        );
        let check = service.post(&format!("{path}/users/check"), json!({"users": users})).await.json(200);
        assert!(check["present"].as_array().unwrap().iter().all(|present| present == true), "{mode}");
        assert!(
            service.get(&path).await.json(200)["stats"]["capacity_now"].as_u64() >= Some(10_000),
            "{mode}"
        );
    }
}
