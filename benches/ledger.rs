//! The redemptions of one coupon in the state: memory, time of each operation, and pauses: `cargo bench --bench ledger [-- REDEMPTIONS]`,
//! one million by default. Each operation is an entry that the state applies, or a query; the log and the protocols are not part of it.
//!
//! Times are those of the thread's processor clock for pauses, and of the wall clock for all else. `floor` is an entry that does nothing
//! but what every entry does.

// A benchmark prints its results and stops at the first error.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

// As the service has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use cuckood_filter::{Digest, Growth, Layout, Mode, RestoreError, Restoring, Secret};
use cuckood_state::domain::{
    Command, Digests, Entry, FilterId, Kind, Name, Normalization, Outcome, Proposal, Redeem,
    RedemptionId, Reference, SectionId, Settings, Sizing, Spec, Target, Timestamp, Window,
};
use cuckood_state::{FilterView, RedemptionQuery, Sections, State};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

const COUPON: Target = Target(FilterId(7));

/// The time of the first redemption, and the number of redemptions per millisecond.
const START: u64 = 1_790_000_000_000;
const PER_MILLISECOND: u64 = 50;

const RETENTION_SECONDS: u64 = 30 * 86_400;

/// An entry that lets time pass.
const ADVANCE: Command = Command::Advance { buckets_max: 0 };

/// Codes per command.
const BATCH: u64 = 10_000;

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"));
    let redemptions = arguments
        .next()
        .map_or(1_000_000, |number| number.parse().unwrap());
    let samples = (redemptions / 10).min(500_000);
    let mut bench = Bench::new(redemptions + samples);
    println!("{redemptions} redemptions with references of 20 bytes");
    bench.floor(samples);
    bench.redeem(redemptions);
    bench.query(redemptions, samples);
    bench.hold_and_confirm(redemptions, samples);
    bench.forget(samples);
    bench.snapshot(redemptions, samples);
    bench.delete();
}

struct Bench {
    state: State,
    view: Arc<FilterView>,
    /// The time of the next entry, in milliseconds.
    now: u64,
    random: u64,
}

/// Durations of one operation, in nanoseconds.
struct Durations {
    wall: Vec<u64>,
    longest_processor: u64,
}

impl Durations {
    fn new() -> Self {
        Self {
            wall: Vec::new(),
            longest_processor: 0,
        }
    }

    fn measure<T>(&mut self, operation: impl FnOnce() -> T) -> T {
        let processor = processor_time();
        let since = Instant::now();
        let result = operation();
        self.wall.push(since.elapsed().as_nanos() as u64);
        self.longest_processor = self.longest_processor.max(processor_time() - processor);
        result
    }

    /// Prints the durations of operations that each did `parts`.
    fn print(mut self, what: &str, parts: u64) {
        self.wall.sort_unstable();
        let at = |share: f64| self.wall[((self.wall.len() - 1) as f64 * share) as usize] / parts;
        let mean = self.wall.iter().sum::<u64>() / self.wall.len() as u64 / parts;
        let longest = self.longest_processor as f64 / 1e6;
        println!(
            "  {what:<28} p50 {:>6}  mean {mean:>6}  p99 {:>6} ns; the longest took {longest:.2} ms of processor time",
            at(0.5),
            at(0.99),
        );
    }
}

/// The processor time of this thread, in nanoseconds.
fn processor_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Resident memory of the process, in bytes.
fn resident_bytes() -> u64 {
    let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = sizes.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

fn mix(number: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes())
}

fn digest(number: u64) -> Digest {
    Digest(mix(number))
}

fn id(number: u64) -> RedemptionId {
    RedemptionId(xxhash_rust::xxh3::xxh3_128(&number.to_be_bytes()).to_be_bytes())
}

fn reference(number: u64) -> Reference {
    Reference::new(&format!("order-{number:014}")).unwrap()
}

