//! Where commands come from: what MONITOR tells, over one connection after the other, or a file.

use super::changes::{Interest, Meaning};
use super::error::ShadowError;
use super::line::{self, Command};
use super::link::{Dialer, Heard, Link, RedisError};
use super::stop::Stop;
use super::told::{Sender, Told};
use super::value::{self, BYTES_MAX, Value};
use crate::cli::client::ClientError;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::mpsc::TrySendError;
use std::time::Duration;

/// The shortest and the longest pause before the connection is made again; each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// How often in a row nothing may be told, not even an answer, before the connection is given up.
const SILENCES_MAX: u32 = 3;

/// Tells from now on what MONITOR does.
///
/// # Errors
/// If the first connection can't be made.
pub fn monitor(dialer: Dialer, interest: Interest, to: Sender, stop: Stop) -> Result<(), ShadowError> {
    let mut link = connect(&dialer)?;
    std::thread::spawn(move || {
        // A queue that nobody reads any more ends it.
        while to.send(Told::Connected).is_ok() {
            let Some(why) = listen(link, &interest, &to) else { return };
            if to.send(Told::Broken(why)).is_err() {
                return;
            }
            let Some(again) = connect_again(&dialer, &stop) else { return };
            link = again;
        }
    });
    Ok(())
}

fn connect(dialer: &Dialer) -> Result<Link, RedisError> {
    let mut link = dialer.open()?;
    link.monitor()?;
    Ok(link)
}

/// Tries until it succeeds; none if it is time to end.
fn connect_again(dialer: &Dialer, stop: &Stop) -> Option<Link> {
    let mut pause = PAUSE_MIN;
    while !stop.wait(pause) {
        if let Ok(link) = connect(dialer) {
            return Some(link);
        }
        pause = (2 * pause).min(PAUSE_MAX);
    }
    None
}

