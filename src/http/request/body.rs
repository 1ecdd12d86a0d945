//! Reads and decompresses bodies: completely, up to a limit, or in pieces without one. While they are in memory, they count towards the
//! limit that all bodies share.

use super::decompression::{Coding, Expander, PIECE_BYTES_MAX};
use crate::access::Caller;
use crate::budget::{Budget, BudgetShare, FREE_BYTES, Owner, UsedUp};
use crate::http::options::HttpOptions;
use crate::http::response::{Code, Problem};
use axum::body::{BodyDataStream, HttpBody};
use axum::extract::Request;
use bytes::Bytes;
use derive_more::AsRef;
use futures_util::{FutureExt, StreamExt};
use http::{HeaderMap, Method, header};
use prometheus_client::registry::Registry;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

/// Memory of an upload in addition to its decoder and the current piece: an unfinished line, and the items of a few commands.
const UPLOAD_BYTES: u64 = 768 << 10;

/// How many times its received bytes an upload may expand to, after the first [`EXPANDED_FREE`]. Lists of ids and codes compress to a third or
/// a tenth.
const EXPANSION_MAX: u64 = 200;

/// Bytes to which any upload may expand: short ones can consist of equal lines.
const EXPANDED_FREE: u64 = 4 << 20;

/// How long nothing more may arrive of a rejected body until its client gets the response.
const REST_SILENCE: Duration = Duration::from_secs(1);

/// A streamed body of bytes of any media type.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
pub(crate) struct StreamedBody(());

/// How bodies are read.
pub(crate) struct Reading {
    /// The memory that all bodies share.
    pub(crate) budget: Arc<Budget>,
    /// Maximum size of a body that is read completely, compressed or decompressed.
    pub(crate) bytes_max: usize,
    /// How long a complete body may take to arrive; for an upload, the next piece.
    pub(crate) timeout: Duration,
    /// Cancelled when uploads must end.
    pub(crate) uploads_end: CancellationToken,
}

impl Reading {
    /// Reading within these limits. The metrics of the shared memory are registered.
    pub(crate) fn new(
        options: &HttpOptions,
        registry: &mut Registry,
        uploads_end: CancellationToken,
    ) -> Self {
        let limits = &options.limits;
        let budget = Budget::new(limits.bodies_bytes_max);
        let taken = ("body_bytes", "Bytes that bodies take while they are read");
        let refused = (
            "bodies_refused",
            "Bodies refused because limits.bodies was reached",
        );
        budget.register(registry, taken, refused);
        let longest = usize::try_from(body_bytes_max(&budget)).unwrap_or(usize::MAX);
        if limits.body_bytes_max > longest {
            tracing::warn!(
                bytes = longest,
                "limits.bodies is too small for bodies as long as limits.body"
            );
        }
        let bytes_max = limits.body_bytes_max.min(longest);
        let timeout = options.timeouts.body;
        Self {
            budget: Arc::new(budget),
            bytes_max,
            timeout,
            uploads_end,
        }
    }

    /// Reads a complete JSON body.
    ///
    /// # Errors
    /// Another media type or coding (415), too long (413), too slow (408), incomplete or badly compressed (400), or too many concurrent
    /// bodies (503).
    pub(crate) async fn json(&self, request: Request) -> Result<HeldBody, Problem> {
        require_json(request.method(), request.headers())?;
        // A client that waits for permission to send the body needs no time for it.
        let waits = request.headers().contains_key(header::EXPECT);
        let mut arriving = self.arriving(request)?;
        let (read, ends_at) = {
            let mut collected = pin!(self.collect(&mut arriving));
            // Most bodies arrive with the head, and need no timer.
            match collected.as_mut().now_or_never() {
                Some(Ok(read)) => return Ok(read),
                Some(Err(problem)) => (Err(problem), Instant::now() + self.timeout),
                None => {
                    let ends_at = Instant::now() + self.timeout;
                    let read = timeout_at(ends_at, collected).await;
                    let late = |_| Err(too_slow(format!("the whole body has {:?}", self.timeout)));
                    (read.unwrap_or_else(late), ends_at)
                }
            }
        };
        if read.is_err() && (arriving.received > 0 || !waits) {
            // However the rest ends, the problem stays.
            let _ = timeout_at(ends_at, self.discard(&mut arriving)).await;
        }
        read
    }

    /// Reads a limited rest of a rejected body: a client that is still sending would not read the response.
    async fn discard(&self, arriving: &mut ArrivingBody) {
        arriving.silence = Some(REST_SILENCE);
        while arriving.received <= 2 * self.bytes_max as u64
            && let Ok(Some(_)) = arriving.frame().await
        {}
    }

