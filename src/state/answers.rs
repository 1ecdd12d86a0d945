//! The encoding of a stored answer, which is given again when the request is repeated. It leaves out what the repeated command says
//! itself, and stores times as differences.

use crate::domain::{
    Command, Digests, Inserted, ItemOutcome, Outcome, Redemption, RedemptionId, Reference, Removed, Status,
    Timestamp,
};
use crate::filter::Digest;
use serde::{Deserialize, Serialize};

/// No answer has more items than this.
const COUNT_MAX: u32 = 1 << 20;

/// The most bytes of an answer that has items, except for the outcomes of the items.
const ITEMS_HEAD_BYTES: usize = 64;

/// The most bytes of an answer that has a redemption.
const REDEMPTION_ANSWER_BYTES: usize = 256;

/// The most bytes of an answer that has a number or nothing.
const SHORT_BYTES: usize = 32;

/// The most bytes of an answer that has a description of a filter or of an import.
const DESCRIPTION_BYTES: usize = 4_096;

/// The most bytes that the packed answer to a command can take.
pub fn bytes_max(command: &Command) -> usize {
    let items = |digests: &Digests| ITEMS_HEAD_BYTES + digests.0.len().div_ceil(2);
    match command {
        Command::Insert { digests, .. } | Command::Remove { digests, .. } => items(digests),
        Command::Replace { from, .. } => items(from),
        Command::Redeem { .. } | Command::Confirm { .. } | Command::Cancel { .. } => REDEMPTION_ANSWER_BYTES,
        Command::Delete { .. } | Command::Clear { .. } | Command::Advance { .. } => SHORT_BYTES,
        Command::PutLineUp { .. } | Command::DeleteLineUp { .. } => SHORT_BYTES,
        Command::TurnBack | Command::Restored { .. } | Command::Enable { .. } => SHORT_BYTES,
        Command::Create { .. } | Command::Update { .. } | Command::Configure(_) => DESCRIPTION_BYTES,
        Command::ImageBegin { .. }
        | Command::ImagePart { .. }
        | Command::ImageEnd { .. }
        | Command::ImageAbandon { .. } => DESCRIPTION_BYTES,
        Command::ImportBegin { .. } | Command::ImportLines { .. } | Command::ImportEnd { .. } => {
            DESCRIPTION_BYTES
        }
    }
}

/// What a command says of its own answer. It says the same when the request is repeated.
pub struct Asked<'a> {
    redemption: Option<RedemptionId>,
    code: Option<(Digest, &'a Reference)>,
}

impl<'a> Asked<'a> {
    /// What this command says of its answer.
    pub fn of(command: &'a Command) -> Self {
        match command {
            // It carries an id too, but each request draws a new one.
            Command::Redeem { digest, reference, .. } => {
                Self { redemption: None, code: Some((*digest, reference)) }
            }
            Command::Confirm { redemption, .. } | Command::Cancel { redemption, .. } => {
                Self { redemption: Some(*redemption), code: None }
            }
            _ => Self { redemption: None, code: None },
        }
    }
}

#[derive(Serialize, Deserialize)]
enum Packed {
    Inserted(Items, u64),
    Removed(Items, u64),
    Replaced(Items),
    Redeemed(PackedRedemption),
    Settled(PackedRedemption),
    Other(Outcome),
}

