//! The load: one client with one operation after another, which predicts each response by its models, and knows the operation in flight at
//! a crash.

use crate::check::Difference;
use crate::contest::{Bid, Contest};
use crate::generator::{Action, choose};
use crate::line_ups::{Change, LineUp};
use crate::model::{Filter, Image, Item, Kind, now};
use crate::operation::Operation;
use crate::service::{Answer, Client};
use crate::upload::Upload;
use cuckood_state::testing::random::Random;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

/// Maximum number of recorded operations per filter.
const NOTES_MAX: usize = 1_000;

/// Maximum number of them in a failure's message.
const NOTES_SHOWN_MAX: usize = 60;

/// Time for which a repeated request is expected to be answered from the stored outcome, in milliseconds: well below the service's
/// retention.
const REMEMBERED_MAX: i64 = 20_000;

/// The service is not there any more, or about to go.
#[derive(Debug)]
pub struct Gone;

pub struct Worker {
    number: u64,
    pub name: String,
    pub random: Random,
    made: u64,
    pub parts: Vec<Part>,
    pub line_up: LineUp,
    contest: Arc<Mutex<Contest>>,
    /// Sent, and not answered when the service died.
    pub pending: Option<Pending>,
    /// Filters that came back from their images.
    pub moved: u64,
    /// An answer that a repeated request must get again.
    remembered: Option<Remembered>,
}

/// A filter, and this client's operations on it.
pub struct Part {
    pub filter: Filter,
    /// Whether other clients have items in it.
    pub is_shared: bool,
    pub upload: Option<OpenUpload>,
    notes: VecDeque<Note>,
}

/// A replacement whose upload is not at its end.
pub struct OpenUpload {
    upload: Upload,
    rest: Vec<Item>,
}

struct Note {
    what: String,
    /// None for what concerns all items.
    items: Option<Vec<Item>>,
}

/// A request that was not answered.
pub enum Pending {
    Operation {
        part: usize,
        operation: Operation,
        key: Option<String>,
        sent: i64,
    },
    Bid {
        bid: Bid,
        key: Option<String>,
    },
    LineUp(Change),
}

/// A request with a key, and its response.
struct Remembered {
    part: usize,
    operation: Operation,
    key: String,
    sent: i64,
    answer: Answer,
}

impl Part {
    pub fn new(filter: Filter, is_shared: bool) -> Part {
        Part {
            filter,
            is_shared,
            upload: None,
            notes: VecDeque::new(),
        }
    }

    pub fn note(&mut self, what: String, items: Option<Vec<Item>>) {
        self.notes.push_back(Note { what, items });
        if self.notes.len() > NOTES_MAX {
            self.notes.pop_front();
        }
    }

    /// Fails, with the operations on the item concerned.
    pub fn fail(&self, worker: &str, difference: &Difference) -> ! {
        let concerns = |note: &&Note| match (&note.items, difference.item) {
            (Some(items), Some(item)) => items.contains(&item),
            _ => true,
        };
        let shown: Vec<&Note> = self
            .notes
            .iter()
            .rev()
            .filter(concerns)
            .take(NOTES_SHOWN_MAX)
            .collect();
        let shown: Vec<&str> = shown.iter().rev().map(|note| note.what.as_str()).collect();
        let Difference { what, .. } = difference;
        panic!(
            "{worker}: {}: {what}\nbefore that:\n  {}",
            self.filter.path(),
            shown.join("\n  ")
        );
    }
}

impl Worker {
    pub fn new(number: u64, seed: u64, contest: Arc<Mutex<Contest>>) -> Worker {
        let name = format!("w{number}");
        let random = Random::new(seed);
        let parts = Worker::parts(number);
        let line_up = LineUp::new(number);
        Worker {
            name,
            random,
            number,
            made: 0,
            parts,
            line_up,
            contest,
            pending: None,
            moved: 0,
            remembered: None,
        }
    }

    fn parts(number: u64) -> Vec<Part> {
        let shared = |kind, name: &str| {
            let mut filter = Filter::new(kind, name.into(), format!("w{number}"));
            filter.stands = true;
            Part::new(filter, true)
        };
        let own = |kind, name: &str| {
            Part::new(
                Filter::new(kind, format!("{name}-{number}"), "own".into()),
                false,
            )
        };
        let kind = if number.is_multiple_of(2) {
            Kind::StrictCampaign
        } else {
            Kind::CompactCampaign
        };
        vec![
            shared(Kind::StrictCampaign, "strict"),
            shared(Kind::CompactCampaign, "compact"),
            own(Kind::Coupon, "coupon"),
            own(kind, "campaign"),
            own(Kind::OpenPool, "pool"),
        ]
    }

    /// The shared filters were recreated.
    pub fn forget_shared(&mut self) {
        for (part, new) in self
            .parts
            .iter_mut()
            .zip(Worker::parts(self.number))
            .filter(|(part, _)| part.is_shared)
        {
            *part = new;
        }
        self.remembered = None;
    }

