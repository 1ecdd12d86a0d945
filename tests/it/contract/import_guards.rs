//! Imports that can't hurt: guards, dry runs and warnings.

use super::conventions::zstd_spaces;
use super::imports::{IMPORTS, present, service, text};
use super::service::{Service, request};
use axum::body::Body;
use http::Method;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use std::ops::Range;

#[tokio::test]
async fn empty_replacement_is_rejected() {
    let service = service().await;
    text(&service, "", "u1\nu2\n").await.json(200);
    for (media_type, body) in [("text/plain", ""), ("text/plain", "\n\n"), ("text/csv", "user\n")] {
        let path = format!("{IMPORTS}?mode=replace&id=nightly");
        let refused = service.import(&path, media_type, body).await;
        let problem = refused.problem(409, "import-guarded");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("brings 0 items") && detail.contains("min_items is 1"), "{detail}");
        let failed = service.get("/v1/imports/nightly").await.json(200);
        assert_eq!(
            (&failed["state"], &failed["failure"]["code"]),
            (&json!("failed"), &json!("import-guarded"))
        );
        assert_eq!(failed["failure"]["detail"], detail);
    }
    assert_eq!(present(&service, &["u1", "u2"]).await, json!([true, true]));
    // Once it is asked for, it is done; until an import is done its guards may be changed.
    let done = text(&service, "?mode=replace&id=nightly&min_items=0", "").await.json(200);
    assert_eq!((&done["state"], done.get("failure")), (&json!("done"), None));
    assert_eq!(present(&service, &["u1", "u2"]).await, json!([false, false]));
    text(&service, "?id=empty", "").await.json(200);
}

#[tokio::test]
async fn min_items_counts_distinct_items() {
    let service = service().await;
    text(&service, "", "old\n").await.json(200);
    let body = "u1\n".repeat(500);
    text(&service, "?mode=replace&min_items=2", body.clone()).await.problem(409, "import-guarded");
    assert_eq!(present(&service, &["old", "u1"]).await, json!([true, false]));
    text(&service, "?mode=replace&min_items=2", body + "u2\n").await.json(200);
    // An append has already added the lines it has read. Users that were present count as well.
    text(&service, "?min_items=4", "u1\nu2\nu3\n").await.problem(409, "import-guarded");
    assert_eq!(present(&service, &["u3"]).await, json!([true]));
    text(&service, "?min_items=3", "u1\nu2\nu3\n").await.json(200);
}

#[tokio::test]
async fn replacement_beyond_max_shrink_is_rejected() {
    let service = service().await;
    let lines = |count: u32| (0..count).map(|n| format!("u{n}\n")).collect::<String>();
    text(&service, "", lines(10)).await.json(200);
    let refused = text(&service, "?mode=replace&max_shrink=0.2&id=r", lines(7)).await;
    let problem = refused.problem(409, "import-guarded");
    let detail = problem["detail"].as_str().unwrap();
    for figure in ["7 available items", "place of 10", "max_shrink is 0.2"] {
        assert!(detail.contains(figure), "{detail}");
    }
    assert_eq!(service.get("/v1/campaigns/spring").await.json(200)["stats"]["items"], 10);
    text(&service, "?mode=replace&max_shrink=0.2", lines(8)).await.json(200);
    text(&service, "?mode=replace&max_shrink=0", lines(7)).await.problem(409, "import-guarded");
    text(&service, "?mode=replace&max_shrink=1", lines(1)).await.json(200);
    text(&service, "?mode=replace&max_shrink=0", lines(12)).await.json(200);
    assert_eq!(service.get("/v1/campaigns/spring").await.json(200)["stats"]["items"], 12);
    for bad in [
        "max_shrink=1.1&mode=replace",
        "max_shrink=-0.1&mode=replace",
        "max_shrink=NaN&mode=replace",
        "max_shrink=0.1",
    ] {
        let refused = text(&service, &format!("?{bad}"), "u1\n").await;
        assert_eq!(refused.problem(422, "invalid-request")["errors"][0]["pointer"], "/max_shrink");
    }
}

