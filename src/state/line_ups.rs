//! Line-ups: what an eligibility request asks, kept by name.

use super::catalog::NamedLineUp;
use super::machine::Shared;
use crate::domain::line_up::LINE_UPS_BYTES_MAX;
use crate::domain::{Happened, LineUp, LineUpChange, Name, Outcome, Refusal, Seq};
use std::borrow::Cow;
use std::sync::Arc;

impl Shared {
    /// Creates a line-up, or replaces it.
    pub(super) fn put_line_up(&mut self, by: Seq, name: &Name, line_up: &LineUp) -> Result<Outcome, Refusal> {
        let before = self.catalog.line_up(name).cloned();
        let (created_by, bytes_before) =
            before.as_ref().map_or((by, 0), |before| (before.created_by, before.memory_bytes()));
        let stored = NamedLineUp { name: name.clone(), line_up: line_up.clone(), created_by };
        let bytes = self.line_ups_bytes - bytes_before + stored.memory_bytes();
        let is_one_too_many =
            before.is_none() && self.catalog.line_ups_len() as u64 >= self.settings.line_ups_max;
        if is_one_too_many || bytes > LINE_UPS_BYTES_MAX {
            return Err(Refusal::TooManyLineUps);
        }
        self.line_ups_bytes = bytes;
        self.catalog.insert_line_up(Arc::new(stored));
        self.catalog_changed = true;
        match &before {
            None => self.tell_line_up(name, LineUpChange::Created),
            Some(before) if before.line_up != *line_up => self.tell_line_up(name, LineUpChange::Replaced),
            Some(_) => {}
        }
        Ok(Outcome::LineUpStored { created: before.is_none() })
    }

    /// Deletes a line-up.
    pub(super) fn delete_line_up(&mut self, name: &Name) -> Result<Outcome, Refusal> {
        let deleted = self.catalog.remove_line_up(name).ok_or(Refusal::LineUpNotFound)?;
        self.line_ups_bytes -= deleted.memory_bytes();
        self.catalog_changed = true;
        self.tell_line_up(name, LineUpChange::Deleted);
        Ok(Outcome::LineUpDeleted)
    }

    fn tell_line_up(&mut self, name: &Name, change: LineUpChange) {
        self.events.tell(self.now, || Happened::LineUp { name: Cow::Borrowed(name.as_str()), change });
    }
}
