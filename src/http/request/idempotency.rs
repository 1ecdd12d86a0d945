//! The header `Idempotency-Key`, which marks repeated requests.

use crate::domain::{Command, FilterId, IdempotencyKey, Kind, Raise, RedemptionId};
use crate::engine::{Layout, Secret};
use crate::http::answer::{Code, Problem};
use http::{HeaderMap, HeaderValue};
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_64;

/// The longest value of the header, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 255;

/// Returns the header's value, if it was sent.
///
/// # Errors
/// If it is empty, too long, not visible ASCII, or was sent twice.
pub(crate) fn header(headers: &HeaderMap) -> Result<Option<&HeaderValue>, Problem> {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    let key = value.as_bytes();
    let is_visible = key.iter().all(u8::is_ascii_graphic);
    if values.next().is_some() || !is_visible || !(1..=KEY_BYTES_MAX).contains(&key.len()) {
        let detail = "Idempotency-Key is sent once, with 1 to 255 visible ASCII characters";
        return Err(Problem::new(Code::MalformedRequest, detail));
    }
    Ok(Some(value))
}

/// What a request is about, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resource<'a> {
    /// A campaign or coupon.
    Filter(Kind, &'a str),
    /// A line-up.
    LineUp(&'a str),
}

/// Builds the key that is logged, from the caller, the name, the header and the command.
pub(crate) fn key(caller: &str, resource: Resource<'_>, header: &[u8], command: &Command) -> IdempotencyKey {
    let (kind, name): (&[u8], _) = match resource {
        Resource::Filter(Kind::Campaign, name) => (b"campaign", name),
        Resource::Filter(Kind::Coupon, name) => (b"coupon", name),
        Resource::LineUp(name) => (b"line-up", name),
    };
    let mut scope = Sha256::new();
    for part in [caller.as_bytes(), kind, name.as_bytes(), header] {
        scope.update((part.len() as u64).to_le_bytes());
        scope.update(part);
    }
    let scope: [u8; 32] = scope.finalize().into();
    let (scope, _) = scope.split_first_chunk().expect("a hash of 32 bytes has 16");
    IdempotencyKey { scope: u128::from_le_bytes(*scope), request: xxh3_64(&canonical(command)) }
}

/// Encodes what a command asks for, without what was drawn at random for it or depends on how the filter was. It identifies the route,
/// and has everything that query and body contained.
fn canonical(command: &Command) -> Vec<u8> {
    let serialize =
        |command: &Command| postcard::to_stdvec(command).expect("commands go into the log like this");
    let mut same = match command {
        Command::Create { .. } | Command::Redeem { .. } | Command::Update { .. } => command.clone(),
        _ => return serialize(command),
    };
    match &mut same {
        Command::Create { id, secret, .. } => (*id, *secret) = (FilterId(0), Secret::new([0; _])),
        Command::Redeem { redemption, .. } => *redemption = RedemptionId([0; 16]),
        Command::Update { capacity: Some(Raise { layout, .. }), .. } => {
            *layout = Layout { fingerprint_bits: 0, step_bits: 0, bucket_size: 0, buckets: 0, max_search: 0 };
        }
        _ => {}
    }
    serialize(&same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Reference, Target};
    use crate::engine::Digest;

    fn redeem(redemption: u8, reference: &str) -> Command {
        let reference = Reference::new(reference).unwrap();
        let redemption = RedemptionId([redemption; 16]);
        Command::Redeem {
            target: Target(FilterId(7)),
            digest: Digest(1),
            redemption,
            reference,
            hold_seconds: 0,
        }
    }

    #[test]
    fn random_ids_do_not_tell_requests_apart_but_contents_do() {
        let spring = Resource::Filter(Kind::Coupon, "spring");
        let of = |command: &Command| key("shop", spring, b"k", command);
        assert_eq!(of(&redeem(1, "a")), of(&redeem(2, "a")));
        assert_ne!(of(&redeem(1, "a")).request, of(&redeem(1, "b")).request);
    }

    #[test]
    fn the_scope_is_the_caller_the_filter_and_the_key() {
        let command = redeem(1, "a");
        let scope = |caller, kind, name, header: &[u8]| {
            key(caller, Resource::Filter(kind, name), header, &command).scope
        };
        let one = scope("shop", Kind::Coupon, "spring", b"k");
        assert_eq!(one, scope("shop", Kind::Coupon, "spring", b"k"));
        assert_ne!(one, scope("other", Kind::Coupon, "spring", b"k"));
        assert_ne!(one, scope("shop", Kind::Campaign, "spring", b"k"));
        assert_ne!(one, scope("shop", Kind::Coupon, "sprin", b"gk"));
        assert_ne!(one, scope("shop", Kind::Coupon, "spring", b"l"));
        assert_ne!(one, key("shop", Resource::LineUp("spring"), b"k", &command).scope);
    }

    #[test]
    fn a_key_is_visible_ascii() {
        let with = |value: &[u8]| {
            HeaderMap::from_iter([(
                "idempotency-key".parse().unwrap(),
                HeaderValue::from_bytes(value).unwrap(),
            )])
        };
        assert_eq!(header(&HeaderMap::new()).unwrap(), None);
        assert_eq!(header(&with(b"order-42")).unwrap().map(HeaderValue::as_bytes), Some(&b"order-42"[..]));
        assert!(header(&with(&[b'k'; 255])).is_ok());
        for bad in [&b""[..], b"a b", &[b'k'; 256], "ä".as_bytes()] {
            assert_eq!(header(&with(bad)).unwrap_err().code, Code::MalformedRequest);
        }
    }
}
