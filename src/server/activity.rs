//! What a connection is at, noted as it goes on by the one task that serves it, and looked at by others from time to time.
//! No clock is read and no timer set for it: whoever looks tells time by what has changed since.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The end of its handshake.
    Handshake,
    /// The beginning of its first request.
    New,
    /// The beginning of its next request.
    Idle,
    /// The rest of a request's head.
    Head,
    /// The service, or a body.
    Busy,
    /// The client, to close its side after an answer that came before it had sent all.
    Closing,
}

const PHASES: [Phase; 6] =
    [Phase::Handshake, Phase::New, Phase::Idle, Phase::Head, Phase::Busy, Phase::Closing];

const PHASE_BITS: u32 = 3;

/// What a connection was at when it was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moment {
    /// What it waits for.
    pub(super) phase: Phase,
    /// Differs whenever the phase has changed meanwhile.
    pub(super) changes: u32,
    /// What the client has taken since the beginning.
    pub(super) bytes_written: u64,
    /// Whether the client leaves bytes to be written.
    pub(super) is_blocked: bool,
}

/// What a connection is at. Only the task that serves it changes it.
#[derive(Debug)]
pub(super) struct Activity {
    /// The phase's number, and above it how often it has changed.
    phase: AtomicU32,
    bytes_written: AtomicU64,
    is_blocked: AtomicBool,
    /// Whether the client may be sending what nobody will read.
    is_sending: AtomicBool,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            phase: AtomicU32::new(Phase::Handshake as u32),
            bytes_written: AtomicU64::new(0),
            is_blocked: AtomicBool::new(false),
            is_sending: AtomicBool::new(false),
        }
    }
}

impl Activity {
    pub(super) fn phase(&self) -> Phase {
        PHASES[(self.phase.load(Relaxed) & ((1 << PHASE_BITS) - 1)) as usize]
    }

    pub(super) fn enter(&self, phase: Phase) {
        let changes = (self.phase.load(Relaxed) >> PHASE_BITS).wrapping_add(1);
        self.phase.store(changes << PHASE_BITS | phase as u32, Relaxed);
    }

    /// Notes that a request was answered before its body has been read, or that the rest of it has come.
    pub(super) fn note_sending(&self, is_sending: bool) {
        self.is_sending.store(is_sending, Relaxed);
    }

    pub(super) fn is_sending(&self) -> bool {
        self.is_sending.load(Relaxed)
    }

    /// The four may be of different moments, each a little later than the one before.
    pub(super) fn moment(&self) -> Moment {
        Moment {
            phase: self.phase(),
            changes: self.phase.load(Relaxed) >> PHASE_BITS,
            bytes_written: self.bytes_written.load(Relaxed),
            is_blocked: self.is_blocked.load(Relaxed),
        }
    }

    fn note_read(&self) {
        if matches!(self.phase(), Phase::New | Phase::Idle) {
            self.enter(Phase::Head);
        }
    }

    pub(super) fn note_write(&self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.bytes_written.store(self.bytes_written.load(Relaxed) + *bytes as u64, Relaxed);
                self.is_blocked.store(false, Relaxed);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.is_blocked.store(true, Relaxed),
        }
    }
}

/// A socket that notes what goes through it.
pub(super) struct Watched<S> {
    socket: S,
    activity: Arc<Activity>,
}

impl<S> Watched<S> {
    pub(super) fn new(socket: S, activity: Arc<Activity>) -> Self {
        Self { socket, activity }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.note_read();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.activity.note_write(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.activity.note_write(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
