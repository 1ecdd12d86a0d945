//! The commands of one connection that have arrived together. Look-ups in one filter that follow each other are one look-up, and
//! changes of one filter that follow each other are one command to the engine; changes of several filters are under way at once.
//! Answers come in the order of the commands, and what a client reads includes what it wrote before.

use super::command::{Name, Row};
use super::failure::{Code, Failure};
use super::key::Key;
use super::parser::Arguments;
use super::replies::{Protocol, Replies};
use super::shared::{Counts, Shared};
use crate::access::{Caller, Guesses};
use crate::domain::{
    Applied, Command, Digests, FilterId, ITEMS_MAX, Inserted, ItemOutcome, KeyName, Outcome, Refusal,
    Removed, Target,
};
use crate::engine::{Digest, Engine, FilterView, SubmitError};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The most commands to the engine that one connection has under way.
const UNDER_WAY_MAX: usize = 64;

/// The commands that are not answered yet.
pub struct Batch<'a> {
    /// Answered commands that are not in the metrics yet.
    pub counts: Counts,
    shared: &'a Shared,
    gathered: Gathered<'a>,
    /// In the order of their answers.
    under_way: Vec<(Changes<'a>, Submitted<'a>)>,
    /// Bytes of memory of what is under way.
    under_way_bytes: usize,
    /// Memory that look-ups use again.
    digests: Vec<Digest>,
    present: Vec<bool>,
}

/// What is gathered until something else follows.
enum Gathered<'a> {
    Nothing,
    Checks(Checks<'a>),
    Changes(Changes<'a>),
}

/// Look-ups in one filter.
pub struct Checks<'a> {
    view: Arc<FilterView>,
    digests: Vec<Digest>,
    parts: Vec<Part<'a>>,
}

impl<'a> Checks<'a> {
    /// The filter.
    pub fn view(&self) -> &FilterView {
        &self.view
    }

    /// Adds a look-up of these items.
    pub fn add(&mut self, part: Part<'a>, items: Arguments<'_>) {
        self.digests.extend(items.iter().map(|item| self.view.digest_of(item)));
        self.parts.push(part);
    }
}

/// A command's part of what was gathered.
pub struct Part<'a> {
    /// The command's row, on which the form of its answer depends.
    pub row: &'static Row,
    /// How many items it has.
    pub items: usize,
    /// The guesses that it has taken, if it reveals whether items are valid.
    pub guesses: Option<Guesses<'a>>,
}

/// What is done to a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Items are added.
    Add,
    /// Items are added if nothing alike is there.
    AddIfAbsent,
    /// One copy of each item is removed.
    Remove,
}

/// Changes of one filter.
struct Changes<'a> {
    target: FilterId,
    change: Change,
    /// Who makes them.
    by: Option<KeyName>,
    digests: Vec<Digest>,
    parts: Vec<Part<'a>>,
}

impl<'a> Changes<'a> {
    /// The command to the engine. The digests stay here if they may be needed again.
    fn command(&mut self) -> Command {
        let is_last = self.parts.len() == 1;
        let digests = if is_last { std::mem::take(&mut self.digests) } else { self.digests.clone() };
        let (target, digests) = (Target(self.target), Digests(digests));
        match self.change {
            Change::Remove => Command::Remove { target, digests, all: false },
            Change::Add | Change::AddIfAbsent => {
                let if_absent = self.change == Change::AddIfAbsent;
                Command::Insert { target, digests, if_absent, revive: false }
            }
        }
    }

    /// The same changes, those of each command for themselves.
    fn one_by_one(self) -> impl Iterator<Item = Changes<'a>> {
        let Self { target, change, by, digests, parts } = self;
        let mut digests = digests.into_iter();
        parts.into_iter().map(move |part| {
            let digests = digests.by_ref().take(part.items).collect();
            Changes { target, change, by: by.clone(), digests, parts: vec![part] }
        })
    }
}