/// The outcomes of items. An answer rarely has more than two kinds of them, and those of one kind mostly stand side by side.
#[derive(Serialize, Deserialize)]
enum Items {
    Alike(u32, ItemOutcome),
    /// The kinds, and the runs of one kind each: the length times the number of kinds, plus the kind.
    Runs(Vec<ItemOutcome>, Vec<u32>),
    /// The kinds, and 1, 2 or 4 bits for each item that say which.
    Bits(u32, Vec<ItemOutcome>, #[serde(with = "serde_bytes")] Vec<u8>),
}

#[derive(Serialize, Deserialize)]
struct PackedRedemption {
    /// None if the command says it.
    id: Option<RedemptionId>,
    /// None if the command says it.
    code: Option<(Digest, Reference)>,
    status: Status,
    /// Milliseconds from that time until the answer was stored.
    created: u64,
    changed: u64,
    /// Milliseconds from when the answer was stored until that time.
    expires: Option<i64>,
    /// As for `created`.
    redeemed: Option<u64>,
    ordinal: Option<u64>,
}

/// Packs the answer to a command; `stored_at` is the time of storing it.
pub fn pack(asked: &Asked<'_>, outcome: &Outcome, stored_at: Timestamp) -> Vec<u8> {
    let packed = match outcome {
        Outcome::Inserted(inserted) => Packed::Inserted(Items::pack(&inserted.outcomes), inserted.added),
        Outcome::Removed(removed) => Packed::Removed(Items::pack(&removed.outcomes), removed.removed),
        Outcome::Replaced(outcomes) => Packed::Replaced(Items::pack(outcomes)),
        Outcome::Redeemed(redemption) => Packed::Redeemed(pack_redemption(asked, redemption, stored_at)),
        Outcome::Settled(redemption) => Packed::Settled(pack_redemption(asked, redemption, stored_at)),
        other => Packed::Other(other.clone()),
    };
    postcard::to_stdvec(&packed).expect("plain data always encodes")
}

/// Unpacks the answer to a repeated request; none if the bytes are no answer to it.
pub fn unpack(bytes: &[u8], asked: &Asked<'_>, stored_at: Timestamp) -> Option<Outcome> {
    Some(match postcard::from_bytes(bytes).ok()? {
        Packed::Inserted(items, added) => Outcome::Inserted(Inserted { outcomes: items.unpack()?, added }),
        Packed::Removed(items, removed) => Outcome::Removed(Removed { outcomes: items.unpack()?, removed }),
        Packed::Replaced(items) => Outcome::Replaced(items.unpack()?),
        Packed::Redeemed(packed) => Outcome::Redeemed(packed.unpack(asked, stored_at)?),
        Packed::Settled(packed) => Outcome::Settled(packed.unpack(asked, stored_at)?),
        Packed::Other(outcome) => outcome,
    })
}

fn pack_redemption(asked: &Asked<'_>, redemption: &Redemption, stored_at: Timestamp) -> PackedRedemption {
    let Redemption {
        id,
        digest,
        reference,
        status,
        created_at,
        changed_at,
        expires_at,
        redeemed_at,
        ordinal,
    } = redemption;
    let since = |at: &Timestamp| stored_at.0.wrapping_sub(at.0);
    let is_told = asked.code == Some((*digest, reference));
    PackedRedemption {
        id: (asked.redemption != Some(*id)).then_some(*id),
        code: (!is_told).then(|| (*digest, reference.clone())),
        status: *status,
        created: since(created_at),
        changed: since(changed_at),
        expires: expires_at.as_ref().map(|at| since(at).wrapping_neg() as i64),
        redeemed: redeemed_at.as_ref().map(since),
        ordinal: *ordinal,
    }
}

impl PackedRedemption {
    fn unpack(self, asked: &Asked<'_>, stored_at: Timestamp) -> Option<Redemption> {
        let (digest, reference) =
            self.code.or_else(|| asked.code.map(|(digest, reference)| (digest, reference.clone())))?;
        let before = |since: u64| Timestamp(stored_at.0.wrapping_sub(since));
        Some(Redemption {
            id: self.id.or(asked.redemption)?,
            digest,
            reference,
            status: self.status,
            created_at: before(self.created),
            changed_at: before(self.changed),
            expires_at: self.expires.map(|after| before((after as u64).wrapping_neg())),
            redeemed_at: self.redeemed.map(before),
            ordinal: self.ordinal,
        })
    }
}

/// Bits that tell so many kinds apart; a byte holds the bits of a whole number of items.
fn bits(kinds: usize) -> usize {
    match kinds {
        0..=2 => 1,
        3..=4 => 2,
        _ => 4,
    }
}

impl Items {
    fn pack(outcomes: &[ItemOutcome]) -> Self {
        let count = outcomes.len() as u32;
        let mut kinds: Vec<ItemOutcome> = Vec::new();
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for outcome in outcomes {
            let kind = kinds.iter().position(|kind| kind == outcome).unwrap_or_else(|| {
                kinds.push(*outcome);
                kinds.len() - 1
            }) as u32;
            match runs.last_mut() {
                Some((length, last)) if *last == kind => *length += 1,
                _ => runs.push((1, kind)),
            }
        }
        if let [kind] = kinds[..] {
            return Items::Alike(count, kind);
        }
        let bits = bits(kinds.len());
        // A run takes at least a byte.
        if runs.len() * 8 < outcomes.len() * bits {
            let lengths = runs.iter().map(|(length, kind)| length * kinds.len() as u32 + kind);
            let (lengths, kinds) = (lengths.collect(), kinds.clone());
            let coded = Items::Runs(kinds, lengths);
            if encoded_bytes(&coded) < outcomes.len() * bits / 8 {
                return coded;
            }
        }
        let mut bytes = vec![0; (outcomes.len() * bits).div_ceil(8)];
        let kinds_of = runs.iter().flat_map(|&(length, kind)| (0..length).map(move |_| kind as u8));
        for (at, kind) in kinds_of.enumerate() {
            bytes[at * bits / 8] |= kind << (at * bits % 8);
        }
        Items::Bits(count, kinds, bytes)
    }

