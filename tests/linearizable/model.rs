//! A code as a sequential object: absent, available, held or redeemed by one redemption.
//!
//! A hold expires on its own within a margin of its time. If the response that has the time was lost, only its earliest time is known:
//! the hold may expire at any time after that.

use std::collections::{BTreeSet, HashMap, HashSet};

/// The ID of a redemption.
pub type Id = u128;

/// How far two readings of the machine's clock may be apart, in milliseconds.
const CLOCK_MARGIN: i64 = 100;

/// What a client requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    Redeem {
        reference: u32,
        /// Seconds; none redeems at once.
        hold: Option<u32>,
    },
    Confirm(Id),
    Cancel(Id),
    /// `GET …/redemptions/{id}`.
    LookUp(Id),
    /// `POST …/codes/check`, `CF.EXISTS`.
    Check,
    /// `CF.ADD`.
    Add,
    /// `CF.DEL`.
    Remove,
}

/// The response to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// 201.
    Created(Seen),
    /// 200 with a redemption.
    Found(Seen),
    CodeHeld,
    CodeRedeemed,
    CodeUnknown,
    RedemptionCancelled,
    HoldExpired,
    Valid(bool),
    /// Whether the code was added or removed.
    Changed(bool),
    /// Something that no state of a code allows.
    Odd,
}

/// A redemption as a response shows it.
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
    Expired,
}

/// A code.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Code {
    place: Place,
    /// IDs of ended redemptions whose creation was never answered.
    spent: BTreeSet<Id>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
enum Place {
    Absent,
    #[default]
    Available,
    Used(Current),
}

/// The redemption of a held or redeemed code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Current {
    /// None until a response has it, if the response to its creation was lost.
    id: Option<Id>,
    reference: u32,
    /// None once it is redeemed.
    hold: Option<Hold>,
    /// The redeemed code was removed, so it is absent once its redemption is cancelled.
    is_withdrawn: bool,
}

/// When a hold expires: exactly then, or, if a response was lost, at some time from then on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Hold {
    expires_at: i64,
    exact: bool,
}

/// The sequential specification of one code, given the IDs that the responses of its history have.
pub struct Model {
    created: HashSet<Id>,
    /// How redemptions have ended.
    ends: HashMap<Id, Status>,
    /// How long after its time a hold may still be seen, in microseconds: a reader's time stops while an entry is being logged.
    late: u64,
}

impl Model {
    /// The model for a history with these responses. Holds may be seen for `late` microseconds after their time.
    ///
    /// # Errors
    /// No order of them is possible: an ID was created twice, has two references, or ended in two ways.
    pub fn of(
        answers: impl Iterator<Item = (Request, Answer)>,
        late: u64,
    ) -> Result<Model, String> {
        let mut created = HashSet::new();
        let mut ends = HashMap::new();
        let mut references = HashMap::new();
        for (request, answer) in answers {
            if let Answer::Created(seen) | Answer::Found(seen) = answer
                && *references.entry(seen.id).or_insert(seen.reference) != seen.reference
            {
                return Err(format!("{:032x} has two references", seen.id));
            }
            let end = match (request, answer) {
                (_, Answer::Created(seen)) if !created.insert(seen.id) => {
                    return Err(format!("{:032x} was made twice", seen.id));
                }
                (
                    _,
                    Answer::Found(Seen {
                        id,
                        status: end @ (Status::Cancelled | Status::Expired),
                        ..
                    }),
                ) => Some((id, end)),
                (Request::Confirm(id), Answer::RedemptionCancelled) => {
                    Some((id, Status::Cancelled))
                }
                (Request::Confirm(id), Answer::HoldExpired) => Some((id, Status::Expired)),
                _ => None,
            };
            if let Some((id, end)) = end
                && *ends.entry(id).or_insert(end) != end
            {
                return Err(format!("{id:032x} has ended in two ways"));
            }
        }
        Ok(Model {
            created,
            ends,
            late,
        })
    }

