//! Writes replies in Redis' protocol, version 2 or 3.

use super::failure::Failure;
use std::io::Write as _;

/// A version of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RespVersion {
    /// RESP2: the initial protocol of a connection.
    #[default]
    Two = 2,
    /// RESP3: also has maps, sets and booleans.
    Three = 3,
}

/// Replies that have not been sent yet.
#[derive(Debug, Default)]
pub struct Replies {
    /// The version to write.
    pub protocol: RespVersion,
    bytes: Vec<u8>,
}

impl Replies {
    /// The unsent bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Removes the sent bytes, and frees memory beyond `kept` bytes.
    pub fn clear(&mut self, kept: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(kept);
    }

    /// `OK` and the like.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// An error.
    pub fn failure(&mut self, failure: &Failure) {
        self.bytes.push(b'-');
        self.bytes
            .extend_from_slice(failure.code.as_str().as_bytes());
        self.bytes.push(b' ');
        // The client's own words may be in the text, and they must not look like another reply.
        self.bytes.extend(
            failure
                .text
                .bytes()
                .map(|byte| if byte.is_ascii_control() { b' ' } else { byte }),
        );
        self.end_line();
    }

    /// A number.
    pub fn integer(&mut self, number: i64) {
        match number {
            0 => self.bytes.extend_from_slice(b":0\r\n"),
            1 => self.bytes.extend_from_slice(b":1\r\n"),
            _ => self.number(b':', number),
        }
    }

    /// A number that is never negative.
    pub fn count(&mut self, number: u64) {
        self.integer(i64::try_from(number).unwrap_or(i64::MAX));
    }

    /// Yes or no; 1 or 0 in RESP2.
    pub fn boolean(&mut self, is_true: bool) {
        match (self.protocol, is_true) {
            (RespVersion::Two, _) => self.integer(i64::from(is_true)),
            (RespVersion::Three, true) => self.bytes.extend_from_slice(b"#t\r\n"),
            (RespVersion::Three, false) => self.bytes.extend_from_slice(b"#f\r\n"),
        }
    }

    /// Bytes.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.length(b'$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.end_line();
    }

    /// Several short strings.
    pub fn words<const N: usize>(&mut self, words: [&str; N]) {
        words.iter().for_each(|word| self.bulk(word.as_bytes()));
    }

    /// Text of several lines for people.
    pub fn text(&mut self, text: &str) {
        match self.protocol {
            RespVersion::Two => self.bulk(text.as_bytes()),
            RespVersion::Three => {
                self.length(b'=', text.len() + "txt:".len());
                self.bytes.extend_from_slice(b"txt:");
                self.bytes.extend_from_slice(text.as_bytes());
                self.end_line();
            }
        }
    }

    /// Nothing.
    pub fn null(&mut self) {
        self.bytes.extend_from_slice(match self.protocol {
            RespVersion::Two => b"$-1\r\n",
            RespVersion::Three => b"_\r\n",
        });
    }

    /// Writes the head of an array; its `length` elements follow.
    pub fn array(&mut self, length: usize) {
        self.length(b'*', length);
    }

    /// The head of a set; a list in RESP2.
    pub fn set(&mut self, length: usize) {
        match self.protocol {
            RespVersion::Two => self.array(length),
            RespVersion::Three => self.length(b'~', length),
        }
    }

    /// Writes the head of a map of `length` pairs; an array of twice the length in RESP2.
    pub fn map(&mut self, length: usize) {
        match self.protocol {
            RespVersion::Two => self.array(2 * length),
            RespVersion::Three => self.length(b'%', length),
        }
    }

    fn line(&mut self, first: u8, text: &str) {
        self.bytes.push(first);
        self.bytes.extend_from_slice(text.as_bytes());
        self.end_line();
    }

    fn length(&mut self, first: u8, length: usize) {
        self.number(first, i64::try_from(length).unwrap_or(i64::MAX));
    }

    fn number(&mut self, first: u8, number: i64) {
        self.bytes.push(first);
        // Writing to memory can't fail.
        let _ = write!(self.bytes, "{number}");
        self.end_line();
    }

    fn end_line(&mut self) {
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: RespVersion, write: impl Fn(&mut Replies)) -> String {
        let mut replies = Replies {
            protocol,
            ..Replies::default()
        };
        write(&mut replies);
        String::from_utf8(replies.bytes).unwrap()
    }

    #[test]
    fn reply_types_follow_protocol_version() {
        let all = |replies: &mut Replies| {
            replies.map(1);
            replies.simple("OK");
            replies.boolean(true);
            replies.set(2);
            replies.integer(-1);
            replies.count(u64::MAX);
            replies.null();
            replies.text("a\nb");
            replies.bulk(b"");
        };
        assert_eq!(
            written(RespVersion::Two, all),
            "*2\r\n+OK\r\n:1\r\n*2\r\n:-1\r\n:9223372036854775807\r\n$-1\r\n$3\r\na\nb\r\n$0\r\n\r\n"
        );
        assert_eq!(
            written(RespVersion::Three, all),
            "%1\r\n+OK\r\n#t\r\n~2\r\n:-1\r\n:9223372036854775807\r\n_\r\n=7\r\ntxt:a\nb\r\n$0\r\n\r\n"
        );
    }

    #[test]
    fn error_never_contains_line_break() {
        let failure = Failure::err("unknown command 'a\r\n+OK'");
        assert_eq!(
            written(RespVersion::Two, |replies| replies.failure(&failure)),
            "-ERR unknown command 'a  +OK'\r\n"
        );
    }
}
