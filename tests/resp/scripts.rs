//! Golden scripts: commands and their replies as text, in `scripts/`. `UPDATE_GOLDENFILES=1 cargo test --test it resp::scripts` writes the
//! replies. Review them as contract.
//!
//! A line `> COMMAND [| FIELDS]` prints the reply or, after the bar, the named fields of a list, map or text. A prefix names another
//! connection.

use super::access::keys;
use super::service::{Service, Setup};
use crate::redis_client::{Connection, Reply, line};
use goldenscript::{Context, Runner};
use std::collections::HashMap;
use std::error::Error;

#[derive(goldenscript::Command)]
enum Step {
    /// Starts a new service, which has nothing.
    Start,
    /// Starts a new service with the keys `reader`, `writer`, which is limited to `eu-`, and `root`.
    StartWithKeys,
    #[command(other)]
    Send(goldenscript::Command),
}

struct Script {
    service: Service,
    connections: HashMap<Option<String>, Connection>,
}

impl Script {
    fn follow(name: &str) {
        let mut script = Script {
            service: Service::start(),
            connections: HashMap::new(),
        };
        goldenscript::run(&mut script, format!("tests/resp/scripts/{name}")).unwrap();
    }

    fn start(&mut self, setup: Setup) {
        self.connections.clear();
        self.service = Service::with(setup);
    }
}

impl Runner for Script {
    type Command = Step;

    fn run(&mut self, step: &Step, context: &Context) -> Result<String, Box<dyn Error>> {
        match step {
            Step::Start => self.start(Setup::default()),
            Step::StartWithKeys => self.start(Setup {
                auth: keys(),
                ..Setup::default()
            }),
            Step::Send(command) => {
                let connect = || self.service.connect();
                let connection = self
                    .connections
                    .entry(context.prefix.clone())
                    .or_insert_with(connect);
                let (command, fields) = match command.name.split_once(" |") {
                    Some((command, fields)) => (command, Some(fields.trim())),
                    None => (command.name.as_str(), None),
                };
                connection.send(&line(&command.replace("\\n", "\n")));
                return Ok(match (connection.reply(), fields) {
                    (None, _) => "closed".to_owned(),
                    (Some(reply), None) => describe(&reply),
                    (Some(reply), Some(fields)) => described_fields(&reply, fields),
                });
            }
        }
        Ok(String::new())
    }
}

fn describe(reply: &Reply) -> String {
    let all = |items: &[Reply]| items.iter().map(describe).collect::<Vec<_>>().join(", ");
    match reply {
        Reply::Simple(text) => text.clone(),
        Reply::Error(text) => format!("-{text}"),
        Reply::Integer(number) => number.to_string(),
        Reply::Boolean(value) => value.to_string(),
        Reply::Double(number) => format!("{number:?}"),
        Reply::Bulk(_) | Reply::Text(_) => format!("{:?}", reply.text()),
        Reply::Null => "null".to_owned(),
        Reply::Array(items) => format!("[{}]", all(items)),
        Reply::Set(items) => format!("~[{}]", all(items)),
        Reply::Map(fields) => {
            let fields = fields
                .iter()
                .map(|(field, value)| format!("{}: {}", describe(field), describe(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
    }
}

/// The kind of a reply, and the named fields. Those of a text are words such as `user=reader`.
fn described_fields(reply: &Reply, fields: &str) -> String {
    let kind = match reply {
        Reply::Map(_) => "map",
        Reply::Array(_) => "list",
        Reply::Bulk(_) => "bulk",
        Reply::Text(_) => "text",
        other => panic!("{other:?} has no fields"),
    };
    let values = fields
        .split(", ")
        .filter(|field| !field.is_empty())
        .map(|field| match reply {
            Reply::Bulk(_) | Reply::Text(_) => {
                let text = reply.text();
                let start = format!("{field}=");
                format!(
                    " {}",
                    text.split_whitespace()
                        .find(|word| word.starts_with(&start))
                        .unwrap()
                )
            }
            _ => format!(" {field}={}", describe(reply.field(field))),
        });
    kind.to_owned() + &values.collect::<String>()
}

#[test]
fn access_follows_script() {
    Script::follow("access");
}

#[test]
fn commands_follow_script() {
    Script::follow("commands");
}

#[test]
fn keys_follow_script() {
    Script::follow("keys");
}

#[test]
fn transactions_follow_script() {
    Script::follow("transactions");
}
