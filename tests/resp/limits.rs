//! Limits of requests, and their errors; the drain; the metrics.

use super::service::{Service, Setup, eventually, key};
use crate::redis_client::{Reply, encoded, line};
use cuckood::access::{AuthOptions, Scope};
use cuckood::resp::RespOptions;
use cuckood::socket::Vitals;
use cuckood_state::domain::Kind;
use futures_util::FutureExt;
use std::pin::pin;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn invalid_request_gets_error_and_closes() {
    let service = Service::start();
    for (bytes, wanted) in [
        (
            &b"*99999999\r\n"[..],
            "ERR Protocol error: invalid multibulk length",
        ),
        (
            b"*1\r\n$999999\r\n",
            "ERR Protocol error: invalid bulk length",
        ),
        (
            b"*1\r\n!4\r\nPING\r\n",
            "ERR Protocol error: expected '$', got '!'",
        ),
        (
            b"*1\r\n$4\r\nPINGPONG\r\n",
            "ERR Protocol error: expected the end of a line",
        ),
        (b"\"PING", ""),
        (
            b"ECHO \"a b\"\r\n",
            "ERR Protocol error: quotes in an inline request",
        ),
    ] {
        let mut client = service.connect();
        assert_eq!(client.call("CF.ADD spring u1"), Reply::Integer(1));
        client.send(&[&line("CF.EXISTS spring u1"), bytes].concat());
        assert_eq!(
            client.reply(),
            Some(Reply::Integer(1)),
            "what came before is answered"
        );
        if wanted.is_empty() {
            client.end();
        } else {
            assert_eq!(client.reply().unwrap().error(), wanted);
        }
        assert_eq!(client.reply(), None, "{}", bytes.escape_ascii());
    }
}

#[test]
fn last_reply_arrives_while_client_sends() {
    let service = Service::start();
    let mut client = service.connect();
    let more = line("CF.ADD spring u1").repeat(100_000);
    assert!(
        client.send(&[line("QUIT"), more].concat()),
        "it was not listened to"
    );
    assert_eq!(client.reply(), Some(Reply::ok()));
    client.end();
    assert_eq!(client.reply(), None);
    assert_eq!(
        service.connect().call("EXISTS spring"),
        Reply::Integer(0),
        "what follows QUIT is not done"
    );
}

#[test]
fn longest_allowed_request_succeeds() {
    let service = Service::start();
    let client = &mut service.connect();
    // As many items of the greatest length as one command may add.
    let items: Vec<Vec<u8>> = (0..10_000)
        .map(|number| format!("{number:0512}").into_bytes())
        .collect();
    let mut insert: Vec<&[u8]> = vec![b"CF.INSERT", b"spring", b"CAPACITY", b"20000", b"ITEMS"];
    insert.extend(items.iter().map(Vec::as_slice));
    assert_eq!(client.call_with(&insert), Reply::integers(&[1; 10_000]));
    let mut exist: Vec<&[u8]> = vec![b"CF.MEXISTS", b"spring"];
    exist.extend(items.iter().map(Vec::as_slice));
    assert_eq!(client.call_with(&exist), Reply::integers(&[1; 10_000]));
    for command in [&mut insert, &mut exist] {
        command.push(b"one more");
        assert_eq!(
            client.call_with(command).error(),
            "ERR one command has at most 10000 items"
        );
    }
    for command in [&b"EXISTS"[..], b"DEL"] {
        let keys: Vec<&[u8]> = [command]
            .into_iter()
            .chain([&b"spring"[..]; 10_001])
            .collect();
        assert_eq!(
            client.call_with(&keys).error(),
            "ERR one command has at most 10000 keys"
        );
    }
    let names: Vec<&[u8]> = [&b"COMMAND"[..], b"INFO"]
        .into_iter()
        .chain([&b"info"[..]; 1_001])
        .collect();
    assert_eq!(
        client.call_with(&names).error(),
        "ERR one request names at most 1000 commands"
    );
    let message = vec![b'x'; 64 << 10];
    assert_eq!(client.call_with(&[b"ECHO", &message]), Reply::Bulk(message));
}

#[test]
fn unauthenticated_requests_are_short() {
    let auth = AuthOptions {
        keys: vec![key("root", &[Scope::Admin], "")],
        allow_anonymous: false,
    };
    let service = Service::with(Setup {
        auth,
        ..Setup::default()
    });
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
        // A client that has just presented a key in the same pipeline is authenticated.
        let mut client = service.connect();
        client.send(&[line("AUTH root"), bytes].concat());
        assert_eq!(client.reply(), Some(Reply::ok()));
        assert!(!client.reply().unwrap().error().contains("Protocol error"));
        assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
    }
}

