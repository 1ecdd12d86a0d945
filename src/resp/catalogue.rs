//! COMMAND: the commands, as clients ask for them.

use super::command::{Needs, ROWS, Row};
use super::failure::Failure;
use super::parser::Arguments;
use super::replies::Replies;
use super::visit::{Done, Visit};
use crate::access::Scope;

/// The most commands that one request may name.
const NAMED_MAX: usize = 1_000;

/// `COMMAND [COUNT | LIST | INFO [name …] | DOCS [name …]]`.
pub(super) async fn command(visit: &mut Visit<'_>, arguments: Arguments<'_>) -> Result<Done, Failure> {
    visit.settle().await;
    let replies = &mut visit.replies;
    let subcommand = String::from_utf8_lossy(arguments.at(1)).to_ascii_lowercase();
    let named = arguments.from(2);
    if named.len() > NAMED_MAX {
        return Err(Failure::err(format!("one request names at most {NAMED_MAX} commands")));
    }
    match subcommand.as_str() {
        "" => write_rows(replies),
        "count" if named.is_empty() => replies.count(ROWS.len() as u64),
        "list" if named.is_empty() => {
            replies.array(ROWS.len());
            ROWS.iter().for_each(|row| replies.bulk(row.spelling.as_bytes()));
        }
        "info" if named.is_empty() => write_rows(replies),
        "info" => {
            replies.array(named.len());
            for name in named.iter() {
                match Row::find(name) {
                    Some((_, row)) => write_row(row, replies),
                    None => replies.null(),
                }
            }
        }
        "docs" => {
            let is_named = |row: &&Row| {
                named.is_empty()
                    || named.iter().any(|name| name.eq_ignore_ascii_case(row.spelling.as_bytes()))
            };
            let rows: Vec<&Row> = ROWS.iter().filter(is_named).collect();
            replies.map(rows.len());
            rows.iter().for_each(|row| write_docs(row, replies));
        }
        "count" | "list" => return Err(Failure::arity(&format!("command|{subcommand}"))),
        other => {
            return Err(Failure::err(format!("unknown subcommand '{other:.128}'. Try COMMAND HELP.")));
        }
    }
    Ok(Done::Answered)
}

fn write_rows(replies: &mut Replies) {
    replies.array(ROWS.len());
    ROWS.iter().for_each(|row| write_row(row, replies));
}

/// Name, arity, flags, keys, categories, and what we have none of: tips, key specifications, subcommands.
fn write_row(row: &Row, replies: &mut Replies) {
    let (first, last, step) = row.keys;
    replies.array(10);
    replies.bulk(row.spelling.as_bytes());
    replies.integer(row.arity);
    replies.set(row.flags.len());
    row.flags.iter().for_each(|flag| replies.simple(flag));
    [first, last, step].into_iter().for_each(|position| replies.integer(position));
    let categories = match (row.needs, row.spelling.starts_with("cf.")) {
        (Needs::Nothing | Needs::Key, _) => &["@fast", "@connection"][..],
        (Needs::Scope(Scope::Read), true) => &["@read", "@fast", "@cuckoo"],
        (Needs::Scope(Scope::Read), false) => &["@read", "@fast", "@keyspace"],
        (Needs::Scope(_), true) => &["@write", "@slow", "@cuckoo"],
        (Needs::Scope(_), false) => &["@write", "@slow", "@keyspace"],
    };
    replies.set(categories.len());
    categories.iter().for_each(|category| replies.simple(category));
    (0..3).for_each(|_| replies.array(0));
}

fn write_docs(row: &Row, replies: &mut Replies) {
    let group = if row.spelling.starts_with("cf.") { "cf" } else { "generic" };
    replies.bulk(row.spelling.as_bytes());
    replies.map(3);
    for (field, value) in [("summary", row.summary), ("since", env!("CARGO_PKG_VERSION")), ("group", group)] {
        replies.bulk(field.as_bytes());
        replies.bulk(value.as_bytes());
    }
}
