//! Which journal an engine runs on.

use cuckood_log::journal::{
    Durability, Journal, JournalError, LocalJournal, LocalOptions, Result, has_log,
};
use cuckood_log::store::{Store, StoreError, StoreOptions};
use cuckood_nats::{NatsJournal, NatsOptions, NatsSnapshots, is_of_replicated_log};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long the journal may take to commit. A local commit takes milliseconds; a replicated log without a leader recovers within
/// seconds or is in trouble.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(30);

/// The same for a log that several nodes share: longer than a new leader takes, shorter than a client waits.
const SHARED_COMMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Which journal an engine runs on.
#[derive(Clone, Debug)]
pub enum JournalOptions {
    /// The log in the node's own store.
    Local(LocalOptions),
    /// A replicated log on NATS JetStream.
    Nats(Box<NatsOptions>),
    /// Another log that several engines may share.
    #[cfg(feature = "testing")]
    Other(Arc<dyn cuckood_log::journal::OpenJournal>),
}

impl JournalOptions {
    /// Opens the journal.
    ///
    /// # Errors
    /// [`JournalError::Damaged`] if something acknowledged is missing; [`JournalError::Failed`] if the log can't be reached.
    pub fn open(&self, store: &Arc<Store>) -> Result<Box<dyn Journal>> {
        let path = store.path().display();
        match self {
            JournalOptions::Local(_) if is_of_replicated_log(store) => {
                Err(JournalError::Damaged(format!(
                    "{path} holds snapshots of a replicated log, and no log: set journal.kind to \"nats\", or restore a backup elsewhere"
                )))
            }
            JournalOptions::Nats(_) if has_log(store) => Err(JournalError::Damaged(format!(
                "{path} has a local log: a node of a replicated log needs an empty directory"
            ))),
            JournalOptions::Local(options) => {
                Ok(Box::new(LocalJournal::open(store.clone(), *options)?))
            }
            JournalOptions::Nats(options) => {
                Ok(Box::new(NatsJournal::open(store.clone(), options)?))
            }
            #[cfg(feature = "testing")]
            JournalOptions::Other(log) => {
                let journal = log.open(store)?;
                store.begin_use()?;
                Ok(journal)
            }
        }
    }

    /// Opens the data directory.
    ///
    /// # Errors
    /// Those of [`Store::open`].
    pub fn open_store(&self, path: &Path, options: &StoreOptions) -> Result<Store, StoreError> {
        match self {
            JournalOptions::Local(_) | JournalOptions::Nats(_) => Store::open(path, options),
            #[cfg(feature = "testing")]
            JournalOptions::Other(log) => log.open_store(path, options),
        }
    }

    /// Opens the access to the snapshots that nodes share; `None` if they share none.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if it can't be reached.
    pub fn shared_snapshots(&self) -> Result<Option<NatsSnapshots>> {
        Ok(match self {
            JournalOptions::Nats(options) => Some(NatsSnapshots::open(options)?),
            JournalOptions::Local(_) => None,
            #[cfg(feature = "testing")]
            JournalOptions::Other(_) => None,
        })
    }

    /// Whether other nodes write to the same log.
    pub fn is_shared(&self) -> bool {
        match self {
            JournalOptions::Local(_) => false,
            JournalOptions::Nats(_) => true,
            #[cfg(feature = "testing")]
            JournalOptions::Other(log) => log.is_shared(),
        }
    }

    /// How long it may take to commit. A caller of a node that shares its log can try another one, so it gets an unknown outcome sooner.
    pub fn commit_timeout(&self) -> Duration {
        if self.is_shared() {
            SHARED_COMMIT_TIMEOUT
        } else {
            COMMIT_TIMEOUT
        }
    }

    /// The crashes that an acknowledged write survives.
    pub fn durability(&self) -> Durability {
        match self {
            JournalOptions::Local(options) => options.durability,
            #[cfg(feature = "testing")]
            JournalOptions::Other(_) => Durability::Relaxed,
            // The servers sync before they acknowledge, or a warning says that they must.
            JournalOptions::Nats(_) => Durability::Fsync,
        }
    }
}
