//! Detects what looks wrong about an upload while it is read: it may be the wrong file, or in the wrong format.

use super::first_line::FirstLine;
use super::lines::UploadFormat;
use cuckood_filter::{Digest, Mode};
use cuckood_state::FilterView;
use cuckood_state::domain::{
    Import, ImportMode, ImportWarning, Normalization, Sizing, Timestamp, is_invisible,
};
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64;

/// Number of text lines whose shape is examined.
const SHAPES_MAX: u64 = 10_000;

/// With fewer items than this, many equal ones are normal.
const ALIKE_ITEMS_MIN: u64 = 10;

const SEPARATORS: [u8; 4] = *b",;\t|";

/// Separators per line are counted up to this number.
const SEPARATORS_MAX: usize = 31;

/// The most distinct items in the sample: estimates are off by 2%.
const SAMPLE_MAX: usize = 1 << 12;

/// The most lines in the sample.
const SAMPLED_LINES_MAX: usize = 1 << 11;

/// An item with fewer of these lines is not frequent.
const FREQUENT_MIN: usize = 8;

/// A smaller share of repeated items is normal.
const REPEATED_SHARE_MIN: f64 = 0.01;

/// Observations so far.
#[derive(Default)]
pub(super) struct Observations {
    /// The time of lookups, if copies of present items are worth a warning.
    copies_at: Option<Timestamp>,
    /// The share of repeated items that is worth a warning, if each adds a copy.
    repeated_share: Option<f64>,
    is_text: bool,
    first: Option<FirstLine>,
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
    by_line: LineSample,
}

#[derive(Default)]
struct Sampled {
    /// Number of lines with the item.
    lines: u64,
    /// Whether the item was present before the import.
    was_present: bool,
    /// The hash of its first spelling, and number of lines with another one.
    spelling: u64,
    respelled: u64,
}

/// The items of a random sample of the lines: those whose number has a hash that starts with `level` zeros. They show the few items that many
/// lines have, which a sample of the distinct items misses.
#[derive(Default)]
struct LineSample {
    level: u32,
    lines: u64,
    /// The hash of a line's number, and that of its item.
    sampled: Vec<(u64, u64)>,
}

impl LineSample {
    fn note(&mut self, item: u64) {
        let line = xxh3_64(&self.lines.to_le_bytes());
        self.lines += 1;
        if line.leading_zeros() < self.level {
            return;
        }
        self.sampled.push((line, item));
        while self.sampled.len() > SAMPLED_LINES_MAX {
            self.level += 1;
            self.sampled
                .retain(|(line, _)| line.leading_zeros() >= self.level);
        }
    }

    /// Frequent items, with the number of sampled lines that each has.
    fn frequent(&self) -> HashMap<u64, usize> {
        let mut lines: HashMap<u64, usize> = HashMap::new();
        for (_, item) in &self.sampled {
            *lines.entry(*item).or_default() += 1;
        }
        lines.retain(|_, lines| *lines >= FREQUENT_MIN);
        lines
    }
}

impl Sample {
    /// Notes a line. `spelling` is a hash of the item before normalization.
    fn note(
        &mut self,
        digest: Digest,
        spelling: impl FnOnce() -> u64,
        is_present: impl FnOnce() -> bool,
    ) {
        // The digest's own bits say where in the filter the item is.
        let hash = xxh3_64(&digest.0.to_le_bytes());
        self.by_line.note(hash);
        if hash.leading_zeros() < self.level {
            return;
        }
        let spelling = spelling();
        let sampled = self.items.entry(hash).or_insert_with(|| Sampled {
            lines: 0,
            was_present: is_present(),
            spelling,
            respelled: 0,
        });
        sampled.lines += 1;
        sampled.respelled += u64::from(sampled.spelling != spelling);
        while self.items.len() > SAMPLE_MAX {
            self.level += 1;
            self.items
                .retain(|hash, _| hash.leading_zeros() >= self.level);
        }
    }

    /// The number of distinct items among `lines`, approximately if there are many.
    fn different(&self, lines: u64) -> u64 {
        let all = (self.items.len() as u64) << self.level;
        if self.level == 0 {
            return all;
        }
        // The sample has all lines of its items, so their number of lines per item is more exact than their share of all items. But few
        // items with many lines would distort it.
        let frequent = self.by_line.frequent();
        let sampled_lines: usize = frequent.values().sum();
        let frequent_lines = share(
            lines,
            sampled_lines as u64,
            self.by_line.sampled.len() as u64,
        );
        let others = self
            .items
            .iter()
            .filter(|(hash, _)| !frequent.contains_key(hash));
        let (items, sampled) = others.fold((0, 0), |(items, sum), (_, one)| {
            (items + 1, sum + one.lines)
        });
        let estimate = frequent.len() as u64 + share(lines - frequent_lines, items, sampled);
        estimate.clamp(all - all / 10, all + all / 10).min(lines)
    }

