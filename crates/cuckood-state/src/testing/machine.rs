//! A state, the time and the log's last position: commands go in, outcomes come out.

use super::commands::{NewFilter, redeem};
use crate::domain::{
    Applied, Command, Entry, ImportState, Kind, Outcome, Proposal, SectionId, Target, Timestamp,
};
use crate::{FilterView, Sections, State};
use cuckood_filter::{RestoreError, Restoring};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

/// A state whose entries are stamped with `now`.
pub struct Machine {
    pub state: State,
    pub now: Timestamp,
    /// Redemptions made by [`Machine::redeem`].
    pub redemptions: u64,
}

impl Machine {
    pub fn new() -> Machine {
        Machine {
            state: State::default(),
            now: Timestamp(1_000_000),
            redemptions: 0,
        }
    }

    /// Applies a command at `now`. Readers see its effect.
    pub fn apply(&mut self, command: Command) -> Outcome {
        self.propose(Proposal::new(self.now, command)).outcome
    }

    /// Applies a proposal with all its attributes.
    pub fn propose(&mut self, proposal: Proposal) -> Applied {
        let applied = self.state.apply(Entry {
            seq: self.state.applied().next(),
            proposal,
        });
        self.state.publish();
        applied
    }

    pub fn pass_seconds(&mut self, seconds: u64) {
        self.now = self.now.plus_seconds(seconds);
    }

    pub fn create(&mut self, target: Target, filter: &NewFilter) {
        let outcome = self.apply(filter.create(target));
        assert!(matches!(outcome, Outcome::Created(_)), "{outcome:?}");
    }

    /// Redeems or holds a code. The first redemption has serial number 1.
    pub fn redeem(
        &mut self,
        target: Target,
        number: u64,
        reference: &str,
        hold_seconds: u64,
    ) -> Outcome {
        self.redemptions += 1;
        self.apply(redeem(
            target,
            number,
            self.redemptions,
            reference,
            hold_seconds,
        ))
    }

    /// Applies a command of an import, and returns the state of the import.
    pub fn import(&mut self, command: Command) -> ImportState {
        match self.apply(command) {
            Outcome::Import(import) => import.state,
            other => panic!("{other:?}"),
        }
    }

    /// All filters, as readers see them.
    pub fn filters(&self) -> Vec<Arc<FilterView>> {
        filters(&self.state)
    }

    /// A filter, as readers see it.
    pub fn filter(&self, Target(id): Target) -> Arc<FilterView> {
        self.filters()
            .into_iter()
            .find(|filter| filter.id == id)
            .expect("the filter exists")
    }

    /// Replaces the state by one restored from its snapshot, and compares the two.
    pub fn restart(&mut self) {
        let before = Snapshot::of(&mut self.state);
        self.state = before.restore();
        assert!(
            Snapshot::of(&mut self.state) == before,
            "the restored state differs"
        );
    }
}

/// All filters of a published state.
pub fn filters(state: &State) -> Vec<Arc<FilterView>> {
    [Kind::Campaign, Kind::Coupon]
        .map(|kind| state.view().list(kind, "", None, usize::MAX))
        .concat()
}

/// A complete snapshot: its head, and the change count and chunks of each section.
#[derive(Clone, PartialEq, Debug)]
pub struct Snapshot {
    pub head: Vec<u8>,
    sections: BTreeMap<SectionId, (u64, Vec<Vec<u8>>)>,
}

impl Snapshot {
    pub fn of(state: &mut State) -> Snapshot {
        let image = state.begin_snapshot();
        let sections = image.sections.into_iter().map(|mut section| {
            let chunks: Vec<Vec<u8>> = std::iter::from_fn(|| {
                let mut chunk = Vec::new();
                section.next_chunk(&mut chunk).then_some(chunk)
            })
            .collect();
            (section.id, (section.changes, chunks))
        });
        Snapshot {
            sections: sections.collect(),
            head: image.head,
        }
    }

    pub fn restore(&self) -> State {
        State::restore(&self.head, &mut &*self).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Sections for &Snapshot {
    type Error = Infallible;

    fn chunk(
        &mut self,
        section: SectionId,
        chunk: u32,
        out: &mut Vec<u8>,
    ) -> Result<bool, Infallible> {
        let found = self
            .sections
            .get(&section)
            .and_then(|(_, chunks)| chunks.get(chunk as usize));
        out.clear();
        out.extend(found.into_iter().flatten());
        Ok(found.is_some())
    }

    fn reserve(&mut self, _bytes: u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn table(
        &mut self,
        section: SectionId,
        table: &Restoring<'_>,
    ) -> Result<(), RestoreError<Infallible>> {
        // A missing chunk stays empty, and its checksum rejects it.
        table.load(0..table.chunks(), |chunk, out| {
            self.chunk(section, chunk, out).map(drop)
        })
    }
}
