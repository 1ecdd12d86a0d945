//! Normalization: which spellings of an item are the same item. A filter's rule is fixed at its creation, because only digests of normalized
//! items are stored.
//!
//! ASCII takes a short path, and ASCII that normalization leaves as it is, is borrowed. Unicode guarantees that the forms and foldings of
//! assigned characters never change, so only items with characters that a later version assigns may get other digests after an upgrade.

use super::Kind;
use icu_casemap::{CaseMapper, CaseMapperBorrowed};
use icu_normalizer::{ComposingNormalizerBorrowed, DecomposingNormalizerBorrowed};
use icu_properties::props::{Dash, DefaultIgnorableCodePoint, WhiteSpace};
use icu_properties::{CodePointSetData, CodePointSetDataBorrowed};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use thiserror::Error;

const NFC: ComposingNormalizerBorrowed<'static> = ComposingNormalizerBorrowed::new_nfc();
const NFD: DecomposingNormalizerBorrowed<'static> = DecomposingNormalizerBorrowed::new_nfd();
const NFKC: ComposingNormalizerBorrowed<'static> = ComposingNormalizerBorrowed::new_nfkc();
const FOLDING: CaseMapperBorrowed<'static> = CaseMapper::new();
const WHITE_SPACE: CodePointSetDataBorrowed<'static> = CodePointSetData::new::<WhiteSpace>();
const DASH: CodePointSetDataBorrowed<'static> = CodePointSetData::new::<Dash>();
const IGNORABLE: CodePointSetDataBorrowed<'static> =
    CodePointSetData::new::<DefaultIgnorableCodePoint>();

/// The rule by which a filter compares items. Version 1 of entries has `ignore_case` in its place, a bool: tags 0 and 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Normalization {
    /// Items are compared byte by byte.
    Exact,
    /// ASCII white space at both ends and the case of ASCII letters don't count.
    Ascii,
    /// White space at both ends, canonical form and case don't count.
    Case,
    /// Neither do white space, invisible characters and separators anywhere, nor compatibility forms.
    Code,
    /// In a command: an existing filter keeps its rule, and a new one gets the default of its kind. No filter has it.
    ByDefault,
}

/// Why an item can't be used with a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Unusable {
    /// Normalization removes all of it.
    #[error("nothing is left after normalization")]
    Empty,
    /// Only UTF-8 can be normalized.
    #[error("expected UTF-8")]
    NotUtf8,
}

impl Normalization {
    /// Returns the rule of a new filter.
    pub fn resolved(self, kind: Kind, is_open_pool: bool) -> Self {
        match self {
            Self::ByDefault if kind == Kind::Coupon && !is_open_pool => Self::Case,
            Self::ByDefault => Self::Exact,
            Self::Exact | Self::Ascii | Self::Case | Self::Code => self,
        }
    }

    /// Returns the spelling of an item that is hashed.
    ///
    /// # Errors
    /// [`Unusable`]; never for [`Self::Exact`].
    #[inline]
    pub fn apply(self, item: &[u8]) -> Result<Cow<'_, [u8]>, Unusable> {
        let normalized = match self {
            Self::Exact | Self::ByDefault => return Ok(Cow::Borrowed(item)),
            Self::Ascii => normalize_ascii(item)?,
            Self::Case => normalize_case(item)?,
            Self::Code => normalize_code(item)?,
        };
        if normalized.is_empty() {
            return Err(Unusable::Empty);
        }
        Ok(normalized)
    }
}

/// The rule of 0.1.0. Unlike the others it folds to upper case.
fn normalize_ascii(item: &[u8]) -> Result<Cow<'_, [u8]>, Unusable> {
    check_utf8(item)?;
    let trimmed = item.trim_ascii();
    if trimmed.iter().any(u8::is_ascii_lowercase) {
        return Ok(Cow::Owned(trimmed.to_ascii_uppercase()));
    }
    Ok(Cow::Borrowed(trimmed))
}

fn normalize_case(item: &[u8]) -> Result<Cow<'_, [u8]>, Unusable> {
    if is_plain_case(item) {
        return Ok(Cow::Borrowed(trim_white_space(item)));
    }
    if item.is_ascii() {
        return Ok(Cow::Owned(trim_white_space(item).to_ascii_lowercase()));
    }
    Ok(Cow::Owned(fold_case(check_utf8(item)?).into_bytes()))
}

