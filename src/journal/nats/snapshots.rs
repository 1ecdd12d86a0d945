//! The snapshots that nodes share: archives in an object store, and a list of the two newest in a key-value bucket. They have a separate
//! connection, so that a transfer never holds up the log.
//!
//! The list is what counts. It is stored under the log's identity, and replaced by compare-and-set, by a node that has read back its
//! upload. So two nodes that upload at the same time do no harm: one of them finds that the list has changed, and removes its archive.

use super::link::{connect_beside, create_stream, ensure_bucket, find_stream, patiently};
use super::options::NatsOptions;
use super::order::{LogId, Place, decode, encode, note_log};
use crate::domain::{Seq, Timestamp};
use crate::journal::{JournalError, random};
use crate::store::archive::{self, Piece};
use crate::store::{Store, StoreError};
use async_nats::jetstream::context::Context;
use async_nats::jetstream::kv;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::object_store::{
    GetErrorKind, InfoErrorKind, Object, ObjectInfo, ObjectMetadata, ObjectStore,
};
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE;
use futures_util::TryStreamExt;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::timeout;

/// The content of the message at the beginning of a log that begins behind a snapshot. It is removed immediately.
const BEGINNING: &str = "this log begins behind a snapshot";

const VERSION: u32 = 2;

/// Maximum size of a chunk of an archive. Chunks are sent one after the other.
const CHUNK_BYTES: usize = 512 << 10;

/// Bytes of an archive that are read together, and that may wait for being sent.
const BUFFER_BYTES: usize = 1 << 20;

/// How long the servers may send nothing of an archive.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Where an archive says to which log it belongs.
const LOG_KEY: &str = "cuckood-log";

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
    /// SHA-256 of its archive, as the object store writes it.
    pub digest: String,
    /// Where the log continues after it. [`NatsSnapshots::adopt`] interprets it.
    pub place: Vec<u8>,
}

/// A snapshot that is to be shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The last entry that it covers.
    pub seq: Seq,
    /// When it was taken.
    pub taken_at: Timestamp,
    /// Where the log continues after it: what [`crate::journal::Journal::place`] says.
    pub place: Vec<u8>,
}

/// The pieces of an archive, one after the other; `None` after the last one.
pub type Parts<'a> = dyn FnMut() -> Result<Option<Vec<u8>>, JournalError> + 'a;

/// Says why nothing of this node may be shared, if it must not: it may be found out while a snapshot is being uploaded.
pub type Check<'a> = dyn Fn() -> Result<(), JournalError> + 'a;

