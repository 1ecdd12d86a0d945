//! EXISTS, TYPE, SCAN and the other commands that look at keys.

use super::failure::Failure;
use super::filters::find;
use super::glob;
use super::key::{self, Key, KeyRule};
use super::parser::Arguments;
use super::visit::{Admitted, Done, Visit};
use crate::domain::{ITEMS_MAX, Kind};
use crate::engine::FilterView;
use std::sync::Arc;

/// How Redis calls the type of a cuckoo filter.
const TYPE: &str = "MBbloomCF";

/// The fewest and the most keys that a page is made of, whatever COUNT says: each page looks at all filters.
const PAGE_KEYS: (usize, usize) = (100, 1_000);

/// The longest pattern, in bytes. Keys are shorter, and matching takes as many steps as the product of the two lengths.
const PATTERN_BYTES_MAX: usize = 512;

/// Keys that are matched before others of this worker get their turn.
const TURN_KEYS: usize = 32;

fn is_there(visit: &Visit<'_>, admitted: &Admitted, key: &[u8]) -> Result<bool, Failure> {
    let Some(key) = Key::parse(key) else { return Ok(false) };
    visit.require_key(admitted, key)?;
    Ok(visit.shared.engine.find(key.kind, key.name()).is_some())
}

/// `EXISTS key …`. A key that is named twice counts twice.
pub(super) async fn exists(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    let keys = arguments.from(1);
    if keys.len() > ITEMS_MAX {
        return Err(Failure::too_many("keys"));
    }
    visit.settle().await;
    let mut count = 0;
    for key in keys.iter() {
        count += u64::from(is_there(visit, admitted, key)?);
    }
    visit.replies.count(count);
    Ok(Done::Answered)
}

/// `TYPE key`.
pub(super) async fn type_of(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    visit.settle().await;
    let is_there = is_there(visit, admitted, arguments.at(1))?;
    visit.replies.simple(if is_there { TYPE } else { "none" });
    Ok(Done::Answered)
}

/// `TTL key`, `PTTL key`: -1 for a key, -2 if there is none.
pub(super) async fn ttl(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    visit.settle().await;
    let is_there = is_there(visit, admitted, arguments.at(1))?;
    visit.replies.integer(if is_there { -1 } else { -2 });
    Ok(Done::Answered)
}

/// `DBSIZE`: counts the filters that the caller may use.
pub(super) async fn size(visit: &mut Visit<'_>, admitted: &Admitted) -> Result<Done, Failure> {
    visit.settle().await;
    let list = |kind| visit.shared.engine.list(kind, admitted.caller.prefix(), None, usize::MAX).len();
    let count = list(Kind::Campaign) + list(Kind::Coupon);
    visit.replies.count(count as u64);
    Ok(Done::Answered)
}

/// `MEMORY USAGE key [SAMPLES n]`.
pub(super) async fn memory(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    if !arguments.at(1).eq_ignore_ascii_case(b"USAGE") {
        return Err(Failure::err("unknown subcommand. Try MEMORY USAGE."));
    }
    if !matches!(arguments.len(), 3 | 5) {
        return Err(Failure::arity("memory|usage"));
    }
    visit.settle().await;
    match find(visit, admitted, arguments.at(2))? {
        Some(view) => visit.replies.count(view.describe(visit.shared.engine.now()).stats.memory_bytes),
        None => visit.replies.null(),
    }
    Ok(Done::Answered)
}

/// `OBJECT ENCODING|REFCOUNT|IDLETIME key`: as Redis replies for values of modules.
pub(super) async fn object(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    let subcommand = String::from_utf8_lossy(arguments.at(1)).to_ascii_lowercase();
    if arguments.len() != 3 {
        return Err(Failure::arity(&format!("object|{subcommand:.32}")));
    }
    visit.settle().await;
    let is_there = is_there(visit, admitted, arguments.at(2))?;
    match (subcommand.as_str(), is_there) {
        ("encoding" | "refcount" | "idletime", false) => visit.replies.null(),
        ("encoding", true) => visit.replies.bulk(b"raw"),
        ("refcount", true) => visit.replies.integer(1),
        ("idletime", true) => visit.replies.integer(0),
        (other, _) => {
            return Err(Failure::err(format!("unknown subcommand '{other:.128}'. Try OBJECT HELP.")));
        }
    }
    Ok(Done::Answered)
}

