//! The last acknowledged position, in a small separate record. sled silently drops unreadable data at the tail of its file; this record
//! makes a lost tail visible.
//!
//! The level `flush` guarantees nothing after a power loss. So the record also says which boot of the machine it belongs to, and how much
//! was synced: after another boot only the synced part must be there.
//!
//! A record is written after its data is durable and before the caller is answered, so it never claims too much.
//!
//! ```text
//! frame "ckac": identity of the directory, last and synced (position and checksum each), boot (postcard)
//! ```

use super::log::{self, LogEnd};
use crate::store::{RECORD_SLOTS, Store, StoreError, boot_id};
use cuckood_state::frame::{FRAME_BYTES, FrameFormat, decode};
use serde::{Deserialize, Serialize};

const FORMAT: FrameFormat = FrameFormat {
    magic: *b"ckac",
    version: 1,
    oldest: 1,
    payload_max: 256,
};

/// The acknowledged positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Acknowledged {
    /// The last acknowledged position; it must survive a crash of the process.
    last: LogEnd,
    /// The last position that was synced before it was acknowledged; it must survive a power loss.
    synced: LogEnd,
}

impl Acknowledged {
    /// Encodes the record with the directory's identity, so that a file from elsewhere is noticed.
    fn encode(self, identity: &[u8; 16], boot: u128) -> Vec<u8> {
        FORMAT.pack(&(identity, self, boot))
    }

    /// Adjusts the record to the current boot of the machine. The rest of a longer one may follow it.
    fn decode(bytes: &[u8], identity: &[u8; 16], boot: u128) -> Option<Acknowledged> {
        let (frame, _) = FORMAT.open(bytes).ok()??;
        let (of, found, in_boot): ([u8; 16], Acknowledged, u128) = decode(frame.payload)?;
        let last = if in_boot == boot {
            found.last
        } else {
            found.synced
        };
        (of == *identity).then_some(Acknowledged { last, ..found })
    }
}

/// The newest record, and its slot.
pub(super) struct AcknowledgedRecord {
    newest: Acknowledged,
    slot: u64,
    boot: u128,
}

impl AcknowledgedRecord {
    /// Reads the later of the two records. A directory that was never used has none.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the directory was used and neither record is intact.
    pub(super) fn load(store: &Store) -> Result<AcknowledgedRecord, StoreError> {
        let nothing = log::first_link(store);
        let boot = boot_id();
        let first = (
            Acknowledged {
                last: nothing,
                synced: nothing,
            },
            0,
        );
        let mut newest = store.is_new().then_some(first);
        for slot in 0..RECORD_SLOTS {
            let mut bytes = [0; FORMAT.payload_max + FRAME_BYTES];
            store.run(store.backing().read_record(slot, &mut bytes))?;
            let found =
                Acknowledged::decode(&bytes, store.identity(), boot).map(|found| (found, slot));
            newest = [newest, found]
                .into_iter()
                .flatten()
                .max_by_key(|(found, _)| found.last.seq);
        }
        let none = || store.damaged("the file `acknowledged` holds no intact record");
        let (newest, slot) = newest.ok_or_else(none)?;
        Ok(AcknowledgedRecord { newest, slot, boot })
    }

    /// The last position that was acknowledged.
    pub(super) fn last(&self) -> LogEnd {
        self.newest.last
    }

    /// The last position that was synced.
    pub(super) fn synced(&self) -> LogEnd {
        self.newest.synced
    }

    /// Records the position about to be acknowledged, and whether it has been synced.
    pub(super) fn note(
        &mut self,
        store: &Store,
        last: LogEnd,
        is_synced: bool,
    ) -> Result<(), StoreError> {
        let synced = if is_synced { last } else { self.newest.synced };
        self.newest = Acknowledged { last, synced };
        self.slot = (self.slot + 1) % RECORD_SLOTS;
        let record = self.newest.encode(store.identity(), self.boot);
        store.change(|backing| backing.write_record(self.slot, &record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{RECORD_BYTES_MAX, StoreOptions};
    use cuckood_state::domain::Seq;

    const IDENTITY: [u8; 16] = [3; 16];

    fn at(last: u64, synced: u64) -> Acknowledged {
        let link = |seq| LogEnd {
            seq: Seq(seq),
            checksum: u128::from(seq) << 100,
        };
        Acknowledged {
            last: link(last),
            synced: link(synced),
        }
    }

    #[test]
    fn reboot_requires_only_synced_position() {
        let record = at(9, 5).encode(&IDENTITY, 1);
        assert_eq!(Acknowledged::decode(&record, &IDENTITY, 1), Some(at(9, 5)));
        assert_eq!(Acknowledged::decode(&record, &IDENTITY, 2), Some(at(5, 5)));
        assert_eq!(Acknowledged::decode(&record, &[4; 16], 1), None);
    }

    #[test]
    fn torn_record_leaves_previous_one() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            Store::open(
                dir.path(),
                &StoreOptions {
                    ballast_bytes: 0,
                    ..StoreOptions::default()
                },
            )
            .unwrap()
        };
        let link = |seq| LogEnd {
            seq: Seq(seq),
            checksum: 7,
        };
        {
            let store = open();
            AcknowledgedRecord::load(&store)
                .unwrap()
                .note(&store, log::first_link(&store), true)
                .unwrap();
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
        bytes[newest.slot as usize * RECORD_BYTES_MAX + 40] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(AcknowledgedRecord::load(&open()).unwrap().last(), link(4));
        // With both missing the directory is damaged, not new.
        std::fs::write(&path, vec![0; bytes.len()]).unwrap();
        assert!(matches!(
            AcknowledgedRecord::load(&open()),
            Err(StoreError::Damaged { .. })
        ));
    }
}
