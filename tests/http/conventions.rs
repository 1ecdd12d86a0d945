//! What holds for every route: bodies, problems, request ids, idempotency keys, compression.

use crate::service::{Service, json as json_request, request};
use axum::body::Body;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cuckood::http::options::{HttpOptions, LimitOptions};
use http::Method;
use serde_json::{Value, json};

const USERS: &str = "/v1/campaigns/spring/users";

async fn service() -> Service {
    let service = Service::start().await;
    service
        .put("/v1/campaigns/spring", json!({"capacity": 1000}))
        .await
        .json(201);
    service
}

async fn items(service: &Service) -> u64 {
    service.get("/v1/campaigns/spring").await.json(200)["stats"]["items"]
        .as_u64()
        .unwrap()
}

#[tokio::test]
async fn all_invalid_items_are_reported() {
    let service = service().await;
    let long = "x".repeat(513);
    let users = json!({"users": ["u1", "", "u2", 9007199254740993_u64, long, null, {"a": [1]}, true, ["u3"]]});
    for operation in ["", "/check", "/count", "/remove"] {
        let answer = service
            .post(&format!("{USERS}{operation}"), users.clone())
            .await;
        let pointers = [
            "/users/1", "/users/3", "/users/4", "/users/5", "/users/6", "/users/7", "/users/8",
        ];
        assert_eq!(answer.pointers(), pointers, "{operation}");
        assert!(
            !answer.text().contains(&long) && !answer.text().contains("9007199254740993"),
            "echoed"
        );
    }
    assert_eq!(
        service
            .post(USERS, json!({"users": vec![1; 10_000]}))
            .await
            .pointers()
            .len(),
        10_000
    );
    let pairs =
        json!({"replacements": [{"from": "a", "to": "b"}, {"from": "a"}, {"from": "", "to": "c"}]});
    let pointers = service
        .post(&format!("{USERS}/replace"), pairs)
        .await
        .pointers();
    assert_eq!(pointers, ["/replacements/1/to", "/replacements/2/from"]);
    assert_eq!(items(&service).await, 0);
}

#[tokio::test]
async fn items_are_compared_exactly() {
    let service = service().await;
    let odd = [
        "a/b#%20",
        " a",
        "a ",
        "\u{0}",
        "ä",
        "a\u{308}",
        "\"\\\n",
        "😀",
        &"x".repeat(512),
    ];
    service.post(USERS, json!({"users": odd})).await.json(200);
    let present = service
        .post(&format!("{USERS}/check"), json!({"users": odd}))
        .await
        .json(200);
    assert_eq!(present["present"], json!(vec![true; odd.len()]));
    let escaped = r#"{"users":["\u00e4","\ud83d\ude00","\u0061 "]}"#;
    let sent = request(
        Method::POST,
        "/v1/campaigns/spring/users/check",
        &[("content-type", "application/json; charset=utf-8")],
        Body::from(escaped),
    );
    assert_eq!(
        service.send(sent).await.json(200),
        json!({"present": [true, true, true]})
    );
    // Too long in UTF-8, though not in characters.
    assert_eq!(
        service
            .post(USERS, json!({"users": ["ä".repeat(257)]}))
            .await
            .pointers(),
        ["/users/0"]
    );
}

#[tokio::test]
async fn list_has_1_to_10_000_items() {
    let service = service().await;
    let list =
        |length: usize| json!({"users": (0..length).map(|n| n.to_string()).collect::<Vec<_>>()});
    let answer = service
        .post(&format!("{USERS}/check"), list(10_000))
        .await
        .json(200);
    assert_eq!(answer["present"].as_array().unwrap().len(), 10_000);
    for length in [0, 10_001] {
        assert_eq!(
            service
                .post(&format!("{USERS}/check"), list(length))
                .await
                .pointers(),
            ["/users"]
        );
    }
    for (bad, pointer) in [
        (json!({}), "/users"),
        (json!({"users": "u1"}), "/users"),
        (json!({"users": null}), "/users"),
        (json!({"users": ["u1"], "colour": 1}), "/colour"),
        (json!({"users": ["u1"], "if_absent": "yes"}), "/if_absent"),
        (json!({"codes": ["u1"], "users": ["u1"]}), "/codes"),
    ] {
        assert_eq!(
            service.post(USERS, bad.clone()).await.pointers(),
            [pointer],
            "{bad}"
        );
    }
    service
        .post(USERS, json!(["u1"]))
        .await
        .problem(422, "invalid-request");
    assert_eq!(items(&service).await, 0);
}

