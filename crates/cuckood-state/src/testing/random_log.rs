//! Logs made of random numbers: every command there is, about few filters, codes, references and imports, so that they meet.

use super::commands::{code, codes, insert};
use super::random_images::images;
use crate::IDEMPOTENCY_FIXED_BYTES;
use crate::domain::{
    AnnotationsChange, Command, Digests, Ending, Entry, FORMAT_VERSION, FilterId, Forget, Fraction,
    Guards, IdempotencyKey, ImportBegin, ImportEnd, ImportId, ImportLines, ImportMode,
    ImportWarning, KeyName, Kind, LineUp, Name, Normalization, Proposal, PutLineUp, Raise, Redeem,
    RedemptionId, Reference, Seq, Settings, Sizing, Spec, Supply, Target, Timestamp, Unless,
    UnlessReach, Update, UploadDigest, UploadId, Window,
};
use cuckood_filter::{Growth, Layout, Mode, Secret};
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;

/// Numbers that make a command: which, about what, and how much later than the one before.
pub type EntryNumbers = (u8, u64, u64, u16);

/// Codes that are redeemed.
pub const CODES: u64 = 12;

/// Users and codes in all.
pub const ITEMS: u64 = 400;

/// The filters: growing ones, full ones, one large enough to grow with many commands, an open pool, one that forgets, and an open pool of
/// fixed size. The last two have several uses of each code: a coupon and an open pool.
const FILTERS: [(Kind, Mode, Growth, u64); 9] = [
    (Kind::Coupon, Mode::Strict, Growth::Auto, 50),
    (Kind::Campaign, Mode::Compact, Growth::Auto, 150),
    (Kind::Coupon, Mode::Strict, Growth::Fixed, 60),
    (Kind::Coupon, Mode::Strict, Growth::Auto, 4_000),
    (Kind::Coupon, Mode::Strict, Growth::Auto, 3),
    (Kind::Campaign, Mode::Compact, Growth::Auto, 100),
    (Kind::Coupon, Mode::Strict, Growth::Fixed, 8),
    (Kind::Coupon, Mode::Strict, Growth::Auto, 20),
    (Kind::Coupon, Mode::Strict, Growth::Auto, 3),
];

/// How often the commands of a log are about each of the filters, in sixteenths.
const SHARES: [usize; 16] = [0, 0, 7, 6, 1, 1, 7, 2, 7, 3, 4, 8, 4, 5, 8, 5];

/// The filters that are open pools, and their stocks.
const POOLS: [(usize, u64); 3] = [(4, 6), (6, 5), (8, 7)];

/// The filters whose codes have several uses: how many, and how many each customer may have.
const LIMITED: [(usize, u32, u32); 2] = [(7, 3, 4), (8, 2, 2)];

/// The filter that forgets.
const FORGETFUL: usize = 5;

/// Items that the large filter holds from the beginning: it is about to grow.
const MANY: u64 = 3_880;

pub fn numbers(commands: usize) -> impl Strategy<Value = Vec<EntryNumbers>> {
    proptest::collection::vec(any::<EntryNumbers>(), 1..commands)
}

/// A line-up is stored or, now and then, deleted.
fn line_up(a: u64, b: u64) -> Command {
    let names = |count: u64| (0..count).map(|number| Name::new(&format!("c{number}")).unwrap());
    let name = Name::new(&format!("home{}", a % 5)).unwrap();
    if a.is_multiple_of(4) {
        return Command::DeleteLineUp { name };
    }
    let unless = names(b / 2 % 3).map(|campaign| {
        let only_for = b.is_multiple_of(3).then(|| campaign.clone());
        Unless {
            campaign,
            at_least: (b / 6 % 4) as u32,
            reach: UnlessReach {
                only_for,
                is_required: b.is_multiple_of(5),
            },
        }
    });
    let line_up = LineUp {
        unless: unless.collect(),
        campaigns: names(b / 24 % 5 + 1).collect(),
        limit: 1,
    };
    Command::PutLineUp(PutLineUp {
        name,
        line_up,
        annotations: annotations(b, a),
    })
}

