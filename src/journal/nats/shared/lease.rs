//! The right to share a snapshot: a key that its holder renews. The servers remove it when nobody does.

use super::failure::failed;
use crate::journal::JournalError;
use crate::journal::nats::options::NatsOptions;
use async_nats::jetstream::context::Context;
use async_nats::jetstream::kv::{self, Store};
use bytes::Bytes;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long a key stands that is not renewed.
const LEASE_TIME: Duration = Duration::from_secs(15);

/// How often its holder renews it.
const RENEW_EVERY: Duration = Duration::from_secs(4);

const KEY: &str = "sharing";

/// The right, for as long as it is not lost. Dropping it gives it back.
pub(super) struct Lease {
    end: oneshot::Sender<()>,
    renewing: JoinHandle<()>,
}

impl Lease {
    /// Claims it; `None` if another node has it.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if the bucket can't be had.
    pub(super) async fn claim(
        context: &Context,
        options: &NatsOptions,
    ) -> Result<Option<Lease>, JournalError> {
        let config = kv::Config {
            bucket: format!("{}-lease", options.stream),
            description: "which of cuckood's nodes shares a snapshot".to_owned(),
            max_age: LEASE_TIME,
            num_replicas: options.replicas,
            ..kv::Config::default()
        };
        let store = match context.get_key_value(&config.bucket).await {
            Ok(store) => store,
            Err(_) => context.create_key_value(config).await.map_err(failed)?,
        };
        let node = Bytes::from(options.node.clone());
        match store.create(KEY, node.clone()).await {
            Ok(revision) => {
                let (end, ended) = oneshot::channel();
                let renewing = tokio::spawn(renew(store, node, revision, ended));
                Ok(Some(Lease { end, renewing }))
            }
            Err(error) => {
                tracing::debug!(%error, "the right to share a snapshot can't be had now");
                Ok(None)
            }
        }
    }

    /// Whether it could not be renewed.
    pub(super) fn is_lost(&self) -> bool {
        self.renewing.is_finished()
    }

    /// Checks that it is not lost.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if it is.
    pub(super) fn check(&self) -> Result<(), JournalError> {
        if self.is_lost() { Err(failed("the right to share a snapshot got lost")) } else { Ok(()) }
    }

    /// Gives it back.
    pub(super) async fn release(self) {
        drop(self.end);
        if self.renewing.await.is_err() {
            tracing::error!("the renewal of the right to share a snapshot has panicked");
        }
    }
}

/// Renews the key until the other end of `ended` is dropped, then removes it; or until it can't be renewed. Whether a renewal that failed
/// was done all the same does not matter: the key goes by itself.
async fn renew(store: Store, node: Bytes, mut revision: u64, mut ended: oneshot::Receiver<()>) {
    while timeout(RENEW_EVERY, &mut ended).await.is_err() {
        match store.update(KEY, node.clone(), revision).await {
            Ok(renewed) => revision = renewed,
            Err(error) => {
                tracing::warn!(%error, "the right to share a snapshot got lost");
                return;
            }
        }
    }
    let _ = store.delete_expect_revision(KEY, Some(revision)).await;
}
