//! CF.*: commands that time, layouts, arbitrary bytes or other protocols affect. The script `commands` has the rest.

use super::service::{Service, eventually};
use crate::redis_client::{Connection, Reply};
use cuckood_state::domain::{
    Command, Forget, Kind, Normalization, Outcome, Redeem, Reference, Target,
};
use cuckood_state::testing::commands::{NewFilter, target};
use std::time::Duration;

fn ok(connection: &mut Connection, line: &str) {
    assert_eq!(connection.call(line), Reply::ok(), "{line}");
}

fn integer(connection: &mut Connection, line: &str, wanted: i64) {
    assert_eq!(connection.call(line), Reply::Integer(wanted), "{line}");
}

/// Made over HTTP, used like any other.
#[test]
fn forgetting_campaign_forgets_over_resp() {
    let service = Service::start();
    let forget = Some(Forget::new(8 * 86_400, 8).unwrap());
    let campaign = NewFilter {
        forget,
        ..NewFilter::campaign(1_000, 0.000_001)
    };
    assert!(matches!(
        service.submit(campaign.create(target(1))).outcome,
        Outcome::Created(_)
    ));
    let client = &mut service.connect();
    // The time of readers stops while an entry is in progress.
    let pass = |days: u64| {
        let until = service.engine.now().plus_seconds(days * 86_400);
        service.time.pass(Duration::from_secs(days * 86_400));
        eventually("readers have the time", || service.engine.now() >= until);
    };
    for copies in 1..=3 {
        integer(client, "CF.ADD f1 u1", 1);
        integer(client, "CF.COUNT f1 u1", copies);
        pass(1);
    }
    // The newest goes; the others go in their time.
    integer(client, "CF.DEL f1 u1", 1);
    pass(6);
    integer(client, "CF.COUNT f1 u1", 1);
    integer(client, "CF.EXISTS f1 u1", 1);
    integer(client, "CF.ADDNX f1 u1", 0);
    pass(1);
    assert_eq!(client.call("CF.MEXISTS f1 u1 u2"), Reply::integers(&[0, 0]));
    integer(client, "CF.DEL f1 u1", 0);
    integer(client, "CF.ADDNX f1 u1", 1);
}

/// The fields of CF.INFO, in Redis' order.
const INFO_FIELDS: [&str; 8] = [
    "Size",
    "Number of buckets",
    "Number of filters",
    "Number of items inserted",
    "Number of items deleted",
    "Bucket size",
    "Expansion rate",
    "Max iterations",
];

/// Reads CF.INFO as strict clients do: any other field, or a value that is no integer, is an error.
fn info_values(reply: &Reply) -> [i64; 8] {
    let pairs: Vec<(&Reply, &Reply)> = match reply {
        Reply::Map(pairs) => pairs.iter().map(|(field, value)| (field, value)).collect(),
        Reply::Array(items) => items
            .chunks_exact(2)
            .map(|pair| (&pair[0], &pair[1]))
            .collect(),
        other => panic!("{other:?}"),
    };
    let fields: Vec<String> = pairs.iter().map(|(field, _)| field.text()).collect();
    assert_eq!(fields, INFO_FIELDS);
    let values = pairs.into_iter().map(|(field, value)| match value {
        Reply::Integer(value) => *value,
        other => panic!("{field:?}: {other:?}"),
    });
    values.collect::<Vec<_>>().try_into().unwrap()
}