/// A change of a title and labels. Now and then there are more labels than may be.
fn annotations(a: u64, b: u64) -> AnnotationsChange {
    let title = a
        .is_multiple_of(3)
        .then(|| ["", "Sale", "春のセール"][(a / 3 % 3) as usize]);
    let labels = (0..b % 12).map(|number| {
        let value = (!(b / 12 + number).is_multiple_of(4)).then(|| format!("{}", a % 3));
        (format!("k{}", (a + number) % 20), value)
    });
    let labels: BTreeMap<_, _> = labels.collect();
    let change = json!({"title": title, "replaces_labels": a.is_multiple_of(7), "labels": labels});
    serde_json::from_value(change).unwrap()
}

/// Makes commands, with the memory of a client.
pub struct RandomLog {
    at: u64,
    seq: u64,
    /// Counts commands.
    serial: u64,
    /// The identities of the filters, new at each creation.
    ids: [u64; FILTERS.len()],
    /// The upload of each mode into each filter.
    uploads: [[Option<ImportId>; 2]; FILTERS.len()],
    /// The image being loaded, if images are enabled.
    image: Option<ComingIn>,
    has_images: bool,
}

/// An image that replaces the filter it was taken from.
struct ComingIn {
    /// Which image.
    which: usize,
    /// The next command; before the first, the filter is deleted.
    next: usize,
    filter: usize,
    id: FilterId,
}

impl RandomLog {
    pub fn new() -> Self {
        Self {
            has_images: true,
            ..Self::without_images()
        }
    }

    /// A log without images.
    pub fn without_images() -> Self {
        let ids = std::array::from_fn(|filter| filter as u64 + 1);
        let uploads = Default::default();
        Self {
            at: 1_000,
            seq: 0,
            serial: 0,
            ids,
            uploads,
            image: None,
            has_images: false,
        }
    }

    /// Goes on after an earlier entry than the last: later ones are lost.
    pub fn go_back_to(&mut self, seq: Seq) {
        self.seq = seq.0;
    }

    /// Advances the time by this many milliseconds.
    pub fn pass(&mut self, milliseconds: u64) {
        self.at += milliseconds;
    }

    /// Returns an entry that turns the time back by this many milliseconds.
    pub fn turn_back(&mut self, milliseconds: u64) -> Entry {
        self.at = self.at.saturating_sub(milliseconds);
        self.entry(0, Command::TurnBack, None)
    }

    /// The entries that every log begins with.
    pub fn beginning(&mut self) -> Vec<Entry> {
        let settings = Settings {
            redemptions_retention_seconds: 40,
            events_retention_seconds: 30 * 86_400,
            imports_retention_seconds: 25,
            idempotency_retention_seconds: 30,
            idempotency_retention_min_seconds: 10,
            idempotency_room_bytes: IDEMPOTENCY_FIXED_BYTES + 1_500,
            idempotency_keys: 2,
            filters_max: 10,
            line_ups_max: 3,
        };
        // The first entry of a log started by this build.
        let enable = Command::Enable {
            version: FORMAT_VERSION,
        };
        let mut commands = vec![enable, Command::Configure(settings)];
        commands.extend((0..FILTERS.len()).map(|filter| self.create(filter)));
        let target = self.target(3);
        // Some are redeemed, and so survive when it is cleared.
        commands.extend([
            insert(target, 1_000..1_000 + MANY),
            insert(target, 0..CODES),
        ]);
        commands
            .into_iter()
            .map(|command| self.entry(0, command, None))
            .collect()
    }

