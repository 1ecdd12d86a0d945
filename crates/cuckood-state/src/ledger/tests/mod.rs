//! A ledger next to a model of sorted maps, which says what each operation finds and forgets.

use super::stored::are_distinct;
use super::*;
use crate::domain::RedemptionDetails;
use crate::index::{EQUAL_MAX, IndexEntry};
use crate::paged::Copied;
use crate::section::Section;
use proptest::prelude::*;
use proptest::sample::Index as Chosen;
use std::collections::BTreeMap;

const STATUSES: [RedemptionStatus; 4] = [
    RedemptionStatus::Held,
    RedemptionStatus::Redeemed,
    RedemptionStatus::Cancelled,
    RedemptionStatus::Expired,
];

fn secret() -> Secret {
    Secret::new(std::array::from_fn(|at| at as u8))
}

fn empty_ledger(last_change: ChangeNumber) -> Ledger {
    Ledger::new(Epoch(1), &secret(), &Supply::default(), last_change)
}

/// A hold of the code with the same number. IDs are not in the order of numbers.
fn hold(number: u64, reference: u64, at: u64, until: u64) -> Redemption {
    Redemption {
        id: RedemptionId(u128::from(number.reverse_bits()).to_be_bytes()),
        digest: Digest(number / 3),
        reference: Reference::new(&format!("order-{reference}")).unwrap(),
        status: RedemptionStatus::Held,
        created_at: Timestamp(at),
        changed_at: Timestamp(at),
        expires_at: Some(Timestamp(until)),
        redeemed_at: None,
        details: RedemptionDetails::default(),
    }
}

/// A redemption of the model, and the position of its last change.
#[derive(Clone, PartialEq, Debug)]
struct Changed {
    redemption: Redemption,
    change: ChangeNumber,
}

/// What a ledger does, in the plainest form: all redemptions by ID, and each query a scan.
#[derive(Clone, Default)]
struct Model {
    redemptions: BTreeMap<RedemptionId, Changed>,
    last_change: ChangeNumber,
}

impl Model {
    fn put(&mut self, redemption: Redemption) {
        let time = redemption.changed_at.0 << 20;
        self.last_change = ChangeNumber(time.max(self.last_change.0 + 1));
        let change = self.last_change;
        self.redemptions
            .insert(redemption.id, Changed { redemption, change });
    }

    fn all(&self) -> impl Iterator<Item = &Redemption> {
        self.redemptions.values().map(|changed| &changed.redemption)
    }

    fn current(&self, digest: Digest) -> Option<&Redemption> {
        self.all()
            .find(|redemption| redemption.digest == digest && redemption.stands())
    }

    fn first_hold(&self) -> Option<Due> {
        self.all()
            .filter_map(|redemption| Some((redemption.held_until()?, redemption.id)))
            .min()
    }

    fn first_ended(&self) -> Option<Due> {
        self.all()
            .filter(|redemption| redemption.held_until().is_none())
            .map(|redemption| (redemption.changed_at, redemption.id))
            .min()
    }

    fn in_order(&self) -> Vec<&Changed> {
        let mut all: Vec<_> = self.redemptions.values().collect();
        all.sort_by_key(|changed| changed.change);
        all
    }

    fn found(&self, query: &RedemptionQuery) -> Vec<Redemption> {
        let mut all = self.in_order();
        match query.order {
            RedemptionOrder::Oldest => {}
            RedemptionOrder::Newest => all.reverse(),
        }
        all.into_iter()
            .map(|changed| &changed.redemption)
            .filter(|redemption| {
                let reference = query.reference.as_ref();
                reference.is_none_or(|reference| *reference == redemption.reference)
                    && query
                        .status
                        .is_none_or(|status| status == redemption.status)
                    && query
                        .changed_after
                        .is_none_or(|after| redemption.changed_at > after)
            })
            .cloned()
            .collect()
    }
}

