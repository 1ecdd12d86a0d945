//! A node of the simulation: its disk and its clock, which outlive its processes, and the process that runs, if one does.

use crate::engines;
use crate::history::{History, ObservedLog};
use cuckood::clock::{Clock, ClockLimits, MonotonicClock};
use cuckood::engine::journal::JournalOptions;
use cuckood::engine::stepped::SteppedEngine;
use cuckood::engine::{EngineOptions, EngineStatus, RecoveryError};
use cuckood_log::journal::{
    Durability, Journal, JournalError, LocalJournal, LocalOptions, OpenJournal,
};
use cuckood_log::store::{Store, StoreError, StoreOptions};
use cuckood_log::testing::fuse::{Fuse, Killed};
use cuckood_log::testing::memory_disk::{Crash, MemoryDisk};
use cuckood_log::testing::simulated_time::{MachineClock, SimulatedTime};
use cuckood_nats::testing::{SimulatedNode, SimulatedStream};
use cuckood_state::domain::{Seq, Timestamp};
use cuckood_state::testing::random::Random;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::task::Waker;
use std::time::Duration;
use tempfile::TempDir;

/// The time of day at the start of each simulation.
pub const EPOCH: Timestamp = Timestamp(1_800_000_000_000);

/// Bytes of a segment of a local log: few, so that some are removed.
const SEGMENT_BYTES: u64 = 8 << 10;

/// The log of a simulation.
#[derive(Clone)]
pub enum Log {
    /// Several nodes share a stream.
    Shared(SimulatedStream),
    /// A single node has its own.
    Local(Durability),
}

/// What the nodes of a simulation share.
#[derive(Clone)]
pub struct Common {
    pub time: SimulatedTime,
    pub log: Log,
    pub history: History,
    pub snapshot_log_bytes: u64,
}

pub struct Node {
    pub name: String,
    common: Common,
    directory: TempDir,
    disk: MemoryDisk,
    pub clock: MachineClock,
    fuse: Fuse,
    random: Random,
    is_starting: Arc<AtomicBool>,
    /// The running process.
    pub engine: Option<SteppedEngine>,
    /// When the next process is started, if none runs.
    pub starts_at: Duration,
    /// The last position that readers of the running process have seen.
    seen: Seq,
    /// The last position that readers of any process have seen.
    ever_seen: Seq,
    /// Whether this node's settings replace the log's, and it enables the newest version of entries.
    pub configures: bool,
    /// The disk may fail: the process then stops writing, and the next one continues.
    is_disk_failing: bool,
}

/// How a start has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Started {
    Ready,
    Killed,
    /// The servers of the log can't be reached.
    Unreachable,
    /// The disk has failed.
    Failed,
}

/// The log of a single node.
#[derive(Debug)]
struct LocalLog {
    disk: MemoryDisk,
    fuse: Fuse,
    durability: Durability,
}

impl OpenJournal for LocalLog {
    fn open(&self, store: &Arc<Store>) -> Result<Box<dyn Journal>, JournalError> {
        let options = LocalOptions {
            durability: self.durability,
            segment_bytes: SEGMENT_BYTES,
        };
        Ok(Box::new(LocalJournal::open(store.clone(), options)?))
    }

    fn open_store(&self, path: &Path, options: &StoreOptions) -> Result<Store, StoreError> {
        Store::open_without_sled(path, options, |is_new| self.disk.open(&self.fuse, is_new))
    }

    fn is_shared(&self) -> bool {
        false
    }
}

/// An empty directory, in memory where the machine has such a file system: it is synced for each start.
fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

impl Node {
    pub fn new(number: usize, common: &Common, seed: u64) -> Node {
        let mut random = Random::new(seed);
        // Clocks drift by up to 200 parts per million.
        let drift = random.below(401) as i64 - 200;
        Node {
            name: format!("n{number}"),
            common: common.clone(),
            directory: directory(),
            disk: MemoryDisk::new(),
            clock: MachineClock::new(&common.time, drift),
            fuse: Fuse::unlit(),
            random,
            is_starting: Arc::default(),
            engine: None,
            starts_at: Duration::ZERO,
            seen: Seq(0),
            ever_seen: Seq(0),
            configures: false,
            is_disk_failing: false,
        }
    }

    fn log(&mut self) -> Arc<dyn OpenJournal> {
        match &self.common.log {
            Log::Shared(stream) => Arc::new(SimulatedNode {
                name: self.name.clone(),
                stream: stream.clone(),
                disk: self.disk.clone(),
                fuse: self.fuse.clone(),
                time: self.common.time.clone(),
                clock: self.clock.clone(),
                random: Arc::new(Mutex::new(Random::new(self.random.next()))),
                is_starting: self.is_starting.clone(),
            }),
            Log::Local(durability) => Arc::new(LocalLog {
                disk: self.disk.clone(),
                fuse: self.fuse.clone(),
                durability: *durability,
            }),
        }
    }

    fn options(&mut self) -> EngineOptions {
        static DEFAULTS: LazyLock<EngineOptions> =
            LazyLock::new(|| engines::options(Path::new("")));
        let mut options = DEFAULTS.clone();
        options.path = self.directory.path().to_owned();
        options.journal = JournalOptions::Other(Arc::new(ObservedLog {
            node: self.name.clone(),
            log: self.log(),
            history: self.common.history.clone(),
        }));
        options.commit_timeout = options.journal.commit_timeout();
        options.cluster.configure = self.configures;
        options.store.sync_snapshots = self.survives_power_loss();
        options.snapshots.log_bytes_min = self.common.snapshot_log_bytes;
        options.snapshots.log_bytes_max = self.common.snapshot_log_bytes;
        options
    }

