//! Images of single filters: a filter loaded from one equals the original, byte for byte and in all later behavior; and a damaged one
//! leaves nothing.

use cuckood_filter::Mode;
use cuckood_state::domain::image::{IMAGE_IDLE_SECONDS, IMAGES_MAX, IMAGES_OF_KEY_MAX};
use cuckood_state::domain::spec::STOCK_MAX;
use cuckood_state::domain::statistics::{HourRetention, Unit};
use cuckood_state::domain::{
    Command, Entry, FilterId, ImageBegin, ImageBody, ImageFault, ImageRecord, ImageSection,
    KeyName, Kind, Name, Outcome, Proposal, Redeem, Redemption, RedemptionId, Refusal, Seq, Target,
    Timestamp, Update, UploadId, understood_version,
};
use cuckood_state::testing::commands::{
    NewFilter, codes, insert, name, redeem, redemption, replace, target,
};
use cuckood_state::testing::filter_image::Image;
use cuckood_state::testing::machine::{Machine, Snapshot};
use cuckood_state::testing::random_images::{Placed, change_redemptions, images};
use cuckood_state::testing::random_log::{EntryNumbers, ITEMS, RandomLog};
use cuckood_state::{RedemptionQuery, State};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

const UPLOAD: UploadId = UploadId(7);

/// A machine that reads images of this build.
fn newest() -> Machine {
    let mut machine = Machine::new();
    let version = understood_version();
    assert_eq!(machine.apply(Command::Enable { version }), Outcome::Enabled);
    machine
}

/// Loads an image under a name, and returns the last outcome.
fn load(machine: &mut Machine, image: &Image, id: u64, as_name: &str) -> Outcome {
    let mut last = None;
    for command in image.all(UPLOAD, FilterId(id), &name(as_name)) {
        if let Some(before) = last.replace(machine.apply(command)) {
            assert_eq!(before, Outcome::ImageReceived);
        }
    }
    last.unwrap()
}

/// Nothing is left of any image, and all memory is back.
fn assert_nothing_came(machine: &mut Machine) {
    while machine.state.free_discarded(10_000) {}
    let sizes = machine.state.sizes();
    assert_eq!((sizes.images_loading, machine.filters().len()), (0, 0));
    assert_eq!((sizes.tables_bytes, sizes.discarded_tables_bytes), (0, 0));
    assert_eq!(
        (sizes.redemptions, sizes.records_bytes),
        (0, State::default().sizes().records_bytes)
    );
}

fn refused(fault: ImageFault) -> Outcome {
    Outcome::Refused(Refusal::ImageDamaged(fault))
}

/// What readers see of a filter. How many forgotten users are still in its tables makes no difference.
fn describe(machine: &Machine, id: FilterId) -> String {
    let filter = machine.filter(Target(id));
    let at = machine.state.now();
    let items = codes(0..ITEMS).0;
    let Outcome::Updated(mut of) = nameless(Outcome::Updated(Box::new(filter.describe(at)))) else {
        panic!()
    };
    if filter.spec.forget.is_some() {
        of.stats.items = 0;
    }
    let counts: Vec<u32> = items.iter().map(|item| filter.count(*item, at)).collect();
    let page = filter.redemptions(&RedemptionQuery::default(), None, 1_000, at);
    let found = filter.look_up(&items, at);
    let statistics = Unit::ALL
        .map(|unit| filter.statistics(unit, unit.periods_max(HourRetention::ThirtySixDays), at));
    format!(
        "{of:?} {counts:?} {found:?} {:?} {:?} {statistics:?}",
        page.redemptions, page.next
    )
}

/// A command about another filter instead.
fn about(command: &Command, from: FilterId, to: FilterId) -> Option<Command> {
    let mut command = command.clone();
    match &mut command {
        Command::Insert { target, .. }
        | Command::Remove { target, .. }
        | Command::Replace { target, .. }
        | Command::Clear { target }
        | Command::Redeem(Redeem { target, .. })
        | Command::RedeemFor {
            redeem: Redeem { target, .. },
            ..
        }
        | Command::Forfeit { target, .. }
        | Command::Confirm { target, .. }
        | Command::Cancel { target, .. }
        | Command::Update(Update { target, .. })
            if *target == Target(from) =>
        {
            *target = Target(to);
            Some(command)
        }
        _ => None,
    }
}

