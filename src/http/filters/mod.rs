//! `/v1/campaigns` and `/v1/coupons`: created, shown, changed, cleared, deleted, and moved as images. `campaigns.rs` and `coupons.rs`
//! have the routes of each kind, which share the handlers here.

pub(crate) mod campaigns;
pub(crate) mod coupons;
pub(crate) mod spec;
mod statistics;

use super::api::ApiHandle;
use super::call::{
    Call, Delete, Export, Maintain, Manage, Read, Resource, UploadCommands, parse_name,
};
use super::request::body::{Pieces, has_media_type};
use super::request::json::{self, OrNull};
use super::request::query::CollectionPage;
use super::response::success::ListParts;
use super::response::{Code, HandlerResult, Problem, RequestFault, refusals, success};
use crate::engine::{Engine, UseReason, image_part};
use axum::extract::Request;
use axum::response::Response;
use cuckood_log::journal::random;
use cuckood_log::store::archive::ImageReader;
use cuckood_state::domain::spec::STOCK_MAX;
use cuckood_state::domain::{
    Command, Description, ImageBody, ImageFault, Kind, Meaning, Name, Normalization, Outcome,
    Refusal, Target, Update, UploadId,
};
use cuckood_state::{FilterView, Lookup, NamedLineUp};
use http::{StatusCode, header};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use spec::{CouponPatch, FilterResponse, RequestedSpec, patched};
use utoipa::{IntoParams, ToSchema};

/// The response to a clear.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"removed": 123}))]
struct Cleared {
    /// Items removed, counting every copy.
    removed: u64,
}

/// `PUT`: creates a filter, or finds that it exists.
async fn put<T: Into<RequestedSpec> + DeserializeOwned>(
    call: &Call<Manage>,
    kind: Kind,
    name: &str,
    request: Request,
) -> HandlerResult {
    let name = parse_name(kind, name)?;
    let requested: RequestedSpec = json::parse::<T>(&call.body(request).await?)?.into();
    let unspecified = unspecified_normalization(&call.api.engine, kind, &name);
    let (spec, window, annotations) = requested.resolve(unspecified)?;
    let command = crate::engine::creation(kind, name.clone(), spec, window, annotations)?;
    let decided = call
        .submit(Resource::Filter(kind, name.as_str()), command)
        .await?;
    match decided.outcome {
        Outcome::Created(description) => Ok(created(decided.replayed, *description)),
        Outcome::Exists(description) => Ok(success::json(
            StatusCode::OK,
            decided.replayed,
            &described(*description),
        )),
        _ => Err(decided.unexpected()),
    }
}

/// Returns the rule of normalization for a request without one: it accepts an existing filter with any. Until all nodes understand others,
/// the log can't say that, and a new filter is exact.
fn unspecified_normalization(engine: &Engine, kind: Kind, name: &Name) -> Normalization {
    if engine.has(Meaning::Spellings) {
        return Normalization::ByDefault;
    }
    let existing = engine.view().find(kind, name);
    existing.map_or(Normalization::Exact, |view| view.spec.normalization)
}

/// The response when a filter was created.
fn created(replayed: bool, description: Description) -> Response {
    let path = format!("/v1/{}s/{}", description.kind.as_str(), description.name);
    success::created(&path, replayed, &described(description))
}

/// A filter as an outcome describes it. A repeated request gets the same response, whatever the filter has become.
fn described(description: Description) -> FilterResponse {
    let capacity_max = description.spec.new_capacity_max();
    FilterResponse::new(description, capacity_max)
}

/// Filters that are read together: the views of deleted ones must not stay in memory for long.
const FILTERS_READ: usize = 16;

/// `GET` of a collection: a page of filters.
struct FilterPage {
    api: ApiHandle,
    kind: Kind,
    page: CollectionPage,
}

impl FilterPage {
    fn asked(call: Call<Read>, kind: Kind, request: &Request) -> Result<Self, Problem> {
        let page = CollectionPage::asked(request, &call.caller)?;
        Ok(Self {
            api: call.api,
            kind,
            page,
        })
    }
}

impl ListParts for FilterPage {
    type Entry = FilterResponse;

    fn read(&mut self) -> Result<Option<Vec<FilterResponse>>, Problem> {
        let engine = &self.api.engine;
        let find = |prefix: &str, after: Option<&Name>, limit| {
            engine.view().list(self.kind, prefix, after, limit)
        };
        let views = self.page.read(FILTERS_READ, find, |view| {
            (&view.name, &view.annotations.labels)
        });
        let now = engine.now();
        Ok(views.map(|views| {
            views
                .iter()
                .map(|view| FilterResponse::of(view, now))
                .collect()
        }))
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
) -> HandlerResult {
    let view = call.filter(kind, name)?;
    let CouponPatch {
        capacity,
        stock,
        starts_at,
        ends_at,
        title,
        labels,
    } = json::parse::<T>(&call.body(request).await?)?.into();
    Problem::unless_within("/stock", stock.unwrap_or(1), 1..=STOCK_MAX)?;
    let [starts_at, ends_at] = [starts_at, ends_at].map(|at| at.map(|OrNull(at)| at));
    let target = Target(view.id);
    let annotations = patched(title, labels)?;
    let capacity = capacity.map(|capacity| view.raise(capacity)).transpose()?;
    let command = Command::Update(Update {
        target,
        starts_at,
        ends_at,
        capacity,
        stock,
        annotations,
    });
    let decided = call.submit(Resource::Filter(kind, name), command).await?;
    let Outcome::Updated(description) = decided.outcome else {
        return Err(decided.unexpected());
    };
    Ok(success::json(
        StatusCode::OK,
        decided.replayed,
        &described(*description),
    ))
}

/// Whether to delete what is in use.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeletionQuery {
    /// Whether to delete it although it is in use.
    #[serde(default)]
    #[param(value_type = Option<bool>, default = false)]
    force: bool,
}