/// An operation on a ledger: which redemption, and how.
#[derive(Clone, Debug)]
enum Step {
    /// Redeems or holds a code, unless it is held or redeemed.
    Redeem {
        number: u64,
        reference: u64,
        lasts: Option<u64>,
    },
    /// Redeems many codes, some of them within the same millisecond.
    Fill {
        from: u64,
        count: u64,
        per_millisecond: u64,
    },
    /// Gives a standing redemption another status, or a hold another end.
    Settle {
        which: Chosen,
        status: usize,
        lasts: u64,
    },
    /// Forgets the first ended ones.
    Forget { count: usize },
    /// Deletes any one.
    Remove { which: Chosen },
    /// Lets time pass.
    Wait { milliseconds: u64 },
    /// Turns the time back.
    TurnBack { milliseconds: u64 },
    /// Revives an ended hold.
    HoldAgain { which: Chosen },
    /// Takes a snapshot, which is read during the following steps, and compared in the end.
    Freeze,
    /// Continues as after a restart.
    Restart,
    /// Continues with a ledger that was uploaded as an image.
    Upload,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = any::<Chosen>;
    let step = prop_oneof![
        30 => (0..4_000_u64, 0..40_u64, proptest::option::of(1..500_u64))
            .prop_map(|(number, reference, lasts)| Step::Redeem { number, reference, lasts }),
        20 => (which(), 0..STATUSES.len(), 1..500_u64)
            .prop_map(|(which, status, lasts)| Step::Settle { which, status, lasts }),
        1 => (0..4_000_u64, 1..400_u64, 1..400_u64)
            .prop_map(|(from, count, per_millisecond)| Step::Fill { from, count, per_millisecond }),
        6 => (1..80_usize).prop_map(|count| Step::Forget { count }),
        2 => which().prop_map(|which| Step::Remove { which }),
        8 => (0..40_u64).prop_map(|milliseconds| Step::Wait { milliseconds }),
        1 => (0..400_u64).prop_map(|milliseconds| Step::TurnBack { milliseconds }),
        2 => which().prop_map(|which| Step::HoldAgain { which }),
        1 => Just(Step::Freeze),
        1 => Just(Step::Restart),
        1 => Just(Step::Upload),
    ];
    proptest::collection::vec(step, 1..400)
}

/// Chunks of the redemptions of a ledger, and their number of changes.
struct Image {
    chunks: Vec<Vec<u8>>,
    changes: u64,
    last_change: ChangeNumber,
    stored_bytes: u64,
    restoring_bytes: u64,
}

fn image(ledger: &mut Ledger) -> Image {
    let mut sections = Vec::new();
    let stored = ledger.freeze(&Copied::default(), &mut sections);
    Image {
        chunks: chunks_of(&mut sections[0]),
        changes: stored.changes,
        last_change: ledger.last_change,
        stored_bytes: stored.memory_bytes,
        restoring_bytes: stored.restoring_bytes(),
    }
}

fn chunks_of(section: &mut Section) -> Vec<Vec<u8>> {
    let mut chunks = Vec::new();
    let mut chunk = Vec::new();
    while section.next_chunk(&mut chunk) {
        chunks.push(chunk.clone());
    }
    chunks
}

fn restored(image: &Image) -> Option<Ledger> {
    let mut ledger = empty_ledger(image.last_change);
    let is_sound = image.chunks.iter().all(|chunk| ledger.restore(chunk))
        && ledger.finish_restoring()
        && ledger.finish_loading();
    ledger.resume(image.changes, None);
    is_sound.then_some(ledger)
}

fn uploaded(image: &Image) -> Option<Ledger> {
    let mut ledger = empty_ledger(image.last_change);
    let is_sound = image.chunks.iter().all(|chunk| {
        let most = ledger.memory_bytes() + Ledger::loading_bytes(chunk);
        ledger.load(chunk, |_| true) && ledger.memory_bytes() <= most
    });
    let is_complete = is_sound && ledger.finish_loading();
    ledger.resume(image.changes, None);
    is_complete.then_some(ledger)
}