impl Bench {
    /// A state with one coupon of this many codes.
    fn new(codes: u64) -> Self {
        let mut state = State::default();
        let spec = Spec {
            capacity: codes,
            mode: Mode::Strict,
            growth: Growth::Auto,
            sizing: Sizing::Exact,
            normalization: Normalization::Exact,
            supply: Default::default(),
            forget: None,
        };
        let create = Command::Create {
            kind: Kind::Coupon,
            name: Name::new("welcome").unwrap(),
            id: COUPON.0,
            secret: Secret::new(std::array::from_fn(|at| mix(at as u64) as u8)),
            spec,
            layout: Layout::strict(codes).unwrap(),
            window: Window::default(),
            annotations: Default::default(),
        };
        let settings = Command::Configure(Settings {
            redemptions_retention_seconds: RETENTION_SECONDS,
            events_retention_seconds: 0,
            ..Settings::default()
        });
        for command in [settings, create] {
            apply(&mut state, START, command);
        }
        for first in (0..codes).step_by(BATCH as usize) {
            let numbers = first..codes.min(first + BATCH);
            let insert = Command::Insert {
                target: COUPON,
                digests: Digests(numbers.map(digest).collect()),
                if_absent: false,
                revive: false,
            };
            apply(&mut state, START, insert);
        }
        let view = coupon(&mut state);
        Self {
            state,
            view,
            now: START,
            random: 1,
        }
    }

    /// A random number below `below`.
    fn random(&mut self, below: u64) -> u64 {
        self.random += 1;
        mix(self.random) % below
    }

    fn floor(&mut self, samples: u64) {
        let mut durations = Durations::new();
        for _ in 0..samples {
            durations.measure(|| apply(&mut self.state, self.now, ADVANCE));
        }
        durations.print("floor", 1);
    }

    fn redeem(&mut self, redemptions: u64) {
        let mut durations = Durations::new();
        durations.wall.resize(redemptions as usize, 1);
        durations.wall.clear();
        let resident_before = resident_bytes();
        let account_before = self.state.sizes().records_bytes;
        for number in 0..redemptions {
            self.now = START + number / PER_MILLISECOND;
            let redeem = redemption(number, 0);
            let outcome = durations.measure(|| apply(&mut self.state, self.now, redeem));
            assert!(matches!(outcome, Outcome::Redeemed(_)));
        }
        let resident = resident_bytes().saturating_sub(resident_before);
        let account = self.state.sizes().records_bytes - account_before;
        let each = |bytes: u64| bytes as f64 / redemptions as f64;
        println!(
            "  resident {:.1} bytes per redemption, account {:.1}",
            each(resident),
            each(account)
        );
        durations.print("redeem", 1);
    }

    fn query(&mut self, redemptions: u64, samples: u64) {
        let now = Timestamp(self.now);
        let mut durations = Durations::new();
        for _ in 0..samples {
            let id = id(self.random(redemptions));
            let found = durations.measure(|| self.view.redemption(&id, now));
            assert!(found.is_some());
        }
        durations.print("get by ID", 1);
        let mut durations = Durations::new();
        for _ in 0..samples {
            let code = [digest(self.random(redemptions))];
            let found = durations.measure(|| self.view.look_up(&code, now));
            assert_eq!(found.map(|found| found.len()), Some(1));
        }
        durations.print("look up by code", 1);
        let mut durations = Durations::new();
        for _ in 0..samples {
            let query = RedemptionQuery {
                reference: Some(reference(self.random(redemptions))),
                ..RedemptionQuery::default()
            };
            let page = durations.measure(|| self.view.redemptions(&query, None, 10, now));
            assert_eq!(page.redemptions.len(), 1);
        }
        durations.print("find by reference", 1);
    }

    fn hold_and_confirm(&mut self, redemptions: u64, samples: u64) {
        let mut durations = Durations::new();
        let numbers = redemptions..redemptions + samples;
        for number in numbers.clone() {
            let hold = redemption(number, 900);
            durations.measure(|| apply(&mut self.state, self.now, hold));
        }
        durations.print("hold", 1);
        self.now += 1;
        let mut durations = Durations::new();
        for number in numbers {
            let confirm = Command::Confirm {
                target: COUPON,
                redemption: id(number),
            };
            durations.measure(|| apply(&mut self.state, self.now, confirm));
        }
        durations.print("confirm", 1);
    }

