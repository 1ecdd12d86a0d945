//! INFO: the service's figures, in Redis' form.

use super::failure::Failure;
use super::handshake::REDIS_VERSION;
use super::parser::Arguments;
use super::visit::{Admitted, Done, Visit};
use crate::access::Scope;
use crate::engine::Status;
use std::fmt::Write as _;
use std::time::Instant;

const SECTIONS: [&str; 7] =
    ["Server", "Clients", "Memory", "Persistence", "Stats", "Replication", "Keyspace"];

/// `INFO [section …]`. What is in the memory is for those who may read.
pub(super) async fn info(
    visit: &mut Visit<'_>,
    admitted: &Admitted,
    arguments: Arguments<'_>,
) -> Result<Done, Failure> {
    visit.settle().await;
    let asked = arguments.from(1);
    let is_asked = |section: &&&str| {
        asked.is_empty()
            || asked.iter().any(|name| {
                ["all", "default", "everything", section]
                    .iter()
                    .any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
            })
    };
    let may_read = admitted.caller.may(Scope::Read);
    let mut text = String::new();
    for section in SECTIONS.iter().filter(is_asked) {
        let Some(lines) = lines(visit, section, may_read) else { continue };
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        // Nothing goes wrong when text is written to memory.
        let _ = write!(text, "# {section}\r\n");
        for (field, value) in lines {
            let _ = write!(text, "{field}:{value}\r\n");
        }
    }
    visit.replies.text(&text);
    Ok(Done::Answered)
}

fn lines(visit: &Visit<'_>, section: &str, may_read: bool) -> Option<Vec<(&'static str, String)>> {
    let (engine, metrics) = (&visit.shared.engine, &visit.shared.metrics);
    let figures = visit.shared.figures.read(Instant::now(), || engine.info());
    Some(match section {
        "Server" => vec![
            ("redis_version", REDIS_VERSION.to_owned()),
            ("redis_mode", "standalone".to_owned()),
            ("cuckood_version", env!("CARGO_PKG_VERSION").to_owned()),
            ("uptime_in_seconds", figures.uptime_seconds.to_string()),
        ],
        "Clients" => vec![("connected_clients", metrics.connections.get().to_string())],
        "Memory" if may_read => vec![
            ("used_memory", (figures.tables_bytes + figures.records_bytes).to_string()),
            ("maxmemory", figures.memory_max_bytes.to_string()),
            ("maxmemory_policy", "noeviction".to_owned()),
        ],
        "Persistence" => {
            let is_loading = matches!(engine.status(), Status::Recovering(_));
            vec![("loading", u8::from(is_loading).to_string())]
        }
        "Stats" => vec![
            ("total_connections_received", metrics.connections_opened.get().to_string()),
            ("total_commands_processed", metrics.commands().to_string()),
        ],
        "Replication" => vec![("role", "master".to_owned()), ("connected_slaves", "0".to_owned())],
        "Keyspace" if may_read => {
            vec![("db0", format!("keys={},expires=0,avg_ttl=0", figures.campaigns + figures.coupons))]
        }
        _ => return None,
    })
}
