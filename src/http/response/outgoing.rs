//! Outgoing bodies. Each one counts toward `limits.responses` until the client has read it. A long one is produced only as fast as the
//! client reads.
//!
//! All responses pass through [`Responses::count`], so that none can be forgotten. What a handler has produced completely counts as a
//! whole. A stream reserves the memory of two chunks before its head is sent, and has no more than two in memory. What a stream needs
//! besides, such as a list of digests, its handler counts in a separate share.

use super::{Code, Problem};
use crate::budget::{Budget, BudgetShare, FREE_BYTES, Owner};
use crate::turn::Turn;
use axum::BoxError;
use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::header;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

/// Target size of the chunks that a stream produces. A longer one is passed on in pieces of this size.
pub(crate) const CHUNK_BYTES: usize = 32 << 10;

/// Chunks of a stream that may be in memory: a compressor keeps one until it gets the next.
const CHUNKS_MAX: usize = 2;

/// Memory of a stream.
pub(crate) const STREAM_BYTES: u64 = (CHUNKS_MAX * CHUNK_BYTES) as u64;

/// Memory of a gzip encoder: its tables, window and output.
const GZIP_BYTES: u64 = 400 << 10;

/// Memory of a zstd encoder at its fastest level: its tables, window and output.
const ZSTD_BYTES: u64 = 2 << 20;

/// Marks a response whose bytes never change, so that all clients share them. It is not compressed again.
#[derive(Clone)]
pub(crate) struct SharedBytes;

/// Marks a response that is not compressed, whatever the client accepts.
#[derive(Clone)]
pub(crate) struct Uncompressed;

/// Marks a response whose memory its handler has counted already.
#[derive(Clone)]
pub(super) struct MemoryCounted;

/// Strangers get this fraction of the memory, in addition.
const STRANGERS_FRACTION: u64 = 8;

/// The memory of all responses that are being sent.
pub(crate) struct Responses {
    budget: Arc<Budget>,
    /// For requests that need no key. Otherwise strangers could take the memory of the others.
    strangers: Arc<Budget>,
}

impl Responses {
    /// Budgets of this size, and of a fraction of it for strangers. Their metrics are registered.
    pub(crate) fn new(limit_bytes: u64, registry: &mut Registry) -> Self {
        let budget = Budget::new(limit_bytes);
        let taken = (
            "response_bytes",
            "Bytes of responses that clients have not read yet",
        );
        let refused = (
            "responses_refused",
            "Responses refused or broken off because limits.responses was reached",
        );
        budget.register(registry, taken, refused);
        let strangers = Budget::new(limit_bytes / STRANGERS_FRACTION);
        let taken = (
            "response_bytes_without_key",
            "Bytes of unread responses to requests without a key",
        );
        let refused = (
            "responses_without_key_refused",
            "Responses to requests without a key that were refused",
        );
        strangers.register(registry, taken, refused);
        Self {
            budget: Arc::new(budget),
            strangers: Arc::new(strangers),
        }
    }

    /// An empty share for a response that its handler counts.
    pub(crate) fn share(&self, owner: Option<Owner>) -> BudgetShare {
        let budget = if owner.is_some() {
            &self.budget
        } else {
            &self.strangers
        };
        BudgetShare::empty(budget.clone(), owner)
    }

    /// Reserves memory for a response before its request takes effect.
    ///
    /// # Errors
    /// 503 `overloaded` if `limits.responses` is used up.
    pub(crate) fn reserve(&self, owner: Option<Owner>, bytes: u64) -> Result<BudgetShare, Problem> {
        let mut share = self.share(owner);
        share.hold(bytes).map_err(|_| used_up())?;
        Ok(share)
    }

    /// Counts the memory of a response.
    ///
    /// # Errors
    /// 503 `overloaded` if `limits.responses` is used up.
    pub(crate) fn count(
        &self,
        owner: Option<Owner>,
        response: Response,
    ) -> Result<Response, Problem> {
        let extensions = response.extensions();
        if extensions.get::<SharedBytes>().is_some() || extensions.get::<MemoryCounted>().is_some()
        {
            return Ok(response);
        }
        let length = response.body().size_hint().exact();
        let reserved = match length {
            Some(bytes) if bytes <= FREE_BYTES => return Ok(response),
            Some(bytes) => bytes,
            None => STREAM_BYTES,
        };
        Ok(counted(response, self.reserve(owner, reserved)?))
    }

    /// Reserves the memory of an encoder for a response to be compressed. `None` if there is too little: then it is sent as it is.
    pub(crate) fn encoder(&self, owner: Option<Owner>) -> Option<BudgetShare> {
        let mut share = self.share(owner);
        share.hold_if_free(ZSTD_BYTES).then_some(share)
    }
}

