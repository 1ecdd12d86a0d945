//! The HTTP client of the subcommands: the service's address, the trusted certificates, the key, and the errors.

use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use ureq::Agent;
use ureq::http::{Response, StatusCode};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// The longest problem document that is read, in bytes.
const PROBLEM_BYTES_MAX: u64 = 1 << 20;

/// The most faults of a request that are shown.
const FAULTS_MAX: usize = 10;

/// How to reach the service.
#[derive(clap::Args, Debug, Clone)]
pub struct Connection {
    /// Address of the service.
    #[arg(long, value_name = "URL", env = "CUCKOOD_URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// API key, if the service requires one.
    #[arg(long, value_name = "KEY", env = "CUCKOOD_KEY", hide_env_values = true)]
    pub key: Option<String>,
    /// PEM file of certificates to trust instead of the system's, or of those that SSL_CERT_FILE names.
    #[arg(long, value_name = "FILE", env = "CUCKOOD_CACERT")]
    pub cacert: Option<PathBuf>,
}

/// Why a request failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The service can't be reached, or the connection broke.
    #[error("{url}: {source}")]
    Transport {
        /// The URL that was requested.
        url: String,
        /// Why it failed.
        source: Box<ureq::Error>,
    },
    /// The service refused the request.
    #[error("{status} {code}: {detail}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The problem's code, or the status in words.
        code: String,
        /// The problem's detail.
        detail: String,
    },
    /// An upload was interrupted, and is not sent again.
    #[error("{source}; added items stay; repeat the command with --id {id} to continue")]
    BrokenImport {
        /// The import's id.
        id: String,
        /// What interrupted it.
        source: Box<ClientError>,
    },
    /// A local file can't be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// What failed.
        source: std::io::Error,
    },
    /// There is no trusted certificate, so no server can be verified.
    #[error("{0}: name a PEM file with --cacert or SSL_CERT_FILE")]
    NoRoots(String),
}

#[derive(Deserialize)]
struct ProblemDocument {
    code: String,
    detail: String,
    #[serde(default)]
    errors: Vec<Fault>,
}

/// A part of the request that is not valid.
#[derive(Deserialize)]
struct Fault {
    pointer: String,
    detail: String,
}

impl ProblemDocument {
    /// The detail. That of several faults does not name them.
    fn told(self) -> String {
        match &self.errors[..] {
            [] | [_] => self.detail,
            errors => {
                let errors = errors.iter().map(|Fault { pointer, detail }| format!("; {pointer} {detail}"));
                [self.detail].into_iter().chain(errors.take(FAULTS_MAX)).collect()
            }
        }
    }
}

/// The failure that an answer tells of. One without a problem document comes from something else, such as a proxy.
fn refused(status: StatusCode, text: &str) -> ClientError {
    let problem: Result<ProblemDocument, _> = serde_json::from_str(text);
    let (code, detail) = match problem {
        Ok(problem) => (problem.code.clone(), problem.told()),
        Err(_) => (
            status.canonical_reason().unwrap_or("unknown").to_owned(),
            "the answer is none of cuckood's: is it the right address, or does a proxy answer in its place?"
                .to_owned(),
        ),
    };
    ClientError::Refused { status: status.as_u16(), code, detail }
}

impl Connection {
    /// Builds a client. Its time-out covers connecting only.
    ///
    /// # Errors
    /// If TLS is needed and there is no certificate to trust.
    pub fn agent(&self) -> Result<Agent, ClientError> {
        // Without TLS no certificates are needed.
        let is_tls = self.url.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"));
        let tls = TlsConfig::builder();
        let tls = if is_tls { tls.root_certs(RootCerts::new_with_certs(&self.roots()?)) } else { tls };
        Ok(agent(tls.build()))
    }

    /// How to speak TLS to another server, with the same certificates.
    ///
    /// # Errors
    /// If there is no certificate to trust.
    pub fn tls(&self) -> Result<Arc<ClientConfig>, ClientError> {
        let mut roots = RootCertStore::empty();
        let trusted = self.roots()?;
        roots.add_parsable_certificates(trusted.iter().map(|root| CertificateDer::from(root.der())));
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring knows TLS 1.2 and 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<Vec<Certificate<'static>>, ClientError> {
        let Some(path) = &self.cacert else { return system_roots() };
        let path = path.display().to_string();
        let pem = std::fs::read(&path).map_err(|source| ClientError::File { path: path.clone(), source })?;
        let items = parse_pem(&pem).filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        });
        match items.collect::<Result<Vec<_>, _>>() {
            Ok(roots) if !roots.is_empty() => Ok(roots),
            Ok(_) => Err(ClientError::NoRoots(format!("{path} contains no certificate"))),
            Err(error) => Err(ClientError::NoRoots(format!("{path}: {error}"))),
        }
    }

    /// The full URL of a path.
    pub fn address(&self, path: &str) -> String {
        format!("{}{path}", self.url.trim_end_matches('/'))
    }

    /// The `Authorization` header's value; empty without a key.
    pub fn authorization(&self) -> String {
        self.key.as_ref().map(|key| format!("Bearer {key}")).unwrap_or_default()
    }

    /// Returns the response to a request if its status is a success.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn accept(
        &self,
        path: &str,
        answer: Result<Response<ureq::Body>, ureq::Error>,
    ) -> Result<Response<ureq::Body>, ClientError> {
        let url = self.address(path);
        let mut answer = answer.map_err(|source| ClientError::Transport { url, source: Box::new(source) })?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let text =
            answer.body_mut().with_config().limit(PROBLEM_BYTES_MAX).read_to_string().unwrap_or_default();
        Err(refused(answer.status(), &text))
    }
}

/// Builds a client with this TLS configuration.
pub(super) fn agent(tls: TlsConfig) -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(Duration::from_secs(5)))
        .tls_config(tls)
        .build()
        .into()
}

/// The certificates that SSL_CERT_FILE and SSL_CERT_DIR name, or else those that the system trusts.
fn system_roots() -> Result<Vec<Certificate<'static>>, ClientError> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let faults: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        let faults =
            if faults.is_empty() { "the system trusts no certificate".into() } else { faults.join("; ") };
        return Err(ClientError::NoRoots(faults));
    }
    Ok(found.certs.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_was_wrong_and_who_refused() {
        let proxy = refused(StatusCode::BAD_GATEWAY, "<html>oops</html>").to_string();
        assert!(proxy.starts_with("502 Bad Gateway: ") && proxy.contains("proxy"), "{proxy}");
        let one = r#"{"code":"invalid-request","detail":"/id too long","errors":[{"pointer":"/id","detail":"too long"}]}"#;
        assert_eq!(
            refused(StatusCode::UNPROCESSABLE_ENTITY, one).to_string(),
            "422 invalid-request: /id too long"
        );
        let two = r#"{"code":"invalid-request","detail":"2 parts","errors":[{"pointer":"/a","detail":"missing"},{"pointer":"/b","detail":"empty"}]}"#;
        assert_eq!(
            refused(StatusCode::UNPROCESSABLE_ENTITY, two).to_string(),
            "422 invalid-request: 2 parts; /a missing; /b empty"
        );
        let none = refused(StatusCode::CONFLICT, r#"{"code":"filter-full","detail":"full"}"#).to_string();
        assert_eq!(none, "409 filter-full: full");
    }
}
