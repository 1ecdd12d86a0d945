//! Parses requests in Redis' protocol. A request may arrive in any pieces: the parser continues where it stopped, and allocates nothing for
//! announced arguments.

use super::failure::Failure;
use memchr::memchr;

/// The longest line that announces a number, in bytes.
const NUMBER_LINE_BYTES_MAX: usize = 32;

/// The longest request that is a plain line of words, in bytes.
const INLINE_BYTES_MAX: usize = 4 << 10;

/// Maximum sizes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestLimits {
    /// The most arguments, the command's name included.
    pub arguments_max: usize,
    /// The longest argument, in bytes.
    pub argument_bytes_max: usize,
    /// The longest request, in bytes.
    pub request_bytes_max: usize,
}

/// Errors for an invalid or too large number of arguments, and length of one.
const WRONG_COUNT: &str = "invalid multibulk length";
const WRONG_LENGTH: &str = "invalid bulk length";

/// The position of an argument in its request.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    length: u32,
}

/// The next expected element.
#[derive(Clone, Copy, Debug, Default)]
enum ParserState {
    /// A request.
    #[default]
    Request,
    /// The length of the next argument; `left` arguments are missing.
    Length { left: usize },
    /// The next argument, of this length; `left` arguments are missing.
    Argument { left: usize, length: usize },
}

/// A parser of one connection's requests.
#[derive(Debug, Default)]
pub struct Parser {
    state: ParserState,
    /// Bytes of the request that have been parsed.
    at: usize,
    spans: Vec<Span>,
    /// Whether the request is a plain line of words, as people type it.
    pub is_inline: bool,
}

impl Parser {
    /// Parses the request at the start of `bytes`. Returns its length once it is complete, and `None` before. Called again with more bytes,
    /// it continues where it stopped. After a complete request, [`Self::arguments`] has it until [`Self::begin_next`].
    ///
    /// # Errors
    /// The syntax error. The start of the next request is unknown then, so the connection ends.
    pub fn parse(
        &mut self,
        bytes: &[u8],
        limits: &RequestLimits,
    ) -> Result<Option<usize>, Failure> {
        loop {
            match self.state {
                ParserState::Request => match bytes.first() {
                    None => return Ok(None),
                    Some(b'*') => {
                        let Some(count) = self.number(bytes, WRONG_COUNT)? else {
                            return Ok(None);
                        };
                        // Redis ignores such a request without a reply.
                        let left = usize::try_from(count).unwrap_or(0);
                        if left > limits.arguments_max {
                            return Err(wrong(WRONG_COUNT));
                        }
                        self.state = ParserState::Length { left };
                    }
                    Some(_) => return self.inline(bytes),
                },
                ParserState::Length { left: 0 } => return Ok(Some(self.at)),
                ParserState::Length { left } => {
                    match bytes.get(self.at) {
                        None => return Ok(None),
                        Some(b'$') => {}
                        Some(other) => {
                            return Err(wrong(&format!(
                                "expected '$', got '{}'",
                                other.escape_ascii()
                            )));
                        }
                    }
                    let Some(length) = self.number(bytes, WRONG_LENGTH)? else {
                        return Ok(None);
                    };
                    let fits = |length: &usize| *length <= limits.argument_bytes_max;
                    let length = usize::try_from(length).ok().filter(fits);
                    let length = length.ok_or_else(|| wrong(WRONG_LENGTH))?;
                    if self.at + length > limits.request_bytes_max {
                        return Err(wrong("too big request"));
                    }
                    self.state = ParserState::Argument { left, length };
                }
                ParserState::Argument { left, length } => {
                    let end = self.at + length;
                    match bytes.get(end..end + 2) {
                        None => return Ok(None),
                        Some(b"\r\n") => {}
                        Some(_) => return Err(wrong("expected the end of a line")),
                    }
                    self.push(self.at, length);
                    self.at = end + 2;
                    self.state = ParserState::Length { left: left - 1 };
                }
            }
        }
    }

    /// The arguments of the complete request at the start of `bytes`.
    pub fn arguments<'a>(&'a self, bytes: &'a [u8]) -> Arguments<'a> {
        Arguments {
            bytes,
            spans: &self.spans,
        }
    }

    /// Forgets the request.
    pub fn begin_next(&mut self) {
        (self.state, self.at, self.is_inline) = (ParserState::Request, 0, false);
        self.spans.clear();
    }

