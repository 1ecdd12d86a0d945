//! Files of the program are accessible to their owner alone, whatever its umask.

use crate::program;
use crate::service::Service;
use serde_json::json;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program under a umask.
fn command(umask: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = format!(r#"umask {umask}; exec "$0" "$@""#);
    command.args(["-c", &script]).arg(program()).args(arguments);
    command
}

/// A directory and everything below it.
fn tree(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_owned()];
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            found.extend(tree(&entry.unwrap().path()));
        }
    }
    found
}

#[track_caller]
fn assert_closed(path: &Path) {
    for path in tree(path) {
        let found = fs::metadata(&path).unwrap();
        let wanted = if found.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(
            found.permissions().mode() & 0o777,
            wanted,
            "{}",
            path.display()
        );
    }
}

fn serve(umask: &str, data: &Path) -> Service {
    let service = Service::spawn(command(umask, &["serve"]).env("CUCKOOD__STORAGE__PATH", data));
    crate::until("ready", || {
        service.client().get("/readyz").unwrap().status == 200
    });
    service
}

#[test]
fn files_are_accessible_to_owner_only() {
    for umask in ["022", "000"] {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("deep/data");
        let service = serve(umask, &data);
        let client = service.client();
        assert_eq!(
            client
                .put("/v1/campaigns/spring", &json!({ "capacity": 100 }))
                .unwrap()
                .status,
            201
        );
        assert_eq!(
            client.post("/v1/snapshots", &json!({})).unwrap().status,
            200
        );
        assert_closed(&directory.path().join("deep"));

        let backup = directory.path().join("backup");
        // A file that an earlier attempt left open is replaced.
        let partial = directory.path().join("backup.partial");
        fs::write(&partial, "half").unwrap();
        fs::set_permissions(&partial, Permissions::from_mode(0o666)).unwrap();
        let url = format!("http://{}", client.address());
        let made = command(umask, &["backup", backup.to_str().unwrap(), "--url", &url])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        assert_closed(&backup);
        assert!(!partial.exists(), "it is renamed");
        assert_eq!(service.terminate().code(), Some(0));
        assert_closed(&data);

        let restored = directory.path().join("restored");
        let [from, to] = [&backup, &restored].map(|path| path.to_str().unwrap());
        let made = command(umask, &["restore", from, to]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        assert_closed(&restored);
    }
}

#[test]
fn public_directory_is_made_private() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    assert_eq!(serve("022", &data).terminate().code(), Some(0));
    for path in tree(&data) {
        let mode = if path.is_dir() { 0o775 } else { 0o664 };
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let other = data.join("lost+found");
    fs::create_dir(&other).unwrap();
    fs::set_permissions(&other, Permissions::from_mode(0o755)).unwrap();
    let service = serve("022", &data);
    let told = service.output().wait_for(crate::TIMEOUT, |line| {
        line.contains("other users had access").then_some(())
    });
    assert!(told.is_some(), "it was not told");
    // The directory alone keeps others from all that is in it.
    assert_eq!(
        fs::metadata(&data).unwrap().permissions().mode() & 0o777,
        0o700
    );
    assert_eq!(
        fs::metadata(&other).unwrap().permissions().mode() & 0o777,
        0o755
    );
}
