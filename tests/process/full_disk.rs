//! A full disk: a small tmpfs. Writes are rejected, reads continue, nothing acknowledged is lost, and more space is enough to
//! continue. Mounting requires root; other users get a line for the summary of the test run.

use crate::service::{Answer, Client, Service};
use crate::{TIMEOUT, program, until};
use serde_json::json;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Codes in one request.
const BATCH: usize = 2_000;

/// A tmpfs, gone when dropped.
pub(crate) struct Disk(tempfile::TempDir);

impl Disk {
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn make_read_only(&self) {
        assert!(mount(self.0.path(), "remount,ro"));
    }

    pub(crate) fn mount(size: &str, test: &str) -> Option<Disk> {
        let directory = tempfile::tempdir().unwrap();
        let mounted = mount(directory.path(), &format!("size={size}"));
        if !mounted {
            eprintln!("NOT RUN: {test}: mounting a tmpfs requires root");
        }
        mounted.then(|| Disk(directory))
    }

    fn grow(&self, size: &str) {
        assert!(mount(self.0.path(), &format!("remount,size={size}")));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(self.0.path())
            .status();
    }
}

fn mount(path: &Path, options: &str) -> bool {
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", options, "cuckood-test"])
        .arg(path)
        .output();
    mount.is_ok_and(|mount| mount.status.success())
}

fn create(client: &Client) {
    let spec = json!({ "capacity": 100_000 });
    assert_eq!(client.put("/v1/coupons/codes", &spec).unwrap().status, 201);
}

fn codes(batch: usize) -> Vec<String> {
    (0..BATCH)
        .map(|number| format!("code-{batch}-{number}"))
        .collect()
}

/// Adds codes until it is refused; how many batches were acknowledged, and the refusal.
fn fill(client: &Client, mut batch: usize) -> (usize, Answer) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        assert!(Instant::now() < deadline, "the disk is not full in time");
        let answer = client
            .post("/v1/coupons/codes/codes", &json!({ "codes": codes(batch) }))
            .unwrap();
        if answer.status != 200 {
            return (batch, answer);
        }
        batch += 1;
    }
}

fn assert_there(client: &Client, batches: usize) {
    for batch in 0..batches {
        let answer = client
            .post(
                "/v1/coupons/codes/codes/check",
                &json!({ "codes": codes(batch) }),
            )
            .unwrap();
        let valid = answer.body["valid"].as_array().expect("a list");
        assert!(
            valid.len() == BATCH && valid.iter().all(|valid| valid == true),
            "batch {batch} is lost"
        );
    }
}

#[test]
fn writes_below_watermark_wait_for_space() {
    let Some(disk) = Disk::mount("160m", "process::full_disk") else {
        return;
    };
    let data = disk.0.path().join("data");
    let settings = [
        ("CUCKOOD__STORAGE__FREE_SPACE_MIN", "48MiB"),
        ("CUCKOOD__STORAGE__BALLAST", "8MiB"),
        ("CUCKOOD__SNAPSHOTS__LOG_MIN", "8MiB"),
        ("CUCKOOD__SNAPSHOTS__LOG_MAX", "8MiB"),
        ("CUCKOOD__STORAGE__WAL_SEGMENT", "4MiB"),
    ];
    let service = Service::start_ready(program(), &data, &settings);
    let client = service.client();
    create(&client);
    // Another file on the disk, so that it is full soon.
    std::fs::write(disk.0.path().join("other"), vec![1; 60 << 20]).unwrap();
    let (batches, refusal) = fill(&client, 0);
    assert_eq!(
        (refusal.status, &refusal.body["code"]),
        (507, &json!("disk-full")),
        "{refusal:?}"
    );
    assert_there(&client, batches);
    service.kill();

    let service = Service::start_ready(program(), &data, &settings);
    let client = service.client();
    assert_there(&client, batches);
    for _ in 0..20 {
        assert_eq!(fill(&client, batches).1.status, 507);
    }
    // For any number of rejected writes, it is logged once, and reported on /readyz, where everything else works.
    let told = |message: &str| {
        service
            .output()
            .so_far()
            .iter()
            .filter(|line| line.contains(message))
            .count()
    };
    let ready = client.get("/readyz").unwrap();
    assert_eq!(
        (ready.status, &ready.body["writes"]),
        (200, &json!("disk-full")),
        "{ready:?}"
    );
    until("it is told", || told("the disk is full: writes") > 0);
    let errors = service
        .output()
        .so_far()
        .iter()
        .filter(|line| line.contains("\"ERROR\""))
        .count();
    assert_eq!((errors, told("disk space is available again")), (0, 0));
    disk.grow("400m");
    let ready = client.get("/readyz").unwrap();
    assert_eq!(
        (ready.status, ready.body.get("writes")),
        (200, None),
        "{ready:?}"
    );
    until("the end is told", || {
        told("disk space is available again") > 0
    });
    assert_eq!(
        (
            told("the disk is full: writes"),
            told("disk space is available again")
        ),
        (1, 1)
    );
    let answer = client
        .post(
            "/v1/coupons/codes/codes",
            &json!({ "codes": codes(batches) }),
        )
        .unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_there(&client, batches + 1);
    assert_eq!(service.terminate().code(), Some(0));
}

