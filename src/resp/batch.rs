//! The commands of one connection that have arrived together. Successive lookups in one filter are joined to one lookup, and successive
//! changes of one filter to one command to the engine; changes of several filters are in flight concurrently. Replies follow the order of
//! the commands, and a client reads its own writes.

use super::command::{Name, Row};
use super::failure::{ErrorCode, Failure};
use super::key::FilterKey;
use super::parser::Arguments;
use super::replies::{Replies, RespVersion};
use super::shared::{CommandCounts, RespContext, Submitted};
use crate::access::{Caller, Guesses};
use crate::turn::Turn;
use cuckood_filter::Digest;
use cuckood_state::domain::{
    Command, Digests, ITEMS_MAX, Inserted, ItemOutcome, KeyName, Outcome, Refusal, Removed, Target,
};
use cuckood_state::{Borrowed, FilterView};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Maximum number of commands to the engine in flight per connection.
const IN_FLIGHT_MAX: usize = 64;

/// Cost of an item in its connection's turn, in addition to its length, in bytes.
const ITEM_BYTES: usize = 16;

/// Number of lookups in one step of a turn.
const LOOKUPS_AT_ONCE: usize = 256;

/// The unanswered commands.
pub struct Batch<'a> {
    /// The connection's turn on its worker.
    pub turn: Turn,
    /// Replies that have not been sent yet.
    pub replies: Replies,
    /// Answered commands that are not in the metrics yet.
    pub counts: CommandCounts,
    shared: &'a RespContext,
    /// Commands gathered until a different one follows.
    gathered: Option<Gathered<'a>>,
    /// Changes in the order of their replies.
    in_flight: Vec<(Gathered<'a>, Submitted<'a>)>,
    /// Bytes of memory of the commands in flight.
    in_flight_bytes: usize,
    /// The digests of the current command's items.
    hashed: Vec<Digest>,
    /// Buffer that lookups reuse.
    digests: Vec<Digest>,
    present: Vec<bool>,
    /// Results of one step of a lookup.
    found: Vec<bool>,
}

/// Commands that do the same in one filter.
pub struct Gathered<'a> {
    /// The filter; that of changes is not borrowed, since they wait for the writer.
    pub view: Borrowed<FilterView>,
    /// `None` for lookups.
    change: Option<PendingChange>,
    /// The caller of the changes.
    by: Option<KeyName>,
    digests: Vec<Digest>,
    parts: SmallVec<[Part<'a>; 1]>,
}

/// A command's part of the gathered ones.
pub struct Part<'a> {
    /// The command's row, which determines the form of its reply.
    pub row: &'static Row,
    /// How many items it has.
    pub items: usize,
    /// The guesses that it has taken, if it reveals whether items are valid.
    pub guesses: Option<Guesses<'a>>,
}

/// A change of a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PendingChange {
    /// Items are added.
    Add,
    /// Items are added if no colliding one is present.
    AddIfAbsent,
    /// One copy of each item is removed.
    Remove,
}

/// Hashes the items of a command; `hashed` is cleared first.
async fn hash_into(
    view: &FilterView,
    items: Arguments<'_>,
    turn: &mut Turn,
    hashed: &mut Vec<Digest>,
) -> Result<(), Failure> {
    hashed.clear();
    hashed.reserve(items.len());
    for item in items.iter() {
        hashed.push(view.digest(item)?);
        if turn.is_due(item.len() + ITEM_BYTES) {
            turn.step().await;
        }
    }
    Ok(())
}

impl<'a> Gathered<'a> {
    /// Adds a command with these items.
    fn add(&mut self, part: Part<'a>, hashed: &[Digest]) {
        self.digests.extend_from_slice(hashed);
        self.parts.push(part);
    }

    /// The command to the engine. The digests stay here if they may be needed again.
    fn command(&mut self, change: PendingChange) -> Command {
        let is_last = self.parts.len() == 1;
        let digests = if is_last {
            std::mem::take(&mut self.digests)
        } else {
            self.digests.clone()
        };
        let target = Target(self.view.id);
        let digests = Digests(digests);
        match change {
            PendingChange::Remove => Command::Remove {
                target,
                digests,
                all: false,
            },
            PendingChange::Add => Command::Insert {
                target,
                digests,
                if_absent: false,
                revive: false,
            },
            PendingChange::AddIfAbsent => Command::Insert {
                target,
                digests,
                if_absent: true,
                revive: false,
            },
        }
    }

