//! Which snapshots of a log are shared: a list under the log's identity, newest first, replaced by compare-and-set.

use super::failure::failed;
use crate::journal::nats::options::NatsOptions;
use crate::journal::nats::places::LogId;
use crate::journal::{JournalError, SharedSnapshot};
use async_nats::jetstream::context::Context;
use async_nats::jetstream::kv::{self, Store};
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use serde::{Deserialize, Serialize};

const VERSION: u32 = 2;

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    snapshots: Vec<SharedSnapshot>,
}

/// The list as it was read.
pub(super) struct Catalog {
    store: Store,
    log: LogId,
    /// The list's revision; 0 if there is none yet.
    revision: u64,
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
        let subject = format!("{}{}", store.prefix, key_of(log));
        let (revision, snapshots) = match store.stream.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => (message.sequence, decode(&message.payload)?),
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
        let value = encode(&snapshots);
        let replaced = self.store.update(key_of(self.log), value.into(), self.revision).await;
        replaced.map(drop).map_err(failed)
    }
}

/// The key of a log's list. Lists of other logs that had the same stream name stay.
fn key_of(log: LogId) -> String {
    format!("{:032x}", log.0)
}

fn encode(snapshots: &[SharedSnapshot]) -> String {
    let stored = Stored { version: VERSION, snapshots: snapshots.to_vec() };
    serde_json::to_string(&stored).expect("texts and numbers are JSON")
}

fn decode(value: &[u8]) -> Result<Vec<SharedSnapshot>, JournalError> {
    let damaged = |why: String| JournalError::Damaged(format!("the list of shared snapshots: {why}"));
    let stored: Stored = serde_json::from_slice(value).map_err(|error| damaged(error.to_string()))?;
    if stored.version != VERSION {
        return Err(damaged(format!("format {}; this build reads format {VERSION}", stored.version)));
    }
    Ok(stored.snapshots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Seq, Timestamp};

    #[test]
    fn list_round_trips_and_newer_version_is_rejected() {
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
        let value = encode(&list);
        assert_eq!(decode(value.as_bytes()).unwrap(), list);
        let newer = value.replace("\"version\":2", "\"version\":3");
        assert!(decode(newer.as_bytes()).is_err());
        assert!(decode(b"{}").is_err());
    }
}
