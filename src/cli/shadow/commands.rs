//! Commands as text: as MONITOR reports them, as they are typed into redis-cli, or in Redis' append-only format.

use super::changes::RedisCommand;
use crate::resp::{Parser, RequestLimits};
use regex::bytes::{Captures, Regex};
use std::io::{self, BufRead, Read};
use std::sync::LazyLock;

/// Maximum size of a line or an argument, in bytes: ten thousand items of 512 bytes, each byte escaped.
const BYTES_MAX: u64 = 64 << 20;

/// Limits of a command in the append-only format.
const APPENDED: RequestLimits = RequestLimits {
    arguments_max: 1 << 20,
    argument_bytes_max: BYTES_MAX as usize,
    request_bytes_max: BYTES_MAX as usize,
};

/// The commands of a file.
pub struct CommandFile<R> {
    from: R,
    /// The number of the command that was read last.
    pub number: u64,
    /// The database that SELECT has chosen.
    database: Option<i64>,
}

impl<R: BufRead> CommandFile<R> {
    /// Reads commands from a file.
    pub fn new(from: R) -> Self {
        Self {
            from,
            number: 0,
            database: None,
        }
    }

    /// Reads the next command.
    ///
    /// # Errors
    /// If there is something else.
    pub fn read(&mut self) -> io::Result<Option<RedisCommand>> {
        loop {
            self.number += 1;
            let command = match self.from.fill_buf()?.first() {
                None => return Ok(None),
                Some(b'*') => Some(RedisCommand {
                    database: None,
                    arguments: self.appended()?,
                }),
                Some(_) => self.line()?,
            };
            let Some(command) = command else { continue };
            if let [name, database] = &command.arguments[..]
                && name.eq_ignore_ascii_case(b"SELECT")
            {
                self.database = String::from_utf8_lossy(database).parse().ok();
            }
            return Ok(Some(RedisCommand {
                database: command.database.or(self.database),
                ..command
            }));
        }
    }

    /// Reads a command of an append-only file.
    fn appended(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let mut bytes = Vec::new();
        let mut parser = Parser::default();
        let other = |_| invalid("not the append-only format of Redis");
        while parser.parse(&bytes, &APPENDED).map_err(other)?.is_none() {
            // A command ends with a line, and an argument may have several.
            if self
                .from
                .by_ref()
                .take(BYTES_MAX)
                .read_until(b'\n', &mut bytes)?
                == 0
            {
                return Err(invalid("an argument is cut short"));
            }
        }
        Ok(parser
            .arguments(&bytes)
            .iter()
            .map(<[u8]>::to_vec)
            .collect())
    }