    /// The entry that these numbers make.
    pub fn next(&mut self, (kind, a, b, pause): EntryNumbers) -> Entry {
        self.serial += 1;
        let command = self.command(kind, a, b);
        if command == Command::TurnBack {
            self.at = self.at.saturating_sub(b % 90_000);
        }
        let key = IdempotencyKey {
            scope: u128::from(b % 30),
            request: a % 3,
        };
        let key = pause.is_multiple_of(3).then_some(key);
        // Now and then all that waits is due at once, and rarely hours or days pass.
        let pause = match u64::from(pause) {
            pause if pause.is_multiple_of(61 * 5) => pause * 4_000,
            pause if pause.is_multiple_of(61) => pause * 10,
            pause => pause % 4_000,
        };
        self.entry(pause, command, key)
    }

    fn entry(
        &mut self,
        pause: u64,
        command: Command,
        idempotency: Option<IdempotencyKey>,
    ) -> Entry {
        self.at += pause;
        self.seq += 1;
        let by = [
            None,
            Some(KeyName::new("shop").unwrap()),
            Some(KeyName::new("office").unwrap()),
        ][(self.seq % 3) as usize]
            .clone();
        let proposal = Proposal {
            by,
            idempotency,
            ..Proposal::new(Timestamp(self.at), command)
        };
        Entry {
            seq: Seq(self.seq),
            proposal,
        }
    }

    fn target(&self, filter: usize) -> Target {
        Target(FilterId(self.ids[filter]))
    }

    fn name(filter: usize) -> Name {
        Name::new(&format!("f{filter}")).unwrap()
    }

    /// It forgets in steps of about eight entries.
    fn forget(filter: usize) -> Option<Forget> {
        (filter == FORGETFUL).then(|| Forget::new(60, 4).unwrap())
    }

    fn layout(filter: usize, capacity: u64) -> Layout {
        match (FILTERS[filter], Self::forget(filter)) {
            ((_, Mode::Compact, growth, _), None) => {
                Layout::compact(capacity, 0.01, growth).unwrap()
            }
            ((_, Mode::Compact, growth, _), Some(forget)) => {
                Layout::forgetting(capacity, 0.01, growth, forget.steps()).unwrap()
            }
            ((_, Mode::Strict, _, _), _) => Layout::strict(capacity).unwrap(),
        }
    }

    /// A change of the window, and of the capacity too: mostly upwards.
    fn update(&self, filter: usize, a: u64, b: u64) -> Command {
        let capacity = (!a.is_multiple_of(3)).then(|| {
            let capacity = FILTERS[filter].3 * (1 + a / 3 % 8) + b % 2;
            Raise {
                capacity,
                layout: Self::layout(filter, capacity),
            }
        });
        let stock = Self::stock(filter)
            .filter(|_| b.is_multiple_of(3))
            .map(|_| b / 3 % 12 + 1);
        // Most windows are open, or will be soon.
        let starts_at = b
            .is_multiple_of(4)
            .then(|| a.is_multiple_of(4).then(|| Timestamp(self.at + a % 9_000)));
        let ends_at = Some(b.is_multiple_of(5).then(|| Timestamp(self.at + b % 20_000)));
        Command::Update(Update {
            target: self.target(filter),
            starts_at,
            ends_at,
            capacity,
            stock,
            annotations: annotations(a, b),
        })
    }

    fn stock(filter: usize) -> Option<u64> {
        POOLS
            .iter()
            .find(|(pool, _)| *pool == filter)
            .map(|(_, stock)| *stock)
    }

    fn supply(filter: usize) -> Supply {
        let limited = LIMITED.iter().find(|(limited, ..)| *limited == filter);
        Supply {
            stock: Self::stock(filter),
            uses: limited.map_or(1, |(_, uses, _)| *uses),
            per_customer: limited.map(|(.., per_customer)| *per_customer),
        }
    }

