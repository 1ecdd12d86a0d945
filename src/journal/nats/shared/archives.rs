//! The archives themselves, in an object store. An archive's name has its position and its log, and its chunks are stored under
//! the same name: so whatever an upload leaves behind, when its node dies in the middle, can be told from what is needed.

use super::catalog::{Parts, SharedSnapshot, failed};
use crate::domain::Seq;
use crate::journal::nats::link::ensure_bucket;
use crate::journal::nats::options::NatsOptions;
use crate::journal::nats::order::LogId;
use crate::journal::{JournalError, random};
use async_nats::HeaderMap;
use async_nats::header::NATS_ROLLUP;
use async_nats::jetstream::context::Context;
use async_nats::jetstream::object_store::{self, GetErrorKind, InfoErrorKind, Object, ObjectStore};
use async_nats::jetstream::stream::Stream;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE;
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::future::IntoFuture;
use std::io::{self, Read};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// The size of a chunk, as object stores have them.
const CHUNK_BYTES: usize = 128 << 10;

/// Chunks that may be on their way.
const IN_FLIGHT_MAX: usize = 16;

/// How long the servers may send nothing of an archive.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// The name of an archive: its position, so that names are in order, the log, and a random number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Name {
    seq: Seq,
    log: LogId,
    nonce: u64,
}

impl Name {
    /// What a name says; `None` for somebody else's.
    fn parse(name: &str) -> Option<Name> {
        let mut parts = name.split('-');
        let seq = Seq(parts.next()?.parse().ok()?);
        let log = LogId(u128::from_str_radix(parts.next()?, 16).ok()?);
        let nonce = u64::from_str_radix(parts.next()?, 16).ok()?;
        let this = Name { seq, log, nonce };
        (this.to_string() == name).then_some(this)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}-{:032x}-{:016x}", self.seq.0, self.log.0, self.nonce)
    }
}

/// A new name for an archive of this position.
pub(super) fn name_of(seq: Seq, log: LogId) -> String {
    Name { seq, log, nonce: u64::from_le_bytes(random()) }.to_string()
}

/// The object store with the archives.
pub(super) struct Archives {
    context: Context,
    bucket: String,
    objects: ObjectStore,
    /// The stream under the object store.
    stream: Stream,
    runtime: Handle,
}

impl Archives {
    /// Opens the object store or creates it.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for all calls.
    pub(super) async fn open(
        context: &Context,
        options: &NatsOptions,
        runtime: Handle,
    ) -> Result<Archives, JournalError> {
        let bucket = format!("{}-snapshots", options.stream);
        let stream = ensure_bucket(context, options).await?;
        let objects = context.get_object_store(&bucket).await.map_err(failed)?;
        Ok(Archives { context: context.clone(), bucket, objects, stream, runtime })
    }

    fn chunks_subject(&self, name: &str) -> String {
        format!("$O.{}.C.{name}", self.bucket)
    }

    fn info_subject(&self, name: &str) -> String {
        format!("$O.{}.M.{}", self.bucket, BASE64_URL_SAFE.encode(name))
    }

    /// Uploads an archive; returns its length and digest.
    ///
    /// # Errors
    /// Those of `parts` too. A part of the archive may be there then, and nothing of it comes later.
    pub(super) fn put(&self, name: &str, parts: &mut Parts<'_>) -> Result<(u64, String), JournalError> {
        let (mut bytes, mut chunks, mut digest) = (0, 0, Sha256::new());
        let (subject, mut in_flight) = (self.chunks_subject(name), VecDeque::new());
        let mut put = || {
            while let Some(part) = parts()? {
                digest.update(&part);
                bytes += part.len();
                for chunk in part.chunks(CHUNK_BYTES) {
                    chunks += 1;
                    self.runtime.block_on(async {
                        let sent = self.context.publish(subject.clone(), chunk.to_vec().into()).await;
                        in_flight.push_back(sent.map_err(failed)?);
                        if in_flight.len() >= IN_FLIGHT_MAX
                            && let Some(oldest) = in_flight.pop_front()
                        {
                            oldest.await.map_err(failed)?;
                        }
                        Ok::<_, JournalError>(())
                    })?;
                }
            }
            Ok(())
        };
        let put: Result<(), JournalError> = put();
        let acks = join_all(in_flight.into_iter().map(IntoFuture::into_future));
        let acked: Result<Vec<_>, _> = self.runtime.block_on(acks).into_iter().collect();
        put?;
        acked.map_err(failed)?;
        let digest = format!("SHA-256={}", BASE64_URL_SAFE.encode(digest.finalize()));
        let info = object_store::ObjectInfo {
            name: name.to_owned(),
            description: None,
            metadata: HashMap::new(),
            headers: None,
            options: Some(object_store::ObjectOptions { link: None, max_chunk_size: Some(CHUNK_BYTES) }),
            bucket: self.bucket.clone(),
            nuid: name.to_owned(),
            size: bytes,
            chunks,
            modified: Some(async_nats::datetime::now()),
            digest: Some(digest.clone()),
            deleted: false,
        };
        self.runtime.block_on(async {
            let mut headers = HeaderMap::new();
            headers.insert(NATS_ROLLUP, "sub");
            let info = serde_json::to_vec(&info).map_err(failed)?;
            let sent = self.context.publish_with_headers(self.info_subject(name), headers, info.into());
            sent.await.map_err(failed)?.await.map_err(failed)
        })?;
        Ok((bytes as u64, digest))
    }

