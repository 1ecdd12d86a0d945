//! The pace of an upload next to requests. Requests of the same worker wait while an upload computes, and on a machine with one processor
//! they also wait for the writer, which applies the upload's lines.

use std::time::{Duration, Instant};
use tokio::task::yield_now;
use tokio::time::sleep;

/// A turn of others that takes longer shows that requests queue.
const CROWDED: Duration = Duration::from_micros(200);

/// Bytes of an upload between two turns of others, unless a piece has more. Small pieces would cost a turn each.
const STRIDE_BYTES: u64 = 16 << 10;

/// The longest rest for one turn. So an upload progresses by at least [`STRIDE_BYTES`] in this time and a turn.
const REST_MAX: Duration = Duration::from_millis(4);

/// Shorter rests are added up: the timer has this resolution.
const REST_MIN: Duration = Duration::from_millis(1);

/// When an upload gives the processor to others. They get a turn after each [`STRIDE_BYTES`]. While they queue, which the length of their turn
/// shows, the upload also rests for as long as that turn took, as TCP sends less when packets queue.
#[derive(Default)]
pub(super) struct Pace {
    /// How long the upload still has to rest.
    owed: Duration,
    /// The bytes before which the next turn is not due.
    next: u64,
}

impl Pace {
    /// Gives others a turn if one is due after this many bytes, and rests if they need more.
    pub(super) async fn turn(&mut self, bytes: u64) {
        if bytes < self.next {
            return;
        }
        self.next = bytes + STRIDE_BYTES;
        let began = Instant::now();
        yield_now().await;
        if let Some(rest) = self.rest_after(began.elapsed()) {
            let began = Instant::now();
            sleep(rest).await;
            self.owed = self.owed.saturating_sub(began.elapsed());
        }
    }

    /// How long to rest after others had a turn of this length, if it is time for a rest.
    fn rest_after(&mut self, turn: Duration) -> Option<Duration> {
        if turn > CROWDED {
            self.owed += turn.min(REST_MAX);
        }
        (self.owed >= REST_MIN).then_some(self.owed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upload_rests_only_while_others_queue() {
        let mut pace = Pace::default();
        assert!((0..1_000).all(|_| pace.rest_after(CROWDED).is_none()));
        assert_eq!(pace.rest_after(2 * REST_MIN), Some(2 * REST_MIN));
        pace.owed = Duration::ZERO;
        assert_eq!(pace.rest_after(Duration::ZERO), None);
    }

    #[test]
    fn short_rests_add_up() {
        let mut pace = Pace::default();
        let rests: Vec<_> = (0..3)
            .map(|_| pace.rest_after(REST_MIN.mul_f64(0.4)))
            .collect();
        assert_eq!(rests, [None, None, Some(REST_MIN.mul_f64(1.2))]);
    }

    #[tokio::test]
    async fn small_pieces_share_turn() {
        let mut pace = Pace::default();
        for bytes in 0..STRIDE_BYTES {
            pace.turn(bytes).await;
        }
        assert_eq!(pace.next, STRIDE_BYTES);
        pace.turn(STRIDE_BYTES).await;
        assert_eq!(pace.next, 2 * STRIDE_BYTES);
    }

    #[test]
    fn upload_progresses_however_long_others_queue() {
        assert_eq!(Pace::default().rest_after(Duration::MAX), Some(REST_MAX));
    }
}