/// Used codes are transferred automatically: a replacement needn't contain them.
#[tokio::test]
async fn max_shrink_compares_available_codes() {
    let service = Service::start().await;
    service.put("/v1/coupons/welcome", json!({"capacity": 100})).await.json(201);
    let import = "/v1/coupons/welcome/imports";
    let lines = |codes: std::ops::Range<u32>| codes.map(|n| format!("C{n}\n")).collect::<String>();
    service.import(import, "text/plain", lines(0..10)).await.json(200);
    for n in 0..6 {
        let body = json!({"code": format!("C{n}"), "reference": "r", "hold_seconds": n % 2 * 60});
        service.post("/v1/coupons/welcome/redemptions", body).await.json(201);
    }
    let path = format!("{import}?mode=replace&max_shrink=0.1");
    // Four are available; of these ten, all but three are used.
    service.import(&path, "text/plain", lines(0..6) + "C6\nC7\nC8\n").await.problem(409, "import-guarded");
    service.import(&path, "text/plain", lines(6..10)).await.json(200);
}

#[tokio::test]
async fn append_stops_after_max_rejected_lines() {
    let service = service().await;
    let body = "u1\n\"bad\n\"u2\"\n\"\"\n\"u3\"\n7\n\"u4\"\n";
    let ndjson = async |query: &str, body: &'static str| {
        service.import(&format!("{IMPORTS}{query}"), "application/x-ndjson", body).await
    };
    let refused = ndjson("?id=a&max_rejected=3", body).await;
    let problem = refused.problem(409, "import-guarded");
    let detail = problem["detail"].as_str().unwrap();
    for figure in ["4 lines were rejected", "line 6 (malformed)", "max_rejected is 3"] {
        assert!(detail.contains(figure), "{detail}");
    }
    assert_eq!(present(&service, &["u2", "u3", "u4"]).await, json!([true, true, false]));
    let failed = service.get("/v1/imports/a").await.json(200);
    assert_eq!(
        (&failed["state"], &failed["lines"], &failed["rejected"]),
        (&json!("failed"), &json!(5), &json!(3))
    );
    // The same again fails again. The line put right, or more allowed, it goes on where it stopped.
    ndjson("?id=a&max_rejected=3", body).await.problem(409, "import-guarded");
    let done = ndjson("?id=a&max_rejected=4", body).await.json(200);
    assert_eq!((&done["lines"], &done["rejected"], &done["added"]), (&json!(7), &json!(4), &json!(3)));
    ndjson("?mode=replace&max_rejected=0", "\"new\"\nbad\n").await.problem(409, "import-guarded");
    assert_eq!(present(&service, &["u2", "u4", "new"]).await, json!([true, true, false]));
    ndjson("?id=b&max_rejected=0", "\"u5\"\nbad\n").await.problem(409, "import-guarded");
    ndjson("?id=b&max_rejected=0", "\"u5\"\n\"good\"\n").await.json(200);
}

#[tokio::test]
async fn dry_run_counts_and_changes_nothing() {
    let service = service().await;
    text(&service, "", "u1\nu2\n").await.json(200);
    let before = service.get("/v1/campaigns/spring").await.json(200);
    // A replacement counts its items, an append the new ones.
    for (mode, added, present) in [("append", 2, 1), ("replace", 3, 0)] {
        let checked = text(&service, &format!("?dry_run=true&mode={mode}&id=d"), "u2\nu3\n\nu4\n").await;
        let checked = checked.json(200);
        for (field, value) in [
            ("state", json!("checked")),
            ("lines", json!(4)),
            ("added", json!(added)),
            ("already_present", json!(present)),
            ("rejected", json!(0)),
        ] {
            assert_eq!(checked[field], value, "{field} in {checked}");
        }
        let guarded = text(&service, &format!("?dry_run=true&mode={mode}&min_items=4"), "u1\nu2\nu3\n").await;
        guarded.problem(409, "import-guarded");
        let query = format!("?dry_run=true&mode={mode}&max_rejected=0");
        text(&service, &query, &b"u1\n\xff\nu2\n"[..]).await.problem(409, "import-guarded");
    }
    text(&service, "?dry_run=true&mode=replace", "").await.problem(409, "import-guarded");
    text(&service, "?dry_run=true&mode=replace&max_shrink=0.1", "u1\n").await.problem(409, "import-guarded");
    assert_eq!(service.get("/v1/campaigns/spring").await.json(200), before);
    service.get("/v1/imports/d").await.problem(404, "import-not-found");
    assert_eq!(service.get("/v1/imports").await.json(200)["imports"].as_array().unwrap().len(), 1);

    service.put("/v1/coupons/welcome", json!({"capacity": 100})).await.json(201);
    let import = "/v1/coupons/welcome/imports";
    service.import(import, "text/plain", "A\nB\n").await.json(200);
    let redeem = json!({"code": "A", "reference": "r"});
    service.post("/v1/coupons/welcome/redemptions", redeem).await.json(201);
    let checked =
        service.import(&format!("{import}?dry_run=true"), "text/plain", "A\nB\nC\n").await.json(200);
    let counts = ["added", "already_present", "already_redeemed"].map(|field| checked[field].clone());
    assert_eq!(counts, [json!(1), json!(1), json!(1)]);
}

