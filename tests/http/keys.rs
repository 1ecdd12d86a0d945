//! API keys: permissions, rates, and the number of codes a guesser may try.

use crate::service::{Answer, NOON, Service, json as json_request, key, request, with_keys};
use axum::body::Body;
use cuckood::access::{KeyOptions, RateLimitOptions, Scope};
use cuckood::http::options::HttpOptions;
use http::Method;
use serde_json::{Value, json};

fn options() -> HttpOptions {
    with_keys([
        key("reader", &[Scope::Read], ""),
        key("writer", &[Scope::Write], ""),
        key("shop", &[Scope::Redeem], ""),
        key("root", &[Scope::Admin], ""),
        key("eu", &[Scope::Read, Scope::Write], "eu-"),
    ])
}

async fn service(options: HttpOptions) -> Service {
    let service = Service::with(options).await;
    for (path, body) in [
        ("campaigns/c", json!({"capacity": 10})),
        ("coupons/p", json!({"capacity": 10})),
    ] {
        service
            .by("root")
            .put(&format!("/v1/{path}"), body)
            .await
            .json(201);
    }
    service
        .by("root")
        .post("/v1/coupons/p/codes", json!({"codes": ["A"]}))
        .await
        .json(200);
    service
}

#[tokio::test]
async fn only_open_routes_allow_missing_key() {
    let service = service(options()).await;
    for authorization in [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Basic secret-root",
        "secret-root",
    ] {
        let headers = [("authorization", authorization)];
        let answer = service
            .send(request(
                Method::GET,
                "/v1/campaigns/c",
                &headers,
                Body::empty(),
            ))
            .await;
        answer.problem(401, "unauthenticated");
        assert!(answer.header("www-authenticate").starts_with("Bearer"));
    }
    service
        .get("/v1/campaigns/c")
        .await
        .problem(401, "unauthenticated");
    // Before the name is looked up, and before the body is read.
    service
        .post("/v1/campaigns/none/users", json!(1))
        .await
        .problem(401, "unauthenticated");
    for open in ["/livez", "/readyz", "/metrics", "/openapi.json"] {
        assert_eq!(service.get(open).await.status, 200, "{open}");
    }
    for page in ["/docs", "/", "/console"] {
        assert!(service.get(page).await.status < 400, "{page}");
    }
    let document = service.get("/openapi.json").await;
    assert_eq!(document.text(), cuckood::http::openapi::served(true));
    let security = &document.json(200)["paths"]["/v1/info"]["get"]["security"];
    assert_eq!(*security, json!([{"bearer": ["read"]}]));
}

/// The position shows how much others write, so only callers with a valid key see it.
#[tokio::test]
async fn stranger_sees_no_position() {
    let mut options = options();
    let until = cuckood_state::domain::Timestamp(NOON.0 + 60_000);
    options.auth.keys.push(KeyOptions {
        expires_at: Some(until),
        ..key("guest", &[Scope::Read], "")
    });
    let service = service(options).await;
    let paths = [
        "/v1/campaigns/c",
        "/v1/campaigns/none",
        "/v1/none",
        "/v1",
        "/v1/backup",
        "/v1/info?x=1",
    ];
    let ask = async |method: Method, path: &str, authorization: &str| {
        let headers = [("authorization", authorization)];
        service
            .send(request(method, path, &headers, Body::empty()))
            .await
    };
    for path in paths {
        for stranger in ["", "Bearer wrong", "Basic secret-root"] {
            for method in [
                Method::GET,
                Method::HEAD,
                Method::PUT,
                Method::DELETE,
                Method::POST,
            ] {
                let answer = ask(method, path, stranger).await;
                assert_eq!(
                    (answer.status, answer.header("x-cuckood-position")),
                    (401, ""),
                    "{path}"
                );
            }
        }
        // Whatever the response to a valid key, it has the position: also 403, 404, 405 and 422.
        for key in ["root", "eu", "guest"] {
            let answer = ask(Method::GET, path, &format!("Bearer secret-{key}")).await;
            assert!(
                !answer.header("x-cuckood-position").is_empty(),
                "{path} {key}: {}",
                answer.status
            );
        }
    }
    service.pass(60);
    let expired = ask(Method::GET, "/v1/info", "Bearer secret-guest").await;
    assert_eq!(
        (expired.status, expired.header("x-cuckood-position")),
        (401, "")
    );
    // Nor does one that comes while no key is checked, or before.
    for path in [
        "/livez",
        "/readyz",
        "/metrics",
        "/openapi.json",
        "/",
        "/none",
    ] {
        assert_eq!(
            service.get(path).await.header("x-cuckood-position"),
            "",
            "{path}"
        );
    }
    let open = Service::start().await;
    assert!(
        !open
            .get("/v1/none")
            .await
            .header("x-cuckood-position")
            .is_empty()
    );
}

