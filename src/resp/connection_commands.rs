//! Commands that concern the connection and the service: HELLO, AUTH, PING, SELECT, CLIENT, MODULE, INFO, and MULTI, EXEC, DISCARD.

use super::failure::{ErrorCode, Failure};
use super::help;
use super::parser::{Arguments, integer};
use super::replies::RespVersion;
use super::session::{AdmittedCommand, Session, Transaction};
use super::shared::RespContext;
use crate::access::{Caller, Scope};
use crate::engine::EngineStatus;
use cuckood_state::domain::Kind;
use std::time::Instant;

/// The version of RedisBloom whose replies ours are like.
const MODULE_VERSION: i64 = 20_802;

/// The version of Redis that the replies match. Some clients derive their features from it.
pub const REDIS_VERSION: &str = "7.4.0";

/// The default user of Redis.
const DEFAULT_USER: &[u8] = b"default";

/// Maximum length of a connection's name, and of the name and version of its library, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// `AUTH key`, `AUTH user key`. The key identifies the caller, so any user is accepted.
pub(super) fn auth(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    let arguments = call.arguments;
    match arguments.len() {
        2 => present(call, None, arguments.at(1))?,
        3 => present(call, Some(arguments.at(1)), arguments.at(2))?,
        _ => return Err(Failure::SYNTAX),
    }
    call.batch.replies.simple("OK");
    Ok(())
}

fn present(
    call: &mut AdmittedCommand<'_, '_>,
    user: Option<&[u8]>,
    key: &[u8],
) -> Result<(), Failure> {
    if !call.shared.access.is_open() {
        return call.session.present(call.shared, key);
    }
    // As in Redis without a password.
    match user {
        None => Err(Failure::err(
            "AUTH <password> called without any password configured: auth.keys is empty",
        )),
        Some(DEFAULT_USER) => Ok(()),
        Some(_) => Err(Failure::WRONG_PASSWORD),
    }
}

