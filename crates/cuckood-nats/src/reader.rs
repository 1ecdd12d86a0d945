//! Reads the stream's messages in order, from a number on. It verifies every response of the servers. A message must be the next one, and a
//! repeated one is skipped. After a gap, an error or a silence the reader reopens everything, after the last message that it delivered.

use super::link::{Link, find_stream, now_in_runtime, retry};
use super::message::{self, Message};
use super::order::StreamPlace;
use async_nats::jetstream;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::Stream;
use bytes::Bytes;
use cuckood_log::journal::{JournalError, Result};
use cuckood_state::domain::Timestamp;
use futures_util::{StreamExt, TryFutureExt};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// How often an idle server has to say that it is there.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Lifetime of one request for messages.
const PULL_EXPIRES: Duration = Duration::from_secs(10);

/// Messages per request. Each may have 1 MiB.
const PULL_MESSAGES: usize = 64;

/// Messages that were read and not taken.
pub(super) const READ_AHEAD: usize = 32;

/// Messages that are verified at the same time. A foreign one takes a round trip.
const VERIFIED_MAX: usize = 32;

/// Idle time after which a server removes a consumer.
const CONSUMER_IDLE: Duration = Duration::from_secs(30);

/// Pause before everything is opened again.
const PAUSE: Duration = Duration::from_millis(100);

/// A missing log, or one shorter than the messages read, may be a server that has just started, for this time.
const LOST_TIMEOUT: Duration = Duration::from_secs(20);

/// The next message of the stream.
#[derive(Debug)]
pub struct StreamMessage {
    pub(super) number: u64,
    /// Number of later messages.
    pub(super) later: u64,
    payload: Bytes,
    pub(super) checksum: u128,
    /// `None` if it is foreign.
    pub(super) message: Option<Message>,
    /// When the stream's leader got it, by its clock.
    pub(super) at: Timestamp,
    /// When it was read.
    pub(super) read_at: Instant,
}

impl StreamMessage {
    /// Decodes a message of the stream. `has_own` says whether a message before it has this build's format.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if another version of the service has written it.
    pub(super) fn decode(
        number: u64,
        later: u64,
        payload: Bytes,
        has_own: bool,
        at: Timestamp,
        read_at: Instant,
    ) -> News {
        let checksum = message::checksum(&payload);
        let message = message::decode(&payload, has_own).map_err(|why| {
            JournalError::Damaged(format!("message {number} of the stream: {why}"))
        })?;
        Ok(StreamMessage {
            number,
            later,
            payload,
            checksum,
            message,
            at,
            read_at,
        })
    }
}

/// The next message; an error is the last.
pub(super) type News = Result<StreamMessage>;

/// Whether the messages arrive that the log has shown. A consumer is on one of the servers, and delivers at the pace of its disk: slower
/// than the log grows, if that disk is much slower than the others.
struct Arrivals {
    /// The next message when the wait began.
    next: u64,
    /// Messages from there on that the log had shown.
    missing: u64,
    /// How long the reader has waited for messages since. The time in which it could not pass them on doesn't count.
    waited: Duration,
}

impl Arrivals {
    /// Begins to wait for all messages up to this end of the log.
    fn new(next: u64, end: u64) -> Self {
        Self {
            next,
            missing: (end + 1).saturating_sub(next),
            waited: Duration::ZERO,
        }
    }

    /// Notes a wait, after which `next` is the next message, and the log is known up to `end`. Returns whether the reader falls behind: in
    /// `limit`, not all messages have arrived that were missing before, and no fewer are missing than then.
    fn falls_behind(&mut self, waited: Duration, next: u64, end: u64, limit: Duration) -> bool {
        self.waited += waited;
        if self.waited < limit {
            return false;
        }
        let before = std::mem::replace(self, Self::new(next, end));
        next < before.next + before.missing && self.missing >= before.missing
    }
}

/// The task that reads. It ends with its receiver, after an error that is final, or with its runtime.
pub(super) struct StreamReader {
    link: Arc<Link>,
    /// The number of the next message.
    next: u64,
    /// Checksum of the one before it.
    last: u128,
    /// Whether a message before the next one has this build's format. A place implies it.
    has_own: bool,
    /// Since when the log seems to be missing, or shorter than the messages read.
    lost_since: Option<Instant>,
    sender: mpsc::Sender<News>,
}

