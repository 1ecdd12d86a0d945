//! Titles and labels of campaigns, coupons and line-ups. Both are for people, and not part of the spec.

use super::text::{is_invisible, text_type};
use super::{Invalid, NAME_BYTES_MAX, Name};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Maximum size of a title, in bytes.
pub const TITLE_BYTES_MAX: usize = 200;

/// Maximum number of labels of a campaign, coupon or line-up.
pub const LABELS_MAX: usize = 16;

/// Maximum size of a label's value, in bytes.
pub const LABEL_VALUE_BYTES_MAX: usize = 64;

/// Maximum size of encoded [`Annotations`], in bytes. The prefix of a string has one byte below 128 bytes, otherwise two.
pub const ANNOTATIONS_BYTES_MAX: usize =
    2 + TITLE_BYTES_MAX + 1 + LABELS_MAX * (2 + NAME_BYTES_MAX + 1 + LABEL_VALUE_BYTES_MAX);

/// Memory of labels besides their strings, and of each label, in bytes. Rounded up.
const LABELS_BYTES: u64 = 512;
const LABEL_BYTES: u64 = 96;

/// Returns whether a string is short enough and has no control characters.
fn is_text(text: &str, bytes_max: usize) -> bool {
    text.len() <= bytes_max && !text.contains(char::is_control)
}

text_type! {
    /// A title in any language; empty for none.
    #[derive(Default)]
    Title, "a title: at most 200 bytes, without control characters", |text| is_text(text, TITLE_BYTES_MAX)
}

impl Title {
    /// Returns whether there is no title.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

text_type! {
    /// The value of a label, in any language; it can be empty.
    #[derive(Default)]
    LabelValue, "a label's value: at most 64 bytes, without control characters",
    |text| is_text(text, LABEL_VALUE_BYTES_MAX)
}

/// A label that filters a list, written as `key=value`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "Box<str>")]
pub struct Label {
    key: Name,
    value: LabelValue,
}

impl TryFrom<Box<str>> for Label {
    type Error = Invalid;

    fn try_from(text: Box<str>) -> Result<Self, Invalid> {
        let (key, value) = text
            .split_once('=')
            .ok_or(Invalid("a label such as team=shop"))?;
        Ok(Self {
            key: Name::new(key)?,
            value: LabelValue::new(value)?,
        })
    }
}

/// At most `MAX` labels, or changes of labels.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Labels<V = LabelValue, const MAX: usize = LABELS_MAX>(BTreeMap<Name, V>);

/// Maximum number of changed labels: a change can replace all of them by others.
const LABEL_CHANGES_MAX: usize = 2 * LABELS_MAX;

/// Labels to set or, without a value, to remove.
pub type LabelChanges<V = Option<LabelValue>> = Labels<V, LABEL_CHANGES_MAX>;

impl<V, const MAX: usize> Labels<V, MAX> {
    /// Returns whether there are no labels.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replaces the values.
    pub fn map<W>(self, change: impl Fn(V) -> W) -> Labels<W, MAX> {
        Labels(
            self.0
                .into_iter()
                .map(|(key, value)| (key, change(value)))
                .collect(),
        )
    }

    /// The memory of the labels that have a value of some length, in bytes.
    fn memory_bytes(&self, length: impl Fn(&V) -> Option<usize>) -> u64 {
        let labels = self
            .0
            .iter()
            .filter_map(|(key, value)| Some(key.as_str().len() + length(value)?));
        let bytes = labels
            .map(|strings| LABEL_BYTES + strings as u64)
            .sum::<u64>();
        if bytes == 0 { 0 } else { LABELS_BYTES + bytes }
    }
}

impl Labels {
    /// Returns whether it has this key with this value.
    pub fn contains(&self, Label { key, value }: &Label) -> bool {
        self.0.get(key) == Some(value)
    }
}

impl<'de, V: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Labels<V, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self(BTreeMap::new()))
    }
}

/// Adds the entries of a map to the labels.
impl<'de, V: Deserialize<'de>, const MAX: usize> Visitor<'de> for Labels<V, MAX> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some((key, value)) = map.next_entry()? {
            if self.0.len() == MAX || self.0.insert(key, value).is_some() {
                return Err(A::Error::custom(format_args!(
                    "expected at most {MAX} labels, each key once"
                )));
            }
        }
        Ok(self)
    }
}

/// The title and labels of a campaign, coupon or line-up.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Annotations {
    /// Its title.
    pub title: Title,
    /// Its labels.
    pub labels: Labels,
}

/// A change of [`Annotations`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AnnotationsChange {
    /// The new title; `None` keeps it.
    pub title: Option<Title>,
    /// Whether all existing labels are removed first.
    pub replaces_labels: bool,
    /// The changed labels.
    pub labels: LabelChanges,
}

impl Annotations {
    /// Returns the annotations after a change; `None` if there would be too many labels.
    pub fn changed(&self, change: &AnnotationsChange) -> Option<Self> {
        let title = change.title.as_ref().unwrap_or(&self.title).clone();
        let mut labels = if change.replaces_labels {
            BTreeMap::new()
        } else {
            self.labels.0.clone()
        };
        for (key, value) in &change.labels.0 {
            match value {
                Some(value) => labels.insert(key.clone(), value.clone()),
                None => labels.remove(key),
            };
        }
        (labels.len() <= LABELS_MAX).then_some(Self {
            title,
            labels: Labels(labels),
        })
    }

