//! CF.*: the commands on filters.

use super::batch::{Change, Part};
use super::command::Name;
use super::failure::Failure;
use super::figures;
use super::key::Key;
use super::parser::Arguments;
use super::reserve::Reserve;
use super::visit::{Admitted, Done, Visit, submit, tell_act};
use crate::access::Guesses;
use crate::domain::{Command, ITEM_BYTES_MAX, ITEMS_MAX, Kind, Outcome, Refusal, Window};
use crate::engine::FilterView;
use std::sync::Arc;

/// The filter of a key, if there is one.
pub(super) fn find(
    visit: &Visit<'_>,
    admitted: &Admitted,
    key: &[u8],
) -> Result<Option<Arc<FilterView>>, Failure> {
    let Some(key) = Key::parse(key) else { return Ok(None) };
    visit.require_key(admitted, key)?;
    Ok(visit.shared.engine.find(key.kind, key.name()))
}

/// Refuses more items than one command may have, and items that no filter can have.
fn check_items(items: Arguments<'_>) -> Result<(), Failure> {
    if items.len() > ITEMS_MAX {
        return Err(Failure::too_many("items"));
    }
    match items.iter().all(|item| (1..=ITEM_BYTES_MAX).contains(&item.len())) {
        true => Ok(()),
        false => Err(Failure::err(format!("an item has 1 to {ITEM_BYTES_MAX} bytes"))),
    }
}

/// Refuses items that this filter can't have.
fn check_blanks(view: &FilterView, items: Arguments<'_>) -> Result<(), Failure> {
    match items.iter().any(|item| view.is_blank(item)) {
        false => Ok(()),
        true => Err(Failure::err("an item is nothing but white space, which this coupon ignores")),
    }
}

/// `CF.EXISTS key item`, `CF.MEXISTS key item …`, `CF.COUNT key item`.
pub(super) async fn check<'a>(
    visit: &mut Visit<'a>,
    admitted: &Admitted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    let (name, items) = (admitted.row.name, arguments.from(2));
    check_items(items)?;
    visit.batch.settle_changes(&mut visit.replies).await;
    let part = |guesses| Part { counted: admitted.counted, name, items: items.len(), guesses };
    let key = Key::parse(arguments.at(1));
    if let Some(key) = key {
        visit.require_key(admitted, key)?;
        // It has been found a moment ago. Only codes are guessed.
        if key.kind == Kind::Campaign
            && name != Name::CfCount
            && let Some(checks) = visit.batch.checks_of(key)
        {
            check_blanks(checks.view(), items)?;
            checks.add(part(None), items);
            return Ok(Done::Gathered);
        }
    }
    let Some(view) = key.and_then(|key| visit.shared.engine.find(key.kind, key.name())) else {
        visit.settle().await;
        match name {
            Name::CfCount => visit.replies.integer(0),
            Name::CfMExists => {
                visit.replies.array(items.len());
                (0..items.len()).for_each(|_| visit.replies.boolean(false));
            }
            _ => visit.replies.boolean(false),
        }
        return Ok(Done::Answered);
    };
    check_blanks(&view, items)?;
    let guesses = guesses(visit, admitted, &view, items.len()).await?;
    if name == Name::CfCount {
        visit.settle().await;
        let count = view.count(view.digest_of(items.at(0)), visit.shared.engine.now());
        guesses.settle(usize::from(count == 0));
        visit.replies.count(count.into());
        return Ok(Done::Answered);
    }
    visit.batch.check(view, part(Some(guesses)), items, &mut visit.replies).await;
    Ok(Done::Gathered)
}

/// Takes a guess for each item, if the filter is a coupon and the end user may try only so many codes.
async fn guesses<'a>(
    visit: &mut Visit<'a>,
    admitted: &Admitted,
    view: &FilterView,
    items: usize,
) -> Result<Guesses<'a>, Failure> {
    let client = visit.session.client(visit.shared, &admitted.caller, view.kind);
    if client.is_some() {
        // What earlier commands have not used up is returned when they are answered.
        visit.settle().await;
    }
    Ok(visit.shared.access.guessing.guesser(view.has_secret_codes(), client)?.take(items)?)
}