/// A ledger, its model, and a snapshot in progress.
struct Twins {
    ledger: Ledger,
    model: Model,
    now: u64,
    snapshot: Option<Snapshot>,
    /// Slots as a map gives them: the lowest free one.
    slots: Vec<Option<RedemptionId>>,
    /// Number of changes, which a snapshot contains.
    changes: u64,
}

struct Snapshot {
    sections: Vec<Section>,
    expected: Vec<Vec<u8>>,
}

impl Twins {
    fn new() -> Self {
        Self {
            ledger: empty_ledger(ChangeNumber::default()),
            model: Model::default(),
            now: 1_000,
            snapshot: None,
            slots: Vec::new(),
            changes: 0,
        }
    }

    fn chosen(
        &self,
        which: &Chosen,
        is_wanted: impl Fn(&Redemption) -> bool,
    ) -> Option<Redemption> {
        let wanted: Vec<_> = self.model.all().filter(|found| is_wanted(found)).collect();
        (!wanted.is_empty()).then(|| which.get(&wanted).to_owned().clone())
    }

    fn remove(&mut self, id: RedemptionId) {
        self.ledger.remove(&id);
        self.changes += 1;
        self.model.redemptions.remove(&id);
        for slot in self.slots.iter_mut().filter(|slot| **slot == Some(id)) {
            *slot = None;
        }
    }

    fn insert(&mut self, redemption: Redemption) {
        let is_free = |slot: &Option<RedemptionId>| slot.is_none();
        match self.slots.iter().position(is_free) {
            Some(free) => self.slots[free] = Some(redemption.id),
            None => self.slots.push(Some(redemption.id)),
        }
        let reference_bytes = Ledger::reference_bytes(&redemption.reference);
        let most = self.ledger.memory_bytes() + Ledger::growth_bytes(1) + reference_bytes;
        self.ledger.insert(redemption.clone());
        self.changes += 1;
        self.model.put(redemption);
        assert!(self.ledger.memory_bytes() <= most);
    }

    /// Redeems or holds a code, unless it is held or redeemed.
    fn redeem(&mut self, number: u64, reference: u64, lasts: Option<u64>) {
        let mut redemption = hold(number, reference, self.now, 0);
        redemption.expires_at = lasts.map(|lasts| Timestamp(self.now + lasts));
        if lasts.is_none() {
            redemption.status = RedemptionStatus::Redeemed;
            redemption.redeemed_at = Some(Timestamp(self.now));
        }
        let is_known = self.model.redemptions.contains_key(&redemption.id);
        if !is_known && self.model.current(redemption.digest).is_none() {
            self.insert(redemption);
        }
    }

