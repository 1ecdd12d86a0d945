//! Applies events of Redis to the campaign or coupon: in order, in batches, each once however often it is sent.

use super::changes::{Act, Change, Effect};
use super::feed::Event;
use super::target::{self, ITEMS_MAX, Target};
use crate::cli::client::{ClientError, pauses};
use crate::cli::note;
use anyhow::bail;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

/// A mirror of one key.
pub struct Mirror<'a> {
    target: &'a Target,
    /// Receives a message when the end is requested.
    stop: Receiver<()>,
    /// The start of all idempotency keys of this run.
    run: String,
    requests: u64,
    batch: Batch,
    summary: Summary,
    start: Instant,
}

/// Items that wait to be sent, for one act.
struct Batch {
    act: Act,
    items: Vec<String>,
}

impl<'a> Mirror<'a> {
    /// A mirror into a campaign or coupon.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn new(target: &'a Target, stop: Receiver<()>) -> io::Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let run = format!("shadow-{}", hex::encode(random));
        let batch = Batch { act: Act::Remove, items: Vec::new() };
        Ok(Self { target, stop, run, requests: 0, batch, summary: Summary::default(), start: Instant::now() })
    }

    /// Returns the summary.
    pub fn summary(mut self) -> Summary {
        self.summary.seconds = self.start.elapsed().as_secs_f64();
        self.summary
    }

    /// Applies events until the end.
    ///
    /// # Errors
    /// If the service rejects a change, or can't be reached when the end is requested.
    pub fn follow(&mut self, events: &Receiver<Event>) -> anyhow::Result<()> {
        let mut waits_for_more = true;
        while waits_for_more {
            let Ok(first) = events.recv() else { break };
            waits_for_more = self.take(first)?;
            // Events that have arrived since then are sent along.
            while waits_for_more && let Ok(next) = events.try_recv() {
                waits_for_more = self.take(next)?;
            }
            self.flush()?;
        }
        self.flush()
    }

    /// Applies an event. Returns whether there may be more.
    fn take(&mut self, event: Event) -> anyhow::Result<bool> {
        match event {
            Event::Connected => note("connected to Redis: changes are mirrored from now on; Ctrl-C ends it"),
            Event::Broken(why) => {
                self.summary.gaps += 1;
                note(&format!("{why}: connecting again; commands that are sent meanwhile are missed"));
            }
            Event::Effect(Effect::Change(change)) => self.change(change)?,
            Event::Effect(Effect::NotMirrored(name)) => {
                if self.summary.not_mirrored(&name) {
                    note(&format!("{name} may have changed the key, and is not mirrored"));
                }
            }
            Event::Fault(what) => {
                self.flush()?;
                bail!(what);
            }
            Event::End => return Ok(false),
        }
        Ok(true)
    }

    fn change(&mut self, Change { act, items }: Change) -> anyhow::Result<()> {
        self.summary.commands += 1;
        if self.batch.act != act {
            self.flush()?;
            self.batch.act = act;
        }
        if act == Act::Clear {
            return self.send(act, &[]);
        }
        for bytes in items {
            match target::item(bytes) {
                Some(item) => self.batch.items.push(item),
                None => {
                    if self.summary.skipped == 0 {
                        note("an item is skipped that is empty, longer than 512 bytes or not UTF-8");
                    }
                    self.summary.skipped += 1;
                }
            }
            if self.batch.items.len() == ITEMS_MAX {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        if self.batch.items.is_empty() {
            return Ok(());
        }
        let items = std::mem::take(&mut self.batch.items);
        self.send(self.batch.act, &items)
    }

    /// Sends a change until the service responds.
    fn send(&mut self, act: Act, items: &[String]) -> anyhow::Result<()> {
        self.requests += 1;
        let key = format!("{}-{}", self.run, self.requests);
        let (mut pauses, mut is_first) = (pauses(), true);
        loop {
            let error = match self.target.apply(act, items, &key) {
                Ok(count) => {
                    match act {
                        Act::Add { .. } => self.summary.added += count,
                        Act::Remove => self.summary.removed += count,
                        Act::Clear => self.summary.cleared += count,
                    }
                    return Ok(());
                }
                // Whatever the service can't do now, such as 507, it may do later.
                Err(ClientError::Rejected { status, code, detail })
                    if !matches!(status, 408 | 429 | 500..) =>
                {
                    return Err(ClientError::Rejected { status, code, detail }.into());
                }
                Err(error) => error,
            };
            if std::mem::take(&mut is_first) {
                note(&format!("{error}; trying again"));
            }
            if self.stop.recv_timeout(pauses.next().unwrap_or_default()) != Err(RecvTimeoutError::Timeout) {
                return Err(error.into());
            }
        }
    }
}

/// Maximum number of command names that are counted separately.
const NAMES_MAX: usize = 100;

/// The summary of a run, as it is printed.
#[derive(Serialize, Default)]
pub struct Summary {
    /// Commands that were mirrored.
    pub commands: u64,
    /// Items that were added.
    pub added: u64,
    /// Items that were removed.
    pub removed: u64,
    /// Items removed because the key was deleted.
    pub cleared: u64,
    /// Items that the service can't store.
    pub skipped: u64,
    /// How often the connection to Redis broke.
    pub gaps: u64,
    /// Commands that may have changed the key and were not mirrored, by name.
    not_mirrored: BTreeMap<String, u64>,
    /// Duration of the run.
    pub seconds: f64,
}

impl Summary {
    /// Counts a command that was not mirrored. Returns whether it is the first of its name.
    pub fn not_mirrored(&mut self, name: &str) -> bool {
        if let Some(count) = self.not_mirrored.get_mut(name) {
            *count += 1;
            return false;
        }
        let name = if self.not_mirrored.len() < NAMES_MAX { name } else { "others" };
        let count = self.not_mirrored.entry(name.to_owned()).or_default();
        *count += 1;
        *count == 1
    }

    /// Returns whether nothing is known to be missing.
    pub fn is_complete(&self) -> bool {
        self.gaps == 0 && self.skipped == 0 && self.not_mirrored.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_is_complete_unless_something_is_missing() {
        assert!(Summary::default().is_complete());
        assert!(!Summary { gaps: 1, ..Summary::default() }.is_complete());
        assert!(!Summary { skipped: 1, ..Summary::default() }.is_complete());
        let mut summary = Summary::default();
        assert!(summary.not_mirrored("spop") && !summary.not_mirrored("spop"));
        assert!(!summary.is_complete());
        for number in 0..2 * NAMES_MAX {
            summary.not_mirrored(&format!("name-{number}"));
        }
        assert_eq!((summary.not_mirrored["spop"], summary.not_mirrored["others"]), (2, 101));
    }
}
