//! The image of one filter, taken out of a snapshot of the whole state.

use super::image::FilterStateImage;
use super::ledger::Kept;
use super::restore::{RestoreStateError, beginning};
use super::section::SectionId;
use super::slab::{DamagedSlab, PageReader};
use crate::domain::image::ALGORITHM;
use crate::domain::{FilterId, ImageHead, PlacedRedemption};
use std::convert::Infallible;

/// What an image of one filter consists of.
pub struct Export {
    /// What it begins with.
    pub head: ImageHead,
    /// Its tables in their order, and how many chunks each has.
    pub tables: Vec<(SectionId, u32)>,
    /// Of an open pool: the ordinals that are taken.
    pub ordinals: Option<SectionId>,
    /// Its redemptions, which a [`RedemptionReader`] reads.
    pub ledger: SectionId,
}

impl Export {
    /// Finds a filter in a snapshot's head; none if it is not there, or not whole itself.
    ///
    /// # Errors
    /// [`RestoreStateError::Head`] or [`RestoreStateError::Newer`] if the head can't be read.
    pub fn find(head: &[u8], filter: FilterId) -> Result<Option<Self>, RestoreStateError<Infallible>> {
        let beginning = beginning(head)?;
        let found = beginning.filters.into_iter().find(|image| image.id == filter && image.loading.is_none());
        let Some(image) = found else { return Ok(None) };
        let FilterStateImage { kind, name, secret, spec, layout, window, created_at, adds, removes, .. } =
            image;
        let tables = image.tables.filter.tables();
        let tables =
            tables.map(|(table, _, chunks)| (SectionId::table(image.tables.epoch, table), chunks)).collect();
        let head = ImageHead {
            algorithm: ALGORITHM,
            seq: beginning.applied,
            at: beginning.now,
            kind,
            name,
            secret,
            spec,
            layout,
            window,
            created_at,
            adds,
            removes,
            tables: image.tables.filter,
            last_change: image.ledger.last_change.0,
        };
        let epoch = image.ledger.epoch;
        let ordinals = image.ledger.ordinals_changes.map(|_| SectionId::ordinals(epoch));
        Ok(Some(Self { head, tables, ordinals, ledger: SectionId::only(epoch) }))
    }
}

/// Reads the redemptions in the chunks of a ledger.
#[derive(Default)]
pub struct RedemptionReader {
    pages: PageReader,
}

impl RedemptionReader {
    /// Takes the next chunk, and adds the redemptions that are complete with it to `out`.
    ///
    /// # Errors
    /// [`DamagedSlab`].
    pub fn push(&mut self, chunk: &[u8], out: &mut impl Extend<PlacedRedemption>) -> Result<(), DamagedSlab> {
        self.pages.push(chunk);
        while let Some(page) = self.pages.next_values::<Kept>()? {
            out.extend(page.into_iter().map(PlacedRedemption::from));
        }
        Ok(())
    }

    /// Whether the last chunk ends where a page does.
    pub fn is_at_end(&self) -> bool {
        self.pages.is_empty()
    }
}
