//! Large tables that a filter has dropped. To give one back to the system takes long, so it is done piece by piece.

use super::table::Table;
use super::words::Remains;
use std::collections::VecDeque;
use std::sync::Arc;

/// Large tables that filters have dropped.
#[derive(Default)]
pub struct Dropped {
    /// Readers may still look at them.
    tables: VecDeque<Arc<Table>>,
    /// Nobody does any more.
    remains: Vec<Remains>,
}

impl Dropped {
    /// Adds a table. A small one is not worth the trouble, unless a snapshot needs it: it is given back at once.
    pub(super) fn push(&mut self, is_frozen: bool, table: Arc<Table>) {
        if table.is_mapped() || is_frozen {
            self.tables.push_back(table);
        }
    }

    /// Adds what another has; that is empty then.
    pub fn append(&mut self, other: &mut Self) {
        self.tables.append(&mut other.tables);
        self.remains.append(&mut other.remains);
    }

    /// Whether there is nothing left.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.remains.is_empty()
    }

    /// Bytes that were not given back yet.
    pub fn memory_bytes(&self) -> u64 {
        let tables: u64 = self.tables.iter().map(|table| table.memory_bytes()).sum();
        tables + self.remains.iter().map(Remains::bytes).sum::<u64>()
    }

    /// Gives about so many bytes back, and returns how many those were. It is nothing only if readers still look at all that is left.
    pub fn give_back(&mut self, bytes_max: u64) -> u64 {
        let mut given = 0;
        for _ in 0..self.tables.len() {
            if given >= bytes_max {
                return given;
            }
            match self.tables.pop_front().map(Arc::try_unwrap) {
                Some(Ok(table)) => match table.into_remains() {
                    Ok(remains) => self.remains.push(remains),
                    Err(bytes) => given += bytes,
                },
                Some(Err(table)) => self.tables.push_back(table),
                None => break,
            }
        }
        while let Some(last) = self.remains.last_mut().filter(|_| given < bytes_max) {
            given += last.give_back(bytes_max - given);
            if last.bytes() == 0 {
                self.remains.pop();
            }
        }
        given
    }
}
