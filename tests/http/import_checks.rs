//! Checks of imports: dry runs, warnings, and uploads that can't be read. The script `imports` has guards.

use crate::conventions::zstd_spaces;
use crate::imports::{IMPORTS, broken, service, text};
use crate::service::{Service, request};
use axum::body::Body;
use http::Method;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use std::ops::Range;
use std::path::Path;

#[tokio::test]
async fn few_distinct_items_return_warning() {
    let service = service().await;
    let alike = text(&service, "", "spring\n".repeat(200)).await.json(200);
    assert!(
        alike["warnings"][0]
            .as_str()
            .unwrap()
            .contains("only about 1 of 200 items"),
        "{alike}"
    );
    let fine = text(
        &service,
        "",
        (0..200).map(|n| format!("u{n}\n")).collect::<String>(),
    )
    .await
    .json(200);
    assert_eq!(fine["warnings"], json!([]));
}

/// A second upload of a file doubles the users of a compact campaign, unless `if_absent` is set.
#[tokio::test]
async fn second_append_warns_or_adds_nothing() {
    let service = Service::start().await;
    service
        .put("/v1/campaigns/spring", json!({"capacity": 10_000}))
        .await
        .json(201);
    let lines: String = (0..4_000).map(|n| format!("u{n}\n")).collect();
    let items =
        async || service.get("/v1/campaigns/spring").await.json(200)["stats"]["items"].clone();
    let first = text(&service, "", lines.clone()).await.json(200);
    assert_eq!(
        (&first["added"], &first["warnings"]),
        (&json!(4_000), &json!([]))
    );
    let again = text(&service, "?if_absent=true", lines.clone())
        .await
        .json(200);
    assert_eq!(
        (&again["added"], &again["already_present"]),
        (&json!(0), &json!(4_000))
    );
    assert_eq!(
        (&again["warnings"], items().await),
        (&json!([]), json!(4_000))
    );
    for query in ["?dry_run=true", ""] {
        let doubled = text(&service, query, lines.clone()).await.json(200);
        assert_eq!(
            (&doubled["added"], &doubled["already_present"]),
            (&json!(4_000), &json!(0)),
            "{query}"
        );
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
    assert_eq!(
        text(&service, "", mixed).await.json(200)["warnings"],
        json!([])
    );
    // An ID denotes one kind of import.
    text(&service, "?id=one", "x\n").await.json(200);
    text(&service, "?id=one&if_absent=true", "x\n")
        .await
        .problem(409, "import-differs");
}

/// Files as programs write them. The console's test uploads the same files.
#[tokio::test]
async fn files_of_programs_are_read() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/uploads");
    let formats: Vec<Value> =
        serde_json::from_slice(&std::fs::read(directory.join("formats.json")).unwrap()).unwrap();
    let files = std::fs::read_dir(&directory)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap());
    let files = files
        .filter(|name| name != "formats.json" && name != ".gitattributes")
        .count();
    assert_eq!(files, formats.len(), "each file is in the table");
    let service = Service::start().await;
    for (at, format) in formats.iter().enumerate() {
        let path = format!("/v1/campaigns/format-{at}");
        service
            .put(&path, json!({"capacity": 100, "mode": "strict"}))
            .await
            .json(201);
        let file = std::fs::read(directory.join(format["file"].as_str().unwrap())).unwrap();
        let import = async |leave_out: &str| {
            let mut query = form_urlencoded::Serializer::new(String::new());
            for (name, value) in format["parameters"].as_object().unwrap() {
                if name != leave_out {
                    query.append_pair(name, value.as_str().unwrap());
                }
            }
            let path = format!("{path}/imports?{}", query.finish());
            service
                .import(&path, format["media_type"].as_str().unwrap(), file.clone())
                .await
        };
        if let Some(problem) = format["problem"].as_str() {
            let rejected = import("").await.problem(422, "invalid-request");
            assert!(
                rejected["detail"].as_str().unwrap().contains(problem),
                "{format}: {rejected}"
            );
            continue;
        }
        if let Some(delimiter) = format["parameters"]["delimiter"].as_str() {
            let rejected = import("delimiter").await.problem(422, "invalid-request");
            assert_eq!(
                rejected["errors"][0]["pointer"], "/delimiter",
                "{format}: {rejected}"
            );
            let hint = format!("delimiter={delimiter}");
            assert!(
                rejected["detail"].as_str().unwrap().contains(&hint),
                "{format}: {rejected}"
            );
        }
        let done = import("").await.json(200);
        let items = format["items"].as_array().unwrap();
        assert_eq!(
            (&done["added"], &done["rejected"], &done["warnings"]),
            (&json!(items.len()), &json!(0), &json!([])),
            "{format}: {done}"
        );
        let checked = service
            .post(&format!("{path}/users/check"), json!({"users": items}))
            .await
            .json(200);
        assert_eq!(
            checked["present"],
            json!(vec![true; items.len()]),
            "{format}"
        );
    }
}

