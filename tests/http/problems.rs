//! Every documented problem is reachable. `Service::send` checks for each request of each test that no other occurs.

use crate::conventions::zstd_spaces;
use crate::document::{OPERATIONS, Operation};
use crate::service::{Service, json as json_request, request};
use axum::body::Body;
use bytes::Bytes;
use cuckood::access::GuessingOptions;
use cuckood::http::options::{HttpOptions, LimitOptions};
use futures_util::StreamExt;
use http::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tokio::runtime::Builder;
use tokio::sync::mpsc;

/// What any request may meet, whatever it asks for: it depends on keys, rates, clocks, memory and disks.
const GENERAL: [u16; 7] = [401, 403, 408, 429, 500, 503, 507];

#[test]
fn problem_code_has_one_documented_status() {
    let mut statuses: BTreeMap<&str, BTreeSet<u16>> = BTreeMap::new();
    for operation in OPERATIONS.iter() {
        for (status, codes) in operation
            .responses
            .iter()
            .filter(|(status, _)| **status >= 400)
        {
            assert!(
                !codes.is_empty(),
                "{}: {status} names no code",
                operation.id
            );
        }
        for (status, code) in operation.problems() {
            statuses.entry(code).or_default().insert(status);
        }
    }
    for (code, statuses) in &statuses {
        assert_eq!(statuses.len(), 1, "{code}: {statuses:?}");
    }
    // Those two occur where there is no operation.
    let known = crate::document::DOCUMENT["components"]["schemas"]["ProblemCode"]["enum"]
        .as_array()
        .unwrap();
    let unpromised: Vec<_> = known
        .iter()
        .filter(|code| !statuses.contains_key(code.as_str().unwrap()))
        .collect();
    assert_eq!(unpromised, ["route-not-found", "method-not-allowed"]);
}

/// By the scripts, or by these requests.
#[test]
fn every_documented_problem_is_reachable() {
    let mut seen = crate::scripts::problems();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    seen.extend(runtime.block_on(async {
        let limits = LimitOptions {
            body_bytes_max: 40_000,
            ..LimitOptions::default()
        };
        let service = Service::with(HttpOptions {
            limits,
            ..HttpOptions::default()
        })
        .await;
        names_and_bodies(&service).await;
        full_filters(&service).await;
        imports(&service).await;
        used_keys(&service).await;
        service.pass(31 * 86_400);
        service
            .get("/v1/events?after=0")
            .await
            .problem(410, "events-gone");
        service.problems()
    }));
    let promised = OPERATIONS.iter().flat_map(|operation| {
        let problems = operation
            .problems()
            .filter(|(status, _)| !GENERAL.contains(status));
        problems.map(|(_, code)| (operation.id.clone(), code.to_owned()))
    });
    // Any operation may get malformed HTTP and other transfer codings, but our client can't send them. Some problems only occur in
    // clusters.
    let is_of_http = |code: &str| ["malformed-request", "not-implemented"].contains(&code);
    let among_several = |operation: &str, code: &str| {
        let of_nodes = [("stop_import", "import-running")];
        let of_uploads = operation.starts_with("import_") && code == "import-not-found";
        of_nodes.contains(&(operation, code)) || of_uploads
    };
    let missing: Vec<_> = promised
        .filter(|(operation, code)| !is_of_http(code) && !among_several(operation, code))
        .filter(|pair| !seen.contains(pair))
        .collect();
    assert_eq!(missing, [], "promised, but not to be had");
}

#[tokio::test]
async fn guess_limit_applies_where_documented() {
    let guessing = GuessingOptions {
        invalid_codes_per_minute: 1,
        ..GuessingOptions::default()
    };
    let service = Service::with(HttpOptions {
        guessing,
        ..HttpOptions::default()
    })
    .await;
    service
        .put("/v1/coupons/p", json!({"capacity": 10, "growth": "fixed"}))
        .await
        .json(201);
    service
        .post("/v1/coupons/p/codes/check", json!({"codes": ["wrong"]}))
        .await
        .json(200);
    let mut promised = BTreeSet::new();
    let mut stopped = BTreeSet::new();
    for operation in OPERATIONS.iter() {
        if operation
            .problems()
            .any(|(_, code)| code == "too-many-invalid-codes")
        {
            promised.insert(&operation.id);
        }
        if operation.path.starts_with("/v1/coupons/") && operation.method != Method::DELETE {
            let body = match operation.id.as_str() {
                "redeem" => json!({"code": "wrong", "reference": "r"}),
                "replace_codes" => json!({"replacements": [{"from": "wrong", "to": "other"}]}),
                "look_up_customers" => json!({"customers": ["wrong"]}),
                _ => json!({"codes": ["wrong"]}),
            };
            let mut sent = sample(operation, "p", &body);
            if operation.path.ends_with("/imports") {
                *sent.uri_mut() = format!("{}?dry_run=true", sent.uri().path())
                    .parse()
                    .unwrap();
            }
            let answer = service.send(sent).await;
            if answer.status == 429 {
                stopped.insert(&operation.id);
            }
        }
    }
    assert_eq!(promised, stopped);
}

