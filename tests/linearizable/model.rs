//! The state of a code, operation by operation: available, held or redeemed by one redemption.
//!
//! Holds last for hours and no test does, so that no hold runs out: expiry is not modelled. A code is never withdrawn.

use std::collections::{BTreeSet, HashMap, HashSet};

/// A redemption's id.
pub type Id = u128;

/// A client's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    Redeem {
        reference: u32,
        hold: bool,
    },
    Confirm(Id),
    Cancel(Id),
    /// `GET …/redemptions/{id}`.
    LookUp(Id),
    /// `POST …/codes/check`.
    Check,
}

/// The response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// 201.
    Created(Seen),
    /// 200 with a redemption.
    Found(Seen),
    CodeHeld,
    CodeRedeemed,
    RedemptionCancelled,
    Valid(bool),
    /// Something that no state of a code allows.
    Odd,
}

/// A redemption as it was shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    pub id: Id,
    pub reference: u32,
    pub status: Status,
    /// Milliseconds since 1970.
    pub expires_at: Option<i64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    Held,
    Redeemed,
    Cancelled,
}

/// A code.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Code {
    current: Option<Current>,
    /// Ids of ended redemptions whose creation was never answered.
    spent: BTreeSet<Id>,
}

/// The current redemption.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Current {
    /// None until a response contains it, if that of its creation was lost.
    id: Option<Id>,
    reference: u32,
    /// None once it is redeemed.
    hold: Option<Hold>,
}

/// When a hold runs out: exactly then, or, if an answer was lost, at some time from then on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Hold {
    expires_at: i64,
    exact: bool,
}

/// The sequential specification of one code, given the IDs in the history's 201 responses.
pub struct Model {
    created: HashSet<Id>,
}

impl Model {
    /// The model for a history with these answers.
    ///
    /// # Errors
    /// When no order can explain them: an ID that was created twice, or that belongs to two references.
    pub fn of(answers: impl Iterator<Item = Answer>) -> Result<Model, String> {
        let (mut created, mut references) = (HashSet::new(), HashMap::new());
        for answer in answers {
            let (Answer::Created(seen) | Answer::Found(seen)) = answer else { continue };
            if matches!(answer, Answer::Created(_)) && !created.insert(seen.id) {
                return Err(format!("{:032x} was made twice", seen.id));
            }
            if *references.entry(seen.id).or_insert(seen.reference) != seen.reference {
                return Err(format!("{:032x} has two references", seen.id));
            }
        }
        Ok(Model { created })
    }

    /// The code after an operation that was answered so; none if it could not have been.
    pub fn step(&self, code: &Code, request: Request, answer: Answer) -> Option<Code> {
        match (request, answer) {
            (Request::Redeem { reference, hold }, _) => self.redeem(code, reference, hold, answer),
            (Request::Confirm(id), Answer::Found(seen)) if seen.id == id => {
                let current = code.standing(id)?;
                let confirmed = Current { hold: None, ..current };
                confirmed.shows(&seen).then(|| code.with(confirmed))
            }
            (Request::Confirm(id), Answer::RedemptionCancelled) => {
                code.standing(id).is_none().then(|| code.clone())
            }
            (Request::Cancel(id), Answer::Found(seen)) if seen.id == id => {
                let cancelled = seen.status == Status::Cancelled;
                cancelled.then(|| if code.standing(id).is_some() { self.ended(code) } else { code.clone() })
            }
            (Request::LookUp(id), Answer::Found(seen)) if seen.id == id => {
                let right = match code.standing(id) {
                    Some(current) => current.shows(&seen),
                    None => seen.status == Status::Cancelled,
                };
                right.then(|| code.clone())
            }
            (Request::Check, Answer::Valid(valid)) => (valid == code.current.is_none()).then(|| code.clone()),
            _ => None,
        }
    }

    fn redeem(&self, code: &Code, reference: u32, hold: bool, answer: Answer) -> Option<Code> {
        let (current, seen) = match (code.current, answer) {
            (None, Answer::Created(seen)) => {
                let made = Current { id: Some(seen.id), reference, hold: hold.then(Hold::unknown) };
                return made.accept(&seen).map(|made| code.with(made));
            }
            (Some(current), Answer::Found(seen)) if current.reference == reference => (current, seen),
            (Some(current), Answer::CodeHeld) => {
                return (current.reference != reference && current.hold.is_some()).then(|| code.clone());
            }
            (Some(current), Answer::CodeRedeemed) => {
                return (current.reference != reference && current.hold.is_none()).then(|| code.clone());
            }
            _ => return None,
        };
        let fresh = || !self.created.contains(&seen.id) && !code.spent.contains(&seen.id);
        if current.id.is_none() && !fresh() {
            return None;
        }
        let asked = Current { id: current.id.or(Some(seen.id)), ..current.asked_again(hold) };
        asked.accept(&seen).map(|settled| code.with(settled))
    }

    /// The code after an operation whose answer was lost, if that changed anything.
    pub fn step_unseen(&self, code: &Code, request: Request) -> Option<Code> {
        let after = match (request, code.current) {
            (Request::Redeem { reference, hold }, None) => {
                code.with(Current { id: None, reference, hold: hold.then(Hold::unknown) })
            }
            (Request::Redeem { reference, hold }, Some(current)) if current.reference == reference => {
                code.with(current.asked_again(hold))
            }
            (Request::Confirm(id), _) => code.with(Current { hold: None, ..code.standing(id)? }),
            (Request::Cancel(id), _) => {
                code.standing(id)?;
                self.ended(code)
            }
            _ => return None,
        };
        (after != *code).then_some(after)
    }

    fn ended(&self, code: &Code) -> Code {
        let id = code.current.and_then(|current| current.id);
        let unanswered = id.filter(|id| !self.created.contains(id));
        Code { current: None, spent: code.spent.iter().copied().chain(unanswered).collect() }
    }
}

impl Code {
    fn standing(&self, id: Id) -> Option<Current> {
        self.current.filter(|current| current.id == Some(id))
    }

    fn with(&self, current: Current) -> Code {
        Code { current: Some(current), spent: self.spent.clone() }
    }
}

impl Current {
    /// The same reference asks again: a redemption confirms, a hold extends; a redeemed one stays redeemed.
    fn asked_again(self, hold: bool) -> Current {
        let extended = self.hold.filter(|_| hold);
        Current { hold: extended.map(|hold| Hold { exact: false, ..hold }), ..self }
    }

    /// Whether it is shown as it is.
    fn shows(&self, seen: &Seen) -> bool {
        let same = self.id == Some(seen.id) && self.reference == seen.reference;
        same && match (self.hold, seen.status, seen.expires_at) {
            (None, Status::Redeemed, None) => true,
            (Some(hold), Status::Held, Some(at)) if hold.exact => at == hold.expires_at,
            (Some(hold), Status::Held, Some(at)) => at >= hold.expires_at,
            _ => false,
        }
    }

    /// The knowledge of it after it was seen so.
    fn accept(self, seen: &Seen) -> Option<Current> {
        let hold = seen.expires_at.map(|expires_at| Hold { expires_at, exact: true });
        self.shows(seen).then_some(Current { hold, ..self })
    }
}

impl Hold {
    fn unknown() -> Hold {
        Hold { expires_at: i64::MIN, exact: false }
    }
}

/// Whether an operation that was answered so can't have changed anything, in whatever state it found the code.
pub fn changes_nothing(request: Request, answer: Answer) -> bool {
    let reads = matches!(request, Request::LookUp(_) | Request::Check);
    reads || !matches!(answer, Answer::Created(_) | Answer::Found(_))
}
