//! One simulated history: nodes, clients and faults that a seed decides, then an end without faults, at which all must agree.

use crate::clients::{ClientCounts, Clients};
use crate::history::History;
use crate::node::{Common, EPOCH, Log, Node, Started};
use cuckood_log::journal::Durability;
use cuckood_log::testing::memory_disk::Crash;
use cuckood_log::testing::simulated_time::SimulatedTime;
use cuckood_nats::testing::{SimulatedStream, StreamCounts, StreamFaults};
use cuckood_state::domain::{Command, Proposal, Seq, Settings};
use cuckood_state::testing::random::Random;
use cuckood_state::testing::seeded;
use std::ops::Range;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

/// The steps with faults of a history.
pub const STEPS: Range<u64> = 200..1_000;

/// The steps without faults after all nodes were restored.
const STEPS_RESTORED: usize = 60;

/// The most rounds that the nodes may take to agree once faults have ended.
const ROUNDS_MAX: usize = 20_000;

/// How far ahead a wall clock may be set that a single node follows, in milliseconds.
const LATEST_MS: i64 = 3_000_000;

/// How often each thing happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub entries: u64,
    pub starts: u64,
    pub kills: u64,
    pub kills_in_start: u64,
    pub power_losses: u64,
    pub disk_failures: u64,
    pub clock_changes: u64,
    pub wipes: u64,
    pub damages: u64,
    pub trims: u64,
    pub simulated: Duration,
    pub clients: ClientCounts,
    pub stream: StreamCounts,
}

impl Counts {
    /// Adds those of another history.
    pub fn add(&mut self, other: &Counts) {
        self.entries += other.entries;
        self.starts += other.starts;
        self.kills += other.kills;
        self.kills_in_start += other.kills_in_start;
        self.power_losses += other.power_losses;
        self.disk_failures += other.disk_failures;
        self.clock_changes += other.clock_changes;
        self.wipes += other.wipes;
        self.damages += other.damages;
        self.trims += other.trims;
        self.simulated += other.simulated;
        self.clients.add(&other.clients);
        self.stream.add(&other.stream);
    }
}

/// How often faults happen, in ten thousandths of the steps.
struct Rates {
    kill: u64,
    fuse: u64,
    shutdown: u64,
    election: u64,
    cut: u64,
    power: u64,
    clock: u64,
    wipe: u64,
    disk: u64,
    damage: u64,
    trim: u64,
}

struct World {
    random: Random,
    common: Common,
    nodes: Vec<Node>,
    clients: Clients,
    runtime: Runtime,
    rates: Rates,
    counts: Counts,
    is_verbose: bool,
}

/// Runs the history of a seed, up to a number of steps with faults if one is given. Panics at the first thing that must not be.
pub fn run(seed: u64, steps_max: Option<u64>, is_verbose: bool) -> Counts {
    let _seeded = seeded::seed(seed);
    let mut world = World::new(seed, is_verbose);
    let steps = STEPS.start + world.random.below(STEPS.end - STEPS.start);
    for _ in 0..steps.min(steps_max.unwrap_or(u64::MAX)) {
        world.step();
    }
    world.end();
    world.counts()
}

impl World {
    fn new(seed: u64, is_verbose: bool) -> World {
        let mut random = Random::new(seed);
        let time = SimulatedTime::new(EPOCH);
        // One history in five is of a single node with its own log.
        let is_shared = random.below(5) > 0;
        let history = History::new(&time, is_shared);
        let log = match is_shared {
            true => Log::Shared(SimulatedStream::new(time.clone(), random.next())),
            false => Log::Local([Durability::Fsync, Durability::Flush][random.below(2) as usize]),
        };
        let common = Common {
            time: time.clone(),
            log,
            history: history.clone(),
            snapshot_log_bytes: 1 << (10 + random.below(7)),
        };
        let count = if is_shared { 1 + random.below(5) } else { 1 };
        let mut nodes: Vec<Node> = (0..count as usize)
            .map(|number| Node::new(number, &common, random.next()))
            .collect();
        nodes[0].configures = random.below(3) == 0;
        let is_wild = random.below(4) == 0;
        let mut clients = Clients::new(
            1 + random.below(8) as usize,
            time,
            history,
            random.next(),
            is_wild,
        );
        clients.is_verbose = is_verbose;
        // A quarter of the histories has none of each.
        let mut rate = |max: u64| random.below(4).min(1) * random.below(max);
        let rates = Rates {
            kill: rate(60),
            fuse: rate(150),
            shutdown: rate(30),
            election: rate(40),
            cut: rate(60),
            power: rate(30),
            clock: rate(60),
            wipe: rate(15),
            disk: rate(20),
            damage: rate(200),
            trim: rate(100),
        };
        let faults = StreamFaults {
            lost: rate(100),
            late: rate(100),
            copied: rate(500),
            unanswered: rate(100),
            misjudged: rate(100),
            foreign: rate(30),
        };
        if let Log::Shared(stream) = &common.log {
            stream.set_faults(faults);
            // An earlier version has written the first entry, so the present version of entries is not enabled.
            if random.below(3) == 0 {
                let configure = Command::Configure(Settings::default());
                stream.begin_log("earlier", &[Proposal::new(EPOCH, configure)]);
            }
        }
        World {
            random,
            common,
            nodes,
            clients,
            runtime: Builder::new_current_thread().build().unwrap(),
            rates,
            counts: Counts::default(),
            is_verbose,
        }
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        if self.is_verbose {
            println!("{:>12?} {}", self.common.time.passed(), what());
        }
    }