/// What a page of keys is asked for.
struct Scan<'a> {
    cursor: u64,
    pattern: Option<&'a [u8]>,
    keys: usize,
    /// Whether keys of our type are wanted.
    has_type: bool,
}

impl<'a> Scan<'a> {
    /// Parses `cursor [MATCH pattern] [COUNT n] [TYPE type]`.
    fn parse(arguments: Arguments<'a>) -> Result<Self, Failure> {
        let cursor = str::from_utf8(arguments.at(0)).ok().and_then(|cursor| cursor.parse().ok());
        let cursor = cursor.ok_or_else(|| Failure::err("invalid cursor"))?;
        let mut scan = Self { cursor, pattern: None, keys: PAGE_KEYS.0, has_type: true };
        for at in (1..arguments.len()).step_by(2) {
            let (option, value) = (arguments.at(at), arguments.at(at + 1));
            if at + 1 == arguments.len() {
                return Err(Failure::syntax());
            } else if option.eq_ignore_ascii_case(b"MATCH") {
                if value.len() > PATTERN_BYTES_MAX {
                    return Err(Failure::err(format!("a pattern has at most {PATTERN_BYTES_MAX} bytes")));
                }
                scan.pattern = Some(value);
            } else if option.eq_ignore_ascii_case(b"TYPE") {
                scan.has_type = value.eq_ignore_ascii_case(TYPE.as_bytes());
            } else if option.eq_ignore_ascii_case(b"COUNT") {
                let count = str::from_utf8(value).ok().and_then(|count| count.parse::<i64>().ok());
                let count = count.ok_or_else(Failure::not_an_integer)?;
                if count < 1 {
                    return Err(Failure::syntax());
                }
                let (least, most) = PAGE_KEYS;
                scan.keys = usize::try_from(count).unwrap_or(most).clamp(least, most);
            } else {
                return Err(Failure::syntax());
            }
        }
        Ok(scan)
    }

    /// The key of a filter, if it matches. A campaign has two; it is told by its bare name if only that matches.
    fn key(&self, view: &FilterView, rules: &[KeyRule]) -> Option<String> {
        let name = view.name.as_str();
        let key = format!("{}{name}", key::prefix(view.kind));
        let key = rules.iter().find_map(|rule| rule.reverse(&key)).unwrap_or(key);
        match self.pattern {
            _ if !self.has_type => None,
            None => Some(key),
            Some(pattern) if glob::matches(pattern, key.as_bytes()) => Some(key),
            Some(pattern) => {
                let is_bare = view.kind == Kind::Campaign && glob::matches(pattern, name.as_bytes());
                is_bare.then(|| name.to_owned())
            }
        }
    }
}

/// `SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]`. Keys come in the order of their filters' ids, which
/// never change. So the last id is a cursor for any connection, and a filter that stays is listed exactly once.
pub(super) async fn scan(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    let scan = Scan::parse(arguments.from(1))?;
    visit.settle().await;
    // Each page looks at all filters, so others of this worker get their turn in between.
    tokio::task::yield_now().await;
    let (engine, prefix) = (&visit.shared.engine, admitted.caller.prefix());
    let mut views: Vec<Arc<FilterView>> = [Kind::Campaign, Kind::Coupon]
        .into_iter()
        .flat_map(|kind| engine.list(kind, prefix, None, usize::MAX))
        .filter(|view| view.id.0 > scan.cursor)
        .collect();
    let has_more = views.len() > scan.keys;
    if has_more {
        views.select_nth_unstable_by_key(scan.keys, |view| view.id);
        views.truncate(scan.keys);
    }
    views.sort_unstable_by_key(|view| view.id);
    let next = views.last().filter(|_| has_more).map_or(0, |view| view.id.0);
    let mut keys = Vec::new();
    for views in views.chunks(TURN_KEYS) {
        keys.extend(views.iter().filter_map(|view| scan.key(view, &visit.shared.options.keys)));
        tokio::task::yield_now().await;
    }
    visit.replies.array(2);
    visit.replies.bulk(next.to_string().as_bytes());
    visit.replies.array(keys.len());
    keys.iter().for_each(|key| visit.replies.bulk(key.as_bytes()));
    Ok(Done::Answered)
}
