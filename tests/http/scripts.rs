//! Golden scripts: requests and their responses as text, one script for each resource in `scripts/`. `UPDATE_GOLDENFILES=1 cargo test --test
//! it scripts` writes the responses. Review them as contract.
//!
//! A line `> METHOD PATH [BODY] [| FIELDS]` sends a JSON body, or a quoted text to import, and prints the status and the named fields of the
//! response; without the bar, all of it. IDs are numbered in the order in which they appear. A tag is an idempotency key.

use crate::service::{Answer, Service, json, request};
use axum::body::Body;
use goldenscript::{Context, Runner};
use http::Method;
use regex_lite::{Captures, Regex};
use serde_json::Value;
use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use tokio::runtime::{Builder, Runtime};

#[derive(goldenscript::Command)]
enum Step {
    /// Starts a new service, which has nothing.
    Start,
    Restart,
    /// Lets time pass, such as `8d 1h 30s`.
    Pass(Vec<String>),
    /// Prints the events since the last time, without numbers and times.
    Events,
    #[command(other)]
    Send(goldenscript::Command),
}

struct Script {
    runtime: Runtime,
    service: Option<Service>,
    ids: Vec<String>,
    /// The last printed event.
    event: u64,
    /// The problems that operations have answered.
    problems: BTreeSet<(String, String)>,
}

impl Script {
    fn follow(name: &str) -> BTreeSet<(String, String)> {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let service = Some(runtime.block_on(Service::start()));
        let mut script = Script {
            runtime,
            service,
            ids: Vec::new(),
            event: 0,
            problems: BTreeSet::new(),
        };
        goldenscript::run(&mut script, format!("tests/http/scripts/{name}")).unwrap();
        script.stop();
        script.problems
    }

    fn stop(&mut self) -> Service {
        let service = self.service.take().expect("the service runs");
        self.problems.extend(service.problems());
        service
    }

    fn service(&self) -> &Service {
        self.service.as_ref().expect("the service runs")
    }

    fn send(&mut self, line: &str, key: Option<&String>) -> String {
        let (sent, fields) = match line.split_once(" |") {
            Some((sent, fields)) => (sent, Some(fields)),
            None => (line, None),
        };
        let sent = (1..)
            .zip(&self.ids)
            .fold(sent.to_owned(), |sent, (number, id)| {
                sent.replace(&format!("<{number}>"), id)
            });
        let mut parts = sent.splitn(3, ' ');
        let method = parts.next().unwrap().parse::<Method>().unwrap();
        let path = parts.next().unwrap();
        let path = format!("/v1/{path}");
        let body = parts.next().map(|body| body.parse::<Value>().unwrap());
        let mut sent = match body {
            None => request(method, &path, &[], Body::empty()),
            Some(Value::String(lines)) => request(
                method,
                &path,
                &[("content-type", "text/plain")],
                Body::from(lines),
            ),
            Some(body) => json(method, &path, &[], &body),
        };
        if let Some(key) = key {
            sent.headers_mut()
                .insert("idempotency-key", key.parse().unwrap());
        }
        let answer = self.runtime.block_on(self.service().send(sent));
        self.number_ids(&describe(&answer, fields))
    }

    fn events(&mut self) -> String {
        let path = format!("/v1/events?after={}", self.event);
        let answer = self.runtime.block_on(self.service().get(&path));
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (200, "application/x-ndjson")
        );
        let mut text = String::new();
        for line in answer.text().lines() {
            let mut event: Value = serde_json::from_str(line).unwrap();
            let fields = event.as_object_mut().unwrap();
            self.event += 1;
            assert_eq!(fields.remove("seq"), Some(self.event.into()));
            assert!(fields.remove("at").unwrap().is_string());
            writeln!(text, "{event}").unwrap();
        }
        self.number_ids(&text)
    }

    fn number_ids(&mut self, text: &str) -> String {
        let ids = &mut self.ids;
        let number = |found: &Captures<'_>| {
            let known = ids.iter().position(|id| *id == found[0]);
            let at = known.unwrap_or_else(|| {
                ids.push(found[0].to_owned());
                ids.len() - 1
            });
            format!("<{}>", at + 1)
        };
        Regex::new(r"\b[0-9a-f]{32}\b")
            .unwrap()
            .replace_all(text, number)
            .into_owned()
    }
}