    /// The same changes, those of each command for themselves.
    fn one_by_one(self) -> impl Iterator<Item = Gathered<'a>> {
        let Self {
            view,
            change,
            by,
            digests,
            parts,
        } = self;
        let mut digests = digests.into_iter();
        parts.into_iter().map(move |part| {
            let digests = digests.by_ref().take(part.items).collect();
            Gathered {
                view: Borrowed::from_inner(Arc::clone(&view)),
                change,
                by: by.clone(),
                digests,
                parts: smallvec![part],
            }
        })
    }

    fn memory_bytes(&self) -> usize {
        self.digests.capacity() * size_of::<Digest>()
            + self.parts.capacity() * size_of::<Part<'_>>()
    }
}

impl<'a> Batch<'a> {
    /// No command yet.
    pub fn new(shared: &'a RespContext) -> Self {
        Self {
            turn: Turn::default(),
            replies: Replies::default(),
            counts: CommandCounts::default(),
            shared,
            gathered: None,
            in_flight: Vec::new(),
            in_flight_bytes: 0,
            hashed: Vec::new(),
            digests: Vec::new(),
            present: Vec::new(),
            found: Vec::new(),
        }
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        let gathered_bytes = self.gathered.as_ref().map_or(0, Gathered::memory_bytes);
        gathered_bytes
            + self.replies.memory_bytes()
            + self.in_flight_bytes
            + (self.hashed.capacity() + self.digests.capacity()) * size_of::<Digest>()
            + self.present.capacity()
            + self.found.capacity()
    }

    /// Releases memory above `kept` bytes, which only long commands need.
    pub fn shrink(&mut self, kept: usize) {
        let digests = self.hashed.capacity() + self.digests.capacity();
        if self.present.capacity() + digests * size_of::<Digest>() > kept {
            (self.digests, self.present, self.found) = (Vec::new(), Vec::new(), Vec::new());
            self.hashed = Vec::new();
        }
    }

    /// Answers all changes so far. Callers that read a filter do this before finding it, so that they see these changes.
    pub async fn settle_changes(&mut self) {
        let has_changes = self
            .gathered
            .as_ref()
            .is_some_and(|gathered| gathered.change.is_some());
        if has_changes || !self.in_flight.is_empty() {
            self.settle().await;
        }
    }

    /// Returns the filter of the gathered lookups if it has this key, which saves another search.
    pub fn checked(&self, key: &FilterKey<'_>) -> Option<&FilterView> {
        let Gathered { view, change, .. } = self.gathered.as_ref()?;
        let is_it = change.is_none() && view.kind == key.kind && view.name.as_str() == key.name();
        is_it.then_some(view)
    }

    /// Adds a command to the gathered lookups, whose filter [`Self::checked`] has returned.
    ///
    /// # Errors
    /// If the filter can't have one of the items.
    pub async fn add_check(&mut self, part: Part<'a>, items: Arguments<'_>) -> Result<(), Failure> {
        if let Some(gathered) = &mut self.gathered {
            hash_into(&gathered.view, items, &mut self.turn, &mut self.hashed).await?;
            gathered.add(part, &self.hashed);
        }
        Ok(())
    }

    /// Hashes the items of a command, which is then added.
    ///
    /// # Errors
    /// If the filter can't have one of the items.
    pub async fn hash(&mut self, view: &FilterView, items: Arguments<'_>) -> Result<(), Failure> {
        hash_into(view, items, &mut self.turn, &mut self.hashed).await
    }

    /// Returns the digests of the items hashed last.
    pub fn hashed(&self) -> &[Digest] {
        &self.hashed
    }

