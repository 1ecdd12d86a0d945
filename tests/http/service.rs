//! A service for requests: the HTTP service over an engine in a temporary directory, with a manual clock.

use crate::document::Operation;
use crate::engines;
use crate::manual_time::ManualTime;
use axum::body::Body;
use cuckood::access::Access;
use cuckood::access::{AuthOptions, KeyOptions, Scope};
use cuckood::clock::ClockLimits;
use cuckood::engine::journal::JournalOptions;
use cuckood::engine::{Engine, EngineOptions};
use cuckood::http::options::HttpOptions;
use cuckood::http::{Control, HttpService};
use cuckood::socket::Peer;
use cuckood_log::journal::Durability;
use cuckood_log::journal::LocalOptions;
use cuckood_state::domain::Timestamp;
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// 2026-11-21T12:00:00Z, when every test begins.
pub const NOON: Timestamp = Timestamp(1_795_262_400_000);

/// A running service.
pub struct Service {
    http: HttpService,
    control: Control,
    engine: Engine,
    setup: EngineOptions,
    time: Arc<ManualTime>,
    directory: TempDir,
    problems: Mutex<BTreeSet<(String, String)>>,
}

/// Reads a body as a client does: what it has read is no longer in the service's memory.
pub async fn read(mut body: Body) -> Vec<u8> {
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        text.extend_from_slice(&frame.unwrap().into_data().unwrap_or_default());
    }
    text
}

/// Adds the header that every client sends, unless the test has set it.
fn with_host(mut request: Request<Body>) -> Request<Body> {
    let headers = request.headers_mut();
    if !headers.contains_key(header::HOST) {
        headers.insert(header::HOST, HeaderValue::from_static("localhost"));
    }
    request
}

impl Service {
    pub async fn start() -> Self {
        Self::with(HttpOptions::default()).await
    }

    pub async fn with(options: HttpOptions) -> Self {
        Self::on(None, options, |_| ()).await
    }

    /// The options for the next start of the engine.
    pub fn setup(&mut self) -> &mut EngineOptions {
        &mut self.setup
    }

    /// On a journal of the caller's choice, the log on the disk unless there is one, and an engine as it wants it.
    pub async fn on(
        journal: Option<JournalOptions>,
        options: HttpOptions,
        adjust: impl FnOnce(&mut EngineOptions),
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let local = LocalOptions::at(Durability::Relaxed);
        let mut setup = engines::options(directory.path());
        setup.store.sync_snapshots = false;
        setup.journal = journal.unwrap_or(JournalOptions::Local(local));
        adjust(&mut setup);
        let time = Arc::new(ManualTime::at(NOON));
        Self::over(directory, setup, options, time).await
    }

    async fn over(
        directory: TempDir,
        setup: EngineOptions,
        options: HttpOptions,
        time: Arc<ManualTime>,
    ) -> Self {
        let engine = engines::start_by(time.clock(ClockLimits::default()), setup.clone()).await;
        let access = Access::new(&options.auth, &options.rate_limit, &options.guessing).unwrap();
        let (http, control) =
            cuckood::http::service(engine.clone(), Arc::new(access), options, |_| ());
        Self {
            http,
            control,
            engine,
            setup,
            time,
            directory,
            problems: Mutex::default(),
        }
    }

    /// The same service after a clean stop and a new start.
    pub async fn restart(self) -> Self {
        let Self {
            http,
            engine,
            setup,
            time,
            directory,
            ..
        } = self;
        engine.shutdown().await;
        drop((http, engine));
        Self::over(directory, setup, HttpOptions::default(), time).await
    }

    /// Lets time go by. That of readers stops while an entry is in progress.
    pub fn pass(&self, seconds: u64) {
        let until = self.engine.now().plus_seconds(seconds);
        self.time.pass(Duration::from_secs(seconds));
        while self.engine.now() < until {
            std::thread::yield_now();
        }
    }

    /// Sets the wall clock, and it alone.
    pub fn set_clock(&self, to: Timestamp) {
        self.time.set_wall(to);
    }

