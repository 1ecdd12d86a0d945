//! Checks of imports: dry runs, warnings, and uploads that can't be read. The script `imports` has guards.

use super::conventions::zstd_spaces;
use super::imports::{IMPORTS, service, text};
use super::service::{Service, request};
use axum::body::Body;
use http::Method;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use std::ops::Range;

#[tokio::test]
async fn few_distinct_items_return_warning() {
    let service = service().await;
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

/// Held and redeemed codes outlive a replacement, and take space in it.
#[tokio::test]
async fn dry_run_of_replacement_counts_used_codes() {
    let service = Service::start().await;
    for (used, fits) in [(0, true), (2, true), (60, false), (100, false)] {
        let path = format!("/v1/coupons/used-{used}");
        service.put(&path, json!({"capacity": 100, "growth": "fixed"})).await.json(201);
        let lines = |prefix: &str| (0..100).map(|n| format!("{prefix}{n}\n")).collect::<String>();
        service.import(&format!("{path}/imports"), "text/plain", lines("old-")).await.json(200);
        for n in 0..used {
            let hold =
                json!({"code": format!("old-{n}"), "reference": format!("r{n}"), "hold_seconds": n % 2 * 60});
            service.post(&format!("{path}/redemptions"), hold).await.json(201);
        }
        let query = format!("{path}/imports?mode=replace&max_shrink=0.5");
        let dry = service.import(&format!("{query}&dry_run=true"), "text/plain", lines("new-")).await;
        let real = service.import(&query, "text/plain", lines("new-")).await;
        if fits {
            assert_eq!(dry.json(200)["added"], real.json(200)["added"], "{used} used");
        } else {
            dry.problem(409, "filter-full");
            real.problem(409, "filter-full");
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
