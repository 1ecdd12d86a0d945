//! What a client may send, and what becomes of those who send more; the drain; the metrics.

use super::service::{Service, Setup, key};
use crate::redis_client::{Reply, encoded, line};
use cuckood::access::{AuthOptions, Scope};
use cuckood::resp::RespOptions;

#[test]
fn what_is_no_request_is_answered_and_ends_the_connection() {
    let service = Service::start();
    for (bytes, wanted) in [
        (&b"*99999999\r\n"[..], "ERR Protocol error: invalid multibulk length"),
        (b"*1\r\n$999999\r\n", "ERR Protocol error: invalid bulk length"),
        (b"*1\r\n!4\r\nPING\r\n", "ERR Protocol error: expected '$', got '!'"),
        (b"*1\r\n$4\r\nPINGPONG\r\n", "ERR Protocol error: expected the end of a line"),
        (b"\"PING", ""),
        (b"ECHO \"a b\"\r\n", "ERR Protocol error: quotes in an inline request"),
    ] {
        let mut client = service.connect();
        assert_eq!(client.call("CF.ADD spring u1"), Reply::Integer(1));
        client.send(&[&line("CF.EXISTS spring u1"), bytes].concat());
        assert_eq!(client.reply(), Some(Reply::Integer(1)), "what came before is answered");
        if wanted.is_empty() {
            client.end();
        } else {
            assert_eq!(client.reply().unwrap().error(), wanted);
        }
        assert_eq!(client.reply(), None, "{}", bytes.escape_ascii());
    }
}

#[test]
fn requests_are_as_long_as_they_may_be() {
    let service = Service::start();
    let client = &mut service.connect();
    // As many items of the greatest length as one command may add.
    let items: Vec<Vec<u8>> = (0..10_000).map(|number| format!("{number:0512}").into_bytes()).collect();
    let mut insert: Vec<&[u8]> = vec![b"CF.INSERT", b"spring", b"CAPACITY", b"20000", b"ITEMS"];
    insert.extend(items.iter().map(Vec::as_slice));
    assert_eq!(client.call_with(&insert), Reply::integers(&[1; 10_000]));
    let mut exist: Vec<&[u8]> = vec![b"CF.MEXISTS", b"spring"];
    exist.extend(items.iter().map(Vec::as_slice));
    assert_eq!(client.call_with(&exist), Reply::integers(&[1; 10_000]));
    insert.push(b"one more");
    assert_eq!(client.call_with(&insert).error(), "ERR one command adds at most 10000 items");
    let message = vec![b'x'; 64 << 10];
    assert_eq!(client.call_with(&[b"ECHO", &message]), Reply::Bulk(message));
}

#[test]
fn strangers_may_send_little() {
    let auth = AuthOptions { keys: vec![key("root", &[Scope::Admin], "")], allow_anonymous: false };
    let service = Service::with(Setup { auth, ..Setup::default() });
    let many = encoded(&[b"x".as_slice(); 11]);
    let long = encoded(&[b"AUTH", &[b'x'; 1_025]]);
    for (bytes, wanted) in [
        (many, "ERR Protocol error: invalid multibulk length"),
        (long, "ERR Protocol error: invalid bulk length"),
    ] {
        let mut client = service.connect();
        client.send(&bytes);
        assert_eq!(client.reply().unwrap().error(), wanted);
        assert_eq!(client.reply(), None);
        // Whoever has presented a key before, in the same breath, is no stranger any more.
        let mut client = service.connect();
        client.send(&[line("AUTH root"), bytes].concat());
        assert_eq!(client.reply(), Some(Reply::ok()));
        assert!(!client.reply().unwrap().error().contains("Protocol error"));
        assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
    }
}

#[test]
fn a_request_beyond_the_memory_of_all_ends_its_connection_alone() {
    let resp = RespOptions { buffers_bytes_max: 300_000, ..RespOptions::default() };
    let service = Service::with(Setup { resp, ..Setup::default() });
    let mut other = service.connect();
    let mut client = service.connect();
    let items = vec![b'x'; 500];
    let mut exist: Vec<&[u8]> = vec![b"CF.MEXISTS", b"spring"];
    exist.extend(std::iter::repeat_n(&items[..], 10_000));
    // It may be cut off before it has sent all.
    client.send(&encoded(&exist));
    assert!(client.reply().unwrap().error().starts_with("BUSY too many bytes"));
    assert_eq!(client.reply(), None);
    exist.truncate(102);
    assert_eq!(other.call_with(&exist), Reply::integers(&[0; 100]));
    assert_eq!(
        service.metrics("cuckood_resp_buffers_refused_total"),
        ["cuckood_resp_buffers_refused_total 1"]
    );
    drop((client, other));
}

#[test]
fn a_web_page_can_not_make_a_browser_send_commands() {
    let service = Service::start();
    let body = line("CF.ADD spring u1");
    for head in [
        "POST / HTTP/1.1\r\nHost: localhost:6379\r\n\r\n",
        "GET /CF.ADD HTTP/1.1\r\n\r\n",
        "CF.NOTHING x\r\n",
    ] {
        let mut client = service.connect();
        client.send(&[head.as_bytes(), &body].concat());
        assert!(client.reply().unwrap().error().starts_with("ERR unknown command"));
        assert_eq!(client.reply(), None, "{head}");
    }
    // People may type.
    let mut client = service.connect();
    client.send(b"CF.ADD spring u1\r\ncf.exists  spring u1\n");
    assert_eq!(client.reply(), Some(Reply::Integer(1)));
    assert_eq!(client.reply(), Some(Reply::Integer(1)));
    assert_eq!(client.call("CF.COUNT spring u1"), Reply::Integer(1), "only once, by hand");
}

#[test]
fn a_drain_answers_what_has_arrived_and_ends_idle_connections() {
    let service = Service::start();
    let mut idle = service.connect();
    assert_eq!(idle.call("PING"), Reply::Simple("PONG".into()));
    let mut halfway = service.connect();
    let add = line("CF.ADD spring u1");
    halfway.send(&add);
    assert_eq!(halfway.reply(), Some(Reply::Integer(1)));
    halfway.send(&[&add[..], &add[..add.len() - 5]].concat());
    assert_eq!(halfway.reply(), Some(Reply::Integer(1)));
    service.drain();
    assert_eq!(idle.reply(), None);
    // A command that has begun is waited for.
    halfway.send(&add[add.len() - 5..]);
    assert_eq!(halfway.reply(), Some(Reply::Integer(1)));
    assert_eq!(halfway.reply(), None);
}

#[test]
fn commands_are_counted_by_name_and_outcome() {
    let service = Service::start();
    let client = &mut service.connect();
    client.pipeline([
        "CF.ADD spring u1",
        "CF.ADD spring u2",
        "CF.ADD spring",
        "cf.exists spring u1",
        "NONSENSE",
        "SECRET-CODE",
    ]);
    let counted = service.metrics("cuckood_resp_commands_total{");
    for line in [
        r#"cuckood_resp_commands_total{command="cf.add",outcome="ok"} 2"#,
        r#"cuckood_resp_commands_total{command="cf.add",outcome="ERR"} 1"#,
        r#"cuckood_resp_commands_total{command="cf.exists",outcome="ok"} 1"#,
        r#"cuckood_resp_commands_total{command="unknown",outcome="ERR"} 2"#,
    ] {
        assert!(counted.iter().any(|found| found == line), "{line} in {counted:#?}");
    }
    assert_eq!(counted.len(), 4);
    assert_eq!(service.metrics("cuckood_resp_connections "), ["cuckood_resp_connections 1"]);
}
