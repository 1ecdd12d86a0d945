//! Readers race with the writer while items move: in threads that pause where it matters and, in a build for Loom, in every order.

use super::codec::TableId;
use super::hash::Digest;
use super::plan::TablePlan;
use super::writer::TableWriter;

fn scrambled(number: u64) -> Digest {
    Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))
}

/// A table with as few buckets and slots as an insert needs to move an item.
fn tiny() -> TableWriter {
    let plan = TablePlan::Segment { base_bits: 16, step_bits: 0, bucket_size: 2, base_buckets: 4, k: 0 };
    TableWriter::new(TableId(0), plan, 50)
}

/// A sequence of changes of a tiny table that holds six items: others come and go, and the first item is moved to its second bucket
/// and back.
struct Story(u64);

impl Story {
    fn item(&self, number: u64) -> Digest {
        scrambled(self.0 * 16 + number)
    }

    /// The item that is moved.
    fn moving(&self) -> Digest {
        self.item(0)
    }

    fn begin(&self) -> TableWriter {
        let mut writer = tiny();
        for number in 0..6 {
            let _ = writer.insert(self.item(number), 0);
        }
        writer
    }

    /// Another item comes, or one of the other five goes.
    fn step(&self, writer: &mut TableWriter, number: u64) {
        let choice = scrambled(self.0 ^ number << 60).0;
        if choice.is_multiple_of(2) {
            let _ = writer.insert(self.item(8 + number), 0);
        } else {
            writer.remove(self.item(1 + choice / 2 % 5));
        }
    }
}

const STEPS: u64 = 6;

/// The lowest number whose sequence moves the first item to and fro.
const STORY: u64 = 1_126;

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
        let mut alone = tiny();
        alone.insert(story.moving(), 0).unwrap();
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
        for number in 0..STEPS {
            story.step(&mut writer, number);
            route.push(places(story, &writer));
        }
        route.dedup();
        route.len() >= 3 && route.iter().all(|places| places.len() == 1)
    }

    /// The sequence that Loom tries in every order really moves the item.
    #[test]
    fn the_story_moves_an_item_to_and_fro() {
        assert!(moves_to_and_fro(&Story(STORY)));
    }

    /// Look-ups that the reader makes; a long run wants 100 million.
    fn hits() -> usize {
        std::env::var("CUCKOOD_RACE_HITS").ok().and_then(|hits| hits.parse().ok()).unwrap_or(2_000_000)
    }
}

#[cfg(loom)]
mod orders {
    use super::*;
    use loom::thread;

    /// Whatever the order of loads and stores, and whatever of them a reader may see, it finds an item that is being moved.
    #[test]
    fn a_moving_item_is_met_in_every_order() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.max_branches = 100_000;
        model.check(|| {
            let story = Story(STORY);
            let mut writer = story.begin();
            let table = writer.table.clone();
            let reader = thread::spawn(move || assert!(table.contains(story.moving()), "it was missed"));
            (0..STEPS).for_each(|number| Story(STORY).step(&mut writer, number));
            reader.join().unwrap();
        });
    }
}
