//! Guessing: an end user who has tried too many invalid codes learns nothing more, from any operation.

use crate::service::{Answer, Service, json as json_request, key, request, with_keys};
use axum::body::Body;
use cuckood::access::{GuessingOptions, Scope};
use cuckood::http::options::HttpOptions;
use futures_util::FutureExt;
use http::Method;
use serde_json::{Value, json};

const COUPON: &str = "/v1/coupons/p";

/// A service with the codes A to E, where three invalid codes may be tried in a minute. The key `shop` names its end
/// users, `office` may try any number.
async fn service() -> Service {
    let keys = [
        key("shop", &[Scope::Admin], ""),
        key("office", &[Scope::Admin], ""),
    ];
    let guessing = GuessingOptions {
        invalid_codes_per_minute: 3,
        trusted_keys: vec!["shop".into()],
        unlimited_keys: vec!["office".into()],
    };
    let service = Service::with(HttpOptions {
        guessing,
        ..with_keys(keys)
    })
    .await;
    ask(
        &service,
        "office",
        "",
        Method::PUT,
        COUPON,
        &json!({"capacity": 1000}),
    )
    .await
    .json(201);
    let codes = json!({"codes": ["A", "B", "C", "D", "E"]});
    ask(
        &service,
        "office",
        "",
        Method::POST,
        &format!("{COUPON}/codes"),
        &codes,
    )
    .await
    .json(200);
    service
}

async fn ask(
    service: &Service,
    key: &str,
    client: &str,
    method: Method,
    path: &str,
    body: &Value,
) -> Answer {
    let bearer = format!("Bearer secret-{key}");
    let headers = [("authorization", bearer.as_str()), ("x-client-id", client)];
    let headers = if client.is_empty() {
        &headers[..1]
    } else {
        &headers
    };
    service
        .send(match body {
            Value::Null => request(method, path, headers, Body::empty()),
            body => json_request(method, path, headers, body),
        })
        .await
}

/// Every operation that reveals whether codes are valid. A dry run of an import reveals how many are.
const OPERATIONS: [&str; 7] = [
    "codes/check",
    "codes/count",
    "codes/lookup",
    "codes/remove",
    "codes/replace",
    "imports?dry_run=true",
    "redemptions",
];

/// A request that tries these codes, or the first of them where an operation takes one.
async fn try_codes(service: &Service, client: &str, operation: &str, codes: &[&str]) -> Answer {
    let path = format!("{COUPON}/{operation}");
    if operation.starts_with("imports") {
        let headers = [
            ("authorization", "Bearer secret-shop"),
            ("x-client-id", client),
            ("content-type", "text/plain"),
        ];
        return service
            .send(request(
                Method::POST,
                &path,
                &headers,
                codes.join("\n").into(),
            ))
            .await;
    }
    let body = match operation {
        "codes/replace" => {
            let pairs = codes
                .iter()
                .map(|code| json!({"from": code, "to": format!("{code}-new")}));
            json!({"replacements": pairs.collect::<Vec<_>>()})
        }
        "redemptions" => json!({"code": codes[0], "reference": "r"}),
        _ => json!({"codes": codes}),
    };
    ask(service, "shop", client, Method::POST, &path, &body).await
}

async fn copies(service: &Service, code: &str) -> u64 {
    let path = format!("{COUPON}/codes/count");
    let body = json!({"codes": [code]});
    let answer = ask(service, "office", "", Method::POST, &path, &body)
        .await
        .json(200);
    answer["counts"][0].as_u64().unwrap()
}

#[tokio::test]
async fn guesser_is_blocked_and_shop_is_not() {
    let service = service().await;
    let redemptions = format!("{COUPON}/redemptions");
    let hold = json!({"code": "A", "reference": "order-1", "hold_seconds": 60});
    let hold = ask(
        &service,
        "shop",
        "mallory",
        Method::POST,
        &redemptions,
        &hold,
    )
    .await
    .json(201);
    for _ in 0..3 {
        try_codes(&service, "mallory", "redemptions", &["wrong"])
            .await
            .problem(404, "code-unknown");
    }
    let stopped = try_codes(&service, "mallory", "redemptions", &["wrong"]).await;
    stopped.problem(429, "too-many-invalid-codes");
    assert!((1..=20).contains(&stopped.header("retry-after").parse::<u64>().unwrap()));
    try_codes(&service, "alice", "redemptions", &["wrong"])
        .await
        .problem(404, "code-unknown");
    // Confirm and cancel always pass.
    let confirm = format!("{redemptions}/{}/confirm", hold["id"].as_str().unwrap());
    ask(
        &service,
        "shop",
        "mallory",
        Method::POST,
        &confirm,
        &Value::Null,
    )
    .await
    .json(200);
}

