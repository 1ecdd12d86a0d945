//! Snapshots and images: a damaged one is rejected, a restored filter continues as before.

use super::*;
use cuckood_filter::{FillError, SlotState, Walk};
use proptest::prelude::*;
use std::collections::HashSet;

#[test]
fn snapshot_has_state_of_its_start() {
    let digests = digests(0, 200_000);
    let layout = Layout::compact(20_000, 0.001, Growth::Auto).unwrap();
    for (mut filter, items) in [(strict(50_000), 49_000), (compact(layout), 50_000)] {
        filter.insert_many(&digests[..items], false).unwrap();
        let expected = snapshot(&mut filter);
        let mut next = items;
        // While its snapshot is taken, the filter grows, is copied and loses items.
        let taken = snapshot_while(&mut filter, |filter| {
            filter
                .insert_many(&digests[next..next + 500], false)
                .unwrap();
            filter.remove_many(&digests[next - items..next - items + 250], false);
            next += 500;
        });
        assert!(taken == expected);
    }
}

/// Several snapshots of a table are taken at the same time, each with the state of its start.
#[test]
fn overlapping_snapshots_are_independent() {
    let mut filter = strict(50_000);
    let mut expected = Vec::new();
    let mut running = Vec::new();
    for step in 0..3 {
        filter
            .insert_many(&digests(step * 1_000, (step + 1) * 1_000), false)
            .unwrap();
        expected.push(snapshot(&mut filter));
        let (image, tables) = filter.freeze(&Default::default());
        running.push((image, tables, Chunks::new()));
    }
    let mut next = 10_000;
    while running.iter().any(|(_, tables, _)| !tables.is_empty()) {
        for (_, tables, chunks) in &mut running {
            filter
                .insert_many(&digests(next, next + 50), false)
                .unwrap();
            next += 50;
            let Some(table) = tables.first_mut() else {
                continue;
            };
            let number = chunks.len() as u32;
            let mut bytes = Vec::new();
            match table.next_chunk(&mut bytes) {
                true => drop(chunks.insert((table.id(), number), bytes)),
                false => drop(tables.remove(0)),
            }
        }
    }
    for ((image, _, chunks), expected) in running.into_iter().zip(expected) {
        assert!((image, chunks) == expected);
    }
}

/// A filter whose table is being copied.
fn copying(layout: Layout) -> (Filter, u64) {
    let mut filter = compact(layout);
    let mut next = 0;
    while !filter.is_moving() {
        filter
            .insert_many(&digests(next, next + 100), false)
            .unwrap();
        next += 100;
    }
    (filter, next)
}

/// An image of a filter is loaded in chunks in the middle of a copy, and continues as the original.
#[test]
fn image_continues_copy_in_progress() {
    let (mut filter, mut next) =
        copying(Layout::compact_with(30_000, 14, 4, 500, Growth::Auto).unwrap());
    let (image, chunks) = snapshot(&mut filter);
    let mut original = restored(Mode::Compact, &image, &chunks).unwrap();
    let mut copy = sent(filter);
    assert!(copy.is_moving());
    let mut rounds = 0;
    while original.is_moving() {
        for filter in [&mut original, &mut copy] {
            filter.insert_many(&digests(next, next + 5), false).unwrap();
            filter.remove_many(&digests(next - 1_000, next - 995), false);
            filter.move_items(10);
        }
        assert_eq!(original.is_moving(), copy.is_moving());
        (next, rounds) = (next + 5, rounds + 1);
    }
    let [original, copy] = [original, copy].map(|mut filter| {
        snapshot(&mut filter)
            .1
            .into_values()
            .map(|chunk| chunk[24..].to_vec())
            .collect::<HashSet<_>>()
    });
    assert!(original == copy && original.len() > 10 && rounds > 5);
}

