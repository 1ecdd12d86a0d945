//! The rendered metrics, which concurrent clients share. Rendering visits every filter and compresses a long text, and no key is required
//! to request it. So it is done at most once in a time, and not by a worker.

use crate::http::response::success::{compressed, quality};
use bytes::Bytes;
use flate2::Compression;
use http::HeaderMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

/// The text format of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::http) enum TextFormat {
    /// Prometheus' text format, version 0.0.4.
    Prometheus,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl TextFormat {
    /// Chooses the format by the header `Accept`: OpenMetrics if it is named and not ranked below plain text.
    pub(in crate::http) fn preferred(headers: &HeaderMap) -> TextFormat {
        let open = quality(headers, "application/openmetrics-text");
        let is_first = open > 0.0 && open >= quality(headers, "text/plain");
        if is_first {
            TextFormat::OpenMetrics
        } else {
            TextFormat::Prometheus
        }
    }

    /// Its media type.
    pub(in crate::http) fn media_type(self) -> &'static str {
        match self {
            TextFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            TextFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A rendered text and its compressed form. Clones share their memory.
#[derive(Clone)]
pub(in crate::http) struct RenderedText {
    pub(in crate::http) plain: Bytes,
    pub(in crate::http) gzip: Bytes,
}

impl RenderedText {
    fn new(plain: String) -> Self {
        let gzip = compressed(plain.as_bytes(), Compression::fast());
        Self {
            gzip,
            plain: plain.into(),
        }
    }
}

/// The error if the metrics can't be rendered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("failed to render the metrics")]
pub(in crate::http) struct Unrendered;

/// The last text of one format, and the time at which its rendering started.
type Last = Arc<Mutex<Option<(Instant, RenderedText)>>>;

/// The last text of each format.
pub(in crate::http) struct Exposition {
    age_max: Duration,
    prometheus: Last,
    open_metrics: Last,
}

impl Exposition {
    /// No text yet. Each is served until it is this old.
    pub(in crate::http) fn new(age_max: Duration) -> Self {
        Self {
            age_max,
            prometheus: Last::default(),
            open_metrics: Last::default(),
        }
    }

    /// Returns the text of a format, rendered earlier if that is recent enough. Otherwise one client has it rendered, and the others wait.
    ///
    /// # Errors
    /// [`Unrendered`].
    pub(in crate::http) async fn text(
        &self,
        format: TextFormat,
        now: Instant,
        render: impl FnOnce() -> Result<String, fmt::Error> + Send + 'static,
    ) -> Result<RenderedText, Unrendered> {
        let last = match format {
            TextFormat::Prometheus => &self.prometheus,
            TextFormat::OpenMetrics => &self.open_metrics,
        };
        // The rendering owns the lock. So it ends, and its text is kept, even if its client disconnects.
        let mut last = last.clone().lock_owned().await;
        if let Some((at, text)) = &*last
            && now.saturating_duration_since(*at) < self.age_max
        {
            return Ok(text.clone());
        }
        let rendered = spawn_blocking(move || {
            let text = render()
                .map(RenderedText::new)
                .map_err(|fmt::Error| Unrendered)?;
            *last = Some((now, text.clone()));
            Ok(text)
        });
        rendered.await.unwrap_or(Err(Unrendered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use futures_util::FutureExt;
    use http::{HeaderValue, header};
    use std::io::Read;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use std::sync::mpsc;

    const SECOND: Duration = Duration::from_secs(1);

    fn count(
        texts: &Arc<AtomicU64>,
    ) -> impl FnOnce() -> Result<String, fmt::Error> + Send + 'static {
        let texts = texts.clone();
        move || Ok(format!("text {}", texts.fetch_add(1, SeqCst)))
    }

    #[test]
    fn openmetrics_requires_accept_header() {
        // The header that Prometheus 2 and 3 send.
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;\
                          q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for (accept, wanted) in [
            ("", TextFormat::Prometheus),
            ("*/*", TextFormat::Prometheus),
            ("text/plain", TextFormat::Prometheus),
            (
                "text/plain;version=0.0.4;q=0.5, application/openmetrics-text;q=0.2",
                TextFormat::Prometheus,
            ),
            ("application/openmetrics-text;q=0", TextFormat::Prometheus),
            ("application/openmetrics-text", TextFormat::OpenMetrics),
            (
                "Application/OpenMetrics-Text; version=1.0.0, text/plain",
                TextFormat::OpenMetrics,
            ),
            (prometheus, TextFormat::OpenMetrics),
        ] {
            let headers =
                HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(TextFormat::preferred(&headers), wanted, "{accept}");
        }
    }

    #[tokio::test]
    async fn text_is_shared_until_too_old() {
        let exposition = Exposition::new(SECOND);
        let texts = Arc::default();
        let start = Instant::now();
        let text = async |format, at| exposition.text(format, at, count(&texts)).await.unwrap();
        let first = text(TextFormat::Prometheus, start).await;
        let last = start + SECOND - Duration::from_nanos(1);
        let same = text(TextFormat::Prometheus, last).await;
        assert_eq!(
            (&first.plain[..], first.plain.as_ptr()),
            (&b"text 0"[..], same.plain.as_ptr())
        );
        assert_eq!(first.gzip.as_ptr(), same.gzip.as_ptr());
        assert_eq!(
            text(TextFormat::OpenMetrics, last).await.plain,
            "text 1",
            "each format has its own"
        );
        assert_eq!(
            text(TextFormat::Prometheus, start + SECOND).await.plain,
            "text 2"
        );
        let mut plain = String::new();
        GzDecoder::new(&first.gzip[..])
            .read_to_string(&mut plain)
            .unwrap();
        assert_eq!(plain, "text 0");
    }

    #[tokio::test]
    async fn concurrent_clients_share_one_rendering() {
        let exposition = Exposition::new(SECOND);
        let texts = Arc::default();
        let now = Instant::now();
        let (send, receive) = mpsc::channel::<()>();
        let render = count(&texts);
        let mut first = Box::pin(exposition.text(TextFormat::Prometheus, now, move || {
            // It lasts until all are waiting.
            let _ = receive.recv();
            render()
        }));
        assert!((&mut first).now_or_never().is_none());
        // Its client disconnects.
        drop(first);
        let mut others: Vec<_> = (0..100)
            .map(|_| Box::pin(exposition.text(TextFormat::Prometheus, now, count(&texts))))
            .collect();
        assert!(
            others
                .iter_mut()
                .all(|other| other.now_or_never().is_none())
        );
        drop(send);
        for other in others {
            assert_eq!(other.await.unwrap().plain, "text 0");
        }
        assert_eq!(texts.load(SeqCst), 1);
    }

    #[tokio::test]
    async fn failed_rendering_is_repeated() {
        let exposition = Exposition::new(SECOND);
        let now = Instant::now();
        let failed = exposition
            .text(TextFormat::Prometheus, now, || Err(fmt::Error))
            .await;
        assert_eq!(failed.err(), Some(Unrendered));
        let panicked = exposition
            .text(TextFormat::Prometheus, now, || panic!("on purpose"))
            .await;
        assert_eq!(panicked.err(), Some(Unrendered));
        let text = exposition
            .text(TextFormat::Prometheus, now, || Ok("text".into()))
            .await;
        assert_eq!(text.unwrap().plain, "text");
    }
}
