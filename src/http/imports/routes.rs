//! Imports: the routes.

use super::dry_run::DryRun;
use super::incoming::Incoming;
use super::lines::Format;
use super::representation::{ImportAnswer, ImportModeName};
use super::upload::{Imported, Upload};
use crate::domain::import::IMPORTS_KEPT_MAX;
use crate::domain::{Guards, ImportId, ImportMode, ImportState, KeyName, Kind, Name, Share};
use crate::http::answer::problem::{Code, Problem};
use crate::http::answer::{refusals, reply};
use crate::http::api::{Api, Sender};
use crate::http::request::body::media_type;
use crate::http::request::query;
use crate::http::schema::Bytes;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// What an upload is made of.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ImportFormat)]
pub(crate) enum FormatName {
    /// An item a line, as `text/plain` has it.
    Text,
    /// A string or `{"item":…}` a line, as `application/x-ndjson` has it.
    NdJson,
    /// A header row and records, as `text/csv` has it.
    Csv,
}

/// How an import is to be done.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ImportQuery {
    /// What the upload is made of, for clients that can't choose its media type: this goes before `Content-Type`.
    format: Option<FormatName>,
    /// `append` unless said otherwise.
    #[serde(default)]
    mode: ImportModeName,
    /// Its name, unique in the server: a broken upload is continued under it. Made up unless given.
    #[param(pattern = "^[A-Za-z0-9._-]{1,128}$")]
    id: Option<String>,
    /// CSV: the column that holds the items. Only a header of one column may leave it out.
    column: Option<String>,
    /// A guard: an upload that brings fewer items fails. Unless said otherwise 1 with `mode=replace`, so that an empty file empties
    /// nothing, and 0 with `append`. What an item is worth: a replacement counts its different items, used codes included; `append`
    /// also counts what is there already.
    min_items: Option<u64>,
    /// A guard, `mode=replace` only: the share by which available items may become fewer. With 0.2, a replacement of 1 000 items
    /// that holds fewer than 800 is not swapped in. It is compared when all is repeated that was written meanwhile.
    #[param(minimum = 0, maximum = 1)]
    max_shrink: Option<f64>,
    /// A guard: when more lines are rejected the import fails. Lines before the last of them stay added with `append`, no later ones are.
    max_rejected: Option<u64>,
    /// Read, count and guard, but change nothing: answers the state `checked`. It is not on record, so that `GET` knows nothing of
    /// it. `added` and `already_present` tell what the filter holds now; an item that is there twice counts twice.
    #[serde(default)]
    #[param(default = false)]
    dry_run: bool,
}

impl ImportQuery {
    fn mode(&self) -> ImportMode {
        match self.mode {
            ImportModeName::Append => ImportMode::Append,
            ImportModeName::Replace => ImportMode::Replace,
        }
    }

    fn guards(&self) -> Result<Guards, Problem> {
        let max_shrink = match (self.max_shrink, self.mode()) {
            (None, _) => None,
            (Some(_), ImportMode::Append) => {
                return Err(Problem::invalid_at("/max_shrink", "only with mode=replace"));
            }
            (Some(share), ImportMode::Replace) => {
                let share = Share::new(share);
                Some(share.map_err(|error| Problem::invalid_at("/max_shrink", error.to_string()))?)
            }
        };
        let defaults = self.mode().guards();
        Ok(Guards {
            min_items: self.min_items.unwrap_or(defaults.min_items),
            max_shrink,
            max_rejected: self.max_rejected,
        })
    }
}

/// The last imports.
#[derive(Serialize, ToSchema)]
struct ImportList {
    /// The newest first.
    imports: Vec<ImportAnswer>,
}

