//! The filter compared with alternative crates and with bare memory reads: `cargo bench --bench filter [-- [alone] ITEMS...]`; `alone`
//! leaves out the crates. One thread, 16-byte keys hashed inside the loop. The crates take turns and each value is the median round, since
//! the machine is shared. Times are nanoseconds per item, ratios are relative to cuckood.
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
const BATCH: usize = 1_024;
/// The fewest checks of each of two readers.
const TWO_READERS_CHECKS: usize = 50_000_000;
/// The error rate of 16-bit fingerprints in buckets of four at 95 % load, which the other crates are configured for.
const ERROR_RATE: f64 = 1.16e-4;
/// The error rate of a filter that was created without one.
const ERROR_RATE_DEFAULT: f64 = 0.001;
/// Steps of the filter that forgets.
const STEPS: u32 = 8;
/// How many times its first capacity the grown filter holds.
const GROWN: usize = 1_000;
/// Rows that are compared: of a plain filter, and of one that forgets; of one that was sized for its items, and of one that grew.
const PAIRS: [(&str, &str); 4] = [
    (
        "batched insert, prehashed",
        "forgetting: batched insert, prehashed",
    ),
    (
        "batched check, prehashed",
        "forgetting: batched check, prehashed",
    ),
    (
        "batched check, prehashed",
        "the same, a step being forgotten",
    ),
    (
        "sized for all: batched check, prehashed",
        "grown 1 000 times: batched check, prehashed",
    ),
];

