//! The snapshots that nodes share: archives in an object store. They have a separate connection, so that a transfer never holds up the log.
//!
//! An archive is valid once its description has a label with the place where the log continues. The node that uploaded it adds the label
//! after it has read the archive back, by compare-and-set: not to an archive that another node has removed. So nodes that upload at the
//! same time do no harm. The two newest snapshots of a log are kept, and the log after the older of them.

use super::link::{
    beginning, connect_separately, create_stream, ensure_bucket, find_stream, log_id,
    stream_config, with_retries,
};
use super::message::of_other_build;
use super::options::NatsOptions;
use super::order::{LogId, StreamPlace, decode, encode, note_log};
use super::runtime;
use async_nats::header::NATS_ROLLUP;
use async_nats::jetstream::context::Context;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::object_store::{GetErrorKind, Object, ObjectInfo, ObjectMetadata};
use async_nats::jetstream::stream::{Config, LastRawMessageErrorKind, Stream};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE;
use bytes::Bytes;
use cuckood_log::journal::{JournalError, Result, random};
use cuckood_log::store::archive::{self, BackupPiece};
use cuckood_log::store::{Manifest, Store, StoreError, VALUE_BYTES_MAX};
use cuckood_state::domain::{Seq, Timestamp};
use cuckood_state::frame::{FrameError, FrameFormat};
use futures_util::{TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use std::io::{self, BufReader, Read};
use std::iter;
use std::path::Path;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::runtime::{Handle, Runtime};
use tokio::task::block_in_place;
use tokio::time::timeout;
use tokio_util::io::StreamReader;

/// A label: a [`SharedSnapshot`] in a frame. Its place has a frame within.
pub(super) const LABEL: FrameFormat = FrameFormat {
    magic: *b"cksh",
    version: 1,
    oldest: 1,
    payload_max: 2 * VALUE_BYTES_MAX,
};

/// Maximum size of a chunk of an archive. Chunks are sent one after the other.
const CHUNK_BYTES: usize = 512 << 10;

/// Bytes of an archive that are read together.
const BUFFER_BYTES: usize = 1 << 20;

/// How long the servers may send nothing of an archive, and an upload may send nothing to them.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Where the description of an archive has its label.
const LABEL_KEY: &str = "cuckood-snapshot";

/// A snapshot that was uploaded, read back and found complete.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SharedSnapshot {
    /// Its name, which no other ever had. Those of a log are in the order of their positions.
    pub name: String,
    /// The last entry that it covers.
    pub seq: Seq,
    /// When it was taken, by the clock of the node that did.
    pub taken_at: Timestamp,
    /// The node that uploaded it.
    pub node: String,
    /// The length of its archive.
    pub bytes: u64,
    /// Where the log continues after it. [`NatsSnapshots::adopt`] interprets it.
    pub place: Vec<u8>,
}

/// The pieces of an archive, one after the other; `None` after the last one, however often it is asked again. An error means that nothing of
/// this node may be shared: it may be found out while a snapshot is being uploaded, or after that.
pub type ArchivePieces<'a> = dyn FnMut() -> Result<Option<Vec<u8>>> + 'a;

/// A failure that another attempt may be spared.
fn failed(why: impl std::fmt::Display) -> JournalError {
    JournalError::Failed(format!("shared snapshots: {why}"))
}

fn damaged(name: &str, why: impl std::fmt::Display) -> JournalError {
    JournalError::Damaged(format!("the shared snapshot {name} {why}"))
}

fn place_of(snapshot: &SharedSnapshot) -> Result<(LogId, StreamPlace)> {
    match decode(&snapshot.place) {
        Ok(found) if found.1.seq == snapshot.seq => Ok(found),
        Err(FrameError::Newer(format)) => Err(of_other_build(&snapshot.name, format)),
        Ok(_) | Err(_) => Err(damaged(&snapshot.name, "has a damaged place in the log")),
    }
}