#[tokio::test]
async fn body_requires_json_content_type() {
    let service = service().await;
    let post = |media_type: Option<&'static str>, body: &'static [u8]| {
        let headers: Vec<(&str, &str)> = media_type
            .map(|value| ("content-type", value))
            .into_iter()
            .collect();
        service.send(request(Method::POST, USERS, &headers, Body::from(body)))
    };
    let well = br#"{"users":["u1"]}"#;
    post(None, well)
        .await
        .problem(415, "unsupported-media-type");
    post(Some("text/plain"), well)
        .await
        .problem(415, "unsupported-media-type");
    // Only a change is a merge-patch.
    let merge_patch = [("content-type", "application/merge-patch+json")];
    post(Some(merge_patch[0].1), well)
        .await
        .problem(415, "unsupported-media-type");
    let patch = json_request(
        Method::PATCH,
        "/v1/campaigns/spring",
        &merge_patch,
        &json!({"ends_at": null}),
    );
    service.send(patch).await.json(200);
    for broken in [
        &b""[..],
        b"{",
        b"{\"users\":[\"u1\"]} x",
        b"{\"users\":[\"u1\",]}",
        b"{\"users\":[\"\xff\"]}",
    ] {
        post(Some("application/json"), broken)
            .await
            .problem(400, "malformed-json");
    }
    let twice = post(
        Some("application/json"),
        br#"{"users":["u1"],"users":["u2"]}"#,
    )
    .await;
    twice.problem(422, "invalid-request");
    assert_eq!(items(&service).await, 0);
}

#[tokio::test]
async fn body_limit_is_reported() {
    let limits = LimitOptions {
        body_bytes_max: 1_000,
        ..LimitOptions::default()
    };
    let service = Service::with(HttpOptions {
        limits,
        ..HttpOptions::default()
    })
    .await;
    service
        .put("/v1/campaigns/spring", json!({"capacity": 1000}))
        .await
        .json(201);
    let large = json!({"users": vec!["x".repeat(100); 10]});
    let problem = service
        .post(USERS, large)
        .await
        .problem(413, "body-too-large");
    assert!(
        problem["detail"].as_str().unwrap().contains("1000"),
        "{problem}"
    );
    // Short on the wire only.
    let headers = [
        ("content-type", "application/json"),
        ("content-encoding", "zstd"),
    ];
    let bomb = request(Method::POST, USERS, &headers, Body::from(zstd_spaces(64)));
    service.send(bomb).await.problem(413, "body-too-large");
    // An import has none.
    let lines: String = (0..1_000).map(|n| format!("u{n}\n")).collect();
    service
        .import("/v1/campaigns/spring/imports", "text/plain", lines)
        .await
        .json(200);
}

/// A zstd frame (RFC 8878) of this many blocks of 128 KiB of spaces, four bytes each.
pub fn zstd_spaces(blocks: u32) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
    for left in (0..blocks).rev() {
        let header = u32::from(left == 0) | 1 << 1 | (128 << 10) << 3;
        frame.extend_from_slice(&header.to_le_bytes()[..3]);
        frame.push(b' ');
    }
    frame
}

#[tokio::test]
async fn request_and_response_compression_is_negotiated() {
    let service = service().await;
    // {"users":["u1"]}
    for (coding, body) in [
        ("gzip", "H4sIAAAAAAACA6tWKi1OLSpWsopWKjVUiq0FAKDvB5sQAAAA"),
        ("zstd", "KLUv/QBogQAAeyJ1c2VycyI6WyJ1MSJdfQ=="),
    ] {
        let body = BASE64_STANDARD.decode(body).unwrap();
        let headers = [
            ("content-type", "application/json"),
            ("content-encoding", coding),
        ];
        let sent = request(Method::POST, USERS, &headers, Body::from(body.clone()));
        assert_eq!(service.send(sent).await.json(200)["added"], 1, "{coding}");
        let cut = request(
            Method::POST,
            USERS,
            &headers,
            Body::from(body[..body.len() - 6].to_vec()),
        );
        let cut = service.send(cut).await;
        assert!((400..500).contains(&cut.status), "{coding}: {}", cut.status);
        cut.problem(cut.status, "malformed-request");

        let list = json!({"users": vec!["u1"; 1_000]});
        let asked = json_request(
            Method::POST,
            &format!("{USERS}/check"),
            &[("accept-encoding", coding)],
            &list,
        );
        let answer = service.send(asked).await;
        assert_eq!(
            (answer.status, answer.header("content-encoding")),
            (200, coding)
        );
        assert!(answer.body.len() < 1_000, "{} bytes", answer.body.len());
    }
    let plain = service
        .post(
            &format!("{USERS}/check"),
            json!({"users": vec!["u1"; 1_000]}),
        )
        .await;
    assert_eq!(plain.header("content-encoding"), "");
    // A write has taken effect before its response is encoded: no coding makes it fail.
    for accepted in [
        "identity;q=0",
        "*;q=0",
        "br, identity;q=0",
        "gzip;q=2, *;q=0",
    ] {
        let asked = json_request(
            Method::POST,
            USERS,
            &[("accept-encoding", accepted)],
            &json!({"users": ["u1"]}),
        );
        service.send(asked).await.json(200);
    }
    let unknown = [
        ("content-type", "application/json"),
        ("content-encoding", "br"),
    ];
    service
        .send(request(Method::POST, USERS, &unknown, Body::from("x")))
        .await
        .problem(415, "unsupported-media-type");
}

