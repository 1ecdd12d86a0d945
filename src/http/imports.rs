//! Imports: the routes, and how an upload becomes commands. Parsing is [`super::import_lines`]'s.

use super::answer::problem::{Code, Problem};
use super::answer::refusals;
use super::answer::reply;
use super::api::{Api, Sender};
use super::import_lines::Format;
use super::openapi::Bytes;
use super::request::body::media_type;
use super::request::query;
use super::request::time::Time;
use super::upload::Upload;
use crate::domain::import::IMPORTS_KEPT_MAX;
use crate::domain::{Import, ImportId, ImportMode, ImportState, KeyName, Kind, LineError, LineFault};
use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// What is done with the items.
#[derive(Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ImportMode)]
enum ModeName {
    /// They are added as they are read.
    #[default]
    Append,
    /// They take the place of what is there, once the upload is whole.
    Replace,
}

/// How an import is to be done.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ImportQuery {
    /// `append` unless said otherwise.
    #[serde(default)]
    #[param(inline)]
    mode: ModeName,
    /// Its name, unique in the server: a broken upload is continued under it. Made up unless given.
    #[param(pattern = "^[A-Za-z0-9._-]{1,128}$")]
    id: Option<String>,
    /// CSV: the column that holds the items; the first unless said otherwise.
    column: Option<String>,
}

/// How far an import has come.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ImportState)]
enum StateName {
    /// Its upload goes on.
    Running,
    /// Read to the end.
    Done,
    /// The filter was full, or is gone, or too much was written to it meanwhile.
    Failed,
    /// The upload broke off; the same id continues it.
    Interrupted,
}

/// What was wrong with a line.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum LineErrorCode {
    /// Longer than 512 bytes.
    ItemTooLong,
    /// Not UTF-8.
    NotUtf8,
    /// Neither a JSON string nor `{"item":…}`; no CSV record, or one without the column.
    Malformed,
    /// An empty item.
    Empty,
}

/// A line that was rejected.
#[derive(Serialize, ToSchema)]
#[schema(as = LineError)]
struct LineErrorAnswer {
    /// The first line is 1.
    #[schema(minimum = 1)]
    line: u64,
    code: LineErrorCode,
}

impl From<LineError> for LineErrorAnswer {
    fn from(error: LineError) -> Self {
        let code = match error.fault {
            LineFault::ItemTooLong => LineErrorCode::ItemTooLong,
            LineFault::NotUtf8 => LineErrorCode::NotUtf8,
            LineFault::Malformed => LineErrorCode::Malformed,
            LineFault::Empty => LineErrorCode::Empty,
        };
        Self { line: error.line, code }
    }
}

/// An import and how far it has come.
#[derive(Serialize, ToSchema)]
#[schema(as = Import)]
struct ImportAnswer {
    #[schema(example = "nightly-2026-12-01")]
    id: String,
    state: StateName,
    mode: ModeName,
    /// Where it goes, if that is a campaign.
    #[serde(skip_serializing_if = "Option::is_none")]
    campaign: Option<String>,
    /// Where it goes, if that is a coupon.
    #[serde(skip_serializing_if = "Option::is_none")]
    coupon: Option<String>,
    started_at: Time,
    /// Lines read, blank and rejected ones included.
    lines: u64,
    added: u64,
    already_present: u64,
    already_redeemed: u64,
    rejected: u64,
    /// The first of the rejected lines.
    #[schema(max_items = 100)]
    errors: Vec<LineErrorAnswer>,
    /// From its begin to its last change.
    seconds: f64,
}

impl From<Import> for ImportAnswer {
    fn from(import: Import) -> Self {
        let name = |kind| (import.kind == kind).then(|| import.name.to_string());
        Self {
            id: import.id.to_string(),
            state: match import.state {
                ImportState::Running => StateName::Running,
                ImportState::Done => StateName::Done,
                ImportState::Failed | ImportState::Overtaken => StateName::Failed,
                ImportState::Interrupted => StateName::Interrupted,
            },
            mode: match import.mode {
                ImportMode::Append => ModeName::Append,
                ImportMode::Replace => ModeName::Replace,
            },
            campaign: name(Kind::Campaign),
            coupon: name(Kind::Coupon),
            started_at: Time(import.started_at),
            lines: import.lines,
            added: import.added,
            already_present: import.already_present,
            already_redeemed: import.already_redeemed,
            rejected: import.rejected,
            seconds: import.changed_at.0.saturating_sub(import.started_at.0) as f64 / 1_000.0,
            errors: import.errors.into_iter().map(LineErrorAnswer::from).collect(),
        }
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
#[utoipa::path(
    post,
    path = "/v1/campaigns/{campaign}/imports",
    operation_id = "import_users",
    tag = "imports",
    params(ImportQuery),
    request_body(content(
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
pub(super) async fn import_users(
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
pub(super) async fn import_codes(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    import(api, Kind::Coupon, &coupon, request).await
}

async fn import(api: Arc<Api>, kind: Kind, name: &str, request: Request) -> Result<Response, Problem> {
    let view = api.filter(kind, name)?;
    let ImportQuery { mode, id, column } = query::parse(&request)?;
    let format = format(&request, column)?;
    let owner = KeyName::new(Sender::of(&api, &request)?.caller.name());
    let is_named = id.is_some();
    let id = match id {
        Some(id) => ImportId::new(&id),
        None => ImportId::new(&api.engine.redemption_id().to_string()),
    };
    let id = id.map_err(|error| Problem::invalid_at("/id", error.to_string()))?;
    let mode = match mode {
        ModeName::Append => ImportMode::Append,
        ModeName::Replace => ImportMode::Replace,
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

fn format(request: &Request, column: Option<String>) -> Result<Format, Problem> {
    let format = match media_type(request.headers()).as_deref() {
        Some("text/plain") => Format::Text,
        Some("application/x-ndjson") => Format::NdJson,
        Some("text/csv") => return Ok(Format::Csv { column }),
        _ => {
            let detail = "the body must be text/plain, application/x-ndjson or text/csv";
            return Err(Problem::new(Code::UnsupportedMediaType, detail));
        }
    };
    match column {
        None => Ok(format),
        Some(_) => Err(Problem::invalid_at("/column", "only CSV has columns")),
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
pub(super) async fn list(State(api): State<Arc<Api>>, request: Request) -> Result<Response, Problem> {
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
pub(super) async fn get(
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
