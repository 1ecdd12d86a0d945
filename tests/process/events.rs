//! Events of the real program: waiting clients do not delay its shutdown, and a restored backup continues with new numbers.

use crate::service::{Client, Service};
use crate::{program, until};
use serde_json::{Value, json};
use std::process::Command;
use std::sync::Mutex;

/// All events after a number, as reported.
fn read(client: &Client, after: u64) -> Vec<String> {
    let (status, text) = client
        .text(&format!("/v1/events?after={after}&limit=10000"))
        .unwrap();
    assert_eq!(status, 200, "{text}");
    text.lines().map(str::to_owned).collect()
}

fn seq(line: &str) -> u64 {
    serde_json::from_str::<Value>(line).unwrap()["seq"]
        .as_u64()
        .unwrap()
}

#[test]
fn waiting_event_client_never_delays_shutdown() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    let answers = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        // One more than may wait: once it is refused, all others are waiting.
        for _ in 0..65 {
            let client = service.client().another();
            scope.spawn(|| {
                let client = client;
                let answer = client.text("/v1/events?wait=30").unwrap();
                answers.lock().unwrap().push(answer);
            });
        }
        until("a refusal", || !answers.lock().unwrap().is_empty());
        assert_eq!(service.terminate().code(), Some(0));
    });
    let answers = answers.into_inner().unwrap();
    assert!(
        answers[0].0 == 503 && answers[0].1.contains("overloaded"),
        "{:?}",
        answers[0]
    );
    assert!(
        answers[1..]
            .iter()
            .all(|answer| *answer == (200, String::new())),
        "{answers:?}"
    );
}

#[test]
fn restored_backup_continues_with_new_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup");
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    let client = service.client();
    assert_eq!(
        client
            .put("/v1/campaigns/before", &json!({ "capacity": 10 }))
            .unwrap()
            .status,
        201
    );
    assert_eq!(
        client.post("/v1/snapshots", &json!({})).unwrap().status,
        200
    );
    let run = |arguments: &[&std::ffi::OsStr]| {
        let done = Command::new(program()).args(arguments).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    let url = format!("http://{}", client.address());
    run(&[
        "backup".as_ref(),
        file.as_ref(),
        "--url".as_ref(),
        url.as_ref(),
    ]);
    assert_eq!(
        client
            .put("/v1/campaigns/lost", &json!({ "capacity": 10 }))
            .unwrap()
            .status,
        201
    );
    let lost = read(&client, 0);
    service.kill();
    let data = directory.path().join("restored");
    run(&["restore".as_ref(), file.as_ref(), data.as_ref()]);
    let service = Service::start_ready(program(), &data, &[]);
    let client = service.client();
    assert_eq!(
        client
            .put("/v1/campaigns/after", &json!({ "capacity": 10 }))
            .unwrap()
            .status,
        201
    );
    let lines = read(&client, 0);
    assert_eq!(lines[0], lost[0]);
    // A client that knows the lost event misses no later event.
    assert_eq!(read(&client, seq(&lost[1])), lines[1..]);
    let names: Vec<String> = lines[1..]
        .iter()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["event"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(names, ["backup.restored", "campaign.created"]);
    assert!(seq(&lines[1]) > seq(&lost[1]));
}
