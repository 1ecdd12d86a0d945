//! The Prometheus metrics: their presence, and a check of their text against the format and its conventions.

use crate::service::{Service, request};
use axum::body::Body;
use cuckood::http::options::{HttpOptions, MetricsOptions};
use flate2::read::GzDecoder;
use http::Method;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::time::Duration;

const OPEN_METRICS: &str =
    "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2";

async fn text(service: &Service, accept: &str) -> (String, String) {
    let answer = service
        .send(request(
            Method::GET,
            "/metrics",
            &[("accept", accept)],
            Body::empty(),
        ))
        .await;
    assert_eq!(answer.status, 200);
    (answer.header("content-type").to_owned(), answer.text())
}

/// A service that has done a little of everything.
async fn busy(options: HttpOptions) -> Service {
    let service = Service::with(options).await;
    service
        .put("/v1/campaigns/spring", json!({"capacity": 100}))
        .await
        .json(201);
    service
        .put("/v1/coupons/welcome", json!({"capacity": 100}))
        .await
        .json(201);
    service
        .put("/v1/line-ups/home", json!({"campaigns": ["spring"]}))
        .await
        .json(201);
    service
        .post("/v1/campaigns/spring/users", json!({"users": ["u1", "u2"]}))
        .await
        .json(200);
    service
        .post("/v1/campaigns/spring/users/check", json!({"users": ["u1"]}))
        .await
        .json(200);
    service
        .post(
            "/v1/coupons/welcome/codes",
            json!({"codes": ["A", "B", "C"]}),
        )
        .await
        .json(200);
    service
        .post(
            "/v1/coupons/welcome/codes/check",
            json!({"codes": ["none"]}),
        )
        .await
        .json(200);
    let redemptions = "/v1/coupons/welcome/redemptions";
    let redeem = async |code, hold: u64| {
        let body =
            json!({"code": code, "reference": format!("order-{code}"), "hold_seconds": hold});
        service.post(redemptions, body).await
    };
    redeem("A", 0).await.json(201);
    redeem("A", 0).await.json(200);
    redeem("none", 0).await.problem(404, "code-unknown");
    let held = redeem("B", 60).await.json(201)["id"]
        .as_str()
        .unwrap()
        .to_owned();
    service
        .command(&format!("{redemptions}/{held}/confirm"))
        .await
        .json(200);
    let held = redeem("C", 60).await.json(201)["id"]
        .as_str()
        .unwrap()
        .to_owned();
    service
        .command(&format!("{redemptions}/{held}/cancel"))
        .await
        .json(200);
    redeem("C", 60).await.json(201);
    service
        .import("/v1/campaigns/spring/imports", "text/plain", "u3\n")
        .await
        .json(200);
    service.command("/v1/snapshots").await.json(200);
    assert_eq!(service.get("/v1/backup").await.status, 200);
    service
        .get("/nowhere")
        .await
        .problem(404, "route-not-found");
    // The hold runs out, and the next entry says so.
    service.pass(61);
    service
        .post("/v1/campaigns/spring/users", json!({"users": ["u4"]}))
        .await
        .json(200);
    service
}

/// Returns violations of Prometheus' format and conventions.
fn faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut kinds: BTreeMap<&str, &str> = BTreeMap::new();
    let mut series = BTreeSet::new();
    let mut helped = BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            if help.is_empty() || !helped.insert(name) {
                faults.push(format!("{name}: no help, or twice"));
            }
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            if kinds.insert(name, kind).is_some() || !helped.contains(name) {
                faults.push(format!("{name}: its type comes twice, or before its help"));
            }
            if !["cuckood_", "process_"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
                || name.ends_with("_total") != (kind == "counter")
            {
                faults.push(format!("{name}: a {kind}"));
            }
            let odd = [
                "milliseconds",
                "ms",
                "minutes",
                "hours",
                "days",
                "kilobytes",
                "mb",
                "percent",
                "gauge",
                "counter",
            ];
            if name.split('_').any(|part| odd.contains(&part))
                || name.contains(|c: char| c.is_ascii_uppercase())
            {
                faults.push(format!("{name}: no base unit, or its type in its name"));
            }
        } else if line.starts_with('#') {
            faults.push(format!("{line}: a strange comment"));
        } else {
            let (labelled, value) = line.rsplit_once(' ').unwrap_or((line, ""));
            let name = labelled.split('{').next().unwrap_or_default();
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .filter_map(|suffix| name.strip_suffix(suffix))
                .find(|family| kinds.get(family) == Some(&"histogram"));
            if !kinds.contains_key(family.unwrap_or(name)) {
                faults.push(format!("{line}: of no type"));
            }
            if value.parse::<f64>().is_err() || !series.insert(labelled) {
                faults.push(format!("{line}: no number, or twice"));
            }
        }
    }
    faults
}

