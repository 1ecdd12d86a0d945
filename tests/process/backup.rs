//! A backup taken during writes is the state at one position of the log: it has a prefix of every writer's requests, together as many as
//! the log has entries up to there.

use crate::service::{Client, Service};
use crate::{program, until};
use cuckood_log::store::{Store, StoreError, StoreOptions};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const WRITERS: usize = 4;

fn last_seq(client: &Client) -> u64 {
    client.get("/v1/info").unwrap().body["last_seq"]
        .as_u64()
        .expect("a position")
}

fn user(writer: usize, number: u64) -> String {
    format!("user-{writer}-{number}")
}

/// The number of a writer's users that are present, from the first on, without a gap.
fn prefix(client: &Client, writer: usize, sent: u64) -> u64 {
    let users: Vec<String> = (0..sent).map(|number| user(writer, number)).collect();
    let mut present: Vec<bool> = Vec::new();
    for users in users.chunks(10_000) {
        let answer = client
            .post(
                "/v1/campaigns/spring/users/check",
                &json!({ "users": users }),
            )
            .unwrap();
        present.extend(
            answer.body["present"]
                .as_array()
                .unwrap()
                .iter()
                .map(|is| is == &Value::Bool(true)),
        );
    }
    let count = present.iter().filter(|is| **is).count();
    assert!(
        present[..count].iter().all(|is| *is),
        "writer {writer}: a request is missing before a later one"
    );
    count as u64
}

#[test]
fn backup_under_load_matches_its_position() {
    let directory = tempfile::tempdir().unwrap();
    let settings = [
        ("CUCKOOD__SNAPSHOTS__LOG_MIN", "64KiB"),
        ("CUCKOOD__SNAPSHOTS__LOG_MAX", "256KiB"),
    ];
    let service = Service::start_ready(program(), &directory.path().join("data"), &settings);
    let client = service.client();
    let spec = json!({ "capacity": 200_000, "mode": "strict" });
    assert_eq!(
        client.put("/v1/campaigns/spring", &spec).unwrap().status,
        201
    );
    let base = last_seq(&client);
    let acknowledged: [AtomicU64; WRITERS] = Default::default();
    let done = AtomicBool::new(false);
    let mut backups = Vec::new();
    std::thread::scope(|scope| {
        for (writer, acknowledged) in acknowledged.iter().enumerate() {
            let client = client.another();
            let done = &done;
            scope.spawn(move || {
                for number in 0.. {
                    let users = json!({ "users": [user(writer, number)] });
                    assert_eq!(
                        client
                            .post("/v1/campaigns/spring/users", &users)
                            .unwrap()
                            .status,
                        200
                    );
                    acknowledged.store(number + 1, Ordering::SeqCst);
                    if done.load(Ordering::SeqCst) {
                        return;
                    }
                }
            });
        }
        for round in 0..4_u64 {
            while acknowledged
                .iter()
                .any(|count| count.load(Ordering::SeqCst) < 100 * (round + 1))
            {
                std::thread::yield_now();
            }
            let before = acknowledged
                .each_ref()
                .map(|count| count.load(Ordering::SeqCst));
            let file = directory.path().join(format!("backup-{round}"));
            let url = format!("http://{}", client.address());
            let made = Command::new(program())
                .arg("backup")
                .arg(&file)
                .args(["--url", &url])
                .output()
                .unwrap();
            assert!(made.status.success(), "{made:?}");
            backups.push((file, before));
        }
        done.store(true, Ordering::SeqCst);
    });
    let sent = acknowledged
        .each_ref()
        .map(|count| count.load(Ordering::SeqCst));
    service.kill();
    for (file, before) in backups {
        let restored = file.with_extension("restored");
        let done = Command::new(program())
            .arg("restore")
            .args([&file, &restored])
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        let service = Service::start_ready(program(), &restored, &settings);
        let client = service.client();
        // The last entry says that it was restored.
        let position = last_seq(&client) - 1;
        let prefixes: Vec<u64> = (0..WRITERS)
            .map(|writer| prefix(&client, writer, sent[writer]))
            .collect();
        assert_eq!(
            prefixes.iter().sum::<u64>(),
            position - base,
            "{prefixes:?}"
        );
        assert!(
            prefixes
                .iter()
                .zip(before)
                .all(|(prefix, before)| *prefix >= before),
            "{prefixes:?}"
        );
        let items = client.get("/v1/campaigns/spring").unwrap().body["stats"]["items"].as_u64();
        assert_eq!(items, Some(position - base));
    }
}