/// Reads an archive and passes its pieces to `sink`. Checks that it is the snapshot that it should be.
///
/// # Errors
/// As [`archive::read`].
pub fn read_shared(
    snapshot: &SharedSnapshot,
    from: impl Read,
    mut sink: impl FnMut(Piece<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let path = Path::new(&snapshot.name);
    archive::read(path, BufReader::with_capacity(BUFFER_BYTES, from), |piece| match &piece {
        Piece::Manifest(manifest) if manifest.seq != snapshot.seq => Err(StoreError::Damaged {
            path: path.to_owned(),
            what: "the shared snapshot is of another position".to_owned(),
            command:
                "cuckood backup FILE` on a node that is ready, then `cuckood restore FILE --into-cluster"
                    .to_owned(),
        }),
        _ => sink(piece),
    })
}

/// A failure that another attempt may be spared.
fn failed(why: impl std::fmt::Display) -> JournalError {
    JournalError::Failed(format!("shared snapshots: {why}"))
}

/// Reports that something is not removed yet. The next upload tries again.
fn warn_of(tidied: Result<(), JournalError>) {
    if let Err(error) = tidied {
        tracing::warn!(%error, "what came before the shared snapshots is not removed yet");
    }
}

fn damaged(snapshot: &SharedSnapshot, why: &str) -> JournalError {
    JournalError::Damaged(format!("the shared snapshot {} {why}", snapshot.name))
}

#[derive(Serialize, Deserialize)]
struct List {
    version: u32,
    /// Newest first.
    snapshots: Vec<SharedSnapshot>,
}

impl List {
    fn decode(value: &[u8]) -> Result<List, JournalError> {
        let damaged = |why: String| JournalError::Damaged(format!("the list of shared snapshots: {why}"));
        let list: List = serde_json::from_slice(value).map_err(|error| damaged(error.to_string()))?;
        match list.version {
            VERSION => Ok(list),
            other => Err(damaged(format!("format {other}; this build reads format {VERSION}"))),
        }
    }
}

/// The list as it is stored.
struct Stored {
    store: kv::Store,
    key: String,
    /// The revision; 0 if there is none yet.
    revision: u64,
    list: List,
}

impl Stored {
    /// Reads the list from the server that leads it: others may be behind. Lists of other logs that had the same stream name stay.
    async fn read(context: &Context, options: &NatsOptions, log: LogId) -> Result<Stored, JournalError> {
        let config = kv::Config {
            bucket: format!("{}-snapshots", options.stream),
            description: "which snapshots cuckood's nodes share".to_owned(),
            num_replicas: options.replicas,
            ..kv::Config::default()
        };
        let store = match context.get_key_value(&config.bucket).await {
            Ok(store) => store,
            Err(_) => context.create_key_value(config).await.map_err(failed)?,
        };
        let key = format!("{:032x}", log.0);
        let subject = format!("{}{key}", store.prefix);
        let (revision, list) = match store.stream.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => (message.sequence, List::decode(&message.payload)?),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => {
                (0, List { version: VERSION, snapshots: Vec::new() })
            }
            Err(error) => return Err(failed(error)),
        };
        Ok(Stored { store, key, revision, list })
    }

    /// Writes the list, unless another node has since it was read. Whether it is written may be unknown after an error.
    async fn write(&mut self) -> Result<(), JournalError> {
        let value = serde_json::to_vec(&self.list).map_err(failed)?;
        self.revision = self.store.update(&self.key, value.into(), self.revision).await.map_err(failed)?;
        Ok(())
    }
}

/// The object store with the archives, and its stream.
struct Archives {
    bucket: String,
    objects: ObjectStore,
    stream: Stream,
}

impl Archives {
    async fn open(context: &Context, options: &NatsOptions) -> Result<Archives, JournalError> {
        let bucket = format!("{}-snapshots", options.stream);
        let stream = ensure_bucket(context, options).await?;
        let objects = context.get_object_store(&bucket).await.map_err(failed)?;
        Ok(Archives { bucket, objects, stream })
    }

