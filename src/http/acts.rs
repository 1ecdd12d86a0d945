//! The audit log for operators: who changed what, with what outcome, and which keys were refused.

use super::answer::problem::Code;
use super::openapi;
use crate::access::{Caller, Denied};
use axum::extract::{ConnectInfo, MatchedPath, Request};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use http::{HeaderValue, Method, StatusCode};
use serde_json::Value;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many refusals of one kind are logged per minute; the others are only counted.
const REFUSALS_PER_MINUTE: NonZeroU32 = NonZeroU32::new(10).expect("ten is not zero");

/// The longest target that is logged in full, in bytes. A path can have any length before it is rejected.
const TARGET_BYTES_MAX: usize = 300;

/// The administrative operations, by route and method.
pub(super) struct Acts(HashMap<String, Vec<(Method, String)>>);

/// A running administrative act. If it is dropped before its end, its client has abandoned it.
pub(super) struct Act {
    name: String,
    key: String,
    target: String,
    request_id: HeaderValue,
    is_told: bool,
}

impl Acts {
    /// Collects the administrative operations of the document: those that create, change, delete or empty a whole resource, and
    /// those that export all data.
    pub(super) fn new(document: &Value) -> Self {
        let mut acts: HashMap<String, Vec<(Method, String)>> = HashMap::new();
        for (path, method, name) in openapi::names(document) {
            let Ok(method) = method.parse::<Method>() else { continue };
            let last = path.rsplit('/').next().unwrap_or_default();
            let is_act = match method {
                Method::PUT | Method::PATCH | Method::DELETE => true,
                Method::POST => matches!(last, "clear" | "imports" | "snapshots"),
                Method::GET => matches!(last, "backup" | "image"),
                _ => false,
            };
            if is_act {
                acts.entry(path).or_default().push((method, name));
            }
        }
        Self(acts)
    }

    /// The administrative act that an admitted request begins, if it begins one.
    pub(super) fn begun(&self, request: &Request, route: Option<&str>, id: &HeaderValue) -> Option<Act> {
        let (_, name) = self.0.get(route?)?.iter().find(|(method, _)| method == request.method())?;
        let path = request.uri().path();
        Some(Act {
            name: name.clone(),
            key: request
                .extensions()
                .get::<Caller>()
                .map(|caller| caller.name().to_owned())
                .unwrap_or_default(),
            target: path.get(..TARGET_BYTES_MAX).unwrap_or(path).to_owned(),
            request_id: id.clone(),
            is_told: false,
        })
    }
}

impl Act {
    /// Logs the outcome.
    pub(super) fn end(mut self, status: StatusCode, problem: Option<&'static str>) {
        self.is_told = true;
        self.tell(Some(status.as_u16()), problem.unwrap_or("done"));
    }

    fn tell(&self, status: Option<u16>, outcome: &str) {
        let Self { name: act, key, target, request_id, .. } = self;
        let (key, request_id) = (Some(key).filter(|key| !key.is_empty()), request_id.to_str().ok());
        tracing::info!(act, key, target, outcome, status, request_id, "administrative act");
    }
}

impl Drop for Act {
    fn drop(&mut self) {
        if !self.is_told {
            self.tell(None, "abandoned by its client");
        }
    }
}

/// Logs refusals, up to a rate.
pub(super) struct Refusals {
    keys: Seldom,
    room: Seldom,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { keys: Seldom::new(), room: Seldom::new() }
    }
}

impl Refusals {
    /// Logs that a key was refused; `caller` is its holder, if known. The path of an unknown route is not logged: it may contain a
    /// code.
    pub(super) fn key(&self, denied: &Denied, caller: Option<&Caller>, request: &Request, id: &HeaderValue) {
        // A key that calls too often is valid, so it is not logged here.
        if matches!(denied, Denied::TooManyRequests { .. }) {
            return;
        }
        let Some(untold) = self.keys.ask() else { return };
        let key = caller.map(Caller::name);
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip());
        let peer = peer.map(tracing::field::display);
        let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str);
        let (method, request_id) = (request.method(), id.to_str().ok());
        tracing::info!(%denied, key, peer, %method, route, request_id, untold, "a key was refused");
    }

    /// Logs that a write was refused for lack of memory or disk space.
    pub(super) fn room(&self, route: Option<&str>, code: Code, id: &HeaderValue) {
        let Some(untold) = self.room.ask() else { return };
        let code = code.as_str();
        tracing::warn!(route, code, request_id = id.to_str().ok(), untold, "a write was refused");
    }
}

/// Lets a few through per minute, and counts the others.
struct Seldom {
    limiter: DefaultDirectRateLimiter,
    untold: AtomicU64,
}

impl Seldom {
    fn new() -> Self {
        Self {
            limiter: RateLimiter::direct(Quota::per_minute(REFUSALS_PER_MINUTE)),
            untold: AtomicU64::new(0),
        }
    }

    /// Whether this one is logged; if so, how many were not since the last one.
    fn ask(&self) -> Option<u64> {
        if self.limiter.check().is_ok() {
            return Some(self.untold.swap(0, Ordering::Relaxed));
        }
        self.untold.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_told_is_counted() {
        let seldom = Seldom::new();
        let told = (0..1_000).filter(|_| seldom.ask().is_some()).count();
        assert!((10..1_000).contains(&told), "{told}");
        assert_eq!(seldom.untold.load(Ordering::Relaxed), 1_000 - told as u64);
    }

    #[test]
    fn acts_are_what_changes_something_as_a_whole() {
        let acts = Acts::new(&openapi::document());
        let mut names: Vec<&str> = acts.0.values().flatten().map(|(_, name)| name.as_str()).collect();
        names.sort_unstable();
        for wanted in
            ["backup", "clear_campaign", "delete_coupon", "import_codes", "put_campaign", "take_snapshot"]
        {
            assert!(names.contains(&wanted), "{wanted} in {names:?}");
        }
        for other in ["add_users", "redeem", "info", "check_codes", "list_campaigns"] {
            assert!(!names.contains(&other), "{other} in {names:?}");
        }
    }
}
