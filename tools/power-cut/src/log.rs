//! The log that the load writes. Each entry follows from its position, so the check makes the same log again and compares.
//!
//! Six tracks take turns, and the log has every command in effect: one track administers filters, line-ups and settings, two import, one loads
//! images, and two write items and redemptions. Filters of all layouts grow, forget and expire while time passes.

use cuckood_filter::{Digest, Growth, Layout, Mode, Secret};
use cuckood_state::State;
use cuckood_state::domain::command::IDEMPOTENCY_ROOM_MIN_BYTES;
use cuckood_state::domain::{
    Command, Digests, Ending, Entry, FORMAT_VERSION, FilterId, Forget, Fraction, Guards,
    IdempotencyKey, ImportBegin, ImportEnd, ImportId, ImportLines, ImportMode, ImportWarning,
    KeyName, Kind, LineUp, Name, Normalization, Proposal, PutLineUp, Raise, Redeem, RedemptionId,
    Reference, Seq, Settings, Sizing, Spec, Supply, Target, Timestamp, Unless, UnlessReach, Update,
    UploadDigest, UploadId, Window,
};
use cuckood_state::testing::filter_image::Image;
use std::num::ParseIntError;
use std::sync::LazyLock;

/// Tracks of commands: position `n` belongs to track `n % TRACKS`.
const TRACKS: u64 = 6;

/// The first track of ordinary writes.
const WRITES: u64 = 4;

/// Positions from one filter's creation to the next one's.
const FILTER_EVERY: u64 = 15 * TRACKS;

/// A layout that a client chooses.
const CHOSEN: Sizing = Sizing::Layout {
    fingerprint_bits: 16,
    bucket_size: 4,
    max_search: 500,
};

/// The shapes of filters: one filter of each exists at any time.
const SHAPES: [(Kind, Sizing, Growth, u64); 8] = [
    (Kind::Coupon, Sizing::Exact, Growth::Auto, 1_000),
    (
        Kind::Campaign,
        Sizing::ErrorRate(0.001),
        Growth::Auto,
        1_000,
    ),
    (Kind::Coupon, Sizing::Exact, Growth::Auto, 40),
    (Kind::Campaign, Sizing::ErrorRate(0.01), Growth::Auto, 1_000),
    (Kind::Coupon, Sizing::Exact, Growth::Fixed, 20_000),
    (Kind::Campaign, CHOSEN, Growth::Fixed, 20_000),
    (Kind::Coupon, Sizing::Exact, Growth::Fixed, 400),
    (Kind::Campaign, Sizing::Exact, Growth::Auto, 1_000),
];

/// The shapes that are open pools, and the one that forgets.
const POOLS: [u64; 2] = [2, 6];
const FORGETFUL: u64 = 3;

/// Commands of an upload: its start, lines, and one end or several.
const UPLOAD_COMMANDS: u64 = 10;

/// Images are those of the filters at this position. Earlier entries have none.
const IMAGES_FROM: u64 = 700;

/// Steps from one image to the next.
const IMAGE_STEPS: u64 = 40;

/// The IDs of filters that are made from images follow this one.
const IMAGE_IDS: u64 = 1 << 40;

const ITEMS: u64 = 30_000;
const CODES: u64 = 200;

/// Positions between two leaps of the time, after which everything that waits is due.
const LEAP_EVERY: u64 = 500;
const LEAP_MS: u64 = 700_000;

/// How far the time is turned back.
const TURNED_BACK_MS: u64 = 300_000;

/// The log of a directory: the positions at which it was restored from a backup.
#[derive(Clone, Default)]
pub struct Log(pub Vec<u64>);

impl Log {
    pub fn parse(restored: &[&str]) -> Result<Log, ParseIntError> {
        restored
            .iter()
            .map(|position| position.parse())
            .collect::<Result<_, _>>()
            .map(Log)
    }

    /// The entry at a position.
    pub fn entry(&self, position: u64) -> Entry {
        let proposal = match self.0.contains(&position) {
            // As `restore` writes it.
            true => Proposal::new(
                Timestamp(0),
                Command::Restored {
                    clock: time(position),
                },
            ),
            false => proposal(position),
        };
        Entry {
            seq: Seq(position),
            proposal,
        }
    }
}