/// Where the names of a log's archives start.
fn name_prefix(log: LogId) -> String {
    format!("{:032x}-", log.0)
}

/// The snapshots of a log among these archives, newest first. A damaged label is none.
fn snapshots(log: LogId, described: &[ObjectInfo]) -> Result<Vec<SharedSnapshot>> {
    let mut found: Vec<SharedSnapshot> = Vec::new();
    for info in described
        .iter()
        .filter(|info| info.name.starts_with(&name_prefix(log)) && !info.deleted)
    {
        let Some(label) = info.metadata.get(LABEL_KEY) else {
            continue;
        };
        match LABEL.unpack(&BASE64_URL_SAFE.decode(label).unwrap_or_default()) {
            Ok(snapshot) => found.push(snapshot),
            Err(error @ FrameError::Newer(_)) => {
                return Err(JournalError::Newer(format!(
                    "the label of {}: {error}: update this node",
                    info.name
                )));
            }
            Err(error) => tracing::warn!(info.name, %error, "ignoring a damaged label"),
        }
    }
    found.sort_unstable_by(|one, other| other.name.cmp(&one.name));
    Ok(found)
}

/// An archive that is being read. The last read fails if it doesn't match its digest.
struct ArchiveDownload {
    runtime: Handle,
    object: Object,
}

impl Read for ArchiveDownload {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let ArchiveDownload { runtime, object } = self;
        let silent = |_| {
            io::Error::new(
                io::ErrorKind::TimedOut,
                "the servers send nothing of the archive",
            )
        };
        runtime.block_on(async {
            timeout(SILENCE_MAX, object.read(out))
                .await
                .map_err(silent)?
        })
    }
}

/// One node's access to the snapshots that are shared.
pub struct NatsSnapshots {
    /// How the nodes' log is reached.
    pub options: NatsOptions,
    context: Context,
    /// Name of the object store with the archives.
    bucket: String,
    /// Its stream.
    stream: Stream<()>,
    // Dropped last: everything above needs it.
    runtime: Runtime,
}

impl NatsSnapshots {
    /// Connects to the servers.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for all calls, if the servers can't be used.
    pub fn open(options: &NatsOptions) -> Result<NatsSnapshots> {
        // The connection needs a thread that serves it between two calls.
        let runtime = runtime(options)?;
        let context = runtime.block_on(with_retries(options, async || {
            connect_separately(options).await
        }))?;
        let bucket = format!("{}-snapshots", options.stream);
        let stream = runtime.block_on(context.get_stream_no_info(format!("OBJ_{bucket}")));
        let options = options.clone();
        let stream = stream.map_err(failed)?;
        Ok(NatsSnapshots {
            options,
            context,
            bucket,
            stream,
            runtime,
        })
    }

    fn find_stream(&self) -> Result<Option<(Stream, LogId)>> {
        self.runtime
            .block_on(find_stream(&self.context, &self.options))
    }

    /// The snapshots that are shared, newest first; usually two.
    ///
    /// # Errors
    /// [`JournalError::Newer`] if a later version has shared one; [`JournalError::Failed`].
    pub fn list(&self) -> Result<Vec<SharedSnapshot>> {
        let Some((_, log)) = self.find_stream()? else {
            return Ok(Vec::new());
        };
        snapshots(log, &self.runtime.block_on(self.described())?)
    }