#[tokio::test]
async fn metrics_are_valid_prometheus_text() {
    let metrics = MetricsOptions { per_filter: true };
    let service = busy(HttpOptions {
        metrics,
        ..HttpOptions::default()
    })
    .await;
    let (media_type, text) = text(&service, "").await;
    assert_eq!(media_type, "text/plain; version=0.0.4; charset=utf-8");
    assert_eq!(faults(&text), [""; 0], "{text}");
}

#[tokio::test]
async fn openmetrics_requires_accept_header() {
    let service = busy(HttpOptions::default()).await;
    for accept in ["*/*", "text/plain", "text/html,application/xhtml+xml"] {
        let (media_type, text) = text(&service, accept).await;
        assert!(
            media_type.starts_with("text/plain; version=0.0.4") && !text.contains("# EOF"),
            "{accept}"
        );
    }
    let (media_type, text) = text(&service, OPEN_METRICS).await;
    assert_eq!(
        media_type,
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    assert!(
        text.ends_with("# EOF\n") && text.contains("# TYPE cuckood_http_requests counter\n"),
        "{text}"
    );
}

#[tokio::test]
async fn operational_metrics_are_present() {
    let service = busy(HttpOptions::default()).await;
    let (_, text) = text(&service, "").await;
    for sample in [
        "cuckood_build_info{version=",
        "process_cpu_seconds_total ",
        "process_open_fds ",
        "process_max_fds ",
        "process_virtual_memory_bytes ",
        "process_resident_memory_bytes ",
        "process_start_time_seconds ",
        "process_threads ",
        "cuckood_ready 1",
        "cuckood_state{state=\"ready\"} 1",
        "cuckood_state{state=\"draining\"} 0",
        "cuckood_storage_writable 1",
        "cuckood_http_requests_total{route=\"/v1/campaigns/{campaign}\",method=\"PUT\",status=\"201\"} 1",
        "cuckood_http_requests_total{route=\"none\",method=\"GET\",status=\"404\"} 1",
        "cuckood_http_request_duration_seconds_count{group=\"users-read\"} 1",
        "cuckood_http_request_duration_seconds_count{group=\"redemptions-redeem\"} 8",
        "cuckood_queue_seconds_count ",
        "cuckood_flush_seconds_count ",
        "cuckood_apply_seconds_count ",
        "cuckood_queue_commands ",
        "cuckood_snapshot_timestamp_seconds ",
        "cuckood_snapshot_duration_seconds ",
        "cuckood_backup_timestamp_seconds ",
        "cuckood_storage_free_bytes ",
        "cuckood_storage_free_min_bytes 0",
        "cuckood_memory_limit_bytes ",
        "cuckood_tables_bytes ",
        "cuckood_records_bytes ",
        "cuckood_filters{kind=\"campaign\"} 1",
        "cuckood_filters{kind=\"coupon\"} 1",
        "cuckood_line_ups 1",
        "cuckood_codes{status=\"redeemed\"} 2",
        "cuckood_redemptions_total{outcome=\"redeemed\"} 1",
        "cuckood_redemptions_total{outcome=\"repeated\"} 1",
        "cuckood_redemptions_total{outcome=\"held\"} 3",
        "cuckood_redemptions_total{outcome=\"confirmed\"} 1",
        "cuckood_redemptions_total{outcome=\"cancelled\"} 1",
        "cuckood_redemptions_total{outcome=\"code-unknown\"} 1",
        "cuckood_holds_expired_total 1",
        "cuckood_imports{state=\"done\"} 1",
        "cuckood_imports{state=\"running\"} 0",
        "cuckood_invalid_codes_total 2",
        "cuckood_idempotency_bytes ",
        "cuckood_idempotency_room_bytes ",
        "cuckood_recovery_duration_seconds ",
        "cuckood_replay_duration_seconds ",
    ] {
        assert!(
            text.lines().any(|line| line.starts_with(sample)),
            "{sample} is not in\n{text}"
        );
    }
    assert!(
        !text.contains("cuckood_filter_items"),
        "metrics per filter are off by default"
    );
}

/// `increase()` sees a first event only if the series existed before.
#[tokio::test]
async fn counters_are_zero_before_first_event() {
    let idle = Service::start().await;
    let (_, before) = text(&idle, "").await;
    let samples = |text: &str| -> BTreeMap<String, String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .collect()
    };
    let before = samples(&before);
    for series in [
        "cuckood_http_requests_total{route=\"/v1/coupons/{coupon}/imports\",method=\"POST\",status=\"409\"}",
        "cuckood_http_requests_total{route=\"/v1/campaigns/{campaign}\",method=\"PUT\",status=\"201\"}",
        "cuckood_http_requests_total{route=\"none\",method=\"GET\",status=\"404\"}",
        "cuckood_http_request_duration_seconds_count{group=\"redemptions-redeem\"}",
        "cuckood_redemptions_total{outcome=\"held\"}",
        "cuckood_redemptions_total{outcome=\"code-unknown\"}",
        "cuckood_invalid_codes_total",
        "cuckood_guesses_refused_total",
        "cuckood_overloaded_total",
        "cuckood_snapshots_total",
        "cuckood_holds_expired_total",
        "cuckood_clock_refused_total",
        "cuckood_bodies_refused_total",
    ] {
        assert_eq!(
            before.get(series).map(String::as_str),
            Some("0"),
            "{series} is not in {before:#?}"
        );
    }
    // Every documented response of every operation.
    let document: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string("openapi/openapi.json").unwrap()).unwrap();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            for status in operation["responses"].as_object().unwrap().keys() {
                let method = method.to_ascii_uppercase();
                let series = format!(
                    "cuckood_http_requests_total{{route=\"{path}\",method=\"{method}\",status=\"{status}\"}}"
                );
                assert!(before.contains_key(&series), "{series}");
            }
        }
    }
    // Nothing that a busy service counts starts with its first event.
    let busy = busy(HttpOptions::default()).await;
    let (_, after) = text(&busy, "").await;
    let is_counted = |series: &&String| series.contains("_total") || series.contains("_count");
    let started: Vec<_> = samples(&after)
        .into_keys()
        .filter(|series| is_counted(&series) && !before.contains_key(series))
        .collect();
    assert_eq!(started, [""; 0]);
}