/// A request for an operation on the filter of this name.
fn sample(operation: &Operation, name: &str, body: &Value) -> http::Request<Body> {
    let path: Vec<&str> = operation
        .path
        .split('/')
        .map(|part| match part {
            "{campaign}" | "{coupon}" | "{line_up}" => name,
            "{id}" => "00000000000000000000000000000000",
            part => part,
        })
        .collect();
    let path = path.join("/");
    if operation.takes_body && path.ends_with("/image") {
        return request(
            operation.method.clone(),
            &path,
            &[],
            Body::from(body.to_string()),
        );
    }
    match (operation.takes_body, path.ends_with("/imports")) {
        (false, _) => request(operation.method.clone(), &path, &[], Body::empty()),
        (true, true) => {
            let headers = [("content-type", "text/plain")];
            request(
                operation.method.clone(),
                &path,
                &headers,
                Body::from("u1\n"),
            )
        }
        (true, false) => json_request(operation.method.clone(), &path, &[], body),
    }
}

/// Names that nothing bears, that are none; bodies that are too long, of another type, no JSON, not as wanted.
async fn names_and_bodies(service: &Service) {
    service
        .put("/v1/campaigns/c", json!({"capacity": 10}))
        .await
        .json(201);
    service
        .put("/v1/coupons/p", json!({"capacity": 10}))
        .await
        .json(201);
    for operation in OPERATIONS.iter() {
        let name = if operation.path.contains("{coupon}") {
            "p"
        } else {
            "c"
        };
        let send = async |name: &str,
                          query: &str,
                          media_type: Option<&'static str>,
                          body: Option<String>| {
            let mut sent = sample(
                operation,
                name,
                &json!({"users": ["u"], "codes": ["u"], "capacity": 10}),
            );
            if !query.is_empty() {
                *sent.uri_mut() = format!("{}{query}", sent.uri().path()).parse().unwrap();
            }
            if let Some(media_type) = media_type {
                sent.headers_mut()
                    .insert("content-type", media_type.parse().unwrap());
            }
            if let Some(body) = body {
                *sent.body_mut() = Body::from(body);
            }
            service.send(sent).await
        };
        // Nothing is created or dropped: the others need it, or that it is not there.
        send("NO%20NAME", "", None, None).await;
        send(
            "none",
            "",
            None,
            (operation.method == Method::PUT).then(|| "{}".to_owned()),
        )
        .await;
        if operation.method != Method::DELETE {
            send(name, "?nothing=1", None, None).await;
        }
        if operation.takes_body {
            send(name, "", None, Some("{}".to_owned())).await;
            send(name, "", None, Some("{ no JSON".to_owned())).await;
            send(name, "", None, Some("x".repeat(50_000))).await;
            send(name, "", Some("image/png"), None).await;
        }
        if operation.path.starts_with("/v1/eligibility") {
            let request = json!({"user": "u", "line_up": "none"});
            let is_batch = operation.path.ends_with("/batch");
            let body = if is_batch {
                json!({"requests": [request]})
            } else {
                request
            };
            send(name, "", None, Some(body.to_string())).await;
        }
        if operation.path.ends_with("/{id}") || operation.path.contains("/{id}/") {
            send(name, "", None, None).await;
        }
    }
}

async fn full_filters(service: &Service) {
    let spec = json!({"capacity": 8, "mode": "strict", "growth": "fixed"});
    let many: Vec<String> = (0..500).map(|number| format!("i{number}")).collect();
    let pairs: Vec<Value> = many
        .iter()
        .map(|item| json!({"from": item, "to": format!("{item}x")}))
        .collect();
    for (collection, items) in [("campaigns", "users"), ("coupons", "codes")] {
        let path = format!("/v1/{collection}/small");
        service.put(&path, spec.clone()).await.json(201);
        service
            .put(&path, json!({"capacity": 9}))
            .await
            .problem(409, "already-exists");
        service
            .post(&format!("{path}/{items}"), json!({items: many}))
            .await
            .problem(409, "filter-full");
        let text = many.join("\n");
        service
            .import(&format!("{path}/imports"), "text/plain", text)
            .await
            .problem(409, "filter-full");
        // As many as there is room for; each can be replaced only while one more has room.
        let mut held = Vec::new();
        for item in &many {
            if service
                .post(&format!("{path}/{items}"), json!({items: [item]}))
                .await
                .status
                == 200
            {
                held.push(item);
            }
        }
        assert!(!held.is_empty());
        let replace = format!("{path}/{items}/replace");
        service
            .post(&replace, json!({"replacements": pairs}))
            .await
            .problem(409, "filter-full");
    }
    let generate = json!({"count": 100, "pattern": "####-####-####"});
    service
        .post("/v1/coupons/small/codes/generate", generate)
        .await
        .problem(409, "filter-full");
}

