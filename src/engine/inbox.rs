//! What the writer waits for: requests, and word from the journal.

use super::request::Request;
use parking::Parker;
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tokio::sync::mpsc;

/// What came of waiting.
pub(super) enum Event {
    /// Somebody asks for something.
    Request(Request),
    /// The time has come, or the journal has news.
    Woken,
    /// Everybody who could ask is gone.
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

    /// What wakes the writer.
    pub(super) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The next request; comes back without one at `until`, and whenever the writer is woken.
    pub(super) fn wait(&mut self, until: Option<Instant>) -> Event {
        for is_last in [false, true] {
            match self.requests.poll_recv(&mut Context::from_waker(&self.waker)) {
                Poll::Ready(Some(request)) => return Event::Request(request),
                Poll::Ready(None) => return Event::Closed,
                Poll::Pending if is_last => {}
                Poll::Pending => self.park(until),
            }
        }
        Event::Woken
    }

    /// Waits for word from the journal, or until `until`; may come back without a reason.
    pub(super) fn park(&self, until: Option<Instant>) {
        match until {
            Some(until) => drop(self.parker.park_deadline(until)),
            None => self.parker.park(),
        }
    }

    /// A request that is there already.
    pub(super) fn next(&mut self) -> Option<Request> {
        self.requests.try_recv().ok()
    }

    /// Takes nothing more up.
    pub(super) fn close(&mut self) {
        self.requests.close();
    }
}
