//! The commands: names, arguments, required permissions, and COMMAND, which describes them.

use super::failure::Failure;
use super::help;
use super::replies::Replies;
use super::session::AdmittedCommand;
use crate::access::Scope;

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // `ROWS` says what each one does.
pub enum Name {
    Auth,
    CfAdd,
    CfAddNx,
    CfCompact,
    CfCount,
    CfDel,
    CfExists,
    CfInfo,
    CfInsert,
    CfInsertNx,
    CfLoadChunk,
    CfMExists,
    CfReserve,
    CfScanDump,
    Client,
    Command,
    DbSize,
    Del,
    Discard,
    Echo,
    Exec,
    Exists,
    Hello,
    Info,
    Memory,
    Module,
    Multi,
    Object,
    Ping,
    PTtl,
    Quit,
    Scan,
    Select,
    Ttl,
    Type,
    Unlink,
}

/// The permission that a command requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Nothing: it is how a key is presented.
    Nothing,
    /// A key, if there are any.
    Key,
    /// A key with this scope. Only such commands wait for the start.
    Scope(Scope),
}

/// Which arguments are keys: the first, the last (-1 for the very last), and the distance from one to the next.
pub type KeyPositions = (i64, i64, i64);

const NO_KEYS: KeyPositions = (0, 0, 0);
const ONE_KEY: KeyPositions = (1, 1, 1);

/// A row of the table.
#[derive(Debug)]
pub struct Row {
    /// The command.
    pub name: Name,
    /// Its spelling in lower case.
    pub spelling: &'static str,
    /// How many arguments it has, itself included; negative if it may have more.
    pub arity: i64,
    /// The required permission.
    pub needs: Needs,
    /// Which arguments are keys.
    pub keys: KeyPositions,
    /// A summary for COMMAND DOCS.
    pub summary: &'static str,
}

const fn row(
    name: Name,
    spelling: &'static str,
    arity: i64,
    needs: Needs,
    keys: KeyPositions,
    summary: &'static str,
) -> Row {
    Row {
        name,
        spelling,
        arity,
        needs,
        keys,
        summary,
    }
}

const READ: Needs = Needs::Scope(Scope::Read);
const WRITE: Needs = Needs::Scope(Scope::Write);
const ADMIN: Needs = Needs::Scope(Scope::Admin);

