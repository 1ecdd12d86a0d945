//! CF.*: the commands on filters. [`Reserve`] describes which of CF.RESERVE's options have a meaning here.

use super::batch::{Part, PendingChange};
use super::command::Name;
use super::failure::Failure;
use super::key::FilterKey;
use super::parser::{Arguments, integer};
use super::replies::Replies;
use super::session::{AdmittedCommand, Done};
use crate::access::Guesses;
use cuckood_filter::{Growth, Layout, Mode};
use cuckood_state::domain::{
    Command, Description, ITEM_BYTES_MAX, ITEMS_MAX, Kind, Normalization, Outcome, Refusal, Sizing,
    Spec, Timestamp, Window,
};
use cuckood_state::{Borrowed, FilterView, NamedLineUp};
use std::ops::RangeInclusive;
use std::sync::Arc;

const KEY_SYNTAX: &str = "a key is campaign:NAME, coupon:NAME or NAME, where a name is 1 to 128 of a-z, 0-9, '.', '_' and '-', and begins \
                          with a letter or a digit";

/// Rejects more items than one command may have, and items that no filter can have.
fn check_items(items: Arguments<'_>) -> Result<(), Failure> {
    if items.len() > ITEMS_MAX {
        return Err(Failure::too_many("items"));
    }
    match items
        .iter()
        .all(|item| (1..=ITEM_BYTES_MAX).contains(&item.len()))
    {
        true => Ok(()),
        false => Err(Failure::err(format!(
            "an item has 1 to {ITEM_BYTES_MAX} bytes"
        ))),
    }
}

/// `CF.EXISTS key item`, `CF.MEXISTS key item …`, `CF.COUNT key item`.
pub(super) async fn check(call: &mut AdmittedCommand<'_, '_>) -> Result<Done, Failure> {
    let row = call.row;
    let items = call.arguments.from(2);
    check_items(items)?;
    call.batch.settle_changes().await;
    let key = call.key(call.arguments.at(1));
    if let Some(key) = &key {
        call.require_key(key)?;
        // It was found just before. Only codes are guessed.
        if key.kind == Kind::Campaign
            && row.name != Name::CfCount
            && call.batch.checked(key).is_some()
        {
            call.batch
                .add_check(
                    Part {
                        row,
                        items: items.len(),
                        guesses: None,
                    },
                    items,
                )
                .await?;
            return Ok(Done::Deferred);
        }
    }
    let Some(view) = key.and_then(|key| call.shared.engine.view().borrow(key.kind, key.name()))
    else {
        call.batch.settle().await;
        if row.name == Name::CfMExists {
            call.batch.replies.array(items.len());
        }
        match row.name == Name::CfCount {
            true => call.batch.replies.integer(0),
            false => (0..items.len()).for_each(|_| call.batch.replies.boolean(false)),
        }
        return Ok(Done::Answered);
    };
    call.batch.hash(&view, items).await?;
    let guesses = guesses(call, &view, items.len()).await?;
    if row.name == Name::CfCount {
        call.batch.settle().await;
        let count = view.count(call.batch.hashed()[0], call.shared.engine.now());
        guesses.settle(usize::from(count == 0));
        call.batch.replies.count(count.into());
        return Ok(Done::Answered);
    }
    gather(call, view, None, Some(guesses)).await
}

/// Makes the batch answer the command whose items were hashed last, joined with similar ones of this filter.
async fn gather<'a>(
    call: &mut AdmittedCommand<'_, 'a>,
    view: Borrowed<FilterView>,
    change: Option<PendingChange>,
    guesses: Option<Guesses<'a>>,
) -> Result<Done, Failure> {
    let part = Part {
        row: call.row,
        items: call.batch.hashed().len(),
        guesses,
    };
    call.batch.add(view, change, &call.caller, part).await;
    Ok(Done::Deferred)
}

