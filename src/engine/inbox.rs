//! The writer's inbox: requests, and wake-ups from the journal.

use super::request::Request;
use parking::Parker;
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tokio::sync::mpsc;

/// Why the wait ended.
pub(super) enum Wake {
    /// A request arrived.
    Request(Request),
    /// The deadline passed, or the journal has news.
    Woken,
    /// Every sender is gone.
    Closed,
}

/// The writer's end of the queue.
pub(super) struct Inbox {
    requests: mpsc::Receiver<Request>,
    parker: Parker,
    waker: Waker,
}

impl Inbox {
    pub(super) fn new(requests: mpsc::Receiver<Request>) -> Inbox {
        let parker = Parker::new();
        let waker = Waker::from(parker.unparker());
        Inbox { requests, parker, waker }
    }

    /// A waker that ends the writer's wait.
    pub(super) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Waits for the next request. Returns without one at `until`, or when the writer is woken.
    pub(super) fn wait(&mut self, until: Option<Instant>) -> Wake {
        for is_last in [false, true] {
            match self.requests.poll_recv(&mut Context::from_waker(&self.waker)) {
                Poll::Ready(Some(request)) => return Wake::Request(request),
                Poll::Ready(None) => return Wake::Closed,
                Poll::Pending if is_last => {}
                Poll::Pending => self.park(until),
            }
        }
        Wake::Woken
    }

    /// Waits for the journal's wake-up or until `until`; may also return early.
    pub(super) fn park(&self, until: Option<Instant>) {
        match until {
            Some(until) => drop(self.parker.park_deadline(until)),
            None => self.parker.park(),
        }
    }

    /// A request that has already arrived.
    pub(super) fn next(&mut self) -> Option<Request> {
        self.requests.try_recv().ok()
    }

    /// Closes the queue: no more requests are accepted.
    pub(super) fn close(&mut self) {
        self.requests.close();
    }
}