/// Nor does a completed reply use the shared budget while the next request is incomplete.
#[test]
fn unauthenticated_client_memory_is_bounded() {
    let auth = AuthOptions {
        keys: vec![key("root", &[Scope::Admin], "")],
        allow_anonymous: false,
    };
    let service = Service::with(Setup {
        auth,
        ..Setup::default()
    });
    let refused = line("AUTH x");
    let count = (60 << 10) / refused.len();
    let mut clients: Vec<_> = (0..4).map(|_| service.connect()).collect();
    for client in &mut clients {
        let mut sender = client.other_half();
        let bytes = [
            refused.repeat(count),
            b"*2\r\n$4\r\nAUTH\r\n$4\r\nro".to_vec(),
        ]
        .concat();
        std::thread::scope(|scope| {
            scope.spawn(move || assert!(sender.send(&bytes)));
            (0..count)
                .for_each(|_| assert!(client.reply().unwrap().error().starts_with("WRONGPASS")));
        });
    }
    eventually("nearly nothing is taken", || {
        let taken = service.metrics("cuckood_resp_buffer_bytes ");
        taken[0].rsplit(' ').next().unwrap().parse::<u64>().unwrap() <= 4 * (10 << 10)
    });
    for client in &mut clients {
        client.send(b"ot\r\n");
        assert_eq!(client.reply(), Some(Reply::ok()));
    }
}

