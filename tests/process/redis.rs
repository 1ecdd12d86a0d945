//! The listener for Redis clients of the real program: acknowledged writes survive a kill, a shutdown answers received commands, and keys,
//! certificates, connections and timeouts are as for HTTP.

use crate::api_keys::new_key;
use crate::redis_client::{Connection, Reply, line};
use crate::service::Service;
use crate::{TIMEOUT, program, until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const LISTEN: (&str, &str) = ("CUCKOOD__RESP__LISTEN", "127.0.0.1:0");

fn start(data: &Path, settings: &[(&str, &str)]) -> Service {
    Service::start_ready(program(), data, &[&[LISTEN], settings].concat())
}

fn connect(service: &Service) -> Connection {
    Connection::to(service.redis_address())
}

#[test]
fn resp_listener_is_off_by_default() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    assert!(
        !service
            .output()
            .so_far()
            .iter()
            .any(|line| line.contains("Redis"))
    );
    assert_eq!(service.terminate().code(), Some(0));
}

#[test]
fn http_and_resp_share_filters() {
    let directory = tempfile::tempdir().unwrap();
    let service = start(&directory.path().join("data"), &[]);
    let http = service.client();
    let mut redis = connect(&service);
    assert_eq!(
        http.put("/v1/campaigns/spring", &json!({ "capacity": 100 }))
            .unwrap()
            .status,
        201
    );
    assert_eq!(redis.call("CF.ADD spring u1"), Reply::Integer(1));
    let users = json!({ "users": ["u1", "u2"] });
    let present = http
        .post("/v1/campaigns/spring/users/check", &users)
        .unwrap()
        .body;
    assert_eq!(present, json!({ "present": [true, false] }));
    assert_eq!(
        http.post("/v1/campaigns/spring/users", &json!({ "users": ["u2"] }))
            .unwrap()
            .status,
        200
    );
    assert_eq!(
        redis.call("CF.MEXISTS campaign:spring u1 u2"),
        Reply::integers(&[1, 1])
    );
    assert_eq!(redis.call("CF.ADD coupon:welcome K1"), Reply::Integer(1));
    assert_eq!(
        http.get("/v1/coupons/welcome").unwrap().body["mode"],
        "strict"
    );
    assert_eq!(
        service.metric(r#"cuckood_resp_commands_total{command="cf.add",outcome="ok"}"#),
        2
    );
    assert_eq!(redis.call("DEL spring"), Reply::Integer(1));
    assert_eq!(http.get("/v1/campaigns/spring").unwrap().status, 404);
    let was_logged = service.output().wait_for(TIMEOUT, |line| {
        let fields = &serde_json::from_str::<Value>(line).ok()?["fields"];
        (fields["act"] == "del" && fields["target"] == "campaign:spring").then_some(())
    });
    assert!(was_logged.is_some(), "an administrative act was not logged");
    assert_eq!(service.terminate().code(), Some(0));
}

/// Adds items one pipeline after the other, and counts acknowledged ones. Ends when the connection breaks.
fn add(address: SocketAddr, client: usize, answered: &AtomicUsize) {
    let mut connection = Connection::to(address);
    for round in 0.. {
        let adds = (0..16)
            .flat_map(|number| line(&format!("CF.ADD spring c{client}-{}", round * 16 + number)));
        if !connection.send(&adds.collect::<Vec<u8>>()) {
            return;
        }
        for _ in 0..16 {
            match connection.reply() {
                Some(reply) => assert_eq!(reply, Reply::Integer(1)),
                None => return,
            }
            answered.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn acknowledged_pipelined_adds_survive_kill() {
    const CLIENTS: usize = 4;
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let answered: [AtomicUsize; CLIENTS] = Default::default();
    let count = |client: usize| answered[client].load(Ordering::SeqCst);
    for round in 1..=3 {
        let service = start(&data, &[]);
        let address = service.redis_address();
        if round == 1 {
            assert_eq!(
                connect(&service).call("CF.RESERVE spring 1000000"),
                Reply::ok()
            );
        }
        let before: Vec<usize> = (0..CLIENTS).map(count).collect();
        std::thread::scope(|scope| {
            let adders: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    scope.spawn({
                        let answered = &answered;
                        move || add(address, client, &answered[client])
                    })
                })
                .collect();
            until("adds are answered", || {
                (0..CLIENTS).all(|client| count(client) >= before[client] + 160)
            });
            service.kill();
            adders.into_iter().for_each(|adder| adder.join().unwrap());
        });
        let service = start(&data, &[]);
        let mut redis = connect(&service);
        for (client, before) in before.into_iter().enumerate() {
            // Each round adds the same items again, to a separate filter.
            let items: Vec<String> = (0..count(client) - before)
                .map(|number| format!("c{client}-{number}"))
                .collect();
            for items in items.chunks(1_000) {
                let present = redis.call(&format!("CF.MEXISTS spring {}", items.join(" ")));
                assert_eq!(
                    present,
                    Reply::integers(&vec![1; items.len()]),
                    "round {round}, client {client}"
                );
            }
        }
        assert_eq!(redis.call("DEL spring"), Reply::Integer(1));
        assert_eq!(redis.call("CF.RESERVE spring 1000000"), Reply::ok());
        assert_eq!(service.terminate().code(), Some(0));
    }
}

#[test]
fn sigterm_answers_received_commands() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let service = start(&data, &[]);
    let address = service.redis_address();
    assert_eq!(
        connect(&service).call("CF.RESERVE spring 1000000"),
        Reply::ok()
    );
    let mut idle = connect(&service);
    assert_eq!(idle.call("PING"), Reply::Simple("PONG".into()));
    let answered = Arc::new(AtomicUsize::new(0));
    let adder = std::thread::spawn({
        let answered = answered.clone();
        move || add(address, 0, &answered)
    });
    until("adds are answered", || {
        answered.load(Ordering::SeqCst) > 100
    });
    service.begin_termination();
    assert_eq!(idle.reply(), None);
    adder.join().unwrap();
    assert_eq!(service.wait().code(), Some(0));
    let answered = answered.load(Ordering::SeqCst);
    assert_eq!(answered % 16, 0, "a pipeline was answered in part");
    let service = start(&data, &[]);
    let info = connect(&service).call("CF.INFO spring");
    assert_eq!(
        info.field("Number of items inserted"),
        &Reply::Integer(answered as i64)
    );
    assert_eq!(service.terminate().code(), Some(0));
}

#[test]
fn existing_keys_never_appear_missing_during_startup() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let service = start(&data, &[]);
    let mut redis = connect(&service);
    assert_eq!(redis.call("CF.RESERVE spring 4000000"), Reply::ok());
    assert_eq!(redis.call("CF.ADD spring u1"), Reply::Integer(1));
    service.kill();
    let service = Service::start(program(), &data, &[LISTEN]);
    let mut redis = connect(&service);
    assert_eq!(
        redis.call("PING"),
        Reply::Simple("PONG".into()),
        "the port is bound first"
    );
    until("started", || {
        // It may end between the two, but never begin.
        let info = redis.call("INFO persistence").text();
        match redis.call("CF.EXISTS spring u1") {
            Reply::Error(error) => {
                assert!(error.starts_with("LOADING "), "{error}");
                assert!(info.contains("loading:1"), "{info}");
                false
            }
            found => {
                assert_eq!(found, Reply::Integer(1));
                true
            }
        }
    });
    assert!(redis.call("INFO").text().contains("loading:0"));
    assert_eq!(service.terminate().code(), Some(0));
}

