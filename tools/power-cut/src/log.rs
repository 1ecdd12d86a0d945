//! The log that is written: each entry follows from its position alone, so that whoever comes after a cut knows what must
//! be there. All kinds of commands are in it, imports of both modes among writes to the same filter above all.

use cuckood::domain::{
    Command, Digests, Ending, Entry, FilterId, Guards, ImportId, ImportMode, KeyName, Kind, Name, Proposal,
    RedemptionId, Reference, Seq, Sizing, Spec, Target, Timestamp, UploadDigest, Window,
};
use cuckood::filter::{Digest, Growth, Layout, Mode, Secret};

/// The time of every entry: none runs out.
pub const TIME: Timestamp = Timestamp(1_700_000_000_000);

/// Positions from one filter's creation to the next one's.
const FILTER_EVERY: u64 = 90;

/// Filters that stand at once.
const FILTERS: u64 = 4;

/// Positions from one replacing import's begin to the next one's, which is where the one before ends.
const REPLACE_EVERY: u64 = 36;

/// The same of imports that append.
const APPEND_EVERY: u64 = 12;

const ITEMS: u64 = 30_000;
const CODES: u64 = 200;
const CAPACITY: u64 = 1_000;

/// The entry at a position.
pub fn entry(position: u64) -> Entry {
    let proposal = Proposal::new(TIME, command(position));
    Entry { seq: Seq(position), proposal }
}

fn command(position: u64) -> Command {
    match position % FILTER_EVERY {
        0 => return Command::Delete { kind: kind(position), name: name(position) },
        1 => return create(position),
        _ => {}
    }
    let (replacement, appended) = (position % REPLACE_EVERY, position % APPEND_EVERY);
    match (replacement, appended) {
        (2 | 9 | 16 | 22 | 28 | 30 | 32 | 34, _) => import(position, REPLACE_EVERY, ImportMode::Replace),
        (_, 3 | 7 | 11) => import(position, APPEND_EVERY, ImportMode::Append),
        _ => write(position),
    }
}

fn filter(position: u64) -> u64 {
    position / FILTER_EVERY
}

fn kind(position: u64) -> Kind {
    if filter(position).is_multiple_of(2) { Kind::Coupon } else { Kind::Campaign }
}

fn name(position: u64) -> Name {
    Name::new(&format!("f{}", filter(position) % FILTERS)).expect("a plain name")
}

fn create(position: u64) -> Command {
    let mode = if kind(position) == Kind::Coupon { Mode::Strict } else { Mode::Compact };
    let (layout, sizing) = match mode {
        Mode::Strict => (Layout::strict(CAPACITY), Sizing::Exact),
        Mode::Compact => (Layout::compact(CAPACITY, 0.001, Growth::Auto), Sizing::ErrorRate(0.001)),
    };
    Command::Create {
        kind: kind(position),
        name: name(position),
        id: FilterId(filter(position) + 1),
        secret: Secret::new([7; 192]),
        spec: Spec {
            capacity: CAPACITY,
            mode,
            growth: Growth::Auto,
            sizing,
            ignore_case: false,
            stock: None,
            forget: None,
        },
        layout: layout.expect("a sound capacity"),
        window: Window::default(),
    }
}

/// The filter whose turn it is, or one of those before it.
fn target(position: u64, back: u64) -> Target {
    Target(FilterId(filter(position).saturating_sub(back) + 1))
}

/// A piece of the import that this position belongs to. One of five breaks off. What replaces needs more than one end to
/// catch up.
fn import(position: u64, every: u64, mode: ImportMode) -> Command {
    let number = position / every;
    // All pieces of an import go where its first position says.
    let target = target(number * every, number % 3 % 2);
    let id = ImportId::new(&format!("{mode:?}-{number}")).expect("a plain name");
    let (first, end) = match mode {
        ImportMode::Replace => (2, 28),
        ImportMode::Append => (3, 11),
    };
    match position % every {
        step if step == first => {
            let (owner, guards) = (KeyName::new(""), Guards::default());
            Command::ImportBegin {
                target,
                import: id,
                mode,
                if_absent: number.is_multiple_of(2),
                owner,
                is_named: true,
                guards,
            }
        }
        step if step >= end => {
            let upload = UploadDigest { bytes: number, hash: u128::from(number) };
            let ending = match number % 5 {
                4 => Ending::BrokenOff,
                _ => Ending::Whole { upload, warnings: Vec::new() },
            };
            Command::ImportEnd { target, import: id, ending, entries_max: 300 }
        }
        _ => {
            let digests = some(position, 5_000);
            let lines = digests.0.len() as u64;
            Command::ImportLines {
                target,
                import: id,
                digests,
                lines,
                rejected: 0,
                errors: Vec::new(),
                chain: position,
            }
        }
    }
}

/// A change to what is there, as likely as not where a replacement is being built.
fn write(position: u64) -> Command {
    let target = target(position / REPLACE_EVERY * REPLACE_EVERY, draw(position, 1) % 2);
    let redemption = |position: u64| RedemptionId(u128::from(position).to_be_bytes());
    let earlier = position.saturating_sub(draw(position, 3) % 40);
    match draw(position, 2) % 20 {
        0..7 => Command::Insert {
            target,
            digests: some(position, 400),
            if_absent: false,
            revive: position.is_multiple_of(2),
        },
        7..10 => Command::Remove { target, digests: some(position, 100), all: position.is_multiple_of(2) },
        10..12 => {
            let (from, to) = (some(position, 50), some(!position, 50));
            let pairs = from.0.len().min(to.0.len());
            let cut = |digests: Digests| Digests(digests.0.into_iter().take(pairs).collect());
            Command::Replace { target, from: cut(from), to: cut(to) }
        }
        12 if position.is_multiple_of(5) => Command::Clear { target },
        13 => Command::Cancel { target, redemption: redemption(earlier) },
        14 => Command::Confirm { target, redemption: redemption(earlier) },
        _ => Command::Redeem {
            target,
            digest: digest(draw(position, 3) % CODES),
            redemption: redemption(position),
            reference: Reference::new(&format!("order-{}", position % 50)).expect("a plain reference"),
            hold_seconds: draw(position, 4) % 2 * 600,
        },
    }
}

/// Up to `max` items that follow one another; the codes are the first of all.
fn some(position: u64, max: u64) -> Digests {
    let count = 1 + draw(position, 5) % max;
    let first = draw(position, 6) % ITEMS * (draw(position, 7) % 2);
    Digests((first..first + count).map(|item| digest(item % ITEMS)).collect())
}

fn digest(item: u64) -> Digest {
    Digest(draw(item, 0))
}

/// A number that two others decide.
fn draw(one: u64, other: u64) -> u64 {
    crate::random(one.rotate_left(32) ^ other)()
}
