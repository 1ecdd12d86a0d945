//! A redemption: one use of one code, under one reference.

use super::text::text_type;
use super::{Invalid, Timestamp};
use cuckood_filter::Digest;
use derive_more::{Debug, Display};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// The longest time for which a code can be held, in seconds: one week.
pub const HOLD_SECONDS_MAX: u64 = 604_800;

/// The longest reference, in bytes.
pub const REFERENCE_BYTES_MAX: usize = 128;

/// A redemption's identity: 128 random bits, which can't be guessed. Written as 32 hexadecimal digits.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Display, Serialize, Deserialize,
)]
#[debug("{}", hex::encode(_0))]
#[display("{:032x}", u128::from_be_bytes(*_0))]
pub struct RedemptionId(pub [u8; 16]);

impl FromStr for RedemptionId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let mut bytes = [0; 16];
        let parsed = hex::decode_to_slice(text, &mut bytes);
        // An id has only one spelling.
        if parsed.is_err() || text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(Invalid("the ID of a redemption: 32 hexadecimal digits"));
        }
        Ok(Self(bytes))
    }
}

/// The longest name of a customer, in bytes.
pub const CUSTOMER_BYTES_MAX: usize = 512;

text_type! {
    /// The caller's own id of a redemption, such as an order number: 1 to 128 bytes, stored as given.
    Reference, "a reference of 1 to 128 bytes", |text| (1..=REFERENCE_BYTES_MAX).contains(&text.len())
}

/// The status of a redemption.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "utoipa", schema(as = RedemptionStatus))]
pub enum RedemptionStatus {
    /// The code is held until `expires_at`.
    Held,
    /// The code is redeemed.
    Redeemed,
    /// The redemption was cancelled. The code is available again, unless `released` is false.
    Cancelled,
    /// The hold expired. The code is available again, unless `released` is false.
    Expired,
}

/// One use of one code.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Redemption {
    /// Its identity.
    pub id: RedemptionId,
    /// The digest of the code.
    pub digest: Digest,
    /// The caller's id.
    pub reference: Reference,
    /// Its status.
    pub status: RedemptionStatus,
    /// When it was first requested.
    pub created_at: Timestamp,
    /// When its status last changed. It is forgotten once its retention has passed since then.
    pub changed_at: Timestamp,
    /// When the hold expires or expired; `None` if it never was a hold, or once it is redeemed.
    pub expires_at: Option<Timestamp>,
    /// When its code was redeemed; retained if it is cancelled later.
    pub redeemed_at: Option<Timestamp>,
    /// What not every redemption has.
    pub details: RedemptionDetails,
}

/// What not every redemption has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(from = "DetailsTag", into = "DetailsTag")]
pub struct RedemptionDetails {
    /// In an open pool: its number, which no other redemption has while this one is held or redeemed. Kept when it ends.
    pub ordinal: Option<u64>,
    /// The digest of the customer, if the request named one.
    pub customer: Option<Digest>,
    /// It ended, and its code did not become available by that.
    pub is_unreleased: bool,
}

/// The details as they are encoded. Version 1 of entries has the first two, with the bytes of an `Option<u64>`.
#[derive(Serialize, Deserialize)]
enum DetailsTag {
    None,
    Ordinal(u64),
    More {
        ordinal: Option<u64>,
        customer: Option<Digest>,
        is_unreleased: bool,
    },
}

impl From<DetailsTag> for RedemptionDetails {
    fn from(tag: DetailsTag) -> Self {
        match tag {
            DetailsTag::None => Self::default(),
            DetailsTag::Ordinal(ordinal) => Self {
                ordinal: Some(ordinal),
                ..Self::default()
            },
            DetailsTag::More {
                ordinal,
                customer,
                is_unreleased,
            } => Self {
                ordinal,
                customer,
                is_unreleased,
            },
        }
    }
}

impl From<RedemptionDetails> for DetailsTag {
    fn from(details: RedemptionDetails) -> Self {
        match details {
            RedemptionDetails {
                ordinal: None,
                customer: None,
                is_unreleased: false,
            } => Self::None,
            RedemptionDetails {
                ordinal: Some(ordinal),
                customer: None,
                is_unreleased: false,
            } => Self::Ordinal(ordinal),
            RedemptionDetails {
                ordinal,
                customer,
                is_unreleased,
            } => Self::More {
                ordinal,
                customer,
                is_unreleased,
            },
        }
    }
}

impl RedemptionDetails {
    /// Whether version 1 of entries does not have them.
    pub fn need_uses(&self) -> bool {
        self.customer.is_some() || self.is_unreleased
    }
}

impl Redemption {
    /// Whether it is held or redeemed. No other redemption of its code is, or none under its reference if codes have several uses.
    pub fn stands(&self) -> bool {
        matches!(
            self.status,
            RedemptionStatus::Held | RedemptionStatus::Redeemed
        )
    }

    /// When it expires; `None` unless it is a hold.
    pub fn held_until(&self) -> Option<Timestamp> {
        self.expires_at
            .filter(|_| self.status == RedemptionStatus::Held)
    }

    /// Whether it is a hold that has expired at `now`, even if the log has no entry about that yet.
    pub fn has_run_out(&self, now: Timestamp) -> bool {
        self.held_until().is_some_and(|at| at <= now)
    }

    /// Whether its retention is over at `now`: that many seconds have passed since its last change, or since its hold expired. It
    /// does not matter when the log recorded the expiry.
    pub fn is_past_retention(&self, now: Timestamp, retention_seconds: u64) -> bool {
        let last = match (self.status, self.expires_at) {
            (RedemptionStatus::Held, Some(expires_at)) => expires_at,
            (RedemptionStatus::Held, None) => return false,
            (RedemptionStatus::Expired, Some(expires_at)) => expires_at.min(self.changed_at),
            _ => self.changed_at,
        };
        last.plus_seconds(retention_seconds) <= now
    }

    /// The redemption as a reader at `now` should see it: a hold past its time is expired.
    pub fn seen_at(mut self, now: Timestamp) -> Self {
        if self.has_run_out(now) {
            self.status = RedemptionStatus::Expired;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_has_one_spelling() {
        let id = RedemptionId([0xab; 16]);
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in [
            "",
            "ab",
            &"AB".repeat(16),
            &"+b".repeat(16),
            &"ab".repeat(17),
        ] {
            assert_eq!(
                bad.parse::<RedemptionId>(),
                Err(Invalid("the ID of a redemption: 32 hexadecimal digits")),
                "{bad}"
            );
        }
    }

    #[test]
    fn decoded_reference_obeys_constructor() {
        for (length, is_possible) in [
            (0, false),
            (1, true),
            (128, true),
            (129, false),
            (5_000, false),
        ] {
            let bytes = postcard::to_stdvec(&"r".repeat(length)).unwrap();
            assert_eq!(
                postcard::from_bytes::<Reference>(&bytes).is_ok(),
                is_possible,
                "{length}"
            );
        }
    }

    #[test]
    fn reference_length_is_limited() {
        assert!(Reference::new("").is_err());
        assert!(Reference::new(&"r".repeat(128)).is_ok());
        assert!(Reference::new(&"r".repeat(129)).is_err());
    }
}