/// `CF.DEL key item`.
pub(super) async fn remove(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    let items = arguments.from(2);
    check_items(items)?;
    let view = find(visit, admitted, arguments.at(1))?.ok_or_else(|| Failure::err("Not found"))?;
    check_blanks(&view, items)?;
    let guesses = guesses(visit, admitted, &view, items.len()).await?;
    change(visit, admitted, &view, Change::Remove, items, Some(guesses)).await;
    Ok(Done::Gathered)
}

async fn change<'a>(
    visit: &mut Visit<'a>,
    admitted: &Admitted,
    view: &FilterView,
    change: Change,
    items: Arguments<'_>,
    guesses: Option<Guesses<'a>>,
) {
    let (counted, name) = (admitted.counted, admitted.row.name);
    let part = Part { counted, name, items: items.len(), guesses };
    let digests = items.iter().map(|item| view.digest_of(item));
    visit.batch.change(view, change, &admitted.caller, part, digests, &mut visit.replies).await;
}

/// Items to add, and what to do if there is no filter yet.
struct Adding<'a> {
    items: Arguments<'a>,
    capacity: u64,
    creates: bool,
}

/// `CF.ADD key item`, `CF.ADDNX key item`.
pub(super) async fn add(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    let capacity = visit.shared.options.default_capacity;
    let adding = Adding { items: arguments.from(2), capacity, creates: true };
    add_items(visit, admitted, arguments.at(1), adding).await
}

/// `CF.INSERT key [CAPACITY n] [NOCREATE] ITEMS item …`, and the same with `CF.INSERTNX`.
pub(super) async fn insert(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    let capacity = visit.shared.options.default_capacity;
    let mut adding = Adding { items: arguments.from(arguments.len()), capacity, creates: true };
    let arity = || Failure::arity(admitted.row.spelling);
    let mut at = 2;
    while at < arguments.len() && adding.items.is_empty() {
        let option = arguments.at(at);
        at += 1;
        if option.eq_ignore_ascii_case(b"CAPACITY") {
            if at == arguments.len() {
                return Err(arity());
            }
            adding.capacity = Reserve::capacity(arguments.at(at))?;
            at += 1;
        } else if option.eq_ignore_ascii_case(b"NOCREATE") {
            adding.creates = false;
        } else if option.eq_ignore_ascii_case(b"ITEMS") {
            adding.items = arguments.from(at);
            break;
        } else {
            return Err(Failure::err("Unknown argument received"));
        }
    }
    if adding.items.is_empty() {
        return Err(arity());
    }
    add_items(visit, admitted, arguments.at(1), adding).await
}

async fn add_items(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    key: &[u8],
    adding: Adding<'_>,
) -> Result<Done, Failure> {
    let Adding { items, capacity, creates } = adding;
    check_items(items)?;
    let key = parse_key(key)?;
    visit.require_key(admitted, key)?;
    let view = match visit.shared.engine.find(key.kind, key.name()) {
        Some(view) => view,
        None if creates => created(visit, admitted, key, capacity).await?,
        None => return Err(Failure::err("not found")),
    };
    check_blanks(&view, items)?;
    let how = match admitted.row.name {
        Name::CfAddNx | Name::CfInsertNx => Change::AddIfAbsent,
        _ => Change::Add,
    };
    // That a full filter refuses codes tells that one of them is not in it.
    let guesses = match view.may_refuse_codes() {
        true => Some(guesses(visit, admitted, &view, 1).await?),
        false => None,
    };
    change(visit, admitted, &view, how, items, guesses).await;
    Ok(Done::Gathered)
}

/// The key of a filter that is to be.
fn parse_key(key: &[u8]) -> Result<Key<'_>, Failure> {
    Key::parse(key).ok_or_else(|| {
        let rule = "a key is campaign:NAME, coupon:NAME or NAME, where a name is 1 to 128 of a-z, 0-9, '.', '_' and '-', and begins \
                    with a letter or a digit";
        Failure::err(rule)
    })
}