/// A column is named as in the header row, so the rejection lists its columns.
#[tokio::test]
async fn unknown_column_returns_columns() {
    let service = service().await;
    for (query, pointer, listed) in [
        ("?column=code", "/column", "\" code \", \"Code\""),
        ("", "/column", "2 columns, \" code \", \"Code\""),
        (
            "?delimiter=tab",
            "/delimiter",
            "',': if fields end there, set delimiter=comma",
        ),
    ] {
        let rejected = service
            .import(
                &format!("{IMPORTS}{query}"),
                "text/csv",
                " code ,Code\nA,B\n",
            )
            .await;
        let rejected = rejected.problem(422, "invalid-request");
        assert_eq!(rejected["errors"][0]["pointer"], pointer, "{rejected}");
        assert!(
            rejected["detail"].as_str().unwrap().contains(listed),
            "{rejected}"
        );
    }
    for (query, media_type) in [
        ("?delimiter=tab", "text/plain"),
        ("?delimiter=tab", "application/x-ndjson"),
        ("?delimiter=x", "text/csv"),
    ] {
        let rejected = service
            .import(&format!("{IMPORTS}{query}"), media_type, "u1\n")
            .await;
        let rejected = rejected.problem(422, "invalid-request");
        assert_eq!(rejected["errors"][0]["pointer"], "/delimiter", "{rejected}");
    }
}

#[tokio::test]
async fn empty_records_are_not_rejected() {
    let service = service().await;
    let csv = format!("user,email\nu1,a@example.com\nu2,\n{}", ",\n".repeat(500));
    let path = format!("{IMPORTS}?column=user&max_rejected=0");
    let done = service.import(&path, "text/csv", csv).await.json(200);
    assert_eq!(
        (&done["lines"], &done["added"], &done["rejected"]),
        (&json!(503), &json!(2), &json!(0))
    );
    assert_eq!(done["warnings"], json!([]));
}

/// Each copy of a user in a compact campaign must be removed, so an import says that users are repeated.
#[tokio::test]
async fn repeated_items_return_warning() {
    let service = Service::start().await;
    let lines = |percent: u32| {
        let repeated = (0..10_000 * percent / 100).map(|n| format!("u{n}\n"));
        (0..10_000)
            .map(|n| format!("u{n}\n"))
            .chain(repeated)
            .collect::<String>()
    };
    let warnings = async |spec: Value, query: &str, lines: String| {
        service.delete("/v1/campaigns/spring").await;
        let mut body = json!({"capacity": 30_000});
        body.as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        service.put("/v1/campaigns/spring", body).await.json(201);
        let dry = text(&service, &format!("?dry_run=true{query}"), lines.clone())
            .await
            .json(200);
        let done = text(&service, &format!("?dry_run=false{query}"), lines)
            .await
            .json(200);
        assert_eq!(dry["warnings"], done["warnings"]);
        done["warnings"].as_array().unwrap().clone()
    };
    let compact = json!({"mode": "compact"});
    for query in ["", "&mode=replace"] {
        let found = warnings(compact.clone(), query, lines(5)).await;
        let [Value::String(warning)] = &found[..] else {
            panic!("{query}: {found:?}")
        };
        let share = warning
            .strip_prefix("about ")
            .unwrap()
            .split('%')
            .next()
            .unwrap();
        assert!(
            (4.0..6.0).contains(&share.parse::<f64>().unwrap()),
            "{warning}"
        );
        assert!(warning.contains("if_absent=true"), "{warning}");
    }
    for (spec, query, percent) in [
        (compact.clone(), "", 0),
        (compact.clone(), "&if_absent=true", 5),
        (json!({"mode": "strict"}), "", 5),
        // Items of which as many collide anyway.
        (json!({"mode": "compact", "error_rate": 0.1}), "", 5),
    ] {
        assert!(
            warnings(spec.clone(), query, lines(percent))
                .await
                .is_empty(),
            "{spec}{query}, {percent}%"
        );
    }
}