    /// Bytes that the positions of the arguments take.
    pub fn memory_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>()
    }

    /// Releases memory above `kept` bytes, which only long requests need.
    pub fn shrink(&mut self, kept: usize) {
        if self.spans.is_empty() && self.memory_bytes() > kept {
            self.spans = Vec::new();
        }
    }

    /// Parses the number of the line at the current position, after its first byte; `None` if the line is incomplete.
    fn number(&mut self, bytes: &[u8], fault: &str) -> Result<Option<i64>, Failure> {
        let line = &bytes[self.at + 1..];
        let within = &line[..line.len().min(NUMBER_LINE_BYTES_MAX)];
        let Some(end) = memchr(b'\r', within) else {
            return if within.len() < NUMBER_LINE_BYTES_MAX {
                Ok(None)
            } else {
                Err(wrong(fault))
            };
        };
        let number = integer(&line[..end]).ok_or_else(|| wrong(fault))?;
        match line.get(end + 1) {
            None => Ok(None),
            Some(b'\n') => {
                self.at += end + 3;
                Ok(Some(number))
            }
            Some(_) => Err(wrong(fault)),
        }
    }

    fn inline(&mut self, bytes: &[u8]) -> Result<Option<usize>, Failure> {
        let within = &bytes[..bytes.len().min(INLINE_BYTES_MAX)];
        let Some(end) = memchr(b'\n', within) else {
            let is_too_long = within.len() == INLINE_BYTES_MAX;
            return if is_too_long {
                Err(wrong("too big inline request"))
            } else {
                Ok(None)
            };
        };
        let mut start = 0;
        for word in within[..=end].split(u8::is_ascii_whitespace) {
            match word.first() {
                Some(b'"' | b'\'') => return Err(wrong("quotes in an inline request")),
                Some(_) => self.push(start, word.len()),
                None => {}
            }
            start += word.len() + 1;
        }
        self.is_inline = true;
        self.at = end + 1;
        self.state = ParserState::Length { left: 0 };
        Ok(Some(self.at))
    }

    fn push(&mut self, start: usize, length: usize) {
        let small =
            |number| u32::try_from(number).expect("the limit on requests is far below 4 GiB");
        self.spans.push(Span {
            start: small(start),
            length: small(length),
        });
    }
}

/// The arguments of a request, the command's name first.
#[derive(Clone, Copy)]
pub struct Arguments<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Arguments<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The argument at this position; empty if there is none.
    pub fn at(&self, position: usize) -> &'a [u8] {
        self.spans
            .get(position)
            .map_or(&[], |span| of(self.bytes, span))
    }

    /// Those from this position on.
    pub fn from(&self, position: usize) -> Self {
        Self {
            bytes: self.bytes,
            spans: self.spans.get(position..).unwrap_or_default(),
        }
    }

    /// The values of these options, each a word that its value follows; `None` if there is anything else, or a word twice.
    pub fn options<const N: usize>(&self, words: [&str; N]) -> Option<[Option<&'a [u8]>; N]> {
        let mut values = [None; N];
        for at in (0..self.len()).step_by(2) {
            let is_option = |word: &&str| self.at(at).eq_ignore_ascii_case(word.as_bytes());
            let option = words.iter().position(is_option)?;
            let value = of(self.bytes, self.spans.get(at + 1)?);
            values[option] = Some(values[option].xor(Some(value))?);
        }
        Some(values)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.spans.iter().map(move |span| of(bytes, span))
    }
}

fn wrong(what: &str) -> Failure {
    Failure::err(format!("Protocol error: {what}"))
}

/// Parses an integer.
pub fn integer(argument: &[u8]) -> Option<i64> {
    match argument {
        // Most numbers are short lengths.
        [digit @ b'0'..=b'9'] => Some((digit - b'0').into()),
        [ten @ b'0'..=b'9', digit @ b'0'..=b'9'] => Some((10 * (ten - b'0') + digit - b'0').into()),
        _ => str::from_utf8(argument).ok()?.parse().ok(),
    }
}

