//! Detects what looks wrong about an upload while it is read: it may be the wrong file, or in the wrong format.

use super::lines::Format;
use crate::domain::{Import, ImportMode, ImportWarning, Timestamp};
use crate::engine::{Digest, FilterView, Mode};
use std::collections::HashMap;

/// Number of text lines whose shape is examined.
const SHAPES_MAX: u64 = 10_000;

/// With fewer items than this, many equal ones are normal.
const ALIKE_ITEMS_MIN: u64 = 10;

const SEPARATORS: [u8; 3] = *b",;\t";

/// Separators per line are counted up to this number.
const SEPARATORS_MAX: usize = 31;

/// The most distinct items in the sample: estimates are off by 2%.
const SAMPLE_MAX: usize = 1 << 12;

/// Observations so far.
#[derive(Default)]
pub(super) struct Observations {
    /// The time of lookups, if copies of present items are worth a warning.
    copies_at: Option<Timestamp>,
    is_text: bool,
    items: u64,
    pub(super) rejected: u64,
    with_white_space: u64,
    sample: Sample,
    shapes: u64,
    /// Number of lines by how many of each separator they have.
    separators: [[u64; SEPARATORS_MAX + 1]; SEPARATORS.len()],
    json: u64,
}

/// A random sample of the distinct items: those whose hash starts with `level` zeros. Up to [`SAMPLE_MAX`] it has all of them.
#[derive(Default)]
struct Sample {
    level: u32,
    items: HashMap<u64, Sampled>,
}

#[derive(Default)]
struct Sampled {
    /// Number of lines with the item.
    lines: u64,
    /// Whether the item was present before the import.
    was_present: bool,
}

impl Sample {
    fn note(&mut self, digest: Digest, is_present: impl FnOnce() -> bool) {
        // The digest's own bits say where in the filter the item is.
        let hash = xxhash_rust::xxh3::xxh3_64(&digest.0.to_le_bytes());
        if hash.leading_zeros() < self.level {
            return;
        }
        let sampled = self.items.entry(hash);
        sampled.or_insert_with(|| Sampled { lines: 0, was_present: is_present() }).lines += 1;
        while self.items.len() > SAMPLE_MAX {
            self.level += 1;
            self.items.retain(|hash, _| hash.leading_zeros() >= self.level);
        }
    }

    /// The number of distinct items, approximately if there are many.
    fn different(&self) -> u64 {
        (self.items.len() as u64) << self.level
    }

    /// How many of `lines` have items that were present before, approximately if there are many.
    fn present(&self, lines: u64) -> u64 {
        let sampled: u64 = self.items.values().map(|sampled| sampled.lines).sum();
        let present: u64 =
            self.items.values().filter(|sampled| sampled.was_present).map(|sampled| sampled.lines).sum();
        (u128::from(lines) * u128::from(present) / u128::from(sampled.max(1))) as u64
    }
}

impl Observations {
    /// Nothing noticed yet.
    pub(super) fn new(format: Format) -> Self {
        Self { is_text: format == Format::Text, ..Self::default() }
    }

    /// Looks whether items are present before the import adds them, if it adds further copies then.
    pub(super) fn watch_copies(&mut self, view: &FilterView, import: &Import) {
        let adds_copies = import.mode == ImportMode::Append && !import.if_absent;
        let is_compact = view.spec.mode == Mode::Compact;
        self.copies_at = (adds_copies && is_compact).then_some(import.changed_at);
    }

    /// Looks whether items are present at this time.
    pub(super) fn watch_presence(&mut self, now: Timestamp) {
        self.copies_at = Some(now);
    }

    /// Whether most items were present, or there were none.
    pub(super) fn are_present(&self) -> bool {
        2 * self.sample.present(self.items) >= self.items
    }

    /// Notes an item. `is_new` says that the log does not have its line yet.
    pub(super) fn item(&mut self, view: &FilterView, item: &str, digest: Digest, is_new: bool) {
        self.items += 1;
        let copies_at = self.copies_at.filter(|_| is_new);
        self.sample.note(digest, || copies_at.is_some_and(|now| view.count(digest, now) > 0));
        let item = item.as_bytes();
        let is_trimmed = view.spec.ignore_case;
        let is_space = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_whitespace);
        self.with_white_space += u64::from(!is_trimmed && (is_space(item.first()) || is_space(item.last())));
        if self.is_text && self.shapes < SHAPES_MAX {
            self.shape(item);
        }
    }

    fn shape(&mut self, line: &[u8]) {
        self.shapes += 1;
        let begins = matches!(line.first(), Some(b'"' | b'{' | b'['));
        let ends = matches!(line.trim_ascii_end().last(), Some(b'"' | b'}' | b']' | b','));
        self.json += u64::from(begins && ends);
        for (counts, separator) in self.separators.iter_mut().zip(SEPARATORS) {
            let found = memchr::memchr_iter(separator, line).count();
            counts[found.min(SEPARATORS_MAX)] += 1;
        }
    }

    /// The warnings for the client.
    pub(super) fn warnings(&self) -> Vec<ImportWarning> {
        let lines = self.items + self.rejected;
        let (different, present) = (self.sample.different().min(self.items), self.sample.present(self.items));
        let alike = self.items >= ALIKE_ITEMS_MIN && different <= self.items / 10;
        [
            alike.then_some(ImportWarning::ItemsAlike { items: self.items, different }),
            (2 * present > lines).then_some(ImportWarning::MostPresent { present, items: self.items }),
            self.shape_warning(),
            (self.with_white_space > 0).then_some(ImportWarning::WhiteSpace { items: self.with_white_space }),
            (2 * self.rejected > lines)
                .then_some(ImportWarning::MostRejected { rejected: self.rejected, lines }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn shape_warning(&self) -> Option<ImportWarning> {
        let most = |lines: u64| self.shapes >= 2 && lines >= self.shapes - self.shapes / 5;
        if most(self.json) {
            return Some(ImportWarning::LooksLikeJson);
        }
        let separator =
            self.separators.iter().position(|counts| counts[1..].iter().any(|&lines| most(lines)))?;
        Some(ImportWarning::LooksLikeCsv { separator: SEPARATORS[separator].into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(number: u64) -> Digest {
        Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))
    }

    #[test]
    fn few_distinct_items_are_counted_exactly() {
        let mut sample = Sample::default();
        for number in 0..10 * SAMPLE_MAX as u64 {
            sample.note(digest(number % SAMPLE_MAX as u64), || number % 3 == 0);
        }
        assert_eq!(sample.different(), SAMPLE_MAX as u64);
        let third = SAMPLE_MAX as u64 * 10 / 3;
        assert!(sample.present(SAMPLE_MAX as u64 * 10).abs_diff(third) <= 10);
    }

    #[test]
    fn many_distinct_items_are_estimated() {
        for distinct in [100_000, 1_000_000, 10_000_000] {
            let mut sample = Sample::default();
            (0..distinct).for_each(|number| sample.note(digest(number), || number % 4 == 0));
            assert!(sample.items.len() <= SAMPLE_MAX);
            let different = sample.different();
            assert!(different.abs_diff(distinct) < distinct / 10, "{different} for {distinct}");
            let present = sample.present(distinct);
            assert!(present.abs_diff(distinct / 4) < distinct / 20, "{present} of {distinct}");
        }
    }
}
