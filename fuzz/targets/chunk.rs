//! Snapshots of filters after anything that a disk could do to them: a damaged chunk is refused, and nothing panics,
//! whatever a chunk holds.

#![no_main]

use cuckood_filter::chunk::CHUNK_BYTES_MAX;
use cuckood_filter::{
    Digest, Filter, FilterImage, FrozenTable, Growth, Layout, Mode, RestoreError, Restoring,
    SlotState, TableId,
};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::LazyLock;
use xxhash_rust::xxh3::xxh3_64;

const HEADER_BYTES: usize = 24;
/// Tables of more buckets than this take more memory than is worth an input.
const BUCKETS_MAX: u64 = 1 << 14;

/// A filter's image and all its chunks.
struct Snapshot {
    mode: Mode,
    image: FilterImage,
    chunks: BTreeMap<(TableId, u32), Vec<u8>>,
}

static SNAPSHOTS: LazyLock<Vec<Snapshot>> = LazyLock::new(|| {
    let shapes = [(4, 2), (8, 4), (13, 4), (16, 8), (32, 4)];
    let compact = shapes.map(|(bits, bucket)| {
        compact(
            Layout::compact_with(60, bits, bucket, 64, Growth::Auto).expect("a layout"),
            60,
        )
    });
    let strict = [strict(60, 50), strict_moving(), strict(20_000, 18_000)];
    compact
        .into_iter()
        .chain([compact_grown()])
        .chain(strict)
        .collect()
});

// The first byte chooses the snapshot, the second the change; the rest is its input.
fuzz_target!(|bytes: &[u8]| {
    let [choice, damage, bytes @ ..] = bytes else {
        return;
    };
    let snapshot = &SNAPSHOTS[usize::from(*choice) % SNAPSHOTS.len()];
    match damage % 4 {
        0 => one_chunk_is(snapshot, bytes),
        1 => bits_flip(snapshot, bytes),
        2 => words_are(snapshot, bytes),
        _ => the_image_is(snapshot, bytes),
    }
});

/// A chunk is replaced by any bytes.
fn one_chunk_is(snapshot: &Snapshot, bytes: &[u8]) {
    let which = bytes.first().map_or(0, |byte| usize::from(*byte)) % snapshot.chunks.len();
    let (place, chunk) = snapshot
        .chunks
        .iter()
        .nth(which)
        .expect("it is one of them");
    let bytes = &bytes[bytes.len().min(1)..];
    let restored = restore(snapshot, &snapshot.image, |at, out| {
        out.extend_from_slice(if at == *place {
            bytes
        } else {
            &snapshot.chunks[&at]
        });
    });
    assert_eq!(restored.is_ok(), bytes == chunk, "chunk {place:?}");
}

/// Changes the bytes of chunks: three bytes select the position, one the bit; chunks are truncated or extended.
fn bits_flip(snapshot: &Snapshot, bytes: &[u8]) {
    let mut chunks: Vec<Vec<u8>> = snapshot.chunks.values().cloned().collect();
    for change in bytes.chunks_exact(4) {
        let at = u32::from_le_bytes([change[0], change[1], change[2], 0]) as usize;
        let count = chunks.len();
        let chunk = &mut chunks[at % count];
        match (change[3], chunk.len()) {
            (0, length) => chunk.truncate(at / count % (length + 1)),
            (255, length) if length <= CHUNK_BYTES_MAX => chunk.push(change[0]),
            (_, 0) => {}
            (flips, length) => chunk[at / count % length] ^= flips,
        }
    }
    let is_whole = chunks.iter().eq(snapshot.chunks.values());
    let changed: BTreeMap<_, _> = snapshot.chunks.keys().zip(chunks).collect();
    let restored = restore(snapshot, &snapshot.image, |at, out| {
        out.extend_from_slice(&changed[&at])
    });
    assert_eq!(restored.is_ok(), is_whole);
}

/// Changes words and renews the checksum: such a chunk is accepted, and reading it must not fail.
fn words_are(snapshot: &Snapshot, bytes: &[u8]) {
    let restored = restore(snapshot, &snapshot.image, |at, out| {
        out.extend_from_slice(&snapshot.chunks[&at]);
        let words = HEADER_BYTES..out.len() - 8;
        for (word, byte) in out[words.clone()].iter_mut().zip(bytes.iter().cycle()) {
            *word ^= byte;
        }
        let checksum = xxh3_64(&out[..words.end]);
        out[words.end..].copy_from_slice(&checksum.to_le_bytes());
    });
    // Strict: a filter that is being copied or freed records its progress, and its slots may contradict that.
    let Ok(filter) = restored else { return };
    let (mut found, reader) = (Vec::new(), filter.reader());
    let view = reader.view(0);
    view.contains_many(&digests(64), &mut found);
    let one_by_one: Vec<bool> = digests(64)
        .iter()
        .map(|digest| view.contains(*digest))
        .collect();
    assert_eq!(found, one_by_one);
    for (digest, found) in digests(64).into_iter().zip(found) {
        assert_eq!(view.count(digest) > 0, found);
    }
    let states: Vec<Option<SlotState>> = digests(64)
        .iter()
        .map(|digest| view.state(*digest))
        .collect();
    assert_eq!(view.states(&digests(64)), states);
}

