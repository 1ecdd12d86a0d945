//! A full disk: a small tmpfs. Writes are rejected, reads continue, nothing acknowledged is lost, and more space is enough to
//! continue. Mounting requires root; other users get a line for the summary of the test run.

use crate::service::{Answer, Client, Service};
use crate::{PATIENCE, program, until};
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
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

fn mount(path: &Path, options: &str) -> bool {
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", options, "cuckood-test"]).arg(path).output();
    mount.is_ok_and(|mount| mount.status.success())
}

fn create(client: &Client) {
    let spec = json!({ "capacity": 100_000 });
    assert_eq!(client.put("/v1/coupons/codes", &spec).unwrap().status, 201);
}

fn codes(batch: usize) -> Vec<String> {
    (0..BATCH).map(|number| format!("code-{batch}-{number}")).collect()
}

/// Adds codes until it is refused; how many batches were acknowledged, and the refusal.
fn fill(client: &Client, mut batch: usize) -> (usize, Answer) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "the disk is not full in time");
        let answer = client.post("/v1/coupons/codes/codes", &json!({ "codes": codes(batch) })).unwrap();
        if answer.status != 200 {
            return (batch, answer);
        }
        batch += 1;
    }
}

fn assert_there(client: &Client, batches: usize) {
    for batch in 0..batches {
        let answer = client.post("/v1/coupons/codes/codes/check", &json!({ "codes": codes(batch) })).unwrap();
        let valid = answer.body["valid"].as_array().expect("a list");
        assert!(valid.len() == BATCH && valid.iter().all(|valid| valid == true), "batch {batch} is lost");
    }
}

#[test]
fn below_the_watermark_writes_wait_for_space() {
    let Some(disk) = Disk::mount("160m", "process::full_disk") else { return };
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
    // What lies on the disk beside the data, so that it is full soon.
    std::fs::write(disk.0.path().join("other"), vec![1; 60 << 20]).unwrap();
    let (batches, refusal) = fill(&client, 0);
    assert_eq!((refusal.status, &refusal.body["code"]), (507, &json!("disk-full")), "{refusal:?}");
    assert_there(&client, batches);
    service.kill();

    let service = Service::start_ready(program(), &data, &settings);
    let client = service.client();
    assert_there(&client, batches);
    for _ in 0..20 {
        assert_eq!(fill(&client, batches).1.status, 507);
    }
    // However many writes were refused, it is told once, and on /readyz, where everything else works.
    let told = |message: &str| service.output().so_far().iter().filter(|line| line.contains(message)).count();
    let ready = client.get("/readyz").unwrap();
    assert_eq!((ready.status, &ready.body["writes"]), (200, &json!("disk-full")), "{ready:?}");
    until("it is told", || told("the disk is full: writes") > 0);
    let errors = service.output().so_far().iter().filter(|line| line.contains("\"ERROR\"")).count();
    assert_eq!((errors, told("the disk has room again")), (0, 0));
    disk.grow("400m");
    let ready = client.get("/readyz").unwrap();
    assert_eq!((ready.status, ready.body.get("writes")), (200, None), "{ready:?}");
    until("the end is told", || told("the disk has room again") > 0);
    assert_eq!((told("the disk is full: writes"), told("the disk has room again")), (1, 1));
    let answer = client.post("/v1/coupons/codes/codes", &json!({ "codes": codes(batches) })).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_there(&client, batches + 1);
    assert_eq!(service.terminate().code(), Some(0));
}

#[test]
fn without_a_watermark_a_full_disk_stops_writes_and_loses_nothing() {
    let Some(disk) = Disk::mount("64m", "process::full_disk") else { return };
    let data = disk.0.path().join("data");
    let settings = [("CUCKOOD__STORAGE__FREE_SPACE_MIN", "0B"), ("CUCKOOD__STORAGE__BALLAST", "0B")];
    let service = Service::start_ready(program(), &data, &settings);
    let client = service.client();
    create(&client);
    std::fs::write(disk.0.path().join("other"), vec![1; 20 << 20]).unwrap();
    let (batches, refusal) = fill(&client, 0);
    assert_eq!((refusal.status, &refusal.body["code"]), (503, &json!("storage-failed")), "{refusal:?}");
    assert_there(&client, batches);
    let unready = client.get("/readyz").unwrap();
    assert_eq!(unready.status, 503);
    let detail = unready.body["detail"].as_str().unwrap();
    assert!(detail.contains("No space left") && detail.contains("make room"), "{detail}");
    service.kill();

    disk.grow("400m");
    let service = Service::start_ready(program(), &data, &settings);
    let client = service.client();
    assert_there(&client, batches);
    let answer = client.post("/v1/coupons/codes/codes", &json!({ "codes": codes(batches + 1) })).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
}
