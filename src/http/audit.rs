//! The audit log for operators: who changed what, with what outcome, and which keys were refused.

use super::answer::Code;
use super::operations::Operation;
use crate::access::{Access, Caller, Denied, LogLimiter};
use axum::extract::{ConnectInfo, Request};
use http::{HeaderValue, StatusCode};
use std::net::SocketAddr;

/// The longest target that is logged in full, in bytes. A path can have any length before it is rejected.
const TARGET_BYTES_MAX: usize = 300;

/// A running administrative act. If it is dropped before its end, its client has abandoned it.
pub(super) struct Act {
    name: String,
    key: String,
    target: String,
    request_id: HeaderValue,
    is_told: bool,
}

impl Act {
    /// The administrative act that an admitted request begins, if it begins one.
    pub(super) fn begun(operation: &Operation, request: &Request, id: &HeaderValue) -> Option<Self> {
        operation.access.filter(|access| access.is_audited)?;
        let path = request.uri().path();
        let caller = request.extensions().get::<Caller>();
        Some(Self {
            name: operation.id.clone(),
            key: caller.map(|caller| caller.name().to_owned()).unwrap_or_default(),
            target: path.get(..TARGET_BYTES_MAX).unwrap_or(path).to_owned(),
            request_id: id.clone(),
            is_told: false,
        })
    }

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

/// Logs that a key was refused, up to a rate; `caller` is its holder, if known. The path of an unknown route is not logged: it may contain a
/// code.
pub(super) fn log_denied(
    access: &Access,
    denied: &Denied,
    caller: Option<&Caller>,
    request: &Request,
    route: Option<&str>,
    id: &HeaderValue,
) {
    let Some(untold) = access.tells(denied) else { return };
    let key = caller.map(Caller::name);
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip());
    let peer = peer.map(tracing::field::display);
    let (route, method, request_id) = (route.unwrap_or("none"), request.method(), id.to_str().ok());
    tracing::info!(%denied, key, peer, %method, route, request_id, untold, "a key was refused");
}

/// Logs that a write was refused for lack of memory or disk space, up to a rate.
pub(super) fn log_no_room(room: &LogLimiter, route: Option<&str>, code: Code, id: &HeaderValue) {
    let Some(untold) = room.ask() else { return };
    tracing::warn!(route, code = code.as_str(), request_id = id.to_str().ok(), untold, "a write was refused");
}
