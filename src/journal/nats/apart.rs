//! Reads entries from a place on, beside the reader that follows the log.

use super::link::Link;
use super::reader::Reader;
use super::sequencer::{Place, Read, Sequencer};
use super::status::Replication;
use crate::domain::Entry;
use crate::journal::JournalError;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Reads until nobody takes the entries any more.
pub(super) async fn read_apart(
    link: Link,
    status: Arc<Replication>,
    place: Place,
    sink: mpsc::Sender<Result<Vec<Entry>, JournalError>>,
) {
    let mut reader = Reader::start(link, status, &place);
    let mut sequencer = Sequencer::new(place);
    loop {
        let message = tokio::select! {
            message = reader.next() => message,
            () = sink.closed() => return,
        };
        let read = message.and_then(|message| sequencer.read(message.number, &message.payload));
        let entries = match read {
            Ok(Read::Commit { entries, .. }) => Ok(entries),
            Ok(_) => continue,
            Err(error) => Err(error),
        };
        let is_end = entries.is_err();
        if sink.send(entries).await.is_err() || is_end {
            return;
        }
    }
}