    fn create(&self, filter: usize) -> Command {
        let (kind, mode, growth, capacity) = FILTERS[filter];
        let sizing = match mode {
            Mode::Compact => Sizing::ErrorRate(0.01),
            Mode::Strict => Sizing::Exact,
        };
        let layout = Self::layout(filter, capacity);
        let spec = Spec {
            capacity,
            mode,
            growth,
            sizing,
            normalization: Normalization::Exact,
            supply: Self::supply(filter),
            forget: Self::forget(filter),
        };
        let name = Self::name(filter);
        let id = self.target(filter).0;
        let secret = Secret::new([7; 192]);
        let ends_at = (self.serial % 5 == 3).then(|| Timestamp(self.at + 20_000));
        Command::Create {
            kind,
            name,
            id,
            secret,
            spec,
            layout,
            window: Window {
                starts_at: None,
                ends_at,
            },
            annotations: annotations(self.serial, self.serial / 3),
        }
    }

    fn command(&mut self, kind: u8, a: u64, b: u64) -> Command {
        let filter = SHARES[usize::from(kind / 16)];
        let target = self.target(filter);
        // Sometimes enough that tables grow, or are emptied and fold.
        let count = if b.is_multiple_of(6) {
            b / 6 % 150 + 1
        } else {
            b / 6 % 15 + 1
        };
        let some = |count: u64| codes((a..a + count).map(|number| number % ITEMS));
        let redemption = |number: u64| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&number.to_le_bytes());
            RedemptionId(id)
        };
        let recent = redemption(self.serial.saturating_sub(a % 9));
        match kind % 16 {
            0 | 1 => Command::Insert {
                target,
                digests: some(count),
                if_absent: b.is_multiple_of(2),
                revive: a.is_multiple_of(5),
            },
            2 | 3 => Command::Remove {
                target,
                digests: some(count),
                all: a.is_multiple_of(2),
            },
            4 => Command::Replace {
                target,
                from: some(b % 5 + 1),
                to: codes((b..=b + b % 5).map(|number| number % ITEMS)),
            },
            5..=7 => {
                let redeem = Redeem {
                    target,
                    digest: code(a % CODES),
                    redemption: redemption(self.serial),
                    reference: Reference::new(&format!("order-{}", b % 4)).unwrap(),
                    hold_seconds: [0, 0, 5, 60][(b / 4 % 4) as usize],
                };
                match b / 16 % 4 {
                    0 => Command::Redeem(redeem),
                    customer => Command::RedeemFor {
                        redeem,
                        customer: code(customer),
                    },
                }
            }
            8 => Command::Confirm {
                target,
                redemption: recent,
            },
            9 if a.is_multiple_of(4) => Command::Forfeit {
                target,
                redemption: recent,
            },
            9 => Command::Cancel {
                target,
                redemption: recent,
            },
            13 if self.has_images => self.image(a, b),
            10..=13 => self.upload(filter, a, b, some(count)),
            14 => self.rare(filter, a, b),
            _ if b.is_multiple_of(2) => line_up(a, b),
            _ => self.update(filter, a, b),
        }
    }

    /// A piece of an upload: its begin, lines, or an end.
    fn upload(&mut self, filter: usize, a: u64, b: u64, digests: Digests) -> Command {
        let target = self.target(filter);
        let mode = usize::from(!(a / 8).is_multiple_of(3));
        let Some(import) = self.uploads[filter][mode].clone() else {
            let import = ImportId::new(&format!("i{}", self.serial)).unwrap();
            self.uploads[filter][mode] = Some(import.clone());
            return self.begin(target, mode, import);
        };
        match a % 8 {
            0 => self.begin(target, mode, import),
            1..=4 => {
                let lines = digests.0.len() as u64;
                Command::ImportLines(ImportLines {
                    target,
                    import,
                    digests,
                    lines,
                    rejected: u64::from(b.is_multiple_of(7)),
                    errors: Vec::new(),
                    chain: a,
                })
            }
            _ => {
                // Else it is asked for again.
                if b.is_multiple_of(4) {
                    self.uploads[filter][mode] = None;
                }
                let entries_max = [1, 2, 5, 40][(b / 10 % 4) as usize];
                let ending = match b % 10 {
                    0 => Ending::BrokenOff,
                    5 => Ending::Stopped,
                    _ => Ending::Whole {
                        upload: UploadDigest {
                            bytes: a,
                            hash: u128::from(b),
                        },
                        warnings: vec![
                            ImportWarning::LooksLikeCsv { separator: ',' };
                            (b % 3) as usize
                        ],
                    },
                };
                Command::ImportEnd(ImportEnd {
                    target,
                    import,
                    ending,
                    entries_max,
                })
            }
        }
    }

    /// The next command of an image: usually in order, sometimes wrong.
    fn image(&mut self, a: u64, b: u64) -> Command {
        const UPLOAD: UploadId = UploadId(1);
        let Some(mut image) = self.image.take() else {
            let which = (a % images().len() as u64) as usize;
            let name = images()[which].head.profile.name.as_str();
            let filter = name[1..]
                .parse()
                .expect("the names of filters end with their numbers");
            let id = FilterId(100_000 + self.serial);
            self.image = Some(ComingIn {
                which,
                next: 0,
                filter,
                id,
            });
            return Command::Delete {
                kind: FILTERS[filter].0,
                name: Self::name(filter),
            };
        };
        let from = &images()[image.which];
        let number = match b % 40 {
            0 => return Command::ImageAbandon { upload: UPLOAD },
            // As though it went on after a pause.
            1 => {
                self.at += 700_000;
                image.next
            }
            2 => image.next + 1,
            3 => image.next.saturating_sub(1),
            _ => image.next,
        };
        let number = number.min(from.commands() - 1);
        let kind = FILTERS[image.filter].0;
        let name = Self::name(image.filter);
        let command = from.command(number, UPLOAD, image.id, kind, &name);
        image.next = number + 1;
        if image.next == from.commands() {
            self.ids[image.filter] = image.id.0;
        } else {
            self.image = Some(image);
        }
        command
    }

    fn begin(&self, target: Target, mode: usize, import: ImportId) -> Command {
        let mode = [ImportMode::Append, ImportMode::Replace][mode];
        let owner = KeyName::new(["", "shop"][(self.serial % 2) as usize]).unwrap();
        // One in a few does not keep to them.
        let guards = match self.serial % 4 {
            0 => mode.guards(),
            1 => Guards {
                max_shrink: Fraction::new(0.5).ok(),
                ..Guards::default()
            },
            2 => Guards {
                min_items: 8,
                max_rejected: Some(2),
                ..Guards::default()
            },
            _ => Guards::default(),
        };
        let is_named = !self.serial.is_multiple_of(5);
        Command::ImportBegin(ImportBegin {
            target,
            import,
            mode,
            if_absent: false,
            guards,
            owner,
            is_named,
        })
    }

    /// Rare commands: clearing, deleting, recreating, other settings, a time that is turned back.
    fn rare(&mut self, filter: usize, a: u64, b: u64) -> Command {
        let target = self.target(filter);
        match a % 13 {
            0..=2 => Command::Clear { target },
            3 => Command::Delete {
                kind: FILTERS[filter].0,
                name: Self::name(filter),
            },
            4..=6 => {
                self.ids[filter] = 100 + self.serial;
                self.create(filter)
            }
            7 => Command::Configure(Settings {
                redemptions_retention_seconds: b % 80,
                // Now and then none are made.
                events_retention_seconds: 3_600 * (b % 3),
                imports_retention_seconds: b % 60,
                idempotency_retention_seconds: b % 50,
                idempotency_retention_min_seconds: b / 2 % 30,
                idempotency_room_bytes: IDEMPOTENCY_FIXED_BYTES + b % 12_000,
                idempotency_keys: b % 4,
                filters_max: 10,
                line_ups_max: b % 4,
            }),
            8 => Command::TurnBack,
            9 => Command::Advance {
                buckets_max: (b % 600) as u32,
            },
            11 => Command::Enable {
                version: (b % 5) as u16,
            },
            12 => Command::Restored {
                clock: Timestamp(b << 24),
            },
            _ => Command::Insert {
                target,
                digests: codes(0..CODES),
                if_absent: true,
                revive: b.is_multiple_of(3),
            },
        }
    }
}
