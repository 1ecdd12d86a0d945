//! `/v1/campaigns` and `/v1/coupons`: created, shown, changed, cleared, deleted, and moved as images. The routes of both kinds, and the
//! handlers that they share.

pub(crate) mod spec;
mod statistics;

use super::answer::reply::ListParts;
use super::answer::{Answer, Code, Problem, refusals, reply};
use super::api::Api;
use super::call::{Call, Commands, Delete, Export, Maintain, Manage, Read, Resource, parse_name};
use super::request::body::{Pieces, Streamed, has_media_type};
use super::request::json::{self, OrNull};
use super::request::query::{Page, PageQuery};
use crate::domain::spec::STOCK_MAX;
use crate::domain::{
    Command, Description, ImageBody, ImageFault, Kind, Name, Outcome, Refusal, Target, Update, UploadId,
};
use crate::engine::{ImageReader, capacity_max_of, image_part, raise, random};
use axum::extract::{Path, Request};
use axum::response::Response;
use http::{StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_with::skip_serializing_none;
use spec::{CampaignSpec, CouponPatch, CouponSpec, Filter, FilterPatch, RequestedSpec, patched};
use statistics::{DESCRIPTION, Statistics, StatisticsQuery};
use std::sync::Arc;
use utoipa::ToSchema;

/// The response to a clear.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"removed": 123}))]
struct Cleared {
    /// Items removed, counting every copy.
    removed: u64,
}

/// The routes of one kind. Each calls a handler that both kinds share.
macro_rules! filter_routes {
    (
        $filters:ident: $kind:ident, $filter:literal at $all:literal, $one:literal,
        $list:ident, $spec:ident, $patch:ident;
        patch: $patch_summary:literal;
        clear: $clear_summary:literal;
        get_image: $get_image:literal;
        put_image: $put_image:literal;
    ) => {
        pub(crate) mod $filters {
            use super::*;

            const KIND: Kind = Kind::$kind;

            #[doc = concat!("A page of ", stringify!($filters), ", sorted by name.")]
            #[skip_serializing_none]
            #[derive(Serialize, ToSchema)]
            #[schema(example = json!({ stringify!($filters): [] }))]
            struct $list {
                $filters: Vec<Filter>,
                /// The cursor of the next page; absent on the last one.
                next_cursor: Option<String>,
            }

            #[utoipa::path(
                get, path = $all, operation_id = concat!("list_", stringify!($filters)), tag = stringify!($filters),
                summary = concat!("List ", stringify!($filters)), description = "Sorted by name, page by page.",
                params(PageQuery), responses((status = 200, description = "A page, sorted by name", body = $list))
            )]
            pub(crate) async fn list(call: Call<Read>, request: Request) -> Answer {
                let page = super::FilterPage::asked(call, KIND, &request)?;
                reply::list(&$list { $filters: Vec::new(), next_cursor: None }, page).await
            }

            #[utoipa::path(
                get, path = $one, operation_id = concat!("get_", $filter), tag = stringify!($filters),
                summary = concat!("Show a ", $filter), description = "Its spec in force, and its statistics.",
                responses((status = 200, description = "Its spec and statistics", body = Filter))
            )]
            pub(crate) async fn get(call: Call<Read>, Path(name): Path<String>) -> Answer {
                let view = call.filter(KIND, &name)?;
                Ok(reply::ok(&Filter::of(&view, call.api.engine.now())))
            }

            #[utoipa::path(
                put, path = $one, operation_id = concat!("put_", $filter), tag = stringify!($filters),
                summary = concat!("Create a ", $filter),
                description = concat!("Returns 200 if a ", $filter, " with the same resolved spec already exists. A title and labels are not \
                    compared: they are set, or remain as they are if they are omitted."),
                request_body = $spec,
                responses(
                    (status = 200, description = "It already exists", body = Filter),
                    (status = 201, description = "Created", body = Filter, headers(("Location" = String, description = "Its path"))),
                    (status = 409, description = "`already-exists`: `errors` points to the fields that differ"),
                )
            )]
            pub(crate) async fn put(call: Call<Manage>, Path(name): Path<String>, request: Request) -> Answer {
                super::put::<$spec>(&call, KIND, &name, request).await
            }

            #[utoipa::path(
                patch, path = $one, operation_id = concat!("patch_", $filter), tag = stringify!($filters),
                summary = $patch_summary, description = "A merge-patch (RFC 7396): absent fields remain.",
                request_body(content(($patch = "application/json"), ($patch = "application/merge-patch+json"))),
                responses((status = 200, description = "Changed, or already as requested", body = Filter))
            )]
            pub(crate) async fn patch(call: Call<Manage>, Path(name): Path<String>, request: Request) -> Answer {
                super::patch::<$patch>(&call, KIND, &name, request).await
            }

            #[utoipa::path(
                delete, path = $one, operation_id = concat!("delete_", $filter), tag = stringify!($filters),
                summary = concat!("Delete a ", $filter, " and everything that belongs to it"),
                description = "Irreversible. A repeated request with the same key affects no successor of the same name.",
                responses((status = 204, description = "Dropped"))
            )]
            pub(crate) async fn delete(call: Call<Delete>, Path(name): Path<String>) -> Answer {
                super::delete(&call, KIND, &name).await
            }

            #[utoipa::path(
                post, path = concat!($one, "/clear"), operation_id = concat!("clear_", $filter),
                tag = stringify!($filters), summary = $clear_summary, description = "Its spec and its secret remain.",
                responses((status = 200, description = "Cleared", body = Cleared))
            )]
            pub(crate) async fn clear(call: Call<Manage>, Path(name): Path<String>) -> Answer {
                super::clear(&call, KIND, &name).await
            }

            #[utoipa::path(
                get, path = concat!($one, "/statistics"), operation_id = concat!("get_", $filter, "_statistics"),
                tag = stringify!($filters), summary = concat!("Count the changes of a ", $filter, " per day and hour"),
                description = DESCRIPTION, params(StatisticsQuery),
                responses((status = 200, description = "Counts per day and per hour", body = Statistics))
            )]
            pub(crate) async fn statistics(call: Call<Read>, Path(name): Path<String>, request: Request) -> Answer {
                super::statistics::get(&call, KIND, &name, &request)
            }

            #[utoipa::path(
                get, path = concat!($one, "/image"), operation_id = concat!("get_", $filter, "_image"),
                tag = stringify!($filters), summary = concat!("Download the image of a ", $filter), description = $get_image,
                responses(
                    (status = 200, description = "The image, streamed", body = inline(Streamed), content_type = "application/octet-stream"),
                    (status = 503, description = "`overloaded`: too many downloads of images; `draining`, `storage-failed`"),
                    (status = 507, description = "`disk-full`: a filter that has changed since the last snapshot is copied to the disk first"),
                )
            )]
            pub(crate) async fn get_image(call: Call<Export>, Path(name): Path<String>) -> Answer {
                super::get_image(&call, KIND, &name).await
            }

            #[utoipa::path(
                put, path = concat!($one, "/image"), operation_id = concat!("put_", $filter, "_image"),
                tag = stringify!($filters), summary = concat!("Create a ", $filter, " from an image"), description = $put_image,
                request_body(content = inline(Streamed), content_type = "application/octet-stream"),
                responses(
                    (status = 201, description = "Made", body = Filter, headers(("Location" = String, description = "Its path"))),
                    (status = 409, description = "`already-exists`: the name is taken"),
                    (status = 422, description = "`image-damaged`: the image is damaged, incomplete or foreign"),
                    (status = 507, description = "`memory-limit`, `disk-full`, `too-many-filters`"),
                )
            )]
            pub(crate) async fn put_image(call: Call<Maintain>, Path(name): Path<String>, request: Request) -> Answer {
                super::put_image(call, KIND, &name, request).await
            }
        }
    };
}

