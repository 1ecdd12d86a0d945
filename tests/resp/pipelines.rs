//! Commands that arrive together: replies in order, related commands joined, and the same result as one by one.

use super::service::{Service, Setup, eventually};
use crate::redis_client::{Connection, Reply, encoded, line};
use cuckood::resp::RespOptions;
use cuckood_log::testing::memory_log::MemoryLog;
use cuckood_state::domain::Kind;
use proptest::prelude::*;
use std::cell::RefCell;
use std::time::Duration;

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(24)
}

fn lines(lines: &[String]) -> impl Iterator<Item = &str> {
    lines.iter().map(String::as_str)
}

#[test]
fn pipelined_changes_form_one_log_entry() {
    let service = Service::start();
    let client = &mut service.connect();
    assert_eq!(client.call("CF.RESERVE spring 10000"), Reply::ok());
    let before = service.engine.info().last_seq.0;
    let adds: Vec<String> = (0..500)
        .map(|number| format!("CF.ADD spring u{number}"))
        .collect();
    assert!(
        client
            .pipeline(lines(&adds))
            .iter()
            .all(|reply| *reply == Reply::Integer(1))
    );
    // They are read in a few pieces, perhaps.
    let entries = service.engine.info().last_seq.0 - before;
    assert!((1..=20).contains(&entries), "{entries}");
    let view = service.view(Kind::Campaign, "spring");
    assert_eq!(view.describe(service.engine.now()).stats.items, 500);
}

#[test]
fn pipelined_read_sees_earlier_write() {
    let service = Service::start();
    let client = &mut service.connect();
    let replies = client.pipeline([
        "CF.EXISTS spring u1",
        "CF.ADD spring u1",
        "CF.EXISTS spring u1",
        "CF.ADD coupon:codes K1",
        "CF.ADD spring u1",
        "CF.COUNT spring u1",
        "CF.DEL spring u1",
        "CF.DEL spring u1",
        "CF.DEL spring u1",
        "CF.MEXISTS coupon:codes K1 K2",
        "NONSENSE",
        "CF.EXISTS spring u1",
        "EXISTS spring coupon:codes",
        "DEL spring",
        "CF.EXISTS coupon:codes K1",
        "CF.ADD spring u2",
        "CF.EXISTS spring u1",
        "CF.EXISTS spring u2",
        "PING",
    ]);
    let integer = Reply::Integer;
    assert_eq!(
        replies,
        [
            integer(0),
            integer(1),
            integer(1),
            integer(1),
            integer(1),
            integer(2),
            integer(1),
            integer(1),
            integer(0),
            Reply::integers(&[1, 0]),
            Reply::Error("ERR unknown command 'NONSENSE'".into()),
            integer(0),
            integer(2),
            integer(1),
            integer(1),
            integer(1),
            integer(0),
            integer(1),
            Reply::Simple("PONG".into()),
        ]
    );
}

#[test]
fn fitting_adds_of_full_batch_succeed() {
    let service = Service::start();
    let client = &mut service.connect();
    assert_eq!(client.call("CF.RESERVE full 40 EXPANSION 0"), Reply::ok());
    let mut commands: Vec<String> = (0..200)
        .map(|number| format!("CF.ADD full u{number}"))
        .collect();
    commands.push("CF.DEL full u0".into());
    commands.push("CF.ADD full last".into());
    let replies = client.pipeline(lines(&commands));
    let (adds, [deleted, last]) = replies.split_at(200) else {
        panic!("{} replies", replies.len())
    };
    let added = adds
        .iter()
        .filter(|reply| **reply == Reply::Integer(1))
        .count();
    assert!((40..200).contains(&added), "{added}");
    assert!(
        adds[..40].iter().all(|reply| *reply == Reply::Integer(1)),
        "{adds:?}"
    );
    assert!(
        adds.iter()
            .all(|reply| *reply == Reply::Integer(1) || reply.error() == "ERR Filter is full")
    );
    assert_eq!(deleted, &Reply::Integer(1));
    let in_it = added as i64 - 1 + i64::from(*last == Reply::Integer(1));
    assert_eq!(
        client
            .call("CF.INFO full")
            .field("Number of items inserted"),
        &Reply::Integer(in_it)
    );
}

#[test]
fn retried_adds_run_concurrently() {
    let log = MemoryLog::new();
    let service = Service::with(Setup {
        log: Some(log.clone()),
        ..Setup::default()
    });
    let client = &mut service.connect();
    assert_eq!(client.call("CF.RESERVE full 4 EXPANSION 0"), Reply::ok());
    log.hold();
    let adds: Vec<u8> = (0..200)
        .flat_map(|number| line(&format!("CF.ADD full v{number}")))
        .collect();
    assert!(client.send(&adds));
    eventually("all together", || log.held() == 1);
    log.commit_first(1);
    // Nothing is answered before.
    for _ in 0..3 {
        eventually("one by one", || log.held() == 64);
        log.commit_first(64);
    }
    eventually("the last ones", || log.held() == 8);
    log.go_on();
    for _ in 0..200 {
        let reply = client.reply().unwrap();
        assert!(
            reply == Reply::Integer(1) || reply.error() == "ERR Filter is full",
            "{reply:?}"
        );
    }
}

