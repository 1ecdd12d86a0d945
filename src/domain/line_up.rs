//! A line-up: campaigns in order of preference, and the users who are left out of them. An eligibility request asks one.

use super::Name;
use serde::{Deserialize, Serialize};

/// The most campaigns in a line-up.
pub const CAMPAIGNS_MAX: usize = 256;

/// The most conditions in a line-up.
pub const UNLESS_MAX: usize = 32;

/// Memory that all line-ups may take together, in bytes.
pub const LINE_UPS_BYTES_MAX: u64 = 16 << 20;

/// Memory of a line-up besides its names, and of a name besides its text, in bytes. Rounded up.
const LINE_UP_BYTES: u64 = 256;
const NAME_BYTES: u64 = 48;

/// Campaigns to choose from. `N` is how names are kept: requests borrow them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LineUp<N = Name> {
    /// In order of preference; 1 to [`CAMPAIGNS_MAX`].
    pub campaigns: Vec<N>,
    /// Who is left out; at most [`UNLESS_MAX`].
    pub unless: Vec<Unless<N>>,
    /// How many campaigns are selected at most.
    pub limit: u32,
}

/// Leaves a user out where another campaign holds them: an exclusion list or, with more than one copy, a frequency cap.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unless<N = Name> {
    /// The campaign that is looked at. While it is unknown or inactive it leaves nobody out.
    pub campaign: N,
    /// How many copies of the user it must hold.
    pub at_least: u32,
    /// The campaign that the user is left out of; `None` for all.
    pub only_for: Option<N>,
}

impl LineUp {
    /// Every name in it.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        let conditions =
            self.unless.iter().flat_map(|unless| [Some(&unless.campaign), unless.only_for.as_ref()]);
        self.campaigns.iter().chain(conditions.flatten())
    }

    /// Memory that it takes under this name, in bytes, approximately.
    pub fn memory_bytes(&self, name: &Name) -> u64 {
        let names = self.names().chain([name]);
        LINE_UP_BYTES + names.map(|name| NAME_BYTES + name.as_str().len() as u64).sum::<u64>()
    }
}

impl<N: AsRef<str>> Unless<N> {
    /// Whether it can leave users out of this campaign.
    pub fn concerns(&self, campaign: &str) -> bool {
        self.only_for.as_ref().is_none_or(|only| only.as_ref() == campaign)
    }
}
