//! The socket of one connection, below TLS and protocol. It records the connection's phase, bounds the memory of unfinished request heads,
//! and closes so that the client can still receive the last response.
//!
//! Recording reads no clock and sets no timer: the observer (`server/clients.rs`) measures time by comparing two looks.

use crate::budget::{Budget, Owner, Share};
use crate::turn::Turn;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of an unfinished head that each connection may have without a share of the budget: the parser's smallest buffer.
const HEAD_BYTES_FREE: u64 = 8 << 10;

/// Maximum number of bytes read after an early response. Usually the time limit is reached first.
const LINGER_BYTES_MAX: usize = 1 << 30;

/// Maximum number of bytes that are read ahead of the end of a stream: TLS announces the end with fewer.
const AHEAD_BYTES_MAX: usize = 64;

/// Maximum length of a head and a body that are copied together: the system takes longer for `writev` than for `send`.
const GATHERED_BYTES_MAX: usize = 1 << 10;

/// The event that a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The end of the TLS handshake.
    Handshake,
    /// The start of the first request.
    New,
    /// The start of the next request.
    Idle,
    /// The rest of a request's head.
    Head,
    /// The handler, or a body.
    Busy,
    /// Reading the rest of the client's bytes, after a response to an unfinished request.
    Closing,
}

const PHASES: [Phase; 6] = [
    Phase::Handshake,
    Phase::New,
    Phase::Idle,
    Phase::Head,
    Phase::Busy,
    Phase::Closing,
];

const PHASE_BITS: u32 = 3;

/// A connection's record. Only the task that serves the connection writes to it, except for the order to end.
#[derive(Default, Debug)]
pub struct Vitals {
    /// The phase's number in the low bits, the number of changes above.
    phase: AtomicU32,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    is_blocked: AtomicBool,
    /// The order to end once the requests in progress are answered.
    drain: Signal,
    /// The client that has proven itself; 0 if none has.
    owner: AtomicU64,
    /// Whether the client may send bytes that no handler will read.
    pub is_body_unread: AtomicBool,
    /// Whether an unfinished head takes a share of the budget.
    pub holds_head: AtomicBool,
    end: End,
    /// The turn of the connection's task. It ends when the task waits.
    pub turn: Mutex<Turn>,
}

/// The end of the client's stream, for handlers that wait. hyper does not read while a handler runs.
#[derive(Default, Debug)]
struct End {
    /// Whether a handler waits for the end.
    is_awaited: AtomicBool,
    signal: Signal,
}

/// An event that comes once, for the task of the connection.
#[derive(Default, Debug)]
struct Signal {
    has_come: AtomicBool,
    waker: AtomicWaker,
}

impl Signal {
    fn give(&self) {
        self.has_come.store(true, Relaxed);
        self.waker.wake();
    }

    fn has_come(&self) -> bool {
        self.has_come.load(Relaxed)
    }