filter_routes! {
    campaigns: Campaign, "campaign" at "/v1/campaigns", "/v1/campaigns/{campaign}",
    CampaignList, CampaignSpec, FilterPatch;
    patch: "Change when a campaign is active, its capacity, title or labels";
    clear: "Remove all users from a campaign";
    get_image: "The whole campaign as of one position of the log: its spec, its secret and its tables, with checksums. Writes continue \
        during the download. A `PUT` creates a campaign from it, here or on another server, and rejects an incomplete image. Keep it secret: \
        its owner can test which users are in the campaign.";
    put_image: "All or nothing: the campaign appears once the image has been read and verified to its end. An interrupted upload leaves nothing. \
        Lookups find the same users as in the original. The body can be of any length, and compressed with gzip or zstd. `Idempotency-Key` is \
        ignored: a repeated upload is rejected, because the name is taken.";
}

filter_routes! {
    coupons: Coupon, "coupon" at "/v1/coupons", "/v1/coupons/{coupon}",
    CouponList, CouponSpec, CouponPatch;
    patch: "Change when a coupon is active, its capacity, stock, title or labels";
    clear: "Remove all codes that are neither held nor redeemed";
    get_image: "The whole coupon as of one position of the log: its spec, its secret, its codes with their states, and its redemptions, with \
        checksums. Writes continue during the download. A `PUT` creates a coupon from it, here or on another server, and rejects an \
        incomplete image. Keep it secret: its owner can test codes.";
    put_image: "All or nothing: the coupon appears once the image has been read and verified to its end. An interrupted upload leaves nothing. \
        Codes and redemptions keep their ids, and holds expire as in the original. The two coupons are independent: stop redeeming \
        from the original before you use the copy. The body can be of any length, and compressed with gzip or zstd. `Idempotency-Key` is ignored: a \
        repeated upload is rejected, because the name is taken.";
}