    /// Returns the approximate memory that they take, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.title.0.len() as u64 + self.labels.memory_bytes(|value| Some(value.0.len()))
    }
}

impl AnnotationsChange {
    /// Sets what is given and keeps the rest.
    pub fn set(title: Option<Title>, labels: Option<Labels>) -> Self {
        let replaces_labels = labels.is_some();
        Self {
            title,
            replaces_labels,
            labels: Labels(labels.unwrap_or_default().map(Some).0),
        }
    }

    /// Returns the place of the first string with a hidden character, as a JSON pointer. Only new requests are checked: 0.1.0 has accepted
    /// such strings, so logs, snapshots and images contain them.
    pub fn hidden_at(&self) -> Option<String> {
        let title = self
            .title
            .as_ref()
            .filter(|title| title.0.contains(is_invisible));
        if title.is_some() {
            return Some("/title".to_owned());
        }
        let mut values = self
            .labels
            .0
            .iter()
            .filter_map(|(key, value)| Some((key, value.as_ref()?)));
        let (key, _) = values.find(|(_, value)| value.0.contains(is_invisible))?;
        Some(format!("/labels/{key}"))
    }

    /// Returns an upper bound of the memory that it adds, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let title = self.title.as_ref().map_or(0, |title| title.0.len());
        title as u64
            + self
                .labels
                .memory_bytes(|value| Some(value.as_ref()?.0.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn labels(count: usize) -> Labels {
        let all: serde_json::Map<_, _> = (0..count)
            .map(|number| (format!("k{number}"), json!("v")))
            .collect();
        serde_json::from_value(all.into()).unwrap()
    }

    #[test]
    fn decoded_value_obeys_constructor() {
        let title =
            |text: &str| postcard::from_bytes::<Title>(&postcard::to_stdvec(text).unwrap()).is_ok();
        for (text, is_possible) in [
            ("", true),
            ("春のセール", true),
            ("a\nb", false),
            ("\u{85}", false),
            ("a\u{0}", false),
        ] {
            assert_eq!(title(text), is_possible, "{text:?}");
        }
        assert!(title(&"é".repeat(100)) && !title(&"x".repeat(201)));
        // 0.1.0 has stored such titles.
        assert!(title("a\u{202e}b\u{200b}"));
        let many: BTreeMap<String, String> = (0..17)
            .map(|key| (format!("k{key:02}"), String::new()))
            .collect();
        let sixteen: BTreeMap<_, _> = many.iter().take(16).collect();
        assert!(postcard::from_bytes::<Labels>(&postcard::to_stdvec(&sixteen).unwrap()).is_ok());
        assert!(postcard::from_bytes::<Labels>(&postcard::to_stdvec(&many).unwrap()).is_err());
        for bad in [
            json!({"Team": "shop"}),
            json!({"team": "x".repeat(65)}),
            json!({"team": "\u{7}"}),
            json!({"team": 1}),
            json!(["team"]),
        ] {
            assert!(
                serde_json::from_value::<Labels>(bad.clone()).is_err(),
                "{bad}"
            );
        }
        assert!(serde_json::from_str::<Labels>(r#"{"team":"a","team":"b"}"#).is_err());
    }

    #[test]
    fn encoding_has_maximum_size() {
        let longest = (0..LABELS_MAX).map(|number| {
            let key = Name::new(&format!("{number:0>width$}", width = NAME_BYTES_MAX)).unwrap();
            (key, LabelValue("v".repeat(LABEL_VALUE_BYTES_MAX).into()))
        });
        let title = Title("t".repeat(TITLE_BYTES_MAX).into());
        let labels = Labels(longest.collect());
        let all = Annotations { title, labels };
        assert_eq!(
            postcard::to_stdvec(&all).unwrap().len(),
            ANNOTATIONS_BYTES_MAX
        );
    }

    #[test]
    fn change_sets_and_drops_and_never_exceeds_limit() {
        let full = Annotations::default()
            .changed(&AnnotationsChange::set(None, Some(labels(16))))
            .unwrap();
        let one = |key: &str, value: Option<&str>| {
            let labels = serde_json::from_value(json!({key: value})).unwrap();
            AnnotationsChange {
                labels,
                ..AnnotationsChange::default()
            }
        };
        assert_eq!(full.changed(&one("k16", Some("v"))), None);
        let fewer = full.changed(&one("k3", None)).unwrap();
        let label = |text: &str| Label::try_from(Box::<str>::from(text)).unwrap();
        assert!(full.labels.contains(&label("k3=v")) && !fewer.labels.contains(&label("k3=v")));
        let again = fewer.changed(&one("k4", Some("a=b"))).unwrap();
        assert!(again.labels.contains(&label("k4=a=b")) && !again.labels.contains(&label("k4=v")));
        let emptied = again
            .changed(&AnnotationsChange::set(None, Some(Labels::default())))
            .unwrap();
        assert_eq!(emptied, Annotations::default());
        // What frees memory succeeds when memory is short.
        assert_eq!(one("k3", None).memory_bytes(), 0);
        assert!(one("k3", Some("")).memory_bytes() > 0);
        assert_eq!(again.changed(&AnnotationsChange::default()), Some(again));
    }
}
