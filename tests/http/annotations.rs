//! Titles and labels of campaigns, coupons and line-ups, and lists filtered by a label.

use crate::service::{Answer, Service, json as json_request};
use cuckood::http::options::HttpOptions;
use http::Method;
use serde_json::{Value, json};

const PATHS: [(&str, &str); 3] = [
    ("/v1/campaigns", "campaigns"),
    ("/v1/coupons", "coupons"),
    ("/v1/line-ups", "line_ups"),
];

/// The body of a PUT: what is required, and these fields.
fn body(path: &str, fields: Value) -> Value {
    let mut body = match path.starts_with("/v1/line-ups") {
        true => json!({"campaigns": ["spring"]}),
        false => json!({"capacity": 10}),
    };
    body.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    body
}

/// The title and the labels of an answer.
#[track_caller]
fn annotations(answer: &Answer, status: u16) -> Value {
    let answer = answer.json(status);
    json!([answer.get("title"), answer.get("labels")])
}

fn names(page: &Value, list: &str) -> Vec<String> {
    let entries = page[list].as_array().unwrap();
    entries
        .iter()
        .map(|entry| entry["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn put_sets_given_fields_and_keeps_others() {
    let service = Service::start().await;
    for (path, list) in PATHS {
        let one = format!("{path}/x");
        let put = async |fields| service.put(&one, body(path, fields)).await;
        let labels = json!({"team": "shop", "region": "中国"});
        let created = put(json!({"title": "春のセール", "labels": labels})).await;
        assert_eq!(annotations(&created, 201), json!(["春のセール", labels]));
        let both = created.json(201);
        assert_eq!(put(json!({})).await.json(200), both);
        assert_eq!(service.get(&one).await.json(200), both);
        assert_eq!(service.get(path).await.json(200)[list], json!([both]));
        assert_eq!(
            annotations(&put(json!({"title": "Sale"})).await, 200),
            json!(["Sale", labels])
        );
        let replaced = put(json!({"labels": {"team": "crm"}})).await;
        assert_eq!(
            annotations(&replaced, 200),
            json!(["Sale", {"team": "crm"}])
        );
        let cleared = put(json!({"title": "", "labels": {}})).await;
        assert_eq!(annotations(&cleared, 200), json!([null, null]));
        assert_eq!(
            annotations(&service.get(&one).await, 200),
            json!([null, null])
        );
    }
    // A conflict changes nothing.
    let other = json!({"capacity": 20, "title": "Other"});
    service
        .put("/v1/campaigns/x", other)
        .await
        .problem(409, "already-exists");
    assert_eq!(
        annotations(&service.get("/v1/campaigns/x").await, 200),
        json!([null, null])
    );
}

#[tokio::test]
async fn patch_merges_labels_and_null_clears() {
    let service = Service::start().await;
    for (path, _) in &PATHS[..2] {
        let one = format!("{path}/x");
        let labels = json!({"team": "shop", "region": "eu"});
        service
            .put(&one, body(path, json!({"title": "Sale", "labels": labels})))
            .await
            .json(201);
        let patch = async |fields| annotations(&service.patch(&one, fields).await, 200);
        assert_eq!(patch(json!({})).await, json!(["Sale", labels]));
        let merged = json!({"labels": {"team": "crm", "region": null, "none": null, "new": ""}});
        assert_eq!(
            patch(merged).await,
            json!(["Sale", {"team": "crm", "new": ""}])
        );
        assert_eq!(
            patch(json!({"title": null})).await,
            json!([null, {"team": "crm", "new": ""}])
        );
        assert_eq!(
            patch(json!({"title": "S", "labels": null})).await,
            json!(["S", null])
        );
        let many: serde_json::Map<_, _> =
            (0..16).map(|key| (format!("k{key}"), json!("v"))).collect();
        assert_eq!(patch(json!({"labels": many})).await, json!(["S", many]));
        let one_more = json!({"labels": {"more": "v"}, "title": "T"});
        assert_eq!(service.patch(&one, one_more).await.pointers(), ["/labels"]);
        let exchanged = json!({"labels": {"more": "v", "k0": null}, "ends_at": null});
        let present = patch(exchanged).await[1].as_object().unwrap().clone();
        assert_eq!(present.len(), 16);
        // All labels can be exchanged by one request.
        let others = |count: usize| {
            let removed = present.keys().map(|key| (key.clone(), json!(null)));
            let set = (0..count).map(|key| (format!("other{key}"), json!("v")));
            json!({"labels": removed.chain(set).collect::<serde_json::Map<_, _>>()})
        };
        assert_eq!(
            service.patch(&one, others(17)).await.pointers(),
            ["/labels"]
        );
        let labels = patch(others(16)).await[1].as_object().unwrap().clone();
        assert!(
            labels.len() == 16 && labels.keys().all(|key| key.starts_with("other")),
            "{labels:?}"
        );
    }
}

#[tokio::test]
async fn invalid_title_or_label_is_rejected() {
    let service = Service::start().await;
    let many: serde_json::Map<_, _> = (0..17).map(|key| (format!("k{key}"), json!("v"))).collect();
    for (fields, pointer) in [
        (json!({"title": "x".repeat(201)}), "/title"),
        (json!({"title": "é".repeat(101)}), "/title"),
        (json!({"title": "a\nb"}), "/title"),
        (json!({"title": "\u{9f}"}), "/title"),
        (json!({"title": 5}), "/title"),
        (json!({"labels": ["team"]}), "/labels"),
        (json!({"labels": many}), "/labels"),
        (json!({"labels": {"Team": "shop"}}), "/labels"),
        (json!({"labels": {"": "shop"}}), "/labels"),
        (json!({"labels": {"k".repeat(129): "shop"}}), "/labels"),
        (json!({"labels": {"team": "x".repeat(65)}}), "/labels/team"),
        (json!({"labels": {"team": "a\tb"}}), "/labels/team"),
        (json!({"labels": {"team": 1}}), "/labels/team"),
    ] {
        for (path, list) in PATHS {
            let one = format!("{path}/x");
            let problem = service.put(&one, body(path, fields.clone())).await;
            let pointers = problem.pointers();
            assert!(
                pointers.len() == 1 && pointers[0].starts_with(pointer),
                "{fields}: {pointers:?}"
            );
            let count = service.get(path).await.json(200)[list]
                .as_array()
                .unwrap()
                .len();
            assert_eq!(count, 0, "{fields}");
        }
    }
    // In a PUT, null is no value.
    for (path, _) in PATHS {
        for (fields, pointer) in [
            (json!({"title": null}), "/title"),
            (json!({"labels": null}), "/labels"),
            (json!({"labels": {"team": null}}), "/labels/team"),
        ] {
            assert_eq!(
                service
                    .put(&format!("{path}/x"), body(path, fields))
                    .await
                    .pointers(),
                [pointer]
            );
        }
    }
    service
        .put(
            "/v1/campaigns/x",
            json!({"capacity": 10, "title": "é".repeat(100)}),
        )
        .await
        .json(201);
    for bad in [
        json!({"title": "x".repeat(201)}),
        json!({"labels": {"Team": null}}),
        json!({"labels": "x"}),
    ] {
        assert_eq!(
            service.patch("/v1/campaigns/x", bad).await.pointers().len(),
            1
        );
    }
}

/// Two titles that differ look different, and a title can't turn the text around it.
#[tokio::test]
async fn hidden_character_in_title_or_label_is_rejected() {
    let service = Service::start().await;
    for hidden in "\u{200b}\u{200c}\u{200d}\u{200e}\u{200f}\u{202a}\u{202e}\u{2060}\u{2066}\u{2069}\u{feff}\u{61c}\u{ad}".chars() {
        let text = format!("Sa{hidden}le");
        for (fields, pointer) in
            [(json!({"title": text}), "/title"), (json!({"labels": {"a": "", "team": text}}), "/labels/team")]
        {
            for (path, _) in PATHS {
                let one = format!("{path}/x");
                assert_eq!(service.put(&one, body(path, fields.clone())).await.pointers(), [pointer], "{fields}");
                assert_eq!(service.get(&one).await.status, 404);
            }
            for (path, _) in &PATHS[..2] {
                let one = format!("{path}/y");
                service.put(&one, body(path, json!({}))).await;
                assert_eq!(service.patch(&one, fields.clone()).await.pointers(), [pointer], "{fields}");
            }
        }
    }
    let visible = json!({"title": "تخفیف 🎄❤️ מבצע", "labels": {"team": "é 春 ไทย"}});
    for (path, _) in PATHS {
        let put = service
            .put(&format!("{path}/x"), body(path, visible.clone()))
            .await;
        assert_eq!(
            annotations(&put, 201),
            json!([visible["title"], visible["labels"]])
        );
    }
}

/// A list of a million labels is not read to its end.
#[tokio::test]
async fn endless_labels_are_rejected_early() {
    let service = Service::start().await;
    let labels: serde_json::Map<_, _> = (0..300_000)
        .map(|key| (format!("k{key}"), json!("")))
        .collect();
    let problem = service
        .put("/v1/campaigns/x", json!({"capacity": 10, "labels": labels}))
        .await;
    assert!(problem.pointers()[0].starts_with("/labels"));
}

#[tokio::test]
async fn list_filtered_by_label_has_pages() {
    let service = Service::start().await;
    for (path, list) in PATHS {
        for number in 0..12 {
            let team = ["shop", "crm"][number % 2];
            let fields = json!({"labels": {"team": team, "half": format!("={}", number / 6)}});
            service
                .put(&format!("{path}/e{number:02}"), body(path, fields))
                .await
                .json(201);
        }
        service
            .put(
                &format!("{path}/f"),
                body(path, json!({"labels": {"team": "shop"}})),
            )
            .await
            .json(201);
        service
            .put(&format!("{path}/g"), body(path, json!({})))
            .await
            .json(201);
        let page = async |query: &str| service.get(&format!("{path}?{query}")).await.json(200);
        let all = page("label=team=shop").await;
        assert_eq!(
            names(&all, list),
            ["e00", "e02", "e04", "e06", "e08", "e10", "f"]
        );
        assert_eq!(
            names(&page("label=team%3Dshop&prefix=e").await, list).len(),
            6
        );
        assert_eq!(names(&page("label=half==1").await, list).len(), 6);
        for empty in [
            "label=team=",
            "label=team=sho",
            "label=none=shop",
            "label=tea=m=shop",
        ] {
            assert_eq!(page(empty).await, json!({list: []}), "{empty}");
        }
        // All entries, each once, and no page without any.
        let mut found = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = page(&format!("label=team=shop&prefix=e&limit=2{cursor}")).await;
            let names = names(&page, list);
            assert_eq!(names.len(), 2);
            found.extend(names);
            let Some(next) = page.get("next_cursor") else {
                break;
            };
            cursor = format!("&cursor={}", next.as_str().unwrap());
        }
        assert_eq!(found, ["e00", "e02", "e04", "e06", "e08", "e10"]);
        for bad in [
            "label=team",
            "label==shop",
            "label=Team=shop",
            "label=a=b&label=c=d",
            "label=",
        ] {
            assert_eq!(
                service.get(&format!("{path}?{bad}")).await.pointers(),
                ["/label"],
                "{bad}"
            );
        }
    }
}

/// However few of many entries have the label, a request looks at a limited number of them.
#[tokio::test]
async fn rare_label_takes_several_short_pages() {
    let service = Service::on(None, HttpOptions::default(), |options| {
        (options.settings.line_ups_max, options.settings.filters_max) = (10_000, 10);
    })
    .await;
    for number in 0..4_200 {
        let labels = if number % 2_050 == 2_049 {
            json!({"rare": "yes"})
        } else {
            json!({})
        };
        let fields = json!({"labels": labels});
        service
            .put(
                &format!("/v1/line-ups/l{number:04}"),
                body("/v1/line-ups", fields),
            )
            .await
            .json(201);
    }
    let first = service
        .get("/v1/line-ups?label=rare=yes&limit=1")
        .await
        .json(200);
    assert_eq!(names(&first, "line_ups"), ["l2049"]);
    let first = service.get("/v1/line-ups?label=rare=yes").await.json(200);
    assert_eq!(names(&first, "line_ups"), ["l2049"]);
    let cursor = first["next_cursor"].as_str().unwrap();
    let last = service
        .get(&format!("/v1/line-ups?label=rare=yes&cursor={cursor}"))
        .await
        .json(200);
    assert_eq!(names(&last, "line_ups"), ["l4099"]);
    assert!(last.get("next_cursor").is_none());
}

#[tokio::test]
async fn repeated_request_returns_stored_title() {
    let service = Service::start().await;
    for (path, _) in PATHS {
        let one = format!("{path}/x");
        let put = async |fields| {
            let headers = [("idempotency-key", "k")];
            service
                .send(json_request(
                    Method::PUT,
                    &one,
                    &headers,
                    &body(path, fields),
                ))
                .await
        };
        let created = put(json!({"title": "A"})).await;
        let position =
            |answer: &Answer| answer.header("x-cuckood-position").parse::<u64>().unwrap();
        let changed = service.put(&one, body(path, json!({"title": "B"}))).await;
        assert!(position(&changed) > position(&created));
        let again = put(json!({"title": "A"})).await;
        assert_eq!(again.header("idempotency-replayed"), "true");
        assert_eq!(again.json(201), created.json(201));
        assert_eq!(
            annotations(&service.get(&one).await, 200),
            json!(["B", null])
        );
        put(json!({"title": "C"}))
            .await
            .problem(422, "idempotency-key-reused");
        put(json!({})).await.problem(422, "idempotency-key-reused");
    }
}

#[tokio::test]
async fn title_and_labels_survive_restart_and_move() {
    let service = Service::start().await;
    let fields = json!({"title": "Sale", "labels": {"team": "shop"}});
    for (path, _) in PATHS {
        service
            .put(&format!("{path}/x"), body(path, fields.clone()))
            .await
            .json(201);
    }
    let service = service.restart().await;
    service.command("/v1/snapshots").await.json(200);
    let service = service.restart().await;
    for (path, _) in PATHS {
        assert_eq!(
            annotations(&service.get(&format!("{path}/x")).await, 200),
            json!(["Sale", {"team": "shop"}])
        );
    }
    for (path, _) in &PATHS[..2] {
        let image = service.get(&format!("{path}/x/image")).await;
        let put = http::Request::put(format!("{path}/y/image"))
            .body(axum::body::Body::from(image.body))
            .unwrap();
        assert_eq!(
            annotations(&service.send(put).await, 201),
            json!(["Sale", {"team": "shop"}])
        );
    }
}