    /// Lets one millisecond after the other get as old as the retention.
    fn forget(&mut self, samples: u64) {
        let mut durations = Durations::new();
        self.now = START + RETENTION_SECONDS * 1_000;
        for _ in 0..samples / PER_MILLISECOND {
            durations.measure(|| apply(&mut self.state, self.now, ADVANCE));
            self.now += 1;
        }
        durations.print("forget", PER_MILLISECOND);
    }

    fn snapshot(&mut self, redemptions: u64, samples: u64) {
        let mut durations = Durations::new();
        let parts = durations.measure(|| self.state.begin_snapshot());
        durations.print("start a snapshot", 1);
        let mut durations = Durations::new();
        for _ in 0..samples.min(200_000) {
            let cancel = Command::Cancel {
                target: COUPON,
                redemption: id(samples + self.random(redemptions - samples)),
            };
            durations.measure(|| apply(&mut self.state, self.now, cancel));
        }
        durations.print("cancel during a snapshot", 1);
        let mut stored = StoredSections::default();
        let mut durations = Durations::new();
        let mut chunk = Vec::new();
        for mut section in parts.sections {
            let chunks = stored
                .0
                .entry((section.id.owner, section.id.part))
                .or_default();
            while durations.measure(|| section.next_chunk(&mut chunk)) {
                chunks.push(chunk.clone());
            }
        }
        durations.print("chunk of the snapshot", 1);
        let mut durations = Durations::new();
        let restored = durations.measure(|| State::restore(&parts.head, &mut stored));
        let seconds = durations.wall[0] as f64 / 1e9;
        println!(
            "  restored {} redemptions in {seconds:.2} s",
            restored.unwrap().sizes().redemptions
        );
    }

    /// Deletes the coupon, and frees it in steps as the writer does.
    fn delete(mut self) {
        let delete = Command::Delete {
            kind: Kind::Coupon,
            name: Name::new("welcome").unwrap(),
        };
        apply(&mut self.state, self.now, delete);
        self.state.publish();
        drop(self.view);
        let mut durations = Durations::new();
        while durations.measure(|| self.state.free_discarded(4_096)) {}
        let seconds = durations.wall.iter().sum::<u64>() as f64 / 1e9;
        println!("  freed in {seconds:.2} s");
        durations.print("step of freeing", 1);
    }
}

fn apply(state: &mut State, at: u64, command: Command) -> Outcome {
    let entry = Entry {
        seq: state.applied().next(),
        proposal: Proposal::new(Timestamp(at), command),
    };
    state.apply(entry).outcome
}

fn redemption(number: u64, hold_seconds: u64) -> Command {
    Command::Redeem(Redeem {
        target: COUPON,
        digest: digest(number),
        redemption: id(number),
        reference: reference(number),
        hold_seconds,
    })
}

fn coupon(state: &mut State) -> Arc<FilterView> {
    state.publish();
    state.view().find(Kind::Coupon, "welcome").unwrap()
}

/// The chunks of a snapshot's sections, by owner and part.
#[derive(Default)]
struct StoredSections(BTreeMap<(u64, u64), Vec<Vec<u8>>>);

impl Sections for StoredSections {
    type Error = Infallible;

    fn chunk(
        &mut self,
        section: SectionId,
        chunk: u32,
        out: &mut Vec<u8>,
    ) -> Result<bool, Infallible> {
        let chunks = self.0.get(&(section.owner, section.part));
        let chunk = chunks.and_then(|chunks| chunks.get(chunk as usize));
        out.clear();
        out.extend_from_slice(chunk.map_or(&[], Vec::as_slice));
        Ok(chunk.is_some())
    }

    fn reserve(&mut self, _: u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn table(
        &mut self,
        section: SectionId,
        table: &Restoring<'_>,
    ) -> Result<(), RestoreError<Infallible>> {
        table.load(0..table.chunks(), |chunk, out| {
            self.chunk(section, chunk, out).map(drop)
        })
    }
}
