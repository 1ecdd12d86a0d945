//! Metrics that are read when they are collected: the service's state and sizes, what expires, and the process.

use super::exposition::TextFormat;
use super::{Figures, rows, write_text};
use crate::engine::{Engine, EngineStatus};
use crate::http::api::{Api, ApiHandle};
use cuckood_filter::StateCounts;
use cuckood_log::journal::OtherNode;
use cuckood_state::domain::{ImportState, Kind, Stats, Timestamp};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use rustix::process::{Resource, getrlimit};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{fmt, fs};

/// Renders all metrics of a service and of its process.
pub(in crate::http) fn render(api: &ApiHandle, format: TextFormat) -> Result<String, fmt::Error> {
    let mut state = Registry::with_prefix("cuckood");
    state.register_collector(Box::new(ServiceState(api.clone())));
    let mut process = Registry::default();
    process.register_collector(Box::new(Process));
    write_text([&api.registry, &state, &process], format)
}

/// The present state of a service.
#[derive(derive_more::Debug)]
#[debug("ServiceState")]
struct ServiceState(ApiHandle);

/// The resources that this process uses, under the names that Prometheus' own libraries use.
#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        write_process(&mut Figures(encoder))
    }
}

impl Collector for ServiceState {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let api = &*self.0;
        let figures = &mut Figures(encoder);
        readiness(api, figures)?;
        room(&api.engine, figures)?;
        cluster(&api.engine, figures)?;
        imports(api, figures)?;
        expiries(api, figures)?;
        if api.options.metrics.per_filter {
            filters(&api.engine, figures)?;
        }
        build(figures)
    }
}

fn readiness(api: &Api, figures: &mut Figures<'_>) -> fmt::Result {
    let now = match api.engine.status() {
        EngineStatus::Recovering(_) => "recovering",
        EngineStatus::Failed(_) | EngineStatus::Panicked(_) => "failed",
        EngineStatus::Diverged(_) => "diverged",
        EngineStatus::Draining => "draining",
        EngineStatus::Ready if api.is_draining.load(Ordering::Relaxed) => "draining",
        EngineStatus::Ready => "ready",
    };
    let is_ready = now == "ready" && !api.engine.is_too_far_behind();
    figures.gauge("ready", "1 while /readyz is 200", i64::from(is_ready))?;
    let states = ["recovering", "ready", "draining", "failed", "diverged"];
    let states = states.map(|state| ([("state", state)], i64::from(state == now)));
    figures.gauges("state", "1 for the present state of the service", states)?;
    let is_writable = is_ready && api.engine.writes_refused().is_none();
    figures.gauge(
        "storage_writable",
        "1 while writes are accepted",
        i64::from(is_writable),
    )
}

fn room(engine: &Engine, figures: &mut Figures<'_>) -> fmt::Result {
    let info = engine.info();
    let options = engine.options();
    let view = engine.view();
    let storage = &info.storage;
    rows!(figures.gauge {
        "memory_limit_bytes", "Maximum memory of tables and records" => options.memory_max_bytes;
        "tables_bytes", "Memory of filters" => info.tables_bytes;
        "records_bytes", "Memory of redemptions and stored outcomes" => info.records_bytes;
        "applied_seq", "Sequence number of the last entry applied" => info.last_seq.0;
        "redemptions_kept", "Stored redemptions" => info.sizes.redemptions;
        "idempotency_records", "Stored responses to requests with an idempotency key" => info.sizes.idempotency_records;
        "idempotency_bytes", "Memory of stored responses" => info.sizes.idempotency_bytes;
        "idempotency_room_bytes", "Maximum memory of stored responses" => options.settings.idempotency_room_bytes;
        "storage_used_bytes", "Disk space of the data directory" => storage.disk_bytes;
        "storage_free_bytes", "Free space on the disk of the data directory" => storage.free_bytes;
        "storage_free_min_bytes", "Free disk space below which writes are rejected" => options.store.free_space_min_bytes;
        "queue_commands", "Commands waiting for the writer" => info.queue_commands;
        "events_kept", "Stored events" => info.events.kept;
        "events_bytes", "Bytes of stored events" => info.events.bytes;
        "line_ups", "Line-ups" => view.line_ups_len() as u64;
        "images_loading", "Image uploads in progress" => info.sizes.images_loading;
    });
    rows!(figures.counter {
        "wal_written_bytes", "Bytes written to the log" => storage.wal_bytes_written;
        "snapshot_written_bytes", "Bytes written to snapshots" => storage.snapshot_bytes_written;
        "holds_expired", "Holds that have expired" => info.sizes.holds_expired;
        "users_forgotten", "Users forgotten by campaigns, counting every copy" => info.sizes.users_forgotten;
    });
    rows!(figures.time {
        "events_oldest_timestamp_seconds", "Time of the oldest event" => info.events.oldest_at;
        "backup_timestamp_seconds", "Time of the last backup, or of the first startup if there was none" => info.backup_at;
        "snapshot_timestamp_seconds", "Time of the newest snapshot" => info.snapshot.map(|taken| taken.taken_at);
    });
    let kinds = [Kind::Campaign, Kind::Coupon]
        .map(|kind| ([("kind", kind.as_str())], view.count(kind) as u64));
    figures.gauges("filters", "Campaigns and coupons", kinds)?;
    let StateCounts {
        available,
        held,
        redeemed,
    } = info.sizes.codes;
    let codes = [
        ("available", available),
        ("held", held),
        ("redeemed", redeemed),
    ];
    let codes = codes.map(|(status, count)| ([("status", status)], count));
    figures.gauges("codes", "Codes of strict coupons by status", codes)
}