/// All commands, in the order of their spelling.
pub static ROWS: [Row; 36] = [
    row(
        Name::Auth,
        "auth",
        -2,
        Needs::Nothing,
        NO_KEYS,
        "Presents an API key.",
    ),
    row(
        Name::CfAdd,
        "cf.add",
        3,
        WRITE,
        ONE_KEY,
        "Adds an item to a filter; creates the filter.",
    ),
    row(
        Name::CfAddNx,
        "cf.addnx",
        3,
        WRITE,
        ONE_KEY,
        "Adds an item to a filter if it is absent.",
    ),
    row(
        Name::CfCompact,
        "cf.compact",
        2,
        WRITE,
        ONE_KEY,
        "Does nothing: filters shrink automatically.",
    ),
    row(
        Name::CfCount,
        "cf.count",
        3,
        READ,
        ONE_KEY,
        "Counts the copies of an item.",
    ),
    row(
        Name::CfDel,
        "cf.del",
        3,
        WRITE,
        ONE_KEY,
        "Removes one copy of an item.",
    ),
    row(
        Name::CfExists,
        "cf.exists",
        3,
        READ,
        ONE_KEY,
        "Whether an item is in a filter.",
    ),
    row(
        Name::CfInfo,
        "cf.info",
        2,
        READ,
        ONE_KEY,
        "Shows a filter's settings and statistics.",
    ),
    row(
        Name::CfInsert,
        "cf.insert",
        -4,
        WRITE,
        ONE_KEY,
        "Adds items to a filter, all or none.",
    ),
    row(
        Name::CfInsertNx,
        "cf.insertnx",
        -4,
        WRITE,
        ONE_KEY,
        "Adds those items to a filter that are absent.",
    ),
    row(
        Name::CfLoadChunk,
        "cf.loadchunk",
        4,
        ADMIN,
        ONE_KEY,
        "Loads a chunk of a dump into a new filter.",
    ),
    row(
        Name::CfMExists,
        "cf.mexists",
        -3,
        READ,
        ONE_KEY,
        "Which items are in a filter.",
    ),
    row(
        Name::CfReserve,
        "cf.reserve",
        -3,
        WRITE,
        ONE_KEY,
        "Creates a filter.",
    ),
    row(
        Name::CfScanDump,
        "cf.scandump",
        3,
        ADMIN,
        ONE_KEY,
        "Dumps a filter in chunks.",
    ),
    row(
        Name::Client,
        "client",
        -2,
        Needs::Key,
        NO_KEYS,
        "Names the connection, or shows it.",
    ),
    row(
        Name::Command,
        "command",
        -1,
        Needs::Key,
        NO_KEYS,
        "Lists commands.",
    ),
    row(Name::DbSize, "dbsize", 1, READ, NO_KEYS, "Counts filters."),
    row(Name::Del, "del", -2, ADMIN, (1, -1, 1), "Deletes filters."),
    row(
        Name::Discard,
        "discard",
        1,
        Needs::Key,
        NO_KEYS,
        "Discards the queued commands.",
    ),
    row(
        Name::Echo,
        "echo",
        2,
        Needs::Key,
        NO_KEYS,
        "Answers its argument.",
    ),
    row(
        Name::Exec,
        "exec",
        1,
        Needs::Key,
        NO_KEYS,
        "Executes the queued commands.",
    ),
    row(
        Name::Exists,
        "exists",
        -2,
        READ,
        (1, -1, 1),
        "Counts how many of the keys are filters.",
    ),
    row(
        Name::Hello,
        "hello",
        -1,
        Needs::Nothing,
        NO_KEYS,
        "Selects the protocol; may present a key.",
    ),
    row(
        Name::Info,
        "info",
        -1,
        Needs::Key,
        NO_KEYS,
        "Shows the service's metrics.",
    ),
    row(
        Name::Memory,
        "memory",
        -2,
        READ,
        (2, 2, 1),
        "Returns the memory of a filter.",
    ),
    row(
        Name::Module,
        "module",
        -2,
        Needs::Key,
        NO_KEYS,
        "Lists the modules that clients look for.",
    ),
    row(
        Name::Multi,
        "multi",
        1,
        Needs::Key,
        NO_KEYS,
        "Queues the following commands until EXEC.",
    ),
    row(
        Name::Object,
        "object",
        -2,
        READ,
        (2, 2, 1),
        "Returns metadata of a key.",
    ),
    row(
        Name::Ping,
        "ping",
        -1,
        Needs::Key,
        NO_KEYS,
        "Answers PONG, or its argument.",
    ),
    row(
        Name::PTtl,
        "pttl",
        2,
        READ,
        ONE_KEY,
        "Returns -1: filters do not expire.",
    ),
    row(
        Name::Quit,
        "quit",
        -1,
        Needs::Nothing,
        NO_KEYS,
        "Closes the connection.",
    ),
    row(
        Name::Scan,
        "scan",
        -2,
        READ,
        NO_KEYS,
        "Lists keys, a page at a time.",
    ),
    row(
        Name::Select,
        "select",
        2,
        Needs::Key,
        NO_KEYS,
        "Chooses database 0, the only one.",
    ),
    row(
        Name::Ttl,
        "ttl",
        2,
        READ,
        ONE_KEY,
        "Returns -1: filters do not expire.",
    ),
    row(
        Name::Type,
        "type",
        2,
        READ,
        ONE_KEY,
        "Whether a key is a filter.",
    ),
    row(
        Name::Unlink,
        "unlink",
        -2,
        ADMIN,
        (1, -1, 1),
        "Deletes filters, as DEL does.",
    ),
];

/// The label of commands that don't exist.
pub const UNKNOWN: &str = "unknown";

