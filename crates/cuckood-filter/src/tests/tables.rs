//! Tables of every kind against a model: stored items are found, and all lookups agree.

use crate::chunk::{FrozenTable, TableId};
use crate::hash::Digest;
use crate::layout::Mode;
use crate::plan::TablePlan;
use crate::slots::{LiveTags, STATE_MASK};
use crate::table::Table;
use crate::writer::{Stored, TableWriter};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

fn plans() -> impl Strategy<Value = TablePlan> {
    let bucket_size = || prop_oneof![Just(2_u8), Just(4), Just(8)];
    let shape = (
        4_u8..=20,
        bucket_size(),
        1_u64..300,
        0_u8..4,
        0_u8..=4,
        0_u8..=6,
        prop_oneof![3 => Just(0_u8), 1 => 3_u8..=6],
    );
    let compact = shape.prop_map(
        |(bits, bucket_size, half, number, doublings, spare_bits, tag_bits)| TablePlan {
            mode: Mode::Compact,
            bucket_size,
            tag_bits,
            bits: bits + number,
            number,
            spare_bits: if number == 0 { 0 } else { spare_bits },
            doublings: if number == 0 { 0 } else { doublings },
            base_buckets: 2 * half,
        },
    );
    prop_oneof![8 => compact, 1 => (1_u64..600, 0_u8..3).prop_map(|(half, doublings)| strict(2 * half, doublings))]
}

fn strict(base_buckets: u64, doublings: u8) -> TablePlan {
    TablePlan {
        mode: Mode::Strict,
        bucket_size: 4,
        tag_bits: 2,
        bits: 62,
        number: 0,
        spare_bits: 0,
        doublings,
        base_buckets,
    }
}

fn digest(number: u64) -> Digest {
    Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))
}

/// All tags but the last two are live.
fn live(plan: &TablePlan) -> LiveTags {
    match plan.tag_bits {
        0 => LiveTags::NONE,
        bits => LiveTags {
            first: 1,
            len: (1 << bits) - 2,
            all: false,
        },
    }
}

fn add(writer: &mut TableWriter, item: u64) -> bool {
    match writer.plan().mode {
        Mode::Strict => writer.insert_strict(digest(item), 1) == Ok(None),
        Mode::Compact => {
            let live = live(writer.plan());
            matches!(
                writer.insert(digest(item), 1 & ((1 << writer.plan().tag_bits) - 1), live),
                Ok(Stored::Free)
            )
        }
    }
}

fn remove(writer: &mut TableWriter, item: u64) {
    match writer.plan().mode {
        Mode::Strict => writer.set_tag(digest(item), None),
        Mode::Compact => assert!(writer.remove(digest(item), live(writer.plan())).is_some()),
    }
}

fn contains(table: &Table, item: u64) -> bool {
    match table.plan.mode {
        Mode::Strict => table.get(digest(item)).is_some(),
        Mode::Compact => table.contains(digest(item), live(&table.plan)),
    }
}

/// A table filled with these items, and the copies stored of each.
fn filled(plan: TablePlan, items: &[u64]) -> (TableWriter, BTreeMap<u64, u32>) {
    let mut writer = TableWriter::new(TableId(0), Table::new(plan), 200);
    let mut taken = BTreeMap::new();
    for &item in items {
        if add(&mut writer, item) {
            *taken.entry(item).or_default() += 1;
        }
    }
    (writer, taken)
}

fn words(table: &Table) -> Vec<u64> {
    table.words.iter().map(|word| word.load(Relaxed)).collect()
}