    fn unpack(self) -> Option<Vec<ItemOutcome>> {
        match self {
            Items::Alike(count, kind) => (count <= COUNT_MAX).then(|| vec![kind; count as usize]),
            Items::Runs(kinds, lengths) => {
                let mut outcomes = Vec::new();
                for run in lengths {
                    let (length, kind) = (run / kinds.len().max(1) as u32, run as usize % kinds.len().max(1));
                    let count = (outcomes.len() as u32).checked_add(length).filter(|&c| c <= COUNT_MAX)?;
                    outcomes.resize(count as usize, *kinds.get(kind)?);
                }
                Some(outcomes)
            }
            Items::Bits(count, kinds, bytes) => {
                let bits = bits(kinds.len());
                let kind = |at: usize| {
                    let byte = bytes.get(at * bits / 8)? >> (at * bits % 8);
                    kinds.get(usize::from(byte & ((1 << bits) - 1))).copied()
                };
                (0..count.min(COUNT_MAX) as usize).map(kind).collect()
            }
        }
    }
}

fn encoded_bytes(items: &Items) -> usize {
    postcard::to_stdvec(items).map_or(usize::MAX, |bytes| bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{FilterId, Refusal, Target};
    use proptest::prelude::*;

    const KINDS: [ItemOutcome; 5] = [
        ItemOutcome::Added,
        ItemOutcome::AlreadyPresent,
        ItemOutcome::Saturated,
        ItemOutcome::AlreadyRedeemed,
        ItemOutcome::Revived,
    ];

    fn insert(count: usize) -> Command {
        let digests = Digests(vec![Digest(0); count]);
        Command::Insert { target: Target(FilterId(1)), digests, if_absent: false, revive: false }
    }

    fn there_and_back(command: &Command, outcome: &Outcome) -> usize {
        let asked = Asked::of(command);
        let bytes = pack(&asked, outcome, Timestamp(1_000));
        assert_eq!(unpack(&bytes, &asked, Timestamp(1_000)).as_ref(), Some(outcome));
        assert!(bytes.len() <= bytes_max(command), "{} bytes", bytes.len());
        bytes.len()
    }

    fn inserted(outcomes: Vec<ItemOutcome>) -> Outcome {
        let added = outcomes.iter().filter(|outcome| **outcome == ItemOutcome::Added).count() as u64;
        Outcome::Inserted(Inserted { outcomes, added })
    }

    proptest! {
        #[test]
        fn outcomes_come_back(
            kinds in 1..=KINDS.len(),
            runs in proptest::collection::vec((0..KINDS.len(), 1..600usize), 0..200),
        ) {
            let outcomes: Vec<_> =
                runs.iter().flat_map(|&(kind, length)| vec![KINDS[kind % kinds]; length]).collect();
            let bytes = there_and_back(&insert(outcomes.len()), &inserted(outcomes.clone()));
            let bits = bits(kinds);
            prop_assert!(bytes <= 24 + (outcomes.len() * bits).div_ceil(8).min(3 * runs.len()));
        }

        #[test]
        fn redemptions_come_back(times in any::<[u64; 4]>(), id: [u8; 16], held: bool, length in 1..=128usize) {
            let [created_at, changed_at, expires_at, redeemed_at] = times.map(Timestamp);
            let redemption = Redemption {
                id: RedemptionId(id),
                digest: Digest(7),
                reference: Reference::new(&"r".repeat(length)).unwrap(),
                status: Status::Held,
                created_at,
                changed_at,
                expires_at: held.then_some(expires_at),
                redeemed_at: (!held).then_some(redeemed_at),
                ordinal: held.then_some(length as u64),
            };
            let target = Target(FilterId(1));
            let confirm = Command::Confirm { target, redemption: redemption.id };
            there_and_back(&confirm, &Outcome::Settled(redemption.clone()));
            let redeem = Command::Redeem {
                target,
                digest: redemption.digest,
                redemption: RedemptionId([0; 16]),
                reference: redemption.reference.clone(),
                hold_seconds: 0,
            };
            there_and_back(&redeem, &Outcome::Redeemed(redemption));
        }

        #[test]
        fn nothing_panics_on_other_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = unpack(&bytes, &Asked::of(&insert(1)), Timestamp(0));
        }
    }

    #[test]
    fn answers_are_small() {
        let alike = there_and_back(&insert(10_000), &inserted(vec![ItemOutcome::Added; 10_000]));
        assert!(alike <= 8, "{alike} bytes");
        let mut few = vec![ItemOutcome::Added; 10_000];
        (0..5).for_each(|at| few[at * 1_999 + 3] = ItemOutcome::AlreadyPresent);
        let few = there_and_back(&insert(10_000), &inserted(few));
        assert!(few <= 30, "{few} bytes");
        let mixed = (0..10_000).map(|at: u64| KINDS[(at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63) as usize]);
        let mixed = there_and_back(&insert(10_000), &inserted(mixed.collect()));
        assert!(mixed <= 1_270, "{mixed} bytes");
        there_and_back(&insert(1), &Outcome::Refused(Refusal::FilterFull));
    }
}
