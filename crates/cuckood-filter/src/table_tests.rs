//! Tables of every kind against a model: whatever was taken is found, and all ways to look agree.

use super::codec::TableId;
use super::hash::Digest;
use super::kind::with_kind;
use super::plan::TablePlan;
use super::slot_state::STATE_MASK;
use super::table::Table;
use super::writer::TableWriter;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

fn plans() -> impl Strategy<Value = TablePlan> {
    let segment = (4_u8..=28, prop_oneof![Just(2_u8), Just(4), Just(8)], 1_u64..300, 0_u32..=4);
    let doubling =
        (4_u8..=20, prop_oneof![Just(2_u8), Just(4), Just(8)], 1_u64..300, 1_u8..4, 0_u8..=4, 0_u8..=6);
    prop_oneof![
        4 => segment.prop_map(|(base_bits, bucket_size, half, k)| {
            TablePlan::Segment { base_bits, step_bits: 0, bucket_size, base_buckets: 2 * half, k }
        }),
        4 => doubling.prop_map(|(base_bits, bucket_size, half, segment, doublings, spare_bits)| {
            TablePlan::Doubling { base_bits, bucket_size, base_buckets: 2 * half, segment, doublings, spare_bits }
        }),
        1 => (1_u64..600).prop_map(|half| TablePlan::Strict { buckets: 2 * half }),
    ]
}

fn digest(number: u64) -> Digest {
    Digest(xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes()))
}

/// A table that has taken as many of these items as it could, and how often it has taken each.
fn filled(plan: TablePlan, items: &[u64]) -> (TableWriter, BTreeMap<u64, u32>) {
    let mut writer = TableWriter::new(TableId(0), plan, 200);
    let mut taken = BTreeMap::new();
    for &item in items {
        let added = match plan {
            TablePlan::Strict { .. } => writer.insert_if_absent(digest(item), 1) == Ok(None),
            TablePlan::Segment { .. } | TablePlan::Doubling { .. } => {
                writer.insert_unless_saturated(digest(item)) == Ok(true)
            }
        };
        if added {
            *taken.entry(item).or_default() += 1;
        }
    }
    (writer, taken)
}

fn everything(table: &Table) -> Vec<(u64, u32, u64)> {
    let mut slots = Vec::new();
    table.for_each_in(0..table.plan.buckets(), |bucket, slot, value| slots.push((bucket, slot, value)));
    slots
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 64 }))]

    /// A table of any kind finds every item that it has taken, and all ways to look one up give the same answer.
    #[test]
    fn all_ways_to_look_agree(plan in plans(), items in proptest::collection::vec(0_u64..3_000, 0..2_000)) {
        let (writer, taken) = filled(plan, &items);
        let table = &*writer.table;
        prop_assert_eq!(table.items(), taken.values().map(|copies| u64::from(*copies)).sum::<u64>());
        let digests: Vec<Digest> = (0..4_000).map(digest).collect();
        let mut found = vec![false; digests.len()];
        table.contains_many(&digests, &mut found);
        for (number, (&digest, found)) in (0..).zip(digests.iter().zip(found)) {
            prop_assert_eq!(table.contains(digest), found);
            prop_assert_eq!(table.count(digest) > 0, found);
            prop_assert!(table.count(digest) >= taken.get(&number).copied().unwrap_or(0));
        }
    }

    /// Code compiled for any kind reads and removes what code compiled for one kind has written.
    #[test]
    fn code_for_one_kind_and_for_any_agree(plan in plans(), items in proptest::collection::vec(0_u64..3_000, 0..500)) {
        let (mut writer, taken) = filled(plan, &items);
        let slots = everything(&writer.table);
        prop_assert_eq!(slots.len() as u64, writer.items());
        for &(bucket, slot, value) in &slots {
            let held = with_kind!(plan, S, P => writer.table.slot(writer.table.kind::<S, P>(), bucket, slot));
            prop_assert_eq!(held, value);
        }
        for &(bucket, slot, value) in &slots {
            writer.free_slot(bucket, slot);
            prop_assert!(writer.insert_value(bucket, value).is_ok(), "it fits where it was");
        }
        for &item in taken.keys() {
            prop_assert!(writer.table.contains(digest(item)));
        }
        for (bucket, slot, _) in everything(&writer.table) {
            writer.free_slot(bucket, slot);
        }
        prop_assert_eq!(writer.items(), 0);
        prop_assert!(writer.table.words.iter().all(|word| word.load(Relaxed) == 0));
    }

    /// A strict table returns an item's state, for one and for many; what was found before stays.
    #[test]
    fn a_strict_table_tells_states(half in 1_u64..300, items in proptest::collection::vec(0_u64..2_000, 0..1_000)) {
        let (mut writer, taken) = filled(TablePlan::Strict { buckets: 2 * half }, &items);
        for &item in taken.keys() {
            writer.set_state(digest(item), item % 3 + 1);
        }
        let digests: Vec<Digest> = (0..3_000).map(digest).collect();
        let mut found: Vec<Option<u64>> = (0..3_000).map(|number| (number % 7 == 0).then_some(9)).collect();
        writer.table.get_many(&digests, &mut found, |held| Some(held & STATE_MASK));
        for (number, found) in (0..).zip(found) {
            let state = taken.contains_key(&number).then_some(number % 3 + 1);
            prop_assert_eq!(writer.table.get(digest(number)).map(|held| held & STATE_MASK), state);
            prop_assert_eq!(found, if number % 7 == 0 { Some(9) } else { state });
        }
    }
}