    async fn wait(&self) {
        poll_fn(|context| {
            self.waker.register(context.waker());
            if self.has_come() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

/// A snapshot of a connection's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// The phase.
    pub phase: Phase,
    /// Number of phases before.
    pub changes: u32,
    /// Bytes that the client has sent.
    pub bytes_read: u64,
    /// Bytes that the client has accepted.
    pub bytes_written: u64,
    /// Whether bytes wait for the client to accept them.
    pub is_blocked: bool,
}

impl Vitals {
    /// Returns the phase.
    pub fn phase(&self) -> Phase {
        PHASES[(self.phase.load(Relaxed) & ((1 << PHASE_BITS) - 1)) as usize]
    }

    /// Enters a phase, unless the connection is in it.
    pub fn enter(&self, phase: Phase) {
        if phase == self.phase() {
            return;
        }
        let changes = (self.phase.load(Relaxed) >> PHASE_BITS).wrapping_add(1);
        self.phase
            .store(changes << PHASE_BITS | phase as u32, Relaxed);
    }

    /// Returns the record. The values may stem from different moments, each a little later than the one before.
    pub fn moment(&self) -> Moment {
        Moment {
            phase: self.phase(),
            changes: self.phase.load(Relaxed) >> PHASE_BITS,
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            is_blocked: self.is_blocked.load(Relaxed),
        }
    }

    /// Records bytes that the client has accepted, and whether more wait.
    pub fn note_progress(&self, bytes: usize, is_blocked: bool) {
        self.bytes_written
            .store(self.bytes_written.load(Relaxed) + bytes as u64, Relaxed);
        self.is_blocked.store(is_blocked, Relaxed);
    }

    /// Records bytes that the client has sent.
    pub fn note_arrival(&self, bytes: usize) {
        self.bytes_read
            .store(self.bytes_read.load(Relaxed) + bytes as u64, Relaxed);
    }

    /// Records the owner of the client's last admitted request. From then on, the connection only gives way to other owners.
    pub fn prove(&self, owner: Owner) {
        self.owner.store(owner.number(), Relaxed);
    }

    /// Returns the owner of the last admitted request; `None` if no request was admitted.
    pub fn owner(&self) -> Option<Owner> {
        Owner::from_number(self.owner.load(Relaxed))
    }

    /// Resolves once the client has ended its stream. Only for use within the task that serves the connection. A client that sends
    /// more than [`AHEAD_BYTES_MAX`] first is taken to stay.
    pub async fn ended(&self) {
        let _awaiting = Awaiting::start(&self.end);
        self.end.signal.wait().await;
    }

    /// Orders the connection to end once the requests in progress are answered.
    pub fn drain(&self) {
        self.drain.give();
    }

    /// Whether the connection shall end.
    pub fn is_draining(&self) -> bool {
        self.drain.has_come()
    }

    /// Resolves once the connection shall end. Only for use within the task that serves the connection.
    pub async fn draining(&self) {
        self.drain.wait().await;
    }
}

/// Makes the socket look for the end of the stream until it is dropped.
struct Awaiting<'a>(&'a End);

impl<'a> Awaiting<'a> {
    fn start(end: &'a End) -> Self {
        end.is_awaited.store(true, Relaxed);
        Self(end)
    }
}

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        self.0.is_awaited.store(false, Relaxed);
    }
}

impl Moment {
    /// Whether nothing has happened between the two: no phase ended, and no byte was exchanged.
    pub fn is_same_rest(&self, other: &Moment) -> bool {
        let of = |moment: &Moment| (moment.changes, moment.bytes_read, moment.bytes_written);
        of(self) == of(other)
    }
}

/// The client of a request: its address, and the record of its connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// The connection's record.
    pub vitals: Arc<Vitals>,
}

/// A stream that records its traffic.
pub struct Socket<S> {
    stream: S,
    vitals: Arc<Vitals>,
    head: Share<Arc<Budget>>,
    head_bytes: u64,
    /// Whether request heads take shares of the budget; a handshake always does.
    counts_heads: bool,
    /// Bytes that were read while a handler waited for the end of the stream.
    ahead: Vec<u8>,
    is_shut: bool,
    unheard_bytes: usize,
}

impl<S> Socket<S> {
    /// Wraps a stream. Heads beyond 8 KiB take shares of `heads`, if the protocol has heads.
    pub fn new(stream: S, vitals: Arc<Vitals>, heads: Arc<Budget>, counts_heads: bool) -> Self {
        let head = Share::empty(heads, None);
        Self {
            stream,
            vitals,
            head,
            head_bytes: 0,
            counts_heads,
            ahead: Vec::new(),
            is_shut: false,
            unheard_bytes: 0,
        }
    }

    /// Counts bytes of a head until its response is written: until then, the parsed request refers to them.
    fn note_read(&mut self, bytes: usize) -> io::Result<()> {
        self.vitals.note_arrival(bytes);
        let before = match self.vitals.phase() {
            Phase::New | Phase::Idle => {
                self.vitals.enter(Phase::Head);
                0
            }
            Phase::Head | Phase::Handshake => self.head_bytes,
            Phase::Busy | Phase::Closing => return Ok(()),
        };
        if self.counts_heads || self.vitals.phase() == Phase::Handshake {
            self.hold(before + bytes as u64)
                .map_err(|_| io::ErrorKind::OutOfMemory)?;
        }
        Ok(())
    }