    /// The description of an archive, if there is one.
    async fn find(&self, name: &str) -> Result<Option<ObjectInfo>, JournalError> {
        match self.objects.info(name).await {
            Ok(info) => Ok((!info.deleted).then_some(info)),
            Err(error) if error.kind() == InfoErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Whether the archive of a snapshot is there. What is in it may be damaged.
    async fn has(&self, snapshot: &SharedSnapshot) -> Result<bool, JournalError> {
        let found = self.find(&snapshot.name).await?;
        Ok(found.is_some_and(|info| info.digest.as_ref() == Some(&snapshot.digest)))
    }

    /// Removes an archive.
    async fn remove(&self, info: &ObjectInfo) -> Result<(), JournalError> {
        // The description goes first: a reader that finds it must find all chunks.
        let description = format!("$O.{}.M.{}", self.bucket, BASE64_URL_SAFE.encode(&info.name));
        self.stream.purge().filter(description).await.map_err(failed)?;
        self.remove_chunks(&info.nuid).await
    }

    /// Removes an archive, if it exists.
    async fn remove_named(&self, name: &str) -> Result<(), JournalError> {
        match self.find(name).await? {
            Some(info) => self.remove(&info).await,
            None => Ok(()),
        }
    }

    async fn remove_chunks(&self, nuid: &str) -> Result<(), JournalError> {
        let chunks = format!("$O.{}.C.{nuid}", self.bucket);
        self.stream.purge().filter(chunks).await.map_err(failed).map(drop)
    }

    /// What is stored: the names of the archives that have a description, and the chunks by their archive's `nuid`, with their number.
    async fn stored(&self) -> Result<(Vec<String>, Vec<(String, usize)>), JournalError> {
        let all = self.stream.info_with_subjects(format!("$O.{}.>", self.bucket)).await.map_err(failed)?;
        let all: Vec<(String, usize)> = all.try_collect().await.map_err(failed)?;
        let [described, chunks] = ["M", "C"].map(|kind| format!("$O.{}.{kind}.", self.bucket));
        let mut stored = (Vec::new(), Vec::new());
        for (subject, messages) in &all {
            if let Some(nuid) = subject.strip_prefix(&chunks) {
                stored.1.push((nuid.to_owned(), *messages));
            } else if let Some(encoded) = subject.strip_prefix(&described) {
                let name = BASE64_URL_SAFE.decode(encoded).ok().and_then(|name| String::from_utf8(name).ok());
                stored.0.extend(name);
            }
        }
        Ok(stored)
    }
}

/// Chunks without a description, as the last look found them: how many an archive had, and since when.
#[derive(Default)]
struct Undescribed(BTreeMap<String, (usize, Instant)>);

impl Undescribed {
    /// Returns the archives that are abandoned: their upload has stored no chunk for longer than it could wait for an acknowledgement.
    fn abandoned(&mut self, found: Vec<(String, usize)>, now: Instant) -> Vec<String> {
        let seen = found.into_iter().map(|(nuid, chunks)| {
            let before = self.0.get(&nuid).filter(|(had, _)| *had == chunks);
            let since = before.map_or(now, |(_, since)| *since);
            (nuid, (chunks, since))
        });
        self.0 = seen.collect();
        let is_idle = |since: Instant| now.duration_since(since) >= SILENCE_MAX;
        self.0.iter().filter(|(_, (_, since))| is_idle(*since)).map(|(nuid, _)| nuid.clone()).collect()
    }
}

/// An archive that is being read. An error of the last read tells that it is not what its digest says.
struct Download {
    runtime: Handle,
    object: Object,
}

impl Read for Download {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let Download { runtime, object } = self;
        let silent = |_| io::Error::new(io::ErrorKind::TimedOut, "the servers send nothing of the archive");
        runtime.block_on(async { timeout(SILENCE_MAX, object.read(out)).await.map_err(silent)? })
    }
}

/// One node's access to the snapshots that are shared.
pub struct NatsSnapshots {
    options: NatsOptions,
    context: Context,
    undescribed: Mutex<Undescribed>,
    // Dropped last: everything above needs it.
    runtime: Runtime,
}

impl NatsSnapshots {
    /// Connects to the servers.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for all calls, if the servers can't be used.
    pub fn open(options: &NatsOptions) -> Result<NatsSnapshots, JournalError> {
        // The connection needs a thread that serves it between two calls.
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).thread_name("snapshots").enable_all().build();
        let runtime = runtime.map_err(|error| failed(format!("can't start a runtime: {error}")))?;
        let context = runtime.block_on(connect_beside(options))?;
        Ok(NatsSnapshots { options: options.clone(), context, undescribed: Mutex::default(), runtime })
    }

    /// How the nodes' log is reached.
    pub fn options(&self) -> &NatsOptions {
        &self.options
    }

    fn find_stream(&self) -> Result<Option<(Stream, LogId)>, JournalError> {
        self.runtime.block_on(find_stream(&self.context, &self.options))
    }

    fn archives(&self) -> Result<Archives, JournalError> {
        self.runtime.block_on(Archives::open(&self.context, &self.options))
    }

    /// The snapshots that are shared, newest first; at most two.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if the list can't be read.
    pub fn list(&self) -> Result<Vec<SharedSnapshot>, JournalError> {
        let NatsSnapshots { context, options, .. } = self;
        self.runtime.block_on(patiently(options, async || match find_stream(context, options).await? {
            None => Ok(Vec::new()),
            Some((_, log)) => Ok(Stored::read(context, options, log).await?.list.snapshots),
        }))
    }