fn normalize_code(item: &[u8]) -> Result<Cow<'_, [u8]>, Unusable> {
    if is_plain_code(item) {
        return Ok(Cow::Borrowed(item));
    }
    if item.is_ascii() {
        let rest = item.iter().filter(|byte| !is_ascii_separator(**byte));
        return Ok(Cow::Owned(rest.map(u8::to_ascii_lowercase).collect()));
    }
    Ok(Cow::Owned(fold_code(check_utf8(item)?).into_bytes()))
}

fn check_utf8(item: &[u8]) -> Result<&str, Unusable> {
    std::str::from_utf8(item).map_err(|_| Unusable::NotUtf8)
}

/// Whether an item is ASCII without capitals. It has no branches, so that it compiles to vector instructions.
fn is_plain_case(item: &[u8]) -> bool {
    item.iter().fold(true, |is_plain, byte| {
        is_plain & byte.is_ascii() & !byte.is_ascii_uppercase()
    })
}

/// Whether an item is ASCII without capitals and separators, in the same way.
fn is_plain_code(item: &[u8]) -> bool {
    item.iter().fold(true, |is_plain, &byte| {
        let is_separator = (byte.wrapping_sub(b'-') < 3)
            | (byte.wrapping_sub(b'\t') < 5)
            | (byte == b' ')
            | (byte == b'_');
        is_plain & byte.is_ascii() & !byte.is_ascii_uppercase() & !is_separator
    })
}

fn is_ascii_white_space(byte: u8) -> bool {
    // Unlike `u8::is_ascii_whitespace`, Unicode has the vertical tab.
    matches!(byte, b'\t'..=b'\r' | b' ')
}

fn is_ascii_separator(byte: u8) -> bool {
    is_ascii_white_space(byte) || matches!(byte, b'-' | b'_' | b'.' | b'/')
}

fn trim_white_space(mut item: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = item
        && is_ascii_white_space(*first)
    {
        item = rest;
    }
    while let [rest @ .., last] = item
        && is_ascii_white_space(*last)
    {
        item = rest;
    }
    item
}

/// Folds by canonical caseless matching (Unicode, D145), and composes the result.
#[cold]
fn fold_case(item: &str) -> String {
    let decomposed = NFD.normalize(trim(item));
    let folded = FOLDING.fold_string(&decomposed);
    let composed = NFC.normalize(&folded);
    trim(&composed).to_owned()
}

fn trim(text: &str) -> &str {
    text.trim_matches(|character| WHITE_SPACE.contains(character))
}

/// Folds by compatibility, without separators. It starts without them, so that they can't keep characters from combining. It ends when
/// nothing changes: a compatibility form may consist of separators, and what remains may combine. A few rounds suffice.
#[cold]
fn fold_code(item: &str) -> String {
    let mut text = without_separators(item);
    loop {
        let composed = NFKC.normalize(&text);
        let folded = FOLDING.fold_string(&composed);
        let next = without_separators(&NFKC.normalize(&folded));
        if next == text {
            return text;
        }
        text = next;
    }
}

fn without_separators(text: &str) -> String {
    text.chars()
        .filter(|character| !is_separator(*character))
        .collect()
}

