//! Which snapshots are shared: a list under one key, newest first, replaced by compare-and-set.

use super::failure::failed;
use crate::domain::{Seq, Timestamp};
use crate::journal::nats::options::NatsOptions;
use crate::journal::nats::places::LogId;
use crate::journal::{JournalError, SharedSnapshot};
use async_nats::jetstream::context::Context;
use async_nats::jetstream::kv::{self, Store};
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use serde::{Deserialize, Serialize};

const KEY: &str = "newest";

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    log: String,
    snapshots: Vec<StoredSnapshot>,
}

#[derive(Serialize, Deserialize)]
struct StoredSnapshot {
    name: String,
    position: u64,
    taken_at: u64,
    node: String,
    bytes: u64,
    digest: String,
    place: String,
}

/// The list as it was read.
pub(super) struct Catalog {
    store: Store,
    log: LogId,
    /// The list's revision; 0 if there is none yet.
    revision: u64,
    /// The snapshots of this log. Those of another one that had the same name don't count.
    pub(super) snapshots: Vec<SharedSnapshot>,
}

impl Catalog {
    /// Reads the list from the server that leads it: others may be behind.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if that is not possible; [`JournalError::Damaged`] if it can't be understood.
    pub(super) async fn read(
        context: &Context,
        options: &NatsOptions,
        log: LogId,
    ) -> Result<Catalog, JournalError> {
        let config = kv::Config {
            bucket: format!("{}-snapshots", options.stream),
            description: "which snapshots cuckood's nodes share".to_owned(),
            num_replicas: options.replicas,
            ..kv::Config::default()
        };
        let store = match context.get_key_value(&config.bucket).await {
            Ok(store) => store,
            Err(_) => context.create_key_value(config).await.map_err(failed)?,
        };
        let subject = format!("{}{KEY}", store.prefix);
        let (revision, snapshots) = match store.stream.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => (message.sequence, decode(&message.payload, log)?),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => (0, Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        Ok(Catalog { store, log, revision, snapshots })
    }

    pub(super) fn newest(&self) -> Option<&SharedSnapshot> {
        self.snapshots.first()
    }

    /// Puts another list in its place, unless somebody else has.
    ///
    /// # Errors
    /// [`JournalError::Failed`]. Whether it is replaced may be unknown then.
    pub(super) async fn replace(&self, snapshots: Vec<SharedSnapshot>) -> Result<(), JournalError> {
        let value = encode(self.log, &snapshots);
        let replaced = self.store.update(KEY, value.into(), self.revision).await;
        replaced.map(drop).map_err(failed)
    }
}

fn encode(log: LogId, snapshots: &[SharedSnapshot]) -> String {
    let snapshots = snapshots.iter().map(|snapshot| StoredSnapshot {
        name: snapshot.name.clone(),
        position: snapshot.seq.0,
        taken_at: snapshot.taken_at.0,
        node: snapshot.node.clone(),
        bytes: snapshot.bytes,
        digest: snapshot.digest.clone(),
        place: hex::encode(&snapshot.place),
    });
    let stored = Stored { version: VERSION, log: format!("{:032x}", log.0), snapshots: snapshots.collect() };
    serde_json::to_string(&stored).expect("texts and numbers are JSON")
}

fn decode(value: &[u8], log: LogId) -> Result<Vec<SharedSnapshot>, JournalError> {
    let damaged = |why: String| JournalError::Damaged(format!("the list of shared snapshots: {why}"));
    let stored: Stored = serde_json::from_slice(value).map_err(|error| damaged(error.to_string()))?;
    if stored.version != VERSION {
        return Err(damaged(format!("it has format {}, which a later version has written", stored.version)));
    }
    if stored.log != format!("{:032x}", log.0) {
        tracing::warn!("the shared snapshots are of another log, and don't count");
        return Ok(Vec::new());
    }
    let snapshots = stored.snapshots.into_iter().map(|snapshot| {
        Ok(SharedSnapshot {
            place: hex::decode(&snapshot.place).map_err(|error| damaged(error.to_string()))?,
            name: snapshot.name,
            seq: Seq(snapshot.position),
            taken_at: Timestamp(snapshot.taken_at),
            node: snapshot.node,
            bytes: snapshot.bytes,
            digest: snapshot.digest,
        })
    });
    snapshots.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_comes_back_and_that_of_another_log_does_not_count() {
        let snapshot = |seq| SharedSnapshot {
            name: format!("snapshot-{seq}"),
            seq: Seq(seq),
            taken_at: Timestamp(seq * 7),
            node: "node-1".to_owned(),
            bytes: 1 << 40,
            digest: "SHA-256=abc".to_owned(),
            place: vec![0, 1, 255],
        };
        let list = [snapshot(9), snapshot(4)];
        let value = encode(LogId(3), &list);
        assert_eq!(decode(value.as_bytes(), LogId(3)).unwrap(), list);
        assert!(decode(value.as_bytes(), LogId(4)).unwrap().is_empty());
        let newer = value.replace("\"version\":1", "\"version\":2");
        assert!(decode(newer.as_bytes(), LogId(3)).is_err());
        assert!(decode(b"{}", LogId(3)).is_err());
    }
}
