//! Snapshots that the nodes of a log share, and two key-value buckets: which snapshots of a log are shared, and which node may share the next one. The former is a list under the log's
//! identity, newest first, replaced by compare-and-set; the latter a key that its holder renews, and that expires otherwise.

use crate::domain::{Seq, Timestamp};
use crate::journal::JournalError;
use crate::journal::nats::options::NatsOptions;
use crate::journal::nats::order::LogId;
use crate::store::StoreError;
use crate::store::archive::{self, Piece};
use async_nats::jetstream::context::Context;
use async_nats::jetstream::kv::{self, Store};
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::io::{BufReader, Read};
use std::path::Path;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const VERSION: u32 = 2;

/// How much of an archive is asked for at once.
const READ_BYTES: usize = 1 << 20;

/// How long a lease lasts that is not renewed.
const LEASE_TIME: Duration = Duration::from_secs(15);

/// How often its holder renews it.
const RENEW_EVERY: Duration = Duration::from_secs(4);

const LEASE_KEY: &str = "sharing";

/// A snapshot that was uploaded, read back and found complete.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SharedSnapshot {
    /// Its name, which no other ever had.
    pub name: String,
    /// The last entry that it covers.
    pub seq: Seq,
    /// When it was taken, by the clock of the node that did.
    pub taken_at: Timestamp,
    /// The node that uploaded it.
    pub node: String,
    /// The length of its archive.
    pub bytes: u64,
    /// SHA-256 of its archive, as the adapter writes it.
    pub digest: String,
    /// Where the log goes on behind it. [`super::NatsSnapshots::adopt`] interprets it.
    pub place: Vec<u8>,
}

/// A snapshot that is to be shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The last entry that it covers.
    pub seq: Seq,
    /// When it was taken.
    pub taken_at: Timestamp,
    /// Where the log goes on behind it: what [`crate::journal::Journal::place`] says.
    pub place: Vec<u8>,
}

/// The pieces of an archive, one after the other; `None` after the last one.
pub type Parts<'a> = dyn FnMut() -> Result<Option<Vec<u8>>, JournalError> + 'a;

/// Says why nothing of this node may be shared, if it must not: it may be found out while a snapshot is being uploaded.
pub type Check<'a> = dyn Fn() -> Result<(), JournalError> + 'a;

/// Reads an archive and passes its pieces to `sink`. Checks that it is the snapshot that it should be, without any log behind it.
///
/// # Errors
/// As [`archive::read`].
pub fn read_shared(
    snapshot: &SharedSnapshot,
    from: impl Read,
    mut sink: impl FnMut(Piece<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let path = Path::new(&snapshot.name);
    let damaged = |what: &str| StoreError::Damaged {
        path: path.to_owned(),
        what: format!("the shared snapshot {what}"),
        command: "cuckood backup FILE` on a node that is ready, then `cuckood restore FILE --into-cluster"
            .to_owned(),
    };
    let mut has_manifest = false;
    archive::read(path, BufReader::with_capacity(READ_BYTES, from), |piece| {
        match &piece {
            Piece::Manifest(manifest) if manifest.seq == snapshot.seq => has_manifest = true,
            Piece::Manifest(_) => return Err(damaged("is of another position")),
            Piece::Entries { .. } => return Err(damaged("has a log")),
            _ => {}
        }
        sink(piece)
    })?;
    if has_manifest { Ok(()) } else { Err(damaged("is empty")) }
}

/// Checks that the whole of an archive is there and as it should be.
///
/// # Errors
/// As [`read_shared`].
pub fn check_shared(snapshot: &SharedSnapshot, from: impl Read) -> Result<(), StoreError> {
    read_shared(snapshot, from, |_| Ok(()))
}

/// A failure that another attempt may be spared.
pub(super) fn failed(why: impl std::fmt::Display) -> JournalError {
    JournalError::Failed(format!("shared snapshots: {why}"))
}

/// Opens a bucket, or creates it. Its keys expire after `max_age`, unless that is zero.
async fn bucket(
    context: &Context,
    options: &NatsOptions,
    suffix: &str,
    max_age: Duration,
) -> Result<Store, JournalError> {
    let config = kv::Config {
        bucket: format!("{}-{suffix}", options.stream),
        description: "which snapshots cuckood's nodes share".to_owned(),
        max_age,
        num_replicas: options.replicas,
        ..kv::Config::default()
    };
    match context.get_key_value(&config.bucket).await {
        Ok(store) => Ok(store),
        Err(_) => context.create_key_value(config).await.map_err(failed),
    }
}

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    snapshots: Vec<SharedSnapshot>,
}

/// The list as it was read.
pub(super) struct Catalog {
    store: Store,
    log: LogId,
    /// The list's revision; 0 if there is none yet.
    revision: u64,
    pub(super) snapshots: Vec<SharedSnapshot>,
}