    async fn collect(&self, arriving: &mut ArrivingBody) -> Result<HeldBody, Problem> {
        arriving.check_length(arriving.body.size_hint().lower())?;
        let first = arriving.next().await?.unwrap_or_default();
        arriving.check_length(first.len() as u64)?;
        let length = first.len() as u64;
        // A piece of a compressed body is not in the connection's buffer.
        let share = if length <= FREE_BYTES && arriving.share.is_none() {
            None
        } else {
            let budget = self.budget.clone();
            Some(BudgetShare::of(budget, arriving.owner, length)?)
        };
        let mut next = arriving.next().await?;
        if next.is_none() {
            // Most bodies are one piece, which needs no copy.
            return Ok(HeldBody {
                bytes: first,
                _share: share,
            });
        }
        drop(share);
        let mut buffer = Buffer::new(&self.budget, arriving.owner);
        buffer.extend(&first, self.bytes_max)?;
        drop(first);
        while let Some(piece) = next {
            arriving.check_length((buffer.bytes.len() + piece.len()) as u64)?;
            buffer.extend(&piece, self.bytes_max)?;
            next = arriving.next().await?;
        }
        Ok(HeldBody {
            bytes: buffer.bytes.into(),
            _share: Some(buffer.share),
        })
    }

    /// An empty share of the memory, for the result of parsing.
    pub(crate) fn share(&self, owner: Option<Owner>) -> BudgetShare {
        BudgetShare::empty(self.budget.clone(), owner)
    }

    /// Begins to read an upload of any length.
    ///
    /// # Errors
    /// Another coding (415), or too many concurrent bodies (503).
    pub(crate) fn upload(&self, request: Request) -> Result<Pieces, Problem> {
        let bytes_max = u64::MAX;
        let silence = Some(self.timeout);
        let arriving = self.arriving(request)?;
        let mut arriving = ArrivingBody {
            bytes_max,
            silence,
            share: Some(self.share(arriving.owner)),
            ..arriving
        };
        arriving.begin(UPLOAD_BYTES, PIECE_BYTES_MAX)?;
        Ok(Pieces {
            arriving,
            uploads_end: self.uploads_end.clone(),
            expanded: 0,
        })
    }

    /// The body of a request, of which no more than the limit may arrive.
    fn arriving(&self, request: Request) -> Result<ArrivingBody, Problem> {
        let owner = request.extensions().get::<Caller>().map(Caller::owner);
        let coding = Coding::of(request.headers())?;
        let is_compressed = coding.decoder_bytes() > 0;
        Ok(ArrivingBody {
            owner,
            coding: Some(coding),
            expander: None,
            body: request.into_body().into_data_stream(),
            frame: Bytes::new(),
            received: 0,
            bytes_max: self.bytes_max as u64,
            silence: None,
            share: is_compressed.then(|| self.share(owner)),
        })
    }
}

/// A complete body, decompressed if it was read, and its share of the memory.
#[derive(AsRef)]
pub(crate) struct HeldBody {
    /// Dropped before the share.
    #[as_ref([u8])]
    pub(crate) bytes: Bytes,
    pub(crate) _share: Option<BudgetShare>,
}

/// A body that arrives and is decompressed in pieces.
struct ArrivingBody {
    body: BodyDataStream,
    /// How long to wait for the next frame.
    silence: Option<Duration>,
    /// Received bytes that are not decompressed yet.
    frame: Bytes,
    /// `None` once reading has started.
    coding: Option<Coding>,
    /// `None` if the body is not compressed, or at its end.
    expander: Option<Expander>,
    /// Bytes that have arrived.
    received: u64,
    /// How many may, compressed or decompressed.
    bytes_max: u64,
    owner: Option<Owner>,
    /// The memory of the decoder or upload; `None` for a complete body that is not compressed. Dropped after the decoder.
    share: Option<BudgetShare>,
}

impl ArrivingBody {
    /// Takes memory for the decoder and its piece, which is of at least `piece_bytes`, and for `bytes` more. Does nothing the second time.
    fn begin(&mut self, bytes: u64, piece_bytes: u64) -> Result<(), Problem> {
        if let Some(coding) = self.coding.take() {
            if let Some(share) = &mut self.share {
                share.hold(bytes + coding.decoder_bytes().max(piece_bytes))?;
            }
            self.expander = coding.expander()?;
        }
        Ok(())
    }

