//! The places in the stream of this node's snapshots, stored in the data directory: a restart reads on from there. The first one is that
//! of position 0, written when the directory is first used: it records the log to which the directory belongs.

use super::order::Place;
use crate::domain::Seq;
use crate::frame::Format;
use crate::store::backing::Change;
use crate::store::{Store, StoreError, VALUE_BYTES_MAX};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;

const TREE: &str = "log-places";

const FORMAT: Format = Format { magic: *b"ckpl", version: 1, payload_max: VALUE_BYTES_MAX };

/// The random identity of a log, drawn when its stream is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct LogId(pub(super) u128);

/// Whether the directory belongs to a replicated log.
pub(in crate::journal) fn is_of_replicated_log(store: &Store) -> bool {
    store.backing().tree_names().iter().any(|tree| tree == TREE)
}

/// Stores an encoded place of a position.
///
/// # Errors
/// [`StoreError::Failed`].
pub(super) fn keep(store: &Store, seq: Seq, value: Vec<u8>) -> Result<(), StoreError> {
    store.write(TREE, vec![Change::Put(seq.0.to_be_bytes().to_vec(), value)])
}

/// The encoded place of a position, if it is stored.
///
/// # Errors
/// [`StoreError::Damaged`].
pub(super) fn encoded(store: &Store, seq: Seq) -> Result<Option<Vec<u8>>, StoreError> {
    let mut value = Vec::new();
    let is_kept = store.run(store.backing().read(TREE, &seq.0.to_be_bytes(), &mut value))?;
    Ok(is_kept.then_some(value))
}

/// Encodes a place in a log.
pub(super) fn encode(log: LogId, place: &Place) -> Vec<u8> {
    FORMAT.pack(&(log, place))
}

/// The inverse of [`encode`]; `None` if the bytes are damaged.
pub(super) fn decode(value: &[u8]) -> Option<(LogId, Place)> {
    FORMAT.unpack(value).ok()
}

/// All stored places, in order, and the log that they belong to; `None` if the directory was never used with one.
///
/// # Errors
/// [`StoreError::Damaged`].
pub(super) fn all(store: &Store) -> Result<Option<(LogId, Vec<Place>)>, StoreError> {
    let (mut log, mut places, mut damaged) = (None, Vec::new(), false);
    let scanned = store.backing().scan(TREE, &[], &mut |key, value| match decode(value) {
        Some((of, place)) if log.is_none_or(|log| log == of) && *key == place.seq.0.to_be_bytes() => {
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

/// Drops the places before a position, except that of position 0.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreOptions;

    #[test]
    fn places_round_trip_and_old_ones_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions { free_space_min_bytes: 0, ballast_bytes: 0, ..StoreOptions::default() };
        let store = Store::open(dir.path(), &options).unwrap();
        assert!(!is_of_replicated_log(&store));
        assert_eq!(all(&store).unwrap(), None);
        let kept = [0, 5, 300, 70_000].map(|seq| Place::after_snapshot(seq * 2, Seq(seq)));
        let keep = |log, place: &Place| keep(&store, place.seq, encode(log, place)).unwrap();
        kept.iter().for_each(|place| keep(LogId(9), place));
        assert_eq!(all(&store).unwrap(), Some((LogId(9), kept.to_vec())));
        forget_before(&store, Seq(300)).unwrap();
        let left = [&kept[..1], &kept[2..]].concat();
        assert_eq!(all(&store).unwrap(), Some((LogId(9), left)));
        assert!(is_of_replicated_log(&store));
        let mut damaged = encoded(&store, Seq(300)).unwrap().unwrap();
        damaged[40] ^= 1;
        assert_eq!(decode(&damaged), None);
        keep(LogId(8), &kept[0]);
        assert!(all(&store).is_err(), "of two logs");
    }
}