/// Tells what comes, until the connection breaks, and why it did; none if nobody listens any more. It is broken off if too much waits: else it
/// would wait in Redis, which has no limit for that by default.
fn listen(mut link: Link, interest: &Interest, to: &Sender) -> Option<String> {
    let mut silences = 0;
    loop {
        let error = match link.hear() {
            Ok(Heard::Line(line)) => {
                silences = 0;
                let Some(told) = line::read(&line).and_then(|command| told(&command, interest)) else {
                    continue;
                };
                match to.try_send(told) {
                    Ok(()) => continue,
                    Err(TrySendError::Full(_)) => {
                        return Some("changes come faster than they can be mirrored".to_owned());
                    }
                    Err(TrySendError::Disconnected(_)) => return None,
                }
            }
            Ok(Heard::Silence) if silences == SILENCES_MAX => link.silent(),
            Ok(Heard::Silence) => {
                silences += 1;
                match link.ping() {
                    Ok(()) => continue,
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        return Some(error.to_string());
    }
}

/// What is told of a command, if it matters.
fn told(command: &Command, interest: &Interest) -> Option<Told> {
    match interest.meaning(command) {
        Meaning::Change(change) => Some(Told::Change(change)),
        Meaning::NotMirrored(name) => Some(Told::NotMirrored(name)),
        Meaning::Nothing => None,
    }
}

/// Tells the commands of a file, or of standard input for `-`.
///
/// # Errors
/// If it can't be opened.
pub fn file(path: &Path, interest: Interest, to: Sender) -> Result<(), ShadowError> {
    let name = path.display().to_string();
    let from: Box<dyn Read + Send> = match name.as_str() {
        "-" => Box::new(io::stdin()),
        _ => Box::new(File::open(path).map_err(|source| ClientError::File { path: name.clone(), source })?),
    };
    std::thread::spawn(move || {
        let mut commands = Commands { from: BufReader::new(from), number: 0, database: None };
        let end = loop {
            match commands.read() {
                Ok(Some(command)) => {
                    let is_heard = told(&command, &interest).is_none_or(|told| to.send(told).is_ok());
                    if !is_heard {
                        return;
                    }
                }
                Ok(None) => break Told::End,
                Err(error) => break Told::Fault(format!("{name}, command {}: {error}", commands.number)),
            }
        };
        // Nobody may be listening any more.
        let _ = to.send(end);
    });
    Ok(())
}

/// The commands of a file: lines, or Redis' own append-only format.
struct Commands<R> {
    from: BufReader<R>,
    /// Of the command that was read last.
    number: u64,
    /// What SELECT has chosen.
    database: Option<u32>,
}

impl<R: Read> Commands<R> {
    fn read(&mut self) -> io::Result<Option<Command>> {
        loop {
            self.number += 1;
            let command = match self.from.fill_buf()?.first() {
                None => return Ok(None),
                Some(b'*') => self.appended()?,
                Some(_) => match self.line()? {
                    Some(command) => command,
                    None => continue,
                },
            };
            if let [name, database] = &command.arguments[..]
                && name.eq_ignore_ascii_case(b"SELECT")
            {
                self.database = String::from_utf8_lossy(database).parse().ok();
            }
            return Ok(Some(Command { database: command.database.or(self.database), ..command }));
        }
    }

    fn appended(&mut self) -> io::Result<Command> {
        let strange = || io::Error::new(io::ErrorKind::InvalidData, "it is no list of texts");
        let Value::List(list) = value::read(&mut self.from)? else { return Err(strange()) };
        let texts = list.into_iter().map(|value| match value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(strange()),
        });
        Ok(Command { database: None, arguments: texts.collect::<io::Result<_>>()? })
    }

    /// A command; none where a line is empty or a comment.
    fn line(&mut self) -> io::Result<Option<Command>> {
        let mut line = Vec::new();
        self.from.by_ref().take(BYTES_MAX).read_until(b'\n', &mut line)?;
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            return Ok(None);
        }
        let fault = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        if self.number == 1 && line.starts_with(b"REDIS0") {
            return Err(fault("this is a snapshot (RDB); commands are in the append-only file"));
        }
        line::read(line).map(Some).ok_or_else(|| fault("a quote does not end"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;
    use std::sync::mpsc;

    #[test]
    fn redis_is_not_left_to_keep_what_can_t_be_mirrored_yet() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("redis://{}", listener.local_addr().unwrap()).parse().unwrap();
        let redis = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream.read_exact(&mut [0; "*1\r\n$7\r\nMONITOR\r\n".len()]).unwrap();
            let lines = [1, 2, 3].map(|item| format!("+1.2 [0 a:1] \"SADD\" \"k\" \"{item}\"\r\n"));
            stream.write_all(format!("+OK\r\n{}", lines.concat()).as_bytes()).unwrap();
            // The other side ends it, or resets it because it has not read everything.
            let ended = stream.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
            assert!(matches!(ended, Ok(0) | Err(io::ErrorKind::ConnectionReset)), "{ended:?}");
        });
        let (to, told) = mpsc::sync_channel(2);
        let stop = Stop::default();
        monitor(
            Dialer { address, tls: None },
            Interest { key: b"k".to_vec(), database: None },
            to,
            stop.clone(),
        )
        .unwrap();
        // Nothing is taken from the queue before the connection has ended.
        redis.join().unwrap();
        let found = [(); 3].map(|()| told.recv().unwrap());
        assert!(
            matches!(&found, [Told::Connected, Told::Change(_), Told::Broken(why)] if why.contains("faster")),
            "{found:?}"
        );
        stop.wish();
    }

    fn read(text: &str) -> (Vec<String>, Option<String>) {
        let mut commands = Commands { from: BufReader::new(text.as_bytes()), number: 0, database: None };
        let mut found = Vec::new();
        loop {
            match commands.read() {
                Ok(Some(Command { database, arguments })) => {
                    found.push(format!("{database:?} {}", arguments.join(&b' ').escape_ascii()));
                }
                Ok(None) => return (found, None),
                Err(error) => return (found, Some(error.to_string())),
            }
        }
    }

    #[test]
    fn files_of_commands_are_read() {
        let text = "OK\n\n1.2 [3 a:1] \"sadd\" \"k\" \"a\"\nSREM k a\n#TS:1\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n7\r\n*3\r\n$4\r\nSADD\r\n$1\r\nk\r\n$1\r\nb\r\n";
        let wanted = ["None OK", "Some(3) sadd k a", "None SREM k a", "Some(7) SELECT 7", "Some(7) SADD k b"];
        assert_eq!(read(text), (wanted.map(String::from).to_vec(), None));
    }

    #[test]
    fn what_is_no_command_is_told() {
        for (text, why) in [
            ("SADD k a\nSADD k \"b", "a quote does not end"),
            ("SADD k a\n*1\r\n:1\r\n", "no list of texts"),
            ("SADD k a\n*1\r\n$4\r\nPI", "does not end where it should"),
        ] {
            let (found, error) = read(text);
            assert!(
                found == ["None SADD k a"] && error.as_ref().is_some_and(|error| error.contains(why)),
                "{error:?}"
            );
        }
        assert!(read("REDIS0011\u{fa}\n").1.unwrap().contains("RDB"));
    }
}
