//! Admission control: a command is logged only if there is memory to apply it. Every later startup applies the logged commands, so the
//! memory is checked against the limit, and reserved from the system, before a batch is logged.

use cuckood_filter::{MemoryNeed, OutOfMemory, Reservation};
use cuckood_state::domain::{Command, Timestamp};
use cuckood_state::{State, WaitingDemand};

/// Memory for records of operations that free memory, beyond the limit: this part of it, within bounds.
const RESERVE_PART: u64 = 64;
const RESERVE_BYTES_MIN: u64 = 1 << 20;
const RESERVE_BYTES_MAX: u64 = 16 << 20;

/// Small needs are tried out together once they add up to this many bytes. It is far less than the spare memory.
const SMALL_BYTES_MAX: u64 = 4 << 20;

/// Whether a command may be logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It may be logged; its memory is reserved.
    Admitted,
    /// It must be admitted again once the commands admitted before it are applied.
    Later,
    /// It might exceed the memory limit.
    BeyondLimit,
    /// The system has no more memory to give.
    NoMemory(OutOfMemory),
    /// It frees memory, but the reserve for records of such commands is used up.
    ReserveUsedUp,
}

/// The memory that the state takes.
#[derive(Clone, Copy)]
struct Taken {
    bytes: u64,
    /// Bytes of records among them.
    records_bytes: u64,
}

/// Judges the commands of a batch, one after the other.
pub(super) struct Admission {
    bytes_max: u64,
    /// Bytes that tables must leave free for everything else.
    spare_bytes: u64,
    /// The memory that the state takes, measured once for each batch.
    taken: Option<Taken>,
    /// The least that records took since the limit was reached: the reserve starts there. `None` below the limit.
    reserve_start: Option<u64>,
    /// The most that the admitted commands can add.
    need: MemoryNeed,
    waiting: WaitingDemand,
    reservation: Reservation,
    /// Small needs since the system was last asked for memory.
    small_bytes: u64,
}

impl Admission {
    /// Admits commands while the state stays within `bytes_max`. Maps no table that would leave less than `spare_bytes` of the
    /// system's memory.
    pub(super) fn new(bytes_max: u64, spare_bytes: u64) -> Self {
        Self {
            bytes_max,
            spare_bytes,
            taken: None,
            reserve_start: None,
            need: MemoryNeed::default(),
            waiting: WaitingDemand::default(),
            reservation: Reservation::new(),
            small_bytes: 0,
        }
    }

    /// Judges a command that would be applied at `at`, and reserves the memory that it may need.
    pub(super) fn admit(
        &mut self,
        state: &State,
        command: &Command,
        at: Timestamp,
        is_keyed: bool,
    ) -> Verdict {
        let verdict = self.admit_claim(state, command, false, is_keyed);
        if verdict == Verdict::Admitted || !state.repeats(command, at) {
            return verdict;
        }
        if !self.waiting.keeps_redemptions() {
            return Verdict::Later;
        }
        self.admit_claim(state, command, true, is_keyed)
    }

    fn admit_claim(
        &mut self,
        state: &State,
        command: &Command,
        is_repeated: bool,
        is_keyed: bool,
    ) -> Verdict {
        let Some(claim) = self.waiting.claim(state, command, is_repeated, is_keyed) else {
            return Verdict::Later;
        };
        let need = &claim.need;
        let besides = &claim.besides;
        let taken = self.measure(state);
        let all = [self.need.bytes, need.bytes, besides.bytes];
        let all = all.into_iter().fold(taken.bytes, u64::saturating_add);
        let is_within_limit = need.bytes == 0 || all <= self.bytes_max;
        let is_covered = claim.is_relief && self.is_covered_by_reserve(need, taken);
        let mut verdict = match is_within_limit || is_covered {
            true => Verdict::Admitted,
            false if claim.is_relief && is_keyed => Verdict::ReserveUsedUp,
            false => Verdict::BeyondLimit,
        };
        // The reserve is a part of the spare memory.
        let needs_none = is_covered && need.mapped_bytes() == 0;
        if verdict == Verdict::Admitted
            && let Err(refused) = self.reserve(need)
            && !needs_none
        {
            verdict = Verdict::NoMemory(refused);
        }
        if verdict == Verdict::Admitted {
            self.waiting.add(&claim);
            self.need += claim.need;
            self.need += claim.besides;
            return verdict;
        }
        // The commands in flight were counted at their upper bound, and some of them may free memory.
        let is_decided = self.need.is_none() && self.waiting.is_empty();
        if is_decided { verdict } else { Verdict::Later }
    }

