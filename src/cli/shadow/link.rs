//! The connection to Redis: in the clear or over TLS, with its password and database.

use super::address::Address;
use super::value::{self, BYTES_MAX, Value};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long nothing may be told before the connection is tried.
const SILENCE: Duration = Duration::from_secs(5);

/// Why Redis does not do what it is asked for.
#[derive(Debug, Error)]
pub enum RedisError {
    /// It can't be reached, or the connection broke.
    #[error("redis {address}: {source}")]
    Broken {
        /// Where it is.
        address: String,
        /// What broke.
        source: io::Error,
    },
    /// It answered with an error.
    #[error("redis {address}: {what}")]
    Refused {
        /// Where it is.
        address: String,
        /// Its words.
        what: String,
    },
}

/// How to connect.
pub struct Dialer {
    /// Where, and as whom.
    pub address: Address,
    /// Whom to trust, if TLS is asked for.
    pub tls: Option<Arc<ClientConfig>>,
}

enum Stream {
    Clear(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// A connection.
pub struct Link {
    stream: BufReader<Stream>,
    address: String,
    /// The part of a line that has arrived.
    partial: Vec<u8>,
}

/// What arrives while MONITOR tells.
pub enum Heard {
    /// A line, without its end.
    Line(Vec<u8>),
    /// Nothing for a while.
    Silence,
}

impl Dialer {
    /// Connects, shows the password and selects the database.
    ///
    /// # Errors
    /// [`RedisError`].
    pub fn open(&self) -> Result<Link, RedisError> {
        let Address { user, password, database, .. } = &self.address;
        let address = self.address.to_string();
        let stream =
            self.connect().map_err(|source| RedisError::Broken { address: address.clone(), source })?;
        let mut link = Link { stream: BufReader::new(stream), address, partial: Vec::new() };
        if !password.is_empty() {
            match user.as_str() {
                "" => link.call(&[b"AUTH", password.as_bytes()])?,
                user => link.call(&[b"AUTH", user.as_bytes(), password.as_bytes()])?,
            };
        }
        if *database != 0 {
            link.call(&[b"SELECT", database.to_string().as_bytes()])?;
        }
        Ok(link)
    }

    fn connect(&self) -> io::Result<Stream> {
        let Address { host, port, .. } = &self.address;
        let mut failed = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for address in (host.as_str(), *port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(stream) => return self.secure(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn secure(&self, stream: TcpStream) -> io::Result<Stream> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let Some(tls) = &self.tls else { return Ok(Stream::Clear(stream)) };
        let name = ServerName::try_from(self.address.host.clone()).map_err(io::Error::other)?;
        let session = ClientConnection::new(tls.clone(), name).map_err(io::Error::other)?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(session, stream))))
    }
}

impl Link {
    /// Sends a command and reads its answer.
    ///
    /// # Errors
    /// [`RedisError`].
    pub fn call(&mut self, arguments: &[&[u8]]) -> Result<Value, RedisError> {
        let sent = self.stream.get_mut().write_all(&value::command(arguments));
        let answer =
            sent.and_then(|()| value::read(&mut self.stream)).map_err(|source| self.broken(source))?;
        match answer {
            Value::Error(what) => Err(RedisError::Refused { address: self.address.clone(), what }),
            answer => Ok(answer),
        }
    }

    /// From now on every command is told that anybody sends.
    ///
    /// # Errors
    /// [`RedisError`].
    pub fn monitor(&mut self) -> Result<(), RedisError> {
        self.call(&[b"MONITOR"])?;
        let set = self.stream.get_ref().socket().set_read_timeout(Some(SILENCE));
        set.map_err(|source| self.broken(source))
    }

    /// Asks for a sign of life, which is a line.
    ///
    /// # Errors
    /// [`RedisError`].
    pub fn ping(&mut self) -> Result<(), RedisError> {
        let sent = self.stream.get_mut().write_all(&value::command(&[b"PING"]));
        sent.map_err(|source| self.broken(source))
    }

    /// The next line that is told.
    ///
    /// # Errors
    /// [`RedisError`].
    pub fn hear(&mut self) -> Result<Heard, RedisError> {
        let room = BYTES_MAX.saturating_sub(self.partial.len() as u64);
        match self.stream.by_ref().take(room).read_until(b'\n', &mut self.partial) {
            Ok(_) if self.partial.ends_with(b"\n") => {
                let mut line = std::mem::take(&mut self.partial);
                line.truncate(line.trim_ascii_end().len());
                Ok(Heard::Line(line))
            }
            Ok(_) if self.partial.len() as u64 >= BYTES_MAX => {
                Err(self.broken(io::Error::new(ErrorKind::InvalidData, "a line does not end")))
            }
            Ok(_) => Err(self.broken(ErrorKind::UnexpectedEof.into())),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Ok(Heard::Silence)
            }
            Err(error) => Err(self.broken(error)),
        }
    }

    /// That nothing has come for too long.
    pub fn silent(&self) -> RedisError {
        self.broken(io::Error::new(ErrorKind::TimedOut, "it does not answer"))
    }

    fn broken(&self, source: io::Error) -> RedisError {
        RedisError::Broken { address: self.address.clone(), source }
    }
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Stream::Clear(socket) => socket,
            Stream::Tls(session) => &session.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Clear(socket) => socket.read(into),
            Stream::Tls(session) => session.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Clear(socket) => socket.write(bytes),
            Stream::Tls(session) => session.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Clear(socket) => socket.flush(),
            Stream::Tls(session) => session.flush(),
        }
    }
}
