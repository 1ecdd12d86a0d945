//! TLS with rustls. The certificate can be replaced while connections arrive.

use anyhow::{anyhow, ensure};
use arc_swap::ArcSwap;
use cuckood_state::domain::Timestamp;
use der::asn1::{AnyRef, GeneralizedTime, UtcTime};
use der::{Decode, SliceReader, Tag, Tagged};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CertificateError, ServerConfig};
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Accepts TLS connections with the newest certificate that could be read.
pub struct Tls(ArcSwap<Presented>);

/// Maximum size of a session's buffer. A client that does not read holds it in addition to its response.
const SESSION_BUFFER_BYTES: usize = 16 << 10;

/// The configurations of new connections.
struct Presented {
    /// Offers `http/1.1` by ALPN.
    http: Arc<ServerConfig>,
    /// Ignores ALPN.
    other: Arc<ServerConfig>,
    /// When the first certificate of the chain expires.
    expires_at: Option<Timestamp>,
}

/// The protocol inside TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inside {
    /// HTTP/1.1.
    Http,
    /// A protocol without a name for ALPN.
    Other,
}

impl Tls {
    /// Reads certificate and key.
    ///
    /// # Errors
    /// If a file can't be read, or the two don't match.
    pub fn new(cert: &Path, key: &Path) -> anyhow::Result<Tls> {
        Ok(Tls(ArcSwap::from_pointee(read(cert, key)?)))
    }

    /// Reads certificate and key again, for new connections.
    ///
    /// # Errors
    /// Those of [`Self::new`]; nothing has changed then.
    pub fn read(&self, cert: &Path, key: &Path) -> anyhow::Result<()> {
        self.0.store(Arc::new(read(cert, key)?));
        Ok(())
    }

    /// When the first certificate of the chain expires.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.0.load().expires_at
    }

    /// Runs the handshake of a new connection; `None` if it fails.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        inside: Inside,
    ) -> Option<TlsStream<S>> {
        let presented = self.0.load_full();
        let config = match inside {
            Inside::Http => presented.http.clone(),
            Inside::Other => presented.other.clone(),
        };
        let accept = TlsAcceptor::from(config).accept_with(stream, |session| {
            session.set_buffer_limit(Some(SESSION_BUFFER_BYTES))
        });
        let accepted = accept.await;
        accepted
            .inspect_err(|error| tracing::debug!(%error, "TLS handshake failed"))
            .ok()
    }
}

fn read(cert: &Path, key: &Path) -> anyhow::Result<Presented> {
    let chain =
        CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let unreadable = |setting: &str, path: &Path, fault: pem::Error, wanted: &str| {
        let why = pem_fault(&fault);
        anyhow!(
            "{setting}: {}: {why}; name a PEM file with {wanted}",
            path.display()
        )
    };
    let chain_of = "the service's certificate, then those of its issuers";
    let chain = chain.map_err(|fault| unreadable("server.tls_cert", cert, fault, chain_of))?;
    ensure!(
        !chain.is_empty(),
        "server.tls_cert: {}: it has no certificate; name a PEM file with {chain_of}",
        cert.display()
    );
    let expires_at = chain
        .iter()
        .filter_map(|certificate| expiry(certificate).ok())
        .min();
    let private = PrivateKeyDer::from_pem_file(key);
    let private =
        private.map_err(|fault| unreadable("server.tls_key", key, fault, "the private key"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|fault| {
            let why = pair_fault(&fault);
            let cert = cert.display();
            let key = key.display();
            anyhow!("server.tls_cert {cert} and server.tls_key {key} can't be used: {why}")
        })?;
    let mut http = config.clone();
    http.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Presented {
        http: Arc::new(http),
        other: Arc::new(config),
        expires_at,
    })
}

