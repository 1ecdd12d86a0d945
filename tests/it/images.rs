//! Images of single filters, in and out: what comes of one is what it was taken of, byte for byte and in all that follows; and what is
//! damaged leaves nothing.

use crate::random_images::{Image, images};
use crate::random_log::{ITEMS, Numbers, RandomLog, code};
use cuckood::domain::image::{IMAGE_IDLE_SECONDS, IMAGES_MAX, IMAGES_OF_KEY_MAX};
use cuckood::domain::{
    Command, Entry, FilterId, ImageFault, ImagePart, KeyName, Kind, Name, Outcome, Proposal, Refusal, Seq,
    Target, Timestamp, UploadId,
};
use cuckood::filter::Digest;
use cuckood::state::{RedemptionQuery, State};
use proptest::prelude::*;

const UPLOAD: UploadId = UploadId(7);

struct Machine {
    state: State,
    at: Timestamp,
}

impl Machine {
    fn new() -> Self {
        Self { state: State::new(), at: Timestamp(1_000) }
    }

    fn apply(&mut self, command: Command) -> Outcome {
        let seq = self.state.applied().next();
        self.state.apply(Entry { seq, proposal: Proposal::new(self.at, command) }).outcome
    }

    /// Loads an image under a name, and returns the last outcome.
    fn load(&mut self, image: &Image, id: u64, name: &str) -> Outcome {
        let name = Name::new(name).unwrap();
        let mut last = None;
        for command in image.all(UPLOAD, FilterId(id), &name) {
            if let Some(before) = last.replace(self.apply(command)) {
                assert_eq!(before, Outcome::ImageReceived);
            }
        }
        last.unwrap()
    }

    /// Nothing is left of any image, and all memory is back.
    fn assert_nothing_came(&mut self) {
        self.state.publish();
        while self.state.free_discarded(10_000) {}
        assert_eq!(self.state.images_loading(), 0);
        assert_eq!(self.state.view().len(), 0);
        assert_eq!((self.state.tables_bytes(), self.state.discarded_tables_bytes()), (0, 0));
        assert_eq!((self.state.redemptions(), self.state.records_bytes()), (0, State::new().records_bytes()));
    }
}

fn refused(fault: ImageFault) -> Outcome {
    Outcome::Refused(Refusal::ImageDamaged(fault))
}

/// What readers see of a filter. How many forgotten users are still in its tables makes no difference.
fn told(state: &mut State, id: FilterId) -> String {
    state.publish();
    let (view, at) = (state.view(), state.now());
    let all = [Kind::Campaign, Kind::Coupon].map(|kind| view.list(kind, "", None, usize::MAX)).concat();
    let filter = all.iter().find(|filter| filter.id == id).unwrap();
    let items: Vec<Digest> = (0..ITEMS).map(code).collect();
    let Outcome::Updated(mut of) = nameless(Outcome::Updated(Box::new(filter.describe(at)))) else {
        panic!()
    };
    if filter.spec.forget.is_some() {
        of.stats.items = 0;
    }
    let counts: Vec<u32> = items.iter().map(|item| filter.count(*item, at)).collect();
    let page = filter.redemptions(&RedemptionQuery::default(), None, 1_000, at);
    format!("{of:?} {counts:?} {:?} {:?} {:?}", filter.look_up(&items, at), page.redemptions, page.next)
}

