//! Responses of success: JSON, and any number of values, one per line, as NDJSON or CSV.

use super::outgoing::{CHUNK_BYTES, counted};
use super::problem::{Code, Problem};
use super::{HandlerResult, mark_replayed};
use crate::budget::BudgetShare;
use crate::engine::BackupDownload;
use axum::BoxError;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::Value;
use std::io::{self, Write};

/// The media type of one JSON value per line.
const NDJSON: &str = "application/x-ndjson";

/// The media type of comma-separated values.
const CSV: &str = "text/csv";

/// Builds the response to a query: 200 with this JSON.
pub(crate) fn ok(body: &impl Serialize) -> Response {
    json(StatusCode::OK, false, body)
}

/// Builds a JSON response.
pub(crate) fn json(status: StatusCode, replayed: bool, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(body) => mark_replayed(as_json((status, Body::from(body))), replayed),
        Err(error) => unwritable(error).into_response(),
    }
}

/// The problem for a response that can't be serialized.
pub(crate) fn unwritable(error: serde_json::Error) -> Problem {
    tracing::error!(%error, "a response can't be written as JSON");
    Problem::new(Code::Internal, "see the service's log")
}

/// Builds the response about something new, which is at this path.
pub(crate) fn created(path: &str, replayed: bool, body: &impl Serialize) -> Response {
    let mut response = json(StatusCode::CREATED, replayed, body);
    let path = HeaderValue::try_from(path).expect("names and ids are visible ASCII");
    response.headers_mut().insert(header::LOCATION, path);
    response
}

/// Builds the response of a file to download.
pub(crate) fn attachment(name: &str, download: BackupDownload) -> Response {
    let parts = stream::try_unfold(download, async |mut download: BackupDownload| {
        let parts = download.next().await.map_err(io::Error::other)?;
        Ok::<_, io::Error>((!parts.is_empty()).then(|| (parts.concat(), download)))
    });
    // A compressor polls once more after the end.
    let mut response = with_type("application/octet-stream", Body::from_stream(parts.fuse()));
    let disposition = format!("attachment; filename=\"{name}\"");
    let disposition = HeaderValue::try_from(disposition).expect("a file's name is visible ASCII");
    response
        .headers_mut()
        .insert(header::CONTENT_DISPOSITION, disposition);
    response
}

/// Builds an empty response for a completed request.
pub(crate) fn empty(replayed: bool) -> Response {
    mark_replayed(StatusCode::NO_CONTENT.into_response(), replayed)
}

/// Builds a response from long JSON text. The share is returned once no piece of the text is in memory.
pub(crate) fn json_held(text: Vec<u8>, share: BudgetShare) -> Response {
    counted(as_json(text), share)
}

/// A list that is read in parts while it is sent.
pub(crate) trait ListParts: Send + 'static {
    /// An entry of the list.
    type Entry: Serialize;

    /// Reads the next entries, possibly none; `None` after the last ones.
    ///
    /// # Errors
    /// If the list no longer exists. Once the response has started, it breaks off.
    fn read(&mut self) -> Result<Option<Vec<Self::Entry>>, Problem>;

    /// The cursor of the next page, once the last entries were read.
    fn next_cursor(&self) -> Option<String>;
}

/// Builds a JSON object with one list. It is written as the client reads it; one that fits a chunk is complete.
pub(crate) async fn list(empty: &impl Serialize, parts: impl ListParts) -> HandlerResult {
    let mut text = serde_json::to_vec(empty).map_err(unwritable)?;
    text.truncate(text.len() - LIST_END.len());
    let mut list = ListWriter {
        parts,
        text,
        is_first: true,
        has_ended: false,
    };
    let first = list.chunk().await?;
    if list.has_ended {
        return Ok(as_json(first));
    }
    let rest = stream::try_unfold(list, async |mut list| match list.has_ended {
        true => Ok::<_, BoxError>(None),
        false => match list.chunk().await {
            Ok(chunk) => Ok(Some((chunk, list))),
            Err(problem) => Err(problem.detail.into_owned().into()),
        },
    });
    // A compressor polls once more after the end.
    Ok(as_json(Body::from_stream(
        stream::iter([Ok(first)]).chain(rest).fuse(),
    )))
}

