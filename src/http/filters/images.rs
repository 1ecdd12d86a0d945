//! `…/image`: one campaign or coupon on the move, out of here and in. The routes of both kinds, and what they share.

use super::created;
use crate::domain::{Command, Description, FilterId, ImageFault, Kind, Name, Outcome, Refusal, UploadId};
use crate::engine::{Download, ImageBody, ImageReader, ImageRecord};
use crate::http::answer::{Answer, Code, Problem, refusals, reply};
use crate::http::call::{Call, Commands, Export, Maintain, parse_name};
use crate::http::request::body::{Pieces, media_type};
use axum::body::Body;
use axum::extract::Request;
use futures_util::{StreamExt, stream};
use std::io;

/// `GET`: streams the image of a filter.
pub(super) async fn get(call: &Call<Export>, kind: Kind, name: &str) -> Answer {
    let view = call.filter(kind, name)?;
    let image = call.api.engine.image(view.id).await?.ok_or_else(|| refusals::not_found(kind))?;
    let parts = stream::unfold(Some(image), async |image: Option<Download>| {
        let mut image = image?;
        match image.next().await {
            Ok(records) if records.is_empty() => None,
            Ok(records) => Some((Ok(records.concat()), Some(image))),
            Err(error) => Some((Err(io::Error::other(error)), None)),
        }
    });
    Ok(reply::attachment(&format!("{}.image", view.name), Body::from_stream(parts.fuse())))
}

/// `PUT`: makes a filter from an image.
pub(super) async fn put(call: Call<Maintain>, kind: Kind, name: &str, request: Request) -> Answer {
    let name = parse_name(kind, name)?;
    let (api, by) = (call.api, call.caller.key_name());
    if media_type(request.headers()).is_some_and(|media_type| media_type != "application/octet-stream") {
        let detail = "an image is application/octet-stream";
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    }
    if api.engine.find(kind, &name).is_some() {
        return Err(Code::AlreadyExists.into());
    }
    let pieces = api.reading.upload(request)?;
    let commands = Commands::new(api.engine.clone(), kind, by);
    let (upload, id) = (crate::domain::UploadId::random(), crate::domain::FilterId::random());
    let upload = Upload { kind, name: name.clone(), upload, id, commands };
    // In a task of its own: a handler is dropped when its client disconnects, but what has come must still be given up.
    let failed = |_| Problem::new(Code::Internal, "the upload failed");
    let description = tokio::spawn(upload.run(pieces)).await.map_err(failed)??;
    Ok(created(kind, &name, false, *description))
}

/// An image that comes in: its records become commands, in order.
struct Upload {
    kind: Kind,
    name: Name,
    upload: UploadId,
    /// The identity of the new filter.
    id: FilterId,
    commands: Commands,
}

impl Upload {
    async fn run(mut self, pieces: Pieces) -> Result<Box<Description>, Problem> {
        let taken = self.take(pieces).await;
        if taken.is_err() {
            // If this fails, later entries give it up by and by.
            let _ = self.commands.settle().await;
            let _ = self.commands.submit(Command::ImageAbandon { upload: self.upload }).await;
        }
        taken
    }

    async fn take(&mut self, mut pieces: Pieces) -> Result<Box<Description>, Problem> {
        let (mut reader, mut end) = (ImageReader::default(), None);
        while let Some(piece) = pieces.next().await? {
            reader.push(piece);
            while let Some(record) = reader.next_record().map_err(|fault| self.damaged(fault))? {
                let ImageRecord { before, checksum, body } = record;
                let (upload, id, kind) = (self.upload, self.id, self.kind);
                self.commands
                    .send(match body {
                        ImageBody::Head(head) => {
                            Command::ImageBegin { upload, id, kind, name: self.name.clone(), head, checksum }
                        }
                        ImageBody::Part(part) => Command::ImagePart { upload, before, checksum, part },
                        ImageBody::End { redemptions } => {
                            end = Some((before, redemptions));
                            continue;
                        }
                    })
                    .await?;
            }
        }
        reader.finish().map_err(|fault| self.damaged(fault))?;
        self.commands.settle().await?;
        let (before, redemptions) = end.ok_or_else(|| self.damaged(ImageFault::CutShort))?;
        match self.commands.submit(Command::ImageEnd { upload: self.upload, before, redemptions }).await? {
            Outcome::Created(description) => Ok(description),
            _ => Err(Problem::new(Code::Internal, "an image has another command's outcome")),
        }
    }

    fn damaged(&self, fault: ImageFault) -> Problem {
        refusals::refused(self.kind, Refusal::ImageDamaged(fault))
    }
}
