//! An entry that can't be applied: the process ends and names it, and the operator has a way past it.

use crate::program;
use crate::service::{Answer, Service};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

/// Builds with debug assertions panic at the entry of this position.
const PANIC_AT: &str = "CUCKOOD_TEST_PANIC_AT";

fn add(service: &Service, user: &str) -> Result<Answer, ureq::Error> {
    service
        .client()
        .post("/v1/campaigns/spring/users", &json!({ "users": [user] }))
}

/// The position of the last entry.
fn last(service: &Service) -> u64 {
    service.client().get("/v1/info").unwrap().body["last_seq"]
        .as_u64()
        .unwrap()
}

fn present(service: &Service, users: &[&str]) -> Value {
    let body = json!({ "users": users });
    service
        .client()
        .post("/v1/campaigns/spring/users/check", &body)
        .unwrap()
        .body["present"]
        .clone()
}

/// A directory as a kill leaves it, with three users, and the position of the second one.
fn killed(data: &Path) -> String {
    let service = Service::start_ready(program(), data, &[]);
    let created = service
        .client()
        .put("/v1/campaigns/spring", &json!({ "capacity": 100 }))
        .unwrap();
    assert_eq!(created.status, 201);
    add(&service, "first").unwrap();
    add(&service, "second").unwrap();
    let position = last(&service);
    add(&service, "third").unwrap();
    service.kill();
    position.to_string()
}

fn run(arguments: &[&str], data: &Path, panic_at: &str) -> Output {
    Command::new(program())
        .args(arguments)
        .arg(data)
        .env(PANIC_AT, panic_at)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn assert_named(told: &str, entry: &str, data: &Path) {
    let what = format!("entry {entry} (insert of campaign `spring`) can't be applied");
    let next_step = format!("`cuckood repair skip --entry {entry} {}`", data.display());
    assert!(told.contains(&what) && told.contains(&next_step), "{told}");
}

#[test]
fn panic_in_replay_ends_process() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let entry = killed(&data);
    let service = Service::start(program(), &data, &[(PANIC_AT, &entry)]);
    let output = service.output().clone();
    assert_eq!(service.wait().code(), Some(1));
    let told: Vec<_> = output
        .whole()
        .into_iter()
        .filter(|line| line.starts_with("cuckood: "))
        .collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_named(&told[0], &entry, &data);

    // A build that can apply the entry serves everything.
    let service = Service::start_ready(program(), &data, &[]);
    assert_eq!(
        present(&service, &["first", "second", "third"]),
        json!([true, true, true])
    );
}

#[test]
fn panic_in_apply_ends_process() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    killed(&data);
    let last = {
        let service = Service::start_ready(program(), &data, &[]);
        add(&service, "fourth").unwrap();
        let position = last(&service);
        service.kill();
        position
    };
    let entry = (last + 1).to_string();
    let service = Service::start_ready(program(), &data, &[(PANIC_AT, &entry)]);
    let unknown = add(&service, "fifth");
    assert!(
        unknown.as_ref().is_ok_and(|answer| answer.status == 503) || unknown.is_err(),
        "{unknown:?}"
    );
    let output = service.output().clone();
    assert_eq!(service.wait().code(), Some(1));
    assert_named(&output.whole().join("\n"), &entry, &data);
    let service = Service::start_ready(program(), &data, &[]);
    assert_eq!(
        present(&service, &["fourth", "fifth"]),
        json!([true, true]),
        "the entry was durable"
    );
}

#[test]
fn verify_reports_panic_as_finding() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let entry = killed(&data);
    let verified = run(&["verify", "--json"], &data, &entry);
    assert_eq!(verified.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&verified.stdout).unwrap();
    let faults = report["faults"].as_array().unwrap();
    assert_eq!(faults.len(), 1, "{report}");
    assert_named(faults[0].as_str().unwrap(), &entry, &data);
}

#[test]
fn repair_skips_one_bad_entry() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let entry = killed(&data);
    let skip = |skipped: &str, panic_at: &str| {
        run(&["repair", "skip", "--entry", skipped], &data, panic_at)
    };
    // Only an entry that can't be applied is skipped.
    let refused = skip(&entry, "");
    assert!(
        !refused.status.success() && text(&refused.stderr).contains("nothing is skipped"),
        "{refused:?}"
    );
    let refused = skip("1", &entry);
    assert!(!refused.status.success(), "{refused:?}");
    assert_named(&text(&refused.stderr), &entry, &data);

    let skipped = skip(&entry, &entry);
    assert!(skipped.status.success(), "{skipped:?}");
    assert!(
        text(&skipped.stdout).contains(&format!("entry {entry} is skipped")),
        "{skipped:?}"
    );
    // Again is no more than once.
    assert!(skip(&entry, &entry).status.success());

    // The entry would still panic, but no replay reaches it.
    let service = Service::start_ready(program(), &data, &[(PANIC_AT, &entry)]);
    assert_eq!(
        present(&service, &["first", "second", "third"]),
        json!([true, false, true])
    );
    let events = service.client().text("/v1/events").unwrap().1;
    let told = events
        .lines()
        .filter(|line| line.contains("entry.skipped"))
        .collect::<Vec<_>>();
    assert!(
        told.len() == 1 && told[0].contains(&format!("\"entry\":{entry}")),
        "{events}"
    );
    assert_eq!(service.terminate().code(), Some(0));
    let verified = run(&["verify"], &data, &entry);
    assert!(verified.status.success(), "{verified:?}");
    assert!(
        text(&verified.stdout).contains(&format!("entry {entry} is skipped")),
        "{verified:?}"
    );
}

/// Each bad entry is named in turn.
#[test]
fn repair_names_next_bad_entry() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let entry: u64 = killed(&data).parse().unwrap();
    let both = format!("{entry},{}", entry + 1);
    let skip = |skipped: u64| {
        run(
            &["repair", "skip", "--entry", &skipped.to_string()],
            &data,
            &both,
        )
    };
    let first = skip(entry);
    assert_eq!(first.status.code(), Some(1));
    let told = text(&first.stderr);
    assert!(
        told.contains(&format!("entry {entry} is skipped")),
        "{told}"
    );
    assert_named(&told, &(entry + 1).to_string(), &data);
    assert!(skip(entry + 1).status.success());
    let service = Service::start_ready(program(), &data, &[(PANIC_AT, &both)]);
    assert_eq!(
        present(&service, &["first", "second", "third"]),
        json!([true, false, false])
    );
}
