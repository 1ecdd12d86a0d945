//! The filter compared with alternative crates and with bare memory reads: `cargo bench --bench filter [-- [alone] ITEMS...]`; `alone`
//! leaves out the crates. One thread. The contestants take turns and each value is the median round, since the machine is shared. Times are
//! nanoseconds per item.
//!
//! The crates get 16-byte keys, which are hashed inside the loop. Our own filters, measured with single and with batched operations, get
//! digests, as they do from the service.
//!
//! cuckood asks for huge pages. `make bench WHAT=filter` makes glibc ask for them too, for the other crates and for the bare reads.

// A benchmark prints its results and stops at the first error.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::too_many_lines
)]

use cuckood_filter::{
    Digest, Filter, Growth, Layout, MAX_SEARCH_DEFAULT, Mode, Reader, Secret, TableView,
};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 5;
/// Filters of more items than this are measured in fewer rounds.
const LARGE: usize = 10_000_000;
const ROUNDS_LARGE: usize = 3;
const BATCH: usize = 1_024;
/// The fewest checks of each of two readers.
const TWO_READERS_CHECKS: usize = 50_000_000;
/// The error rate of 16-bit fingerprints in buckets of four at 95 % load, which the other crates are configured for.
const ERROR_RATE: f64 = 1.16e-4;
/// The error rate of a filter that was created without one.
const ERROR_RATE_DEFAULT: f64 = 0.001;
/// Steps of the filter that forgets.
const STEPS: u32 = 8;
const PLAIN_INSERT: &str = "plain: batched insert";
const PLAIN_CHECK: &str = "plain: batched check";
/// Rows of a filter that forgets, and the rows of a plain one that they are compared with.
const FORGETTING: [(&str, &str); 3] = [
    (PLAIN_INSERT, "forgetting: batched insert"),
    (PLAIN_CHECK, "forgetting: batched check"),
    (PLAIN_CHECK, "the same, a step being forgotten"),
];
/// What is measured with each of our own filters: single operations, each followed by the same in batches, and memory.
const OPERATIONS: [&str; 9] = [
    "insert", "batched", "hit", "batched", "miss", "batched", "remove", "batched", "bits",
];

type Key = [u8; 16];

