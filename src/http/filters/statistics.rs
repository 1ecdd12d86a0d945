//! `GET …/statistics`: the changes of a campaign's or coupon's items, per day and per hour.

use crate::http::call::{Call, Read};
use crate::http::request::query;
use crate::http::response::{HandlerResult, Problem, success};
use axum::extract::Request;
use cuckood_state::FilterView;
use cuckood_state::domain::statistics::Unit;
use cuckood_state::domain::{
    ChangeCounts, CountedPeriod, HourRetention, Kind, LOCAL_DAYS_MAX, Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::{IntoParams, ToSchema};

/// The rules of counting.
pub(super) const DESCRIPTION: &str = "The counts are part of the log's state, so every node returns the same ones. The time is the log's, in \
    UTC: `days` and `hours` end with the last write to the service. An import with `mode=replace` counts what it has added when it is \
    swapped in; the items that it replaces don't count as removed. A hold counts as expired when the log notices it. The CF.* commands \
    count as the requests that they stand for. Not counted: dry runs, repeated requests, users that a campaign forgets, and codes that \
    redemptions add to an open pool. An image includes the counts. A campaign or coupon that is deleted and created again starts without \
    any. If the log's time is turned back, later counts move to the present day and hour.";

/// Which days to return.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StatisticsQuery {
    /// The last days to return, today included: at most 400, or 35 with `offset_minutes`.
    #[param(minimum = 1, maximum = 400, default = 30)]
    days: Option<u64>,
    /// The offset of local time from UTC, in minutes: whole hours. Without it, days are those of UTC.
    #[param(minimum = -720, maximum = 840, multiple_of = 60, example = 480)]
    offset_minutes: Option<i32>,
}

/// The default number of days.
const DAYS_DEFAULT: u64 = 30;

/// Maximum number of days.
const DAYS_MAX: u64 = Unit::Day.periods_max(HourRetention::TwoDays);

/// The last hours that are returned.
const HOURS_RETURNED: u64 = 48;

/// Counts per day and per hour. Days and hours without changes are omitted.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[schema(as = Statistics, example = json!({
    "days": [{"date": "2026-11-23", "added": 120, "removed": 3, "imported": 50_000}],
    "hours": [{"hour": "2026-11-23T14:00:00.000Z", "added": 120, "removed": 3, "imported": 50_000}]
}))]
pub(super) struct StatisticsResponse {
    /// In order, the oldest first.
    #[schema(max_items = 400)]
    days: Vec<DayCounts>,
    /// The same counts for the last 48 hours, whatever `days` is.
    #[schema(max_items = 48)]
    hours: Vec<HourCounts>,
    /// With `offset_minutes`: the first date from which on all hours are counted. Counts of earlier dates lack some.
    #[schema(format = Date, example = "2026-10-20")]
    complete_from: Option<String>,
}

/// One day.
#[derive(Serialize, ToSchema)]
struct DayCounts {
    /// The day in UTC, or the local one with `offset_minutes`.
    #[schema(format = Date, example = "2026-11-23")]
    date: String,
    #[serde(flatten)]
    counts: PeriodCounts,
}

/// One hour.
#[derive(Serialize, ToSchema)]
struct HourCounts {
    /// When the hour begins.
    hour: Timestamp,
    #[serde(flatten)]
    counts: PeriodCounts,
}

/// The counts of one day or hour.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
struct PeriodCounts {
    /// Items added by requests, including generated and revived codes and the new items of replacements.
    added: u64,
    /// Copies removed by requests: remove, replace and clear.
    removed: u64,
    /// Items added by imports.
    imported: u64,
    /// Coupons only: codes redeemed, immediately or by confirming a hold.
    redeemed: Option<u64>,
    /// Coupons only: codes held. Extending a hold doesn't count.
    held: Option<u64>,
    /// Coupons only: holds and redemptions cancelled, including those of removed and revived codes.
    cancelled: Option<u64>,
    /// Coupons only: holds expired.
    expired: Option<u64>,
}

impl PeriodCounts {
    fn new(
        [added, removed, imported, redeemed, held, cancelled, expired]: ChangeCounts,
        kind: Kind,
    ) -> Self {
        let of_coupon = |count| (kind == Kind::Coupon).then_some(count);
        let [redeemed, held, cancelled, expired] =
            [redeemed, held, cancelled, expired].map(of_coupon);
        Self {
            added,
            removed,
            imported,
            redeemed,
            held,
            cancelled,
            expired,
        }
    }
}

/// The date of a day, from its number since 1970-01-01.
fn date(day: u64) -> String {
    let begin = Timestamp(day.saturating_mul(Unit::Day.length()));
    let mut date = begin.to_string();
    date.truncate("2026-11-23".len());
    date
}

impl StatisticsQuery {
    /// Returns the offset of local time in hours, if the query has one.
    ///
    /// # Errors
    /// 422.
    fn offset_hours(&self) -> Result<Option<i64>, Problem> {
        let Some(minutes) = self.offset_minutes else {
            return Ok(None);
        };
        if minutes % 60 != 0 || !(-720..=840).contains(&minutes) {
            let detail = "expected whole hours in minutes, from -720 to 840";
            return Err(Problem::invalid_at("/offset_minutes", detail));
        }
        Ok(Some(i64::from(minutes / 60)))
    }
}

impl StatisticsResponse {
    /// The counts of days in UTC.
    fn of_days(view: &FilterView, days: u64, now: Timestamp) -> Self {
        let found = view.statistics(Unit::Day, days, now).into_iter();
        let day = |(begin, counts)| DayCounts {
            date: date(Unit::Day.number_at(begin)),
            counts: PeriodCounts::new(counts, view.kind),
        };
        Self {
            days: found.map(day).collect(),
            hours: hours(view, now),
            complete_from: None,
        }
    }

    /// The counts of local days.
    fn of_local_days(view: &FilterView, offset_hours: i64, days: u64, now: Timestamp) -> Self {
        let found = view.local_days(offset_hours, days, now);
        let day = |day: CountedPeriod| DayCounts {
            date: date(day.number),
            counts: PeriodCounts::new(day.counts, view.kind),
        };
        Self {
            days: found.days.into_iter().map(day).collect(),
            hours: hours(view, now),
            complete_from: Some(date(found.complete_from)),
        }
    }
}

/// The counts of the last hours.
fn hours(view: &FilterView, now: Timestamp) -> Vec<HourCounts> {
    let found = view.statistics(Unit::Hour, HOURS_RETURNED, now).into_iter();
    let hour = |(hour, counts)| HourCounts {
        hour,
        counts: PeriodCounts::new(counts, view.kind),
    };
    found.map(hour).collect()
}

/// Shows the statistics of a filter.
pub(super) fn get(call: &Call<Read>, kind: Kind, name: &str, request: &Request) -> HandlerResult {
    let view = call.filter(kind, name)?;
    let query = query::parse::<StatisticsQuery>(request)?;
    let offset_hours = query.offset_hours()?;
    let days = query.days.unwrap_or(DAYS_DEFAULT);
    let days_max = match offset_hours {
        Some(_) => LOCAL_DAYS_MAX,
        None => DAYS_MAX,
    };
    Problem::unless_within("/days", days, 1..=days_max)?;
    let now = call.api.engine.logged_at();
    let response = match offset_hours {
        Some(offset) => StatisticsResponse::of_local_days(&view, offset, days, now),
        None => StatisticsResponse::of_days(&view, days, now),
    };
    Ok(success::ok(&response))
}