#[tokio::test]
async fn every_revealing_operation_counts_guesses() {
    let service = service().await;
    for counting in OPERATIONS {
        for telling in OPERATIONS {
            let client = format!("{counting}-{telling}");
            for wrong in ["w1", "w2", "w3"] {
                let answer = try_codes(&service, &client, counting, &[wrong]).await;
                assert!(
                    [200, 404].contains(&answer.status),
                    "{client}: {}",
                    answer.text()
                );
            }
            let answer = try_codes(&service, &client, telling, &["E"]).await;
            assert_eq!(
                answer.problem(429, "too-many-invalid-codes").get("errors"),
                None,
                "{client}"
            );
        }
    }
    assert_eq!(
        copies(&service, "E").await,
        1,
        "what was refused has changed nothing"
    );
}

#[tokio::test]
async fn list_is_admitted_before_any_lookup() {
    let service = service().await;
    for operation in OPERATIONS
        .into_iter()
        .filter(|operation| *operation != "redemptions")
    {
        // More than a minute allows, whatever was tried before.
        let answer = try_codes(&service, "bob", operation, &["w1", "w2", "w3", "w4"]).await;
        let problem = answer.problem(429, "too-many-invalid-codes");
        assert!(
            problem["detail"].as_str().unwrap().contains("may try 3"),
            "{problem}"
        );
        assert!(!answer.header("retry-after").is_empty());
        // Two of three guesses are used; a list of two exceeds the rest, though one of them is valid.
        let client = format!("carol-{operation}");
        try_codes(&service, &client, operation, &["w1", "w2"])
            .await
            .json(200);
        try_codes(&service, &client, operation, &["w3", "C"])
            .await
            .problem(429, "too-many-invalid-codes");
        try_codes(&service, &client, operation, &["w3"])
            .await
            .json(200);
    }
    assert_eq!(copies(&service, "C").await, 1);
}

#[tokio::test]
async fn valid_codes_cost_nothing() {
    let service = service().await;
    for _ in 0..5 {
        for operation in [
            "codes/check",
            "codes/count",
            "codes/lookup",
            "imports?dry_run=true",
        ] {
            try_codes(&service, "dave", operation, &["A", "B", "C"])
                .await
                .json(200);
        }
    }
    // Nor does a request that is refused for another reason.
    for _ in 0..5 {
        try_codes(&service, "dave", "codes/check", &["A", ""])
            .await
            .problem(422, "invalid-request");
    }
    try_codes(&service, "dave", "codes/check", &["w1", "w2", "w3"])
        .await
        .json(200);
    // Nor does adding, or whatever is done with a campaign's users.
    let codes: Vec<String> = (0..100).map(|n| format!("new-{n}")).collect();
    let path = format!("{COUPON}/codes");
    let codes = json!({"codes": codes});
    ask(&service, "shop", "dave", Method::POST, &path, &codes)
        .await
        .json(200);
}

#[tokio::test]
async fn exempt_key_has_no_guess_limit() {
    let service = service().await;
    let wrong: Vec<String> = (0..10_000).map(|n| format!("wrong-{n}")).collect();
    for operation in ["check", "count", "remove"] {
        let path = format!("{COUPON}/codes/{operation}");
        ask(
            &service,
            "office",
            "mallory",
            Method::POST,
            &path,
            &json!({"codes": wrong}),
        )
        .await
        .json(200);
    }
}