/// Import users
///
/// A body of any length, also compressed with gzip or zstd. Bad lines are rejected and told, blank ones skipped.
///
/// A finished `id` is answered again if the upload is the same to the byte after decompression, and mode and guards are the same.
#[utoipa::path(
    post,
    path = "/v1/campaigns/{campaign}/imports",
    operation_id = "import_users",
    tag = "imports",
    params(ImportQuery),
    request_body(content(
        (inline(Bytes) = "application/octet-stream"),
        (inline(Bytes) = "text/plain"),
        (inline(Bytes) = "application/x-ndjson"),
        (inline(Bytes) = "text/csv")
    )),
    responses(
        (
            status = 200,
            description = "Read to the end",
            body = ImportAnswer,
            headers(("Idempotency-Replayed" = String, description = "`true` if it was done before under this `id`"))
        ),
        (
            status = 404,
            description = "`campaign-not-found`; `import-not-found`: meanwhile another import with `mode=replace` began"
        ),
        (
            status = 409,
            description = "`filter-full`, `import-differs`, `import-overtaken`, `import-running`; `import-guarded`, with the figures; `import-stopped` by a `DELETE`"
        ),
        (status = 429, description = "`too-many-imports`"),
    )
)]
pub(crate) async fn import_users(
    State(api): State<Arc<Api>>,
    Path(campaign): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    import(api, Kind::Campaign, &campaign, request).await
}

/// Import codes
///
/// A body of any length, also compressed with gzip or zstd. Bad lines are rejected and told, blank ones skipped.
///
/// A finished `id` is answered again if the upload is the same to the byte after decompression, and mode and guards are the same.
#[utoipa::path(
    post,
    path = "/v1/coupons/{coupon}/imports",
    operation_id = "import_codes",
    tag = "imports",
    params(ImportQuery),
    request_body(content(
        (inline(Bytes) = "application/octet-stream"),
        (inline(Bytes) = "text/plain"),
        (inline(Bytes) = "application/x-ndjson"),
        (inline(Bytes) = "text/csv")
    )),
    responses(
        (
            status = 200,
            description = "Read to the end",
            body = ImportAnswer,
            headers(("Idempotency-Replayed" = String, description = "`true` if it was done before under this `id`"))
        ),
        (
            status = 404,
            description = "`coupon-not-found`; `import-not-found`: meanwhile another import with `mode=replace` began"
        ),
        (
            status = 409,
            description = "`filter-full`, `import-differs`, `import-overtaken`, `import-running`; `import-guarded`, with the figures; `import-stopped` by a `DELETE`"
        ),
        (status = 429, description = "`too-many-imports`"),
    )
)]
pub(crate) async fn import_codes(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    import(api, Kind::Coupon, &coupon, request).await
}

async fn import(api: Arc<Api>, kind: Kind, name: &str, request: Request) -> Result<Response, Problem> {
    let view = api.filter(kind, name)?;
    let query: ImportQuery = query::parse(&request)?;
    let (mode, guards, is_named) = (query.mode(), query.guards()?, query.id.is_some());
    let id = match &query.id {
        Some(id) => ImportId::new(id).map_err(|error| Problem::invalid_at("/id", error.to_string()))?,
        None => api.engine.import_id(),
    };
    let format = format(&request, query.format, query.column)?;
    let owner = KeyName::new(Sender::of(&api, &request)?.caller.name());
    let Some(live) = api.live_imports.begin(id.clone(), view.name.clone()) else {
        return Err(Problem::new(Code::ImportRunning, "an upload of this id is under way"));
    };
    let incoming = Incoming { format, pieces: api.reading.upload(request)?, live };
    let failed = |_| Problem::new(Code::Internal, "the import failed");
    // In a task of its own: a handler is dropped when its client goes away, and the log has to be told then.
    if query.dry_run {
        let trial = DryRun { engine: api.engine.clone(), view, id, mode, guards };
        let import = tokio::spawn(trial.run(incoming)).await.map_err(failed)??;
        return Ok(reply::json(StatusCode::OK, false, &ImportAnswer::checked(import)));
    }
    let upload = Upload { api, view, id, mode, guards, owner, is_named };
    let Imported { import, replayed } = tokio::spawn(upload.run(incoming)).await.map_err(failed)??;
    Ok(reply::json(StatusCode::OK, replayed, &ImportAnswer::from(import)))
}

