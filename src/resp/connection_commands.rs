//! PING, ECHO, SELECT and CLIENT: what concerns nothing but the connection.

use super::failure::Failure;
use super::names;
use super::parser::Arguments;
use super::reserve::number;
use super::visit::{Admitted, Done, Visit};

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