fn cluster(engine: &Engine, figures: &mut Figures<'_>) -> fmt::Result {
    let Some(mut of) = engine.replication() else {
        return Ok(());
    };
    let now = Instant::now();
    let silence = of.silence(now);
    let lag = of.lag(now);
    let full = of
        .full_since
        .map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
    let shared = engine.info().sharing;
    let is_different = |peer: &&OtherNode| peer.is_present && peer.differs == Some(true);
    let differing = of.peers.iter().filter(is_different).count() as u64;
    let is_connected = of.disconnected_since.is_none();
    let has_quorum = silence.is_zero();
    rows!(figures.gauge {
        "cluster_connected", "1 while connected to the replicated log" => u64::from(is_connected);
        "cluster_quorum", "1 while the log responds" => u64::from(has_quorum);
        "cluster_behind_messages", "Messages of the log that are waiting to be read" => of.behind_messages();
        "cluster_in_flight", "Messages sent and not yet read back" => of.in_flight as u64;
        "cluster_replicas", "Servers that store the log" => of.replicas as u64;
        "cluster_divergence", "Other nodes whose state differs from this node's: must be 0" => differing;
        "cluster_nodes_heard", "Other nodes that appeared in the log" => of.peers.len() as u64;
        "cluster_sync_known", "1 if the servers are known to sync before they acknowledge" => 0u64;
        "cluster_lag_seconds", "Time for which this node has not reached a position that the log has shown" => lag.as_secs_f64();
        "cluster_no_quorum_seconds", "Time for which the log has not responded" => silence.as_secs_f64();
        "cluster_log_full_seconds", "Time for which the log has rejected messages because it is full" => full.as_secs_f64();
    });
    rows!(figures.counter {
        "cluster_reconnects", "Reconnections to the log" => of.reconnects;
        "cluster_reopened", "Restarts of the log's reader" => of.reopened;
        "cluster_resent", "Resends of messages with unknown outcome" => of.resent;
        "cluster_foreign_messages", "Messages in the log's stream that are not of this service" => of.foreign;
        "cluster_snapshots_shared", "Snapshots shared by this node" => shared.shared;
        "cluster_snapshots_failed", "Snapshots that this node failed to share" => shared.failed;
    });
    if let Some(newest) = shared.newest {
        rows!(figures.gauge {
            "cluster_snapshot_position", "Position of the newest shared snapshot" => newest.seq.0;
        });
        rows!(figures.time {
            "cluster_snapshot_timestamp_seconds", "Time of the newest shared snapshot" => Some(newest.taken_at);
        });
    }
    let Some(took) = shared.bootstrap else {
        return Ok(());
    };
    let help = "Duration of the startup from a shared snapshot";
    figures.gauge("cluster_bootstrap_seconds", help, took.as_secs_f64())
}

