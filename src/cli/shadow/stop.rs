//! The wish to end: SIGINT or SIGTERM. What has been told before it is still mirrored; a second signal ends at once.

use super::told::{Sender, Told};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// The exit status after a second signal, as shells have it for SIGINT.
const INTERRUPTED: i32 = 130;

/// Whether to end; clones share it.
#[derive(Clone, Default)]
pub struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    /// Watches for signals from now on, and tells of the first.
    ///
    /// # Errors
    /// If the system has no room for that.
    pub fn on_signals(to: Sender) -> io::Result<Stop> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let (mut interrupt, mut terminate) = {
            let _inside = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        let stop = Stop::default();
        let wished = stop.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            let mut next = || {
                runtime.block_on(async {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                    }
                });
            };
            next();
            wished.wish();
            // The queue may be full for as long as the service can't be reached.
            std::thread::spawn(move || to.send(Told::Stop));
            next();
            std::process::exit(INTERRUPTED);
        })?;
        Ok(stop)
    }

    /// From now on it is time to end.
    pub fn wish(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }

    /// Waits, but not beyond the wish to end. Returns whether there is one.
    pub fn wait(&self, pause: Duration) -> bool {
        let mut is_wished = self.0.0.lock();
        if !*is_wished {
            self.0.1.wait_for(&mut is_wished, pause);
        }
        *is_wished
    }
}