/// Takes a guess for each item, if the filter is a coupon and the end user's guesses are limited.
async fn guesses<'a>(
    call: &mut AdmittedCommand<'_, 'a>,
    view: &FilterView,
    items: usize,
) -> Result<Guesses<'a>, Failure> {
    let guessing = &call.shared.access.guessing;
    // No command names an end user, so it is the client's address.
    let peer = call.session.peer.map(|peer| peer.ip());
    let client = Some(view.kind).filter(|kind| *kind == Kind::Coupon);
    let client = client.and_then(|_| guessing.client(&call.caller, None, peer));
    if client.is_some() {
        // Unused guesses of earlier commands are returned when those are answered.
        call.batch.settle().await;
    }
    Ok(guessing
        .start(view.has_secret_codes(), client)?
        .take(items)?)
}

/// `CF.DEL key item`.
pub(super) async fn remove(call: &mut AdmittedCommand<'_, '_>) -> Result<Done, Failure> {
    let items = call.arguments.from(2);
    check_items(items)?;
    let view = call
        .find(call.arguments.at(1))?
        .ok_or_else(|| Failure::err("Not found"))?;
    call.batch.hash(&view, items).await?;
    let guesses = guesses(call, &view, items.len()).await?;
    let view = Borrowed::from_inner(view);
    gather(call, view, Some(PendingChange::Remove), Some(guesses)).await
}

/// `CF.ADD key item`, `CF.ADDNX key item`; `CF.INSERT key [CAPACITY n] [NOCREATE] ITEMS item …`, and the same with `CF.INSERTNX`.
pub(super) async fn add(call: &mut AdmittedCommand<'_, '_>) -> Result<Done, Failure> {
    let mut items = call.arguments.from(2);
    let mut capacity = call.shared.options.default_capacity;
    let mut creates = true;
    let mut has_options = matches!(call.row.name, Name::CfInsert | Name::CfInsertNx);
    while has_options {
        let option = items.at(0);
        let rest = items.from(1);
        let is = |word: &str| option.eq_ignore_ascii_case(word.as_bytes());
        if items.is_empty() || rest.is_empty() && (is("CAPACITY") || is("ITEMS")) {
            return Err(Failure::arity(call.row.spelling));
        }
        items = rest;
        if is("CAPACITY") {
            capacity = check_capacity(rest.at(0), REDIS_BUCKET_SIZE)?;
            items = rest.from(1);
        } else if is("NOCREATE") {
            creates = false;
        } else if is("ITEMS") {
            has_options = false;
        } else {
            return Err(Failure::err("Unknown argument received"));
        }
    }
    check_items(items)?;
    let key = usable_key(call)?;
    let view = match call.shared.engine.view().find(key.kind, key.name()) {
        Some(view) => view,
        None if creates => created(call, &key, capacity).await?,
        None => return Err(Failure::err("not found")),
    };
    call.batch.hash(&view, items).await?;
    let is_if_absent = matches!(call.row.name, Name::CfAddNx | Name::CfInsertNx);
    let change = if is_if_absent {
        PendingChange::AddIfAbsent
    } else {
        PendingChange::Add
    };
    // If a full filter rejects codes, one of them is not in it.
    let guesses = match view.may_refuse_codes() {
        true => Some(guesses(call, &view, 1).await?),
        false => None,
    };
    gather(call, Borrowed::from_inner(view), Some(change), guesses).await
}

/// Parses the key of a filter to create, which the caller must be allowed to use.
pub(super) fn usable_key<'v>(call: &AdmittedCommand<'v, '_>) -> Result<FilterKey<'v>, Failure> {
    let key = call
        .key(call.arguments.at(1))
        .ok_or_else(|| Failure::err(KEY_SYNTAX))?;
    call.require_key(&key)?;
    Ok(key)
}

/// Creates the filter of a key under which there is none. Another client may do so at the same time.
async fn created(
    call: &mut AdmittedCommand<'_, '_>,
    key: &FilterKey<'_>,
    capacity: u64,
) -> Result<Arc<FilterView>, Failure> {
    call.batch.settle().await;
    match create(call, key, Reserve::with_capacity(capacity)).await? {
        Outcome::Created(_) | Outcome::Exists(_) | Outcome::Refused(Refusal::AlreadyExists(_)) => {
            let view = call.shared.engine.view().find(key.kind, key.name());
            view.ok_or_else(|| Failure::refused(&Refusal::FilterGone))
        }
        outcome => Err(Failure::of(&outcome)),
    }
}

