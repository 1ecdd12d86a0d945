//! Entry points for the fuzz target in `fuzz/`; the program doesn't use them.

use super::parser::{Parser, RequestLimits};

/// The limits of the fuzz target: low, so that short inputs reach them.
pub const LIMITS: RequestLimits =
    RequestLimits { arguments_max: 6, argument_bytes_max: 24, request_bytes_max: 96 };

/// Parses requests that arrive in pieces. Returns the error that ended it, if one did; `request` is called with the arguments of each
/// request before it.
pub fn requests<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    mut request: impl FnMut(Vec<&[u8]>),
) -> Option<String> {
    let (mut parser, mut unread) = (Parser::default(), Vec::new());
    for piece in pieces {
        unread.extend_from_slice(piece);
        let mut read = 0;
        loop {
            match parser.parse(&unread[read..], &LIMITS) {
                Ok(Some(length)) => {
                    request(parser.arguments(&unread[read..]).iter().collect());
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
