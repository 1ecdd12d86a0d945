//! Ends a process of a simulation in the middle of what it is doing: after a number of steps, the next one unwinds the stack.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Counts the steps of a process: writes and syncs of its disk, messages that it sends and receives. Clones count together.
#[derive(Clone, Debug)]
pub struct Fuse(Arc<AtomicI64>);

/// The process was killed.
pub struct Killed;

impl Fuse {
    /// A fuse that never burns down.
    pub fn unlit() -> Fuse {
        Fuse(Arc::new(AtomicI64::new(i64::MAX)))
    }

    /// Lets this many steps pass. The next one kills the process.
    pub fn light(&self, steps: u32) {
        self.0.store(i64::from(steps), Relaxed);
    }

    pub fn put_out(&self) {
        self.0.store(i64::MAX, Relaxed);
    }

    /// Takes a step.
    pub fn step(&self) {
        if self.0.fetch_sub(1, Relaxed) == 0 {
            // No panic: nothing is printed.
            resume_unwind(Box::new(Killed));
        }
    }

    /// Runs a part of a process.
    ///
    /// # Errors
    /// [`Killed`] if it was killed. Other panics continue.
    pub fn run<T>(process: impl FnOnce() -> T) -> Result<T, Killed> {
        catch_unwind(AssertUnwindSafe(process)).map_err(|panic| match panic.downcast::<Killed>() {
            Ok(killed) => *killed,
            Err(panic) => resume_unwind(panic),
        })
    }
}
