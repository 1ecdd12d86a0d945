//! Reads events for a client: pack by pack, so that the writer, which has the store, is never held for long.

use super::event_log::EventsFound;
use super::protocol::{EventsQuery, EventsResponse, Request};
use super::{Engine, SubmitError};
use cuckood_state::domain::Event;
use cuckood_state::frame::decode;
use thiserror::Error;

/// Maximum number of readers that wait for events.
pub(super) const EVENT_WAITERS_MAX: usize = 64;

/// An event with its number.
#[derive(Clone, PartialEq, Debug)]
pub struct NumberedEvent {
    /// Its number. Later events have higher ones.
    pub number: u64,
    /// The event.
    pub event: Event<'static>,
}

/// Why there are no events.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum EventsError {
    /// The reader's next event is no longer stored.
    #[error("the next event is no longer kept")]
    Gone,
    /// Too many readers are waiting already.
    #[error("too many readers are waiting for events")]
    TooManyWaiting,
    /// No events are stored at all.
    #[error("no events are kept")]
    Off,
    /// The engine can't read now.
    #[error(transparent)]
    Refused(#[from] SubmitError),
}

/// A reader of events: it reads them in order, and can wait for new ones.
pub struct EventReader {
    engine: Engine,
    /// The lowest number that was not read.
    next: u64,
    /// That event must not be skipped if it is missing.
    must_exist: bool,
}

impl Engine {
    /// A reader of the events after the one with this number; without a number, of all stored ones.
    pub fn events_after(&self, after: Option<u64>) -> EventReader {
        let next = after.map_or(0, |after| after.saturating_add(1));
        EventReader {
            engine: self.clone(),
            next,
            must_exist: after.is_some(),
        }
    }
}

impl EventReader {
    /// The next events, in order: a few hundred at most. Empty if there are none yet.
    ///
    /// # Errors
    /// [`EventsError`].
    pub async fn read(&mut self) -> Result<Vec<NumberedEvent>, EventsError> {
        loop {
            let number = self.next;
            let must_exist = self.must_exist;
            let response = self.engine.ask(|reply| {
                Request::Events(EventsQuery {
                    number,
                    must_exist,
                    reply,
                })
            });
            let EventsResponse {
                found,
                retention_seconds,
                next,
            } = response.await?;
            if retention_seconds == 0 {
                return Err(EventsError::Off);
            }
            let pack = match found {
                EventsFound::Gone => return Err(EventsError::Gone),
                EventsFound::Nothing => {
                    (self.next, self.must_exist) = (self.next.max(next), true);
                    return Ok(Vec::new());
                }
                EventsFound::Pack(pack) => pack,
            };
            let now = self.engine.now();
            let mut events = Vec::new();
            for (number, bytes) in pack.events().filter(|(number, _)| *number >= self.next) {
                let unreadable = || {
                    SubmitError::unreadable(format_args!(
                        "events/: event {number} can't be decoded"
                    ))
                };
                let event: Event<'_> = decode(bytes).ok_or_else(unreadable)?;
                if event.at.plus_seconds(retention_seconds) > now {
                    events.push(NumberedEvent { number, event });
                } else if self.must_exist && events.is_empty() {
                    return Err(EventsError::Gone);
                }
            }
            self.next = pack.last() + 1;
            if !events.is_empty() {
                self.must_exist = true;
                return Ok(events);
            }
        }
    }

    /// Waits until there is an event that was not read.
    ///
    /// # Errors
    /// [`EventsError::TooManyWaiting`].
    pub async fn wait(&self) -> Result<(), EventsError> {
        let inner = &self.engine.inner;
        let _place = inner
            .event_waiters
            .try_acquire()
            .map_err(|_| EventsError::TooManyWaiting)?;
        let mut last = inner.events_last.subscribe();
        // The sender lives as long as the engine.
        let _ = last.wait_for(|last| *last >= self.next).await;
        Ok(())
    }
}
