//! Short texts, each of a type with a rule: a value of it exists only if the rule allows its text. And numbers with their nouns.

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

/// Returns a number with its noun, in the plural unless the number is 1: `1 entry`, `2 entries`.
pub fn counted(count: u64, noun: &str) -> String {
    match noun.strip_suffix('y') {
        _ if count == 1 => format!("{count} {noun}"),
        Some(stem) => format!("{count} {stem}ies"),
        None => format!("{count} {noun}s"),
    }
}