/// Returns why a PEM file can't be read.
fn pem_fault(fault: &pem::Error) -> String {
    match fault {
        pem::Error::NoItemsFound => "it has no PEM section of this kind".to_owned(),
        pem::Error::Io(error) => error.to_string(),
        pem::Error::MissingSectionEnd { .. }
        | pem::Error::IllegalSectionStart { .. }
        | pem::Error::Base64Decode(_) => "it is damaged".to_owned(),
        other => other.to_string(),
    }
}

/// Returns why a certificate and a key can't be used together, and the next step.
fn pair_fault(fault: &rustls::Error) -> String {
    match fault {
        rustls::Error::InconsistentKeys(_) => {
            "the key belongs to another certificate; name its own".to_owned()
        }
        rustls::Error::InvalidCertificate(fault) => {
            format!(
                "the certificate is rejected: {}; issue it again",
                reason(fault)
            )
        }
        rustls::Error::General(_) => {
            "the key has an unknown type; use RSA, ECDSA or Ed25519".to_owned()
        }
        other => other.to_string(),
    }
}

/// Returns why a certificate is rejected.
pub fn reason(fault: &CertificateError) -> String {
    match fault {
        CertificateError::UnknownIssuer => "no trusted authority has issued it".to_owned(),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is issued for other names".to_owned()
        }
        CertificateError::Revoked => "it is revoked".to_owned(),
        CertificateError::BadSignature => "its signature is wrong".to_owned(),
        CertificateError::BadEncoding => "it is damaged".to_owned(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it is issued for another purpose".to_owned()
        }
        // The library's other reasons are rare, and some are texts of their own.
        other => other.to_string(),
    }
}

/// Returns the end of a certificate's validity (RFC 5280, 4.1).
fn expiry(certificate: &[u8]) -> der::Result<Timestamp> {
    let certificate = AnyRef::from_der(certificate)?;
    let signed = AnyRef::decode(&mut SliceReader::new(certificate.value())?)?;
    let mut fields = SliceReader::new(signed.value())?;
    // The version, if there is one; serial number, signature algorithm, issuer.
    let has_version = matches!(
        AnyRef::decode(&mut fields)?.tag(),
        Tag::ContextSpecific { .. }
    );
    for _ in 0..(if has_version { 3 } else { 2 }) {
        AnyRef::decode(&mut fields)?;
    }
    let mut validity = SliceReader::new(AnyRef::decode(&mut fields)?.value())?;
    AnyRef::decode(&mut validity)?;
    let not_after = AnyRef::decode(&mut validity)?;
    let since_epoch = match not_after.tag() {
        Tag::UtcTime => not_after.decode_as::<UtcTime>()?.to_unix_duration(),
        _ => not_after.decode_as::<GeneralizedTime>()?.to_unix_duration(),
    };
    Ok(Timestamp(since_epoch.as_secs().saturating_mul(1_000)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{ClientConfig, RootCertStore};
    use tokio_rustls::TlsConnector;

    #[tokio::test]
    async fn http_is_offered_by_alpn() {
        let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let [cert, key] = ["cert.pem", "key.pem"].map(|name| directory.path().join(name));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let tls = Tls::new(&cert, &key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        for (inside, offered, wanted) in [
            (
                Inside::Http,
                &["h2", "http/1.1"][..],
                Some(&b"http/1.1"[..]),
            ),
            (Inside::Http, &[], None),
            (Inside::Other, &["redis"], None),
        ] {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let mut config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots.clone())
                .with_no_client_auth();
            config.alpn_protocols = offered
                .iter()
                .map(|name| name.as_bytes().to_vec())
                .collect();
            let (client, server) = tokio::io::duplex(16 << 10);
            let connector = TlsConnector::from(Arc::new(config));
            let connect = connector.connect("localhost".try_into().unwrap(), client);
            let (client, server) = tokio::join!(connect, tls.accept(server, inside));
            assert!(server.is_some());
            assert_eq!(
                client.unwrap().get_ref().1.alpn_protocol(),
                wanted,
                "{inside:?} {offered:?}"
            );
        }
    }
}