    fn settle(&mut self, redemption: Redemption) {
        let before = self.ledger.memory_bytes();
        self.ledger.settle(redemption.clone(), false);
        self.changes += 1;
        self.model.put(redemption);
        // A confirmed hold may be late. No change of a redemption takes more than its insertion has reserved.
        assert!(self.ledger.memory_bytes() <= before + SORTED_BYTES);
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Redeem {
                number,
                reference,
                lasts,
            } => {
                self.redeem(*number, *reference, *lasts);
            }
            Step::Fill {
                from,
                count,
                per_millisecond,
            } => {
                for number in 0..*count {
                    self.redeem(from + 3 * number, number % 7, None);
                    self.now += u64::from(number % per_millisecond == 0);
                }
            }
            Step::Settle {
                which,
                status,
                lasts,
            } => {
                let Some(before) = self.chosen(which, Redemption::stands) else {
                    return;
                };
                let status = STATUSES[*status];
                let lasts = Timestamp(self.now + lasts);
                let is_redeemed = status == RedemptionStatus::Redeemed;
                self.settle(Redemption {
                    status,
                    changed_at: Timestamp(self.now),
                    expires_at: (!is_redeemed).then_some(lasts),
                    redeemed_at: if is_redeemed {
                        Some(Timestamp(self.now))
                    } else {
                        before.redeemed_at
                    },
                    ..before
                });
            }
            Step::Forget { count } => {
                for _ in 0..*count {
                    let first = self.model.first_ended();
                    assert_eq!(self.ledger.first_ended(), first);
                    first.into_iter().for_each(|(_, id)| self.remove(id));
                }
            }
            Step::Remove { which } => {
                let any = self.chosen(which, |_| true);
                any.into_iter().for_each(|any| self.remove(any.id));
            }
            Step::Wait { milliseconds } => self.now += milliseconds,
            Step::TurnBack { milliseconds } => self.turn_back(*milliseconds),
            Step::HoldAgain { which } => {
                let is_ended = |found: &Redemption| !found.stands() && found.expires_at.is_some();
                let Some(ended) = self.chosen(which, is_ended) else {
                    return;
                };
                let is_free = self.model.current(ended.digest).is_none();
                assert_eq!(self.ledger.hold_again(&ended.id), is_free);
                if is_free && let Some(changed) = self.model.redemptions.get_mut(&ended.id) {
                    changed.redemption.status = RedemptionStatus::Held;
                    self.changes += 1;
                }
            }
            Step::Freeze => self.freeze(),
            Step::Restart => self.continue_with(restored),
            Step::Upload => self.continue_with(uploaded),
        }
    }

    /// Continues with a ledger made of an image of this one. It takes the same memory.
    fn continue_with(&mut self, made: impl Fn(&Image) -> Option<Ledger>) {
        let next = made(&image(&mut self.ledger)).unwrap();
        assert_eq!(next.memory_bytes(), self.ledger.memory_bytes());
        self.ledger = next;
    }

    fn turn_back(&mut self, milliseconds: u64) {
        self.now -= milliseconds.min(self.now);
        let now = Timestamp(self.now);
        let amended = |redemption: &Redemption| {
            (redemption.changed_at > now).then(|| Redemption {
                changed_at: now,
                created_at: redemption.created_at.min(now),
                ..redemption.clone()
            })
        };
        let most = self.ledger.memory_bytes() + self.ledger.turning_back_bytes();
        let count = self.ledger.amend(amended);
        let mut expected = 0;
        for changed in self.model.redemptions.values_mut() {
            if let Some(redemption) = amended(&changed.redemption) {
                changed.redemption = redemption;
                expected += 1;
            }
        }
        assert_eq!(count, expected);
        self.changes += count;
        assert!(self.ledger.memory_bytes() <= most);
    }

    /// Starts a snapshot, and compares the previous one.
    fn freeze(&mut self) {
        self.compare_snapshot();
        let mut sections = Vec::new();
        self.ledger.freeze(&Copied::default(), &mut sections);
        let expected = image(&mut self.ledger).chunks;
        self.snapshot = Some(Snapshot { sections, expected });
    }

    fn compare_snapshot(&mut self) {
        if let Some(mut snapshot) = self.snapshot.take() {
            assert_eq!(chunks_of(&mut snapshot.sections[0]), snapshot.expected);
        }
    }

    fn check(&self) {
        let Self { ledger, model, .. } = self;
        assert_eq!(ledger.len(), model.redemptions.len());
        assert_eq!(ledger.last_change(), model.last_change);
        assert_eq!(ledger.first_hold(), model.first_hold());
        assert_eq!(ledger.first_ended(), model.first_ended());
        let holds = model
            .all()
            .filter(|redemption| redemption.held_until().is_some());
        assert_eq!(ledger.holds_len(), holds.count());
        let standing = model.all().filter(|redemption| redemption.stands());
        let current_of: BTreeMap<_, _> = standing
            .map(|standing| (standing.digest, standing))
            .collect();
        for redemption in model.all() {
            let found = ledger.get(&redemption.id).map(RedemptionView::unpack);
            assert_eq!(found.as_ref(), Some(redemption));
            let current = ledger
                .current(redemption.digest)
                .map(RedemptionView::unpack);
            assert_eq!(
                current.as_ref(),
                current_of.get(&redemption.digest).copied()
            );
        }
        let in_slots = ledger.iter().map(RedemptionView::id);
        let expected = self.slots.iter().flatten().copied();
        assert!(in_slots.eq(expected), "each took the lowest free slot");
        assert!(real_bytes(ledger) <= ledger.memory_bytes());
        ledger.order.check(&ledger.blocks);
    }

    /// All pages of a query together equal one scan of the model, in both orders.
    fn check_query(&self, query: &RedemptionQuery, limit: usize, looked_at_max: usize) {
        for order in [RedemptionOrder::Oldest, RedemptionOrder::Newest] {
            let query = RedemptionQuery {
                order,
                ..query.clone()
            };
            self.check_order(&query, limit, looked_at_max);
        }
    }

    fn check_order(&self, query: &RedemptionQuery, limit: usize, looked_at_max: usize) {
        let is_wanted = |redemption: &Redemption| {
            let is_wanted = query
                .status
                .is_none_or(|status| status == redemption.status);
            is_wanted.then(|| redemption.clone())
        };
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = self
                .ledger
                .page(query, after, limit, looked_at_max, is_wanted);
            assert!(page.redemptions.len() <= limit);
            found.extend(page.redemptions);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, self.model.found(query));
    }

    /// The bytes of a snapshot are those of version 0.1.0: a word of slots for each page, and postcard's encoding of each redemption.
    fn check_image(&mut self) {
        let image = image(&mut self.ledger);
        let mut expected = Vec::new();
        let mut stored = 0;
        let last = self.slots.iter().rposition(Option::is_some);
        let slots = &self.slots[..last.map_or(0, |last| last + 1)];
        for page in slots.chunks(64) {
            let taken: u64 = (0..)
                .zip(page)
                .map(|(at, slot)| u64::from(slot.is_some()) << at)
                .sum();
            expected.extend_from_slice(&taken.to_le_bytes());
            for id in page.iter().flatten() {
                let changed = &self.model.redemptions[id];
                let encoded = (&changed.redemption, changed.change);
                expected.extend(postcard::to_stdvec(&encoded).unwrap());
                stored += 328 + changed.redemption.reference.as_str().len() as u64;
            }
            stored += 128 + 120 * page.iter().flatten().count().next_multiple_of(16) as u64;
        }
        assert_eq!(image.chunks.concat(), expected);
        assert_eq!(image.stored_bytes, stored);
        assert_eq!(image.changes, self.changes);
        let few_bytes = 1_024 * SORTED_BYTES + 4_096;
        assert!(self.ledger.memory_bytes() <= image.restoring_bytes + few_bytes);
    }
}

