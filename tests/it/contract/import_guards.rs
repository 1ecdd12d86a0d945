//! Imports that can't hurt: guards, dry runs and warnings.

use super::imports::{IMPORTS, present, service, text};
use super::service::Service;
use serde_json::json;

#[tokio::test]
async fn an_empty_replacement_empties_nothing() {
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
async fn min_items_counts_different_items_of_a_replacement() {
    let service = service().await;
    text(&service, "", "old\n").await.json(200);
    let body = "u1\n".repeat(500);
    text(&service, "?mode=replace&min_items=2", body.clone()).await.problem(409, "import-guarded");
    assert_eq!(present(&service, &["old", "u1"]).await, json!([true, false]));
    text(&service, "?mode=replace&min_items=2", body + "u2\n").await.json(200);
    // An append has added by then what it has read. What was there already counts as well.
    text(&service, "?min_items=4", "u1\nu2\nu3\n").await.problem(409, "import-guarded");
    assert_eq!(present(&service, &["u3"]).await, json!([true]));
    text(&service, "?min_items=3", "u1\nu2\nu3\n").await.json(200);
}

#[tokio::test]
async fn a_replacement_that_shrinks_too_much_is_not_swapped_in() {
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

/// Used codes come over by themselves: they are no part of what a replacement may lack.
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
async fn an_append_stops_before_the_lines_after_one_too_many_was_rejected() {
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
async fn a_dry_run_counts_and_changes_nothing() {
    let service = service().await;
    text(&service, "", "u1\nu2\n").await.json(200);
    let before = service.get("/v1/campaigns/spring").await.json(200);
    for mode in ["append", "replace"] {
        let checked = text(&service, &format!("?dry_run=true&mode={mode}&id=d"), "u2\nu3\n\nu4\n").await;
        let checked = checked.json(200);
        for (field, value) in [
            ("state", json!("checked")),
            ("lines", json!(4)),
            ("added", json!(2)),
            ("already_present", json!(1)),
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
async fn what_looks_wrong_is_told() {
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