    /// How many of `lines` spell an item differently than its first line, approximately if there are many.
    fn respelled(&self, lines: u64) -> u64 {
        let sampled: u64 = self.items.values().map(|sampled| sampled.lines).sum();
        let respelled: u64 = self.items.values().map(|sampled| sampled.respelled).sum();
        share(lines, respelled, sampled)
    }

    /// How many of `lines` have items that were present before, approximately if there are many.
    fn present(&self, lines: u64) -> u64 {
        let sampled: u64 = self.items.values().map(|sampled| sampled.lines).sum();
        let present: u64 = self
            .items
            .values()
            .filter(|sampled| sampled.was_present)
            .map(|sampled| sampled.lines)
            .sum();
        share(lines, present, sampled)
    }
}

/// The part of `lines` that `part` is of `all`.
fn share(lines: u64, part: u64, all: u64) -> u64 {
    (u128::from(lines) * u128::from(part) / u128::from(all.max(1))) as u64
}

impl Observations {
    /// Nothing noticed yet.
    pub(super) fn new(format: UploadFormat) -> Self {
        Self {
            is_text: format == UploadFormat::Text,
            ..Self::default()
        }
    }

    /// Notes the header row of CSV, if it has one column and the request names none.
    pub(super) fn header(&mut self, name: &str) {
        self.first = Some(FirstLine::header(name));
    }

    /// Looks for further copies of items, if the import adds them: of items that are present before, and of those that are repeated.
    pub(super) fn watch_copies(&mut self, view: &FilterView, import: &Import) {
        let adds_copies = view.spec.mode == Mode::Compact && !import.if_absent;
        let error_rate = match view.spec.sizing {
            Sizing::ErrorRate(error_rate) => error_rate,
            Sizing::Layout { .. } | Sizing::Exact => view.layout.error_rate_at(1.0),
        };
        self.repeated_share = adds_copies.then_some(error_rate.max(REPEATED_SHARE_MIN));
        self.copies_at =
            (adds_copies && import.mode == ImportMode::Append).then_some(import.changed_at);
    }

    /// Notes an item. `is_new` says that the log does not have its line yet.
    pub(super) fn item(&mut self, view: &FilterView, item: &str, digest: Digest, is_new: bool) {
        self.items += 1;
        let copies_at = self.copies_at.filter(|_| is_new);
        let rule = view.spec.normalization;
        let spelling = || match rule {
            Normalization::Exact | Normalization::ByDefault => 0,
            Normalization::Ascii | Normalization::Case | Normalization::Code => {
                xxh3_64(item.as_bytes())
            }
        };
        self.sample.note(digest, spelling, || {
            copies_at.is_some_and(|now| view.count(digest, now) > 0)
        });
        let trimmed = match rule {
            Normalization::Exact | Normalization::ByDefault => item,
            Normalization::Ascii => item.trim_matches(|c: char| c.is_ascii_whitespace()),
            Normalization::Case => item.trim(),
            // White space and invisible characters are ignored anywhere.
            Normalization::Code => "",
        };
        self.with_white_space +=
            u64::from(trimmed.starts_with(is_unseen) || trimmed.ends_with(is_unseen));
        match &mut self.first {
            Some(first) => first.compare(item),
            None if self.is_text => self.first = Some(FirstLine::item(item)),
            None => {}
        }
        if self.is_text && self.shapes < SHAPES_MAX {
            self.shape(item.as_bytes());
        }
    }

    fn shape(&mut self, line: &[u8]) {
        self.shapes += 1;
        let begins = matches!(line.first(), Some(b'"' | b'{' | b'['));
        let ends = matches!(
            line.trim_ascii_end().last(),
            Some(b'"' | b'}' | b']' | b',')
        );
        self.json += u64::from(begins && ends);
        for (counts, separator) in self.separators.iter_mut().zip(SEPARATORS) {
            let found = memchr::memchr_iter(separator, line).count();
            counts[found.min(SEPARATORS_MAX)] += 1;
        }
    }

