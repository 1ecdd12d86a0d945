//! What holds up the writer's work between commits, until something else happens.

use crate::domain::Seq;
use crate::journal::Ticket;
use std::time::{Duration, Instant};

/// What can't go on although there is time.
#[derive(Default)]
pub(super) struct HeldUp {
    /// Readers still look at all that commands have dropped, so nothing of it can be freed yet.
    pub(super) freeing: bool,
    /// The entry of the writer's own that is proposed and not committed.
    pub(super) advance: Option<Ticket>,
    /// When an entry of the writer's own was last proposed and not applied at once, and the last entry applied before. It could not be
    /// logged, or isn't committed yet.
    proposed: Option<(Instant, Seq)>,
}

impl HeldUp {
    /// An entry of the writer's own was proposed when so much was applied, and isn't applied yet.
    pub(super) fn note_proposed(&mut self, applied: Seq) {
        self.proposed = Some((Instant::now(), applied));
    }

    /// Whether the writer should propose no other one: since the last one nothing was applied, and no more time has passed than that.
    pub(super) fn is_proposed(&self, applied: Seq, patience: Duration) -> bool {
        self.proposed.is_some_and(|(since, before)| before == applied && since.elapsed() < patience)
    }
}
