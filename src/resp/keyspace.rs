//! EXISTS, TYPE, SCAN and the other commands that look at keys.

use super::failure::Failure;
use super::key::{Key, KeyRule, matches};
use super::parser::{Arguments, integer};
use super::session::Call;
use crate::domain::{ITEMS_MAX, Kind};
use crate::engine::FilterView;
use std::sync::Arc;

/// How Redis calls the type of a cuckoo filter.
const TYPE: &str = "MBbloomCF";

/// Minimum and maximum number of keys per page, for any COUNT: each page visits all filters.
const PAGE_KEYS: (usize, usize) = (100, 1_000);

/// Maximum length of a pattern in bytes. It bounds the steps of matching, the product of the lengths of pattern and key.
const PATTERN_BYTES_MAX: usize = 512;

/// Keys that are matched before others of this worker get their turn.
const TURN_KEYS: usize = 32;

/// `EXISTS key …`. A key that is named twice counts twice.
pub(super) fn exists(call: &mut Call<'_, '_>) -> Result<(), Failure> {
    let keys = call.arguments.from(1);
    if keys.len() > ITEMS_MAX {
        return Err(Failure::too_many("keys"));
    }
    let views = keys.iter().map(|key| call.find(key)).collect::<Result<Vec<_>, _>>()?;
    call.batch.replies.count(views.iter().flatten().count() as u64);
    Ok(())
}

/// `TYPE key`.
pub(super) fn type_of(call: &mut Call<'_, '_>) -> Result<(), Failure> {
    let is_there = call.find(call.arguments.at(1))?.is_some();
    call.batch.replies.simple(if is_there { TYPE } else { "none" });
    Ok(())
}

/// `TTL key`, `PTTL key`: -1 for a key, -2 if there is none.
pub(super) fn ttl(call: &mut Call<'_, '_>) -> Result<(), Failure> {
    let is_there = call.find(call.arguments.at(1))?.is_some();
    call.batch.replies.integer(if is_there { -1 } else { -2 });
    Ok(())
}

/// `DBSIZE`: counts the filters that the caller may use.
pub(super) fn size(call: &mut Call<'_, '_>) {
    let list = |kind| call.shared.engine.view().list(kind, call.caller.prefix(), None, usize::MAX).len();
    let count = list(Kind::Campaign) + list(Kind::Coupon);
    call.batch.replies.count(count as u64);
}

/// `MEMORY USAGE key [SAMPLES n]`.
pub(super) fn memory(call: &mut Call<'_, '_>) -> Result<(), Failure> {
    if !call.arguments.at(1).eq_ignore_ascii_case(b"USAGE") {
        return Err(Failure::err("unknown subcommand. Try MEMORY USAGE."));
    }
    if !matches!(call.arguments.len(), 3 | 5) {
        return Err(Failure::arity("memory|usage"));
    }
    match call.find(call.arguments.at(2))? {
        Some(view) => call.batch.replies.count(view.describe(call.shared.engine.now()).stats.memory_bytes),
        None => call.batch.replies.null(),
    }
    Ok(())
}

/// `OBJECT ENCODING|REFCOUNT|IDLETIME key`: as Redis replies for values of modules.
pub(super) fn object(call: &mut Call<'_, '_>) -> Result<(), Failure> {
    let subcommand = String::from_utf8_lossy(call.arguments.at(1)).to_ascii_lowercase();
    if call.arguments.len() != 3 {
        return Err(Failure::arity(&format!("object|{subcommand:.32}")));
    }
    let is_there = call.find(call.arguments.at(2))?.is_some();
    match (subcommand.as_str(), is_there) {
        ("encoding" | "refcount" | "idletime", false) => call.batch.replies.null(),
        ("encoding", true) => call.batch.replies.bulk(b"raw"),
        ("refcount", true) => call.batch.replies.integer(1),
        ("idletime", true) => call.batch.replies.integer(0),
        (other, _) => {
            return Err(Failure::err(format!("unknown subcommand '{other:.128}'. Try OBJECT HELP.")));
        }
    }
    Ok(())
}

/// The arguments of a page of keys.
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
        let options = arguments.from(1).options(["MATCH", "COUNT", "TYPE"]);
        let [pattern, count, kind] = options.ok_or(Failure::SYNTAX)?;
        if pattern.is_some_and(|pattern| pattern.len() > PATTERN_BYTES_MAX) {
            return Err(Failure::err(format!("a pattern has at most {PATTERN_BYTES_MAX} bytes")));
        }
        let (least, most) = PAGE_KEYS;
        let keys = match count.map(integer) {
            None => least,
            Some(Some(count @ 1..)) => usize::try_from(count).unwrap_or(most).clamp(least, most),
            Some(Some(_)) => return Err(Failure::SYNTAX),
            Some(None) => return Err(Failure::NOT_AN_INTEGER),
        };
        let has_type = kind.is_none_or(|kind| kind.eq_ignore_ascii_case(TYPE.as_bytes()));
        Ok(Self { cursor, pattern, keys, has_type })
    }

    /// Returns the key of a filter, if it matches. A campaign has two; the bare name is only returned if the other doesn't match.
    fn key(&self, view: &FilterView, rules: &[KeyRule]) -> Option<String> {
        let (name, key) = (view.name.as_str(), Key::of(view.kind, &view.name).to_string());
        let key = rules.iter().find_map(|rule| rule.reverse(&key)).unwrap_or(key);
        let matches = |key: &str| self.pattern.is_none_or(|pattern| matches(pattern, key.as_bytes()));
        match view.kind {
            _ if !self.has_type => None,
            _ if matches(&key) => Some(key),
            Kind::Campaign => matches(name).then(|| name.to_owned()),
            Kind::Coupon => None,
        }
    }
}

/// `SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]`. Keys are in the order of their filters' IDs, which never change. So the last ID is
/// a cursor for any connection, and a filter that isn't deleted is listed exactly once.
pub(super) async fn scan(call: &mut Call<'_, '_>) -> Result<(), Failure> {
    let scan = Scan::parse(call.arguments.from(1))?;
    // Each page visits all filters, so other connections of this worker get their turn in between.
    tokio::task::yield_now().await;
    let (engine, prefix) = (&call.shared.engine, call.caller.prefix());
    let mut views: Vec<Arc<FilterView>> = [Kind::Campaign, Kind::Coupon]
        .into_iter()
        .flat_map(|kind| engine.view().list(kind, prefix, None, usize::MAX))
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
        keys.extend(views.iter().filter_map(|view| scan.key(view, &call.shared.options.keys)));
        tokio::task::yield_now().await;
    }
    call.batch.replies.array(2);
    call.batch.replies.bulk(next.to_string().as_bytes());
    call.batch.replies.array(keys.len());
    keys.iter().for_each(|key| call.batch.replies.bulk(key.as_bytes()));
    Ok(())
}