#[test]
fn cf_info_returns_exactly_redis_fields() {
    let service = Service::start();
    let client = &mut service.connect();
    for line in [
        "CF.RESERVE spring 1000",
        "CF.RESERVE sized 1000 BUCKETSIZE 8",
        "CF.RESERVE fixed 1000 EXPANSION 0",
        "CF.RESERVE coupon:spring 1000",
    ] {
        ok(client, line);
    }
    let forget = Some(Forget::new(8 * 86_400, 8).unwrap());
    let forgetting = NewFilter {
        forget,
        ..NewFilter::campaign(1_000, 0.000_001)
    };
    assert!(matches!(
        service.submit(forgetting.create(target(1))).outcome,
        Outcome::Created(_)
    ));
    let keys = ["spring", "sized", "fixed", "coupon:spring", "f1"];
    for (protocol, is_map) in [(2, false), (3, true)] {
        client.call(&format!("HELLO {protocol}"));
        for key in keys {
            let alone = client.call(&format!("CF.INFO {key}"));
            assert_eq!(matches!(alone, Reply::Map(_)), is_map, "{key}");
            info_values(&alone);
            let lines = [
                format!("CF.ADD {key} {protocol}"),
                format!("CF.INFO {key}"),
                "PING".to_owned(),
            ];
            let replies = client.pipeline(lines.iter().map(String::as_str));
            assert_eq!(
                info_values(&replies[1])[3],
                info_values(&alone)[3] + 1,
                "{key}"
            );
            assert_eq!(replies[2], Reply::Simple("PONG".into()));
        }
        let replies = client.pipeline(["MULTI", "CF.INFO spring", "EXEC"]);
        info_values(&replies[2].items()[0]);
    }
}

#[test]
fn cf_info_values_match_filter() {
    let service = Service::start();
    let client = &mut service.connect();
    ok(client, "CF.RESERVE spring 1000");
    assert_eq!(client.call("CF.INSERT spring ITEMS a b c").items().len(), 3);
    integer(client, "CF.DEL spring a", 1);
    let info = client.call("CF.INFO spring");
    let view = service.view(Kind::Campaign, "spring");
    for (field, value) in [
        ("Size", view.describe(view.created_at).stats.memory_bytes),
        ("Number of buckets", view.layout.buckets),
        ("Number of filters", 1),
        ("Number of items inserted", 2),
        ("Number of items deleted", 1),
        ("Bucket size", view.layout.bucket_size.into()),
        ("Expansion rate", 2),
        ("Max iterations", view.layout.max_search.into()),
    ] {
        assert_eq!(info.field(field), &Reply::Integer(value as i64), "{field}");
    }
    ok(client, "CF.RESERVE coupon:spring 1000 EXPANSION 0");
    assert_eq!(
        client.call("CF.INFO coupon:spring").field("Expansion rate"),
        &Reply::Integer(0)
    );
}

#[test]
fn reserve_options_are_applied() {
    let service = Service::start();
    let client = &mut service.connect();
    ok(
        client,
        "CF.RESERVE wide 1000 BUCKETSIZE 8 MAXITERATIONS 50 EXPANSION 4",
    );
    assert_eq!(service.view(Kind::Campaign, "wide").layout.bucket_size, 8);
    ok(client, "CF.RESERVE odd 1000 BUCKETSIZE 3");
    assert_eq!(service.view(Kind::Campaign, "odd").layout.bucket_size, 4);
    integer(client, "CF.ADD made u1", 1);
    assert_eq!(service.view(Kind::Campaign, "made").spec.capacity, 1_024);
    assert_eq!(
        client.call("CF.INSERT chosen CAPACITY 5000 ITEMS u1"),
        Reply::integers(&[1])
    );
    assert_eq!(service.view(Kind::Campaign, "chosen").spec.capacity, 5_000);
    // Of a filter that is there, the capacity stays.
    assert_eq!(
        client.call("CF.INSERT chosen CAPACITY 9000 ITEMS u1"),
        Reply::integers(&[1])
    );
    assert_eq!(service.view(Kind::Campaign, "chosen").spec.capacity, 5_000);
}

