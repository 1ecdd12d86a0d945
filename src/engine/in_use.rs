//! The guard of deletion: what a campaign or coupon is still used for. It protects an operator from a mistake, and nothing else depends on
//! it: HTTP and Redis requests ask before they submit the deletion.
//!
//! A coupon may have millions of redemptions, and line-ups may have millions of names. Both are read in steps, between which others run.

use super::Engine;
use cuckood_state::domain::{Kind, Name, RedemptionStatus, Timestamp, WindowPosition};
use cuckood_state::{FilterView, NamedLineUp, RedemptionQuery};
use std::fmt::{self, Display, Formatter};
use thiserror::Error;

/// Maximum number of reasons.
const REASONS_MAX: usize = 10;

/// Line-ups that are read in one step: a long one has 320 names.
const LINE_UPS_READ: usize = 16;

/// Maximum number of holds, and of redeemed redemptions, that are counted.
const COUNTED_MAX: usize = 1_000;

/// A reason against deleting a campaign or coupon.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum UseReason {
    /// A line-up names the campaign.
    #[error("line-up {0} names the campaign")]
    LineUp(Name),
    /// Line-ups that are not named: the caller may not see them, or they are too many.
    #[error("number of line-ups that name the campaign and are not listed: {0}")]
    OtherLineUps(usize),
    /// Codes of the coupon are held.
    #[error("codes are held: {0}")]
    Held(CappedCount),
    /// The coupon has not ended, and has redeemed redemptions within their retention.
    #[error("codes are redeemed, and the coupon has not ended: {0}")]
    Redeemed(CappedCount),
}

/// A count, and whether there are more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CappedCount {
    count: usize,
    has_more: bool,
}

impl Display for CappedCount {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let more = if self.has_more { " or more" } else { "" };
        write!(f, "{}{more}", self.count)
    }
}

impl Engine {
    /// Returns the reasons against deleting a campaign or coupon now, at most 10. Line-ups that `is_visible` rejects are counted, not named.
    pub async fn in_use(
        &self,
        filter: &FilterView,
        is_visible: impl Fn(&NamedLineUp) -> bool,
    ) -> Vec<UseReason> {
        match filter.kind {
            Kind::Campaign => self.line_ups_with(&filter.name, is_visible).await,
            Kind::Coupon => redemptions_of(filter, self.now()).await,
        }
    }

    /// Returns the line-ups that name a campaign.
    async fn line_ups_with(
        &self,
        campaign: &Name,
        is_visible: impl Fn(&NamedLineUp) -> bool,
    ) -> Vec<UseReason> {
        let mut reasons = Vec::new();
        let mut others = 0;
        let mut last: Option<Name> = None;
        loop {
            let read = self.view().list_line_ups("", last.as_ref(), LINE_UPS_READ);
            for found in &read {
                if !found.line_up.names().any(|name| name == campaign) {
                    continue;
                }
                if reasons.len() < REASONS_MAX && is_visible(found) {
                    reasons.push(UseReason::LineUp(found.name.clone()));
                } else {
                    others += 1;
                }
            }
            if read.len() < LINE_UPS_READ {
                break;
            }
            last = read.last().map(|found| found.name.clone());
            tokio::task::yield_now().await;
        }
        if others > 0 {
            if reasons.len() == REASONS_MAX {
                reasons.pop();
                others += 1;
            }
            reasons.push(UseReason::OtherLineUps(others));
        }
        reasons
    }
}

/// Returns the holds of a coupon, and its retained redeemed redemptions unless it has ended.
async fn redemptions_of(coupon: &FilterView, now: Timestamp) -> Vec<UseReason> {
    let mut reasons = Vec::new();
    let held = coupon.holds(now, COUNTED_MAX + 1);
    if held > 0 {
        reasons.push(UseReason::Held(CappedCount {
            count: held.min(COUNTED_MAX),
            has_more: held > COUNTED_MAX,
        }));
    }
    if coupon.window.position(now) == WindowPosition::After {
        return reasons;
    }
    let redeemed = RedemptionQuery {
        status: Some(RedemptionStatus::Redeemed),
        ..RedemptionQuery::default()
    };
    let mut after = None;
    loop {
        let page = coupon.redemptions(&redeemed, after, COUNTED_MAX, now);
        if !page.redemptions.is_empty() {
            reasons.push(UseReason::Redeemed(CappedCount {
                count: page.redemptions.len(),
                has_more: page.next.is_some(),
            }));
            return reasons;
        }
        if page.next.is_none() {
            return reasons;
        }
        after = page.next;
        tokio::task::yield_now().await;
    }
}