    fn chance(&mut self, ten_thousandths: u64) -> bool {
        self.random.below(10_000) < ten_thousandths
    }

    fn seconds(&mut self, max: u64) -> Duration {
        Duration::from_millis(self.random.below(max * 1_000))
    }

    fn step(&mut self) {
        let passes = match self.random.below(100) {
            0 => self.seconds(5),
            1..6 => Duration::from_millis(self.random.below(300)),
            _ => Duration::from_micros(self.random.below(3_000)),
        };
        self.pass(passes);
        self.disturb();
        self.work();
    }

    /// Lets a random node and some clients act.
    fn work(&mut self) {
        let number = self.random.below(self.nodes.len() as u64) as usize;
        self.turn(number);
        for _ in 0..self.random.below(8) {
            self.clients.step(&self.nodes, &self.runtime);
        }
    }

    fn pass(&self, time: Duration) {
        self.common.time.pass(time);
        if let Log::Shared(stream) = &self.common.log {
            stream.advance();
        }
    }

    /// Lets something go wrong, now and then.
    fn disturb(&mut self) {
        let number = self.random.below(self.nodes.len() as u64) as usize;
        let is_running = self.nodes[number].engine.is_some();
        if is_running && self.chance(self.rates.kill) {
            self.tell(|| format!("n{number} is killed"));
            self.nodes[number].crash(Crash::Process);
            self.note_end(number);
        }
        if is_running && self.chance(self.rates.fuse) {
            let steps = self.random.below(40) as u32;
            self.nodes[number].light(steps);
        }
        if is_running && self.chance(self.rates.shutdown) {
            self.tell(|| format!("n{number} is shut down"));
            self.nodes[number].finish();
            self.note_end(number);
        }
        if is_running && self.chance(self.rates.power) && self.nodes[number].survives_power_loss() {
            self.tell(|| format!("n{number} loses its power"));
            self.nodes[number].crash(Crash::Power);
            self.counts.power_losses += 1;
            self.note_end(number);
        }
        if is_running && self.chance(self.rates.disk) {
            self.tell(|| format!("the disk of n{number} fails soon"));
            let operations = self.random.below(30) as u32;
            self.nodes[number].fail_disk(operations);
            self.counts.disk_failures += 1;
        }
        if !is_running && self.chance(self.rates.damage) && self.nodes[number].damage_snapshot() {
            self.tell(|| format!("the newest snapshot of n{number} is damaged"));
            self.counts.damages += 1;
        }
        // A single node believes the clock of its first start.
        if self.chance(self.rates.clock) && self.common.history.last() > Seq(0) {
            self.set_clock(number);
        }
        let Log::Shared(stream) = self.common.log.clone() else {
            return;
        };
        if self.counts.wipes == 0 && self.chance(self.rates.trim) {
            self.trim(&stream);
        }
        // A new node needs a complete log: it has no snapshot of another node.
        if self.counts.trims == 0 && self.chance(self.rates.wipe) {
            self.tell(|| format!("n{number} is wiped"));
            self.nodes[number].wipe();
            self.counts.wipes += 1;
            self.note_end(number);
        }
        if self.chance(self.rates.election) {
            let time = self.seconds(9);
            self.tell(|| format!("no leader for {time:?}"));
            stream.lose_leader(time);
        }
        if self.chance(self.rates.cut) {
            let time = self.seconds(20);
            let is_seen = self.random.below(2) == 0;
            self.tell(|| format!("n{number} is cut off for {time:?}, seen: {is_seen}"));
            stream.cut(&self.nodes[number].name, time, is_seen);
        }
    }

