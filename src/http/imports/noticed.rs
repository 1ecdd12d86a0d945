//! Detects what looks wrong about an upload while it is read: it may be the wrong file, or in the wrong format.

use super::lines::Format;
use crate::domain::ImportWarning;
use crate::engine::Digest;

/// Number of text lines whose shape is examined.
const SHAPES_MAX: u64 = 10_000;

/// With fewer items than this, many equal ones are normal.
const ALIKE_ITEMS_MIN: u64 = 10;

const SEPARATORS: [u8; 3] = *b",;\t";

/// Separators per line are counted up to this number.
const SEPARATORS_MAX: usize = 31;

/// Bits of the sketch that counts distinct items: enough for half a million.
const SKETCH_BITS: u64 = 1 << 16;

/// What has been noticed so far.
pub(super) struct Noticed {
    is_text: bool,
    items: u64,
    rejected: u64,
    with_white_space: u64,
    /// A bit for each item, chosen by its digest. The number of bits set yields the number of distinct items.
    sketch: Box<[u64; SKETCH_BITS as usize / 64]>,
    shapes: u64,
    /// Number of lines by how many of each separator they have.
    separators: [[u64; SEPARATORS_MAX + 1]; SEPARATORS.len()],
    json: u64,
}

impl Noticed {
    /// Nothing noticed yet.
    pub(super) fn new(format: &Format) -> Self {
        Self {
            is_text: *format == Format::Text,
            items: 0,
            rejected: 0,
            with_white_space: 0,
            sketch: Box::new([0; SKETCH_BITS as usize / 64]),
            shapes: 0,
            separators: [[0; SEPARATORS_MAX + 1]; SEPARATORS.len()],
            json: 0,
        }
    }

    /// Notes an item. `is_trimmed` says that white space around it does not matter.
    pub(super) fn item(&mut self, item: &str, digest: Digest, is_trimmed: bool) {
        self.items += 1;
        let bit = digest.0 >> (64 - SKETCH_BITS.ilog2());
        self.sketch[(bit / 64) as usize] |= 1 << (bit % 64);
        let item = item.as_bytes();
        let is_space = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_whitespace);
        self.with_white_space += u64::from(!is_trimmed && (is_space(item.first()) || is_space(item.last())));
        if self.is_text && self.shapes < SHAPES_MAX {
            self.shape(item);
        }
    }

    /// Notes a rejected line.
    pub(super) fn rejected(&mut self) {
        self.rejected += 1;
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
        let different = self.different();
        let alike = self.items >= ALIKE_ITEMS_MIN && different <= self.items / 10;
        [
            alike.then_some(ImportWarning::ItemsAlike { items: self.items, different }),
            self.shape_warning(),
            (self.with_white_space > 0).then_some(ImportWarning::WhiteSpace { items: self.with_white_space }),
            (2 * self.rejected > lines)
                .then_some(ImportWarning::MostRejected { rejected: self.rejected, lines }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// The approximate number of distinct items, by linear counting.
    fn different(&self) -> u64 {
        let unset: u32 = self.sketch.iter().map(|word| word.count_zeros()).sum();
        let estimate = (SKETCH_BITS as f64) * (SKETCH_BITS as f64 / f64::from(unset.max(1))).ln();
        (estimate.round() as u64).min(self.items)
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
    use proptest::prelude::*;

    fn digest(item: &str) -> Digest {
        Digest(xxhash_rust::xxh3::xxh3_64(item.as_bytes()))
    }

    fn warnings<'a>(format: &Format, items: impl IntoIterator<Item = &'a str>) -> Vec<ImportWarning> {
        let mut noticed = Noticed::new(format);
        items.into_iter().for_each(|item| noticed.item(item, digest(item), false));
        noticed.warnings()
    }

    #[test]
    fn lines_that_are_records_are_told() {
        for (separator, lines) in [
            (',', &["id,name", "1,Ann", "2,Bob", "3,Cy", "a line of prose"][..]),
            (';', &["1;a,b", "2;c"]),
            ('\t', &["1\tx\ty", "2\tx\ty"]),
        ] {
            let looks = ImportWarning::LooksLikeCsv { separator };
            assert_eq!(warnings(&Format::Text, lines.iter().copied()), [looks]);
            assert_eq!(warnings(&Format::NdJson, lines.iter().copied()), []);
        }
        for plain in [&["a,b"][..], &["u1", "u2"], &["a,b", "c", "d"], &["a,b", "a,b,c", "a,b,c,d"]] {
            assert_eq!(warnings(&Format::Text, plain.iter().copied()), []);
        }
    }

    #[test]
    fn lines_of_json_are_told() {
        let lines = [r#"{"item":"a","x":1}"#, r#"{"item":"b","x":1}"#];
        assert_eq!(warnings(&Format::Text, lines), [ImportWarning::LooksLikeJson]);
        assert_eq!(warnings(&Format::Text, ["\"a\"", "\"b\","]), [ImportWarning::LooksLikeJson]);
    }

    #[test]
    fn white_space_and_rejected_lines_are_told() {
        assert_eq!(warnings(&Format::NdJson, ["a ", " b", "c"]), [ImportWarning::WhiteSpace { items: 2 }]);
        let mut noticed = Noticed::new(&Format::Text);
        noticed.item(" a", digest("a"), true);
        noticed.rejected();
        assert_eq!(noticed.warnings(), []);
        noticed.rejected();
        assert_eq!(noticed.warnings(), [ImportWarning::MostRejected { rejected: 2, lines: 3 }]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn items_are_alike_when_few_of_them_are_different(different in 1..60_000u64, copies in 1..40u64) {
            let mut noticed = Noticed::new(&Format::Text);
            for number in 0..different * copies {
                let item = (number % different).to_string();
                noticed.item(&item, digest(&item), false);
            }
            let told = noticed.warnings();
            if copies <= 9 {
                prop_assert_eq!(told, []);
            } else if copies >= 11 {
                let [ImportWarning::ItemsAlike { items, different: about }] = told[..] else {
                    return Err(TestCaseError::fail(format!("{told:?}")));
                };
                prop_assert_eq!(items, different * copies);
                prop_assert!(about.abs_diff(different) <= 3 + different / 20, "{} for {}", about, different);
            }
        }
    }
}
