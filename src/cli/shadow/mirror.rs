//! Does to the campaign or coupon what is told of Redis: in order, in batches, each once however often it is sent.

use super::changes::Change;
use super::error::ShadowError;
use super::stop::Stop;
use super::summary::Summary;
use super::target::{self, ITEMS_MAX, Target};
use super::told::Told;
use crate::cli::client::ClientError;
use std::io::{self, Write};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// The shortest and the longest pause before a request is sent again; each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// Follows Redis.
pub struct Mirror<'a> {
    target: &'a Target<'a>,
    stop: Stop,
    /// What the idempotency keys of this run begin with.
    run: String,
    requests: u64,
    batch: Batch,
    summary: Summary,
    began: Instant,
}

/// Items that wait to be sent, for one act.
struct Batch {
    act: Act,
    items: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Add { if_absent: bool },
    Remove,
    Clear,
}

impl<'a> Mirror<'a> {
    /// Follows into a campaign or coupon.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn new(target: &'a Target<'a>, stop: Stop) -> io::Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let run = format!("shadow-{}", hex::encode(random));
        let batch = Batch { act: Act::Remove, items: Vec::new() };
        Ok(Self { target, stop, run, requests: 0, batch, summary: Summary::default(), began: Instant::now() })
    }

    /// What has been done.
    pub fn summary(mut self) -> Summary {
        self.summary.seconds = self.began.elapsed().as_secs_f64();
        self.summary
    }

    /// Does what is told, until the end.
    ///
    /// # Errors
    /// If the service refuses a change, or can't be reached when it is time to end.
    pub fn follow(&mut self, told: &Receiver<Told>) -> Result<(), ShadowError> {
        let mut waits_for_more = true;
        while waits_for_more {
            let Ok(first) = told.recv() else { break };
            waits_for_more = self.take(first)?;
            // What has come meanwhile goes along.
            while waits_for_more && let Ok(next) = told.try_recv() {
                waits_for_more = self.take(next)?;
            }
            self.flush()?;
        }
        self.flush()
    }

    /// Takes what is told. Returns whether there may be more.
    fn take(&mut self, told: Told) -> Result<bool, ShadowError> {
        match told {
            Told::Connected => notice("connected to Redis: changes are mirrored from now on; Ctrl-C ends it"),
            Told::Broken(why) => {
                self.summary.gaps += 1;
                notice(&format!("{why}: connecting again; commands that are sent meanwhile are missed"));
            }
            Told::Change(change) => self.change(change)?,
            Told::NotMirrored(name) => {
                if self.summary.not_mirrored(&name) {
                    notice(&format!("{name} may have changed the key, and is not mirrored"));
                }
            }
            Told::Fault(what) => {
                self.flush()?;
                return Err(ShadowError::Unfit(what));
            }
            Told::End | Told::Stop => return Ok(false),
        }
        Ok(true)
    }

    fn change(&mut self, change: Change) -> Result<(), ShadowError> {
        self.summary.commands += 1;
        match change {
            Change::Add { if_absent, items } => self.gather(Act::Add { if_absent }, items),
            Change::Remove(items) => self.gather(Act::Remove, items),
            Change::Clear => {
                self.flush()?;
                self.send(Act::Clear, &[])
            }
        }
    }

    fn gather(&mut self, act: Act, items: Vec<Vec<u8>>) -> Result<(), ShadowError> {
        if self.batch.act != act {
            self.flush()?;
            self.batch.act = act;
        }
        for bytes in items {
            match target::item(bytes) {
                Some(item) => self.batch.items.push(item),
                None => {
                    if self.summary.skipped == 0 {
                        notice("an item is skipped that is empty, longer than 512 bytes or not UTF-8");
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

    fn flush(&mut self) -> Result<(), ShadowError> {
        if self.batch.items.is_empty() {
            return Ok(());
        }
        let items = std::mem::take(&mut self.batch.items);
        self.send(self.batch.act, &items)
    }

    /// Sends a change until it is answered.
    fn send(&mut self, act: Act, items: &[String]) -> Result<(), ShadowError> {
        self.requests += 1;
        let key = format!("{}-{}", self.run, self.requests);
        let mut pause = PAUSE_MIN;
        loop {
            let answer = match act {
                Act::Add { if_absent } => self.target.add(items, if_absent, &key),
                Act::Remove => self.target.remove(items, &key),
                Act::Clear => self.target.clear(&key),
            };
            let error = match answer {
                Ok(count) => {
                    match act {
                        Act::Add { .. } => self.summary.added += count,
                        Act::Remove => self.summary.removed += count,
                        Act::Clear => self.summary.cleared += count,
                    }
                    return Ok(());
                }
                Err(error) if !may_pass(&error) => return Err(error.into()),
                Err(error) => error,
            };
            if pause == PAUSE_MIN {
                notice(&format!("{error}; trying again"));
            }
            if self.stop.wait(pause) {
                return Err(error.into());
            }
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }
}

/// Whether the same request may be taken later.
fn may_pass(error: &ClientError) -> bool {
    match error {
        ClientError::Transport { .. } => true,
        ClientError::Refused { status, .. } => matches!(status, 408 | 429 | 500..),
        _ => false,
    }
}

fn notice(what: &str) {
    // Standard error is gone, so there is nowhere left to report that.
    let _ = writeln!(io::stderr(), "cuckood: {what}");
}