    /// Does one operation after another until the service is gone or `enough` is set; reports each acknowledged one.
    pub fn work(&mut self, client: &Client, acknowledged: &Sender<()>, enough: &AtomicBool) {
        while !enough.load(Ordering::Relaxed) && self.step(client).is_ok() {
            // The one who counts may have seen enough.
            let _ = acknowledged.send(());
        }
        for part in &mut self.parts {
            if let Some(open) = part.upload.take() {
                open.upload.break_off();
            }
        }
    }

    /// Every request of this life was answered.
    pub fn assert_idle(&self) {
        let what = "a request was not answered although the service was not killed";
        match &self.pending {
            None => {}
            Some(Pending::Operation { part, .. }) => {
                self.parts[*part].fail(&self.name, &what.to_owned().into())
            }
            Some(Pending::Bid { .. } | Pending::LineUp(_)) => panic!("{}: {what}", self.name),
        }
    }

    fn step(&mut self, client: &Client) -> Result<(), Gone> {
        match self.random.below(100) {
            0..10 => {
                let reference = self.fresh("bid");
                let bid = self
                    .contest
                    .lock()
                    .expect("no thread panics with it")
                    .next(reference);
                let key = (self.random.below(2) == 0).then(|| self.fresh("key"));
                self.bid(client, bid, key)
            }
            10 => match client.post("/v1/snapshots", &serde_json::json!({})) {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) if answer.status != 503 => panic!("a snapshot was answered {answer:?}"),
                _ => Err(Gone),
            },
            11..14 if self.remembers() => self.repeat(client),
            14 => {
                let key = self.fresh("key");
                let change = Change::choose(&mut self.random, key);
                match self.line_up.send(client, &change) {
                    Some(answer) => {
                        self.line_up.learn(&change, &answer);
                        Ok(())
                    }
                    None => {
                        self.pending = Some(Pending::LineUp(change));
                        Err(Gone)
                    }
                }
            }
            roll => {
                let at = match roll {
                    0..24 => 0,
                    24..38 => 1,
                    38..66 => 2,
                    66..83 => 3,
                    _ => 4,
                };
                let name = self.fresh("order");
                match choose(&self.parts[at], &mut self.random, &name) {
                    None => Ok(()),
                    Some(Action::Perform(operation)) => {
                        let key = (self.random.below(2) == 0).then(|| self.fresh("key"));
                        self.perform(client, at, operation, key)
                    }
                    Some(Action::BeginReplacement { id, items }) => {
                        self.begin_replacement(client, at, id, items)
                    }
                    Some(Action::Move) => self.move_filter(client, at),
                    Some(Action::BreakOff) => {
                        let part = &mut self.parts[at];
                        if let Some(open) = part.upload.take() {
                            open.upload.break_off();
                        }
                        part.filter.drop_replacement();
                        part.note("the replacement is broken off".into(), None);
                        Ok(())
                    }
                }
            }
        }
    }

    pub fn bid(&mut self, client: &Client, bid: Bid, key: Option<String>) -> Result<(), Gone> {
        match bid.send(client, key.as_deref()) {
            Ok(answer) if answer.status != 503 => {
                self.contest
                    .lock()
                    .expect("no thread panics with it")
                    .record(bid, &answer);
                Ok(())
            }
            // Broken off, or stopped by the kill in the middle: the outcome is unknown.
            Ok(_) | Err(_) => {
                self.pending = Some(Pending::Bid { bid, key });
                Err(Gone)
            }
        }
    }

    fn perform(
        &mut self,
        client: &Client,
        at: usize,
        operation: Operation,
        key: Option<String>,
    ) -> Result<(), Gone> {
        let part = &mut self.parts[at];
        let sent = now();
        let answer = match (
            &operation,
            part.upload.take_if(|_| operation == Operation::Swap),
        ) {
            (_, Some(open)) => {
                open.upload.send(part.filter.lines(&open.rest));
                open.upload.end()
            }
            _ => operation.send(&part.filter, client, key.as_deref()),
        };
        match answer {
            Ok(answer) if answer.status != 503 => {
                self.learn(at, operation, key, sent, answer);
                Ok(())
            }
            // Too many images are loading, or the previous clear is still freeing slots: nothing was done.
            Ok(answer) if operation.may_have_to_wait() && answer.body["code"] == "overloaded" => {
                Ok(())
            }
            Ok(_) | Err(_) => {
                part.note(
                    format!("unanswered: {operation:?} {key:?}: {answer:?}"),
                    touched(&operation),
                );
                self.pending = Some(Pending::Operation {
                    part: at,
                    operation,
                    key,
                    sent,
                });
                Err(Gone)
            }
        }
    }

    fn learn(
        &mut self,
        at: usize,
        operation: Operation,
        key: Option<String>,
        sent: i64,
        answer: Answer,
    ) {
        let part = &mut self.parts[at];
        let expected = part.filter.apply(&operation, sent);
        part.note(
            format!("{operation:?}: {} {expected:?}", answer.status),
            touched(&operation),
        );
        if let Err(what) = part.filter.accept(&expected, &answer) {
            let item = expected
                .first_difference(&answer)
                .and_then(|at| operation.item(at));
            part.fail(&self.name, &Difference { what, item });
        }
        if operation == Operation::Delete
            && let Some(open) = part.upload.take()
        {
            open.upload.break_off();
        }
        self.forget_if_gone(at, &operation);
        // The description of a new filter depends on the time.
        let is_plain = operation != Operation::Create && (200..300).contains(&answer.status);
        if let Some(key) = key.filter(|_| is_plain && operation.takes_key())
            && self.random.below(8) == 0
        {
            self.remembered = Some(Remembered {
                part: at,
                operation,
                key,
                sent,
                answer,
            });
        }
    }

    /// The keys of a filter that is deleted are no keys of one that is made again.
    pub fn forget_if_gone(&mut self, at: usize, operation: &Operation) {
        self.remembered
            .take_if(|remembered| remembered.part == at && *operation == Operation::Delete);
    }

    fn remembers(&self) -> bool {
        self.remembered
            .as_ref()
            .is_some_and(|remembered| now() - remembered.sent < REMEMBERED_MAX)
    }

    /// Sends a request again that was answered: it gets the same answer, and has no effect.
    fn repeat(&mut self, client: &Client) -> Result<(), Gone> {
        let Some(Remembered {
            part,
            operation,
            key,
            answer,
            ..
        }) = &self.remembered
        else {
            return Ok(());
        };
        let part = &mut self.parts[*part];
        let again = operation
            .send(&part.filter, client, Some(key))
            .map_err(|_| Gone)?;
        if again.status == 503 {
            return Err(Gone);
        }
        part.note(
            format!("again {operation:?}: {}", again.status),
            touched(operation),
        );
        if !again.replayed || (again.status, &again.body) != (answer.status, &answer.body) {
            let what = format!("{operation:?} was answered {answer:?} and then {again:?}");
            part.fail(
                &self.name,
                &Difference {
                    what,
                    item: operation.items().first().copied(),
                },
            );
        }
        Ok(())
    }

    /// Downloads the filter's image, deletes the filter, and creates it again from the image, unless the service is killed in between:
    /// then the next life does the rest.
    fn move_filter(&mut self, client: &Client, at: usize) -> Result<(), Gone> {
        let filter = &mut self.parts[at].filter;
        let (status, bytes) = client
            .bytes(&format!("{}/image", filter.path()))
            .map_err(|_| Gone)?;
        match status {
            200 => {
                filter.image = Some(Arc::new(Image {
                    bytes,
                    filter: filter.clone(),
                }))
            }
            503 => return Ok(()),
            _ => panic!("{}: an image returned {status}", self.name),
        }
        self.perform(client, at, Operation::Delete, None)?;
        self.perform(client, at, Operation::PutImage, None)?;
        self.moved += 1;
        Ok(())
    }

    /// Starts the upload of a replacement, and returns when the service has started it.
    fn begin_replacement(
        &mut self,
        client: &Client,
        at: usize,
        id: String,
        items: Vec<Item>,
    ) -> Result<(), Gone> {
        let part = &mut self.parts[at];
        // The import begins with the first bytes of its body.
        let (first, rest) = items.split_at(1 + self.random.below(items.len() as u64) as usize);
        let path = format!("{}/imports?mode=replace&id={id}", part.filter.path());
        let upload = Upload::begin(client, path, part.filter.lines(first));
        loop {
            let answer = client.get(&format!("/v1/imports/{id}")).map_err(|_| Gone)?;
            match answer.status {
                200 if answer.body["state"] == "running" => break,
                503 => return Err(Gone),
                404 if !upload.is_over() => std::thread::yield_now(),
                // The service may be killed after it has answered here and before it begins with the upload.
                404 => match upload.end() {
                    Ok(early) if early.status != 503 => {
                        panic!("{}: {id} was answered {early:?}", self.name)
                    }
                    Ok(_) | Err(_) => return Err(Gone),
                },
                _ => panic!("{}: the import {id} is {answer:?}", self.name),
            }
        }
        part.filter.begin_replacement(&items);
        part.note(
            format!("replacement {id} is begun, {} lines", items.len()),
            Some(items.clone()),
        );
        part.upload = Some(OpenUpload {
            upload,
            rest: rest.to_vec(),
        });
        Ok(())
    }

    fn fresh(&mut self, what: &str) -> String {
        self.made += 1;
        format!("{what}-{}-{}", self.name, self.made)
    }
}

/// The items that an operation names; none if it concerns all.
pub fn touched(operation: &Operation) -> Option<Vec<Item>> {
    let items = operation.items();
    (!items.is_empty()).then_some(items)
}