#[tokio::test]
async fn info_describes_presented_key() {
    let service = service(options()).await;
    let info = async |name| service.by(name).get("/v1/info").await.json(200);
    assert_eq!(
        info("root").await["key"],
        json!({"name": "root", "scopes": ["admin"]})
    );
    let eu = json!({"name": "eu", "scopes": ["read", "write"], "prefix": "eu-"});
    assert_eq!(info("eu").await["key"], eu);
    let open = Service::start().await;
    assert!(open.get("/v1/info").await.json(200).get("key").is_none());
}

#[tokio::test]
async fn expired_key_is_rejected() {
    let guest = KeyOptions {
        expires_at: Some(NOON.plus_seconds(60)),
        ..key("guest", &[Scope::Read], "")
    };
    let service = Service::with(with_keys([guest, key("root", &[Scope::Admin], "")])).await;
    let metrics = service.get("/metrics").await.text();
    let figure = format!(
        "cuckood_key_expiry_timestamp_seconds{{key=\"guest\"}} {}",
        NOON.0 / 1_000 + 60
    );
    assert!(
        metrics.contains(&figure) && !metrics.contains("{key=\"root\"}"),
        "{metrics}"
    );
    let info = async |name| service.by(name).get("/v1/info").await;
    service.pass(59);
    info("guest").await.json(200);
    service.pass(1);
    let problem = info("guest").await.problem(401, "unauthenticated");
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.contains("expired") && detail.contains("2026-11-21T12:01:00.000Z"),
        "{detail}"
    );
    info("root").await.json(200);
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table")]
async fn scope_opens_its_routes_and_admin_all() {
    let service = service(options()).await;
    let users = json!({"users": ["u1"]});
    let codes = json!({"codes": ["A"]});
    let pairs = json!({"replacements": [{"from": "a", "to": "b"}]});
    let redeem = json!({"code": "A", "reference": "r"});
    let unknown = format!("/v1/coupons/p/redemptions/{}", "0".repeat(32));
    let routes = [
        ("reader", Method::GET, "/v1/campaigns", Value::Null),
        ("reader", Method::GET, "/v1/campaigns/c", Value::Null),
        (
            "reader",
            Method::GET,
            "/v1/coupons/p/redemptions?reference=r",
            Value::Null,
        ),
        ("reader", Method::GET, &unknown, Value::Null),
        ("reader", Method::GET, "/v1/imports", Value::Null),
        ("reader", Method::GET, "/v1/info", Value::Null),
        ("reader", Method::GET, "/v1/plan?capacity=10", Value::Null),
        (
            "reader",
            Method::POST,
            "/v1/campaigns/c/users/check",
            users.clone(),
        ),
        (
            "reader",
            Method::POST,
            "/v1/campaigns/c/users/count",
            users.clone(),
        ),
        (
            "reader",
            Method::POST,
            "/v1/coupons/p/codes/check",
            codes.clone(),
        ),
        (
            "reader",
            Method::POST,
            "/v1/coupons/p/codes/count",
            codes.clone(),
        ),
        (
            "shop",
            Method::POST,
            "/v1/coupons/p/codes/lookup",
            codes.clone(),
        ),
        (
            "reader",
            Method::POST,
            "/v1/eligibility",
            json!({"user": "u", "campaigns": ["c"]}),
        ),
        (
            "reader",
            Method::POST,
            "/v1/eligibility/batch",
            json!({"requests": [{"user": "u", "campaigns": ["c"]}]}),
        ),
        (
            "writer",
            Method::PUT,
            "/v1/campaigns/c",
            json!({"capacity": 10}),
        ),
        (
            "writer",
            Method::PUT,
            "/v1/line-ups/l",
            json!({"campaigns": ["c"]}),
        ),
        ("reader", Method::GET, "/v1/line-ups/l", Value::Null),
        ("reader", Method::GET, "/v1/line-ups", Value::Null),
        (
            "reader",
            Method::POST,
            "/v1/eligibility",
            json!({"user": "u", "line_up": "l"}),
        ),
        ("root", Method::DELETE, "/v1/line-ups/l", Value::Null),
        (
            "writer",
            Method::PATCH,
            "/v1/coupons/p",
            json!({"ends_at": null}),
        ),
        (
            "writer",
            Method::POST,
            "/v1/campaigns/c/users",
            users.clone(),
        ),
        (
            "writer",
            Method::POST,
            "/v1/campaigns/c/users/remove",
            users,
        ),
        (
            "writer",
            Method::POST,
            "/v1/campaigns/c/users/replace",
            pairs,
        ),
        ("writer", Method::POST, "/v1/campaigns/c/clear", Value::Null),
        ("writer", Method::POST, "/v1/coupons/p/codes", codes.clone()),
        ("shop", Method::POST, "/v1/coupons/p/redemptions", redeem),
        (
            "shop",
            Method::POST,
            &format!("{unknown}/confirm"),
            Value::Null,
        ),
        (
            "shop",
            Method::POST,
            &format!("{unknown}/cancel"),
            Value::Null,
        ),
        (
            "root",
            Method::POST,
            "/v1/coupons/p/codes",
            json!({"codes": ["A"], "revive": true}),
        ),
        ("root", Method::POST, "/v1/snapshots", Value::Null),
        ("root", Method::GET, "/v1/backup", Value::Null),
        ("root", Method::GET, "/v1/events", Value::Null),
        ("root", Method::GET, "/v1/campaigns/c/image", Value::Null),
        ("root", Method::PUT, "/v1/campaigns/new/image", Value::Null),
        ("root", Method::GET, "/v1/coupons/p/image", Value::Null),
        ("root", Method::PUT, "/v1/coupons/new/image", Value::Null),
        ("root", Method::DELETE, "/v1/campaigns/c", Value::Null),
    ];
    for (holder, method, path, body) in &routes {
        for other in ["reader", "writer", "shop"]
            .into_iter()
            .filter(|other| other != holder)
        {
            let refused = service.by(other).send(method.clone(), path, body).await;
            assert_eq!(
                refused.status,
                403,
                "{other}: {method} {path}: {}",
                refused.text()
            );
            refused.problem(403, "forbidden");
        }
    }
    for (holder, method, path, body) in &routes {
        let granted = service.by(holder).send(method.clone(), path, body).await;
        assert!(
            ![401, 403].contains(&granted.status),
            "{holder}: {method} {path}: {}",
            granted.text()
        );
        if method != Method::DELETE {
            let granted = service.by("root").send(method.clone(), path, body).await;
            assert!(
                ![401, 403].contains(&granted.status),
                "root: {method} {path}: {}",
                granted.text()
            );
        }
    }
}

