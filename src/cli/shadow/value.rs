//! Redis' protocol, as far as a client of few commands needs it: a command as bytes, and an answer from bytes.

use std::io::{self, BufRead, Read};

/// The longest line and the longest text, in bytes: ten thousand items of 512 bytes, each byte escaped.
pub const BYTES_MAX: u64 = 64 << 20;

/// The most elements of a list.
const ELEMENTS_MAX: u64 = 1 << 20;

/// An answer, or a command in an append-only file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A line of text.
    Text(String),
    /// An error.
    Error(String),
    /// A number.
    Integer(i64),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Nothing.
    Null,
    /// A list; its elements are no lists.
    List(Vec<Value>),
}

/// A command with its arguments, as it is sent.
pub fn command(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Reads a value.
///
/// # Errors
/// If there is none, or something else.
pub fn read(from: &mut impl BufRead) -> io::Result<Value> {
    let mut line = Vec::new();
    from.by_ref().take(BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.strip_suffix(b"\r\n").ok_or_else(|| malformed("a line does not end"))?;
    if line.first() != Some(&b'*') {
        return element(line, from);
    }
    let elements = count(&line[1..], ELEMENTS_MAX)?;
    let mut list = Vec::new();
    let mut room = BYTES_MAX;
    for _ in 0..elements.unwrap_or(0) {
        let mut line = Vec::new();
        from.by_ref().take(BYTES_MAX).read_until(b'\n', &mut line)?;
        let line = line.strip_suffix(b"\r\n").ok_or_else(|| malformed("a line does not end"))?;
        let value = element(line, from)?;
        if let Value::Bytes(bytes) = &value {
            room = room.checked_sub(bytes.len() as u64).ok_or_else(|| malformed("a list is too long"))?;
        }
        list.push(value);
    }
    Ok(Value::List(list))
}

/// What begins with a line and is no list.
fn element(line: &[u8], from: &mut impl BufRead) -> io::Result<Value> {
    let (kind, rest) = line.split_first().ok_or_else(|| malformed("a line is empty"))?;
    let text = || String::from_utf8_lossy(rest).into_owned();
    Ok(match kind {
        b'+' => Value::Text(text()),
        b'-' => Value::Error(text()),
        b':' => Value::Integer(text().parse().map_err(|_| malformed("a number is none"))?),
        b'$' => match count(rest, BYTES_MAX)? {
            None => Value::Null,
            Some(length) => {
                let mut bytes = Vec::new();
                from.by_ref().take(length + 2).read_to_end(&mut bytes)?;
                if bytes.len() as u64 != length + 2 || !bytes.ends_with(b"\r\n") {
                    return Err(malformed("a text does not end where it should"));
                }
                bytes.truncate(bytes.len() - 2);
                Value::Bytes(bytes)
            }
        },
        _ => return Err(malformed("a line begins with none of + - : $ *")),
    })
}

/// A length; none where it is -1.
fn count(digits: &[u8], most: u64) -> io::Result<Option<u64>> {
    if digits == b"-1" {
        return Ok(None);
    }
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number
        .filter(|number| *number <= most)
        .map(Some)
        .ok_or_else(|| malformed("a length is none, or too large"))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("this is not Redis' protocol: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let all = b"+OK\r\n-ERR no\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*2\r\n:1\r\n$1\r\nx\r\n*0\r\n*-1\r\n";
        let mut from = &all[..];
        let found: Vec<Value> = std::iter::from_fn(|| read(&mut from).ok()).collect();
        let wanted = [
            Value::Text("OK".into()),
            Value::Error("ERR no".into()),
            Value::Integer(-7),
            Value::Bytes(b"a\r\n".to_vec()),
            Value::Null,
            Value::List(vec![Value::Integer(1), Value::Bytes(b"x".to_vec())]),
            Value::List(Vec::new()),
            Value::List(Vec::new()),
        ];
        // The text of three bytes is "a", CR and LF, which its own end follows.
        assert_eq!(found[..], wanted);
    }

    #[test]
    fn a_command_is_read_back_as_it_was_written() {
        let bytes = command(&[b"SADD", b"k", b"\x00\r\n"]);
        let arguments = [&b"SADD"[..], b"k", b"\x00\r\n"].map(|part| Value::Bytes(part.to_vec()));
        assert_eq!(read(&mut &bytes[..]).unwrap(), Value::List(arguments.to_vec()));
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for bytes in [
            "",
            "+OK",
            "?\r\n",
            ":x\r\n",
            "$5\r\nab\r\n",
            "$99999999999\r\n",
            "*1\r\n*1\r\n:1\r\n",
            "\r\n",
            "$-2\r\n",
        ] {
            assert!(read(&mut bytes.as_bytes()).is_err(), "{bytes:?}");
        }
    }
}
