//! Compressed bodies: read to the end of their last member or frame, without trailing data.

use crate::service::{Answer, Service, request};
use axum::body::Body;
use cuckood::http::options::{HttpOptions, LimitOptions, RequestTimeouts};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::StreamExt;
use http::Method;
use serde_json::json;
use std::io::Write;
use std::time::Duration;

const USERS: &str = "/v1/campaigns/spring/users";
const IMPORTS: &str = "/v1/campaigns/spring/imports";

async fn service() -> Service {
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

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(text, 3).unwrap()
}

/// What compresses.
type Compress = fn(&[u8]) -> Vec<u8>;

/// How a coding is called, and what compresses so.
const CODINGS: [(&str, Compress); 3] = [("gzip", gzip), ("x-gzip", gzip), ("zstd", zstd)];

async fn post(
    service: &Service,
    path: &str,
    media_type: &str,
    coding: &str,
    body: Vec<u8>,
) -> Answer {
    let headers = [("content-type", media_type), ("content-encoding", coding)];
    service
        .send(request(Method::POST, path, &headers, Body::from(body)))
        .await
}

#[tokio::test]
async fn all_gzip_members_and_frames_are_read() {
    let service = service().await;
    for (coding, compress) in CODINGS {
        let lines = [
            compress(b"u1\nu2\nu"),
            compress(b""),
            compress(b"3\n"),
            compress(b"u4"),
        ]
        .concat();
        let done = post(&service, IMPORTS, "text/plain", coding, lines)
            .await
            .json(200);
        assert_eq!(
            (&done["state"], &done["lines"]),
            (&json!("done"), &json!(4)),
            "{coding}: {done}"
        );
        let check = [
            compress(br#"{"users":["u1","#),
            compress(br#""u4","none"]}"#),
        ]
        .concat();
        let answer = post(
            &service,
            &format!("{USERS}/check"),
            "application/json",
            coding,
            check,
        )
        .await;
        assert_eq!(
            answer.json(200),
            json!({"present": [true, true, false]}),
            "{coding}"
        );
    }
    // A frame to be skipped is one all the same.
    let skippable = [
        &0x184D_2A5F_u32.to_le_bytes()[..],
        &2_u32.to_le_bytes(),
        b"xy",
    ]
    .concat();
    let body = [skippable.clone(), zstd(br#"{"users":["u1"]}"#), skippable].concat();
    post(
        &service,
        &format!("{USERS}/check"),
        "application/json",
        "zstd",
        body,
    )
    .await
    .json(200);
}

#[tokio::test]
async fn truncated_or_trailing_data_is_rejected() {
    let service = service().await;
    service
        .post(USERS, json!({"users": ["old"]}))
        .await
        .json(200);
    for (coding, compress) in CODINGS {
        let lines = compress(b"new\n");
        let cut = lines[..lines.len() - 3].to_vec();
        for broken in [
            [&lines[..], b"\0"].concat(),
            [&lines[..], b"new\nlines\n"].concat(),
            [&lines[..], &cut].concat(),
            cut.clone(),
            b"new\n".to_vec(),
            Vec::new(),
        ] {
            let path = format!("{IMPORTS}?mode=replace");
            let answer = post(&service, &path, "text/plain", coding, broken).await;
            answer.problem(400, "malformed-request");
        }
        let body = compress(br#"{"users":["new"]}"#);
        for broken in [
            [&body[..], b" "].concat(),
            [&body[..], b"{}"].concat(),
            body[..body.len() - 1].to_vec(),
        ] {
            post(&service, USERS, "application/json", coding, broken)
                .await
                .problem(400, "malformed-request");
        }
    }
    let present = service
        .post(&format!("{USERS}/check"), json!({"users": ["old", "new"]}))
        .await
        .json(200);
    assert_eq!(present["present"], json!([true, false]));
}

#[tokio::test]
async fn unknown_coding_error_lists_supported_ones() {
    let service = service().await;
    for coding in ["br", "deflate", "gzip, zstd", "zstd, zstd"] {
        for (path, media_type) in [(USERS, "application/json"), (IMPORTS, "text/plain")] {
            let answer = post(&service, path, media_type, coding, b"{}".to_vec()).await;
            answer.problem(415, "unsupported-media-type");
            assert_eq!(answer.header("accept-encoding"), "gzip, zstd");
        }
    }
}

#[tokio::test]
async fn long_window_is_rejected_with_reason() {
    let service = service().await;
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
    encoder.window_log(27).unwrap();
    encoder.write_all(b"u1\n").unwrap();
    let answer = post(
        &service,
        IMPORTS,
        "text/plain",
        "zstd",
        encoder.finish().unwrap(),
    )
    .await;
    let problem = answer.problem(400, "malformed-request");
    assert!(
        problem["detail"].as_str().unwrap().contains("8 MiB"),
        "{problem}"
    );
}

#[tokio::test]
async fn bodies_share_limit() {
    let limits = LimitOptions {
        bodies_bytes_max: 4 << 20,
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
    let taken = async || {
        let text = service.get("/metrics").await.text();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("cuckood_body_bytes ").map(str::to_owned));
        line.unwrap().parse::<u64>().unwrap()
    };
    // Three uploads begin, and stay.
    let (senders, uploads): (Vec<_>, Vec<_>) = (0..3)
        .map(|_| {
            let (sender, receiver) = tokio::sync::mpsc::channel::<std::io::Result<bytes::Bytes>>(1);
            let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
                receiver.recv().await.map(|piece| (piece, receiver))
            });
            (
                sender,
                service.import(IMPORTS, "text/plain", Body::from_stream(stream)),
            )
        })
        .unzip();
    let others = async {
        while taken().await < 3 << 20 {
            tokio::task::yield_now().await;
        }
        let refused = service.import(IMPORTS, "text/plain", "u1\n").await;
        refused.problem(503, "overloaded");
        assert!(!refused.header("retry-after").is_empty());
        let large = json!({"users": vec!["x".repeat(500); 2_000]});
        service
            .post(&format!("{USERS}/check"), large.clone())
            .await
            .problem(503, "overloaded");
        // A small one is none too many.
        service
            .post(&format!("{USERS}/check"), json!({"users": ["u1"]}))
            .await
            .json(200);
        drop(senders);
        large
    };
    let (done, large) = tokio::join!(futures_util::future::join_all(uploads), others);
    for upload in done {
        upload.json(200);
    }
    service
        .post(&format!("{USERS}/check"), large)
        .await
        .json(200);
    assert_eq!(taken().await, 0);
}

#[tokio::test]
async fn endless_empty_frames_are_too_large() {
    let limits = LimitOptions {
        body_bytes_max: 1 << 20,
        ..LimitOptions::default()
    };
    let timeouts = RequestTimeouts {
        body: Duration::from_secs(20),
        ..RequestTimeouts::default()
    };
    let service = Service::with(HttpOptions {
        limits,
        timeouts,
        ..HttpOptions::default()
    })
    .await;
    service
        .put("/v1/campaigns/spring", json!({"capacity": 1000}))
        .await
        .json(201);
    let skippable = [
        &0x184D_2A50_u32.to_le_bytes()[..],
        &0xfff8_u32.to_le_bytes(),
        &[0; 0xfff8],
    ]
    .concat();
    let frames =
        futures_util::stream::repeat(bytes::Bytes::from(skippable)).map(std::io::Result::Ok);
    let headers = [
        ("content-type", "application/json"),
        ("content-encoding", "zstd"),
    ];
    let endless = Body::from_stream(frames);
    service
        .send(request(Method::POST, USERS, &headers, endless))
        .await
        .problem(413, "body-too-large");
}