    /// Drops the part of the log that no node needs.
    fn trim(&mut self, stream: &SimulatedStream) {
        let places: Option<Vec<Vec<u8>>> = self.nodes.iter().map(Node::oldest_place).collect();
        if places.is_some_and(|places| stream.trim_before(&places)) {
            self.tell(|| "the log is trimmed".to_owned());
            self.counts.trims += 1;
        }
    }

    /// Sets the wall clock of a machine.
    fn set_clock(&mut self, number: usize) {
        let sign = if self.random.below(2) == 0 { 1 } else { -1 };
        let milliseconds = match self.random.below(5) {
            0 => 0,
            1 => sign * 1_500,
            2 => sign * self.random.below(20_000) as i64,
            3 => sign * self.random.below(LATEST_MS as u64) as i64,
            _ => sign * 7_200_000,
        };
        self.tell(|| format!("the clock of n{number} is {milliseconds} ms ahead"));
        self.nodes[number].clock.set_ahead(milliseconds);
        self.counts.clock_changes += 1;
    }

    /// A process has ended: it is started again later.
    fn note_end(&mut self, number: usize) {
        self.counts.kills += 1;
        let pause = self.seconds(3);
        self.nodes[number].starts_at = self.common.time.passed() + pause;
        self.clients.take_answers(number, &self.nodes);
    }

    /// Takes a turn of a node, or starts it.
    fn turn(&mut self, number: usize) {
        if self.nodes[number].engine.is_none() {
            if self.common.time.passed() >= self.nodes[number].starts_at {
                let is_killed = self.random.below(5) == 0 && self.rates.fuse > 0;
                let steps = is_killed.then(|| self.random.below(60) as u32);
                self.start(number, steps);
            }
            return;
        }
        if !self.nodes[number].turn() {
            self.tell(|| format!("n{number} is killed in a turn"));
            self.note_end(number);
            return;
        }
        while self.runtime.metrics().num_alive_tasks() > 0 {
            self.runtime.block_on(yield_now());
        }
        self.clients.take_answers(number, &self.nodes);
    }

    fn start(&mut self, number: usize, killed_after: Option<u32>) {
        self.counts.starts += 1;
        let started = self.nodes[number].start(killed_after);
        let position = self.nodes[number].position();
        self.tell(|| format!("n{number} is started: {started:?}, {position:?}"));
        if started != Started::Ready {
            self.counts.kills_in_start += u64::from(started == Started::Killed);
            let pause = self.seconds(2);
            self.nodes[number].starts_at = self.common.time.passed() + pause;
        }
    }

    /// Ends all faults. Then every node becomes ready, and all agree.
    fn end(&mut self) {
        self.tell(|| "the faults end".to_owned());
        self.rates.fuse = 0;
        for node in &mut self.nodes {
            node.end_faults();
        }
        match &self.common.log {
            Log::Shared(stream) => stream.heal(),
            // The log's time may be as late as that.
            Log::Local(_) => self.nodes[0].clock.set_ahead(LATEST_MS),
        }
        self.prove();
        self.settle();
        self.check();
        // What a shutdown stores, a start restores.
        for number in 0..self.nodes.len() {
            self.nodes[number].finish();
            self.start(number, None);
        }
        self.settle();
        self.check();
        // After that, commands have the effects that they have without a restart.
        for _ in 0..STEPS_RESTORED {
            self.pass(Duration::from_millis(5));
            self.work();
        }
        self.settle();
        self.check();
    }

    fn round(&mut self) {
        self.pass(Duration::from_millis(10));
        for number in 0..self.nodes.len() {
            self.turn(number);
        }
    }

    /// Every node becomes ready, and answers a write.
    fn prove(&mut self) {
        self.clients.begin_proof();
        for _ in 0..ROUNDS_MAX {
            self.round();
            if self.clients.prove(&self.nodes, &self.runtime) {
                return;
            }
        }
        panic!("some nodes answer no write after all faults have ended");
    }

    fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.round();
            let last = self.common.history.last();
            let is_level = |node: &Node| node.position() == Some(last);
            if self.nodes.iter().all(is_level) && !self.clients.is_busy() {
                return;
            }
        }
        let positions: Vec<_> = self.nodes.iter().map(Node::position).collect();
        let last = self.common.history.last();
        panic!("the nodes do not agree: {positions:?}, the log ends at {last:?}");
    }

    fn check(&mut self) {
        for node in &mut self.nodes {
            node.check_end();
        }
        self.clients.check_end(&self.nodes);
    }

    fn counts(&self) -> Counts {
        Counts {
            entries: self.common.history.last().0,
            simulated: self.common.time.passed(),
            clients: self.clients.counts,
            stream: match &self.common.log {
                Log::Shared(stream) => stream.counts(),
                Log::Local(_) => StreamCounts::default(),
            },
            ..self.counts
        }
    }
}
