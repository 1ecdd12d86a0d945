//! Responses of any length: one value per line, as NDJSON or CSV.

use super::answer::reply::{CSV, NDJSON, with_type};
use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, header};
use serde::Serialize;
use serde_json::Value;

/// The format of a response with one value per line.
#[derive(Clone, Copy)]
pub(crate) enum Lines {
    /// One JSON object per line.
    Ndjson,
    /// RFC 4180, with a header row. The columns are fields of the JSON object, separated by commas; an absent field is an empty cell.
    Csv(&'static str),
}

impl Lines {
    /// Returns the format that the client prefers to JSON, if any.
    pub(crate) fn preferred(headers: &HeaderMap, columns: &'static str) -> Option<Self> {
        let json = wish(headers, "application/json");
        let (ndjson, csv) = (wish(headers, NDJSON), wish(headers, CSV));
        match csv > ndjson {
            true => (csv > json).then_some(Lines::Csv(columns)),
            false => (ndjson > json).then_some(Lines::Ndjson),
        }
    }

    /// Returns what precedes the first value: the header row of CSV.
    pub(crate) fn header(self) -> Vec<u8> {
        let mut header = Vec::new();
        if let Lines::Csv(columns) = self {
            write_row(columns.split(','), &mut header);
        }
        header
    }

    /// Appends a line for each value.
    ///
    /// # Errors
    /// A value that can't be represented as JSON.
    pub(crate) fn write<T: Serialize>(
        self,
        values: impl IntoIterator<Item = T>,
        out: &mut Vec<u8>,
    ) -> serde_json::Result<()> {
        for value in values {
            match self {
                Lines::Ndjson => {
                    serde_json::to_writer(&mut *out, &value)?;
                    out.push(b'\n');
                }
                Lines::Csv(columns) => {
                    let value = serde_json::to_value(&value)?;
                    let cells = columns.split(',').map(|column| match &value[column] {
                        Value::Null => String::new(),
                        Value::String(text) => text.clone(),
                        other => other.to_string(),
                    });
                    write_row(cells, out);
                }
            }
        }
        Ok(())
    }

    /// Builds the response.
    pub(crate) fn response(self, body: Body) -> Response {
        let media_type = match self {
            Lines::Ndjson => NDJSON,
            Lines::Csv(_) => CSV,
        };
        with_type(media_type, body)
    }
}

/// Appends a row. A cell is quoted if it contains a separator, a quote or a line break.
fn write_row<T: AsRef<str>>(cells: impl IntoIterator<Item = T>, out: &mut Vec<u8>) {
    for (index, cell) in cells.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let cell = cell.as_ref();
        match cell.contains([',', '"', '\r', '\n']) {
            true => out.extend_from_slice(format!("\"{}\"", cell.replace('"', "\"\"")).as_bytes()),
            false => out.extend_from_slice(cell.as_bytes()),
        }
    }
    out.extend_from_slice(b"\r\n");
}

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
    use serde_json::json;

    #[test]
    fn csv_quotes_cells_and_leaves_absent_fields_empty() {
        let lines = Lines::Csv("id,note,count");
        let mut out = lines.header();
        let values = [json!({"id": "a", "note": "say \"hi\", twice"}), json!({"id": "b\nc", "count": 7})];
        lines.write(values, &mut out).unwrap();
        let wanted = "id,note,count\r\na,\"say \"\"hi\"\", twice\",\r\n\"b\nc\",,7\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
    }

    #[test]
    fn preferred_format_follows_quality() {
        for (accept, wanted) in [
            ("application/json", None),
            ("*/*", None),
            ("text/csv", Some(CSV)),
            ("application/x-ndjson", Some(NDJSON)),
            ("text/csv;q=0.5, application/x-ndjson", Some(NDJSON)),
            ("text/csv;q=0.5, application/json", None),
        ] {
            let headers = HeaderMap::from_iter([(http::header::ACCEPT, accept.parse().unwrap())]);
            let preferred = Lines::preferred(&headers, "").map(|lines| lines.response(Body::empty()));
            let found = preferred.as_ref().map(|response| &response.headers()[http::header::CONTENT_TYPE]);
            assert_eq!(found.map(|found| found.to_str().unwrap()), wanted, "{accept}");
        }
    }

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