async fn create(
    call: &mut AdmittedCommand<'_, '_>,
    key: &FilterKey<'_>,
    reserve: Reserve,
) -> Result<Outcome, Failure> {
    let spec = reserve.spec(key.kind)?;
    let command = crate::engine::creation(
        key.kind,
        key.owned_name(),
        spec,
        Window::default(),
        Default::default(),
    )?;
    let result = call.submit(command).await;
    call.log_act(key, &result);
    result
}

/// `CF.RESERVE key capacity [BUCKETSIZE n] [MAXITERATIONS n] [EXPANSION n]`.
pub(super) async fn reserve(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    if call.arguments.len().is_multiple_of(2) {
        return Err(Failure::arity(call.row.spelling));
    }
    let reserve = Reserve::parse(call.arguments.from(2))?;
    let key = usable_key(call)?;
    let exists = || Failure::refused(&Refusal::AlreadyExists(Vec::new()));
    if call
        .shared
        .engine
        .view()
        .find(key.kind, key.name())
        .is_some()
    {
        return Err(exists());
    }
    match create(call, &key, reserve).await? {
        Outcome::Created(_) => call.batch.replies.simple("OK"),
        Outcome::Exists(_) => return Err(exists()),
        outcome => return Err(Failure::of(&outcome)),
    }
    Ok(())
}

/// `CF.COMPACT key`. Does nothing: memory shrinks when a filter is cleared or empty.
pub(super) fn compact(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    call.find(call.arguments.at(1))?
        .ok_or_else(|| Failure::err("Cuckoo filter was not found"))?;
    call.batch.replies.simple("OK");
    Ok(())
}

/// `CF.INFO key`.
pub(super) fn info(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    call.batch.turn.note_long();
    let view = call
        .find(call.arguments.at(1))?
        .ok_or_else(|| Failure::err("not found"))?;
    describe(&view, call.shared.engine.now(), &mut call.batch.replies);
    Ok(())
}

/// `DEL key …`, `UNLINK key …`: deletes filters and their redemptions, or none if one of them is in use.
pub(super) async fn delete(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    let arguments = call.arguments.from(1);
    if arguments.len() > ITEMS_MAX {
        return Err(Failure::too_many("keys"));
    }
    let mut keys = Vec::new();
    for argument in arguments.iter() {
        if let Some(key) = call.key(argument) {
            call.require_key(&key)?;
            keys.push(key);
        }
        call.batch.turn.work(argument.len()).await;
    }
    let engine = &call.shared.engine;
    for key in &keys {
        let Some(view) = engine.view().find(key.kind, key.name()) else {
            continue;
        };
        let is_visible = |line_up: &NamedLineUp| call.caller.sees(line_up);
        let reasons = engine.in_use(&view, is_visible).await;
        if !reasons.is_empty() {
            let used = Failure::in_use(key, &reasons);
            call.log_act(key, &Err(used.clone()));
            return Err(used);
        }
    }
    let mut deleted = 0;
    for key in keys
        .iter()
        .filter(|key| engine.view().find(key.kind, key.name()).is_some())
    {
        let result = call
            .submit(Command::Delete {
                kind: key.kind,
                name: key.owned_name(),
            })
            .await;
        call.log_act(key, &result);
        match result? {
            Outcome::Deleted => deleted += 1,
            Outcome::Refused(Refusal::FilterGone) => {}
            outcome => return Err(Failure::of(&outcome)),
        }
    }
    call.batch.replies.count(deleted);
    Ok(())
}

/// Writes the response to CF.INFO: Redis' fields in Redis' order. Some clients reject other fields and values that are not integers.
fn describe(view: &FilterView, now: Timestamp, replies: &mut Replies) {
    let Description { spec, stats, .. } = view.describe(now);
    let fields = [
        ("Size", stats.memory_bytes),
        (
            "Number of buckets",
            stats.segments.iter().map(|segment| segment.buckets).sum(),
        ),
        ("Number of filters", stats.segments.len() as u64),
        // As in Redis, the current number.
        ("Number of items inserted", stats.items),
        ("Number of items deleted", stats.removes),
        ("Bucket size", view.layout.bucket_size.into()),
        // It grows by doubling.
        (
            "Expansion rate",
            if spec.growth == Growth::Auto { 2 } else { 0 },
        ),
        ("Max iterations", view.layout.max_search.into()),
    ];
    replies.map(fields.len());
    for (field, value) in fields {
        replies.simple(field);
        replies.count(value);
    }
}