/// `PUT`: creates a filter, or finds that it exists.
async fn put<T: Into<RequestedSpec> + DeserializeOwned>(
    call: &Call<Manage>,
    kind: Kind,
    name: &str,
    request: Request,
) -> Answer {
    let name = parse_name(kind, name)?;
    let requested: RequestedSpec = json::parse::<T>(&call.body(request).await?)?.into();
    let (spec, window, annotations) = requested.resolve()?;
    let command = crate::engine::creation(kind, name.clone(), spec, window, annotations)?;
    let decided = call.submit(Resource::Filter(kind, name.as_str()), command).await?;
    match decided.outcome {
        Outcome::Created(description) => Ok(created(decided.replayed, *description)),
        Outcome::Exists(description) => {
            Ok(reply::json(StatusCode::OK, decided.replayed, &described(*description)))
        }
        _ => Err(decided.unexpected()),
    }
}

/// The response when a filter was created.
fn created(replayed: bool, description: Description) -> Response {
    let path = format!("/v1/{}s/{}", description.kind.as_str(), description.name);
    reply::created(&path, replayed, &described(description))
}

/// A filter as an outcome describes it. A repeated request gets the same response, whatever the filter has become.
fn described(description: Description) -> Filter {
    let capacity_max = capacity_max_of(&description.spec);
    Filter::new(description, capacity_max)
}

/// Filters that are read together: the views of deleted ones must not stay in memory for long.
const FILTERS_READ: usize = 16;

/// `GET` of a collection: a page of filters.
struct FilterPage {
    api: Arc<Api>,
    kind: Kind,
    page: Page,
}

impl FilterPage {
    fn asked(call: Call<Read>, kind: Kind, request: &Request) -> Result<Self, Problem> {
        let page = Page::asked(request, &call.caller)?;
        Ok(Self { api: call.api, kind, page })
    }
}

impl ListParts for FilterPage {
    type Entry = Filter;

    fn read(&mut self) -> Result<Option<Vec<Filter>>, Problem> {
        let engine = &self.api.engine;
        let find =
            |prefix: &str, after: Option<&Name>, limit| engine.view().list(self.kind, prefix, after, limit);
        let views = self.page.read(FILTERS_READ, find, |view| (&view.name, &view.annotations.labels));
        let now = engine.now();
        Ok(views.map(|views| views.iter().map(|view| Filter::of(view, now)).collect()))
    }

    fn next_cursor(&self) -> Option<String> {
        self.page.next_cursor()
    }
}

/// `PATCH`: changes when a filter is active, its capacity, stock, title or labels.
async fn patch<T: Into<CouponPatch> + DeserializeOwned>(
    call: &Call<Manage>,
    kind: Kind,
    name: &str,
    request: Request,
) -> Answer {
    let view = call.filter(kind, name)?;
    let CouponPatch { capacity, stock, starts_at, ends_at, title, labels } =
        json::parse::<T>(&call.body(request).await?)?.into();
    Problem::unless_within("/stock", stock.unwrap_or(1), 1..=STOCK_MAX)?;
    let [starts_at, ends_at] = [starts_at, ends_at].map(|at| at.map(|OrNull(at)| at));
    let (target, annotations) = (Target(view.id), patched(title, labels)?);
    let capacity = capacity.map(|capacity| raise(&view, capacity)).transpose()?;
    let command = Command::Update(Update { target, starts_at, ends_at, capacity, stock, annotations });
    let decided = call.submit(Resource::Filter(kind, name), command).await?;
    let Outcome::Updated(description) = decided.outcome else { return Err(decided.unexpected()) };
    Ok(reply::json(StatusCode::OK, decided.replayed, &described(*description)))
}

