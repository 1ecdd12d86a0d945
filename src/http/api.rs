//! What all handlers share: the engine, the identity of the caller, and how commands are submitted.

use super::answer::problem::{Code, Problem};
use super::answer::refusals;
use super::metrics::HttpMetrics;
use super::options::HttpOptions;
use super::request::body::{ReadBody, Reading};
use super::request::body_memory;
use super::request::idempotency::{self, Resource};
use super::request::json;
use super::stopping::Stopping;
use crate::access::{Access, Caller, Client, Guesser};
use crate::budget::Budget;
use crate::domain::{Applied, Command, Kind, Name, Outcome, Status, Target};
use crate::engine::imports::LiveImports;
use crate::engine::{Engine, FilterView};
use axum::extract::{ConnectInfo, Request};
use http::HeaderValue;
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use std::sync::Arc;

/// Shared state of the handlers.
pub(super) struct Api {
    /// Decides everything.
    pub(super) engine: Engine,
    /// Options from the configuration.
    pub(super) options: HttpOptions,
    /// The keys, their rates, and the limit on guessing codes.
    pub(super) access: Arc<Access>,
    /// How bodies are read.
    pub(super) reading: Reading,
    /// Running uploads.
    pub(super) live_imports: LiveImports,
    /// Whether the service is shutting down.
    pub(super) stopping: Stopping,
    /// Metrics of requests.
    pub(super) metrics: HttpMetrics,
    /// The OpenAPI document as text, given whether keys are required. A function pointer, because the document refers to the
    /// handlers.
    pub(super) document: fn(bool) -> &'static str,
}

/// The parts of an [`Api`] that others share.
pub(super) struct Parts {
    pub(super) access: Arc<Access>,
    pub(super) stopping: Stopping,
    pub(super) live_imports: LiveImports,
    pub(super) metrics: HttpMetrics,
    pub(super) document: fn(bool) -> &'static str,
}

impl Api {
    /// Creates the API of an engine.
    pub(super) fn new(engine: Engine, options: HttpOptions, parts: Parts) -> Self {
        let Parts { access, stopping, live_imports, metrics, document } = parts;
        let limits = &options.limits;
        let (taken, refused) = (metrics.body_bytes.clone(), metrics.bodies_refused.clone());
        let budget = Budget::new(limits.bodies_bytes_max, taken, refused);
        let longest = usize::try_from(body_memory::body_bytes_max(&budget)).unwrap_or(usize::MAX);
        if limits.body_bytes_max > longest {
            tracing::warn!(
                bytes = longest,
                "limits.bodies has no room for longer bodies, whatever limits.body says"
            );
        }
        let bytes_max = limits.body_bytes_max.min(longest);
        let (budget, timeout) = (Arc::new(budget), options.timeouts.body);
        Self {
            reading: Reading { budget, bytes_max, timeout, stopping: stopping.clone() },
            access,
            live_imports,
            stopping,
            engine,
            options,
            metrics,
            document,
        }
    }

    /// The filter of this name.
    pub(super) fn filter(&self, kind: Kind, name: &str) -> Result<Arc<FilterView>, Problem> {
        self.engine.find(kind, &parse_name(kind, name)?).ok_or_else(|| refusals::not_found(kind))
    }

    /// The end user of a request, if the number of invalid codes is limited.
    pub(super) fn client(&self, request: &Request) -> Result<Option<Client>, Problem> {
        let named = request.headers().get("x-client-id").map(HeaderValue::as_bytes);
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let address = peer.map(|ConnectInfo(peer)| peer.ip());
        Ok(self.access.guessing.client(&caller(request)?, named, address))
    }