/// `DELETE`: deletes a filter.
async fn delete(
    call: &Call<Delete>,
    kind: Kind,
    name: &str,
    deletion: DeletionQuery,
) -> HandlerResult {
    let name = parse_name(kind, name)?;
    let about = Resource::Filter(kind, name.as_str());
    let command = Command::Delete {
        kind,
        name: name.clone(),
    };
    match call.api.engine.view().find(kind, &name) {
        Some(view) if !deletion.force => {
            // A repeat gets the stored outcome, whatever a successor of the same name is used for.
            let recorded = call.recorded(about, "", command.clone()).await?;
            if matches!(recorded, Lookup::New) {
                reject_if_used(call, &view).await?;
            }
        }
        Some(_) => {}
        // A repeated request finds its stored outcome even after the filter was deleted.
        None if call.may_repeat() => {}
        None => return Err(refusals::not_found(kind)),
    }
    let decided = call.submit(about, command).await?;
    let Outcome::Deleted = decided.outcome else {
        return Err(decided.unexpected());
    };
    Ok(success::empty(decided.replayed))
}

/// Rejects the deletion of a filter that is in use.
async fn reject_if_used(call: &Call<Delete>, view: &FilterView) -> Result<(), Problem> {
    let is_visible = |line_up: &NamedLineUp| call.caller.sees(line_up);
    let reasons = call.api.engine.in_use(view, is_visible).await;
    if reasons.is_empty() {
        return Ok(());
    }
    let fault = |reason: UseReason| RequestFault {
        pointer: format!("/{}", view.kind.as_str()),
        detail: reason.to_string().into(),
    };
    let faults = reasons.into_iter().map(fault).collect();
    Err(Problem {
        faults,
        ..Code::InUse.into()
    })
}

/// `POST …/clear`: removes everything that may be removed.
async fn clear(call: &Call<Manage>, kind: Kind, name: &str) -> HandlerResult {
    let view = call.filter(kind, name)?;
    let command = Command::Clear {
        target: Target(view.id),
    };
    let decided = call.submit(Resource::Filter(kind, name), command).await?;
    let Outcome::Cleared(removed) = decided.outcome else {
        return Err(decided.unexpected());
    };
    Ok(success::json(
        StatusCode::OK,
        decided.replayed,
        &Cleared { removed },
    ))
}

/// `GET`: streams the image of a filter.
async fn get_image(call: &Call<Export>, kind: Kind, name: &str) -> HandlerResult {
    let view = call.filter(kind, name)?;
    let image = call
        .api
        .engine
        .image(view.id)
        .await?
        .ok_or_else(|| refusals::not_found(kind))?;
    Ok(success::attachment(&format!("{}.image", view.name), image))
}

/// `PUT`: makes a filter from an image.
async fn put_image(
    call: Call<Maintain>,
    kind: Kind,
    name: &str,
    request: Request,
) -> HandlerResult {
    let name = parse_name(kind, name)?;
    let api = call.api;
    let by = call.caller.key_name();
    let headers = request.headers();
    if headers.contains_key(header::CONTENT_TYPE)
        && !has_media_type(headers, "application/octet-stream")
    {
        let detail = "an image is application/octet-stream";
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    }
    if api.engine.view().find(kind, &name).is_some() {
        return Err(Code::AlreadyExists.into());
    }
    let pieces = api.reading.upload(request)?;
    let mut commands = UploadCommands::new(api.engine.clone(), kind, by);
    let id = UploadId(u128::from_le_bytes(random()));
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
    upload
        .await
        .map_err(|_| Problem::new(Code::Internal, "the upload failed"))?
}

/// Turns the records of an uploaded image into commands, in order.
async fn upload_image(
    mut pieces: Pieces,
    commands: &mut UploadCommands,
    upload: UploadId,
    kind: Kind,
    name: &Name,
) -> Result<Box<Description>, Problem> {
    let damaged = |fault| refusals::refused(kind, Refusal::ImageDamaged(fault));
    let mut reader = ImageReader::default();
    let mut end = None;
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
    match commands
        .submit(end.ok_or_else(|| damaged(ImageFault::CutShort))?)
        .await?
    {
        Outcome::Created(description) => Ok(description),
        _ => Err(Problem::new(
            Code::Internal,
            "an image has another command's outcome",
        )),
    }
}
