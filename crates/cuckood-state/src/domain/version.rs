//! Versions of entries. An entry that an earlier build understands differently, or not at all, has a meaning of a later version.

/// The highest version of entries that this release understands. Entries that an earlier build does not understand are only written once
/// [`Command::Enable`](super::Command::Enable) with their version is in the log.
///
/// - 1: the first, of 0.1.0.
/// - 2: of 0.2.0; [`Meaning`] lists its differences.
pub const FORMAT_VERSION: u16 = 2;

/// The version of entries that needs no enabling.
pub const FORMAT_FIRST: u16 = 1;

/// The version of a later build, as which a test runs the real program.
#[cfg(feature = "testing")]
pub static LATER_VERSION: std::sync::OnceLock<u16> = std::sync::OnceLock::new();

/// The highest version of entries that this build understands.
pub fn understood_version() -> u16 {
    #[cfg(feature = "testing")]
    if let Some(&later) = LATER_VERSION.get() {
        return later;
    }
    FORMAT_VERSION
}

/// An effect of entries that depends on the enabled version: before it is enabled, outcomes and bytes equal those of the release before.
/// Meanings can be added to a version until its release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// A pair is only replaced if its new item can be stored, and says so otherwise.
    ExactReplacement,
    /// No insert copies more than a small table ([`GrowthRule::Paced`](cuckood_filter::GrowthRule::Paced)).
    PacedGrowth,
    /// The state stores which imports a clear or a replacement has overtaken ([`Import::is_overtaken`](super::Import::is_overtaken)), and
    /// rejects them.
    OvertakenImports,
    /// Statistics have the hours of 36 days instead of 48 hours ([`HourRetention`](super::HourRetention)).
    HoursForLocalDays,
    /// A held or redeemed code that is removed, cleared, or absent from a replacement leaves the pool. It does not come back when its use
    /// ends.
    Withdrawal,
    /// Codes may have several uses, and redemptions customers. A redemption may be cancelled without its use.
    Uses,
    /// A condition of a line-up may require its campaign.
    RequiredCampaigns,
    /// A filter may have any [`Normalization`](super::Normalization); before, coupons alone, and exact or ASCII.
    Spellings,
}

impl Meaning {
    /// Returns the version that enables it.
    pub fn since(self) -> u16 {
        match self {
            Meaning::ExactReplacement
            | Meaning::PacedGrowth
            | Meaning::OvertakenImports
            | Meaning::HoursForLocalDays
            | Meaning::Withdrawal
            | Meaning::Uses
            | Meaning::RequiredCampaigns
            | Meaning::Spellings => 2,
        }
    }
}
