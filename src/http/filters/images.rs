//! `…/image`: one campaign or coupon on the move, out of here and in. The routes of both kinds, and what they share.

use super::handlers::created;
use super::representation::Filter;
use crate::domain::{
    Command, Description, FilterId, ImageFault, KeyName, Kind, Name, Outcome, Refusal, UploadId,
};
use crate::engine::{ImageBody, ImageDownload, ImageReader, ImageRecord, SubmitError};
use crate::http::answer::problem::{Code, Problem};
use crate::http::answer::refusals;
use crate::http::api::{Api, caller, parse_name};
use crate::http::patience::patiently;
use crate::http::request::body::{Pieces, media_type};
use crate::http::schema::Bytes;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use http::{HeaderValue, header};
use std::io;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Download the image of a campaign
///
/// The whole campaign as of one position of the log: its spec, its secret and its tables, with checksums. Writes go on meanwhile. A
/// `PUT` makes a campaign of it, here or on another server, and refuses an image that is incomplete. Keep it secret: whoever has it can
/// test who is in the campaign.
#[utoipa::path(
    get,
    path = "/v1/campaigns/{campaign}/image",
    operation_id = "get_campaign_image",
    tag = "campaigns",
    responses(
        (status = 200, description = "The image, streamed", body = inline(Bytes), content_type = "application/octet-stream"),
        (status = 404, description = "`campaign-not-found`"),
        (status = 503, description = "`overloaded`: too many images are being taken; `draining`, `storage-failed`"),
        (status = 507, description = "`disk-full`: an image begins with a snapshot"),
    )
)]
pub(crate) async fn get_campaign(
    State(api): State<Arc<Api>>,
    Path(campaign): Path<String>,
) -> Result<Response, Problem> {
    get(&api, Kind::Campaign, &campaign).await
}

/// Make a campaign from an image
///
/// All or nothing: nobody sees the campaign before the image has been read and verified to its end. An upload that breaks leaves nothing.
/// Users are found as where the image was taken. The body can be of any length, and compressed with gzip or zstd. `Idempotency-Key` is
/// not looked at: a repeated upload is refused, because the name is taken.
#[utoipa::path(
    put,
    path = "/v1/campaigns/{campaign}/image",
    operation_id = "put_campaign_image",
    tag = "campaigns",
    request_body(content = inline(Bytes), content_type = "application/octet-stream"),
    responses(
        (status = 201, description = "Made", body = Filter, headers(("Location" = String, description = "Its path"))),
        (status = 409, description = "`already-exists`: an image makes a campaign under a new name"),
        (status = 422, description = "`image-damaged`: the image is damaged, incomplete, or something else"),
        (status = 507, description = "`memory-limit`, `disk-full`, `too-many-filters`"),
    )
)]
pub(crate) async fn put_campaign(
    State(api): State<Arc<Api>>,
    Path(campaign): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    put(api, Kind::Campaign, &campaign, request).await
}

/// Download the image of a coupon
///
/// The whole coupon as of one position of the log: its spec, its secret, its codes with their states, and its redemptions, with
/// checksums. Writes go on meanwhile. A `PUT` makes a coupon of it, here or on another server, and refuses an image that is incomplete.
/// Keep it secret: whoever has it can test codes.
#[utoipa::path(
    get,
    path = "/v1/coupons/{coupon}/image",
    operation_id = "get_coupon_image",
    tag = "coupons",
    responses(
        (status = 200, description = "The image, streamed", body = inline(Bytes), content_type = "application/octet-stream"),
        (status = 404, description = "`coupon-not-found`"),
        (status = 503, description = "`overloaded`: too many images are being taken; `draining`, `storage-failed`"),
        (status = 507, description = "`disk-full`: an image begins with a snapshot"),
    )
)]
pub(crate) async fn get_coupon(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
) -> Result<Response, Problem> {
    get(&api, Kind::Coupon, &coupon).await
}

/// Make a coupon from an image
///
/// All or nothing: nobody sees the coupon before the image has been read and verified to its end. An upload that breaks leaves nothing.
/// Codes and redemptions are found as where the image was taken, under the same ids; holds run out as they would there. From then on
/// the two know nothing of each other: stop redeeming from the one before the other is used. The body can be of any length, and
/// compressed with gzip or zstd. `Idempotency-Key` is not looked at: a repeated upload is refused, because the name is taken.
#[utoipa::path(
    put,
    path = "/v1/coupons/{coupon}/image",
    operation_id = "put_coupon_image",
    tag = "coupons",
    request_body(content = inline(Bytes), content_type = "application/octet-stream"),
    responses(
        (status = 201, description = "Made", body = Filter, headers(("Location" = String, description = "Its path"))),
        (status = 409, description = "`already-exists`: an image makes a coupon under a new name"),
        (status = 422, description = "`image-damaged`: the image is damaged, incomplete, or something else"),
        (status = 507, description = "`memory-limit`, `disk-full`, `too-many-filters`"),
    )
)]
pub(crate) async fn put_coupon(
    State(api): State<Arc<Api>>,
    Path(coupon): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    put(api, Kind::Coupon, &coupon, request).await
}

