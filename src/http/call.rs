//! A request as its handler sees it: the service, the caller, and the right that the operation requires.

use super::api::ApiHandle;
use super::request::body::HeldBody;
use super::response::{Code, HandlerResult, Problem, refusals};
use crate::access::{Caller, EndUser, Guesses, Scope};
use crate::budget::BudgetShare;
use crate::engine::{Engine, SubmitError};
use crate::socket::Peer;
use axum::extract::{FromRequestParts, Path, Request};
use cuckood_filter::{Layout, Secret};
use cuckood_state::domain::{
    Applied, Command, FilterId, IdempotencyKey, KeyName, Kind, Name, Normalization, Outcome, Raise,
    RedemptionId,
};
use cuckood_state::{Borrowed, FilterView, Lookup};
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest as _, Sha256};
use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use xxhash_rust::xxh3::xxh3_64;

/// The effect of an operation on the state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// It changes nothing, so it may ask for a position of the log.
    Reads,
    /// It changes something, and repeats are recognized without a key.
    Writes,
    /// It changes something, once under an idempotency key.
    WritesOnce,
}

/// The permission that an operation requires, and its effect.
pub(super) trait Right: Send + Sync + 'static {
    const RULE: AccessRule;
}

/// The permission that an operation requires, and its effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AccessRule {
    /// The scope that the caller's key must have.
    pub(super) scope: Scope,
    /// Another one that it must have, too.
    pub(super) also: Option<Scope>,
    pub(super) effect: Effect,
    /// Whether it is logged as an administrative act.
    pub(super) is_audited: bool,
}