/// A command about another filter instead.
fn about(command: &Command, from: FilterId, to: FilterId) -> Option<Command> {
    let mut command = command.clone();
    match &mut command {
        Command::Insert { target, .. }
        | Command::Remove { target, .. }
        | Command::Replace { target, .. }
        | Command::Clear { target }
        | Command::Redeem { target, .. }
        | Command::Confirm { target, .. }
        | Command::Cancel { target, .. }
        | Command::Update { target, .. }
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
    if let Outcome::Created(of) | Outcome::Updated(of) = &mut outcome {
        (of.id, of.name) = (FilterId(0), Name::new("x").unwrap());
        of.stats.segments.clear();
        of.stats.memory_bytes = 0;
    }
    outcome
}

fn is_of_import(command: &Command) -> bool {
    matches!(command, Command::ImportBegin { .. } | Command::ImportLines { .. } | Command::ImportEnd { .. })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever has happened to a filter, what comes of its image on another server looks the same, and goes on the same. What an import
    /// builds aside stays where it is.
    #[test]
    fn what_comes_of_an_image_goes_on_as_what_it_was_taken_of(
        before in proptest::collection::vec(any::<Numbers>(), 0..150),
        after in proptest::collection::vec(any::<Numbers>(), 0..100),
        which in 0..6_usize,
    ) {
        let (mut log, mut source) = (RandomLog::without_images(), Machine::new());
        let beginning = log.beginning();
        for entry in beginning.into_iter().chain(before.into_iter().map(|numbers| log.next(numbers))) {
            let Proposal { at, command, .. } = entry.proposal;
            if !is_of_import(&command) {
                source.at = at;
                source.apply(command);
            }
        }
        source.state.publish();
        let view = source.state.view();
        let all = [Kind::Campaign, Kind::Coupon].map(|kind| view.list(kind, "", None, usize::MAX)).concat();
        let Some(original) = all.get(which % all.len().max(1)) else { return Ok(()) };
        let (from, to) = (original.id, FilterId(900_000));
        let image = Image::of(&mut source.state, from);
        let mut target = Machine::new();
        target.at = source.state.now();
        target.apply(Command::Configure(source.state.settings().clone()));
        let made = target.load(&image, to.0, "moved");
        prop_assert!(matches!(made, Outcome::Created(_)), "{:?}", made);
        prop_assert_eq!(told(&mut source.state, from), told(&mut target.state, to));
        for numbers in after {
            let Entry { proposal: Proposal { at, command, .. }, .. } = log.next(numbers);
            (source.at, target.at) = (at, at);
            match (&command, about(&command, from, to)) {
                (_, Some(moved)) => {
                    prop_assert_eq!(nameless(source.apply(command)), nameless(target.apply(moved)));
                }
                (Command::Delete { kind, name }, None) if (*kind, name) == (original.kind, &original.name) => break,
                (Command::TurnBack | Command::Configure(_), None) => {
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
        prop_assert_eq!(told(&mut source.state, from), told(&mut target.state, to));
    }

    /// A bit that is wrong, a part that is missing, comes twice or too early: the image is refused, or the bit made no difference.
    #[test]
    fn a_damaged_image_leaves_nothing(
        which in any::<prop::sample::Index>(),
        part in any::<prop::sample::Index>(),
        place in any::<prop::sample::Index>(),
        damage in 0..5_u8,
    ) {
        let image = which.get(images());
        let mut commands = image.all(UPLOAD, FilterId(1), &Name::new("moved").unwrap());
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
                Command::ImagePart { part: ImagePart::Chunks(chunks), .. } => {
                    let chunk = &mut chunks[0].0;
                    let at = place.index(chunk.len());
                    chunk[at] ^= 1;
                }
                Command::ImagePart { part: ImagePart::Redemptions(redemptions), .. } => {
                    let again = redemptions[0].clone();
                    redemptions.push(again);
                }
                Command::ImagePart { part: ImagePart::Ordinals(bits), .. } => drop(bits.0.pop()),
                Command::ImageBegin { head, .. } => head.algorithm += 1,
                Command::ImageEnd { redemptions, .. } => *redemptions += 1,
                other => panic!("{other:?}"),
            },
        }
        let mut machine = Machine::new();
        let outcomes: Vec<Outcome> = commands.into_iter().map(|command| machine.apply(command)).collect();
        let is_made = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Created(_)));
        // A repeated part, or a new beginning before all else, does no harm.
        prop_assert!(!is_made || damage == 1 || damage == 3, "{:?}", outcomes);
        if !is_made {
            machine.apply(Command::ImageAbandon { upload: UPLOAD });
            machine.assert_nothing_came();
        }
    }
}

fn image_with_redemptions() -> &'static Image {
    let has_some = |image: &&Image| image.parts.iter().any(|part| matches!(part, ImagePart::Redemptions(_)));
    images().iter().find(has_some).expect("a coupon is used")
}

#[test]
fn nobody_sees_a_filter_before_its_image_is_whole() {
    let mut machine = Machine::new();
    let image = image_with_redemptions();
    let name = Name::new("moved").unwrap();
    let mut commands = image.all(UPLOAD, FilterId(1), &name);
    let end = commands.pop().unwrap();
    for command in commands {
        assert_eq!(machine.apply(command), Outcome::ImageReceived);
        machine.state.publish();
        assert!(machine.state.view().is_empty());
        assert_eq!(machine.state.images_loading(), 1);
        // Not even for whoever knows its identity.
        let clear = Command::Clear { target: Target(FilterId(1)) };
        assert_eq!(machine.apply(clear), Outcome::Refused(Refusal::FilterGone));
    }
    assert!(machine.state.tables_bytes() > 0 && machine.state.redemptions() > 0);
    let Outcome::Created(made) = machine.apply(end) else { panic!("it is whole") };
    assert_eq!((made.id, made.name, made.kind), (FilterId(1), name.clone(), image.head.kind));
    machine.state.publish();
    assert!(machine.state.view().find(image.head.kind, &name).is_some());
    assert_eq!(machine.state.images_loading(), 0);
}

