//! Where the positions of this node's snapshots lie in the stream, kept in the data directory: a restart reads on from there. The
//! first of them is that of position 0, written when the directory is first used: it tells which log the directory belongs to.

use super::sequencer::Place;
use super::sessions::{Progress, Sessions};
use crate::domain::Seq;
use crate::store::backing::Change;
use crate::store::{Store, StoreError};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

const TREE: &str = "log-places";

/// The first byte of each value; the last sixteen are a checksum.
const VERSION: u8 = 1;

/// The random identity of a log, drawn when its stream is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LogId(pub(super) u128);

#[derive(Serialize, Deserialize)]
struct Stored {
    log: u128,
    stream: u64,
    checksum: u128,
    forgotten: u64,
    sessions: Vec<(String, Progress)>,
}

/// Whether the directory belongs to a replicated log.
pub(in crate::journal) fn is_of_replicated_log(store: &Store) -> bool {
    store.backing().tree_names().iter().any(|tree| tree == TREE)
}

/// Keeps the place of a position.
///
/// # Errors
/// [`StoreError::Failed`].
pub(super) fn keep(store: &Store, log: LogId, place: &Place) -> Result<(), StoreError> {
    keep_encoded(store, place.seq, encode(log, place)?)
}

/// Keeps the place of a position, as [`encode`] wrote it.
///
/// # Errors
/// [`StoreError::Failed`].
pub(super) fn keep_encoded(store: &Store, seq: Seq, value: Vec<u8>) -> Result<(), StoreError> {
    store.write(TREE, vec![Change::Put(seq.0.to_be_bytes().to_vec(), value)])
}

/// The place of a position as [`encode`] wrote it, if it is kept.
///
/// # Errors
/// [`StoreError::Damaged`].
pub(super) fn encoded(store: &Store, seq: Seq) -> Result<Option<Vec<u8>>, StoreError> {
    let mut value = Vec::new();
    let is_kept = store.run(store.backing().read(TREE, &seq.0.to_be_bytes(), &mut value))?;
    Ok(is_kept.then_some(value))
}

/// Encodes a place, but for its position.
///
/// # Errors
/// [`StoreError::Misuse`] if that can't be done.
pub(super) fn encode(log: LogId, place: &Place) -> Result<Vec<u8>, StoreError> {
    let stored = Stored {
        log: log.0,
        stream: place.stream,
        checksum: place.checksum,
        forgotten: place.sessions.forgotten,
        sessions: place.sessions.nodes.iter().map(|(node, latest)| (node.to_string(), *latest)).collect(),
    };
    let mut value = postcard::to_extend(&stored, vec![VERSION])
        .map_err(|error| StoreError::Misuse(format!("a place in the log can't be encoded: {error}")))?;
    let checksum = xxh3_128(&value);
    value.extend_from_slice(&checksum.to_le_bytes());
    Ok(value)
}

/// All places that are kept, in order, and the log that they lie in; `None` if the directory was never used with one.
///
/// # Errors
/// [`StoreError::Damaged`].
pub(super) fn all(store: &Store) -> Result<Option<(LogId, Vec<Place>)>, StoreError> {
    let (mut log, mut places, mut damaged) = (None, Vec::new(), false);
    let decoded = |key: &[u8], value: &[u8]| decode(Seq(u64::from_be_bytes(key.try_into().ok()?)), value);
    let scanned = store.backing().scan(TREE, &[], &mut |key, value| match decoded(key, value) {
        Some((of, place)) if log.is_none_or(|log| log == of) => {
            log = Some(of);
            places.push(place);
            ControlFlow::Continue(())
        }
        _ => {
            damaged = true;
            ControlFlow::Break(())
        }
    });
    store.run(scanned)?;
    if damaged {
        return Err(store.damaged("a place in the replicated log is damaged"));
    }
    Ok(log.map(|log| (log, places)))
}

/// Forgets the places before a position, but for that of position 0.
///
/// # Errors
/// [`StoreError`].
pub(super) fn forget_before(store: &Store, seq: Seq) -> Result<(), StoreError> {
    let old = all(store)?.map_or(Vec::new(), |(_, places)| places);
    for place in old.into_iter().filter(|place| place.seq > Seq(0) && place.seq < seq) {
        store.write(TREE, vec![Change::Remove(place.seq.0.to_be_bytes().to_vec())])?;
    }
    Ok(())
}

/// The inverse of [`encode`]; `None` if the bytes are damaged.
pub(super) fn decode(seq: Seq, value: &[u8]) -> Option<(LogId, Place)> {
    let (body, checksum) = value.split_last_chunk::<16>()?;
    let stored: Stored = postcard::from_bytes(body.strip_prefix(&[VERSION])?).ok()?;
    let Stored { log, stream, checksum: message, forgotten, sessions } = stored;
    let nodes = sessions.into_iter().map(|(node, latest)| (Arc::from(node), latest)).collect();
    let sessions = Sessions { nodes, forgotten };
    let place = Place { stream, seq, sessions: Arc::new(sessions), checksum: message };
    (xxh3_128(body) == u128::from_le_bytes(*checksum)).then_some((LogId(log), place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::nats::message::Session;
    use crate::store::StoreOptions;

    #[test]
    fn places_come_back_and_old_ones_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions { free_space_min_bytes: 0, ballast_bytes: 0, ..StoreOptions::default() };
        let store = Store::open(dir.path(), &options).unwrap();
        assert!(!is_of_replicated_log(&store));
        assert_eq!(all(&store).unwrap(), None);
        let latest = Progress { session: Session(7), begun: 3, heard: 9, next: 5 };
        let sessions = Sessions { nodes: [(Arc::from("a"), latest)].into(), forgotten: 2 };
        let place = |seq| Place {
            stream: seq * 2,
            seq: Seq(seq),
            sessions: Arc::new(sessions.clone()),
            checksum: u128::MAX - u128::from(seq),
        };
        let kept = [0, 5, 300, 70_000].map(place);
        for place in &kept {
            keep(&store, LogId(9), place).unwrap();
        }
        assert_eq!(all(&store).unwrap(), Some((LogId(9), kept.to_vec())));
        forget_before(&store, Seq(300)).unwrap();
        let left = [&kept[..1], &kept[2..]].concat();
        assert_eq!(all(&store).unwrap(), Some((LogId(9), left)));
        assert!(is_of_replicated_log(&store));
        keep(&store, LogId(8), &kept[0]).unwrap();
        assert!(all(&store).is_err(), "of two logs");
    }
}
