//! The dumps of filters that clients are going through with CF.SCANDUMP. Each is an image, given out record by record.
//!
//! An iterator names a dump and the record that comes next. The last record can be asked for again. A dump that nobody goes on with is
//! dropped after a while, because it keeps a snapshot.

use super::failure::{Code, Failure};
use crate::domain::FilterId;
use crate::engine::{Download, Engine, SubmitError};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// How long a dump waits for the next command.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Bits of an iterator that name the record. With those that name the dump they are so few that any client's numbers are exact.
const RECORD_BITS: u32 = 32;
const NUMBERS: u64 = 1 << 20;

/// Who goes through which filter.
#[derive(Clone, PartialEq, Eq)]
pub struct Owner {
    /// The filter.
    pub filter: FilterId,
    /// The name of the caller's key.
    pub caller: String,
}

/// A dump.
struct Dump {
    owner: Owner,
    progress: tokio::sync::Mutex<Progress>,
    used_at: Mutex<Instant>,
}

struct Progress {
    download: Download,
    /// Records that are read and not given out.
    ready: VecDeque<Vec<u8>>,
    /// The number of the record that comes next.
    next: u64,
    /// The one before it.
    last: Vec<u8>,
}

/// All dumps. The engine limits their number.
#[derive(Clone, Default)]
pub struct Dumps {
    all: Arc<Mutex<BTreeMap<u64, Arc<Dump>>>>,
    begun: Arc<AtomicU64>,
}

/// A piece of a dump: the iterator of the next one, and the bytes. Iterator 0 without bytes is the end.
pub type Piece = (i64, Vec<u8>);

fn unknown() -> Failure {
    Failure::err("Invalid position: begin with 0; an iterator is good for a minute, on the node that gave it")
}

impl Dumps {
    /// Begins a dump, and gives its first piece.
    pub async fn begin(&self, engine: &Engine, owner: Owner) -> Result<Piece, Failure> {
        let download = engine.image(owner.filter).await.map_err(|error| match error {
            SubmitError::Overloaded => {
                let text = "too many images and backups are being read: retry once one ends, a minute after its last use";
                Failure::new(Code::BUSY, text)
            }
            error => error.into(),
        })?;
        let download = download.ok_or_else(|| Failure::err("Not found"))?;
        let progress = Progress { download, ready: VecDeque::new(), next: 0, last: Vec::new() };
        let used_at = Mutex::new(Instant::now());
        let dump = Arc::new(Dump { owner, progress: tokio::sync::Mutex::new(progress), used_at });
        let number = {
            // A number comes again long after its dump is over.
            let number = self.begun.fetch_add(1, Ordering::Relaxed) % NUMBERS + 1;
            self.all.lock().insert(number, dump);
            number
        };
        tokio::spawn(self.clone().drop_when_idle(number));
        self.go_on(number, 0).await
    }

    /// The piece that an iterator names.
    pub async fn next(&self, iterator: u64, owner: &Owner) -> Result<Piece, Failure> {
        let (number, record) = (iterator >> RECORD_BITS, iterator & ((1 << RECORD_BITS) - 1));
        let is_owners = self.all.lock().get(&number).is_some_and(|dump| dump.owner == *owner);
        if is_owners { self.go_on(number, record).await } else { Err(unknown()) }
    }

    async fn go_on(&self, number: u64, record: u64) -> Result<Piece, Failure> {
        let dump = self.all.lock().get(&number).cloned().ok_or_else(unknown)?;
        *dump.used_at.lock() = Instant::now();
        let mut progress = dump.progress.lock().await;
        if record + 1 != progress.next {
            if record != progress.next {
                return Err(unknown());
            }
            match progress.advance().await {
                Ok(true) => {}
                Ok(false) => {
                    self.all.lock().remove(&number);
                    return Ok((0, Vec::new()));
                }
                Err(failure) => {
                    self.all.lock().remove(&number);
                    return Err(failure);
                }
            }
        }
        let next = i64::try_from(number << RECORD_BITS | progress.next).map_err(|_| unknown())?;
        Ok((next, progress.last.clone()))
    }

    async fn drop_when_idle(self, number: u64) {
        loop {
            let Some(used_at) = self.all.lock().get(&number).map(|dump| *dump.used_at.lock()) else { return };
            if used_at.elapsed() >= IDLE_MAX {
                self.all.lock().remove(&number);
                return;
            }
            sleep_until(used_at + IDLE_MAX).await;
        }
    }
}

impl Progress {
    /// Goes on to the next record; false if there is none.
    async fn advance(&mut self) -> Result<bool, Failure> {
        if self.ready.is_empty() {
            self.ready = self.download.next().await?.into();
        }
        let Some(record) = self.ready.pop_front() else { return Ok(false) };
        (self.last, self.next) = (record, self.next + 1);
        Ok(true)
    }
}