/// The image changes. That it asks for any amount of memory is for those to prevent who check the image's own checksum.
fn the_image_is(snapshot: &Snapshot, bytes: &[u8]) {
    let mut image = postcard::to_stdvec(&snapshot.image).expect("an image can be written");
    for change in bytes.chunks_exact(2) {
        let length = image.len();
        image[usize::from(change[0]) % length] ^= change[1];
    }
    let Ok(image) = postcard::from_bytes::<FilterImage>(&image) else {
        return;
    };
    if !is_small(&serde_json::to_value(&image).expect("an image is plain data")) {
        return;
    }
    let restored = restore(snapshot, &image, |at, out| {
        out.extend(snapshot.chunks.get(&at).into_iter().flatten());
    });
    if image == snapshot.image {
        assert!(restored.is_ok());
    }
}

/// Whether the tables of an image are small enough for fuzzing.
fn is_small(image: &Value) -> bool {
    match image {
        Value::Object(fields) => fields.iter().all(|(name, value)| match name.as_str() {
            "buckets" | "base_buckets" => value.as_u64() <= Some(BUCKETS_MAX),
            "number" | "doublings" => value.as_u64() <= Some(8),
            "copy" => value.get(0).is_none_or(|times| times.as_u64() <= Some(4)),
            _ => is_small(value),
        }),
        Value::Array(values) => values.len() <= 8 && values.iter().all(is_small),
        _ => true,
    }
}

fn restore(
    snapshot: &Snapshot,
    image: &FilterImage,
    mut chunk: impl FnMut((TableId, u32), &mut Vec<u8>),
) -> Result<Filter, RestoreError<Infallible>> {
    let mut load = |table: &Restoring<'_>| {
        table.load(0..table.chunks(), |number, out| {
            out.clear();
            chunk((table.id(), number), out);
            Ok(())
        })
    };
    Filter::restore(snapshot.mode, image, None, &mut load)
}

fn digests(count: u64) -> Vec<Digest> {
    (0..count)
        .map(|n| Digest(xxh3_64(&n.to_le_bytes())))
        .collect()
}

fn compact(layout: Layout, items: u64) -> Snapshot {
    let mut filter = Filter::new(Mode::Compact, layout, Growth::Auto, None);
    filter
        .insert_many(&digests(items), false)
        .expect("a filter that grows takes them");
    snapshot(&mut filter)
}

/// Of several tables.
fn compact_grown() -> Snapshot {
    compact(
        Layout::compact_with(20, 8, 4, 64, Growth::Auto).expect("a layout"),
        300,
    )
}

fn strict(capacity: u64, items: u64) -> Snapshot {
    let layout = Layout::strict(capacity).expect("a layout");
    let mut filter = Filter::new(Mode::Strict, layout, Growth::Auto, None);
    filter
        .insert_many(&digests(items), false)
        .expect("a filter that grows takes them");
    snapshot(&mut filter)
}

/// In the middle of a copy.
fn strict_moving() -> Snapshot {
    // A small table is copied at once.
    let layout = Layout::strict(20_000).expect("a layout");
    let mut filter = Filter::new(Mode::Strict, layout, Growth::Auto, None);
    for digest in digests(40_000) {
        filter
            .insert(digest, false)
            .expect("a filter that grows takes it");
        if filter.is_moving() {
            return snapshot(&mut filter);
        }
    }
    panic!("it grows step by step")
}

fn snapshot(filter: &mut Filter) -> Snapshot {
    let (image, frozen) = filter.freeze(&Default::default());
    Snapshot {
        mode: filter.mode(),
        image,
        chunks: all_chunks(frozen),
    }
}

fn all_chunks(frozen: Vec<FrozenTable>) -> BTreeMap<(TableId, u32), Vec<u8>> {
    let mut chunks = BTreeMap::new();
    for mut table in frozen {
        for chunk in 0.. {
            let mut bytes = Vec::new();
            if !table.next_chunk(&mut bytes) {
                break;
            }
            chunks.insert((table.id(), chunk), bytes);
        }
    }
    chunks
}