/// The clock at a position.
pub fn time(position: u64) -> Timestamp {
    Timestamp(1_700_000_000_000 + position * 1_000 + position / LEAP_EVERY * LEAP_MS)
}

fn proposal(position: u64) -> Proposal {
    // A repeat is the same request, under the same key.
    let asked = if is_repeat(position) {
        last(position, has_key)
    } else {
        position
    };
    let command = command(asked);
    let Timestamp(now) = time(position);
    let at = if command == Command::TurnBack {
        now - TURNED_BACK_MS
    } else {
        now
    };
    let by = [None, Some("shop"), Some("office")][draw(asked, 10) as usize % 3]
        .map(|key| KeyName::new(key).expect("a short name"));
    let idempotency = has_key(asked).then(|| IdempotencyKey {
        scope: asked.into(),
        request: asked,
    });
    Proposal {
        at: Timestamp(at),
        by,
        command,
        idempotency,
    }
}

fn is_write(position: u64) -> bool {
    position % TRACKS >= WRITES
}

fn has_key(position: u64) -> bool {
    is_write(position) && draw(position, 11) % 9 < 4
}

fn is_repeat(position: u64) -> bool {
    is_write(position) && draw(position, 11) % 9 == 8
}

fn is_redemption(position: u64) -> bool {
    is_write(position) && !is_repeat(position) && draw(position, 2) % 20 >= 13
}

/// One of the last positions of a kind before this one; this one if there is none.
fn last(position: u64, is_of_kind: fn(u64) -> bool) -> u64 {
    let mut before = (1..position).rev().filter(|before| is_of_kind(*before));
    before
        .nth(draw(position, 12) as usize % 12)
        .unwrap_or(position)
}

fn command(position: u64) -> Command {
    match (position, position % TRACKS) {
        // As a new directory's log starts.
        (1, _) => Command::Enable {
            version: FORMAT_VERSION,
        },
        (2, _) => configure(position),
        (_, 0) => administer(position),
        (_, 1) => import(position, ImportMode::Replace),
        (_, 2) => import(position, ImportMode::Append),
        (IMAGES_FROM.., 3) => image(position),
        _ => write(position),
    }
}

/// The number of the newest filter.
fn newest(position: u64) -> u64 {
    position / FILTER_EVERY
}

/// The number of one of the filters that exist.
fn any(position: u64) -> u64 {
    newest(position).saturating_sub(draw(position, 1) % SHAPES.len() as u64)
}

fn target(number: u64) -> Target {
    Target(FilterId(number + 1))
}

fn shape(number: u64) -> u64 {
    number % SHAPES.len() as u64
}

fn name(number: u64) -> Name {
    Name::new(&format!("f{}", shape(number))).expect("a plain name")
}

fn administer(position: u64) -> Command {
    let number = newest(position);
    match position / TRACKS % 15 {
        0 => Command::Delete {
            kind: SHAPES[shape(number) as usize].0,
            name: name(number),
        },
        1 => create(number),
        2 => configure(position),
        3 | 6 | 9 | 12 => update(position),
        4 | 7 | 10 => line_up(position),
        5 | 8 => Command::Advance {
            buckets_max: (draw(position, 3) % 600) as u32,
        },
        11 => Command::Clear {
            target: target(any(position)),
        },
        13 if number % 3 == 2 => Command::TurnBack,
        _ => write(position),
    }
}

fn create(number: u64) -> Command {
    let (kind, spec, layout) = describe(number, None);
    let Target(id) = target(number);
    let secret = Secret::new([7; 192]);
    let window = Window::default();
    Command::Create {
        kind,
        name: name(number),
        id,
        secret,
        spec,
        layout,
        window,
        annotations: Default::default(),
    }
}

