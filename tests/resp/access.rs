//! Keys that change or expire, rates and guesses. The script `access` has scopes and prefixes.

use super::service::{Service, Setup, key};
use crate::redis_client::{Connection, Reply, encoded};
use cuckood::access::{AuthOptions, GuessingOptions, KeyOptions, RateLimitOptions, Scope};
use cuckood_state::domain::Timestamp;

const NOAUTH: &str = "NOAUTH Authentication required.";

fn auth(keys: &[KeyOptions]) -> AuthOptions {
    AuthOptions {
        keys: keys.to_vec(),
        allow_anonymous: false,
    }
}

pub fn keys() -> AuthOptions {
    auth(&[
        key("reader", &[Scope::Read], ""),
        key("writer", &[Scope::Read, Scope::Write], "eu-"),
        key("root", &[Scope::Admin], ""),
    ])
}

fn with_keys() -> Service {
    Service::with(Setup {
        auth: keys(),
        ..Setup::default()
    })
}

fn as_holder(service: &Service, key: &str) -> Connection {
    let mut connection = service.connect();
    assert_eq!(connection.call(&format!("AUTH {key}")), Reply::ok());
    connection
}

#[test]
fn info_without_read_scope_hides_filters() {
    let redeemer = auth(&[key("redeemer", &[Scope::Redeem], "")]);
    let service = Service::with(Setup {
        auth: redeemer,
        ..Setup::default()
    });
    let info = as_holder(&service, "redeemer").call("INFO").text();
    assert!(
        info.contains("loading:0") && !info.contains("Keyspace") && !info.contains("used_memory"),
        "{info}"
    );
}

#[test]
fn dbsize_counts_permitted_keys_after_each_change() {
    let service = with_keys();
    let root = &mut as_holder(&service, "root");
    let writer = &mut as_holder(&service, "writer");
    let reader = &mut as_holder(&service, "reader");
    let mut sizes = || [&mut *writer, &mut *reader].map(|client| client.call("DBSIZE"));
    assert_eq!(sizes(), [0, 0].map(Reply::Integer));
    // More than one step.
    let lines: Vec<String> = (0..300)
        .map(|number| format!("CF.RESERVE eu-{number} 8"))
        .collect();
    assert!(
        root.pipeline(lines.iter().map(String::as_str))
            .iter()
            .all(|reply| *reply == Reply::ok())
    );
    for (line, wanted) in [
        ("CF.ADD us-1 u1", [300, 301]),
        ("CF.ADD coupon:eu-1 u1", [301, 302]),
        ("DEL eu-1 us-1", [300, 300]),
        ("CF.ADD eu-1 u1", [301, 301]),
    ] {
        root.call(line);
        assert_eq!(sizes(), wanted.map(Reply::Integer), "{line}");
        assert_eq!(sizes(), wanted.map(Reply::Integer), "{line}");
    }
    // A key with another prefix has another count.
    assert_eq!(writer.call("AUTH root"), Reply::ok());
    assert_eq!(writer.call("DBSIZE"), Reply::Integer(301));
}

#[test]
fn reloaded_keys_apply_to_open_connections() {
    let service = with_keys();
    let reader = &mut as_holder(&service, "reader");
    let root = &mut as_holder(&service, "root");
    assert_eq!(reader.call("CF.EXISTS spring u1"), Reply::Integer(0));
    service
        .access
        .replace_keys(&auth(&[key("reader", &[Scope::Write], "eu-")]))
        .unwrap();
    assert_eq!(
        reader.call("CF.EXISTS spring u1").error(),
        "NOPERM this requires a key with the scope read"
    );
    assert_eq!(reader.call("CF.ADD eu-spring u1"), Reply::Integer(1));
    assert!(
        reader
            .call("CF.ADD spring u1")
            .error()
            .starts_with("NOPERM the key is limited")
    );
    assert_eq!(root.call("PING").error(), NOAUTH);
    assert_eq!(root.call("DEL eu-spring").error(), NOAUTH);
    assert!(
        root.call("HELLO 3")
            .error()
            .starts_with("NOAUTH HELLO must be called")
    );

    // A connection opened without keys has none.
    let open = Service::start();
    let anonymous = &mut open.connect();
    assert_eq!(anonymous.call("CF.ADD spring u1"), Reply::Integer(1));
    open.access.replace_keys(&keys()).unwrap();
    assert_eq!(anonymous.call("CF.EXISTS spring u1").error(), NOAUTH);
    assert_eq!(anonymous.call("AUTH reader"), Reply::ok());
    assert_eq!(anonymous.call("CF.EXISTS spring u1"), Reply::Integer(1));
}

#[test]
fn key_expires_on_open_connections() {
    let service = Service::with(Setup {
        auth: keys(),
        ..Setup::default()
    });
    let until = Timestamp(service.engine.now().0 + 60_000);
    let guest = KeyOptions {
        expires_at: Some(until),
        ..key("guest", &[Scope::Read], "")
    };
    service.access.replace_keys(&auth(&[guest])).unwrap();
    let client = &mut as_holder(&service, "guest");
    assert_eq!(client.call("CF.EXISTS spring u1"), Reply::Integer(0));
    service.time.pass(std::time::Duration::from_secs(61));
    for line in [
        "CF.EXISTS spring u1",
        "INFO",
        "PING",
        "CLIENT INFO",
        "COMMAND",
        "ECHO a",
        "SELECT 0",
    ] {
        assert!(
            client
                .call(line)
                .error()
                .starts_with("NOAUTH the key has expired"),
            "{line}"
        );
    }
    assert!(
        client
            .call("HELLO 3")
            .error()
            .starts_with("NOAUTH HELLO must be called")
    );
    // It may send no more than a stranger.
    client.send(&encoded(&[b"ECHO", &[b'x'; 1_025]]));
    assert_eq!(
        client.reply().unwrap().error(),
        "ERR Protocol error: invalid bulk length"
    );
    assert_eq!(client.reply(), None);
    assert!(
        service
            .connect()
            .call("AUTH guest")
            .error()
            .starts_with("WRONGPASS the key has expired")
    );
}