fn of<'a>(bytes: &'a [u8], span: &Span) -> &'a [u8] {
    &bytes[span.start as usize..][..span.length as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: RequestLimits = RequestLimits {
        arguments_max: 5,
        argument_bytes_max: 20,
        request_bytes_max: 80,
    };

    type Request = Vec<Vec<u8>>;

    fn owned(arguments: Arguments<'_>) -> Request {
        arguments.iter().map(<[u8]>::to_vec).collect()
    }

    /// All requests in bytes that arrive in these pieces, and how it ends.
    fn parsed<'a>(
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> (Vec<Request>, Option<String>, Vec<u8>) {
        let mut parser = Parser::default();
        let mut unread = Vec::new();
        let mut requests = Vec::new();
        for piece in pieces {
            unread.extend_from_slice(piece);
            loop {
                match parser.parse(&unread, &LIMITS) {
                    Ok(Some(length)) => {
                        requests.push(owned(parser.arguments(&unread)));
                        parser.begin_next();
                        unread.drain(..length);
                    }
                    Ok(None) => break,
                    Err(error) => return (requests, Some(error.text.into_owned()), unread),
                }
            }
        }
        (requests, None, unread)
    }

    fn whole(bytes: &[u8]) -> (Vec<Request>, Option<String>) {
        let (requests, error, _) = parsed([bytes]);
        (requests, error)
    }

    fn words(words: &[&str]) -> Request {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    fn encoded(request: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", request.len()).into_bytes();
        for argument in request {
            bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            bytes.extend_from_slice(argument);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    #[test]
    fn array_and_inline_requests_are_parsed() {
        assert_eq!(
            whole(b"*2\r\n$4\r\nPING\r\n$0\r\n\r\nping  a\tb \r\n\n\r\n*0\r\n*-1\r\nquit\n").0,
            [
                words(&["PING", ""]),
                words(&["ping", "a", "b"]),
                words(&[]),
                words(&[]),
                words(&[]),
                words(&[]),
                words(&["quit"])
            ]
        );
    }

    #[test]
    fn invalid_request_ends_parsing() {
        for (bytes, error) in [
            (&b"*6\r\n"[..], WRONG_COUNT),
            (b"*99999999999999999999\r\n", WRONG_COUNT),
            (b"*x\r\n", WRONG_COUNT),
            (b"*\r\n", WRONG_COUNT),
            (b"*1\rx", WRONG_COUNT),
            (b"*00000000000000000000000000000000001", WRONG_COUNT),
            (b"*1\r\n:1\r\n", "expected '$', got ':'"),
            (b"*1\r\n*1\r\n", "expected '$', got '*'"),
            (b"*1\r\n$21\r\n", WRONG_LENGTH),
            (b"*1\r\n$-1\r\n", WRONG_LENGTH),
            (b"*1\r\n$9223372036854775807\r\n", WRONG_LENGTH),
            (b"*1\r\n$1\r\nab\r\n", "expected the end of a line"),
            (b"GET \"a b\"\r\n", "quotes in an inline request"),
        ] {
            assert_eq!(
                whole(bytes).1,
                Some(format!("Protocol error: {error}")),
                "{}",
                bytes.escape_ascii()
            );
        }
        let long = encoded(&vec![vec![b'x'; 20]; 4]);
        assert_eq!(
            whole(&long).1,
            Some("Protocol error: too big request".into())
        );
        assert_eq!(
            whole(&[b'x'; INLINE_BYTES_MAX]).1,
            Some("Protocol error: too big inline request".into())
        );
        assert_eq!(whole(&[b'x'; INLINE_BYTES_MAX - 1]).1, None);
    }

    #[test]
    fn option_is_set_once() {
        let bytes = b"count 1 match a COUNT 2\r\n";
        let mut parser = Parser::default();
        parser
            .parse(
                bytes,
                &RequestLimits {
                    arguments_max: 6,
                    ..LIMITS
                },
            )
            .unwrap();
        let all = parser.arguments(bytes);
        assert_eq!(all.options(["MATCH", "COUNT"]), None);
        assert_eq!(
            all.from(2).options(["COUNT", "MATCH"]),
            Some([Some(&b"2"[..]), Some(b"a")])
        );
        assert_eq!(all.from(2).options(["COUNT"]), None);
        assert_eq!(all.from(1).options(["MATCH", "COUNT"]), None);
    }

    #[test]
    fn announced_length_allocates_nothing() {
        let limits = RequestLimits {
            arguments_max: 1 << 20,
            ..LIMITS
        };
        let mut parser = Parser::default();
        assert_eq!(parser.parse(b"*1000000\r\n$20\r\n", &limits), Ok(None));
        assert_eq!(parser.memory_bytes(), 0);
    }

    proptest! {
        /// However requests are split, the result is the same, and so is the error.
        #[test]
        fn requests_parse_in_any_pieces(
            requests in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 1..5),
                1..6,
            ),
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let mut bytes: Vec<u8> = requests.iter().flat_map(|request| encoded(request)).collect();
            if flips.is_empty() {
                prop_assert_eq!(whole(&bytes), (requests, None));
            }
            for (at, byte) in flips {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let (at_once, error, rest) = parsed([&bytes[..]]);
            let each = parsed(bytes.chunks(1));
            prop_assert_eq!((&at_once, &error), (&each.0, &each.1));
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            let ends = cuts.iter().copied().chain([bytes.len()]);
            let begins = [0].into_iter().chain(cuts.iter().copied());
            let torn = parsed(begins.zip(ends).map(|(begin, end)| &bytes[begin..end]));
            prop_assert_eq!((at_once, &error), (torn.0, &torn.1));
            if error.is_none() {
                prop_assert_eq!(rest, torn.2);
            }
        }
    }
}