#[test]
fn full_disk_without_watermark_loses_nothing() {
    let Some(disk) = Disk::mount("64m", "process::full_disk") else {
        return;
    };
    let data = disk.0.path().join("data");
    let settings = [
        ("CUCKOOD__STORAGE__FREE_SPACE_MIN", "0B"),
        ("CUCKOOD__STORAGE__BALLAST", "0B"),
    ];
    let service = Service::start_ready(program(), &data, &settings);
    let client = service.client();
    create(&client);
    std::fs::write(disk.0.path().join("other"), vec![1; 20 << 20]).unwrap();
    let (batches, refusal) = fill(&client, 0);
    assert_eq!(
        (refusal.status, &refusal.body["code"]),
        (503, &json!("storage-failed")),
        "{refusal:?}"
    );
    assert_there(&client, batches);
    let unready = client.get("/readyz").unwrap();
    assert_eq!(unready.status, 503);
    let detail = unready.body["detail"].as_str().unwrap();
    assert!(
        detail.contains("No space left") && detail.contains("make room"),
        "{detail}"
    );
    service.kill();

    disk.grow("400m");
    let service = Service::start_ready(program(), &data, &settings);
    let client = service.client();
    assert_there(&client, batches);
    let answer = client
        .post(
            "/v1/coupons/codes/codes",
            &json!({ "codes": codes(batches + 1) }),
        )
        .unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// Settings of a service on a small disk, whose snapshots and deletions have a few megabytes below the watermark.
const SMALL: [(&str, &str); 2] = [
    ("CUCKOOD__STORAGE__FREE_SPACE_MIN", "48MiB"),
    ("CUCKOOD__STORAGE__BALLAST", "40MiB"),
];

/// Fills the rest of a disk.
fn fill_up(disk: &Disk) {
    use std::io::Write;
    let mut file = std::fs::File::create(disk.0.path().join("rest")).unwrap();
    while file.write_all(&[1; 64 << 10]).is_ok() {}
}

#[test]
fn operations_that_free_space_succeed_on_full_disk() {
    let Some(disk) = Disk::mount("200m", "process::full_disk") else {
        return;
    };
    let data = disk.0.path().join("data");
    let service = Service::start_ready(program(), &data, &SMALL);
    let client = service.client();
    create(&client);
    for name in ["old", "older"] {
        let path = format!("/v1/coupons/{name}");
        assert_eq!(
            client
                .put(&path, &json!({ "capacity": 1_000 }))
                .unwrap()
                .status,
            201
        );
        let codes = json!({ "codes": ["a", "b"] });
        assert_eq!(
            client
                .post(&format!("{path}/codes"), &codes)
                .unwrap()
                .status,
            200
        );
    }
    fill_up(&disk);
    let (_, refusal) = fill(&client, 0);
    assert_eq!(
        (refusal.status, &refusal.body["code"]),
        (507, &json!("disk-full")),
        "{refusal:?}"
    );
    assert!(data.join("ballast").exists());
    assert_eq!(client.delete("/v1/coupons/old").unwrap().status, 204);
    assert!(
        !data.join("ballast").exists(),
        "it makes the space that even a deletion takes"
    );
    let cleared = client.post("/v1/coupons/older/clear", &json!({})).unwrap();
    assert_eq!(
        (cleared.status, &cleared.body["removed"]),
        (200, &json!(2)),
        "{cleared:?}"
    );
    assert_eq!(
        client.post("/v1/snapshots", &json!({})).unwrap().status,
        200
    );
    assert_eq!(fill(&client, 0).1.status, 507);
    service.kill();

    let service = Service::start_ready(program(), &data, &SMALL);
    let client = service.client();
    assert_eq!(client.get("/v1/coupons/old").unwrap().status, 404);
    assert_eq!(
        client.get("/v1/coupons/older").unwrap().body["stats"]["available"],
        0
    );
    std::fs::remove_file(disk.0.path().join("rest")).unwrap();
    let added = client
        .post("/v1/coupons/codes/codes", &json!({ "codes": codes(0) }))
        .unwrap();
    assert_eq!(added.status, 200, "{added:?}");
    assert!(
        data.join("ballast").exists(),
        "it is reserved again for the next time"
    );
    assert_eq!(service.terminate().code(), Some(0));
}

/// A snapshot that does not fit is aborted, and its written parts are removed although the service is never idle.
#[test]
fn aborted_snapshot_leaves_nothing_on_full_disk() {
    use cuckood_log::store::{Store, StoreOptions};
    /// Rejected writes after which nothing may be left.
    const REJECTED: usize = 4_000;
    let Some(disk) = Disk::mount("280m", "process::full_disk") else {
        return;
    };
    let data = disk.0.path().join("data");
    let service = Service::start_ready(program(), &data, &SMALL);
    let client = service.client();
    create(&client);
    // Its snapshot takes about 150 MB: users touch all chunks of its table.
    assert_eq!(
        client
            .put("/v1/campaigns/large", &json!({ "capacity": 100_000_000 }))
            .unwrap()
            .status,
        201
    );
    let users: String = (0..400_000).map(|user| format!("{user}\n")).collect();
    let imported = client
        .import("/v1/campaigns/large/imports", std::io::Cursor::new(users))
        .unwrap();
    assert_eq!(imported.status, 200, "{imported:?}");
    fill_up(&disk);
    let snapshot = std::thread::scope(|scope| {
        let asked = scope.spawn(|| client.another().post("/v1/snapshots", &json!({})).unwrap());
        while !asked.is_finished() {
            assert_eq!(fill(&client, 0).1.status, 507);
        }
        asked.join().unwrap()
    });
    assert_eq!(
        (snapshot.status, &snapshot.body["code"]),
        (507, &json!("disk-full")),
        "{snapshot:?}"
    );
    for _ in 0..REJECTED {
        assert_eq!(fill(&client, 0).1.status, 507);
    }
    service.kill();
    {
        let options = StoreOptions {
            free_space_min_bytes: 0,
            ballast_bytes: 0,
            ..StoreOptions::default()
        };
        let store = Store::open(&data, &options).unwrap();
        assert!(
            !store.sweep().unwrap().step(&store, 1).unwrap(),
            "chunks of the aborted snapshot are left"
        );
    }
    // Each start takes a part of the reserve.
    let rest = std::fs::File::options()
        .write(true)
        .open(disk.0.path().join("rest"))
        .unwrap();
    rest.set_len(rest.metadata().unwrap().len() - (16 << 20))
        .unwrap();
    // A snapshot of what remains fits.
    let service = Service::start_ready(program(), &data, &SMALL);
    let client = service.client();
    assert_eq!(fill(&client, 0).1.status, 507);
    assert_eq!(client.delete("/v1/campaigns/large").unwrap().status, 204);
    assert_eq!(
        client.post("/v1/snapshots", &json!({})).unwrap().status,
        200
    );
}