#[test]
fn every_command_counts_against_key_rate() {
    let rate_limit = RateLimitOptions {
        requests_per_second: 5,
    };
    let service = Service::with(Setup {
        auth: keys(),
        rate_limit,
        ..Setup::default()
    });
    let client = &mut as_holder(&service, "root");
    let replies = client.pipeline(std::iter::repeat_n("CF.EXISTS spring u1", 200));
    let admitted = replies
        .iter()
        .filter(|reply| **reply == Reply::Integer(0))
        .count();
    assert!((5..200).contains(&admitted), "{admitted}");
    let refused = replies.last().unwrap().error();
    assert!(refused.starts_with("RATELIMIT rate limit exceeded for this key: try again in 0."));
    // Another connection has the same rate, and another key its own.
    let other = &mut as_holder(&service, "root");
    let replies = other.pipeline(std::iter::repeat_n("CF.EXISTS spring u1", 200));
    assert!(replies.iter().any(|reply| *reply != Reply::Integer(0)));
    for line in [
        "PING",
        "INFO",
        "COMMAND",
        "CLIENT ID",
        "ECHO a",
        "SELECT 0",
        "HELLO 3",
        "AUTH root",
    ] {
        let replies = client.pipeline(std::iter::repeat_n(line, 200));
        let is_limited =
            |reply: &Reply| matches!(reply, Reply::Error(text) if text.starts_with("RATELIMIT"));
        assert!(
            replies.iter().filter(|reply| is_limited(reply)).count() > 100,
            "{line}"
        );
    }
    assert_eq!(
        as_holder(&service, "reader").call("CF.EXISTS spring u1"),
        Reply::Integer(0)
    );
}

#[test]
fn resp_and_http_share_guess_limit() {
    let guessing = GuessingOptions {
        invalid_codes_per_minute: 3,
        unlimited_keys: vec!["root".into()],
        ..Default::default()
    };
    let service = Service::with(Setup {
        auth: keys(),
        guessing,
        ..Setup::default()
    });
    let root = &mut as_holder(&service, "root");
    assert_eq!(
        root.call("CF.INSERT coupon:eu-codes ITEMS A B C D E")
            .items()
            .len(),
        5
    );
    let client = &mut as_holder(&service, "writer");
    // Valid codes cost nothing, in any number.
    let valid =
        client.pipeline(["A", "B", "C", "D", "E", "A", "B"].map(|_| "CF.EXISTS coupon:eu-codes A"));
    assert!(
        valid.iter().all(|reply| *reply == Reply::Integer(1)),
        "{valid:?}"
    );
    assert!(
        client
            .call("CF.MEXISTS coupon:eu-codes A B C D")
            .error()
            .starts_with("GUESSLIMIT the request has 4 codes")
    );
    assert_eq!(
        client.call("CF.MEXISTS coupon:eu-codes A X1"),
        Reply::integers(&[1, 0])
    );
    let tried = client.pipeline([
        "CF.COUNT coupon:eu-codes X2",
        "CF.DEL coupon:eu-codes X3",
        "CF.EXISTS coupon:eu-codes A",
        "CF.DEL coupon:eu-codes A",
    ]);
    assert_eq!(tried[..2], [Reply::Integer(0), Reply::Integer(0)]);
    for refused in &tried[2..] {
        assert!(
            refused
                .error()
                .starts_with("GUESSLIMIT this end user has tried too many invalid codes"),
            "{refused:?}"
        );
    }
    // Users aren't secret, adding to a pool that grows reveals nothing, and exempt keys may try any number.
    assert_eq!(client.call("CF.EXISTS eu-spring X1"), Reply::Integer(0));
    assert_eq!(client.call("CF.ADD coupon:eu-codes F"), Reply::Integer(1));
    assert_eq!(
        root.call("CF.MEXISTS coupon:eu-codes A X1 X2 X3 X4")
            .items()
            .len(),
        5
    );
    // Another key from the same address has no more.
    assert!(
        as_holder(&service, "reader")
            .call("CF.EXISTS coupon:eu-codes A")
            .error()
            .starts_with("GUESSLIMIT")
    );
}

#[test]
fn add_to_full_fixed_pool_uses_guesses() {
    let guessing = GuessingOptions {
        invalid_codes_per_minute: 3,
        unlimited_keys: vec!["root".into()],
        ..Default::default()
    };
    let service = Service::with(Setup {
        auth: keys(),
        guessing,
        ..Setup::default()
    });
    let root = &mut as_holder(&service, "root");
    assert_eq!(
        root.call("CF.RESERVE coupon:eu-codes 4 EXPANSION 0"),
        Reply::ok()
    );
    let filled = (0..).take_while(|code| {
        root.call(&format!("CF.ADD coupon:eu-codes F{code}")) == Reply::Integer(1)
    });
    assert!(filled.count() >= 4);
    let client = &mut as_holder(&service, "writer");
    assert_eq!(client.call("CF.ADD coupon:eu-codes F0"), Reply::Integer(0));
    for guess in 0..3 {
        assert_eq!(
            client
                .call(&format!("CF.ADD coupon:eu-codes X{guess}"))
                .error(),
            "ERR Filter is full"
        );
    }
    for code in ["X4", "F0"] {
        assert!(
            client
                .call(&format!("CF.ADD coupon:eu-codes {code}"))
                .error()
                .starts_with("GUESSLIMIT")
        );
    }
}