    /// A request that reveals whether items of a filter are valid. It is refused before its body is read if its end user has no guess
    /// left.
    pub(super) fn guesser(&self, view: &FilterView, request: &Request) -> Result<Guesser<'_>, Problem> {
        let has_secrets = view.has_secret_codes();
        let client = if has_secrets { self.client(request)? } else { None };
        Ok(self.access.guessing.guesser(has_secrets, client)?)
    }

    /// Reads the request's whole JSON body.
    pub(super) async fn body(&self, request: Request) -> Result<ReadBody, Problem> {
        self.reading.json(request).await
    }

    /// Parses the request's JSON body into a struct.
    pub(super) async fn json<T: DeserializeOwned>(&self, request: Request) -> Result<T, Problem> {
        json::parse(&self.body(request).await?)
    }

    /// Counts the outcome of a request about a redemption; `settled` is the outcome if the redemption existed before.
    pub(super) fn count_redemption(&self, decided: Result<&Decided, &Problem>, settled: &'static str) {
        self.metrics.count_redemption(match decided {
            Ok(Decided { outcome: Outcome::Redeemed(redemption), .. }) => match redemption.status {
                Status::Held => "held",
                _ => "redeemed",
            },
            Ok(_) => settled,
            Err(problem) => problem.code.as_str(),
        });
    }

    /// Submits a command about a campaign or coupon and returns its outcome; a refusal becomes a problem.
    pub(super) async fn submit(
        &self,
        kind: Kind,
        name: &str,
        sender: &Sender,
        command: Command,
    ) -> Result<Decided, Problem> {
        self.submit_about(Resource::Filter(kind, name), sender, command).await
    }

    /// [`Self::submit`] for any resource.
    pub(super) async fn submit_about(
        &self,
        resource: Resource<'_>,
        sender: &Sender,
        command: Command,
    ) -> Result<Decided, Problem> {
        let key = sender
            .idempotency_key
            .as_ref()
            .map(|key| idempotency::key(sender.caller.name(), resource, key.as_bytes(), &command));
        let kind = match resource {
            Resource::Filter(kind, _) => kind,
            // It consists of campaigns.
            Resource::LineUp(_) => Kind::Campaign,
        };
        let timeout = self.options.timeouts.request;
        let submitted = self.engine.submit_by(sender.caller.key_name(), command, key);
        let Ok(applied) = tokio::time::timeout(timeout, submitted).await else {
            let detail = "the answer took too long; whether the write took effect is unknown: retry it, with the same idempotency key if \
                          it had one";
            return Err(Problem::new(Code::StorageFailed, detail));
        };
        let Applied { outcome, replayed } = applied?;
        match outcome {
            Outcome::Refused(refusal) => Err(Problem { replayed, ..refusals::refused(kind, refusal) }),
            outcome => Ok(Decided { outcome, replayed }),
        }
    }
}

/// The target for commands about `view`.
pub(super) fn target(view: &FilterView) -> Target {
    Target(view.id)
}

/// Parses the name of a campaign or coupon in a path.
pub(super) fn parse_name(kind: Kind, name: &str) -> Result<Name, Problem> {
    let pointer = match kind {
        Kind::Campaign => "/campaign",
        Kind::Coupon => "/coupon",
    };
    Name::new(name).map_err(|error| Problem::invalid_at(pointer, error.to_string()))
}

/// Who has sent a request.
pub(super) fn caller(request: &Request) -> Result<Caller, Problem> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| Problem::new(Code::Unauthenticated, "nobody has looked at the key"))
}

/// The sender of a write, with the key that marks repeated requests.
pub(super) struct Sender {
    /// The holder of the key.
    pub(super) caller: Caller,
    idempotency_key: Option<HeaderValue>,
}

impl Sender {
    /// Identifies the sender of a write.
    pub(super) fn of(request: &Request) -> Result<Self, Problem> {
        let idempotency_key = idempotency::header(request.headers())?.cloned();
        Ok(Self { caller: caller(request)?, idempotency_key })
    }

    /// The sender of one of the commands that a request consists of. The first has the request's own key, so that another request with
    /// that key is recognized; a space, which no header has, separates the others' numbers.
    pub(super) fn part(&self, number: u64) -> Self {
        let numbered = |key: &HeaderValue| {
            let key = [key.as_bytes(), b" ", number.to_string().as_bytes()].concat();
            HeaderValue::from_bytes(&key).expect("visible ASCII and a space may stand in a header")
        };
        let idempotency_key = match number {
            0 => self.idempotency_key.clone(),
            _ => self.idempotency_key.as_ref().map(numbered),
        };
        Self { caller: self.caller.clone(), idempotency_key }
    }

    /// The `Idempotency-Key` of the request.
    pub(super) fn idempotency_key(&self) -> Option<&[u8]> {
        self.idempotency_key.as_ref().map(HeaderValue::as_bytes)
    }

    /// Whether the request has an `Idempotency-Key`.
    pub(super) fn may_repeat(&self) -> bool {
        self.idempotency_key.is_some()
    }
}

/// The outcome of a command that was not refused.
pub(super) struct Decided {
    /// Never a refusal.
    pub(super) outcome: Outcome,
    /// Whether an earlier request produced it.
    pub(super) replayed: bool,
}

impl Decided {
    /// The problem for an outcome that this command can't have, which would be a bug.
    pub(super) fn unexpected(&self) -> Problem {
        tracing::error!(outcome = ?std::mem::discriminant(&self.outcome), "a command has another command's outcome");
        Problem::new(Code::Internal, "see the service's log")
    }
}
