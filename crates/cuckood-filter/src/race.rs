//! Readers race with the writer while items move: in threads that pause where it matters and, in a build for Loom, in every order.

use super::codec::TableId;
use super::hash::Digest;
use super::plan::TablePlan;
use super::writer::TableWriter;

fn scrambled(number: u64) -> Digest {
    Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))
}

/// A sequence of changes of a tiny table, so full that an insert moves items: others come and go, and the first item is moved to its
/// second bucket and back.
#[derive(Clone, Copy)]
struct Story {
    plan: TablePlan,
    /// Bits of state that its items have.
    state: u64,
    /// Items in it at the beginning.
    residents: u64,
    steps: u64,
    /// The lowest number whose sequence moves the first item to and fro.
    number: u64,
}

const STORIES: [Story; 2] = [
    Story {
        plan: TablePlan::Segment { base_bits: 16, step_bits: 0, bucket_size: 2, base_buckets: 4, k: 0 },
        state: 0,
        residents: 6,
        steps: 6,
        number: 1_496,
    },
    Story { plan: TablePlan::Strict { buckets: 4 }, state: 1, residents: 14, steps: 4, number: 5_239 },
];

impl Story {
    fn item(&self, number: u64) -> Digest {
        scrambled(self.number * 32 + number)
    }

    /// The item that is moved.
    fn moving(&self) -> Digest {
        self.item(0)
    }

    fn empty(&self) -> TableWriter {
        TableWriter::new(TableId(0), self.plan, 50)
    }

    fn begin(&self) -> TableWriter {
        let mut writer = self.empty();
        for number in 0..self.residents {
            let _ = writer.insert(self.item(number), self.state);
        }
        writer
    }

    /// Another item comes, or one that was there at the beginning goes.
    fn step(&self, writer: &mut TableWriter, number: u64) {
        let choice = scrambled(self.number ^ number << 60).0;
        if choice.is_multiple_of(2) {
            let _ = writer.insert(self.item(16 + number), self.state);
        } else {
            writer.remove(self.item(1 + choice / 2 % (self.residents - 1)));
        }
    }
}

#[cfg(not(loom))]
mod threads {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    /// A reader pauses between its two loads while the writer moves items to and fro. Without the sequence lock it would miss some: an
    /// item can move from the second bucket to the first just in between.
    #[test]
    fn a_reader_misses_nothing_while_items_move() {
        let plan =
            TablePlan::Segment { base_bits: 16, step_bits: 0, bucket_size: 4, base_buckets: 512, k: 0 };
        let mut writer = TableWriter::new(TableId(0), plan, 2_000);
        let residents: Vec<Digest> = (0..1_000).map(scrambled).collect();
        for &digest in &residents {
            writer.insert(digest, 0).unwrap();
        }
        let (table, done) = (writer.table.clone(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut missed = 0;
                for round in 0..hits() / residents.len() {
                    let pause = || (0..round % 64).for_each(|_| std::hint::spin_loop());
                    missed +=
                        residents.iter().filter(|digest| !table.contains_slowly(**digest, pause)).count();
                }
                done.store(true, Relaxed);
                missed
            });
            let mut next = 1_000;
            while !done.load(Relaxed) {
                // The table is filled up to 97 %, where nearly every insert moves other items, and emptied again.
                let passing = (next..next + 980).map(scrambled);
                next += 980;
                let came: Vec<Digest> = passing.filter(|digest| writer.insert(*digest, 0).is_ok()).collect();
                for digest in came {
                    writer.remove(digest);
                }
            }
            assert_eq!(reader.join().unwrap(), 0, "items were missed");
        });
    }

    /// The buckets that hold the item that is moved, or one that looks alike.
    fn places(story: &Story, writer: &TableWriter) -> Vec<u64> {
        let mut alone = story.empty();
        alone.insert(story.moving(), story.state).unwrap();
        let (mut value, mut places) = (0, Vec::new());
        alone.table.for_each_in(0..4, |_, _, held| value = held);
        let note = |bucket, _, held| places.extend((held == value).then_some(bucket));
        writer.table.for_each_in(0..4, note);
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
    fn the_stories_move_an_item_to_and_fro() {
        for story in STORIES {
            assert!(moves_to_and_fro(&story));
        }
    }

    /// Look-ups that the reader makes; a long run wants 100 million.
    fn hits() -> usize {
        std::env::var("CUCKOOD_RACE_HITS").ok().and_then(|hits| hits.parse().ok()).unwrap_or(2_000_000)
    }
}

#[cfg(loom)]
mod orders {
    use super::*;
    use crate::table::Table;
    use loom::thread;

    /// Whether a reader finds the item that is moved.
    fn is_found(story: &Story, table: &Table) -> bool {
        let is_there = table.contains(story.moving());
        let is_strict = matches!(story.plan, TablePlan::Strict { .. });
        is_there && (!is_strict || table.get(story.moving()).is_some())
    }

    /// Whatever the order of loads and stores, and whatever of them a reader may see, it finds an item that is being moved.
    #[test]
    fn a_moving_item_is_met_in_every_order() {
        STORIES.iter().for_each(|story| meet(*story));
    }

    fn meet(story: Story) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.max_branches = 100_000;
        model.check(move || {
            let mut writer = story.begin();
            let table = writer.table.clone();
            let reader = thread::spawn(move || assert!(is_found(&story, &table), "it was missed"));
            (0..story.steps).for_each(|number| story.step(&mut writer, number));
            reader.join().unwrap();
        });
    }
}