/// The warnings concern the complete upload, also if an earlier one has added most of its lines.
#[tokio::test]
async fn continued_import_returns_same_warnings() {
    let service = Service::start().await;
    service
        .put("/v1/campaigns/spring", json!({"capacity": 50_000}))
        .await
        .json(201);
    let lines: String = (0..15_000)
        .chain(0..2_000)
        .map(|n| format!("u{n}\u{a0}\n"))
        .collect();
    let lines = format!("code\n{lines}");
    // All but the last line.
    let cut = lines.get(..lines.len() - 8).unwrap().to_owned().leak();
    text(&service, "?id=a", broken(&[cut]))
        .await
        .problem(400, "malformed-request");
    assert!(service.get("/v1/imports/a").await.json(200)["lines"].as_u64() > Some(0));
    let continued = text(&service, "?id=a", lines.clone()).await.json(200);
    let complete = text(&service, "?mode=replace", lines).await.json(200);
    assert_eq!(continued["warnings"], complete["warnings"]);
    assert_eq!(
        continued["warnings"].as_array().unwrap().len(),
        3,
        "{continued}"
    );
}

#[tokio::test]
async fn suspicious_lines_return_warning() {
    let service = service().await;
    for (at, (media_type, body, expected)) in [
        (
            "text/plain",
            "code\nSPRING-1\nSPRING-2\n",
            Some("the first line looks like a header"),
        ),
        (
            "text/csv",
            "SPRING-1\nSPRING-2\nSPRING-3\n",
            Some("the header row looks like an item"),
        ),
        ("text/csv", "code\nSPRING-1\nSPRING-2\n", None),
        ("text/plain", "SPRING-1\nSPRING-2\nSPRING-3\n", None),
        (
            "text/plain",
            "A1\u{a0}\n\u{200b}B2\nC3\n",
            Some("2 items begin or end with white space or invisible"),
        ),
        (
            "text/csv",
            "code\n\u{2003}A1\nB2\u{feff}\nC3\n",
            Some("2 items begin or end"),
        ),
        ("text/plain", "A1|x\nA2|y\nA3|z\n", Some("number of '|'")),
        ("text/plain", "用户甲\nÄ-1\n😀\n", None),
    ]
    .into_iter()
    .enumerate()
    {
        let real = format!("?id=w{at}&mode=replace");
        for query in ["?dry_run=true", &real] {
            let done = service
                .import(&format!("{IMPORTS}{query}"), media_type, body)
                .await
                .json(200);
            let warnings = done["warnings"].as_array().unwrap();
            assert_eq!(
                warnings.len(),
                usize::from(expected.is_some()),
                "{body}: {done}"
            );
            for (warning, expected) in warnings.iter().zip(expected) {
                assert!(
                    warning.as_str().unwrap().contains(expected),
                    "{body}: {warning}"
                );
            }
        }
        let stored = service.get(&format!("/v1/imports/w{at}")).await.json(200)["warnings"].clone();
        let again = service
            .import(&format!("{IMPORTS}{real}"), media_type, body)
            .await
            .json(200);
        assert_eq!(again["warnings"], stored);
    }
}

#[tokio::test]
async fn unreadable_upload_leaves_no_import() {
    let service = service().await;
    let long = "h".repeat(70_000);
    for (media_type, body) in [
        ("text/plain", "u\x001\0\n\0"),
        ("text/csv", "id,name\nu1,Ann\n"),
        ("text/csv", "id;name\nu1;Ann\n"),
        ("text/csv", "\"id"),
        // The end of the header row has not arrived when it is already too long.
        ("text/csv", &long),
    ] {
        let refused = service
            .import(&format!("{IMPORTS}?id=bad"), media_type, body.to_owned())
            .await;
        refused.problem(422, "invalid-request");
        service
            .get("/v1/imports/bad")
            .await
            .problem(404, "import-not-found");
    }
    assert_eq!(
        service.get("/v1/imports").await.json(200),
        json!({"imports": []})
    );
    text(&service, "?id=bad", "u1\n").await.json(200);
}