impl Row {
    /// Returns the row of the command with this name, in letters of either case.
    pub fn find(name: &[u8]) -> Option<&'static Row> {
        ROWS.iter()
            .find(|row| row.spelling.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Whether the batch answers the command, together with others of its filter.
    pub fn is_gathered(&self) -> bool {
        let is_filters = matches!(self.needs, READ | WRITE) && self.spelling.starts_with("cf.");
        is_filters && !matches!(self.name, Name::CfReserve | Name::CfCompact | Name::CfInfo)
    }

    /// Whether the command accepts this number of arguments, itself included.
    pub fn takes(&self, arguments: usize) -> bool {
        let arguments = i64::try_from(arguments).unwrap_or(i64::MAX);
        if self.arity < 0 {
            arguments >= -self.arity
        } else {
            arguments == self.arity
        }
    }
}

/// Maximum number of commands that one request may name.
const NAMED_MAX: usize = 1_000;

/// `COMMAND [COUNT | LIST | INFO [name …] | DOCS [name …] | HELP]`: describes the commands to clients.
pub(super) fn describe(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    call.batch.turn.note_long();
    let arguments = call.arguments;
    let replies = &mut call.batch.replies;
    let subcommand = String::from_utf8_lossy(arguments.at(1)).to_ascii_lowercase();
    let named = arguments.from(2);
    if named.len() > NAMED_MAX {
        return Err(Failure::err(format!(
            "one request names at most {NAMED_MAX} commands"
        )));
    }
    match subcommand.as_str() {
        "" | "info" if named.is_empty() => {
            replies.array(ROWS.len());
            ROWS.iter().for_each(|row| write_row(row, replies));
        }
        "count" if named.is_empty() => replies.count(ROWS.len() as u64),
        "list" if named.is_empty() => {
            replies.array(ROWS.len());
            ROWS.iter()
                .for_each(|row| replies.bulk(row.spelling.as_bytes()));
        }
        "info" => {
            replies.array(named.len());
            for name in named.iter() {
                match Row::find(name) {
                    Some(row) => write_row(row, replies),
                    None => replies.null(),
                }
            }
        }
        "docs" => {
            let rows: Vec<&Row> = match named.is_empty() {
                true => ROWS.iter().collect(),
                false => named.iter().filter_map(Row::find).collect(),
            };
            replies.map(rows.len());
            rows.iter().for_each(|row| write_docs(row, replies));
        }
        "help" if named.is_empty() => help::COMMAND.help(replies),
        "count" | "list" | "help" => return Err(Failure::arity(&format!("command|{subcommand}"))),
        other => return Err(help::COMMAND.unknown(other)),
    }
    Ok(())
}

/// Name, arity, flags, keys, categories, and what we have none of: tips, key specifications, subcommands.
fn write_row(row: &Row, replies: &mut Replies) {
    let (first, last, step) = row.keys;
    replies.array(10);
    replies.bulk(row.spelling.as_bytes());
    replies.integer(row.arity);
    let group = if row.spelling.starts_with("cf.") {
        "@cuckoo"
    } else {
        "@keyspace"
    };
    let (flags, categories) = match row.needs {
        Needs::Nothing => (
            "noscript loading stale fast no_auth",
            vec!["@fast", "@connection"],
        ),
        Needs::Key => ("loading stale fast", vec!["@fast", "@connection"]),
        Needs::Scope(Scope::Read) => ("readonly fast", vec!["@read", "@fast", group]),
        Needs::Scope(_) => ("write denyoom", vec!["@write", "@slow", group]),
    };
    replies.set(flags.split(' ').count());
    flags.split(' ').for_each(|flag| replies.simple(flag));
    [first, last, step]
        .into_iter()
        .for_each(|position| replies.integer(position));
    replies.set(categories.len());
    categories
        .iter()
        .for_each(|category| replies.simple(category));
    (0..3).for_each(|_| replies.array(0));
}

fn write_docs(row: &Row, replies: &mut Replies) {
    let group = if row.spelling.starts_with("cf.") {
        "cf"
    } else {
        "generic"
    };
    replies.bulk(row.spelling.as_bytes());
    replies.map(3);
    replies.words([
        "summary",
        row.summary,
        "since",
        env!("CARGO_PKG_VERSION"),
        "group",
        group,
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_name_ignores_case() {
        assert!(ROWS.is_sorted_by_key(|row| row.spelling));
        for row in &ROWS {
            for spelling in [row.spelling.to_owned(), row.spelling.to_uppercase()] {
                assert_eq!(Row::find(spelling.as_bytes()).unwrap().name, row.name);
            }
        }
        for other in [
            &b""[..],
            b"get",
            b"cf.ad",
            b"cf.adds",
            b"\xff",
            &[b'x'; 100],
        ] {
            assert!(Row::find(other).is_none(), "{}", other.escape_ascii());
        }
    }

    #[test]
    fn negative_arity_is_minimum() {
        let takes =
            |spelling: &str, arguments| Row::find(spelling.as_bytes()).unwrap().takes(arguments);
        assert!(takes("cf.add", 3) && !takes("cf.add", 2) && !takes("cf.add", 4));
        assert!(takes("cf.insert", 4) && takes("cf.insert", 1_000) && !takes("cf.insert", 3));
    }
}
