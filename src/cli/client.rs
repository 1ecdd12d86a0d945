//! The HTTP client of the subcommands: address, trusted certificates, API key, errors and retries.

use super::tls::TlsConnector;
use crate::tls;
use anyhow::bail;
use rustls::pki_types::CertificateDer;
use rustls_native_certs::{load_certs_from_paths, load_native_certs};
use serde_json::Value;
use std::iter::repeat;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;
use ureq::http::{Method, Request, Response, StatusCode};
use ureq::tls::TlsConfig;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{ConnectProxyConnector, Connector, TcpConnector};
use ureq::{Agent, BodyReader, SendBody};

/// Maximum size of a response that is read into memory, in bytes.
const RESPONSE_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of a request's faults that are shown.
const FAULTS_MAX: usize = 10;

/// How to reach the service.
#[derive(clap::Args, Debug, Clone)]
pub struct ServiceAddress {
    /// Address of the service.
    #[arg(
        long,
        value_name = "URL",
        env = "CUCKOOD_URL",
        default_value = "http://127.0.0.1:8080"
    )]
    pub url: String,
    /// API key, if the service requires one.
    #[arg(long, value_name = "KEY", env = "CUCKOOD_KEY", hide_env_values = true)]
    pub key: Option<String>,
    /// PEM file of certificates to trust instead of the system's or SSL_CERT_FILE.
    #[arg(long, value_name = "FILE", env = "CUCKOOD_CACERT")]
    pub cacert: Option<PathBuf>,
}

/// Why a request failed: the connection broke, or could not be made; or the service rejected the request.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct ClientError {
    /// The HTTP status of a rejection.
    pub status: Option<u16>,
    /// The problem's code, or the status in words.
    pub code: String,
    message: String,
}

impl ClientError {
    /// A rejection.
    pub fn rejected(status: u16, code: &str, detail: &str) -> Self {
        let message = format!("{status} {code}: {detail}");
        Self {
            status: Some(status),
            code: code.to_owned(),
            message,
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        self.status
            .is_none_or(|status| matches!(status, 408 | 429 | 502 | 503 | 504))
    }
}

/// Returns the pauses between attempts. They never end; each is twice the one before, up to a limit.
pub fn pauses() -> impl Iterator<Item = Duration> + Send {
    [250, 500, 1_000, 2_000, 4_000]
        .into_iter()
        .chain(repeat(8_000))
        .map(Duration::from_millis)
}

/// Returns the error that a response describes. One without a problem document was sent by something else, such as a proxy.
fn rejected(status: StatusCode, text: &str) -> ClientError {
    let problem: Value = serde_json::from_str(text).unwrap_or_default();
    let (Some(code), Some(detail)) = (problem["code"].as_str(), problem["detail"].as_str()) else {
        let detail = "not a response of cuckood: check the URL; does a proxy respond in its place?";
        return ClientError::rejected(
            status.as_u16(),
            status.canonical_reason().unwrap_or("unknown"),
            detail,
        );
    };
    // The service's advice is for HTTP.
    let detail = match status {
        StatusCode::UNAUTHORIZED => {
            "set CUCKOOD_KEY, for the target of `move` CUCKOOD_TO_KEY, to a valid key"
        }
        _ => detail,
    };
    // The detail of several faults does not name them.
    let faults = problem["errors"]
        .as_array()
        .filter(|faults| faults.len() > 1)
        .into_iter()
        .flatten();
    let text = |fault: &Value, field: &str| fault[field].as_str().unwrap_or_default().to_owned();
    let faults = faults
        .take(FAULTS_MAX)
        .map(|fault| format!("; {} {}", text(fault, "pointer"), text(fault, "detail")));
    let detail: String = std::iter::once(detail.to_owned()).chain(faults).collect();
    ClientError::rejected(status.as_u16(), code, &detail)
}

/// A client of one service.
pub struct Client {
    url: String,
    key: Option<String>,
    agent: Agent,
}

impl ServiceAddress {
    /// Builds a client. Its timeout covers connecting only.
    ///
    /// # Errors
    /// If TLS is needed and there is no certificate to trust, or a damaged one in the file of `--cacert`.
    pub fn client(&self) -> anyhow::Result<Client> {
        // Without TLS no certificates are needed.
        let is_tls = self
            .url
            .get(..8)
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"));
        let client = Client::with_tls(&self.url, TlsConfig::default());
        let agent = match is_tls {
            false => client.agent,
            true => {
                let tcp = ().chain(ConnectProxyConnector::default()).chain(TcpConnector::default());
                let connector = tcp.chain(TlsConnector::new(self.roots()?)?);
                Agent::with_parts(
                    client.agent.config().clone(),
                    connector,
                    DefaultResolver::default(),
                )
            }
        };
        Ok(Client {
            key: self.key.clone(),
            agent,
            ..client
        })
    }

    /// Returns the certificates of `--cacert`, or of SSL_CERT_FILE and SSL_CERT_DIR, or else the system's.
    fn roots(&self) -> anyhow::Result<Vec<CertificateDer<'static>>> {
        let (source, found) = match &self.cacert {
            Some(path) => (
                path.display().to_string(),
                load_certs_from_paths(Some(path), None),
            ),
            None => ("the system".to_owned(), load_native_certs()),
        };
        if found.certs.is_empty() || self.cacert.is_some() && !found.errors.is_empty() {
            let faults: String = found
                .errors
                .iter()
                .map(|fault| format!("; {fault}"))
                .collect();
            bail!(
                "{source} contains no certificate, or a damaged one{faults}; name a PEM file with --cacert or SSL_CERT_FILE"
            );
        }
        Ok(found.certs)
    }
}