/// The end of an object with one list.
const LIST_END: &[u8] = b"]}";

/// Writes a list in chunks.
struct ListWriter<P> {
    parts: P,
    text: Vec<u8>,
    is_first: bool,
    has_ended: bool,
}

impl<P: ListParts> ListWriter<P> {
    /// Writes about [`CHUNK_BYTES`], or the rest of the list.
    async fn chunk(&mut self) -> Result<Vec<u8>, Problem> {
        while self.text.len() < CHUNK_BYTES / 2 && !self.has_ended {
            match self.parts.read()? {
                Some(entries) => self.write(&entries).map_err(unwritable)?,
                None => self.end().map_err(unwritable)?,
            }
            // Other requests on this processor get their turn.
            tokio::task::yield_now().await;
        }
        Ok(std::mem::take(&mut self.text))
    }

    fn write(&mut self, entries: &[P::Entry]) -> serde_json::Result<()> {
        for entry in entries {
            if !std::mem::take(&mut self.is_first) {
                self.text.push(b',');
            }
            serde_json::to_writer(&mut self.text, entry)?;
        }
        Ok(())
    }

    fn end(&mut self) -> serde_json::Result<()> {
        self.has_ended = true;
        self.text.push(b']');
        if let Some(cursor) = self.parts.next_cursor() {
            self.text.extend_from_slice(br#","next_cursor":"#);
            serde_json::to_writer(&mut self.text, &cursor)?;
        }
        self.text.push(b'}');
        Ok(())
    }
}

fn as_json(body: impl IntoResponse) -> Response {
    with_type("application/json", body)
}

fn with_type(media_type: &'static str, body: impl IntoResponse) -> Response {
    let mut response = body.into_response();
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// The format of a response with one value per line.
#[derive(Clone, Copy)]
pub(crate) enum LineFormat {
    /// One JSON object per line.
    Ndjson,
    /// RFC 4180, with a header row. The columns are fields of the JSON object, separated by commas; an absent field is an empty cell.
    Csv(&'static str),
}

impl LineFormat {
    /// Returns the format that the client prefers to JSON, if any.
    pub(crate) fn preferred(headers: &HeaderMap, columns: &'static str) -> Option<Self> {
        let json = quality(headers, "application/json");
        let ndjson = quality(headers, NDJSON);
        let csv = quality(headers, CSV);
        match csv > ndjson {
            true => (csv > json).then_some(LineFormat::Csv(columns)),
            false => (ndjson > json).then_some(LineFormat::Ndjson),
        }
    }

    /// Streams batches of values. Each is written when the client is ready for it. If one fails, the response breaks off.
    pub(crate) fn stream<T: Serialize>(
        self,
        batches: impl Stream<Item = Result<Vec<T>, BoxError>> + Send + 'static,
    ) -> Response {
        let (media_type, header) = match self {
            LineFormat::Ndjson => (NDJSON, None),
            LineFormat::Csv(columns) => (CSV, Some(row(columns.split(',')))),
        };
        let lines = batches.map(move |batch| Ok::<_, BoxError>(self.write(batch?)?));
        // A compressor polls once more after the end.
        let parts = stream::iter(header.map(|header| Ok(header.into_bytes())))
            .chain(lines)
            .fuse();
        with_type(media_type, Body::from_stream(parts))
    }

    /// Writes a line for each value.
    fn write<T: Serialize>(
        self,
        values: impl IntoIterator<Item = T>,
    ) -> serde_json::Result<Vec<u8>> {
        let mut out = Vec::new();
        for value in values {
            match self {
                LineFormat::Ndjson => {
                    serde_json::to_writer(&mut out, &value)?;
                    out.push(b'\n');
                }
                LineFormat::Csv(columns) => {
                    let value = serde_json::to_value(&value)?;
                    let cells = columns.split(',').map(|column| match &value[column] {
                        Value::Null => String::new(),
                        Value::String(text) => text.clone(),
                        other => other.to_string(),
                    });
                    out.extend_from_slice(row(cells).as_bytes());
                }
            }
        }
        Ok(out)
    }
}

/// A row of CSV. A cell is quoted if it contains a separator, a quote or a line break.
fn row<T: AsRef<str>>(cells: impl Iterator<Item = T>) -> String {
    let quoted = cells.map(|cell| match cell.as_ref() {
        cell if cell.contains([',', '"', '\r', '\n']) => {
            format!("\"{}\"", cell.replace('"', "\"\""))
        }
        cell => cell.to_owned(),
    });
    quoted.collect::<Vec<_>>().join(",") + "\r\n"
}

/// Compresses a text that many clients receive, with gzip.
pub(crate) fn compressed(text: &[u8], level: Compression) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), level);
    // Nothing fails when bytes are written to memory.
    let written = encoder.write_all(text).and_then(|()| encoder.finish());
    written.unwrap_or_default().into()
}

