//! Readers race with the writer while items move and a table is copied: in threads that pause where it matters and, in a build for Loom, in
//! every order.

use crate::chunk::TableId;
use crate::hash::Digest;
use crate::layout::{Layout, Mode};
use crate::plan::TablePlan;
use crate::slots::LiveTags;
use crate::table::Table;
use crate::writer::TableWriter;

fn scrambled(number: u64) -> Digest {
    Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))
}

fn plan(mode: Mode, bits: u8, bucket_size: u8, buckets: u64) -> TablePlan {
    let layout = Layout {
        fingerprint_bits: bits,
        step_bits: 0,
        bucket_size,
        buckets,
        max_search: 50,
    };
    TablePlan::first(mode, &layout)
}

fn writer(plan: TablePlan, max_search: u32) -> TableWriter {
    TableWriter::new(TableId(0), Table::new(plan), max_search)
}

/// A sequence of changes of a tiny, nearly full table: inserts and removes move the first item to its second bucket and back.
#[derive(Clone, Copy)]
struct Story {
    plan: TablePlan,
    /// Items in it at the beginning.
    residents: u64,
    steps: u64,
    /// The lowest number whose sequence moves the first item to and fro.
    number: u64,
}

impl Story {
    fn all() -> [Self; 2] {
        [
            Self {
                plan: plan(Mode::Compact, 16, 2, 4),
                residents: 6,
                steps: 6,
                number: COMPACT_NUMBER,
            },
            Self {
                plan: plan(Mode::Strict, 62, 4, 4),
                residents: 14,
                steps: 4,
                number: STRICT_NUMBER,
            },
        ]
    }

    fn item(&self, number: u64) -> Digest {
        scrambled(self.number * 32 + number)
    }

    /// The item that is moved.
    fn moving(&self) -> Digest {
        self.item(0)
    }

    fn add(&self, writer: &mut TableWriter, item: Digest) {
        let _ = match self.plan.mode {
            Mode::Compact => writer.insert(item, 0, LiveTags::NONE).is_ok(),
            Mode::Strict => writer.insert_strict(item, 1).is_ok(),
        };
    }

    fn begin(&self) -> TableWriter {
        let mut writer = writer(self.plan, 50);
        (0..self.residents).for_each(|number| self.add(&mut writer, self.item(number)));
        writer
    }

    /// Inserts another item, or removes an initial one.
    fn step(&self, writer: &mut TableWriter, number: u64) {
        let choice = scrambled(self.number ^ number << 60).0;
        if choice.is_multiple_of(2) {
            return self.add(writer, self.item(16 + number));
        }
        let leaving = self.item(1 + choice / 2 % (self.residents - 1));
        match self.plan.mode {
            Mode::Compact => _ = writer.remove(leaving, LiveTags::NONE),
            Mode::Strict if writer.table.get(leaving).is_some() => writer.set_tag(leaving, None),
            Mode::Strict => {}
        }
    }
}

const COMPACT_NUMBER: u64 = 1_496;
const STRICT_NUMBER: u64 = 33_547;

