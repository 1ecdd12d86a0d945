//! Applies events of Redis to the campaign or coupon, over HTTP: in order, in batches, each once however often it is sent.

use super::changes::{KeyChangeKind, KeyEvent};
use crate::cli::client::{Client, ClientError, ServiceAddress, pauses};
use crate::cli::{kind_of, note};
use anyhow::{Context, bail};
use cuckood_log::journal::random;
use cuckood_state::domain::Kind;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Cursor;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use ureq::SendBody;
use ureq::http::Method;

/// Maximum number of items in a request.
pub const ITEMS_MAX: usize = 1_000;

/// Maximum size of an item, in bytes.
const ITEM_BYTES_MAX: usize = 512;

/// Maximum time for a request. The service responds sooner, if it can.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A campaign or coupon.
pub struct MirrorTarget {
    client: Client,
    /// `/v1/campaigns/NAME`, or the same for a coupon.
    path: String,
    /// `users` or `codes`.
    items: &'static str,
}

/// The outcome of a change.
pub struct Mirrored {
    /// Number of items added or removed.
    pub count: u64,
    /// The outcome of each item, in the words of the API.
    pub outcomes: Vec<String>,
}

/// Returns an item as the service accepts it; `None` if it can't.
pub fn item(bytes: Vec<u8>) -> Option<String> {
    String::from_utf8(bytes)
        .ok()
        .filter(|item| (1..=ITEM_BYTES_MAX).contains(&item.len()))
}

impl MirrorTarget {
    /// Finds `campaigns/NAME` or `coupons/NAME`.
    ///
    /// # Errors
    /// If it does not exist, or the service can't be asked.
    pub fn find(connection: &ServiceAddress, into: &str) -> anyhow::Result<Self> {
        let items = match kind_of(into).context("--into")? {
            Kind::Campaign => "users",
            Kind::Coupon => "codes",
        };
        let target = Self {
            client: connection.client()?,
            path: format!("/v1/{into}"),
            items,
        };
        target.client.get(&target.path, Some(TIMEOUT))?;
        Ok(target)
    }

    /// Applies a change of these items; returns its outcome.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn apply(
        &self,
        act: KeyChangeKind,
        items: &[String],
        key: &str,
    ) -> Result<Mirrored, ClientError> {
        let mut body = json!({ self.items: items });
        let (operation, body, counted) = match act {
            KeyChangeKind::Add { if_absent } => {
                // A code is added once in any case.
                if if_absent && self.items == "users" {
                    body["if_absent"] = true.into();
                }
                (self.items.to_owned(), Some(body), "added")
            }
            KeyChangeKind::Remove => (format!("{}/remove", self.items), Some(body), "removed"),
            KeyChangeKind::Clear => ("clear".to_owned(), None, "removed"),
        };
        let answer = self.post(&operation, body, Some(key))?;
        let outcomes = answer["outcomes"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let outcomes = outcomes.map(str::to_owned).collect();
        Ok(Mirrored {
            count: answer[counted].as_u64().unwrap_or(0),
            outcomes,
        })
    }

    /// Returns which of these items are present.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn check(&self, items: &[String]) -> Result<Vec<bool>, ClientError> {
        let outcome = self.post(
            &format!("{}/check", self.items),
            Some(json!({ self.items: items })),
            None,
        )?;
        let present = &outcome[if self.items == "codes" {
            "valid"
        } else {
            "present"
        }];
        Ok(present
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_bool)
            .collect())
    }

    fn post(
        &self,
        operation: &str,
        body: Option<Value>,
        key: Option<&str>,
    ) -> Result<Value, ClientError> {
        let path = format!("{}/{operation}", self.path);
        let media_type = body.as_ref().map(|_| ("Content-Type", "application/json"));
        let headers: Vec<_> = key
            .map(|key| ("Idempotency-Key", key))
            .into_iter()
            .chain(media_type)
            .collect();
        let sent = |body: Value| SendBody::from_owned_reader(Cursor::new(body.to_string()));
        let body = body.map_or_else(SendBody::none, sent);
        let text = self
            .client
            .call(Method::POST, &path, &headers, body, Some(TIMEOUT))?;
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }
}

/// A mirror of one key.
pub struct Mirror<'a> {
    target: &'a MirrorTarget,
    /// Receives a message when the end is requested.
    stop: Receiver<()>,
    /// The start of all idempotency keys of this run.
    run: String,
    requests: u64,
    /// Items that wait to be sent, and for what.
    act: KeyChangeKind,
    items: Vec<String>,
    fewer_copies: FewerCopies,
    summary: Summary,
    start: Instant,
}

