//! The snapshots that nodes share: archives in an object store, a list of the two newest in a key-value bucket, and a lease in another
//! one. They have a connection of their own, so that a transfer never holds up the log.
//!
//! The list is what counts. It is replaced by compare-and-set, and only by a node that has read back what it uploaded. So a node that
//! lost its lease without noticing does no harm: its archive is not in the list, and goes with the next upload.

mod archives;
mod catalog;

use super::link::{connect_beside, create_stream, find_stream, patiently};
use super::options::NatsOptions;
use super::order::{LogId, Place, decode, encode, keep};
use crate::journal::JournalError;
use crate::store::Store;
use archives::Archives;
use async_nats::jetstream::context::Context;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::Stream;
use catalog::{Catalog, Lease, failed};
pub use catalog::{Check, Parts, SharedSnapshot, Taken, check_shared, read_shared};
use std::io::Read;
use tokio::runtime::{Builder, Runtime};

/// What stands at the beginning of a log that begins behind a snapshot. Nobody reads it: it is removed at once.
const BEGINNING: &str = "this log begins behind a snapshot";

/// One node's access to the snapshots that are shared.
pub struct NatsSnapshots {
    options: NatsOptions,
    context: Context,
    lease: Option<Lease>,
    // Dropped last: everything above needs it.
    runtime: Runtime,
}

