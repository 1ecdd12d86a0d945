//! Reads and decompresses bodies: whole, up to a limit, or piece by piece without one. While they are in memory, they count
//! towards the limit that all bodies share.

use super::decompression::{Coding, Expander, PIECE_BYTES_MAX};
use crate::budget::{self, Budget, UsedUp};
use crate::http::answer::{Code, Problem};
use crate::http::options::HttpOptions;
use crate::http::stopping::Stopping;
use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Method, header};
use http_body_util::BodyExt;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use std::borrow::Cow;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use utoipa::ToSchema;

/// A gauge of bytes.
type ByteGauge = Gauge<u64, AtomicU64>;

/// Memory of an upload beside its decoder: the current piece, an unfinished line, and the items of a few commands.
const UPLOAD_BYTES: u64 = PIECE_BYTES_MAX + (768 << 10);

/// How many times its received bytes an upload may expand to, after the first [`EXPANDED_FREE`]. Lists of ids and codes compress to a third or
/// a tenth.
const EXPANSION_MAX: u64 = 200;

/// Bytes to which any upload may expand: short ones can consist of equal lines.
const EXPANDED_FREE: u64 = 4 << 20;

/// A body of bytes that is streamed, whatever its media type.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
pub(crate) struct Streamed(());

/// How bodies are read.
pub(crate) struct Reading {
    /// The memory that all bodies share.
    pub(crate) budget: Arc<Budget>,
    /// The longest body that is read whole, compressed or decompressed.
    pub(crate) bytes_max: usize,
    /// How long a whole body may take to arrive; for an upload, the next piece.
    pub(crate) timeout: Duration,
    /// Whether the service is shutting down.
    pub(crate) stopping: Stopping,
}

/// A whole body, decompressed.
pub(crate) struct ReadBody {
    /// Dropped before its share of the memory.
    bytes: Bytes,
    _share: Share,
}

impl Deref for ReadBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Reading {
    /// Reading within these limits. The gauge and the counter are those of the shared memory.
    pub(crate) fn new(options: &HttpOptions, taken: ByteGauge, refused: Counter, stopping: Stopping) -> Self {
        let limits = &options.limits;
        let budget = Budget::new(limits.bodies_bytes_max, taken, refused);
        let longest = usize::try_from(body_bytes_max(&budget)).unwrap_or(usize::MAX);
        if limits.body_bytes_max > longest {
            tracing::warn!(bytes = longest, "limits.bodies is too small for bodies as long as limits.body");
        }
        let (bytes_max, timeout) = (limits.body_bytes_max.min(longest), options.timeouts.body);
        Self { budget: Arc::new(budget), bytes_max, timeout, stopping }
    }

    /// Reads a whole JSON body.
    ///
    /// # Errors
    /// Another media type or coding (415), too long (413), too slow (408), incomplete or badly compressed (400), or too many
    /// bodies at once (503).
    pub(crate) async fn json(&self, request: Request) -> Result<ReadBody, Problem> {
        require_json(request.method(), request.headers())?;
        let coding = Coding::of(request.headers())?;
        let mut arriving = pin!(self.whole(request.into_body(), coding));
        // Most bodies arrive with the head, and need no timer.
        match arriving.as_mut().now_or_never() {
            Some(read) => read,
            None => tokio::time::timeout(self.timeout, arriving)
                .await
                .unwrap_or_else(|_| Err(too_slow(format!("the whole body has {:?}", self.timeout)))),
        }
    }

    /// Reads a whole body. Some more of a refused one is read and discarded: a client that is still sending would not read the answer.
    async fn whole(&self, mut body: Body, coding: Coding) -> Result<ReadBody, Problem> {
        let mut length = 0;
        let read = self.collect(&mut body, &mut length, coding).await;
        while read.is_err()
            && length <= self.bytes_max.saturating_mul(2)
            && let Ok(Some(frame)) = next_frame(&mut body).await
        {
            length += frame.len();
        }
        read
    }