#[cfg(not(loom))]
mod threads {
    use super::*;
    use crate::table::PAUSE;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    /// A reader pauses between its two loads while the writer moves items to and fro. Without the sequence lock it would miss some: an
    /// item can move from the second bucket to the first just in between.
    #[test]
    fn readers_miss_nothing_while_items_move() {
        let mut writer = writer(plan(Mode::Compact, 16, 4, 512), 2_000);
        let residents: Vec<Digest> = (0..1_000).map(scrambled).collect();
        for &digest in &residents {
            writer.insert(digest, 0, LiveTags::NONE).unwrap();
        }
        let table = writer.table.clone();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut missed = 0;
                for round in 0..hits() / residents.len() {
                    PAUSE.set(round as u32 % 64);
                    missed += residents
                        .iter()
                        .filter(|digest| !table.contains(**digest, LiveTags::NONE))
                        .count();
                }
                done.store(true, Relaxed);
                missed
            });
            let mut next = 1_000;
            while !done.load(Relaxed) {
                // The table is filled up to 97%, where nearly every insert moves other items, and emptied again.
                let passing = (next..next + 980).map(scrambled);
                next += 980;
                let came: Vec<Digest> = passing
                    .filter(|digest| writer.insert(*digest, 0, LiveTags::NONE).is_ok())
                    .collect();
                for digest in came {
                    writer.remove(digest, LiveTags::NONE);
                }
            }
            assert_eq!(reader.join().unwrap(), 0, "items were missed");
        });
    }

    /// The buckets that hold the item that is moved, or a colliding one.
    fn places(story: &Story, writer: &TableWriter) -> Vec<u64> {
        let mut alone = self::writer(story.plan, 50);
        story.add(&mut alone, story.moving());
        let mut value = 0;
        let mut places = Vec::new();
        alone.table.for_each_in(0..4, |_, _, held| value = held);
        writer.table.for_each_in(0..4, |bucket, _, held| {
            places.extend((held == value).then_some(bucket))
        });
        places
    }

    fn moves_to_and_fro(story: &Story) -> bool {
        let mut writer = story.begin();
        let first = places(story, &writer);
        let mut route = vec![first];
        for number in 0..story.steps {
            story.step(&mut writer, number);
            route.push(places(story, &writer));
        }
        route.dedup();
        route.len() >= 3 && route.iter().all(|places| places.len() == 1)
    }

    /// The sequences that Loom tries in every order really move the item.
    #[test]
    fn story_moves_item_in_both_directions() {
        for story in Story::all() {
            if !moves_to_and_fro(&story) {
                let lowest = (0..).find(|&number| moves_to_and_fro(&Story { number, ..story }));
                panic!("the lowest number is {lowest:?}");
            }
        }
    }

    /// Lookups that the reader makes; a long run wants 100 million.
    fn hits() -> usize {
        std::env::var("CUCKOOD_RACE_HITS")
            .ok()
            .and_then(|hits| hits.parse().ok())
            .unwrap_or(2_000_000)
    }
}

#[cfg(loom)]
mod orders {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::sync::atomic::Ordering::{Acquire, Release};
    use loom::thread;

    fn is_found(story: &Story, table: &Table) -> bool {
        match story.plan.mode {
            Mode::Compact => table.contains(story.moving(), LiveTags::NONE),
            Mode::Strict => table.get(story.moving()).is_some(),
        }
    }

    fn model() -> loom::model::Builder {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.max_branches = 100_000;
        model
    }

    /// Whatever the order of loads and stores, and whatever of them a reader may see, it finds an item that is being moved.
    #[test]
    fn moved_items_are_found_in_every_order() {
        for story in Story::all() {
            model().check(move || {
                let mut writer = story.begin();
                let table = writer.table.clone();
                let reader =
                    thread::spawn(move || assert!(is_found(&story, &table), "it was missed"));
                (0..story.steps).for_each(|number| story.step(&mut writer, number));
                reader.join().unwrap();
            });
        }
    }

    /// A table is copied and replaced by a larger one, while other items are inserted and removed in copied buckets. A reader finds a
    /// stored item at every moment.
    #[test]
    fn copied_items_are_found_in_every_order() {
        let strict = Story {
            residents: 5,
            steps: 1,
            ..Story::all()[1]
        };
        model().check(move || {
            let mut writer = strict.begin();
            let larger = strict.plan.doubled(1).unwrap();
            let shown = Arc::new((
                writer.table.clone(),
                std::sync::OnceLock::new(),
                AtomicUsize::new(0),
            ));
            let seen = shown.clone();
            let reader = thread::spawn(move || {
                let (old, new, is_new) = &*seen;
                let table = if is_new.load(Acquire) == 1 {
                    new.get().unwrap()
                } else {
                    old
                };
                assert!(is_found(&strict, table), "it was missed");
            });
            writer.start_copy(Table::new(larger), 0);
            let mut to = writer.copy_on(2);
            strict.step(&mut writer, 0);
            while to.is_none() {
                to = writer.copy_on(1);
            }
            assert!(shown.1.set(to.unwrap()).is_ok());
            shown.2.store(1, Release);
            reader.join().unwrap();
        });
    }
}
