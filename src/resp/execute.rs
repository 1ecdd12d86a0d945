//! Finds a command, admits it, and has it done.

use super::command::{self, Name, Needs, Row, UNKNOWN};
use super::failure::Failure;
use super::parser::Arguments;
use super::session::{AdmittedCommand, Done, Visit};
use super::shared::RespContext;
use super::{connection_commands, filters, images, keyspace};
use crate::access::Scope;
use crate::engine::EngineStatus;
use std::ops::ControlFlow;

/// Executes the command of a request, or queues it in a transaction. A failure is its reply. Returns whether the connection continues.
pub async fn execute(
    visit: &mut Visit<'_>,
    arguments: Arguments<'_>,
    request: &[u8],
    is_inline: bool,
) -> ControlFlow<()> {
    let Some(row) = Row::find(arguments.at(0)) else {
        let name = String::from_utf8_lossy(arguments.at(0));
        fail(
            visit,
            UNKNOWN,
            Failure::err(format!("unknown command '{name:.128}'")),
        )
        .await;
        // An invalid line may be the head of an HTTP request, which a web page makes a browser send. The rest of it must not be parsed as
        // commands.
        return if is_inline {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        };
    };
    let done = run(visit, row, arguments, request).await;
    if matches!(done, Ok(Done::Answered | Done::Ended)) {
        visit.batch.counts.add(row.spelling, None);
    }
    match done {
        Ok(Done::Ended) => return ControlFlow::Break(()),
        Ok(Done::Answered | Done::Deferred) => {}
        Err(failure) => fail(visit, row.spelling, failure).await,
    }
    ControlFlow::Continue(())
}

async fn fail(visit: &mut Visit<'_>, command: &'static str, failure: Failure) {
    if let Some(transaction) = &mut visit.session.transaction {
        transaction.is_faulty = true;
    }
    visit.batch.settle().await;
    visit.batch.counts.add(command, Some(failure.code));
    visit.batch.replies.failure(&failure);
}

async fn run(
    visit: &mut Visit<'_>,
    row: &'static Row,
    arguments: Arguments<'_>,
    request: &[u8],
) -> Result<Done, Failure> {
    if !row.takes(arguments.len()) {
        return Err(Failure::arity(row.spelling));
    }
    let Visit {
        shared,
        session,
        batch,
    } = visit;
    let caller = session.admit(shared, row.needs, row.spelling)?;
    if let Some(transaction) = &mut session.transaction
        && !matches!(
            row.name,
            Name::Multi | Name::Exec | Name::Discard | Name::Quit
        )
    {
        if row.needs == Needs::Nothing {
            return Err(Failure::err("Command not allowed inside a transaction"));
        }
        transaction.queue(request)?;
        batch.replies.simple("QUEUED");
        return Ok(Done::Deferred);
    }
    if let Needs::Scope(scope) = row.needs {
        refuse_unless_ready(shared, scope)?;
    }
    let call = &mut AdmittedCommand {
        shared,
        session,
        batch,
        row,
        arguments,
        caller,
    };
    if !row.is_gathered() {
        call.batch.settle().await;
    }
    match row.name {
        Name::CfExists | Name::CfMExists | Name::CfCount => return filters::check(call).await,
        Name::CfAdd | Name::CfAddNx | Name::CfInsert | Name::CfInsertNx => {
            return filters::add(call).await;
        }
        Name::CfDel => return filters::remove(call).await,
        Name::CfReserve => filters::reserve(call).await?,
        Name::CfCompact => filters::compact(call)?,
        Name::CfInfo => filters::info(call)?,
        Name::CfScanDump => images::dump(call).await?,
        Name::CfLoadChunk => images::load(call).await?,
        Name::Del | Name::Unlink => filters::delete(call).await?,
        Name::Exists => keyspace::exists(call).await?,
        Name::Type => keyspace::type_of(call)?,
        Name::Ttl | Name::PTtl => keyspace::ttl(call)?,
        Name::DbSize => keyspace::size(call).await,
        Name::Memory => keyspace::memory(call)?,
        Name::Object => keyspace::object(call)?,
        Name::Scan => keyspace::scan(call).await?,
        Name::Auth => connection_commands::auth(call)?,
        Name::Hello => connection_commands::hello(call)?,
        Name::Ping => connection_commands::ping(call)?,
        Name::Echo => call.batch.replies.bulk(arguments.at(1)),
        Name::Select => connection_commands::select(call)?,
        Name::Quit => {
            call.batch.replies.simple("OK");
            return Ok(Done::Ended);
        }
        Name::Multi => connection_commands::multi(call),
        Name::Exec => connection_commands::exec(call)?,
        Name::Discard => connection_commands::discard(call)?,
        Name::Module => connection_commands::module(call)?,
        Name::Client => connection_commands::client(call)?,
        Name::Command => command::describe(call)?,
        Name::Info => connection_commands::info(call),
    }
    Ok(Done::Answered)
}

/// Rejects commands on filters while the service starts, and changes after storage has failed.
fn refuse_unless_ready(shared: &RespContext, scope: Scope) -> Result<(), Failure> {
    let status = shared.engine.status();
    match (Failure::unready(&status, shared.engine.is_shared()), status) {
        (Some(failure), _) => Err(failure),
        (None, EngineStatus::Failed(_)) if scope != Scope::Read => Err(Failure::READ_ONLY),
        (None, _) => Ok(()),
    }
}