#[tokio::test]
async fn disconnected_client_loses_guesses() {
    let service = service().await;
    for (operation, body) in [
        ("redemptions", json!({"code": "wrong", "reference": "r"})),
        ("codes/remove", json!({"codes": ["wrong"]})),
        (
            "codes/replace",
            json!({"replacements": [{"from": "wrong", "to": "other"}]}),
        ),
    ] {
        for number in 0..3 {
            let key = format!("{operation}-{number}");
            let headers = [
                ("authorization", "Bearer secret-shop"),
                ("x-client-id", operation),
                ("idempotency-key", &key),
            ];
            let request = json_request(
                Method::POST,
                &format!("{COUPON}/{operation}"),
                &headers,
                &body,
            );
            // The first poll submits the command. Usually the response takes longer.
            let _ = service.begin(request).now_or_never();
        }
        let stopped = try_codes(&service, operation, "codes/check", &["A"]).await;
        stopped.problem(429, "too-many-invalid-codes");
    }
}

#[tokio::test]
async fn add_to_full_fixed_pool_uses_guesses() {
    let service = service().await;
    let pool = "/v1/coupons/full";
    let spec = json!({"capacity": 4, "growth": "fixed"});
    ask(&service, "office", "", Method::PUT, pool, &spec)
        .await
        .json(201);
    let path = format!("{pool}/codes");
    let add = async |key: &str, client: &str, code: String| {
        ask(
            &service,
            key,
            client,
            Method::POST,
            &path,
            &json!({"codes": [code]}),
        )
        .await
    };
    let mut filled = 0;
    while add("office", "", format!("F{filled}")).await.status == 200 {
        filled += 1;
    }
    for _ in 0..10 {
        add("shop", "alice", "F0".into()).await.json(200);
    }
    for guess in 0..3 {
        add("shop", "mallory", format!("X{guess}"))
            .await
            .problem(409, "filter-full");
    }
    for code in ["X4", "F0"] {
        add("shop", "mallory", code.into())
            .await
            .problem(429, "too-many-invalid-codes");
    }
    add("shop", "alice", "F0".into()).await.json(200);
}

/// The coupon `full`: of fixed size, without space for another code. Its first code is `F0`.
async fn full_pool(service: &Service) {
    let pool = "/v1/coupons/full";
    let spec = json!({"capacity": 4, "growth": "fixed"});
    ask(service, "office", "", Method::PUT, pool, &spec)
        .await
        .json(201);
    let mut filled = 0;
    loop {
        let code = json!({"codes": [format!("F{filled}")]});
        let added = ask(
            service,
            "office",
            "",
            Method::POST,
            &format!("{pool}/codes"),
            &code,
        )
        .await;
        if added.status != 200 {
            return;
        }
        filled += 1;
    }
}

/// Operations on a full pool that tell a known code from an unknown one: an add of any kind, and a replacement of a known code.
#[tokio::test]
async fn every_operation_on_full_pool_uses_guesses() {
    let service = service().await;
    full_pool(&service).await;
    let try_code = async |operation: &str, client: &str, code: &str| {
        let path = format!("/v1/coupons/full/{operation}");
        let headers = [
            ("authorization", "Bearer secret-shop"),
            ("x-client-id", client),
            ("content-type", "text/plain"),
        ];
        match operation {
            "codes" => {
                ask(
                    &service,
                    "shop",
                    client,
                    Method::POST,
                    &path,
                    &json!({"codes": [code]}),
                )
                .await
            }
            "codes/replace" => {
                let body = json!({"replacements": [{"from": "F0", "to": code}]});
                ask(&service, "shop", client, Method::POST, &path, &body).await
            }
            _ => {
                service
                    .send(request(
                        Method::POST,
                        &path,
                        &headers,
                        code.to_owned().into(),
                    ))
                    .await
            }
        }
    };
    for operation in [
        "codes",
        "codes/replace",
        "imports",
        "imports?dry_run=true",
        "imports?if_absent=true",
    ] {
        let client = format!("guesser-{operation}");
        let mut rejected = 0;
        for number in 0..1_000 {
            let answer = try_code(operation, &client, &format!("X{number}")).await;
            match answer.status {
                409 => drop(answer.problem(409, "filter-full")),
                _ => drop(answer.problem(429, "too-many-invalid-codes")),
            }
            rejected += u32::from(answer.status == 409);
        }
        assert!(
            (3..10).contains(&rejected),
            "{operation}: {rejected} guesses"
        );
        try_code(operation, &client, "F0")
            .await
            .problem(429, "too-many-invalid-codes");
        // Known codes cost nothing.
        let client = format!("shop-{operation}");
        for _ in 0..5 {
            let answer = try_code(operation, &client, "F0").await;
            assert_eq!(answer.status, 200, "{operation}: {}", answer.text());
        }
    }
}