/// An outcome without the identity of its filter, and without how far its items have moved: that depends on all entries.
fn nameless(mut outcome: Outcome) -> Outcome {
    if let Outcome::Created(of) | Outcome::Exists(of) | Outcome::Updated(of) = &mut outcome {
        (of.id, of.name) = (FilterId(0), name("x"));
        of.stats.segments.clear();
        of.stats.memory_bytes = 0;
    }
    outcome
}

fn is_of_import(command: &Command) -> bool {
    matches!(
        command,
        Command::ImportBegin(_) | Command::ImportLines(_) | Command::ImportEnd(_)
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After any history of a filter, one loaded from its image on another server is equal, and continues the same. A staged import isn't
    /// part of it.
    #[test]
    fn filter_from_image_behaves_like_original(
        before in proptest::collection::vec(any::<EntryNumbers>(), 0..150),
        after in proptest::collection::vec(any::<EntryNumbers>(), 0..100),
        which in 0..6_usize,
    ) {
        let mut log = RandomLog::without_images();
        let mut source = Machine::new();
        let beginning = log.beginning();
        for entry in beginning.into_iter().chain(before.into_iter().map(|numbers| log.next(numbers))) {
            let Proposal { at, command, .. } = entry.proposal;
            if !is_of_import(&command) {
                source.now = at;
                source.apply(command);
            }
        }
        let all = source.filters();
        let Some(original) = all.get(which % all.len().max(1)) else { return Ok(()) };
        let from = original.id;
        let to = FilterId(900_000);
        let image = Image::of(&mut source.state, from);
        let mut target = Machine::new();
        target.now = source.state.now();
        target.apply(Command::Configure(source.state.settings().clone()));
        target.apply(Command::Enable { version: source.state.format() });
        let made = load(&mut target, &image, to.0, "moved");
        prop_assert!(matches!(made, Outcome::Created(_)), "{:?}", made);
        prop_assert_eq!(describe(&source, from), describe(&target, to));
        for numbers in after {
            let Entry { proposal: Proposal { at, command, .. }, .. } = log.next(numbers);
            (source.now, target.now) = (at, at);
            match (&command, about(&command, from, to)) {
                (_, Some(moved)) => {
                    prop_assert_eq!(nameless(source.apply(command)), nameless(target.apply(moved)));
                }
                (Command::Delete { kind, name }, None) if (*kind, name) == (original.kind, &original.name) => break,
                (Command::Create { kind, name, .. }, None) if (*kind, name) == (original.kind, &original.name) => {
                    let mut moved = command.clone();
                    if let Command::Create { name, .. } = &mut moved {
                        *name = Name::new("moved").unwrap();
                    }
                    prop_assert_eq!(nameless(source.apply(command)), nameless(target.apply(moved)));
                }
                (Command::TurnBack | Command::Configure(_) | Command::Enable { .. }, None) => {
                    target.apply(command.clone());
                    source.apply(command);
                }
                _ if is_of_import(&command) => {}
                _ => {
                    // Time goes by there too.
                    target.apply(Command::Advance { buckets_max: 0 });
                    source.apply(command);
                }
            }
        }
        prop_assert_eq!(describe(&source, from), describe(&target, to));
    }

    /// A flipped bit, a missing, duplicate or early part: the image is rejected, or the bit made no difference.
    #[test]
    fn damaged_image_leaves_nothing(
        which in any::<prop::sample::Index>(),
        part in any::<prop::sample::Index>(),
        place in any::<prop::sample::Index>(),
        damage in 0..5_u8,
    ) {
        let image = which.get(images());
        let mut commands = image.all(UPLOAD, FilterId(1), &name("moved"));
        let at = part.index(commands.len());
        match damage {
            0 => drop(commands.remove(at)),
            1 => {
                let again = part.index(at + 1);
                let command = commands[again].clone();
                commands.insert(at + 1, command);
            }
            2 => commands.truncate(at),
            3 => {
                let other = part.index(commands.len());
                commands.swap(at, (other + 1) % image.commands());
            }
            _ => match &mut commands[at] {
                Command::ImageRecord { record: ImageRecord { body: ImageBody::Part(part), .. }, .. } => {
                    let chunk = &mut part.chunks[0].0;
                    match part.section {
                        ImageSection::Tables => {
                            let at = place.index(chunk.len());
                            chunk[at] ^= 1;
                        }
                        ImageSection::Ordinals
                        | ImageSection::Statistics
                        | ImageSection::Withdrawn
                        | ImageSection::Members
                        | ImageSection::Uses
                        | ImageSection::Customers => drop(chunk.pop()),
                        ImageSection::Redemptions => {
                            change_redemptions(part, |redemptions| redemptions.push(redemptions[0].clone()));
                        }
                    }
                }
                Command::ImageBegin(ImageBegin { head, .. }) => head.algorithm += 1,
                Command::ImageRecord { record: ImageRecord { body: ImageBody::End { redemptions }, .. }, .. } => *redemptions += 1,
                other => panic!("{other:?}"),
            },
        }
        let mut machine = newest();
        let outcomes: Vec<Outcome> = commands.into_iter().map(|command| machine.apply(command)).collect();
        let is_made = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Created(_)));
        // A repeated part, or a new beginning before all else, does no harm.
        prop_assert!(!is_made || damage == 1 || damage == 3, "{:?}", outcomes);
        if !is_made {
            machine.apply(Command::ImageAbandon { upload: UPLOAD });
            assert_nothing_came(&mut machine);
        }
    }
}

