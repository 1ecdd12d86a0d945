//! All routes of the API, with the scope that each requires.

use super::api::Api;
use super::filters::{campaigns, coupons, images, line_ups};
use super::imports::routes as imports;
use super::items::{codes, generate, users};
use super::{admin, cluster, docs, eligibility, events, health, redemptions};
use crate::access::Scope;
use std::sync::Arc;
use utoipa::openapi::SecurityRequirement;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

/// The name of the security scheme in the OpenAPI document.
pub(super) const SECURITY_SCHEME: &str = "bearer";

/// All routes, and the document that describes them.
pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        // Campaigns
        .routes(read(routes!(campaigns::list)))
        .routes(read(routes!(campaigns::get)))
        .routes(write(routes!(campaigns::put, campaigns::patch)))
        .routes(admin(routes!(campaigns::delete)))
        .routes(write(routes!(campaigns::clear)))
        .routes(admin(routes!(images::get_campaign, images::put_campaign)))
        .routes(write(routes!(users::add)))
        .routes(read(routes!(users::check)))
        .routes(read(routes!(users::count)))
        .routes(write(routes!(users::remove)))
        .routes(write(routes!(users::replace)))
        .routes(write(routes!(imports::import_users)))
        // Which campaigns a user may see
        .routes(read(routes!(eligibility::one)))
        .routes(read(routes!(eligibility::batch)))
        .routes(read(routes!(line_ups::list)))
        .routes(read(routes!(line_ups::get)))
        .routes(write(routes!(line_ups::put)))
        .routes(admin(routes!(line_ups::delete)))
        // Coupons
        .routes(read(routes!(coupons::list)))
        .routes(read(routes!(coupons::get)))
        .routes(write(routes!(coupons::put, coupons::patch)))
        .routes(admin(routes!(coupons::delete)))
        .routes(write(routes!(coupons::clear)))
        .routes(admin(routes!(images::get_coupon, images::put_coupon)))
        .routes(write(routes!(codes::add)))
        .routes(write(routes!(generate::generate)))
        .routes(read(routes!(codes::check)))
        .routes(read(routes!(codes::count)))
        .routes(redeem(routes!(codes::look_up)))
        .routes(write(routes!(codes::remove)))
        .routes(write(routes!(codes::replace)))
        .routes(write(routes!(imports::import_codes)))
        // Using codes
        .routes(redeem(routes!(redemptions::redeem)))
        .routes(read(routes!(redemptions::list)))
        .routes(read(routes!(redemptions::get)))
        .routes(redeem(routes!(redemptions::confirm)))
        .routes(redeem(routes!(redemptions::cancel)))
        // Operations
        .routes(read(routes!(imports::list)))
        .routes(read(routes!(imports::get)))
        .routes(write(routes!(imports::stop)))
        .routes(read(routes!(admin::info)))
        .routes(read(routes!(admin::plan)))
        .routes(read(routes!(cluster::show)))
        .routes(admin(routes!(events::list)))
        .routes(admin(routes!(admin::snapshot)))
        .routes(admin(routes!(admin::backup)))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
        .routes(routes!(docs::openapi))
}

fn read(routes: UtoipaMethodRouter<Arc<Api>>) -> UtoipaMethodRouter<Arc<Api>> {
    takes(Scope::Read, routes)
}

fn write(routes: UtoipaMethodRouter<Arc<Api>>) -> UtoipaMethodRouter<Arc<Api>> {
    takes(Scope::Write, routes)
}

fn redeem(routes: UtoipaMethodRouter<Arc<Api>>) -> UtoipaMethodRouter<Arc<Api>> {
    takes(Scope::Redeem, routes)
}

fn admin(routes: UtoipaMethodRouter<Arc<Api>>) -> UtoipaMethodRouter<Arc<Api>> {
    takes(Scope::Admin, routes)
}

/// Records the required scope in the document. The gate reads it from there, so the two can't differ.
fn takes(scope: Scope, mut routes: UtoipaMethodRouter<Arc<Api>>) -> UtoipaMethodRouter<Arc<Api>> {
    for item in routes.1.paths.values_mut() {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            operation.security = Some(vec![SecurityRequirement::new(SECURITY_SCHEME, [scope.as_str()])]);
        }
    }
    routes
}
