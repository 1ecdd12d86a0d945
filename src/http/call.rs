//! A request as its handler sees it: the service, the caller, and the right that the operation requires.

use super::answer::{Code, Problem, refusals};
use super::api::Api;
use super::request::body::ReadBody;
use super::request::idempotency::{self, Resource};
use crate::access::{Caller, Client, Guesses, Scope};
use crate::domain::{Applied, Command, KeyName, Kind, Name, Outcome, Target};
use crate::engine::{Engine, FilterView, SubmitError};
use axum::extract::{ConnectInfo, FromRequestParts, Request};
use http::HeaderValue;
use http::request::Parts;
use std::borrow::Cow;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// What an operation does to the state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// It changes nothing, so it may ask for a position of the log.
    Reads,
    /// It changes something, and repeats are told apart without a key.
    Writes,
    /// It changes something, once under an idempotency key.
    WritesOnce,
}

/// What a caller needs for an operation, and what the operation does.
pub(super) trait Right: Send + Sync + 'static {
    const RULE: AccessRule;
}

/// What an operation requires of a caller, and does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AccessRule {
    /// The scope that the caller's key must have.
    pub(super) scope: Scope,
    pub(super) effect: Effect,
    /// Whether it is logged as an administrative act.
    pub(super) is_audited: bool,
}

macro_rules! rights {
    ($($(#[$doc:meta])* $right:ident: $scope:ident, $effect:ident, audited: $is_audited:literal;)*) => {
        $(
            $(#[$doc])*
            pub(super) struct $right;

            impl Right for $right {
                const RULE: AccessRule =
                    AccessRule { scope: Scope::$scope, effect: Effect::$effect, is_audited: $is_audited };
            }
        )*
    };
}

rights! {
    /// Reads.
    Read: Read, Reads, audited: false;
    /// Changes items.
    Write: Write, WritesOnce, audited: false;
    /// Creates, changes or empties a campaign, a coupon or a line-up.
    Manage: Write, WritesOnce, audited: true;
    /// Uploads an import, or stops one.
    Import: Write, Writes, audited: true;
    /// Uses codes.
    Redeem: Redeem, WritesOnce, audited: false;
    /// Looks codes up.
    LookUp: Redeem, Reads, audited: false;
    /// Deletes a campaign, a coupon or a line-up.
    Delete: Admin, WritesOnce, audited: true;
    /// Maintains the service.
    Maintain: Admin, Writes, audited: true;
    /// Downloads everything.
    Export: Admin, Reads, audited: true;
    /// Follows what happens.
    Follow: Admin, Reads, audited: false;
}

/// A request for an operation that takes the right `R`.
pub(super) struct Call<R> {
    pub(super) api: Arc<Api>,
    pub(super) caller: Caller,
    idempotency_key: Option<HeaderValue>,
    right: PhantomData<R>,
}

impl<R: Right> FromRequestParts<Arc<Api>> for Call<R> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        let caller = parts.extensions.get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Problem::new(Code::Unauthenticated, "the key was not checked"))?;
        let idempotency_key = match R::RULE.effect {
            Effect::WritesOnce => idempotency::header(&parts.headers)?.cloned(),
            Effect::Reads | Effect::Writes => None,
        };
        Ok(Self { api: api.clone(), caller, idempotency_key, right: PhantomData })
    }
}

/// A handler, by its arguments. Its first one says which right it takes.
pub(super) trait Takes<Arguments> {
    type Right: Right;
}

macro_rules! handlers {
    ($(($($argument:ident),*))*) => {
        $(impl<F, R: Right, Out, $($argument),*> Takes<(R, $($argument),*)> for F
        where
            F: Fn(Call<R>, $($argument),*) -> Out,
        {
            type Right = R;
        })*
    };
}

handlers! { () (A) (A, B) }

impl<R> Call<R> {
    /// The filter of this name.
    pub(super) fn filter(&self, kind: Kind, name: &str) -> Result<Arc<FilterView>, Problem> {
        self.api.engine.find(kind, &parse_name(kind, name)?).ok_or_else(|| refusals::not_found(kind))
    }

    /// The end user of a request, if the number of invalid codes is limited.
    pub(super) fn client(&self, request: &Request) -> Result<Option<Client>, Problem> {
        let named = request.headers().get("x-client-id").map(HeaderValue::as_bytes);
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let address = peer.map(|ConnectInfo(peer)| peer.ip());
        Ok(self.api.access.guessing.client(&self.caller, named, address))
    }

