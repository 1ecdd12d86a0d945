//! Metrics of the service's state and sizes, read when they are collected.

use super::filters::representation::error_rate_now;
use super::metrics::Figures;
use super::stopping::Stopping;
use crate::domain::{ImportState, Kind, Stats};
use crate::engine::imports::LiveImports;
use crate::engine::{Engine, FilterView, StateCounts, Status};
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
        self.cluster(&mut figures)?;
        let info = self.engine.info();
        let kinds = [("campaign", info.campaigns), ("coupon", info.coupons)];
        figures.gauges("filters", "Campaigns and coupons", "kind", kinds)?;
        figures.gauge("line_ups", "Line-ups", info.line_ups)?;
        let StateCounts { available, held, redeemed } = info.codes;
        let codes = [("available", available), ("held", held), ("redeemed", redeemed)];
        figures.gauges("codes", "Codes of strict coupons by status", "status", codes)?;
        self.imports(&mut figures)?;
        figures.gauge("images_loading", "Images of filters that are coming in", info.images_loading)?;
        if self.per_filter {
            let kinds = [Kind::Campaign, Kind::Coupon];
            let filters = kinds.map(|kind| self.engine.list(kind, "", None, usize::MAX)).concat();
            self.filters(&mut figures, &filters)?;
        }
        Ok(())
    }
}

impl StateFigures {
    fn readiness(&self, figures: &mut Figures<'_>) -> fmt::Result {
        let now = match self.engine.status() {
            Status::Recovering(_) => "recovering",
            Status::Failed(_) | Status::Panicked(_) => "failed",
            Status::Diverged(_) => "diverged",
            Status::Draining => "draining",
            Status::Ready if self.stopping.is_announced() => "draining",
            Status::Ready => "ready",
        };
        let is_ready =
            now == "ready" && self.engine.clock_unsure().is_none() && self.engine.too_far_behind().is_none();
        figures.gauge("ready", "1 while /readyz is 200", i64::from(is_ready))?;
        let states = ["recovering", "ready", "draining", "failed", "diverged"];
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
        let help = "Users whom campaigns have forgotten, counting every copy";
        figures.counter("users_forgotten", help, info.users_forgotten)?;
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

    fn cluster(&self, figures: &mut Figures<'_>) -> fmt::Result {
        let Some(of) = self.engine.replication() else { return Ok(()) };
        let help = "1 while there is a connection to the replicated log";
        figures.gauge("cluster_connected", help, i64::from(of.connected))?;
        let help = "1 while what this node writes to the log comes back";
        figures.gauge("cluster_quorum", help, i64::from(of.connected && of.lag.is_zero()))?;
        let help = "For how long it can't be shown that this node has everything";
        figures.gauge("cluster_lag_seconds", help, of.lag.as_secs_f64())?;
        let help = "Messages of the log that are waiting to be read";
        figures.gauge("cluster_behind_messages", help, of.behind_messages)?;
        figures.gauge("cluster_in_flight", "Commits that were sent and have not come back", of.in_flight)?;
        figures.gauge("cluster_replicas", "Servers that hold the log", of.replicas as u64)?;
        let differing = of.peers.iter().filter(|peer| peer.is_present && peer.differs == Some(true)).count();
        let help = "Other nodes whose state differs from this node's: 0, or something is wrong";
        figures.gauge("cluster_divergence", help, differing as u64)?;
        figures.gauge("cluster_nodes_heard", "Other nodes that the log told of", of.peers.len() as u64)?;
        let help = "1 if it is known that the servers sync before they acknowledge";
        figures.gauge("cluster_sync_known", help, 0i64)?;
        figures.counter(
            "cluster_reconnects",
            "Connections to the log that were made again",
            of.reconnects,
        )?;
        figures.counter("cluster_reopened", "How often the log's reader was opened again", of.reopened)?;
        let help = "Sessions begun, one at the start and one for each commit whose fate was unknown";
        figures.counter("cluster_sessions", help, of.sessions)?;
        let of = self.engine.shared_snapshots();
        if let Some(newest) = of.newest {
            let help = "Position of the newest snapshot that nodes share";
            figures.gauge("cluster_snapshot_position", help, newest.seq.0)?;
            let help = "Time of the newest snapshot that nodes share, since the epoch";
            figures.gauge("cluster_snapshot_timestamp_seconds", help, newest.taken_at.0 as f64 / 1_000.0)?;
        }
        if let Some(took) = of.bootstrap {
            let help = "How long the start took that began with a shared snapshot";
            figures.gauge("cluster_bootstrap_seconds", help, took.as_secs_f64())?;
        }
        figures.counter("cluster_snapshots_shared", "Snapshots that this node has shared", of.shared)?;
        let help = "Snapshots that this node could not share";
        figures.counter("cluster_snapshots_failed", help, of.failed)
    }

    fn imports(&self, figures: &mut Figures<'_>) -> fmt::Result {
        let mut states = [("running", 0u64), ("done", 0), ("failed", 0), ("interrupted", 0)];
        for import in self.engine.imports() {
            let at = match self.live_imports.corrected(&import, self.engine.now()).state {
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
        let now = self.engine.now();
        let all: Vec<_> = filters.iter().map(|filter| (filter, filter.describe(now).stats)).collect();
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