#[test]
fn reloaded_keys_apply_to_open_connections() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cuckood.toml");
    let put = |entries: &[&str]| {
        std::fs::write(&file, format!("[auth]\nkeys = [{}]\n", entries.join(", "))).unwrap();
    };
    let (old, old_entry) = new_key("old", "read,write");
    let (new, new_entry) = new_key("new", "read");
    put(&[&old_entry]);
    let mut command = Command::new(program());
    command
        .arg("serve")
        .arg("--config")
        .arg(&file)
        .env(LISTEN.0, LISTEN.1);
    let service =
        Service::spawn(command.env("CUCKOOD__STORAGE__PATH", directory.path().join("data")));
    until("ready", || {
        service.client().get("/readyz").unwrap().status == 200
    });
    let mut holder = connect(&service);
    let mut stranger = connect(&service);
    // No path in the log has such a name by chance.
    let look = "CF.EXISTS spring an-item-that-is-never-logged";
    let add = "CF.ADD spring an-item-that-is-never-logged";
    assert!(stranger.call(look).error().starts_with("NOAUTH"));
    assert!(
        stranger
            .call(&format!("AUTH {new}"))
            .error()
            .starts_with("WRONGPASS")
    );
    assert_eq!(holder.call(&format!("AUTH shop {old}")), Reply::ok());
    assert_eq!(holder.call(add), Reply::Integer(1));
    put(&[&new_entry]);
    service.hang_up();
    let was_logged = service.output().wait_for(TIMEOUT, |line| {
        line.contains("reloaded API keys").then_some(())
    });
    assert!(was_logged.is_some());
    assert!(holder.call(look).error().starts_with("NOAUTH"));
    assert_eq!(stranger.call(&format!("AUTH {new}")), Reply::ok());
    assert_eq!(stranger.call(look), Reply::Integer(1));
    let refused = service
        .output()
        .so_far()
        .iter()
        .filter(|line| line.contains("a key was refused"))
        .count();
    assert!((2..=10).contains(&refused), "{refused}");
    let log = service.output().so_far().join("\n");
    assert!(
        !log.contains(&old) && !log.contains(&new) && !log.contains("never-logged"),
        "{log}"
    );
    assert_eq!(service.terminate().code(), Some(0));
}

