//! The headers about positions of the log: what an answer reflects, and what a request asks it to reflect.

use super::answer::problem::{Code, Problem};
use crate::domain::Seq;
use crate::engine::Engine;
use http::{HeaderMap, HeaderName};

/// The position of the log that an answer reflects.
pub(super) const POSITION: HeaderName = HeaderName::from_static("x-cuckood-position");

/// The position that an answer must reflect at least.
const MIN_POSITION: HeaderName = HeaderName::from_static("x-cuckood-min-position");

/// `strong` if nothing may be missing that was acknowledged before the request, on any node.
const CONSISTENCY: HeaderName = HeaderName::from_static("x-cuckood-consistency");

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Asked {
    min: Option<Seq>,
    is_strong: bool,
}

/// Reads what a request asks for.
///
/// # Errors
/// `malformed-request`.
fn asked(headers: &HeaderMap) -> Result<Asked, Problem> {
    let min = headers.get(MIN_POSITION).map(|value| {
        let number = value.to_str().ok().and_then(|text| text.parse().ok());
        number.map(Seq).ok_or_else(|| malformed("X-Cuckood-Min-Position must be a number"))
    });
    let is_strong = headers.get(CONSISTENCY).map(|value| match value.as_bytes() {
        b"strong" => Ok(true),
        _ => Err(malformed("X-Cuckood-Consistency can be `strong` only")),
    });
    Ok(Asked { min: min.transpose()?, is_strong: is_strong.transpose()?.unwrap_or(false) })
}

fn malformed(detail: &'static str) -> Problem {
    Problem::new(Code::MalformedRequest, detail)
}

/// Waits until this node can answer as the headers of a read ask for.
///
/// # Errors
/// `malformed-request`, `too-far-behind`, `no-quorum`.
pub(super) async fn reach(engine: &Engine, headers: &HeaderMap) -> Result<(), Problem> {
    let asked = asked(headers)?;
    if let Some(min) = asked.min {
        engine.reached(min).await?;
    }
    if asked.is_strong {
        engine.barrier().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_read_or_refused() {
        let of = |pairs: &[(HeaderName, &'static str)]| {
            let headers =
                pairs.iter().map(|(name, value)| (name.clone(), http::HeaderValue::from_static(value)));
            asked(&headers.collect())
        };
        assert_eq!(of(&[]).unwrap(), Asked::default());
        let both = of(&[(MIN_POSITION, "17"), (CONSISTENCY, "strong")]).unwrap();
        assert_eq!(both, Asked { min: Some(Seq(17)), is_strong: true });
        for bad in [(MIN_POSITION, "-1"), (MIN_POSITION, ""), (CONSISTENCY, "weak")] {
            assert_eq!(of(&[bad]).unwrap_err().code, Code::MalformedRequest);
        }
    }
}