/// The spec of a filter, optionally with another capacity.
fn describe(number: u64, raised: Option<u64>) -> (Kind, Spec, Layout) {
    let (kind, sizing, growth, capacity) = SHAPES[shape(number) as usize];
    let capacity = raised.unwrap_or(capacity);
    let forget = Forget::new(120, 4)
        .ok()
        .filter(|_| shape(number) == FORGETFUL);
    let mode = if sizing == Sizing::Exact {
        Mode::Strict
    } else {
        Mode::Compact
    };
    let layout = match (sizing, forget) {
        (Sizing::Exact, _) => Layout::strict(capacity),
        (Sizing::ErrorRate(rate), None) => Layout::compact(capacity, rate, growth),
        (Sizing::ErrorRate(rate), Some(forget)) => {
            Layout::forgetting(capacity, rate, growth, forget.steps())
        }
        (
            Sizing::Layout {
                fingerprint_bits,
                bucket_size,
                max_search,
            },
            _,
        ) => Layout::compact_with(capacity, fingerprint_bits, bucket_size, max_search, growth),
    };
    let stock = POOLS.contains(&shape(number)).then_some(10);
    let has_limits = sizing == Sizing::Exact && kind == Kind::Coupon && number.is_multiple_of(3);
    let supply = Supply {
        stock,
        uses: if has_limits { 2 } else { 1 },
        per_customer: has_limits.then_some(50),
    };
    let spec = Spec {
        capacity,
        mode,
        growth,
        sizing,
        normalization: Normalization::Exact,
        supply,
        forget,
    };
    (kind, spec, layout.expect("a sound shape"))
}

/// A change of the window, the capacity and, of an open pool, the stock.
fn update(position: u64) -> Command {
    let number = any(position);
    let Timestamp(now) = time(position);
    let capacity = draw(position, 3).is_multiple_of(2).then(|| {
        let capacity = 2_000 << (draw(position, 4) % 5);
        Raise {
            capacity,
            layout: describe(number, Some(capacity)).2,
        }
    });
    let starts_at = draw(position, 5)
        .is_multiple_of(3)
        .then_some(Some(Timestamp(now - 5_000)));
    let ends_at =
        [None, Some(None), Some(Some(Timestamp(now + 60_000)))][draw(position, 6) as usize % 3];
    let stock = POOLS
        .contains(&shape(number))
        .then_some(1 + draw(position, 7) % 20);
    Command::Update(Update {
        target: target(number),
        starts_at,
        ends_at,
        capacity,
        stock,
        annotations: Default::default(),
    })
}

fn line_up(position: u64) -> Command {
    let line_up = Name::new(&format!("home-{}", draw(position, 3) % 5)).expect("a plain name");
    if draw(position, 4).is_multiple_of(3) {
        return Command::DeleteLineUp { name: line_up };
    }
    let campaigns = [1, 3, 5, 7].map(name).to_vec();
    let at_least = (1 + draw(position, 5) % 3) as u32;
    let unless = vec![Unless {
        campaign: name(3),
        at_least,
        reach: UnlessReach {
            only_for: Some(name(5)),
            is_required: false,
        },
    }];
    Command::PutLineUp(PutLineUp {
        name: line_up,
        line_up: LineUp {
            campaigns,
            unless,
            limit: at_least,
        },
        annotations: Default::default(),
    })
}

fn configure(position: u64) -> Command {
    Command::Configure(Settings {
        redemptions_retention_seconds: 200 + draw(position, 3) % 400,
        idempotency_retention_seconds: 60 + draw(position, 4) % 120,
        idempotency_retention_min_seconds: 30,
        idempotency_room_bytes: IDEMPOTENCY_ROOM_MIN_BYTES,
        idempotency_keys: draw(position, 5) % 4,
        events_retention_seconds: 600 + draw(position, 6) % 2 * 900,
        imports_retention_seconds: 90,
        filters_max: 12,
        line_ups_max: 3,
    })
}

/// The number of the upload at a step: every fourth continues the one before, which was broken off or stopped.
fn upload(step: u64) -> u64 {
    let number = step / UPLOAD_COMMANDS;
    number - u64::from(number % 4 == 3)
}

/// The filter of an upload. An open pool takes no items, so the one before it is imported into.
fn upload_target(upload: u64) -> Target {
    let number = newest(upload * UPLOAD_COMMANDS * TRACKS);
    let number = number.saturating_sub(draw(upload, 9) % SHAPES.len() as u64);
    target(number - u64::from(POOLS.contains(&shape(number))))
}

