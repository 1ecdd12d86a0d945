//! A command as a line of text: as MONITOR tells it, or as it is typed into redis-cli.

/// A command somebody has sent to Redis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// The database it was sent to; none where that is not told.
    pub database: Option<u32>,
    /// Its name and arguments.
    pub arguments: Vec<Vec<u8>>,
}

/// Reads a line without its end. None if it is no command.
pub fn read(line: &[u8]) -> Option<Command> {
    let (database, rest) = match origin(line) {
        Some((database, rest)) => (Some(database), rest),
        None => (None, line),
    };
    let arguments = arguments(rest)?;
    (!arguments.is_empty()).then_some(Command { database, arguments })
}

/// What MONITOR tells first, as in `1339518083.107412 [0 127.0.0.1:60866] "keys" "*"`: the database; and the rest of the line.
fn origin(line: &[u8]) -> Option<(u32, &[u8])> {
    let line = line.strip_prefix(b"+").unwrap_or(line);
    let after_time = line.iter().position(|byte| !matches!(byte, b'0'..=b'9' | b'.'))?;
    let rest = line[after_time..].strip_prefix(b" [").filter(|_| after_time > 0)?;
    let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    let database = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    // The client, which may be the path of a socket, has no quotes.
    let end = rest.windows(3).position(|three| three == b"] \"")?;
    Some((database, &rest[end + 2..]))
}

/// The words of a line, which may be quoted and escaped as Redis does it. None if a quote does not end.
fn arguments(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let mut rest = line.trim_ascii();
    while let Some(&first) = rest.first() {
        let (word, after) = match first {
            b'"' => quoted(&rest[1..])?,
            b'\'' => apostrophes(&rest[1..])?,
            _ => {
                let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
                (rest[..end].to_vec(), &rest[end..])
            }
        };
        if !after.first().is_none_or(u8::is_ascii_whitespace) {
            return None;
        }
        found.push(word);
        rest = after.trim_ascii_start();
    }
    Some(found)
}

/// What stands before the next `"`, and what comes after it.
fn quoted(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    let mut at = 0;
    loop {
        match *text.get(at)? {
            b'"' => return Some((word, &text[at + 1..])),
            b'\\' => {
                let escaped = *text.get(at + 1)?;
                let hex = text.get(at + 2..at + 4).and_then(|digits| hex::decode(digits).ok());
                match (escaped, hex) {
                    (b'x', Some(byte)) => {
                        word.extend(byte);
                        at += 2;
                    }
                    (b'n', _) => word.push(b'\n'),
                    (b'r', _) => word.push(b'\r'),
                    (b't', _) => word.push(b'\t'),
                    (b'b', _) => word.push(0x08),
                    (b'a', _) => word.push(0x07),
                    (other, _) => word.push(other),
                }
                at += 2;
            }
            byte => {
                word.push(byte);
                at += 1;
            }
        }
    }
}

/// What stands before the next `'`, and what comes after it.
fn apostrophes(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    let mut at = 0;
    loop {
        match (*text.get(at)?, text.get(at + 1)) {
            (b'\'', _) => return Some((word, &text[at + 1..])),
            (b'\\', Some(b'\'')) => {
                word.push(b'\'');
                at += 2;
            }
            (byte, _) => {
                word.push(byte);
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_as_text(line: &str) -> Option<(Option<u32>, Vec<String>)> {
        let Command { database, arguments } = read(line.as_bytes())?;
        let arguments = arguments.iter().map(|argument| argument.escape_ascii().to_string()).collect();
        Some((database, arguments))
    }

    #[test]
    fn lines_of_monitor_are_read() {
        let wanted = |database, arguments: &[&str]| {
            Some((Some(database), arguments.iter().map(ToString::to_string).collect::<Vec<_>>()))
        };
        for (line, found) in [
            (
                r#"1339518083.107412 [0 127.0.0.1:60866] "cf.add" "spring" "u1""#,
                wanted(0, &["cf.add", "spring", "u1"]),
            ),
            (r#"+1.2 [15 [::1]:60866] "SADD" "k" "a b" """#, wanted(15, &["SADD", "k", "a b", ""])),
            (r#"1.2 [0 lua] "srem" "k" "x""#, wanted(0, &["srem", "k", "x"])),
            (r#"1.2 [0 unix:/tmp/a] b.sock] "ping""#, wanted(0, &["ping"])),
            (r#"1.2 [0 a:1] "sadd" "k" "\x00\n\"\\""#, wanted(0, &["sadd", "k", r#"\x00\n\"\\"#])),
        ] {
            assert_eq!(read_as_text(line), found, "{line}");
        }
    }

    #[test]
    fn typed_lines_are_read() {
        let wanted =
            |arguments: &[&str]| Some((None, arguments.iter().map(ToString::to_string).collect::<Vec<_>>()));
        assert_eq!(read_as_text("CF.ADD spring u1\r"), wanted(&["CF.ADD", "spring", "u1"]));
        assert_eq!(read_as_text(r#"  sadd 'it\'s' "a b"  "#), wanted(&["sadd", r"it\'s", "a b"]));
        assert_eq!(
            read_as_text("1.2 is no command of MONITOR"),
            wanted(&["1.2", "is", "no", "command", "of", "MONITOR"])
        );
        for line in ["", "   ", r#"sadd "open"#, "sadd 'open", r#"sadd "a"b"#] {
            assert_eq!(read_as_text(line), None, "{line}");
        }
    }
}