/// The names and sizes of all files below a directory.
fn listing(dir: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => found.extend(listing(&entry.path())),
            Ok(metadata) => drop(found.insert(entry.path(), metadata.len())),
            // Removed since.
            Err(_) => {}
        }
    }
    found
}

/// Kills a restore after the first, second, … change that shows in its directory: no such directory is ever served, and one that was not
/// yet claimed is empty.
#[test]
fn killed_restore_is_never_served() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup");
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    let client = service.client();
    let spec = json!({ "capacity": 100_000 });
    assert_eq!(
        client.put("/v1/campaigns/spring", &spec).unwrap().status,
        201
    );
    let users: Vec<String> = (0..5_000).map(|number| format!("u{number}")).collect();
    assert_eq!(
        client
            .post("/v1/campaigns/spring/users", &json!({ "users": users }))
            .unwrap()
            .status,
        200
    );
    let url = format!("http://{}", client.address());
    let saved = Command::new(program())
        .arg("backup")
        .arg(&file)
        .args(["--url", &url])
        .output()
        .unwrap();
    assert!(saved.status.success(), "{saved:?}");
    let options = StoreOptions {
        free_space_min_bytes: 0,
        ballast_bytes: 0,
        ..StoreOptions::default()
    };
    let mut killed = 0;
    let mut changes = 0;
    // A busy machine misses changes, so it tries again until enough restores were killed.
    for attempt in 0.. {
        changes += 1;
        let restored = directory.path().join(format!("restored-{attempt}"));
        let mut restore = Command::new(program());
        restore
            .arg("restore")
            .args([&file, &restored])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut restore = restore.spawn().unwrap();
        let mut seen = 0;
        let mut last = BTreeMap::new();
        let done = loop {
            if let Some(status) = restore.try_wait().unwrap() {
                break status;
            }
            let now = listing(&restored);
            seen += u64::from(now != last);
            last = now;
            if seen == changes {
                restore.kill().unwrap();
            }
        };
        if done.success() {
            Store::open(&restored, &options).unwrap();
            if killed >= 5 {
                break;
            }
            changes = 0;
            continue;
        }
        killed += 1;
        let is_claimed = listing(&restored)
            .keys()
            .any(|path| !path.ends_with("lock"));
        let opened = Store::open(&restored, &options).map(drop);
        match opened {
            Err(StoreError::Damaged { what, .. }) => assert!(what.contains("restore"), "{what}"),
            Ok(()) if !is_claimed => {}
            // Killed after its last step.
            Ok(()) => {
                let service = Service::start_ready(program(), &restored, &[]);
                let found = service.client().post(
                    "/v1/campaigns/spring/users/check",
                    &json!({ "users": users }),
                );
                let present = found.unwrap().body["present"].as_array().unwrap().clone();
                assert!(
                    present.iter().all(|is| is == true),
                    "after {changes} changes: incomplete"
                );
            }
            Err(other) => panic!("after {changes} changes: {other}"),
        }
    }
}

/// The archive is a pipe without a writer, so the restore waits for its first byte. The directory is claimed by then.
#[test]
fn restore_claims_directory_before_reading_archive() {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("archive");
    let restored = directory.path().join("restored");
    assert!(
        Command::new("mkfifo")
            .arg(&archive)
            .status()
            .unwrap()
            .success()
    );
    let mut restore = Command::new(program())
        .arg("restore")
        .args([&archive, &restored])
        .spawn()
        .unwrap();
    until("the directory is claimed", || {
        restored.join("restoring").exists()
    });
    restore.kill().unwrap();
    restore.wait().unwrap();
    let refused = Store::open(&restored, &StoreOptions::default())
        .map(drop)
        .unwrap_err();
    assert!(refused.to_string().contains("cuckood restore"), "{refused}");
}

