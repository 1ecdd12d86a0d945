//! Arbitrary bytes as requests of Redis clients, in any pieces: the result agrees with a simple parser of the complete input.

#![no_main]

use cuckood::resp::{Parser, RequestLimits};
use libfuzzer_sys::fuzz_target;

// The first byte sets the length of the pieces; the rest are the requests.
fuzz_target!(|bytes: &[u8]| {
    let [length, bytes @ ..] = bytes else { return };
    let (mut found, length) = (Vec::new(), usize::from(*length) + 1);
    let error = requests(bytes.chunks(length), &mut found);
    let (expected, is_wrong) = simple(bytes);
    assert_eq!((found, error.is_some()), (expected, is_wrong), "{error:?}");
});

/// Low limits, so that short inputs reach them.
const LIMITS: RequestLimits = RequestLimits {
    arguments_max: 6,
    argument_bytes_max: 24,
    request_bytes_max: 96,
};

type Request = Vec<Vec<u8>>;

/// Parses requests that arrive in pieces. Returns the error that ended it, if one did; `found` has the requests before it.
fn requests<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    found: &mut Vec<Request>,
) -> Option<String> {
    let (mut parser, mut unread) = (Parser::default(), Vec::new());
    for piece in pieces {
        unread.extend_from_slice(piece);
        let mut read = 0;
        loop {
            match parser.parse(&unread[read..], &LIMITS) {
                Ok(Some(length)) => {
                    found.push(
                        parser
                            .arguments(&unread[read..])
                            .iter()
                            .map(<[u8]>::to_vec)
                            .collect(),
                    );
                    parser.begin_next();
                    read += length;
                }
                Ok(None) => break,
                Err(error) => return Some(error.text.into_owned()),
            }
        }
        unread.drain(..read);
    }
    None
}

/// All requests, and whether something else follows that is none.
fn simple(mut bytes: &[u8]) -> (Vec<Request>, bool) {
    let mut requests = Vec::new();
    loop {
        match request(bytes) {
            Ok(Some((request, rest))) => {
                requests.push(request);
                bytes = rest;
            }
            Ok(None) => return (requests, false),
            Err(()) => return (requests, true),
        }
    }
}

/// Returns a request and the remaining bytes; nothing if it is incomplete.
#[allow(clippy::type_complexity)]
fn request(bytes: &[u8]) -> Result<Option<(Request, &[u8])>, ()> {
    let limits = LIMITS;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes[0] != b'*' {
        return inline(bytes);
    }
    let Some((count, mut rest)) = number(&bytes[1..])? else {
        return Ok(None);
    };
    let count = usize::try_from(count).unwrap_or(0);
    if count > limits.arguments_max {
        return Err(());
    }
    let mut request = Vec::new();
    for _ in 0..count {
        match rest.first() {
            None => return Ok(None),
            Some(b'$') => {}
            Some(_) => return Err(()),
        }
        let Some((length, after)) = number(&rest[1..])? else {
            return Ok(None);
        };
        let length = usize::try_from(length).map_err(|_| ())?;
        let begun = bytes.len() - after.len();
        if length > limits.argument_bytes_max || begun + length > limits.request_bytes_max {
            return Err(());
        }
        match after.get(length..length + 2) {
            None => return Ok(None),
            Some(b"\r\n") => request.push(after[..length].to_vec()),
            Some(_) => return Err(()),
        }
        rest = &after[length + 2..];
    }
    Ok(Some((request, rest)))
}

fn number(bytes: &[u8]) -> Result<Option<(i64, &[u8])>, ()> {
    let within = &bytes[..bytes.len().min(32)];
    let Some(end) = within.iter().position(|&byte| byte == b'\r') else {
        return if within.len() < 32 { Ok(None) } else { Err(()) };
    };
    let number = std::str::from_utf8(&bytes[..end])
        .map_err(|_| ())?
        .parse()
        .map_err(|_| ())?;
    match bytes.get(end + 1) {
        None => Ok(None),
        Some(b'\n') => Ok(Some((number, &bytes[end + 2..]))),
        Some(_) => Err(()),
    }
}

#[allow(clippy::type_complexity)]
fn inline(bytes: &[u8]) -> Result<Option<(Request, &[u8])>, ()> {
    let within = &bytes[..bytes.len().min(4 << 10)];
    let Some(end) = within.iter().position(|&byte| byte == b'\n') else {
        return if within.len() < 4 << 10 {
            Ok(None)
        } else {
            Err(())
        };
    };
    let words = bytes[..end]
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let words: Request = words.map(<[u8]>::to_vec).collect();
    if words.iter().any(|word| matches!(word[0], b'"' | b'\'')) {
        return Err(());
    }
    Ok(Some((words, &bytes[end + 1..])))
}