    async fn collect(
        &self,
        body: &mut Body,
        length: &mut usize,
        coding: Coding,
    ) -> Result<ReadBody, Problem> {
        let first = next_frame(body).await?.unwrap_or_default();
        *length = first.len();
        self.within_limit(*length)?;
        let share = self.share_of(first.len() as u64)?;
        let mut next = next_frame(body).await?;
        let mut expander = coding.expander()?;
        if expander.is_none() && next.is_none() {
            // Most bodies are one frame, which needs no copy.
            return Ok(ReadBody { bytes: first, _share: share });
        }
        drop(share);
        let decoder = expander.as_ref().map(|_| self.share_of(coding.decoder_bytes() + PIECE_BYTES_MAX));
        let _decoder = decoder.transpose()?;
        let (mut buffer, mut piece) = (Buffer::new(&self.budget), Vec::new());
        let mut append = |bytes: &[u8]| {
            self.within_limit(buffer.len() + bytes.len())?;
            buffer.extend(bytes, self.bytes_max).map_err(Problem::from)
        };
        let mut frame = Some(first);
        while let Some(bytes) = frame {
            let mut rest = &bytes[..];
            match &mut expander {
                None => append(rest)?,
                Some(expander) => {
                    while !rest.is_empty() {
                        expander.expand(&mut rest, &mut piece)?;
                        append(&piece)?;
                        piece.clear();
                        // Other connections of this worker get their turn.
                        tokio::task::yield_now().await;
                    }
                }
            }
            *length += next.as_ref().map_or(0, Bytes::len);
            self.within_limit(*length)?;
            frame = next;
            next = if frame.is_some() { next_frame(body).await? } else { None };
        }
        if let Some(expander) = &mut expander {
            expander.finish(&mut piece)?;
            append(&piece)?;
        }
        let (bytes, share) = buffer.into_parts();
        Ok(ReadBody { bytes: bytes.into(), _share: share })
    }

    fn within_limit(&self, length: usize) -> Result<(), Problem> {
        if length <= self.bytes_max {
            return Ok(());
        }
        let detail = format!("the limit is {} bytes, decompressed", self.bytes_max);
        Err(Problem::new(Code::BodyTooLarge, detail))
    }

    /// An empty share of the memory, for the result of parsing.
    pub(crate) fn share(&self) -> Share {
        Share::empty(self.budget.clone())
    }

    fn share_of(&self, bytes: u64) -> Result<Share, Problem> {
        Ok(Share::of(self.budget.clone(), bytes)?)
    }

    /// Begins to read an upload of any length.
    ///
    /// # Errors
    /// Another coding (415), or too many bodies at once (503).
    pub(crate) fn upload(&self, request: Request) -> Result<Pieces, Problem> {
        let coding = Coding::of(request.headers())?;
        Ok(Pieces {
            silence: self.timeout,
            stopping: self.stopping.clone(),
            frame: Bytes::new(),
            piece: Vec::new(),
            expander: coding.expander()?,
            received: 0,
            expanded: 0,
            has_ended: false,
            _share: self.share_of(UPLOAD_BYTES + coding.decoder_bytes())?,
            body: request.into_body(),
        })
    }
}

/// An upload, piece by piece.
pub(crate) struct Pieces {
    body: Body,
    /// How long to wait for the next bytes.
    silence: Duration,
    stopping: Stopping,
    /// What has arrived and is not decompressed yet.
    frame: Bytes,
    piece: Vec<u8>,
    /// `None` if the body is not compressed.
    expander: Option<Expander>,
    /// Bytes that have arrived, and those that they have expanded to.
    received: u64,
    expanded: u64,
    has_ended: bool,
    _share: Share,
}

impl Pieces {
    /// The next piece, decompressed; `None` at the end.
    ///
    /// # Errors
    /// Nothing arrived for too long (408), the body is incomplete or badly compressed (400), it expands too much (413), or the service stops
    /// (503).
    pub(crate) async fn next(&mut self) -> Result<Option<&[u8]>, Problem> {
        let Some(expander) = &mut self.expander else {
            let arrived = arrived(&mut self.body, self.silence, &self.stopping).await?;
            let Some(frame) = arrived else { return Ok(None) };
            self.frame = frame;
            return Ok(Some(&self.frame));
        };
        self.piece.clear();
        while self.piece.is_empty() && !self.has_ended {
            if self.frame.is_empty() {
                let arrived = arrived(&mut self.body, self.silence, &self.stopping).await?;
                let Some(frame) = arrived else {
                    self.has_ended = true;
                    expander.finish(&mut self.piece).map_err(|fault| resumable(fault.into()))?;
                    break;
                };
                self.received += frame.len() as u64;
                self.frame = frame;
            } else {
                // A frame can expand to many pieces; after each, others get their turn.
                tokio::task::yield_now().await;
            }
            let mut rest = &self.frame[..];
            expander.expand(&mut rest, &mut self.piece).map_err(|fault| resumable(fault.into()))?;
            let taken = self.frame.len() - rest.len();
            self.frame = self.frame.split_off(taken);
        }
        self.expanded += self.piece.len() as u64;
        if self.expanded > EXPANDED_FREE.max(self.received.saturating_mul(EXPANSION_MAX)) {
            let detail = format!("the body expands to more than {EXPANSION_MAX} times its size");
            return Err(Problem::new(Code::BodyTooLarge, detail));
        }
        Ok((!self.piece.is_empty()).then_some(&self.piece[..]))
    }
}

