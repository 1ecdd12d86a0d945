//! `cuckood import` as its user sees it: its requests, its message after a rejection, and that it continues automatically after a broken
//! connection.

use crate::service::{Client, Service};
use crate::{program, until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn import(url: &str, arguments: &[&str], input: Option<&str>) -> Output {
    let mut command = Command::new(program());
    command.arg("import").args(arguments).args(["--url", url]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut stdin = process.stdin.take().unwrap();
    // It may have no use for it.
    let _ = stdin.write_all(input.unwrap_or_default().as_bytes());
    drop(stdin);
    process.wait_with_output().unwrap()
}

#[track_caller]
fn succeeds(url: &str, arguments: &[&str], input: Option<&str>) -> Value {
    let ended = import(url, arguments, input);
    let message = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{arguments:?}: {message}");
    assert_eq!(message, "", "nothing is shown where there is no terminal");
    serde_json::from_slice(&ended.stdout).unwrap()
}

#[track_caller]
fn fails(url: &str, arguments: &[&str], input: Option<&str>, why: &str) -> Output {
    let ended = import(url, arguments, input);
    let message = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.code() == Some(1) && message.contains(why),
        "{arguments:?}: {message}"
    );
    ended
}

fn items(client: &Client) -> Value {
    client.get("/v1/campaigns/spring").unwrap().body["stats"]["items"].clone()
}

struct Fixture {
    directory: tempfile::TempDir,
    service: Service,
    client: Client,
    url: String,
}

impl Fixture {
    fn new(capacity: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
        let client = service.client();
        let spec = json!({ "capacity": capacity, "mode": "strict" });
        assert_eq!(
            client.put("/v1/campaigns/spring", &spec).unwrap().status,
            201
        );
        let url = format!("http://{}", client.address());
        Self {
            directory,
            service,
            client,
            url,
        }
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

const INTO: &str = "campaigns/spring";

#[test]
fn delimiter_separates_columns() {
    let fixture = Fixture::new(1_000);
    let url = &fixture.url;
    let users = fixture.file(
        "users.csv",
        "\u{feff}user;email\r\nu1;a@example.com\r\nu2;\r\n;\r\n",
    );
    fails(
        url,
        &[INTO, &users, "--column", "user"],
        None,
        "set --delimiter semicolon",
    );
    fails(
        url,
        &[INTO, &users, "--delimiter", "semicolon"],
        None,
        "\"user\", \"email\"",
    );
    let arguments = [
        INTO,
        &users,
        "--column",
        "user",
        "--delimiter",
        "semicolon",
        "--max-rejected",
        "0",
    ];
    assert_eq!(succeeds(url, &arguments, None)["added"], 2);
    let stated = fixture.file("stated.csv", "sep=;\r\nuser;email\r\nu3;\r\n");
    assert_eq!(
        succeeds(url, &[INTO, &stated, "--column", "user"], None)["added"],
        1
    );
    let text = fixture.file("users.txt", "u4\n");
    fails(
        url,
        &[INTO, &text, "--delimiter", "tab"],
        None,
        "only CSV has delimiters",
    );
    assert_eq!(items(&fixture.client), 3);
}

/// A script that clears a campaign between two runs of the same import must notice that the second one added nothing.
#[test]
fn repeated_id_fails_after_clear() {
    let fixture = Fixture::new(1_000);
    let url = &fixture.url;
    let users = fixture.file("users.txt", "u1\nu2\n");
    for _ in 0..2 {
        assert_eq!(
            succeeds(url, &[INTO, &users, "--id", "codes"], None)["added"],
            2
        );
    }
    assert_eq!(
        fixture
            .client
            .post("/v1/campaigns/spring/clear", &json!({}))
            .unwrap()
            .status,
        200
    );
    let failed = fails(
        url,
        &[INTO, &users, "--id", "codes"],
        None,
        "import-overtaken",
    );
    assert!(failed.stdout.is_empty(), "no result is printed");
    assert_eq!(
        succeeds(url, &[INTO, &users, "--id", "codes-2"], None)["added"],
        2
    );
    assert_eq!(items(&fixture.client), 2);
}

/// Breaks the upload off.
struct Broken;

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::Error::other("the line is dead"))
    }
}

/// The lines in the log are gone, so an upload that continues after them would lose them, also after a crash.
#[test]
fn interrupted_id_fails_after_clear() {
    let Fixture {
        directory,
        service,
        client,
        ..
    } = Fixture::new(20_000);
    // More lines than a batch.
    let lines: String = (0..15_000).map(|number| format!("u{number}\n")).collect();
    let imports = "/v1/campaigns/spring/imports?id=nightly";
    let broken = std::io::Cursor::new(lines.clone()).chain(Broken);
    assert!(client.another().import(imports, broken).is_err());
    let import = || client.get("/v1/imports/nightly").unwrap().body;
    until("the end of the upload", || {
        import()["state"] == "interrupted"
    });
    assert_eq!(import()["lines"], 10_000);
    assert_eq!(
        client
            .post("/v1/campaigns/spring/clear", &json!({}))
            .unwrap()
            .status,
        200
    );
    assert_eq!(
        client.post("/v1/snapshots", &json!({})).unwrap().status,
        200
    );
    service.kill();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    let continued = service
        .client()
        .import(imports, std::io::Cursor::new(lines))
        .unwrap();
    assert_eq!(
        (continued.status, &continued.body["code"]),
        (409, &json!("import-overtaken"))
    );
    assert_eq!(items(&service.client()), 0);
}