/// An image with any changed number is rejected or makes a working filter.
#[test]
fn damaged_image_never_panics() {
    let (mut compact, _) = copying(Layout::compact_with(3_000, 10, 4, 500, Growth::Auto).unwrap());
    let mut sweeping = strict(20_000);
    sweeping.insert_many(&digests(0, 15_000), false).unwrap();
    sweeping.set_state(digest(3), cuckood_filter::SlotState::Held);
    sweeping.clear();
    sweeping.move_items(100);
    let forgetting = Layout::compact_with(100, 12, 8, 500, Growth::Auto)
        .unwrap()
        .with_steps(3)
        .unwrap();
    let mut forgetting = Filter::new(Mode::Compact, forgetting, Growth::Auto, Some(3));
    for step in 0..3 {
        forgetting.advance(step);
        forgetting
            .insert_many(&digests(step * 100, step * 100 + 90), false)
            .unwrap();
    }
    for filter in [&mut compact, &mut sweeping, &mut forgetting] {
        let (image, chunks) = snapshot(filter);
        assert!(restored(filter.mode(), &image, &chunks).is_ok());
        let whole = serde_json::to_value(&image).unwrap();
        let mut paths = Vec::new();
        numbers_in(&whole, String::new(), &mut paths);
        // Items are counted while an image is loaded.
        paths.retain(|path| !path.ends_with("/changes") && !path.ends_with("/items"));
        assert!(paths.len() > 12, "{paths:?}");
        for path in &paths {
            for value in [
                0,
                1,
                2,
                3,
                31,
                32,
                63,
                64,
                255,
                1 << 31,
                1 << 32,
                1 << 33,
                u64::MAX / 2,
                u64::MAX,
            ] {
                let mut damaged = whole.clone();
                *damaged.pointer_mut(path).unwrap() = value.into();
                let Ok(image) = serde_json::from_value::<FilterImage>(damaged) else {
                    continue;
                };
                // A server would reject tables beyond its memory.
                if image.memory().is_ok_and(|need| need.bytes > 1 << 30) {
                    continue;
                }
                if let Ok(mut filter) = restored(filter.mode(), &image, &chunks) {
                    let _ = filter.insert_many(&digests(0, 50), false);
                    filter.remove_many(&digests(0, 50), false);
                    filter.move_items(100);
                    filter.retire(1_000);
                }
            }
        }
    }
}

/// The paths of all numbers in a document.
fn numbers_in(value: &serde_json::Value, path: String, paths: &mut Vec<String>) {
    match value {
        serde_json::Value::Number(_) => paths.push(path),
        serde_json::Value::Array(values) => {
            for (at, value) in values.iter().enumerate() {
                numbers_in(value, format!("{path}/{at}"), paths);
            }
        }
        serde_json::Value::Object(values) => {
            for (name, value) in values {
                numbers_in(value, format!("{path}/{name}"), paths);
            }
        }
        _ => {}
    }
}

/// A chunk with any bit flipped, and one truncated anywhere, is rejected: full or empty.
#[test]
fn damaged_chunk_is_rejected() {
    let mut filter = compact(Layout::compact_with(200, 8, 4, 500, Growth::Auto).unwrap());
    let empty = snapshot(&mut filter);
    filter.insert_many(&digests(0, 150), false).unwrap();
    for (image, chunks) in [empty, snapshot(&mut filter)] {
        for (key, whole) in &chunks {
            let refused = |bytes: Vec<u8>| {
                let mut damaged = chunks.clone();
                damaged.insert(*key, bytes);
                restored(Mode::Compact, &image, &damaged).is_err()
            };
            for bit in 0..whole.len() * 8 {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(refused(bytes), "bit {bit}");
            }
            assert!((0..whole.len()).all(|length| refused(whole[..length].to_vec())));
            assert!(!refused(whole.clone()));
        }
    }
}

/// An empty chunk takes next to no space in a snapshot, and is still required.
#[test]
fn empty_chunks_are_small_and_required() {
    let layout = Layout::compact_with(100_000, 16, 4, 500, Growth::Fixed).unwrap();
    let mut filter = Filter::new(Mode::Compact, layout, Growth::Fixed, None);
    let (image, chunks) = snapshot(&mut filter);
    assert!(chunks.len() > 20 && chunks.values().all(|chunk| chunk.len() <= 64));
    filter.insert(digest(1), false).unwrap();
    let (image_of_one, chunks_of_one) = snapshot(&mut filter);
    assert_eq!(
        chunks_of_one
            .values()
            .filter(|chunk| chunk.len() > 64)
            .count(),
        1
    );

    for (image, chunks, items) in [(&image, &chunks, 0), (&image_of_one, &chunks_of_one, 1)] {
        let mut restored = restored(Mode::Compact, image, chunks).unwrap();
        assert_eq!(restored.items(), items);
        assert_eq!(restored.reader().view(0).contains(digest(1)), items == 1);
        assert!(snapshot(&mut restored).1 == *chunks);
    }
    for key in chunks_of_one.keys() {
        let mut without = chunks_of_one.clone();
        without.insert(*key, Vec::new());
        assert!(
            restored(Mode::Compact, &image_of_one, &without).is_err(),
            "{key:?} is missing"
        );
        // Nor is another's taken for it, however similar they are inside.
        let other = (key.0, (key.1 + 1) % chunks.len() as u32);
        without.insert(*key, chunks_of_one[&other].clone());
        assert!(
            restored(Mode::Compact, &image_of_one, &without).is_err(),
            "{key:?} is another"
        );
    }
}