/// The error rate of all filters that Redis clients create.
const ERROR_RATE: f64 = 0.001;

/// Redis' bucket size, unless another one is asked for.
const REDIS_BUCKET_SIZE: i64 = 2;

/// Number of buckets that an insert searches if the layout has to name it: the default of filters that are sized by their error rate.
const MAX_SEARCH: u32 = 2_000;

/// The longest fingerprint, in bits.
const FINGERPRINT_BITS_MAX: u8 = 32;

/// The options of a filter to create.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Reserve {
    capacity: u64,
    /// If one was asked for that there is here.
    bucket_size: Option<u8>,
    growth: Growth,
}

impl Reserve {
    /// A filter that grows beyond its capacity.
    fn with_capacity(capacity: u64) -> Self {
        Self {
            capacity,
            bucket_size: None,
            growth: Growth::Auto,
        }
    }

    /// Parses `capacity [BUCKETSIZE n] [MAXITERATIONS n] [EXPANSION n]`. Rejects the same values as Redis.
    fn parse(arguments: Arguments<'_>) -> Result<Self, Failure> {
        integer(arguments.at(0)).ok_or_else(bad_capacity)?;
        let options = arguments
            .from(1)
            .options(["BUCKETSIZE", "MAXITERATIONS", "EXPANSION"]);
        let options = options.ok_or_else(|| Failure::err("Unknown argument received"))?;
        let value = |at: usize, name, range| {
            options[at]
                .map(|value: &[u8]| option_value(name, value, range))
                .transpose()
        };
        let bucket_size = value(0, "BUCKETSIZE", 1..=255)?;
        value(1, "MAXITERATIONS", 1..=65_535)?;
        let is_fixed = value(2, "EXPANSION", 0..=32_768)? == Some(0);
        Ok(Self {
            capacity: check_capacity(arguments.at(0), bucket_size.unwrap_or(REDIS_BUCKET_SIZE))?,
            bucket_size: bucket_size
                .and_then(|size| u8::try_from(size).ok())
                .filter(|size| matches!(size, 2 | 4 | 8)),
            growth: if is_fixed {
                Growth::Fixed
            } else {
                Growth::Auto
            },
        })
    }

    /// The spec of a filter of this kind: compact campaigns and strict coupons, as over HTTP.
    fn spec(self, kind: Kind) -> Result<Spec, Failure> {
        let Self {
            capacity,
            bucket_size,
            growth,
        } = self;
        let (mode, sizing) = match (kind, bucket_size) {
            (Kind::Coupon, _) => (Mode::Strict, Sizing::Exact),
            (Kind::Campaign, None) => (Mode::Compact, Sizing::ErrorRate(ERROR_RATE)),
            (Kind::Campaign, Some(bucket_size)) => (Mode::Compact, self.layout(bucket_size)?),
        };
        Ok(Spec {
            capacity,
            mode,
            growth,
            sizing,
            normalization: Normalization::Exact,
            supply: Default::default(),
            forget: None,
        })
    }