/// `HELLO [version [AUTH user key] [SETNAME name]]`.
pub(super) fn hello(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    let mut protocol = call.batch.replies.protocol;
    let mut auth = None;
    let mut name = None;
    if call.arguments.len() > 1 {
        protocol = match integer(call.arguments.at(1)) {
            Some(2) => RespVersion::Two,
            Some(3) => RespVersion::Three,
            Some(_) => {
                return Err(Failure::new(
                    ErrorCode::NOPROTO,
                    "unsupported protocol version",
                ));
            }
            None => {
                return Err(Failure::err(
                    "Protocol version is not an integer or out of range",
                ));
            }
        };
    }
    let mut rest = call.arguments.from(2);
    while !rest.is_empty() {
        if rest.at(0).eq_ignore_ascii_case(b"AUTH") && rest.len() > 2 {
            auth = Some((rest.at(1), rest.at(2)));
            rest = rest.from(3);
        } else if rest.at(0).eq_ignore_ascii_case(b"SETNAME") && rest.len() > 1 {
            check_name(rest.at(1))?;
            name = Some(rest.at(1));
            rest = rest.from(2);
        } else {
            let option = String::from_utf8_lossy(rest.at(0));
            return Err(Failure::err(format!(
                "Syntax error in HELLO option '{option:.32}'"
            )));
        }
    }
    if let Some((user, key)) = auth {
        present(call, Some(user), key)?;
    }
    if !call.session.is_known() {
        return Err(Failure::new(
            ErrorCode::NOAUTH,
            "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be \
             used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        call.session.name = name.to_vec();
    }
    let replies = &mut call.batch.replies;
    replies.protocol = protocol;
    replies.map(7);
    replies.words(["server", "cuckood", "version", REDIS_VERSION, "proto"]);
    replies.integer(protocol as i64);
    replies.bulk(b"id");
    replies.count(call.session.id);
    replies.words(["mode", "standalone", "role", "master", "modules"]);
    replies.array(0);
    Ok(())
}

/// Rejects an invalid name of a connection.
fn check_name(name: &[u8]) -> Result<(), Failure> {
    check_label("Client names", name)
}

/// Rejects a string that CLIENT INFO can't show, or that is too long.
fn check_label(what: &str, value: &[u8]) -> Result<(), Failure> {
    if value.len() > NAME_BYTES_MAX {
        return Err(Failure::err(format!(
            "{what} cannot be longer than {NAME_BYTES_MAX} bytes."
        )));
    }
    match value.iter().all(u8::is_ascii_graphic) {
        true => Ok(()),
        false => Err(Failure::err(format!(
            "{what} cannot contain spaces, newlines or special characters."
        ))),
    }
}

/// `PING [message]`. Clients and load balancers check with it whether this node can continue.
pub(super) fn ping(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    let stopped = call.shared.engine.has_stopped();
    if let Some(failure) = stopped.and_then(|status| Failure::unready(&status, true)) {
        return Err(failure);
    }
    match call.arguments.len() {
        1 => call.batch.replies.simple("PONG"),
        2 => call.batch.replies.bulk(call.arguments.at(1)),
        _ => return Err(Failure::arity("ping")),
    }
    Ok(())
}

/// `SELECT 0`.
pub(super) fn select(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    match integer(call.arguments.at(1)) {
        Some(0) => call.batch.replies.simple("OK"),
        Some(_) => return Err(Failure::err("DB index is out of range")),
        None => return Err(Failure::err("invalid DB index")),
    }
    Ok(())
}

/// `MULTI`.
pub(super) fn multi(call: &mut AdmittedCommand<'_, '_>) {
    if call.session.transaction.is_some() {
        // As in Redis, this does not abort the transaction.
        return call
            .batch
            .replies
            .failure(&Failure::err("MULTI calls can not be nested"));
    }
    call.session.transaction = Some(Transaction::default());
    call.batch.replies.simple("OK");
}

/// `EXEC`: the connection executes the queued requests next, like any others.
pub(super) fn exec(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    let transaction = call.session.transaction.take();
    let Transaction {
        requests,
        count,
        is_faulty,
    } = transaction.ok_or_else(|| Failure::err("EXEC without MULTI"))?;
    if is_faulty {
        return Err(Failure::new(
            ErrorCode::EXECABORT,
            "Transaction discarded because of previous errors.",
        ));
    }
    call.batch.replies.array(count);
    (call.session.spliced, call.session.counted) = (requests, count);
    Ok(())
}

/// `DISCARD`.
pub(super) fn discard(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    call.session
        .transaction
        .take()
        .ok_or_else(|| Failure::err("DISCARD without MULTI"))?;
    call.batch.replies.simple("OK");
    Ok(())
}

/// `MODULE LIST`: clients check for the module of filters before they display one.
pub(super) fn module(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    let replies = &mut call.batch.replies;
    let subcommand = String::from_utf8_lossy(call.arguments.at(1)).to_ascii_lowercase();
    match (subcommand.as_str(), call.arguments.len()) {
        ("list", 2) => {
            replies.array(1);
            replies.map(2);
            replies.words(["name", "bf", "ver"]);
            replies.integer(MODULE_VERSION);
        }
        ("help", 2) => help::MODULE.help(replies),
        (known @ ("list" | "help"), _) => return Err(Failure::arity(&format!("module|{known}"))),
        (other, _) => return Err(help::MODULE.unknown(other)),
    }
    Ok(())
}

/// Describes the connection for CLIENT INFO: the fields of Redis 7.2 that exist here, in Redis' order.
fn description(call: &AdmittedCommand<'_, '_>, subcommand: &str) -> String {
    let Session {
        id,
        peer,
        name,
        library,
        since,
        ..
    } = &*call.session;
    let address = peer.map(|peer| peer.to_string()).unwrap_or_default();
    let [name, lib_name, lib_ver] =
        [name, &library[0], &library[1]].map(|text| String::from_utf8_lossy(text));
    let age = since.map_or(0, |since| since.elapsed().as_secs());
    let user = call.caller.name();
    let version = call.batch.replies.protocol as i64;
    format!(
        "id={id} addr={address} name={name} age={age} idle=0 flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 events=r \
         cmd=client|{subcommand} user={user} redir=-1 resp={version} lib-name={lib_name} lib-ver={lib_ver}\n"
    )
}

/// Whether CLIENT LIST with these options lists this connection. It lists no others: a client must not learn of other clients.
fn is_listed(options: Arguments<'_>, id: u64) -> Result<bool, Failure> {
    if options.is_empty() {
        return Ok(true);
    }
    if options.at(0).eq_ignore_ascii_case(b"TYPE") && options.len() == 2 {
        let requested = String::from_utf8_lossy(options.at(1));
        return match requested.to_ascii_lowercase().as_str() {
            "normal" => Ok(true),
            "master" | "replica" | "slave" | "pubsub" => Ok(false),
            _ => Err(Failure::err(format!(
                "Unknown client type '{requested:.32}'"
            ))),
        };
    }
    if options.at(0).eq_ignore_ascii_case(b"ID") && options.len() > 1 {
        let ids: Option<Vec<i64>> = options.from(1).iter().map(integer).collect();
        let ids = ids.ok_or_else(|| Failure::err("Invalid client ID"))?;
        return Ok(ids
            .into_iter()
            .any(|listed| u64::try_from(listed) == Ok(id)));
    }
    Err(Failure::SYNTAX)
}

/// `CLIENT subcommand …`.
pub(super) fn client(call: &mut AdmittedCommand<'_, '_>) -> Result<(), Failure> {
    let arguments = call.arguments;
    let subcommand = String::from_utf8_lossy(arguments.at(1)).to_ascii_lowercase();
    match (subcommand.as_str(), arguments.len()) {
        ("help", 2) => help::CLIENT.help(&mut call.batch.replies),
        ("id", 2) => call.batch.replies.count(call.session.id),
        ("getname", 2) if call.session.name.is_empty() => call.batch.replies.null(),
        ("getname", 2) => call.batch.replies.bulk(&call.session.name),
        ("info", 2) => {
            let described = description(call, "info");
            call.batch.replies.text(&described);
        }
        ("list", _) => {
            let listed = match is_listed(arguments.from(2), call.session.id)? {
                true => description(call, "list"),
                false => String::new(),
            };
            call.batch.replies.text(&listed);
        }
        ("setname", 3) => {
            check_name(arguments.at(2))?;
            call.session.name = arguments.at(2).to_vec();
            call.batch.replies.simple("OK");
        }
        ("setinfo", 4) => {
            check_label("lib-name and lib-ver", arguments.at(3))?;
            let attribute = String::from_utf8_lossy(arguments.at(2));
            let [name, version] = &mut call.session.library;
            match attribute.to_ascii_lowercase().as_str() {
                "lib-name" => *name = arguments.at(3).to_vec(),
                "lib-ver" => *version = arguments.at(3).to_vec(),
                _ => {
                    return Err(Failure::err(format!(
                        "Unrecognized option '{attribute:.32}'"
                    )));
                }
            }
            call.batch.replies.simple("OK");
        }
        // If there are too many connections, the least active are closed. No connection is exempt.
        ("no-evict" | "no-touch", 3) => {
            let switch = arguments.at(2).to_ascii_lowercase();
            match switch.as_slice() {
                b"on" | b"off" => call.batch.replies.simple("OK"),
                _ => return Err(Failure::SYNTAX),
            }
        }
        (
            known @ ("help" | "id" | "getname" | "info" | "setname" | "setinfo" | "no-evict"
            | "no-touch"),
            _,
        ) => {
            return Err(Failure::arity(&format!("client|{known}")));
        }
        (other, _) => return Err(help::CLIENT.unknown(other)),
    }
    Ok(())
}

/// `INFO [section …]`: the service's metrics, in Redis' form. Sizes and counts of filters require the scope `read`.
pub(super) fn info(call: &mut AdmittedCommand<'_, '_>) {
    call.batch.turn.note_long();
    let mut texts = Vec::new();
    for section in InfoSection::ALL {
        if section.is_requested(call.arguments.from(1)) && section.is_allowed(&call.caller) {
            texts.push(format!("# {section:?}\r\n{}", section.lines(call)));
        }
    }
    call.batch.replies.text(&texts.join("\r\n"));
}

/// A section of INFO. Its heading is the name of the variant.
#[derive(Clone, Copy, Debug)]
enum InfoSection {
    Server,
    Clients,
    Memory,
    Persistence,
    Stats,
    Replication,
    Cluster,
    Keyspace,
}

impl InfoSection {
    /// All sections, in Redis' order.
    const ALL: [Self; 8] = [
        Self::Server,
        Self::Clients,
        Self::Memory,
        Self::Persistence,
        Self::Stats,
        Self::Replication,
        Self::Cluster,
        Self::Keyspace,
    ];

    /// Whether the arguments of INFO name this section, or all.
    fn is_requested(self, arguments: Arguments<'_>) -> bool {
        let section = format!("{self:?}").to_ascii_lowercase();
        for name in arguments.iter() {
            let name = name.to_ascii_lowercase();
            if name == section.as_bytes()
                || matches!(name.as_slice(), b"all" | b"default" | b"everything")
            {
                return true;
            }
        }
        arguments.is_empty()
    }

    fn is_allowed(self, caller: &Caller) -> bool {
        match self {
            Self::Memory | Self::Keyspace => caller.may(Scope::Read),
            Self::Server
            | Self::Clients
            | Self::Persistence
            | Self::Stats
            | Self::Replication
            | Self::Cluster => true,
        }
    }

    /// Returns the lines below the heading.
    fn lines(self, call: &AdmittedCommand<'_, '_>) -> String {
        let RespContext {
            engine,
            metrics,
            figures,
            options,
            run_id,
            ..
        } = call.shared;
        match self {
            Self::Server => format!(
                "redis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\narch_bits:{}\r\nprocess_id:{}\r\nrun_id:{run_id}\r\n\
                 tcp_port:{}\r\ncuckood_version:{}\r\nuptime_in_seconds:{}\r\n",
                usize::BITS,
                std::process::id(),
                options.port,
                env!("CARGO_PKG_VERSION"),
                figures
                    .read(Instant::now(), || engine.info())
                    .uptime_seconds,
            ),
            Self::Clients => format!("connected_clients:{}\r\n", metrics.connections.get()),
            Self::Memory => {
                let info = figures.read(Instant::now(), || engine.info());
                let used = info.tables_bytes + info.records_bytes;
                let max = engine.options().memory_max_bytes;
                format!("used_memory:{used}\r\nmaxmemory:{max}\r\nmaxmemory_policy:noeviction\r\n")
            }
            Self::Persistence => {
                format!(
                    "loading:{}\r\n",
                    u8::from(matches!(engine.status(), EngineStatus::Recovering(_)))
                )
            }
            Self::Stats => format!(
                "total_connections_received:{}\r\ntotal_commands_processed:{}\r\n",
                metrics.connections_opened.get(),
                metrics.commands_total.get(),
            ),
            Self::Replication => "role:master\r\nconnected_slaves:0\r\n".to_owned(),
            // Nodes that share a log are not a Redis cluster: each has all keys.
            Self::Cluster => "cluster_enabled:0\r\n".to_owned(),
            Self::Keyspace => {
                let keys = engine.view().count(Kind::Campaign) + engine.view().count(Kind::Coupon);
                format!("db0:keys={keys},expires=0,avg_ttl=0\r\n")
            }
        }
    }
}