#[test]
fn item_has_1_to_512_arbitrary_bytes() {
    let service = Service::start();
    let client = &mut service.connect();
    let long = [b'x'; 512];
    for item in [&b"\xff\x00\r\n*"[..], "é".as_bytes(), &long] {
        assert_eq!(
            client.call_with(&[b"CF.ADD", b"spring", item]),
            Reply::Integer(1)
        );
        assert_eq!(
            client.call_with(&[b"CF.EXISTS", b"spring", item]),
            Reply::Integer(1)
        );
    }
    // A text item is the same item over HTTP.
    let view = service.view(Kind::Campaign, "spring");
    let count = |item| view.count(view.digest(item).unwrap(), service.engine.now());
    assert_eq!((count("é"), count("e")), (1, 0));
    for item in [&[][..], &[b'x'; 513]] {
        for command in [
            &b"CF.ADD"[..],
            b"CF.EXISTS",
            b"CF.DEL",
            b"CF.COUNT",
            b"CF.MEXISTS",
        ] {
            let refused = client.call_with(&[command, b"spring", item]);
            assert_eq!(refused.error(), "ERR an item has 1 to 512 bytes");
        }
    }
    assert_eq!(
        client.call_with(&[b"CF.ADD", b"empty", b""]).error(),
        "ERR an item has 1 to 512 bytes"
    );
    integer(client, "EXISTS empty", 0);
}

/// As over HTTP.
#[test]
fn each_command_finds_each_spelling() {
    let service = Service::start();
    let client = &mut service.connect();
    for (filter, normalization, spellings) in [
        (1, Normalization::Exact, ["é-Z"; 3]),
        (2, Normalization::Ascii, ["é-Z", "é-z\n", "\té-Z"]),
        (3, Normalization::Case, ["é-Z", "É-z", "\u{a0}e\u{301}-Z"]),
        (4, Normalization::Code, ["é-Z", "ÉZ", "e\u{301}.ｚ"]),
    ] {
        let campaign = NewFilter {
            normalization,
            ..NewFilter::campaign(100, 0.000_001)
        };
        service.submit(campaign.create(target(filter)));
        let key = format!("f{filter}");
        let [first, second, third] = spellings.map(str::as_bytes);
        let mut call = |name: &str, items: &[&[u8]]| {
            let mut arguments = vec![name.as_bytes(), key.as_bytes()];
            arguments.extend(items);
            client.call_with(&arguments)
        };
        let one = Reply::Integer(1);
        assert_eq!(call("CF.ADD", &[first]), one, "{key}");
        assert_eq!(call("CF.ADDNX", &[second]), Reply::Integer(0), "{key}");
        assert_eq!(call("CF.EXISTS", &[third]), one, "{key}");
        assert_eq!(
            call("CF.MEXISTS", &[second, third]),
            Reply::integers(&[1, 1]),
            "{key}"
        );
        assert_eq!(
            call("CF.INSERT", &[b"ITEMS", second]),
            Reply::integers(&[1]),
            "{key}"
        );
        assert_eq!(
            call("CF.INSERTNX", &[b"ITEMS", third]),
            Reply::integers(&[0]),
            "{key}"
        );
        assert_eq!(call("CF.COUNT", &[third]), Reply::Integer(2), "{key}");
        assert_eq!(call("CF.DEL", &[second]), one, "{key}");
        assert_eq!(call("CF.DEL", &[third]), one, "{key}");
        assert_eq!(call("CF.EXISTS", &[first]), Reply::Integer(0), "{key}");
    }
}

