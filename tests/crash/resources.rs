//! The process's use of the machine, sampled repeatedly: it may not grow forever.

use std::fmt;
use std::path::Path;

/// No service with so little in it takes more.
const MEMORY_MAX: u64 = 1 << 30;
const DISK_MAX: u64 = 4 << 30;
const DESCRIPTORS_MAX: u64 = 512;

/// What chance may add to a median: pages, a segment of the log, a connection.
const MEMORY_SLACK: u64 = 64 << 20;
const DISK_SLACK: u64 = 128 << 20;
const DESCRIPTORS_SLACK: u64 = 16;

/// Looks below which nothing is said about growth.
const LOOKS_MIN: usize = 40;

/// The samples.
#[derive(Default)]
pub struct Resources(Vec<Look>);

#[derive(Clone, Copy)]
struct Look {
    memory: u64,
    descriptors: u64,
    disk: u64,
}

impl Resources {
    /// Looks at a process and its data directory.
    pub fn look(&mut self, process: u32, data: &Path) {
        let status =
            std::fs::read_to_string(format!("/proc/{process}/status")).expect("Linux tells");
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .expect("Linux tells");
        let kilobytes = resident
            .trim()
            .trim_end_matches(" kB")
            .parse::<u64>()
            .expect("a number");
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd"))
            .expect("Linux tells")
            .count() as u64;
        self.0.push(Look {
            memory: kilobytes << 10,
            descriptors,
            disk: bytes_below(data),
        });
        let last = self.0.last().expect("it was just pushed");
        let bounded =
            last.memory < MEMORY_MAX && last.disk < DISK_MAX && last.descriptors < DESCRIPTORS_MAX;
        assert!(bounded, "it takes too much: {self}");
    }

    /// Later it takes no more than early on, but for what chance adds.
    pub fn assert_bounded(&self) {
        if self.0.len() < LOOKS_MIN {
            eprintln!("{} looks are too few to see growth", self.0.len());
            return;
        }
        let quarter = self.0.len() / 4;
        let early = &self.0[quarter..2 * quarter];
        let late = &self.0[3 * quarter..];
        type Figure = (&'static str, fn(&Look) -> u64, u64);
        let figures: [Figure; 3] = [
            ("bytes of memory", |look| look.memory, MEMORY_SLACK),
            ("bytes of disk", |look| look.disk, DISK_SLACK),
            ("descriptors", |look| look.descriptors, DESCRIPTORS_SLACK),
        ];
        for (what, figure, slack) in figures {
            let early = median(early, figure);
            let late = median(late, figure);
            eprintln!("{what}: {early} early, {late} late");
            assert!(
                late <= early + early / 4 + slack,
                "{what} grow: {early} early, {late} late"
            );
        }
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Look {
            memory,
            descriptors,
            disk,
        }) = self.0.last()
        else {
            return f.write_str("not looked at yet");
        };
        write!(
            f,
            "{} MiB of memory, {} of disk, {descriptors} descriptors",
            memory >> 20,
            disk >> 20
        )
    }
}

fn median(looks: &[Look], figure: fn(&Look) -> u64) -> u64 {
    let mut figures: Vec<u64> = looks.iter().map(figure).collect();
    figures.sort_unstable();
    figures[figures.len() / 2]
}

/// Bytes of all files in a folder and below. Files are added and removed concurrently.
fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => bytes_below(&entry.path()),
            Ok(found) => found.len(),
            Err(_) => 0,
        })
        .sum()
}
