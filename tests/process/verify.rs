//! `cuckood verify` looks and does not touch.

use crate::full_disk::Disk;
use crate::program;
use crate::service::Service;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What a file is: its time in nanoseconds, its mode and its bytes.
type File = (i128, u32, Vec<u8>);

/// Everything below a directory.
fn tree(path: &Path) -> BTreeMap<PathBuf, File> {
    let found = fs::metadata(path).unwrap();
    let changed = i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec());
    let bytes = if found.is_dir() { Vec::new() } else { fs::read(path).unwrap() };
    let mut files = BTreeMap::from([(path.to_owned(), (changed, found.mode(), bytes))]);
    if found.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            files.append(&mut tree(&entry.unwrap().path()));
        }
    }
    files
}

fn verify(path: &Path) -> Output {
    Command::new(program()).arg("verify").arg(path).output().unwrap()
}

/// A data directory as a kill leaves it, with a snapshot and a log behind it.
fn killed(data: &Path) {
    let settings = [("CUCKOOD__STORAGE__FREE_SPACE_MIN", "1MiB"), ("CUCKOOD__STORAGE__BALLAST", "1MiB")];
    let service = Service::start_ready(program(), data, &settings);
    let client = service.client();
    assert_eq!(client.put("/v1/campaigns/spring", &json!({ "capacity": 100 })).unwrap().status, 201);
    for round in 0..20 {
        let users: Vec<String> = (0..50).map(|number| format!("u{round}-{number}")).collect();
        assert_eq!(
            client.post("/v1/campaigns/spring/users", &json!({ "users": users })).unwrap().status,
            200
        );
        if round == 10 {
            assert_eq!(client.post("/v1/snapshots", &json!({})).unwrap().status, 200);
        }
    }
    service.kill();
}

#[test]
fn a_directory_is_left_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    killed(&data);
    let before = tree(directory.path());
    let names: Vec<PathBuf> = before.keys().cloned().collect();
    let verified = verify(&data);
    assert!(verified.status.success(), "{verified:?}");
    let after = tree(directory.path());
    assert_eq!(names, after.keys().cloned().collect::<Vec<_>>());
    // The directory around it may hold the copy for a while.
    for (path, file) in after.iter().filter(|(path, _)| path.starts_with(&data)) {
        assert!(*file == before[path], "{} was changed", path.display());
    }

    // Damage is told of the original.
    let path = data.join("sled/db");
    let mut bytes = fs::read(&path).unwrap();
    bytes.iter_mut().step_by(37).for_each(|byte| *byte ^= 0x55);
    fs::write(&path, bytes).unwrap();
    let before = tree(&data);
    let refused = verify(&data);
    assert!(!refused.status.success());
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(told.contains(data.to_str().unwrap()) && !told.contains(".cuckood-verify"), "{told}");
    assert!(tree(&data) == before, "a damaged directory was changed");
}

#[test]
fn nothing_is_made_where_nothing_is() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["absent", "empty"] {
        let path = directory.path().join(name);
        if name == "empty" {
            fs::create_dir(&path).unwrap();
        }
        let before = tree(directory.path()).into_keys().collect::<Vec<_>>();
        assert!(!verify(&path).status.success(), "{name}");
        assert_eq!(tree(directory.path()).into_keys().collect::<Vec<_>>(), before);
    }
}

#[test]
fn a_directory_that_is_served_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let service = Service::start_ready(program(), &data, &[]);
    let refused = verify(&data);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && told.contains("in use by another"), "{told}");
    assert_eq!(service.terminate().code(), Some(0));
}

#[test]
fn a_read_only_directory_can_be_looked_into() {
    let Some(disk) = Disk::mount("160m") else { return };
    let data = disk.path().join("data");
    killed(&data);
    disk.make_read_only();
    let verified = verify(&data);
    assert!(verified.status.success(), "{verified:?}");
}