#[test]
fn unusable_item_is_rejected() {
    let service = Service::start();
    let client = &mut service.connect();
    for (filter, normalization, empty) in [
        (1, Normalization::Ascii, &b" \t"[..]),
        (2, Normalization::Case, "\u{3000}".as_bytes()),
        (3, Normalization::Code, b"-"),
    ] {
        let campaign = NewFilter {
            normalization,
            ..NewFilter::campaign(100, 0.000_001)
        };
        service.submit(campaign.create(target(filter)));
        let key = format!("f{filter}");
        for command in [
            "CF.ADD",
            "CF.ADDNX",
            "CF.EXISTS",
            "CF.MEXISTS",
            "CF.COUNT",
            "CF.DEL",
        ] {
            for (item, error) in [
                (empty, "ERR nothing is left of an item after normalization"),
                (
                    b"a\xff",
                    "ERR an item is not UTF-8, which this filter normalizes",
                ),
            ] {
                let refused = client.call_with(&[command.as_bytes(), key.as_bytes(), item]);
                assert_eq!(refused.error(), error, "{command} {key}");
            }
        }
        integer(client, &format!("CF.ADD {key} a"), 1);
        // Lookups after the first one of a batch use its filter.
        let check = format!("CF.EXISTS {key} a");
        let bad = format!(
            "CF.EXISTS {key} {}",
            str::from_utf8(empty).unwrap().trim_start_matches(' ')
        );
        let replies = client.pipeline([&*check, &bad, &check]);
        assert_eq!(
            (&replies[0], &replies[2]),
            (&Reply::Integer(1), &Reply::Integer(1))
        );
        assert!(
            replies[1].error().starts_with("ERR nothing is left"),
            "{key}"
        );
    }
}

#[test]
fn full_filter_rejects_complete_batch() {
    let service = Service::start();
    let client = &mut service.connect();
    ok(client, "CF.RESERVE full 4 EXPANSION 0");
    let mut added = 0;
    while client.call(&format!("CF.ADD full u{added}")) == Reply::Integer(1) {
        added += 1;
    }
    assert!(added >= 4);
    assert_eq!(
        client.call(&format!("CF.ADD full u{added}")).error(),
        "ERR Filter is full"
    );
    // As many copies as there may be are something else.
    ok(client, "CF.RESERVE copies 1000");
    let copies = (0..100)
        .take_while(|_| client.call("CF.ADD copies u1") == Reply::Integer(1))
        .count();
    assert!((2..100).contains(&copies), "{copies}");
    assert!(
        client
            .call("CF.ADD copies u1")
            .error()
            .starts_with("ERR Filter is full: it holds the maximum number")
    );
    assert_eq!(
        client.call("CF.INSERT copies ITEMS u1 u2"),
        Reply::integers(&[-1, 1])
    );
    let items: Vec<String> = (0..100).map(|number| format!("v{number}")).collect();
    let insert = format!("CF.INSERT full ITEMS {}", items.join(" "));
    assert_eq!(client.call(&insert), Reply::integers(&[-1; 100]));
    assert_eq!(
        client
            .call("CF.INFO full")
            .field("Number of items inserted"),
        &Reply::Integer(added)
    );
    client.call("HELLO 3");
    assert_eq!(client.call(&insert), Reply::booleans(&[false; 100]));
}

#[test]
fn coupon_is_set_with_used_codes() {
    let service = Service::start();
    let client = &mut service.connect();
    integer(client, "CF.ADD coupon:welcome A", 1);
    integer(client, "CF.ADD coupon:welcome A", 0);
    assert_eq!(
        client.call("CF.INSERT coupon:welcome ITEMS A B"),
        Reply::integers(&[0, 1])
    );
    integer(client, "CF.COUNT coupon:welcome A", 1);
    let view = service.view(Kind::Coupon, "welcome");
    let redeemed = service.submit(Command::Redeem(Redeem {
        target: Target(view.id),
        digest: view.digest("A").unwrap(),
        redemption: cuckood_state::domain::RedemptionId(cuckood_log::journal::random()),
        reference: Reference::new("order-1").unwrap(),
        hold_seconds: 0,
    }));
    assert!(matches!(redeemed.outcome, Outcome::Redeemed(_)));
    assert_eq!(
        client.call("CF.MEXISTS coupon:welcome A B"),
        Reply::integers(&[0, 1])
    );
    integer(client, "CF.ADD coupon:welcome A", 0);
    integer(client, "CF.DEL coupon:welcome A", 0);
    integer(client, "CF.EXISTS coupon:welcome A", 0);
    assert_eq!(
        view.describe(service.engine.now())
            .stats
            .codes
            .states
            .unwrap()
            .redeemed,
        1
    );
}