/// A command of an upload. A replacement needs several ends to catch up.
fn import(position: u64, mode: ImportMode) -> Command {
    let step = position / TRACKS;
    let number = upload(step);
    let target = upload_target(number);
    let import = ImportId::new(&format!("{mode:?}-{number}")).expect("a plain name");
    let lines_max = if mode == ImportMode::Replace { 5 } else { 8 };
    match step % UPLOAD_COMMANDS {
        0 => {
            let guards = match (number % 3, mode) {
                (0, ImportMode::Replace) => Guards {
                    max_shrink: Fraction::new(0.9).ok(),
                    ..mode.guards()
                },
                (1, _) => Guards {
                    min_items: 5_000,
                    max_rejected: Some(2),
                    ..mode.guards()
                },
                _ => mode.guards(),
            };
            let if_absent = number.is_multiple_of(2);
            let owner = KeyName::new("office").expect("a short name");
            Command::ImportBegin(ImportBegin {
                target,
                import,
                mode,
                if_absent,
                guards,
                owner,
                is_named: true,
            })
        }
        piece if piece <= lines_max => {
            let digests = some(position, 5_000);
            let lines = digests.0.len() as u64;
            let rejected = 0;
            let errors = Vec::new();
            Command::ImportLines(ImportLines {
                target,
                import,
                digests,
                lines,
                rejected,
                errors,
                chain: position,
            })
        }
        _ => {
            let ending = match step / UPLOAD_COMMANDS % 8 {
                2 => Ending::BrokenOff,
                6 => Ending::Stopped,
                _ => Ending::Whole {
                    upload: UploadDigest {
                        bytes: number,
                        hash: number.into(),
                    },
                    warnings: vec![ImportWarning::LooksLikeJson; number as usize % 2],
                },
            };
            Command::ImportEnd(ImportEnd {
                target,
                import,
                ending,
                entries_max: 300,
            })
        }
    }
}

/// The images of the filters at [`IMAGES_FROM`].
static IMAGES: LazyLock<Vec<Image>> = LazyLock::new(|| {
    let mut state = State::default();
    (1..IMAGES_FROM).for_each(|position| drop(state.apply(Log::default().entry(position))));
    state.publish();
    let view = state.view();
    let all = [Kind::Campaign, Kind::Coupon]
        .map(|kind| view.list(kind, "", None, usize::MAX))
        .concat();
    all.iter()
        .map(|filter| Image::of(&mut state, filter.id))
        .collect()
});

/// The number of the image at a position.
fn image_number(position: u64) -> u64 {
    position / TRACKS / IMAGE_STEPS
}

/// A command of an image that takes the place of an earlier one. Of four, one stops without an end, and one is abandoned.
fn image(position: u64) -> Command {
    let number = image_number(position);
    let step = (position / TRACKS % IMAGE_STEPS) as usize;
    let image = &IMAGES[number as usize % IMAGES.len()];
    let name = Name::new(&format!("i{}", number % 3)).expect("a plain name");
    let upload = UploadId(number.into());
    let id = FilterId(IMAGE_IDS + number);
    let commands = image.all(upload, id, &name);
    let Some(step) = step.checked_sub(1) else {
        return Command::Delete {
            kind: image.head.profile.kind,
            name,
        };
    };
    let given_up = if number % 4 < 2 {
        usize::MAX
    } else {
        commands.len() / 2
    };
    match number % 4 {
        3 if step == given_up => Command::ImageAbandon { upload },
        _ => commands
            .into_iter()
            .take(given_up)
            .nth(step)
            .unwrap_or_else(|| write(position)),
    }
}