#[test]
fn files_and_standard_input_are_imported() {
    let fixture = Fixture::new(1_000);
    let url = &fixture.url;
    let users = fixture.file("users.txt", "u1\nu2\n");
    assert_eq!(succeeds(url, &[INTO, &users], None)["added"], 2);
    // Without an ID each is a separate import.
    assert_eq!(succeeds(url, &[INTO, &users], None)["already_present"], 2);
    assert_eq!(succeeds(url, &[INTO, "-"], Some("u2\nu3\n"))["added"], 1);
    let csv = [INTO, "-", "--format", "csv", "--column", "id"];
    assert_eq!(succeeds(url, &csv, Some("id,name\nu4,Ann\n"))["added"], 1);
    let dry = succeeds(url, &[INTO, &users, "--replace", "--dry-run"], None);
    assert_eq!(
        (&dry["state"], items(&fixture.client)),
        (&json!("checked"), json!(4))
    );
    assert_eq!(
        succeeds(
            url,
            &[INTO, &users, "--replace", "--max-shrink", "0.5"],
            None
        )["state"],
        "done"
    );
    assert_eq!(items(&fixture.client), 2);
    let semicolons = Some("id;name\nu5;Ann\n");
    let csv = ["--format", "csv", "--column", "id"];
    for delimiter in [";", "semicolon"] {
        let arguments = [&[INTO, "-", "--delimiter", delimiter], &csv[..]].concat();
        assert_eq!(succeeds(url, &arguments, semicolons)["lines"], 2);
    }
    assert_eq!(fixture.service.terminate().code(), Some(0));
}

/// Messages of the service name parameters of HTTP. The command shows its options instead.
#[test]
fn advice_names_options() {
    let fixture = Fixture::new(1_000);
    let url = &fixture.url;
    let compact = json!({ "capacity": 1_000 });
    let created = fixture.client.put("/v1/campaigns/autumn", &compact);
    assert_eq!(created.unwrap().status, 201);
    let users: String = (0..400).map(|number| format!("u{number}\n")).collect();
    let twice = users.repeat(2);
    let warned = import(url, &["campaigns/autumn", "-"], Some(&twice));
    let message = String::from_utf8_lossy(&warned.stderr);
    assert!(
        warned.status.success() && message.starts_with("warning: "),
        "{message}"
    );
    assert!(
        message.contains("use --if-absent") && !message.contains("if_absent"),
        "{message}"
    );
    let printed: Value = serde_json::from_slice(&warned.stdout).unwrap();
    assert!(
        printed["warnings"].to_string().contains("if_absent=true"),
        "{printed}"
    );
    fails(
        url,
        &[INTO, "-", "--min-items", "3"],
        Some("u1\n"),
        "and --min-items is 3",
    );
    let semicolons = fixture.file("users.csv", "id;name\nu1;Ann\n");
    fails(url, &[INTO, &semicolons], None, "set --delimiter semicolon");
    let tabs = users.replace('\n', "\tAnn\n");
    let records = import(url, &[INTO, "-"], Some(&tabs));
    let message = String::from_utf8_lossy(&records.stderr);
    assert!(
        message.contains("use --format csv, and name its column with --column"),
        "{message}"
    );
}

#[test]
fn rejection_is_reported() {
    let fixture = Fixture::new(1_000);
    let url = &fixture.url;
    let users = fixture.file("users.txt", "u1\nu2\n");
    fails(
        url,
        &["campaigns/none", &users],
        None,
        "404 campaign-not-found",
    );
    fails(
        url,
        &["campaigns/none", "-"],
        Some("u1\n"),
        "404 campaign-not-found",
    );
    fails(url, &[INTO, "nowhere.txt"], None, "nowhere.txt");
    let csv = fixture.file("users.csv", "id,name\nu1,Ann\n");
    fails(
        url,
        &[INTO, &csv],
        None,
        "name the one that holds the items",
    );
    fails(
        url,
        &[INTO, &users, "--column", "id"],
        None,
        "422 invalid-request",
    );
    fails(
        url,
        &[INTO, "-", "--replace"],
        Some(""),
        "409 import-guarded",
    );
    assert_eq!(
        succeeds(url, &[INTO, &users, "--id", "nightly"], None)["added"],
        2
    );
    let others = fixture.file("others.txt", "u3\n");
    fails(
        url,
        &[INTO, &others, "--id", "nightly"],
        None,
        "409 import-differs",
    );
    fails("http://127.0.0.1:1", &[INTO, &users], None, "127.0.0.1:1");
    fails(
        "http://127.0.0.1:1",
        &[INTO, "nowhere.txt"],
        None,
        "nowhere.txt",
    );

    // Good lines are imported; the exit status reports the others, unless they are allowed.
    let mixed = fixture.file("mixed.ndjson", "\"u5\"\nbad\n\"u6\"\n");
    let ended = fails(url, &[INTO, &mixed], None, "1 line was rejected");
    let told: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!((&told["added"], &told["rejected"]), (&json!(2), &json!(1)));
    succeeds(url, &[INTO, &mixed, "--max-rejected", "1"], None);
    fails(
        url,
        &[INTO, &mixed, "--max-rejected", "0"],
        None,
        "409 import-guarded",
    );
    assert_eq!(fixture.service.terminate().code(), Some(0));
}