impl<'a> Mirror<'a> {
    /// A mirror into a campaign or coupon.
    pub fn new(target: &'a MirrorTarget, stop: Receiver<()>) -> Self {
        let run = format!("shadow-{}", hex::encode(random::<16>()));
        let act = KeyChangeKind::Remove;
        let items = Vec::new();
        let summary = Summary::default();
        let start = Instant::now();
        let fewer_copies = FewerCopies::default();
        Self {
            target,
            stop,
            run,
            requests: 0,
            act,
            items,
            fewer_copies,
            summary,
            start,
        }
    }

    /// Returns the summary of a run during which Redis has rejected this number of commands, if it is known.
    pub fn summary(mut self, rejected: Option<u64>) -> Summary {
        if let Some(rejected) = rejected {
            self.summary.rejected_unseen = Some(rejected.saturating_sub(self.summary.rejected));
            self.summary.rejected_wrongly = Some(self.summary.rejected.saturating_sub(rejected));
        }
        self.summary.seconds = self.start.elapsed().as_secs_f64();
        self.summary
    }

    /// Applies events until the end.
    ///
    /// # Errors
    /// If the service rejects a change, or can't be reached when the end is requested.
    pub fn follow(&mut self, events: &Receiver<KeyEvent>) -> anyhow::Result<()> {
        loop {
            // Events that have arrived by now are sent along.
            let arrived = events.try_recv();
            if arrived.is_err() {
                self.flush()?;
            }
            let Ok(event) = arrived.or_else(|_| events.recv()) else {
                return Ok(());
            };
            if !self.take(event)? {
                return self.flush();
            }
        }
    }

    /// Applies an event. Returns whether there may be more.
    fn take(&mut self, event: KeyEvent) -> anyhow::Result<bool> {
        match event {
            KeyEvent::Broken(why) => {
                self.summary.gaps += 1;
                note(&format!(
                    "{why}; reconnecting; commands sent before that are missed"
                ));
            }
            KeyEvent::Change(act, items) => self.change(act, items)?,
            KeyEvent::NotMirrored(name) => {
                if self.summary.not_mirrored(&name) {
                    note(&format!(
                        "{name} may have changed the key, and is not mirrored"
                    ));
                }
            }
            KeyEvent::Rejected => self.summary.rejected += 1,
            KeyEvent::OtherDatabase(database) => {
                if self.summary.other_databases == 0 {
                    let key = "the key is also changed in database";
                    note(&format!(
                        "{key} {database}, which is not mirrored; name the database with --database"
                    ));
                }
                self.summary.other_databases += 1;
            }
            KeyEvent::Fault(what) => {
                self.flush()?;
                bail!(what);
            }
            KeyEvent::End => return Ok(false),
        }
        Ok(true)
    }

