//! The dumps of filters that clients read with CF.SCANDUMP. Each is an image, returned record by record.
//!
//! An iterator names a dump and its next record. The last record can be requested again. A dump pins disk space. An abandoned dump is
//! dropped after [`IDLE_MAX`], or when its connection starts another dump of the same filter.

use super::failure::{ErrorCode, Failure};
use crate::engine::{BackupDownload, Engine, SubmitError};
use cuckood_state::domain::FilterId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Maximum time between two commands of a dump.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Bits of an iterator that name the record. Together with those of the dump they fit into an exact double, for clients whose numbers are
/// doubles.
const RECORD_BITS: u32 = 32;
const NUMBERS: u64 = 1 << 20;

/// The owner of a dump: the name of the caller's key, and the filter.
pub type DumpOwner = (FilterId, String);

/// The origin of a dump: the number of its connection, and the filter's key. A filter that is created again keeps the key.
pub type Origin = (u64, String);

/// A dump. Its task returns records by their numbers.
struct Dump {
    owner: DumpOwner,
    origin: Origin,
    reader: JoinHandle<()>,
    task: mpsc::Sender<(u64, oneshot::Sender<Record>)>,
}

/// A record; `None` at the end.
type Record = Result<Option<Vec<u8>>, Failure>;

/// All dumps. The engine limits their number.
#[derive(Clone, Default)]
pub struct Dumps {
    all: Arc<Mutex<BTreeMap<u64, Dump>>>,
    begun: Arc<AtomicU64>,
}

/// A chunk of a dump: the iterator of the next chunk, and the bytes.
pub type DumpPiece = (i64, Vec<u8>);

/// The end of a dump.
pub const END: DumpPiece = (0, Vec::new());

fn unknown() -> Failure {
    Failure::err("Invalid position: start with 0; an iterator is valid for a minute, on its node")
}

impl Dumps {
    /// Starts a dump and returns its first chunk. Replaces an unfinished dump of the same origin.
    pub async fn begin(
        &self,
        engine: &Engine,
        owner: DumpOwner,
        origin: Origin,
    ) -> Result<DumpPiece, Failure> {
        self.end(&origin).await;
        let download = engine.image(owner.0).await.map_err(|error| match error {
            SubmitError::Overloaded => Failure::new(
                ErrorCode::BUSY,
                "too many images are being read; retry once one ends",
            ),
            error => error.into(),
        })?;
        let download = download.ok_or_else(|| Failure::err("Not found"))?;
        let (task, asked) = mpsc::channel(1);
        // A number is reused long after its dump has ended.
        let number = self.begun.fetch_add(1, Ordering::Relaxed) % NUMBERS + 1;
        let dumps = self.clone();
        {
            // The lock keeps the reader from removing itself before it is in the list.
            let mut all = self.all.lock();
            let reader = tokio::spawn(async move {
                read(download, asked).await;
                dumps.all.lock().remove(&number);
            });
            all.insert(
                number,
                Dump {
                    owner: owner.clone(),
                    origin,
                    reader,
                    task,
                },
            );
        }
        self.next(number << RECORD_BITS, &owner).await
    }

    /// Ends the dump of this origin, and waits until its place is free.
    async fn end(&self, origin: &Origin) {
        let Some(reader) = self.take(origin) else {
            return;
        };
        reader.abort();
        // The reader was aborted or has ended.
        let _ = reader.await;
    }

    /// Removes the dump of this origin from the list, and returns its reader.
    fn take(&self, origin: &Origin) -> Option<JoinHandle<()>> {
        let mut all = self.all.lock();
        let (&number, _) = all.iter().find(|(_, dump)| dump.origin == *origin)?;
        all.remove(&number).map(|dump| dump.reader)
    }

    /// Returns the chunk that an iterator names.
    pub async fn next(&self, iterator: u64, owner: &DumpOwner) -> Result<DumpPiece, Failure> {
        let number = iterator >> RECORD_BITS;
        let record = iterator & ((1 << RECORD_BITS) - 1);
        let task = self
            .all
            .lock()
            .get(&number)
            .filter(|dump| dump.owner == *owner)
            .map(|dump| dump.task.clone());
        let (reply, answer) = oneshot::channel();
        task.ok_or_else(unknown)?
            .send((record, reply))
            .await
            .map_err(|_| unknown())?;
        match answer.await.map_err(|_| unknown())?? {
            Some(bytes) => Ok((i64::try_from(iterator + 1).map_err(|_| unknown())?, bytes)),
            None => Ok(END),
        }
    }
}

/// Reads the records of a dump, until its end or until the client abandons it. Only the next record and the last one are available.
async fn read(
    mut download: BackupDownload,
    mut asked: mpsc::Receiver<(u64, oneshot::Sender<Record>)>,
) {
    let mut ready = VecDeque::new();
    let mut next = 0;
    let mut last = Vec::new();
    while let Ok(Some((record, reply))) = timeout(IDLE_MAX, asked.recv()).await {
        if record == next {
            if ready.is_empty() {
                match download.next().await {
                    Ok(records) => ready = records.into(),
                    Err(error) => return drop(reply.send(Err(error.into()))),
                }
            }
            let Some(bytes) = ready.pop_front() else {
                // Frees the slot of a dump before the client learns of its end.
                drop(download);
                return drop(reply.send(Ok(None)));
            };
            (last, next) = (bytes, next + 1);
        }
        if record + 1 == next {
            // The client may be disconnected.
            let _ = reply.send(Ok(Some(last.clone())));
        }
    }
}