    /// Adds the command whose items were hashed last: a lookup if it changes nothing. All gathered commands have the same caller; a
    /// connection settles them before it authenticates with another key.
    pub async fn add(
        &mut self,
        view: Borrowed<FilterView>,
        change: Option<PendingChange>,
        caller: &Caller,
        part: Part<'a>,
    ) {
        let goes_on = |gathered: &Gathered<'_>| {
            gathered.view.id == view.id
                && gathered.change == change
                && gathered.digests.len() + part.items <= ITEMS_MAX
        };
        if !self.gathered.as_ref().is_some_and(goes_on) {
            self.close().await;
        }
        let digests = &mut self.digests;
        let gathered = self.gathered.get_or_insert_with(|| match change {
            Some(_) => {
                let digests = Vec::with_capacity(part.items);
                let by = caller.key_name();
                Gathered {
                    view,
                    change,
                    by,
                    digests,
                    parts: SmallVec::new(),
                }
            }
            None => {
                let digests = std::mem::take(digests);
                Gathered {
                    view,
                    change,
                    by: None,
                    digests,
                    parts: SmallVec::new(),
                }
            }
        });
        gathered.add(part, &self.hashed);
    }

    /// Answers all commands so far.
    pub async fn settle(&mut self) {
        self.close().await;
        self.answer_in_flight().await;
    }

    /// Completes the gathered commands: answers lookups, submits changes.
    async fn close(&mut self) {
        let Some(mut gathered) = self.gathered.take() else {
            return;
        };
        let Some(change) = gathered.change else {
            // Replies follow the order of the commands.
            self.answer_in_flight().await;
            return self.answer_checks(gathered).await;
        };
        // If changes of several commands don't fit together, they are tried one by one. Nothing that follows them in the same filter may
        // overtake them.
        let may_be_overtaken = |(earlier, _): &(Gathered<'_>, _)| {
            earlier.view.id == gathered.view.id && earlier.parts.len() > 1
        };
        if self.in_flight.len() >= IN_FLIGHT_MAX || self.in_flight.iter().any(may_be_overtaken) {
            self.answer_in_flight().await;
        }
        // The engine has the digests, too.
        self.in_flight_bytes +=
            gathered.memory_bytes() + gathered.digests.capacity() * size_of::<Digest>();
        let submitted = self
            .shared
            .submit(gathered.by.clone(), gathered.command(change));
        self.in_flight.push((gathered, submitted));
    }

    async fn answer_checks(&mut self, checks: Gathered<'a>) {
        let Gathered {
            view,
            mut digests,
            parts,
            ..
        } = checks;
        let now = self.shared.engine.now();
        self.present.clear();
        match digests[..] {
            [digest] => self.present.push(view.contains(digest, now)),
            _ => {
                for digests in digests.chunks(LOOKUPS_AT_ONCE) {
                    view.contains_many(digests, now, &mut self.found);
                    self.present.extend_from_slice(&self.found);
                    self.turn.work(digests.len() * ITEM_BYTES).await;
                }
            }
        }
        let mut rest = &self.present[..];
        for part in parts {
            let (present, others) = rest.split_at(part.items);
            rest = others;
            if let Some(guesses) = part.guesses {
                guesses.settle(present.iter().filter(|present| !**present).count());
            }
            if part.row.name == Name::CfMExists {
                self.replies.array(present.len());
            }
            present
                .iter()
                .for_each(|&present| self.replies.boolean(present));
            self.counts.add(part.row.spelling, None);
        }
        digests.clear();
        self.digests = digests;
    }

    async fn answer_in_flight(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        self.in_flight_bytes = 0;
        for (changes, submitted) in std::mem::take(&mut self.in_flight) {
            let result = submitted.await;
            match changes.change {
                Some(change) if changes.parts.len() > 1 && is_too_much(&result) => {
                    self.try_one_by_one(changes, change).await;
                }
                _ => self.answer(changes, result),
            }
        }
    }

    /// Tries the changes of each command separately and concurrently.
    async fn try_one_by_one(&mut self, changes: Gathered<'a>, change: PendingChange) {
        let mut each = changes.one_by_one();
        let mut is_too_slow = false;
        loop {
            let submit = |mut changes: Gathered<'a>| {
                let command = changes.command(change);
                let submitted =
                    (!is_too_slow).then(|| self.shared.submit(changes.by.clone(), command));
                (changes, submitted)
            };
            let in_flight: Vec<_> = each.by_ref().take(IN_FLIGHT_MAX).map(submit).collect();
            if in_flight.is_empty() {
                return;
            }
            for (changes, submitted) in in_flight {
                let result = match submitted {
                    Some(submitted) => submitted.await,
                    None => Err(Failure::NOT_TRIED),
                };
                is_too_slow |= result
                    .as_ref()
                    .is_err_and(|failure| *failure == Failure::TOO_LATE);
                self.answer(changes, result);
            }
        }
    }

    fn answer(&mut self, changes: Gathered<'a>, result: Result<Outcome, Failure>) {
        let failure = match result {
            Ok(
                Outcome::Inserted(Inserted { outcomes, .. })
                | Outcome::Removed(Removed { outcomes, .. }),
            ) => {
                let mut rest = &outcomes[..];
                for part in changes.parts {
                    let (own, others) = rest.split_at(part.items.min(rest.len()));
                    rest = others;
                    self.answer_changed(part, Some(own));
                }
                return;
            }
            Ok(Outcome::Refused(Refusal::FilterFull)) => {
                return changes
                    .parts
                    .into_iter()
                    .for_each(|part| self.answer_changed(part, None));
            }
            Ok(Outcome::Refused(Refusal::FilterGone))
                if changes.change == Some(PendingChange::Remove) =>
            {
                Failure::err("Not found")
            }
            Ok(outcome) => Failure::of(&outcome),
            Err(failure) => failure,
        };
        for part in changes.parts {
            self.replies.failure(&failure);
            self.counts.add(part.row.spelling, Some(failure.code));
            // If the outcome of a change is unknown, its guesses stay used.
            if let Some(guesses) = part.guesses.filter(|_| failure.code != ErrorCode::MISCONF) {
                guesses.return_unused();
            }
        }
    }

    /// Answers a command whose changes were made, with these outcomes; none if its items don't all fit, so that none was added.
    fn answer_changed(&mut self, part: Part<'a>, outcomes: Option<&[ItemOutcome]>) {
        let Part {
            row,
            items,
            guesses,
        } = part;
        if let Some(guesses) = guesses {
            let absent = |outcome: &&ItemOutcome| **outcome != ItemOutcome::Removed;
            guesses.settle(match outcomes {
                Some(outcomes) if row.name == Name::CfDel => outcomes.iter().filter(absent).count(),
                Some(_) => 0,
                None => 1,
            });
        }
        let failure = match (row.name, outcomes) {
            (Name::CfInsert | Name::CfInsertNx, _) => {
                let failed = outcomes.is_none().then_some(ErrorCode::ERR);
                let all_full =
                    vec![ItemOutcome::Saturated; if failed.is_some() { items } else { 0 }];
                let outcomes = outcomes.unwrap_or(&all_full);
                self.replies.array(outcomes.len());
                outcomes
                    .iter()
                    .for_each(|&outcome| inserted(row.name, outcome, &mut self.replies));
                return self.counts.add(row.spelling, failed);
            }
            (_, None) => Failure::FILTER_FULL,
            (_, Some([ItemOutcome::Saturated])) => {
                Failure::err("Filter is full: it holds the maximum number of copies of the item")
            }
            (_, Some([outcome])) => {
                self.replies.boolean(has_changed(*outcome));
                return self.counts.add(row.spelling, None);
            }
            (_, Some(_)) => Failure::unexpected(),
        };
        self.replies.failure(&failure);
        self.counts.add(row.spelling, Some(failure.code));
    }
}

/// Whether changes were rejected because there are too many of them, so that some of them may succeed.
fn is_too_much(result: &Result<Outcome, Failure>) -> bool {
    match result {
        Ok(outcome) => matches!(outcome, Outcome::Refused(Refusal::FilterFull)),
        Err(failure) => failure.code == ErrorCode::OOM,
    }
}

fn has_changed(outcome: ItemOutcome) -> bool {
    matches!(
        outcome,
        ItemOutcome::Added | ItemOutcome::Revived | ItemOutcome::Removed
    )
}

/// One item of CF.INSERT or CF.INSERTNX: 1 if it was added, 0 if it was there, -1 if the filter can't take it. With RESP3 booleans,
/// CF.INSERT only distinguishes added items.
fn inserted(name: Name, outcome: ItemOutcome, replies: &mut Replies) {
    match (name, replies.protocol, outcome) {
        (Name::CfInsert, RespVersion::Three, _) => replies.boolean(has_changed(outcome)),
        (_, _, ItemOutcome::Saturated) => replies.integer(-1),
        _ => replies.integer(i64::from(has_changed(outcome))),
    }
}