#[test]
fn overdue_write_reports_unknown_outcome() {
    let log = MemoryLog::new();
    let resp = RespOptions {
        request_timeout: Duration::from_millis(1),
        ..RespOptions::default()
    };
    let service = Service::with(Setup {
        log: Some(log.clone()),
        resp,
        ..Setup::default()
    });
    let client = &mut service.connect();
    let unknown = "MISCONF the response took too long; whether the write took effect is unknown";
    log.hold();
    assert_eq!(client.call("CF.RESERVE spring 1000").error(), unknown);
    log.go_on();
    eventually("it took effect", || {
        client.call("EXISTS spring") == Reply::Integer(1)
    });
    log.hold();
    let replies = client.pipeline(["CF.ADD spring u1", "CF.ADD spring u2", "PING"]);
    assert_eq!((replies[0].error(), replies[1].error()), (unknown, unknown));
    assert_eq!(replies[2], Reply::Simple("PONG".into()));
    log.go_on();
    eventually("it took effect", || {
        client.call("CF.MEXISTS spring u1 u2") == Reply::integers(&[1, 1])
    });
}

#[test]
fn many_filters_change_concurrently() {
    let service = Service::start();
    let client = &mut service.connect();
    let adds: Vec<String> = (0..600)
        .map(|number| format!("CF.ADD f{} u{number}", number % 150))
        .collect();
    assert!(
        client
            .pipeline(lines(&adds))
            .iter()
            .all(|reply| *reply == Reply::Integer(1))
    );
    let adds: Vec<String> = (0..600)
        .map(|number| format!("CF.ADD f{} v{number}", number % 150))
        .collect();
    assert!(
        client
            .pipeline(lines(&adds))
            .iter()
            .all(|reply| *reply == Reply::Integer(1))
    );
    for number in [0, 77, 149] {
        let view = service.view(Kind::Campaign, &format!("f{number}"));
        assert_eq!(view.describe(service.engine.now()).stats.items, 8);
    }
}

#[test]
fn long_pipeline_is_answered_during_arrival() {
    let service = Service::start();
    let mut client = service.connect();
    const COMMANDS: usize = 50_000;
    let bytes = line("CF.EXISTS spring u1").repeat(COMMANDS);
    assert_eq!(client.call("CF.ADD spring u1"), Reply::Integer(1));
    let mut sender = client.other_half();
    let sending = std::thread::spawn(move || sender.send(&bytes));
    for _ in 0..COMMANDS {
        assert_eq!(client.reply(), Some(Reply::Integer(1)));
    }
    assert!(sending.join().unwrap());
}

/// A command on strict filters, whose answers follow from the commands alone.
fn command() -> impl Strategy<Value = String> {
    let key = || (0..3).prop_map(|number| format!("coupon:f{number}"));
    let item = || (0..6).prop_map(|number| format!("K{number}"));
    let items = || prop::collection::vec(item(), 1..4).prop_map(|items| items.join(" "));
    prop_oneof![
        8 => (prop::sample::select(vec!["CF.ADD", "CF.ADDNX", "CF.DEL", "CF.EXISTS", "CF.COUNT"]), key(), item())
            .prop_map(|(command, key, item)| format!("{command} {key} {item}")),
        4 => (prop::sample::select(vec!["CF.INSERT", "CF.INSERTNX"]), key(), items())
            .prop_map(|(command, key, items)| format!("{command} {key} ITEMS {items}")),
        3 => (key(), items()).prop_map(|(key, items)| format!("CF.MEXISTS {key} {items}")),
        1 => key().prop_map(|key| format!("DEL {key}")),
        1 => key().prop_map(|key| format!("CF.RESERVE {key} 1000")),
        1 => key().prop_map(|key| format!("EXISTS {key}")),
        1 => Just("PING".to_owned()),
        1 => Just("CF.ADD".to_owned()),
    ]
}

fn one_by_one(client: &mut Connection, commands: &[String]) -> Vec<Reply> {
    commands
        .iter()
        .map(|command| client.call(command))
        .collect()
}

/// Sends all at once, in two writes that tear a command, and reads all answers.
fn together(client: &mut Connection, commands: &[String], cut: usize) -> Vec<Reply> {
    let bytes: Vec<u8> = commands
        .iter()
        .flat_map(|command| encoded(&command.split(' ').map(str::as_bytes).collect::<Vec<_>>()))
        .collect();
    let (first, second) = bytes.split_at(cut % (bytes.len() + 1));
    assert!(client.send(first) && client.send(second));
    commands.iter().map(|_| client.reply().unwrap()).collect()
}

#[test]
fn pipelined_replies_equal_single_replies() {
    let services = [Service::start(), Service::start()];
    let [alone, at_once] = services
        .each_ref()
        .map(|service| RefCell::new(service.connect()));
    let commands = prop::collection::vec(command(), 1..80);
    proptest!(ProptestConfig::with_cases(cases()), |(commands in commands, cut in any::<usize>())| {
        let alone = &mut *alone.borrow_mut();
        let at_once = &mut *at_once.borrow_mut();
        let clean = "DEL coupon:f0 coupon:f1 coupon:f2";
        alone.call(clean);
        at_once.call(clean);
        prop_assert_eq!(one_by_one(alone, &commands), together(at_once, &commands, cut), "{:#?}", commands);
    });
}

#[test]
fn transaction_is_limited_and_counted() {
    let resp = RespOptions {
        buffers_bytes_max: 300_000,
        ..RespOptions::default()
    };
    let service = Service::with(Setup {
        resp,
        ..Setup::default()
    });
    let client = &mut service.connect();
    assert_eq!(client.call("MULTI"), Reply::ok());
    let item = "x".repeat(500);
    let ended = (0..2_000).find_map(|_| match client.call(&format!("CF.ADD spring {item}")) {
        Reply::Error(error) => Some(error),
        _ => None,
    });
    assert!(
        ended.is_some_and(|error| error.starts_with("BUSY too many bytes")),
        "the memory has no limit"
    );
    assert_eq!(service.connect().call("EXISTS spring"), Reply::Integer(0));
}
