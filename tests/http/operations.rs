//! Endpoints for operators: probes, metrics, the document, totals, plans, snapshots, backups.

use crate::service::{Service, json as json_request, request};
use axum::body::Body;
use cuckood::engine::EngineOptions;
use cuckood::http::options::HttpOptions;
use http::Method;
use serde_json::{Value, json};
use std::io::Read;

#[tokio::test]
async fn probes_distinguish_liveness_from_readiness() {
    let service = Service::start().await;
    assert_eq!(service.get("/livez").await.status, 200);
    assert_eq!(service.get("/readyz").await.status, 200);
    service.end_uploads();
    service.get("/readyz").await.problem(503, "draining");
    service.get("/v1/campaigns").await.json(200);
    service.drain().await;
    assert_eq!(service.get("/livez").await.status, 200);
    service.get("/readyz").await.problem(503, "draining");
    service
        .put("/v1/campaigns/spring", json!({"capacity": 10}))
        .await
        .problem(503, "draining");
}

#[tokio::test]
async fn readiness_names_memory_limit_while_adds_are_rejected() {
    let small = |options: &mut EngineOptions| options.memory_max_bytes = 4 << 20;
    let service = Service::on(None, HttpOptions::default(), small).await;
    service
        .put(
            "/v1/campaigns/spring",
            json!({"capacity": 10_000, "mode": "strict"}),
        )
        .await
        .json(201);
    let mut number = 0..;
    let rejected = loop {
        let users: Vec<String> = number
            .by_ref()
            .take(10_000)
            .map(|user: u32| format!("u{user}"))
            .collect();
        let added = service
            .post("/v1/campaigns/spring/users", json!({"users": users}))
            .await;
        if added.status != 200 {
            break added;
        }
    };
    rejected.problem(507, "memory-limit");
    assert_eq!(
        service.get("/readyz").await.json(200)["writes"],
        "memory-limit"
    );
    service.delete("/v1/campaigns/spring").await;
    // The tables are freed between later commits.
    let mut attempts = 0..100_000;
    while service
        .get("/readyz")
        .await
        .json(200)
        .get("writes")
        .is_some()
    {
        assert!(
            attempts.next().is_some(),
            "the memory of a deleted campaign is not freed"
        );
    }
}

#[tokio::test]
async fn metrics_share_prefix_and_name_no_item() {
    let service = Service::start().await;
    service
        .put("/v1/campaigns/spring", json!({"capacity": 10}))
        .await
        .json(201);
    service
        .post(
            "/v1/campaigns/spring/users",
            json!({"users": ["a-user-of-ours"]}),
        )
        .await
        .json(200);
    let answer = service.get("/metrics").await;
    assert_eq!(answer.status, 200);
    let media_type = answer.header("content-type").to_owned();
    assert!(
        media_type.starts_with("text/plain")
            || media_type.starts_with("application/openmetrics-text")
    );
    let text = answer.text();
    let samples: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .collect();
    assert!(!samples.is_empty());
    for sample in samples {
        assert!(
            sample.starts_with("cuckood_") || sample.starts_with("process_"),
            "{sample}"
        );
    }
    assert!(!text.contains("a-user-of-ours"));
}

