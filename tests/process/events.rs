//! Events of the real program: kills neither lose nor duplicate any, and waiting clients do not delay its shutdown.

use crate::service::{Client, Service};
use crate::{program, until};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// So that snapshots are taken, and the log is pruned, all the time.
const SETTINGS: &[(&str, &str)] = &[
    ("CUCKOOD__SNAPSHOTS__LOG_MIN", "32KiB"),
    ("CUCKOOD__SNAPSHOTS__LOG_MAX", "64KiB"),
    ("CUCKOOD__STORAGE__WAL_SEGMENT", "64KiB"),
    ("CUCKOOD__STORAGE__DURABILITY", "flush"),
];

/// All events after a number, as reported.
fn read(client: &Client, after: u64) -> Vec<String> {
    let (status, text) = client.text(&format!("/v1/events?after={after}&limit=10000")).unwrap();
    assert_eq!(status, 200, "{text}");
    text.lines().map(str::to_owned).collect()
}

fn seq(line: &str) -> u64 {
    serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap()
}

/// Redeems one code after the other until the service is gone, and notes the ids that were acknowledged.
fn redeem(client: &Client, next: &AtomicU64, redeemed: &Mutex<Vec<String>>) {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let body = json!({ "code": format!("c{number}"), "reference": format!("order-{number}") });
        match client.post("/v1/coupons/welcome/redemptions", &body) {
            Ok(answer) if answer.status == 201 => {
                redeemed.lock().unwrap().push(answer.body["id"].as_str().unwrap().to_owned());
            }
            Ok(answer) => assert_eq!(answer.status, 503, "{answer:?}"),
            Err(_) => return,
        }
    }
}

/// Follows the events, and records each as reported.
fn follow(client: &Client, lines: &Mutex<Vec<String>>) {
    loop {
        let after = lines.lock().unwrap().last().map_or(0, |line| seq(line));
        let Ok((200, text)) = client.text(&format!("/v1/events?after={after}&wait=30")) else { return };
        // The last line may be cut off by the kill.
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        lines.lock().unwrap().extend(whole.map(|line| line.trim_end().to_owned()));
    }
}

#[test]
fn redemption_has_one_event_despite_kills() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let (next, redeemed, told) = (AtomicU64::new(0), Mutex::default(), Mutex::new(Vec::new()));
    let service = Service::start_ready(program(), &data, SETTINGS);
    let client = service.client();
    assert_eq!(client.put("/v1/coupons/welcome", &json!({ "capacity": 9_000 })).unwrap().status, 201);
    let codes: Vec<String> = (0..9_000).map(|number| format!("c{number}")).collect();
    assert_eq!(client.post("/v1/coupons/welcome/codes", &json!({ "codes": codes })).unwrap().status, 200);
    service.kill();
    for round in 1..=5 {
        let service = Service::start_ready(program(), &data, SETTINGS);
        let client = service.client();
        // Events read before the kill are identical afterwards.
        let again = read(&client, 0);
        assert!(again.starts_with(&told.lock().unwrap()), "events have changed");
        *told.lock().unwrap() = again;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let client = client.another();
                scope.spawn(|| {
                    let client = client;
                    redeem(&client, &next, &redeemed);
                });
            }
            let client = client.another();
            scope.spawn(|| {
                let client = client;
                follow(&client, &told);
            });
            until("redemptions", || redeemed.lock().unwrap().len() >= 400 * round);
            service.kill();
        });
    }
    let service = Service::start_ready(program(), &data, SETTINGS);
    let lines = read(&service.client(), 0);
    assert!(lines.starts_with(&told.lock().unwrap()));
    assert!(lines.iter().map(|line| seq(line)).eq(1..=lines.len() as u64), "numbers have gaps");
    let mut created: HashMap<String, u32> = HashMap::new();
    for line in &lines {
        let event: Value = serde_json::from_str(line).unwrap();
        if event["event"] == "redemption.created" {
            *created.entry(event["id"].as_str().unwrap().to_owned()).or_default() += 1;
        }
    }
    for id in redeemed.lock().unwrap().iter() {
        assert_eq!(created.get(id), Some(&1), "of redemption {id}");
    }
    assert!(created.values().all(|count| *count == 1));
    let stats = service.client().get("/v1/coupons/welcome").unwrap().body["stats"].clone();
    assert_eq!(stats["redeemed"], created.len(), "events and state agree");
    assert_eq!(service.terminate().code(), Some(0));
    let verified = Command::new(program()).arg("verify").arg(&data).output().unwrap();
    let notes = String::from_utf8_lossy(&verified.stdout);
    assert!(verified.status.success() && notes.contains(&format!("events: {}", lines.len())), "{notes}");
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
    assert!(answers[0].0 == 503 && answers[0].1.contains("overloaded"), "{:?}", answers[0]);
    assert!(answers[1..].iter().all(|answer| *answer == (200, String::new())), "{answers:?}");
}

#[test]
fn restored_backup_continues_with_new_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup");
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    let client = service.client();
    assert_eq!(client.put("/v1/campaigns/before", &json!({ "capacity": 10 })).unwrap().status, 201);
    assert_eq!(client.post("/v1/snapshots", &json!({})).unwrap().status, 200);
    let run = |arguments: &[&std::ffi::OsStr]| {
        let done = Command::new(program()).args(arguments).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    let url = format!("http://{}", client.address());
    run(&["backup".as_ref(), file.as_ref(), "--url".as_ref(), url.as_ref()]);
    assert_eq!(client.put("/v1/campaigns/lost", &json!({ "capacity": 10 })).unwrap().status, 201);
    let lost = read(&client, 0);
    service.kill();
    let data = directory.path().join("restored");
    run(&["restore".as_ref(), file.as_ref(), data.as_ref()]);
    let service = Service::start_ready(program(), &data, &[]);
    let client = service.client();
    assert_eq!(client.put("/v1/campaigns/after", &json!({ "capacity": 10 })).unwrap().status, 201);
    let lines = read(&client, 0);
    assert_eq!(lines[0], lost[0]);
    // A client that knows the lost event misses no later event.
    assert_eq!(read(&client, seq(&lost[1])), lines[1..]);
    let names: Vec<String> = lines[1..]
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["event"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["backup.restored", "campaign.created"]);
    assert!(seq(&lines[1]) > seq(&lost[1]));
}