fn chunks(mut frozen: FrozenTable) -> Vec<Vec<u8>> {
    let mut chunks = vec![Vec::new()];
    while frozen.next_chunk(chunks.last_mut().unwrap()) {
        chunks.push(Vec::new());
    }
    chunks
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 64 }))]

    /// A table in a snapshot changes like any other, and the snapshot has its content from before.
    #[test]
    fn frozen_tables_change_like_others(
        plan in plans(),
        before in proptest::collection::vec(0_u64..600, 0..600),
        after in proptest::collection::vec((any::<bool>(), 0_u64..600), 0..600),
    ) {
        let [mut plain, mut frozen, mut untouched] = [(); 3].map(|()| filled(plan, &before).0);
        let snapshot = frozen.freeze(&Default::default());
        for (adds, item) in after {
            for writer in [&mut plain, &mut frozen] {
                if adds {
                    add(writer, item);
                } else if contains(&writer.table, item) {
                    remove(writer, item);
                }
            }
        }
        prop_assert!(words(&plain.table) == words(&frozen.table));
        prop_assert_eq!((plain.changes, plain.items()), (frozen.changes, frozen.items()));
        prop_assert!(chunks(snapshot) == chunks(untouched.freeze(&Default::default())));
    }

    /// A table of any kind finds every item that it has taken, and all ways to look one up agree.
    #[test]
    fn table_lookups_agree_with_model(plan in plans(), items in proptest::collection::vec(0_u64..3_000, 0..2_000)) {
        prop_assert!(plan.is_sane());
        let (mut writer, taken) = filled(plan, &items);
        let table = writer.table.clone();
        prop_assert_eq!(table.items(), taken.values().map(|copies| u64::from(*copies)).sum::<u64>());
        let digests: Vec<Digest> = (0..4_000).map(digest).collect();
        match plan.mode {
            Mode::Compact => {
                let mut found = vec![false; digests.len()];
                table.contains_many(&digests, live(&plan), &mut found);
                for (number, (&digest, found)) in (0..).zip(digests.iter().zip(found)) {
                    prop_assert_eq!(table.contains(digest, live(&plan)), found);
                    prop_assert_eq!(table.count(digest, live(&plan)) > 0, found);
                    prop_assert!(table.count(digest, live(&plan)) >= taken.get(&number).copied().unwrap_or(0));
                }
            }
            Mode::Strict => {
                taken.keys().for_each(|&item| writer.set_tag(digest(item), Some(item % 4)));
                let mut states = Vec::new();
                table.get_many(&digests, |held| states.push(held.map(|held| held & STATE_MASK)));
                for (number, state) in (0..).zip(states) {
                    prop_assert_eq!(state, taken.contains_key(&number).then_some(number % 4));
                }
            }
        }
        for (&item, &copies) in &taken {
            (0..copies).for_each(|_| remove(&mut writer, item));
        }
        prop_assert_eq!(writer.items(), 0);
        prop_assert!(words(&table).iter().all(|word| *word == 0));
    }

    /// Whatever changes a table undergoes while it is copied, the copy equals the split buckets, and the larger table finds all items.
    #[test]
    fn copy_follows_table_changes(
        plan in plans(),
        times in 1_u8..=3,
        items in proptest::collection::vec(0_u64..3_000, 0..1_000),
        changes in proptest::collection::vec((any::<bool>(), 0_u64..3_000), 0..300),
        pace in 1_u64..40,
    ) {
        let Some(larger) = plan.doubled(times) else { return Ok(()) };
        let (mut writer, mut taken) = filled(plan, &items);
        writer.start_copy(Table::new(larger), 0);
        let mut complete = None;
        for (is_added, item) in changes {
            if let Some(copies) = taken.get_mut(&item).filter(|copies| **copies > 0 && !is_added) {
                *copies -= 1;
                remove(&mut writer, item);
            } else if add(&mut writer, item) {
                *taken.entry(item).or_default() += 1;
            }
            complete = writer.copy_on(pace);
            if complete.is_some() {
                break;
            }
        }
        let complete = complete.or_else(|| writer.copy_on(u64::MAX)).unwrap();
        let split = Table::new(larger);
        writer.table.split_into(&split, 0..plan.buckets());
        prop_assert_eq!(words(&complete), words(&split));
        let mut larger = TableWriter::new(TableId(1), complete, 200);
        larger.set_items(writer.items());
        for (&item, _) in taken.iter().filter(|(_, copies)| **copies > 0) {
            prop_assert!(contains(&larger.table, item));
        }
        for (&item, &copies) in &taken {
            (0..copies).for_each(|_| remove(&mut larger, item));
        }
        prop_assert_eq!(larger.items(), 0);
    }
}