/// Nanoseconds per item for each operation.
type Figures = Vec<(&'static str, f64)>;

/// Measures a filter with its members and with items that were never added.
type Measure = fn(&[Key], &[Key]) -> Figures;

fn main() {
    let sizes: Vec<usize> = std::env::args()
        .filter_map(|argument| argument.parse().ok())
        .collect();
    for items in if sizes.is_empty() {
        vec![1_000_000]
    } else {
        sizes
    } {
        run(items, std::env::args().any(|argument| argument == "alone"));
    }
}

fn run(items: usize, alone: bool) {
    let keys: Vec<Key> = (0..items).map(key).collect();
    let strangers: Vec<Key> = (items..2 * items).map(key).collect();
    let contestants: [(&str, Measure); 6] = [
        ("cuckood", |keys, strangers| {
            measure::<Ours>(keys, strangers)
        }),
        ("cuckood, batched", measure_batched),
        ("cuckoofilter (8 bit)", |keys, strangers| {
            measure::<Cuckoofilter>(keys, strangers)
        }),
        ("scalable_cuckoo_filter", |keys, strangers| {
            measure::<Scalable>(keys, strangers)
        }),
        ("autoscale_cuckoo_filter", |keys, strangers| {
            measure::<Autoscale>(keys, strangers)
        }),
        ("qfilter", |keys, strangers| {
            measure::<Qfilter>(keys, strangers)
        }),
    ];
    let contestants = &contestants[..if alone { 2 } else { contestants.len() }];
    let subjects = subjects(items);
    let mut rounds: Vec<Vec<Figures>> = contestants.iter().map(|_| Vec::new()).collect();
    let mut own: Vec<Vec<Figures>> = subjects.iter().map(|_| Vec::new()).collect();
    let mut rest = Vec::new();
    let secret = secret();
    let digests_of = |keys: &[Key]| {
        keys.iter()
            .map(|key| secret.digest(key))
            .collect::<Vec<_>>()
    };
    let digests = digests_of(&keys);
    let absent = digests_of(&strangers);
    let rounds_wanted = if items > LARGE { ROUNDS_LARGE } else { ROUNDS };
    for _ in 0..rounds_wanted {
        for ((_, contestant), rounds) in contestants.iter().zip(&mut rounds) {
            rounds.push(contestant(&keys, &strangers));
        }
        for (subject, rounds) in subjects.iter().zip(&mut own) {
            rounds.push(subject.measure(&digests, &absent));
        }
        rest.push([measure_reads(&digests), measure_forgetting(&digests)].concat());
    }
    println!("{items} items, median of {rounds_wanted} rounds, ns an item");
    println!("\n16-byte keys, 16-bit fingerprints (x the first row):");
    let names = contestants.iter().map(|(name, _)| *name);
    print_table(names.zip(rounds.iter_mut().map(|rounds| median(rounds))));
    println!("\ndigests (x the first row):");
    let names = subjects.iter().map(|subject| subject.name);
    print_table(names.zip(own.iter_mut().map(|rounds| median(rounds))));
    let rest = median(&mut rest);
    println!();
    for (what, figure) in &rest {
        println!("{what:44}{figure:>8.1} ns");
    }
    let figure = |row: &str| {
        rest.iter()
            .find(|(what, _)| *what == row)
            .map_or(0.0, |(_, figure)| *figure)
    };
    for (plain, forgetting) in FORGETTING {
        println!(
            "{forgetting:44}{:>8.2} x {plain}",
            figure(forgetting) / figure(plain)
        );
    }
    println!();
}

/// Prints the figures of each row, and their ratios to those of the first one.
fn print_table<'a>(rows: impl Iterator<Item = (&'a str, Figures)>) {
    let mut first = Figures::new();
    for (row, figures) in rows {
        if first.is_empty() {
            print!("{:28}", "");
            figures.iter().for_each(|(what, _)| print!("{what:>15}"));
            println!();
            first.clone_from(&figures);
        }
        print!("{row:28}");
        for ((_, figure), (_, of_first)) in figures.iter().zip(&first) {
            print!("{figure:>8.1} ({:>4.2})", figure / of_first);
        }
        println!();
    }
}