fn format(request: &Request, named: Option<FormatName>, column: Option<String>) -> Result<Format, Problem> {
    let of_media_type = || match media_type(request.headers()).as_deref() {
        Some("text/plain") => Some(FormatName::Text),
        Some("application/x-ndjson") => Some(FormatName::NdJson),
        Some("text/csv") => Some(FormatName::Csv),
        _ => None,
    };
    match (named.or_else(of_media_type), column) {
        (Some(FormatName::Csv), column) => Ok(Format::Csv { column }),
        (Some(_), Some(_)) => Err(Problem::invalid_at("/column", "only CSV has columns")),
        (Some(FormatName::Text), None) => Ok(Format::Text),
        (Some(FormatName::NdJson), None) => Ok(Format::NdJson),
        (None, _) => {
            let detail =
                "the body must be text/plain, application/x-ndjson or text/csv, or `format` must say which";
            Err(Problem::new(Code::UnsupportedMediaType, detail))
        }
    }
}

/// List imports
#[utoipa::path(
    get,
    path = "/v1/imports",
    operation_id = "list_imports",
    tag = "imports",
    responses((status = 200, description = "Those running or to be continued, and the last 100 others", body = ImportList))
)]
pub(crate) async fn list(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
    let sender = Sender::of(&api, &request)?;
    let mut imports = api.engine.imports();
    imports.retain(|import| sender.caller.require_name(import.name.as_str()).is_ok());
    imports.sort_by(|a, b| b.started_at.cmp(&a.started_at).then_with(|| a.id.cmp(&b.id)));
    let mut over = 0;
    imports.retain(|import| {
        over += usize::from(!import.is_unfinished());
        over <= IMPORTS_KEPT_MAX || import.is_unfinished()
    });
    let imports = imports.iter().map(|import| api.live_imports.corrected(import).into()).collect();
    Ok(reply::json(StatusCode::OK, false, &ImportList { imports }))
}

/// Show an import
#[utoipa::path(
    get,
    path = "/v1/imports/{id}",
    operation_id = "get_import",
    tag = "imports",
    responses(
        (status = 200, description = "How far it has come", body = ImportAnswer),
        (status = 404, description = "`import-not-found`"),
    )
)]
pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    Path(import): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let sender = Sender::of(&api, &request)?;
    let found = ImportId::new(&import).ok().and_then(|id| api.engine.import(&id));
    // Whether another tenant has an import of this id is nobody else's business.
    let own = found.filter(|import| sender.caller.require_name(import.name.as_str()).is_ok());
    let import = own.ok_or_else(refusals::import_not_found)?;
    Ok(reply::json(StatusCode::OK, false, &ImportAnswer::from(api.live_imports.corrected(&import))))
}

/// Stop an import
///
/// What is added stays, what is built aside is dropped, and the upload is answered 409 `import-stopped`. Answers when that is
/// done. One that was interrupted before is as it was.
#[utoipa::path(
    delete,
    path = "/v1/imports/{id}",
    operation_id = "stop_import",
    tag = "imports",
    responses(
        (status = 204, description = "It does not run, and its state is `interrupted`"),
        (status = 404, description = "`import-not-found`"),
        (status = 409, description = "`import-finished`: it was done, or had failed, before it could be stopped"),
    )
)]
pub(crate) async fn stop(
    State(api): State<Arc<Api>>,
    Path(import): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let sender = Sender::of(&api, &request)?;
    let is_own = |name: &Name| sender.caller.require_name(name.as_str()).is_ok();
    let id = ImportId::new(&import).map_err(|_| refusals::import_not_found())?;
    let was_live = match api.live_imports.stop(&id).filter(|upload| is_own(&upload.name)) {
        Some(upload) => {
            let timeout = api.options.timeouts.request;
            tokio::time::timeout(timeout, upload.stop()).await.map_err(|_| {
                Problem::new(Code::Overloaded, "it is stopped, but has not ended yet").retry_after(1)
            })?;
            true
        }
        None => false,
    };
    let known = api.engine.import(&id).filter(|import| is_own(&import.name));
    match known.map(|import| api.live_imports.corrected(&import).state) {
        // A dry run is on no record.
        None if was_live => Ok(StatusCode::NO_CONTENT.into_response()),
        None => Err(refusals::import_not_found()),
        // Somebody may have gone on with it by now.
        Some(ImportState::Interrupted | ImportState::Stopped | ImportState::Running) => {
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        Some(_) => Err(Problem::new(Code::ImportFinished, "it had ended before: see its state")),
    }
}
