//! What a campaign or coupon was asked to be, and what it is now.

use super::{FilterId, Kind, Name, Timestamp};
use crate::filter::{Growth, Mode};
use serde::{Deserialize, Serialize};

/// Where a filter's first table got its shape from.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Sizing {
    /// Compact: the smallest layout that keeps this false-positive rate.
    ErrorRate(f64),
    /// Compact: the caller's own choice.
    Layout {
        /// Bits of a fingerprint in the first segment.
        fingerprint_bits: u8,
        /// Slots a bucket.
        bucket_size: u8,
        /// Nodes of the breadth-first search before an insert gives up.
        max_search: u32,
    },
    /// Strict: a slot holds 62 bits of digest, whatever the capacity.
    Exact,
}

/// A campaign's or coupon's unchanging part.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Items that it holds before it grows (`auto`) or may refuse (`fixed`).
    pub capacity: u64,
    /// Compact or strict.
    pub mode: Mode,
    /// Whether it grows.
    pub growth: Growth,
    /// What its first table's shape follows from.
    pub sizing: Sizing,
    /// Items are trimmed and upper-cased (ASCII only) before they are hashed.
    pub ignore_case: bool,
}

impl Spec {
    /// The names of the fields in which two specs differ, as the API spells them.
    pub fn differences(&self, other: &Spec) -> Vec<&'static str> {
        let mut fields = Vec::new();
        let mut note = |differs: bool, field| {
            if differs {
                fields.push(field);
            }
        };
        note(self.capacity != other.capacity, "capacity");
        note(self.mode != other.mode, "mode");
        note(self.growth != other.growth, "growth");
        note(self.ignore_case != other.ignore_case, "ignore_case");
        match (&self.sizing, &other.sizing) {
            (a, b) if a == b => {}
            (Sizing::Exact, _) | (_, Sizing::Exact) => {}
            (Sizing::ErrorRate(_), Sizing::ErrorRate(_)) => note(true, "error_rate"),
            _ => note(true, "layout"),
        }
        fields
    }
}

/// When a campaign or coupon is active: from `starts_at`, until just before `ends_at`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Window {
    /// None: since ever.
    pub starts_at: Option<Timestamp>,
    /// None: for ever.
    pub ends_at: Option<Timestamp>,
}

impl Window {
    /// Whether `now` lies inside.
    pub fn contains(&self, now: Timestamp) -> bool {
        self.starts_at.is_none_or(|start| start <= now) && self.ends_at.is_none_or(|end| now < end)
    }

    /// Whether it ends after it begins.
    pub fn is_ordered(&self) -> bool {
        match (self.starts_at, self.ends_at) {
            (Some(start), Some(end)) => start < end,
            _ => true,
        }
    }
}

/// One table of a filter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SegmentStats {
    /// Items in it.
    pub items: u64,
    /// Items that it is meant to hold.
    pub capacity: u64,
    /// Slots in it.
    pub slots: u64,
    /// Bits of a fingerprint; 62 in a strict filter.
    pub fingerprint_bits: u8,
    /// Slots a bucket.
    pub bucket_size: u8,
}

/// How many codes are in which state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CodeCounts {
    /// May be redeemed.
    pub available: u64,
    /// Set aside.
    pub held: u64,
    /// Used.
    pub redeemed: u64,
}

/// A filter's figures at one moment; whole numbers only, since stored answers must be the same everywhere.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stats {
    /// Items in all segments.
    pub items: u64,
    /// Bytes of its tables.
    pub memory_bytes: u64,
    /// Oldest first.
    pub segments: Vec<SegmentStats>,
    /// Items added since its creation.
    pub adds: u64,
    /// Items removed since its creation.
    pub removes: u64,
    /// Strict filters: the codes by state.
    pub codes: Option<CodeCounts>,
}

/// A campaign or coupon as its owner sees it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Description {
    /// Its identity.
    pub id: FilterId,
    /// Campaign or coupon.
    pub kind: Kind,
    /// Its name.
    pub name: Name,
    /// What it was asked to be.
    pub spec: Spec,
    /// When it is active.
    pub window: Window,
    /// When it was created.
    pub created_at: Timestamp,
    /// Its figures.
    pub stats: Stats,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_includes_its_start_and_excludes_its_end() {
        let window = Window { starts_at: Some(Timestamp(10)), ends_at: Some(Timestamp(20)) };
        let inside: Vec<u64> = (8..22).filter(|&at| window.contains(Timestamp(at))).collect();
        assert_eq!(inside, (10..20).collect::<Vec<_>>());
        assert!(Window::default().contains(Timestamp(0)) && Window::default().contains(Timestamp::MAX));
    }
}