    /// The shortest fingerprints that keep the error rate in buckets of this size.
    fn layout(self, bucket_size: u8) -> Result<Sizing, Failure> {
        // The first segment of a filter that grows gets half of the rate, and each further one half of the rest.
        let share = match self.growth {
            Growth::Auto => ERROR_RATE / 2.0,
            Growth::Fixed => ERROR_RATE,
        };
        for fingerprint_bits in 4..=FINGERPRINT_BITS_MAX {
            match Layout::compact_with(
                self.capacity,
                fingerprint_bits,
                bucket_size,
                MAX_SEARCH,
                self.growth,
            ) {
                Ok(layout) if layout.error_rate_at(1.0) > share => {}
                Ok(_) => {
                    return Ok(Sizing::Layout {
                        fingerprint_bits,
                        bucket_size,
                        max_search: MAX_SEARCH,
                    });
                }
                Err(_) if fingerprint_bits < FINGERPRINT_BITS_MAX => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(bad_capacity())
    }
}

fn bad_capacity() -> Failure {
    Failure::err("Bad capacity")
}

fn check_capacity(argument: &[u8], bucket_size: i64) -> Result<u64, Failure> {
    let capacity = integer(argument).ok_or_else(bad_capacity)?;
    if capacity < 2 * bucket_size {
        return Err(Failure::err("Capacity must be at least (BucketSize * 2)"));
    }
    u64::try_from(capacity).map_err(|_| bad_capacity())
}

fn option_value(name: &str, value: &[u8], range: RangeInclusive<i64>) -> Result<i64, Failure> {
    let value = integer(value).ok_or_else(|| Failure::err(format!("Couldn't parse {name}")))?;
    if range.contains(&value) {
        return Ok(value);
    }
    let (least, most) = range.into_inner();
    Err(Failure::err(format!(
        "{name}: value must be an integer between {least} and {most}, inclusive."
    )))
}

#[cfg(test)]
mod tests {
    use super::super::parser::{Parser, RequestLimits};
    use super::*;

    fn parsed(line: &str) -> Result<Reserve, String> {
        let limits = RequestLimits {
            arguments_max: 0,
            argument_bytes_max: 0,
            request_bytes_max: 0,
        };
        let mut parser = Parser::default();
        let line = format!("{line}\r\n");
        parser.parse(line.as_bytes(), &limits).unwrap();
        Reserve::parse(parser.arguments(line.as_bytes()))
            .map_err(|failure| failure.text.into_owned())
    }

    #[test]
    fn only_meaningful_options_are_accepted() {
        let plain = Reserve::with_capacity(1_000);
        assert_eq!(parsed("1000"), Ok(plain));
        assert_eq!(parsed("1000 MAXITERATIONS 20 expansion 4"), Ok(plain));
        assert_eq!(parsed("1000 BUCKETSIZE 3"), Ok(plain));
        assert_eq!(
            parsed("1000 bucketsize 8"),
            Ok(Reserve {
                bucket_size: Some(8),
                ..plain
            })
        );
        assert_eq!(
            parsed("1000 EXPANSION 0"),
            Ok(Reserve {
                growth: Growth::Fixed,
                ..plain
            })
        );
        for (line, wanted) in [
            ("x", "Bad capacity"),
            ("-1", "Capacity must be at least"),
            ("3", "Capacity must be at least"),
            ("15 BUCKETSIZE 8", "Capacity must be at least"),
            ("1000 BUCKETSIZE x", "Couldn't parse BUCKETSIZE"),
            ("1000 BUCKETSIZE 0", "BUCKETSIZE: value must be"),
            ("1000 MAXITERATIONS 0", "MAXITERATIONS: value must be"),
            ("1000 EXPANSION -1", "EXPANSION: value must be"),
            ("1000 ERROR 1", "Unknown argument"),
        ] {
            let failure = parsed(line).unwrap_err();
            assert!(failure.starts_with(wanted), "{line}: {failure}");
        }
    }

    #[test]
    fn every_bucket_size_keeps_error_rate() {
        for (bucket_size, growth) in [2, 4, 8]
            .into_iter()
            .flat_map(|size| [(size, Growth::Auto), (size, Growth::Fixed)])
        {
            for capacity in [16, 1_000, 1_000_000] {
                let reserve = Reserve {
                    capacity,
                    bucket_size: Some(bucket_size),
                    growth,
                };
                let Ok(Spec {
                    sizing:
                        Sizing::Layout {
                            fingerprint_bits,
                            max_search,
                            ..
                        },
                    ..
                }) = reserve.spec(Kind::Campaign)
                else {
                    panic!("{reserve:?}")
                };
                let layout = Layout::compact_with(
                    capacity,
                    fingerprint_bits,
                    bucket_size,
                    max_search,
                    growth,
                )
                .unwrap();
                assert!(
                    layout.error_rate_at(1.0) <= ERROR_RATE,
                    "{reserve:?} {layout:?}"
                );
                assert!(fingerprint_bits <= 16, "{reserve:?} {layout:?}");
            }
        }
    }
}