    /// Returns the memory that the state took at the start of the batch.
    fn measure(&mut self, state: &State) -> Taken {
        let taken = *self.taken.get_or_insert_with(|| {
            let sizes = state.sizes();
            Taken {
                bytes: sizes.memory_bytes(),
                records_bytes: sizes.records_bytes,
            }
        });
        self.reserve_start = match self.reserve_start {
            Some(start) if taken.bytes > self.bytes_max => Some(start.min(taken.records_bytes)),
            _ => None,
        };
        taken
    }

    /// Whether the reserve has memory for the records of a command that frees memory.
    fn is_covered_by_reserve(&mut self, need: &MemoryNeed, taken: Taken) -> bool {
        let start = *self.reserve_start.get_or_insert(taken.records_bytes);
        let reserve = (self.bytes_max / RESERVE_PART).clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX);
        let used = taken
            .records_bytes
            .saturating_sub(start)
            .saturating_add(self.need.bytes);
        used.saturating_add(need.bytes) <= reserve
    }

    fn reserve(&mut self, need: &MemoryNeed) -> Result<(), OutOfMemory> {
        let small = self.small_bytes + need.bytes.saturating_sub(need.mapped_bytes());
        if need.mapped_bytes() > 0 || small > SMALL_BYTES_MAX {
            self.reservation.extend(need, self.spare_bytes + small)?;
            self.small_bytes = 0;
        } else {
            self.small_bytes = small;
        }
        Ok(())
    }

    /// The state takes less than at the start of the batch.
    pub(super) fn note_freed(&mut self) {
        self.taken = None;
    }

    /// Releases the unused rest of the reservation. Call it once every admitted command is applied or rejected.
    pub(super) fn settle(&mut self) {
        self.taken = None;
        self.need = MemoryNeed::default();
        self.waiting = WaitingDemand::default();
        self.reservation.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuckood_filter::{
        Digest, FIXED_SEARCH_MIN, Filter, Growth, Layout, MAX_SEARCH_DEFAULT, Mode, Secret,
        unreserved_tables,
    };
    use cuckood_state::FilterStatistics;
    use cuckood_state::domain::image::ALGORITHM;
    use cuckood_state::domain::statistics::CountedPeriod;
    use cuckood_state::domain::{
        Annotations, AnnotationsChange, Digests, Ending, Entry, FORMAT_VERSION, FilterHead,
        FilterId, Forget, IdempotencyKey, ImageBegin, ImageBody, ImageChunk, ImagePart,
        ImageRecord, ImageSection, ImportBegin, ImportEnd, ImportId, ImportLines, ImportMode,
        ImportWarning, KeyName, Kind, LineUp, Name, Normalization, Profile, Proposal, PutLineUp,
        Raise, Redeem, Redemption, RedemptionDetails, RedemptionId, RedemptionStatus, Reference,
        Seq, Sizing, Spec, Supply, Target, Timestamp, Update, UploadDigest, UploadId, Window,
    };
    use proptest::prelude::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    const FILTERS: u64 = 5;

    fn cases() -> u32 {
        std::env::var("PROPTEST_CASES")
            .ok()
            .and_then(|cases| cases.parse().ok())
            .unwrap_or(48)
    }

    /// Random choices, but no worse than evenly spread.
    fn digest(number: u64) -> Digest {
        let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Digest(mixed ^ (mixed >> 31))
    }

    /// A title and labels, up to the longest.
    fn annotations(what: u64) -> AnnotationsChange {
        let labels = (0..what % 17).map(|number| {
            let key = format!("{number}{}", "k".repeat((what / 17 % 127) as usize));
            (key, "v".repeat((what % 65) as usize))
        });
        let labels: BTreeMap<_, _> = labels.collect();
        let title = "t".repeat((what % 201) as usize);
        let change = json!({"title": title, "replaces_labels": true, "labels": labels});
        serde_json::from_value(change).unwrap()
    }

    fn create(id: u64, what: u64) -> Command {
        // Capacities around the size from which tables are mapped.
        let capacity = [10, 3_000, 9_000, 30_000, 60_000][(what % 5) as usize];
        let growth = if what.is_multiple_of(7) {
            Growth::Fixed
        } else {
            Growth::Auto
        };
        let max_search = [1, 3, 100, FIXED_SEARCH_MIN, MAX_SEARCH_DEFAULT][(what / 5 % 5) as usize];
        let fingerprint_bits = [4, 8, 16, 31][(what / 25 % 4) as usize];
        let bucket_size = [2, 4, 8][(what / 100 % 3) as usize];
        let (mode, growth, layout, sizing) = match what % 2 {
            0 => (
                Mode::Strict,
                growth,
                Layout::strict(capacity).unwrap(),
                Sizing::Exact,
            ),
            _ => {
                let sizing = Sizing::Layout {
                    fingerprint_bits,
                    bucket_size,
                    max_search,
                };
                let layout = |growth| {
                    Layout::compact_with(
                        capacity,
                        fingerprint_bits,
                        bucket_size,
                        max_search,
                        growth,
                    )
                };
                match layout(growth) {
                    Ok(layout) => (Mode::Compact, growth, layout, sizing),
                    Err(_) => (
                        Mode::Compact,
                        Growth::Auto,
                        layout(Growth::Auto).unwrap(),
                        sizing,
                    ),
                }
            }
        };
        let forget = (mode == Mode::Compact && (what / 300).is_multiple_of(2))
            .then(|| Forget::new(60, 3).unwrap());
        let layout = forget.map_or(layout, |forget| layout.with_steps(forget.steps()).unwrap());
        // Some of the strict ones are open pools.
        let stock =
            (what.is_multiple_of(6) && growth == Growth::Auto).then_some(what / 6 % 1_000 + 1);
        let is_strict = mode == Mode::Strict;
        let supply = Supply {
            stock: stock.filter(|_| is_strict),
            uses: if is_strict && (what / 7).is_multiple_of(3) {
                3
            } else {
                1
            },
            per_customer: (is_strict && (what / 11).is_multiple_of(3)).then_some(2),
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
        let name = Name::new(&format!("f{id}")).unwrap();
        let secret = Secret::new([7; 192]);
        Command::Create {
            kind: Kind::Coupon,
            name,
            id: FilterId(id),
            secret,
            spec,
            layout,
            window: Window::default(),
            annotations: annotations(what),
        }
    }

    /// With a layout that depends on the filter.
    fn raise(target: Target, capacity: u64) -> Command {
        let capacity = Some(Raise {
            capacity,
            layout: Layout::strict(capacity).unwrap(),
        });
        Command::Update(Update {
            target,
            starts_at: None,
            ends_at: None,
            capacity,
            stock: None,
            annotations: annotations(capacity.map_or(0, |raise| raise.capacity)),
        })
    }

    fn line_up(a: u64) -> Command {
        let name = Name::new(&format!("l{}", a % 20)).unwrap();
        if a.is_multiple_of(8) {
            return Command::DeleteLineUp { name };
        }
        let campaign = Name::new(&"c".repeat((a % 128 + 1) as usize)).unwrap();
        let campaigns = vec![campaign; (a / 128 % 256) as usize];
        Command::PutLineUp(PutLineUp {
            name,
            line_up: LineUp {
                campaigns,
                unless: Vec::new(),
                limit: 1,
            },
            annotations: annotations(a),
        })
    }

    fn command(kind: u8, a: u64, serial: u64) -> Command {
        let target = Target(FilterId(a % FILTERS));
        let import = ImportId::new(&format!("i{}", a % FILTERS)).unwrap();
        let digests =
            |count: u64| Digests((0..count).map(|at| digest(serial << 20 | at)).collect());
        // An item that one of the last commands may have inserted.
        let before = serial - serial.min(1 + a % 8);
        let earlier =
            |count: u64| Digests((0..count).map(|at| digest(before << 20 | at)).collect());
        match kind {
            0..=1 => create(a % FILTERS, a / FILTERS),
            // Copies of a few items crowd their buckets.
            7 => Command::Insert {
                target,
                digests: Digests(
                    digests(a % 1_000 + 1)
                        .0
                        .into_iter()
                        .flat_map(|item| [item; 9])
                        .collect(),
                ),
                if_absent: false,
                revive: false,
            },
            2..=6 => Command::Insert {
                target,
                digests: digests(a % 9_000 + 1),
                if_absent: a.is_multiple_of(3),
                revive: false,
            },
            8 => Command::Remove {
                target,
                digests: earlier(a % 9_000 + 1),
                all: a.is_multiple_of(5),
            },
            9 => Command::Replace {
                target,
                from: earlier(200),
                to: digests(200),
            },
            10 => Command::Clear { target },
            11 => Command::Delete {
                kind: Kind::Coupon,
                name: Name::new(&format!("f{}", a % FILTERS)).unwrap(),
            },
            12 => Command::ImportBegin(ImportBegin {
                target,
                import,
                mode: ImportMode::Replace,
                if_absent: false,
                guards: ImportMode::Replace.guards(),
                owner: KeyName::default(),
                is_named: true,
            }),
            13..=15 => Command::ImportLines(ImportLines {
                target,
                import,
                digests: digests(a % 9_000 + 1),
                lines: 1,
                rejected: 0,
                errors: Vec::new(),
                chain: a,
            }),
            16 => Command::ImportEnd(ImportEnd {
                target,
                import,
                ending: Ending::Whole {
                    upload: UploadDigest { bytes: a, hash: 7 },
                    warnings: vec![ImportWarning::LooksLikeJson; (a % 5) as usize],
                },
                entries_max: 5_000,
            }),
            17 => raise(
                target,
                [3_000, 9_000, 30_000, 60_000, 200_000][(a / 7 % 5) as usize],
            ),
            18 => line_up(a),
            19 if a.is_multiple_of(4) => Command::TurnBack,
            22..=26 => of_image(kind - 1, a, serial),
            _ => {
                let redeem = Redeem {
                    target,
                    digest: digest((before << 20) + a / 8 % 2_000),
                    redemption: RedemptionId(u128::from(serial).to_be_bytes()),
                    reference: Reference::new(&"r".repeat((a % 128 + 1) as usize)).unwrap(),
                    hold_seconds: 60,
                };
                if a.is_multiple_of(3) {
                    return Command::Redeem(redeem);
                }
                let customer = digest(a / 24 % 3_000);
                Command::RedeemFor { redeem, customer }
            }
        }
    }

    fn of_image(kind: u8, a: u64, serial: u64) -> Command {
        let upload = UploadId(u128::from(a % FILTERS));
        match kind {
            // On a separate thread: the source filter must not take its memory from this reservation.
            21 => std::thread::spawn(move || image_begin(a % FILTERS, a / FILTERS, serial))
                .join()
                .unwrap(),
            22 => Command::ImageAbandon { upload },
            // The preceding parts are determined later.
            _ => image_part(upload, 0, a / FILTERS, serial),
        }
    }

    /// The image of a filter like the created ones.
    fn image_begin(id: u64, what: u64, serial: u64) -> Command {
        let Command::Create {
            kind,
            secret,
            spec,
            layout,
            window,
            ..
        } = create(id, what)
        else {
            panic!()
        };
        let name = Name::new(&format!("image{id}")).unwrap();
        let kind = if spec.forget.is_some() {
            Kind::Campaign
        } else {
            kind
        };
        let steps = spec.forget.map(|forget| forget.steps());
        let mut filter = Filter::new(spec.mode, layout, spec.growth, steps);
        let created_at = Timestamp(0);
        let head = FilterHead {
            algorithm: ALGORITHM,
            profile: Profile {
                kind,
                name: name.clone(),
                secret,
                spec,
                layout,
                window,
                created_at,
                annotations: Annotations::default().changed(&annotations(what)).unwrap(),
            },
            adds: 0,
            removes: 0,
            tables: filter.freeze(&Default::default()).0,
            last_change: u64::MAX,
            latest: [CountedPeriod {
                number: u64::MAX,
                counts: [1; 7],
            }; 2],
        };
        let upload = UploadId(u128::from(id));
        let id = FilterId(serial << 8);
        let head = Box::new(head);
        Command::ImageBegin(ImageBegin {
            upload,
            id,
            kind,
            name,
            head,
            checksum: u128::from(serial),
        })
    }

    /// Ended redemptions, which can be in any coupon; or ordinals that stay in use.
    fn image_part(upload: UploadId, before: u128, a: u64, serial: u64) -> Command {
        let redemption = |number: u64| Redemption {
            id: RedemptionId(u128::from(serial << 20 | number).to_be_bytes()),
            digest: digest(number),
            reference: Reference::new(&"r".repeat((a % 128 + 1) as usize)).unwrap(),
            status: RedemptionStatus::Cancelled,
            created_at: Timestamp(0),
            changed_at: Timestamp(0),
            expires_at: None,
            redeemed_at: None,
            details: RedemptionDetails {
                ordinal: a.is_multiple_of(2).then_some(1),
                ..RedemptionDetails::default()
            },
        };
        let part = if a.is_multiple_of(5) {
            let bits = ImageChunk(vec![(a % 255) as u8; 512 * (a % 15 + 1) as usize]);
            ImagePart {
                section: ImageSection::Ordinals,
                chunks: vec![bits],
            }
        } else if a % 5 == 1 {
            let periods = (1..=a % 48).rev().map(|before| (u64::MAX - before, [a; 7]));
            let page: Vec<u8> = periods
                .flat_map(|period| postcard::to_stdvec(&period).unwrap())
                .collect();
            let page = ImageChunk(postcard::to_stdvec(serde_bytes::Bytes::new(&page)).unwrap());
            ImagePart {
                section: ImageSection::Statistics,
                chunks: vec![page],
            }
        } else {
            // Pages that are hardly used take the most memory.
            let in_page = [1, 17, 64][(a % 3) as usize];
            let placed: Vec<_> = (0..a % 200)
                .map(|number| (redemption(number), serial << 20 | number))
                .collect();
            let pages = placed.chunks(in_page).map(|values| {
                let taken = u64::MAX >> (64 - values.len());
                let encode = |bytes, value| postcard::to_extend(value, bytes).unwrap();
                ImageChunk(values.iter().fold(taken.to_le_bytes().to_vec(), encode))
            });
            ImagePart {
                section: ImageSection::Redemptions,
                chunks: pages.collect(),
            }
        };
        let record = ImageRecord {
            before,
            checksum: u128::from(serial),
            body: ImageBody::Part(part),
            version: 2,
        };
        Command::ImageRecord { upload, record }
    }

    struct Model {
        state: State,
        admission: Admission,
        /// With the upper bound of the state's size after each command.
        batch: Vec<(Proposal, u64)>,
        limit: u64,
        mapped_before: u64,
        at: Timestamp,
        /// The checksums of the uploaded images.
        images: BTreeMap<UploadId, u128>,
    }

    impl Model {
        fn submit(&mut self, mut command: Command, idempotency: Option<IdempotencyKey>) {
            if let Command::Update(Update {
                target,
                capacity: Some(raise),
                ..
            }) = &mut command
            {
                let Some(layout) = self.layout(*target, raise.capacity) else {
                    return;
                };
                raise.layout = layout;
            }
            match &mut command {
                Command::ImageBegin(ImageBegin {
                    upload, checksum, ..
                }) => {
                    self.images.insert(*upload, *checksum);
                }
                Command::ImageRecord { upload, record } => {
                    record.before = self
                        .images
                        .insert(*upload, record.checksum)
                        .unwrap_or_default();
                }
                _ => {}
            }
            let is_turning_back = command == Command::TurnBack;
            if is_turning_back {
                // The command is logged alone: a startup replays one entry after the other.
                self.apply();
                self.at = Timestamp(self.at.0.saturating_sub(90_000));
            }
            let mut verdict =
                self.admission
                    .admit(&self.state, &command, self.at, idempotency.is_some());
            if verdict == Verdict::Later {
                self.apply();
                verdict =
                    self.admission
                        .admit(&self.state, &command, self.at, idempotency.is_some());
            }
            match verdict {
                Verdict::Admitted => {
                    let taken = self.admission.taken.unwrap().bytes + self.admission.need.bytes;
                    let proposal = Proposal {
                        idempotency,
                        ..Proposal::new(self.at, command)
                    };
                    self.batch.push((proposal, taken));
                }
                Verdict::BeyondLimit | Verdict::ReserveUsedUp => {}
                Verdict::Later | Verdict::NoMemory(_) => panic!("{verdict:?}"),
            }
            if is_turning_back {
                self.apply();
            }
        }

        /// The layout for this capacity of a filter that is there.
        fn layout(&mut self, target: Target, capacity: u64) -> Option<Layout> {
            let is_made = |(proposal, _): &(Proposal, u64)| matches!(&proposal.command, Command::Create { id, .. } if Target(*id) == target);
            if self.batch.iter().any(is_made) {
                self.apply();
            }
            self.state.publish();
            let filters = self.state.view().list(Kind::Coupon, "", None, usize::MAX);
            let filter = filters.iter().find(|filter| Target(filter.id) == target)?;
            let raised = Spec {
                capacity,
                growth: Growth::Auto,
                ..filter.spec.clone()
            };
            raised.layout().ok()
        }

        fn apply(&mut self) {
            for (proposal, expected) in std::mem::take(&mut self.batch) {
                let what = format!("{:.80}", format!("{:?}", proposal.command));
                let applied = self.state.apply(Entry {
                    seq: self.state.applied().next(),
                    proposal,
                });
                // If memory is short, discarded data is freed before anything is rejected.
                while self.state.free_discarded(1_000) {}
                let taken = self.state.sizes().tables_bytes + self.state.sizes().records_bytes;
                let outcome = format!("{:.80}", format!("{:?}", applied.outcome));
                assert_eq!(
                    unreserved_tables(),
                    self.mapped_before,
                    "after {what}: {outcome}"
                );
                assert!(
                    taken <= expected,
                    "{taken} bytes, not {expected}, after {what}: {outcome}"
                );
                // What statistics and pools take is no reason to reject what frees memory, and its records have a reserve.
                let limit = self.limit + 16 * FilterStatistics::GROWTH_BYTES + RESERVE_BYTES_MIN;
                assert!(taken <= limit, "{taken} bytes at a limit of {}", self.limit);
            }
            self.admission.settle();
            // Holds expire, and an hour or a day may be over.
            self.at = self
                .at
                .plus_seconds([20, 20, 3_600, 86_400][(self.at.0 / 1_000 % 4) as usize]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(cases()))]

        /// Whatever is combined in a batch, the account stays within the limit and `apply` never has to map a table.
        #[test]
        fn batch_stays_within_limit_without_allocating(
            limit in 250_000u64..6_000_000,
            batches in proptest::collection::vec(
                proptest::collection::vec((0u8..27, any::<u64>(), any::<bool>()), 1..40),
                1..6,
            ),
            version in 1..=FORMAT_VERSION,
        ) {
            let mut state = State::default();
            let enable = Proposal::new(Timestamp(1_000), Command::Enable { version });
            state.apply(Entry { seq: Seq(1), proposal: enable });
            let mut model = Model {
                state,
                admission: Admission::new(limit, 1 << 20),
                batch: Vec::new(),
                limit,
                mapped_before: unreserved_tables(),
                at: Timestamp(1_000),
                images: BTreeMap::new(),
            };
            let mut serial = 1;
            for batch in batches {
                for (kind, a, is_keyed) in batch {
                    serial += 1;
                    let key = IdempotencyKey { scope: u128::from(serial), request: 7 };
                    model.submit(command(kind, a, serial), is_keyed.then_some(key));
                }
                model.apply();
            }
        }
    }
}