    /// The warnings for the client.
    pub(super) fn warnings(&self) -> Vec<ImportWarning> {
        let lines = self.items + self.rejected;
        let present = self.sample.present(self.items);
        let respelled = self.sample.respelled(self.items);
        [
            self.repeats_warning(),
            (2 * present > lines).then_some(ImportWarning::MostPresent {
                present,
                items: self.items,
            }),
            self.shape_warning(),
            self.first.as_ref().and_then(FirstLine::warning),
            (self.with_white_space > 0).then_some(ImportWarning::WhiteSpace {
                items: self.with_white_space,
            }),
            (respelled > 0).then_some(ImportWarning::Respelled { items: respelled }),
            (2 * self.rejected > lines).then_some(ImportWarning::MostRejected {
                rejected: self.rejected,
                lines,
            }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn repeats_warning(&self) -> Option<ImportWarning> {
        let items = self.items;
        let different = self.sample.different(self.items);
        let alike = ImportWarning::items_alike(items, different);
        if let Some(alike) = alike {
            return (items >= ALIKE_ITEMS_MIN).then_some(alike);
        }
        let repeated = items.saturating_sub(different) as f64;
        let is_worth_warning = repeated > self.repeated_share? * items as f64;
        is_worth_warning.then_some(ImportWarning::ItemsRepeated { items, different })
    }

    fn shape_warning(&self) -> Option<ImportWarning> {
        let most = |lines: u64| self.shapes >= 2 && lines >= self.shapes - self.shapes / 5;
        if most(self.json) {
            return Some(ImportWarning::LooksLikeJson);
        }
        let separator = self
            .separators
            .iter()
            .position(|counts| counts[1..].iter().any(|&lines| most(lines)))?;
        Some(ImportWarning::LooksLikeCsv {
            separator: SEPARATORS[separator].into(),
        })
    }
}

/// Whether a character at the end of an item is likely not meant to be a part of it.
fn is_unseen(character: char) -> bool {
    character.is_whitespace() || is_invisible(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(number: u64) -> Digest {
        Digest(xxh3_64(&number.to_le_bytes()))
    }

    #[test]
    fn few_distinct_items_are_counted_exactly() {
        let mut sample = Sample::default();
        for number in 0..10 * SAMPLE_MAX as u64 {
            let spelling = || number / SAMPLE_MAX as u64 / 5;
            sample.note(digest(number % SAMPLE_MAX as u64), spelling, || {
                number % 3 == 0
            });
        }
        assert_eq!(sample.different(10 * SAMPLE_MAX as u64), SAMPLE_MAX as u64);
        // The second half of the lines spells each item differently.
        let all = SAMPLE_MAX as u64 * 10;
        assert_eq!(sample.respelled(all), all / 2);
        let third = SAMPLE_MAX as u64 * 10 / 3;
        assert!(sample.present(SAMPLE_MAX as u64 * 10).abs_diff(third) <= 10);
    }

    #[test]
    fn many_distinct_items_are_estimated() {
        for distinct in [100_000, 1_000_000, 10_000_000] {
            let mut sample = Sample::default();
            (0..distinct).for_each(|number| sample.note(digest(number), || 0, || number % 4 == 0));
            assert!(sample.items.len() <= SAMPLE_MAX);
            // No item is repeated, so the estimate is exact.
            assert_eq!(sample.different(distinct), distinct);
            let present = sample.present(distinct);
            assert!(
                present.abs_diff(distinct / 4) < distinct / 20,
                "{present} of {distinct}"
            );
        }
    }

    /// Returns the estimated share of repeated items, in thousandths.
    fn repeated(items: impl IntoIterator<Item = u64>) -> u64 {
        let mut sample = Sample::default();
        let mut lines = 0;
        for item in items {
            sample.note(digest(item), || 0, || false);
            lines += 1;
        }
        assert!(
            sample.items.len() <= SAMPLE_MAX && sample.by_line.sampled.len() <= SAMPLED_LINES_MAX
        );
        1_000 * (lines - sample.different(lines)) / lines
    }

    #[test]
    fn repeated_share_is_estimated() {
        for lines in [3_000, 300_000] {
            // Some items twice: next to each other, and at the end of the file.
            for (percent, range) in [(1, 6..=15), (2, 15..=25), (10, 90..=110), (40, 380..=420)] {
                let twice = lines * percent / 100;
                let once = lines - twice;
                let near =
                    (0..once).flat_map(|item| [item].repeat(if item < twice { 2 } else { 1 }));
                let far = (0..once).chain(0..twice);
                for share in [repeated(near), repeated(far)] {
                    assert!(
                        range.contains(&share),
                        "{share} thousandths of {lines} lines for {percent}%"
                    );
                }
            }
            // One item many times.
            for (percent, range) in [(2, 10..=32), (7, 50..=90), (50, 450..=550)] {
                let share = repeated((0..lines).map(|line| {
                    if line % 100 < percent {
                        7
                    } else {
                        1_000 + line
                    }
                }));
                assert!(
                    range.contains(&share),
                    "{share} thousandths of {lines} lines for {percent}%"
                );
            }
        }
    }
}