    /// Whether the archive of a snapshot exists. An operator may have deleted it.
    ///
    /// # Errors
    /// [`JournalError::Failed`].
    pub fn has(&self, snapshot: &SharedSnapshot) -> Result<bool, JournalError> {
        let archives = self.archives()?;
        self.runtime.block_on(archives.has(snapshot))
    }

    /// The archive of a snapshot. It may be damaged or gone by now: [`read_shared`] checks it before anything depends on it.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if there is another archive in its place, or none.
    pub fn read(&self, snapshot: &SharedSnapshot) -> Result<impl Read + use<>, JournalError> {
        let archives = self.archives()?;
        let object = self.runtime.block_on(archives.objects.get(&snapshot.name));
        let object = object.map_err(|error| match error.kind() {
            GetErrorKind::NotFound => damaged(snapshot, "does not exist"),
            _ => failed(error),
        })?;
        if object.info.digest.as_ref() != Some(&snapshot.digest) {
            return Err(damaged(snapshot, "is not the one that was uploaded"));
        }
        Ok(Download { runtime: self.runtime.handle().clone(), object })
    }

    /// Notes in a directory into which a snapshot is loaded to which log it belongs.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if the snapshot does not say where that continues.
    pub fn adopt(&self, snapshot: &SharedSnapshot, store: &Store) -> Result<(), JournalError> {
        let found = decode(&snapshot.place).filter(|(_, place)| place.seq == snapshot.seq);
        let (log, _) = found.ok_or_else(|| damaged(snapshot, "has a damaged place in the log"))?;
        Ok(note_log(store, log)?)
    }

    /// Whether the log reaches back to its first message.
    ///
    /// # Errors
    /// [`JournalError::Failed`].
    pub fn is_log_whole(&self) -> Result<bool, JournalError> {
        let found = self.find_stream()?;
        Ok(found.is_some_and(|(stream, _)| stream.cached_info().state.first_sequence <= 1))
    }

    /// Whether the log has begun: there are entries, or there were some.
    ///
    /// # Errors
    /// [`JournalError::Failed`].
    pub fn has_begun(&self) -> Result<bool, JournalError> {
        let found = self.find_stream()?;
        Ok(found.is_some_and(|(stream, _)| stream.cached_info().state.last_sequence > 0))
    }

    /// The list of a log's snapshots, as it is stored now.
    fn stored(&self, log: LogId) -> Result<Stored, JournalError> {
        self.runtime.block_on(Stored::read(&self.context, &self.options, log))
    }

    /// Uploads a snapshot, reads it back, and makes it the newest one. Then it removes what came before the two newest ones, and trims
    /// the log behind the older of them, less a margin. What it is uploaded for, and the trimming, is done only if `check` still allows it.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if a shared snapshot is as new, or if another node shared one meanwhile. Errors of `parts` and `check` are
    /// passed on.
    pub fn share(
        &self,
        taken: &Taken,
        parts: &mut Parts<'_>,
        check: &Check<'_>,
    ) -> Result<SharedSnapshot, JournalError> {
        let (stream, log) = self.find_stream()?.ok_or_else(|| failed("there is no log"))?;
        if decode(&taken.place).is_none_or(|(of, _)| of != log) {
            return Err(failed("this node's snapshot belongs to another log: the stream was recreated"));
        }
        let (archives, mut stored) = (self.archives()?, self.stored(log)?);
        let older = match stored.list.snapshots.first() {
            Some(newest) if self.runtime.block_on(archives.has(newest))? => Some(newest.clone()),
            _ => None,
        };
        if older.as_ref().is_some_and(|older| older.seq >= taken.seq) {
            return Err(failed("a snapshot that is as new is shared already"));
        }
        // Uploads that failed must not leave too little room for this one.
        warn_of(self.runtime.block_on(self.remove_abandoned(&archives)));
        let snapshot = self.upload(&archives, log, taken, parts, check)?;
        stored.list.snapshots = [&snapshot].into_iter().chain(&older).cloned().collect();
        if let Err(error) = self.runtime.block_on(stored.write()) {
            let now = self.stored(log)?;
            let is_listed = now.list.snapshots.iter().any(|kept| kept.name == snapshot.name);
            // If the list has not changed either, this write may still arrive.
            if !is_listed && now.revision != stored.revision {
                self.runtime.block_on(archives.remove_named(&snapshot.name))?;
            }
            return Err(error);
        }
        // What follows can be done by the next node that shares a snapshot.
        warn_of(self.runtime.block_on(self.remove_others(&archives, log)));
        warn_of(self.runtime.block_on(async {
            match &older {
                Some(older) if archives.has(older).await? => {
                    check()?;
                    self.trim(&stream, older).await
                }
                _ => Ok(()),
            }
        }));
        Ok(snapshot)
    }