async fn get(api: &Api, kind: Kind, name: &str) -> Result<Response, Problem> {
    let view = api.filter(kind, name)?;
    let image = api.engine.image(view.id).await?.ok_or_else(|| refusals::not_found(kind))?;
    let parts = stream::unfold(Some(image), async |image: Option<ImageDownload>| {
        let mut image = image?;
        match image.next().await {
            Ok(records) if records.is_empty() => None,
            Ok(records) => Some((Ok(records.concat()), Some(image))),
            Err(error) => Some((Err(io::Error::other(error)), None)),
        }
    });
    // A compressor polls once more after the end.
    let mut response = Body::from_stream(parts.fuse()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    let disposition = format!("attachment; filename=\"{}.image\"", view.name);
    let disposition = HeaderValue::try_from(disposition).expect("a name is visible ASCII");
    headers.insert(header::CONTENT_DISPOSITION, disposition);
    Ok(response)
}

async fn put(api: Arc<Api>, kind: Kind, name: &str, request: Request) -> Result<Response, Problem> {
    let name = parse_name(kind, name)?;
    let by = caller(&request)?.key_name();
    if media_type(request.headers()).is_some_and(|media_type| media_type != "application/octet-stream") {
        let detail = "an image is application/octet-stream";
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    }
    if api.engine.find(kind, &name).is_some() {
        return Err(refusals::refused(kind, Refusal::NameTaken));
    }
    let pieces = api.reading.upload(request)?;
    let (upload, id) = (api.engine.upload_id(), api.engine.filter_id());
    let upload = Upload { api, kind, name: name.clone(), by, upload, id, in_flight: None };
    // In a task of its own: a handler is dropped when its client disconnects, but what has come must still be given up.
    let failed = |_| Problem::new(Code::Internal, "the upload failed");
    let description = tokio::spawn(upload.run(pieces)).await.map_err(failed)??;
    Ok(created(kind, &name, false, *description))
}

/// An image that comes in: its records become commands, in order, with one in flight.
struct Upload {
    api: Arc<Api>,
    kind: Kind,
    name: Name,
    by: Option<KeyName>,
    upload: UploadId,
    /// The identity of the new filter.
    id: FilterId,
    in_flight: Option<JoinHandle<Result<Outcome, SubmitError>>>,
}

impl Upload {
    async fn run(mut self, pieces: Pieces) -> Result<Box<Description>, Problem> {
        let taken = self.take(pieces).await;
        if taken.is_err() {
            // If this fails, later entries give it up by and by.
            let _ = self.settle().await;
            let _ = self.submit(Command::ImageAbandon { upload: self.upload }).await;
        }
        taken
    }

    async fn take(&mut self, mut pieces: Pieces) -> Result<Box<Description>, Problem> {
        let (mut reader, mut end) = (ImageReader::default(), None);
        while let Some(piece) = pieces.next().await? {
            reader.push(piece);
            while let Some(record) = reader.next_record().map_err(|fault| self.damaged(fault))? {
                match record.body {
                    ImageBody::End { redemptions } => end = Some((record.before, redemptions)),
                    _ => self.pass_on(record).await?,
                }
            }
        }
        reader.finish().map_err(|fault| self.damaged(fault))?;
        self.settle().await?;
        let (before, redemptions) = end.ok_or_else(|| self.damaged(ImageFault::CutShort))?;
        match self.submit(Command::ImageEnd { upload: self.upload, before, redemptions }).await? {
            Outcome::Created(description) => Ok(description),
            _ => Err(Problem::new(Code::Internal, "an image has another command's outcome")),
        }
    }

    async fn pass_on(&mut self, record: ImageRecord) -> Result<(), Problem> {
        self.settle().await?;
        let ImageRecord { before, checksum, body } = record;
        let (upload, id, kind) = (self.upload, self.id, self.kind);
        let command = match body {
            ImageBody::Head(head) => {
                Command::ImageBegin { upload, id, kind, name: self.name.clone(), head, checksum }
            }
            ImageBody::Part(part) => Command::ImagePart { upload, before, checksum, part },
            ImageBody::End { .. } => return Ok(()),
        };
        self.in_flight = Some(tokio::spawn(patiently(self.api.engine.clone(), self.by.clone(), command)));
        Ok(())
    }

    /// Waits for the command in flight.
    async fn settle(&mut self) -> Result<(), Problem> {
        let Some(command) = self.in_flight.take() else { return Ok(()) };
        let outcome = command.await.map_err(|_| Problem::new(Code::Internal, "the upload failed"))?;
        self.judge(outcome?).map(drop)
    }

    async fn submit(&self, command: Command) -> Result<Outcome, Problem> {
        self.judge(patiently(self.api.engine.clone(), self.by.clone(), command).await?)
    }

    fn judge(&self, outcome: Outcome) -> Result<Outcome, Problem> {
        match outcome {
            Outcome::Refused(refusal) => Err(refusals::refused(self.kind, refusal)),
            outcome => Ok(outcome),
        }
    }

    fn damaged(&self, fault: ImageFault) -> Problem {
        refusals::refused(self.kind, Refusal::ImageDamaged(fault))
    }
}