    /// Refuses a body that is longer than it may be.
    fn check_length(&self, length: u64) -> Result<(), Problem> {
        if length <= self.bytes_max {
            return Ok(());
        }
        let detail = format!("the limit is {} bytes, decompressed", self.bytes_max);
        Err(Problem::new(Code::BodyTooLarge, detail))
    }

    /// The next piece, decompressed; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        let mut piece = Bytes::new();
        while piece.is_empty() {
            if !self.frame.is_empty() {
                // A frame can expand to many pieces; after each, others get their turn.
                tokio::task::yield_now().await;
            } else {
                let arrived = self.frame().await?;
                self.check_length(self.received)?;
                self.begin(0, 0)?;
                let Some(frame) = arrived else {
                    let last = self
                        .expander
                        .take()
                        .map_or(Ok(Bytes::new()), Expander::finish)?;
                    return Ok((!last.is_empty()).then_some(last));
                };
                self.frame = frame;
            }
            piece = match &mut self.expander {
                None => std::mem::take(&mut self.frame),
                Some(expander) => expander.expand(&mut self.frame)?,
            };
        }
        Ok(Some(piece))
    }

    /// The next bytes as they arrive.
    async fn frame(&mut self) -> Result<Option<Bytes>, Problem> {
        if self.received > 0 && self.body.is_end_stream() {
            return Ok(None);
        }
        let arrived = match self.silence {
            None => self.body.next().await,
            Some(silence) => tokio::time::timeout(silence, self.body.next())
                .await
                .map_err(|_| too_slow(format!("nothing arrived for {silence:?}")))?,
        };
        let frame = arrived.transpose();
        let frame =
            frame.map_err(|_| Problem::new(Code::MalformedRequest, "the body is incomplete"))?;
        self.received += frame.as_ref().map_or(0, Bytes::len) as u64;
        Ok(frame)
    }
}

/// An upload, read in pieces.
pub(crate) struct Pieces {
    arriving: ArrivingBody,
    uploads_end: CancellationToken,
    /// Bytes that the upload has expanded to so far.
    expanded: u64,
}

impl Pieces {
    /// The next piece, decompressed; `None` at the end.
    ///
    /// # Errors
    /// Nothing arrived for too long (408), the body is incomplete or badly compressed (400), it expands too much (413), or the service stops
    /// (503).
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        let piece = tokio::select! {
            // Checked first, so that an upload that never pauses ends as well.
            biased;
            () = self.uploads_end.cancelled() => {
                let detail = "the service is draining; once it is back, continue under the same id";
                return Err(Problem::new(Code::Draining, detail));
            }
            piece = self.arriving.next() => piece.map_err(resumable)?,
        };
        self.expanded += piece.as_ref().map_or(0, Bytes::len) as u64;
        if self.expanded > EXPANDED_FREE.max(self.arriving.received.saturating_mul(EXPANSION_MAX)) {
            let detail = format!("the body expands to more than {EXPANSION_MAX} times its size");
            return Err(Problem::new(Code::BodyTooLarge, detail));
        }
        Ok(piece)
    }
}

/// The same problem of an upload, which can be continued.
fn resumable(problem: Problem) -> Problem {
    Problem {
        detail: format!("{}; continue under the same id", problem.detail).into(),
        ..problem
    }
}

fn too_slow(detail: String) -> Problem {
    Problem::new(Code::RequestTimeout, detail)
}

fn require_json(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    let is_patch = method == Method::PATCH;
    let is_merge_patch = is_patch && has_media_type(headers, "application/merge-patch+json");
    if is_merge_patch || has_media_type(headers, "application/json") {
        return Ok(());
    }
    let merge_patch = if is_patch {
        "application/merge-patch+json or "
    } else {
        ""
    };
    let detail = format!("the body must be {merge_patch}application/json");
    Err(Problem::new(Code::UnsupportedMediaType, detail))
}

/// Whether the body has this media type, whatever its parameters.
pub(crate) fn has_media_type(headers: &HeaderMap, media_type: &str) -> bool {
    let Some(sent) = headers.get(header::CONTENT_TYPE) else {
        return false;
    };
    if sent.as_bytes() == media_type.as_bytes() {
        return true;
    }
    let without_parameters = sent.to_str().ok().and_then(|sent| sent.split(';').next());
    without_parameters.is_some_and(|sent| sent.trim_ascii().eq_ignore_ascii_case(media_type))
}

