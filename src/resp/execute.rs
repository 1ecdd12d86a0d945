//! Finds a command, admits it, and has it done.

use super::command::{Name, Needs, Row};
use super::failure::Failure;
use super::metrics::Counted;
use super::parser::Arguments;
use super::visit::{Admitted, Done, Visit};
use super::{catalogue, connection_commands, filters, handshake, images, info, keyspace};
use crate::access::Scope;
use crate::engine::Status;

/// The longest name of an unknown command that is repeated in the answer, in characters.
const ECHOED_CHARS_MAX: usize = 128;

/// Whether the connection goes on after a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// It does.
    GoOn,
    /// It ends once everything is answered.
    End,
}

/// Executes a command. What goes wrong is its answer.
pub async fn execute(visit: &mut Visit<'_>, arguments: Arguments<'_>, is_inline: bool) -> Next {
    let Some((at, row)) = Row::find(arguments.at(0)) else {
        let name: String = String::from_utf8_lossy(arguments.at(0)).chars().take(ECHOED_CHARS_MAX).collect();
        fail(visit, Counted::UNKNOWN, Failure::err(format!("unknown command '{name}'"))).await;
        // A line that is no command may be the head of an HTTP request, which a web page makes a browser send. What follows it
        // must not be taken for commands.
        return if is_inline { Next::End } else { Next::GoOn };
    };
    let counted = Counted::row(at);
    match run(visit, row, counted, arguments).await {
        Ok(Done::Gathered) => Next::GoOn,
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

async fn fail(visit: &mut Visit<'_>, counted: Counted, failure: Failure) {
    visit.settle().await;
    visit.shared.metrics.count_failed(counted, failure.code);
    visit.replies.failure(&failure);
}

async fn run(
    visit: &mut Visit<'_>,
    row: &'static Row,
    counted: Counted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    if !row.takes(arguments.len()) {
        return Err(Failure::arity(row.spelling));
    }
    let shared = visit.shared;
    let caller = visit.session.admit(shared, row.needs, row.spelling)?;
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
        Name::Scan => keyspace::scan(visit, &admitted, arguments).await,
        Name::Auth => handshake::auth(visit, arguments).await,
        Name::Hello => handshake::hello(visit, arguments).await,
        Name::Ping => connection_commands::ping(visit, arguments).await,
        Name::Echo => connection_commands::echo(visit, arguments).await,
        Name::Select => connection_commands::select(visit, arguments).await,
        Name::Quit => connection_commands::quit(visit).await,
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