#[test]
fn request_beyond_budget_closes_its_connection() {
    let resp = RespOptions {
        buffers_bytes_max: 300_000,
        ..RespOptions::default()
    };
    let service = Service::with(Setup {
        resp,
        ..Setup::default()
    });
    let mut other = service.connect();
    let mut client = service.connect();
    let items = vec![b'x'; 500];
    let mut exist: Vec<&[u8]> = vec![b"CF.MEXISTS", b"spring"];
    exist.extend(std::iter::repeat_n(&items[..], 10_000));
    // It may be cut off before it has sent all.
    client.send(&encoded(&exist));
    assert!(
        client
            .reply()
            .unwrap()
            .error()
            .starts_with("BUSY too many bytes")
    );
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
fn idle_connections_use_no_shared_budget() {
    let service = Service::start();
    let long = vec![b'x'; 64 << 10];
    let items: Vec<Vec<u8>> = (0..10_000)
        .map(|number| format!("{number:0100}").into_bytes())
        .collect();
    let many = |command: &[&'static [u8]]| -> Vec<u8> {
        encoded(
            &command
                .iter()
                .copied()
                .chain(items.iter().map(Vec::as_slice))
                .collect::<Vec<_>>(),
        )
    };
    // The requests, and the number of replies.
    let requests = [
        (encoded(&[b"ECHO", &long]), 1),
        (
            many(&[b"CF.INSERT", b"spring", b"CAPACITY", b"20000", b"ITEMS"]),
            1,
        ),
        (many(&[b"CF.MEXISTS", b"spring"]), 1),
        (many(&[b"CF.MEXISTS", b"nowhere"]), 1),
        (line("CF.ADD spring u1").repeat(2_000), 2_000),
        (line("CF.EXISTS spring u1").repeat(2_000), 2_000),
        (line("COMMAND DOCS").repeat(50), 50),
        (line("NONSENSE").repeat(2_000), 2_000),
    ];
    let mut clients: Vec<_> = requests.iter().map(|_| service.connect()).collect();
    for (client, (bytes, answers)) in clients.iter_mut().zip(&requests) {
        let mut sender = client.other_half();
        std::thread::scope(|scope| {
            scope.spawn(move || assert!(sender.send(bytes)));
            (0..*answers).for_each(|_| assert!(client.reply().is_some()));
        });
    }
    eventually("nothing is taken", || {
        service.metrics("cuckood_resp_buffer_bytes ") == ["cuckood_resp_buffer_bytes 0"]
    });
    // Half a request takes its share, until the rest has arrived.
    let echo = encoded(&[b"ECHO", &long]);
    let client = &mut clients[0];
    client.send(&echo[..60_000]);
    eventually("something is taken", || {
        service.metrics("cuckood_resp_buffer_bytes ") != ["cuckood_resp_buffer_bytes 0"]
    });
    client.send(&echo[60_000..]);
    assert_eq!(client.reply(), Some(Reply::Bulk(long)));
    eventually("nothing is taken", || {
        service.metrics("cuckood_resp_buffer_bytes ") == ["cuckood_resp_buffer_bytes 0"]
    });
}

#[test]
fn executed_commands_reply_when_budget_exhausted() {
    let resp = RespOptions {
        buffers_bytes_max: 10_000,
        ..RespOptions::default()
    };
    let service = Service::with(Setup {
        resp,
        ..Setup::default()
    });
    let mut client = service.connect();
    let lines = [
        "CF.ADD spring u1\r\n".to_owned(),
        "INFO\r\n".repeat(100),
        "CF.ADD spring u2\r\n".to_owned(),
    ];
    assert!(client.send(lines.concat().as_bytes()));
    assert_eq!(client.reply(), Some(Reply::Integer(1)));
    let mut answers = 1;
    let refused = loop {
        match client.reply().expect("an answer") {
            Reply::Error(error) => break error,
            _ => answers += 1,
        }
    };
    assert!((2..100).contains(&answers), "{answers}");
    assert!(refused.starts_with("BUSY too many bytes"), "{refused}");
    assert_eq!(client.reply(), None);
    // A command without a reply was not executed.
    assert_eq!(
        service.connect().call("CF.MEXISTS spring u1 u2"),
        Reply::integers(&[1, 0])
    );
    let wanted = format!(
        r#"cuckood_resp_commands_total{{command="info",outcome="ok"}} {}"#,
        answers - 1
    );
    assert!(
        service
            .metrics("cuckood_resp_commands_total{")
            .contains(&wanted),
        "{wanted}"
    );
}

#[test]
fn http_request_never_runs_commands() {
    let service = Service::start();
    let body = line("CF.ADD spring u1");
    for head in [
        "POST / HTTP/1.1\r\nHost: localhost:6379\r\n\r\n",
        "GET /CF.ADD HTTP/1.1\r\n\r\n",
        "CF.NOTHING x\r\n",
    ] {
        let mut client = service.connect();
        client.send(&[head.as_bytes(), &body].concat());
        assert!(
            client
                .reply()
                .unwrap()
                .error()
                .starts_with("ERR unknown command")
        );
        assert_eq!(client.reply(), None, "{head}");
    }
    // People may type.
    let mut client = service.connect();
    client.send(b"CF.ADD spring u1\r\ncf.exists  spring u1\n");
    assert_eq!(client.reply(), Some(Reply::Integer(1)));
    assert_eq!(client.reply(), Some(Reply::Integer(1)));
    assert_eq!(
        client.call("CF.COUNT spring u1"),
        Reply::Integer(1),
        "only once, by hand"
    );
}

#[test]
fn drain_answers_received_commands_and_closes() {
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
    // A command that has begun is waited for. Others may follow it without end.
    halfway.send(&[&add[add.len() - 5..], &add[..], &add[..add.len() - 5]].concat());
    assert_eq!(halfway.reply(), Some(Reply::Integer(1)));
    assert_eq!(halfway.reply(), Some(Reply::Integer(1)));
    assert_eq!(halfway.reply(), None);
    assert_eq!(service.connect().reply(), None);
    assert_eq!(
        service
            .view(Kind::Campaign, "spring")
            .describe(service.engine.now())
            .stats
            .items,
        4
    );
}

#[test]
fn idle_connection_takes_little_memory() {
    let service = Service::start();
    let (_client, stream) = tokio::io::duplex(64);
    let vitals = Vitals::default();
    let connection = service.resp.serve(stream, None, &vitals);
    let bytes = size_of_val(&connection);
    assert!(bytes <= 6 << 10, "{bytes}");
}

/// Each poll is a turn.
#[test]
fn long_command_takes_several_turns() {
    let service = Service::start();
    assert_eq!(
        service.connect().call("CF.ADD spring u1"),
        Reply::Integer(1)
    );
    let items: Vec<Vec<u8>> = (0..10_000)
        .map(|number| format!("{number:0500}").into_bytes())
        .collect();
    let exist = [&b"CF.MEXISTS"[..], b"spring"]
        .into_iter()
        .chain(items.iter().map(Vec::as_slice));
    let (mut client, stream) = tokio::io::duplex(8 << 20);
    let vitals = Vitals::default();
    let mut serving = pin!(service.resp.serve(stream, None, &vitals));
    client
        .write_all(&encoded(&exist.collect::<Vec<_>>()))
        .now_or_never()
        .unwrap()
        .unwrap();
    let mut turns = 0;
    let mut reply = Vec::new();
    while reply.len() < 10_000 * ":0\r\n".len() {
        assert!(serving.as_mut().now_or_never().is_none());
        turns += 1;
        while client.read_buf(&mut reply).now_or_never().is_some() {}
    }
    assert!(reply.starts_with(b"*10000\r\n:0\r\n"));
    assert!(turns > 1, "all 5 MB in one turn");
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
        assert!(
            counted.iter().any(|found| found == line),
            "{line} in {counted:#?}"
        );
    }
    let is_zero = |line: &&String| line.ends_with(" 0");
    assert_eq!(counted.iter().filter(|line| !is_zero(line)).count(), 4);
    for (command, outcome) in [
        ("cf.del", "ok"),
        ("cf.insert", "OOM"),
        ("exec", "EXECABORT"),
        ("auth", "WRONGPASS"),
    ] {
        let line =
            format!(r#"cuckood_resp_commands_total{{command="{command}",outcome="{outcome}"}} 0"#);
        assert!(counted.contains(&line), "{line} before its first event");
    }
    assert_eq!(
        service.metrics("cuckood_resp_connections "),
        ["cuckood_resp_connections 1"]
    );
}