impl NatsSnapshots {
    /// Connects to the servers.
    ///
    /// # Errors
    /// [`JournalError::Failed`].
    pub fn open(options: &NatsOptions) -> Result<NatsSnapshots, JournalError> {
        // The connection needs a thread that serves it between two calls.
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).thread_name("snapshots").enable_all().build();
        let runtime = runtime.map_err(|error| failed(format!("can't start a runtime: {error}")))?;
        let context = runtime.block_on(connect_beside(options))?;
        Ok(NatsSnapshots { options: options.clone(), context, lease: None, runtime })
    }

    /// How the nodes' log is reached.
    pub fn options(&self) -> &NatsOptions {
        &self.options
    }

    fn stream(&self) -> Result<Option<(Stream, LogId)>, JournalError> {
        self.runtime.block_on(find_stream(&self.context, &self.options))
    }

    fn archives(&self) -> Result<Archives, JournalError> {
        let handle = self.runtime.handle().clone();
        self.runtime.block_on(Archives::open(&self.context, &self.options, handle))
    }

    fn catalog(&self, log: LogId) -> Result<Catalog, JournalError> {
        self.runtime.block_on(Catalog::read(&self.context, &self.options, log))
    }

    fn share_under(
        &self,
        lease: &Lease,
        taken: &Taken,
        parts: &mut Parts<'_>,
        check: &Check<'_>,
    ) -> Result<SharedSnapshot, JournalError> {
        let (stream, log) = self.stream()?.ok_or_else(|| failed("there is no log"))?;
        if decode(&taken.place).is_none_or(|(of, _)| of != log) {
            return Err(failed("this node's snapshot is not of this log: the stream was made anew"));
        }
        let (archives, catalog) = (self.archives()?, self.catalog(log)?);
        let older = match catalog.newest() {
            Some(newest) if self.runtime.block_on(archives.has(newest))? => Some(newest.clone()),
            _ => None,
        };
        if older.as_ref().is_some_and(|older| older.seq >= taken.seq) {
            return Err(failed("a snapshot that is as new is shared already"));
        }
        let check = || lease.check().and_then(|()| check());
        let snapshot = self.upload(&archives, (log, taken), parts, &check)?;
        let kept: Vec<SharedSnapshot> = [snapshot.clone()].into_iter().chain(older.clone()).collect();
        self.runtime.block_on(catalog.replace(kept.clone()))?;
        // What follows can be done by the next one who shares a snapshot.
        let tidied = self.runtime.block_on(async {
            archives.remove_before(snapshot.seq, log, &kept).await?;
            match &older {
                Some(older) if archives.has(older).await? => {
                    check()?;
                    self.trim(&stream, older).await
                }
                _ => Ok(()),
            }
        });
        if let Err(error) = tidied {
            tracing::warn!(%error, "what came before the shared snapshots is not removed yet");
        }
        Ok(snapshot)
    }

    /// Uploads an archive and reads it back. If it must not count then, it is removed.
    fn upload(
        &self,
        archives: &Archives,
        (log, taken): (LogId, &Taken),
        parts: &mut Parts<'_>,
        check: &Check<'_>,
    ) -> Result<SharedSnapshot, JournalError> {
        let name = archives::name_of(taken.seq, log);
        let uploaded = archives.put(&name, &mut || check().and_then(|()| parts()));
        let checked = uploaded.and_then(|(bytes, digest)| {
            let Taken { seq, taken_at, place } = taken.clone();
            let node = self.options.node.clone();
            let snapshot = SharedSnapshot { name: name.clone(), seq, taken_at, node, bytes, digest, place };
            check_shared(&snapshot, archives.read(&snapshot)?)?;
            check()?;
            Ok(snapshot)
        });
        if checked.is_err() {
            // If this fails too, the next one who shares a snapshot does it.
            let _ = self.runtime.block_on(archives.remove(&name));
        }
        checked
    }

    /// Removes what comes before a snapshot and its margin from the log.
    async fn trim(&self, stream: &Stream, older: &SharedSnapshot) -> Result<(), JournalError> {
        let (_, place) = decode(&older.place).ok_or_else(|| damaged_place(older))?;
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

    fn begin_under(
        &self,
        lease: &Lease,
        taken: &Taken,
        parts: &mut Parts<'_>,
    ) -> Result<SharedSnapshot, JournalError> {
        let NatsSnapshots { context, options, .. } = self;
        let create = patiently(options, async || Ok(create_stream(context, options).await?));
        let (stream, log) = self.runtime.block_on(create)?;
        let (archives, catalog) = (self.archives()?, self.catalog(log)?);
        if self.is_used(&stream)? {
            return Err(self.not_empty());
        }
        // Behind the message that this puts at the beginning.
        let place = Place::after_snapshot(1, taken.seq);
        let taken = Taken { place: encode(log, &place), ..taken.clone() };
        let snapshot = self.upload(&archives, (log, &taken), parts, &|| lease.check())?;
        self.runtime.block_on(async {
            let message = PublishMessage::build().payload(BEGINNING.into()).expected_last_sequence(0);
            let subject = format!("{}.log", self.options.stream);
            let sent = self.context.send_publish(subject, message).await.map_err(failed)?;
            if !sent.await.is_ok_and(|ack| ack.sequence == 1) {
                return Err(self.not_empty());
            }
            // From here on a node needs the snapshot to begin.
            stream.purge().sequence(2).await.map_err(failed)?;
            catalog.replace(vec![snapshot.clone()]).await
        })?;
        Ok(snapshot)
    }

    fn is_used(&self, stream: &Stream) -> Result<bool, JournalError> {
        let info = self.runtime.block_on(stream.get_info()).map_err(failed)?;
        Ok(info.state.last_sequence > 0)
    }

    fn not_empty(&self) -> JournalError {
        let stream = &self.options.stream;
        failed(format!("the stream {stream} is not empty: name another one with nats.stream, or remove it"))
    }

    /// The snapshots that are shared, newest first; at most two.
    ///
    /// # Errors
    /// [`JournalError::Failed`], as for all calls, if the servers can't be reached.
    pub fn list(&mut self) -> Result<Vec<SharedSnapshot>, JournalError> {
        let NatsSnapshots { context, options, .. } = self;
        self.runtime.block_on(patiently(options, async || match find_stream(context, options).await? {
            None => Ok(Vec::new()),
            Some((_, log)) => Ok(Catalog::read(context, options, log).await?.snapshots),
        }))
    }

    /// Whether the archive of a snapshot exists. An operator may have deleted it.
    ///
    /// # Errors
    /// [`JournalError::Failed`].
    pub fn has(&mut self, snapshot: &SharedSnapshot) -> Result<bool, JournalError> {
        let archives = self.archives()?;
        self.runtime.block_on(archives.has(snapshot))
    }

    /// The archive of a snapshot. It may be damaged or gone by now: [`check_shared`] it before anything depends on it.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if there is another archive in its place, or none.
    pub fn read(&mut self, snapshot: &SharedSnapshot) -> Result<impl Read + use<>, JournalError> {
        self.archives()?.read(snapshot)
    }

    /// Notes in a directory into which a snapshot is loaded where the log goes on behind it.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if that can't be read.
    pub fn adopt(&mut self, snapshot: &SharedSnapshot, store: &Store) -> Result<(), JournalError> {
        let SharedSnapshot { seq, place, .. } = snapshot;
        let found = decode(place).filter(|(_, place)| place.seq == *seq);
        found.ok_or_else(|| damaged_place(snapshot))?;
        Ok(keep(store, *seq, place.clone())?)
    }

    /// Claims the right to share the next snapshot. One node has it at a time; it gets lost when the node dies.
    /// [`NatsSnapshots::share`] and [`NatsSnapshots::release`] give it back.
    ///
    /// # Errors
    /// [`JournalError::Failed`].
    pub fn claim(&mut self) -> Result<bool, JournalError> {
        if self.lease.as_ref().is_some_and(|lease| !lease.is_lost()) {
            return Ok(true);
        }
        self.lease = self.runtime.block_on(Lease::claim(&self.context, &self.options))?;
        Ok(self.lease.is_some())
    }

    /// Gives the right back, if this node has it.
    pub fn release(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.runtime.block_on(lease.release());
        }
    }

    /// Uploads a snapshot, reads it back, and makes it the newest one. Then it removes what came before the two newest ones, and trims
    /// the log behind the older of them, less a margin. What it is uploaded for, and the trimming, is done only if `check` still allows it.
    ///
    /// # Errors
    /// [`JournalError::Failed`] without the right, or if it was lost meanwhile, or another snapshot is as new; those of the parts and of
    /// the check. The snapshots that are shared are the same as before then.
    pub fn share(
        &mut self,
        taken: &Taken,
        parts: &mut Parts<'_>,
        check: &Check<'_>,
    ) -> Result<SharedSnapshot, JournalError> {
        let lease = self.lease.take().ok_or_else(|| failed("another node has the right to share one"))?;
        let shared = self.share_under(&lease, taken, parts, check);
        self.runtime.block_on(lease.release());
        shared
    }

    /// Whether the log reaches back to its first message.
    ///
    /// # Errors
    /// [`JournalError::Failed`].
    pub fn is_log_whole(&mut self) -> Result<bool, JournalError> {
        let Some((stream, _)) = self.stream()? else { return Ok(false) };
        Ok(stream.cached_info().state.first_sequence <= 1)
    }

    /// Whether the log has begun: there are entries, or there were some.
    ///
    /// # Errors
    /// [`JournalError::Failed`].
    pub fn has_begun(&mut self) -> Result<bool, JournalError> {
        match self.stream()? {
            Some((stream, _)) => self.is_used(&stream),
            None => Ok(false),
        }
    }

    /// Begins a new log behind a snapshot, which is shared. [`Taken::place`] does not matter.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if the log has begun already; otherwise as [`NatsSnapshots::share`].
    pub fn begin_log(
        &mut self,
        taken: &Taken,
        parts: &mut Parts<'_>,
    ) -> Result<SharedSnapshot, JournalError> {
        if !self.claim()? {
            return Err(self.not_empty());
        }
        let lease = self.lease.take().ok_or_else(|| self.not_empty())?;
        let begun = self.begin_under(&lease, taken, parts);
        self.runtime.block_on(lease.release());
        begun
    }
}

fn damaged_place(of: &SharedSnapshot) -> JournalError {
    JournalError::Damaged(format!("shared snapshots: the place of {} in the log is damaged", of.name))
}