    /// The code after an operation with this response; none if the response is impossible.
    pub fn step(&self, code: &Code, request: Request, answer: Answer, called: u64) -> Option<Code> {
        let unless = |impossible: bool| (!impossible).then(|| code.clone());
        match (request, answer) {
            (Request::Redeem { reference, hold }, _) => {
                self.redeem(code, reference, hold_after(hold, called), answer)
            }
            (Request::Confirm(id), Answer::Found(seen)) if seen.id == id => {
                let confirmed = Current {
                    hold: None,
                    ..code.standing(id)?
                };
                confirmed.shows(&seen).then(|| code.with(confirmed))
            }
            (Request::Confirm(id), Answer::RedemptionCancelled | Answer::HoldExpired) => {
                unless(code.standing(id).is_some())
            }
            (Request::Cancel(id), Answer::Found(seen)) if seen.id == id => {
                match (code.standing(id), seen.status) {
                    (Some(_), Status::Cancelled) => self.ended(code, Status::Cancelled),
                    (None, Status::Cancelled | Status::Expired) => Some(code.clone()),
                    _ => None,
                }
            }
            (Request::LookUp(id), Answer::Found(seen)) if seen.id == id => {
                match code.standing(id) {
                    Some(current) => unless(!current.shows(&seen)),
                    None => unless(matches!(seen.status, Status::Held | Status::Redeemed)),
                }
            }
            (Request::Check, Answer::Valid(valid)) => {
                unless(valid != (code.place == Place::Available))
            }
            (Request::Add | Request::Remove, Answer::Changed(true)) => {
                let is_used_up = code.is_redeemed() || request == Request::Add && code.is_used();
                (!is_used_up).then(|| self.step_unseen(code, request, called))?
            }
            (Request::Add, Answer::Changed(false)) => match code.place {
                Place::Absent => None,
                Place::Available => Some(code.clone()),
                Place::Used(current) => Some(code.with(current.withdrawn(false))),
            },
            (Request::Remove, Answer::Changed(false)) => match code.place {
                Place::Absent => Some(code.clone()),
                Place::Used(current) if current.hold.is_none() => {
                    Some(code.with(current.withdrawn(true)))
                }
                Place::Available | Place::Used(_) => None,
            },
            _ => None,
        }
    }

    fn redeem(
        &self,
        code: &Code,
        reference: u32,
        hold: Option<Hold>,
        answer: Answer,
    ) -> Option<Code> {
        match (code.place, answer) {
            (Place::Available, Answer::Created(seen)) => {
                let made = Current {
                    id: Some(seen.id),
                    reference,
                    hold,
                    is_withdrawn: false,
                };
                made.accept(&seen).map(|made| code.with(made))
            }
            (Place::Absent, Answer::CodeUnknown) => Some(code.clone()),
            (Place::Used(current), Answer::Found(seen)) if current.reference == reference => {
                let is_fresh = !self.created.contains(&seen.id) && !code.spent.contains(&seen.id);
                if current.id.is_none() && !is_fresh {
                    return None;
                }
                let asked = Current {
                    id: current.id.or(Some(seen.id)),
                    ..current.asked_again(hold)
                };
                asked.accept(&seen).map(|settled| code.with(settled))
            }
            (Place::Used(current), Answer::CodeHeld | Answer::CodeRedeemed) => {
                let is_held = answer == Answer::CodeHeld;
                (current.reference != reference && current.hold.is_some() == is_held)
                    .then(|| code.clone())
            }
            _ => None,
        }
    }

    /// The code after an operation whose response was lost, if that changed anything.
    pub fn step_unseen(&self, code: &Code, request: Request, called: u64) -> Option<Code> {
        let after = match (request, code.place) {
            (Request::Redeem { reference, hold }, Place::Available) => code.with(Current {
                id: None,
                reference,
                hold: hold_after(hold, called),
                is_withdrawn: false,
            }),
            (Request::Redeem { reference, hold }, Place::Used(current))
                if current.reference == reference =>
            {
                code.with(current.asked_again(hold_after(hold, called)))
            }
            (Request::Confirm(id), _) => code.with(Current {
                hold: None,
                ..code.standing(id)?
            }),
            (Request::Cancel(id), _) => {
                code.standing(id)?;
                self.ended(code, Status::Cancelled)?
            }
            (Request::Add, Place::Absent) => Code {
                place: Place::Available,
                ..code.clone()
            },
            (Request::Remove, Place::Available) => Code {
                place: Place::Absent,
                ..code.clone()
            },
            (Request::Add, Place::Used(current)) => code.with(current.withdrawn(false)),
            (Request::Remove, Place::Used(Current { hold: Some(_), .. })) => Code {
                place: Place::Absent,
                ..self.ended(code, Status::Cancelled)?
            },
            (Request::Remove, Place::Used(current)) => code.with(current.withdrawn(true)),
            _ => return None,
        };
        (after != *code).then_some(after)
    }

