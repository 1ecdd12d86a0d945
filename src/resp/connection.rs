//! One connection: reads what has arrived, has it executed, sends the answers.

use super::batch::Batch;
use super::execute::{Next, execute};
use super::failure::{Code, Failure};
use super::memory::{OWN_BYTES, Share};
use super::parser::{Parser, RequestLimits};
use super::replies::Replies;
use super::session::Session;
use super::shared::Shared;
use super::visit::Visit;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::watch;
use tokio::time::Instant;

/// The most bytes that are read at once.
const READ_BYTES_MAX: usize = 64 << 10;

/// Answers are sent once they have this many bytes, though more commands have arrived.
const SEND_BYTES: usize = 64 << 10;

/// Bytes of requests after which a connection lets others have their turn.
const TURN_BYTES: usize = 64 << 10;

/// The most bytes that are read from a client that was told that the connection ends.
const UNHEARD_BYTES_MAX: usize = 1 << 30;

/// What a client may send that has presented its key.
const KNOWN: RequestLimits =
    RequestLimits { arguments_max: 64 << 10, argument_bytes_max: 64 << 10, request_bytes_max: 8 << 20 };

/// What strangers may send: enough for HELLO and AUTH.
const STRANGER: RequestLimits =
    RequestLimits { arguments_max: 10, argument_bytes_max: 1 << 10, request_bytes_max: 4 << 10 };

thread_local! {
    /// Where bytes are read to first, so that idle connections need no memory for it.
    static ARRIVED: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES_MAX].into_boxed_slice());
}

/// What a connection is waiting for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// A stranger's next request.
    Stranger,
    /// The next request.
    Idle,
    /// The rest of a request.
    Request,
    /// The engine.
    Busy,
    /// The client to close its side.
    Closing,
}

/// Is told what a connection is waiting for, and closes it when that takes too long.
pub trait Watcher {
    /// The connection enters a phase.
    fn enter(&self, phase: Phase);
}

/// Is counted as an open connection until it is dropped.
struct Open<'a>(&'a Shared);

impl<'a> Open<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.metrics.connections_opened.inc();
        shared.metrics.connections.inc();
        Self(shared)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.metrics.connections.dec();
    }
}

/// Why the loop ends.
enum End {
    /// The client has closed its side, or the connection is broken.
    Gone,
    /// The client was told.
    Told,
}

struct Connection<'a, S, W> {
    stream: S,
    watcher: W,
    visit: Visit<'a>,
    parser: Parser,
    /// Bytes that have arrived; those before `read` are executed.
    arrived: Vec<u8>,
    read: usize,
    share: Share<'a>,
}