async fn imports(service: &Service) {
    service
        .delete("/v1/imports/none?id=other")
        .await
        .problem(422, "invalid-request");
    for collection in ["campaigns", "coupons"] {
        service
            .put(
                &format!("/v1/{collection}/filled"),
                json!({"capacity": 100}),
            )
            .await
            .json(201);
        let path = |query: &str| format!("/v1/{collection}/filled/imports?{query}");
        let id = format!("id={collection}-");
        service
            .import(&path(&format!("{id}1")), "text/plain", "u1\n")
            .await
            .json(200);
        let other_mode = path(&format!("{id}1&mode=replace"));
        service
            .import(&other_mode, "text/plain", "u1\n")
            .await
            .problem(409, "import-differs");

        let compressed = [("content-type", "text/plain"), ("content-encoding", "zstd")];
        let bomb = request(
            Method::POST,
            &path(""),
            &compressed,
            Body::from(zstd_spaces(200)),
        );
        service.send(bomb).await.problem(413, "body-too-large");

        service
            .delete(&format!("/v1/imports/{collection}-1"))
            .await
            .problem(409, "import-finished");
        service
            .import(&path("mode=replace"), "text/plain", "")
            .await
            .problem(409, "import-guarded");
        let stopped = path(&format!("{id}4"));
        let endless = Body::from_stream(futures_util::stream::pending::<std::io::Result<Bytes>>());
        let stop = async {
            while service
                .delete(&format!("/v1/imports/{collection}-4"))
                .await
                .status
                == 404
            {
                tokio::task::yield_now().await;
            }
        };
        let (answer, ()) = tokio::join!(service.import(&stopped, "text/plain", endless), stop);
        answer.problem(409, "import-stopped");

        // An upload in progress; then another filter takes its place.
        let (pieces, mut rest) = mpsc::unbounded_channel::<Bytes>();
        let body = futures_util::stream::poll_fn(move |context| rest.poll_recv(context))
            .map(Ok::<_, std::io::Error>);
        let first = path(&format!("{id}2&mode=replace"));
        let upload = service.import(&first, "text/plain", Body::from_stream(body));
        let meanwhile = async {
            pieces.send(Bytes::from("u1\n")).unwrap();
            while service
                .get(&format!("/v1/imports/{collection}-2"))
                .await
                .status
                == 404
            {
                tokio::task::yield_now().await;
            }
            service
                .import(&first, "text/plain", "u1\n")
                .await
                .problem(409, "import-running");
            let second = path(&format!("{id}3&mode=replace"));
            service
                .import(&second, "text/plain", "u2\n")
                .await
                .json(200);
            drop(pieces);
        };
        let (answer, ()) = tokio::join!(upload, meanwhile);
        let problem = answer.problem(409, "import-overtaken");
        let overtaken = service
            .get(&format!("/v1/imports/{collection}-2"))
            .await
            .json(200);
        assert_eq!(
            (&overtaken["state"], &overtaken["failure"]["code"]),
            (&json!("failed"), &problem["code"])
        );
    }
}

/// Under one key, two requests.
async fn used_keys(service: &Service) {
    let headers = [("idempotency-key", "k")];
    for (campaign, status) in [("a", 201), ("b", 422)] {
        let body = json!({"campaigns": [campaign]});
        let put = json_request(Method::PUT, "/v1/line-ups/keyed", &headers, &body);
        assert_eq!(service.send(put).await.status, status);
    }
    let delete = request(
        Method::DELETE,
        "/v1/line-ups/keyed",
        &headers,
        Body::empty(),
    );
    assert_eq!(service.send(delete).await.status, 422);
    for operation in OPERATIONS
        .iter()
        .filter(|operation| operation.path.contains("{c"))
    {
        let key_is_promised = operation
            .problems()
            .any(|(_, code)| code == "idempotency-key-reused");
        if !key_is_promised {
            continue;
        }
        let name = format!("keyed-{}", operation.id.replace('_', "-"));
        let collection = if operation.path.contains("{coupon}") {
            "coupons"
        } else {
            "campaigns"
        };
        let path = format!("/v1/{collection}/{name}");
        let spec = json!({"capacity": 10, "mode": "strict"});
        service.put(&path, spec.clone()).await.json(201);
        let other = format!(
            "{path}/{}/remove",
            if collection == "coupons" {
                "codes"
            } else {
                "users"
            }
        );
        let body = json!({"users": ["u"]}).to_string().replace(
            "users",
            if collection == "coupons" {
                "codes"
            } else {
                "users"
            },
        );
        let mut first = json_request(Method::POST, &other, &headers, &json!({}));
        *first.body_mut() = Body::from(body);
        service.send(first).await.json(200);
        let bodies: [Value; 7] = [
            json!({"count": 1, "pattern": "####-####"}),
            spec,
            json!({"users": ["u2"]}),
            json!({"codes": ["u2"]}),
            json!({"replacements": [{"from": "a", "to": "b"}]}),
            json!({"code": "a", "reference": "r"}),
            json!({"release": false}),
        ];
        for body in bodies.iter().chain([&json!({"ends_at": null})]) {
            let mut sent = sample(operation, &name, body);
            sent.headers_mut()
                .insert("idempotency-key", "k".parse().unwrap());
            service.send(sent).await;
        }
    }
}
