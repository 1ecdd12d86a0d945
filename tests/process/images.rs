//! Transfer of one campaign or coupon: `cuckood move` as its user sees it, and a process that is killed during an upload.

use crate::service::{Client, Service};
use crate::{program, until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::thread;

const PATH: &str = "/v1/coupons/welcome";

fn codes(count: u64) -> Vec<String> {
    (0..count).map(|number| format!("code-{number}")).collect()
}

/// A service with a coupon of ten thousand codes, of which a few are used.
fn filled(data: &Path) -> Service {
    let service = Service::start_ready(program(), data, &[]);
    let client = service.client();
    assert_eq!(
        client
            .put(PATH, &json!({ "capacity": 50_000 }))
            .unwrap()
            .status,
        201
    );
    let added = client
        .post(&format!("{PATH}/codes"), &json!({ "codes": codes(10_000) }))
        .unwrap();
    assert_eq!(added.body["added"], 10_000);
    for number in 0..5 {
        let used = json!({ "code": format!("code-{number}"), "reference": "order" });
        assert_eq!(
            client
                .post(&format!("{PATH}/redemptions"), &used)
                .unwrap()
                .status,
            201
        );
    }
    service
}

/// An image as transferred.
fn image(client: &Client) -> Vec<u8> {
    let mut stream = TcpStream::connect(client.address()).unwrap();
    write!(
        stream,
        "GET {PATH}/image HTTP/1.0\r\nHost: {}\r\n\r\n",
        client.address()
    )
    .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let body = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .unwrap()
        + 4;
    assert!(
        answer.starts_with(b"HTTP/1.0 200"),
        "{}",
        String::from_utf8_lossy(&answer[..body])
    );
    answer.split_off(body)
}

fn valid(client: &Client, path: &str) -> Value {
    let asked = json!({ "codes": codes(100) });
    client
        .post(&format!("{path}/codes/check"), &asked)
        .unwrap()
        .body["valid"]
        .take()
}

#[test]
fn kill_during_image_upload_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let source = filled(&directory.path().join("here"));
    let image = image(&source.client());
    let data = directory.path().join("there");
    let settings = [
        ("CUCKOOD__SNAPSHOTS__LOG_MIN", "64KiB"),
        ("CUCKOOD__SNAPSHOTS__LOG_MAX", "256KiB"),
    ];
    let mut service = Service::start_ready(program(), &data, &settings);
    let half = image.len() / 2;
    // With and without a snapshot that has the half.
    for is_snapshot in [false, true] {
        let client = service.client();
        let before = service.metric("cuckood_applied_seq ");
        let mut stream = TcpStream::connect(client.address()).unwrap();
        let host = client.address();
        let length = image.len();
        write!(
            stream,
            "PUT {PATH}/image HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n"
        )
        .unwrap();
        stream.write_all(&image[..half]).unwrap();
        until("a part has come", || {
            let [applied, loading] =
                service.metrics(["cuckood_applied_seq ", "cuckood_images_loading "]);
            applied >= before + 2 && loading == 1
        });
        assert_eq!(client.get(PATH).unwrap().status, 404);
        if is_snapshot {
            assert_eq!(
                client.post("/v1/snapshots", &json!({})).unwrap().status,
                200
            );
        }
        service.kill();
        service = Service::start_ready(program(), &data, &settings);
        until("it is given up", || {
            service.metric("cuckood_images_loading ") == 0
        });
        assert_eq!(service.client().get(PATH).unwrap().status, 404);
    }
    let client = service.client();
    let made = client
        .send("PUT", &format!("{PATH}/image"), &[], &image)
        .unwrap();
    assert_eq!(made.status, 201, "{}", made.body);
    assert_eq!(valid(&client, PATH), valid(&source.client(), PATH));
    service.kill();
    let service = Service::start_ready(program(), &data, &settings);
    assert_eq!(service.client().get(PATH).unwrap().body, made.body);
    assert_eq!(
        valid(&service.client(), PATH),
        valid(&source.client(), PATH)
    );
}

fn run_move(arguments: &[&str]) -> Output {
    Command::new(program())
        .arg("move")
        .args(arguments)
        .output()
        .unwrap()
}

#[track_caller]
fn fails(arguments: &[&str], why: &str) {
    let ended = run_move(arguments);
    let message = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.code() == Some(1) && message.contains(why),
        "{arguments:?}: {message}"
    );
}

/// Passes connections on to a service. The first one, over which an image is sent, breaks in the middle.
fn breaking(address: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let mut client = client.unwrap();
            let mut server = TcpStream::connect(&address).unwrap();
            let mut answers = server.try_clone().unwrap();
            let mut to_client = client.try_clone().unwrap();
            thread::spawn(move || {
                // Either side may be gone.
                let _ = std::io::copy(&mut answers, &mut to_client);
                let _ = to_client.shutdown(std::net::Shutdown::Both);
            });
            thread::spawn(move || {
                if number == 0 {
                    let _ = std::io::copy(&mut (&mut client).take(20_000), &mut server);
                    let _ = client.shutdown(std::net::Shutdown::Both);
                } else {
                    let _ = std::io::copy(&mut client, &mut server);
                }
                let _ = server.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    own
}

#[test]
fn coupon_moves_by_one_command() {
    let directory = tempfile::tempdir().unwrap();
    let here = filled(&directory.path().join("here"));
    let there = Service::start_ready(program(), &directory.path().join("there"), &[]);
    let from = here.client();
    let to = there.client();
    let urls = [&from, &to].map(|client| format!("http://{}", client.address()));
    let [from_url, to_url] = urls.each_ref().map(String::as_str);
    let what = "coupons/welcome";

    let ended = run_move(&[what, "--from", from_url, "--to", to_url, "--json"]);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(
        String::from_utf8_lossy(&ended.stderr),
        "",
        "nothing is shown where there is no terminal"
    );
    let told: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(told["made"], format!("{to_url}{PATH}"));
    assert!(told["bytes"].as_u64() > Some(80_000), "{told}");
    assert_eq!(to.get(PATH).unwrap().body, from.get(PATH).unwrap().body);
    assert_eq!(valid(&to, PATH), valid(&from, PATH));

    fails(
        &[what, "--from", from_url, "--to", to_url],
        "already-exists",
    );
    fails(
        &["coupons/none", "--from", from_url, "--to", to_url],
        "coupon-not-found",
    );
    fails(
        &["coupon/welcome", "--from", from_url, "--to", to_url],
        "`coupon/welcome` is neither campaigns/NAME nor",
    );
    // On the same service under another name, and over a connection that breaks in transit.
    let ended = run_move(&[
        what, "--from", from_url, "--to", from_url, "--rename", "copy",
    ]);
    assert!(ended.status.success(), "{ended:?}");
    assert!(
        String::from_utf8_lossy(&ended.stdout).contains("the original is still there"),
        "{ended:?}"
    );
    assert_eq!(valid(&from, "/v1/coupons/copy"), valid(&from, PATH));
    let broken = format!("http://{}", breaking(to.address().to_owned()));
    let ended = run_move(&[
        what, "--from", from_url, "--to", &broken, "--rename", "second",
    ]);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(valid(&to, "/v1/coupons/second"), valid(&from, PATH));
    until("the broken image is gone", || {
        there.metric("cuckood_images_loading ") == 0
    });
}
