//! The header `Accept`.

use http::{HeaderMap, header};

/// How much a client wants a media type that it names, from 0 to 1; 0 if it doesn't. Wildcards don't count.
pub(crate) fn wish(headers: &HeaderMap, media_type: &str) -> f32 {
    let lists = headers.get_all(header::ACCEPT).into_iter().filter_map(|list| list.to_str().ok());
    let ranges = lists.flat_map(|list| list.split(',')).map(range);
    let wishes = ranges.filter(|(name, _)| name.eq_ignore_ascii_case(media_type));
    wishes.map(|(_, quality)| quality).fold(0.0, f32::max)
}

/// A media range without its parameters, and its quality.
fn range(text: &str) -> (&str, f32) {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let quality = parts.find_map(|parameter| parameter.strip_prefix("q="));
    (name, quality.map_or(1.0, |quality| quality.trim().parse().unwrap_or(0.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_the_quality_of_the_name() {
        let wished = |lists: &[&'static str]| {
            let lists = lists.iter().map(|list| (header::ACCEPT, http::HeaderValue::from_static(list)));
            wish(&lists.collect(), "text/csv")
        };
        for (lists, wanted) in [
            (&[][..], 0.0),
            (&["*/*"], 0.0),
            (&["text/csv"], 1.0),
            (&["Text/CSV; header=present; q=0.5"], 0.5),
            (&["text/plain, text/csv;q=0.25"], 0.25),
            (&["text/csv;q=0.25", "text/csv;q=0.75"], 0.75),
            (&["text/csv;q=much"], 0.0),
        ] {
            assert_eq!(wished(lists), wanted, "{lists:?}");
        }
    }
}
