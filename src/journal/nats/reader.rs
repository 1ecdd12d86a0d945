//! Reads the stream's messages in order, from a number on. Nothing that the servers say is believed. A message must be the next one,
//! and a repeated one is passed over. After a gap, an error or a silence the reader opens everything anew, behind the last message
//! that it passed on.

use super::link::{Link, retry};
use super::message;
use super::order::Place;
use super::replication::Replication;
use crate::domain::Timestamp;
use crate::journal::JournalError;
use async_nats::jetstream;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use bytes::Bytes;
use futures_util::StreamExt;
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// How often an idle server has to say that it is there.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// How long one request for messages stands.
const PULL_EXPIRES: Duration = Duration::from_secs(10);

/// Messages that are asked for at once. Each may have 1 MiB.
const PULL_MESSAGES: usize = 64;

/// Messages that were read and not taken.
const READ_AHEAD: usize = 32;

/// A server removes a consumer that nobody asks for this long.
const CONSUMER_IDLE: Duration = Duration::from_secs(30);

/// Pause before everything is opened again.
const PAUSE: Duration = Duration::from_millis(250);

/// For so long a log that is not there, or is shorter than what was read, may be a server that has just started.
const LOST_PATIENCE: Duration = Duration::from_secs(20);

/// A message of the stream.
#[derive(Debug)]
pub(super) struct StreamMessage {
    pub(super) number: u64,
    pub(super) payload: Bytes,
    /// When the stream's leader got it, by its clock.
    pub(super) at: Timestamp,
    /// How many come after it, as far as its server knows.
    pub(super) behind: u64,
}

/// A running reader. Dropping it ends it.
pub(super) struct Reader {
    messages: mpsc::Receiver<Result<StreamMessage, JournalError>>,
    task: JoinHandle<()>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Reader {
    /// Starts a reader at a place.
    pub(super) fn start(link: Link, status: Arc<Mutex<Replication>>, place: &Place) -> Reader {
        let (sender, messages) = mpsc::channel(READ_AHEAD);
        let (next, last) = (place.stream + 1, place.checksum);
        status.lock().opened = None;
        let reading = Reading { link, status, next, last, lost_since: None, sender };
        Reader { messages, task: tokio::spawn(reading.run()) }
    }

    /// Whether nothing was read that was not taken.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The next message; an error is the last thing that comes. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<StreamMessage, JournalError> {
        let ended = || Err(JournalError::Failed("the reader of the log has ended".to_owned()));
        self.messages.recv().await.unwrap_or_else(ended)
    }
}

