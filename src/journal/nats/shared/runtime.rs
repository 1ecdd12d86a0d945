//! A runtime on a thread of its own, for callers that block: connections are served while nobody waits for them.

use crate::journal::JournalError;
use std::future::Future;
use std::thread::JoinHandle;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A running runtime. Dropping it ends it, with all that it serves.
pub(super) struct Background {
    handle: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`JournalError::Failed`].
    pub(super) fn start() -> Result<Background, JournalError> {
        let io = |error: std::io::Error| JournalError::Failed(format!("the thread for snapshots: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(io)?;
        let (handle, (end, ended)) = (runtime.handle().clone(), oneshot::channel::<()>());
        let serve = move || {
            // An error means that the other end was dropped, which is how it ends.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("snapshots".to_owned()).spawn(serve).map_err(io)?;
        Ok(Background { handle, end: Some(end), thread: Some(thread) })
    }

    /// Waits for a future, on the caller's thread.
    pub(super) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.handle.block_on(future)
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.end = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread for snapshots has panicked");
        }
    }
}
