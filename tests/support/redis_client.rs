//! A client of Redis' protocol, implemented by hand: it shows the exact bytes of a reply, and sends arbitrary bytes.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take before it counts as none.
const TIMEOUT: Duration = Duration::from_secs(120);

/// An answer.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    Simple(String),
    Error(String),
    Integer(i64),
    Boolean(bool),
    Double(f64),
    Bulk(Vec<u8>),
    Text(String),
    Null,
    Array(Vec<Reply>),
    Set(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
}

impl Reply {
    pub fn ok() -> Reply {
        Reply::Simple("OK".into())
    }

    pub fn integers(numbers: &[i64]) -> Reply {
        Reply::Array(numbers.iter().copied().map(Reply::Integer).collect())
    }

    pub fn booleans(booleans: &[bool]) -> Reply {
        Reply::Array(booleans.iter().copied().map(Reply::Boolean).collect())
    }

    /// The text of an error.
    #[track_caller]
    pub fn error(&self) -> &str {
        match self {
            Reply::Error(text) => text,
            other => panic!("{other:?} is no error"),
        }
    }

    /// A text of any type.
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            Reply::Simple(text) | Reply::Text(text) => text.clone(),
            Reply::Bulk(bytes) => String::from_utf8(bytes.clone()).expect("text"),
            other => panic!("{other:?} is no text"),
        }
    }

    /// The elements of a list of any type.
    #[track_caller]
    pub fn items(&self) -> &[Reply] {
        match self {
            Reply::Array(items) | Reply::Set(items) => items,
            other => panic!("{other:?} is no list"),
        }
    }

    /// The value of a field in a map, or in a list of pairs.
    #[track_caller]
    pub fn field(&self, name: &str) -> &Reply {
        let fields: Vec<(&Reply, &Reply)> = match self {
            Reply::Map(fields) => fields.iter().map(|(field, value)| (field, value)).collect(),
            Reply::Array(items) => items.chunks(2).map(|pair| (&pair[0], &pair[1])).collect(),
            other => panic!("{other:?} has no fields"),
        };
        let found = fields.into_iter().find(|(field, _)| field.text() == name);
        found.unwrap_or_else(|| panic!("no {name} in {self:?}")).1
    }
}

/// A connection.
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    pub fn to(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream
            .set_read_timeout(Some(TIMEOUT))
            .expect("a duration above zero");
        stream.set_nodelay(true).expect("a TCP socket");
        Connection(BufReader::new(stream))
    }

    /// Sends a command of words without spaces, and reads its answer.
    #[track_caller]
    pub fn call(&mut self, line: &str) -> Reply {
        self.call_with(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    /// Sends a command with these arguments, and reads its answer.
    #[track_caller]
    pub fn call_with(&mut self, arguments: &[&[u8]]) -> Reply {
        self.send(&encoded(arguments));
        self.reply().expect("an answer")
    }

    /// Sends commands at once, and reads all answers.
    #[track_caller]
    pub fn pipeline<'a>(&mut self, lines: impl IntoIterator<Item = &'a str>) -> Vec<Reply> {
        let commands: Vec<Vec<u8>> = lines.into_iter().map(line).collect();
        self.send(&commands.concat());
        commands
            .iter()
            .map(|_| self.reply().expect("an answer"))
            .collect()
    }

    /// Sends bytes as they are. Returns whether they could be sent.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.0.get_mut().write_all(bytes).is_ok()
    }

    /// The same connection, to send from another thread.
    pub fn other_half(&self) -> Connection {
        Connection(BufReader::new(
            self.0.get_ref().try_clone().expect("a descriptor"),
        ))
    }

    /// Says that nothing more will be sent.
    pub fn end(&mut self) {
        self.0
            .get_mut()
            .shutdown(std::net::Shutdown::Write)
            .expect("the socket is open");
    }

    /// The next answer; `None` if the connection was closed instead.
    pub fn reply(&mut self) -> Option<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at(1);
        let number = || rest.parse::<i64>().expect("a number");
        Some(match kind {
            "+" => Reply::Simple(rest.into()),
            "-" => Reply::Error(rest.into()),
            ":" => Reply::Integer(number()),
            "#" => Reply::Boolean(rest == "t"),
            "," => Reply::Double(rest.parse().expect("a number")),
            "_" => Reply::Null,
            "$" if number() < 0 => Reply::Null,
            "$" => Reply::Bulk(self.bytes(number())?),
            "=" => {
                let text = String::from_utf8(self.bytes(number())?).expect("text");
                Reply::Text(text.strip_prefix("txt:").expect("plain text").into())
            }
            "*" => Reply::Array((0..number()).map(|_| self.reply()).collect::<Option<_>>()?),
            "~" => Reply::Set((0..number()).map(|_| self.reply()).collect::<Option<_>>()?),
            "%" => Reply::Map(
                (0..number())
                    .map(|_| Some((self.reply()?, self.reply()?)))
                    .collect::<Option<_>>()?,
            ),
            other => panic!("no answer begins with {other}: {line}"),
        })
    }

    fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        match self.0.read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) => {
                let line = String::from_utf8(line).expect("text");
                Some(line.strip_suffix("\r\n").expect("a whole line").to_owned())
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            Err(error) => panic!("no answer in time: {error}"),
        }
    }

    fn bytes(&mut self, length: i64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length).expect("a length") + 2];
        self.0.read_exact(&mut bytes).ok()?;
        assert!(bytes.ends_with(b"\r\n"), "{}", bytes.escape_ascii());
        bytes.truncate(bytes.len() - 2);
        Some(bytes)
    }
}

/// A command of words without spaces, as it is sent.
pub fn line(line: &str) -> Vec<u8> {
    encoded(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

/// A command as it is sent.
pub fn encoded(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