    /// The same service after a clean stop, a boot of the machine, and a new start.
    pub async fn reboot(self) -> Self {
        let Self {
            http,
            engine,
            setup,
            directory,
            time,
            ..
        } = self;
        engine.shutdown().await;
        drop((http, engine));
        // As though another boot had kept it.
        let clock = directory.path().join("clock");
        let format = cuckood_state::frame::FrameFormat {
            magic: *b"ckcl",
            version: 1,
            oldest: 1,
            payload_max: 64,
        };
        let kept = std::fs::read(&clock).unwrap();
        let (frame, _) = format.open(&kept).unwrap().unwrap();
        let (wall, uptime, boot): (Timestamp, u64, u128) =
            cuckood_state::frame::decode(frame.payload).unwrap();
        std::fs::write(&clock, format.pack(&(wall, uptime, boot.wrapping_add(1)))).unwrap();
        let time = Arc::new(ManualTime::at(time.wall()));
        Self::over(directory, setup, HttpOptions::default(), time).await
    }

    /// Replaces the keys, as SIGHUP does.
    pub fn replace_keys(&self, auth: &AuthOptions) {
        self.control.replace_keys(auth).unwrap();
    }

    /// Ends running uploads, as a stop does.
    pub fn end_uploads(&self) {
        self.control.end_uploads();
    }

    /// Has the engine drain, the service still answering.
    pub async fn drain(&self) {
        self.engine.shutdown().await;
    }

    /// Sends a request and returns the response with its body unread.
    pub async fn begin(&self, request: Request<Body>) -> Response<Body> {
        self.http.clone().respond(with_host(request)).await
    }

    /// An undocumented response fails the test.
    pub async fn send(&self, mut request: Request<Body>) -> Answer {
        let operation = Operation::of(request.method(), request.uri().path());
        let address = SocketAddr::from(([192, 0, 2, 7], 40_000));
        request.extensions_mut().insert(Peer {
            address,
            vitals: Arc::default(),
        });
        let (parts, body) = self
            .http
            .clone()
            .respond(with_host(request))
            .await
            .into_parts();
        let body = read(body).await;
        let answer = Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body,
        };
        if let Some(operation) = operation {
            let problem = answer.is_promised(operation);
            self.problems
                .lock()
                .extend(problem.map(|code| (operation.id.clone(), code)));
        }
        answer
    }

    /// The problems that operations have answered so far, by the operation's id.
    pub fn problems(&self) -> BTreeSet<(String, String)> {
        self.problems.lock().clone()
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(request(Method::GET, path, &[], Body::empty()))
            .await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(request(Method::DELETE, path, &[], Body::empty()))
            .await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.send(json(Method::PUT, path, &[], &body)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(json(Method::POST, path, &[], &body)).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.send(json(Method::PATCH, path, &[], &body)).await
    }

    /// A command without a body.
    pub async fn command(&self, path: &str) -> Answer {
        self.send(request(Method::POST, path, &[], Body::empty()))
            .await
    }

    /// The client with the API key of this name.
    pub fn by<'a>(&'a self, key: &'a str) -> Holder<'a> {
        Holder { service: self, key }
    }

    /// Uploads an import.
    pub async fn import(&self, path: &str, media_type: &str, body: impl Into<Body>) -> Answer {
        self.send(request(
            Method::POST,
            path,
            &[("content-type", media_type)],
            body.into(),
        ))
        .await
    }
}

/// A client with an API key.
#[derive(Clone, Copy)]
pub struct Holder<'a> {
    service: &'a Service,
    key: &'a str,
}

impl Holder<'_> {
    /// Sends a JSON body, or none if it is null.
    pub async fn send(&self, method: Method, path: &str, body: &Value) -> Answer {
        let mut sent = match body {
            Value::Null => request(method, path, &[], Body::empty()),
            body => json(method, path, &[], body),
        };
        self.sign(&mut sent);
        self.service.send(sent).await
    }

    /// Adds the key to a request.
    pub fn sign(&self, request: &mut Request<Body>) {
        let bearer = format!("Bearer secret-{}", self.key);
        request
            .headers_mut()
            .insert(header::AUTHORIZATION, bearer.parse().unwrap());
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &Value::Null).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, &Value::Null).await
    }

    pub async fn put(&self, path: &str, body: impl Borrow<Value>) -> Answer {
        self.send(Method::PUT, path, body.borrow()).await
    }

    pub async fn post(&self, path: &str, body: impl Borrow<Value>) -> Answer {
        self.send(Method::POST, path, body.borrow()).await
    }

    /// Uploads an import of lines.
    pub async fn import(&self, path: &str, body: impl Into<Body>) -> Answer {
        let mut sent = request(
            Method::POST,
            path,
            &[("content-type", "text/plain")],
            body.into(),
        );
        self.sign(&mut sent);
        self.service.send(sent).await
    }
}

