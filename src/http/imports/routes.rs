//! Imports: the routes.

use super::lines::Format;
use super::representation::{ImportAnswer, ImportModeName};
use super::upload::Upload;
use crate::domain::import::IMPORTS_KEPT_MAX;
use crate::domain::{ImportId, ImportMode, KeyName, Kind};
use crate::http::answer::problem::{Code, Problem};
use crate::http::answer::{refusals, reply};
use crate::http::api::{Api, Sender};
use crate::http::request::body::media_type;
use crate::http::request::query;
use crate::http::schema::Bytes;
use axum::extract::{Path, Request, State};
use axum::response::Response;
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
    /// CSV: the column that holds the items; the first unless said otherwise.
    column: Option<String>,
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
        (status = 200, description = "Read to the end", body = ImportAnswer),
        (
            status = 404,
            description = "`campaign-not-found`; `import-not-found`: meanwhile another import with `mode=replace` began"
        ),
        (status = 409, description = "`filter-full`, `import-differs`, `import-overtaken`, `import-running`"),
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
        (status = 200, description = "Read to the end", body = ImportAnswer),
        (
            status = 404,
            description = "`coupon-not-found`; `import-not-found`: meanwhile another import with `mode=replace` began"
        ),
        (status = 409, description = "`filter-full`, `import-differs`, `import-overtaken`, `import-running`"),
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
    let ImportQuery { format, mode, id, column } = query::parse(&request)?;
    let format = self::format(&request, format, column)?;
    let owner = KeyName::new(Sender::of(&api, &request)?.caller.name());
    let is_named = id.is_some();
    let id = match id {
        Some(id) => ImportId::new(&id).map_err(|error| Problem::invalid_at("/id", error.to_string()))?,
        None => api.engine.import_id(),
    };
    let mode = match mode {
        ImportModeName::Append => ImportMode::Append,
        ImportModeName::Replace => ImportMode::Replace,
    };
    let Some(live) = api.live_imports.begin(id.clone()) else {
        return Err(Problem::new(Code::ImportRunning, "an upload of this id is under way"));
    };
    let pieces = api.reading.upload(request)?;
    let upload = Upload { api, view, id, mode, owner, is_named, _live: live };
    // In a task of its own: a handler is dropped when its client goes away, and the log has to be told then.
    let imported = tokio::spawn(upload.run(format, pieces)).await;
    let import = imported.map_err(|_| Problem::new(Code::Internal, "the import failed"))??;
    Ok(reply::json(StatusCode::OK, false, &ImportAnswer::from(import)))
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
