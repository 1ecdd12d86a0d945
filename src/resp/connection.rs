//! One connection: reads bytes, executes complete requests, sends the replies.

use super::batch::Batch;
use super::execute::execute;
use super::failure::{ErrorCode, Failure};
use super::parser::{Parser, RequestLimits};
use super::session::{Session, Visit};
use super::shared::{RespContext, Service};
use crate::budget::{Budget, Share};
use crate::socket::{Phase, Vitals};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Memory that a connection may use freely. Beyond that it takes a share of the memory of all connections.
const OWN_BYTES: usize = 1 << 10;

/// Bytes that each of its four buffers keeps while it is idle: of requests, arguments, lookups and replies.
const KEPT_BYTES: usize = OWN_BYTES / 4;

/// Maximum number of bytes per read; for unauthenticated clients, the maximum size of a request.
const READ_BYTES_MAX: usize = 64 << 10;

/// Ratio of capacity to content from which a buffer is shrunk.
const SPARE_FACTOR: usize = 4;

/// Replies are sent once they have this many bytes, though more commands have arrived.
const SEND_BYTES: usize = 64 << 10;

/// Cost of a command in its connection's turn, in addition to the lengths of its request and reply, in bytes.
const COMMAND_BYTES: usize = 32;

/// Limits for a client that has presented its key.
const AUTHENTICATED_LIMITS: RequestLimits = RequestLimits {
    arguments_max: 64 << 10,
    argument_bytes_max: 64 << 10,
    request_bytes_max: 8 << 20,
};

/// Limits for unauthenticated clients: enough for HELLO and AUTH.
const UNAUTHENTICATED_LIMITS: RequestLimits = RequestLimits {
    arguments_max: 10,
    argument_bytes_max: 1 << 10,
    request_bytes_max: 4 << 10,
};

thread_local! {
    /// Where bytes are read to first, so that idle connections need no memory for it.
    static ARRIVED: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES_MAX].into_boxed_slice());
}

/// Is counted as an open connection until it is dropped.
struct OpenCount<'a>(&'a RespContext);

impl Drop for OpenCount<'_> {
    fn drop(&mut self) {
        self.0.metrics.connections.dec();
    }
}

struct Connection<'a, S> {
    stream: S,
    vitals: &'a Vitals,
    visit: Visit<'a>,
    parser: Parser,
    /// Bytes that have arrived; those before `read` are executed.
    arrived: Vec<u8>,
    read: usize,
    /// Arrival time of the commands whose replies are sent next.
    since: Instant,
    /// Its share of `resp.buffers`.
    share: Share<&'a Budget>,
}