/// Serves a connection until it ends, or until it is idle and `draining` is true.
///
/// # Errors
/// The connection is broken.
pub async fn serve<S, W>(
    shared: &Shared,
    stream: S,
    peer: Option<SocketAddr>,
    watcher: W,
    mut draining: watch::Receiver<bool>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    W: Watcher,
{
    let _open = Open::new(shared);
    let session = Session::new(shared, peer);
    let (replies, batch) = (Replies::default(), Batch::new(shared));
    let mut connection = Connection {
        stream,
        watcher,
        visit: Visit { shared, session, replies, batch },
        parser: Parser::default(),
        arrived: Vec::new(),
        read: 0,
        share: Share::of(&shared.memory),
    };
    match connection.run(&mut draining).await? {
        End::Gone => Ok(()),
        End::Told => connection.close().await,
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, W: Watcher> Connection<'_, S, W> {
    async fn run(&mut self, draining: &mut watch::Receiver<bool>) -> io::Result<End> {
        loop {
            let is_between = self.arrived.is_empty();
            if is_between && *draining.borrow() {
                return Ok(End::Told);
            }
            self.watcher.enter(match (is_between, self.visit.session.is_known()) {
                (true, true) => Phase::Idle,
                (true, false) => Phase::Stranger,
                (false, _) => Phase::Request,
            });
            let read = tokio::select! {
                biased;
                read = read(&mut self.stream, &mut self.arrived) => read?,
                _ = draining.wait_for(|is_draining| *is_draining), if is_between => return Ok(End::Told),
            };
            if read == 0 {
                return Ok(End::Gone);
            }
            self.watcher.enter(Phase::Busy);
            let began = Instant::now();
            let next = self.execute_all().await?;
            self.send().await?;
            self.visit.shared.metrics.batch_seconds.observe(began.elapsed().as_secs_f64());
            if next == Next::End {
                return Ok(End::Told);
            }
        }
    }

    /// Executes all commands that have arrived.
    async fn execute_all(&mut self) -> io::Result<Next> {
        let mut turn_bytes = 0;
        let next = loop {
            let limits = if self.visit.session.is_known() { &KNOWN } else { &STRANGER };
            let unread = &self.arrived[self.read..];
            let length = match self.parser.parse(unread, limits) {
                Ok(Some(length)) => length,
                Ok(None) => break Next::GoOn,
                Err(error) => {
                    self.visit.settle().await;
                    self.visit.replies.failure(&Failure::err(error.to_string()));
                    break Next::End;
                }
            };
            let arguments = self.parser.arguments(unread);
            let next = match arguments.is_empty() {
                true => Next::GoOn,
                false => execute(&mut self.visit, arguments, self.parser.is_inline()).await,
            };
            self.parser.begin_next();
            self.read += length;
            if next == Next::End {
                break next;
            }
            if self.visit.replies.bytes().len() >= SEND_BYTES {
                self.send().await?;
            }
            turn_bytes += length;
            if turn_bytes >= TURN_BYTES {
                turn_bytes = 0;
                tokio::task::yield_now().await;
            }
        };
        self.visit.settle().await;
        self.arrived.drain(..self.read);
        self.read = 0;
        if self.arrived.is_empty() {
            self.arrived.shrink_to(OWN_BYTES);
            self.parser.shrink(OWN_BYTES);
        }
        if !self.holds_its_memory() {
            (self.arrived, self.parser) = (Vec::new(), Parser::default());
            let text = "too many bytes of commands are being received: send shorter ones, or try again";
            self.visit.replies.failure(&Failure::new(Code::Busy, text));
            return Ok(Next::End);
        }
        Ok(next)
    }

    /// Takes its share of the memory of all connections. Arguments are copied once more when they are hashed, at most.
    fn holds_its_memory(&mut self) -> bool {
        let bytes =
            2 * self.arrived.capacity() + self.parser.memory_bytes() + self.visit.replies.memory_bytes();
        self.share.hold(bytes)
    }

    /// Sends the answers.
    async fn send(&mut self) -> io::Result<()> {
        if self.visit.replies.bytes().is_empty() {
            return Ok(());
        }
        if !self.holds_its_memory() {
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                "no room for the answers in resp.buffers",
            ));
        }
        self.stream.write_all(self.visit.replies.bytes()).await?;
        self.stream.flush().await?;
        self.visit.replies.clear(OWN_BYTES);
        Ok(())
    }

    /// Closes our side, and reads what the client still sends: otherwise the system would reset the connection, and the client might
    /// lose its last answers.
    async fn close(mut self) -> io::Result<()> {
        self.watcher.enter(Phase::Closing);
        drop((self.arrived, self.share));
        self.stream.shutdown().await?;
        let (mut bytes, mut unheard) = ([0; 4 << 10], 0);
        while unheard < UNHEARD_BYTES_MAX {
            match self.stream.read(&mut bytes).await? {
                0 => break,
                read => unheard += read,
            }
        }
        Ok(())
    }
}

/// Reads what has arrived. Returns the number of bytes; 0 at the end.
async fn read<S: AsyncRead + Unpin>(stream: &mut S, to: &mut Vec<u8>) -> io::Result<usize> {
    poll_fn(|context| {
        ARRIVED.with_borrow_mut(|room| {
            let mut buffer = ReadBuf::new(&mut room[..]);
            ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer))?;
            to.extend_from_slice(buffer.filled());
            Poll::Ready(Ok(buffer.filled().len()))
        })
    })
    .await
}
