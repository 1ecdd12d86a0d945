//! What runs while the power is cut, and what is checked once it is back.

use cuckood::domain::{Command, Digests, FilterId, Proposal, Seq, Target, Timestamp};
use cuckood::filter::Digest;
use cuckood::journal::{Journal, LocalJournal};
use cuckood::store::{Durability, Manifest, SectionKey, Store, StoreOptions};
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

const FILTERS: u64 = 6;
const CHUNKS: u32 = 8;

fn options(durability: Durability) -> StoreOptions {
    StoreOptions {
        durability,
        free_space_min_bytes: 0,
        ballast_bytes: 0,
        preallocate_bytes: 16 << 20,
        cache_bytes: 16 << 20,
        wal_segment_bytes: 1 << 20,
        ..StoreOptions::default()
    }
}

/// The entry at a position: everything of it follows from the position.
fn proposal(position: u64) -> Proposal {
    let digests = (0..position * 37 % 3_000).map(|index| Digest(position << 32 | index)).collect();
    let command = Command::Insert {
        target: Target(FilterId(position)),
        digests: Digests(digests),
        if_absent: false,
        revive: false,
    };
    Proposal { at: Timestamp(position), command, idempotency: None }
}

fn chunk(filter: u64, changes: u64, index: u32) -> Vec<u8> {
    vec![(filter * 31 + changes * 7 + u64::from(index)) as u8; 60_000]
}

/// Appends for ever; a line on the standard output for every position that was acknowledged.
pub fn run(dir: &Path, durability: Durability) -> Result<(), Box<dyn Error>> {
    let store = Arc::new(Store::open(dir, &options(durability))?);
    let mut journal = LocalJournal::open(store.clone())?;
    let mut out = std::io::stdout();
    loop {
        for _ in 0..25 {
            let next = journal.last().0 + 1;
            let batch = (next..=next + next % 3).map(proposal).collect();
            journal.append(batch)?;
            writeln!(out, "{}", journal.last().0)?;
        }
        snapshot(&store, journal.last())?;
        if let Some(through) = store.prunable_through()? {
            while journal.prune(through, 64 << 10)? {}
        }
        let mut sweep = store.sweep()?;
        while sweep.step(&store, 64 << 10)? {}
    }
}

fn snapshot(store: &Store, seq: Seq) -> Result<(), Box<dyn Error>> {
    let before = store.manifests()?.into_iter().next();
    let mut writer = store.begin_snapshot(seq)?;
    for filter in 0..FILTERS {
        let old = before.as_ref().and_then(|manifest| manifest.sections.get(filter as usize));
        if let Some(old) = old.filter(|_| (seq.0 + filter) % 3 == 0) {
            writer.carry_over(old);
            continue;
        }
        let key = SectionKey { filter, part: 0 };
        for index in 0..CHUNKS {
            writer.put_chunk(store, key, index, &chunk(filter, seq.0, index))?;
        }
        writer.end_section(key, seq.0, CHUNKS)?;
    }
    writer.finish(store, Timestamp(seq.0), vec![seq.0 as u8; 70_000])?;
    Ok(())
}

/// Opens the directory and finds everything up to `acknowledged`, from the newest whole snapshot and the log
/// after it.
pub fn check(dir: &Path, acknowledged: u64) -> Result<(), Box<dyn Error>> {
    let store = Arc::new(Store::open(dir, &options(Durability::Fsync))?);
    let mut journal = LocalJournal::open(store.clone())?;
    let manifests = store.manifests()?;
    let after = match manifests.iter().position(|manifest| whole(&store, manifest)) {
        Some(at) if at > 0 => return Err("the newest snapshot is not whole".into()),
        Some(at) => manifests[at].seq.0,
        None if manifests.is_empty() => 0,
        None => return Err("no snapshot is whole".into()),
    };
    let mut last = after;
    let mut wrong = None;
    journal.read_from(Seq(after), &mut |entry| {
        last += 1;
        if entry.seq.0 != last || entry.proposal != proposal(last) {
            wrong.get_or_insert(last);
        }
        Ok(())
    })?;
    match wrong {
        Some(position) => Err(format!("position {position} is not what was written there").into()),
        None if last < acknowledged => {
            Err(format!("position {acknowledged} is gone, the last is {last}").into())
        }
        None => Ok(()),
    }
}

fn whole(store: &Store, manifest: &Manifest) -> bool {
    let mut out = Vec::new();
    manifest.sections.iter().all(|section| {
        (0..section.chunks).all(|index| {
            store.read_chunk(section, index, &mut out).is_ok()
                && out == chunk(section.key.filter, section.changes, index)
        })
    })
}