/// Whether an answer says that there is no such stream.
fn is_not_found(error: &(dyn std::error::Error + 'static)) -> bool {
    let answer = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
    answer.is_some_and(|answer| answer.error_code() == jetstream::ErrorCode::STREAM_NOT_FOUND)
}

struct Reading {
    link: Link,
    status: Arc<Mutex<Replication>>,
    /// The number of the next message.
    next: u64,
    /// Checksum of the one before it.
    last: u128,
    /// Since when the log seems to be gone, or shorter than what was read.
    lost_since: Option<Instant>,
    sender: mpsc::Sender<Result<StreamMessage, JournalError>>,
}

impl Reading {
    async fn run(mut self) {
        loop {
            let read = self.read().await;
            self.status.lock().opened = None;
            match read {
                Ok(()) => return,
                // Everything is opened again after that.
                Err(JournalError::Failed(why)) => {
                    self.note_trouble(why);
                    sleep(PAUSE).await;
                }
                Err(error) => {
                    let _ = self.sender.send(Err(error)).await;
                    return;
                }
            }
        }
    }

    fn note_trouble(&self, why: String) {
        let mut known = self.status.lock();
        known.reopened += 1;
        if known.trouble.as_ref() != Some(&why) {
            tracing::warn!(why, next = self.next, "log reader failed; reopening");
            known.trouble = Some(why);
        }
    }

    /// Waits for the servers' response, up to a limit: without a leader there is none.
    async fn respond<T, E: std::fmt::Display>(
        &self,
        response: impl Future<Output = Result<T, E>>,
    ) -> Result<T, JournalError> {
        match timeout(self.link.patience, response).await {
            Ok(response) => response.map_err(retry),
            Err(_) => Err(retry("the servers do not respond")),
        }
    }

    /// Passes messages on until something is wrong, or nobody takes them any more.
    async fn read(&mut self) -> Result<(), JournalError> {
        self.check().await?;
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: self.next },
            ack_policy: AckPolicy::None,
            inactive_threshold: CONSUMER_IDLE,
            num_replicas: 1,
            memory_storage: true,
            ..pull::Config::default()
        };
        let consumer = self.respond(self.link.stream.create_consumer(config)).await?;
        let pulling = consumer
            .stream()
            .max_messages_per_batch(PULL_MESSAGES)
            .expires(PULL_EXPIRES)
            .heartbeat(HEARTBEAT)
            .messages();
        let mut messages = self.respond(pulling).await?;
        self.status.lock().opened = Some(std::time::Instant::now());
        while let Some(message) = messages.next().await {
            let message = message.map_err(retry)?;
            let info = message.info().map_err(retry)?;
            if info.stream_sequence < self.next {
                continue;
            }
            if info.stream_sequence > self.next {
                return Err(retry(format!("message {} came instead of {}", info.stream_sequence, self.next)));
            }
            let milliseconds = info.published.unix_timestamp_nanos() / 1_000_000;
            let read = StreamMessage {
                number: self.next,
                at: Timestamp(u64::try_from(milliseconds).unwrap_or_default()),
                behind: info.pending,
                payload: message.message.payload,
            };
            if message::is_suspect(&read.payload) {
                // All nodes skip what is foreign. A message that was damaged on its way to this node alone must not be skipped.
                let again_read = self.respond(self.link.stream.get_raw_message(self.next)).await?;
                if again_read.payload != read.payload {
                    return Err(retry(format!("message {} arrived damaged", self.next)));
                }
            }
            let checksum = message::checksum(&read.payload);
            if self.sender.send(Ok(read)).await.is_err() {
                return Ok(());
            }
            (self.next, self.last) = (self.next + 1, checksum);
            self.lost_since = None;
        }
        Err(retry("the messages have ended"))
    }

    /// Checks that the stream is still the one that was opened, and that it has not lost what was read. If it has any later message,
    /// it must have the next one.
    async fn check(&mut self) -> Result<(), JournalError> {
        let info = timeout(self.link.patience, self.link.stream.get_info()).await;
        match &info {
            Ok(Err(error)) if is_not_found(error) => {
                return Err(self.lost("the log's stream was deleted".to_owned()));
            }
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => self.lost_since = None,
        }
        let info = info.map_err(|_| retry("the servers do not respond"))?.map_err(retry)?;
        if info.created != self.link.stream.cached_info().created {
            let error = "the stream was deleted and made again while this node was using it";
            return Err(JournalError::Damaged(error.to_owned()));
        }
        let (first, last) = (info.state.first_sequence, info.state.last_sequence);
        if first > self.next {
            return Err(JournalError::Trimmed(format!(
                "the log was trimmed up to message {}, and this node needs message {}: a restart begins with a shared snapshot",
                first - 1,
                self.next
            )));
        }
        if last + 1 >= self.next {
            self.lost_since = None;
            return self.check_last(first).await;
        }
        let why = format!(
            "the log ends at message {last}, and this node has applied message {}: the servers have lost acknowledged entries",
            self.next - 1
        );
        Err(self.lost(why))
    }

    /// The log seems to have lost what it had. That is final if it stays so.
    fn lost(&mut self, why: String) -> JournalError {
        let since = *self.lost_since.get_or_insert_with(Instant::now);
        if since.elapsed() < LOST_PATIENCE { JournalError::Failed(why) } else { JournalError::Damaged(why) }
    }

    /// Checks that the message before the next one is the one that was read there: a log that has lost its end may have grown again
    /// since.
    async fn check_last(&self, first: u64) -> Result<(), JournalError> {
        let number = self.next - 1;
        if number == 0 || number < first {
            return Ok(());
        }
        let found = self.respond(self.link.stream.get_raw_message(number)).await?;
        if message::checksum(&found.payload) == self.last {
            return Ok(());
        }
        Err(JournalError::Damaged(format!(
            "message {number} of the log is not the one that this node has applied: the servers have lost acknowledged entries, and \
             others came in their place"
        )))
    }
}