impl<'a> Batch<'a> {
    /// No command yet.
    pub fn new(shared: &'a Shared) -> Self {
        Self {
            counts: Counts::default(),
            shared,
            gathered: Gathered::Nothing,
            under_way: Vec::new(),
            under_way_bytes: 0,
            digests: Vec::new(),
            present: Vec::new(),
        }
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        let gathered_bytes = match &self.gathered {
            Gathered::Nothing => 0,
            Gathered::Checks(checks) => memory_bytes(&checks.digests, &checks.parts),
            Gathered::Changes(changes) => memory_bytes(&changes.digests, &changes.parts),
        };
        gathered_bytes
            + self.under_way_bytes
            + self.digests.capacity() * size_of::<Digest>()
            + self.present.capacity()
    }

    /// Gives memory back that only long commands need, beyond `kept` bytes.
    pub fn shrink(&mut self, kept: usize) {
        if self.present.capacity() + self.digests.capacity() * size_of::<Digest>() > kept {
            (self.digests, self.present) = (Vec::new(), Vec::new());
        }
    }

    /// Answers all changes so far. Whoever looks at a filter does this before finding it, so that it sees what was written.
    pub async fn settle_changes(&mut self, replies: &mut Replies) {
        if matches!(self.gathered, Gathered::Changes(_)) || !self.under_way.is_empty() {
            self.settle(replies).await;
        }
    }

    /// The look-ups that are gathered, if they are in the filter of this key: then it need not be found again.
    pub fn checks_of(&mut self, key: &Key<'_>) -> Option<&mut Checks<'a>> {
        let is_of_key =
            |checks: &Checks<'_>| checks.view.kind == key.kind && checks.view.name.as_str() == key.name();
        match &mut self.gathered {
            Gathered::Checks(checks) if is_of_key(checks) => Some(checks),
            _ => None,
        }
    }

    /// Adds a look-up of these items.
    pub async fn check(
        &mut self,
        view: Arc<FilterView>,
        part: Part<'a>,
        items: Arguments<'_>,
        replies: &mut Replies,
    ) {
        if !matches!(&self.gathered, Gathered::Checks(checks) if checks.view.id == view.id) {
            self.settle(replies).await;
            let digests = std::mem::take(&mut self.digests);
            self.gathered = Gathered::Checks(Checks { view, digests, parts: Vec::new() });
        }
        if let Gathered::Checks(checks) = &mut self.gathered {
            checks.add(part, items);
        }
    }

    /// Adds a change of this caller. All commands that are gathered have one caller: whoever presents another key settles first.
    pub async fn change(
        &mut self,
        view: &FilterView,
        change: Change,
        caller: &Caller,
        part: Part<'a>,
        digests: impl Iterator<Item = Digest>,
        replies: &mut Replies,
    ) {
        let goes_on = |changes: &Changes<'_>| {
            changes.target == view.id
                && changes.change == change
                && changes.digests.len() + part.items <= ITEMS_MAX
        };
        if !matches!(&self.gathered, Gathered::Changes(changes) if goes_on(changes)) {
            self.close(replies).await;
            let (digests, by) = (Vec::with_capacity(part.items), caller.key_name());
            let changes = Changes { target: view.id, change, by, digests, parts: Vec::new() };
            self.gathered = Gathered::Changes(changes);
        }
        if let Gathered::Changes(changes) = &mut self.gathered {
            changes.digests.extend(digests);
            changes.parts.push(part);
        }
    }

    /// Answers all commands so far.
    pub async fn settle(&mut self, replies: &mut Replies) {
        self.close(replies).await;
        self.answer_under_way(replies).await;
    }

    /// Ends what is gathered: look-ups are answered, changes submitted.
    async fn close(&mut self, replies: &mut Replies) {
        match std::mem::replace(&mut self.gathered, Gathered::Nothing) {
            Gathered::Nothing => {}
            Gathered::Checks(checks) => self.answer_checks(checks, replies),
            Gathered::Changes(mut changes) => {
                // If changes of several commands don't fit together, they are tried one by one. Nothing that follows them in the
                // same filter may overtake them.
                let may_be_overtaken = |(earlier, _): &(Changes<'_>, _)| {
                    earlier.target == changes.target && earlier.parts.len() > 1
                };
                if self.under_way.len() >= UNDER_WAY_MAX || self.under_way.iter().any(may_be_overtaken) {
                    self.answer_under_way(replies).await;
                }
                // The engine has the digests, too.
                self.under_way_bytes += memory_bytes(&changes.digests, &changes.parts)
                    + changes.digests.capacity() * size_of::<Digest>();
                let submitted = self.submit(&mut changes).await;
                self.under_way.push((changes, submitted));
            }
        }
    }