/// The same problem of an upload, which can be continued.
fn resumable(problem: Problem) -> Problem {
    Problem { detail: format!("{}; continue under the same id", problem.detail).into(), ..problem }
}

/// The next bytes of an upload, unless the service stops.
async fn arrived(body: &mut Body, silence: Duration, stopping: &Stopping) -> Result<Option<Bytes>, Problem> {
    let arrived = tokio::select! {
        // Checked first, so that an upload that never pauses ends as well.
        biased;
        () = stopping.uploads_end() => {
            let detail = "the service is stopping; once it is back, continue under the same id";
            return Err(Problem::new(Code::Draining, detail));
        }
        arrived = tokio::time::timeout(silence, next_frame(body)) => arrived,
    };
    let arrived = arrived.unwrap_or_else(|_| Err(too_slow(format!("nothing arrived for {silence:?}"))));
    arrived.map_err(resumable)
}

/// The next bytes of a body.
async fn next_frame(body: &mut Body) -> Result<Option<Bytes>, Problem> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::new(Code::MalformedRequest, "the body is incomplete"))?;
        // Other frames are trailers.
        if let Ok(data) = frame.into_data()
            && !data.is_empty()
        {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

fn too_slow(detail: String) -> Problem {
    Problem::new(Code::RequestTimeout, detail)
}

fn require_json(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    let is_patch = method == Method::PATCH;
    match media_type(headers).as_deref() {
        Some("application/json") => Ok(()),
        Some("application/merge-patch+json") if is_patch => Ok(()),
        _ => {
            let merge_patch = if is_patch { "application/merge-patch+json or " } else { "" };
            let detail = format!("the body must be {merge_patch}application/json");
            Err(Problem::new(Code::UnsupportedMediaType, detail))
        }
    }
}

/// The media type without its parameters, in lower case.
pub(crate) fn media_type(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let essence = value.split(';').next()?.trim();
    match essence.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Some(Cow::Owned(essence.to_ascii_lowercase())),
        false => Some(Cow::Borrowed(essence)),
    }
}

/// What one body takes of the budget.
pub(crate) type Share = budget::Share<Arc<Budget>>;

/// The longest body that fits alone, in bytes: a [`Buffer`] needs half as much again while it is moved.
pub(crate) fn body_bytes_max(budget: &Budget) -> u64 {
    budget.share_bytes_max() / 3 * 2
}

/// A buffer that accounts for its memory.
pub(crate) struct Buffer {
    /// Dropped before the share.
    bytes: Vec<u8>,
    share: Share,
}