/// The longest body that fits alone, in bytes: a [`Buffer`] needs half as much again while it is moved.
fn body_bytes_max(budget: &Budget) -> u64 {
    budget.share_bytes_max() / 3 * 2
}

/// A buffer that accounts for its memory.
struct Buffer {
    /// Dropped before the share.
    bytes: Vec<u8>,
    share: BudgetShare,
}

impl Buffer {
    /// Creates an empty buffer.
    fn new(budget: &Arc<Budget>, owner: Option<Owner>) -> Self {
        Self {
            bytes: Vec::new(),
            share: BudgetShare::empty(budget.clone(), owner),
        }
    }

    /// Appends bytes, up to `bytes_max` in total.
    ///
    /// # Errors
    /// [`UsedUp`].
    fn extend(&mut self, bytes: &[u8], bytes_max: usize) -> Result<(), UsedUp> {
        let needed = self.bytes.len() + bytes.len();
        let old = self.bytes.capacity();
        if needed > old {
            // The capacity doubles, so the total moved is no more than the final length. But from half of the maximum on it grows to the
            // maximum in one step.
            let half = bytes_max / 2;
            let new = if needed > half {
                bytes_max.max(needed)
            } else {
                needed.max((2 * old).min(half))
            };
            // Both buffers exist while one is copied to the other.
            self.share.hold((old + new) as u64)?;
            self.bytes.reserve_exact(new - self.bytes.len());
            self.share.hold(new as u64)?;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures_util::{future, stream, task};
    use http::Request;
    use hyper::body::{Frame, SizeHint};
    use prometheus_client::metrics::gauge::Gauge;
    use proptest::prelude::*;
    use std::future::Future;
    use std::io::Write;
    use std::pin::Pin;
    use std::sync::atomic::AtomicU64;
    use std::task::Context;

    const BYTES_MAX: usize = 300_000;

    /// One body.
    #[derive(Clone, Debug)]
    struct Sent {
        coding: &'static str,
        /// Of the complete text.
        length: usize,
        parts: usize,
        frame_bytes: usize,
        is_upload: bool,
        /// It breaks off in the middle.
        breaks_off: bool,
    }

    fn sent() -> impl Strategy<Value = Sent> {
        let coding = prop::sample::select(vec!["identity", "gzip", "zstd"]);
        let kind = (any::<bool>(), prop::bool::weighted(0.2));
        (
            coding,
            0usize..400_000,
            1usize..4,
            1_000usize..100_000,
            kind,
        )
            .prop_map(
                |(coding, length, parts, frame_bytes, (is_upload, breaks_off))| Sent {
                    coding,
                    length,
                    parts,
                    frame_bytes,
                    is_upload,
                    breaks_off,
                },
            )
    }

    impl Sent {
        fn text(&self) -> Vec<u8> {
            // Half of it compresses well.
            (0..self.length as u32)
                .map(|n| {
                    if n % 2 == 0 {
                        b' '
                    } else {
                        (n.wrapping_mul(0x9E37_79B1) >> 24) as u8
                    }
                })
                .collect()
        }

        fn request(&self) -> Request<Body> {
            let text = self.text();
            let part = |part: &[u8]| match self.coding {
                "gzip" => {
                    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
                    encoder.write_all(part).unwrap();
                    encoder.finish().unwrap()
                }
                "zstd" => zstd::stream::encode_all(part, 1).unwrap(),
                _ => part.to_vec(),
            };
            let bytes: Vec<u8> = match &text[..] {
                [] => part(&text),
                text => text
                    .chunks(self.length.div_ceil(self.parts))
                    .flat_map(part)
                    .collect(),
            };
            let mut frames: Vec<_> = bytes
                .chunks(self.frame_bytes)
                .map(|frame| Ok(Bytes::copy_from_slice(frame)))
                .collect();
            if self.breaks_off {
                frames.truncate(frames.len() / 2);
                frames.push(Err(std::io::Error::other("the line is dead")));
            }
            // Each frame is awaited.
            let frames = stream::unfold(frames.into_iter(), |mut frames| async {
                tokio::task::yield_now().await;
                frames.next().map(|frame| (frame, frames))
            });
            Request::builder()
                .header("content-type", "application/json")
                .header("content-encoding", self.coding)
                .body(Body::from_stream(futures_util::StreamExt::fuse(frames)))
                .unwrap()
        }

        /// Reads the body; returns it, or the problem.
        async fn read(&self, reading: &Reading) -> Result<Vec<u8>, Code> {
            let request = self.request();
            if self.is_upload {
                let mut pieces = reading.upload(request).map_err(|problem| problem.code)?;
                let mut text = Vec::new();
                while let Some(piece) = pieces.next().await.map_err(|problem| problem.code)? {
                    text.extend_from_slice(&piece);
                    tokio::task::yield_now().await;
                }
                return Ok(text);
            }
            let body = reading
                .json(request)
                .await
                .map_err(|problem| problem.code)?;
            tokio::task::yield_now().await;
            Ok(body.as_ref().to_vec())
        }

        fn check(&self, read: Result<Vec<u8>, Code>, may_be_overloaded: bool) {
            match read {
                Ok(text) => {
                    assert!(!self.breaks_off && text == self.text());
                    assert!(self.is_upload || self.length <= BYTES_MAX);
                }
                Err(Code::Overloaded) => assert!(may_be_overloaded),
                Err(Code::BodyTooLarge) => assert!(!self.is_upload && self.length > BYTES_MAX),
                Err(code) => assert!(
                    self.breaks_off && code == Code::MalformedRequest,
                    "{code:?}"
                ),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Bodies of any kind, read step by step in any order and abandoned at any step, never take more than the limit. Each arrives
        /// completely or with the right problem, and in the end all memory is returned.
        #[test]
        fn concurrent_bodies_stay_within_limit(
            bodies in prop::collection::vec(sent(), 1..8),
            steps in prop::collection::vec((0usize..8, 0u8..40), 0..300),
            is_scarce: bool,
        ) {
            let limit: u64 = if is_scarce { 12 << 20 } else { 256 << 20 };
            let (budget, taken) = budget(limit);
            let timeout = Duration::from_secs(3_600);
            let reading = Reading { budget, bytes_max: BYTES_MAX, timeout, uploads_end: CancellationToken::new() };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let _entered = runtime.enter();
            let mut context = Context::from_waker(task::noop_waker_ref());
            type UnderWay<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;
            let mut under_way: Vec<Option<UnderWay<'_>>> = bodies
                .iter()
                .map(|sent| {
                    let read = async { sent.check(sent.read(&reading).await, is_scarce) };
                    Some(Box::pin(read) as UnderWay<'_>)
                })
                .collect();
            for (which, action) in steps {
                let Some(place) = under_way.get_mut(which) else { continue };
                let is_done = place.as_mut().is_some_and(|body| body.as_mut().poll(&mut context).is_ready());
                if is_done || action == 0 {
                    *place = None;
                }
                prop_assert!(taken.get() <= limit);
            }
            // The rest to their ends, concurrently.
            while under_way.iter().any(Option::is_some) {
                for place in &mut under_way {
                    if place.as_mut().is_some_and(|body| body.as_mut().poll(&mut context).is_ready()) {
                        *place = None;
                    }
                    prop_assert!(taken.get() <= limit);
                }
            }
            prop_assert_eq!(taken.get(), 0);
        }
    }

    #[tokio::test]
    async fn decompression_bomb_yields_to_other_tasks() {
        let budget = Arc::new(Budget::new(256 << 20));
        let timeout = Duration::from_secs(3_600);
        let reading = Reading {
            budget,
            bytes_max: 32 << 20,
            timeout,
            uploads_end: CancellationToken::new(),
        };
        for coding in ["gzip", "zstd"] {
            let bomb = Sent {
                coding,
                length: 0,
                parts: 1,
                frame_bytes: 1,
                is_upload: false,
                breaks_off: false,
            };
            let bytes = match coding {
                "gzip" => {
                    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
                    encoder.write_all(&vec![b' '; 32 << 20]).unwrap();
                    encoder.finish().unwrap()
                }
                _ => zstd::stream::encode_all(&vec![b' '; 32 << 20][..], 1).unwrap(),
            };
            let request = bomb.request().map(|_| Body::from(bytes));
            let mut expanding = pin!(reading.json(request));
            let mut turns = 0;
            let body = future::poll_fn(|context| {
                turns += 1;
                expanding.as_mut().poll(context)
            });
            assert_eq!(
                body.await
                    .map_err(|problem| problem.code)
                    .unwrap()
                    .as_ref()
                    .len(),
                32 << 20
            );
            // Each turn is at most a piece.
            assert!(turns > 100, "{coding}: {turns}");
        }
    }

    /// A client that sends too much and then pauses must not be told to repeat it.
    #[tokio::test]
    async fn long_body_that_pauses_is_too_large() {
        let (budget, _) = budget(256 << 20);
        let timeout = Duration::from_millis(50);
        let reading = Reading {
            budget,
            bytes_max: BYTES_MAX,
            timeout,
            uploads_end: CancellationToken::new(),
        };
        let json = || Request::builder().header("content-type", "application/json");
        let long = Ok::<_, std::io::Error>(Bytes::from(vec![b' '; BYTES_MAX + 1]));
        let pausing = Body::from_stream(stream::iter([long]).chain(stream::pending()));
        let problem = reading
            .json(json().body(pausing).unwrap())
            .await
            .map(drop)
            .unwrap_err();
        assert_eq!(problem.code, Code::BodyTooLarge);
        // Its declared length is enough, and its client is not asked to send it.
        let unsent = json()
            .header("expect", "100-continue")
            .body(Body::new(Unsent))
            .unwrap();
        let read = reading.json(unsent).now_or_never().unwrap();
        assert_eq!(read.map(drop).unwrap_err().code, Code::BodyTooLarge);
    }

    /// A body that is too long, and that its client only sends when it is read.
    struct Unsent;

    impl HttpBody for Unsent {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> task::Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
            panic!("the body was read");
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(BYTES_MAX as u64 + 1)
        }
    }

    #[tokio::test]
    async fn decoder_reserves_memory_with_first_frame() {
        let (budget, taken) = budget(4 << 20);
        let timeout = Duration::from_secs(3_600);
        let reading = Reading {
            budget,
            bytes_max: BYTES_MAX,
            timeout,
            uploads_end: CancellationToken::new(),
        };
        let sent = Sent {
            coding: "zstd",
            length: 0,
            parts: 1,
            frame_bytes: 1,
            is_upload: false,
            breaks_off: false,
        };
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel::<std::io::Result<Bytes>>();
        let frames = stream::unfold(receiver, |mut receiver| async {
            Some((receiver.recv().await?, receiver))
        });
        let mut read = pin!(reading.json(sent.request().map(|_| Body::from_stream(frames))));
        assert!(read.as_mut().now_or_never().is_none());
        assert_eq!((taken.get(), reading.budget.refused.get()), (0, 0));
        // The rest of a rejected body is read, so that the client reads the response.
        for _ in 0..10 {
            sender.send(Ok(Bytes::from_static(b"frame"))).unwrap();
            assert!(read.as_mut().now_or_never().is_none());
        }
        assert_eq!((taken.get(), reading.budget.refused.get()), (0, 1));
        drop(sender);
        assert_eq!(read.await.map(drop).unwrap_err().code, Code::Overloaded);
    }

    /// A budget of this size, and the gauge of its use.
    fn budget(limit_bytes: u64) -> (Arc<Budget>, Gauge<u64, AtomicU64>) {
        let budget = Arc::new(Budget::new(limit_bytes));
        let taken = budget.taken_bytes.clone();
        (budget, taken)
    }

    #[test]
    fn longest_body_fits_alone() {
        let (budget, taken) = budget(1 << 20);
        let most = body_bytes_max(&budget) as usize;
        let mut buffer = Buffer::new(&budget, None);
        for _ in 0..most {
            buffer.extend(b"x", most).unwrap();
        }
        assert_eq!((buffer.bytes.len(), taken.get()), (most, most as u64));
    }

    proptest! {
        /// The use always equals the buffers' sizes, and never exceeds the limit. A buffer that may not grow is unchanged.
        #[test]
        fn buffer_share_matches_capacity(
            limit in 0u64..300_000,
            steps in prop::collection::vec((0usize..4, 0usize..8, 0usize..100_000), 0..200),
        ) {
            let (budget, taken) = budget(limit);
            let mut buffers: Vec<Buffer> = (0..8).map(|_| Buffer::new(&budget, None)).collect();
            for (step, which, bytes) in steps {
                let buffer = &mut buffers[which];
                if step == 0 {
                    *buffer = Buffer::new(&budget, None);
                } else {
                    let before = buffer.bytes.len();
                    let held = taken.get();
                    if buffer.extend(&vec![0; bytes], 200_000).is_err() {
                        prop_assert_eq!((buffer.bytes.len(), taken.get()), (before, held));
                    }
                }
                prop_assert!(taken.get() <= limit, "{} of {limit}", taken.get());
                let held: u64 = buffers.iter().map(|buffer| buffer.bytes.capacity() as u64).sum();
                prop_assert_eq!(taken.get(), held);
            }
            drop(buffers);
            prop_assert_eq!(taken.get(), 0);
        }
    }
}
