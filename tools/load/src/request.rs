//! Requests: bytes that are built once, with slots for the numbers of items.

/// An item in a request; the slot becomes the item's number in hexadecimal.
pub const ITEM: &str = "u0000000########";

const SLOT: &[u8] = b"########";

/// Which items the slots get.
#[derive(Clone, Copy)]
pub enum Items {
    /// Random ones, of this count.
    Random(u32),
    /// Items that no earlier request had.
    Unique,
}

/// A request and the response that it expects.
#[derive(Clone)]
pub struct Request {
    pub bytes: Vec<u8>,
    slots: Vec<usize>,
    /// Unique ones at first.
    pub items: Items,
    /// The HTTP status of each response; `None` for RESP.
    pub status: Option<u16>,
}

impl Request {
    pub fn http(method: &str, path: &str, json: &str, status: u16) -> Self {
        let head = http_head(method, path, "application/json", json.len());
        Self::new(format!("{head}{json}").into_bytes(), Some(status))
    }

    pub fn resp(words: &[&str]) -> Self {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        Self::new(bytes.into_bytes(), None)
    }

    /// Adds a header.
    pub fn with_header(self, header: &str) -> Self {
        let line = format!("\r\n{header}\r\n\r\n");
        let head = self
            .bytes
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap_or(self.bytes.len());
        let before = &self.bytes[..head];
        let after = self.bytes.get(head + 4..).unwrap_or_default();
        Self {
            items: self.items,
            ..Self::new([before, line.as_bytes(), after].concat(), self.status)
        }
    }

    /// Adds an API key.
    pub fn with_key(self, key: &str) -> Self {
        self.with_header(&format!("Authorization: Bearer {key}"))
    }

    pub fn new(bytes: Vec<u8>, status: Option<u16>) -> Self {
        let slots = (0..bytes.len())
            .filter(|&at| bytes[at..].starts_with(SLOT))
            .collect();
        Self {
            bytes,
            slots,
            items: Items::Unique,
            status,
        }
    }

    /// Appends the request with the next items to `out`.
    pub fn append(&mut self, numbers: &mut Numbers, out: &mut Vec<u8>) {
        for &slot in &self.slots {
            write_number(
                numbers.next(self.items),
                &mut self.bytes[slot..slot + SLOT.len()],
            );
        }
        out.extend_from_slice(&self.bytes);
    }
}

pub fn http_head(method: &str, path: &str, content_type: &str, length: usize) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"
    )
}

/// Returns the item with this number.
pub fn item(number: u32) -> String {
    format!("u0000000{number:08x}")
}

/// Appends the item with this number, and the end of its line.
pub fn append_line(number: u32, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(ITEM.as_bytes());
    write_number(number, &mut out[start + ITEM.len() - SLOT.len()..]);
    out.push(b'\n');
}

fn write_number(number: u32, slot: &mut [u8]) {
    for (nibble, byte) in slot.iter_mut().rev().enumerate() {
        *byte = b"0123456789abcdef"[(number >> (4 * nibble)) as usize & 15];
    }
}

/// The source of item numbers.
pub struct Numbers {
    state: u64,
    used: u32,
}

impl Numbers {
    pub fn new() -> Self {
        Self {
            state: 0x853c_49e6_748f_ea9b,
            used: 0,
        }
    }

    fn next(&mut self, items: Items) -> u32 {
        match items {
            Items::Random(count) => {
                self.state = self
                    .state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (((self.state >> 32) * u64::from(count)) >> 32) as u32
            }
            Items::Unique => {
                self.used = self.used.wrapping_add(1);
                Self::unique(self.used)
            }
        }
    }

    /// Returns the number of this count of unique items.
    pub fn unique(count: u32) -> u32 {
        // Odd, so each count has its own number.
        count.wrapping_mul(0x9e37_79b1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_fills_slots_with_items() {
        let mut request = Request::resp(&["CF.MEXISTS", "bench", ITEM, ITEM]);
        let mut out = Vec::new();
        request.append(&mut Numbers::new(), &mut out);
        let expected = [
            "CF.MEXISTS",
            "bench",
            &item(0x9e37_79b1),
            &item(0x3c6e_f362),
        ];
        let words: Vec<String> = String::from_utf8(out)
            .unwrap()
            .split("\r\n")
            .map(str::to_owned)
            .collect();
        assert_eq!(words[..3], ["*4", "$10", "CF.MEXISTS"]);
        assert_eq!([&words[2], &words[4], &words[6], &words[8]], expected);
        assert_eq!(words[7], format!("${}", ITEM.len()));
    }

    #[test]
    fn header_is_added_to_head() {
        let mut request = Request::http("POST", "/x", ITEM, 200)
            .with_key("k")
            .with_header("A: b");
        let mut out = Vec::new();
        request.append(&mut Numbers::new(), &mut out);
        let text = String::from_utf8(out).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.ends_with("\r\nAuthorization: Bearer k\r\nA: b"),
            "{head}"
        );
        assert_eq!(body, item(0x9e37_79b1));
    }

    #[test]
    fn random_numbers_stay_in_range() {
        let mut numbers = Numbers::new();
        assert!((0..10_000).all(|_| numbers.next(Items::Random(3)) < 3));
    }
}