/// Creates the filter of a key under which there is none. Another client may do so at the same time.
async fn created(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    key: Key<'_>,
    capacity: u64,
) -> Result<Arc<FilterView>, Failure> {
    match create(visit, admitted, key, Reserve::with_capacity(capacity)).await? {
        Outcome::Created(_) | Outcome::Exists(_) | Outcome::Refused(Refusal::AlreadyExists(_)) => {
            let view = visit.shared.engine.find(key.kind, key.name());
            view.ok_or_else(|| Failure::refused(&Refusal::FilterGone))
        }
        Outcome::Refused(refusal) => Err(Failure::refused(&refusal)),
        _ => Err(Failure::unexpected()),
    }
}

async fn create(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    key: Key<'_>,
    reserve: Reserve,
) -> Result<Outcome, Failure> {
    visit.settle().await;
    let spec = reserve.spec(key.kind)?;
    let command = visit.shared.engine.creation(key.kind, key.owned_name(), spec, Window::default())?;
    let result = submit(visit.shared, admitted, command).await;
    tell_act(admitted, key, &result);
    result
}

/// `CF.RESERVE key capacity [BUCKETSIZE n] [MAXITERATIONS n] [EXPANSION n]`.
pub(super) async fn reserve(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    if arguments.len().is_multiple_of(2) {
        return Err(Failure::arity(admitted.row.spelling));
    }
    let reserve = Reserve::parse(arguments.from(2))?;
    let key = parse_key(arguments.at(1))?;
    visit.require_key(admitted, key)?;
    visit.settle().await;
    if visit.shared.engine.find(key.kind, key.name()).is_some() {
        return Err(Failure::refused(&Refusal::AlreadyExists(Vec::new())));
    }
    match create(visit, admitted, key, reserve).await? {
        Outcome::Created(_) => visit.replies.simple("OK"),
        Outcome::Exists(_) => return Err(Failure::refused(&Refusal::AlreadyExists(Vec::new()))),
        Outcome::Refused(refusal) => return Err(Failure::refused(&refusal)),
        _ => return Err(Failure::unexpected()),
    }
    Ok(Done::Answered)
}

/// `CF.COMPACT key`. Does nothing: memory shrinks when a filter is cleared or empty.
pub(super) async fn compact(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    visit.settle().await;
    match find(visit, admitted, arguments.at(1))? {
        Some(_) => visit.replies.simple("OK"),
        None => return Err(Failure::err("Cuckoo filter was not found")),
    }
    Ok(Done::Answered)
}

/// `CF.INFO key`.
pub(super) async fn info(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    visit.settle().await;
    let view = find(visit, admitted, arguments.at(1))?.ok_or_else(|| Failure::err("not found"))?;
    figures::write(&view, visit.shared.engine.now(), &mut visit.replies);
    Ok(Done::Answered)
}

/// `DEL key …`: deletes filters, and all that belongs to them.
pub(super) async fn delete(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    visit.settle().await;
    if arguments.from(1).len() > ITEMS_MAX {
        return Err(Failure::too_many("keys"));
    }
    let keys: Vec<Key<'_>> = arguments.from(1).iter().filter_map(Key::parse).collect();
    keys.iter().try_for_each(|key| visit.require_key(admitted, *key))?;
    let mut deleted = 0;
    for key in keys {
        if visit.shared.engine.find(key.kind, key.name()).is_none() {
            continue;
        }
        let command = Command::Delete { kind: key.kind, name: key.owned_name() };
        let result = submit(visit.shared, admitted, command).await;
        tell_act(admitted, key, &result);
        match result? {
            Outcome::Deleted => deleted += 1,
            Outcome::Refused(Refusal::FilterGone) => {}
            Outcome::Refused(refusal) => return Err(Failure::refused(&refusal)),
            _ => return Err(Failure::unexpected()),
        }
    }
    visit.replies.count(deleted);
    Ok(Done::Answered)
}