    async fn submit(&mut self, changes: &mut Changes<'a>) -> Submitted<'a> {
        let Shared { engine, options, .. } = self.shared;
        Submitted::start(engine, changes.by.clone(), changes.command(), options.request_timeout).await
    }

    fn answer_checks(&mut self, checks: Checks<'a>, replies: &mut Replies) {
        let Checks { view, mut digests, parts } = checks;
        let now = self.shared.engine.now();
        match digests[..] {
            [digest] => {
                self.present.clear();
                self.present.push(view.contains(digest, now));
            }
            _ => view.contains_many(&digests, now, &mut self.present),
        }
        let mut rest = &self.present[..];
        for part in parts {
            let (present, others) = rest.split_at(part.items);
            rest = others;
            if let Some(guesses) = part.guesses {
                guesses.settle(present.iter().filter(|present| !**present).count());
            }
            if part.row.name == Name::CfMExists {
                replies.array(present.len());
            }
            present.iter().for_each(|&present| replies.boolean(present));
            self.counts.add(part.row.spelling, None);
        }
        digests.clear();
        self.digests = digests;
    }

    async fn answer_under_way(&mut self, replies: &mut Replies) {
        self.under_way_bytes = 0;
        for (changes, submitted) in std::mem::take(&mut self.under_way) {
            let result = submitted.outcome().await;
            if changes.parts.len() > 1 && is_too_much(&result) {
                self.try_one_by_one(changes, replies).await;
            } else {
                self.answer(changes, result, replies);
            }
        }
    }

    /// Tries the changes of each command for themselves, many at once.
    async fn try_one_by_one(&mut self, changes: Changes<'a>, replies: &mut Replies) {
        let (mut each, mut is_too_slow) = (changes.one_by_one(), false);
        loop {
            let mut under_way = Vec::new();
            for mut changes in each.by_ref().take(UNDER_WAY_MAX) {
                let submitted = match is_too_slow {
                    false => Some(self.submit(&mut changes).await),
                    true => None,
                };
                under_way.push((changes, submitted));
            }
            if under_way.is_empty() {
                return;
            }
            for (changes, submitted) in under_way {
                let result = match submitted {
                    Some(submitted) => submitted.outcome().await,
                    None => Err(Failure::not_tried()),
                };
                is_too_slow |= result.as_ref().is_err_and(|failure| *failure == Failure::too_late());
                self.answer(changes, result, replies);
            }
        }
    }

    fn answer(&mut self, changes: Changes<'a>, result: Result<Outcome, Failure>, replies: &mut Replies) {
        let failure = match result {
            Ok(Outcome::Inserted(Inserted { outcomes, .. }) | Outcome::Removed(Removed { outcomes, .. })) => {
                let mut rest = &outcomes[..];
                for part in changes.parts {
                    let (own, others) = rest.split_at(part.items.min(rest.len()));
                    rest = others;
                    self.answer_changed(part, Some(own), replies);
                }
                return;
            }
            Ok(Outcome::Refused(Refusal::FilterFull)) => {
                return changes.parts.into_iter().for_each(|part| self.answer_changed(part, None, replies));
            }
            Ok(Outcome::Refused(Refusal::FilterGone)) if changes.change == Change::Remove => {
                Failure::err("Not found")
            }
            Ok(outcome) => Failure::of(&outcome),
            Err(failure) => failure,
        };
        for part in changes.parts {
            replies.failure(&failure);
            self.counts.add(part.row.spelling, Some(failure.code));
            // If the fate of a change is unknown, its guesses stay used.
            if let Some(guesses) = part.guesses.filter(|_| failure.code != Code::MISCONF) {
                guesses.give_back();
            }
        }
    }

    /// Answers a command whose changes were made, with these outcomes; none if its items don't all fit, so that none was added.
    fn answer_changed(&mut self, part: Part<'a>, outcomes: Option<&[ItemOutcome]>, replies: &mut Replies) {
        let Part { row, items, guesses } = part;
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
                replies.array(outcomes.map_or(items, <[_]>::len));
                let all_full =
                    std::iter::repeat_n(&ItemOutcome::Saturated, if outcomes.is_none() { items } else { 0 });
                outcomes
                    .into_iter()
                    .flatten()
                    .chain(all_full)
                    .for_each(|&outcome| inserted(row.name, outcome, replies));
                return self.counts.add(row.spelling, outcomes.is_none().then_some(Code::ERR));
            }
            (_, None) => Failure::filter_full(),
            (_, Some([ItemOutcome::Saturated])) => {
                Failure::err("Filter is full: it holds as many copies of the item as it can")
            }
            (_, Some([outcome])) => {
                replies.boolean(has_changed(*outcome));
                return self.counts.add(row.spelling, None);
            }
            (_, Some(_)) => Failure::unexpected(),
        };
        replies.failure(&failure);
        self.counts.add(row.spelling, Some(failure.code));
    }
}

