//! TLS: which certificate a new connection is shown, before and after SIGHUP.

use crate::service::{Client, Service};
use crate::{TIMEOUT, program, until};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// A directory with the files that the service reads.
struct Files {
    directory: TempDir,
}

/// A certificate for this machine, and its key.
pub(crate) struct Pair {
    pub(crate) certificate: rcgen::Certificate,
    pub(crate) key: String,
}

pub(crate) fn pair() -> Pair {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_string()]).unwrap();
    Pair {
        certificate: made.cert,
        key: made.signing_key.serialize_pem(),
    }
}

impl Files {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn put(&self, certificate: &str, key: &str) {
        fs::write(self.path("cert.pem"), certificate).unwrap();
        fs::write(self.path("key.pem"), key).unwrap();
    }

    fn start(&self) -> Service {
        let [cert, key] = ["cert.pem", "key.pem"].map(|name| self.path(name).display().to_string());
        let settings = [
            ("CUCKOOD__SERVER__TLS_CERT", cert.as_str()),
            ("CUCKOOD__SERVER__TLS_KEY", key.as_str()),
        ];
        Service::start(program(), &self.path("data"), &settings)
    }
}

/// Whether a message was logged this often at a level.
pub(crate) fn was_logged(service: &Service, level: &str, message: &str, times: usize) -> bool {
    let count = std::cell::Cell::new(0);
    let found = service.output().wait_for(TIMEOUT, |line| {
        let entry: Value = serde_json::from_str(line).ok()?;
        if entry["level"] == level && entry["fields"]["message"] == message {
            count.set(count.get() + 1);
        }
        (count.get() == times).then_some(())
    });
    found.is_some()
}

fn is_served(client: &Client) -> bool {
    client
        .another()
        .get("/livez")
        .is_ok_and(|answer| answer.status == 200)
}

#[test]
fn sighup_loads_only_valid_certificate() {
    let files = Files {
        directory: tempfile::tempdir().unwrap(),
    };
    let first = pair();
    let second = pair();
    files.put(&first.certificate.pem(), &first.key);
    let service = files.start();
    let [trusts_first, trusts_second] =
        [&first, &second].map(|pair| service.client_trusting(pair.certificate.der()));
    assert!(is_served(&trusts_first));
    assert!(!is_served(&trusts_second));
    // Plain HTTP is not served here.
    assert!(
        Client::new(format!("http://{}", service.client().address()))
            .get("/livez")
            .is_err()
    );

    // An open connection continues.
    let standing = service.client_trusting(first.certificate.der());
    until("ready", || standing.get("/readyz").unwrap().status == 200);
    files.put(&second.certificate.pem(), &second.key);
    assert!(is_served(&trusts_first), "read again without SIGHUP");
    service.hang_up();
    assert!(was_logged(&service, "INFO", "reloaded certificate", 1));
    assert!(is_served(&trusts_second));
    assert!(!is_served(&trusts_first));
    assert_eq!(standing.get("/livez").unwrap().status, 200);

    let cut = &second.certificate.pem()[..200];
    let broken = [
        (cut, second.key.as_str()),
        ("", ""),
        ("not a certificate", &second.key),
        // Another certificate's key.
        (&second.certificate.pem(), &first.key),
    ];
    for (times, (certificate, key)) in (1..).zip(broken) {
        files.put(certificate, key);
        service.hang_up();
        assert!(
            was_logged(
                &service,
                "ERROR",
                "failed to reload certificate; keeping current certificate",
                times
            ),
            "{certificate}"
        );
        assert!(is_served(&trusts_second));
    }
    fs::remove_file(files.path("cert.pem")).unwrap();
    service.hang_up();
    assert!(was_logged(
        &service,
        "ERROR",
        "failed to reload certificate; keeping current certificate",
        broken.len() + 1
    ));
    assert!(is_served(&trusts_second));

    files.put(&first.certificate.pem(), &first.key);
    service.hang_up();
    assert!(was_logged(&service, "INFO", "reloaded certificate", 2));
    assert!(is_served(&trusts_first) && !is_served(&trusts_second));
    assert_eq!(service.terminate().code(), Some(0));
}