impl StreamReader {
    /// A reader from a place on.
    pub(super) fn new(
        link: Arc<Link>,
        place: &StreamPlace,
        sender: mpsc::Sender<News>,
    ) -> StreamReader {
        let &StreamPlace {
            stream,
            checksum: last,
            ..
        } = place;
        StreamReader {
            link,
            next: stream + 1,
            last,
            has_own: stream > 0,
            lost_since: None,
            sender,
        }
    }

    pub(super) async fn run(mut self) {
        while let Err(error) = self.read().await {
            // Everything is opened again after that.
            if let JournalError::Failed(why) = error {
                self.note_trouble(why);
                sleep(PAUSE).await;
            } else {
                let _ = self.sender.send(Err(error)).await;
                return;
            }
        }
    }

    fn note_trouble(&self, why: String) {
        let mut known = self.link.status.lock();
        known.reopened += 1;
        let before = known.trouble.replace(why.clone());
        drop(known);
        if before.as_ref() != Some(&why) {
            tracing::warn!(why, next = self.next, "log reader failed; reopening");
        }
    }

    /// Delivers messages until something is wrong, or the receiver is gone.
    async fn read(&mut self) -> Result<()> {
        let link = self.link.clone();
        let stream = self.check().await?;
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartSequence {
                start_sequence: self.next,
            },
            ack_policy: AckPolicy::None,
            inactive_threshold: CONSUMER_IDLE,
            num_replicas: 1,
            memory_storage: true,
            ..pull::Config::default()
        };
        let consumer = link
            .respond(stream.create_consumer(config).map_err(retry))
            .await?;
        let pulling = consumer
            .stream()
            .max_messages_per_batch(PULL_MESSAGES)
            .expires(PULL_EXPIRES)
            .heartbeat(HEARTBEAT)
            .messages();
        let pulled = link.respond(pulling.map_err(retry)).await?;
        let mut has_own = self.has_own;
        let decoded = pulled.map(|received| {
            let decoded = received
                .map_err(retry)
                .and_then(|received| decode(received, has_own));
            has_own |= decoded
                .as_ref()
                .is_ok_and(|decoded| decoded.message.is_some());
            verify(&link, &stream, decoded)
        });
        let mut messages = pin!(decoded.buffered(VERIFIED_MAX));
        let patience = link.ack_timeout / 2;
        let mut arrivals = Arrivals::new(self.next, link.status.lock().known_end);
        loop {
            let asked_at = now_in_runtime();
            let received = timeout(patience, messages.next()).await;
            let waited = now_in_runtime().saturating_duration_since(asked_at);
            let known_end = link.status.lock().known_end;
            if arrivals.falls_behind(waited, self.next, known_end, patience) {
                let missing = arrivals.missing;
                return Err(retry(format!(
                    "{missing} messages from {} on do not arrive, or too slowly",
                    self.next
                )));
            }
            let Ok(message) = received else {
                continue;
            };
            let message = message.ok_or_else(|| retry("the messages have ended"))??;
            if message.number < self.next {
                continue;
            }
            if message.number > self.next {
                return Err(retry(format!(
                    "received message {} instead of {}",
                    message.number, self.next
                )));
            }
            {
                let mut known = link.status.lock();
                known.show(message.number + message.later, message.read_at);
                known.trouble = None;
            }
            self.has_own |= message.message.is_some();
            let checksum = message.checksum;
            if self.sender.send(Ok(message)).await.is_err() {
                return Ok(());
            }
            (self.next, self.last) = (self.next + 1, checksum);
            self.lost_since = None;
        }
    }

    /// Checks that the stream is still the opened one, and that it has not lost messages that were read. If it has any later message, it
    /// must have the next one.
    async fn check(&mut self) -> Result<Stream> {
        let found = self
            .link
            .respond(find_stream(&self.link.context, &self.link.options))
            .await;
        let Some((stream, log)) = found.inspect_err(|_| self.lost_since = None)? else {
            return Err(self.lost("the log's stream was deleted".to_owned()));
        };
        if log != self.link.log {
            let error = "the stream was deleted and made again while this node was using it";
            return Err(JournalError::Damaged(error.to_owned()));
        }
        let state = &stream.cached_info().state;
        let first = state.first_sequence;
        let last = state.last_sequence;
        if first > self.next {
            return Err(JournalError::Trimmed(format!(
                "the log was trimmed up to message {}, and this node needs message {}: a restart begins with a shared snapshot",
                first - 1,
                self.next
            )));
        }
        let number = self.next - 1;
        if last < number {
            return Err(self.lost(format!(
                "the log ends at message {last}, and this node has applied message {number}: the servers have lost acknowledged entries"
            )));
        }
        self.lost_since = None;
        // A log that has lost its end may have grown again since.
        if number >= first.max(1) {
            let found = self
                .link
                .respond(stream.get_raw_message(number).map_err(retry))
                .await?;
            if message::checksum(&found.payload) != self.last {
                return Err(JournalError::Damaged(format!(
                    "message {number} of the log is not the one that this node has applied: the servers have replaced acknowledged entries"
                )));
            }
        }
        Ok(stream)
    }

    /// The log seems to have lost messages. That is final if it persists.
    fn lost(&mut self, why: String) -> JournalError {
        let now = now_in_runtime();
        let since = *self.lost_since.get_or_insert(now);
        if now.saturating_duration_since(since) < LOST_TIMEOUT {
            JournalError::Failed(why)
        } else {
            JournalError::Damaged(why)
        }
    }
}

