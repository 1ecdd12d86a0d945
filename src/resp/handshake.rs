//! HELLO and AUTH: which protocol a connection speaks, and whom it belongs to.

use super::failure::{Code, Failure};
use super::names;
use super::parser::Arguments;
use super::replies::Protocol;
use super::reserve::number;
use super::visit::{Done, Visit};

/// The version of Redis whose replies ours are like. Some clients derive from it what they may use.
pub const REDIS_VERSION: &str = "7.4.0";

/// The user whom Redis has without any configuration.
const DEFAULT_USER: &[u8] = b"default";

/// `AUTH key`, `AUTH user key`. The key alone says who it is, so any user will do.
pub(super) async fn auth(visit: &mut Visit<'_>, arguments: Arguments<'_>) -> Result<Done, Failure> {
    let (user, key) = match arguments.len() {
        2 => (None, arguments.at(1)),
        3 => (Some(arguments.at(1)), arguments.at(2)),
        _ => return Err(Failure::syntax()),
    };
    visit.settle().await;
    present(visit, user, key)?;
    visit.replies.simple("OK");
    Ok(Done::Answered)
}

fn present(visit: &mut Visit<'_>, user: Option<&[u8]>, key: &[u8]) -> Result<(), Failure> {
    if !visit.shared.access.entry.is_open() {
        return visit.session.present(visit.shared, key);
    }
    // As Redis does without a password.
    match user {
        None => {
            Err(Failure::err("AUTH <password> called without any password configured: auth.keys is empty"))
        }
        Some(DEFAULT_USER) => Ok(()),
        Some(_) => Err(Failure::new(Code::WrongPass, "invalid username-password pair or user is disabled.")),
    }
}

/// What HELLO asks for.
struct Hello<'a> {
    protocol: Protocol,
    /// User and key.
    auth: Option<(&'a [u8], &'a [u8])>,
    name: Option<&'a [u8]>,
}

impl<'a> Hello<'a> {
    /// Parses `[version [AUTH user key] [SETNAME name]]`.
    fn parse(arguments: Arguments<'a>, current: Protocol) -> Result<Self, Failure> {
        let mut hello = Self { protocol: current, auth: None, name: None };
        if !arguments.is_empty() {
            let version = number(arguments.at(0))
                .ok_or_else(|| Failure::err("Protocol version is not an integer or out of range"))?;
            hello.protocol = match version {
                2 => Protocol::Two,
                3 => Protocol::Three,
                _ => return Err(Failure::new(Code::NoProto, "unsupported protocol version")),
            };
        }
        let mut at = 1;
        while at < arguments.len() {
            let (option, left) = (arguments.at(at), arguments.len() - at - 1);
            if option.eq_ignore_ascii_case(b"AUTH") && left >= 2 {
                hello.auth = Some((arguments.at(at + 1), arguments.at(at + 2)));
                at += 3;
            } else if option.eq_ignore_ascii_case(b"SETNAME") && left >= 1 {
                names::check(arguments.at(at + 1))?;
                hello.name = Some(arguments.at(at + 1));
                at += 2;
            } else {
                let option = String::from_utf8_lossy(option);
                return Err(Failure::err(format!("Syntax error in HELLO option '{option:.32}'")));
            }
        }
        Ok(hello)
    }
}

/// `HELLO [version [AUTH user key] [SETNAME name]]`.
pub(super) async fn hello(visit: &mut Visit<'_>, arguments: Arguments<'_>) -> Result<Done, Failure> {
    visit.settle().await;
    let hello = Hello::parse(arguments.from(1), visit.replies.protocol)?;
    if let Some((user, key)) = hello.auth {
        present(visit, Some(user), key)?;
    }
    if !visit.session.is_known() {
        return Err(Failure::new(
            Code::NoAuth,
            "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be \
             used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = hello.name {
        visit.session.name = name.to_vec();
    }
    let (replies, id) = (&mut visit.replies, visit.session.id);
    replies.protocol = hello.protocol;
    replies.map(7);
    for (field, value) in [("server", "cuckood"), ("version", REDIS_VERSION)] {
        replies.bulk(field.as_bytes());
        replies.bulk(value.as_bytes());
    }
    replies.bulk(b"proto");
    replies.integer(hello.protocol.number());
    replies.bulk(b"id");
    replies.count(id);
    for (field, value) in [("mode", "standalone"), ("role", "master")] {
        replies.bulk(field.as_bytes());
        replies.bulk(value.as_bytes());
    }
    replies.bulk(b"modules");
    replies.array(0);
    Ok(Done::Answered)
}