/// A killed service has acknowledged more than its last snapshot has.
#[test]
fn directory_backup_contains_acknowledged_writes() {
    let directory = tempfile::tempdir().unwrap();
    let [data, file, restored] =
        ["data", "backup", "restored"].map(|name| directory.path().join(name));
    let back_up = || {
        Command::new(program())
            .arg("backup")
            .arg(&file)
            .arg("--from")
            .arg(&data)
            .output()
            .unwrap()
    };
    let refused = back_up();
    assert!(!refused.status.success() && !file.exists(), "{refused:?}");
    assert!(
        String::from_utf8_lossy(&refused.stderr)
            .contains("is not a cuckood data directory: it does not exist"),
        "{refused:?}"
    );

    let service = Service::start_ready(program(), &data, &[]);
    let client = service.client();
    assert_eq!(
        client
            .put("/v1/campaigns/spring", &json!({ "capacity": 1_000 }))
            .unwrap()
            .status,
        201
    );
    let add = |user: &str| {
        let added = client
            .post("/v1/campaigns/spring/users", &json!({ "users": [user] }))
            .unwrap();
        assert_eq!(added.status, 200);
    };
    add("before");
    assert_eq!(
        client.post("/v1/snapshots", &json!({})).unwrap().status,
        200
    );
    add("after");
    let last = last_seq(&client);
    let refused = back_up();
    assert!(
        !refused.status.success()
            && listing(directory.path())
                .keys()
                .all(|path| path.starts_with(&data))
    );
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("in use by another"),
        "{refused:?}"
    );
    service.kill();

    let saved = back_up();
    assert!(saved.status.success(), "{saved:?}");
    let again = back_up();
    assert!(
        String::from_utf8_lossy(&again.stderr).contains("exists"),
        "{again:?}"
    );
    let done = Command::new(program())
        .arg("restore")
        .args([&file, &restored])
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    // The directory can be served as before, too.
    for (dir, position) in [(&restored, last + 1), (&data, last)] {
        let service = Service::start_ready(program(), dir, &[]);
        let body = json!({ "users": ["before", "after", "never"] });
        let found = service
            .client()
            .post("/v1/campaigns/spring/users/check", &body)
            .unwrap();
        assert_eq!(found.body["present"], json!([true, true, false]));
        assert_eq!(last_seq(&service.client()), position);
        assert_eq!(service.terminate().code(), Some(0));
    }
}

/// The service could not open files of root in its directory, and would not start.
#[test]
fn root_leaves_no_files_in_directory_of_another_user() {
    const NOBODY: u32 = 65_534;
    let directory = tempfile::tempdir().unwrap();
    let [data, file] = ["data", "backup"].map(|name| directory.path().join(name));
    Service::start_ready(program(), &data, &[]).kill();
    if std::os::unix::fs::chown(&data, Some(NOBODY), None).is_err() {
        return eprintln!("NOT RUN: directory of another user: changing the owner requires root");
    }
    let before = listing(&data);
    for command in [
        vec!["backup", file.to_str().unwrap(), "--from"],
        vec!["repair", "clock"],
    ] {
        let refused = Command::new(program()).args(command).arg(&data).output();
        let refused = refused.unwrap();
        let message = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{message}");
        assert!(message.contains("belongs to user 65534"), "{message}");
        assert!(refused.stdout.is_empty(), "nothing was begun");
        assert_eq!(listing(&data), before);
    }
}

/// The time since the last backup is unknown then, and the log says so.
#[test]
fn unreadable_backup_time_is_logged() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let warning = "can't read the time of the last backup";
    let stored = || {
        std::fs::read_to_string(data.join("backup"))
            .unwrap()
            .trim()
            .parse::<u64>()
    };
    let service = Service::start_ready(program(), &data, &[]);
    assert!(
        stored().is_ok()
            && !service
                .output()
                .so_far()
                .iter()
                .any(|line| line.contains(warning))
    );
    service.terminate();
    std::fs::write(data.join("backup"), "yesterday\n").unwrap();
    let service = Service::start_ready(program(), &data, &[]);
    assert!(
        service
            .output()
            .so_far()
            .iter()
            .any(|line| line.contains(warning))
    );
    assert!(stored().is_ok());
}