/// How much a client wants a media type that it names in `Accept`, from 0 to 1; 0 if it doesn't. Wildcards don't count.
pub(crate) fn quality(headers: &HeaderMap, media_type: &str) -> f32 {
    quality_in(headers, &header::ACCEPT, media_type)
}

/// Returns the client's quality value for this name in the header, from 0 to 1; 0 if it isn't named.
pub(crate) fn quality_in(headers: &HeaderMap, header: &HeaderName, wanted: &str) -> f32 {
    let lists = headers
        .get_all(header)
        .into_iter()
        .filter_map(|list| list.to_str().ok());
    let qualities = lists.flat_map(|list| list.split(',')).filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        parts
            .next()
            .filter(|name| name.eq_ignore_ascii_case(wanted))?;
        let quality = parts.find_map(|parameter| parameter.strip_prefix("q="));
        Some(quality.map_or(1.0, |quality| quality.trim().parse().unwrap_or(0.0)))
    });
    qualities.fold(0.0, f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use axum::body::HttpBody;
    use futures_util::FutureExt;
    use http_body_util::BodyExt;
    use serde_json::json;
    use std::sync::Arc;

    #[tokio::test]
    async fn share_is_returned_with_last_piece() {
        let budget = Arc::new(Budget::new(1 << 20));
        let taken = budget.taken_bytes.clone();
        let text: Vec<u8> = (0..2 * CHUNK_BYTES + 1).map(|index| index as u8).collect();
        let share = BudgetShare::of(budget, None, text.len() as u64).unwrap();
        let response = json_held(text.clone(), share);
        assert_eq!(response.body().size_hint().exact(), Some(text.len() as u64));
        let mut held = response.into_body();
        let mut pieces = Vec::new();
        while let Some(Ok(frame)) = held.frame().await {
            pieces.push(frame.into_data().unwrap());
        }
        assert_eq!(pieces.concat(), text);
        assert_eq!(pieces.len(), 3);
        drop(held);
        pieces.drain(..2);
        assert_eq!(taken.get(), text.len() as u64, "a piece is left");
        drop(pieces);
        assert_eq!(taken.get(), 0);
    }

    #[test]
    fn csv_quotes_cells_and_leaves_absent_fields_empty() {
        let lines = LineFormat::Csv("id,note,count");
        let values = [
            json!({"id": "a", "note": "say \"hi\", twice"}),
            json!({"id": "b\nc", "count": 7}),
        ];
        let wanted = "id,note,count\r\na,\"say \"\"hi\"\", twice\",\r\n\"b\nc\",,7\r\n";
        let response = lines.stream(stream::iter([Ok(values.to_vec())]));
        let body = response
            .into_body()
            .collect()
            .now_or_never()
            .unwrap()
            .unwrap()
            .to_bytes();
        assert_eq!(body, wanted);
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
            let headers = HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]);
            let preferred = LineFormat::preferred(&headers, "")
                .map(|lines| lines.stream(stream::empty::<Result<Vec<()>, _>>()));
            let found = preferred
                .as_ref()
                .map(|response| &response.headers()[header::CONTENT_TYPE]);
            assert_eq!(
                found.map(|found| found.to_str().unwrap()),
                wanted,
                "{accept}"
            );
        }
    }

    #[test]
    fn accept_quality_requires_named_type() {
        let wanted_quality = |lists: &[&'static str]| {
            let lists = lists
                .iter()
                .map(|list| (header::ACCEPT, http::HeaderValue::from_static(list)));
            quality(&lists.collect(), "text/csv")
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
            assert_eq!(wanted_quality(lists), wanted, "{lists:?}");
        }
    }
}