    /// Reads the archive of a snapshot completely, and passes its pieces to `sink`. It may be damaged or deleted by now, so nothing may
    /// depend on them before that.
    ///
    /// # Errors
    /// As [`archive::read`], but [`JournalError::Damaged`] for damage that it finds; [`JournalError::Failed`].
    pub fn read<E: From<StoreError> + From<JournalError>>(
        &self,
        snapshot: &SharedSnapshot,
        sink: impl FnMut(BackupPiece<'_>) -> Result<(), StoreError>,
    ) -> Result<(), E> {
        let object = self.runtime.block_on(async {
            let objects = self
                .context
                .get_object_store(&self.bucket)
                .await
                .map_err(failed)?;
            objects
                .get(&snapshot.name)
                .await
                .map_err(|error| match error.kind() {
                    GetErrorKind::TimedOut | GetErrorKind::ConsumerCreate | GetErrorKind::Other => {
                        failed(error)
                    }
                    GetErrorKind::InvalidName
                    | GetErrorKind::NotFound
                    | GetErrorKind::BucketLink => damaged(&snapshot.name, error),
                })
        })?;
        let download = ArchiveDownload {
            runtime: self.runtime.handle().clone(),
            object,
        };
        let from = BufReader::with_capacity(BUFFER_BYTES, download);
        archive::read(Path::new(&snapshot.name), from, sink).map_err(|error| match error {
            StoreError::Damaged { path, what, .. } if path == Path::new(&snapshot.name) => {
                damaged(&snapshot.name, format!("is damaged: {what}")).into()
            }
            StoreError::Io { path, source, .. } if path == Path::new(&snapshot.name) => {
                let is_damage = source.kind() == io::ErrorKind::InvalidData;
                let error = if is_damage {
                    damaged(&snapshot.name, format!("is damaged: {source}"))
                } else {
                    failed(format!("{}: {source}", snapshot.name))
                };
                error.into()
            }
            error => error.into(),
        })
    }

    /// Checks that this build can continue from a snapshot, before a directory is cleared for it.
    ///
    /// # Errors
    /// Those of [`Self::adopt`].
    pub fn check_place(snapshot: &SharedSnapshot) -> Result<()> {
        place_of(snapshot).map(drop)
    }

    /// Notes in a directory into which a snapshot is loaded to which log it belongs.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if the snapshot does not say where that continues, [`JournalError::Unusable`] if another build wrote it.
    pub fn adopt(&self, snapshot: &SharedSnapshot, store: &Store) -> Result<()> {
        Ok(note_log(store, place_of(snapshot)?.0)?)
    }

    /// Whether the log reaches back to its first message, or does not exist.
    ///
    /// # Errors
    /// [`JournalError::Failed`].
    pub fn is_log_whole(&self) -> Result<bool> {
        let found = self.find_stream()?;
        Ok(found.is_none_or(|(stream, _)| stream.cached_info().state.first_sequence <= 1))
    }

    /// Checks that there is no log of this name yet.
    ///
    /// # Errors
    /// [`JournalError::Failed`].
    pub fn check_absent(&self) -> Result<()> {
        let NatsOptions { stream, .. } = &self.options;
        let exists =
            format!("the stream {stream} exists: set nats.stream to another name, or remove it");
        if self.find_stream()?.is_none() {
            Ok(())
        } else {
            Err(failed(exists))
        }
    }

    /// The subjects of all descriptions (`M`) or chunks (`C`) that are stored.
    async fn subjects(&self, kind: char) -> Result<Vec<String>> {
        // An operator may have removed the object store.
        let stream = ensure_bucket(&self.context, &self.options)
            .await
            .map_err(failed)?;
        let all = stream
            .info_with_subjects(format!("$O.{}.{kind}.>", self.bucket))
            .await;
        let all: Vec<(String, usize)> = all.map_err(failed)?.try_collect().await.map_err(failed)?;
        Ok(all.into_iter().map(|(subject, _)| subject).collect())
    }

    /// The description under a subject and the stream's number of it, if there is one that can be read.
    async fn find(&self, subject: &str) -> Result<Option<(u64, ObjectInfo)>> {
        match self.stream.get_last_raw_message_by_subject(subject).await {
            Ok(found) => {
                let info = serde_json::from_slice(&found.payload);
                let info = info.inspect_err(
                    |error| tracing::warn!(subject, %error, "ignoring a bad description"),
                );
                Ok(info.ok().map(|info| (found.sequence, info)))
            }
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// All descriptions, of the archives of every log.
    async fn described(&self) -> Result<Vec<ObjectInfo>> {
        let mut described = Vec::new();
        for subject in self.subjects('M').await? {
            described.extend(self.find(&subject).await?.map(|(_, info)| info));
        }
        Ok(described)
    }

    fn description_of(&self, name: &str) -> String {
        format!("$O.{}.M.{}", self.bucket, BASE64_URL_SAFE.encode(name))
    }

    async fn remove(&self, info: &ObjectInfo) -> Result<()> {
        let chunks = format!("$O.{}.C.{}", self.bucket, info.nuid);
        // The description is removed first: a reader that finds it must find all chunks.
        for subject in [self.description_of(&info.name), chunks] {
            self.stream.purge().filter(subject).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Removes the archives of a log before its two newest snapshots, and chunks without a description to which no upload has added any for
    /// long: it failed, or its node has crashed. Archives of other logs stay: they may be the only copy of acknowledged writes. Returns the
    /// log's snapshots.
    async fn tidy(&self, log: LogId, now: Timestamp) -> Result<Vec<SharedSnapshot>> {
        // Read before the descriptions: an upload may end in between.
        let chunks = self.subjects('C').await?;
        let described = self.described().await?;
        let shared = snapshots(log, &described)?;
        let of_log = described
            .iter()
            .filter(|info| info.name.starts_with(&name_prefix(log)));
        for info in of_log.filter(|info| shared.get(1).is_some_and(|older| info.name < older.name))
        {
            tracing::info!(info.name, "removing an obsolete archive");
            self.remove(info).await?;
        }
        for subject in chunks {
            if described.iter().any(|info| subject.ends_with(&info.nuid)) {
                continue;
            }
            let last = self
                .stream
                .get_last_raw_message_by_subject(&subject)
                .await
                .map_err(failed)?;
            let idle = (now.0 / 1_000).saturating_sub(last.time.unix_timestamp().unsigned_abs());
            if idle >= SILENCE_MAX.as_secs() {
                tracing::info!(subject, "removing chunks of an unfinished upload");
                self.stream.purge().filter(subject).await.map_err(failed)?;
            }
        }
        Ok(shared)
    }

    /// Stores an archive. After an error a part of it may be there, and nothing of it follows later.
    async fn put(&self, name: &str, parts: &mut ArchivePieces<'_>) -> Result<ObjectInfo> {
        let name = name.to_owned();
        let chunk_size = Some(CHUNK_BYTES);
        let meta = ObjectMetadata {
            name,
            chunk_size,
            ..ObjectMetadata::default()
        };
        let mut fed = Ok(());
        let parts = iter::from_fn(|| {
            let part = block_in_place(&mut *parts);
            // The archive ends here, so that it has a description by which it can be removed.
            part.unwrap_or_else(|error| {
                fed = Err(error);
                None
            })
        });
        let parts = stream::iter(parts.map(|part| Ok::<_, io::Error>(Bytes::from(part))));
        let objects = self
            .context
            .get_object_store(&self.bucket)
            .await
            .map_err(failed)?;
        let stored = objects.put(meta, &mut StreamReader::new(parts)).await;
        fed?;
        stored.map_err(failed)
    }

    /// Adds the label to an archive, unless that was removed.
    async fn label(&self, snapshot: &SharedSnapshot) -> Result<()> {
        let subject = self.description_of(&snapshot.name);
        let found = self.find(&subject).await?;
        let (number, mut info) = found.ok_or_else(|| damaged(&snapshot.name, "was removed"))?;
        info.metadata.insert(
            LABEL_KEY.to_owned(),
            BASE64_URL_SAFE.encode(LABEL.pack(snapshot)),
        );
        let message = PublishMessage::build()
            .payload(serde_json::to_vec(&info).map_err(failed)?.into())
            .header(NATS_ROLLUP, "sub")
            .expected_last_subject_sequence(number);
        let sent = self
            .context
            .send_publish(subject, message)
            .await
            .map_err(failed)?;
        sent.await.map_err(failed).map(drop)
    }

    /// Uploads a snapshot, reads it back, and makes it the newest one. Then it removes older ones than the two newest, and trims the log up
    /// to the older of them, less a margin.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if a shared snapshot is as new. Returns errors of `parts`, until the snapshot is shared.
    pub fn share(&self, taken: &Manifest, parts: &mut ArchivePieces<'_>) -> Result<SharedSnapshot> {
        let (stream, log) = self
            .find_stream()?
            .ok_or_else(|| failed("there is no log"))?;
        if decode(&taken.place).map_or(true, |(of, _)| of != log) {
            return Err(failed(
                "this node's snapshot belongs to another log: the stream was recreated",
            ));
        }
        // Failed uploads must not leave too little space for this one.
        let shared = self.runtime.block_on(self.tidy(log, taken.taken_at))?;
        if shared.first().is_some_and(|newest| newest.seq >= taken.seq) {
            return Err(failed("a snapshot of the same age is already shared"));
        }
        let snapshot = self.upload(taken, parts)?;
        // The next node that shares a snapshot can do the rest.
        let trimmed = self
            .runtime
            .block_on(self.tidy(log, taken.taken_at))
            .and_then(|shared| {
                let Some(older) = shared.get(1) else {
                    return Ok(());
                };
                parts()?;
                self.trim(&stream, older)
            });
        if let Err(error) = trimmed {
            tracing::warn!(%error, "failed to remove data older than the shared snapshots; retrying later");
        }
        Ok(snapshot)
    }

    /// Uploads an archive, reads it back and adds its label. If it must not count then, it is removed.
    fn upload(&self, taken: &Manifest, parts: &mut ArchivePieces<'_>) -> Result<SharedSnapshot> {
        let (log, _) =
            decode(&taken.place).map_err(|_| failed("the snapshot has no place in a log"))?;
        let seq = taken.seq;
        let taken_at = taken.taken_at;
        let place = taken.place.clone();
        let runtime = &self.runtime;
        let node = self.options.node.clone();
        let name = format!(
            "{}{:020}-{}",
            name_prefix(log),
            seq.0,
            hex::encode(random::<8>())
        );
        let uploaded = runtime.block_on(self.put(&name, parts)).and_then(|info| {
            let bytes = info.size as u64;
            let snapshot = SharedSnapshot {
                name: name.clone(),
                seq,
                taken_at,
                node,
                bytes,
                place,
            };
            self.read::<JournalError>(&snapshot, |_| Ok(()))?;
            parts()?;
            runtime.block_on(self.label(&snapshot))?;
            Ok(snapshot)
        });
        if uploaded.is_err()
            && let Ok(Some((_, info))) = runtime.block_on(self.find(&self.description_of(&name)))
        {
            // The label may be there although its acknowledgement was lost.
            if let Some(shared) = snapshots(log, std::slice::from_ref(&info))?.pop() {
                return Ok(shared);
            }
            // If this fails too, the next node that shares a snapshot does it.
            let _ = runtime.block_on(self.remove(&info));
        }
        uploaded
    }

    /// Removes the log before a snapshot and its margin.
    fn trim(&self, stream: &Stream, older: &SharedSnapshot) -> Result<()> {
        let (_, place) = place_of(older)?;
        let state = self
            .runtime
            .block_on(stream.get_info())
            .map_err(failed)?
            .state;
        // The servers don't report the size of the stream before a message.
        let message_bytes = (state.bytes / state.messages.max(1)).max(1);
        let through = place
            .stream
            .saturating_sub(self.options.log_margin / message_bytes);
        if through > 0 {
            let purge = async { stream.purge().sequence(through + 1).await.map_err(failed) };
            let trimmed = self.runtime.block_on(purge)?;
            tracing::info!(
                through,
                messages = trimmed.purged,
                "trimmed the log up to the shared snapshots"
            );
        }
        Ok(())
    }

    /// Starts a new log after a snapshot, which is shared before there is a stream: nodes that start early wait for it. The snapshot's own
    /// place does not matter.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if there is a log already; otherwise as [`NatsSnapshots::share`].
    pub fn begin_log(
        &self,
        taken: &Manifest,
        parts: &mut ArchivePieces<'_>,
    ) -> Result<SharedSnapshot> {
        self.check_absent()?;
        let NatsSnapshots {
            options,
            context,
            runtime,
            ..
        } = self;
        runtime.block_on(ensure_bucket(context, options))?;
        let mut wanted = stream_config(options);
        let log = log_id(&wanted)?;
        // After the message that this puts first.
        let place = encode(log, &StreamPlace::after_snapshot(1, taken.seq));
        let snapshot = self.upload(
            &Manifest {
                place,
                ..taken.clone()
            },
            parts,
        )?;
        // Nodes reject the stream until it has its subject. From then on they need the snapshot to start: its first message is missing.
        let beginning = beginning(options);
        let subjects = std::mem::replace(&mut wanted.subjects, vec![beginning.clone()]);
        runtime.block_on(async {
            let (stream, found) = create_stream(context, options, wanted.clone()).await?;
            if found != log {
                return Err(failed("another node has created a log"));
            }
            let sent = context
                .publish(beginning, "this log begins behind a snapshot".into())
                .await
                .map_err(failed)?;
            sent.await.map_err(failed)?;
            stream.purge().sequence(2).await.map_err(failed)?;
            context
                .update_stream(Config { subjects, ..wanted })
                .await
                .map_err(failed)
        })?;
        Ok(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_round_trip_and_newer_version_is_rejected() {
        let snapshot = |seq| SharedSnapshot {
            name: format!("{}{seq:020}-x", name_prefix(LogId(7))),
            seq: Seq(seq),
            taken_at: Timestamp(seq * 7),
            node: "node-1".to_owned(),
            bytes: 1 << 40,
            place: vec![0, 1, 255],
        };
        let described = |name: &str, label: Vec<u8>| {
            let info = serde_json::json!({"name": name, "bucket": "shop-snapshots"});
            let mut info: ObjectInfo = serde_json::from_value(info).unwrap();
            info.metadata
                .insert(LABEL_KEY.to_owned(), BASE64_URL_SAFE.encode(label));
            info
        };
        let of = |snapshot: &SharedSnapshot| described(&snapshot.name, LABEL.pack(snapshot));
        let mut all = vec![of(&snapshot(4)), of(&snapshot(9)), of(&snapshot(5))];
        // It was removed by an operator, another has no label, and one is of another log.
        all[2].deleted = true;
        all.push(of(&snapshot(11)));
        all[3].metadata.clear();
        all.push(described(
            &format!("{}{:020}-x", name_prefix(LogId(8)), 12),
            Vec::new(),
        ));
        assert_eq!(
            snapshots(LogId(7), &all).unwrap(),
            [snapshot(9), snapshot(4)]
        );
        // A damaged label must not hold up everything.
        for label in [Vec::new(), LABEL.pack(&"something else")] {
            all.push(described(&snapshot(10).name, label));
        }
        assert_eq!(
            snapshots(LogId(7), &all).unwrap(),
            [snapshot(9), snapshot(4)]
        );
        let newer = FrameFormat {
            version: 2,
            ..LABEL
        }
        .pack(&snapshot(12));
        all.push(described(&snapshot(12).name, newer));
        let rejected = snapshots(LogId(7), &all).unwrap_err();
        assert!(
            matches!(&rejected, JournalError::Newer(why) if why.contains("version is 2")),
            "{rejected}"
        );
    }
}