/// The ledger's memory as allocators round it, counted part by part. Trees are counted at their usual load.
fn real_bytes(ledger: &Ledger) -> u64 {
    let sorted = ledger.holds.len() + ledger.retention.sorted_len();
    ledger
        .blocks
        .pages
        .iter()
        .map(|(_, block)| block.real_bytes())
        .sum::<u64>()
        + ledger.by_id.real_bytes()
        + ledger.current.real_bytes()
        + ledger.by_reference.real_bytes()
        + ledger.order.real_bytes()
        + 40 * sorted as u64
}

proptest! {
    /// Whatever happens to redemptions, a ledger finds and forgets the same ones as the model, before and after a restart.
    #[test]
    fn ledger_equals_sorted_maps(
        steps in steps(),
        reference in 0..40_u64,
        status in proptest::option::of(0..STATUSES.len()),
        changed_after in proptest::option::of(900..3_000_u64),
        limit in 1..10_usize,
        looked_at_max in 1..20_usize,
    ) {
        let mut twins = Twins::new();
        let by_reference = RedemptionQuery {
            reference: Some(hold(0, reference, 0, 0).reference),
            status: status.map(|status| STATUSES[status]),
            changed_after: changed_after.map(Timestamp),
            order: RedemptionOrder::Oldest,
        };
        let all = RedemptionQuery { reference: None, ..by_reference.clone() };
        for (number, step) in steps.iter().enumerate() {
            twins.take(step);
            prop_assert_eq!(twins.ledger.first_hold(), twins.model.first_hold());
            prop_assert_eq!(twins.ledger.first_ended(), twins.model.first_ended());
            if number % 16 == 0 {
                twins.check();
            }
        }
        twins.check();
        twins.check_query(&by_reference, limit, looked_at_max);
        twins.check_query(&all, limit, looked_at_max);
        twins.check_image();
        twins.compare_snapshot();
        while let Some((_, id)) = twins.model.first_ended().or(twins.model.first_hold()) {
            twins.remove(id);
            prop_assert_eq!(twins.ledger.first_ended(), twins.model.first_ended());
        }
        prop_assert_eq!(twins.ledger.memory_bytes(), 0);
    }
}