fn memory_bytes(digests: &Vec<Digest>, parts: &Vec<Part<'_>>) -> usize {
    digests.capacity() * size_of::<Digest>() + parts.capacity() * size_of::<Part<'_>>()
}

/// Whether changes were refused because there are too many of them, so that some of them may be possible.
fn is_too_much(result: &Result<Outcome, Failure>) -> bool {
    match result {
        Ok(outcome) => matches!(outcome, Outcome::Refused(Refusal::FilterFull)),
        Err(failure) => failure.code == Code::OOM,
    }
}

fn has_changed(outcome: ItemOutcome) -> bool {
    matches!(outcome, ItemOutcome::Added | ItemOutcome::Revived | ItemOutcome::Removed)
}

/// One item of CF.INSERT or CF.INSERTNX: 1 if it was added, 0 if it was there, -1 if the filter can't take it. CF.INSERT tells only
/// whether it was added where there are booleans.
fn inserted(name: Name, outcome: ItemOutcome, replies: &mut Replies) {
    match (name, replies.protocol, outcome) {
        (Name::CfInsert, Protocol::Three, _) => replies.boolean(has_changed(outcome)),
        (_, _, ItemOutcome::Saturated) => replies.integer(-1),
        _ => replies.integer(i64::from(has_changed(outcome))),
    }
}

type Answer = Result<Applied, SubmitError>;

/// A command that the engine has taken, or refused to take.
pub enum Submitted<'a> {
    /// Its answer is there.
    Answered(Answer),
    /// Its answer will come; it is waited for until the deadline.
    UnderWay(Pin<Box<dyn Future<Output = Answer> + Send + 'a>>, Instant),
}

impl<'a> Submitted<'a> {
    /// Submits a command for the holder of an API key, and does not wait for its answer, which may take as long as `timeout`. Commands
    /// are applied in the order of their submissions.
    pub async fn start(engine: &'a Engine, by: Option<KeyName>, command: Command, timeout: Duration) -> Self {
        let deadline = Instant::now() + timeout;
        let mut submission = Box::pin(engine.submit_by(by, command, None));
        // The engine takes a command when its answer is first asked for.
        match poll_fn(|context| Poll::Ready(submission.as_mut().poll(context))).await {
            Poll::Ready(answer) => Self::Answered(answer),
            Poll::Pending => Self::UnderWay(submission, deadline),
        }
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn outcome(self) -> Result<Outcome, Failure> {
        let answer = match self {
            Self::Answered(answer) => answer,
            Self::UnderWay(submission, deadline) => {
                timeout_at(deadline, submission).await.map_err(|_| Failure::too_late())?
            }
        };
        Ok(answer?.outcome)
    }
}
