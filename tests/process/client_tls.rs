//! The program's own clients over TLS: whose certificates they trust, and how a container finds out that it is healthy.

use crate::certificates::pair;
use crate::service::Service;
use crate::{program, until};
use serde_json::json;
use std::path::Path;
use std::process::{Command, Output};

fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program());
    command
        .env_remove("SSL_CERT_FILE")
        .env_remove("SSL_CERT_DIR");
    command
        .args(arguments)
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

#[track_caller]
fn succeeds(arguments: &[&str], environment: &[(&str, &str)]) {
    let ended = run(arguments, environment);
    assert!(
        ended.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&ended.stderr)
    );
}

#[track_caller]
fn fails(arguments: &[&str], environment: &[(&str, &str)], why: &str) {
    let ended = run(arguments, environment);
    let message = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.code() == Some(1) && message.contains(why),
        "{arguments:?}: {message}"
    );
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn import_backup_and_healthcheck_speak_tls() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let made = pair();
    let cert = path("cert.pem");
    let key = path("key.pem");
    let users = path("users.txt");
    std::fs::write(&cert, made.certificate.pem()).unwrap();
    std::fs::write(&key, &made.key).unwrap();
    std::fs::write(&users, "u1\nu2\n").unwrap();
    let tls = [
        ("CUCKOOD__SERVER__TLS_CERT", text(&cert)),
        ("CUCKOOD__SERVER__TLS_KEY", text(&key)),
    ];
    let service = Service::start(program(), &path("data"), &tls);
    let client = service.client_trusting(made.certificate.der());
    until("ready", || client.get("/readyz").unwrap().status == 200);
    assert_eq!(
        client
            .put("/v1/campaigns/spring", &json!({ "capacity": 10 }))
            .unwrap()
            .status,
        201
    );

    let url = format!("https://{}", client.address());
    let import = ["import", "campaigns/spring", text(&users), "--url", &url];
    let trusting = [&import[..], &["--cacert", text(&cert)]].concat();
    succeeds(&trusting, &[]);
    succeeds(&import, &[("SSL_CERT_FILE", text(&cert))]);
    // The system does not know it; and a missing or invalid file trusts no server.
    let other = path("other.pem");
    std::fs::write(&other, pair().certificate.pem()).unwrap();
    fails(
        &import,
        &[("SSL_CERT_FILE", text(&other))],
        "the certificate of the service is rejected: its signature is wrong; name its certificate",
    );
    fails(
        &[&import[..], &["--cacert", text(&other)]].concat(),
        &[],
        "the certificate of the service is rejected: its signature is wrong; name its certificate",
    );
    fails(
        &[&import[..], &["--cacert", text(&key)]].concat(),
        &[],
        "contains no certificate",
    );
    fails(
        &[&import[..], &["--cacert", "nowhere.pem"]].concat(),
        &[],
        "nowhere.pem",
    );
    let damaged = path("damaged.pem");
    let half = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
    std::fs::write(&damaged, made.certificate.pem() + half).unwrap();
    fails(
        &[&import[..], &["--cacert", text(&damaged)]].concat(),
        &[],
        "damaged.pem contains",
    );
    fails(
        &import,
        &[
            ("SSL_CERT_FILE", "nowhere.pem"),
            ("SSL_CERT_DIR", "nowhere"),
        ],
        "--cacert",
    );

    let archive = path("all.cuckood");
    succeeds(
        &[
            "backup",
            text(&archive),
            "--url",
            &url,
            "--cacert",
            text(&cert),
        ],
        &[],
    );
    assert!(archive.exists());

    // A container's own configuration contains the address and the protocol.
    let listen = ("CUCKOOD__SERVER__LISTEN", client.address());
    succeeds(&["healthcheck"], &[&tls[..], &[listen]].concat());
    let file = path("cuckood.toml");
    let settings = format!(
        "[server]\nlisten = {:?}\ntls_cert = {cert:?}\ntls_key = {key:?}\n",
        client.address()
    );
    std::fs::write(&file, settings).unwrap();
    succeeds(&["healthcheck", "--config", text(&file)], &[]);
    succeeds(&["healthcheck"], &[("CUCKOOD_CONFIG", text(&file))]);
    succeeds(
        &["healthcheck", "--url", &url, "--cacert", text(&cert)],
        &[],
    );
    fails(
        &["healthcheck", "--url", &url],
        &[("SSL_CERT_FILE", text(&other))],
        "the certificate of the service is rejected: its signature is wrong; name its certificate",
    );
    assert!(
        !run(&["healthcheck"], &[listen]).status.success(),
        "plain HTTP was understood"
    );
    assert_eq!(service.terminate().code(), Some(0));
    assert!(
        !run(&["healthcheck"], &[&tls[..], &[listen]].concat())
            .status
            .success()
    );
}

#[test]
fn self_signed_server_certificate_is_trusted_with_cacert() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let cert = path("cert.pem");
    let key = path("key.pem");
    // As `openssl req -x509` makes them: marked as an authority.
    let signing = rcgen::KeyPair::generate().unwrap();
    let mut of_server =
        rcgen::CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
    of_server.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    std::fs::write(&cert, of_server.self_signed(&signing).unwrap().pem()).unwrap();
    std::fs::write(&key, signing.serialize_pem()).unwrap();
    let tls = [
        ("CUCKOOD__SERVER__TLS_CERT", text(&cert)),
        ("CUCKOOD__SERVER__TLS_KEY", text(&key)),
    ];
    let service = Service::start(program(), &path("data"), &tls);
    let url = format!("https://{}", service.client().address());
    let check = ["healthcheck", "--url", &url, "--cacert", text(&cert)];
    until("ready", || run(&check, &[]).status.success());
    fails(
        &["healthcheck", "--url", &url],
        &[("SSL_CERT_FILE", text(&key))],
        "--cacert",
    );
    // Its name is still verified.
    let elsewhere = url.replace("127.0.0.1", "127.0.0.2");
    assert!(
        !run(
            &["healthcheck", "--url", &elsewhere, "--cacert", text(&cert)],
            &[]
        )
        .status
        .success()
    );
}