/// The status, the code and pointers of a problem, and the named fields.
fn describe(answer: &Answer, fields: Option<&str>) -> String {
    let mut text = answer.status.to_string();
    if answer.header("idempotency-replayed") == "true" {
        text.push_str(" replayed");
    }
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    if answer.status >= 400 {
        write!(text, " {}", body["code"].as_str().unwrap()).unwrap();
        for error in body["errors"].as_array().into_iter().flatten() {
            write!(text, " {}", error["pointer"].as_str().unwrap()).unwrap();
        }
    } else if fields.is_none() && !body.is_null() {
        write!(text, " {body}").unwrap();
    }
    for field in fields.into_iter().flat_map(str::split_ascii_whitespace) {
        match field.strip_prefix('@') {
            Some(header) => write!(text, " {header}={}", answer.header(header)).unwrap(),
            None => match body.pointer(&format!("/{}", field.replace('.', "/"))) {
                Some(value) => write!(text, " {field}={value}").unwrap(),
                None => write!(text, " no {field}").unwrap(),
            },
        }
    }
    text
}

impl Runner for Script {
    type Command = Step;

    fn run(&mut self, step: &Step, context: &Context) -> Result<String, Box<dyn Error>> {
        match step {
            Step::Start => {
                self.stop();
                self.service = Some(self.runtime.block_on(Service::start()));
                self.ids.clear();
                self.event = 0;
            }
            Step::Restart => {
                let service = self.stop();
                self.service = Some(self.runtime.block_on(service.restart()));
            }
            Step::Pass(times) => times
                .iter()
                .for_each(|time| self.service().pass(seconds(time))),
            Step::Events => return Ok(self.events()),
            Step::Send(line) => return Ok(self.send(&line.name, context.tags.first())),
        }
        Ok(String::new())
    }
}

fn seconds(time: &str) -> u64 {
    let (number, unit) = time.split_at(time.len() - 1);
    let unit = match unit {
        "s" => 1,
        "h" => 3_600,
        "d" => 86_400,
        _ => panic!("{time}"),
    };
    number.parse::<u64>().unwrap() * unit
}

/// The problems that operations have answered in all scripts, by the operation's id.
pub fn problems() -> BTreeSet<(String, String)> {
    let scripts = fs::read_dir("tests/http/scripts").unwrap();
    scripts
        .flat_map(|script| Script::follow(script.unwrap().file_name().to_str().unwrap()))
        .collect()
}

#[test]
fn campaigns_follow_script() {
    Script::follow("campaigns");
}

#[test]
fn coupons_follow_script() {
    Script::follow("coupons");
}

#[test]
fn eligibility_follows_script() {
    Script::follow("eligibility");
}

#[test]
fn events_follow_script() {
    Script::follow("events");
}

#[test]
fn forgetting_follows_script() {
    Script::follow("forgetting");
}

#[test]
fn idempotency_follows_script() {
    Script::follow("idempotency");
}

#[test]
fn imports_follow_script() {
    Script::follow("imports");
}

#[test]
fn line_ups_follow_script() {
    Script::follow("line_ups");
}

#[test]
fn open_pools_follow_script() {
    Script::follow("open_pools");
}

#[test]
fn redemptions_follow_script() {
    Script::follow("redemptions");
}

#[test]
fn uses_follow_script() {
    Script::follow("uses");
}

#[test]
fn spellings_follow_script() {
    Script::follow("spellings");
}

#[test]
fn statistics_follow_script() {
    Script::follow("statistics");
}