/// The suffix of a value's name if it isn't a time.
const BITS: &str = ", bits";

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
    let contestants: [(&str, Measure); 5] = [
        ("cuckood", |keys, strangers| {
            measure::<Ours>(keys, strangers)
        }),
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
    let contestants = &contestants[..if alone { 1 } else { contestants.len() }];
    let mut rounds: Vec<Vec<Figures>> = contestants.iter().map(|_| Vec::new()).collect();
    let mut own = Vec::new();
    for _ in 0..ROUNDS {
        for ((_, contestant), rounds) in contestants.iter().zip(&mut rounds) {
            rounds.push(contestant(&keys, &strangers));
        }
        own.push(
            [
                measure_own(&keys),
                measure_forgetting(&keys),
                measure_strict(&keys),
                measure_grown(&keys),
            ]
            .concat(),
        );
    }
    println!(
        "{items} items, 16-bit fingerprints, median of {ROUNDS} rounds, ns an item (x cuckood)"
    );
    let medians: Vec<Figures> = rounds.iter_mut().map(|rounds| median(rounds)).collect();
    print!("{:26}", "");
    medians[0].iter().for_each(|(name, _)| print!("{name:>16}"));
    println!();
    for ((name, _), figures) in contestants.iter().zip(&medians) {
        print!("{name:26}");
        for ((what, figure), (_, ours)) in figures.iter().zip(&medians[0]) {
            let ratio = if *what == "bits" {
                String::new()
            } else {
                format!("({:.1})", figure / ours)
            };
            print!("{figure:>9.1} {ratio:<6}");
        }
        println!();
    }
    let own = median(&mut own);
    let (_, memory) = own[0];
    println!();
    for (what, figure) in &own {
        match what.strip_suffix(BITS) {
            Some(what) => println!("{what:44}{figure:>8.1} bits an item"),
            None => println!(
                "{what:44}{figure:>8.1} ns   {:>5.2} x the memory alone",
                figure / memory
            ),
        }
    }
    let figure = |row: &str| {
        own.iter()
            .find(|(what, _)| *what == row)
            .map_or(0.0, |(_, figure)| *figure)
    };
    for (plain, forgetting) in PAIRS {
        println!(
            "{forgetting:44}{:>8.2} x {plain}",
            figure(forgetting) / figure(plain)
        );
    }
    println!();
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

/// Operations that only cuckood has, and two memory reads per item, which are a lower bound for any filter with two buckets. A
/// single check is bounded by those reads and the comparison: without prefetching, each further instruction leaves fewer reads in
/// flight.
fn measure_own(keys: &[Key]) -> Figures {
    let items = keys.len();
    let secret = secret();
    let layout = layout(items);
    let digests: Vec<Digest> = keys.iter().map(|key| secret.digest(key)).collect();
    let words = vec![1_u64; layout.memory_bytes() as usize / 8];
    let at = |digest: u64| word_of(digest, &words);
    let memory = two_lines(&digests, &words);
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
    let mut filter = Filter::new(Mode::Compact, layout, Growth::Fixed, None);
    let mut hashed = Vec::with_capacity(BATCH);
    let insert = ns(items, || {
        for keys in keys.chunks(BATCH) {
            hashed.clear();
            hashed.extend(keys.iter().map(|key| secret.digest(key)));
            filter.insert_many(&hashed, false).unwrap();
        }
    });
    let reader = filter.reader();
    let mut found = Vec::new();
    let view = reader.view(0);
    let check = ns(items, || {
        for keys in keys.chunks(BATCH) {
            hashed.clear();
            hashed.extend(keys.iter().map(|key| secret.digest(key)));
            view.contains_many(&hashed, &mut found);
            black_box(&found);
        }
    });
    let mut prehashed = || {
        for digests in digests.chunks(BATCH) {
            view.contains_many(digests, &mut found);
            black_box(&found);
        }
    };
    let check_prehashed = ns(items, &mut prehashed);
    let single = ns(items, || {
        _ = black_box(
            digests
                .iter()
                .filter(|digest| view.contains(**digest))
                .count(),
        )
    });
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
    drop(view);
    let remove = ns(items, || {
        for digests in digests.chunks(BATCH) {
            black_box(filter.remove_many(digests, false));
        }
    });
    vec![
        ("memory: two independent lines an item", memory),
        ("the same lines compared with a fingerprint", compared),
        ("batched check, prehashed", check_prehashed),
        ("batched check", check),
        ("single check, prehashed", single),
        ("the same, two readers, time by both", two_single),
        ("batched check, prehashed, two readers", two_batched),
        ("batched insert", insert),
        ("batched remove, prehashed", remove),
    ]
}

/// A filter that forgets, compared with a plain one of the same error rate: both get the same items, spread over the steps.
fn measure_forgetting(keys: &[Key]) -> Figures {
    let items = keys.len();
    let secret = secret();
    let digests: Vec<Digest> = keys.iter().map(|key| secret.digest(key)).collect();
    let mut plain = Filter::new(Mode::Compact, layout(items), Growth::Fixed, None);
    let plain_insert = ns(items, || {
        for digests in digests.chunks(BATCH) {
            plain.insert_many(digests, false).unwrap();
        }
    });
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
    let reader = filter.reader();
    let mut found = Vec::new();
    let mut check_in = |step: u64| {
        ns(items, || {
            for digests in digests.chunks(BATCH) {
                reader.view(step).contains_many(digests, &mut found);
                black_box(&found);
            }
        })
    };
    let check = check_in(u64::from(STEPS));
    let forgotten = check_in(u64::from(STEPS) + 1);
    vec![
        (PAIRS[0].0, plain_insert),
        (PAIRS[0].1, insert),
        (PAIRS[1].1, check),
        (PAIRS[2].1, forgotten),
    ]
}

/// Single operations of a strict filter, which holds whole digests.
fn measure_strict(keys: &[Key]) -> Figures {
    let items = keys.len();
    let secret = secret();
    let digests: Vec<Digest> = keys.iter().map(|key| secret.digest(key)).collect();
    let layout = Layout::strict(items as u64).unwrap();
    let memory = two_lines(&digests, &vec![1_u64; layout.memory_bytes() as usize / 8]);
    let mut filter = Filter::new(Mode::Strict, layout, Growth::Fixed, None);
    let insert = ns(items, || {
        digests
            .iter()
            .for_each(|digest| _ = filter.insert(*digest, false).unwrap())
    });
    let reader = filter.reader();
    let view = reader.view(0);
    let check = ns(items, || {
        assert!(digests.iter().all(|digest| view.contains(*digest)))
    });
    vec![
        ("strict: two independent lines an item", memory),
        ("strict: single check, prehashed", check),
        ("strict: single insert, prehashed", insert),
    ]
}

/// A filter created for a thousandth of its items, compared with one created for all of them.
fn measure_grown(keys: &[Key]) -> Figures {
    let items = keys.len();
    let secret = secret();
    let digests: Vec<Digest> = keys.iter().map(|key| secret.digest(key)).collect();
    let [sized, grown] = [items, items / GROWN].map(|capacity| {
        let layout = Layout::compact(capacity as u64, ERROR_RATE_DEFAULT, Growth::Auto).unwrap();
        let mut filter = Filter::new(Mode::Compact, layout, Growth::Auto, None);
        for digests in digests.chunks(BATCH) {
            filter.insert_many(digests, false).unwrap();
        }
        let reader = filter.reader();
        let mut found = Vec::new();
        let view = reader.view(0);
        let check = ns(items, || {
            for digests in digests.chunks(BATCH) {
                view.contains_many(digests, &mut found);
                black_box(&found);
            }
        });
        (check, view.memory_bytes() as f64 * 8.0 / items as f64)
    });
    vec![
        (PAIRS[3].0, sized.0),
        (PAIRS[3].1, grown.0),
        ("sized for all, bits", sized.1),
        ("grown 1 000 times, bits", grown.1),
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