impl Service {
    /// Serves a connection until the client closes it, or until it shall drain and all complete requests are answered. Records
    /// in `vitals` what it waits for; the caller may drop this future when that takes too long.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        peer: Option<SocketAddr>,
        vitals: &Vitals,
    ) -> io::Result<()> {
        let shared = &*self.0;
        shared.metrics.connections_opened.inc();
        shared.metrics.connections.inc();
        let _open = OpenCount(shared);
        let session = Session::new(shared, peer);
        let batch = Batch::new(shared);
        let mut connection = Connection {
            stream,
            vitals,
            visit: Visit {
                shared,
                session,
                batch,
            },
            parser: Parser::default(),
            arrived: Vec::new(),
            read: 0,
            since: Instant::now(),
            share: Share::empty(&shared.buffers, None),
        };
        match connection.run().await? {
            true => connection.close().await,
            false => Ok(()),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<'_, S> {
    /// Serves until the end. Returns whether the client has not closed its side.
    async fn run(&mut self) -> io::Result<bool> {
        let vitals = self.vitals;
        loop {
            let is_between = self.arrived.is_empty();
            if is_between && vitals.is_draining() {
                return Ok(true);
            }
            vitals.enter(match (is_between, self.visit.session.is_known()) {
                (true, true) => Phase::Idle,
                (true, false) => Phase::New,
                (false, _) => Phase::Head,
            });
            let read = tokio::select! {
                biased;
                read = self.read() => read?,
                () = vitals.draining(), if is_between => return Ok(true),
            };
            if read == 0 {
                return Ok(false);
            }
            let began = Instant::now();
            self.since = began;
            self.visit.batch.turn.start(began);
            self.visit.session.refresh(self.visit.shared);
            // A client that never stops sending splits a request with each read: it gets this far, and no farther.
            let is_last = !is_between && vitals.is_draining();
            let next = self.execute_all().await?;
            self.send().await?;
            self.release();
            let has_executed = vitals.phase() == Phase::Busy;
            if has_executed {
                self.visit
                    .shared
                    .metrics
                    .batch_seconds
                    .observe(began.elapsed());
            }
            if next.is_break() || is_last && has_executed {
                return Ok(true);
            }
        }
    }

    /// Reads at most `bytes_max` bytes. Returns their number; 0 at the end.
    async fn read(&mut self) -> io::Result<usize> {
        let bytes_max = self.limits().request_bytes_max.min(READ_BYTES_MAX);
        poll_fn(|context| {
            ARRIVED.with_borrow_mut(|space| {
                let mut buffer = ReadBuf::new(&mut space[..bytes_max]);
                let read = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
                if read.is_pending() {
                    self.visit.batch.turn.end();
                }
                ready!(read)?;
                self.arrived.extend_from_slice(buffer.filled());
                Poll::Ready(Ok(buffer.filled().len()))
            })
        })
        .await
    }

    /// The limits of the next request.
    fn limits(&self) -> &'static RequestLimits {
        if self.visit.session.is_known() {
            &AUTHENTICATED_LIMITS
        } else {
            &UNAUTHENTICATED_LIMITS
        }
    }

    /// Executes all commands that have arrived.
    async fn execute_all(&mut self) -> io::Result<ControlFlow<()>> {
        let mut replied_bytes = 0;
        let next = loop {
            let limits = self.limits();
            let unread = &self.arrived[self.read..];
            let found = self.parser.parse(unread, limits);
            // No command is executed if its connection has no memory for it.
            if self.share.hold(self.needed_bytes()).is_err() {
                break self.refuse().await;
            }
            let length = match found {
                Ok(Some(length)) => length,
                Ok(None) => break ControlFlow::Continue(()),
                Err(failure) => {
                    self.visit.batch.settle().await;
                    self.visit.batch.replies.failure(&failure);
                    break ControlFlow::Break(());
                }
            };
            self.vitals.enter(Phase::Busy);
            let arguments = self.parser.arguments(&self.arrived[self.read..]);
            let next = match arguments.is_empty() {
                true => ControlFlow::Continue(()),
                false => {
                    let request = &self.arrived[self.read..self.read + length];
                    execute(&mut self.visit, arguments, request, self.parser.is_inline).await
                }
            };
            // Before the first reply is sent: the client may never read it.
            self.prove();
            self.parser.begin_next();
            self.read += length;
            let spliced = std::mem::take(&mut self.visit.session.spliced);
            if !spliced.is_empty() {
                // Executed requests are removed, so that a transaction is moved once.
                self.arrived.splice(..self.read, spliced);
                self.read = 0;
            }
            if next.is_break() {
                break next;
            }
            let reply_bytes = self
                .visit
                .batch
                .replies
                .bytes()
                .len()
                .saturating_sub(replied_bytes);
            if self.visit.batch.replies.bytes().len() >= SEND_BYTES {
                self.send().await?;
            }
            replied_bytes = self.visit.batch.replies.bytes().len();
            self.visit
                .batch
                .turn
                .work(length + reply_bytes + COMMAND_BYTES)
                .await;
        };
        self.visit.batch.settle().await;
        self.arrived.drain(..self.read);
        self.read = 0;
        Ok(next)
    }

    /// Records the owner of the connection once a command was executed with a valid key.
    fn prove(&mut self) {
        if let Some(owner) = self.visit.session.owner() {
            self.vitals.prove(owner);
            self.share.assign(Some(owner));
        }
    }

    /// Logs the commands whose replies are ready if they took longer than the limit.
    fn log_if_slow(&self, limit: Duration) {
        let took = self.since.elapsed();
        let Visit {
            shared,
            session,
            batch,
        } = &self.visit;
        if took >= limit && !batch.replies.bytes().is_empty() {
            session.log_slow(shared, &batch.counts, took);
        }
    }

    /// Sends the replies so far, and the error that no memory is left.
    async fn refuse(&mut self) -> ControlFlow<()> {
        self.visit.batch.settle().await;
        (self.arrived, self.parser, self.read) = (Vec::new(), Parser::default(), 0);
        let text = "too many bytes of commands are being received: send shorter ones, or try again";
        self.visit
            .batch
            .replies
            .failure(&Failure::new(ErrorCode::BUSY, text));
        ControlFlow::Break(())
    }

    /// Sends the replies. Executed commands always get theirs, so these take memory even if other connections have left none.
    async fn send(&mut self) -> io::Result<()> {
        let slow_request = self.visit.shared.options.slow_request;
        slow_request
            .iter()
            .for_each(|limit| self.log_if_slow(*limit));
        self.visit.batch.counts.flush(&self.visit.shared.metrics);
        if self.visit.batch.replies.bytes().is_empty() {
            return Ok(());
        }
        self.share.hold_anyway(self.needed_bytes());
        self.stream
            .write_all(self.visit.batch.replies.bytes())
            .await?;
        self.stream.flush().await?;
        if slow_request.is_some() {
            // The client may have accepted the replies slowly.
            self.since = Instant::now();
        }
        self.visit.batch.replies.clear(KEPT_BYTES);
        Ok(())
    }

    /// Frees the memory that only long requests and replies need. The start of the next request may have arrived after them: its buffer is
    /// retained until it is mostly empty.
    fn release(&mut self) {
        if self.arrived.capacity() > SPARE_FACTOR * self.arrived.len() {
            self.arrived.shrink_to(KEPT_BYTES);
        }
        self.parser.shrink(KEPT_BYTES);
        self.visit.batch.shrink(KEPT_BYTES);
        self.share.hold_anyway(self.needed_bytes());
    }

    /// Bytes of the memory of all connections that it needs now, the next command included.
    fn needed_bytes(&self) -> u64 {
        // A buffer is moved when it grows. An argument has a position, and becomes a digest and an outcome.
        let buffer = self.arrived.capacity();
        let positions = self.parser.memory_bytes();
        let request_bytes = match self.arrived.is_empty() {
            true => buffer + positions,
            false => 2 * buffer + 3 * positions,
        };
        let Visit { batch, session, .. } = &self.visit;
        let bytes = request_bytes + batch.memory_bytes() + session.memory_bytes();
        match bytes <= OWN_BYTES {
            true => 0,
            // In steps, so that the budget is rarely touched.
            false => bytes.next_multiple_of(OWN_BYTES) as u64,
        }
    }

    /// Closes the write side, and lets the socket read the client's remaining bytes.
    async fn close(mut self) -> io::Result<()> {
        self.vitals.enter(Phase::Closing);
        drop((self.visit, self.parser, self.arrived, self.share));
        self.stream.shutdown().await
    }
}
