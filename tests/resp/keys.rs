//! SCAN, rules for keys, and commands about the service. The script `keys` has the rest.

use super::service::{Service, Setup};
use crate::redis_client::{Connection, Reply};
use cuckood::resp::RespOptions;
use cuckood_state::domain::{
    AnnotationsChange, Command, Kind, LineUp, Name, Outcome, PutLineUp, Redeem, RedemptionId,
    Reference, Target,
};
use std::collections::BTreeSet;

/// All keys that a scan lists, in its order, and its number of pages.
fn scanned(client: &mut Connection, options: &str) -> (Vec<String>, usize) {
    let mut cursor = "0".to_owned();
    let mut keys = Vec::new();
    let mut pages = 0;
    loop {
        let page = client.call(format!("SCAN {cursor} {options}").trim_end());
        let [next, found] = page.items() else {
            panic!("{page:?}")
        };
        keys.extend(found.items().iter().map(Reply::text));
        cursor = next.text();
        pages += 1;
        if cursor == "0" {
            return (keys, pages);
        }
    }
}

#[test]
fn scan_lists_each_lasting_key_once() {
    let service = Service::start();
    let client = &mut service.connect();
    let names: Vec<String> = (0..250).map(|number| format!("f{number}")).collect();
    let lines: Vec<String> = names
        .iter()
        .map(|name| format!("CF.RESERVE {name} 8"))
        .collect();
    assert!(
        client
            .pipeline(lines.iter().map(String::as_str))
            .iter()
            .all(|reply| *reply == Reply::ok())
    );
    for name in ["c1", "c2"] {
        assert_eq!(
            client.call(&format!("CF.RESERVE coupon:{name} 8")),
            Reply::ok()
        );
    }
    let (keys, pages) = scanned(client, "");
    assert_eq!((keys.len(), pages), (252, 3));
    let wanted: BTreeSet<String> = names
        .iter()
        .map(|name| format!("campaign:{name}"))
        .collect();
    let found: BTreeSet<String> = keys
        .into_iter()
        .filter(|key| key.starts_with("campaign:"))
        .collect();
    assert_eq!(found, wanted);
    assert_eq!(scanned(client, "COUNT 1000").1, 1);
    assert_eq!(
        scanned(client, "TYPE string COUNT 1000").0,
        Vec::<String>::new()
    );
    assert_eq!(
        scanned(client, "MATCH f24[0-1] TYPE MBbloomCF")
            .0
            .into_iter()
            .collect::<BTreeSet<_>>(),
        BTreeSet::from(["f240".into(), "f241".into()])
    );
    assert_eq!(scanned(client, "MATCH campaign:f7").0, ["campaign:f7"]);
    assert_eq!(scanned(client, "MATCH coupon:*").0.len(), 2);

    // Half of the keys go between two pages.
    let page = client.call("SCAN 0");
    let [cursor, first] = page.items() else {
        panic!("{page:?}")
    };
    for name in names.iter().step_by(2) {
        assert_eq!(client.call(&format!("DEL {name}")), Reply::Integer(1));
    }
    let mut told: Vec<String> = first.items().iter().map(Reply::text).collect();
    let mut cursor = cursor.text();
    while cursor != "0" {
        let page = client.call(&format!("SCAN {cursor}"));
        told.extend(page.items()[1].items().iter().map(Reply::text));
        cursor = page.items()[0].text();
    }
    for name in names.iter().skip(1).step_by(2) {
        assert_eq!(
            told.iter()
                .filter(|key| **key == format!("campaign:{name}"))
                .count(),
            1,
            "{name}"
        );
    }
    let longest = format!("SCAN 0 MATCH {}*", "[a-z]".repeat(102));
    assert_eq!(client.call(&longest).items().len(), 2);
    assert_eq!(client.call(&format!("{longest}*")).items().len(), 2);
    assert_eq!(
        client.call(&format!("{longest}**")).error(),
        "ERR a pattern has at most 512 bytes"
    );
    for (line, wanted) in [
        ("SCAN x", "ERR invalid cursor"),
        ("SCAN -1", "ERR invalid cursor"),
        ("SCAN 0 MATCH", "ERR syntax error"),
        ("SCAN 0 COUNT 0", "ERR syntax error"),
        (
            "SCAN 0 COUNT x",
            "ERR value is not an integer or out of range",
        ),
        ("SCAN 0 LIMIT 1", "ERR syntax error"),
    ] {
        assert_eq!(client.call(line).error(), wanted, "{line}");
    }
}

#[test]
fn connection_has_one_id() {
    let service = Service::start();
    let client = &mut service.connect();
    let id = client.call("HELLO").field("id").clone();
    assert_eq!(client.call("CLIENT ID"), id);
    assert_ne!(service.connect().call("CLIENT ID"), id);
    assert_eq!(client.call("HELLO 3 SETNAME worker-1").field("id"), &id);
}