#[tokio::test]
async fn routes_and_methods_fail_as_problems() {
    let service = Service::start().await;
    for path in [
        "/console/other.js",
        "/v1",
        "/v2/campaigns",
        "/v1/campaigns/spring/people",
        "/v1/campaigns/a/b/c",
    ] {
        service.get(path).await.problem(404, "route-not-found");
    }
    for path in [
        "/v1/info",
        "/v1/campaigns/spring",
        "/v1/eligibility",
        "/livez",
    ] {
        let answer = service
            .send(request(Method::TRACE, path, &[], Body::empty()))
            .await;
        answer.problem(405, "method-not-allowed");
        assert!(!answer.header("allow").is_empty(), "{path}");
    }
    let answer = service.get("/v1/campaigns/spring/users/check").await;
    answer.problem(405, "method-not-allowed");
    assert_eq!(answer.header("allow"), "POST");
}

#[tokio::test]
async fn request_id_is_echoed_or_generated() {
    let service = Service::start().await;
    let with = |id: &'static str| {
        service.send(request(
            Method::GET,
            "/v1/info",
            &[("x-request-id", id)],
            Body::empty(),
        ))
    };
    assert_eq!(
        with("checkout-7").await.header("x-request-id"),
        "checkout-7"
    );
    let one = service.get("/v1/info").await;
    let two = service.get("/v1/info").await;
    assert!(!one.header("x-request-id").is_empty());
    assert_ne!(one.header("x-request-id"), two.header("x-request-id"));
    let silly: &str = "x".repeat(5_000).leak();
    assert!(with(silly).await.header("x-request-id").len() < 300);
    let problem = service
        .send(request(
            Method::GET,
            "/v1/nothing",
            &[("x-request-id", "checkout-8")],
            Body::empty(),
        ))
        .await
        .problem(404, "route-not-found");
    assert_eq!(problem["request_id"], "checkout-8");
}

async fn with_key(
    service: &Service,
    path: &str,
    key: &str,
    body: &Value,
) -> crate::service::Answer {
    service
        .send(json_request(
            Method::POST,
            path,
            &[("idempotency-key", key)],
            body,
        ))
        .await
}

#[tokio::test]
async fn writes_except_imports_accept_idempotency_key() {
    let service = service().await;
    service
        .put("/v1/coupons/welcome", json!({"capacity": 10}))
        .await
        .json(201);
    let requests = [
        (Method::PUT, "/v1/campaigns/new", json!({"capacity": 10})),
        (
            Method::PATCH,
            "/v1/campaigns/new",
            json!({"ends_at": "2027-01-01T00:00:00Z"}),
        ),
        (
            Method::POST,
            "/v1/campaigns/new/users",
            json!({"users": ["u1"]}),
        ),
        (
            Method::POST,
            "/v1/campaigns/new/users/remove",
            json!({"users": ["u1"]}),
        ),
        (
            Method::POST,
            "/v1/campaigns/new/users/replace",
            json!({"replacements": [{"from": "a", "to": "b"}]}),
        ),
        (Method::POST, "/v1/campaigns/new/clear", Value::Null),
        (
            Method::POST,
            "/v1/coupons/welcome/codes",
            json!({"codes": ["A"]}),
        ),
        (
            Method::POST,
            "/v1/coupons/welcome/redemptions",
            json!({"code": "A", "reference": "r"}),
        ),
        (Method::DELETE, "/v1/campaigns/new", Value::Null),
    ];
    for (n, (method, path, body)) in requests.into_iter().enumerate() {
        let key = format!("key-{n}");
        let send = || {
            let headers = [("idempotency-key", key.as_str())];
            service.send(match &body {
                Value::Null => request(method.clone(), path, &headers, Body::empty()),
                body => json_request(method.clone(), path, &headers, body),
            })
        };
        let first = send().await;
        let again = send().await;
        assert!(
            (200..300).contains(&first.status),
            "{method} {path}: {}",
            first.text()
        );
        assert_eq!(
            (again.status, again.text()),
            (first.status, first.text()),
            "{method} {path}"
        );
        assert_eq!(
            again.header("idempotency-replayed"),
            "true",
            "{method} {path}"
        );
    }
}

