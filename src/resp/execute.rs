//! Finds a command, admits it, and has it done.

use super::command::{Name, Needs, Row};
use super::failure::Failure;
use super::metrics::Counted;
use super::parser::{Arguments, Parser, RequestLimits};
use super::visit::{Admitted, Done, Visit};
use super::{catalogue, connection_commands, filters, handshake, images, info, keyspace};
use crate::access::Scope;
use crate::engine::Status;

/// The longest name of an unknown command that is repeated in the answer, in characters.
const ECHOED_CHARS_MAX: usize = 128;

/// A request whose keys were mapped may be longer than the original.
const REWRITTEN: RequestLimits =
    RequestLimits { arguments_max: usize::MAX, argument_bytes_max: 1 << 20, request_bytes_max: 1 << 30 };

/// Whether the connection goes on after a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// It does.
    GoOn,
    /// It ends once everything is answered.
    End,
}

/// Executes the command of a request, or queues it in a transaction. A failure is its reply.
pub async fn execute(
    visit: &mut Visit<'_>,
    arguments: Arguments<'_>,
    request: &[u8],
    is_inline: bool,
) -> Next {
    let Some((at, row)) = Row::find(arguments.at(0)) else {
        let name: String = String::from_utf8_lossy(arguments.at(0)).chars().take(ECHOED_CHARS_MAX).collect();
        fail(visit, Counted::UNKNOWN, Failure::err(format!("unknown command '{name}'"))).await;
        // A line that is no command may be the head of an HTTP request, which a web page makes a browser send. What follows it
        // must not be taken for commands.
        return if is_inline { Next::End } else { Next::GoOn };
    };
    let counted = Counted::row(at);
    let (rewritten, mut parser) = (rewrite(visit, row, arguments), Parser::default());
    let arguments = match &rewritten {
        // It is a request again, if a little longer or shorter.
        Some(bytes) if parser.parse(bytes, &REWRITTEN) == Ok(Some(bytes.len())) => parser.arguments(bytes),
        _ => arguments,
    };
    match run(visit, row, counted, arguments, request).await {
        Ok(Done::Gathered | Done::Queued) => Next::GoOn,
        Ok(done) => {
            visit.shared.metrics.count(counted);
            if done == Done::Ended { Next::End } else { Next::GoOn }
        }
        Err(failure) => {
            fail(visit, counted, failure).await;
            Next::GoOn
        }
    }
}

/// Returns the request with its keys mapped by the rules of the configuration; `None` if no rule concerns it.
fn rewrite(visit: &Visit<'_>, row: &Row, arguments: Arguments<'_>) -> Option<Vec<u8>> {
    let rules = &visit.shared.options.keys;
    let (first, last, _) = row.keys;
    if rules.is_empty() || first == 0 {
        return None;
    }
    let last = usize::try_from(last).unwrap_or(usize::MAX);
    let positions = usize::try_from(first).ok()?..=last;
    let mapped = |at: usize, argument: &[u8]| {
        positions.contains(&at).then(|| rules.iter().find_map(|rule| rule.map(argument)))?
    };
    let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
    let mut is_mapped = false;
    for (at, argument) in arguments.iter().enumerate() {
        let mapped = mapped(at, argument);
        is_mapped |= mapped.is_some();
        let argument = mapped.as_ref().map_or(argument, |key| key.as_bytes());
        request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        request.extend_from_slice(argument);
        request.extend_from_slice(b"\r\n");
    }
    is_mapped.then_some(request)
}

async fn fail(visit: &mut Visit<'_>, counted: Counted, failure: Failure) {
    if let Some(transaction) = &mut visit.session.transaction {
        transaction.is_faulty = true;
    }
    visit.settle().await;
    visit.shared.metrics.count_failed(counted, failure.code);
    visit.replies.failure(&failure);
}

async fn run(
    visit: &mut Visit<'_>,
    row: &'static Row,
    counted: Counted,
    arguments: Arguments<'_>,
    request: &[u8],
) -> Result<Done, Failure> {
    if !row.takes(arguments.len()) {
        return Err(Failure::arity(row.spelling));
    }
    let shared = visit.shared;
    let caller = visit.session.admit(shared, row.needs, row.spelling)?;
    if let Some(transaction) = &mut visit.session.transaction
        && !matches!(row.name, Name::Multi | Name::Exec | Name::Discard | Name::Quit)
    {
        if row.needs == Needs::Nothing {
            return Err(Failure::err("Command not allowed inside a transaction"));
        }
        transaction.queue(request)?;
        visit.replies.simple("QUEUED");
        return Ok(Done::Queued);
    }
    if let Needs::Scope(scope) = row.needs {
        refuse_unless_ready(visit, scope)?;
    }
    let admitted = Admitted { row, counted, caller };
    match row.name {
        Name::CfExists | Name::CfMExists | Name::CfCount => filters::check(visit, &admitted, arguments).await,
        Name::CfAdd | Name::CfAddNx => filters::add(visit, &admitted, arguments).await,
        Name::CfInsert | Name::CfInsertNx => filters::insert(visit, &admitted, arguments).await,
        Name::CfDel => filters::remove(visit, &admitted, arguments).await,
        Name::CfReserve => filters::reserve(visit, &admitted, arguments).await,
        Name::CfCompact => filters::compact(visit, &admitted, arguments).await,
        Name::CfInfo => filters::info(visit, &admitted, arguments).await,
        Name::CfScanDump => images::dump(visit, &admitted, arguments).await,
        Name::CfLoadChunk => images::load(visit, &admitted, arguments).await,
        Name::Del => filters::delete(visit, &admitted, arguments).await,
        Name::Exists => keyspace::exists(visit, &admitted, arguments).await,
        Name::Type => keyspace::type_of(visit, &admitted, arguments).await,
        Name::Ttl | Name::PTtl => keyspace::ttl(visit, &admitted, arguments).await,
        Name::DbSize => keyspace::size(visit, &admitted).await,
        Name::Memory => keyspace::memory(visit, &admitted, arguments).await,
        Name::Object => keyspace::object(visit, &admitted, arguments).await,
        Name::Scan => keyspace::scan(visit, &admitted, arguments).await,
        Name::Auth => handshake::auth(visit, arguments).await,
        Name::Hello => handshake::hello(visit, arguments).await,
        Name::Ping => connection_commands::ping(visit, arguments).await,
        Name::Echo => connection_commands::echo(visit, arguments).await,
        Name::Select => connection_commands::select(visit, arguments).await,
        Name::Quit => connection_commands::quit(visit).await,
        Name::Multi => connection_commands::multi(visit).await,
        Name::Exec => connection_commands::exec(visit).await,
        Name::Discard => connection_commands::discard(visit).await,
        Name::Module => connection_commands::module(visit, arguments).await,
        Name::Client => connection_commands::client(visit, &admitted, arguments).await,
        Name::Command => catalogue::command(visit, arguments).await,
        Name::Info => info::info(visit, &admitted, arguments).await,
    }
}

/// Refuses commands on filters while the service starts, and changes after storage has failed.
fn refuse_unless_ready(visit: &Visit<'_>, scope: Scope) -> Result<(), Failure> {
    let engine = &visit.shared.engine;
    if engine.is_ready() {
        return Ok(());
    }
    let status = engine.status();
    match (Failure::unready(&status, visit.shared.engine.is_shared()), status) {
        (Some(failure), _) => Err(failure),
        (None, Status::Failed(_)) if scope != Scope::Read => Err(Failure::read_only()),
        (None, _) => Ok(()),
    }
}