    /// A request that reveals whether items of a filter are valid. It is refused before its body is read if its end user has no guess
    /// left.
    pub(super) fn guesser(&self, view: &FilterView, request: &Request) -> Result<Guesses<'_>, Problem> {
        let has_secrets = view.has_secret_codes();
        let client = if has_secrets { self.client(request)? } else { None };
        Ok(self.api.access.guessing.start(has_secrets, client)?)
    }

    /// Reads the request's whole JSON body.
    pub(super) async fn body(&self, request: Request) -> Result<ReadBody, Problem> {
        self.api.reading.json(request).await
    }

    /// Whether the request has an idempotency key.
    pub(super) fn may_repeat(&self) -> bool {
        self.idempotency_key.is_some()
    }

    /// The idempotency key of the request.
    pub(super) fn idempotency_key(&self) -> Option<&[u8]> {
        self.idempotency_key.as_ref().map(HeaderValue::as_bytes)
    }

    /// Submits a command and returns its outcome; a refusal becomes a problem.
    pub(super) async fn submit(&self, about: Resource<'_>, command: Command) -> Result<Decided, Problem> {
        self.submit_part(about, 0, command).await
    }

    /// Submits one of the commands that a request consists of. The first has the request's own key, so that another request with that key
    /// is recognized; a space, which no header has, separates the others' numbers.
    pub(super) async fn submit_part(
        &self,
        about: Resource<'_>,
        number: u64,
        command: Command,
    ) -> Result<Decided, Problem> {
        let key = self.idempotency_key().map(|key| match number {
            0 => Cow::Borrowed(key),
            _ => Cow::Owned([key, b" ", number.to_string().as_bytes()].concat()),
        });
        let key = key.map(|key| idempotency::key(self.caller.name(), about, &key, &command));
        let kind = match about {
            Resource::Filter(kind, _) => kind,
            // It consists of campaigns.
            Resource::LineUp(_) => Kind::Campaign,
        };
        let timeout = self.api.options.timeouts.request;
        let submitted = self.api.engine.submit_by(self.caller.key_name(), command, key);
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
        Code::Internal.into()
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
    Name::new(name).map_err(Problem::at(pointer))
}

/// How long and how often to wait while the engine is busy.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
const BUSY_PAUSES_MAX: u32 = 500;

/// The commands of one upload.
pub(super) struct Commands {
    engine: Engine,
    kind: Kind,
    by: Option<KeyName>,
    in_flight: Option<JoinHandle<Result<Outcome, SubmitError>>>,
}

impl Commands {
    /// Commands about a filter of this kind, on behalf of a key.
    pub(super) fn new(engine: Engine, kind: Kind, by: Option<KeyName>) -> Self {
        Self { engine, kind, by, in_flight: None }
    }

    /// Sends a command once the one before is done, without waiting for its outcome.
    pub(super) async fn send(&mut self, command: Command) -> Result<(), Problem> {
        self.settle().await?;
        self.in_flight = Some(tokio::spawn(patiently(self.engine.clone(), self.by.clone(), command)));
        Ok(())
    }

    /// Waits for the command in flight.
    pub(super) async fn settle(&mut self) -> Result<(), Problem> {
        let Some(command) = self.in_flight.take() else { return Ok(()) };
        let outcome = command.await.map_err(|_| Problem::new(Code::Internal, "the upload failed"))?;
        self.judge(outcome).map(drop)
    }

    /// Submits a command, and waits for its outcome.
    pub(super) async fn submit(&self, command: Command) -> Result<Outcome, Problem> {
        self.judge(patiently(self.engine.clone(), self.by.clone(), command).await)
    }

    fn judge(&self, outcome: Result<Outcome, SubmitError>) -> Result<Outcome, Problem> {
        match outcome? {
            Outcome::Refused(refusal) => Err(refusals::refused(self.kind, refusal)),
            outcome => Ok(outcome),
        }
    }
}

async fn patiently(engine: Engine, by: Option<KeyName>, command: Command) -> Result<Outcome, SubmitError> {
    for _ in 0..BUSY_PAUSES_MAX {
        match engine.submit_by(by.clone(), command.clone(), None).await {
            Err(SubmitError::Overloaded) => tokio::time::sleep(BUSY_PAUSE).await,
            applied => return applied.map(|applied| applied.outcome),
        }
    }
    Err(SubmitError::Overloaded)
}