fn imports(api: &Api, figures: &mut Figures<'_>) -> fmt::Result {
    let mut states = [
        ("running", 0u64),
        ("done", 0),
        ("failed", 0),
        ("interrupted", 0),
    ];
    for import in api.engine.view().imports() {
        let at = match api.live_imports.corrected(&import, api.engine.now()).state {
            ImportState::Running => 0,
            ImportState::Done => 1,
            ImportState::Failed | ImportState::Guarded(_) | ImportState::Overtaken => 2,
            ImportState::Interrupted | ImportState::Stopped => 3,
        };
        states[at].1 += 1;
    }
    let states = states.map(|(state, count)| ([("state", state)], count));
    figures.gauges("imports", "Imports that are kept, by state", states)
}

fn expiries(api: &Api, figures: &mut Figures<'_>) -> fmt::Result {
    let expiries = api.expiries();
    let seconds = |at: &Timestamp| (at.0 / 1_000) as i64;
    let keys = expiries
        .iter()
        .filter_map(|(key, at)| Some(([("key", key.as_deref()?)], seconds(at))));
    figures.gauges(
        "key_expiry_timestamp_seconds",
        "Time at which a key expires, since the epoch",
        keys,
    )?;
    if let Some((_, at)) = expiries.iter().find(|(key, _)| key.is_none()) {
        let help = "Time at which the certificate expires, since the epoch";
        figures.gauge("certificate_expiry_timestamp_seconds", help, seconds(at))?;
    }
    Ok(())
}

fn filters(engine: &Engine, figures: &mut Figures<'_>) -> fmt::Result {
    let now = engine.now();
    let kinds = [Kind::Campaign, Kind::Coupon];
    let filters = kinds
        .map(|kind| engine.view().list(kind, "", None, usize::MAX))
        .concat();
    let all: Vec<_> = filters
        .iter()
        .map(|filter| (filter, filter.describe(now).stats))
        .collect();
    let mut each = |name: &str, help: &str, of: &dyn Fn(&Stats) -> f64| {
        let values = all.iter().map(|(filter, stats)| {
            (
                [
                    ("kind", filter.kind.as_str()),
                    ("name", filter.name.as_str()),
                ],
                of(stats),
            )
        });
        figures.gauges(name, help, values)
    };
    each("filter_items", "Items of a filter", &|stats| {
        stats.items as f64
    })?;
    each(
        "filter_load_ratio",
        "Items of a filter per slot",
        &Stats::load,
    )?;
    each(
        "filter_error_ratio",
        "False-positive rate of a filter",
        &Stats::error_rate,
    )?;
    each("filter_memory_bytes", "Memory of a filter", &|stats| {
        stats.memory_bytes as f64
    })
}

fn build(figures: &mut Figures<'_>) -> fmt::Result {
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("profile", profile)];
    figures.gauges(
        "build_info",
        "Version and build profile; always 1",
        [(labels, 1i64)],
    )
}

fn write_process(figures: &mut Figures<'_>) -> fmt::Result {
    // Without /proc, nothing is known.
    let Some(
        [
            cpu_seconds,
            open_files,
            virtual_bytes,
            resident_bytes,
            started_at,
            threads,
        ],
    ) = usage()
    else {
        return Ok(());
    };
    rows!(figures.counter { "process_cpu_seconds", "Processor time, user and system" => cpu_seconds; });
    rows!(figures.gauge { "process_open_fds", "Open file descriptors" => open_files; });
    if let Some(most) = getrlimit(Resource::Nofile).current {
        rows!(figures.gauge { "process_max_fds", "Limit on open file descriptors" => most; });
    }
    rows!(figures.gauge {
        "process_virtual_memory_bytes", "Virtual memory" => virtual_bytes;
        "process_resident_memory_bytes", "Resident memory" => resident_bytes;
        "process_start_time_seconds", "Start time of the process, since the epoch" => started_at;
        "process_threads", "Threads" => threads;
    });
    Ok(())
}

/// Reads the resource usage of this process from `/proc` (proc_pid_stat(5)): processor time, open files, virtual and resident memory, start
/// time and threads. `None` where there is none.
fn usage() -> Option<[f64; 6]> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in parentheses, may contain anything. The state after it is field 3.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 = system
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()?;
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let page_bytes = rustix::param::page_size() as f64;
    let open_files = fs::read_dir("/proc/self/fd").ok()?.count() as f64;
    let cpu_seconds = (field(14)? + field(15)?) / ticks;
    let started_at = boot + field(22)? / ticks;
    Some([
        cpu_seconds,
        open_files,
        field(23)?,
        field(24)? * page_bytes,
        started_at,
        field(20)?,
    ])
}