#[tokio::test]
async fn idempotency_key_is_visible_ascii() {
    let service = service().await;
    let body = json!({"users": ["u1"]});
    for bad in ["", "a b", &"k".repeat(256)] {
        with_key(&service, USERS, bad, &body)
            .await
            .problem(400, "malformed-request");
    }
    with_key(&service, USERS, &"k".repeat(255), &body)
        .await
        .json(200);
}

#[tokio::test]
async fn reads_ignore_idempotency_key() {
    let service = service().await;
    let bad = [("idempotency-key", "a b")];
    for path in [
        "/v1/campaigns",
        "/v1/imports",
        "/v1/info",
        "/v1/events?after=0",
    ] {
        assert_eq!(
            service
                .send(request(Method::GET, path, &bad, Body::empty()))
                .await
                .status,
            200,
            "{path}"
        );
    }
    let question = json!({"user": "u1", "campaigns": ["spring"]});
    service
        .send(json_request(
            Method::POST,
            "/v1/eligibility",
            &bad,
            &question,
        ))
        .await
        .json(200);
}

#[tokio::test]
async fn timestamps_accept_rfc_3339_since_1970() {
    let service = service().await;
    let path = "/v1/campaigns/spring";
    for (sent, answered) in [
        ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59.000Z"),
        ("2026-12-01T00:00:00.5Z", "2026-12-01T00:00:00.500Z"),
        ("2026-12-01T00:00:00.12Z", "2026-12-01T00:00:00.120Z"),
        ("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z"),
        ("9999-12-31T22:00:00-01:59", "9999-12-31T23:59:00.000Z"),
        (
            "2026-12-01t00:00:00.123456789012z",
            "2026-12-01T00:00:00.123Z",
        ),
        ("2026-12-31T23:59:60Z", "2026-12-31T23:59:59.000Z"),
        ("1970-01-01T00:00:00+00:00", "1970-01-01T00:00:00.000Z"),
    ] {
        let changed = service
            .patch(path, json!({"ends_at": sent}))
            .await
            .json(200);
        assert_eq!(changed["ends_at"], answered, "{sent}");
    }
    for bad in [
        "9999-12-31T23:59:59-00:01",
        "1970-01-01T00:00:00+00:01",
        "10000-01-01T00:00:00Z",
        "9999",
    ] {
        assert_eq!(
            service
                .patch(path, json!({"ends_at": bad}))
                .await
                .pointers(),
            ["/ends_at"],
            "{bad}"
        );
    }
}

/// Responses change with every write, and many are secret: no cache stores them, whatever their status.
#[tokio::test]
async fn responses_are_not_cached() {
    let service = service().await;
    for (method, path, status) in [
        (Method::GET, "/livez", 200),
        (Method::GET, "/readyz", 200),
        (Method::GET, "/metrics", 200),
        (Method::HEAD, "/readyz", 200),
        (Method::POST, "/livez", 405),
        (Method::GET, "/v1/campaigns/spring", 200),
        (Method::HEAD, "/v1/campaigns", 200),
        (Method::GET, "/v1/campaigns/none", 404),
        (Method::GET, "/v1/none", 404),
        (Method::POST, "/v1/campaigns/spring/clear", 200),
        (Method::GET, "/v1/campaigns/spring/image", 200),
        (Method::DELETE, "/v1/campaigns/spring", 204),
    ] {
        let answer = service
            .begin(request(method, path, &[], Body::empty()))
            .await;
        assert_eq!(answer.status(), status, "{path}");
        assert_eq!(answer.headers()["cache-control"], "no-store", "{path}");
    }
}
