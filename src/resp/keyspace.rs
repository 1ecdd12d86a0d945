//! EXISTS, TYPE, SCAN and other commands on keys. Commands that visit many keys do so in steps of their connection's turn.

use super::failure::Failure;
use super::help;
use super::key::{FilterKey, KeyRule, matches};
use super::parser::{Arguments, integer};
use super::session::AdmittedCommand;
use cuckood_state::FilterView;
use cuckood_state::domain::{ITEMS_MAX, Kind, Name};
use std::sync::Arc;

/// How Redis calls the type of a cuckoo filter.
const TYPE: &str = "MBbloomCF";

/// Minimum and maximum number of keys per page, for any COUNT: each page visits all filters.
const PAGE_KEYS: (usize, usize) = (100, 1_000);

/// Maximum length of a pattern in bytes. It bounds the steps of matching, the product of the lengths of pattern and key.
const PATTERN_BYTES_MAX: usize = 512;

/// Number of filters visited in one step.
const VISITED_AT_ONCE: usize = 256;

/// Cost of a key in its connection's turn, in addition to its length, in bytes.
const KEY_BYTES: usize = 64;

/// `EXISTS key …`. A key that is named twice counts twice.
pub(super) async fn exists(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    let keys = call.arguments.from(1);
    if keys.len() > ITEMS_MAX {
        return Err(Failure::too_many("keys"));
    }
    let mut count = 0;
    for key in keys.iter() {
        count += u64::from(call.find(key)?.is_some());
        call.batch.turn.work(key.len() + KEY_BYTES).await;
    }
    call.batch.replies.count(count);
    Ok(())
}

/// `TYPE key`.
pub(super) fn type_of(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    let is_there = call.find(call.arguments.at(1))?.is_some();
    call.batch
        .replies
        .simple(if is_there { TYPE } else { "none" });
    Ok(())
}

/// `TTL key`, `PTTL key`: -1 for a key, -2 if there is none.
pub(super) fn ttl(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    let is_there = call.find(call.arguments.at(1))?.is_some();
    call.batch.replies.integer(if is_there { -1 } else { -2 });
    Ok(())
}

/// The number of filters that a caller with a prefix may use. Valid until a filter is created or deleted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CountedKeys {
    version: u64,
    prefix: String,
    count: u64,
}

/// `DBSIZE`: counts the filters that the caller may use. For a caller with a prefix, the connection keeps the count.
pub(super) async fn size(call: &mut AdmittedCommand<'_, '_>) {
    let view = call.shared.engine.view();
    let prefix = call.caller.prefix().to_owned();
    if prefix.is_empty() {
        let count = view.count(Kind::Campaign) + view.count(Kind::Coupon);
        return call.batch.replies.count(count as u64);
    }
    // Read before counting, so that later creations and deletions invalidate the count.
    let version = view.version();
    let is_valid = |counted: &&CountedKeys| counted.version == version && counted.prefix == prefix;
    let count = match call.session.counted_keys.as_ref().filter(is_valid) {
        Some(counted) => counted.count,
        None => {
            let mut count = 0;
            visit(call, |views| count += views.len() as u64).await;
            call.session.counted_keys = Some(CountedKeys {
                version,
                prefix,
                count,
            });
            count
        }
    };
    call.batch.replies.count(count);
}

/// Visits the filters that the caller may use, in steps.
async fn visit(call: &mut AdmittedCommand<'_, '_>, mut visitor: impl FnMut(Vec<Arc<FilterView>>)) {
    for kind in [Kind::Campaign, Kind::Coupon] {
        let mut last: Option<Name> = None;
        loop {
            let all = call.shared.engine.view();
            let views = all.list(kind, call.caller.prefix(), last.as_ref(), VISITED_AT_ONCE);
            let is_end = views.len() < VISITED_AT_ONCE;
            last = views.last().map(|view| view.name.clone());
            visitor(views);
            call.batch.turn.step().await;
            if is_end {
                break;
            }
        }
    }
}

/// `MEMORY USAGE key [SAMPLES n]`, `MEMORY HELP`.
pub(super) fn memory(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    let subcommand = String::from_utf8_lossy(call.arguments.at(1)).to_ascii_lowercase();
    match (subcommand.as_str(), call.arguments.len()) {
        ("usage", 3 | 5) => {}
        ("help", 2) => {
            help::MEMORY.help(&mut call.batch.replies);
            return Ok(());
        }
        (known @ ("usage" | "help"), _) => return Err(Failure::arity(&format!("memory|{known}"))),
        (other, _) => return Err(help::MEMORY.unknown(other)),
    }
    call.batch.turn.note_long();
    match call.find(call.arguments.at(2))? {
        Some(view) => call
            .batch
            .replies
            .count(view.describe(call.shared.engine.now()).stats.memory_bytes),
        None => call.batch.replies.null(),
    }
    Ok(())
}

