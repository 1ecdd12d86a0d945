//! The costs of a whole service, for `cuckood plan --workload FILE`: memory, disk space, startup time, and bandwidth of log and snapshots.

use crate::engine::{self, REPLACEMENT_QUEUE_BYTES, SnapshotOptions, disk_bytes, startup_seconds};
use cuckood_filter::{Growth, Mode};
use cuckood_state::domain::{Normalization, Sizing, Spec, Supply};
use serde::{Deserialize, Serialize};
use std::num::NonZero;

/// Bytes that a campaign or coupon takes in addition to its table.
const FILTER_BYTES: u64 = 1_400;

/// Bytes of a retained redemption with a reference of 20 bytes in memory, and of one in the log with its event.
const REDEMPTION_BYTES: u64 = 132;
const REDEMPTION_LOG_BYTES: u64 = 170;

/// Upper bound of the bytes of log per added item: a request with a single item.
const ADD_LOG_BYTES: u64 = 60;

/// Contents and load of a service.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Redemptions per second.
    #[serde(default)]
    pub redemptions_per_second: u64,
    /// How long redemptions are retained, in seconds.
    #[serde(default)]
    pub redemptions_retention_seconds: u64,
    /// Items that requests add per second.
    #[serde(default)]
    pub adds_per_second: u64,
    /// `snapshots.log_max`, in bytes; `None` for its default.
    pub log_max_bytes: Option<NonZero<u64>>,
    /// Campaigns and coupons.
    pub filters: Vec<FilterGroup>,
}

/// Campaigns or coupons of the same size.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterGroup {
    /// Number of filters.
    #[serde(default = "one")]
    pub count: u64,
    /// Items of each.
    pub capacity: u64,
    /// The false-positive rate of campaigns; none for coupons.
    pub error_rate: Option<f64>,
}

fn one() -> u64 {
    1
}

/// Cost of a service.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct WorkloadPlan {
    /// Campaigns and coupons.
    pub filters: u64,
    /// Memory of their tables.
    pub tables_bytes: u64,
    /// Memory of the retained redemptions.
    pub redemptions_bytes: u64,
    /// Memory of everything, while the largest filter is replaced.
    pub peak_bytes: u64,
    /// Disk space for snapshots and log, at most.
    pub disk_bytes: u64,
    /// Upper bound of a start with two processors.
    pub startup_seconds: f64,
    /// Log and events written per second.
    pub log_bytes_per_second: u64,
    /// Time between two snapshots; `None` without writes.
    pub snapshot_every_seconds: Option<f64>,
    /// Snapshots written per second, at most: if every table has changed.
    pub snapshot_bytes_per_second: u64,
}

/// Plans a whole service.
///
/// # Errors
/// A message that names the field, if no layout fits a filter.
pub fn plan(workload: &Workload) -> anyhow::Result<WorkloadPlan> {
    let mut all = WorkloadPlan::default();
    let mut largest = 0;
    for &FilterGroup {
        count,
        capacity,
        error_rate,
    } in &workload.filters
    {
        let sizing = error_rate.map_or(Sizing::Exact, Sizing::ErrorRate);
        let mode = if error_rate.is_some() {
            Mode::Compact
        } else {
            Mode::Strict
        };
        let growth = Growth::Auto;
        let forget = None;
        let spec = Spec {
            capacity,
            mode,
            growth,
            sizing,
            normalization: Normalization::Exact,
            supply: Supply::default(),
            forget,
        };
        let table_bytes = engine::plan(&spec)?.memory_bytes;
        all.filters = all.filters.saturating_add(count);
        all.tables_bytes = all
            .tables_bytes
            .saturating_add(count.saturating_mul(table_bytes));
        largest = largest.max(table_bytes);
    }
    let Workload {
        redemptions_per_second,
        redemptions_retention_seconds,
        adds_per_second,
        ..
    } = *workload;
    let retained = redemptions_per_second.saturating_mul(redemptions_retention_seconds);
    all.redemptions_bytes = retained.saturating_mul(REDEMPTION_BYTES);
    let parts = [
        all.tables_bytes,
        all.redemptions_bytes,
        all.filters.saturating_mul(FILTER_BYTES),
    ];
    let state_bytes = parts.into_iter().fold(0, u64::saturating_add);
    all.peak_bytes = state_bytes.saturating_add(largest + REPLACEMENT_QUEUE_BYTES);
    let snapshots = SnapshotOptions::default();
    let log_max_bytes = workload
        .log_max_bytes
        .map_or(snapshots.log_bytes_max, NonZero::get);
    let log_bytes = state_bytes.max(snapshots.log_bytes_min).min(log_max_bytes);
    all.disk_bytes = disk_bytes(state_bytes, log_bytes);
    all.startup_seconds = startup_seconds(state_bytes, log_bytes);
    let redemptions = redemptions_per_second.saturating_mul(REDEMPTION_LOG_BYTES);
    all.log_bytes_per_second =
        redemptions.saturating_add(adds_per_second.saturating_mul(ADD_LOG_BYTES));
    let every_seconds = log_bytes as f64 / all.log_bytes_per_second as f64;
    all.snapshot_every_seconds = every_seconds.is_finite().then_some(every_seconds);
    all.snapshot_bytes_per_second = (state_bytes as f64 / every_seconds) as u64;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of docs/SCALE.md.
    #[test]
    fn workload_of_docs_costs_what_docs_say() {
        let text = include_str!("../../docs/SCALE.md");
        let (_, example) = text.split_once("```toml\n").unwrap();
        let (example, rest) = example.split_once("```\n").unwrap();
        let plan = plan(&toml::from_str(example).unwrap()).unwrap();
        for bytes in [
            plan.tables_bytes,
            plan.redemptions_bytes,
            plan.peak_bytes,
            plan.disk_bytes,
        ] {
            assert!(rest.contains(&format!("({bytes} bytes)")), "{plan:?}");
        }
    }
}
