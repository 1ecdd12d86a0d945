//! One single-threaded runtime per processor. A connection stays with its worker, so its requests' data is in that processor's cache, and
//! no other processor has to be woken. The price: a request that computes for long delays the other connections of its worker, so such
//! requests must yield.

use std::future::Future;
use std::io;
use std::mem::ManuallyDrop;
use std::num::NonZero;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// Period of a worker's timer, shorter than most timeouts of requests.
const TICK: Duration = Duration::from_secs(1);

/// Tasks that a worker runs before it looks for new events. tokio's default of 61 would multiply the longest turn of a connection.
const EVENT_INTERVAL: u32 = 16;

/// All workers. When this is dropped they stop, and their tasks are cancelled.
pub(super) struct Workers(Vec<Worker>);

struct Worker {
    handle: Handle,
    /// Every task of the worker holds a clone, so the count is the worker's load.
    tasks: Arc<()>,
    /// Dropped to stop the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Workers {
    /// Starts one worker for each processor that the process may use.
    ///
    /// # Errors
    /// If a thread or a runtime can't be created.
    pub(super) fn start() -> io::Result<Self> {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        (0..processors)
            .map(Worker::start)
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Runs a task on the worker with the fewest tasks. The handle cancels it.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let idlest = self
            .0
            .iter()
            .min_by_key(|worker| Arc::strong_count(&worker.tasks));
        let worker = idlest.expect("there is a worker for each processor, and a processor");
        let counted = worker.tasks.clone();
        let task = worker.handle.spawn(async move {
            task.await;
            drop(counted);
        });
        task.abort_handle()
    }
}

impl Worker {
    fn start(number: usize) -> io::Result<Self> {
        // A thread that runs one runtime can't drop another: without a thread it leaks, and the service does not start.
        let runtime = ManuallyDrop::new(
            Builder::new_current_thread()
                .event_interval(EVENT_INTERVAL)
                .enable_all()
                .build()?,
        );
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            let runtime = ManuallyDrop::into_inner(runtime);
            // Without an earlier timer, each timeout that a request sets makes tokio wake its own thread, by a system call.
            runtime.spawn(async {
                loop {
                    tokio::time::sleep(TICK).await;
                }
            });
            // Nothing is ever sent: this waits until the sender is dropped.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(serve)?;
        Ok(Self {
            handle,
            tasks: Arc::default(),
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Panics of tasks don't end the thread. If it panicked itself, there is nothing left to do.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn tasks_are_balanced_and_never_migrate() {
        let workers = Workers(
            (0..3)
                .map(|number| Worker::start(number).unwrap())
                .collect(),
        );
        let (sender, receiver) = mpsc::channel();
        for _ in 0..6 {
            let sender = sender.clone();
            workers.spawn(async move {
                let before = thread::current().id();
                tokio::task::yield_now().await;
                sender.send((before, thread::current().id())).unwrap();
                std::future::pending().await
            });
        }
        let tasks = receiver
            .iter()
            .take(6)
            .inspect(|(before, after)| assert_eq!(before, after));
        let mut threads: Vec<_> = tasks.map(|(thread, _)| format!("{thread:?}")).collect();
        threads.sort();
        let each: Vec<usize> = threads
            .chunk_by(|one, next| one == next)
            .map(<[_]>::len)
            .collect();
        assert_eq!(each, [2, 2, 2]);
        drop(workers);
        // The workers' end dropped their tasks, and with them all senders but ours.
        drop(sender);
        assert!(receiver.recv().is_err());
    }
}