/// Counts a response in memory that was reserved for it. The share returns with the last piece of the body.
pub(crate) fn counted(mut response: Response, mut share: BudgetShare) -> Response {
    response.extensions_mut().insert(MemoryCounted);
    response.map(|body| {
        let length = body.size_hint().exact();
        // A complete body may need less, or is in memory already.
        length
            .into_iter()
            .for_each(|bytes| share.hold_anyway(bytes));
        Body::new(Outgoing {
            body,
            memory: Memory::new(share),
            rest: Bytes::new(),
            length,
        })
    })
}

/// The problem if `limits.responses` is used up.
pub(crate) fn used_up() -> Problem {
    Problem::new(
        Code::Overloaded,
        "too many responses are being read: limits.responses is used up",
    )
}

/// The memory of one response.
struct Memory {
    state: Mutex<Held>,
    /// Woken when a chunk is dropped.
    waker: AtomicWaker,
}

struct Held {
    share: BudgetShare,
    /// Bytes that it has held from the start.
    reserved: u64,
    chunks: usize,
    chunk_bytes: u64,
}

impl Memory {
    fn new(share: BudgetShare) -> Arc<Self> {
        let reserved = share.bytes();
        let state = Mutex::new(Held {
            share,
            reserved,
            chunks: 0,
            chunk_bytes: 0,
        });
        Arc::new(Self {
            state,
            waker: AtomicWaker::new(),
        })
    }

    /// Counts a chunk until all its pieces are dropped.
    fn hold(self: &Arc<Self>, chunk: Bytes) -> Result<Bytes, BoxError> {
        let bytes = chunk.len() as u64;
        let mut state = self.state.lock();
        let needed = (state.chunk_bytes + bytes).max(state.reserved);
        state
            .share
            .hold(needed)
            .map_err(|_| "limits.responses is used up")?;
        state.chunks += 1;
        state.chunk_bytes += bytes;
        drop(state);
        Ok(Bytes::from_owner(UnreadChunk {
            bytes: chunk,
            memory: self.clone(),
        }))
    }

    fn release(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.chunks -= 1;
        state.chunk_bytes -= bytes;
        let needed = state.chunk_bytes.max(state.reserved);
        state.share.hold_anyway(needed);
        drop(state);
        self.waker.wake();
    }
}

/// A chunk that the client has not read yet.
struct UnreadChunk {
    bytes: Bytes,
    memory: Arc<Memory>,
}

impl AsRef<[u8]> for UnreadChunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for UnreadChunk {
    fn drop(&mut self) {
        let length = self.bytes.len() as u64;
        self.bytes = Bytes::new();
        self.memory.release(length);
    }
}

/// A body whose chunks are counted, and passed on in pieces of at most [`CHUNK_BYTES`].
struct Outgoing {
    body: Body,
    memory: Arc<Memory>,
    /// The rest of the current chunk.
    rest: Bytes,
    /// The length of the complete body, if it is known.
    length: Option<u64>,
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.rest.is_empty() {
            this.memory.waker.register(context.waker());
            if this.memory.state.lock().chunks >= CHUNKS_MAX {
                return Poll::Pending;
            }
            let Some(frame) = ready!(Pin::new(&mut this.body).poll_frame(context)) else {
                return Poll::Ready(None);
            };
            // No handler sends trailers.
            let chunk = frame?.into_data().unwrap_or_default();
            this.rest = this.memory.hold(chunk)?;
        }
        let piece = this.rest.split_to(this.rest.len().min(CHUNK_BYTES));
        if let Some(length) = &mut this.length {
            *length = length.saturating_sub(piece.len() as u64);
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.length
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// Prepares a response that may have been compressed: its encoder counts until the body ends, and it is produced in turns.
pub(crate) fn paced(response: Response, encoder: Option<BudgetShare>) -> Response {
    // Nothing was compressed, and there is no turn to take.
    if encoder.is_none() && response.body().size_hint().exact().is_some() {
        return response;
    }
    let coding = response.headers().get(header::CONTENT_ENCODING);
    let bytes = match coding.map(http::HeaderValue::as_bytes) {
        Some(b"gzip") => GZIP_BYTES,
        Some(_) => ZSTD_BYTES,
        None => 0,
    };
    let encoder = encoder.filter(|_| bytes > 0).map(|mut share| {
        share.hold_anyway(bytes);
        share
    });
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    response.map(|body| {
        Body::new(Paced {
            body,
            turn: Turn::default(),
            _encoder: encoder,
        })
    })
}

/// A body that is produced in turns.
struct Paced {
    body: Body,
    turn: Turn,
    _encoder: Option<BudgetShare>,
}

impl HttpBody for Paced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.turn.is_over(Instant::now()) {
            self.turn.end();
            // Woken immediately, the task would run again before the others have.
            let mut others = std::pin::pin!(tokio::task::yield_now());
            if others.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_pending() {
            self.turn.end();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
