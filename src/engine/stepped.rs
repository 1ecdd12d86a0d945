//! An engine without a thread: a simulation calls the turns of its writer. Only the feature `testing` has it.

use super::event_log::EventsFound;
use super::protocol::{Inbox, Request};
use super::recovery::RecoveryError;
use super::start::prepare;
use super::writer::Writer;
use super::{Engine, EngineOptions, EngineStatus, SnapshotReport, SubmitError};
use crate::clock::Clock;
use cuckood_log::store::{EventPack, StoreError};
use cuckood_state::State;
use std::task::Waker;
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};

/// A recovered engine, and its writer between two turns. Dropping it is a crash: it finishes nothing.
pub struct SteppedEngine {
    engine: Engine,
    writer: Writer,
    inbox: Inbox,
}

impl SteppedEngine {
    /// Opens and recovers the data directory. The waker is woken when the next turn is due before its time.
    ///
    /// # Errors
    /// Those of a startup.
    pub fn start(
        options: EngineOptions,
        clock: Clock,
        waker: Waker,
    ) -> Result<SteppedEngine, RecoveryError> {
        let (requests, inbox) = mpsc::channel(options.queue_commands_max);
        let engine = Engine::with_queue(options, clock, requests);
        let writer = prepare(&engine.inner, waker)?;
        engine.inner.status.set(EngineStatus::Ready);
        Ok(SteppedEngine {
            engine,
            writer,
            inbox,
        })
    }

    /// The handle that requests use.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Takes a turn of the writer. Returns when the next one is due.
    pub fn turn(&mut self, now: Instant) -> Option<Instant> {
        self.writer.turn(now, &mut self.inbox)
    }

    /// Ends as a shutdown does, without waiting for commands in progress.
    pub fn finish(mut self) {
        self.writer.finish();
    }

    /// Requests a barrier. `None` if the queue is full.
    pub fn barrier(&self) -> Option<oneshot::Receiver<Result<(), SubmitError>>> {
        let (reply, passed) = oneshot::channel();
        let sent = self.engine.requests.try_send(Request::Barrier(reply));
        sent.is_ok().then_some(passed)
    }

    /// Requests a snapshot of everything applied so far. `None` if the queue is full. Dropping the receiver withdraws the request.
    pub fn snapshot(&self) -> Option<oneshot::Receiver<Result<SnapshotReport, SubmitError>>> {
        let (reply, taken) = oneshot::channel();
        let sent = self.engine.requests.try_send(Request::Snapshot(reply));
        sent.is_ok().then_some(taken)
    }

    /// Returns the place in the log at which the oldest stored snapshot continues; `None` before the first two are stored.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn oldest_place(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let manifests = self.writer.store.manifests()?;
        let oldest = manifests.last().filter(|_| manifests.len() >= 2);
        Ok(oldest.map(|manifest| manifest.place.clone()))
    }

    /// Returns the first stored pack of events from this number on; `None` after the last one.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn events(&self, number: u64) -> Result<Option<EventPack>, StoreError> {
        let Writer { events, store, .. } = &self.writer;
        let found = events.find(store, number, false)?;
        Ok(match found {
            EventsFound::Pack(pack) => Some(pack),
            EventsFound::Gone | EventsFound::Nothing => None,
        })
    }

    /// The state that the writer has.
    pub fn state(&mut self) -> &mut State {
        &mut self.writer.state
    }
}
