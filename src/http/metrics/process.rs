//! Metrics of the process and its build, under the names that Prometheus' own libraries use.

use super::figures::Figures;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use rustix::process::{Resource, getrlimit};
use std::{fmt, fs};

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
    threads: u64,
}

/// Reads `/proc` (proc_pid_stat(5)); `None` where there is none.
fn usage() -> Option<Usage> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in parentheses, may contain anything. The state after it is field 3.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot: u64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    Some(Usage {
        cpu_seconds: (field(14)? + field(15)?) as f64 / ticks,
        open_files: fs::read_dir("/proc/self/fd").ok()?.count() as u64,
        max_files: getrlimit(Resource::Nofile).current,
        virtual_bytes: field(23)?,
        resident_bytes: field(24)? * rustix::param::page_size() as u64,
        started_at: boot as f64 + field(22)? as f64 / ticks,
        threads: field(20)?,
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
        let Some(usage) = usage() else { return Ok(()) };
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