/// The chunks of a table load in any order and from several threads; if one is missing, there is no table.
#[test]
fn table_loads_in_any_chunk_order() {
    let items = digests(0, 40_000);
    let layout = Layout::compact_with(50_000, 16, 4, 500, Growth::Fixed).unwrap();
    let mut filter = Filter::new(Mode::Compact, layout, Growth::Fixed, None);
    filter.insert_many(&items, false).unwrap();
    let (image, chunks) = snapshot(&mut filter);
    let restore = |leave_out: Option<u32>| {
        Filter::restore::<Infallible>(Mode::Compact, &image, None, &mut |table| {
            let load = |chunk| {
                table.load(chunk..chunk + 1, |chunk, out| {
                    out.clone_from(&chunks[&(table.id(), chunk)]);
                    Ok(())
                })
            };
            let wanted = |chunk: &u32| Some(*chunk) != leave_out;
            let middle = table.chunks() / 2;
            std::thread::scope(|scope| {
                let second = scope.spawn(|| {
                    (middle..table.chunks())
                        .rev()
                        .filter(wanted)
                        .try_for_each(load)
                });
                (0..middle).rev().filter(wanted).try_for_each(load)?;
                second.join().unwrap()
            })
        })
    };
    let restored = restore(None).unwrap();
    assert!(chunks.len() > 10);
    assert_eq!(restored.items(), 40_000);
    assert!(
        items
            .iter()
            .all(|item| restored.reader().view(0).contains(*item))
    );
    for chunk in 0..chunks.len() as u32 {
        assert!(
            matches!(restore(Some(chunk)), Err(RestoreError::Image(_))),
            "chunk {chunk}"
        );
    }
}

/// Replaces words of a chunk, and its checksum.
fn forge(chunk: &mut [u8], change: impl FnOnce(&mut [[u8; 8]])) {
    let (content, checksum) = chunk.split_last_chunk_mut::<8>().unwrap();
    change(content[24..].as_chunks_mut().0);
    *checksum = xxhash_rust::xxh3::xxh3_64(content).to_le_bytes();
}

/// A strict filter with items in all states and its image, whose words are those of a table in one chunk.
fn strict_image() -> (FilterImage, Vec<u8>) {
    let mut filter = strict(600);
    filter.insert_many(&digests(0, 500), false).unwrap();
    filter.set_state(digest(1), SlotState::Held);
    filter.set_state(digest(2), SlotState::Redeemed);
    let (image, chunks) = snapshot(&mut filter);
    let [chunk] = chunks.into_values().collect::<Vec<_>>().try_into().unwrap();
    (image, chunk)
}

/// Fills in the only chunk of a strict filter.
fn filled_with(image: &FilterImage, chunk: &[u8]) -> Result<Filter, FillError> {
    let mut filter = Filter::unfilled(Mode::Strict, image).unwrap();
    let mut filled = Filled::default();
    filter.fill(&mut filled, chunk)?;
    let words = chunk[24..chunk.len() - 8].as_chunks::<8>().0;
    filter.finish_filling(
        filled,
        &[words.iter().filter(|word| **word != [0; 8]).count() as u64],
    )?;
    Ok(filter)
}

proptest! {
    /// An image of a strict filter with arbitrary slots is rejected, or each clear removes its available items.
    #[test]
    fn forged_slots_are_rejected_or_cleared(
        changes in proptest::collection::vec((any::<u16>(), any::<u16>(), 0_u64..6), 1..4),
    ) {
        let (image, mut chunk) = strict_image();
        forge(&mut chunk, |words| {
            for (to, from, how) in changes {
                let [to, from] = [to, from].map(|at| usize::from(at) % words.len());
                let word = u64::from_le_bytes(words[from]);
                words[to] = match how {
                    // Another bucket's item, the item of another slot in the same bucket, another state, the digest zero.
                    0 => word,
                    1 => u64::from_le_bytes(words[to ^ 1]),
                    2..4 => u64::from_le_bytes(words[to]) ^ how,
                    _ => how - 3,
                }.to_le_bytes();
            }
        });
        let Ok(mut filter) = filled_with(&image, &chunk) else { return Ok(()) };
        for round in 1..5 {
            filter.clear();
            let mut walk = Walk::START;
            let mut found = 0;
            let mut rounds = 0;
            while filter.walk(&mut walk, u64::MAX, |_, _| found += 1) > 0 {}
            prop_assert_eq!(filter.items(), found);
            while filter.is_moving() {
                filter.move_items(1_000);
                rounds += 1;
                prop_assert!(rounds < 10, "the slots of cleared items are never free");
            }
            filter.insert_many(&digests(round * 1_000, round * 1_000 + 50), false).unwrap();
        }
    }
}