/// A change of an image, which makes it contradict itself.
type Contradiction<'a> = &'a dyn Fn(&mut LedgerEntry);

/// A ledger with a few redemptions, of which `change` has changed one, as an image of it.
fn forged(change: impl Fn(&mut LedgerEntry)) -> Image {
    let mut chunk = 0b1111_u64.to_le_bytes().to_vec();
    for number in 0..4 {
        let mut entry = LedgerEntry {
            redemption: hold(3 * number, 7, 1_000 + number, 9_000),
            change: ChangeNumber((1_000 + number) << 20),
        };
        if number == 3 {
            change(&mut entry);
        }
        chunk.extend(postcard::to_stdvec(&entry).unwrap());
    }
    Image {
        chunks: vec![chunk],
        changes: 1,
        last_change: ChangeNumber(2_000 << 20),
        stored_bytes: 0,
        restoring_bytes: 0,
    }
}

#[test]
fn contradictory_image_is_rejected() {
    let first = hold(0, 7, 1_000, 9_000);
    let changes: [(&str, Contradiction<'_>); 6] = [
        ("no contradiction", &|_| ()),
        ("ID of another", &|entry| entry.redemption.id = first.id),
        ("code of another", &|entry| {
            entry.redemption.digest = first.digest
        }),
        ("position of another", &|entry| {
            entry.change = ChangeNumber(1_001 << 20)
        }),
        ("position after the last", &|entry| {
            entry.change = ChangeNumber(2_001 << 20)
        }),
        ("ordinal without a pool", &|entry| {
            entry.redemption.details.ordinal = Some(1)
        }),
    ];
    for (what, change) in changes {
        let image = forged(change);
        let is_sound = what == "no contradiction";
        assert_eq!(restored(&image).is_some(), is_sound, "{what}, restored");
        assert_eq!(uploaded(&image).is_some(), is_sound, "{what}, uploaded");
    }
}

/// An ended redemption may have the code of another.
#[test]
fn image_with_any_times_keeps_order_of_retention() {
    let ended = |entry: &mut LedgerEntry| {
        entry.redemption.digest = Digest(0);
        entry.redemption.status = RedemptionStatus::Cancelled;
        entry.redemption.changed_at = Timestamp(5);
    };
    let image = forged(ended);
    for mut ledger in [restored(&image).unwrap(), uploaded(&image).unwrap()] {
        let first = ledger.first_ended().unwrap();
        assert_eq!(first.0, Timestamp(5));
        let mut redeemed = hold(100, 1, 1_005, 0);
        redeemed.status = RedemptionStatus::Redeemed;
        ledger.insert(redeemed.clone());
        assert_eq!(ledger.first_ended(), Some(first));
        ledger.remove(&first.1);
        assert_eq!(ledger.first_ended(), Some((Timestamp(1_005), redeemed.id)));
    }
}

/// Reading a page of a reference that a million redemptions have takes no longer than any page, and finds the same ones.
#[test]
fn crowded_reference_is_found_in_order() {
    let mut twins = Twins::new();
    for number in 0..3 * EQUAL_MAX as u64 {
        twins.now += number % 2;
        twins.redeem(3 * number, number % 2, None);
    }
    let query = |reference| RedemptionQuery {
        reference: Some(hold(0, reference, 0, 0).reference),
        ..RedemptionQuery::default()
    };
    let is_crowded = |ledger: &Ledger, query: &RedemptionQuery| {
        let reference = query.reference.as_ref().unwrap();
        let hash = ledger.hash(reference.as_str().as_bytes());
        ledger.by_reference.find(hash).is_none()
    };
    for reference in [0, 1] {
        assert!(is_crowded(&twins.ledger, &query(reference)));
        twins.check_query(&query(reference), 10, 20);
    }
    while twins.model.found(&query(0)).len() > EQUAL_MAX {
        let (_, id) = twins.model.first_ended().unwrap();
        twins.remove(id);
    }
    twins.check_query(&query(0), 10, 20);
    assert!(
        is_crowded(&twins.ledger, &query(0)),
        "it would have to be searched for"
    );
    twins.take(&Step::Restart);
    assert!(!is_crowded(&twins.ledger, &query(0)));
    twins.check_query(&query(0), 10, 20);
}

/// A list of the newest redemptions goes back from where a page ended: new changes neither repeat nor hide others.
#[test]
fn newest_pages_ignore_later_changes() {
    let mut twins = Twins::new();
    for number in 0..6 {
        twins.now += 1;
        twins.redeem(3 * number, number, None);
    }
    let query = RedemptionQuery {
        order: RedemptionOrder::Newest,
        ..RedemptionQuery::default()
    };
    let mut expected = twins.model.found(&query);
    let moved = expected.remove(4);
    let page = |twins: &Twins, after| {
        twins
            .ledger
            .page(&query, after, 2, 100, |found| Some(found.clone()))
    };
    let first = page(&twins, None);
    twins.now += 1;
    twins.settle(Redemption {
        status: RedemptionStatus::Cancelled,
        changed_at: Timestamp(twins.now),
        ..moved
    });
    let second = page(&twins, first.next);
    let third = page(&twins, second.next);
    assert!(third.next.is_none());
    let pages = [first, second, third].map(|page| page.redemptions);
    assert_eq!(pages.concat(), expected);
}

/// A made-up image can't make lookups slow.
#[test]
fn too_many_equal_hashes_are_no_ledger() {
    let entries = |count| -> Vec<_> {
        (0..count as u32)
            .map(|place| IndexEntry::new(7, place))
            .collect()
    };
    for (count, is_possible) in [(EQUAL_MAX, true), (EQUAL_MAX + 1, false)] {
        let index = Index::from_entries(&entries(count));
        assert_eq!(are_distinct(&index, Some), is_possible, "{count}");
        let mut ledger = empty_ledger(ChangeNumber::default());
        let redemption = hold(1, 1, 1, 0);
        ledger.by_id = Index::default();
        let hash = ledger.id_hash(redemption.id);
        (1..count as u32).for_each(|place| ledger.by_id.insert(hash, place));
        ledger.put(&LedgerEntry {
            redemption,
            change: ChangeNumber(1),
        });
        let keys = ledger.keys_in(0).unwrap();
        ledger.by_id.remove(hash, 0);
        assert_eq!(ledger.is_sparse(&keys), is_possible, "{count}");
    }
}