#[test]
fn command_lists_arities_and_keys() {
    let service = Service::start();
    let client = &mut service.connect();
    let Reply::Integer(count) = client.call("COMMAND COUNT") else {
        panic!("no count")
    };
    for list in ["COMMAND", "COMMAND LIST", "COMMAND INFO"] {
        assert_eq!(client.call(list).items().len(), count as usize, "{list}");
    }
    let info = client.call("COMMAND INFO cf.add GET");
    let [add, Reply::Null] = info.items() else {
        panic!("{info:?}")
    };
    let [name, arity, flags, first, last, step, ..] = add.items() else {
        panic!("{add:?}")
    };
    assert_eq!((name.text(), arity), ("cf.add".into(), &Reply::Integer(3)));
    assert!(flags.items().contains(&Reply::Simple("write".into())));
    assert_eq!([first, last, step], [&Reply::Integer(1); 3]);
    assert_eq!(
        client.call("COMMAND DOCS").items().len(),
        2 * count as usize
    );
    assert!(
        !client
            .call("COMMAND DOCS cf.add")
            .field("cf.add")
            .field("summary")
            .text()
            .is_empty()
    );
    assert!(
        client
            .call("COMMAND NONSENSE")
            .error()
            .starts_with("ERR unknown subcommand 'nonsense'")
    );
}

/// What docs/REDIS.md lists as missing is missing.
#[test]
fn documented_commands_do_not_exist() {
    let service = Service::start();
    let client = &mut service.connect();
    let document = include_str!("../../docs/REDIS.md");
    let (_, rest) = document
        .split_once("### Commands that don't exist")
        .unwrap();
    let (section, _) = rest.split_once("\n### ").unwrap();
    let cells = section
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let commands: Vec<&str> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    for named in [
        "FLUSHDB",
        "EXPIRE",
        "RENAME",
        "COPY",
        "KEYS",
        "TIME",
        "ROLE",
        "RESET",
        "CLIENT TRACKING",
    ] {
        assert!(commands.contains(&named), "{named}");
    }
    for command in commands {
        assert!(
            client.call(command).error().starts_with("ERR unknown "),
            "{command}"
        );
    }
}

#[test]
fn info_contains_fields_used_by_clients() {
    let resp = RespOptions {
        port: 6379,
        ..RespOptions::default()
    };
    let service = Service::with(Setup {
        resp,
        ..Setup::default()
    });
    let client = &mut service.connect();
    assert_eq!(client.call("CF.ADD spring u1"), Reply::Integer(1));
    let info = client.call("INFO").text();
    let value = |field: &str| {
        let found = info
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found
            .unwrap_or_else(|| panic!("no {field} in {info}"))
            .to_owned()
    };
    assert_eq!(value("arch_bits"), usize::BITS.to_string());
    assert_eq!(value("process_id"), std::process::id().to_string());
    let run_id = value("run_id");
    assert!(
        run_id.len() == 40 && run_id.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{run_id}"
    );
    let again = service.connect().call("INFO server").text();
    assert!(again.contains(&run_id), "one ID per process: {again}");
    assert_eq!(value("tcp_port"), "6379");
    for line in [
        "redis_mode:standalone",
        "cluster_enabled:0",
        "loading:0",
        "role:master",
        "connected_clients:1",
        "db0:keys=1,expires=0,avg_ttl=0",
    ] {
        assert!(info.lines().any(|found| found == line), "{line} in {info}");
    }
    let server = client.call("INFO server").text();
    assert!(
        server.starts_with("# Server\r\nredis_version:") && !server.contains("# Memory"),
        "{server}"
    );
    let used = client.call("INFO memory").text();
    let used = used
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"))
        .unwrap()
        .to_owned();
    let view = service.view(Kind::Campaign, "spring");
    assert!(used.parse::<u64>().unwrap() >= view.describe(view.created_at).stats.memory_bytes);
}

#[test]
fn memory_usage_and_module_are_reported() {
    let service = Service::start();
    let client = &mut service.connect();
    assert_eq!(client.call("CF.ADD spring u1"), Reply::Integer(1));
    let Reply::Integer(bytes) = client.call("MEMORY USAGE spring SAMPLES 0") else {
        panic!("no number")
    };
    assert!(bytes > 1_000, "{bytes}");
    assert_eq!(
        client.call("MODULE LIST").items()[0].field("name").text(),
        "bf"
    );
}