/// A change of items or redemptions. Every other one goes to the filter that a replacement is built for.
fn write(position: u64) -> Command {
    let target = write_target(position);
    match draw(position, 2) % 20 {
        0..6 => Command::Insert {
            target,
            digests: some(position, 400),
            if_absent: draw(position, 3).is_multiple_of(3),
            revive: position.is_multiple_of(2),
        },
        6..9 => Command::Remove {
            target,
            digests: some(position, 100),
            all: position.is_multiple_of(2),
        },
        9 => {
            let from = some(position, 50);
            let to = Digests(from.0.iter().map(|Digest(from)| digest(*from)).collect());
            Command::Replace { target, from, to }
        }
        10..13 => {
            let before = last(position, is_redemption);
            let target = coupon(before);
            let redemption = redemption(before);
            match draw(position, 3) % 3 {
                0 if position.is_multiple_of(4) => Command::Forfeit { target, redemption },
                0 => Command::Cancel { target, redemption },
                _ => Command::Confirm { target, redemption },
            }
        }
        _ => {
            let redeem = Redeem {
                target: coupon(position),
                digest: digest(draw(position, 3) % CODES),
                redemption: redemption(position),
                reference: Reference::new(&format!("order-{}", position % 50))
                    .expect("a plain reference"),
                hold_seconds: [0, 20, 300][draw(position, 4) as usize % 3],
            };
            match draw(position, 5) % 4 {
                0 => Command::Redeem(redeem),
                _ => Command::RedeemFor {
                    redeem,
                    customer: digest(draw(position, 6) % 30),
                },
            }
        }
    }
}

fn write_target(position: u64) -> Target {
    match draw(position, 8) % 8 {
        0..4 => upload_target(upload(position / TRACKS)),
        4..7 => target(any(position)),
        _ => Target(FilterId(
            IMAGE_IDS + image_number(position).saturating_sub(1),
        )),
    }
}

/// The target of a redemption: mostly one of the coupons, which have even numbers.
fn coupon(position: u64) -> Target {
    if draw(position, 13).is_multiple_of(4) {
        write_target(position)
    } else {
        target(any(position) & !1)
    }
}

fn redemption(position: u64) -> RedemptionId {
    RedemptionId(u128::from(position).to_be_bytes())
}

/// Up to `max` items that follow one another; the codes are the first of all.
fn some(position: u64, max: u64) -> Digests {
    let count = 1 + draw(position, 5) % max;
    let first = draw(position, 6) % ITEMS * (draw(position, 7) % 2);
    Digests(
        (first..first + count)
            .map(|item| digest(item % ITEMS))
            .collect(),
    )
}

fn digest(item: u64) -> Digest {
    Digest(draw(item, 0))
}

/// A number that two others decide.
fn draw(one: u64, other: u64) -> u64 {
    crate::random(one.rotate_left(32) ^ other)()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuckood_state::domain::Outcome;

    /// Numbers the commands. A new one belongs into the log.
    fn number(command: &Command) -> usize {
        match command {
            Command::Configure(_) => 0,
            Command::Create { .. } => 1,
            Command::Update(_) => 2,
            Command::Delete { .. } => 3,
            Command::Insert { .. } => 4,
            Command::Remove { .. } => 5,
            Command::Replace { .. } => 6,
            Command::Clear { .. } => 7,
            Command::Redeem(_) => 8,
            Command::Confirm { .. } => 9,
            Command::Cancel { .. } => 10,
            Command::ImportBegin(_) => 11,
            Command::ImportLines(_) => 12,
            Command::ImportEnd(_) => 13,
            Command::Advance { .. } => 14,
            Command::TurnBack => 15,
            Command::PutLineUp(_) => 16,
            Command::DeleteLineUp { .. } => 17,
            Command::Restored { .. } => 18,
            Command::ImageBegin(_) => 19,
            Command::ImageRecord { .. } => 20,
            Command::ImageAbandon { .. } => 21,
            Command::Enable { .. } => 22,
            Command::RedeemFor { .. } => 23,
            Command::Forfeit { .. } => 24,
        }
    }

    #[test]
    fn log_has_every_command_in_effect() {
        let log = Log(vec![900, 1_500]);
        let mut state = State::default();
        let mut effects = [0; 25];
        let mut replayed = 0;
        let mut from_images = 0;
        for position in 1..4_000 {
            let entry = log.entry(position);
            let number = number(&entry.proposal.command);
            let applied = state.apply(entry);
            replayed += u64::from(applied.replayed);
            from_images +=
                u64::from(number == 20 && matches!(applied.outcome, Outcome::Created(_)));
            effects[number] += u64::from(!matches!(applied.outcome, Outcome::Refused(_)));
        }
        let is_complete =
            effects.iter().all(|effects| *effects > 0) && replayed > 0 && from_images > 1;
        assert!(
            is_complete,
            "{effects:?}, {replayed} replayed, {from_images} from images"
        );
    }
}