#[tokio::test]
async fn upload_that_expands_too_much_is_rejected() {
    let service = service().await;
    let headers = [("content-type", "text/plain"), ("content-encoding", "zstd")];
    let bomb = request(
        Method::POST,
        IMPORTS,
        &headers,
        Body::from(zstd_spaces(200)),
    );
    let problem = service.send(bomb).await.problem(413, "body-too-large");
    assert!(
        problem["detail"].as_str().unwrap().contains("200 times"),
        "{problem}"
    );
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
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::with_cases(48)
    });
    let strategy = (file(), file(), file(), any::<[bool; 4]>(), 0usize..3);
    for case in 0..48 {
        let (first, second, used, [is_coupon, is_strict, is_replace, if_absent], forgetting) =
            strategy.new_tree(&mut runner).unwrap().current();
        let (collection, items) = if is_coupon {
            ("coupons", "codes")
        } else {
            ("campaigns", "users")
        };
        let path = format!("/v1/{collection}/case-{case}");
        let mut spec =
            json!({"capacity": 1_000, "mode": if is_strict { "strict" } else { "compact" }});
        if forgetting == 0 && !is_strict && !is_coupon {
            spec["forget_after"] = json!("7d");
        }
        service.put(&path, spec.clone()).await.json(201);
        let lines = |file: &[u8]| {
            file.iter()
                .map(|n| format!("item-{n}\n"))
                .collect::<String>()
        };
        service
            .import(&format!("{path}/imports"), "text/plain", lines(&first))
            .await
            .json(200);
        for n in used.iter().filter(|_| is_coupon && is_strict).take(3) {
            let redeem = json!({"code": format!("item-{n}"), "reference": "r", "hold_seconds": u64::from(n % 2) * 60});
            service.post(&format!("{path}/redemptions"), redeem).await;
        }
        let mode = if is_replace {
            "replace&min_items=0"
        } else {
            "append"
        };
        let query = format!("{path}/imports?mode={mode}&if_absent={if_absent}");
        let dry = service
            .import(
                &format!("{query}&dry_run=true"),
                "text/plain",
                lines(&second),
            )
            .await;
        let real = service.import(&query, "text/plain", lines(&second)).await;
        let dry = dry.json(200);
        let real = real.json(200);
        for field in [
            "lines",
            "added",
            "already_present",
            "already_redeemed",
            "rejected",
            "errors",
            "warnings",
        ] {
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
        service
            .put(&path, json!({"capacity": 100, "growth": "fixed"}))
            .await
            .json(201);
        let lines = |prefix: &str| {
            (0..100)
                .map(|n| format!("{prefix}{n}\n"))
                .collect::<String>()
        };
        service
            .import(&format!("{path}/imports"), "text/plain", lines("old-"))
            .await
            .json(200);
        for n in 0..used {
            let hold = json!({"code": format!("old-{n}"), "reference": format!("r{n}"), "hold_seconds": n % 2 * 60});
            service
                .post(&format!("{path}/redemptions"), hold)
                .await
                .json(201);
        }
        let query = format!("{path}/imports?mode=replace&max_shrink=0.5");
        let dry = service
            .import(
                &format!("{query}&dry_run=true"),
                "text/plain",
                lines("new-"),
            )
            .await;
        let real = service.import(&query, "text/plain", lines("new-")).await;
        if fits {
            assert_eq!(
                dry.json(200)["added"],
                real.json(200)["added"],
                "{used} used"
            );
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
        (
            json!({"mode": "compact", "error_rate": 0.05}),
            "if_absent=true",
        ),
        (json!({"mode": "compact"}), ""),
        (
            json!({"mode": "compact", "error_rate": 0.05, "forget_after": "7d"}),
            "if_absent=true",
        ),
        (json!({"mode": "compact", "growth": "fixed"}), ""),
        (json!({"mode": "strict", "growth": "fixed"}), ""),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/v1/campaigns/long-{at}");
        let mut body = json!({"capacity": 10_000});
        body.as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        service.put(&path, body).await.json(201);
        let import = async |query: &str, lines| {
            service
                .import(&format!("{path}/imports?{query}"), "text/plain", lines)
                .await
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
