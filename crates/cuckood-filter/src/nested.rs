//! Look-ups of many items in several segments of a compact filter: where an item may lie is computed once for all of them.

use super::hash::Digest;
use super::kind::with_kind;
use super::place::{Nesting, Place};
use super::slots::OwnShape;
use super::table::{GROUP, Table};

/// Sets `found` to true for the items that any of these tables holds, and leaves it as it is for the others. Each item is looked up in the
/// tables in their order.
///
/// The next items' cache lines are prefetched while these ones are looked at, so that the memory is never idle.
pub(super) fn contains_many(tables: &[&Table], digests: &[Digest], found: &mut [bool]) {
    let Some(finest) = tables.iter().max_by_key(|table| (table.plan.level(), table.plan.segment())) else {
        return;
    };
    let ask = |digests: &[Digest], nestings: &mut [Nesting; GROUP]| {
        for (nesting, &digest) in nestings.iter_mut().zip(digests) {
            *nesting = finest.dimensions.nesting(digest);
        }
        tables.iter().for_each(|table| table.prefetch_nested(finest, &nestings[..digests.len()]));
        digests.len()
    };
    let [now, next] = &mut [[Nesting::default(); GROUP]; 2];
    let (mut now, mut next) = (now, next);
    let mut groups = digests.chunks(GROUP);
    let mut here = ask(groups.next().unwrap_or_default(), now);
    for found in found.chunks_mut(GROUP) {
        let ahead = ask(groups.next().unwrap_or_default(), next);
        tables.iter().for_each(|table| table.contains_nested(finest, &now[..here], found));
        (now, next, here) = (next, now, ahead);
    }
}

impl Table {
    fn prefetch_nested(&self, finest: &Table, nestings: &[Nesting]) {
        with_kind!(self.plan, S, P => self.prefetch_nested_in::<S, P>(finest, nestings));
    }

    #[inline(never)]
    fn prefetch_nested_in<S: OwnShape, P: Place>(&self, finest: &Table, nestings: &[Nesting]) {
        let kind = self.kind::<S, P>();
        for nesting in nestings {
            self.prefetch(kind, &finest.dimensions.probe_in(&self.dimensions, nesting));
        }
    }

    fn contains_nested(&self, finest: &Table, nestings: &[Nesting], found: &mut [bool]) {
        with_kind!(self.plan, S, P => self.contains_nested_in::<S, P>(finest, nestings, found));
    }

    #[inline(never)]
    fn contains_nested_in<S: OwnShape, P: Place>(
        &self,
        finest: &Table,
        nestings: &[Nesting],
        found: &mut [bool],
    ) {
        let kind = self.kind::<S, P>();
        let probe = |nesting| finest.dimensions.probe_in(&self.dimensions, nesting);
        let before = self.version();
        for (found, nesting) in found.iter_mut().zip(nestings) {
            *found |= self.holds_either(kind, &probe(nesting), || ());
        }
        if !self.is_sure(before) {
            for (found, nesting) in found.iter_mut().zip(nestings) {
                let holds = || self.holds_either(kind, &probe(nesting), || ()).then_some(());
                *found = *found || self.look(holds).is_some();
            }
        }
    }
}