#[tokio::test]
async fn docs_load_no_external_resource() {
    let service = Service::start().await;
    let moved = service.get("/docs").await;
    assert_eq!((moved.status, moved.header("location")), (307, "docs/"));
    let page = service.get("/docs/").await;
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").starts_with("text/html"));
    assert!(
        page.header("content-security-policy")
            .starts_with("default-src 'self'")
    );

    let text = page.text();
    let parts: Vec<&str> = ["src=\"", "href=\""]
        .iter()
        .flat_map(|attribute| {
            text.split(attribute)
                .skip(1)
                .map(|rest| rest.split('"').next().unwrap())
        })
        .filter(|part| !part.starts_with("data:"))
        .collect();
    assert_eq!(parts.len(), 3, "{parts:?}");
    for part in parts {
        let path = part.strip_prefix("./").expect("a part is beside its page");
        let answer = service.get(&format!("/docs/{path}")).await;
        assert_eq!(answer.status, 200, "{path}");
        let expected = if path.ends_with(".css") {
            "text/css"
        } else {
            "text/javascript"
        };
        assert!(
            answer.header("content-type").starts_with(expected),
            "{path}"
        );
        let mut body = answer.body.as_slice();
        let mut unpacked = Vec::new();
        match answer.header("content-encoding") {
            "gzip" => flate2::read::GzDecoder::new(body)
                .read_to_end(&mut unpacked)
                .unwrap(),
            coding => {
                assert_eq!(coding, "");
                body.read_to_end(&mut unpacked).unwrap()
            }
        };
        let unpacked = String::from_utf8(unpacked).unwrap();
        let expected = match path {
            "start.js" => "\"../openapi.json\"",
            "swagger-ui.css" => ".swagger-ui",
            _ => "SwaggerUIBundle",
        };
        assert!(unpacked.contains(expected), "{path}");
    }
    service
        .get("/docs/other.js")
        .await
        .problem(404, "route-not-found");
}

#[tokio::test]
async fn info_reports_version_and_totals() {
    let service = Service::start().await;
    let info = service.get("/v1/info").await.json(200);
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    assert!(
        info.to_string().contains("relaxed"),
        "the durability in {info}"
    );
}

#[tokio::test]
async fn plan_matches_created_filter() {
    let service = Service::start().await;
    let plan = service.get("/v1/plan?capacity=1000000").await.json(200);
    for whole in ["fingerprint_bits", "bucket_size", "buckets", "memory_bytes"] {
        assert!(plan[whole].is_u64(), "{whole} in {plan}");
    }
    for number in ["bits_per_item", "error_rate_at_capacity"] {
        assert!(
            plan[number].as_f64().is_some_and(|number| number > 0.0),
            "{number} in {plan}"
        );
    }
    assert!(plan["error_rate_at_capacity"].as_f64() <= Some(0.001));
    let made = service
        .put("/v1/campaigns/spring", json!({"capacity": 1_000_000}))
        .await
        .json(201);
    assert_eq!(
        made["stats"]["segments"][0]["fingerprint_bits"],
        plan["fingerprint_bits"]
    );
    assert_eq!(made["stats"]["memory_bytes"], plan["memory_bytes"]);
    assert_eq!(made["stats"]["capacity_max"], plan["capacity_max"]);
    let strict = service
        .get("/v1/plan?capacity=1000&mode=strict&growth=fixed")
        .await
        .json(200);
    assert_eq!(
        (&strict["fingerprint_bits"], &strict["capacity_max"]),
        (&json!(62), &json!(1_000))
    );
    // Long fingerprints leave few bits for growth.
    let short = service
        .get("/v1/plan?capacity=1000&error_rate=0.00000001")
        .await
        .json(200);
    assert!(
        (1_000..10_000).contains(&short["capacity_max"].as_u64().unwrap()),
        "{short}"
    );
    for bad in [
        "",
        "?capacity=0",
        "?capacity=x",
        "?capacity=10&mode=strict&error_rate=0.1",
        "?capacity=10&colour=1",
    ] {
        service
            .get(&format!("/v1/plan{bad}"))
            .await
            .problem(422, "invalid-request");
    }
}

#[tokio::test]
async fn snapshots_and_backups_are_taken() {
    let service = Service::start().await;
    service
        .put("/v1/campaigns/spring", json!({"capacity": 10}))
        .await
        .json(201);
    let report = service.command("/v1/snapshots").await.json(200);
    assert!(report["seq"].as_u64() > Some(0), "{report}");
    let backup = service.get("/v1/backup").await;
    assert_eq!(backup.status, 200);
    assert!(!backup.body.is_empty());
    assert_ne!(backup.header("content-type"), "application/json");
    for coding in ["gzip", "zstd"] {
        let headers = [("accept-encoding", coding)];
        let packed = service
            .send(request(Method::GET, "/v1/backup", &headers, Body::empty()))
            .await;
        assert_eq!(
            (packed.status, packed.header("content-encoding")),
            (200, coding)
        );
    }
}