#[tokio::test]
async fn suspicious_import_returns_warnings() {
    let service = service().await;
    let csv = "id,name\nu1,Ann\nu2,Bob\n";
    for query in ["?id=w", "?dry_run=true"] {
        let done = text(&service, query, csv).await.json(200);
        let [warning] = &done["warnings"].as_array().unwrap()[..] else { panic!("{done}") };
        assert!(warning.as_str().unwrap().contains("CSV"), "{warning}");
    }
    let service = service.restart().await;
    assert_eq!(service.get("/v1/imports/w").await.json(200)["warnings"].as_array().unwrap().len(), 1);
    let alike = text(&service, "", "spring\n".repeat(200)).await.json(200);
    assert!(alike["warnings"][0].as_str().unwrap().contains("only about 1 of 200 items"), "{alike}");
    let fine = text(&service, "", (0..200).map(|n| format!("u{n}\n")).collect::<String>()).await.json(200);
    assert_eq!(fine["warnings"], json!([]));
}

/// A second upload of a file doubles the users of a compact campaign, unless `if_absent` is set.
#[tokio::test]
async fn second_append_warns_or_adds_nothing() {
    let service = Service::start().await;
    service.put("/v1/campaigns/spring", json!({"capacity": 10_000})).await.json(201);
    let lines: String = (0..4_000).map(|n| format!("u{n}\n")).collect();
    let items = async || service.get("/v1/campaigns/spring").await.json(200)["stats"]["items"].clone();
    let first = text(&service, "", lines.clone()).await.json(200);
    assert_eq!((&first["added"], &first["warnings"]), (&json!(4_000), &json!([])));
    let again = text(&service, "?if_absent=true", lines.clone()).await.json(200);
    assert_eq!((&again["added"], &again["already_present"]), (&json!(0), &json!(4_000)));
    assert_eq!((&again["warnings"], items().await), (&json!([]), json!(4_000)));
    for query in ["?dry_run=true", ""] {
        let doubled = text(&service, query, lines.clone()).await.json(200);
        assert_eq!((&doubled["added"], &doubled["already_present"]), (&json!(4_000), &json!(0)), "{query}");
        let [Value::String(warning)] = &doubled["warnings"].as_array().unwrap()[..] else {
            panic!("{doubled}")
        };
        for remedy in ["4000 of 4000", "if_absent=true", "mode=replace"] {
            assert!(warning.contains(remedy), "{warning}");
        }
    }
    assert_eq!(items().await, 8_000);
    // Fewer than half of the lines are no reason to warn.
    let mixed: String = (2_200..6_200).map(|n| format!("u{n}\n")).collect();
    assert_eq!(text(&service, "", mixed).await.json(200)["warnings"], json!([]));
    // An ID denotes one kind of import.
    text(&service, "?id=one", "x\n").await.json(200);
    text(&service, "?id=one&if_absent=true", "x\n").await.problem(409, "import-differs");
}

#[tokio::test]
async fn unreadable_upload_leaves_no_import() {
    let service = service().await;
    let long = "h".repeat(70_000);
    for (media_type, body) in [
        ("text/plain", "\u{feff}u1\n"),
        ("text/csv", "id,name\nu1,Ann\n"),
        ("text/csv", "\"id"),
        // The end of the header row has not arrived when it is already too long.
        ("text/csv", &long),
    ] {
        let refused = service.import(&format!("{IMPORTS}?id=bad"), media_type, body.to_owned()).await;
        refused.problem(422, "invalid-request");
        service.get("/v1/imports/bad").await.problem(404, "import-not-found");
    }
    assert_eq!(service.get("/v1/imports").await.json(200), json!({"imports": []}));
    text(&service, "?id=bad", "u1\n").await.json(200);
}

