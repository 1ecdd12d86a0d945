//! TLS with rustls. The certificate can be replaced while connections arrive.

use crate::domain::Timestamp;
use anyhow::Context;
use arc_swap::ArcSwap;
use der::asn1::{AnyRef, GeneralizedTime, UtcTime};
use der::{Decode, SliceReader, Tag, Tagged};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Accepts TLS connections with the newest certificate that could be read.
pub struct Tls(ArcSwap<Presented>);

/// The configuration of new connections, and when the first certificate of its chain expires.
type Presented = (Arc<ServerConfig>, Option<Timestamp>);

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
        self.0.load().1
    }

    /// Runs the handshake of a new connection; `None` if it fails.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> Option<TlsStream<S>> {
        let accepted = TlsAcceptor::from(self.0.load().0.clone()).accept(stream).await;
        accepted.inspect_err(|error| tracing::debug!(%error, "TLS handshake failed")).ok()
    }
}

fn read(cert: &Path, key: &Path) -> anyhow::Result<Presented> {
    let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.with_context(|| cert.display().to_string())?;
    let expires_at = chain.iter().filter_map(|certificate| expiry(certificate).ok()).min();
    let key = PrivateKeyDer::from_pem_file(key).with_context(|| key.display().to_string())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("server.tls_cert and server.tls_key")?;
    Ok((Arc::new(config), expires_at))
}

/// Returns the end of a certificate's validity (RFC 5280, 4.1).
fn expiry(certificate: &[u8]) -> der::Result<Timestamp> {
    let certificate = AnyRef::from_der(certificate)?;
    let signed = AnyRef::decode(&mut SliceReader::new(certificate.value())?)?;
    let mut fields = SliceReader::new(signed.value())?;
    // The version, if there is one; serial number, signature algorithm, issuer.
    let has_version = matches!(AnyRef::decode(&mut fields)?.tag(), Tag::ContextSpecific { .. });
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