    /// Removes the archives of a log that are not in its list. Archives of other logs stay: they may be the only copy of what was
    /// acknowledged there.
    async fn remove_others(&self, archives: &Archives, log: LogId) -> Result<(), JournalError> {
        let (names, _) = archives.stored().await?;
        // Read after the archives: what another node has listed meanwhile stays.
        let listed = Stored::read(&self.context, &self.options, log).await?.list.snapshots;
        for name in names.iter().filter(|name| listed.iter().all(|kept| kept.name != **name)) {
            let Some(info) = archives.find(name).await? else { continue };
            if info.metadata.get(LOG_KEY).is_some_and(|of| *of == format!("{:032x}", log.0)) {
                tracing::info!(name, "removing an archive that is not needed any more");
                archives.remove(&info).await?;
            }
        }
        Ok(())
    }

    /// Removes chunks without a description that no upload adds to any more: it failed, or its node has died.
    async fn remove_abandoned(&self, archives: &Archives) -> Result<(), JournalError> {
        let (names, mut chunks) = archives.stored().await?;
        let mut described = BTreeSet::new();
        for name in &names {
            described.extend(archives.find(name).await?.map(|info| info.nuid));
        }
        chunks.retain(|(nuid, _)| !described.contains(nuid));
        let abandoned = self.undescribed.lock().abandoned(chunks, Instant::now());
        for nuid in abandoned {
            tracing::info!(nuid, "removing what an unfinished upload has left");
            archives.remove_chunks(&nuid).await?;
        }
        Ok(())
    }

    /// Uploads an archive and reads it back. If it must not count then, it is removed.
    fn upload(
        &self,
        archives: &Archives,
        log: LogId,
        taken: &Taken,
        parts: &mut Parts<'_>,
        check: &Check<'_>,
    ) -> Result<SharedSnapshot, JournalError> {
        let Taken { seq, taken_at, place } = taken.clone();
        let name = format!("{:020}-{}", seq.0, hex::encode(random::<8>()));
        let put = self.put(archives, &name, log, &mut || check().and_then(|()| parts()));
        let checked = put.and_then(|info| {
            let (node, digest) = (self.options.node.clone(), info.digest.unwrap_or_default());
            let bytes = info.size as u64;
            let snapshot = SharedSnapshot { name: name.clone(), seq, taken_at, node, bytes, digest, place };
            read_shared(&snapshot, self.read(&snapshot)?, |_| Ok(()))?;
            check()?;
            Ok(snapshot)
        });
        if checked.is_err() {
            // If this fails too, the next node that shares a snapshot does it.
            let _ = self.runtime.block_on(archives.remove_named(&name));
        }
        checked
    }