#[test]
fn key_rules_map_foreign_keys() {
    let keys = toml::from_str::<toml::Table>(
        r#"keys = [{ key = "ads:*:seen", filter = "campaign:ads.*.seen" }, { key = "codes:*", filter = "coupon:*" }]"#,
    );
    let keys = keys.unwrap().remove("keys").unwrap().try_into().unwrap();
    let resp = RespOptions {
        keys,
        ..RespOptions::default()
    };
    let service = Service::with(Setup {
        resp,
        ..Setup::default()
    });
    let client = &mut service.connect();
    assert_eq!(client.call("CF.ADD ads:spring:seen u1"), Reply::Integer(1));
    assert_eq!(
        client.call("CF.MEXISTS campaign:ads.spring.seen u1 u2"),
        Reply::integers(&[1, 0])
    );
    assert_eq!(
        client.call("CF.INSERT codes:welcome ITEMS A B"),
        Reply::integers(&[1, 1])
    );
    assert_eq!(
        client.call("EXISTS ads:spring:seen codes:welcome coupon:welcome"),
        Reply::Integer(3)
    );
    let mut found: Vec<String> = client.call("SCAN 0").items()[1]
        .items()
        .iter()
        .map(Reply::text)
        .collect();
    found.sort();
    assert_eq!(found, ["ads:spring:seen", "codes:welcome"]);
    for (pattern, wanted) in [
        ("ads:*", vec!["ads:spring:seen"]),
        ("campaign:*", vec!["campaign:ads.spring.seen"]),
        ("campaign:ads.spring.seen", vec!["campaign:ads.spring.seen"]),
        ("ads.spring*", vec!["ads.spring.seen"]),
        ("coupon:*", vec!["coupon:welcome"]),
        ("welcome", vec![]),
    ] {
        let page = client.call(&format!("SCAN 0 MATCH {pattern}"));
        let found: Vec<String> = page.items()[1].items().iter().map(Reply::text).collect();
        assert_eq!(found, wanted, "{pattern}");
        for key in &found {
            assert_eq!(
                client.call(&format!("EXISTS {key}")),
                Reply::Integer(1),
                "{key}"
            );
        }
    }
    // An item is not a key, and other keys are unchanged.
    assert_eq!(
        client.call("CF.ADD spring codes:welcome"),
        Reply::Integer(1)
    );
    assert_eq!(
        client.call("CF.EXISTS spring codes:welcome"),
        Reply::Integer(1)
    );
    assert!(
        client
            .call("CF.ADD other:key u1")
            .error()
            .starts_with("ERR a key is campaign:NAME")
    );
    let replies = client.pipeline([
        "MULTI",
        "CF.ADD ads:spring:seen u3",
        "EXEC",
        "DEL ads:spring:seen codes:welcome",
    ]);
    assert_eq!(replies[2..], [Reply::integers(&[1]), Reply::Integer(2)]);
}

/// All keys are checked before the first is deleted, also by UNLINK, and in a transaction. The error has the reason and the way.
#[test]
fn used_filter_is_not_deleted() {
    let service = Service::start();
    let client = &mut service.connect();
    for command in [
        "CF.ADD first u1",
        "CF.ADD spring u1",
        "CF.ADD coupon:welcome A",
    ] {
        assert_eq!(client.call(command), Reply::Integer(1));
    }
    let line_up = LineUp {
        campaigns: vec![Name::new("spring").unwrap()],
        unless: Vec::new(),
        limit: 1,
    };
    let stored = service.submit(Command::PutLineUp(PutLineUp {
        name: Name::new("home").unwrap(),
        line_up,
        annotations: AnnotationsChange::default(),
    }));
    assert!(matches!(stored.outcome, Outcome::LineUpStored { .. }));
    let welcome = service.view(Kind::Coupon, "welcome");
    service.submit(Command::Redeem(Redeem {
        target: Target(welcome.id),
        digest: welcome.digest("A").unwrap(),
        redemption: RedemptionId([7; 16]),
        reference: Reference::new("order-1").unwrap(),
        hold_seconds: 0,
    }));
    let named = "INUSE campaign:spring: line-up home names the campaign. DELETE /v1/campaigns/spring?force=true over HTTP deletes it";
    let redeemed = "INUSE coupon:welcome: codes are redeemed, and the coupon has not ended: 1. DELETE /v1/coupons/welcome?force=true over \
                    HTTP deletes it";
    for (command, error) in [
        ("DEL first spring", named),
        ("UNLINK first coupon:welcome spring", redeemed),
    ] {
        assert_eq!(client.call(command).error(), error);
    }
    client.call("MULTI");
    client.call("DEL coupon:welcome");
    assert_eq!(client.call("EXEC").items()[0].error(), redeemed);
    let all = "EXISTS first spring coupon:welcome";
    assert_eq!(client.call(all), Reply::Integer(3));
    service.submit(Command::DeleteLineUp {
        name: Name::new("home").unwrap(),
    });
    assert_eq!(client.call("DEL first spring"), Reply::Integer(2));
}
