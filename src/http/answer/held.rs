//! The body of a long answer. It has its share of the memory that all bodies take until the client has accepted all of it.

use crate::budget::{Budget, Share};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The most bytes that are handed on at once: a connection may copy them.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// A long answer.
pub(crate) struct Held(Bytes);

/// A text and its share; the text is dropped first.
struct Text {
    text: Vec<u8>,
    _share: Share<Arc<Budget>>,
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl Held {
    /// An answer of this text. The share is returned once no piece of the text is in memory any more.
    pub(crate) fn new(text: Vec<u8>, share: Share<Arc<Budget>>) -> Self {
        Self(Bytes::from_owner(Text { text, _share: share }))
    }
}

impl Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.0.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.0.len().min(PIECE_BYTES_MAX);
        Poll::Ready(Some(Ok(Frame::data(self.0.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;

    #[tokio::test]
    async fn the_share_is_returned_with_the_last_piece() {
        let taken = Gauge::default();
        let budget = Arc::new(Budget::new(1 << 20, taken.clone(), Counter::default()));
        let text: Vec<u8> = (0..2 * PIECE_BYTES_MAX + 1).map(|index| index as u8).collect();
        let share = Share::of(budget, text.len() as u64).unwrap();
        let mut held = Held::new(text.clone(), share);
        assert_eq!(held.size_hint().exact(), Some(text.len() as u64));
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
}