    /// Reads a line; `None` if it is empty or a comment.
    fn line(&mut self) -> io::Result<Option<RedisCommand>> {
        let mut line = Vec::new();
        self.from
            .by_ref()
            .take(BYTES_MAX)
            .read_until(b'\n', &mut line)?;
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            return Ok(None);
        }
        if self.number == 1 && line.starts_with(b"REDIS0") {
            return Err(invalid(
                "this is a snapshot (RDB); commands are in the append-only file",
            ));
        }
        parse(line)
            .map(Some)
            .ok_or_else(|| invalid("a quote does not end"))
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// MONITOR's prefix of a command, as in `1339518083.107412 [0 127.0.0.1:60866] "keys" "*"`: the database, and the client, which may be the
/// path of a socket and has no quotes.
static ORIGIN: LazyLock<Regex> = LazyLock::new(|| regex(r#"^\+?[0-9.]+ \[([0-9]+) .*?\] ""#));

/// A word: between quotes, between apostrophes, or up to a space.
static WORD: LazyLock<Regex> = LazyLock::new(|| {
    regex(r#"^(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\+[^\\])*)'|([^\s"']\S*))(?:\s+|$)"#)
});

/// An escape between quotes.
static ESCAPE: LazyLock<Regex> = LazyLock::new(|| regex(r"\\(x[0-9a-fA-F]{2}|.)"));

/// The only escape between apostrophes.
static APOSTROPHE: LazyLock<Regex> = LazyLock::new(|| regex(r"\\'"));

fn regex(pattern: &str) -> Regex {
    Regex::new(&format!("(?s-u){pattern}")).expect("the pattern is valid")
}

/// Parses a line without its end; `None` if it is no command.
pub fn parse(line: &[u8]) -> Option<RedisCommand> {
    let origin = ORIGIN.captures(line);
    let database = origin
        .as_ref()
        .and_then(|origin| str::from_utf8(&origin[1]).ok()?.parse().ok());
    // The first quote belongs to the command.
    let mut rest = origin
        .map_or(line, |origin| &line[origin[0].len() - 1..])
        .trim_ascii();
    let mut arguments = Vec::new();
    while !rest.is_empty() {
        let word = WORD.captures(rest)?;
        arguments.push(match (word.get(1), word.get(2)) {
            (Some(quoted), _) => unescaped(quoted.as_bytes()),
            (_, Some(quoted)) => APOSTROPHE.replace_all(quoted.as_bytes(), b"'").into_owned(),
            (None, None) => word[3].to_vec(),
        });
        rest = &rest[word[0].len()..];
    }
    (!arguments.is_empty()).then_some(RedisCommand {
        database,
        arguments,
    })
}

fn unescaped(text: &[u8]) -> Vec<u8> {
    let meant = |escape: &Captures<'_>| match &escape[1] {
        [b'x', digits @ ..] if !digits.is_empty() => hex::decode(digits).unwrap_or_default(),
        b"n" => b"\n".to_vec(),
        b"r" => b"\r".to_vec(),
        b"t" => b"\t".to_vec(),
        b"b" => vec![0x08],
        b"a" => vec![0x07],
        other => other.to_vec(),
    };
    ESCAPE.replace_all(text, meant).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Option<(Option<i64>, Vec<String>)> {
        let RedisCommand {
            database,
            arguments,
        } = parse(line.as_bytes())?;
        let arguments = arguments
            .iter()
            .map(|argument| argument.escape_ascii().to_string())
            .collect();
        Some((database, arguments))
    }

    #[test]
    fn lines_of_monitor_are_parsed() {
        let wanted = |database, arguments: &[&str]| {
            Some((
                Some(database),
                arguments
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>(),
            ))
        };
        for (line, found) in [
            (
                r#"1339518083.107412 [0 127.0.0.1:60866] "cf.add" "spring" "u1""#,
                wanted(0, &["cf.add", "spring", "u1"]),
            ),
            (
                r#"+1.2 [15 [::1]:60866] "SADD" "k" "a b" """#,
                wanted(15, &["SADD", "k", "a b", ""]),
            ),
            (
                r#"1.2 [0 lua] "srem" "k" "x""#,
                wanted(0, &["srem", "k", "x"]),
            ),
            (
                r#"1.2 [0 unix:/tmp/a] b.sock] "ping""#,
                wanted(0, &["ping"]),
            ),
            (
                r#"1.2 [0 a:1] "sadd" "k" "\x00\n\"\\""#,
                wanted(0, &["sadd", "k", r#"\x00\n\"\\"#]),
            ),
        ] {
            assert_eq!(parsed(line), found, "{line}");
        }
    }

    #[test]
    fn typed_lines_are_parsed() {
        let wanted = |arguments: &[&str]| {
            Some((
                None,
                arguments
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>(),
            ))
        };
        assert_eq!(
            parsed("CF.ADD spring u1\r"),
            wanted(&["CF.ADD", "spring", "u1"])
        );
        assert_eq!(
            parsed(r#"  sadd 'it\'s' "a b"  "#),
            wanted(&["sadd", r"it\'s", "a b"])
        );
        // Between apostrophes, a backslash is itself unless an apostrophe follows.
        assert_eq!(
            parsed(r"'a\\' b' 'c\\d'"),
            wanted(&["a\\\\\\' b", r"c\\\\d"])
        );
        assert_eq!(
            parsed("1.2 is no command of MONITOR"),
            wanted(&["1.2", "is", "no", "command", "of", "MONITOR"])
        );
        for line in [
            "",
            "   ",
            r#"sadd "open"#,
            "sadd 'open",
            r"sadd 'a\\' b",
            r#"sadd "a"b"#,
        ] {
            assert_eq!(parsed(line), None, "{line}");
        }
    }

    fn read(text: &str) -> (Vec<String>, Option<String>) {
        let mut commands = CommandFile::new(text.as_bytes());
        let mut found = Vec::new();
        loop {
            match commands.read() {
                Ok(Some(RedisCommand {
                    database,
                    arguments,
                })) => {
                    found.push(format!(
                        "{database:?} {}",
                        arguments.join(&b' ').escape_ascii()
                    ));
                }
                Ok(None) => return (found, None),
                Err(error) => return (found, Some(error.to_string())),
            }
        }
    }

    #[test]
    fn files_of_commands_are_read() {
        let text = "OK\n\n1.2 [3 a:1] \"sadd\" \"k\" \"a\"\nSREM k a\n#TS:1\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n7\r\n*3\r\n$4\r\nSADD\r\n$1\r\nk\r\n$1\r\nb\r\n";
        let wanted = [
            "None OK",
            "Some(3) sadd k a",
            "None SREM k a",
            "Some(7) SELECT 7",
            "Some(7) SADD k b",
        ];
        assert_eq!(read(text), (wanted.map(String::from).to_vec(), None));
    }

    #[test]
    fn invalid_line_is_rejected() {
        for (text, why) in [
            ("SADD k a\nSADD k \"b", "a quote does not end"),
            ("SADD k a\n*1\r\n:1\r\n", "not the append-only format"),
            ("SADD k a\n*1\r\n$4\r\nPI", "cut short"),
            ("SADD k a\n*99999999\r\n", "not the append-only format"),
            (
                "SADD k a\n*1\r\n$99999999999\r\n",
                "not the append-only format",
            ),
        ] {
            let (found, error) = read(text);
            assert!(
                found == ["None SADD k a"]
                    && error.as_ref().is_some_and(|error| error.contains(why)),
                "{error:?}"
            );
        }
        assert!(read("REDIS0011\u{fa}\n").1.unwrap().contains("RDB"));
    }
}