/// An API key whose secret is `secret-` and its name.
pub fn key(name: &str, scopes: &[Scope], prefix: &str) -> KeyOptions {
    let sha256 = Sha256::digest(format!("secret-{name}"))
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let name = name.into();
    let scopes = scopes.to_vec();
    let prefix = prefix.into();
    KeyOptions {
        name,
        sha256,
        scopes,
        prefix,
        ..KeyOptions::default()
    }
}

/// Options of a service with these keys.
pub fn with_keys(keys: impl Into<Vec<KeyOptions>>) -> HttpOptions {
    HttpOptions {
        auth: AuthOptions {
            keys: keys.into(),
            allow_anonymous: false,
        },
        ..HttpOptions::default()
    }
}

/// A request with these headers.
pub fn request(method: Method, path: &str, headers: &[(&str, &str)], body: Body) -> Request<Body> {
    let builder = Request::builder().method(method).uri(path);
    headers
        .iter()
        .fold(builder, |builder, (name, value)| {
            builder.header(*name, *value)
        })
        .body(body)
        .unwrap()
}

/// A request with a JSON body.
pub fn json(method: Method, path: &str, headers: &[(&str, &str)], body: &Value) -> Request<Body> {
    let mut request = request(method, path, headers, Body::from(body.to_string()));
    request
        .headers_mut()
        .entry(header::CONTENT_TYPE)
        .or_insert_with(|| "application/json".parse().unwrap());
    request
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    /// Makes sure that the document promises this answer; the code if it is a problem.
    fn is_promised(&self, operation: &Operation) -> Option<String> {
        let id = &operation.id;
        let codes = operation.responses.get(&self.status);
        let codes =
            codes.unwrap_or_else(|| panic!("{id} promises no {}: {}", self.status, self.text()));
        let has_lines = ["application/x-ndjson", "text/csv"].contains(&self.header("content-type"));
        if self.header("content-encoding").is_empty() && !has_lines {
            assert_eq!(
                operation.fault(self.status, &self.body),
                None,
                "{id} answers {}",
                self.status
            );
        }
        if self.status < 400 {
            return None;
        }
        let problem: Value = serde_json::from_slice(&self.body).unwrap();
        let code = problem["code"].as_str().unwrap().to_owned();
        assert!(
            codes.contains(&code),
            "{id} promises {codes:?} with {}, not {problem}",
            self.status
        );
        Some(code)
    }

    /// A header's value, or nothing.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// The JSON of an answer that had to have this status.
    #[track_caller]
    pub fn json(&self, status: u16) -> Value {
        assert_eq!(
            self.status,
            status,
            "{}",
            String::from_utf8_lossy(&self.body)
        );
        assert_eq!(self.header("content-type"), "application/json");
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The problem document that it had to be, whole as RFC 9457 and the contract want it.
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> Value {
        assert_eq!(
            self.status,
            status,
            "{}",
            String::from_utf8_lossy(&self.body)
        );
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem: Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["type"], format!("urn:cuckood:problem:{code}"));
        assert_eq!(problem["status"], status);
        assert_eq!(problem["request_id"], self.header("x-request-id"));
        for field in ["title", "detail", "request_id"] {
            assert!(
                problem[field].as_str().is_some_and(|text| !text.is_empty()),
                "{field} of {problem}"
            );
        }
        problem
    }

    /// Where the request was not valid.
    #[track_caller]
    pub fn pointers(&self) -> Vec<String> {
        let problem = self.problem(422, "invalid-request");
        let errors = problem["errors"]
            .as_array()
            .expect("an invalid request has errors");
        errors
            .iter()
            .map(|error| error["pointer"].as_str().unwrap().to_owned())
            .collect()
    }
}