fn median(rounds: &mut [Figures]) -> Figures {
    let names: Vec<&str> = rounds[0].iter().map(|(name, _)| *name).collect();
    let of = |index: usize| {
        let mut figures: Vec<f64> = rounds.iter().map(|figures| figures[index].1).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    names
        .into_iter()
        .enumerate()
        .map(|(index, name)| (name, of(index)))
        .collect()
}

fn ns(items: usize, work: impl FnOnce()) -> f64 {
    let since = Instant::now();
    work();
    since.elapsed().as_nanos() as f64 / items as f64
}

fn key(number: usize) -> Key {
    let mut key = [0; 16];
    key.copy_from_slice(format!("u{number:015}").as_bytes());
    key
}

/// A filter of any of the crates.
trait Contestant {
    fn new(items: usize) -> Self;
    fn insert(&mut self, key: &Key);
    fn contains(&self, key: &Key) -> bool;
    fn remove(&mut self, key: &Key) -> bool;
    fn bits(&self) -> f64;
}

fn measure<C: Contestant>(keys: &[Key], strangers: &[Key]) -> Figures {
    let items = keys.len();
    let mut filter = C::new(items);
    let insert = ns(items, || keys.iter().for_each(|key| filter.insert(key)));
    let bits = filter.bits() / items as f64;
    let hit = ns(items, || {
        assert!(keys.iter().all(|key| filter.contains(key)))
    });
    let miss = ns(items, || {
        _ = black_box(strangers.iter().filter(|key| filter.contains(key)).count())
    });
    let remove = ns(items, || assert!(keys.iter().all(|key| filter.remove(key))));
    vec![
        ("insert", insert),
        ("hit", hit),
        ("miss", miss),
        ("remove", remove),
        ("bits", bits),
    ]
}

fn secret() -> Secret {
    Secret::new(std::array::from_fn(|byte| {
        (byte as u8).wrapping_mul(167).wrapping_add(29)
    }))
}

fn layout(items: usize) -> Layout {
    Layout::compact_with(items as u64, 16, 4, MAX_SEARCH_DEFAULT, Growth::Fixed).unwrap()
}

fn word_of(digest: u64, words: &[u64]) -> usize {
    ((u128::from(digest) * words.len() as u128) >> 64) as usize
}

/// The time of two memory reads per item.
fn two_lines(digests: &[Digest], words: &[u64]) -> f64 {
    ns(digests.len(), || {
        let mut sum = 0;
        for digest in digests {
            sum +=
                words[word_of(digest.0, words)] + words[word_of(digest.0.rotate_left(32), words)];
        }
        black_box(sum);
    })
}

/// One of our own filters.
struct Subject {
    name: &'static str,
    mode: Mode,
    growth: Growth,
    layout: Layout,
}

fn subjects(items: usize) -> [Subject; 5] {
    let growing = |name, capacity: usize| Subject {
        name,
        mode: Mode::Compact,
        growth: Growth::Auto,
        layout: Layout::compact(capacity as u64, ERROR_RATE_DEFAULT, Growth::Auto).unwrap(),
    };
    [
        Subject {
            name: "16-bit fingerprints",
            mode: Mode::Compact,
            growth: Growth::Fixed,
            layout: layout(items),
        },
        growing("error rate 0.001", items),
        growing("the same, grown 10 times", items / 10),
        growing("the same, grown 1 000 times", items / 1_000),
        Subject {
            name: "strict",
            mode: Mode::Strict,
            growth: Growth::Fixed,
            layout: Layout::strict(items as u64).unwrap(),
        },
    ]
}

impl Subject {
    fn filter(&self) -> Filter {
        Filter::new(self.mode, self.layout, self.growth, None)
    }

    /// Measures [`OPERATIONS`].
    fn measure(&self, digests: &[Digest], absent: &[Digest]) -> Figures {
        let items = digests.len();
        let mut filter = self.filter();
        let insert = ns(items, || {
            for &digest in digests {
                filter.insert(digest, false).unwrap();
            }
        });
        let reader = filter.reader();
        let view = reader.view(0);
        let check = |digests: &[Digest]| {
            ns(items, || {
                let found = digests.iter().filter(|digest| view.contains(**digest));
                black_box(found.count());
            })
        };
        let [hit, miss] = [digests, absent].map(check);
        let bits = view.memory_bytes() as f64 * 8.0 / items as f64;
        drop(view);
        let remove = ns(items, || {
            assert!(digests.iter().all(|&digest| filter.remove(digest)))
        });
        let mut filter = self.filter();
        let batched_insert = ns(items, || {
            for digests in digests.chunks(BATCH) {
                filter.insert_many(digests, false).unwrap();
            }
        });
        let reader = filter.reader();
        let view = reader.view(0);
        let mut found = Vec::new();
        let [batched_hit, batched_miss] = [digests, absent].map(|digests| {
            ns(items, || {
                for digests in digests.chunks(BATCH) {
                    view.contains_many(digests, &mut found);
                    black_box(&found);
                }
            })
        });
        drop(view);
        let batched_remove = ns(items, || {
            for digests in digests.chunks(BATCH) {
                black_box(filter.remove_many(digests, false));
            }
        });
        let figures = [
            insert,
            batched_insert,
            hit,
            batched_hit,
            miss,
            batched_miss,
            remove,
            batched_remove,
            bits,
        ];
        OPERATIONS.into_iter().zip(figures).collect()
    }
}

/// Two memory reads per item, which are a lower bound for any filter with two buckets, and two readers at a time. A single check is bounded
/// by those reads and the comparison: without prefetching, each further instruction leaves fewer reads in flight.
fn measure_reads(digests: &[Digest]) -> Figures {
    let items = digests.len();
    let layout = layout(items);
    let words = vec![1_u64; layout.memory_bytes() as usize / 8];
    let at = |digest: u64| word_of(digest, &words);
    let memory = two_lines(digests, &words);
    let compared = ns(items, || {
        // The bare comparison of `Lanes::any_equal`: whether one of four 16-bit slots holds the fingerprint.
        let holds = |word: u64, copies: u64| {
            (word ^ copies).wrapping_sub(0x1_0001_0001_0001)
                & !(word ^ copies)
                & 0x8000_8000_8000_8000
        };
        let either = |digest: &&Digest| {
            let copies = (digest.0 & 0xffff) * 0x1_0001_0001_0001;
            (holds(words[at(digest.0)], copies)
                | holds(words[at(digest.0.rotate_left(32))], copies))
                != 0
        };
        black_box(digests.iter().filter(either).count());
    });
    drop(words);
    let strict_bytes = Layout::strict(items as u64).unwrap().memory_bytes();
    let strict_memory = two_lines(digests, &vec![1_u64; strict_bytes as usize / 8]);
    let mut filter = Filter::new(Mode::Compact, layout, Growth::Fixed, None);
    for digests in digests.chunks(BATCH) {
        filter.insert_many(digests, false).unwrap();
    }
    let reader = filter.reader();
    // Long enough that the delay of the second thread's start doesn't matter.
    let passes = (TWO_READERS_CHECKS / items).max(1);
    let two_readers = |look: &(dyn Fn(&TableView<'_>) + Sync)| {
        ns(2 * passes * items, || {
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| (0..passes).for_each(|_| look(&reader.view(0))));
                }
            });
        })
    };
    let two_single = two_readers(&|view| {
        black_box(
            digests
                .iter()
                .filter(|digest| view.contains(**digest))
                .count(),
        );
    });
    let two_batched = two_readers(&|view| {
        let mut found = Vec::new();
        for digests in digests.chunks(BATCH) {
            view.contains_many(digests, &mut found);
            black_box(&found);
        }
    });
    vec![
        ("memory: two independent lines", memory),
        ("the same compared with a fingerprint", compared),
        ("memory: two lines of a strict filter", strict_memory),
        ("single check, two readers, time by both", two_single),
        ("batched check, two readers", two_batched),
    ]
}

