//! Metrics of the process and its build, under the names that Prometheus' own libraries use.

use super::figures::Figures;
use procfs::ProcResult;
use procfs::process::{LimitValue, Process};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;

/// Reads the process's resource usage when it is collected.
#[derive(Debug)]
pub(super) struct ProcessFigures;

/// The resource usage of this process.
struct Usage {
    cpu_seconds: f64,
    open_files: u64,
    max_files: Option<u64>,
    virtual_bytes: u64,
    resident_bytes: u64,
    started_at: f64,
    threads: i64,
}

fn usage() -> ProcResult<Usage> {
    let process = Process::myself()?;
    let stat = process.stat()?;
    let ticks = procfs::ticks_per_second() as f64;
    Ok(Usage {
        cpu_seconds: (stat.utime + stat.stime) as f64 / ticks,
        open_files: process.fd_count()? as u64,
        max_files: match process.limits()?.max_open_files.soft_limit {
            LimitValue::Value(limit) => Some(limit),
            LimitValue::Unlimited => None,
        },
        virtual_bytes: stat.vsize,
        resident_bytes: stat.rss * procfs::page_size(),
        started_at: procfs::boot_time_secs()? as f64 + stat.starttime as f64 / ticks,
        threads: stat.num_threads,
    })
}

impl Collector for ProcessFigures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut figures = Figures(encoder);
        let labels = [
            ("version", env!("CARGO_PKG_VERSION")),
            ("profile", if cfg!(debug_assertions) { "debug" } else { "release" }),
        ];
        figures.labelled("build_info", "Version and build profile; always 1", [(labels, 1i64)])?;
        // Without /proc, only the build information is reported.
        let Ok(usage) = usage() else { return Ok(()) };
        figures.counter("process_cpu_seconds", "Processor time, user and system", usage.cpu_seconds)?;
        figures.gauge("process_open_fds", "Open file descriptors", usage.open_files)?;
        if let Some(most) = usage.max_files {
            figures.gauge("process_max_fds", "Limit on open file descriptors", most)?;
        }
        figures.gauge("process_virtual_memory_bytes", "Virtual memory", usage.virtual_bytes)?;
        figures.gauge("process_resident_memory_bytes", "Resident memory", usage.resident_bytes)?;
        let help = "Start time of the process, since the epoch";
        figures.gauge("process_start_time_seconds", help, usage.started_at)?;
        figures.gauge("process_threads", "Threads", usage.threads)
    }
}