#[tokio::test]
async fn upload_that_expands_too_much_is_rejected() {
    let service = service().await;
    let headers = [("content-type", "text/plain"), ("content-encoding", "zstd")];
    let bomb = request(Method::POST, IMPORTS, &headers, Body::from(zstd_spaces(200)));
    let problem = service.send(bomb).await.problem(413, "body-too-large");
    assert!(problem["detail"].as_str().unwrap().contains("200 times"), "{problem}");
    let small = request(Method::POST, IMPORTS, &headers, Body::from(zstd_spaces(2)));
    service.send(small).await.json(200);
}

/// Files of few different lines, so that some occur several times.
fn file() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0u8..12, 0..40)
}

#[tokio::test]
async fn dry_run_counts_equal_import_counts() {
    let service = Service::start().await;
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(48) });
    let strategy = (file(), file(), file(), any::<[bool; 4]>(), 0usize..3);
    for case in 0..48 {
        let (first, second, used, [is_coupon, is_strict, is_replace, if_absent], forgetting) =
            strategy.new_tree(&mut runner).unwrap().current();
        let (collection, items) = if is_coupon { ("coupons", "codes") } else { ("campaigns", "users") };
        let path = format!("/v1/{collection}/case-{case}");
        let mut spec = json!({"capacity": 1_000, "mode": if is_strict { "strict" } else { "compact" }});
        if forgetting == 0 && !is_strict && !is_coupon {
            spec["forget_after"] = json!("7d");
        }
        service.put(&path, spec.clone()).await.json(201);
        let lines = |file: &[u8]| file.iter().map(|n| format!("item-{n}\n")).collect::<String>();
        service.import(&format!("{path}/imports"), "text/plain", lines(&first)).await.json(200);
        for n in used.iter().filter(|_| is_coupon && is_strict).take(3) {
            let redeem =
                json!({"code": format!("item-{n}"), "reference": "r", "hold_seconds": u64::from(n % 2) * 60});
            service.post(&format!("{path}/redemptions"), redeem).await;
        }
        let mode = if is_replace { "replace&min_items=0" } else { "append" };
        let query = format!("{path}/imports?mode={mode}&if_absent={if_absent}");
        let dry = service.import(&format!("{query}&dry_run=true"), "text/plain", lines(&second)).await;
        let real = service.import(&query, "text/plain", lines(&second)).await;
        let (dry, real) = (dry.json(200), real.json(200));
        for field in
            ["lines", "added", "already_present", "already_redeemed", "rejected", "errors", "warnings"]
        {
            assert_eq!(
                dry[field], real[field],
                "{field} of {query} into {spec} with {items} {first:?}, then {second:?}"
            );
        }
    }
}

/// A dry run adds to a copy of the filter, so it counts the same collisions, grows and is full as the import.
#[tokio::test]
async fn long_dry_run_counts_equal_import_counts() {
    let service = Service::start().await;
    let lines = |range: Range<u32>| range.map(|n| format!("u{n}\n")).collect::<String>();
    for (at, (spec, query)) in [
        (json!({"mode": "strict"}), ""),
        (json!({"mode": "compact", "error_rate": 0.05}), "if_absent=true"),
        (json!({"mode": "compact"}), ""),
        (json!({"mode": "compact", "error_rate": 0.05, "forget_after": "7d"}), "if_absent=true"),
        (json!({"mode": "compact", "growth": "fixed"}), ""),
        (json!({"mode": "strict", "growth": "fixed"}), ""),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/v1/campaigns/long-{at}");
        let mut body = json!({"capacity": 10_000});
        body.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        service.put(&path, body).await.json(201);
        let import = async |query: &str, lines| {
            service.import(&format!("{path}/imports?{query}"), "text/plain", lines).await
        };
        import(query, lines(0..9_000)).await.json(200);
        let dry = import(&format!("{query}&dry_run=true"), lines(5_000..40_000)).await;
        let real = import(query, lines(5_000..40_000)).await;
        assert_eq!(dry.status, real.status, "{spec}");
        if spec["growth"] == "fixed" {
            dry.problem(409, "filter-full");
        } else {
            assert_eq!(dry.json(200)["added"], real.json(200)["added"], "{spec}");
        }
    }
}