#[test]
fn a_name_that_is_taken_stays_whose_it_is() {
    let mut machine = Machine::new();
    let image = &images()[0];
    let name = Name::new("moved").unwrap();
    assert!(matches!(machine.load(image, 1, "moved"), Outcome::Created(_)));
    let begin = image.command(0, UPLOAD, FilterId(2), image.head.kind, &name);
    assert_eq!(machine.apply(begin), Outcome::Refused(Refusal::NameTaken));
    // Taken on the way.
    let other = Name::new("other").unwrap();
    let mut first = image.all(UploadId(1), FilterId(3), &other);
    let mut second = image.all(UploadId(2), FilterId(4), &other);
    let (last, end) = (first.pop().unwrap(), second.pop().unwrap());
    for command in first.into_iter().chain(second) {
        assert_eq!(machine.apply(command), Outcome::ImageReceived);
    }
    assert!(matches!(machine.apply(last), Outcome::Created(_)));
    assert_eq!(machine.apply(end), Outcome::Refused(Refusal::NameTaken));
    assert_eq!(machine.state.images_loading(), 0);
}

#[test]
fn an_image_of_the_other_kind_or_another_algorithm_is_refused() {
    let mut machine = Machine::new();
    let image = image_with_redemptions();
    let name = Name::new("moved").unwrap();
    let begin = image.command(0, UPLOAD, FilterId(1), Kind::Campaign, &name);
    assert_eq!(machine.apply(begin), refused(ImageFault::Kind(Kind::Coupon)));
    let mut begin = image.command(0, UPLOAD, FilterId(1), Kind::Coupon, &name);
    let Command::ImageBegin { head, .. } = &mut begin else { panic!("it begins it") };
    head.algorithm = 9;
    assert_eq!(machine.apply(begin), refused(ImageFault::Algorithm(9)));
    machine.assert_nothing_came();
}

/// One key can't keep the others from sending images.
#[test]
fn images_of_one_key_are_limited() {
    let mut machine = Machine::new();
    let image = &images()[0];
    let mut begin = |number: u64, by: &str| {
        let name = Name::new(&format!("moved-{number}")).unwrap();
        let command = image.command(0, UploadId(number.into()), FilterId(number), image.head.kind, &name);
        let proposal = Proposal { by: Some(KeyName::new(by)), ..Proposal::new(machine.at, command) };
        machine.state.apply(Entry { seq: machine.state.applied().next(), proposal }).outcome
    };
    for number in 1..=IMAGES_OF_KEY_MAX as u64 {
        assert_eq!(begin(number, "greedy"), Outcome::ImageReceived);
    }
    assert_eq!(begin(100, "greedy"), Outcome::Refused(Refusal::TooManyImages));
    assert_eq!(begin(100, "other"), Outcome::ImageReceived);
    // Restarting one takes no further place.
    assert_eq!(begin(1, "greedy"), Outcome::ImageReceived);
}

#[test]
fn images_are_few_and_do_not_stay_for_ever() {
    let mut machine = Machine::new();
    let image = &images()[0];
    let begin = |number: u64| {
        let name = Name::new(&format!("moved-{number}")).unwrap();
        image.command(0, UploadId(number.into()), FilterId(number), image.head.kind, &name)
    };
    for number in 1..=IMAGES_MAX as u64 {
        assert_eq!(machine.apply(begin(number)), Outcome::ImageReceived);
    }
    assert_eq!(machine.apply(begin(100)), Outcome::Refused(Refusal::TooManyImages));
    // Begun anew it takes its own place.
    assert_eq!(machine.apply(begin(1)), Outcome::ImageReceived);
    machine.at = machine.at.plus_seconds(IMAGE_IDLE_SECONDS - 1);
    assert_eq!(machine.apply(begin(2)), Outcome::ImageReceived);
    assert_eq!(machine.state.images_unmoved_since(machine.at).len(), IMAGES_MAX - 1);
    machine.at = machine.at.plus_seconds(1);
    machine.apply(Command::Advance { buckets_max: 1 });
    assert_eq!(machine.state.images_loading(), 1);
    let part = Command::ImageEnd { upload: UploadId(1), before: 1, redemptions: 0 };
    assert_eq!(machine.apply(part), Outcome::Refused(Refusal::ImageNotFound));
    machine.at = Timestamp(0);
    machine.apply(Command::TurnBack);
    machine.assert_nothing_came();
    assert!(machine.state.applied() > Seq(0));
}