/// An import that has no effect still looks at codes: a replacement that a guard stops counts those that are redeemed, and a repeated
/// `id` says whether its lines are the first ones.
#[tokio::test]
async fn import_without_effect_uses_guesses() {
    let service = service().await;
    let import = async |client: &str, query: &str, code: String| {
        let headers = [
            ("authorization", "Bearer secret-shop"),
            ("x-client-id", client),
            ("content-type", "text/plain"),
        ];
        let path = format!("{COUPON}/imports?{query}");
        service
            .send(request(Method::POST, &path, &headers, code.into()))
            .await
    };
    import("owner", "id=first", "SECRET".into()).await.json(200);
    for (query, code) in [
        ("mode=replace&min_items=5", "import-guarded"),
        ("id=first", "import-differs"),
    ] {
        let mut rejected = 0;
        for number in 0..1_000 {
            let answer = import(query, query, format!("X{number}")).await;
            if answer.status == 429 {
                answer.problem(429, "too-many-invalid-codes");
            } else {
                answer.problem(409, code);
                rejected += 1;
            }
        }
        assert!((3..10).contains(&rejected), "{query}: {rejected} guesses");
    }
    // Nor does the record of such an import say how many of its codes are in use.
    let redeem = json!({"code": "D", "reference": "r"});
    ask(
        &service,
        "office",
        "",
        Method::POST,
        &format!("{COUPON}/redemptions"),
        &redeem,
    )
    .await
    .json(201);
    import(
        "other",
        "mode=replace&min_items=5&id=guarded",
        "D\nX".into(),
    )
    .await
    .problem(409, "import-guarded");
    let guarded = ask(
        &service,
        "office",
        "",
        Method::GET,
        "/v1/imports/guarded",
        &Value::Null,
    )
    .await
    .json(200);
    assert_eq!(
        (&guarded["added"], &guarded["already_redeemed"]),
        (&json!(2), &json!(0))
    );
    // Repeats cost nothing, nor does what takes effect.
    for _ in 0..5 {
        import("owner", "id=first", "SECRET".into()).await.json(200);
    }
    for _ in 0..5 {
        import("owner", "mode=replace", "A\nB\nE".into())
            .await
            .json(200);
        import("owner", "", "new".into()).await.json(200);
    }
}

/// `generate` reveals nothing, so it uses no guess.
#[tokio::test]
async fn generate_says_nothing_about_codes() {
    let service = service().await;
    let path = format!("{COUPON}/codes/generate");
    for number in 0..1_000 {
        let code = if number % 2 == 0 { "A" } else { "wrong" };
        let bearer = [
            ("authorization", "Bearer secret-shop"),
            ("x-client-id", "mallory"),
            ("idempotency-key", &*format!("k{number}")),
        ];
        let body = json!({"count": 1, "pattern": code});
        let answer = service
            .send(json_request(Method::POST, &path, &bearer, &body))
            .await;
        answer.problem(422, "invalid-request");
    }
    try_codes(&service, "mallory", "codes/check", &["w1", "w2", "w3"])
        .await
        .json(200);
}

#[tokio::test]
async fn open_pool_uses_no_guesses() {
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
        .put(COUPON, json!({"capacity": 10, "stock": 1}))
        .await
        .json(201);
    let redeem = async |code: u32| {
        let body = json!({"code": format!("u{code}"), "reference": "r"});
        service.post(&format!("{COUPON}/redemptions"), body).await
    };
    redeem(0).await.json(201);
    for code in 1..5 {
        redeem(code).await.problem(409, "sold-out");
        let check = service
            .post(
                &format!("{COUPON}/codes/check"),
                json!({"codes": ["a", "b", "c"]}),
            )
            .await;
        assert_eq!(check.json(200), json!({"valid": [false, false, false]}));
    }
}
