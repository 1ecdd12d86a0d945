//! Line-ups: what an eligibility request asks, kept by name.

use super::catalog::NamedLineUp;
use super::machine::{Shared, State};
use crate::domain::line_up::LINE_UPS_BYTES_MAX;
use crate::domain::{Happened, LineUp, LineUpChange, Name, Outcome, Refusal};
use std::borrow::Cow;
use std::sync::Arc;

impl State {
    /// Creates a line-up, or replaces it.
    pub(super) fn put_line_up(&mut self, name: &Name, line_up: &LineUp) -> Result<Outcome, Refusal> {
        let shared = &mut self.shared;
        let before = shared.catalog.line_up(name).cloned();
        let (created_by, bytes_before) =
            before.as_ref().map_or((self.applied, 0), |before| (before.created_by, before.memory_bytes()));
        let stored = NamedLineUp { name: name.clone(), line_up: line_up.clone(), created_by };
        let bytes = shared.line_ups_bytes - bytes_before + stored.memory_bytes();
        let is_one_too_many =
            before.is_none() && shared.catalog.line_ups_len() as u64 >= shared.settings.line_ups_max;
        if is_one_too_many || bytes > LINE_UPS_BYTES_MAX {
            return Err(Refusal::TooManyLineUps);
        }
        shared.line_ups_bytes = bytes;
        shared.catalog.insert_line_up(Arc::new(stored));
        shared.catalog_changed = true;
        match &before {
            None => shared.tell_line_up(name, LineUpChange::Created),
            Some(before) if before.line_up != *line_up => shared.tell_line_up(name, LineUpChange::Replaced),
            Some(_) => {}
        }
        Ok(Outcome::LineUpStored { created: before.is_none() })
    }

    /// Deletes a line-up.
    pub(super) fn delete_line_up(&mut self, name: &Name) -> Result<Outcome, Refusal> {
        let shared = &mut self.shared;
        let deleted = shared.catalog.remove_line_up(name).ok_or(Refusal::LineUpNotFound)?;
        shared.line_ups_bytes -= deleted.memory_bytes();
        shared.catalog_changed = true;
        shared.tell_line_up(name, LineUpChange::Deleted);
        Ok(Outcome::LineUpDeleted)
    }
}

impl Shared {
    fn tell_line_up(&mut self, name: &Name, change: LineUpChange) {
        self.events.tell(self.now, || Happened::LineUp { name: Cow::Borrowed(name.as_str()), change });
    }
}
