//! All routes of the API. What each requires is said by its handler's first argument, a [`Call`](super::call::Call).

use super::api::Api;
use super::call::{AccessRule, Right, Takes};
use super::filters::{campaigns, coupons};
use super::imports::routes as imports;
use super::items::{codes, lookup, users};
use super::operations::Operation;
use super::{admin, eligibility, events, generate, line_ups, pages, redemptions};
use http::Method;
use std::sync::Arc;
use utoipa::openapi::SecurityRequirement;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

/// The name of the security scheme in the OpenAPI document.
pub(super) const SECURITY_SCHEME: &str = "bearer";

/// Adds a handler's route to the others.
macro_rules! route {
    ($($handler:tt)*) => {
        |all: Routes| all.with($($handler)*, routes!($($handler)*))
    };
}

/// All routes, and the document that describes them.
pub(super) fn routes() -> Routes {
    let with_keys = [
        // Campaigns
        route!(campaigns::list) as fn(Routes) -> Routes,
        route!(campaigns::get),
        route!(campaigns::put),
        route!(campaigns::patch),
        route!(campaigns::delete),
        route!(campaigns::clear),
        route!(campaigns::get_image),
        route!(campaigns::put_image),
        route!(users::add),
        route!(users::check),
        route!(users::count),
        route!(users::remove),
        route!(users::replace),
        route!(imports::campaigns::import),
        // Which campaigns a user may see
        route!(eligibility::one),
        route!(eligibility::batch),
        route!(line_ups::list),
        route!(line_ups::get),
        route!(line_ups::put),
        route!(line_ups::delete),
        // Coupons
        route!(coupons::list),
        route!(coupons::get),
        route!(coupons::put),
        route!(coupons::patch),
        route!(coupons::delete),
        route!(coupons::clear),
        route!(coupons::get_image),
        route!(coupons::put_image),
        route!(codes::add),
        route!(generate::generate),
        route!(codes::check),
        route!(codes::count),
        route!(lookup::look_up),
        route!(codes::remove),
        route!(codes::replace),
        route!(imports::coupons::import),
        // Using codes
        route!(redemptions::redeem),
        route!(redemptions::list),
        route!(redemptions::get),
        route!(redemptions::confirm),
        route!(redemptions::cancel),
        // Operations
        route!(imports::list),
        route!(imports::get),
        route!(imports::stop),
        route!(admin::info),
        route!(admin::plan),
        route!(admin::cluster),
        route!(events::list),
        route!(admin::snapshot),
        route!(admin::backup),
    ];
    let routes = with_keys.into_iter().fold(Routes::default(), |all, add| add(all));
    routes
        .public(routes!(admin::livez))
        .public(routes!(admin::readyz))
        .public(routes!(admin::metrics))
        .public(routes!(pages::openapi))
}

/// Routes, and what each declares.
#[derive(Default)]
pub(super) struct Routes {
    pub(super) router: OpenApiRouter<Arc<Api>>,
    pub(super) operations: Vec<Operation>,
}

impl Routes {
    /// Adds the route of a handler that takes a right.
    fn with<A, H: Takes<A>>(self, _: H, routes: UtoipaMethodRouter<Arc<Api>>) -> Self {
        self.add(Some(H::Right::RULE), routes)
    }

    /// Adds a route that requires no key.
    fn public(self, routes: UtoipaMethodRouter<Arc<Api>>) -> Self {
        self.add(None, routes)
    }

    fn add(mut self, access: Option<AccessRule>, mut routes: UtoipaMethodRouter<Arc<Api>>) -> Self {
        for (path, item) in &mut routes.1.paths {
            let operations = [
                (Method::GET, &mut item.get),
                (Method::PUT, &mut item.put),
                (Method::POST, &mut item.post),
                (Method::PATCH, &mut item.patch),
                (Method::DELETE, &mut item.delete),
            ];
            for (method, operation) in operations {
                let Some(operation) = operation else { continue };
                let security =
                    access.map(|access| SecurityRequirement::new(SECURITY_SCHEME, [access.scope.as_str()]));
                operation.security = Some(security.into_iter().collect());
                self.operations.push(Operation {
                    path: path.clone(),
                    method,
                    id: operation.operation_id.clone().unwrap_or_default(),
                    tag: operation.tags.iter().flatten().next().cloned().unwrap_or_default(),
                    access,
                });
            }
        }
        self.router = self.router.routes(routes);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::call::Effect;
    use super::*;
    use crate::access::Scope;

    fn ids(is_wanted: impl Fn(&AccessRule) -> bool) -> Vec<String> {
        let operations = routes().operations.into_iter();
        let mut ids: Vec<String> = operations
            .filter(|operation| operation.access.as_ref().is_some_and(&is_wanted))
            .map(|operation| operation.id)
            .collect();
        ids.sort();
        ids
    }

    #[test]
    fn operations_require_the_scopes_of_the_contract() {
        let admin = [
            "backup",
            "delete_campaign",
            "delete_coupon",
            "delete_line_up",
            "get_campaign_image",
            "get_coupon_image",
            "list_events",
            "put_campaign_image",
            "put_coupon_image",
            "take_snapshot",
        ];
        assert_eq!(ids(|access| access.scope == Scope::Admin), admin);
        let redeem = ["cancel_redemption", "confirm_redemption", "look_up_codes", "redeem"];
        assert_eq!(ids(|access| access.scope == Scope::Redeem), redeem);
        assert_eq!(ids(|access| access.scope == Scope::Read && access.effect != Effect::Reads), [""; 0]);
        assert_eq!(ids(|access| access.scope == Scope::Write && access.effect == Effect::Reads), [""; 0]);
        let without_key = [
            "import_codes",
            "import_users",
            "put_campaign_image",
            "put_coupon_image",
            "stop_import",
            "take_snapshot",
        ];
        assert_eq!(ids(|access| access.effect == Effect::Writes), without_key);
    }

    #[test]
    fn administrative_acts_are_audited() {
        let acts = [
            "backup",
            "clear_campaign",
            "clear_coupon",
            "delete_campaign",
            "delete_coupon",
            "delete_line_up",
            "get_campaign_image",
            "get_coupon_image",
            "import_codes",
            "import_users",
            "patch_campaign",
            "patch_coupon",
            "put_campaign",
            "put_campaign_image",
            "put_coupon",
            "put_coupon_image",
            "put_line_up",
            "stop_import",
            "take_snapshot",
        ];
        assert_eq!(ids(|access| access.is_audited), acts);
    }
}
