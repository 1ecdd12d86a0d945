//! Reads the log: verifies every value's checksum, and the chain of checksums.

use super::commit::{Commit, Link, decode};
use super::{segments, tail};
use crate::domain::Seq;
use crate::store::{Store, StoreError, part_key, part_of_key};
use std::ops::ControlFlow;

/// The parts of the log that a reader needs.
pub(super) struct Reader<'a> {
    pub(super) store: &'a Store,
    /// The last acknowledged position: the log must hold it unchanged.
    pub(super) acknowledged: Link,
}

impl Reader<'_> {
    /// Streams the commits that reach beyond `after`, oldest first, until the sink stops it or the log ends. Returns the end of
    /// the last commit that was read. Passed as `known` to the next call, it saves a walk from the beginning of the segment.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] for a gap, a broken chain, a bad value or an end before the acknowledged position. Errors of the
    /// sink are passed on.
    pub(super) fn read<E: From<StoreError>>(
        &self,
        after: Seq,
        known: Option<Link>,
        mut sink: impl FnMut(Commit<'_>, Link) -> Result<ControlFlow<()>, E>,
    ) -> Result<Link, E> {
        let segments = segments::list(self.store);
        let within = segments::find(&segments, after.next()).map(|at| segments[at]);
        let known = known
            .filter(|known| known.seq <= after && within.is_some_and(|segment| segment <= known.seq.next()));
        let mut walk = match known {
            Some(link) => Walk { reader: self, link, chained: true },
            None => self.walk_to(&segments, after)?,
        };
        let mut taken = walk.link;
        // Without a segment there is nothing to read; the check below decides whether there should be one.
        let start = segments::find(&segments, walk.link.seq.next()).unwrap_or(segments.len());
        for first in &segments[start..] {
            let flow = walk.segment(*first, |commit, link| {
                if commit.last() > after && sink(commit, link)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                taken = link;
                Ok::<_, E>(ControlFlow::Continue(()))
            })?;
            if flow.is_break() {
                return Ok(taken);
            }
        }
        let needed = self.acknowledged.seq.max(after);
        if walk.link.seq < needed {
            let (end, needed) = (walk.link.seq.0, needed.0);
            let what = format!("the log ends at position {end}, but {needed} is needed");
            return Err(self.store.damaged(what).into());
        }
        Ok(walk.link)
    }

    /// Starts a walk at the segment that holds the position after `after`.
    fn walk_to(&self, segments: &[Seq], after: Seq) -> Result<Walk<'_>, StoreError> {
        let base = tail::base(self.store)?;
        let first = match segments::find(segments, after.next()) {
            Some(start) => segments[start],
            None => segments.first().copied().unwrap_or(base.seq.next()),
        };
        if first > after.next() {
            let (first, wanted) = (first.0, after.next().0);
            let what = format!("the log begins at position {first}, but position {wanted} is needed");
            return Err(self.store.damaged(what));
        }
        // The checksum before the first value is unknown, unless the log reaches back to its beginning.
        let chained = first == base.seq.next();
        let link = if chained { base } else { Link { seq: Seq(first.0.saturating_sub(1)), checksum: 0 } };
        Ok(Walk { reader: self, link, chained })
    }
}

/// A walk along the chain.
struct Walk<'a> {
    reader: &'a Reader<'a>,
    link: Link,
    /// Whether the checksum of `link` is known.
    chained: bool,
}

impl Walk<'_> {
    /// Reads the rest of a segment.
    fn segment<E: From<StoreError>>(
        &mut self,
        first: Seq,
        mut sink: impl FnMut(Commit<'_>, Link) -> Result<ControlFlow<()>, E>,
    ) -> Result<ControlFlow<()>, E> {
        let tree = segments::tree(first);
        let from = part_key(self.link.seq.next().0, 0);
        let acknowledged = self.reader.acknowledged;
        let mut payload = Vec::new();
        let mut next_part = 0;
        let mut outcome = Ok(ControlFlow::Continue(()));
        let mut step = |key: &[u8], bytes: &[u8]| -> Result<ControlFlow<()>, E> {
            let bad = |why: &str| {
                let position = part_of_key(key).map_or(0, |(position, _)| position);
                self.reader.store.damaged(format!("tree {tree}, position {position}: {why}"))
            };
            let value = decode(key, bytes).map_err(bad)?;
            let position = self.link.seq.next();
            if value.part != next_part || value.first != position {
                let why = format!("a gap, part {next_part} of position {} is missing", position.0);
                return Err(bad(&why).into());
            }
            if self.chained && value.previous != self.link.checksum {
                return Err(bad("the chain of checksums is broken").into());
            }
            self.chained = true;
            self.link.checksum = value.checksum;
            payload.extend_from_slice(value.payload);
            next_part += 1;
            if next_part < value.parts {
                return Ok(ControlFlow::Continue(()));
            }
            self.link.seq = value.last;
            if self.link.seq == acknowledged.seq && self.link.checksum != acknowledged.checksum {
                return Err(bad("this is not what was acknowledged").into());
            }
            next_part = 0;
            let flow =
                sink(Commit { first: value.first, entries: value.entries, payload: &payload }, self.link)?;
            payload.clear();
            Ok(flow)
        };
        let scanned = self.reader.store.backing().scan(&tree, &from, &mut |key, bytes| {
            outcome = step(key, bytes);
            match outcome {
                Ok(flow) => flow,
                Err(_) => ControlFlow::Break(()),
            }
        });
        let flow = outcome?;
        self.reader.store.run(scanned)?;
        if next_part != 0 {
            let position = self.link.seq.next().0;
            let what = format!("tree {tree}: it ends inside the commit at position {position}");
            return Err(self.reader.store.damaged(what).into());
        }
        Ok(flow)
    }
}
