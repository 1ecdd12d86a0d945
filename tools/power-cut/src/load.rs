//! What runs while the power is cut: the log, the state that it makes, and snapshots of that all the time; and what is
//! checked once the power is back.

use crate::log::{TIME, entry};
use cuckood::domain::SectionId;
use cuckood::engine::RunningSnapshot;
use cuckood::engine::event_log::{EventLog, EventsFound};
use cuckood::engine::recovery::recover;
use cuckood::journal::{Durability, Journal, LocalJournal, LocalOptions};
use cuckood::state::{FreshEvents, State};
use cuckood::store::{Manifest, Store, StoreOptions};
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a snapshot that are written between two commits.
const SNAPSHOT_STEP_BYTES: u64 = 64 << 10;

/// Bytes of the log, and of earlier snapshots, that go at once.
const REMOVAL_STEP_BYTES: u64 = 64 << 10;

fn open(dir: &Path, durability: Durability) -> Result<(Arc<Store>, LocalJournal), Box<dyn Error>> {
    let options = StoreOptions {
        free_space_min_bytes: 0,
        ballast_bytes: 0,
        preallocate_bytes: 16 << 20,
        cache_bytes: 16 << 20,
        ..StoreOptions::default()
    };
    let store = Arc::new(Store::open(dir, &options)?);
    let options = LocalOptions { segment_bytes: 1 << 20, ..LocalOptions::at(durability) };
    let journal = LocalJournal::open(store.clone(), options)?;
    Ok((store, journal))
}

/// Commits and applies entries for ever; a line on the standard output for every position that was acknowledged.
pub fn run(dir: &Path, durability: Durability) -> Result<(), Box<dyn Error>> {
    let (store, mut journal) = open(dir, durability)?;
    let recovered = recover(&store, &mut journal, &mut |_| ())?;
    let (mut live, mut latest) = ((recovered.state, recovered.events), recovered.manifest);
    let mut out = std::io::stdout();
    loop {
        // An empty state's snapshot is whole at once.
        commit(&store, &mut journal, &mut live, &mut out)?;
        let (state, events) = &mut live;
        let mut running = RunningSnapshot::begin(&store, state, events, latest.as_ref(), Vec::new(), TIME)?;
        while !running.is_whole() {
            commit(&store, &mut journal, &mut live, &mut out)?;
            let until = Instant::now() + Duration::from_secs(60);
            running.write(&store, SNAPSHOT_STEP_BYTES, until)?;
        }
        latest = Some(running.finish(&store)?);
        remove_leftovers(&store, &mut journal, &mut live, &mut out)?;
    }
}

/// One commit: up to seven entries.
fn commit(
    store: &Store,
    journal: &mut LocalJournal,
    (state, events): &mut (State, EventLog),
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    let next = journal.last().0 + 1;
    let batch = (next..=next + next % 7).map(|position| entry(position).proposal).collect();
    for committed in journal.append(batch)? {
        state.apply(committed.entry);
        events.take(store, state)?;
    }
    writeln!(out, "{}", journal.last().0)?;
    Ok(())
}

/// Removes what the newest snapshot has made superfluous, between commits.
fn remove_leftovers(
    store: &Store,
    journal: &mut LocalJournal,
    live: &mut (State, EventLog),
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    if let Some(through) = store.prunable_through()? {
        while journal.prune(through, REMOVAL_STEP_BYTES)? {
            commit(store, journal, live, out)?;
        }
    }
    let mut sweep = store.sweep()?;
    while sweep.step(store, REMOVAL_STEP_BYTES)? {
        commit(store, journal, live, out)?;
    }
    Ok(())
}

/// Recovers the state and the events: everything up to `acknowledged` is in it, and it is what the log makes of itself from the
/// beginning.
pub fn check(dir: &Path, acknowledged: u64) -> Result<(), Box<dyn Error>> {
    let (store, mut journal) = open(dir, Durability::Fsync)?;
    let mut recovered = recover(&store, &mut journal, &mut |_| ())?;
    if let Some(Manifest { seq, .. }) = recovered.damaged.first() {
        return Err(format!("the snapshot at position {} is not whole", seq.0).into());
    }
    let last = recovered.state.applied().0;
    if last < acknowledged {
        return Err(format!("position {acknowledged} is gone, the last is {last}").into());
    }
    let (mut wanted, mut events) = (State::new(), FreshEvents::default());
    let mut found = stored_events(&store, &recovered.events)?.into_iter();
    for position in 1..=last {
        wanted.apply(entry(position));
        wanted.take_events(&mut events);
        for event in events.iter() {
            if found.next() != Some((event.number, event.bytes.to_vec())) {
                return Err(format!("event {} is not what the log makes it", event.number).into());
            }
        }
    }
    if let Some((number, _)) = found.next() {
        return Err(format!("event {number} was made by no entry").into());
    }
    let ((head, sections), (found_head, found)) = (image(&mut wanted), image(&mut recovered.state));
    if head != found_head {
        return Err(format!("at position {last} the head is not what the log makes it").into());
    }
    match sections.iter().zip(&found).find(|(wanted, found)| wanted != found) {
        Some(((section, _), _)) => {
            Err(format!("at position {last} {section:?} is not what the log makes it").into())
        }
        None => Ok(()),
    }
}

/// An encoded event and its number.
type StoredEvent = (u64, Vec<u8>);

/// All events with their numbers.
fn stored_events(store: &Store, events: &EventLog) -> Result<Vec<StoredEvent>, Box<dyn Error>> {
    let (mut next, mut all) = (0, Vec::new());
    while let EventsFound::Pack(pack) = events.find(store, next, false)? {
        let new = pack.events().filter(|(number, _)| *number >= next);
        all.extend(new.map(|(number, event)| (number, event.to_vec())));
        next = pack.last() + 1;
    }
    Ok(all)
}

/// The name of a section, its number of changes, and the bytes of its chunks.
type SectionChunks = ((SectionId, u64), Vec<Vec<u8>>);

/// All that a state is, as a snapshot would hold it.
fn image(state: &mut State) -> (Vec<u8>, Vec<SectionChunks>) {
    let image = state.begin_snapshot();
    let sections = image.sections.into_iter().map(|mut section| {
        let chunks = std::iter::from_fn(|| {
            let mut chunk = Vec::new();
            section.next_chunk(&mut chunk).then_some(chunk)
        });
        let chunks = chunks.collect();
        ((section.id, section.changes), chunks)
    });
    let sections = sections.collect();
    (image.head, sections)
}
