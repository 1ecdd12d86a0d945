//! `cuckood verify` looks and does not touch, be it a data directory or a backup.

use crate::full_disk::Disk;
use crate::program;
use crate::service::Service;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A file's time in nanoseconds, mode and bytes.
type File = (i128, u32, Vec<u8>);

/// Everything below a directory.
fn tree(path: &Path) -> BTreeMap<PathBuf, File> {
    let found = fs::metadata(path).unwrap();
    let changed = i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec());
    let bytes = if found.is_dir() {
        Vec::new()
    } else {
        fs::read(path).unwrap()
    };
    let mut files = BTreeMap::from([(path.to_owned(), (changed, found.mode(), bytes))]);
    if found.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            files.append(&mut tree(&entry.unwrap().path()));
        }
    }
    files
}

fn verify(path: &Path) -> Output {
    Command::new(program())
        .arg("verify")
        .arg(path)
        .output()
        .unwrap()
}

/// A data directory after a kill, with a snapshot and a log after it.
fn killed(data: &Path) {
    let settings = [
        ("CUCKOOD__STORAGE__FREE_SPACE_MIN", "1MiB"),
        ("CUCKOOD__STORAGE__BALLAST", "1MiB"),
    ];
    let service = Service::start_ready(program(), data, &settings);
    let client = service.client();
    assert_eq!(
        client
            .put("/v1/campaigns/spring", &json!({ "capacity": 100 }))
            .unwrap()
            .status,
        201
    );
    for round in 0..20 {
        let users: Vec<String> = (0..50).map(|number| format!("u{round}-{number}")).collect();
        assert_eq!(
            client
                .post("/v1/campaigns/spring/users", &json!({ "users": users }))
                .unwrap()
                .status,
            200
        );
        if round == 10 {
            assert_eq!(
                client.post("/v1/snapshots", &json!({})).unwrap().status,
                200
            );
        }
    }
    service.kill();
}

#[test]
fn verify_leaves_directory_unchanged() {
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

    // Damage is reported for the original.
    let path = data.join("sled/db");
    let mut bytes = fs::read(&path).unwrap();
    bytes.iter_mut().step_by(37).for_each(|byte| *byte ^= 0x55);
    fs::write(&path, bytes).unwrap();
    let before = tree(&data);
    let refused = verify(&data);
    assert!(!refused.status.success());
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(
        told.contains(data.to_str().unwrap()) && !told.contains(".cuckood-verify"),
        "{told}"
    );
    assert!(
        told.lines().count() == 1 && !told.contains("panicked"),
        "{told}"
    );
    assert!(
        told.contains("`cuckood restore FILE DIR`") && !told.contains("`cuckood verify"),
        "{told}"
    );
    assert!(tree(&data) == before, "a damaged directory was changed");
}

/// The program's JSON output, and whether it succeeded.
fn report(arguments: &[&str]) -> (bool, Value) {
    let ended = Command::new(program()).args(arguments).output().unwrap();
    let text = String::from_utf8(ended.stdout).unwrap();
    let report = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"));
    (ended.status.success(), report)
}

#[test]
fn backup_is_verified_like_restore() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    killed(&data);
    let service = Service::start_ready(program(), &data, &[]);
    let file = directory.path().join("all.cuckood");
    let url = format!("http://{}", service.client().address());
    let file = file.to_str().unwrap();
    let (is_made, made) = report(&["backup", file, "--json", "--url", &url]);
    let bytes = fs::read(file).unwrap();
    assert!(
        is_made && made["file"] == file && made["bytes"] == bytes.len(),
        "{made}"
    );
    assert_eq!(service.terminate().code(), Some(0));

    let before = tree(directory.path()).into_keys().collect::<Vec<_>>();
    let (is_whole, found) = report(&["verify", file, "--json"]);
    assert!(
        is_whole && found["whole"] == true && found["faults"] == json!([]),
        "{found}"
    );
    assert!(found["notes"].to_string().contains("1 filter,"), "{found}");
    let verified = verify(Path::new(file));
    assert!(
        verified.status.success() && String::from_utf8_lossy(&verified.stdout).contains("whole")
    );
    assert_eq!(
        tree(directory.path()).into_keys().collect::<Vec<_>>(),
        before
    );
    assert_eq!(fs::read(file).unwrap(), bytes);
    let (is_whole, found) = report(&["verify", file, "--json", "--scratch", "/nowhere"]);
    assert!(
        !is_whole
            && found["faults"][0]
                .as_str()
                .unwrap()
                .contains("No such file"),
        "{found}"
    );

    // Cut short anywhere, or with any byte changed, it is found out.
    for at in [0, 1, 20, bytes.len() / 2, bytes.len() - 1] {
        fs::write(file, &bytes[..at]).unwrap();
        let (is_whole, found) = report(&["verify", file, "--json"]);
        assert!(
            !is_whole && found["whole"] == false && found["faults"][0].is_string(),
            "{at}: {found}"
        );
        let mut changed = bytes.clone();
        changed[at] ^= 0x55;
        fs::write(file, &changed).unwrap();
        let (is_whole, found) = report(&["verify", file, "--json"]);
        assert!(
            !is_whole && found["faults"].to_string().contains(file),
            "{at}: {found}"
        );
        assert!(!found.to_string().contains(".cuckood-verify"), "{found}");
    }
    let (is_whole, found) = report(&[
        "verify",
        directory.path().join("none").to_str().unwrap(),
        "--json",
    ]);
    assert!(!is_whole && found["whole"] == false, "{found}");
}

#[test]
fn plan_reports_filter_costs() {
    let (_, plan) = report(&["plan", "--capacity", "10M", "--json"]);
    let (_, same) = report(&["plan", "--capacity", "10000000", "--json"]);
    assert_eq!(plan, same);
    let figure = |name: &str| {
        plan[name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name} in {plan}"))
    };
    let memory = figure("memory_bytes");
    assert!(
        figure("disk_bytes") > memory && figure("replacement_peak_bytes") >= 2.0 * memory,
        "{plan}"
    );
    assert!(figure("startup_seconds") > 0.0, "{plan}");
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start_ready(program(), &directory.path().join("data"), &[]);
    let answer = service
        .client()
        .get("/v1/plan?capacity=10000000")
        .unwrap()
        .body;
    assert_eq!(answer, plan, "the service says the same");
    let text = Command::new(program())
        .args(["plan", "--capacity", "2.5M"])
        .output()
        .unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        ["disk", "replaced", "startup", "bits", "buckets", " MiB ("]
            .iter()
            .all(|row| text.contains(row)),
        "{text}"
    );
    let refused = Command::new(program())
        .args(["plan", "--capacity", "many"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn verify_creates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["absent", "empty"] {
        let path = directory.path().join(name);
        if name == "empty" {
            fs::create_dir(&path).unwrap();
        }
        let before = tree(directory.path()).into_keys().collect::<Vec<_>>();
        assert!(!verify(&path).status.success(), "{name}");
        assert_eq!(
            tree(directory.path()).into_keys().collect::<Vec<_>>(),
            before
        );
    }
}

#[test]
fn served_directory_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let service = Service::start_ready(program(), &data, &[]);
    let refused = verify(&data);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && told.contains("in use by another"),
        "{told}"
    );
    assert_eq!(service.terminate().code(), Some(0));
}

#[test]
fn read_only_directory_can_be_verified() {
    let Some(disk) = Disk::mount("160m", "process::verify") else {
        return;
    };
    let data = disk.path().join("data");
    killed(&data);
    disk.make_read_only();
    let verified = verify(&data);
    assert!(verified.status.success(), "{verified:?}");
}