/// Strangers may request them, and each rendering visits every filter.
#[tokio::test]
async fn rendered_metrics_are_shared() {
    let metrics_age_max = Duration::from_secs(3_600);
    let service = busy(HttpOptions {
        metrics_age_max,
        ..HttpOptions::default()
    })
    .await;
    let (_, first) = text(&service, "").await;
    let (_, open) = text(&service, OPEN_METRICS).await;
    service
        .put("/v1/campaigns/later", json!({"capacity": 100}))
        .await
        .json(201);
    assert_eq!(text(&service, "").await.1, first);
    assert_eq!(text(&service, OPEN_METRICS).await.1, open);
    assert!(
        open.ends_with("# EOF\n") && !first.contains("# EOF"),
        "each format has its own text"
    );
    let headers = [("accept-encoding", "gzip, zstd")];
    let answer = service
        .send(request(Method::GET, "/metrics", &headers, Body::empty()))
        .await;
    assert_eq!(answer.header("content-encoding"), "gzip");
    assert_eq!(
        answer.header("content-length"),
        answer.body.len().to_string()
    );
    let mut plain = String::new();
    GzDecoder::new(&answer.body[..])
        .read_to_string(&mut plain)
        .unwrap();
    assert_eq!(plain, first);
    let headers = [("accept-encoding", "zstd")];
    let answer = service
        .send(request(Method::GET, "/metrics", &headers, Body::empty()))
        .await;
    assert_eq!(
        (answer.headers.get("content-encoding"), answer.text()),
        (None, first)
    );
}

#[tokio::test]
async fn filter_metrics_require_setting() {
    let metrics = MetricsOptions { per_filter: true };
    let service = busy(HttpOptions {
        metrics,
        ..HttpOptions::default()
    })
    .await;
    let (_, text) = text(&service, "").await;
    for sample in [
        "cuckood_filter_items{kind=\"campaign\",name=\"spring\"} 4",
        "cuckood_filter_load_ratio{kind=\"campaign\",name=\"spring\"} 0.0",
        "cuckood_filter_error_ratio{kind=\"coupon\",name=\"welcome\"} ",
        "cuckood_filter_memory_bytes{kind=\"coupon\",name=\"welcome\"} ",
    ] {
        assert!(
            text.lines().any(|line| line.starts_with(sample)),
            "{sample} is not in\n{text}"
        );
    }
}

#[tokio::test]
async fn status_metrics_follow_service_state() {
    let service = Service::start().await;
    service.drain().await;
    let (_, text) = text(&service, "").await;
    for sample in [
        "cuckood_ready 0",
        "cuckood_state{state=\"draining\"} 1",
        "cuckood_storage_writable 0",
    ] {
        assert!(
            text.lines().any(|line| line == sample),
            "{sample} is not in\n{text}"
        );
    }
}
