//! What a connection is doing. The task that serves it records that, and others look at it from time to time. Recording reads no
//! clock and sets no timer: the observer measures time by what has changed since it last looked.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What a connection is waiting for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The end of its TLS handshake.
    Handshake,
    /// The start of its first request.
    New,
    /// The start of its next request.
    Idle,
    /// The rest of a request's head.
    Head,
    /// The handler, or a body.
    Busy,
    /// The client to close its side, after an answer that was sent before the whole request had arrived.
    Closing,
}

const PHASES: [Phase; 6] =
    [Phase::Handshake, Phase::New, Phase::Idle, Phase::Head, Phase::Busy, Phase::Closing];

const PHASE_BITS: u32 = 3;

/// A connection's activity at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moment {
    /// What it is waiting for.
    pub(super) phase: Phase,
    /// Counts changes of the phase.
    pub(super) changes: u32,
    /// Bytes that the client has accepted since the connection began.
    pub(super) bytes_written: u64,
    /// Whether bytes are waiting for the client to accept them.
    pub(super) is_blocked: bool,
}

/// A connection's activity. Only the task that serves it writes to it.
#[derive(Debug)]
pub(super) struct Activity {
    /// The phase's number in the low bits, and above it how often the phase has changed.
    phase: AtomicU32,
    bytes_written: AtomicU64,
    is_blocked: AtomicBool,
    /// Whether the client may be sending bytes that nobody will read.
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

    /// Records that a request was answered before its body was read, or that the rest of the body has arrived.
    pub(super) fn note_sending(&self, is_sending: bool) {
        self.is_sending.store(is_sending, Relaxed);
    }

    pub(super) fn is_sending(&self) -> bool {
        self.is_sending.load(Relaxed)
    }

    /// The four values may stem from different moments, each a little later than the one before.
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

/// A socket that records its traffic.
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn every_phase_is_read_as_it_was_entered() {
        let activity = Activity::default();
        for (changes, phase) in (1..).zip(PHASES) {
            activity.enter(phase);
            let moment = activity.moment();
            assert_eq!((moment.phase, moment.changes), (phase, changes));
        }
    }

    #[tokio::test]
    async fn the_first_byte_of_a_request_begins_its_head() {
        for (before, after) in [
            (Phase::New, Phase::Head),
            (Phase::Idle, Phase::Head),
            (Phase::Handshake, Phase::Handshake),
            (Phase::Busy, Phase::Busy),
        ] {
            let (mut client, socket) = tokio::io::duplex(8);
            let activity = Arc::<Activity>::default();
            activity.enter(before);
            let mut watched = Watched::new(socket, activity.clone());
            client.write_all(b"G").await.unwrap();
            assert_eq!(watched.read_u8().await.unwrap(), b'G');
            assert_eq!(activity.phase(), after);
            drop(client);
            activity.enter(before);
            assert_eq!(watched.read(&mut [0]).await.unwrap(), 0);
            assert_eq!(activity.phase(), before, "the end of the stream is not a request");
        }
    }

    #[tokio::test]
    async fn a_write_is_blocked_until_the_client_reads() {
        let (mut client, socket) = tokio::io::duplex(4);
        let activity = Arc::<Activity>::default();
        let mut watched = Watched::new(socket, activity.clone());
        assert_eq!(watched.write(b"abcdef").await.unwrap(), 4);
        assert!(!activity.moment().is_blocked);
        {
            let mut write = Box::pin(watched.write(b"ef"));
            assert!((&mut write).now_or_never().is_none());
            assert!(activity.moment().is_blocked);
            client.read_exact(&mut [0; 4]).await.unwrap();
            assert_eq!(write.await.unwrap(), 2);
        }
        let moment = activity.moment();
        assert_eq!((moment.is_blocked, moment.bytes_written), (false, 6));
    }
}
