//! Commands that concern nothing but the connection: PING, ECHO, SELECT, CLIENT, and MULTI, EXEC, DISCARD.

use super::failure::{Code, Failure};
use super::names;
use super::parser::Arguments;
use super::reserve::number;
use super::session::Transaction;
use super::visit::{Admitted, Done, Visit};

/// The version of RedisBloom whose replies ours are like.
const MODULE_VERSION: i64 = 20_802;

/// `PING [message]`. Clients and load balancers find out by it whether to go on with this node.
pub(super) async fn ping(visit: &mut Visit<'_>, arguments: Arguments<'_>) -> Result<Done, Failure> {
    visit.settle().await;
    let stopped = visit.shared.engine.has_stopped();
    if let Some(failure) = stopped.and_then(|status| Failure::unready(&status, true)) {
        return Err(failure);
    }
    match arguments.len() {
        1 => visit.replies.simple("PONG"),
        2 => visit.replies.bulk(arguments.at(1)),
        _ => return Err(Failure::arity("ping")),
    }
    Ok(Done::Answered)
}

/// `ECHO message`.
pub(super) async fn echo(visit: &mut Visit<'_>, arguments: Arguments<'_>) -> Result<Done, Failure> {
    visit.settle().await;
    visit.replies.bulk(arguments.at(1));
    Ok(Done::Answered)
}

/// `SELECT 0`.
pub(super) async fn select(visit: &mut Visit<'_>, arguments: Arguments<'_>) -> Result<Done, Failure> {
    visit.settle().await;
    match number(arguments.at(1)) {
        Some(0) => visit.replies.simple("OK"),
        Some(_) => return Err(Failure::err("DB index is out of range")),
        None => return Err(Failure::err("invalid DB index")),
    }
    Ok(Done::Answered)
}

/// `QUIT`.
pub(super) async fn quit(visit: &mut Visit<'_>) -> Result<Done, Failure> {
    visit.settle().await;
    visit.replies.simple("OK");
    Ok(Done::Ended)
}

/// `MULTI`.
pub(super) async fn multi(visit: &mut Visit<'_>) -> Result<Done, Failure> {
    if visit.session.transaction.is_some() {
        // As in Redis, this does not spoil the transaction.
        visit.replies.failure(&Failure::err("MULTI calls can not be nested"));
        return Ok(Done::Answered);
    }
    visit.settle().await;
    visit.session.transaction = Some(Transaction::default());
    visit.replies.simple("OK");
    Ok(Done::Answered)
}

/// `EXEC`: the connection executes the queued requests next, like any others.
pub(super) async fn exec(visit: &mut Visit<'_>) -> Result<Done, Failure> {
    let transaction = visit.session.transaction.take();
    let Transaction { requests, count, is_faulty } =
        transaction.ok_or_else(|| Failure::err("EXEC without MULTI"))?;
    if is_faulty {
        let text = "Transaction discarded because of previous errors.";
        return Err(Failure::new(Code::ExecAbort, text));
    }
    visit.settle().await;
    visit.replies.array(count);
    (visit.session.spliced, visit.session.counted) = (requests, count);
    Ok(Done::Answered)
}

/// `DISCARD`.
pub(super) async fn discard(visit: &mut Visit<'_>) -> Result<Done, Failure> {
    let transaction = visit.session.transaction.take();
    transaction.ok_or_else(|| Failure::err("DISCARD without MULTI"))?;
    visit.settle().await;
    visit.replies.simple("OK");
    Ok(Done::Answered)
}

/// `MODULE LIST`: clients look for the module of filters before they show one.
pub(super) async fn module(visit: &mut Visit<'_>, arguments: Arguments<'_>) -> Result<Done, Failure> {
    if !arguments.at(1).eq_ignore_ascii_case(b"LIST") {
        return Err(Failure::err("unknown subcommand. Try MODULE LIST."));
    }
    visit.settle().await;
    let replies = &mut visit.replies;
    replies.array(1);
    replies.map(2);
    replies.bulk(b"name");
    replies.bulk(b"bf");
    replies.bulk(b"ver");
    replies.integer(MODULE_VERSION);
    Ok(Done::Answered)
}

/// `CLIENT subcommand …`.
pub(super) async fn client(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    visit.settle().await;
    let subcommand = String::from_utf8_lossy(arguments.at(1)).to_ascii_lowercase();
    let arity = |wanted: usize| match arguments.len() == wanted {
        true => Ok(()),
        false => Err(Failure::arity(&format!("client|{subcommand}"))),
    };
    let (session, replies) = (&mut visit.session, &mut visit.replies);
    match subcommand.as_str() {
        "id" => {
            arity(2)?;
            replies.count(session.id);
        }
        "getname" => {
            arity(2)?;
            match &session.name[..] {
                [] => replies.null(),
                name => replies.bulk(name),
            }
        }
        "setname" => {
            arity(3)?;
            names::check(arguments.at(2))?;
            session.name = arguments.at(2).to_vec();
            replies.simple("OK");
        }
        "setinfo" => {
            arity(4)?;
            check_library(arguments.at(2), arguments.at(3))?;
            replies.simple("OK");
        }
        "info" => {
            arity(2)?;
            let (id, name) = (session.id, String::from_utf8_lossy(&session.name));
            let address = session.peer.map(|peer| peer.to_string()).unwrap_or_default();
            let (user, version) = (admitted.caller.name(), replies.protocol.number());
            replies.text(&format!("id={id} addr={address} name={name} db=0 user={user} resp={version}\n"));
        }
        // Connections are closed when they are idle longest and there are too many: there is nothing to switch off.
        "no-evict" | "no-touch" => {
            arity(3)?;
            let is_switch = |word: &&str| arguments.at(2).eq_ignore_ascii_case(word.as_bytes());
            ["on", "off"].iter().find(|word| is_switch(word)).ok_or_else(Failure::syntax)?;
            replies.simple("OK");
        }
        other => {
            return Err(Failure::err(format!("unknown subcommand '{other:.128}'. Try CLIENT HELP.")));
        }
    }
    Ok(Done::Answered)
}

/// Checks `CLIENT SETINFO`, which clients send to show which library they use. Nobody looks at it here.
fn check_library(attribute: &[u8], value: &[u8]) -> Result<(), Failure> {
    if !attribute.eq_ignore_ascii_case(b"LIB-NAME") && !attribute.eq_ignore_ascii_case(b"LIB-VER") {
        let attribute = String::from_utf8_lossy(attribute);
        return Err(Failure::err(format!("Unrecognized option '{attribute:.32}'")));
    }
    match value.iter().all(u8::is_ascii_graphic) {
        true => Ok(()),
        false => {
            Err(Failure::err("lib-name and lib-ver cannot contain spaces, newlines or special characters."))
        }
    }
}