impl Buffer {
    /// Creates an empty buffer.
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self { bytes: Vec::new(), share: Share::empty(budget.clone()) }
    }

    /// The number of bytes in it.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends bytes, up to `bytes_max` in total.
    ///
    /// # Errors
    /// [`UsedUp`].
    pub(crate) fn extend(&mut self, bytes: &[u8], bytes_max: usize) -> Result<(), UsedUp> {
        let (needed, old) = (self.bytes.len() + bytes.len(), self.bytes.capacity());
        if needed > old {
            // The capacity doubles, so the total moved is no more than the final length. But from half of the maximum on it grows
            // to the maximum at once.
            let half = bytes_max / 2;
            let new = if needed > half { bytes_max.max(needed) } else { needed.max((2 * old).min(half)) };
            // Both buffers exist while one is copied to the other.
            self.share.hold((old + new) as u64)?;
            let mut moved = Vec::with_capacity(new);
            moved.extend_from_slice(&self.bytes);
            self.bytes = moved;
            self.share.hold(new as u64)?;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Splits it into the bytes and their share.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Share) {
        (self.bytes, self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures_util::{future, stream, task};
    use http::Request;
    use prometheus_client::metrics::counter::Counter;
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
        /// Of the whole text.
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
        (coding, 0usize..400_000, 1usize..4, 1_000usize..100_000, kind).prop_map(
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
                .map(|n| if n % 2 == 0 { b' ' } else { (n.wrapping_mul(0x9E37_79B1) >> 24) as u8 })
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
                text => text.chunks(self.length.div_ceil(self.parts)).flat_map(part).collect(),
            };
            let mut frames: Vec<_> =
                bytes.chunks(self.frame_bytes).map(|frame| Ok(Bytes::copy_from_slice(frame))).collect();
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

        /// Reads it; gives what came, or the problem.
        async fn read(&self, reading: &Reading) -> Result<Vec<u8>, Code> {
            let request = self.request();
            if self.is_upload {
                let mut pieces = reading.upload(request).map_err(|problem| problem.code)?;
                let mut text = Vec::new();
                while let Some(piece) = pieces.next().await.map_err(|problem| problem.code)? {
                    text.extend_from_slice(piece);
                    tokio::task::yield_now().await;
                }
                return Ok(text);
            }
            let body = reading.json(request).await.map_err(|problem| problem.code)?;
            tokio::task::yield_now().await;
            Ok(body.to_vec())
        }

        fn check(&self, read: Result<Vec<u8>, Code>, may_be_overloaded: bool) {
            match read {
                Ok(text) => {
                    assert!(!self.breaks_off && text == self.text());
                    assert!(self.is_upload || self.length <= BYTES_MAX);
                }
                Err(Code::Overloaded) => assert!(may_be_overloaded),
                Err(Code::BodyTooLarge) => assert!(!self.is_upload && self.length > BYTES_MAX),
                Err(code) => assert!(self.breaks_off && code == Code::MalformedRequest, "{code:?}"),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Bodies of any kind, read step by step in any order and abandoned at any step, never take more than the limit. Each
        /// arrives whole or with the right problem, and in the end all memory is returned.
        #[test]
        fn bodies_together_stay_within_the_limit(
            bodies in prop::collection::vec(sent(), 1..8),
            steps in prop::collection::vec((0usize..8, 0u8..40), 0..300),
            is_scarce: bool,
        ) {
            let limit: u64 = if is_scarce { 12 << 20 } else { 256 << 20 };
            let taken: Gauge<u64, std::sync::atomic::AtomicU64> = Gauge::default();
            let budget = Arc::new(Budget::new(limit, taken.clone(), Counter::default()));
            let timeout = Duration::from_secs(3_600);
            let reading = Reading { budget, bytes_max: BYTES_MAX, timeout, stopping: Stopping::default() };
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
            // The rest to their ends, all at once.
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
    async fn a_bomb_gives_way_while_it_expands() {
        let budget = Arc::new(Budget::new(256 << 20, Gauge::default(), Counter::default()));
        let timeout = Duration::from_secs(3_600);
        let reading = Reading { budget, bytes_max: 32 << 20, timeout, stopping: Stopping::default() };
        for coding in ["gzip", "zstd"] {
            let bomb =
                Sent { coding, length: 0, parts: 1, frame_bytes: 1, is_upload: false, breaks_off: false };
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
            assert_eq!(body.await.map_err(|problem| problem.code).unwrap().len(), 32 << 20);
            // Each turn is at most a piece.
            assert!(turns > 100, "{coding}: {turns}");
        }
    }

    /// A budget of this size, and the gauge of what is in use.
    fn budget(limit_bytes: u64) -> (Arc<Budget>, Gauge<u64, AtomicU64>) {
        let taken = Gauge::default();
        (Arc::new(Budget::new(limit_bytes, taken.clone(), Counter::default())), taken)
    }

    #[test]
    fn the_longest_body_fits_alone() {
        let (budget, taken) = budget(1 << 20);
        let most = body_bytes_max(&budget) as usize;
        let mut buffer = Buffer::new(&budget);
        for _ in 0..most {
            buffer.extend(b"x", most).unwrap();
        }
        assert_eq!((buffer.len(), taken.get()), (most, most as u64));
    }

    proptest! {
        /// What is in use is always what the buffers hold, and never beyond the limit. A buffer that may not grow is unchanged.
        #[test]
        fn buffers_hold_what_they_take(
            limit in 0u64..300_000,
            steps in prop::collection::vec((0usize..4, 0usize..8, 0usize..100_000), 0..200),
        ) {
            let (budget, taken) = budget(limit);
            let mut buffers: Vec<Buffer> = (0..8).map(|_| Buffer::new(&budget)).collect();
            for (step, which, bytes) in steps {
                let buffer = &mut buffers[which];
                if step == 0 {
                    *buffer = Buffer::new(&budget);
                } else {
                    let (before, held) = (buffer.len(), taken.get());
                    if buffer.extend(&vec![0; bytes], 200_000).is_err() {
                        prop_assert_eq!((buffer.len(), taken.get()), (before, held));
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
