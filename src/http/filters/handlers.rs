//! The handlers that create, show, change and delete campaigns and coupons.

use super::representation::Filter;
use super::spec::{Changes, Wanted};
use crate::domain::spec::STOCK_MAX;
use crate::domain::{Command, Description, Kind, Name, Outcome};
use crate::http::answer::problem::Problem;
use crate::http::answer::{refusals, reply};
use crate::http::api::{Api, Sender, caller, parse_name, target};
use crate::http::request::{page, query};
use axum::extract::Request;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::{HeaderValue, StatusCode, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

/// Which part of a list to return.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// The most entries to return.
    #[serde(default = "page::limit_default")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: usize,
    /// The `next_cursor` of the previous page.
    #[param(value_type = Option<String>)]
    cursor: Option<String>,
    /// Only names that begin with this.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    prefix: String,
}

/// `PUT`: creates a filter, or finds that it exists.
pub(super) async fn put<T: Wanted + DeserializeOwned>(
    api: &Api,
    kind: Kind,
    name: &str,
    request: Request,
) -> Result<Response, Problem> {
    let name = parse_name(kind, name)?;
    let sender = Sender::of(&request)?;
    let (spec, window) = api.json::<T>(request).await?.resolve()?;
    let command = api.engine.creation(kind, name.clone(), spec, window)?;
    let decided = api.submit(kind, name.as_str(), &sender, command).await?;
    let (status, description) = match decided.outcome {
        Outcome::Created(description) => (StatusCode::CREATED, description),
        Outcome::Exists(description) => (StatusCode::OK, description),
        _ => return Err(decided.unexpected()),
    };
    if status == StatusCode::CREATED {
        return Ok(created(kind, &name, decided.replayed, *description));
    }
    Ok(reply::json(status, decided.replayed, &Filter::from(*description)))
}

/// The answer when a filter was created.
pub(super) fn created(kind: Kind, name: &Name, replayed: bool, description: Description) -> Response {
    let mut response = reply::json(StatusCode::CREATED, replayed, &Filter::from(description));
    let location = format!("/v1/{}/{name}", collection(kind));
    let location = HeaderValue::try_from(location).expect("a name is visible ASCII");
    response.headers_mut().insert(header::LOCATION, location);
    response
}

/// `GET`: shows one filter.
pub(super) fn get(api: &Api, kind: Kind, name: &str) -> Result<Response, Problem> {
    let view = api.filter(kind, name)?;
    Ok(reply::json(StatusCode::OK, false, &Filter::from(view.describe(api.engine.now()))))
}

/// `GET` of a collection: a page of filters, and the cursor of the next one.
pub(super) fn list(
    api: &Api,
    kind: Kind,
    request: &Request,
) -> Result<(Vec<Filter>, Option<String>), Problem> {
    let find = |prefix: &str, after: Option<&Name>, limit| api.engine.list(kind, prefix, after, limit);
    let (views, next) = page(request, find, |view| view.name.as_str())?;
    let now = api.engine.now();
    Ok((views.iter().map(|view| Filter::from(view.describe(now))).collect(), next))
}

/// The page of a collection that a request asks for, and the cursor of the next one. `find` is asked for one entry more than are on the
/// page.
pub(super) fn page<T>(
    request: &Request,
    find: impl FnOnce(&str, Option<&Name>, usize) -> Vec<T>,
    name: impl Fn(&T) -> &str,
) -> Result<(Vec<T>, Option<String>), Problem> {
    let asked: PageQuery = query::parse(request)?;
    page::check_limit(asked.limit)?;
    let after = asked.cursor.as_deref().map(cursor_name).transpose()?;
    let caller = caller(request)?;
    let Some(prefix) = caller.narrow(&asked.prefix) else { return Ok((Vec::new(), None)) };
    let mut found = find(prefix, after.as_ref(), asked.limit + 1);
    let has_more = found.len() > asked.limit;
    found.truncate(asked.limit);
    let next = found.last().filter(|_| has_more).map(|last| BASE64_URL_SAFE_NO_PAD.encode(name(last)));
    Ok((found, next))
}

fn cursor_name(cursor: &str) -> Result<Name, Problem> {
    let name = BASE64_URL_SAFE_NO_PAD
        .decode(cursor)
        .ok()
        .and_then(|name| Name::new(str::from_utf8(&name).ok()?).ok());
    name.ok_or_else(page::strange_cursor)
}

/// `PATCH`: changes when a filter is active, its capacity or its stock.
pub(super) async fn patch<T: Into<Changes> + DeserializeOwned>(
    api: &Api,
    kind: Kind,
    name: &str,
    request: Request,
) -> Result<Response, Problem> {
    let sender = Sender::of(&request)?;
    let view = api.filter(kind, name)?;
    let Changes { capacity, stock, starts_at, ends_at } = api.json::<T>(request).await?.into();
    if stock.is_some_and(|stock| !(1..=STOCK_MAX).contains(&stock)) {
        return Err(Problem::invalid_at("/stock", format!("expected 1 to {STOCK_MAX}")));
    }
    let command = api.engine.update(&view, starts_at, ends_at, capacity, stock)?;
    let decided = api.submit(kind, name, &sender, command).await?;
    match decided.outcome {
        Outcome::Updated(description) => {
            Ok(reply::json(StatusCode::OK, decided.replayed, &Filter::from(*description)))
        }
        _ => Err(decided.unexpected()),
    }
}

/// `DELETE`: deletes a filter.
pub(super) async fn delete(api: &Api, kind: Kind, name: &str, request: Request) -> Result<Response, Problem> {
    let sender = Sender::of(&request)?;
    let name = parse_name(kind, name)?;
    // A repeated request finds its stored answer even though the filter is gone.
    if api.engine.find(kind, &name).is_none() && !sender.may_repeat() {
        return Err(refusals::not_found(kind));
    }
    let decided =
        api.submit(kind, name.as_str(), &sender, Command::Delete { kind, name: name.clone() }).await?;
    let Outcome::Deleted = decided.outcome else { return Err(decided.unexpected()) };
    Ok(reply::empty(decided.replayed))
}

/// `POST …/clear`: removes everything that may be removed.
pub(super) async fn clear(api: &Api, kind: Kind, name: &str, request: Request) -> Result<Response, Problem> {
    let sender = Sender::of(&request)?;
    let view = api.filter(kind, name)?;
    let decided = api.submit(kind, name, &sender, Command::Clear { target: target(&view) }).await?;
    match decided.outcome {
        Outcome::Cleared(removed) => Ok(reply::json(StatusCode::OK, decided.replayed, &Cleared { removed })),
        _ => Err(decided.unexpected()),
    }
}

/// The answer to a clear.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(super) struct Cleared {
    /// Items removed, counting every copy.
    #[schema(example = 123)]
    removed: u64,
}

/// The collection's name in paths.
pub(super) fn collection(kind: Kind) -> &'static str {
    match kind {
        Kind::Campaign => "campaigns",
        Kind::Coupon => "coupons",
    }
}