fn is_separator(character: char) -> bool {
    // The Greek ano teleia is canonically equivalent to the middle dot.
    matches!(character, '_' | '.' | '/' | '·' | '\u{387}')
        || WHITE_SPACE.contains(character)
        || DASH.contains(character)
        || IGNORABLE.contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: [Normalization; 4] = [
        Normalization::Exact,
        Normalization::Ascii,
        Normalization::Case,
        Normalization::Code,
    ];

    /// Characters that normalization treats in special ways.
    const SPECIAL: &str = "aAzZ09 \t\u{b}\u{c}-_./·\u{387}ßẞſİıςΣé\u{301}\u{345}ᾳΑǰΐŉÅ\u{212b}\u{2126}\u{1e9b}\u{323}ﬁﬀ①Ⅷㄱ가\u{1100}\u{1161}\u{3164}\
        \u{a0}\u{85}\u{3000}\u{200b}\u{200d}\u{feff}\u{ad}\u{34f}\u{fe0f}\u{e0100}‐‑–—−﹣－＿．／…․Ａｚ０Ꭰꭰა\u{1c90}𐐀𐐨\u{fdfa}\0\u{7f}";

    /// Letters with both cases. The upper case of others is a different letter, such as that of the dotless i.
    const LETTERS: &str = "abkszäößéñçøåœğşčľθσωάψабяёіґևდქꭰ𐐨ﬁ";

    fn characters() -> impl Strategy<Value = char> {
        let special: Vec<char> = SPECIAL.chars().collect();
        prop_oneof![3 => prop::sample::select(special), 1 => any::<char>()]
    }

    fn texts() -> impl Strategy<Value = String> {
        prop::collection::vec(characters(), 0..8).prop_map(String::from_iter)
    }

    fn words() -> impl Strategy<Value = String> {
        let letters: Vec<char> = LETTERS.chars().chain('0'..='9').collect();
        prop::collection::vec(prop::sample::select(letters), 1..8).prop_map(String::from_iter)
    }

    /// Characters that `code` ignores anywhere.
    fn separators() -> impl Strategy<Value = String> {
        let separators: Vec<char> =
            "-_./· \t\n\u{b}\u{a0}\u{3000}\u{200b}\u{ad}\u{feff}\u{e0100}‐‑–—−－"
                .chars()
                .collect();
        prop::collection::vec(prop::sample::select(separators), 0..4).prop_map(String::from_iter)
    }

    fn apply(rule: Normalization, item: &str) -> Result<String, Unusable> {
        let normalized = rule.apply(item.as_bytes())?;
        Ok(String::from_utf8(normalized.into_owned()).unwrap())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn normalization_is_idempotent(text in texts()) {
            for rule in RULES {
                if let Ok(once) = apply(rule, &text) {
                    prop_assert_eq!(apply(rule, &once), Ok(once), "{:?}", rule);
                }
            }
        }

        #[test]
        fn canonical_equivalents_are_equal(text in texts()) {
            for rule in [Normalization::Case, Normalization::Code] {
                let expected = apply(rule, &text);
                prop_assert_eq!(&apply(rule, &NFD.normalize(&text)), &expected, "{:?}", rule);
                prop_assert_eq!(&apply(rule, &NFC.normalize(&text)), &expected, "{:?}", rule);
            }
        }

        #[test]
        fn case_variants_are_equal(word in words(), capitals: u8) {
            let mixed: String = word
                .chars()
                .enumerate()
                .map(|(at, letter)| match capitals >> (at % 8) & 1 {
                    1 => letter.to_uppercase().to_string(),
                    _ => letter.to_string(),
                })
                .collect();
            for rule in [Normalization::Case, Normalization::Code] {
                let expected = apply(rule, &word);
                prop_assert_eq!(&apply(rule, &mixed), &expected, "{:?}", rule);
                prop_assert_eq!(&apply(rule, &word.to_uppercase()), &expected, "{:?}", rule);
            }
            let (lower, upper) = (word.to_ascii_lowercase(), word.to_ascii_uppercase());
            prop_assert_eq!(apply(Normalization::Ascii, &lower), apply(Normalization::Ascii, &upper));
        }

        /// Also between characters that combine.
        #[test]
        fn inserted_separators_are_ignored(parts in prop::collection::vec((characters(), separators()), 0..8)) {
            let plain: String = parts.iter().map(|(character, _)| *character).collect();
            let separated: String =
                parts.iter().map(|(character, separators)| format!("{character}{separators}")).collect();
            prop_assert_eq!(apply(Normalization::Code, &separated), apply(Normalization::Code, &plain));
        }

        #[test]
        fn white_space_at_ends_is_ignored(word in words(), before in "[ \t\u{b}\u{85}\u{a0}\u{3000}]{0,3}", after in "[ \n\r\u{2003}]{0,3}") {
            let expected = apply(Normalization::Case, &word);
            prop_assert_eq!(apply(Normalization::Case, &format!("{before}{word}{after}")), expected);
        }

        #[test]
        fn short_path_equals_full_path(bytes in prop::collection::vec(0..128_u8, 0..12)) {
            let text = String::from_utf8(bytes).unwrap();
            let expected = |folded: String| if folded.is_empty() { Err(Unusable::Empty) } else { Ok(folded) };
            prop_assert_eq!(apply(Normalization::Case, &text), expected(fold_case(&text)));
            prop_assert_eq!(apply(Normalization::Code, &text), expected(fold_code(&text)));
        }

        /// As 0.1.0 did.
        #[test]
        fn ascii_rule_never_changes(text in texts()) {
            let former = text.as_bytes().trim_ascii().to_ascii_uppercase();
            let former = String::from_utf8(former).unwrap();
            prop_assert_eq!(apply(Normalization::Ascii, &text).unwrap_or_default(), former);
        }
    }

    #[test]
    fn unchanged_ascii_is_borrowed() {
        for (rule, item) in [
            (Normalization::Exact, " K7Q2-9FXM"),
            (Normalization::Ascii, "K7Q2-9FXM"),
            (Normalization::Case, "k7q2-9fxm 1"),
            (Normalization::Code, "k7q29fxm"),
        ] {
            let normalized = rule.apply(item.as_bytes());
            assert!(matches!(normalized, Ok(Cow::Borrowed(_))), "{rule:?}");
            assert_eq!(normalized.unwrap(), item.as_bytes());
        }
    }

    #[test]
    fn spellings_are_equal_by_rule() {
        let [exact, ascii, case, code] = RULES;
        for (item, other, equal_by) in [
            ("ab", "ab", &[exact, ascii, case, code][..]),
            (" ab", "AB\n", &[ascii, case, code]),
            ("\u{a0}ab", "AB\u{b}", &[case, code]),
            ("Straße", "STRASSE", &[case, code]),
            ("é", "e\u{301}", &[case, code]),
            ("K7Q2-9FXM", "k7q2 9fxm", &[code]),
            ("a.b_c/d·e", "A\u{200b}B\u{2013}CDE", &[code]),
            ("ｋ７Ｑ２", "K7Q2", &[code]),
            ("O0", "00", &[]),
            ("a‿b", "ab", &[]),
        ] {
            for rule in RULES {
                let is_equal = apply(rule, item) == apply(rule, other);
                assert_eq!(
                    is_equal,
                    equal_by.contains(&rule),
                    "{item:?} {other:?} {rule:?}"
                );
            }
        }
    }

    #[test]
    fn unusable_items_are_rejected() {
        let [exact, ascii, case, code] = RULES;
        for (item, by) in [
            (&b" \t"[..], &[ascii, case, code][..]),
            (b"\x0b", &[case, code]),
            ("\u{a0}\u{3000}".as_bytes(), &[case, code]),
            (b"-._/ ", &[code]),
            ("…\u{200b}\u{387}".as_bytes(), &[code]),
        ] {
            for rule in RULES {
                let is_empty = rule.apply(item) == Err(Unusable::Empty);
                assert_eq!(is_empty, by.contains(&rule), "{item:?} {rule:?}");
            }
        }
        for item in [&b"\xff"[..], b"a\xc3", b"\xed\xa0\x80"] {
            assert_eq!(exact.apply(item).as_deref(), Ok(item));
            for rule in [ascii, case, code] {
                assert_eq!(
                    rule.apply(item),
                    Err(Unusable::NotUtf8),
                    "{item:?} {rule:?}"
                );
            }
        }
    }

    /// A spec of version 1 has the same bytes. A build of version 1 rejects the other rules: it knows the tags of a bool only.
    #[test]
    fn first_tags_are_those_of_bool() {
        for (rule, bytes) in [
            (Normalization::Exact, [0]),
            (Normalization::Ascii, [1]),
            (Normalization::Case, [2]),
            (Normalization::Code, [3]),
            (Normalization::ByDefault, [4]),
        ] {
            assert_eq!(postcard::to_stdvec(&rule).unwrap(), bytes);
            assert_eq!(postcard::from_bytes(&bytes), Ok(rule));
            let former = postcard::from_bytes::<bool>(&bytes).ok();
            let expected = match rule {
                Normalization::Exact => Some(false),
                Normalization::Ascii => Some(true),
                Normalization::Case | Normalization::Code | Normalization::ByDefault => None,
            };
            assert_eq!(former, expected);
        }
    }

    #[test]
    fn default_depends_on_kind_and_stock() {
        for (kind, is_open_pool, expected) in [
            (Kind::Campaign, false, Normalization::Exact),
            (Kind::Coupon, false, Normalization::Case),
            (Kind::Coupon, true, Normalization::Exact),
        ] {
            assert_eq!(
                Normalization::ByDefault.resolved(kind, is_open_pool),
                expected
            );
            for rule in RULES {
                assert_eq!(rule.resolved(kind, is_open_pool), rule);
            }
        }
    }
}