impl Catalog {
    /// Reads the list from the server that leads it: others may be behind.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if that is not possible; [`JournalError::Damaged`] if it can't be understood.
    pub(super) async fn read(
        context: &Context,
        options: &NatsOptions,
        log: LogId,
    ) -> Result<Catalog, JournalError> {
        let store = bucket(context, options, "snapshots", Duration::ZERO).await?;
        let subject = format!("{}{}", store.prefix, key_of(log));
        let (revision, snapshots) = match store.stream.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => (message.sequence, decode(&message.payload)?),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => (0, Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        Ok(Catalog { store, log, revision, snapshots })
    }

    pub(super) fn newest(&self) -> Option<&SharedSnapshot> {
        self.snapshots.first()
    }

    /// Puts another list in its place, unless somebody else has.
    ///
    /// # Errors
    /// [`JournalError::Failed`]. Whether it is replaced may be unknown then.
    pub(super) async fn replace(&self, snapshots: Vec<SharedSnapshot>) -> Result<(), JournalError> {
        let value = encode(&snapshots);
        let replaced = self.store.update(key_of(self.log), value.into(), self.revision).await;
        replaced.map(drop).map_err(failed)
    }
}

/// The key of a log's list. Lists of other logs that had the same stream name stay.
fn key_of(log: LogId) -> String {
    format!("{:032x}", log.0)
}

fn encode(snapshots: &[SharedSnapshot]) -> String {
    let stored = Stored { version: VERSION, snapshots: snapshots.to_vec() };
    serde_json::to_string(&stored).expect("texts and numbers are JSON")
}

fn decode(value: &[u8]) -> Result<Vec<SharedSnapshot>, JournalError> {
    let damaged = |why: String| JournalError::Damaged(format!("the list of shared snapshots: {why}"));
    let stored: Stored = serde_json::from_slice(value).map_err(|error| damaged(error.to_string()))?;
    if stored.version != VERSION {
        return Err(damaged(format!("format {}; this build reads format {VERSION}", stored.version)));
    }
    Ok(stored.snapshots)
}

/// The right to share a snapshot, for as long as it is not lost. Dropping it gives it back.
pub(super) struct Lease {
    end: oneshot::Sender<()>,
    renewing: JoinHandle<()>,
}

impl Lease {
    /// Claims it; `None` if another node has it.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if the bucket can't be had.
    pub(super) async fn claim(
        context: &Context,
        options: &NatsOptions,
    ) -> Result<Option<Lease>, JournalError> {
        let store = bucket(context, options, "lease", LEASE_TIME).await?;
        let node = Bytes::from(options.node.clone());
        match store.create(LEASE_KEY, node.clone()).await {
            Ok(revision) => {
                let (end, ended) = oneshot::channel();
                let renewing = tokio::spawn(renew(store, node, revision, ended));
                Ok(Some(Lease { end, renewing }))
            }
            Err(error) => {
                tracing::debug!(%error, "the right to share a snapshot can't be had now");
                Ok(None)
            }
        }
    }

    /// Whether it could not be renewed.
    pub(super) fn is_lost(&self) -> bool {
        self.renewing.is_finished()
    }

    /// Checks that it is not lost.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if it is.
    pub(super) fn check(&self) -> Result<(), JournalError> {
        if self.is_lost() { Err(failed("the right to share a snapshot got lost")) } else { Ok(()) }
    }

    /// Gives it back.
    pub(super) async fn release(self) {
        drop(self.end);
        if self.renewing.await.is_err() {
            tracing::error!("the renewal of the right to share a snapshot has panicked");
        }
    }
}

/// Renews the key until the other end of `ended` is dropped, then removes it; or until it can't be renewed. Whether a renewal that failed
/// was done all the same does not matter: the key expires.
async fn renew(store: Store, node: Bytes, mut revision: u64, mut ended: oneshot::Receiver<()>) {
    while timeout(RENEW_EVERY, &mut ended).await.is_err() {
        match store.update(LEASE_KEY, node.clone(), revision).await {
            Ok(renewed) => revision = renewed,
            Err(error) => {
                tracing::warn!(%error, "the right to share a snapshot got lost");
                return;
            }
        }
    }
    let _ = store.delete_expect_revision(LEASE_KEY, Some(revision)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_round_trips_and_newer_version_is_rejected() {
        let snapshot = |seq| SharedSnapshot {
            name: format!("snapshot-{seq}"),
            seq: Seq(seq),
            taken_at: Timestamp(seq * 7),
            node: "node-1".to_owned(),
            bytes: 1 << 40,
            digest: "SHA-256=abc".to_owned(),
            place: vec![0, 1, 255],
        };
        let list = [snapshot(9), snapshot(4)];
        let value = encode(&list);
        assert_eq!(decode(value.as_bytes()).unwrap(), list);
        let newer = value.replace("\"version\":2", "\"version\":3");
        assert!(decode(newer.as_bytes()).is_err());
        assert!(decode(b"{}").is_err());
    }
}