/// `OBJECT ENCODING|REFCOUNT|IDLETIME key`, `OBJECT HELP`: as Redis replies for values of modules.
pub(super) fn object(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    let subcommand = String::from_utf8_lossy(call.arguments.at(1)).to_ascii_lowercase();
    match (subcommand.as_str(), call.arguments.len()) {
        ("encoding" | "refcount" | "idletime", 3) => {}
        ("help", 2) => {
            help::OBJECT.help(&mut call.batch.replies);
            return Ok(());
        }
        (known @ ("encoding" | "refcount" | "idletime" | "help"), _) => {
            return Err(Failure::arity(&format!("object|{known}")));
        }
        (other, _) => return Err(help::OBJECT.unknown(other)),
    }
    let is_there = call.find(call.arguments.at(2))?.is_some();
    match (is_there, subcommand.as_str()) {
        (false, _) => call.batch.replies.null(),
        (true, "encoding") => call.batch.replies.bulk(b"raw"),
        (true, "refcount") => call.batch.replies.integer(1),
        (true, _) => call.batch.replies.integer(0),
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
        let cursor = str::from_utf8(arguments.at(0))
            .ok()
            .and_then(|cursor| cursor.parse().ok());
        let cursor = cursor.ok_or_else(|| Failure::err("invalid cursor"))?;
        let options = arguments.from(1).options(["MATCH", "COUNT", "TYPE"]);
        let [pattern, count, kind] = options.ok_or(Failure::SYNTAX)?;
        if pattern.is_some_and(|pattern| pattern.len() > PATTERN_BYTES_MAX) {
            return Err(Failure::err(format!(
                "a pattern has at most {PATTERN_BYTES_MAX} bytes"
            )));
        }
        let (least, most) = PAGE_KEYS;
        let keys = match count.map(integer) {
            None => least,
            Some(Some(count @ 1..)) => usize::try_from(count).unwrap_or(most).clamp(least, most),
            Some(Some(_)) => return Err(Failure::SYNTAX),
            Some(None) => return Err(Failure::NOT_AN_INTEGER),
        };
        let has_type = kind.is_none_or(|kind| kind.eq_ignore_ascii_case(TYPE.as_bytes()));
        Ok(Self {
            cursor,
            pattern,
            keys,
            has_type,
        })
    }

    /// Returns the first key of a filter that matches: the one that a rule maps to it, the one with its kind, or a campaign's bare name.
    fn key(&self, view: &FilterView, rules: &[KeyRule]) -> Option<String> {
        if !self.has_type {
            return None;
        }
        let key = FilterKey::of(view.kind, &view.name);
        let mapped = rules.iter().find_map(|rule| rule.reverse(&key.to_string()));
        let bare = (view.kind == Kind::Campaign).then(|| view.name.as_str().to_owned());
        let mut keys = [mapped, Some(key.to_string()), bare].into_iter().flatten();
        let matches = |key: &String| {
            self.pattern
                .is_none_or(|pattern| matches(pattern, key.as_bytes()))
        };
        keys.find(matches)
    }
}

/// `SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]`. Keys are in the order of their filters' IDs, which never change. So the last ID is
/// a cursor for any connection, and a filter that isn't deleted is listed exactly once.
pub(super) async fn scan(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    let scan = Scan::parse(call.arguments.from(1))?;
    let mut views: Vec<Arc<FilterView>> = Vec::new();
    // Each page visits all filters, and keeps those with the smallest IDs.
    let mut has_more = false;
    visit(call, |more| {
        views.extend(more.into_iter().filter(|view| view.id.0 > scan.cursor));
        if views.len() > scan.keys {
            has_more = true;
            views.select_nth_unstable_by_key(scan.keys, |view| view.id);
            views.truncate(scan.keys);
        }
    })
    .await;
    views.sort_unstable_by_key(|view| view.id);
    let next = views
        .last()
        .filter(|_| has_more)
        .map_or(0, |view| view.id.0);
    let mut keys = Vec::new();
    for view in views {
        keys.extend(scan.key(&view, &call.shared.options.keys));
        let steps = scan.pattern.map_or(0, <[u8]>::len) * view.name.as_str().len();
        call.batch.turn.work(KEY_BYTES + steps).await;
    }
    call.batch.replies.array(2);
    call.batch.replies.bulk(next.to_string().as_bytes());
    call.batch.replies.array(keys.len());
    keys.iter()
        .for_each(|key| call.batch.replies.bulk(key.as_bytes()));
    Ok(())
}
