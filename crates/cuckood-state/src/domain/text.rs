//! Short texts, each of a type with a rule: a value of it exists only if the rule allows its text. Invisible characters, and numbers with
//! their nouns.

/// Defines the type of a text: its name, what an error message expects, and its rule.
macro_rules! text_type {
    ($(#[$attribute:meta])* $name:ident, $expected:literal, $is_valid:expr) => {
        $(#[$attribute])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[derive(derive_more::AsRef, derive_more::Display, serde::Serialize, serde::Deserialize)]
        #[as_ref(str)]
        #[serde(try_from = "Box<str>")]
        pub struct $name(Box<str>);

        impl TryFrom<Box<str>> for $name {
            type Error = $crate::domain::Invalid;

            fn try_from(text: Box<str>) -> Result<Self, Self::Error> {
                let is_valid: fn(&str) -> bool = $is_valid;
                is_valid(&text).then_some(Self(text)).ok_or($crate::domain::Invalid($expected))
            }
        }

        impl $name {
            /// Parses it.
            ///
            /// # Errors
            /// [`Invalid`]($crate::domain::Invalid).
            pub fn new(text: &str) -> Result<Self, $crate::domain::Invalid> {
                Box::<str>::from(text).try_into()
            }

            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
    };
}

pub(super) use text_type;

/// Returns whether a character is displayed as nothing, or changes the direction of its neighbors: the Unicode property
/// `Default_Ignorable_Code_Point` without variation selectors, which change the character before them, and the interlinear annotations.
pub fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e00ff}' | '\u{e01f0}'..='\u{e0fff}'
    )
}

/// Returns a number with its noun, in the plural unless the number is 1: `1 entry`, `2 entries`.
pub fn counted(count: u64, noun: &str) -> String {
    match noun.strip_suffix('y') {
        _ if count == 1 => format!("{count} {noun}"),
        Some(stem) => format!("{count} {stem}ies"),
        None => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variation_selector_is_visible() {
        assert!(
            "\u{200b}\u{200d}\u{202e}\u{2066}\u{180e}\u{3164}\u{fff9}\u{e0001}"
                .chars()
                .all(is_invisible)
        );
        // Emoji presentation, and variants of Japanese and Mongolian characters.
        assert!(!"a é\u{301}春\u{a0}\u{fe0f}\u{e0100}\u{180b}".contains(is_invisible));
    }
}