#[tokio::test]
async fn imports_require_write_scope() {
    let service = service(options()).await;
    for (name, status) in [("reader", 403), ("shop", 403), ("writer", 200)] {
        let import = service
            .by(name)
            .import("/v1/campaigns/c/imports", "u1\n")
            .await;
        assert_eq!(import.status, status, "{name}");
    }
}

#[tokio::test]
async fn key_prefix_limits_names() {
    let service = service(options()).await;
    let spec = json!({"capacity": 10});
    service
        .by("eu")
        .put("/v1/campaigns/eu-a", &spec)
        .await
        .json(201);
    service
        .by("eu")
        .put("/v1/campaigns/us-a", &spec)
        .await
        .problem(403, "forbidden");
    let users = json!({"users": ["u1"]});
    service
        .by("eu")
        .post("/v1/campaigns/c/users", &users)
        .await
        .problem(403, "forbidden");
    service
        .by("eu")
        .get("/v1/campaigns/c")
        .await
        .problem(403, "forbidden");
    let listed = service
        .by("eu")
        .get("/v1/campaigns")
        .await
        .json(200)
        .to_string();
    assert!(
        listed.contains("eu-a") && !listed.contains("\"c\""),
        "{listed}"
    );
    // Eligibility reveals nothing about foreign campaigns either.
    service
        .by("root")
        .post("/v1/campaigns/c/users", &users)
        .await
        .json(200);
    let asked = json!({"user": "u1", "campaigns": ["c", "eu-a"]});
    service
        .by("eu")
        .post("/v1/eligibility", &asked)
        .await
        .problem(403, "forbidden");
    for unless in [
        json!({"campaign": "c"}),
        json!({"campaign": "eu-a", "for": "c"}),
    ] {
        let asked = json!({"user": "u1", "campaigns": ["eu-a"], "unless": [unless]});
        service
            .by("eu")
            .post("/v1/eligibility", &asked)
            .await
            .problem(403, "forbidden");
    }
}