/// A filter that forgets, compared with a plain one of the same error rate: both get the same items, spread over the steps.
fn measure_forgetting(digests: &[Digest]) -> Figures {
    let items = digests.len();
    let check_in = |filter: &Filter, step: u64| {
        let reader = filter.reader();
        let view = reader.view(step);
        let mut found = Vec::new();
        ns(items, || {
            for digests in digests.chunks(BATCH) {
                view.contains_many(digests, &mut found);
                black_box(&found);
            }
        })
    };
    let mut plain = Filter::new(Mode::Compact, layout(items), Growth::Fixed, None);
    let plain_insert = ns(items, || {
        for digests in digests.chunks(BATCH) {
            plain.insert_many(digests, false).unwrap();
        }
    });
    let plain_check = check_in(&plain, 0);
    drop(plain);
    let layout = Layout::forgetting(items as u64, ERROR_RATE, Growth::Fixed, STEPS).unwrap();
    let mut filter = Filter::new(Mode::Compact, layout, Growth::Fixed, Some(STEPS));
    let insert = ns(items, || {
        for (step, digests) in digests
            .chunks(items.div_ceil(STEPS as usize + 1))
            .enumerate()
        {
            _ = filter.advance(step as u64);
            for digests in digests.chunks(BATCH) {
                filter.insert_many(digests, false).unwrap();
            }
        }
    });
    vec![
        (PLAIN_INSERT, plain_insert),
        (PLAIN_CHECK, plain_check),
        (FORGETTING[0].1, insert),
        (FORGETTING[1].1, check_in(&filter, u64::from(STEPS))),
        (FORGETTING[2].1, check_in(&filter, u64::from(STEPS) + 1)),
    ]
}

