//! Framing of HTTP/1.1 responses and of RESP2 replies. A failed one is an error, so it never counts as a success.

/// Returns the length of the first reply in `bytes`, or `None` if it is incomplete.
pub fn frame(bytes: &[u8], status: Option<u16>) -> Result<Option<usize>, String> {
    match status {
        Some(status) => http(bytes, status),
        None => resp(bytes),
    }
}

fn http(bytes: &[u8], status: u16) -> Result<Option<usize>, String> {
    let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let mut lines = bytes[..head].split(|&byte| byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let length = lines
        .find_map(content_length)
        .ok_or_else(|| describe("response without Content-Length", bytes))?;
    let end = head + 4 + length;
    if bytes.len() < end {
        return Ok(None);
    }
    let found = first
        .strip_prefix(b"HTTP/1.1 ")
        .and_then(|rest| rest.get(..3));
    if found != Some(status.to_string().as_bytes()) {
        return Err(describe(
            &format!("expected status {status}"),
            &bytes[..end],
        ));
    }
    Ok(Some(end))
}

fn content_length(line: &[u8]) -> Option<usize> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    let (name, value) = line.split_at(colon);
    name.eq_ignore_ascii_case(b"content-length")
        .then(|| number(value[1..].trim_ascii()))?
}

fn number<T: std::str::FromStr>(bytes: &[u8]) -> Option<T> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// Returns the length of a RESP2 reply. Integers below 0 are errors, too: `CF.INSERT` returns -1 for an item that is not added.
fn resp(bytes: &[u8]) -> Result<Option<usize>, String> {
    let mut at = 0;
    let mut pending: usize = 1;
    while pending > 0 {
        let Some(end) = bytes[at..]
            .iter()
            .position(|&byte| byte == b'\n')
            .map(|line| at + line + 1)
        else {
            return Ok(None);
        };
        let invalid = || describe("invalid RESP", &bytes[at..]);
        let line = bytes[at..end].strip_suffix(b"\r\n").ok_or_else(invalid)?;
        let (kind, value) = line.split_first().ok_or_else(invalid)?;
        pending -= 1;
        match kind {
            b'+' => at = end,
            b':' if value.starts_with(b"-") => return Err(describe("negative reply", line)),
            b':' => at = end,
            b'-' => return Err(describe("error reply", line)),
            b'$' => {
                let length: i64 = number(value).ok_or_else(invalid)?;
                at = end + usize::try_from(length).map_or(0, |length| length + 2);
            }
            b'*' => {
                let count: i64 = number(value).ok_or_else(invalid)?;
                pending += usize::try_from(count).unwrap_or(0);
                at = end;
            }
            _ => return Err(invalid()),
        }
        if at > bytes.len() {
            return Ok(None);
        }
    }
    Ok(Some(at))
}

fn describe(problem: &str, bytes: &[u8]) -> String {
    format!(
        "{problem}: {}",
        String::from_utf8_lossy(&bytes[..bytes.len().min(500)])
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each prefix is incomplete, and a following reply stays unread.
    fn assert_frames(reply: &[u8], status: Option<u16>) {
        for length in 0..reply.len() {
            assert_eq!(frame(&reply[..length], status), Ok(None), "{length} bytes");
        }
        assert_eq!(
            frame(&[reply, reply].concat(), status),
            Ok(Some(reply.len()))
        );
    }

    #[test]
    fn http_response_ends_after_body() {
        assert_frames(
            b"HTTP/1.1 200 OK\r\nX: y\r\ncontent-LENGTH: 4\r\n\r\na\r\nb",
            Some(200),
        );
        assert_frames(
            b"HTTP/1.1 204 No Content\r\nContent-Length:0\r\n\r\n",
            Some(204),
        );
    }

    #[test]
    fn http_response_with_other_status_fails() {
        let response = b"HTTP/1.1 507 Full\r\ncontent-length: 4\r\n\r\nfull";
        assert_eq!(frame(response, Some(507)), Ok(Some(response.len())));
        assert!(frame(response, Some(200)).unwrap_err().ends_with("full"));
        assert!(frame(b"nonsense\r\ncontent-length: 0\r\n\r\n", Some(200)).is_err());
    }

    #[test]
    fn http_response_without_length_fails() {
        assert!(
            frame(
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
                Some(200)
            )
            .is_err()
        );
        assert!(frame(b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", Some(200)).is_err());
    }

    #[test]
    fn resp_reply_ends_after_nested_array() {
        assert_frames(b"+OK\r\n", None);
        assert_frames(b":1\r\n", None);
        assert_frames(b"$4\r\na\r\nb\r\n", None);
        assert_frames(b"$-1\r\n", None);
        assert_frames(b"*-1\r\n", None);
        assert_frames(b"*0\r\n", None);
        assert_frames(b"*3\r\n:0\r\n*2\r\n*1\r\n$0\r\n\r\n+a\r\n$1\r\nb\r\n", None);
    }

    #[test]
    fn resp_error_fails_at_any_depth() {
        assert_eq!(
            frame(b"-ERR full\r\n", None),
            Err("error reply: -ERR full".to_owned())
        );
        assert!(frame(b"*2\r\n:1\r\n*1\r\n-ERR full\r\n", None).is_err());
        assert!(frame(b"*2\r\n:1\r\n:-1\r\n", None).is_err());
        assert!(frame(b"HTTP/1.1\r\n", None).is_err());
        assert!(frame(b"*x\r\n", None).is_err());
    }
}