    fn hold(&mut self, head_bytes: u64) -> Result<(), crate::budget::UsedUp> {
        self.head_bytes = head_bytes;
        // The parser's buffer grows by doubling.
        self.head
            .hold(2 * head_bytes.saturating_sub(HEAD_BYTES_FREE))?;
        self.vitals.holds_head.store(self.head.bytes() > 0, Relaxed);
        Ok(())
    }

    fn note_write(&mut self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(Ok(bytes)) => self.vitals.note_progress(*bytes, false),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.vitals.note_progress(0, true),
        }
        if self.head_bytes > 0 && matches!(self.vitals.phase(), Phase::New | Phase::Idle) {
            // A share can always shrink.
            let _ = self.hold(0);
        }
    }
}

impl<S: AsyncRead + Unpin> Socket<S> {
    /// Looks for the end of the client's stream if a handler waits for it. Bytes before the end are read later.
    fn watch_end(&mut self, context: &mut Context<'_>) {
        let End { is_awaited, signal } = &self.vitals.end;
        if !is_awaited.load(Relaxed) || signal.has_come() {
            return;
        }
        let mut space = [0; AHEAD_BYTES_MAX];
        while self.ahead.len() < AHEAD_BYTES_MAX {
            let mut buffer = ReadBuf::new(&mut space[self.ahead.len()..]);
            let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, &mut buffer)
            else {
                return;
            };
            if read.is_err() || buffer.filled().is_empty() {
                signal.give();
                return;
            }
            self.ahead.extend_from_slice(buffer.filled());
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if self.ahead.is_empty() {
            let read = Pin::new(&mut self.stream).poll_read(context, buffer);
            if read.is_pending() {
                self.vitals.turn.lock().end();
            }
            ready!(read)?;
        } else {
            let length = self.ahead.len().min(buffer.remaining());
            buffer.put_slice(&self.ahead[..length]);
            self.ahead.drain(..length);
        }
        match buffer.filled().len() - before {
            0 => Poll::Ready(Ok(())),
            bytes => Poll::Ready(self.note_read(bytes)),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note_write(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        if length <= GATHERED_BYTES_MAX {
            let mut gathered = Vec::with_capacity(length);
            slices
                .iter()
                .for_each(|slice| gathered.extend_from_slice(slice));
            return self.poll_write(context, &gathered);
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note_write(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes whenever its task runs, also while a handler waits.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watch_end(context);
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Closes our side. If the client may still be sending, reads and discards the rest: otherwise the system would reset the
    /// connection, and the client might lose the response.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.is_shut {
            ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
            this.is_shut = true;
            // hyper rejects a malformed head without calling the service.
            if this.vitals.phase() == Phase::Head || this.vitals.is_body_unread.load(Relaxed) {
                this.vitals.enter(Phase::Closing);
            }
        }
        if this.vitals.phase() != Phase::Closing {
            return Poll::Ready(Ok(()));
        }
        let mut space = [0; 16 << 10];
        while this.unheard_bytes < LINGER_BYTES_MAX {
            let mut buffer = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut buffer))?;
            match buffer.filled().len() {
                0 => break,
                bytes => this.unheard_bytes += bytes,
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use prometheus_client::metrics::gauge::Gauge;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    /// A connection with a budget of this size for heads.
    fn connection(
        heads: u64,
    ) -> (
        DuplexStream,
        Socket<DuplexStream>,
        Arc<Vitals>,
        Gauge<u64, AtomicU64>,
    ) {
        let (client, stream) = tokio::io::duplex(1 << 20);
        let vitals = Arc::<Vitals>::default();
        let budget = Arc::new(Budget::new(heads));
        let taken = budget.taken_bytes.clone();
        let socket = Socket::new(stream, vitals.clone(), budget, true);
        (client, socket, vitals, taken)
    }

    #[test]
    fn phase_reads_as_entered() {
        let vitals = Vitals::default();
        for (changes, phase) in (0..).zip(PHASES) {
            vitals.enter(phase);
            vitals.enter(phase);
            let moment = vitals.moment();
            assert_eq!((moment.phase, moment.changes), (phase, changes));
        }
    }

    #[tokio::test]
    async fn first_byte_of_request_starts_head() {
        for (before, after) in [
            (Phase::New, Phase::Head),
            (Phase::Idle, Phase::Head),
            (Phase::Handshake, Phase::Handshake),
            (Phase::Busy, Phase::Busy),
        ] {
            let (mut client, mut socket, vitals, _) = connection(0);
            vitals.enter(before);
            client.write_all(b"G").await.unwrap();
            assert_eq!(socket.read_u8().await.unwrap(), b'G');
            assert_eq!(vitals.phase(), after);
            drop(client);
            vitals.enter(before);
            assert_eq!(socket.read(&mut [0]).await.unwrap(), 0);
            assert_eq!(
                vitals.phase(),
                before,
                "the end of the stream is not a request"
            );
        }
    }

    #[tokio::test]
    async fn head_bytes_count_until_response() {
        let (mut client, mut socket, vitals, taken) = connection(16 << 10);
        let mut buffer = vec![0; 64 << 10];
        vitals.enter(Phase::New);
        for (bytes, counted) in [(8 << 10, 0), (4 << 10, 8 << 10)] {
            client.write_all(&vec![b'x'; bytes]).await.unwrap();
            socket.read_exact(&mut buffer[..bytes]).await.unwrap();
            assert_eq!(taken.get(), counted);
        }
        vitals.enter(Phase::Busy);
        socket.write_all(b"early").await.unwrap();
        client.write_all(&vec![b'x'; 32 << 10]).await.unwrap();
        socket.read_exact(&mut buffer[..32 << 10]).await.unwrap();
        assert_eq!(taken.get(), 8 << 10, "a body is not a head");
        vitals.enter(Phase::Idle);
        socket.write_all(b"late").await.unwrap();
        assert_eq!(taken.get(), 0);
        client.write_all(&vec![b'x'; 17 << 10]).await.unwrap();
        let refused = socket
            .read_exact(&mut buffer[..17 << 10])
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::OutOfMemory);
        drop(socket);
        assert_eq!(taken.get(), 0);
    }

    #[tokio::test]
    async fn write_is_blocked_until_client_reads() {
        let (mut client, stream) = tokio::io::duplex(4);
        let vitals = Arc::<Vitals>::default();
        let heads = Arc::new(Budget::new(0));
        let mut socket = Socket::new(stream, vitals.clone(), heads, true);
        assert_eq!(socket.write(b"abcdef").await.unwrap(), 4);
        assert!(!vitals.moment().is_blocked);
        {
            let mut write = Box::pin(socket.write(b"ef"));
            assert!((&mut write).now_or_never().is_none());
            assert!(vitals.moment().is_blocked);
            client.read_exact(&mut [0; 4]).await.unwrap();
            assert_eq!(write.await.unwrap(), 2);
        }
        let moment = vitals.moment();
        assert_eq!((moment.is_blocked, moment.bytes_written), (false, 6));
    }

    /// A stream that counts calls, and writes nowhere.
    #[derive(Default)]
    struct Calls {
        plain: Vec<Vec<u8>>,
        vectored: usize,
    }

    impl AsyncWrite for Calls {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.plain.push(bytes.to_vec());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.vectored += 1;
            Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn short_slices_are_written_together() {
        let heads = Arc::new(Budget::new(0));
        let stream = tokio::io::join(tokio::io::empty(), Calls::default());
        let mut socket = Socket::new(stream, Arc::default(), heads, true);
        let head = [b'h'; GATHERED_BYTES_MAX - 4];
        let written = socket
            .write_vectored(&[IoSlice::new(&head), IoSlice::new(b"body")])
            .await;
        assert_eq!(written.unwrap(), GATHERED_BYTES_MAX);
        assert_eq!(
            socket.stream.writer().plain,
            [[&head[..], b"body"].concat()]
        );
        let written = socket
            .write_vectored(&[IoSlice::new(&head), IoSlice::new(b"5more")])
            .await;
        assert_eq!(
            (written.unwrap(), socket.stream.writer().vectored),
            (GATHERED_BYTES_MAX + 1, 1)
        );
    }
}