/// `DELETE`: deletes a filter.
async fn delete(call: &Call<Delete>, kind: Kind, name: &str) -> Answer {
    let name = parse_name(kind, name)?;
    // A repeated request finds its stored outcome even after the filter was deleted.
    if call.api.engine.view().find(kind, &name).is_none() && !call.may_repeat() {
        return Err(refusals::not_found(kind));
    }
    let command = Command::Delete { kind, name: name.clone() };
    let decided = call.submit(Resource::Filter(kind, name.as_str()), command).await?;
    let Outcome::Deleted = decided.outcome else { return Err(decided.unexpected()) };
    Ok(reply::empty(decided.replayed))
}

/// `POST …/clear`: removes everything that may be removed.
async fn clear(call: &Call<Manage>, kind: Kind, name: &str) -> Answer {
    let view = call.filter(kind, name)?;
    let command = Command::Clear { target: Target(view.id) };
    let decided = call.submit(Resource::Filter(kind, name), command).await?;
    let Outcome::Cleared(removed) = decided.outcome else { return Err(decided.unexpected()) };
    Ok(reply::json(StatusCode::OK, decided.replayed, &Cleared { removed }))
}

/// `GET`: streams the image of a filter.
async fn get_image(call: &Call<Export>, kind: Kind, name: &str) -> Answer {
    let view = call.filter(kind, name)?;
    let image = call.api.engine.image(view.id).await?.ok_or_else(|| refusals::not_found(kind))?;
    Ok(reply::attachment(&format!("{}.image", view.name), image))
}

/// `PUT`: makes a filter from an image.
async fn put_image(call: Call<Maintain>, kind: Kind, name: &str, request: Request) -> Answer {
    let name = parse_name(kind, name)?;
    let (api, by) = (call.api, call.caller.key_name());
    let headers = request.headers();
    if headers.contains_key(header::CONTENT_TYPE) && !has_media_type(headers, "application/octet-stream") {
        let detail = "an image is application/octet-stream";
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    }
    if api.engine.view().find(kind, &name).is_some() {
        return Err(Code::AlreadyExists.into());
    }
    let pieces = api.reading.upload(request)?;
    let (mut commands, id) =
        (Commands::new(api.engine.clone(), kind, by), UploadId(u128::from_le_bytes(random())));
    // In a separate task: a handler is dropped when its client disconnects, but the uploaded part must still be discarded.
    let upload = tokio::spawn(async move {
        let description = upload_image(pieces, &mut commands, id, kind, &name).await;
        if description.is_err() {
            // If this fails, later entries give it up by and by.
            let _ = commands.settle().await;
            let _ = commands.submit(Command::ImageAbandon { upload: id }).await;
        }
        Ok(created(false, *description?))
    });
    upload.await.map_err(|_| Problem::new(Code::Internal, "the upload failed"))?
}

/// Turns the records of an uploaded image into commands, in order.
async fn upload_image(
    mut pieces: Pieces,
    commands: &mut Commands,
    upload: UploadId,
    kind: Kind,
    name: &Name,
) -> Result<Box<Description>, Problem> {
    let damaged = |fault| refusals::refused(kind, Refusal::ImageDamaged(fault));
    let (mut reader, mut end) = (ImageReader::default(), None);
    while let Some(piece) = pieces.next().await? {
        reader.push(&piece);
        while let Some(record) = reader.next_record().map_err(damaged)? {
            let is_end = matches!(record.body, ImageBody::End { .. });
            let command = image_part(upload, kind, name, record);
            match is_end {
                true => end = Some(command),
                false => commands.send(command).await?,
            }
        }
    }
    reader.finish().map_err(damaged)?;
    commands.settle().await?;
    match commands.submit(end.ok_or_else(|| damaged(ImageFault::CutShort))?).await? {
        Outcome::Created(description) => Ok(description),
        _ => Err(Problem::new(Code::Internal, "an image has another command's outcome")),
    }
}
