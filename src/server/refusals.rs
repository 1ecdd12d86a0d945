//! Turns hyper's own answers to requests that it can't parse into problem documents. Those answers have no body and pass none of
//! our code, so they are recognised on their way to the socket.

use super::activity::{Activity, Phase};
use crate::http::unparsed::{self, REQUEST_ID};
use bytes::{Buf, Bytes};
use http::StatusCode;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The longest answer that hyper writes by itself, in bytes.
const BARE_BYTES_MAX: usize = 200;

/// The most bytes that are read after an early answer, so that a client that is still sending receives it. Usually the time limit
/// comes first.
const UNHEARD_BYTES_MAX: usize = 1 << 30;

/// The stream of a connection, between hyper and TLS.
pub(super) struct Refusals<S> {
    stream: S,
    activity: Arc<Activity>,
    /// The most bytes in the head of a request.
    head_bytes_max: usize,
    line: Line,
    refusal: Option<Refusal>,
    /// Whether our side is closed.
    is_shut: bool,
    unheard_bytes: usize,
}

/// How much of the next request's first line has arrived.
enum Line {
    Begun(usize),
    Whole,
}

/// A refusal that is being written.
struct Refusal {
    /// The bytes not written yet.
    rest: Bytes,
}

impl<S> Refusals<S> {
    pub(super) fn new(stream: S, activity: Arc<Activity>, head_bytes_max: usize) -> Self {
        Self {
            stream,
            activity,
            head_bytes_max,
            line: Line::Begun(0),
            refusal: None,
            is_shut: false,
            unheard_bytes: 0,
        }
    }

    fn note_read(&mut self, bytes: &[u8]) {
        let Line::Begun(before) = self.line else { return };
        self.line = match memchr::memchr(b'\n', bytes) {
            Some(end) if before + end < self.head_bytes_max => Line::Whole,
            _ => Line::Begun(before + bytes.len()),
        };
    }

    /// Replaces these bytes if they are an answer of hyper's own; returns whether they were.
    fn replaces(&mut self, bytes: &[u8]) -> bool {
        if self.refusal.is_some() {
            return false;
        }
        let Some((status, head)) = bare_refusal(bytes) else {
            // After an answer, the next head begins.
            self.line = Line::Begun(0);
            return false;
        };
        let is_in_line = matches!(self.line, Line::Begun(bytes) if bytes >= self.head_bytes_max);
        let status = match status {
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE if is_in_line => StatusCode::URI_TOO_LONG,
            status => status,
        };
        self.activity.enter(Phase::Closing);
        self.refusal = Some(Refusal { rest: problem(status, head) });
        true
    }
}

impl<S: AsyncWrite + Unpin> Refusals<S> {
    /// Writes the rest of a refusal.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(refusal) = &mut self.refusal else { return Poll::Ready(Ok(())) };
        while refusal.rest.has_remaining() {
            let bytes = ready!(Pin::new(&mut self.stream).poll_write(context, &refusal.rest))?;
            if bytes == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            refusal.rest.advance(bytes);
        }
        Poll::Ready(Ok(()))
    }
}

/// The status and the other header lines of a refusal that hyper has written by itself.
fn bare_refusal(bytes: &[u8]) -> Option<(StatusCode, &str)> {
    if bytes.len() > BARE_BYTES_MAX || !matches!(bytes.get(9..12)?, b"400" | b"414" | b"431") {
        return None;
    }
    let (first, rest) = std::str::from_utf8(bytes).ok()?.split_once("\r\n")?;
    let status = first.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    // Every answer of the service has a request id; hyper's own ones have neither id nor body.
    let is_bare = rest.ends_with("\r\n\r\n") && !rest.contains(REQUEST_ID);
    is_bare.then_some((status, rest))
}

/// The problem document that replaces hyper's own answer. It keeps the other headers.
fn problem(status: StatusCode, head: &str) -> Bytes {
    let (body, id) = unparsed::problem(status);
    let is_kept = |line: &&str| !line.is_empty() && !line.to_ascii_lowercase().starts_with("content-length:");
    let kept: String = head.split("\r\n").filter(is_kept).map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    let mut answer = format!(
        "HTTP/1.1 {status}\r\n{kept}content-type: application/problem+json\r\n{REQUEST_ID}: {id}\r\n\
         content-length: {length}\r\n\r\n"
    )
    .into_bytes();
    answer.extend_from_slice(&body);
    answer.into()
}

impl<S: AsyncRead + Unpin> AsyncRead for Refusals<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.activity.phase() != Phase::Busy {
            self.note_read(&buffer.filled()[before..]);
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Refusals<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.replaces(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [bytes] = slices
            && self.replaces(bytes)
        {
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_rest(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// When a client was answered before it had sent everything, the rest is read before the socket is closed. Otherwise the
    /// system would reset the connection and the client might lose the answer.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_rest(context))?;
        let this = &mut *self;
        if !this.is_shut {
            ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
            this.is_shut = true;
            if this.activity.is_sending() {
                this.activity.enter(Phase::Closing);
            }
        }
        if this.activity.phase() != Phase::Closing {
            return Poll::Ready(Ok(()));
        }
        let mut room = [0; 16 << 10];
        while this.unheard_bytes < UNHEARD_BYTES_MAX {
            let mut buffer = ReadBuf::new(&mut room);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut buffer))?;
            match buffer.filled().len() {
                0 => break,
                bytes => this.unheard_bytes += bytes,
            }
        }
        Poll::Ready(Ok(()))
    }
}
