//! Names of campaigns and coupons, the ids that distinguish filters that have had the same name, and line-ups of campaigns.

use super::text::text_type;
use super::{FORMAT_FIRST, Meaning};
use derive_more::{Debug, Display};
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// Whether a filter is a campaign or a coupon. The two have separate name spaces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// Users who have seen an ad, or may see it.
    Campaign,
    /// Codes and their redemptions.
    Coupon,
}

impl Kind {
    /// The kind as text.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Campaign => "campaign",
            Kind::Coupon => "coupon",
        }
    }
}

text_type! {
    /// A name of the form `[a-z0-9][a-z0-9._-]{0,127}`.
    Name, "a name: 1 to 128 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit", Name::is_valid
}

impl Name {
    /// Whether a text is a name.
    pub fn is_valid(text: &str) -> bool {
        let bytes = text.as_bytes();
        let starts_well = bytes
            .first()
            .is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let goes_on_well = bytes.iter().all(|&b| {
            b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-')
        });
        starts_well && goes_on_well && bytes.len() <= NAME_BYTES_MAX
    }
}

/// A map by names can be searched for a text, which need not be a name.
impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// The identity of one filter, drawn at random when it is created and never reused. A command addresses the filter by this id. If
/// the filter is deleted and created again under the same name, an older command can't reach the new one: its digests were made
/// with another secret.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Display, Serialize, Deserialize,
)]
#[debug("{_0:016x}")]
#[display("{_0:016x}")]
#[serde(transparent)]
pub struct FilterId(pub u64);

impl FilterId {
    /// Returns the ID of a new filter, from random bytes. 0 is the ID of none.
    pub fn drawn(bytes: [u8; 8]) -> Self {
        Self(u64::from_le_bytes(bytes).max(1))
    }
}

/// The most campaigns in a line-up.
pub const CAMPAIGNS_MAX: usize = 256;

/// The most conditions in a line-up.
pub const UNLESS_MAX: usize = 32;

/// Memory that all line-ups may take together, in bytes.
pub const LINE_UPS_BYTES_MAX: u64 = 16 << 20;

/// Memory of a line-up besides its names, and of a name besides its text, in bytes. Rounded up.
const LINE_UP_BYTES: u64 = 256;
const NAME_BYTES: u64 = 48;

/// Campaigns to choose from. `N` is the type of names: requests borrow them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "N: Clone + Serialize"))]
pub struct LineUp<N = Name> {
    /// In order of preference; 1 to [`CAMPAIGNS_MAX`].
    pub campaigns: Vec<N>,
    /// Conditions that exclude users; at most [`UNLESS_MAX`].
    pub unless: Vec<Unless<N>>,
    /// How many campaigns are selected at most.
    pub limit: u32,
}

/// Leaves a user out where another campaign holds them: an exclusion list or, with more than one copy, a frequency cap.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "N: Clone + Serialize"))]
pub struct Unless<N = Name> {
    /// The other campaign.
    pub campaign: N,
    /// How many copies of the user it must hold.
    pub at_least: u32,
    /// Which campaigns users are left out of, and when.
    pub reach: UnlessReach<N>,
}

/// Which campaigns an exclusion leaves users out of, and what it does without its own campaign.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(
    from = "ReachTag<N>",
    into = "ReachTag<N>",
    bound(serialize = "N: Clone + Serialize")
)]
pub struct UnlessReach<N = Name> {
    /// The campaign that the user is left out of; `None` for all.
    pub only_for: Option<N>,
    /// If the other campaign is unknown or inactive, it excludes every user instead of none.
    pub is_required: bool,
}

/// The reach as it is encoded. Version 1 of entries has the first two, with the bytes of an `Option<N>`.
#[derive(Serialize, Deserialize)]
enum ReachTag<N> {
    All,
    Only(N),
    Required(Option<N>),
}

impl<N> From<ReachTag<N>> for UnlessReach<N> {
    fn from(tag: ReachTag<N>) -> Self {
        let is_required = matches!(tag, ReachTag::Required(_));
        let only_for = match tag {
            ReachTag::All | ReachTag::Required(None) => None,
            ReachTag::Only(campaign) | ReachTag::Required(Some(campaign)) => Some(campaign),
        };
        Self {
            only_for,
            is_required,
        }
    }
}

impl<N> From<UnlessReach<N>> for ReachTag<N> {
    fn from(reach: UnlessReach<N>) -> Self {
        match (reach.is_required, reach.only_for) {
            (true, only_for) => Self::Required(only_for),
            (false, Some(campaign)) => Self::Only(campaign),
            (false, None) => Self::All,
        }
    }
}

impl LineUp {
    /// Every name in it.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        let conditions = self
            .unless
            .iter()
            .flat_map(|unless| [Some(&unless.campaign), unless.reach.only_for.as_ref()]);
        self.campaigns.iter().chain(conditions.flatten())
    }

    /// Returns the version of entries that can express it.
    pub fn version(&self) -> u16 {
        if self.unless.iter().any(|unless| unless.reach.is_required) {
            Meaning::RequiredCampaigns.since()
        } else {
            FORMAT_FIRST
        }
    }

    /// Memory that it takes under this name, in bytes, approximately.
    pub fn memory_bytes(&self, name: &Name) -> u64 {
        let names = self.names().chain([name]);
        LINE_UP_BYTES
            + names
                .map(|name| NAME_BYTES + name.as_str().len() as u64)
                .sum::<u64>()
    }
}

impl<N: AsRef<str>> Unless<N> {
    /// Whether it can leave users out of this campaign.
    pub fn concerns(&self, campaign: &str) -> bool {
        self.reach
            .only_for
            .as_ref()
            .is_none_or(|only| only.as_ref() == campaign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_pattern() {
        for good in ["a", "0", "spring-sale_2026.v1", &"x".repeat(128)] {
            assert!(Name::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "-a",
            ".a",
            "_a",
            "A",
            "aB",
            "a b",
            "ä",
            "a/b",
            "a%20",
            &"x".repeat(129),
        ] {
            assert!(Name::new(bad).is_err(), "{bad}");
        }
    }
}