    /// Whether the archive of a snapshot is there. What is in it may be damaged.
    ///
    /// # Errors
    /// [`JournalError::Failed`].
    pub(super) async fn has(&self, snapshot: &SharedSnapshot) -> Result<bool, JournalError> {
        match self.objects.info(&snapshot.name).await {
            Ok(info) => Ok(!info.deleted && info.digest.as_ref() == Some(&snapshot.digest)),
            Err(error) if error.kind() == InfoErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// Reads the archive of a snapshot. An error of the last read tells that it is not what its digest says.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if there is none, or one with another digest.
    pub(super) fn read(&self, snapshot: &SharedSnapshot) -> Result<Download, JournalError> {
        let damaged =
            |why: &str| JournalError::Damaged(format!("the shared snapshot {} {why}", snapshot.name));
        let object = self.runtime.block_on(self.objects.get(&snapshot.name));
        let object = object.map_err(|error| match error.kind() {
            GetErrorKind::NotFound => damaged("is not there"),
            _ => failed(error),
        })?;
        if object.info.digest.as_ref() != Some(&snapshot.digest) {
            return Err(damaged("is not the one that was uploaded"));
        }
        Ok(Download { runtime: self.runtime.clone(), object })
    }

    /// Removes an archive, or what there is of it.
    ///
    /// # Errors
    /// [`JournalError::Failed`].
    pub(super) async fn remove(&self, name: &str) -> Result<(), JournalError> {
        // Whoever finds the description must find the chunks.
        for subject in [self.info_subject(name), self.chunks_subject(name)] {
            self.stream.purge().filter(subject).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Removes the archives of this log for positions before this one, and what its uploads have left, except these. Archives of other
    /// logs stay: they may be the only copy of what was acknowledged there.
    ///
    /// # Errors
    /// [`JournalError::Failed`].
    pub(super) async fn remove_before(
        &self,
        seq: Seq,
        log: LogId,
        kept: &[SharedSnapshot],
    ) -> Result<(), JournalError> {
        let all = self.stream.info_with_subjects(format!("$O.{}.>", self.bucket)).await.map_err(failed)?;
        let all: Vec<(String, usize)> = all.try_collect().await.map_err(failed)?;
        let names: BTreeSet<String> = all.iter().filter_map(|(subject, _)| self.name_in(subject)).collect();
        let is_old = |name: &str| Name::parse(name).is_some_and(|of| of.log == log && of.seq < seq);
        let old = names.into_iter().filter(|name| is_old(name));
        for name in old.filter(|name| kept.iter().all(|kept| kept.name != *name)) {
            tracing::info!(name, "removing an archive that is not needed any more");
            self.remove(&name).await?;
        }
        Ok(())
    }

    /// The name of the archive to which a message of this subject belongs.
    fn name_in(&self, subject: &str) -> Option<String> {
        let (kind, name) = subject.strip_prefix(&format!("$O.{}.", self.bucket))?.split_once('.')?;
        match kind {
            "C" => Some(name.to_owned()),
            "M" => String::from_utf8(BASE64_URL_SAFE.decode(name).ok()?).ok(),
            _ => None,
        }
    }
}

/// An archive that is being read.
pub(super) struct Download {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_in_the_order_of_positions_and_never_twice() {
        let (seqs, log) = ([0, 9, 10, u64::MAX], LogId(u128::MAX - 5));
        let names: Vec<String> = seqs.map(|seq| name_of(Seq(seq), log)).into();
        assert!(names.is_sorted());
        for (name, seq) in names.iter().zip(seqs) {
            let found = Name::parse(name).unwrap();
            assert_eq!((found.seq, found.log), (Seq(seq), log));
        }
        assert_ne!(name_of(Seq(5), LogId(1)), name_of(Seq(5), LogId(1)));
        let more = format!("{}-", names[0]);
        let strange = ["", "somebody else's", "5-1-1", &more];
        assert!(strange.iter().all(|name| Name::parse(name).is_none()));
    }
}