    fn clock(&self) -> Clock {
        let wall = self.clock.clone();
        let monotonic = self.clock.clone();
        Clock::new(move || wall.reading(), ClockLimits::default())
            .with_monotonic(MonotonicClock::new(move || monotonic.now()))
    }

    /// Starts a process, which is killed after a number of steps if that many are given.
    pub fn start(&mut self, killed_after: Option<u32>) -> Started {
        let known = self.common.history.acknowledged();
        let options = self.options();
        let clock = self.clock();
        match killed_after {
            Some(steps) => self.fuse.light(steps),
            None => self.fuse.put_out(),
        }
        self.is_starting.store(true, Relaxed);
        let started = Fuse::run(|| SteppedEngine::start(options, clock, Waker::noop().clone()));
        self.is_starting.store(false, Relaxed);
        let engine = match started {
            Ok(Ok(engine)) => engine,
            Err(Killed) => {
                self.crash(Crash::Process);
                return Started::Killed;
            }
            Ok(Err(RecoveryError::Journal(JournalError::Failed(_)))) => {
                self.crash(Crash::Process);
                return Started::Unreachable;
            }
            Ok(Err(_)) if self.is_disk_failing => {
                self.crash(Crash::Process);
                return Started::Failed;
            }
            Ok(Err(error)) => panic!("{} can't start: {error}", self.name),
        };
        let position = engine.engine().position();
        let known = known.max(self.ever_seen);
        assert!(
            position >= known,
            "{} is ready at {position:?}, and {known:?} was acknowledged before",
            self.name
        );
        self.engine = Some(engine);
        self.check();
        Started::Ready
    }

    /// Takes a turn. Returns whether the process still runs.
    pub fn turn(&mut self) -> bool {
        let now = self.clock.now();
        let Some(engine) = &mut self.engine else {
            return false;
        };
        let Ok(_) = Fuse::run(|| engine.turn(now)) else {
            self.crash(Crash::Process);
            return false;
        };
        let status = engine.engine().status();
        if self.is_disk_failing && matches!(status, EngineStatus::Failed(_)) {
            self.crash(Crash::Process);
            return false;
        }
        self.check();
        true
    }

    /// Whether a loss of power takes nothing back that was acknowledged.
    pub fn survives_power_loss(&self) -> bool {
        match self.common.log {
            Log::Shared(_) => true,
            Log::Local(durability) => durability == Durability::Fsync,
        }
    }

    /// Lets the disk fail after some operations, once.
    pub fn fail_disk(&mut self, operations: u32) {
        self.disk.fail_after(operations);
        self.is_disk_failing = true;
    }

    /// Damages the newest snapshot while no process runs. Returns whether there is an older one.
    pub fn damage_snapshot(&mut self) -> bool {
        self.engine.is_none() && self.disk.damage_newest_snapshot()
    }

    /// The place before which this node needs nothing of the log, as of its last turns.
    pub fn oldest_place(&self) -> Option<Vec<u8>> {
        self.engine.as_ref()?.oldest_place().unwrap()
    }

    /// Replaces the machine: the next process finds an empty directory.
    pub fn wipe(&mut self) {
        self.crash(Crash::Process);
        self.directory = directory();
        self.disk = MemoryDisk::new();
    }

    /// Kills the process after this many steps.
    pub fn light(&self, steps: u32) {
        self.fuse.light(steps);
    }

    /// Nothing goes wrong from here on; a process whose disk is about to fail is ended.
    pub fn end_faults(&mut self) {
        self.fuse.put_out();
        self.clock.set_ahead(0);
        if self.is_disk_failing {
            self.crash(Crash::Process);
        }
    }

    /// Ends the process now.
    pub fn crash(&mut self, kind: Crash) {
        self.fuse.put_out();
        // The disk first: what the process does while it is dropped has no effect.
        self.disk.crash(kind, &mut self.random);
        self.engine = None;
        self.note_end();
    }

    fn note_end(&mut self) {
        if let Log::Shared(stream) = &self.common.log {
            stream.disconnect(&self.name);
        }
        self.seen = Seq(0);
        self.is_disk_failing = false;
    }

    /// Shuts the process down.
    pub fn finish(&mut self) {
        self.fuse.put_out();
        if let Some(engine) = self.engine.take() {
            engine.finish();
        }
        self.disk.crash(Crash::Process, &mut self.random);
        self.note_end();
    }

    /// Checks what must hold between two turns.
    fn check(&mut self) {
        let Some(engine) = &mut self.engine else {
            return;
        };
        let status = engine.engine().status();
        assert_eq!(status, EngineStatus::Ready, "{}", self.name);
        let hash = engine.state().hash();
        assert_eq!(
            engine.engine().position(),
            hash.at,
            "readers of {} see another position",
            self.name
        );
        assert!(
            hash.at >= self.seen,
            "{} was at {:?}, and is at {:?}",
            self.name,
            self.seen,
            hash.at
        );
        self.seen = hash.at;
        self.ever_seen = self.ever_seen.max(hash.at);
        self.common
            .history
            .check_hash(&self.name, hash.at, hash.hash);
    }

    /// Checks that the node has the bytes and the events that it must have at the end of the history.
    pub fn check_end(&mut self) {
        if let Some(engine) = &mut self.engine {
            self.common.history.check_events(&self.name, engine);
            self.common.history.check_bytes(&self.name, engine.state());
        }
    }

    pub fn position(&self) -> Option<Seq> {
        Some(self.engine.as_ref()?.engine().position())
    }
}