/// Whatever its frames say: an image can't bring what version 1 of entries does not have before version 2 is enabled. Otherwise the next
/// snapshot would lose it.
#[test]
fn image_needs_version_of_its_parts() {
    let mut later = [0; 2];
    for image in images() {
        for command in image.all(UPLOAD, FilterId(1), &name("moved")) {
            let Command::ImageRecord { record, .. } = &command else {
                continue;
            };
            let ImageBody::Part(part) = &record.body else {
                continue;
            };
            match part.section {
                ImageSection::Tables
                | ImageSection::Ordinals
                | ImageSection::Redemptions
                | ImageSection::Statistics => assert_eq!(command.version(), 1),
                ImageSection::Withdrawn
                | ImageSection::Members
                | ImageSection::Uses
                | ImageSection::Customers => {
                    assert_eq!(command.version(), 2);
                    later[0] += 1;
                }
            }
        }
        let mut has_customers = false;
        for mut part in image.parts.clone() {
            change_redemptions(&mut part, |redemptions| {
                let details = |placed: &Placed| placed.redemption.details;
                has_customers |= redemptions.iter().any(|placed| details(placed).need_uses());
            });
        }
        if has_customers {
            let mut machine = Machine::new();
            let commands = image.all(UPLOAD, FilterId(1), &name("moved"));
            let outcomes: Vec<Outcome> = commands.into_iter().map(|it| machine.apply(it)).collect();
            assert!(outcomes.contains(&refused(ImageFault::Contradiction)));
            assert_nothing_came(&mut machine);
            later[1] += 1;
        }
    }
    assert!(later.iter().all(|count| *count > 0), "{later:?}");
}

fn image_with_redemptions() -> &'static Image {
    images()
        .iter()
        .find(|image| image.redemptions > 0)
        .expect("a coupon is used")
}

#[test]
fn filter_is_hidden_until_image_complete() {
    let mut machine = newest();
    let image = image_with_redemptions();
    let name = name("moved");
    let mut commands = image.all(UPLOAD, FilterId(1), &name);
    let end = commands.pop().unwrap();
    for command in commands {
        assert_eq!(machine.apply(command), Outcome::ImageReceived);
        assert_eq!(machine.filters().len(), 0);
        assert_eq!(machine.state.sizes().images_loading, 1);
        // Not even by its ID.
        let clear = Command::Clear { target: target(1) };
        assert_eq!(machine.apply(clear), Outcome::Refused(Refusal::FilterGone));
    }
    assert!(machine.state.sizes().tables_bytes > 0 && machine.state.sizes().redemptions > 0);
    let Outcome::Created(made) = machine.apply(end) else {
        panic!("it is whole")
    };
    assert_eq!(
        (made.id, made.name, made.kind),
        (FilterId(1), name.clone(), image.head.profile.kind)
    );
    assert!(
        machine
            .state
            .view()
            .find(image.head.profile.kind, &name)
            .is_some()
    );
    assert_eq!(machine.state.sizes().images_loading, 0);
}