/// Batches of keys, hashed inside the loop.
fn measure_batched(keys: &[Key], strangers: &[Key]) -> Figures {
    let items = keys.len();
    let secret = secret();
    let mut filter = Filter::new(Mode::Compact, layout(items), Growth::Fixed, None);
    let mut digests = Vec::with_capacity(BATCH);
    let mut batches = |keys: &[Key], work: &mut dyn FnMut(&[Digest])| {
        ns(items, || {
            for keys in keys.chunks(BATCH) {
                digests.clear();
                digests.extend(keys.iter().map(|key| secret.digest(key)));
                work(&digests);
            }
        })
    };
    let insert = batches(keys, &mut |digests| {
        filter.insert_many(digests, false).unwrap();
    });
    let reader = filter.reader();
    let view = reader.view(0);
    let mut found = Vec::new();
    let [hit, miss] = [keys, strangers].map(|keys| {
        batches(keys, &mut |digests| {
            view.contains_many(digests, &mut found);
            black_box(&found);
        })
    });
    let bits = view.memory_bytes() as f64 * 8.0 / items as f64;
    drop(view);
    let remove = batches(keys, &mut |digests| {
        black_box(filter.remove_many(digests, false));
    });
    vec![
        ("insert", insert),
        ("hit", hit),
        ("miss", miss),
        ("remove", remove),
        ("bits", bits),
    ]
}

struct Ours(Filter, TableView<'static>, Secret);

impl Contestant for Ours {
    fn new(items: usize) -> Self {
        let filter = Filter::new(Mode::Compact, layout(items), Growth::Fixed, None);
        // A few bytes for each round: the other contestants keep no view of a reader either.
        let reader: &'static Reader = Box::leak(Box::new(filter.reader()));
        Self(filter, reader.view(0), secret())
    }

    fn insert(&mut self, key: &Key) {
        self.0.insert(self.2.digest(key), false).unwrap();
    }

    fn contains(&self, key: &Key) -> bool {
        self.1.contains(self.2.digest(key))
    }

    fn remove(&mut self, key: &Key) -> bool {
        self.0.remove(self.2.digest(key))
    }

    fn bits(&self) -> f64 {
        self.1.memory_bytes() as f64 * 8.0
    }
}

struct Cuckoofilter(cuckoofilter::CuckooFilter<std::collections::hash_map::DefaultHasher>);

impl Contestant for Cuckoofilter {
    fn new(items: usize) -> Self {
        Self(cuckoofilter::CuckooFilter::with_capacity(items))
    }

    fn insert(&mut self, key: &Key) {
        self.0.add(key).unwrap();
    }

    fn contains(&self, key: &Key) -> bool {
        self.0.contains(key)
    }

    fn remove(&mut self, key: &Key) -> bool {
        self.0.delete(key)
    }

    fn bits(&self) -> f64 {
        self.0.memory_usage() as f64 * 8.0
    }
}

struct Scalable(scalable_cuckoo_filter::ScalableCuckooFilter<Key>);

impl Contestant for Scalable {
    fn new(items: usize) -> Self {
        Self(scalable_cuckoo_filter::ScalableCuckooFilter::new(
            items, ERROR_RATE,
        ))
    }

    fn insert(&mut self, key: &Key) {
        self.0.insert(key);
    }

    fn contains(&self, key: &Key) -> bool {
        self.0.contains(key)
    }

    fn remove(&mut self, key: &Key) -> bool {
        self.0.remove(key)
    }

    fn bits(&self) -> f64 {
        self.0.bits() as f64
    }
}

struct Autoscale(autoscale_cuckoo_filter::CuckooFilter<Key>);

impl Contestant for Autoscale {
    fn new(items: usize) -> Self {
        Self(autoscale_cuckoo_filter::CuckooFilter::new(
            items, ERROR_RATE,
        ))
    }

    fn insert(&mut self, key: &Key) {
        self.0.add(key);
    }

    fn contains(&self, key: &Key) -> bool {
        self.0.contains(key)
    }

    fn remove(&mut self, key: &Key) -> bool {
        self.0.remove(key)
    }

    fn bits(&self) -> f64 {
        self.0.bits() as f64
    }
}

struct Qfilter(qfilter::Filter);

impl Contestant for Qfilter {
    fn new(items: usize) -> Self {
        Self(qfilter::Filter::new(items as u64, ERROR_RATE).unwrap())
    }

    fn insert(&mut self, key: &Key) {
        self.0.insert_duplicated(key).unwrap();
    }

    fn contains(&self, key: &Key) -> bool {
        self.0.contains(key)
    }

    fn remove(&mut self, key: &Key) -> bool {
        self.0.remove(key)
    }

    fn bits(&self) -> f64 {
        self.0.memory_usage() as f64 * 8.0
    }
}