    /// The code after its hold has expired, if that is possible at this moment.
    pub fn step_expired(&self, code: &Code, now: u64) -> Option<Code> {
        let hold = code.hold()?;
        (hold.expires_at - CLOCK_MARGIN <= milliseconds(now))
            .then(|| self.ended(code, Status::Expired))?
    }

    /// Whether the code's hold must have expired by this moment.
    pub fn is_overdue(&self, code: &Code, now: u64) -> bool {
        code.hold()
            .is_some_and(|hold| hold.exact && self.deadline(hold.expires_at) <= now)
    }

    /// The moment from which on a hold with this time must have expired.
    pub fn deadline(&self, expires_at: i64) -> u64 {
        u64::try_from((expires_at + CLOCK_MARGIN) * 1_000).expect("after 1970") + self.late
    }

    /// The code after its redemption has ended in this way, if that is possible.
    fn ended(&self, code: &Code, end: Status) -> Option<Code> {
        let Place::Used(current) = code.place else {
            return None;
        };
        if current
            .id
            .and_then(|id| self.ends.get(&id))
            .is_some_and(|known| *known != end)
        {
            return None;
        }
        let unanswered = current.id.filter(|id| !self.created.contains(id));
        let place = if current.is_withdrawn {
            Place::Absent
        } else {
            Place::Available
        };
        Some(Code {
            place,
            spent: code.spent.iter().copied().chain(unanswered).collect(),
        })
    }
}

impl Code {
    fn standing(&self, id: Id) -> Option<Current> {
        let Place::Used(current) = self.place else {
            return None;
        };
        (current.id == Some(id)).then_some(current)
    }

    fn is_used(&self) -> bool {
        matches!(self.place, Place::Used(_))
    }

    fn is_redeemed(&self) -> bool {
        matches!(self.place, Place::Used(Current { hold: None, .. }))
    }

    fn hold(&self) -> Option<Hold> {
        let Place::Used(current) = self.place else {
            return None;
        };
        current.hold
    }

    fn with(&self, current: Current) -> Code {
        Code {
            place: Place::Used(current),
            spent: self.spent.clone(),
        }
    }
}

impl Current {
    fn withdrawn(self, is_withdrawn: bool) -> Current {
        Current {
            is_withdrawn,
            ..self
        }
    }

    /// The same reference again: a redemption confirms, a hold extends, and a redeemed code remains so.
    fn asked_again(self, hold: Option<Hold>) -> Current {
        let extended = self.hold.zip(hold).map(|(old, new)| Hold {
            expires_at: old.expires_at.max(new.expires_at),
            exact: false,
        });
        Current {
            hold: extended,
            ..self
        }
    }

    /// Whether a response shows it as it is.
    fn shows(&self, seen: &Seen) -> bool {
        let same = self.id == Some(seen.id) && self.reference == seen.reference;
        same && match (self.hold, seen.status, seen.expires_at) {
            (None, Status::Redeemed, None) => true,
            (Some(hold), Status::Held, Some(at)) if hold.exact => at == hold.expires_at,
            (Some(hold), Status::Held, Some(at)) => at >= hold.expires_at,
            _ => false,
        }
    }

    /// What is known of it after a response has shown it.
    fn accept(self, seen: &Seen) -> Option<Current> {
        let hold = seen.expires_at.map(|expires_at| Hold {
            expires_at,
            exact: true,
        });
        self.shows(seen).then_some(Current { hold, ..self })
    }
}

/// What is known of a hold that was requested at this moment.
fn hold_after(seconds: Option<u32>, called: u64) -> Option<Hold> {
    let expires_at = |seconds| milliseconds(called) + i64::from(seconds) * 1_000 - CLOCK_MARGIN;
    seconds.map(|seconds| Hold {
        expires_at: expires_at(seconds),
        exact: false,
    })
}

fn milliseconds(moment: u64) -> i64 {
    i64::try_from(moment / 1_000).expect("before the year 290,000")
}

/// Whether an operation with this response can't have changed anything in any state of the code.
pub fn changes_nothing(request: Request, answer: Answer) -> bool {
    let reads = matches!(request, Request::LookUp(_) | Request::Check);
    let adds_or_removes = matches!(request, Request::Add | Request::Remove);
    reads
        || !adds_or_removes
            && !matches!(
                answer,
                Answer::Created(_) | Answer::Found(_) | Answer::Changed(true)
            )
}
