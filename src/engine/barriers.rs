//! The callers that wait until everything that any node has acknowledged is applied here.

use super::SubmitError;
use super::request::Reply;
use crate::journal::{Journal, Ticket};
use std::collections::VecDeque;

/// Beyond this number of callers, those that have gone are dropped.
const CALLERS_MAX: usize = 1_024;

/// Callers in the order of their barriers.
#[derive(Default)]
pub(super) struct Barriers {
    last: u64,
    waiting: VecDeque<(Ticket, Reply<()>)>,
}

impl Barriers {
    /// Asks for a barrier for a caller.
    pub(super) fn begin(&mut self, journal: &mut dyn Journal, reply: Reply<()>) {
        self.last += 1;
        let barrier = Ticket(self.last);
        match journal.barrier(barrier) {
            Ok(()) => self.waiting.push_back((barrier, reply)),
            Err(_) => drop(reply.send(Err(SubmitError::StorageFailed))),
        }
        // A log that never answers must not gather callers that have given up.
        if self.waiting.len() > CALLERS_MAX {
            self.waiting.retain(|(_, reply)| !reply.is_closed());
        }
    }

    /// Answers the callers whose barrier is passed. Everything that was polled is applied.
    pub(super) fn answer(&mut self, journal: &dyn Journal) {
        let passed = journal.passed();
        while let Some((_, reply)) = self.waiting.pop_front_if(|(barrier, _)| Some(*barrier) <= passed) {
            let _ = reply.send(Ok(()));
        }
    }
}
