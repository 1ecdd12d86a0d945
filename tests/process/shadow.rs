//! `cuckood shadow` as its user sees it. For comparisons, our RESP listener replaces Redis. MONITOR, which it doesn't support, is a mock of
//! a few lines; `tests/redis/run.sh` uses Redis itself.

use crate::api_keys::new_key;
use crate::certificates::pair;
use crate::service::{Client, Service};
use crate::{TIMEOUT, program, until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

const RESP: (&str, &str) = ("CUCKOOD__RESP__LISTEN", "127.0.0.1:0");

fn shadow(arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command
        .arg("shadow")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Its exit status, its printed result, and its errors.
fn ended(output: &Output) -> (Option<i32>, Value, String) {
    let result = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (
        output.status.code(),
        result,
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

fn run(arguments: &[&str]) -> (Option<i32>, Value, String) {
    ended(&shadow(arguments).output().unwrap())
}

fn url(client: &Client) -> String {
    format!("http://{}", client.address())
}

fn make(client: &Client, name: &str, mode: &str) {
    let spec = json!({ "capacity": 1_000, "mode": mode });
    assert_eq!(
        client.put(&format!("/v1/{name}"), &spec).unwrap().status,
        201
    );
}

fn present(client: &Client, users: &[&str]) -> Value {
    present_in(client, "campaigns/spring", users)
}

fn present_in(client: &Client, campaign: &str, users: &[&str]) -> Value {
    let body = json!({ "users": users });
    client
        .post(&format!("/v1/{campaign}/users/check"), &body)
        .unwrap()
        .body["present"]
        .clone()
}

fn items(client: &Client) -> Value {
    client.get("/v1/campaigns/spring").unwrap().body["stats"]["items"].clone()
}

fn put(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn command_file_is_mirrored() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    let client = service.client();
    make(&client, "campaigns/spring", "compact");
    make(&client, "coupons/welcome", "strict");
    let url = url(&client);
    let text = "OK\n1.2 [0 10.0.0.1:9] \"CF.ADD\" \"k\" \"a\"\n1.3 [0 10.0.0.1:9] \"cf.add\" \"k\" \"a\"\ncf.insert k items b c d\n\
                CF.ADDNX k b\nCF.DEL k c\nCF.ADD other x\nCF.ADD k \"\\xe4\\xbd\\xa0\"\nCF.EXISTS k a\n";
    let file = put(directory.path(), "commands", text);
    let arguments = ["--key", "k", "--commands", &file, "--url", &url];
    let (status, result, message) =
        run(&[&arguments[..], &["--into", "campaigns/spring"]].concat());
    assert_eq!((status, message.as_str()), (Some(0), ""));
    let count = |name: &str| result[name].as_u64().unwrap();
    assert_eq!(
        ["commands", "added", "removed", "skipped", "gaps"].map(count),
        [6, 6, 1, 0, 0],
        "{result}"
    );
    assert_eq!(
        present(&client, &["a", "b", "c", "d", "你", "x"]),
        json!([true, true, false, true, true, false])
    );
    let counted = client
        .post(
            "/v1/campaigns/spring/users/count",
            &json!({ "users": ["a", "b"] }),
        )
        .unwrap()
        .body;
    assert_eq!(counted, json!({ "counts": [2, 1] }));
    // A coupon's codes are added once.
    let (status, result, _) = run(&[&arguments[..], &["--into", "coupons/welcome"]].concat());
    assert_eq!(
        (status, &result["added"], &result["removed"]),
        (Some(0), &json!(5), &json!(1))
    );
    // Commands that can't be mirrored are reported, later ones are mirrored, and a deleted key is an empty filter.
    let file = put(
        directory.path(),
        "strange",
        "SPOP k\nspop k 2\nCF.ADD k \"\\xff\"\nFLUSHALL\nDEL k\nCF.ADD k z\n",
    );
    let (status, result, message) = run(&[
        "--key",
        "k",
        "--commands",
        &file,
        "--url",
        &url,
        "--into",
        "campaigns/spring",
    ]);
    assert_eq!(
        (status, &result["cleared"], &result["skipped"]),
        (Some(1), &json!(5), &json!(1)),
        "{message}"
    );
    assert_eq!(result["not_mirrored"], json!({ "spop": 2, "flushall": 1 }));
    assert!(
        message.contains("--compare") && message.contains("spop may have changed the key"),
        "{message}"
    );
    assert_eq!(
        (items(&client), present(&client, &["a", "z"])),
        (json!(1), json!([false, true]))
    );
    assert_eq!(service.terminate().code(), Some(0));
}

#[test]
fn impossible_mirror_is_rejected_immediately() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[RESP]);
    let client = service.client();
    make(&client, "campaigns/spring", "strict");
    let url = url(&client);
    let redis = format!("redis://:a-secret@{}", service.redis_address());
    let file = put(directory.path(), "commands", "SADD k a\nSADD k \"b");
    let open = redis.replace(":a-secret@", "");
    let into = |target: &str, more: &[&str]| -> Vec<String> {
        let fixed = ["--key", "k", "--url", &url, "--into", target];
        fixed.iter().chain(more).map(ToString::to_string).collect()
    };
    let with = |more: [&str; 2]| into("campaigns/spring", &more);
    for (arguments, status, why) in [
        (
            into("campaigns/summer", &["--commands", &file]),
            1,
            "campaign-not-found",
        ),
        (
            into("spring", &["--commands", &file]),
            1,
            "neither campaigns/NAME nor coupons/NAME",
        ),
        (
            with(["--commands", &file]),
            1,
            "command 2: a quote does not end",
        ),
        (with(["--commands", "nowhere"]), 1, "nowhere"),
        (into("campaigns/spring", &[]), 2, "--redis"),
        (with(["--redis", "http://a"]), 1, "neither redis nor rediss"),
        (
            with(["--redis", "redis://127.0.0.1:1"]),
            1,
            "redis 127.0.0.1:1: ",
        ),
        // Our RESP listener has no passwords without keys, and no MONITOR in any case.
        (
            with(["--redis", &redis]),
            1,
            "Password authentication failed",
        ),
        (with(["--redis", &open]), 1, "unknown command"),
        (
            [
                with(["--redis", &open]),
                with(["--compare", &file])[6..].to_vec(),
            ]
            .concat(),
            1,
            "does not exist",
        ),
    ] {
        let (found, _, message) = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(
            found == Some(status) && message.contains(why),
            "{arguments:?}: {found:?} {message}"
        );
        assert!(!message.contains("a-secret"), "{message}");
        assert!(
            message.matches("redis 127.0.0.1:").count() <= 1,
            "reported twice: {message}"
        );
    }
    assert_eq!(
        present(&client, &["a", "b"]),
        json!([true, false]),
        "what came before the fault is mirrored"
    );
    assert_eq!(service.terminate().code(), Some(0));
}

#[test]
fn comparison_uses_tls_and_keys() {
    let directory = tempfile::tempdir().unwrap();
    let made = pair();
    let cert = put(directory.path(), "cert.pem", &made.certificate.pem());
    let certificate_key = put(directory.path(), "key.pem", &made.key);
    let (key, entry) = new_key("shop", "read,write");
    let keys = format!("[{entry}]");
    let settings = [
        RESP,
        ("CUCKOOD__SERVER__TLS_CERT", cert.as_str()),
        ("CUCKOOD__SERVER__TLS_KEY", certificate_key.as_str()),
        ("CUCKOOD__AUTH__KEYS", keys.as_str()),
    ];
    let service = Service::start(program(), &directory.path().join("data"), &settings);
    let client = service.client_trusting(made.certificate.der());
    until("ready", || client.get("/readyz").unwrap().status == 200);
    let url = format!("https://{}", client.address());
    let redis = format!("rediss://anybody:{key}@{}", service.redis_address());
    let authorization = format!("Bearer {key}");
    let ours = [
        ("Authorization", authorization.as_str()),
        ("Content-Type", "application/json"),
    ];
    for name in ["old", "new"] {
        let path = format!("/v1/campaigns/{name}");
        assert_eq!(
            client
                .send("PUT", &path, &ours, br#"{"capacity":9000,"mode":"strict"}"#)
                .unwrap()
                .status,
            201
        );
    }
    // More than go into one question.
    let all: Vec<String> = (0..2_500).map(|number| format!("u{number}")).collect();
    let file = put(
        directory.path(),
        "items",
        &format!("{}\r\n\nnobody", all.join("\n")),
    );
    let add = |name: &str, users: &[String]| {
        let body = json!({ "users": users }).to_string();
        let answer = client
            .send(
                "POST",
                &format!("/v1/campaigns/{name}/users"),
                &ours,
                body.as_bytes(),
            )
            .unwrap();
        assert_eq!(answer.status, 200);
    };
    add("old", &all[1..]);
    add("new", &all[..2_499]);
    let arguments = [
        "--redis",
        &redis,
        "--key",
        "old",
        "--into",
        "campaigns/new",
        "--compare",
        &file,
        "--url",
        &url,
        "--cacert",
        &cert,
    ];
    let with_key = [&arguments[..], &["--api-key", &key]].concat();
    let (status, result, message) = run(&with_key);
    assert_eq!(status, Some(1), "{message}");
    assert!(message.contains("2 disagreements"), "{message}");
    let count = |name: &str| result[name].as_u64().unwrap();
    assert_eq!(
        ["compared", "both", "neither", "only_redis", "only_cuckood"].map(count),
        [2_501, 2_498, 1, 1, 1]
    );
    let wanted = json!([{ "line": 1, "redis": false, "cuckood": true }, { "line": 2500, "redis": true, "cuckood": false }]);
    assert_eq!(result["disagreements"], wanted);
    assert!(!message.contains(&key) && !result.to_string().contains("u2499"));
    assert_eq!(
        run(&[&with_key[..], &["--max-disagreements", "2"]].concat()).0,
        Some(0)
    );
    let (status, _, message) = run(&arguments);
    assert!(
        status == Some(1) && message.contains("401 unauthenticated"),
        "{message}"
    );
    let long = put(
        directory.path(),
        "long",
        &format!("u1\n{}\n", "x".repeat(600)),
    );
    let unfit = with_key.iter().map(|argument| {
        if *argument == file {
            long.as_str()
        } else {
            *argument
        }
    });
    let (status, _, message) = run(&unfit.collect::<Vec<_>>());
    assert!(
        status == Some(1) && message.contains("line 2: "),
        "{message}"
    );
    // A line that never ends is not read to its end.
    let endless = with_key
        .iter()
        .map(|argument| if *argument == file { "-" } else { *argument });
    let mut process = shadow(&endless.collect::<Vec<_>>())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = process.stdin.take().unwrap();
    input.write_all(&[b'x'; 5_000]).unwrap();
    until("the end", || process.try_wait().unwrap().is_some());
    drop(input);
    let (status, _, message) = ended(&process.wait_with_output().unwrap());
    assert!(
        status == Some(1) && message.contains("line 1: "),
        "{message}"
    );
    assert_eq!(service.terminate().code(), Some(0));
}

/// Something that says what MONITOR says, to one client after the other.
struct Monitored {
    address: SocketAddr,
    clients: mpsc::Receiver<TcpStream>,
}

impl Monitored {
    /// With a key of this type, and the failed calls of CF.ADD, which each INFO returns.
    fn with(key_type: &'static str, failed: &[u64]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (to, clients) = mpsc::channel();
        let failed = failed.to_vec();
        std::thread::spawn(move || {
            let mut failed = failed.into_iter();
            for stream in listener.incoming().map(Result::unwrap) {
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap())
                    .lines()
                    .map(Result::unwrap);
                // A length precedes the command and each word.
                while let Some(length) = lines.next() {
                    let words = length[1..].parse::<usize>().unwrap();
                    let words: Vec<String> = (0..words).map(|_| lines.nth(1).unwrap()).collect();
                    let reply = match words[0].as_str() {
                        "INFO" => {
                            let text = format!(
                                "cmdstat_cf.add:calls=9,failed_calls={}",
                                failed.next().unwrap_or(0)
                            );
                            format!("${}\r\n{text}\r\n", text.len())
                        }
                        "TYPE" => format!("+{key_type}\r\n"),
                        "MONITOR" => "+OK\r\n".to_owned(),
                        other => panic!("{other}"),
                    };
                    (&stream).write_all(reply.as_bytes()).unwrap();
                    if words[0] == "MONITOR" {
                        to.send(stream).unwrap();
                        break;
                    }
                }
            }
        });
        Self { address, clients }
    }

    fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// The next client that asks for it.
    fn client(&self) -> TcpStream {
        self.clients.recv_timeout(TIMEOUT).unwrap()
    }
}

fn say(mut stream: &TcpStream, commands: &[&str]) {
    for command in commands {
        let words: Vec<String> = command
            .split(' ')
            .map(|word| format!("\"{word}\""))
            .collect();
        stream
            .write_all(format!("+1.2 [0 10.0.0.1:9] {}\r\n", words.join(" ")).as_bytes())
            .unwrap();
    }
}

/// A run that goes on until it is interrupted. Dropped, it is killed.
struct Running(Option<Child>);

impl Running {
    fn start(arguments: &[&str]) -> Self {
        Self(Some(shadow(arguments).spawn().unwrap()))
    }

    /// SIGINT, and how it ended.
    fn interrupt(mut self) -> (Option<i32>, Value, String) {
        let child = self.0.take().unwrap();
        let process = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
        ended(&child.wait_with_output().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn monitor_is_mirrored_until_interrupt() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    let client = service.client();
    make(&client, "campaigns/spring", "strict");
    let url = url(&client);
    let monitored = Monitored::with("set", &[]);
    let arguments = [
        "--redis",
        &monitored.url(),
        "--key",
        "k",
        "--into",
        "campaigns/spring",
        "--url",
        &url,
    ]
    .map(str::to_owned);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let run = Running::start(&arguments);
    let stream = monitored.client();
    say(
        &stream,
        &[
            "SADD k a b",
            "GET x",
            "SREM k a",
            "SADD k c",
            "SADD other d",
        ],
    );
    until("mirrored", || {
        present(&client, &["a", "b", "c", "d"]) == json!([false, true, true, false])
    });
    let (status, result, message) = run.interrupt();
    assert_eq!(
        (status, &result["commands"], &result["gaps"]),
        (Some(0), &json!(3), &json!(0)),
        "{message}"
    );
    assert!(
        message.contains("changes are mirrored from now on"),
        "{message}"
    );

    // A connection that breaks is made again, and the gap makes the run a failure.
    let run = Running::start(&arguments);
    let stream = monitored.client();
    say(&stream, &["SADD k e"]);
    until("mirrored", || present(&client, &["e"]) == json!([true]));
    drop(stream);
    let stream = monitored.client();
    say(&stream, &["SADD k f"]);
    until("mirrored again", || {
        present(&client, &["f"]) == json!([true])
    });
    let (status, result, message) = run.interrupt();
    assert_eq!(
        (status, &result["added"], &result["gaps"]),
        (Some(1), &json!(2), &json!(1)),
        "{message}"
    );
    assert!(
        message.contains("commands sent before that are missed"),
        "{message}"
    );
    assert_eq!(service.terminate().code(), Some(0));
}

#[test]
fn commands_that_redis_rejects_are_not_mirrored() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    let client = service.client();
    make(&client, "campaigns/spring", "compact");
    let url = url(&client);
    let monitored = Monitored::with("MBbloomCF", &[7, 10, 10, 11, 11, 11, 11, 2]);
    let redis = monitored.url();
    let arguments = [
        "--redis",
        &redis,
        "--key",
        "k",
        "--into",
        "campaigns/spring",
        "--url",
        &url,
    ];
    let run = Running::start(&arguments);
    let stream = monitored.client();
    say(
        &stream,
        &[
            "CF.ADD k a b",
            "SADD k a b",
            "CF.INSERT k CAPACITY 1 ITEMS a",
            "CF.ADD k c",
        ],
    );
    until("mirrored", || present(&client, &["c"]) == json!([true]));
    let (status, result, message) = run.interrupt();
    assert_eq!(
        (status, &result["added"], &result["commands"]),
        (Some(0), &json!(1), &json!(1)),
        "{message}"
    );
    assert_eq!((items(&client), &result["rejected"]), (json!(1), &json!(3)));
    // A filter was full, which a command does not show.
    let run = Running::start(&arguments);
    let stream = monitored.client();
    say(&stream, &["CF.ADD k d"]);
    until("mirrored", || present(&client, &["d"]) == json!([true]));
    let (status, result, message) = run.interrupt();
    assert_eq!(
        (status, &result["rejected_unseen"]),
        (Some(1), &json!(1)),
        "{message}"
    );
    assert_eq!(result["rejected_wrongly"], json!(0));
    // Redis has accepted a command that was not mirrored.
    let run = Running::start(&arguments);
    let stream = monitored.client();
    say(&stream, &["SADD k x", "CF.ADD k e"]);
    until("mirrored", || present(&client, &["e"]) == json!([true]));
    let (status, result, message) = run.interrupt();
    assert_eq!(
        (status, &result["rejected_wrongly"]),
        (Some(1), &json!(1)),
        "{message}"
    );
    assert_eq!(result["rejected_unseen"], json!(0));
    assert!(message.contains("see rejected_wrongly:"), "{message}");
    // A Redis that counts from 0 again has been restarted.
    let run = Running::start(&arguments);
    let stream = monitored.client();
    say(&stream, &["CF.ADD k f"]);
    until("mirrored", || present(&client, &["f"]) == json!([true]));
    let (status, result, message) = run.interrupt();
    assert_eq!(
        (status, &result["rejected_unseen"]),
        (Some(0), &Value::Null),
        "{message}"
    );

    // In a file, the type of the key is not known.
    let file = put(
        directory.path(),
        "commands",
        "SADD k a\nCF.ADD k b\nDEL k\nCF.ADD k c\n",
    );
    let (status, result, message) = run_file(&file, &["--url", &url, "--into", "campaigns/spring"]);
    assert_eq!(
        (status, &result["not_mirrored"]),
        (Some(1), &json!({ "cf.add": 1 })),
        "{message}"
    );
    assert_eq!(
        present(&client, &["a", "b", "c"]),
        json!([false, false, true])
    );
    assert_eq!(service.terminate().code(), Some(0));
}

fn run_file(file: &str, more: &[&str]) -> (Option<i32>, Value, String) {
    run(&[&["--key", "k", "--commands", file], more].concat())
}

#[test]
fn differing_contents_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    let client = service.client();
    make(&client, "campaigns/spring", "compact");
    make(&client, "campaigns/strict", "strict");
    let url = url(&client);
    let into = |name: &'static str| ["--url", &url, "--into", name].map(str::to_owned).to_vec();
    let mirror = |name: &'static str, text: &str, more: &[&str]| {
        let file = put(directory.path(), "commands", text);
        let into = into(name);
        run_file(
            &file,
            &[&into.iter().map(String::as_str).collect::<Vec<_>>(), more].concat(),
        )
    };
    // Redis has 8 copies left.
    let text = "CF.ADD k a\n".repeat(20) + &"CF.DEL k a\n".repeat(12);
    let (status, result, message) = mirror("campaigns/spring", &text, &[]);
    let saturated = result["saturated"].as_u64().unwrap();
    assert_eq!(
        (status, result["added"].as_u64().unwrap() + saturated),
        (Some(1), 20),
        "{message}"
    );
    assert!(
        saturated > 0 && message.contains("see saturated:"),
        "{result} {message}"
    );
    // A strict campaign has one copy of two.
    let (status, result, message) = mirror(
        "campaigns/strict",
        "CF.ADD k a\nCF.ADD k a\nCF.DEL k b\n",
        &[],
    );
    assert_eq!(
        (status, &result["removed_early"]),
        (Some(0), &json!(0)),
        "{message}"
    );
    let (status, result, message) = mirror(
        "campaigns/strict",
        "CF.ADD k a\nCF.ADD k a\nCF.DEL k a\n",
        &[],
    );
    assert_eq!(
        (status, &result["removed_early"]),
        (Some(1), &json!(1)),
        "{message}"
    );
    let (status, result, message) =
        mirror("campaigns/strict", "SADD k a\nSADD k a\nSREM k a\n", &[]);
    assert_eq!(
        (status, &result["removed_early"]),
        (Some(0), &json!(0)),
        "{message}"
    );

    // Other databases have other keys.
    let text = "1.1 [0 a:1] \"SADD\" \"k\" \"zero\"\n1.2 [1 a:1] \"DEL\" \"k\"\n1.3 [1 a:1] \"SADD\" \"k\" \"one\"\n";
    let reads = text.replace("DEL", "GET").replace("SADD", "ZSCORE");
    let (status, result, message) = mirror("campaigns/strict", &reads, &[]);
    assert_eq!(
        (status, &result["other_databases"]),
        (Some(0), &json!(0)),
        "{message}"
    );
    let (status, result, message) = mirror("campaigns/strict", text, &[]);
    assert_eq!(
        (status, &result["other_databases"]),
        (Some(1), &json!(2)),
        "{message}"
    );
    assert!(message.contains("--database"), "{message}");
    let strict = || present_in(&client, "campaigns/strict", &["zero", "one"]);
    assert_eq!(strict(), json!([true, false]));
    let (status, result, message) = mirror("campaigns/strict", text, &["--database", "1"]);
    assert_eq!(
        (status, &result["other_databases"]),
        (Some(0), &json!(0)),
        "{message}"
    );
    assert_eq!(strict(), json!([false, true]));
    assert_eq!(service.terminate().code(), Some(0));
}

/// A proxy that loses the answers of the first writes, which have taken effect by then.
fn forgetful_proxy(upstream: &str, losses: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let upstream = upstream.to_owned();
    let lost = Arc::new(AtomicUsize::new(0));
    let counted = lost.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut server = TcpStream::connect(&upstream).unwrap();
            let mut back = client.try_clone().unwrap();
            let mut answers = server.try_clone().unwrap();
            let is_write = Arc::new(AtomicBool::new(false));
            let lost = counted.clone();
            let writes = is_write.clone();
            std::thread::spawn(move || {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(read @ 1..) = client.read(&mut buffer) {
                    let text = String::from_utf8_lossy(&buffer[..read]).to_ascii_lowercase();
                    if text.contains("idempotency-key") {
                        writes.store(true, Ordering::SeqCst);
                    }
                    let _ = server.write_all(&buffer[..read]);
                }
                let _ = server.shutdown(Shutdown::Write);
            });
            std::thread::spawn(move || {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(read @ 1..) = answers.read(&mut buffer) {
                    if is_write.swap(false, Ordering::SeqCst)
                        && lost.load(Ordering::SeqCst) < losses
                    {
                        lost.fetch_add(1, Ordering::SeqCst);
                        break;
                    }
                    let _ = back.write_all(&buffer[..read]);
                }
                let _ = back.shutdown(Shutdown::Both);
            });
        }
    });
    (format!("http://{address}"), lost)
}

#[test]
fn change_with_lost_reply_applies_once() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    let client = service.client();
    make(&client, "campaigns/spring", "compact");
    let (proxy, lost) = forgetful_proxy(client.address(), 2);
    let file = put(
        directory.path(),
        "commands",
        "CF.ADD k a\nCF.ADD k a\nCF.DEL k b\nCF.ADD k b\n",
    );
    let (status, result, message) = run(&[
        "--key",
        "k",
        "--commands",
        &file,
        "--into",
        "campaigns/spring",
        "--url",
        &proxy,
    ]);
    assert_eq!(
        (status, &result["added"], lost.load(Ordering::SeqCst)),
        (Some(0), &json!(3), 2),
        "{message}"
    );
    assert!(message.contains("trying again"), "{message}");
    let counted = client
        .post(
            "/v1/campaigns/spring/users/count",
            &json!({ "users": ["a", "b"] }),
        )
        .unwrap()
        .body;
    assert_eq!(counted, json!({ "counts": [2, 1] }));
    assert_eq!(service.terminate().code(), Some(0));
}
