//! The check once the power is back: a directory has everything that was acknowledged, and is what its log makes.

use crate::load::open;
use crate::log::Log;
use cuckood::engine::event_log::{EventLog, EventsFound};
use cuckood::engine::recovery::recover;
use cuckood_log::journal::Durability;
use cuckood_log::store::{Manifest, Store, is_unused};
use cuckood_state::domain::{SectionId, Timestamp};
use cuckood_state::{FreshEvents, Section, State};
use std::error::Error;
use std::path::Path;

/// Recovers the state and the events, and compares both with a replay of the complete log. Returns the last position, which is at least
/// `acknowledged`; `None` if a restore into the directory was cut short.
pub fn check(dir: &Path, acknowledged: u64, log: &Log) -> Result<Option<u64>, Box<dyn Error>> {
    let is_marked = dir.join("restoring").exists();
    if acknowledged > 0 && !is_marked && is_unused(dir) {
        return Ok(None);
    }
    let opened = open(dir, Durability::Fsync);
    if is_marked {
        return if opened.is_err() {
            Ok(None)
        } else {
            Err("an interrupted restore was opened".into())
        };
    }
    let (store, mut journal) = opened?;
    let mut recovered = recover(&store, &mut journal, &mut |_| ())?;
    if let Some(Manifest { seq, .. }) = recovered.damaged.first() {
        return Err(format!("the snapshot at position {} is incomplete", seq.0).into());
    }
    let last = recovered.state.applied().0;
    if last < acknowledged {
        return Err(format!("position {acknowledged} is gone, the last is {last}").into());
    }
    let mut wanted = State::default();
    let mut fresh = FreshEvents::default();
    let mut events = Vec::new();
    let mut over = Timestamp(0);
    for position in 1..=last {
        wanted.apply(log.entry(position));
        wanted.take_events(&mut fresh);
        events.extend(
            fresh
                .iter()
                .map(|event| (event.number, event.bytes.to_vec(), event.at)),
        );
        let retention = wanted.settings().events_retention_seconds;
        over = over.max(Timestamp(wanted.now().0 - retention * 1_000));
    }
    let removable = events
        .iter()
        .rposition(|(_, _, at)| *at <= over)
        .map_or(0, |event| event + 1);
    let wanted_events = events
        .into_iter()
        .map(|(number, bytes, _)| (number, bytes))
        .collect();
    compare_events(
        wanted_events,
        removable,
        stored_events(&store, &recovered.events)?,
    )?;
    let (head, sections) = image(&mut wanted);
    let (found_head, found) = image(&mut recovered.state);
    if (wanted.hash(), head) != (recovered.state.hash(), found_head) {
        return Err(format!("at position {last} the head is not what the log makes it").into());
    }
    match sections
        .iter()
        .zip(&found)
        .find(|(wanted, found)| wanted != found)
    {
        Some(((section, _), _)) => {
            Err(format!("at position {last} {section:?} is not what the log makes it").into())
        }
        None => Ok(Some(last)),
    }
}

/// Encoded events with their numbers.
type Events = Vec<(u64, Vec<u8>)>;

/// Finds each event once. The first ones may be removed, because their retention is over: at most this many.
fn compare_events(wanted: Events, removable: usize, found: Events) -> Result<(), Box<dyn Error>> {
    let removed = wanted
        .len()
        .checked_sub(found.len())
        .ok_or("there are more events than the log makes")?;
    match wanted
        .iter()
        .skip(removed)
        .zip(&found)
        .find(|(wanted, found)| wanted != found)
    {
        Some(((number, _), _)) => {
            Err(format!("event {number} is not what the log makes it").into())
        }
        None if removed > removable => {
            Err(format!("{removed} events are gone, {removable} were over").into())
        }
        None => Ok(()),
    }
}

/// All events that are stored.
fn stored_events(store: &Store, events: &EventLog) -> Result<Events, Box<dyn Error>> {
    let mut next = 0;
    let mut all = Vec::new();
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
    let read = |mut section: Section| {
        let id = (section.id, section.changes);
        let mut chunk = Vec::new();
        let chunks = std::iter::from_fn(|| section.next_chunk(&mut chunk).then(|| chunk.clone()));
        (id, chunks.collect())
    };
    (image.head, image.sections.into_iter().map(read).collect())
}
