//! The last acknowledged position, in a small record beside sled. sled silently drops what it can't read at the tail of its file;
//! this record makes a lost tail visible.
//!
//! The level `flush` promises nothing for the death of the machine. So the record also says which boot of the machine it belongs
//! to, and how much was synced: after another boot only the synced part must be there.
//!
//! A record is written after its data is durable and before the caller is answered, so it never claims too much.
//!
//! ```text
//! record: magic  identity of the directory [16]  last (seq u64, checksum u128)  synced (the same)  boot u128
//!         XXH3-128 of all that                                                      (little-endian)
//! ```

use super::commit::Link;
use super::tail;
use crate::store::{RECORD_SLOTS, Store, StoreError, boot_id};
use xxhash_rust::xxh3::xxh3_128;

const MAGIC: &[u8; 8] = b"ckackn\0\x01";
const RECORD_BYTES: usize = 112;

/// The acknowledged positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Acknowledged {
    /// The last position that was acknowledged; it must survive the death of the process.
    last: Link,
    /// The last position that was synced before it was acknowledged; it must survive the death of the machine.
    synced: Link,
}

impl Acknowledged {
    /// Encodes the record with the directory's identity, so that a file from elsewhere is noticed.
    fn encode(self, identity: &[u8; 16], boot: u128) -> [u8; RECORD_BYTES] {
        let mut record = [0; RECORD_BYTES];
        record[..8].copy_from_slice(MAGIC);
        record[8..24].copy_from_slice(identity);
        record[24..48].copy_from_slice(&self.last.encode());
        record[48..72].copy_from_slice(&self.synced.encode());
        record[72..88].copy_from_slice(&boot.to_le_bytes());
        let checksum = xxh3_128(&record[..RECORD_BYTES - 16]);
        record[RECORD_BYTES - 16..].copy_from_slice(&checksum.to_le_bytes());
        record
    }

    /// Adjusts the record to the current boot of the machine.
    fn decode(record: &[u8; RECORD_BYTES], identity: &[u8; 16], boot: u128) -> Option<Acknowledged> {
        let (body, checksum) = record.split_last_chunk::<16>()?;
        if xxh3_128(body) != u128::from_le_bytes(*checksum) || &body[..8] != MAGIC || &body[8..24] != identity
        {
            return None;
        }
        let (last, synced) = (Link::decode(&body[24..48])?, Link::decode(&body[48..72])?);
        let same_boot = u128::from_le_bytes(*body[72..].first_chunk()?) == boot;
        Some(Acknowledged { last: if same_boot { last } else { synced }, synced })
    }
}

/// The current record, and the slot for the next one.
pub(super) struct AcknowledgedRecord {
    newest: Acknowledged,
    slot: u64,
    boot: u128,
}

impl AcknowledgedRecord {
    /// Reads the later of the two records. A directory that was never used has none, and gets its first.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the directory was used and neither record is intact.
    pub(super) fn load(store: &Store) -> Result<AcknowledgedRecord, StoreError> {
        let boot = boot_id();
        let mut newest: Option<(Acknowledged, u64)> = None;
        for slot in 0..RECORD_SLOTS {
            let mut bytes = [0; RECORD_BYTES];
            store.read_record(slot, &mut bytes)?;
            let found = Acknowledged::decode(&bytes, store.identity(), boot).map(|found| (found, slot));
            newest = [newest, found].into_iter().flatten().max_by_key(|(found, _)| found.last.seq);
        }
        match newest {
            Some((newest, slot)) => Ok(AcknowledgedRecord { newest, slot: (slot + 1) % RECORD_SLOTS, boot }),
            None if store.is_new() => AcknowledgedRecord::first(store, boot),
            None => Err(store.damaged("the file `acknowledged` holds no intact record")),
        }
    }

    fn first(store: &Store, boot: u128) -> Result<AcknowledgedRecord, StoreError> {
        let nothing = tail::first_link(store);
        let newest = Acknowledged { last: nothing, synced: nothing };
        let mut record = AcknowledgedRecord { newest, slot: 0, boot };
        record.note(store, nothing, true)?;
        store.sync_record()?;
        Ok(record)
    }

    /// The last position that was acknowledged.
    pub(super) fn last(&self) -> Link {
        self.newest.last
    }

    /// Records what is about to be acknowledged, and whether it has been synced.
    pub(super) fn note(&mut self, store: &Store, last: Link, is_synced: bool) -> Result<(), StoreError> {
        let synced = if is_synced { last } else { self.newest.synced };
        self.newest = Acknowledged { last, synced };
        store.write_record(self.slot, &self.newest.encode(store.identity(), self.boot))?;
        self.slot = (self.slot + 1) % RECORD_SLOTS;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Seq;
    use crate::store::{RECORD_BYTES_MAX, StoreOptions};

    const IDENTITY: [u8; 16] = [3; 16];

    fn at(last: u64, synced: u64) -> Acknowledged {
        let link = |seq| Link { seq: Seq(seq), checksum: u128::from(seq) << 100 };
        Acknowledged { last: link(last), synced: link(synced) }
    }

    #[test]
    fn after_another_boot_only_what_was_synced_is_asked_for() {
        let record = at(9, 5).encode(&IDENTITY, 1);
        assert_eq!(Acknowledged::decode(&record, &IDENTITY, 1), Some(at(9, 5)));
        assert_eq!(Acknowledged::decode(&record, &IDENTITY, 2), Some(at(5, 5)));
        assert_eq!(Acknowledged::decode(&record, &[4; 16], 1), None);
    }

    #[test]
    fn a_torn_record_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            Store::open(dir.path(), &StoreOptions { ballast_bytes: 0, ..StoreOptions::default() }).unwrap()
        };
        let link = |seq| Link { seq: Seq(seq), checksum: 7 };
        {
            let store = open();
            AcknowledgedRecord::load(&store).unwrap();
            store.begin_use().unwrap();
        }
        for seq in 1..=5 {
            let store = open();
            let mut record = AcknowledgedRecord::load(&store).unwrap();
            assert_eq!(record.last().seq, Seq(seq - 1));
            record.note(&store, link(seq), true).unwrap();
        }
        let newest = AcknowledgedRecord::load(&open()).unwrap();
        let path = dir.path().join("acknowledged");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[(1 - newest.slot) as usize * RECORD_BYTES_MAX + 40] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(AcknowledgedRecord::load(&open()).unwrap().last(), link(4));
        // With both gone the directory is damaged, not new.
        std::fs::write(&path, vec![0; bytes.len()]).unwrap();
        assert!(matches!(AcknowledgedRecord::load(&open()), Err(StoreError::Damaged { .. })));
    }
}