#[tokio::test]
async fn key_prefix_limits_line_ups_and_members() {
    let service = service(options()).await;
    let put = async |key, name: &str, body: Value| {
        service
            .by(key)
            .put(&format!("/v1/line-ups/{name}"), &body)
            .await
    };
    put(
        "eu",
        "eu-home",
        json!({"campaigns": ["eu-a"], "unless": [{"campaign": "eu-b"}]}),
    )
    .await
    .json(201);
    put("eu", "home", json!({"campaigns": ["eu-a"]}))
        .await
        .problem(403, "forbidden");
    for theirs in [
        json!({"campaigns": ["eu-a", "c"]}),
        json!({"campaigns": ["eu-a"], "unless": [{"campaign": "c"}]}),
        json!({"campaigns": ["eu-a"], "unless": [{"campaign": "eu-a", "for": "c"}]}),
    ] {
        put("eu", "eu-theirs", theirs.clone())
            .await
            .problem(403, "forbidden");
        // Another client may create it; a key that may not use the names may not use the line-up.
        put("root", "eu-theirs", theirs).await;
        let asked = json!({"user": "u1", "line_up": "eu-theirs"});
        service
            .by("eu")
            .post("/v1/eligibility", &asked)
            .await
            .problem(403, "forbidden");
        let asked = json!({"requests": [asked]});
        service
            .by("eu")
            .post("/v1/eligibility/batch", &asked)
            .await
            .problem(403, "forbidden");
        service
            .by("root")
            .post("/v1/eligibility/batch", &asked)
            .await
            .json(200);
        let path = "/v1/line-ups/eu-theirs";
        service.by("eu").get(path).await.problem(403, "forbidden");
    }
    put("root", "home", json!({"campaigns": ["c"]}))
        .await
        .json(201);
    for line_up in ["home", "nowhere"] {
        let asked = json!({"user": "u1", "line_up": line_up});
        service
            .by("eu")
            .post("/v1/eligibility", &asked)
            .await
            .problem(403, "forbidden");
        let path = format!("/v1/line-ups/{line_up}");
        service.by("eu").get(&path).await.problem(403, "forbidden");
    }
    let asked = json!({"user": "u1", "line_up": "eu-home"});
    service
        .by("eu")
        .post("/v1/eligibility", &asked)
        .await
        .json(200);
    let listed = service.by("eu").get("/v1/line-ups").await.json(200);
    let names: Vec<_> = listed["line_ups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line_up| &line_up["name"])
        .collect();
    assert_eq!(names, ["eu-home"]);
}

/// Line-ups with names that the key may not use are counted: their own name, or that of another campaign in them.
#[tokio::test]
async fn reasons_name_visible_line_ups_only() {
    let keys = [
        key("root", &[Scope::Admin], ""),
        key("eu", &[Scope::Admin], "eu-"),
    ];
    let service = Service::with(with_keys(keys)).await;
    let root = service.by("root");
    root.put("/v1/campaigns/eu-a", &json!({"capacity": 10}))
        .await
        .json(201);
    for (line_up, campaigns) in [
        ("eu-home", json!(["eu-a"])),
        ("eu-secret", json!(["eu-a", "us-b"])),
        ("us-home", json!(["eu-a"])),
    ] {
        root.put(
            &format!("/v1/line-ups/{line_up}"),
            &json!({"campaigns": campaigns}),
        )
        .await
        .json(201);
    }
    let reasons = async |key| {
        let problem = service.by(key).delete("/v1/campaigns/eu-a").await;
        let problem = problem.problem(409, "in-use");
        let errors = problem["errors"].as_array().unwrap().clone();
        errors
            .iter()
            .map(|error| error["detail"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(reasons("root").await.len(), 3);
    assert_eq!(
        reasons("eu").await,
        [
            "line-up eu-home names the campaign",
            "number of line-ups that name the campaign and are not listed: 2",
        ]
    );
    let forced = service
        .by("eu")
        .delete("/v1/campaigns/eu-a?force=true")
        .await;
    assert_eq!(forced.status, 204);
}

/// Foreign resources are indistinguishable from missing ones.
#[tokio::test]
async fn foreign_names_return_not_found() {
    let service = service(options()).await;
    service
        .by("root")
        .import("/v1/campaigns/c/imports?id=nightly", "u1\n")
        .await
        .json(200);
    let line_up = json!({"campaigns": ["c"]});
    service
        .by("root")
        .put("/v1/line-ups/l", &line_up)
        .await
        .json(201);
    let users = json!({"users": ["u1"]});
    for (method, theirs, nobodys, body) in [
        (
            Method::GET,
            "/v1/imports/nightly",
            "/v1/imports/none",
            Value::Null,
        ),
        (
            Method::GET,
            "/v1/campaigns/c",
            "/v1/campaigns/none",
            Value::Null,
        ),
        (
            Method::GET,
            "/v1/campaigns?prefix=c",
            "/v1/campaigns?prefix=none",
            Value::Null,
        ),
        (
            Method::PUT,
            "/v1/campaigns/c",
            "/v1/campaigns/none",
            json!({"capacity": 10}),
        ),
        (
            Method::PATCH,
            "/v1/campaigns/c",
            "/v1/campaigns/none",
            json!({"ends_at": null}),
        ),
        (
            Method::POST,
            "/v1/campaigns/c/users",
            "/v1/campaigns/none/users",
            users.clone(),
        ),
        (
            Method::POST,
            "/v1/campaigns/c/users/check",
            "/v1/campaigns/none/users/check",
            users,
        ),
        (
            Method::GET,
            "/v1/coupons/p",
            "/v1/coupons/none",
            Value::Null,
        ),
        (
            Method::GET,
            "/v1/line-ups/l",
            "/v1/line-ups/none",
            Value::Null,
        ),
        (
            Method::PUT,
            "/v1/line-ups/l",
            "/v1/line-ups/none",
            json!({"campaigns": ["eu-a"]}),
        ),
    ] {
        let answer = async |path| {
            let answer = service.by("eu").send(method.clone(), path, &body).await;
            let mut text: Value = serde_json::from_slice(&answer.body).unwrap();
            text["request_id"] = Value::Null;
            (answer.status, text)
        };
        assert_eq!(
            answer(theirs).await,
            answer(nobodys).await,
            "{method} {theirs}"
        );
    }
    let listed = service.by("eu").get("/v1/imports").await.json(200);
    assert_eq!(listed, json!({"imports": []}));
    service
        .by("root")
        .get("/v1/imports/nightly")
        .await
        .json(200);
}

#[tokio::test]
async fn idempotency_keys_are_scoped_by_api_key() {
    let service = service(options()).await;
    let post = async |name, user| {
        let headers = [("idempotency-key", "k")];
        let body = json!({"users": [user]});
        let mut sent = json_request(Method::POST, "/v1/campaigns/c/users", &headers, &body);
        service.by(name).sign(&mut sent);
        service.send(sent).await
    };
    post("writer", "u1").await.json(200);
    let other = post("root", "u2").await;
    assert_eq!(
        (other.status, other.header("idempotency-replayed")),
        (200, "")
    );
    assert_eq!(
        post("writer", "u1").await.header("idempotency-replayed"),
        "true"
    );
}

#[tokio::test]
async fn key_over_rate_limit_waits() {
    let rate_limit = RateLimitOptions {
        requests_per_second: 5,
    };
    let service = Service::with(HttpOptions {
        rate_limit,
        ..options()
    })
    .await;
    let mut refused = 0;
    for _ in 0..50 {
        let answer = service.by("reader").get("/v1/info").await;
        if answer.status == 429 {
            answer.problem(429, "rate-limited");
            assert!(answer.header("retry-after").parse::<u64>().unwrap() > 0);
            refused += 1;
        }
    }
    assert!(refused > 0);
    // Another key has a separate rate.
    service.by("root").get("/v1/info").await.json(200);
    assert_eq!(service.get("/livez").await.status, 200);
}

#[tokio::test]
async fn foreign_imports_are_never_evicted() {
    let service = service(options()).await;
    let import = async |name, query| {
        service
            .by(name)
            .import(&format!("/v1/campaigns/c/imports{query}"), "u1\n")
            .await
    };
    let done = import("writer", "?id=a").await.json(200);
    for _ in 0..150 {
        import("root", "").await.json(200);
    }
    assert_eq!(
        import("writer", "?id=a").await.json(200)["started_at"],
        done["started_at"]
    );
    let list = service.by("root").get("/v1/imports").await.json(200);
    assert_eq!(list["imports"].as_array().unwrap().len(), 100);
}

/// A campaign of the tenant `eu`, and an upload into it that waits for more after its first lines.
async fn waiting_upload(service: &Service, id: &str, body: Body) -> Answer {
    service
        .by("eu")
        .import(&format!("/v1/campaigns/eu-spring/imports?id={id}"), body)
        .await
}

#[tokio::test]
async fn import_stops_after_key_removal() {
    use bytes::Bytes;
    use std::io::Error;
    let service = service(options()).await;
    let spec = json!({"capacity": 10});
    service
        .by("root")
        .put("/v1/campaigns/eu-spring", &spec)
        .await
        .json(201);
    for (number, change) in ["gone", "read-only", "other-prefix", "same"]
        .into_iter()
        .enumerate()
    {
        let (more, pieces) = tokio::sync::mpsc::unbounded_channel::<Result<Bytes, Error>>();
        let pieces = futures_util::stream::unfold(pieces, async |mut pieces| {
            Some((pieces.recv().await?, pieces))
        });
        let id = format!("upload-{number}");
        let upload = waiting_upload(&service, &id, Body::from_stream(pieces));
        let replace = async {
            more.send(Ok(Bytes::from_static(b"u1\nu2\n"))).unwrap();
            let path = format!("/v1/imports/{id}");
            while service.by("root").get(&path).await.status == 404 {
                tokio::task::yield_now().await;
            }
            let mut auth = options().auth;
            let eu = auth.keys.iter_mut().find(|key| key.name == "eu").unwrap();
            match change {
                "gone" => *eu = key("successor", &[Scope::Read, Scope::Write], "eu-"),
                "read-only" => eu.scopes = vec![Scope::Read],
                "other-prefix" => eu.prefix = "us-".into(),
                _ => {}
            }
            service.replace_keys(&auth);
            more.send(Ok(Bytes::from_static(b"u3\n"))).unwrap();
            drop(more);
        };
        let (answer, ()) = tokio::join!(upload, replace);
        service.replace_keys(&options().auth);
        match change {
            "gone" => drop(answer.problem(401, "unauthenticated")),
            "same" => drop(answer.json(200)),
            _ => drop(answer.problem(403, "forbidden")),
        }
        let path = format!("/v1/imports/{id}");
        let import = service.by("root").get(&path).await.json(200);
        let state = if change == "same" {
            "done"
        } else {
            "interrupted"
        };
        assert_eq!(import["state"], state, "{change}");
    }
}

/// Ids are unique in the server: a taken one is rejected in the same words, whatever has become of its import.
#[tokio::test]
async fn foreign_import_reveals_only_its_id() {
    let mut with_us = options();
    with_us
        .auth
        .keys
        .push(key("us", &[Scope::Read, Scope::Write], "us-"));
    let service = service(with_us).await;
    for name in ["eu-spring", "us-spring"] {
        let path = format!("/v1/campaigns/{name}");
        service
            .by("root")
            .put(&path, json!({"capacity": 10}))
            .await
            .json(201);
    }
    let import = async |id: &str, query: &str| {
        let path = format!("/v1/campaigns/us-spring/imports?id={id}{query}");
        service.by("us").import(&path, "u1\n").await
    };
    waiting_upload(&service, "done", Body::from("u1\n"))
        .await
        .json(200);
    let broken = futures_util::stream::iter([Ok("u1\n"), Err(std::io::Error::other("it breaks"))]);
    waiting_upload(&service, "broken", Body::from_stream(broken))
        .await
        .problem(400, "malformed-request");
    let running = waiting_upload(&service, "running", crate::imports::endless("u1\n"));
    let look = async {
        while service.by("root").get("/v1/imports/running").await.status == 404 {
            tokio::task::yield_now().await;
        }
        let mut problems = Vec::new();
        for id in ["done", "broken", "running"] {
            for query in ["", "&mode=replace", "&dry_run=true"] {
                let mut problem = import(id, query).await.problem(409, "import-differs");
                problem.as_object_mut().unwrap().remove("request_id");
                problems.push(problem);
            }
            let path = format!("/v1/imports/{id}");
            for method in [Method::GET, Method::DELETE] {
                service
                    .by("us")
                    .send(method, &path, &Value::Null)
                    .await
                    .problem(404, "import-not-found");
            }
        }
        assert!(
            problems.iter().all(|problem| *problem == problems[0]),
            "{problems:?}"
        );
        service.by("root").delete("/v1/imports/running").await;
    };
    let (stopped, ()) = tokio::join!(running, look);
    stopped.problem(409, "import-stopped");
    import("another", "").await.json(200);
}
