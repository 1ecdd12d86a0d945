//! Metrics of the service's state and sizes, read when they are collected.

use super::filters::representation::error_rate_now;
use super::metrics::Figures;
use super::stopping::Stopping;
use crate::domain::{ImportState, Kind, Stats};
use crate::engine::imports::LiveImports;
use crate::engine::{Engine, FilterView, Status};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use std::sync::Arc;

/// Reads the engine when it is collected.
pub(super) struct StateFigures {
    pub(super) engine: Engine,
    pub(super) stopping: Stopping,
    pub(super) live_imports: LiveImports,
    /// Whether each filter has series of its own.
    pub(super) per_filter: bool,
}

impl fmt::Debug for StateFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateFigures").finish_non_exhaustive()
    }
}

impl Collector for StateFigures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut figures = Figures(encoder);
        self.readiness(&mut figures)?;
        self.room(&mut figures)?;
        let [campaigns, coupons] =
            [Kind::Campaign, Kind::Coupon].map(|kind| self.engine.list(kind, "", None, usize::MAX));
        let kinds = [("campaign", campaigns.len() as u64), ("coupon", coupons.len() as u64)];
        figures.gauges("filters", "Campaigns and coupons", "kind", kinds)?;
        figures.gauge("line_ups", "Line-ups", self.engine.info().line_ups)?;
        self.codes(&mut figures, &coupons)?;
        self.imports(&mut figures)?;
        if self.per_filter {
            self.filters(&mut figures, &[campaigns, coupons].concat())?;
        }
        Ok(())
    }
}

impl StateFigures {
    fn readiness(&self, figures: &mut Figures<'_>) -> fmt::Result {
        let now = match self.engine.status() {
            Status::Recovering(_) => "recovering",
            Status::Failed(_) => "failed",
            Status::Draining => "draining",
            Status::Ready if self.stopping.is_announced() => "draining",
            Status::Ready => "ready",
        };
        let is_ready = now == "ready" && self.engine.clock_unsure().is_none();
        figures.gauge("ready", "1 while /readyz is 200", i64::from(is_ready))?;
        let states = ["recovering", "ready", "draining", "failed"];
        let states = states.map(|state| (state, i64::from(state == now)));
        figures.gauges("state", "1 for the present state of the service", "state", states)?;
        let is_writable = is_ready && self.engine.writes_refused().is_none();
        figures.gauge("storage_writable", "1 while writes are accepted", i64::from(is_writable))
    }

    fn room(&self, figures: &mut Figures<'_>) -> fmt::Result {
        let info = self.engine.info();
        let storage = &info.storage;
        figures.gauge(
            "memory_limit_bytes",
            "The most memory for tables and records",
            info.memory_max_bytes,
        )?;
        figures.gauge("redemptions_kept", "Redemptions that are kept", info.redemptions)?;
        figures.gauge(
            "idempotency_records",
            "Stored answers to requests with an idempotency key",
            info.idempotency_records,
        )?;
        figures.gauge("idempotency_bytes", "Memory of stored answers", info.idempotency_bytes)?;
        figures.gauge(
            "idempotency_room_bytes",
            "The most memory for stored answers",
            info.idempotency_room_bytes,
        )?;
        figures.gauge(
            "storage_used_bytes",
            "Disk space that the data directory takes",
            storage.disk_bytes,
        )?;
        figures.gauge(
            "storage_free_bytes",
            "Free space on the disk of the data directory",
            storage.free_bytes,
        )?;
        let help = "Writes are refused while less disk space is free";
        figures.gauge("storage_free_min_bytes", help, info.storage_free_min_bytes)?;
        figures.counter("wal_written_bytes", "Bytes written to the log", storage.wal_bytes_written)?;
        figures.counter(
            "snapshot_written_bytes",
            "Bytes written to snapshots",
            storage.snapshot_bytes_written,
        )?;
        figures.gauge("queue_commands", "Commands waiting for the writer", info.queue_commands)?;
        figures.counter("holds_expired", "Holds that have expired", info.holds_expired)?;
        figures.gauge("events_kept", "Events that are kept", info.events.kept)?;
        figures.gauge("events_bytes", "Bytes of stored events", info.events.bytes)?;
        if let Some(at) = info.events.oldest_at {
            let help = "Time of the oldest event, since the epoch";
            figures.gauge("events_oldest_timestamp_seconds", help, at.0 as f64 / 1_000.0)?;
        }
        if let Some(at) = info.backup_at {
            let help = "Time of the last backup, since the epoch";
            figures.gauge("backup_timestamp_seconds", help, at.0 as f64 / 1_000.0)?;
        }
        if let Some(snapshot) = info.snapshot {
            let help = "Time of the newest snapshot, since the epoch";
            figures.gauge("snapshot_timestamp_seconds", help, snapshot.taken_at.0 as f64 / 1_000.0)?;
        }
        Ok(())
    }

    fn codes(&self, figures: &mut Figures<'_>, coupons: &[Arc<FilterView>]) -> fmt::Result {
        let mut codes = [("available", 0u64), ("held", 0), ("redeemed", 0)];
        for counts in coupons.iter().filter_map(|coupon| coupon.describe().stats.codes) {
            let counts = [counts.available, counts.held, counts.redeemed];
            codes.iter_mut().zip(counts).for_each(|((_, sum), count)| *sum += count);
        }
        figures.gauges("codes", "Codes of strict coupons by status", "status", codes)
    }

    fn imports(&self, figures: &mut Figures<'_>) -> fmt::Result {
        let mut states = [("running", 0u64), ("done", 0), ("failed", 0), ("interrupted", 0)];
        for import in self.engine.imports() {
            let at = match self.live_imports.corrected(&import).state {
                ImportState::Running => 0,
                ImportState::Done => 1,
                ImportState::Failed | ImportState::Guarded(_) | ImportState::Overtaken => 2,
                ImportState::Interrupted | ImportState::Stopped => 3,
            };
            states[at].1 += 1;
        }
        figures.gauges("imports", "Imports that are kept, by state", "state", states)
    }

    fn filters(&self, figures: &mut Figures<'_>, filters: &[Arc<FilterView>]) -> fmt::Result {
        let all: Vec<_> = filters.iter().map(|filter| (filter, filter.describe().stats)).collect();
        let mut each = |name: &str, help: &str, of: &dyn Fn(&Stats) -> f64| {
            let values = all.iter().map(|(filter, stats)| {
                let kind = match filter.kind {
                    Kind::Campaign => "campaign",
                    Kind::Coupon => "coupon",
                };
                ([("kind", kind), ("name", filter.name.as_str())], of(stats))
            });
            figures.labelled(name, help, values)
        };
        each("filter_items", "Items of a filter", &|stats| stats.items as f64)?;
        each("filter_load_ratio", "Items of a filter per slot", &|stats| {
            let slots: u64 = stats.segments.iter().map(|segment| segment.slots).sum();
            stats.items as f64 / slots.max(1) as f64
        })?;
        let help = "False-positive rate of a filter";
        each("filter_error_ratio", help, &|stats| error_rate_now(&stats.segments))?;
        each("filter_memory_bytes", "Memory of a filter", &|stats| stats.memory_bytes as f64)
    }
}
