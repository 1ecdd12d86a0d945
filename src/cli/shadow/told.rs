//! What a feed tells the mirror, over a queue of bounded length.

use super::changes::Change;
use std::sync::mpsc::{self, Receiver, SyncSender};

/// The most that may wait.
const QUEUE_MAX: usize = 65_536;

/// What is told.
#[derive(Debug)]
pub enum Told {
    /// The connection to Redis stands, and from now on nothing is missed.
    Connected,
    /// The connection to Redis broke.
    Broken(String),
    /// A change of the key.
    Change(Change),
    /// A command that may have changed the key and is not mirrored.
    NotMirrored(String),
    /// The file can't be read further.
    Fault(String),
    /// There is nothing more.
    End,
    /// It is time to end.
    Stop,
}

/// Where to tell.
pub type Sender = SyncSender<Told>;

/// A queue.
pub fn channel() -> (Sender, Receiver<Told>) {
    mpsc::sync_channel(QUEUE_MAX)
}
