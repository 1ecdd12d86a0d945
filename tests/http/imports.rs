//! Imports: uploads that are large, interrupted or concurrent. The script `imports` has the rest.

use crate::service::{Answer, Service, request};
use axum::body::Body;
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use http::Method;
use serde_json::{Value, json};

pub const IMPORTS: &str = "/v1/campaigns/spring/imports";

pub async fn service() -> Service {
    let service = Service::start().await;
    service
        .put(
            "/v1/campaigns/spring",
            json!({"capacity": 1000, "mode": "strict"}),
        )
        .await
        .json(201);
    service
}

async fn present(service: &Service, users: &[&str]) -> Value {
    let answer = service
        .post("/v1/campaigns/spring/users/check", json!({"users": users}))
        .await;
    answer.json(200)["present"].clone()
}

pub async fn text(service: &Service, query: &str, body: impl Into<Body>) -> Answer {
    service
        .import(&format!("{IMPORTS}{query}"), "text/plain", body)
        .await
}

/// A body that breaks off after these pieces.
pub fn broken(pieces: &[&'static str]) -> Body {
    let pieces: Vec<std::io::Result<Bytes>> = pieces
        .iter()
        .map(|piece| Ok(Bytes::from_static(piece.as_bytes())))
        .chain([Err(std::io::Error::other("the line is dead"))])
        .collect();
    Body::from_stream(futures_util::stream::iter(pieces))
}

#[tokio::test]
async fn text_has_one_item_per_line() {
    let service = service().await;
    let body = format!("u1\r\nu2\n\n{}\nu1\n  u3 \nlast\n", "x".repeat(513));
    // Latin-1 is not UTF-8.
    let body = [body.as_bytes(), b"\xe4"].concat();
    let done = text(&service, "?mode=append&id=first", body)
        .await
        .json(200);
    assert!(done["seconds"].is_number());
    for (field, value) in [
        ("id", json!("first")),
        ("state", json!("done")),
        ("lines", json!(8)),
        ("added", json!(4)),
        ("already_present", json!(1)),
        ("already_redeemed", json!(0)),
        ("rejected", json!(2)),
        (
            "errors",
            json!([{"line": 4, "code": "item-too-long"}, {"line": 8, "code": "not-utf8"}]),
        ),
    ] {
        assert_eq!(done[field], value, "{field} in {done}");
    }
    let users = ["u1", "u2", "  u3 ", "u3", "last"];
    assert_eq!(
        present(&service, &users).await,
        json!([true, true, true, false, true])
    );
    assert_eq!(
        service.get("/v1/imports/first").await.json(200)["state"],
        "done"
    );
    let list = service.get("/v1/imports").await.json(200);
    assert_eq!(list["imports"][0]["id"], "first");
    service
        .get("/v1/imports/none")
        .await
        .problem(404, "import-not-found");
}

#[tokio::test]
async fn format_parameter_overrides_media_type() {
    let service = service().await;
    for (media_type, body) in [
        ("text/plain", "u1\nu2\n"),
        ("application/x-ndjson", "\"u1\"\n\"u2\"\n"),
        ("text/csv; charset=utf-8", "user\nu1\nu2\n"),
    ] {
        let done = service
            .import(&format!("{IMPORTS}?mode=replace"), media_type, body)
            .await
            .json(200);
        assert_eq!(done["added"], 2, "{media_type}: {done}");
        assert_eq!(present(&service, &["u1", "u2"]).await, json!([true, true]));
    }
    service
        .import(IMPORTS, "application/json", "[]")
        .await
        .problem(415, "unsupported-media-type");
    for media_type in [
        "application/octet-stream",
        "application/x-ndjson",
        "application/x-www-form-urlencoded",
    ] {
        for (format, body) in [
            ("text", "u1\r\nu2\n"),
            ("ndjson", "\"u1\"\n{\"item\":\"u2\"}\n"),
            ("csv&column=id", "name,id\nAnn,u1\nBob,u2\n"),
        ] {
            let path = format!("{IMPORTS}?mode=replace&format={format}");
            let done = service.import(&path, media_type, body).await.json(200);
            assert_eq!(done["added"], 2, "{media_type}, {format}: {done}");
            assert_eq!(present(&service, &["u1", "u2"]).await, json!([true, true]));
        }
    }
    let unsaid = service
        .import(IMPORTS, "application/octet-stream", "u1\n")
        .await;
    unsaid.problem(415, "unsupported-media-type");
    let unknown = service
        .import(&format!("{IMPORTS}?format=xml"), "text/plain", "u1\n")
        .await;
    unknown.problem(422, "invalid-request");
    let columns = service
        .import(
            &format!("{IMPORTS}?format=text&column=id"),
            "text/csv",
            "u1\n",
        )
        .await;
    columns.problem(422, "invalid-request");
}

/// The result under an ID isn't returned for a different upload under it.
#[tokio::test]
async fn finished_id_rejects_different_upload() {
    let service = service().await;
    let body = "u1\nu1\nu1\nu2,x\nu3,x\nu4,x\nu5,x\nu6,x\nu7,x\nu8,x\nu9,x\nu10,x\nu11,x\nu12,x\n";
    let asked = "?id=a&mode=replace&min_items=2&max_shrink=0.5&max_rejected=3";
    let done = text(&service, asked, body).await.json(200);
    assert_eq!(done["warnings"].as_array().unwrap().len(), 0, "{done}");
    for other in [
        "u1\nu2\nu9\n",
        "",
        &body[1..],
        &format!("{body}\n"),
        &body.replace('\n', "\r\n"),
    ] {
        text(&service, asked, other.to_owned())
            .await
            .problem(409, "import-differs");
    }
    for guards in [
        "",
        "&min_items=2",
        "&min_items=2&max_shrink=0.4&max_rejected=3",
    ] {
        let asked = format!("?id=a&mode=replace{guards}");
        text(&service, &asked, body)
            .await
            .problem(409, "import-differs");
    }
    let other_type = service
        .import(&format!("{IMPORTS}{asked}"), "application/x-ndjson", body)
        .await;
    other_type.problem(409, "import-differs");
    let service = service.restart().await;
    let again = text(&service, asked, body).await;
    assert_eq!(
        (again.json(200), again.header("idempotency-replayed")),
        (done.clone(), "true")
    );
    // Compressed it is the same.
    let path = format!("{IMPORTS}{asked}");
    let headers = [("content-type", "text/plain"), ("content-encoding", "zstd")];
    let compressed = zstd::stream::encode_all(body.as_bytes(), 1).unwrap();
    let again = service
        .send(request(
            Method::POST,
            &path,
            &headers,
            Body::from(compressed),
        ))
        .await;
    assert_eq!(again.json(200), done);
}

/// A finished ID returns its result only while the filter still has what it has added.
#[tokio::test]
async fn finished_id_is_overtaken_by_clear_or_replacement() {
    for (collection, spec) in [
        ("campaigns", json!({"capacity": 1000})),
        ("campaigns", json!({"capacity": 1000, "mode": "strict"})),
        ("coupons", json!({"capacity": 1000})),
    ] {
        for mode in ["append", "replace"] {
            let mut service = Service::start().await;
            let filter = format!("/v1/{collection}/spring");
            service.put(&filter, spec.clone()).await.json(201);
            let query = format!("{filter}/imports?mode={mode}&id=a");
            let body = "a1\na2\na3\na4\n";
            let done = service.import(&query, "text/plain", body).await.json(200);
            let overtaken = async |service: &Service, id: &str| {
                let path = format!("{filter}/imports?mode={mode}&id={id}");
                service
                    .import(&path, "text/plain", body)
                    .await
                    .problem(409, "import-overtaken");
            };
            // Items that are removed one by one, or added, are no reason.
            let items = if collection == "coupons" {
                "codes"
            } else {
                "users"
            };
            service
                .post(&format!("{filter}/{items}/remove"), json!({items: ["a1"]}))
                .await
                .json(200);
            service
                .import(&format!("{filter}/imports"), "text/plain", "c1\n")
                .await
                .json(200);
            for _ in 0..2 {
                let again = service.import(&query, "text/plain", body).await;
                assert_eq!(
                    (again.json(200), again.header("idempotency-replayed")),
                    (done.clone(), "true")
                );
                service = service.restart().await;
            }
            service
                .post(&format!("{filter}/clear"), json!({}))
                .await
                .json(200);
            overtaken(&service, "a").await;
            // Even if the same items were added again by others.
            let path = format!("{filter}/imports?mode={mode}&id=b");
            service.import(&path, "text/plain", body).await.json(200);
            overtaken(&service, "a").await;
            service.import(&path, "text/plain", body).await.json(200);
            let replacement = format!("{filter}/imports?mode=replace&id=c");
            service
                .import(&replacement, "text/plain", "d1\na1\na2\na3\n")
                .await
                .json(200);
            overtaken(&service, "b").await;
            service
                .import(&replacement, "text/plain", "d1\na1\na2\na3\n")
                .await
                .json(200);
        }
    }
}

/// The same service, started from a snapshot of it.
async fn from_snapshot(service: Service) -> Service {
    service.post("/v1/snapshots", json!({})).await.json(200);
    service.restart().await
}

/// Users that were removed one by one are no reason.
#[tokio::test]
async fn overtaken_import_is_known_after_snapshot() {
    let service = Service::start().await;
    let lines: &'static str = (0..10)
        .map(|n| format!("u{n}\n"))
        .collect::<String>()
        .leak();
    for campaign in ["trimmed", "cleared", "replaced"] {
        let path = format!("/v1/campaigns/{campaign}");
        service
            .put(&path, json!({"capacity": 1000}))
            .await
            .json(201);
        service
            .import(
                &format!("{path}/imports?id={campaign}"),
                "text/plain",
                lines,
            )
            .await
            .json(200);
    }
    let users = json!({"users": ["u0", "u1", "u2", "u3", "u4", "u5"]});
    service
        .post("/v1/campaigns/trimmed/users/remove", users)
        .await
        .json(200);
    service
        .post("/v1/campaigns/cleared/clear", json!({}))
        .await
        .json(200);
    service
        .import("/v1/campaigns/cleared/imports", "text/plain", lines)
        .await
        .json(200);
    service
        .import(
            "/v1/campaigns/replaced/imports?mode=replace",
            "text/plain",
            lines,
        )
        .await
        .json(200);
    let service = from_snapshot(service).await;
    let repeat = async |campaign: &str| {
        service
            .import(
                &format!("/v1/campaigns/{campaign}/imports?id={campaign}"),
                "text/plain",
                lines,
            )
            .await
    };
    assert_eq!(
        repeat("trimmed").await.header("idempotency-replayed"),
        "true"
    );
    repeat("cleared").await.problem(409, "import-overtaken");
    repeat("replaced").await.problem(409, "import-overtaken");
}

/// Redeemed codes survive a clear, but the others of their import do not.
#[tokio::test]
async fn import_with_redeemed_codes_is_overtaken_by_clear() {
    let service = Service::start().await;
    service
        .put("/v1/coupons/summer", json!({"capacity": 1000}))
        .await
        .json(201);
    let lines: &'static str = (0..10)
        .map(|n| format!("code-{n}\n"))
        .collect::<String>()
        .leak();
    let imports = "/v1/coupons/summer/imports?id=codes";
    service.import(imports, "text/plain", lines).await.json(200);
    for number in 0..6 {
        let redemption =
            json!({"code": format!("code-{number}"), "reference": format!("order-{number}")});
        service
            .post("/v1/coupons/summer/redemptions", redemption)
            .await
            .json(201);
    }
    let service = from_snapshot(service).await;
    let again = service.import(imports, "text/plain", lines).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    service
        .post("/v1/coupons/summer/clear", json!({}))
        .await
        .json(200);
    let service = from_snapshot(service).await;
    service
        .import(imports, "text/plain", lines)
        .await
        .problem(409, "import-overtaken");
}

/// After a clear, the lines of an interrupted import are gone: skipping them would lose them.
#[tokio::test]
async fn interrupted_append_is_overtaken_by_clear() {
    let service = service().await;
    // Enough lines for a batch, which is durable.
    let lines: &'static str = (0..15_000)
        .map(|n| format!("u{n}\n"))
        .collect::<String>()
        .leak();
    let _ = text(&service, "?id=a", broken(&[lines])).await;
    assert!(service.get("/v1/imports/a").await.json(200)["lines"].as_u64() > Some(0));
    let _ = text(&service, "?id=r&mode=replace", broken(&[lines])).await;
    service
        .post("/v1/campaigns/spring/clear", json!({}))
        .await
        .json(200);
    text(&service, "?id=a", lines)
        .await
        .problem(409, "import-overtaken");
    // An interrupted replacement starts over.
    text(&service, "?id=r&mode=replace", "u1\nu2\nu3\n")
        .await
        .json(200);
    let again = text(&service, "?id=r&mode=replace", "u1\nu2\nu3\n").await;
    assert_eq!(again.header("idempotency-replayed"), "true");
}

/// The digest covers the complete upload, including earlier parts.
#[tokio::test]
async fn continued_id_returns_result_for_full_upload() {
    let service = service().await;
    let _ = text(&service, "?id=a", broken(&["u1\nu2\n"])).await;
    let done = text(&service, "?id=a", "u1\nu2\nu3\n").await.json(200);
    text(&service, "?id=a", "u3\n")
        .await
        .problem(409, "import-differs");
    assert_eq!(
        text(&service, "?id=a", "u1\nu2\nu3\n").await.json(200),
        done
    );
}

/// A body of these lines that never ends.
pub fn endless(lines: &'static str) -> Body {
    let first = async { Ok::<_, std::io::Error>(Bytes::from_static(lines.as_bytes())) };
    let rest = futures_util::future::pending();
    Body::from_stream(futures_util::stream::iter([first.boxed(), rest.boxed()]).then(|piece| piece))
}

#[tokio::test]
async fn running_import_can_be_stopped() {
    let service = service().await;
    text(&service, "", "old\n").await.json(200);
    for (query, is_on_record) in [
        ("?id=a", true),
        ("?id=b&mode=replace", true),
        ("?id=c&dry_run=true", false),
    ] {
        let path = format!("/v1/imports/{}", &query[4..5]);
        let upload = text(&service, query, endless("u1\nu2\n"));
        let stop = async {
            // It can be stopped as soon as it is there.
            while service.delete(&path).await.status == 404 {
                tokio::task::yield_now().await;
            }
            assert_eq!(
                service.get(&path).await.status,
                if is_on_record { 200 } else { 404 }
            );
        };
        let (answer, ()) = tokio::join!(upload, stop);
        answer.problem(409, "import-stopped");
        if is_on_record {
            let stopped = service.get(&path).await.json(200);
            assert_eq!(
                (&stopped["state"], &stopped["failure"]["code"]),
                (&json!("interrupted"), &json!("import-stopped"))
            );
            // Again is no harm.
            assert_eq!(service.delete(&path).await.status, 204);
        } else {
            service.delete(&path).await.problem(404, "import-not-found");
        }
    }
    assert_eq!(present(&service, &["old"]).await, json!([true]));
    let done = text(&service, "?id=a", "u1\nu2\nu3\n").await.json(200);
    assert_eq!(
        (&done["state"], &done["lines"]),
        (&json!("done"), &json!(3))
    );
    service
        .delete("/v1/imports/a")
        .await
        .problem(409, "import-finished");
    text(&service, "?id=empty&mode=replace", "")
        .await
        .problem(409, "import-guarded");
    service
        .delete("/v1/imports/empty")
        .await
        .problem(409, "import-finished");
    service
        .delete("/v1/imports/none")
        .await
        .problem(404, "import-not-found");
    service
        .delete("/v1/imports/NO%20NAME")
        .await
        .problem(404, "import-not-found");
}

#[tokio::test]
async fn import_into_deleted_campaign_finds_no_campaign() {
    let service = service().await;
    for query in ["?id=a", "?id=b&mode=replace"] {
        let (end, ended) = tokio::sync::watch::channel(false);
        let upload = text(&service, query, held_back("u1\n", &ended));
        let delete = async {
            while service
                .get(&format!("/v1/imports/{}", &query[4..5]))
                .await
                .status
                == 404
            {
                tokio::task::yield_now().await;
            }
            assert_eq!(service.delete("/v1/campaigns/spring").await.status, 204);
            end.send_replace(true);
        };
        let (answer, ()) = tokio::join!(upload, delete);
        answer.problem(404, "campaign-not-found");
        service
            .put("/v1/campaigns/spring", json!({"capacity": 1000}))
            .await
            .json(201);
    }
}

/// While an upload computes, requests of the same worker wait.
#[tokio::test]
async fn upload_yields_after_each_piece() {
    const PIECES: usize = 50;
    const LINES: usize = 6_000;
    let service = service().await;
    let mut turns = 0;
    let pieces = (0..PIECES).map(|_| Ok::<_, std::convert::Infallible>("u1\n".repeat(LINES)));
    let upload = text(
        &service,
        "?dry_run=true",
        Body::from_stream(futures_util::stream::iter(pieces)),
    );
    let others = async {
        loop {
            turns += 1;
            tokio::task::yield_now().await;
        }
    };
    let answer = tokio::select! {
        answer = upload => answer,
        () = others => unreachable!(),
    };
    assert_eq!(answer.json(200)["lines"], PIECES * LINES);
    assert!(turns >= PIECES, "{turns} turns");
}

#[tokio::test]
async fn interrupted_append_is_continued() {
    let service = service().await;
    let broken_off = text(&service, "?id=a", broken(&["u1\nu2\nu3\nha"])).await;
    broken_off.problem(400, "malformed-request");
    assert_eq!(
        service.get("/v1/imports/a").await.json(200)["state"],
        "interrupted"
    );
    let done = text(&service, "?id=a", "u1\nu2\nu3\nhalf\nu4\n")
        .await
        .json(200);
    assert_eq!(
        (&done["state"], &done["lines"], &done["added"]),
        (&json!("done"), &json!(5), &json!(5)),
        "{done}"
    );
    assert_eq!(
        present(&service, &["u3", "ha", "half", "u4"]).await,
        json!([true, false, true, true])
    );
}

#[tokio::test]
async fn continued_append_must_repeat_lines() {
    let service = service().await;
    let lines: String = (0..25_000).map(|n| format!("u{n}\n")).collect();
    let cut = lines.leak();
    let _ = text(&service, "?id=a", broken(&[cut])).await;
    let durable = service.get("/v1/imports/a").await.json(200);
    assert!(durable["lines"].as_u64() > Some(0), "{durable}");
    let others: String = (0..25_000).map(|n| format!("v{n}\n")).collect();
    text(&service, "?id=a", others)
        .await
        .problem(409, "import-differs");
    text(&service, "?id=a", "u0\n")
        .await
        .problem(409, "import-differs");
    let done = text(&service, "?id=a", format!("{cut}more\n"))
        .await
        .json(200);
    assert_eq!(
        (&done["lines"], &done["added"], &done["already_present"]),
        (&json!(25_001), &json!(25_001), &json!(0))
    );
}

#[tokio::test]
async fn replacement_swaps_completely_or_never() {
    let service = service().await;
    text(&service, "", "old\nboth\n").await.json(200);
    let _ = text(&service, "?mode=replace&id=r", broken(&["new\n"])).await;
    assert_eq!(
        present(&service, &["old", "both", "new"]).await,
        json!([true, true, false])
    );
    let done = text(&service, "?mode=replace&id=r", "both\nnew\n")
        .await
        .json(200);
    assert_eq!(
        (&done["state"], &done["added"]),
        (&json!("done"), &json!(2))
    );
    assert_eq!(
        present(&service, &["old", "both", "new"]).await,
        json!([false, true, true])
    );
}

#[tokio::test]
async fn full_filter_ends_import() {
    let service = Service::start().await;
    service
        .put(
            "/v1/campaigns/spring",
            json!({"capacity": 100, "growth": "fixed"}),
        )
        .await
        .json(201);
    let lines: String = (0..5_000).map(|n| format!("u{n}\n")).collect();
    let full = text(&service, "?id=a", lines)
        .await
        .problem(409, "filter-full");
    let import = service.get("/v1/imports/a").await.json(200);
    assert_eq!(
        (&import["state"], &import["failure"]["detail"]),
        (&json!("failed"), &full["detail"])
    );
}

#[tokio::test]
async fn import_id_allows_one_upload_at_once() {
    let service = service().await;
    let (sender, receiver) = tokio::sync::mpsc::channel::<std::io::Result<Bytes>>(1);
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    let live = text(&service, "?id=a", Body::from_stream(stream));
    let others = async {
        // The second piece is taken from the channel once the first has been read.
        sender.send(Ok(Bytes::from_static(b"u1\n"))).await.unwrap();
        sender.send(Ok(Bytes::from_static(b"u2\n"))).await.unwrap();
        while service.get("/v1/imports/a").await.status != 200 {
            tokio::task::yield_now().await;
        }
        text(&service, "?id=a", "u1\n")
            .await
            .problem(409, "import-running");
        assert_eq!(
            service.get("/v1/imports/a").await.json(200)["state"],
            "running"
        );
        drop(sender);
    };
    let (done, ()) = tokio::join!(live, others);
    assert_eq!(done.json(200)["added"], 2);
}

/// A body of these lines that ends on a signal.
fn held_back(lines: &'static str, end: &tokio::sync::watch::Receiver<bool>) -> Body {
    let end = end.clone();
    let rest = async move {
        let _ = end.clone().wait_for(|ended| *ended).await;
        Ok::<_, std::io::Error>(Bytes::from_static(b"last\n"))
    };
    let first = async { Ok(Bytes::from_static(lines.as_bytes())) };
    Body::from_stream(futures_util::stream::iter([first.boxed(), rest.boxed()]).then(|piece| piece))
}

#[tokio::test]
async fn concurrent_uploads_never_evict_each_other() {
    let service = service().await;
    let (end, ended) = tokio::sync::watch::channel(false);
    let ids: Vec<String> = (0..150).map(|number| format!("?id=i{number}")).collect();
    let uploads = futures_util::future::join_all(
        ids.iter()
            .map(|id| text(&service, id, held_back("u1\n", &ended))),
    );
    let others = async {
        loop {
            let list = service.get("/v1/imports").await.json(200);
            if list["imports"].as_array().unwrap().len() == ids.len() {
                break;
            }
            tokio::task::yield_now().await;
        }
        // Ended ones are evicted for new ones.
        for _ in 0..120 {
            text(&service, "", "u2\n").await.json(200);
        }
        end.send(true).unwrap();
    };
    let (done, ()) = tokio::join!(uploads, others);
    for done in done {
        assert_eq!(done.json(200)["lines"], 2);
    }
}

#[tokio::test]
async fn interrupted_append_survives_other_imports() {
    let service = Service::start().await;
    let spec = json!({"capacity": 100_000, "error_rate": 0.000_001});
    service.put("/v1/campaigns/spring", spec).await.json(201);
    let lines: &'static str = (0..15_000)
        .map(|n| format!("u{n}\n"))
        .collect::<String>()
        .leak();
    let _ = text(&service, "?id=a", broken(&[lines])).await;
    for _ in 0..150 {
        text(&service, "", "other\n").await.json(200);
        let _ = text(&service, "", broken(&["o"])).await;
    }
    service.pass(6 * 86_400);
    text(&service, "", "other\n").await.json(200);
    let service = service.restart().await;
    let done = text(&service, "?id=a", lines).await.json(200);
    assert_eq!(
        (&done["lines"], &done["added"]),
        (&json!(15_000), &json!(15_000))
    );
    let counts = service
        .post(
            "/v1/campaigns/spring/users/count",
            json!({"users": ["u0", "u9999"]}),
        )
        .await;
    assert_eq!(
        counts.json(200),
        json!({"counts": [1, 1]}),
        "none was added twice"
    );

    let _ = text(&service, "?id=b", broken(&["u1\n"])).await;
    service.pass(7 * 86_400 + 1);
    text(&service, "", "other\n").await.json(200);
    service
        .get("/v1/imports/b")
        .await
        .problem(404, "import-not-found");
}

#[tokio::test]
async fn interrupted_append_limit_is_reported() {
    let service = service().await;
    for number in 0..1_000 {
        let _ = text(&service, &format!("?id=i{number}"), broken(&["u"])).await;
    }
    let refused = text(&service, "?id=more", "u1\n").await;
    refused.problem(429, "too-many-imports");
    assert_eq!(refused.header("retry-after"), "60");
    text(&service, "?id=i7", "u1\n").await.json(200);
    text(&service, "?id=more", "u1\n").await.json(200);
}

/// The end takes several commands: the response follows the last one.
#[tokio::test]
async fn writes_during_replacement_survive_swap() {
    let service = Service::start().await;
    service
        .put(
            "/v1/campaigns/spring",
            json!({"capacity": 50_000, "mode": "strict"}),
        )
        .await
        .json(201);
    text(&service, "", "old\nboth\nleaving\n").await.json(200);
    let (sender, receiver) = tokio::sync::mpsc::channel::<std::io::Result<Bytes>>(1);
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    let replacement = text(&service, "?mode=replace&id=r", Body::from_stream(stream));
    let others = async {
        sender
            .send(Ok(Bytes::from_static(b"both\nleaving\n")))
            .await
            .unwrap();
        while service.get("/v1/imports/r").await.status != 200 {
            tokio::task::yield_now().await;
        }
        let many: String = (0..35_000).map(|n| format!("many-{n}\n")).collect();
        assert_eq!(text(&service, "", many).await.json(200)["state"], "done");
        service
            .post("/v1/campaigns/spring/users", json!({"users": ["one"]}))
            .await
            .json(200);
        service
            .post(
                "/v1/campaigns/spring/users/remove",
                json!({"users": ["leaving"]}),
            )
            .await
            .json(200);
        drop(sender);
    };
    let (done, ()) = tokio::join!(replacement, others);
    assert_eq!(done.json(200)["state"], "done");
    let users = [
        "old",
        "both",
        "leaving",
        "one",
        "many-0",
        "many-17000",
        "many-34999",
    ];
    assert_eq!(
        present(&service, &users).await,
        json!([false, true, false, true, true, true, true])
    );
    let stats = service.get("/v1/campaigns/spring").await.json(200)["stats"].clone();
    assert_eq!(stats["items"], 35_002, "{stats}");
}