/// The service says no while much is still to be sent. The client would see that the connection is broken.
#[test]
fn rejection_during_upload_is_reported() {
    let fixture = Fixture::new(2_000_000);
    let lines: String = (0..1_000_000)
        .map(|n| {
            if n == 500 {
                "\n\"\n".into()
            } else {
                format!("\"user-{n}\"\n")
            }
        })
        .collect();
    let file = fixture.file("users.ndjson", &lines);
    fails(
        &fixture.url,
        &[INTO, &file, "--max-rejected", "0"],
        None,
        "409 import-guarded",
    );
    fails(
        &fixture.url,
        &[INTO, "-", "--format", "ndjson", "--max-rejected", "0"],
        Some(&lines),
        "import-guarded",
    );
    assert_eq!(items(&fixture.client), 500);
    assert_eq!(fixture.service.terminate().code(), Some(0));
}

/// A proxy that breaks the first connections, each after more bytes than the previous one. Short ones pass.
fn breaking_proxy(upstream: &str, cuts: usize, bytes_more: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let upstream = upstream.to_owned();
    let cut = Arc::new(AtomicUsize::new(0));
    let counted = cut.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            let server = TcpStream::connect(&upstream).unwrap();
            let mut answers = server.try_clone().unwrap();
            let mut back = client.try_clone().unwrap();
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut answers, &mut back);
                let _ = back.shutdown(Shutdown::Write);
            });
            let cut = counted.clone();
            let limit = (counted.load(Ordering::SeqCst) + 1) * bytes_more;
            std::thread::spawn(move || forward(client, server, &cut, cuts, limit));
        }
    });
    (format!("http://{address}"), cut)
}

fn forward(
    mut client: TcpStream,
    mut server: TcpStream,
    cut: &AtomicUsize,
    cuts: usize,
    limit: usize,
) {
    let mut bytes = 0;
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = client.read(&mut buffer) {
        bytes += read;
        if bytes > limit && cut.load(Ordering::SeqCst) < cuts {
            cut.fetch_add(1, Ordering::SeqCst);
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
            return;
        }
        if server.write_all(&buffer[..read]).is_err() {
            return;
        }
    }
    let _ = server.shutdown(Shutdown::Write);
}

/// `IMPORT_LINES` says how many lines are sent (200 000 if it is unset).
#[test]
fn import_continues_after_broken_connection() {
    let count: u64 = std::env::var("IMPORT_LINES").map_or(200_000, |lines| lines.parse().unwrap());
    let fixture = Fixture::new(count);
    let lines: String = (0..count).map(|n| format!("user-{n}\n")).collect();
    let file = fixture.file("users.txt", &lines);
    let bytes_more = 2 * count as usize;
    for mode in [&[][..], &["--replace"]] {
        let (proxy, cut) = breaking_proxy(fixture.client.address(), 5, bytes_more);
        let done = succeeds(&proxy, &[&[INTO, &file], mode].concat(), None);
        assert_eq!(
            (&done["state"], &done["lines"], &done["added"]),
            (&json!("done"), &json!(count), &json!(count))
        );
        assert_eq!(
            (cut.load(Ordering::SeqCst), items(&fixture.client)),
            (5, json!(count))
        );
    }
    // Standard input can't be read again, but added items stay, and the ID allows to continue.
    let (proxy, _) = breaking_proxy(fixture.client.address(), 1, bytes_more);
    let told = fails(
        &proxy,
        &[INTO, "-", "--id", "piped"],
        Some(&lines),
        "--id piped",
    );
    assert!(told.stdout.is_empty());
    let (proxy, _) = breaking_proxy(fixture.client.address(), 3, 1_000);
    fails(
        &proxy,
        &[INTO, &file, "--retries", "1"],
        None,
        "repeat the command with --id",
    );
    assert_eq!(fixture.service.terminate().code(), Some(0));
}