macro_rules! rights {
    (@also) => { None };
    (@also $also:ident) => { Some(Scope::$also) };
    ($($(#[$doc:meta])* $right:ident: $scope:ident $(with $also:ident)?, $effect:ident, audited: $is_audited:literal;)*) => {
        $(
            $(#[$doc])*
            pub(super) struct $right;

            impl Right for $right {
                const RULE: AccessRule = AccessRule {
                    scope: Scope::$scope,
                    also: rights!(@also $($also)?),
                    effect: Effect::$effect,
                    is_audited: $is_audited,
                };
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
    /// Looks customers up, in whatever redemption.
    LookUpCustomers: Redeem with Read, Reads, audited: false;
    /// Deletes a campaign, a coupon or a line-up.
    Delete: Admin, WritesOnce, audited: true;
    /// Maintains the service.
    Maintain: Admin, Writes, audited: true;
    /// Downloads everything.
    Export: Admin, Reads, audited: true;
    /// Waits for changes.
    Follow: Admin, Reads, audited: false;
}

/// A request for an operation that takes the right `R`.
pub(super) struct Call<R> {
    pub(super) api: ApiHandle,
    pub(super) caller: Caller,
    idempotency_key: Option<HeaderValue>,
    right: PhantomData<R>,
}

impl<R: Right> FromRequestParts<ApiHandle> for Call<R> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &ApiHandle) -> Result<Self, Problem> {
        Self::of(api, &parts.headers, &parts.extensions)
    }
}

/// The handler of a named resource, called without axum's router.
pub(super) type Direct = Arc<
    dyn Fn(&ApiHandle, Path<String>, Request) -> BoxFuture<'static, HandlerResult> + Send + Sync,
>;

/// Lets a handler be called with a name, without axum's router, which matches the path again and boxes the handler twice.
pub(super) fn direct<R: Right, Out: Future<Output = HandlerResult> + Send + 'static>(
    handler: impl Fn(Call<R>, Path<String>, Request) -> Out + Copy + Send + Sync + 'static,
) -> Direct {
    Arc::new(move |api, name, request| {
        let call = Call::of(api, request.headers(), request.extensions());
        Box::pin(async move { handler(call?, name, request).await })
    })
}

/// A handler, by its arguments. Its first one says which right it takes.
pub(super) trait Takes<Arguments> {
    type Right: Right;
}

impl<F: Fn(Call<R>) -> Out, R: Right, Out> Takes<(R,)> for F {
    type Right = R;
}

impl<F: Fn(Call<R>, A) -> Out, R: Right, A, Out> Takes<(R, A)> for F {
    type Right = R;
}

impl<F: Fn(Call<R>, A, B) -> Out, R: Right, A, B, Out> Takes<(R, A, B)> for F {
    type Right = R;
}

impl<R: Right> Call<R> {
    /// The call of a request that was admitted.
    fn of(api: &ApiHandle, headers: &HeaderMap, extensions: &Extensions) -> Result<Self, Problem> {
        let caller = extensions.get::<Caller>().cloned();
        let caller =
            caller.ok_or_else(|| Problem::new(Code::Unauthenticated, "the key was not checked"))?;
        let idempotency_key = match R::RULE.effect {
            Effect::WritesOnce => idempotency_header(headers)?.cloned(),
            Effect::Reads | Effect::Writes => None,
        };
        Ok(Self {
            api: api.clone(),
            caller,
            idempotency_key,
            right: PhantomData,
        })
    }
}

/// The problem of a name that no filter has, or can have.
fn not_found(kind: Kind, name: &str) -> Problem {
    parse_name(kind, name)
        .err()
        .unwrap_or_else(|| refusals::not_found(kind))
}

impl<R> Call<R> {
    /// The filter of this name.
    pub(super) fn filter(&self, kind: Kind, name: &str) -> Result<Arc<FilterView>, Problem> {
        let found = self.api.engine.view().find(kind, name);
        found.ok_or_else(|| not_found(kind, name))
    }

    /// The filter of this name, for a check. Callers drop it before they read the body, so that no slow client keeps a deleted filter.
    pub(super) fn borrow(&self, kind: Kind, name: &str) -> Result<Borrowed<FilterView>, Problem> {
        let found = self.api.engine.view().borrow(kind, name);
        found.ok_or_else(|| not_found(kind, name))
    }

    /// The end user of a request, if the number of invalid codes is limited.
    pub(super) fn client(&self, request: &Request) -> Option<EndUser> {
        let named = request
            .headers()
            .get("x-client-id")
            .map(HeaderValue::as_bytes);
        let address = request
            .extensions()
            .get::<Peer>()
            .map(|peer| peer.address.ip());
        self.api
            .access
            .guessing
            .client(&self.caller, named, address)
    }

    /// A request that reveals whether items of a filter are valid. It is rejected before its body is read if its end user has no guess
    /// left.
    pub(super) fn guesser(
        &self,
        view: &FilterView,
        request: &Request,
    ) -> Result<Guesses<'_>, Problem> {
        let has_secrets = view.has_secret_codes();
        let client = if has_secrets {
            self.client(request)
        } else {
            None
        };
        Ok(self.api.access.guessing.start(has_secrets, client)?)
    }

    /// Reads the request's complete JSON body.
    pub(super) async fn body(&self, request: Request) -> Result<HeldBody, Problem> {
        self.api.reading.json(request).await
    }

    /// Reserves memory for a response with this number of outcomes, before a command takes effect.
    ///
    /// # Errors
    /// 503 `overloaded`.
    pub(super) fn room_for(&self, outcomes: usize) -> Result<BudgetShare, Problem> {
        self.reserve((outcomes * OUTCOME_BYTES) as u64)
    }

    /// Reserves memory for a response, before a command takes effect.
    ///
    /// # Errors
    /// 503 `overloaded`.
    pub(super) fn reserve(&self, bytes: u64) -> Result<BudgetShare, Problem> {
        self.api.responses.reserve(Some(self.caller.owner()), bytes)
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
    pub(super) async fn submit(
        &self,
        about: Resource<'_>,
        command: Command,
    ) -> Result<Decided, Problem> {
        self.submit_part(about, "", command).await
    }

    /// The logged key of one of the commands that a request consists of, if the request has a key. The first part is empty: it has the
    /// request's own key, so that another request with that key is recognized. A space, which no header has, precedes the others.
    fn part_key(
        &self,
        about: Resource<'_>,
        part: &str,
        command: &Command,
    ) -> Option<IdempotencyKey> {
        let key = self.idempotency_key()?;
        let key = match part {
            "" => Cow::Borrowed(key),
            part => Cow::Owned([key, b" ", part.as_bytes()].concat()),
        };
        Some(idempotency_key(self.caller.name(), about, &key, command))
    }

    /// Looks up what is stored for one of the commands that a request consists of. Nothing is for a request without a key.
    pub(super) async fn recorded(
        &self,
        about: Resource<'_>,
        part: &str,
        command: Command,
    ) -> Result<Lookup, Problem> {
        match self.part_key(about, part, &command) {
            Some(key) => Ok(self.api.engine.recorded(command, key).await?),
            None => Ok(Lookup::New),
        }
    }

    /// Submits one of the commands that a request consists of.
    pub(super) async fn submit_part(
        &self,
        about: Resource<'_>,
        part: &str,
        command: Command,
    ) -> Result<Decided, Problem> {
        let key = self.part_key(about, part, &command);
        let kind = match about {
            Resource::Filter(kind, _) => kind,
            // It consists of campaigns.
            Resource::LineUp(_) => Kind::Campaign,
        };
        let timeout = self.api.options.timeouts.request;
        let submitted = self.api.engine.submit(self.caller.key_name(), command, key);
        let Ok(applied) = tokio::time::timeout(timeout, submitted).await else {
            let detail = "the response took too long; whether the write took effect is unknown: retry it, with the same idempotency key if \
                          it had one";
            return Err(Problem::new(Code::StorageFailed, detail));
        };
        let Applied { outcome, replayed } = applied?;
        match outcome {
            Outcome::Refused(refusal) => Err(Problem {
                replayed,
                ..refusals::refused(kind, refusal)
            }),
            outcome => Ok(Decided { outcome, replayed }),
        }
    }
}

/// The outcome of an accepted command.
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

/// Maximum length of an outcome in a response, in bytes.
const OUTCOME_BYTES: usize = 20;

/// The header with the idempotency key. A constant name is not parsed for each request.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The longest value of the header, in bytes.
const KEY_BYTES_MAX: usize = 255;

/// Returns the header's value, if it was sent.
///
/// # Errors
/// If it is empty, too long, not visible ASCII, or was sent twice.
fn idempotency_header(headers: &HeaderMap) -> Result<Option<&HeaderValue>, Problem> {
    let mut values = headers.get_all(&IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let key = value.as_bytes();
    let is_visible = key.iter().all(u8::is_ascii_graphic);
    if values.next().is_some() || !is_visible || !(1..=KEY_BYTES_MAX).contains(&key.len()) {
        let detail = "Idempotency-Key is sent once, with 1 to 255 visible ASCII characters";
        return Err(Problem::new(Code::MalformedRequest, detail));
    }
    Ok(Some(value))
}

/// The resource of a request, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resource<'a> {
    /// A campaign or coupon.
    Filter(Kind, &'a str),
    /// A line-up.
    LineUp(&'a str),
}

/// Builds the key that is logged, from the caller, the name, the header and the command.
fn idempotency_key(
    caller: &str,
    resource: Resource<'_>,
    header: &[u8],
    command: &Command,
) -> IdempotencyKey {
    let (kind, name) = match resource {
        Resource::Filter(kind, name) => (kind.as_str(), name),
        Resource::LineUp(name) => ("line-up", name),
    };
    let scope = hash_of([caller.as_bytes(), kind.as_bytes(), name.as_bytes(), header]);
    let (scope, _) = scope
        .split_first_chunk()
        .expect("a hash of 32 bytes has 16");
    IdempotencyKey {
        scope: u128::from_le_bytes(*scope),
        request: xxh3_64(&canonical(command)),
    }
}

/// Returns the SHA-256 hash of these parts. Each counts with its length, so that no others have the same hash.
pub(super) fn hash_of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Encodes a command's request, without values that are random or depend on the filter's previous state. It identifies the route, and
/// contains everything in the query and body.
fn canonical(command: &Command) -> Vec<u8> {
    match command {
        Command::Create {
            kind,
            name,
            id: _,
            secret: _,
            spec,
            layout,
            window,
            annotations,
        } => {
            let mut spec = spec.clone();
            // Without `normalize`, a request before version 2 was enabled equals its repetition afterwards.
            if spec.normalization == Normalization::ByDefault {
                spec.normalization = Normalization::Exact;
            }
            encode(&Command::Create {
                kind: *kind,
                name: name.clone(),
                id: FilterId(0),
                secret: Secret::new([0; _]),
                spec,
                layout: *layout,
                window: *window,
                annotations: annotations.clone(),
            })
        }
        Command::Redeem(redeem) => {
            let mut redeem = redeem.clone();
            redeem.redemption = RedemptionId([0; 16]);
            encode(&Command::Redeem(redeem))
        }
        Command::RedeemFor { redeem, customer } => {
            let mut redeem = redeem.clone();
            redeem.redemption = RedemptionId([0; 16]);
            let customer = *customer;
            encode(&Command::RedeemFor { redeem, customer })
        }
        Command::Update(update) => {
            let mut update = update.clone();
            if let Some(Raise { layout, .. }) = &mut update.capacity {
                *layout = Layout {
                    fingerprint_bits: 0,
                    step_bits: 0,
                    bucket_size: 0,
                    buckets: 0,
                    max_search: 0,
                };
            }
            encode(&Command::Update(update))
        }
        // Nothing in them is random or depends on the state.
        Command::Configure(_)
        | Command::Delete { .. }
        | Command::Insert { .. }
        | Command::Remove { .. }
        | Command::Replace { .. }
        | Command::Clear { .. }
        | Command::Confirm { .. }
        | Command::Cancel { .. }
        | Command::Forfeit { .. }
        | Command::ImportBegin(_)
        | Command::ImportLines(_)
        | Command::ImportEnd(_)
        | Command::Advance { .. }
        | Command::TurnBack
        | Command::PutLineUp(_)
        | Command::DeleteLineUp { .. }
        | Command::Restored { .. }
        | Command::Enable { .. } => encode(command),
        // Images have no idempotency key.
        Command::ImageBegin(_) | Command::ImageRecord { .. } | Command::ImageAbandon { .. } => {
            encode(command)
        }
    }
}

fn encode(command: &Command) -> Vec<u8> {
    postcard::to_stdvec(command).expect("commands go into the log like this")
}

/// Parses the name of a campaign or coupon in a path.
pub(super) fn parse_name(kind: Kind, name: &str) -> Result<Name, Problem> {
    Name::new(name)
        .map_err(|error| Problem::invalid_at(&format!("/{}", kind.as_str()), error.to_string()))
}

/// How long and how often to wait while the engine is busy.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
const BUSY_PAUSES_MAX: u32 = 500;

/// The commands of one upload.
pub(super) struct UploadCommands {
    engine: Engine,
    kind: Kind,
    by: Option<KeyName>,
    in_flight: Option<JoinHandle<Result<Outcome, Problem>>>,
}

impl UploadCommands {
    /// Commands about a filter of this kind, on behalf of a key.
    pub(super) fn new(engine: Engine, kind: Kind, by: Option<KeyName>) -> Self {
        Self {
            engine,
            kind,
            by,
            in_flight: None,
        }
    }

    /// Sends a command once the one before is done, without waiting for its outcome.
    pub(super) async fn send(&mut self, command: Command) -> Result<(), Problem> {
        self.settle().await?;
        self.in_flight = Some(tokio::spawn(self.submit(command)));
        Ok(())
    }

    /// Waits for the command in flight.
    pub(super) async fn settle(&mut self) -> Result<(), Problem> {
        let Some(command) = self.in_flight.take() else {
            return Ok(());
        };
        command
            .await
            .map_err(|_| Problem::new(Code::Internal, "the upload failed"))?
            .map(drop)
    }

    /// Submits a command, again and again while the engine is busy, and waits for its outcome.
    pub(super) fn submit(
        &self,
        command: Command,
    ) -> impl Future<Output = Result<Outcome, Problem>> + use<> {
        let engine = self.engine.clone();
        let kind = self.kind;
        let by = self.by.clone();
        async move {
            for _ in 0..BUSY_PAUSES_MAX {
                match engine.submit(by.clone(), command.clone(), None).await {
                    Err(SubmitError::Overloaded) => tokio::time::sleep(BUSY_PAUSE).await,
                    Ok(Applied {
                        outcome: Outcome::Refused(refusal),
                        ..
                    }) => {
                        return Err(refusals::refused(kind, refusal));
                    }
                    applied => return Ok(applied?.outcome),
                }
            }
            Err(SubmitError::Overloaded.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuckood_filter::Digest;
    use cuckood_state::domain::{Reference, Target};
    use cuckood_state::testing::commands::NewFilter;

    /// The same request after version 2 was enabled.
    #[test]
    fn omitted_rule_equals_former_default() {
        let [unspecified, exact, case] = [
            Normalization::ByDefault,
            Normalization::Exact,
            Normalization::Case,
        ]
        .map(|normalization| {
            let coupon = NewFilter {
                normalization,
                ..NewFilter::coupon(100)
            };
            canonical(&coupon.create(Target(FilterId(7))))
        });
        assert!(unspecified == exact && exact != case);
    }

    fn redeem(redemption: u8, reference: &str) -> Command {
        let reference = Reference::new(reference).unwrap();
        let redemption = RedemptionId([redemption; 16]);
        Command::Redeem(cuckood_state::domain::Redeem {
            target: Target(FilterId(7)),
            digest: Digest(1),
            redemption,
            reference,
            hold_seconds: 0,
        })
    }

    #[test]
    fn fingerprint_depends_on_content_without_ids() {
        let spring = Resource::Filter(Kind::Coupon, "spring");
        let of = |command: &Command| idempotency_key("shop", spring, b"k", command);
        assert_eq!(of(&redeem(1, "a")), of(&redeem(2, "a")));
        assert_ne!(of(&redeem(1, "a")).request, of(&redeem(1, "b")).request);
    }

    #[test]
    fn idempotency_scope_is_caller_filter_key() {
        let command = redeem(1, "a");
        let scope = |caller, kind, name, header: &[u8]| {
            idempotency_key(caller, Resource::Filter(kind, name), header, &command).scope
        };
        let one = scope("shop", Kind::Coupon, "spring", b"k");
        assert_eq!(one, scope("shop", Kind::Coupon, "spring", b"k"));
        assert_ne!(one, scope("other", Kind::Coupon, "spring", b"k"));
        assert_ne!(one, scope("shop", Kind::Campaign, "spring", b"k"));
        assert_ne!(one, scope("shop", Kind::Coupon, "sprin", b"gk"));
        assert_ne!(one, scope("shop", Kind::Coupon, "spring", b"l"));
        assert_ne!(
            one,
            idempotency_key("shop", Resource::LineUp("spring"), b"k", &command).scope
        );
    }

    #[test]
    fn idempotency_key_is_visible_ascii() {
        let with = |value: &[u8]| {
            HeaderMap::from_iter([(
                "idempotency-key".parse().unwrap(),
                HeaderValue::from_bytes(value).unwrap(),
            )])
        };
        assert_eq!(idempotency_header(&HeaderMap::new()).unwrap(), None);
        assert_eq!(
            idempotency_header(&with(b"order-42"))
                .unwrap()
                .map(HeaderValue::as_bytes),
            Some(&b"order-42"[..])
        );
        assert!(idempotency_header(&with(&[b'k'; 255])).is_ok());
        for bad in [&b""[..], b"a b", &[b'k'; 256], "ä".as_bytes()] {
            assert_eq!(
                idempotency_header(&with(bad)).unwrap_err().code,
                Code::MalformedRequest
            );
        }
    }
}
