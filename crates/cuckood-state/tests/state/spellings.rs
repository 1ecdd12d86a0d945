//! Digests of items by the rule of their filter, which never change: filters store nothing else.

use cuckood_filter::Secret;
use cuckood_state::domain::Normalization;

const ITEMS: [&str; 40] = [
    "a",
    "A",
    " a ",
    "user-4711",
    "USER 4711",
    "K7Q2-9FXM",
    "k7q29fxm",
    "K7Q2_9FXM",
    "SUMMER-2026",
    "6f9619ff-8b86-d011-b42d-00c04fc964ff",
    "Anna.Mueller@Example.com",
    "Müller-Straße 1",
    "MÜLLER-STRASSE 1",
    "Mu\u{308}ller",
    "ünïcödé",
    "Ünïcödé\u{a0}",
    "春のセール",
    "セール１０％",
    "ｾｰﾙ",
    "ＳＡＬＥ－１０",
    "ſale",
    "İstanbul",
    "ıstanbul",
    "ΣΊΣΥΦΟΣ",
    "σίσυφος",
    "ᾳ\u{301}",
    "Å",
    "\u{212b}",
    "ﬁrst",
    "①Ⅷ",
    "가나다",
    "\u{1100}\u{1161}",
    "a\u{200b}b",
    "a\u{ad}b",
    "\u{feff}bom",
    "Ꭰꭰ",
    "𐐀𐐨",
    "10·20‑30—40",
    "👩‍👩‍👧",
    "\u{1e9b}\u{323}",
];

#[test]
fn digests_never_change() {
    let secret = Secret::new([7; 192]);
    for (rule, expected) in [
        (Normalization::Exact, EXACT),
        (Normalization::Ascii, ASCII),
        (Normalization::Case, CASE),
        (Normalization::Code, CODE),
    ] {
        let digests = ITEMS.map(|item| secret.digest(&rule.apply(item.as_bytes()).unwrap()).0);
        assert_eq!(digests, expected, "{rule:?}: {digests:#018x?}");
    }
}

const EXACT: [u64; 40] = [0; 40];
const ASCII: [u64; 40] = [0; 40];
const CASE: [u64; 40] = [0; 40];
const CODE: [u64; 40] = [0; 40];