#[test]
fn image_never_replaces_existing_name() {
    let mut machine = newest();
    let image = &images()[0];
    let (name, other) = (name("moved"), name("other"));
    assert!(matches!(
        load(&mut machine, image, 1, "moved"),
        Outcome::Created(_)
    ));
    let begin = image.command(0, UPLOAD, FilterId(2), image.head.profile.kind, &name);
    assert_eq!(machine.apply(begin), Outcome::Refused(Refusal::NameTaken));
    // Loaded during the upload.
    let mut first = image.all(UploadId(1), FilterId(3), &other);
    let mut second = image.all(UploadId(2), FilterId(4), &other);
    let last = first.pop().unwrap();
    let end = second.pop().unwrap();
    for command in first.into_iter().chain(second) {
        assert_eq!(machine.apply(command), Outcome::ImageReceived);
    }
    assert!(matches!(machine.apply(last), Outcome::Created(_)));
    assert_eq!(machine.apply(end), Outcome::Refused(Refusal::NameTaken));
    assert_eq!(machine.state.sizes().images_loading, 0);
}

#[test]
fn image_of_wrong_kind_or_algorithm_is_rejected() {
    let mut machine = newest();
    let image = image_with_redemptions();
    let name = name("moved");
    let begin = image.command(0, UPLOAD, FilterId(1), Kind::Campaign, &name);
    assert_eq!(
        machine.apply(begin),
        refused(ImageFault::Kind(Kind::Coupon))
    );
    let mut begin = image.command(0, UPLOAD, FilterId(1), Kind::Coupon, &name);
    let Command::ImageBegin(ImageBegin { head, .. }) = &mut begin else {
        panic!("it begins it")
    };
    head.algorithm = 9;
    assert_eq!(machine.apply(begin), refused(ImageFault::Algorithm(9)));
    assert_nothing_came(&mut machine);
}

/// One key can't keep the others from sending images.
#[test]
fn images_per_key_are_limited() {
    let mut machine = newest();
    let image = &images()[0];
    let mut begin = |number: u64, by: &str| {
        let name = name(&format!("moved-{number}"));
        let command = image.command(
            0,
            UploadId(number.into()),
            FilterId(number),
            image.head.profile.kind,
            &name,
        );
        machine
            .propose(Proposal {
                by: Some(KeyName::new(by).unwrap()),
                ..Proposal::new(machine.now, command)
            })
            .outcome
    };
    for number in 1..=IMAGES_OF_KEY_MAX as u64 {
        assert_eq!(begin(number, "greedy"), Outcome::ImageReceived);
    }
    assert_eq!(
        begin(100, "greedy"),
        Outcome::Refused(Refusal::TooManyImages)
    );
    assert_eq!(begin(100, "other"), Outcome::ImageReceived);
    // Restarting one takes no further place.
    assert_eq!(begin(1, "greedy"), Outcome::ImageReceived);
}

#[test]
fn unfinished_images_are_limited_and_expire() {
    let mut machine = newest();
    let image = &images()[0];
    let begin = |number: u64| {
        let name = name(&format!("moved-{number}"));
        image.command(
            0,
            UploadId(number.into()),
            FilterId(number),
            image.head.profile.kind,
            &name,
        )
    };
    for number in 1..=IMAGES_MAX as u64 {
        assert_eq!(machine.apply(begin(number)), Outcome::ImageReceived);
    }
    assert_eq!(
        machine.apply(begin(100)),
        Outcome::Refused(Refusal::TooManyImages)
    );
    // After a restart of the upload it has a separate place.
    assert_eq!(machine.apply(begin(1)), Outcome::ImageReceived);
    machine.pass_seconds(IMAGE_IDLE_SECONDS - 1);
    assert_eq!(machine.apply(begin(2)), Outcome::ImageReceived);
    assert_eq!(
        machine.state.images_unmoved_since(machine.now).len(),
        IMAGES_MAX - 1
    );
    machine.pass_seconds(1);
    machine.apply(Command::Advance { buckets_max: 1 });
    assert_eq!(machine.state.sizes().images_loading, 1);
    let record = ImageRecord {
        before: 1,
        checksum: 2,
        body: ImageBody::End { redemptions: 0 },
        version: 0,
    };
    let part = Command::ImageRecord {
        upload: UploadId(1),
        record,
    };
    assert_eq!(
        machine.apply(part),
        Outcome::Refused(Refusal::ImageNotFound)
    );
    machine.now = Timestamp(0);
    machine.apply(Command::TurnBack);
    assert_nothing_came(&mut machine);
    assert!(machine.state.applied() > Seq(0));
}

