//! A short way to the handlers of the busiest routes, past the router: that would match the path a second time, and clone and box a
//! service for every request. A handler answers the same on both ways.

use super::api::Api;
use super::items::{codes, users};
use super::{eligibility, redemptions};
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::Method;
use std::sync::Arc;

/// One of the busiest routes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shortcut {
    CheckUsers,
    AddUsers,
    CheckCodes,
    Redeem,
    Eligibility,
}

impl Shortcut {
    /// The way past the router for requests to this route, which all are `POST`.
    pub(super) fn to(route: &str) -> Option<Self> {
        Some(match route {
            "/v1/campaigns/{campaign}/users/check" => Self::CheckUsers,
            "/v1/campaigns/{campaign}/users" => Self::AddUsers,
            "/v1/coupons/{coupon}/codes/check" => Self::CheckCodes,
            "/v1/coupons/{coupon}/redemptions" => Self::Redeem,
            "/v1/eligibility" => Self::Eligibility,
            _ => return None,
        })
    }

    /// Whether a request may take it. An escaped name needs the router, which decodes it.
    pub(super) fn takes(self, method: &Method, name: Option<&str>) -> bool {
        method == Method::POST && name.is_none_or(|name| !name.contains('%'))
    }

    /// Calls the handler. `name` is the filter's, empty for a route without one.
    pub(super) async fn answer(self, api: Arc<Api>, name: String, request: Request) -> Response {
        let (api, name) = (State(api), Path(name));
        match self {
            Self::CheckUsers => users::check(api, name, request).await.into_response(),
            Self::AddUsers => users::add(api, name, request).await.into_response(),
            Self::CheckCodes => codes::check(api, name, request).await.into_response(),
            Self::Redeem => redemptions::redeem(api, name, request).await.into_response(),
            Self::Eligibility => eligibility::one(api, request).await.into_response(),
        }
    }
}
