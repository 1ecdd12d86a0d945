//! CF.SCANDUMP and CF.LOADCHUNK: transfer of a filter in chunks.

use super::dumps::END;
use super::failure::{ErrorCode, Failure};
use super::filters::usable_key;
use super::key::FilterKey;
use super::parser::integer;
use super::session::AdmittedCommand;
use crate::engine::image_part;
use cuckood_log::store::archive::read_image_record;
use cuckood_state::domain::{ImageBody, ImageFault, Outcome, Refusal, Timestamp, UploadId};
use cuckood_state::{FilterView, RedemptionQuery};
use sha2::{Digest, Sha256};

const TOO_MANY: &str = "16 dumps are being loaded, or 4 by this key: finish one, or retry in ten minutes, when unfinished ones end";

/// Whether a dump of a filter would be empty.
fn is_empty(view: &FilterView, now: Timestamp) -> bool {
    if view.describe(now).stats.items > 0 {
        return false;
    }
    // Cancelled redemptions have no code.
    let page = view.redemptions(&RedemptionQuery::default(), None, 1, now);
    page.redemptions.is_empty() && page.next.is_none()
}

/// `CF.SCANDUMP key iterator`: the piece that the iterator names, and the iterator of the next one.
pub(super) async fn dump(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    let iterator = integer(call.arguments.at(2)).and_then(|iterator| u64::try_from(iterator).ok());
    let iterator = iterator.ok_or_else(|| Failure::err("Invalid position"))?;
    let view = call
        .find(call.arguments.at(1))?
        .ok_or_else(|| Failure::err("Not found"))?;
    let owner = (view.id, call.caller.name().to_owned());
    let shared = call.shared;
    call.batch.turn.note_long();
    let (next, bytes) = match iterator {
        0 if is_empty(&view, shared.engine.now()) => END,
        0 => {
            let key = FilterKey::of(view.kind, &view.name);
            let origin = (call.session.id, key.to_string());
            let begun = shared.dumps.begin(&shared.engine, owner, origin).await;
            call.log_act(
                &key,
                &begun
                    .as_ref()
                    .map(|_| Outcome::ImageReceived)
                    .map_err(Clone::clone),
            );
            begun?
        }
        iterator => shared.dumps.next(iterator, &owner).await?,
    };
    call.batch.replies.array(2);
    call.batch.replies.integer(next);
    match bytes.is_empty() {
        true => call.batch.replies.null(),
        false => call.batch.replies.bulk(&bytes),
    }
    Ok(())
}

/// `CF.LOADCHUNK key iterator data`: a chunk of a dump. The last one creates the filter. Chunks contain their order.
pub(super) async fn load(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    integer(call.arguments.at(2))
        .filter(|iterator| *iterator > 0)
        .ok_or_else(|| Failure::err("Invalid position"))?;
    let key = usable_key(call)?;
    let record = read_image_record(call.arguments.at(3)).map_err(bad)?;
    let upload = upload(&key, call.caller.name());
    let is_end = matches!(record.body, ImageBody::End { .. });
    let result = call
        .submit(image_part(upload, key.kind, &key.owned_name(), record))
        .await;
    if is_end {
        call.log_act(&key, &result);
    }
    match result? {
        Outcome::ImageReceived | Outcome::Created(_) => call.batch.replies.simple("OK"),
        Outcome::Refused(refusal) => return Err(refused(&refusal)),
        outcome => return Err(Failure::of(&outcome)),
    }
    Ok(())
}

/// Returns the ID of the upload of a caller to a key, the same on any node.
fn upload(key: &FilterKey<'_>, caller: &str) -> UploadId {
    // No key contains a space.
    let hash: [u8; 32] = Sha256::digest(format!("{key} {caller}")).into();
    let (first, _) = hash.split_first_chunk().expect("a hash of 32 bytes has 16");
    UploadId(u128::from_le_bytes(*first))
}

fn bad(fault: ImageFault) -> Failure {
    match fault {
        ImageFault::Foreign => Failure::err(
            "received bad data: it is not a dump of cuckood; dumps of Redis can't be loaded",
        ),
        fault => Failure::err(format!("received bad data: {fault}; nothing is left of it")),
    }
}

fn refused(refusal: &Refusal) -> Failure {
    match refusal {
        Refusal::NameTaken => Failure::err("item exists"),
        Refusal::TooManyImages => Failure::new(ErrorCode::BUSY, TOO_MANY),
        Refusal::ImageNotFound => {
            Failure::err("no dump is being loaded into this key: start with its first chunk")
        }
        Refusal::ImageDamaged(fault) => bad(*fault),
        refusal => Failure::refused(refusal),
    }
}