/// The paths of all numbers and strings in a document, except those that may have any value, and sizes of tables: memory is admitted before
/// a command is logged.
fn fields(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        _ if [
            "/secret",
            "/id",
            "/digest",
            "/digests",
            "/from",
            "/to",
            "/buckets",
            "/base_buckets",
        ]
        .iter()
        .any(|free| path.ends_with(free)) => {}
        Value::Number(_) | Value::String(_) | Value::Null => found.push(path.to_owned()),
        Value::Array(values) => {
            values
                .iter()
                .enumerate()
                .for_each(|(at, value)| fields(value, &format!("{path}/{at}"), found));
        }
        Value::Object(values) => {
            values
                .iter()
                .for_each(|(name, value)| fields(value, &format!("{path}/{name}"), found));
        }
        Value::Bool(_) => {}
    }
}

/// Returns a copy with one field set to a value, if that field exists; `Some(None)` if a constructor rejects the value.
pub fn forge<T: Serialize + DeserializeOwned>(
    whole: &T,
    field: usize,
    value: &Value,
) -> Option<Option<T>> {
    let mut document = serde_json::to_value(whole).unwrap();
    assert!(serde_json::from_value::<T>(document.clone()).is_ok());
    let mut paths = Vec::new();
    fields(&document, "", &mut paths);
    *document.pointer_mut(paths.get(field)?).unwrap() = value.clone();
    Some(serde_json::from_value(document).ok())
}

/// A command that may follow an image.
pub fn operation(kind: u8, item: u64, serial: u64, target: Target) -> Command {
    let items = item..item + 3;
    match kind % 9 {
        0 => Command::Clear { target },
        1 => insert(target, items),
        2 => Command::Remove {
            target,
            digests: codes(items),
            all: item.is_multiple_of(2),
        },
        3 => replace(target, items.clone(), items),
        4..=6 => redeem(target, item, serial, "order", item % 60),
        7 => Command::TurnBack,
        _ => Command::Advance { buckets_max: 50 },
    }
}

/// Values at which something may break.
pub fn boundaries() -> Vec<Value> {
    let numbers = [
        0,
        1,
        2,
        59,
        255,
        1 << 32,
        1 << 33,
        1 << 48,
        (1 << 48) + 1,
        u64::MAX / 2,
        u64::MAX - 1,
        u64::MAX,
    ];
    let numbers = numbers.into_iter().map(Value::from);
    numbers
        .chain([0, 129, 5_000].map(|length| Value::from("x".repeat(length))))
        .chain([Value::Null])
        .collect()
}

/// A forged part of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forgery {
    Head,
    Redemption,
    /// A second redemption that differs from the first by its id and one field.
    Copy,
}