#[test]
fn idle_or_unauthenticated_connection_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let (key, entry) = new_key("shop", "read");
    let settings = [
        ("CUCKOOD__RESP__CONNECTIONS_MAX", "2"),
        ("CUCKOOD__SERVER__HEADER_TIMEOUT", "3s"),
        ("CUCKOOD__AUTH__KEYS", &format!("[{entry}]")),
    ];
    let service = start(&directory.path().join("data"), &settings);
    let mut stranger = connect(&service);
    let mut half = connect(&service);
    half.send(b"*2\r\n$4\r\nAUTH");
    assert_eq!(stranger.reply(), None, "it is waited for without end");
    assert_eq!(
        half.reply(),
        None,
        "half a command is waited for without end"
    );
    let mut clients: Vec<Connection> = (0..2).map(|_| connect(&service)).collect();
    for client in &mut clients {
        assert_eq!(client.call(&format!("AUTH {key}")), Reply::ok());
    }
    let mut third = connect(&service);
    assert_eq!(
        third.call(&format!("AUTH {key}")),
        Reply::ok(),
        "another client gets no reply"
    );
    let closed = clients.iter_mut().filter_map(|client| {
        client.send(&line("PING"));
        client.reply().is_none().then_some(())
    });
    assert_eq!(closed.count(), 1);
    // HTTP has a separate limit.
    assert_eq!(service.client().get("/readyz").unwrap().status, 200);
    assert_eq!(service.terminate().code(), Some(0));
}

#[test]
fn storage_failure_differs_from_untried_write() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command
        .args(["-c", r#"trap "" XFSZ; exec "$0" serve"#])
        .arg(program())
        .env(LISTEN.0, LISTEN.1);
    let service =
        Service::spawn(command.env("CUCKOOD__STORAGE__PATH", directory.path().join("data")));
    until("ready", || {
        service.client().get("/readyz").unwrap().status == 200
    });
    let mut redis = connect(&service);
    assert_eq!(redis.call("CF.ADD spring u1"), Reply::Integer(1));
    // From now on no file may be written.
    service.limit_files(0);
    let unknown = redis.call("CF.ADD spring u2");
    assert_eq!(
        unknown.error(),
        "MISCONF storage has failed; whether the write took effect is unknown"
    );
    assert!(
        redis
            .call("CF.ADD spring u3")
            .error()
            .starts_with("READONLY ")
    );
    assert!(
        redis
            .call("CF.RESERVE summer 1000")
            .error()
            .starts_with("READONLY ")
    );
    assert_eq!(
        redis.call("CF.EXISTS spring u1"),
        Reply::Integer(1),
        "reads go on"
    );
    assert_eq!(service.terminate().code(), Some(1));
}

#[test]
fn certificate_disables_plain_text() {
    let directory = tempfile::tempdir().unwrap();
    let pair = crate::certificates::pair();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| directory.path().join(name));
    std::fs::write(&cert, pair.certificate.pem()).unwrap();
    std::fs::write(&key, &pair.key).unwrap();
    let cert = cert.display().to_string();
    let key = key.display().to_string();
    let settings = [
        LISTEN,
        ("CUCKOOD__SERVER__TLS_CERT", cert.as_str()),
        ("CUCKOOD__SERVER__TLS_KEY", key.as_str()),
    ];
    let service = Service::start(program(), &directory.path().join("data"), &settings);
    let address = service.redis_address();
    let mut clear = TcpStream::connect(address).unwrap();
    clear.write_all(&line("PING")).unwrap();
    clear.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut answer = Vec::new();
    // It may be closed or reset.
    let _ = clear.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"+"), "{}", answer.escape_ascii());
    let mut tls = tls(address, pair.certificate.der());
    tls.write_all(&line("PING")).unwrap();
    let mut answer = [0; 7];
    tls.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
    assert_eq!(service.terminate().code(), Some(0));
}

/// A TLS connection that trusts this certificate alone.
fn tls(
    address: SocketAddr,
    certificate: &[u8],
) -> rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.to_vec().into()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::from(address.ip());
    let connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    rustls::StreamOwned::new(connection, stream)
}
