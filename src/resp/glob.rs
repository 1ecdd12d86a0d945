//! Patterns as Redis' SCAN has them: `*`, `?`, `[abc]`, `[^a-c]`, and `\` before a character that is meant as such.

/// Whether a text matches a pattern. Takes at most as many steps as the product of their lengths.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut pattern_at, mut text_at) = (0, 0);
    // Where to go on if what follows the last `*` doesn't match: after the star, with one more byte left to it.
    let mut again: Option<(usize, usize)> = None;
    while text_at < text.len() {
        if pattern.get(pattern_at) == Some(&b'*') {
            pattern_at += 1;
            again = Some((pattern_at, text_at));
            continue;
        }
        if let Some(length) = one(&pattern[pattern_at..], text[text_at]) {
            pattern_at += length;
            text_at += 1;
            continue;
        }
        let Some((after_star, begun)) = again else { return false };
        again = Some((after_star, begun + 1));
        (pattern_at, text_at) = (after_star, begun + 1);
    }
    pattern[pattern_at..].iter().all(|&byte| byte == b'*')
}

/// How many bytes of the pattern stand for this byte, if they do.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', rest @ ..] => class(rest, byte).map(|length| length + 1),
        [first, ..] => (*first == byte).then_some(1),
    }
}

/// As [`one`], behind the `[` of a class. Without its `]` the class goes on to the end.
fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let is_inverted = pattern.first() == Some(&b'^');
    let (mut at, mut is_in) = (usize::from(is_inverted), false);
    loop {
        match &pattern[at..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                is_in |= *escaped == byte;
                at += 2;
            }
            [from, b'-', to, ..] => {
                is_in |= (*from.min(to)..=*from.max(to)).contains(&byte);
                at += 3;
            }
            [single, ..] => {
                is_in |= *single == byte;
                at += 1;
            }
        }
    }
    (is_in != is_inverted).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, wanted) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hxllo", false),
            ("[\\]]", "]", true),
            ("[a", "a", true),
            ("a\\", "a\\", true),
            ("coupon:*", "coupon:spring", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), wanted, "{pattern} {text}");
        }
    }

    /// By trying everything.
    fn slow(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], _) => text.is_empty(),
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|skipped| slow(rest, &text[skipped..])),
            (_, []) => false,
            (_, [first, rest @ ..]) => {
                one(pattern, *first).is_some_and(|length| slow(&pattern[length..], rest))
            }
        }
    }

    proptest! {
        #[test]
        fn stars_are_tried_enough(pattern in "[ab*?]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), slow(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