/// Sends an image with one field set to a value, and something after it. Returns whether there is such a field.
pub fn send_forged(image: &Image, forgery: Forgery, field: usize, value: &Value) -> bool {
    let mut machine = newest();
    let target = target(7);
    let mut is_forged = false;
    let mut is_possible = true;
    for mut command in image.all(UPLOAD, target.0, &name("forged")) {
        match (&mut command, forgery) {
            (Command::ImageBegin(ImageBegin { head, .. }), Forgery::Head) => {
                let Some(forged) = forge(&**head, field, value) else {
                    return false;
                };
                (is_forged, is_possible) = (true, forged.is_some());
                **head = forged.unwrap_or_else(|| image.head.clone());
            }
            (
                Command::ImageRecord {
                    record:
                        ImageRecord {
                            body: ImageBody::Part(part),
                            ..
                        },
                    ..
                },
                Forgery::Redemption | Forgery::Copy,
            ) if !is_forged => {
                change_redemptions(part, |redemptions| {
                    let before = redemptions[0].clone();
                    let Some(forged) = forge(&before, field, value) else {
                        return;
                    };
                    (is_forged, is_possible) = (true, forged.is_some());
                    redemptions[0] = forged.unwrap_or_else(|| before.clone());
                    if forgery == Forgery::Copy {
                        let redemption = Redemption {
                            id: RedemptionId([7; 16]),
                            ..before.redemption
                        };
                        redemptions.push(Placed {
                            redemption,
                            ..before
                        });
                    }
                });
            }
            _ => {}
        }
        machine.apply(command);
    }
    // A constructor has rejected it.
    if !is_forged || !is_possible {
        return is_forged;
    }
    for serial in 0..20_u64 {
        machine.pass_seconds(20);
        let random = xxh3_64(&[field as u64, serial].map(u64::to_le_bytes).concat());
        machine.apply(operation(
            random as u8,
            random >> 8 & 63,
            1_000 + serial,
            target,
        ));
    }
    let stored = Snapshot::of(&mut machine.state);
    let is_same = Snapshot::of(&mut stored.restore()).head == stored.head;
    assert!(
        is_same,
        "{forgery:?}, field {field} = {value}: the heads differ"
    );
    true
}

/// Whatever one field of an image says: it is rejected, or the filter works, and is the same after a restart.
#[test]
fn forged_image_is_rejected_or_works() {
    // Of each sort, the images with the most in them.
    let mut sorts: BTreeMap<_, Vec<&Image>> = BTreeMap::new();
    for image in images() {
        let spec = &image.head.profile.spec;
        sorts
            .entry((
                spec.mode == Mode::Strict,
                spec.forget.is_some(),
                spec.supply.is_open_pool(),
                spec.supply.has_several_uses(),
            ))
            .or_default()
            .push(image);
    }
    assert_eq!(sorts.len(), 6, "{:?}", sorts.keys());
    let mut forged = 0;
    for image in sorts.values_mut().flat_map(|images| {
        images.sort_by_key(|image| Reverse((image.redemptions, image.commands(), image.head.adds)));
        images.iter().take(2)
    }) {
        for forgery in [Forgery::Head, Forgery::Redemption, Forgery::Copy] {
            for value in boundaries() {
                forged += (0..)
                    .take_while(|field| send_forged(image, forgery, *field, &value))
                    .count();
            }
        }
    }
    assert!(forged > 5_000, "{forged} forgeries");
}

/// Two current redemptions of an open pool can't have one ordinal; 0 and numbers above the largest stock are invalid.
#[test]
fn image_with_impossible_ordinal_is_rejected() {
    let mut source = Machine::new();
    let target = target(1);
    source.create(target, &NewFilter::pool(100, 50));
    for number in 1..=3 {
        assert!(matches!(
            source.redeem(target, 20 * number, "order", 0),
            Outcome::Redeemed(_)
        ));
    }
    let cancel = Command::Cancel {
        target,
        redemption: redemption(3),
    };
    assert!(matches!(source.apply(cancel), Outcome::Settled(_)));
    let image = Image::of(&mut source.state, target.0);
    // The place of a redemption in the image, and the ordinal that it is given.
    for (at, ordinal) in [
        (0, 1),
        (1, 1),
        (0, 2),
        (0, 0),
        (1, 51),
        (2, 0),
        (2, STOCK_MAX + 1),
        (2, u64::MAX),
    ] {
        let mut machine = newest();
        let mut last = None;
        let mut is_same = false;
        for mut command in image.all(UPLOAD, FilterId(7), &name("forged")) {
            if let Command::ImageRecord {
                record:
                    ImageRecord {
                        body: ImageBody::Part(part),
                        ..
                    },
                ..
            } = &mut command
            {
                change_redemptions(part, |redemptions| {
                    is_same = redemptions[at].redemption.details.ordinal == Some(ordinal);
                    redemptions[at].redemption.details.ordinal = Some(ordinal);
                });
            }
            last = Some(machine.apply(command));
        }
        let is_rejected = matches!(last, Some(Outcome::Refused(_)));
        assert_eq!(
            is_rejected, !is_same,
            "redemption {at} with ordinal {ordinal}: {last:?}"
        );
    }
}