    fn change(&mut self, act: KeyChangeKind, items: Vec<Vec<u8>>) -> anyhow::Result<()> {
        self.summary.commands += 1;
        if self.act != act {
            self.flush()?;
            self.act = act;
        }
        if act == KeyChangeKind::Clear {
            return self.send(act, &[]);
        }
        for bytes in items {
            match item(bytes) {
                Some(item) => self.items.push(item),
                None => {
                    if self.summary.skipped == 0 {
                        note(
                            "an item is skipped that is empty, longer than 512 bytes or not UTF-8",
                        );
                    }
                    self.summary.skipped += 1;
                }
            }
            if self.items.len() == ITEMS_MAX {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        if self.items.is_empty() {
            return Ok(());
        }
        let items = std::mem::take(&mut self.items);
        self.send(self.act, &items)
    }

    /// Counts the effects of a change, and the missing ones.
    fn count(
        &mut self,
        act: KeyChangeKind,
        items: &[String],
        Mirrored { count, outcomes }: &Mirrored,
    ) {
        match act {
            KeyChangeKind::Add { .. } => self.summary.added += count,
            KeyChangeKind::Remove => self.summary.removed += count,
            KeyChangeKind::Clear => {
                self.summary.cleared += count;
                self.fewer_copies = FewerCopies::default();
            }
        }
        for (item, outcome) in items.iter().zip(outcomes) {
            match (act, outcome.as_str()) {
                (KeyChangeKind::Add { .. }, "saturated") => self.summary.saturated += 1,
                // Redis has stored another copy.
                (KeyChangeKind::Add { if_absent: false }, "already_present") => {
                    self.fewer_copies.insert(item)
                }
                (KeyChangeKind::Remove, "removed") if self.fewer_copies.contains(item) => {
                    self.summary.removed_early += 1;
                }
                (KeyChangeKind::Add { .. } | KeyChangeKind::Remove | KeyChangeKind::Clear, _) => {}
            }
        }
    }

    /// Sends a change until the service responds.
    fn send(&mut self, act: KeyChangeKind, items: &[String]) -> anyhow::Result<()> {
        self.requests += 1;
        let key = format!("{}-{}", self.run, self.requests);
        let mut pauses = pauses();
        let mut is_first = true;
        loop {
            let error = match self.target.apply(act, items, &key) {
                Ok(applied) => {
                    self.count(act, items, &applied);
                    return Ok(());
                }
                // Whatever the service can't do now, such as 507, it may do later.
                Err(error)
                    if error
                        .status
                        .is_some_and(|status| !matches!(status, 408 | 429 | 500..)) =>
                {
                    return Err(error.into());
                }
                Err(error) => error,
            };
            if std::mem::take(&mut is_first) {
                note(&format!("{error}; trying again"));
            }
            if self.stop.recv_timeout(pauses.next().unwrap_or_default())
                != Err(RecvTimeoutError::Timeout)
            {
                return Err(error.into());
            }
        }
    }
}

/// Items that Redis may store in more copies than the campaign or coupon, because strict ones store a single copy. Stored as hashes, up to
/// a limit.
#[derive(Default)]
struct FewerCopies {
    hashes: HashSet<u64>,
    /// Whether there are more such items than the limit.
    is_full: bool,
}

/// Maximum number of hashes. A hash table of 2^20 slots is 7/8 full with them, and takes 9 MiB of memory.
const HASHES_MAX: usize = 7 << 17;

impl FewerCopies {
    fn hash(item: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        item.hash(&mut hasher);
        hasher.finish()
    }

    fn insert(&mut self, item: &str) {
        if self.hashes.len() < HASHES_MAX {
            self.hashes.insert(Self::hash(item));
        } else {
            self.is_full = true;
        }
    }

    fn contains(&self, item: &str) -> bool {
        self.is_full || self.hashes.contains(&Self::hash(item))
    }
}

/// Maximum number of command names that are counted separately.
const NAMES_MAX: usize = 100;

/// The printed summary of a run.
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
    /// Commands that were not mirrored because their arguments or the type of the key are invalid.
    pub rejected: u64,
    /// Further commands that Redis rejected during the run, for any key; those for this key were mirrored. `None` if unknown.
    pub rejected_unseen: Option<u64>,
    /// Commands among `rejected` that Redis accepted, at least. `None` if unknown.
    pub rejected_wrongly: Option<u64>,
    /// Copies that were not added: the campaign has the maximum number of copies of the item.
    pub saturated: u64,
    /// Items that were removed while Redis may have had another copy: the campaign or coupon stores one.
    pub removed_early: u64,
    /// Changes of the key in other databases, if none was named.
    pub other_databases: u64,
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
        let is_counted =
            self.not_mirrored.len() < NAMES_MAX || self.not_mirrored.contains_key(name);
        let count = self
            .not_mirrored
            .entry(if is_counted { name } else { "others" }.to_owned())
            .or_default();
        *count += 1;
        *count == 1
    }

    /// Returns the names of the counts that say that the two may differ.
    pub fn faults(&self) -> Vec<&'static str> {
        let counts = [
            ("skipped", self.skipped),
            ("rejected_unseen", self.rejected_unseen.unwrap_or_default()),
            (
                "rejected_wrongly",
                self.rejected_wrongly.unwrap_or_default(),
            ),
            ("saturated", self.saturated),
            ("removed_early", self.removed_early),
            ("other_databases", self.other_databases),
            ("gaps", self.gaps),
            ("not_mirrored", self.not_mirrored.values().sum()),
        ];
        counts
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, _)| name)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_is_complete_unless_something_is_missing() {
        assert!(Summary::default().faults().is_empty());
        for (summary, fault) in [
            (
                Summary {
                    gaps: 1,
                    ..Summary::default()
                },
                "gaps",
            ),
            (
                Summary {
                    skipped: 1,
                    ..Summary::default()
                },
                "skipped",
            ),
            (
                Summary {
                    rejected_unseen: Some(1),
                    ..Summary::default()
                },
                "rejected_unseen",
            ),
            (
                Summary {
                    rejected_wrongly: Some(1),
                    ..Summary::default()
                },
                "rejected_wrongly",
            ),
            (
                Summary {
                    saturated: 1,
                    ..Summary::default()
                },
                "saturated",
            ),
            (
                Summary {
                    removed_early: 1,
                    ..Summary::default()
                },
                "removed_early",
            ),
            (
                Summary {
                    other_databases: 1,
                    ..Summary::default()
                },
                "other_databases",
            ),
        ] {
            assert_eq!(summary.faults(), [fault]);
        }
        let mut summary = Summary::default();
        assert!(summary.not_mirrored("spop") && !summary.not_mirrored("spop"));
        assert_eq!(summary.faults(), ["not_mirrored"]);
        for number in 0..2 * NAMES_MAX {
            summary.not_mirrored(&format!("name-{number}"));
        }
        assert_eq!(
            (summary.not_mirrored["spop"], summary.not_mirrored["others"]),
            (2, 101)
        );
    }
}