impl Client {
    /// A client without a key and with this TLS configuration.
    pub fn with_tls(url: &str, tls: TlsConfig) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(5)))
            .tls_config(tls)
            .build();
        Self {
            url: url.trim_end_matches('/').to_owned(),
            key: None,
            agent: agent.into(),
        }
    }

    /// Returns the complete URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Sends a request, and returns the response if its status is a success.
    fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: SendBody<'_>,
        timeout: Option<Duration>,
    ) -> Result<Response<ureq::Body>, ClientError> {
        let mut request = Request::builder().method(method).uri(self.url(path));
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(body)
            .map_err(|error| self.broken(path, error.into()))?;
        let request = self
            .agent
            .configure_request(request)
            .timeout_global(timeout)
            .build();
        let mut response = self
            .agent
            .run(request)
            .map_err(|error| self.broken(path, error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let text = response
            .body_mut()
            .with_config()
            .limit(RESPONSE_BYTES_MAX)
            .read_to_string();
        Err(rejected(response.status(), &text.unwrap_or_default()))
    }

    fn broken(&self, path: &str, source: ureq::Error) -> ClientError {
        let why = match &source {
            ureq::Error::Io(error) => match tls_fault(error) {
                Some(fault) => fault,
                None => format!("{error}; is the service running, and --url right?"),
            },
            ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => {
                format!("{source}; is the service running, and --url right?")
            }
            _ => source.to_string(),
        };
        let path = path.split('?').next().unwrap_or(path);
        let message = format!("{}: {why}", self.url(path));
        ClientError {
            status: None,
            code: String::new(),
            message,
        }
    }

    /// Sends a request, and returns the body of the response if its status is a success.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: SendBody<'_>,
        timeout: Option<Duration>,
    ) -> Result<String, ClientError> {
        let mut response = self.send(method, path, headers, body, timeout)?;
        let text = response
            .body_mut()
            .with_config()
            .limit(RESPONSE_BYTES_MAX)
            .read_to_string();
        text.map_err(|error| self.broken(path, error))
    }

    /// Returns the JSON at a path; null if it is none.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get(&self, path: &str, timeout: Option<Duration>) -> Result<Value, ClientError> {
        let text = self.call(Method::GET, path, &[], SendBody::none(), timeout)?;
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Returns the bytes at a path, as they arrive.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn read(&self, path: &str) -> Result<BodyReader<'static>, ClientError> {
        let response = self.send(Method::GET, path, &[], SendBody::none(), None)?;
        Ok(response.into_body().into_reader())
    }
}

/// Describes a failed handshake; `None` for any other error.
fn tls_fault(error: &std::io::Error) -> Option<String> {
    let advice = "name its certificate or its authority with --cacert";
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(fault) => Some(format!(
            "the certificate of the service is rejected: {}; {advice}",
            tls::reason(fault)
        )),
        rustls::Error::InvalidMessage(_) => {
            Some("the service does not use TLS; use a URL with http://".to_owned())
        }
        other => Some(format!("TLS failed: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_name_code_and_faults() {
        let proxy = rejected(StatusCode::BAD_GATEWAY, "<html>oops</html>").to_string();
        assert!(
            proxy.starts_with("502 Bad Gateway: ") && proxy.contains("proxy"),
            "{proxy}"
        );
        let one = r#"{"code":"invalid-request","detail":"/id too long","errors":[{"pointer":"/id","detail":"too long"}]}"#;
        assert_eq!(
            rejected(StatusCode::UNPROCESSABLE_ENTITY, one).to_string(),
            "422 invalid-request: /id too long"
        );
        let two = r#"{"code":"invalid-request","detail":"2 parts","errors":[{"pointer":"/a","detail":"missing"},{"pointer":"/b","detail":"empty"}]}"#;
        assert_eq!(
            rejected(StatusCode::UNPROCESSABLE_ENTITY, two).to_string(),
            "422 invalid-request: 2 parts; /a missing; /b empty"
        );
        let none = rejected(
            StatusCode::CONFLICT,
            r#"{"code":"filter-full","detail":"full"}"#,
        )
        .to_string();
        assert_eq!(none, "409 filter-full: full");
        let no_key = r#"{"code":"unauthenticated","detail":"send the header"}"#;
        let no_key = rejected(StatusCode::UNAUTHORIZED, no_key).to_string();
        assert!(no_key.contains("CUCKOOD_KEY"), "{no_key}");
    }

    #[test]
    fn connection_error_names_url_and_next_step() {
        let client = Client::with_tls("http://127.0.0.1:1/", TlsConfig::default());
        // As printed, with the chain of causes.
        let error = format!(
            "{:#}",
            anyhow::Error::from(client.get("/readyz", None).unwrap_err())
        );
        assert!(error.starts_with("http://127.0.0.1:1/readyz: "), "{error}");
        assert!(
            error.ends_with("; is the service running, and --url right?"),
            "{error}"
        );
    }

    #[test]
    fn pauses_double_up_to_limit() {
        let pauses: Vec<u128> = pauses().take(8).map(|pause| pause.as_millis()).collect();
        assert_eq!(pauses, [250, 500, 1_000, 2_000, 4_000, 8_000, 8_000, 8_000]);
    }
}