    /// Stores an archive of a log. After an error a part of it may be there, and nothing of it follows later.
    fn put(
        &self,
        archives: &Archives,
        name: &str,
        log: LogId,
        parts: &mut Parts<'_>,
    ) -> Result<ObjectInfo, JournalError> {
        let meta = ObjectMetadata {
            name: name.to_owned(),
            chunk_size: Some(CHUNK_BYTES),
            metadata: [(LOG_KEY.to_owned(), format!("{:032x}", log.0))].into(),
            ..ObjectMetadata::default()
        };
        let (mut to, mut from) = tokio::io::duplex(BUFFER_BYTES);
        let objects = archives.objects.clone();
        let storing = self.runtime.spawn(async move { objects.put(meta, &mut from).await });
        let fed = loop {
            match parts() {
                // If it takes no more, its result says why.
                Ok(Some(part)) if self.runtime.block_on(to.write_all(&part)).is_ok() => {}
                Ok(_) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        drop(to);
        let stored = self.runtime.block_on(storing).map_err(failed)?;
        fed?;
        stored.map_err(failed)
    }

    /// Removes what comes before a snapshot and its margin from the log.
    async fn trim(&self, stream: &Stream, older: &SharedSnapshot) -> Result<(), JournalError> {
        let place = decode(&older.place);
        let (_, place) = place.ok_or_else(|| damaged(older, "has a damaged place in the log"))?;
        let state = stream.get_info().await.map_err(failed)?.state;
        // The servers don't say how much of the stream lies before a message.
        let message_bytes = (state.bytes / state.messages.max(1)).max(1);
        let through = place.stream.saturating_sub(self.options.log_margin / message_bytes);
        if through > 0 {
            let trimmed = stream.purge().sequence(through + 1).await.map_err(failed)?;
            tracing::info!(through, messages = trimmed.purged, "trimmed the log behind the shared snapshots");
        }
        Ok(())
    }

    /// Begins a new log behind a snapshot, which is shared. [`Taken::place`] does not matter.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if the log has begun already; otherwise as [`NatsSnapshots::share`].
    pub fn begin_log(&self, taken: &Taken, parts: &mut Parts<'_>) -> Result<SharedSnapshot, JournalError> {
        let NatsSnapshots { context, options, .. } = self;
        let create = patiently(options, async || Ok(create_stream(context, options).await?));
        let (stream, log) = self.runtime.block_on(create)?;
        if self.has_begun()? {
            return Err(self.not_empty());
        }
        let mut stored = self.stored(log)?;
        // Behind the message that this puts at the beginning.
        let place = encode(log, &Place::after_snapshot(1, taken.seq));
        let taken = Taken { place, ..taken.clone() };
        let snapshot = self.upload(&self.archives()?, log, &taken, parts, &|| Ok(()))?;
        self.runtime.block_on(async {
            let message = PublishMessage::build().payload(BEGINNING.into()).expected_last_sequence(0);
            let subject = format!("{}.log", self.options.stream);
            let sent = self.context.send_publish(subject, message).await.map_err(failed)?;
            if !sent.await.is_ok_and(|ack| ack.sequence == 1) {
                return Err(self.not_empty());
            }
            // From here on a node needs the snapshot to begin.
            stream.purge().sequence(2).await.map_err(failed)
        })?;
        stored.list.snapshots = vec![snapshot.clone()];
        self.runtime.block_on(stored.write())?;
        Ok(snapshot)
    }

    fn not_empty(&self) -> JournalError {
        let stream = &self.options.stream;
        failed(format!("the stream {stream} is not empty: name another one with nats.stream, or remove it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An upload that goes on is left alone however long it takes.
    #[test]
    fn upload_is_abandoned_once_no_chunk_has_come_for_long() {
        let (start, mut undescribed) = (Instant::now(), Undescribed::default());
        let mut look = |chunks: &[(&str, usize)], seconds| {
            let found = chunks.iter().map(|(nuid, chunks)| ((*nuid).to_owned(), *chunks)).collect();
            undescribed.abandoned(found, start + Duration::from_secs(seconds))
        };
        assert!(look(&[("dead", 7), ("slow", 1)], 0).is_empty());
        assert!(look(&[("dead", 7), ("slow", 2)], 19).is_empty());
        assert_eq!(look(&[("dead", 7), ("slow", 2)], 20), ["dead"]);
        assert!(look(&[("slow", 3)], 40).is_empty());
        assert_eq!(look(&[("slow", 3)], 60), ["slow"]);
    }

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
        let list = List { version: VERSION, snapshots: vec![snapshot(9), snapshot(4)] };
        let value = serde_json::to_string(&list).unwrap();
        assert_eq!(List::decode(value.as_bytes()).unwrap().snapshots, list.snapshots);
        let newer = value.replace(&format!("\"version\":{VERSION}"), "\"version\":99");
        assert!(List::decode(newer.as_bytes()).is_err());
        assert!(List::decode(b"{}").is_err());
    }
}