fn decode(received: jetstream::Message, has_own: bool) -> News {
    let info = received.info().map_err(retry)?;
    let payload = received.payload.clone();
    let number = info.stream_sequence;
    let later = info.pending;
    let published = info.published;
    let milliseconds =
        u64::try_from(published.unix_timestamp_nanos() / 1_000_000).unwrap_or_default();
    let at = Timestamp(milliseconds);
    StreamMessage::decode(number, later, payload, has_own, at, now_in_runtime())
}

/// Reads a foreign message again, which all nodes skip: it may have been damaged in transit to this node alone.
async fn verify(link: &Link, stream: &Stream, received: News) -> News {
    let received = received?;
    if received.message.is_none() {
        let again_read = link
            .respond(stream.get_raw_message(received.number).map_err(retry))
            .await?;
        if again_read.payload != received.payload {
            return Err(retry(format!(
                "message {} arrived damaged",
                received.number
            )));
        }
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    /// Waits `each` for every message from 1 on, while the log grows by `growth` per message. Returns the message at which the reader
    /// falls behind.
    fn behind_at(each: Duration, known: u64, growth: f64) -> Option<u64> {
        let mut arrivals = Arrivals::new(1, known);
        (1..=1_000).find(|&next| {
            let end = known + (growth * (next - 1) as f64) as u64;
            arrivals.falls_behind(each, next, end, LIMIT)
        })
    }

    #[test]
    fn reader_that_falls_behind_is_noticed() {
        let [slow, fast] = [50, 1].map(Duration::from_millis);
        assert_eq!(behind_at(slow, 1_000, 5.0), Some(20));
        // It catches up, however long that takes.
        assert_eq!(behind_at(slow, 1_000, 0.5), None);
        // What was missing has arrived in time, however many are missing now.
        assert_eq!(behind_at(fast, 100, 2.0), None);
        assert_eq!(behind_at(slow, 10, 1.0), None);
        // A reader that waits for its node is not behind.
        assert_eq!(behind_at(Duration::ZERO, 1_000, 5.0), None);
    }

    #[test]
    fn missing_message_is_noticed_and_idle_log_is_not() {
        let waits = |end: u64| {
            let mut arrivals = Arrivals::new(7, 6);
            (1..=10).find(|_| arrivals.falls_behind(LIMIT, 7, end, LIMIT))
        };
        assert_eq!(waits(6), None);
        // The first wait shows that there is a message, the second one that it doesn't arrive.
        assert_eq!(waits(7), Some(2));
    }
}
