//! The stream as a port: what a journal needs of the servers' connection. [`NatsPort`] implements it with tasks on a small runtime;
//! a simulation has another one.

use super::link::{Link, find_stream, now_in_runtime};
use super::order::StreamPlace;
use super::outbox::DeliveryAttempt;
use super::reader::{News, READ_AHEAD, StreamMessage, StreamReader};
use async_nats::jetstream::context::PublishError;
use async_nats::jetstream::{self, ErrorCode};
use bytes::Bytes;
use cuckood_log::journal::{JournalError, Result};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::error::Error;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc;
use tokio::time::sleep;

/// How often a node asks how far the log is.
const END_EVERY: Duration = Duration::from_secs(1);

/// The servers' response to an attempt to publish a message.
#[derive(Debug)]
pub enum Publication {
    /// The message has this number in the stream.
    Acknowledged(u64),
    /// The servers reject it or have not answered: it may be in the stream all the same.
    Rejected {
        /// The reason.
        why: String,
        /// Whether the stream is full.
        is_full: bool,
    },
}

/// A connection to the servers of a stream.
pub trait StreamPort: Send {
    /// The runtime in which the journal polls, if the connection needs one.
    fn runtime(&self) -> Option<Handle>;

    /// The monotonic time of the connection.
    fn now(&self) -> Instant;

    /// Whether there is a connection.
    fn is_connected(&self) -> bool;

    /// The name and the version of the server.
    fn server(&self) -> (String, String);

    /// Starts to read the messages after a place.
    fn follow(&mut self, place: &StreamPlace);

    /// Returns the next message of the stream, each once and in order.
    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Result<StreamMessage>>;

    /// Publishes a message. The servers may store it late, several times, or never.
    fn publish(&mut self, attempt: DeliveryAttempt, bytes: Bytes);

    /// Returns the next response to an attempt.
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<(DeliveryAttempt, Publication)>;

    /// Whether the servers have not answered an attempt yet.
    fn is_unanswered(&self) -> bool;

    /// Replaces the connection.
    fn reconnect(&mut self);
}

/// A response to come.
type PublicationFuture = BoxFuture<'static, (DeliveryAttempt, Publication)>;

/// The connection to servers of NATS.
pub struct NatsPort {
    link: Arc<Link>,
    messages: Option<mpsc::Receiver<News>>,
    answers: FuturesUnordered<PublicationFuture>,
    // Dropped last: everything above needs it.
    runtime: Runtime,
}

impl NatsPort {
    pub(super) fn new(runtime: Runtime, link: Link) -> NatsPort {
        NatsPort {
            link: Arc::new(link),
            messages: None,
            answers: FuturesUnordered::new(),
            runtime,
        }
    }
}

impl StreamPort for NatsPort {
    fn runtime(&self) -> Option<Handle> {
        Some(self.runtime.handle().clone())
    }

    fn now(&self) -> Instant {
        let _entered = self.runtime.enter();
        now_in_runtime()
    }

    fn is_connected(&self) -> bool {
        self.link.is_connected()
    }

    fn server(&self) -> (String, String) {
        let server = self.link.client.server_info();
        (server.server_name, server.version)
    }

    fn follow(&mut self, place: &StreamPlace) {
        let (sender, messages) = mpsc::channel(READ_AHEAD);
        self.messages = Some(messages);
        self.runtime
            .spawn(StreamReader::new(self.link.clone(), place, sender).run());
        self.runtime.spawn(count_elections(self.link.clone()));
        self.runtime.spawn(learn_end(self.link.clone()));
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Result<StreamMessage>> {
        let Some(messages) = &mut self.messages else {
            return Poll::Pending;
        };
        messages.poll_recv(context).map(|read| {
            read.unwrap_or_else(|| {
                let what = "the reader of the log has ended".to_owned();
                Err(JournalError::Failed(what))
            })
        })
    }

    fn publish(&mut self, attempt: DeliveryAttempt, bytes: Bytes) {
        let link = self.link.clone();
        let published = async move {
            link.context
                .publish(link.subject.clone(), bytes)
                .await?
                .await
        };
        let answer = published.map(move |answer| match answer {
            Ok(ack) => (attempt, Publication::Acknowledged(ack.sequence)),
            Err(error) => {
                let why = error.to_string();
                let is_full = is_full(&error);
                (attempt, Publication::Rejected { why, is_full })
            }
        });
        self.answers.push(answer.boxed());
    }

    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<(DeliveryAttempt, Publication)> {
        match self.answers.poll_next_unpin(context) {
            Poll::Ready(Some(answer)) => Poll::Ready(answer),
            // Without an attempt there is nothing to wait for.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    fn is_unanswered(&self) -> bool {
        !self.answers.is_empty()
    }

    fn reconnect(&mut self) {
        let client = self.link.client.clone();
        self.runtime
            .spawn(async move { client.force_reconnect().await });
    }
}

/// Learns from the stream's leader how far the log is. A consumer knows only what its own server has stored.
async fn learn_end(link: Arc<Link>) {
    loop {
        sleep(END_EVERY).await;
        let found = link
            .respond(find_stream(&link.context, &link.options))
            .await;
        if let Ok(Some((stream, log))) = found
            && log == link.log
        {
            let last = stream.cached_info().state.last_sequence;
            link.status.lock().show(last, now_in_runtime());
        }
    }
}

/// Counts elections of the stream's leader.
async fn count_elections(link: Arc<Link>) {
    let subject = format!(
        "$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.{}",
        link.options.stream
    );
    let Ok(mut elected) = link.client.subscribe(subject).await else {
        return;
    };
    while elected.next().await.is_some() {
        link.status.lock().elections += 1;
    }
}

/// Whether a server rejects a message because there is no space for it.
fn is_full(error: &PublishError) -> bool {
    let Some(error) = error
        .source()
        .and_then(|source| source.downcast_ref::<jetstream::Error>())
    else {
        return false;
    };
    let code = error.error_code();
    let why = error.to_string();
    code == ErrorCode::INSUFFICIENT_RESOURCES
        || code == ErrorCode::STORAGE_RESOURCES_EXCEEDED
        || code == ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
        || code == ErrorCode::STREAM_STORE_FAILED
            && (why.contains("exceeded") || why.contains("space"))
}