#[tokio::test]
async fn every_response_under_v1_has_position() {
    let service = Service::start().await;
    for path in [
        "/v1/info",
        "/v1/campaigns/none",
        "/v1/nothing",
        "/v1/campaigns/none/users",
        "/v1",
    ] {
        let position = service
            .get(path)
            .await
            .header("x-cuckood-position")
            .parse::<u64>();
        assert!(position.is_ok(), "{path}: {position:?}");
    }
    let before = service
        .get("/v1/info")
        .await
        .header("x-cuckood-position")
        .parse::<u64>()
        .unwrap();
    let put = service
        .put("/v1/campaigns/spring", json!({"capacity": 10}))
        .await;
    assert!(put.header("x-cuckood-position").parse::<u64>().unwrap() > before);
    assert_eq!(
        service.get("/readyz").await.header("x-cuckood-position"),
        ""
    );
}

/// Clients and the console send a key with every write. So the runbook's remedy must work with one.
#[tokio::test]
async fn keyed_writes_free_memory_beyond_limit() {
    let mut service = Service::start().await;
    service
        .put("/v1/campaigns/spring", json!({"capacity": 20_000}))
        .await
        .json(201);
    service
        .put("/v1/coupons/welcome", json!({"capacity": 20_000}))
        .await
        .json(201);
    service
        .put("/v1/line-ups/home", json!({"campaigns": ["spring"]}))
        .await
        .json(201);
    service
        .post("/v1/campaigns/spring/users", json!({"users": ["u1", "u2"]}))
        .await
        .json(200);
    service
        .post(
            "/v1/coupons/welcome/codes",
            json!({"codes": ["A", "B", "C", "D"]}),
        )
        .await
        .json(200);
    let mut paths = Vec::new();
    for code in ["A", "B"] {
        let hold = json!({"code": code, "reference": code, "hold_seconds": 600});
        let held = service
            .post("/v1/coupons/welcome/redemptions", hold)
            .await
            .json(201);
        paths.push(format!(
            "/v1/coupons/welcome/redemptions/{}",
            held["id"].as_str().unwrap()
        ));
    }
    service.setup().memory_max_bytes = 10_000;
    let service = service.restart().await;
    let send = async |method: Method, path: &str, body: &Value| {
        let key = [("idempotency-key", path)];
        let request = match body.is_null() {
            true => request(method, path, &key, Body::empty()),
            false => json_request(method, path, &key, body),
        };
        service.send(request).await
    };
    let confirm = format!("{}/confirm", paths[0]);
    let cancel = format!("{}/cancel", paths[1]);
    let post = Method::POST;
    let nothing = Value::Null;
    for (path, body) in [
        (
            "/v1/campaigns/spring/users/remove",
            json!({"users": ["u1"]}),
        ),
        ("/v1/coupons/welcome/codes/remove", json!({"codes": ["C"]})),
        (confirm.as_str(), nothing.clone()),
        (cancel.as_str(), nothing.clone()),
        ("/v1/campaigns/spring/clear", nothing.clone()),
        ("/v1/coupons/welcome/clear", nothing.clone()),
    ] {
        let first = send(post.clone(), path, &body).await;
        assert_eq!(
            (first.status, first.header("idempotency-replayed")),
            (200, ""),
            "{path}: {}",
            first.text()
        );
        let again = send(post.clone(), path, &body).await;
        assert_eq!(
            (again.status, again.header("idempotency-replayed")),
            (200, "true"),
            "{path}"
        );
        assert_eq!(again.body, first.body, "{path}");
    }
    let rejected = send(
        post,
        "/v1/campaigns/spring/users",
        &json!({"users": ["u3"]}),
    )
    .await;
    rejected.problem(507, "memory-limit");
    for path in [
        "/v1/line-ups/home",
        "/v1/campaigns/spring",
        "/v1/coupons/welcome?force=true",
    ] {
        for replayed in ["", "true"] {
            let deleted = send(Method::DELETE, path, &nothing).await;
            assert_eq!(
                (deleted.status, deleted.header("idempotency-replayed")),
                (204, replayed),
                "{path}"
            );
        }
    }
}
